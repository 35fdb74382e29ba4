//! What does reading a reply cost, and building a command? Beside the redis crate's parser and redis-protocol, on
//! the replies that a lock client sees.
//!
//! `cargo bench --manifest-path benches/peers/Cargo.toml --bench resp`, from the root of the checkout.

#[path = "../../support/criterion.rs"]
mod estimates;
#[path = "../../support/report.rs"]
#[allow(dead_code)]
mod report;

use std::{error::Error, hint::black_box, path::Path, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput};
use quorlock::{
    Drift,
    internal::{
        command::{By, Subject, Verb, encode},
        resp::decode::{Decoder, Kind, Limits},
        token::TokenSource,
        validity::Ttl,
    },
};
use redis_protocol::{resp2, resp3};
use report::Section;

/// What is read, how many replies it is, and which version of the protocol does not have it.
struct Sample {
    name: &'static str,
    bytes: Vec<u8>,
    replies: usize,
    unknown_to: &'static str,
}

fn samples() -> Vec<Sample> {
    let sample =
        |name, bytes: &[u8]| Sample { name, bytes: bytes.into(), replies: 1, unknown_to: "" };
    let hello = b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n\
        $2\r\nid\r\n:4711\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
        $7\r\nmodules\r\n*0\r\n";
    let no_script = b"-NOSCRIPT No matching script. Please use EVAL.\r\n";
    let info = [b"$5000\r\n".as_slice(), &[b'x'; 5000], b"\r\n"].concat();
    vec![
        sample("granted", b"+OK\r\n"),
        Sample { unknown_to: PARSERS[3], ..sample("refused (RESP2)", b"$-1\r\n") },
        Sample { unknown_to: PARSERS[2], ..sample("refused (RESP3)", b"_\r\n") },
        sample("released", b":1\r\n"),
        sample("NOSCRIPT", no_script),
        Sample { replies: 64, ..sample("64 grants", &b"+OK\r\n".repeat(64)) },
        Sample { unknown_to: PARSERS[2], ..sample("HELLO 3", hello) },
        sample("INFO, 5 kB", &info),
    ]
}

const PARSERS: [&str; 4] = ["quorlock", "redis", "redis-protocol RESP2", "redis-protocol RESP3"];

fn main() -> Result<(), Box<dyn Error>> {
    // Of the checkout, where the other sections are. Cargo starts benchmarks in their package's folder.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
    let mut criterion = Criterion::default()
        .output_directory(Path::new("target/criterion"))
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for sample in samples() {
        let mut group = criterion.benchmark_group(sample.name);
        group.throughput(Throughput::Bytes(sample.bytes.len() as u64));
        let mut decoder = Decoder::new(Limits::default());
        for parser in PARSERS {
            if parser == sample.unknown_to {
                continue;
            }
            let bytes = &sample.bytes[..];
            let mut read = || match parser {
                "quorlock" => ours(&mut decoder, bytes),
                "redis" => redis_crate(bytes, sample.replies),
                "redis-protocol RESP2" => protocol_2(bytes),
                _ => protocol_3(bytes),
            };
            assert_eq!(read(), sample.replies, "{parser} reads {}", sample.name);
            group.bench_function(BenchmarkId::from_parameter(parser), |bencher| {
                bencher.iter(&mut read);
            });
        }
        group.finish();
    }
    commands(&mut criterion);
    criterion.final_summary();
    report()
}

fn ours(decoder: &mut Decoder, bytes: &[u8]) -> usize {
    decoder.feed(black_box(bytes)).expect("within the limits");
    let mut replies = 0;
    while let Some(reply) = decoder.decode().expect("well-formed") {
        black_box(matches!(reply.kind(), Kind::Simple(b"OK")));
        replies += 1;
    }
    replies
}

/// One value at a time: where each ends is told to it.
fn redis_crate(bytes: &[u8], replies: usize) -> usize {
    let pieces = bytes.chunks(bytes.len() / replies);
    pieces
        .map(|piece| black_box(redis::parse_redis_value(black_box(piece)).expect("well-formed")))
        .count()
}

fn protocol_2(bytes: &[u8]) -> usize {
    let (mut rest, mut replies) = (black_box(bytes), 0);
    while let Some((frame, len)) = resp2::decode::decode(rest).expect("well-formed") {
        black_box(frame);
        rest = &rest[len..];
        replies += 1;
    }
    replies
}

fn protocol_3(bytes: &[u8]) -> usize {
    let (mut rest, mut replies) = (black_box(bytes), 0);
    while let Some((frame, len)) = resp3::decode::complete::decode(rest).expect("well-formed") {
        black_box(frame);
        rest = &rest[len..];
        replies += 1;
    }
    replies
}

/// `SET resource token NX PX ttl`.
fn commands(criterion: &mut Criterion) {
    let token = TokenSource::new([7; 32]).token();
    let ttl = Ttl::parse(Duration::from_secs(30), Drift::default()).expect("in range");
    let mut out = Vec::new();
    let mut build = || {
        out.clear();
        let key = black_box(b"orders/42");
        let subject = Subject { key, counter: b"", token: &token, ttl, count: 0 };
        encode(&mut out, Verb::Acquire, By::Digest, subject);
        black_box(out.len())
    };
    let theirs = || {
        let mut command = redis::cmd("SET");
        command.arg(black_box("orders/42")).arg(token.as_str()).arg("NX").arg("PX").arg(30_000);
        black_box(command.get_packed_command()).len()
    };
    assert_eq!(build(), theirs(), "the same bytes");
    let mut group = criterion.benchmark_group("SET");
    group.bench_function(BenchmarkId::from_parameter("quorlock"), |bencher| {
        bencher.iter(&mut build)
    });
    group.bench_function(BenchmarkId::from_parameter("redis"), |bencher| bencher.iter(theirs));
    group.finish();
}

fn report() -> Result<(), Box<dyn Error>> {
    let question = "What does reading a reply cost, and building a command?";
    let command = "cargo bench --manifest-path benches/peers/Cargo.toml --bench resp";
    let mut section = Section::new("resp", question, command);
    section.say("Nanoseconds a reply, and in brackets multiples of ours. Replies are those that a lock client sees.");
    let mut rows = Vec::new();
    for Sample { name, replies, unknown_to, bytes } in samples() {
        let nanos = |parser: &str| -> Result<f64, Box<dyn Error>> {
            Ok(estimates::median_nanos(name, parser)? / replies as f64)
        };
        let ours = nanos("quorlock")?;
        let rate = bytes.len() as f64 / replies as f64 / ours * 1e3;
        let mut row = vec![name.to_string(), format!("{rate:.0}"), format!("{ours:.1}")];
        for parser in &PARSERS[1..] {
            row.push(if *parser == unknown_to {
                String::new()
            } else {
                let theirs = nanos(parser)?;
                format!("{theirs:.1} ({:.1}x)", theirs / ours)
            });
        }
        rows.push(row);
    }
    let columns = ["reply", "MB/s", PARSERS[0], PARSERS[1], PARSERS[2], PARSERS[3]];
    section.table(&columns, &rows);
    let (ours, theirs) =
        (estimates::median_nanos("SET", "quorlock")?, estimates::median_nanos("SET", "redis")?);
    section.table(
        &["command", "quorlock", "redis"],
        &[vec!["SET".into(), format!("{ours:.1}"), format!("{theirs:.1} ({:.1}x)", theirs / ours)]],
    );
    section.finish()
}
