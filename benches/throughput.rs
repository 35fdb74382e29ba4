//! How much does one locker do for many callers? Pairs of acquire and release per second, and client CPU for
//! each, beside a bare loop that keeps as many locks going (`support/pipelined.rs`).
//!
//! `cargo bench --bench throughput [SECONDS]`, five servers. In turns of half a second, so that whatever else the
//! machine does falls on all.
#![allow(clippy::as_conversions)] // figures to print

#[path = "support/pipelined.rs"]
#[allow(dead_code, unreachable_pub)]
mod pipelined;
#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pipelined::Pipelined;
use quorlock::{LocalLocker, Locker, testing::Servers};
use report::Section;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TURN: Duration = Duration::from_millis(500);
const TTL: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let seconds = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(10);
    let question = "How much does one locker do for many callers?";
    let mut section = Section::new("throughput", question, "cargo bench --bench throughput");
    section.say(format!(
        "Pairs of acquire and release per second, and client CPU a pair, on five servers that share the cores; \
         {seconds} s each, in turns. The floor is one loop with prepared bytes that keeps as many locks going."
    ));
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let mut rows = Vec::new();
    for callers in [1, 16, 64, 256] {
        let servers = Servers::start(5)?;
        let urls = servers.tcp_urls();
        // Loads the script that the floor uses too.
        drop(LocalLocker::connect(&urls)?);
        let mut floor = Pipelined::connect(&urls, callers)?;
        let locker = Locker::connect(&urls)?;
        let mut all = [
            ("floor", Total::default()),
            ("tasks", Total::default()),
            ("threads", Total::default()),
        ];
        for _ in 0..2 * seconds {
            all[0].1.add(|| floor.run(TURN))?;
            all[1].1.add(|| tasks(&runtime, &locker, callers))?;
            all[2].1.add(|| threads(&locker, callers))?;
        }
        let least = all[0].1.rate();
        for (name, total) in &all {
            rows.push(vec![
                format!("{callers} {name}"),
                format!("{:.0}", total.rate()),
                format!("{:.2}x", total.rate() / least),
                format!("{:.2} µs", total.cpu.as_secs_f64() * 1e6 / total.pairs as f64),
            ]);
        }
    }
    section.table(&["callers", "pairs/s", "to the floor", "client CPU a pair"], &rows);
    section.finish()
}

#[derive(Default)]
struct Total {
    pairs: u64,
    wall: Duration,
    cpu: Duration,
}

impl Total {
    fn add(&mut self, run: impl FnOnce() -> Result<u64>) -> Result<()> {
        let (wall, cpu) = (Instant::now(), process_cpu());
        self.pairs += run()?;
        self.wall += wall.elapsed();
        self.cpu += process_cpu() - cpu;
        Ok(())
    }

    fn rate(&self) -> f64 {
        self.pairs as f64 / self.wall.as_secs_f64()
    }
}

fn tasks(runtime: &Runtime, locker: &Locker, callers: usize) -> Result<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (locker, stop) = (locker.clone(), stop.clone());
            runtime.spawn(async move {
                let (resource, mut pairs) = (format!("task-{caller}"), 0);
                while !stop.load(Ordering::Relaxed) {
                    let guard = locker.lock(&resource).ttl(TTL).try_acquire_async().await;
                    guard.expect("acquires").release_async().await.expect("releases");
                    pairs += 1;
                }
                pairs
            })
        })
        .collect();
    thread::sleep(TURN);
    stop.store(true, Ordering::Relaxed);
    let mut pairs = 0;
    for task in tasks {
        pairs += runtime.block_on(task)?;
    }
    Ok(pairs)
}

fn threads(locker: &Locker, callers: usize) -> Result<u64> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let work = move |caller: usize| {
            let (resource, mut pairs) = (format!("thread-{caller}"), 0);
            while !stop.load(Ordering::Relaxed) {
                let guard = locker.lock(&resource).ttl(TTL).try_acquire().expect("acquires");
                guard.release().expect("releases");
                pairs += 1;
            }
            pairs
        };
        let threads: Vec<_> =
            (0..callers).map(|caller| scope.spawn(move || work(caller))).collect();
        thread::sleep(TURN);
        stop.store(true, Ordering::Relaxed);
        let mut pairs = 0;
        for thread in threads {
            pairs += thread.join().map_err(|_| "a caller panicked")?;
        }
        Ok(pairs)
    })
}

/// Of this process alone: the servers' CPU is not in it.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
