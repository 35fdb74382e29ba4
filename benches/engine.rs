//! What does the protocol itself cost? A whole attempt and its release without I/O: commands built and queued,
//! replies decoded, credited and counted, timers set and cleared.
//!
//! `cargo bench --bench engine`.
#![allow(clippy::as_conversions)] // figures to print

#[path = "support/criterion.rs"]
#[allow(unreachable_pub)]
mod estimates;
#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;
#[path = "../tests/support/world.rs"]
#[allow(dead_code, unreachable_pub)]
mod world;

use std::{error::Error, hint::black_box};

use criterion::{BenchmarkId, Criterion};
use quorlock::internal::engine::Event;
use report::Section;
use world::{World, spec};

const NODES: [usize; 4] = [1, 3, 5, 7];

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("engine");
    for nodes in NODES {
        let mut world = World::new(nodes);
        group.bench_function(BenchmarkId::from_parameter(nodes), |bencher| {
            bencher.iter(|| pair(&mut world));
        });
    }
    group.finish();
    criterion.final_summary();
    report()
}

/// An acquire that all nodes grant, and its release.
fn pair(world: &mut World) {
    let World { engine, now, .. } = world;
    engine.acquire(*now, black_box(spec("orders/42")));
    answer(world, b"+OK\r\n");
    let Some(Event::Acquired { grant, .. }) = world.engine.poll_event() else {
        panic!("not acquired");
    };
    assert!(!grant.valid_until.since(world.now).is_zero());
    world.engine.release(world.now, grant.lease, true);
    answer(world, b":1\r\n");
    let Some(Event::Released { result: Ok(()), .. }) = world.engine.poll_event() else {
        panic!("not released");
    };
}

/// What a driver does in a turn, but for the system calls.
fn answer(world: &mut World, reply: &[u8]) {
    let World { engine, now, .. } = world;
    for node in engine.nodes() {
        let len = black_box(engine.outgoing(node)).len();
        assert!(len > 0, "nothing was sent");
        engine.wrote(node, len);
    }
    black_box(engine.poll_timeout());
    for node in engine.nodes() {
        engine.handle_input(*now, node, black_box(reply));
        assert!(engine.poll_close().is_none(), "the reply was not understood");
    }
    black_box(engine.poll_timeout());
}

fn report() -> Result<(), Box<dyn Error>> {
    let question = "What does the protocol itself cost, without I/O?";
    let mut section = Section::new("engine", question, "cargo bench --bench engine");
    section.say("An acquire that all nodes grant and its release, from the command's bytes to the settled event.");
    let mut rows = Vec::new();
    for nodes in NODES {
        let nanos = estimates::median_nanos("engine", &nodes.to_string())?;
        let per_reply = nanos / (2 * nodes) as f64;
        rows.push(vec![nodes.to_string(), format!("{nanos:.0} ns"), format!("{per_reply:.0} ns")]);
    }
    section.table(&["N", "a pair", "per reply"], &rows);
    section.finish()
}
