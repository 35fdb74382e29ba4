//! Many callers on one client: pairs of acquire and release per second and client CPU per pair, beside rslock.
//!
//! `cargo run --release [TASKS] [SECONDS]`. Both clients use one group of five local servers and one tokio
//! runtime, in turns of a second, so that whatever else the machine does falls on both. Only ratios mean
//! anything: servers and clients share the machine's cores.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use quorlock::{LocalLocker, Locker, testing::Servers};
use rslock::LockManager;
use rustix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TTL: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let tasks = args.first().copied().unwrap_or(256);
    let seconds = args.get(1).copied().unwrap_or(5);
    let servers = Servers::start(5)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ours = Locker::connect(servers.tcp_urls())?;
    let theirs = LockManager::new(servers.tcp_urls());
    let (mut us, mut them) = (Round::default(), Round::default());
    for _ in 0..seconds {
        us.add(runtime.block_on(many(tasks, Ours(ours.clone()))));
        them.add(runtime.block_on(many(tasks, Theirs(theirs.clone()))));
    }
    println!("{tasks} tasks on distinct resources, five servers, {seconds} s each, in turns");
    us.print("quorlock Locker");
    them.print("rslock 0.10");
    println!(
        "quorlock / rslock: {:.2}x the pairs per second, {:.2}x the client CPU per pair\n",
        us.pairs_per_second() / them.pairs_per_second(),
        us.cpu_per_pair().as_secs_f64() / them.cpu_per_pair().as_secs_f64(),
    );
    one_caller(&servers, &ours)
}

/// Locks and releases for one task.
trait Client: Clone + Send + 'static {
    fn pair(&self, resource: &str) -> impl Future<Output = ()> + Send;
}

#[derive(Clone)]
struct Ours(Locker);

#[derive(Clone)]
struct Theirs(LockManager);

impl Client for Ours {
    async fn pair(&self, resource: &str) {
        let acquire = self.0.lock(resource).ttl(TTL).try_acquire_async();
        let guard = acquire.await.expect("quorlock acquires");
        guard.release_async().await.expect("quorlock releases");
    }
}

impl Client for Theirs {
    async fn pair(&self, resource: &str) {
        let lock = self.0.lock(resource.as_bytes(), TTL).await.expect("rslock acquires");
        self.0.unlock(&lock).await;
    }
}

#[derive(Default)]
struct Round {
    pairs: u64,
    wall: Duration,
    cpu: Duration,
}

impl Round {
    fn add(&mut self, other: Self) {
        self.pairs += other.pairs;
        self.wall += other.wall;
        self.cpu += other.cpu;
    }

    fn pairs_per_second(&self) -> f64 {
        self.pairs as f64 / self.wall.as_secs_f64()
    }

    fn cpu_per_pair(&self) -> Duration {
        self.cpu / u32::try_from(self.pairs.max(1)).expect("fewer pairs")
    }

    fn print(&self, name: &str) {
        let (rate, cpu) = (self.pairs_per_second(), self.cpu_per_pair());
        println!("{name:>16}: {rate:>8.0} pairs/s, {cpu:>7.2?} client CPU per pair");
    }
}

async fn many(tasks: usize, client: impl Client) -> Round {
    let stop = Arc::new(AtomicBool::new(false));
    let pairs = Arc::new(AtomicU64::new(0));
    let (wall, cpu) = (Instant::now(), process_cpu());
    let tasks: Vec<_> = (0..tasks)
        .map(|i| {
            let (client, stop, pairs) = (client.clone(), stop.clone(), pairs.clone());
            tokio::spawn(async move {
                let resource = format!("resource-{i}");
                while !stop.load(Ordering::Relaxed) {
                    client.pair(&resource).await;
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task ends");
    }
    let pairs = pairs.load(Ordering::Relaxed);
    Round { pairs, wall: wall.elapsed(), cpu: process_cpu() - cpu }
}

/// Of this process alone: the servers' CPU is not in it.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What the hand-over to the locker's thread costs a caller who is alone.
fn one_caller(servers: &Servers, shared: &Locker) -> Result<()> {
    const ROUNDS: usize = 5_000;
    let local = LocalLocker::connect(servers.tcp_urls())?;
    let (mut in_thread, mut handed_over) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let guard = local.lock("one").ttl(TTL).try_acquire()?;
        in_thread.push(start.elapsed());
        guard.release()?;
        let start = Instant::now();
        let guard = shared.lock("one").ttl(TTL).try_acquire()?;
        handed_over.push(start.elapsed());
        guard.release()?;
    }
    let (in_thread, handed_over) = (median(&mut in_thread), median(&mut handed_over));
    println!("one caller, median acquire: LocalLocker {in_thread:.1?}, Locker {handed_over:.1?}");
    println!(
        "Locker / LocalLocker: {:.2}x",
        handed_over.as_secs_f64() / in_thread.as_secs_f64()
    );
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
