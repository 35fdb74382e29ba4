//! How a contended lock goes from hand to hand.
//!
//! `cargo bench --bench waiters [WAITERS]`: that many waiters in four processes on one resource, each holding
//! it for a millisecond; then one holder and one waiter in another process, 5 ms away each way. Both with the
//! nodes' notifications and without.
#![allow(clippy::as_conversions)] // figures to print

#[path = "../tests/support/proxy.rs"]
#[allow(dead_code, unreachable_pub)]
mod proxy;
#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;

use std::{
    error::Error,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use proxy::{Plan, Proxy};
use quorlock::{
    Locker,
    internal::clock,
    testing::{Answer, Servers},
};
use report::Section;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PROCESSES: usize = 4;
const WAIT: Duration = Duration::from_secs(120);

fn main() -> Result<()> {
    if let Ok(urls) = std::env::var("QUORLOCK_BENCH_URLS") {
        return wait_in_child(&urls);
    }
    let waiters = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(1000);
    let question = "How does a contended lock go from hand to hand?";
    let mut section = Section::new("waiters", question, "cargo bench --bench waiters");
    section.say(format!(
        "{waiters} waiters in {PROCESSES} processes on one resource, each holding it for a millisecond: from a release \
         to the next acquire, in round trips of an uncontended acquire. Far away: one holder and one waiter in another \
         locker, every node 10 ms away."
    ));
    let mut rows = Vec::new();
    for (name, tracking) in [("notified", true), ("not notified", false)] {
        let mut row = vec![name.to_string()];
        row.extend(many(waiters, tracking)?);
        row.extend(far(tracking)?);
        rows.push(row);
    }
    let columns = [
        "waiters are",
        "hand-over, median",
        "p99",
        "commands each, per node",
        "far away, median",
        "worst",
    ];
    section.table(&columns, &rows);
    section.finish()
}

/// Waiters in several processes.
fn many(waiters: usize, tracking: bool) -> Result<Vec<String>> {
    let servers = Servers::start(5)?;
    let trip = round_trip(&servers)?;
    let commands = |servers: &Servers| -> Result<i64> {
        let Answer::Text(info) = servers[0].command(&["INFO", "stats"])? else {
            return Err("no INFO".into());
        };
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        Ok(line.ok_or("no such line")?.trim().parse()?)
    };
    let before = commands(&servers)?;
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Command::new(std::env::current_exe()?)
                .env("QUORLOCK_BENCH_URLS", servers.tcp_urls().join(","))
                .env("QUORLOCK_BENCH_WAITERS", (waiters / PROCESSES).to_string())
                .env("QUORLOCK_BENCH_TRACKING", tracking.to_string())
                .stdout(Stdio::piped())
                .spawn()
        })
        .collect::<std::io::Result<_>>()?;
    // When each holder had the lock and when it let go, by one clock for all.
    let mut holds: Vec<(u64, u64)> = Vec::new();
    for mut child in children {
        let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        for line in lines {
            let line = line?;
            let (from, to) = line.split_once(' ').ok_or("not a hold")?;
            holds.push((from.parse()?, to.parse()?));
        }
        child.wait()?;
    }
    holds.sort_unstable();
    let overlaps = holds.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
    let gap = |pair: &[(u64, u64)]| Duration::from_nanos(pair[1].0.saturating_sub(pair[0].1));
    let mut gaps: Vec<_> = holds.windows(2).map(gap).collect();
    gaps.sort_unstable();
    let hand_overs = i64::try_from(gaps.len())?;
    if holds.len() < waiters || overlaps > 0 {
        return Err(format!("{} of {waiters} served, {overlaps} overlaps", holds.len()).into());
    }
    Ok(vec![
        trips_of(gaps[gaps.len() / 2], trip),
        trips_of(gaps[gaps.len() * 99 / 100], trip),
        ((commands(&servers)? - before) / hand_overs).to_string(),
    ])
}

/// A time, and how many round trips it is.
fn trips_of(time: Duration, trip: Duration) -> String {
    format!("{time:.1?} ({:.1} trips)", time.as_secs_f64() / trip.as_secs_f64())
}

fn wait_in_child(urls: &str) -> Result<()> {
    let waiters: usize = std::env::var("QUORLOCK_BENCH_WAITERS")?.parse()?;
    let tracking = std::env::var("QUORLOCK_BENCH_TRACKING")? == "true";
    let locker = Locker::builder().nodes(urls.split(',')).tracking(tracking).connect()?;
    let holds = std::thread::scope(|scope| {
        let wait = || -> std::result::Result<(u64, u64), quorlock::AcquireError> {
            let guard = locker.lock("contended").timeout(WAIT).acquire()?;
            let from = clock::now().as_nanos();
            std::thread::sleep(Duration::from_millis(1));
            let to = clock::now().as_nanos();
            drop(guard);
            Ok((from, to))
        };
        let waiters: Vec<_> = (0..waiters).map(|_| scope.spawn(wait)).collect();
        waiters.into_iter().map(|waiter| waiter.join()).collect::<Vec<_>>()
    });
    let mut out = std::io::stdout().lock();
    for hold in holds {
        let (from, to) = hold.map_err(|_| "a waiter panicked")??;
        writeln!(out, "{from} {to}")?;
    }
    drop(out);
    locker.close(Duration::from_secs(1))?;
    Ok(())
}

/// A median acquire of a free lock.
fn round_trip(servers: &Servers) -> Result<Duration> {
    let locker = Locker::connect(servers.tcp_urls())?;
    let mut trips = Vec::new();
    for _ in 0..200 {
        let guard = locker.lock("free").timeout(WAIT).acquire()?;
        trips.push(guard.attempt().elapsed());
        guard.release()?;
    }
    trips.sort_unstable();
    Ok(trips[trips.len() / 2])
}

/// One holder and one waiter, with nodes that are far away.
fn far(tracking: bool) -> Result<Vec<String>> {
    const ROUNDS: usize = 40;
    let servers = Servers::start(5)?;
    let proxies: Vec<_> = servers
        .iter()
        .map(|server| Proxy::start(server.tcp_url()))
        .collect::<std::io::Result<_>>()?;
    let locker = || {
        let nodes = Locker::builder().nodes(proxies.iter().map(Proxy::url));
        nodes.tracking(tracking).connect()
    };
    let (ours, theirs) = (locker()?, locker()?);
    for proxy in &proxies {
        proxy.set_live(Plan::delay(Duration::from_millis(10)));
    }
    let (mut times, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let guard = ours.lock("far").timeout(WAIT).acquire()?;
        trips.push(guard.attempt().elapsed());
        std::thread::scope(|scope| -> Result<()> {
            let waiter = scope.spawn(|| {
                let guard = theirs.lock("far").timeout(WAIT).acquire();
                (Instant::now(), guard)
            });
            std::thread::sleep(Duration::from_millis(300));
            let released = Instant::now();
            drop(guard);
            let (acquired, guard) = waiter.join().map_err(|_| "the waiter panicked")?;
            guard?.release()?;
            times.push(acquired - released);
            Ok(())
        })?;
    }
    times.sort_unstable();
    trips.sort_unstable();
    let trip = trips[ROUNDS / 2];
    Ok(vec![trips_of(times[ROUNDS / 2], trip), trips_of(times[ROUNDS - 1], trip)])
}
