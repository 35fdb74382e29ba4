//! What does one bad node cost? The medians of acquire and release with one node of five stopped, silent,
//! slow or down, as ratios to five healthy nodes in the same run.
//!
//! `cargo bench --bench faults [ROUNDS]`. Healthy and faulty rounds alternate, so that whatever else the
//! machine does falls on both. Two groups of five servers and, where a fault needs one, a proxy share its
//! cores.
#![allow(clippy::as_conversions)] // figures to print

#[path = "../tests/support/proxy.rs"]
#[allow(dead_code, unreachable_pub)]
mod proxy;
#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;
#[path = "support/samples.rs"]
#[allow(dead_code, unreachable_pub)]
mod samples;

use std::{
    error::Error,
    time::{Duration, Instant},
};

use proxy::{Plan, Proxy};
use quorlock::{LocalLocker, testing::Servers};
use report::Section;
use samples::{Samples, compared};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The nodes to connect to before the fault, and the proxy that the fault needs.
type Broken = (Vec<String>, Option<(Proxy, Plan)>);

fn main() -> Result<()> {
    let rounds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(5_000);
    let question = "What does one bad node of five cost?";
    let mut section = Section::new("faults", question, "cargo bench --bench faults");
    section.say(format!(
        "`LocalLocker`, {rounds} rounds on each of two groups of five servers, in turns; in brackets the ratio to \
         the group in which all is well."
    ));
    let mut rows = Vec::new();
    let mut with = |name: &str, break_one: fn(&mut Servers) -> Result<Broken>| {
        rows.push(measure(name, rounds, break_one)?);
        Result::Ok(())
    };
    with("healthy (noise)", |servers| Ok((servers.tcp_urls(), None)))?;
    with("stopped (SIGSTOP)", |servers| {
        servers[4].pause()?;
        Ok((servers.tcp_urls(), None))
    })?;
    with("silent (proxy)", |servers| proxied(servers, Plan::silent()))?;
    with("20 ms slow (proxy)", |servers| proxied(servers, Plan::delay(Duration::from_millis(20))))?;
    with("refusing connections", |servers| {
        servers[4].kill()?;
        Ok((servers.tcp_urls(), None))
    })?;
    let columns = ["one node of five", "acquire, median", "p99", "release, median", "p99"];
    section.table(&columns, &rows);
    section.finish()
}

fn proxied(servers: &Servers, plan: Plan) -> Result<Broken> {
    let proxy = Proxy::start(servers[4].tcp_url())?;
    let mut urls = servers.tcp_urls();
    urls[4] = proxy.url();
    Ok((urls, Some((proxy, plan))))
}

fn measure(
    name: &str,
    rounds: usize,
    break_one: fn(&mut Servers) -> Result<Broken>,
) -> Result<Vec<String>> {
    let (healthy, mut broken) = (Servers::start(5)?, Servers::start(5)?);
    let good = LocalLocker::connect(healthy.tcp_urls())?;
    let (urls, proxy) = break_one(&mut broken)?;
    let bad = LocalLocker::connect(urls)?;
    if let Some((proxy, plan)) = &proxy {
        proxy.set_live(plan.clone());
    }
    let (mut with, mut without) = (Times::default(), Times::default());
    for _ in 0..rounds {
        without.round(&good)?;
        with.round(&bad)?;
    }
    let mut row = vec![name.to_string()];
    for (with, without) in [(with.acquire, without.acquire), (with.release, without.release)] {
        let (with, without) = (with.sorted(), without.sorted());
        row.push(compared(with.median(), without.median()));
        row.push(compared(with.p99(), without.p99()));
    }
    Ok(row)
}

#[derive(Default)]
struct Times {
    acquire: Samples,
    release: Samples,
}

impl Times {
    fn round(&mut self, locker: &LocalLocker) -> Result<()> {
        let start = Instant::now();
        let guard = locker.lock("bench").try_acquire()?;
        let held = Instant::now();
        guard.release()?;
        self.acquire.add(held - start);
        self.release.add(held.elapsed());
        Ok(())
    }
}
