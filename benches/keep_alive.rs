//! Ten thousand kept-alive locks in one process: are any lost, and what do they cost?
//!
//! `cargo bench --bench keep_alive [LOCKS] [SECONDS]`, on five local servers.
#![allow(clippy::as_conversions)] // figures to print

#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;

use std::{
    error::Error,
    time::{Duration, Instant},
};

use quorlock::{KeepAlive, Locker, testing::Servers};
use report::Section;
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
    let taken = started.elapsed();
    let memory = (resident()? - before) / locks;
    let (held, cpu) = (Instant::now(), process_cpu());
    std::thread::sleep(Duration::from_secs(seconds));
    let (held, cpu) = (held.elapsed(), process_cpu() - cpu);
    let lost = guards.iter().filter(|guard| guard.lost_signal().is_lost()).count();
    let least = guards.iter().map(|guard| guard.validity()).min().unwrap_or_default();
    drop(guards);
    let started = Instant::now();
    locker.close(Duration::from_secs(10))?;
    let question = format!("What do {locks} kept-alive locks cost?");
    let mut section = Section::new("keep_alive", &question, "cargo bench --bench keep_alive");
    section.say(format!(
        "Through one `Locker` on five servers, with a ttl of {ttl:?}: taken in {taken:.1?}, kept for {held:.1?}, \
         released in {:.1?}.",
        started.elapsed(),
    ));
    let share = 100.0 * cpu.as_secs_f64() / held.as_secs_f64();
    let extensions = locks as f64 * held.as_secs_f64() / (ttl.as_secs_f64() / 3.0);
    let figures = [
        ("locks lost", lost.to_string()),
        ("least validity at the end", format!("{least:.1?}")),
        ("memory a lock", format!("{memory} bytes")),
        ("client CPU", format!("{share:.1} % of a core")),
        ("client CPU an extension", format!("{:.1?}", cpu.div_f64(extensions))),
    ];
    let rows = figures.map(|(what, figure)| vec![what.to_string(), figure]);
    section.table(&["", "figure"], &rows);
    section.finish()?;
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
