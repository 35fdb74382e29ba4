//! What does one bad node cost? The medians of acquire and release with one node of five stopped, silent,
//! slow or down, as ratios to five healthy nodes in the same run.
//!
//! `cargo bench --bench faults [ROUNDS]`. Healthy and faulty rounds alternate, so that whatever else the
//! machine does falls on both. Two groups of five servers and, where a fault needs one, a proxy share its
//! cores.

#[path = "../tests/support/proxy.rs"]
#[allow(dead_code, unreachable_pub)]
mod proxy;

use std::{
    error::Error,
    time::{Duration, Instant},
};

use proxy::{Plan, Proxy};
use quorlock::{LocalLocker, testing::Servers};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The nodes to connect to before the fault, and the proxy that the fault needs.
type Broken = (Vec<String>, Option<(Proxy, Plan)>);

fn main() -> Result<()> {
    let rounds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(5_000);
    println!("medians over {rounds} rounds, and as ratios to five healthy nodes in the same run");
    println!("{:<22} {:>24} {:>24}", "one node of five", "acquire", "release");
    report("healthy (noise)", rounds, |servers| Ok((servers.tcp_urls(), None)))?;
    report("stopped (SIGSTOP)", rounds, |servers| {
        servers[4].pause()?;
        Ok((servers.tcp_urls(), None))
    })?;
    report("silent (proxy)", rounds, |servers| proxied(servers, Plan::silent()))?;
    report("20 ms slow (proxy)", rounds, |servers| {
        proxied(servers, Plan::delay(Duration::from_millis(20)))
    })?;
    report("refusing connections", rounds, |servers| {
        servers[4].kill()?;
        Ok((servers.tcp_urls(), None))
    })
}

fn proxied(servers: &Servers, plan: Plan) -> Result<Broken> {
    let proxy = Proxy::start(servers[4].tcp_url())?;
    let mut urls = servers.tcp_urls();
    urls[4] = proxy.url();
    Ok((urls, Some((proxy, plan))))
}

fn report(
    name: &str,
    rounds: usize,
    break_one: impl Fn(&mut Servers) -> Result<Broken>,
) -> Result<()> {
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
    let column = |with: &mut Vec<_>, without: &mut Vec<_>| {
        let (with, without) = (median(with), median(without));
        format!("{with:>9.1?} {:>6.2}x", with.as_secs_f64() / without.as_secs_f64())
    };
    let acquire = column(&mut with.acquire, &mut without.acquire);
    let release = column(&mut with.release, &mut without.release);
    println!("{name:<22} {acquire:>24} {release:>24}");
    Ok(())
}

#[derive(Default)]
struct Times {
    acquire: Vec<Duration>,
    release: Vec<Duration>,
}

impl Times {
    fn round(&mut self, locker: &LocalLocker) -> Result<()> {
        let start = Instant::now();
        let guard = locker.lock("bench").try_acquire()?;
        let held = Instant::now();
        guard.release()?;
        self.acquire.push(held - start);
        self.release.push(held.elapsed());
        Ok(())
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
