//! Ten thousand kept-alive locks in one process: are any lost, and what do they cost?
//!
//! `cargo bench --bench keep_alive [LOCKS] [SECONDS]`, on five local servers.
#![allow(clippy::as_conversions)] // figures to print

use std::{
    error::Error,
    time::{Duration, Instant},
};

use quorlock::{KeepAlive, Locker, testing::Servers};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let locks = args.first().copied().unwrap_or(10_000);
    let seconds = args.get(1).copied().unwrap_or(60);
    let ttl = Duration::from_secs(10);
    let servers = Servers::start(5)?;
    let locker = Locker::builder().nodes(servers.tcp_urls()).connect()?;
    let before = resident()?;
    let started = Instant::now();
    let mut guards = Vec::new();
    for i in 0..locks {
        let resource = format!("lock-{i}");
        let request = locker.lock(&resource).ttl(ttl).keep_alive(KeepAlive::default());
        guards.push(request.try_acquire()?);
    }
    println!("{locks} locks with a ttl of {ttl:?}, taken in {:.1?}", started.elapsed());
    let memory = (resident()? - before) / locks;
    let (held, cpu) = (Instant::now(), process_cpu());
    std::thread::sleep(Duration::from_secs(seconds));
    let (held, cpu) = (held.elapsed(), process_cpu() - cpu);
    let lost = guards.iter().filter(|guard| guard.lost_signal().is_lost()).count();
    let least = guards.iter().map(|guard| guard.validity()).min().unwrap_or_default();
    println!("kept for {held:.1?}: {lost} lost; the least validity left is {least:.1?}");
    println!(
        "{memory} bytes of memory a lock; {:.1} % of a core, {:.1?} client CPU per extension",
        100.0 * cpu.as_secs_f64() / held.as_secs_f64(),
        cpu.div_f64(locks as f64 * held.as_secs_f64() / (ttl.as_secs_f64() / 3.0)),
    );
    drop(guards);
    let started = Instant::now();
    locker.close(Duration::from_secs(10))?;
    println!("released in {:.1?}", started.elapsed());
    if lost > 0 { Err(format!("{lost} locks were lost").into()) } else { Ok(()) }
}

fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What this process has in memory, in bytes.
fn resident() -> Result<u64, Box<dyn Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
