//! How far above the floor is a lock? Acquire and release through each front end beside the bare loop of
//! `support/floor.rs`, for several N, over TCP and Unix sockets.
//!
//! `cargo bench --bench latency [ROUNDS]`. In each round everyone takes and releases one lock, in a new random
//! order: whatever else the machine does, and whatever one leaves behind for the next, falls on all.
#![allow(clippy::as_conversions)] // figures to print

#[path = "support/contenders.rs"]
#[allow(dead_code, unreachable_pub)]
mod contenders;
#[path = "support/floor.rs"]
#[allow(dead_code, unreachable_pub)]
mod floor;
#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;
#[path = "support/samples.rs"]
#[allow(dead_code, unreachable_pub)]
mod samples;

use std::{
    error::Error,
    fmt,
    time::{Duration, Instant},
};

use contenders::{Blocking, Contender, Future, Local};
use floor::{Floor, How};
use quorlock::{Builder, Fencing, LocalLocker, Locker, testing::Servers};
use report::{Plot, Section};
use samples::{Samples, Sorted, compared, micros};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let rounds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(5_000);
    let mut section = Section::new(
        "latency",
        "How far above the floor is a lock?",
        "cargo bench --bench latency",
    );
    section.say(format!(
        "The floor writes prepared bytes to N sockets and reads until a majority has answered. One caller, \
         {rounds} rounds of everyone in random order; in brackets the ratio to the floor of the same rounds."
    ));
    for transport in [Transport::Tcp, Transport::Unix] {
        for nodes in [1, 3, 5] {
            let (name, servers) = (format!("N = {nodes}, {transport}"), Servers::start(nodes)?);
            let runs = measure(front_ends(&transport.urls(&servers))?, rounds)?;
            tabulate(&mut section, &name, &runs);
            if (nodes, transport) == (5, Transport::Tcp) {
                plot(&mut section, &name, &runs)?;
            }
        }
    }
    section.say(
        "What was tried beside: sleeping with a deadline, as a lock must; `TCP_QUICKACK` after every read; and \
         spinning, which is `Builder::spin`. It pays where cores are idle, and costs where servers need them.",
    );
    for (transport, nodes) in [(Transport::Tcp, 5), (Transport::Unix, 1)] {
        let (name, servers) = (format!("N = {nodes}, {transport}"), Servers::start(nodes)?);
        tabulate(&mut section, &name, &measure(tried(&transport.urls(&servers))?, rounds)?);
    }
    section.say(
        "What a fencing token costs: its script on the servers, and a second round trip where it is confirmed.",
    );
    let (name, servers) = ("N = 5, TCP", Servers::start(5)?);
    tabulate(&mut section, name, &measure(fenced(&servers.tcp_urls())?, rounds)?);
    section.finish()
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Transport {
    Tcp,
    Unix,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix",
        })
    }
}

impl Transport {
    fn urls(self, servers: &Servers) -> Vec<String> {
        match self {
            Self::Tcp => servers.tcp_urls(),
            Self::Unix => servers.unix_urls(),
        }
    }
}

type Contenders = Vec<(&'static str, Box<dyn Contender>)>;

fn front_ends(urls: &[String]) -> Result<Contenders> {
    let local = LocalLocker::connect(urls)?; // Loads the scripts that the floor uses too.
    Ok(vec![
        ("floor", Box::new(Floor::connect(urls, "floor", How::Plain)?)),
        ("floor again (noise)", Box::new(Floor::connect(urls, "again", How::Plain)?)),
        ("LocalLocker", Box::new(Local::new(local))),
        ("Locker, blocking", Box::new(Blocking::new(Locker::connect(urls)?))),
        ("Locker, future", Box::new(Future::new(Locker::connect(urls)?))),
    ])
}

fn tried(urls: &[String]) -> Result<Contenders> {
    let local = LocalLocker::connect(urls)?;
    let spinning = || Builder::new().nodes(urls).spin(SPIN);
    Ok(vec![
        ("floor", Box::new(Floor::connect(urls, "floor", How::Plain)?)),
        ("floor, deadline", Box::new(Floor::connect(urls, "timed", How::Timed)?)),
        ("floor, TCP_QUICKACK", Box::new(Floor::connect(urls, "quick", How::QuickAck)?)),
        ("floor, spinning", Box::new(Floor::connect(urls, "spinning", How::Spinning)?)),
        ("LocalLocker", Box::new(Local::new(local))),
        ("LocalLocker, spinning", Box::new(Local::new(spinning().connect_local()?))),
        ("Locker, spinning", Box::new(Blocking::new(spinning().connect()?))),
    ])
}

fn fenced(urls: &[String]) -> Result<Contenders> {
    let local =
        |fencing| Ok::<_, Box<dyn Error>>(Local::fenced(LocalLocker::connect(urls)?, fencing));
    let plain = local(Fencing::Off)?;
    Ok(vec![
        ("floor", Box::new(Floor::connect(urls, "floor", How::Plain)?)),
        ("LocalLocker", Box::new(plain)),
        ("LocalLocker, OneRoundTrip", Box::new(local(Fencing::OneRoundTrip)?)),
        ("LocalLocker, Confirmed", Box::new(local(Fencing::Confirmed)?)),
    ])
}

/// Longer than a round trip on one machine.
const SPIN: Duration = Duration::from_micros(500);

struct Run {
    name: &'static str,
    acquire: Sorted,
    release: Sorted,
}

fn measure(mut contenders: Contenders, rounds: usize) -> Result<Vec<Run>> {
    let mut samples = vec![(Samples::default(), Samples::default()); contenders.len()];
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..rounds + rounds / 10 {
        dice.shuffle(&mut order);
        for &i in &order {
            let started = Instant::now();
            contenders[i].1.acquire()?;
            let held = Instant::now();
            contenders[i].1.release()?;
            let released = Instant::now();
            // The first tenth warms up.
            if round >= rounds / 10 {
                samples[i].0.add(held - started);
                samples[i].1.add(released - held);
            }
        }
    }
    let names = contenders.iter().map(|(name, _)| *name);
    let runs = names.zip(samples).map(|(name, (acquire, release))| Run {
        name,
        acquire: acquire.sorted(),
        release: release.sorted(),
    });
    Ok(runs.collect())
}

fn tabulate(section: &mut Section, name: &str, runs: &[Run]) {
    let floor = &runs[0];
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            vec![
                run.name.to_string(),
                compared(run.acquire.median(), floor.acquire.median()),
                compared(run.acquire.p99(), floor.acquire.p99()),
                compared(run.release.median(), floor.release.median()),
                compared(run.release.p99(), floor.release.p99()),
            ]
        })
        .collect();
    section.table(&[name, "acquire, median", "p99", "release, median", "p99"], &rows);
}

fn plot(section: &mut Section, name: &str, runs: &[Run]) -> Result<()> {
    let lines: Vec<_> = runs
        .iter()
        .map(|run| {
            let slowest = run.acquire.at(99.0);
            let curve = run.acquire.curve();
            let shown = curve.into_iter().filter(|point| point.0 <= micros(slowest));
            (run.name.to_string(), shown.collect())
        })
        .collect();
    let title = format!("Acquire, {name}: how many are done within a time");
    let plot = Plot { title: &title, x: "µs", y: "percent", lines: &lines };
    section.plot("latency", &plot)
}

/// Random enough for an order.
struct Dice(u64);

impl Dice {
    fn shuffle(&mut self, order: &mut [usize]) {
        for i in (1..order.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            order.swap(i, (self.0 % (i as u64 + 1)) as usize);
        }
    }
}
