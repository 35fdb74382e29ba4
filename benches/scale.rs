//! How far it goes: memory for each lock held, work for each server as groups are added, where one group ends,
//! and how long a contended lock takes from hand to hand.
//!
//! `cargo bench --bench scale [PART]... [pairs=N] [locks=N] [hand_overs=N]`, where a part is `memory`, `groups`,
//! `load` or `waiters`; all of them by default, in this order. Callers are tasks of one tokio runtime. Servers
//! and callers share the machine's cores, so pairs per second say what this machine does with all of them on it;
//! the CPU time of each server does not depend on that, and is what a group's end is computed from.
#![allow(clippy::as_conversions)] // figures to print

#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;

use std::{
    collections::HashMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use quorlock::{
    Acquire, Builder, LockGuard, Locker, ShardedLocker, Stats,
    internal::clock,
    testing::{Answer, Server, Servers},
};
use report::Section;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Longer than any part takes.
const TTL: Duration = Duration::from_secs(60 * 60);

const PARTS: [&str; 4] = ["memory", "groups", "load", "waiters"];

fn main() -> Result<()> {
    let (mut parts, mut pairs, mut locks, mut hand_overs) = (Vec::new(), 50_000, 100_000, 1_000);
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            Some(("pairs", count)) => pairs = count.parse()?,
            Some(("locks", count)) => locks = count.parse()?,
            Some(("hand_overs", count)) => hand_overs = count.parse()?,
            None if PARTS.contains(&&*arg) => parts.push(arg),
            None if arg == "--bench" => {}
            _ => return Err(format!("{arg}: not one of {PARTS:?}, nor a count").into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let runs = |part: &str| parts.is_empty() || parts.iter().any(|asked| asked == part);
    let mut section = Section::new("scale", "How far does it go?", "cargo bench --bench scale");
    // First: memory that an earlier part has freed would be used again, and not be counted.
    if runs("memory") {
        memory(&runtime, &mut section, locks)?;
    }
    if runs("groups") {
        groups(&runtime, &mut section, pairs)?;
    }
    if runs("load") {
        load(&runtime, &mut section, pairs)?;
    }
    if runs("waiters") {
        waiters(&runtime, &mut section, hand_overs)?;
    }
    section.finish()
}

// Memory.

/// Many locks held through one locker.
fn memory(runtime: &Runtime, section: &mut Section, locks: u64) -> Result<()> {
    let servers = Servers::start(3)?;
    let locker = settings().nodes(servers.tcp_urls()).connect()?;
    await_nodes(|| locker.stats())?;
    // What the first locks bring into memory is not theirs.
    drop(runtime.block_on(hold(&locker, "first", 1_000))?);
    eventually("the servers are empty", || holds_on_all(&servers, 0))?;
    let (before, usage) = (resident()?, usages(&servers)?);
    let guards = runtime.block_on(hold(&locker, "lock", locks))?;
    eventually("every lock is on every server", || holds_on_all(&servers, locks))?;
    let (client, after) = (resident()?.saturating_sub(before), usages(&servers)?);
    let valid = guards.iter().filter(|guard| guard.is_valid()).count() as u64;
    if valid != locks {
        return Err(format!("{valid} of {locks} locks are valid").into());
    }
    section.say(format!(
        "Memory for {locks} locks held through one `Locker` on three servers, with resources of some 11 bytes. The \
         client's is what its process grew by, guards included; a server's is its `used_memory`."
    ));
    let a_lock = |bytes: u64| format!("{:.0}", bytes as f64 / locks as f64);
    let mut rows = vec![vec!["client".into(), a_lock(client), mib(client)]];
    for (i, (before, after)) in usage.iter().zip(&after).enumerate() {
        let grown = after.memory.saturating_sub(before.memory);
        rows.push(vec![format!("server {}", i + 1), a_lock(grown), mib(grown)]);
    }
    section.table(&["process", "bytes a lock", "MiB in all"], &rows);
    drop(guards);
    locker.close(Duration::from_secs(60))?;
    if holds_on_all(&servers, 0)? { Ok(()) } else { Err("a key was left behind".into()) }
}

async fn hold(locker: &Locker, name: &str, locks: u64) -> Result<Vec<LockGuard>> {
    const AT_A_TIME: u64 = 256;
    let mut guards = Vec::new();
    for start in (0..locks).step_by(AT_A_TIME as usize) {
        let numbers = start..locks.min(start + AT_A_TIME);
        let acquire = |i| locker.lock(&format!("{name}-{i}")).try_acquire_async();
        let acquires: Vec<_> = numbers.map(acquire).collect();
        for acquire in acquires {
            guards.push(acquire.await?);
        }
    }
    Ok(guards)
}

fn holds_on_all(servers: &[Server], locks: u64) -> Result<bool> {
    let answers: std::io::Result<Vec<_>> =
        servers.iter().map(|server| server.command(&["DBSIZE"])).collect();
    Ok(answers?.iter().all(|answer| *answer == Answer::Integer(locks as i64)))
}

// Groups.

/// The same work over more and more groups.
fn groups(runtime: &Runtime, section: &mut Section, pairs: u64) -> Result<()> {
    let mut rows = Vec::new();
    let mut alone = None;
    for (count, callers) in [(1, 64), (2, 64), (4, 64), (2, 128), (4, 256)] {
        let (used, client) = spread(runtime, count, callers, pairs)?;
        let each = Share::of(&used);
        let alone = *alone.get_or_insert(each);
        let all: f64 = used.iter().map(|usage| usage.cpu).sum();
        rows.push(vec![
            format!("{count}"),
            format!("{}", used.len()),
            format!("{callers}"),
            format!("{:.0} ({:.0})", each.commands, each.commands_most),
            format!("{:.2}", each.commands / alone.commands),
            format!("{:.0} ms ({:.0} ms)", 1e3 * each.cpu, 1e3 * each.cpu_most),
            format!("{:.2}", each.cpu / alone.cpu),
            micros(each.cpu / each.commands),
            micros(all / pairs as f64),
            micros(client.as_secs_f64() / pairs as f64),
        ]);
    }
    section.say(format!(
        "{pairs} pairs of acquire and release through one `ShardedLocker`, each on a resource of its own, over \
         one, two and four groups of three servers: what one server had to do, on average (at most), and that as \
         a share of what it had to do in the first row. A server's commands fall with the groups exactly as the \
         resources are spread. Its CPU falls by less where fewer commands reach it together, which is what more \
         callers for more groups are for, and as here all servers take turns on one machine's cores. The last \
         columns are all servers' and the client's CPU."
    ));
    let columns = [
        "groups",
        "servers",
        "callers",
        "commands a server",
        "share",
        "CPU a server",
        "share",
        "CPU a command",
        "servers' CPU a pair",
        "client CPU a pair",
    ];
    section.table(&columns, &rows);
    Ok(())
}

/// What each server used, and the client's CPU.
fn spread(
    runtime: &Runtime,
    count: usize,
    callers: u64,
    pairs: u64,
) -> Result<(Vec<Usage>, Duration)> {
    let groups = (0..count).map(|_| Servers::start(3)).collect::<std::io::Result<Vec<_>>>()?;
    let names: Vec<_> = (1..=count).map(|i| format!("group-{i}")).collect();
    let mut builder = ShardedLocker::builder().settings(settings());
    for (name, servers) in names.iter().zip(&groups) {
        builder = builder.group(name, servers.tcp_urls());
    }
    let locker = builder.connect()?;
    await_nodes(|| locker.stats())?;
    let before: Vec<_> = groups.iter().map(|group| usages(group)).collect::<Result<_>>()?;
    let of_it = locker.clone();
    let run =
        drive(runtime, callers, pairs, move |resource| of_it.lock(resource).try_acquire_async())?;
    let mut used = Vec::new();
    for ((name, servers), before) in names.iter().zip(&groups).zip(&before) {
        let stats = locker.group_stats(name).ok_or("a closed group")?;
        used.extend(settle(servers, before, stats.acquired)?);
    }
    check_acquired(locker.stats(), pairs)?;
    locker.close(Duration::from_secs(10))?;
    Ok((used, run.cpu))
}

/// What a server did, on average and at most.
#[derive(Clone, Copy)]
struct Share {
    commands: f64,
    commands_most: f64,
    cpu: f64,
    cpu_most: f64,
}

impl Share {
    fn of(used: &[Usage]) -> Self {
        let mean =
            |of: &dyn Fn(&Usage) -> f64| used.iter().map(of).sum::<f64>() / used.len() as f64;
        let most = |of: &dyn Fn(&Usage) -> f64| used.iter().map(of).fold(0.0, f64::max);
        let (commands, cpu) = (|usage: &Usage| usage.sent as f64, |usage: &Usage| usage.cpu);
        Self {
            commands: mean(&commands),
            commands_most: most(&commands),
            cpu: mean(&cpu),
            cpu_most: most(&cpu),
        }
    }
}

// Load.

/// One group: more and more nodes, and more and more callers.
fn load(runtime: &Runtime, section: &mut Section, pairs: u64) -> Result<()> {
    let mut rows = Vec::new();
    let mut of_three = None;
    for nodes in [1, 3, 5, 7] {
        for callers in [1, 4, 16, 64, 256] {
            let servers = Servers::start(nodes)?;
            let locker = settings().nodes(servers.tcp_urls()).connect()?;
            await_nodes(|| locker.stats())?;
            let before = usages(&servers)?;
            let of_it = locker.clone();
            let run = drive(runtime, callers, pairs, move |resource| {
                of_it.lock(resource).try_acquire_async()
            })?;
            let share = Share::of(&settle(&servers, &before, pairs)?);
            check_acquired(locker.stats(), pairs)?;
            locker.close(Duration::from_secs(10))?;
            let a_pair = |seconds: f64| seconds / pairs as f64;
            let (client, driver) = (run.cpu.as_secs_f64(), run.drivers.as_secs_f64());
            let cpu = PairCpu {
                client: a_pair(client),
                driver: a_pair(driver),
                server: a_pair(share.cpu_most),
            };
            if (nodes, callers) == (3, 64) {
                of_three = Some(cpu);
            }
            rows.push(vec![
                format!("{nodes}"),
                format!("{callers}"),
                format!("{:.0}", pairs as f64 / run.wall.as_secs_f64()),
                micros(cpu.client),
                micros(cpu.driver),
                format!("{} ({})", micros(a_pair(share.cpu)), micros(cpu.server)),
                format!("{:.0}", 1.0 / cpu.server),
            ]);
        }
    }
    section.say(format!(
        "{pairs} pairs of acquire and release through one `Locker`, each on a resource of its own. A server's CPU \
         for one pair, on average (of the busiest), says where a group ends: at so many pairs per second the \
         busiest server's core is full. It is the rows with many callers that say so: with few, each command \
         wakes the server anew, which it no longer does when it is busy."
    ));
    let columns = [
        "nodes",
        "callers",
        "pairs per second here",
        "client CPU a pair",
        "of that its driver thread",
        "CPU a pair, each server",
        "a group is full at",
    ];
    section.table(&columns, &rows);
    if let Some(cpu) = of_three {
        plan(section, cpu);
    }
    Ok(())
}

/// What one pair takes, in seconds.
#[derive(Clone, Copy)]
struct PairCpu {
    client: f64,
    driver: f64,
    /// Of the busiest one.
    server: f64,
}

/// On paper: what more groups of three would do, each with its servers' cores half full.
fn plan(section: &mut Section, cpu: PairCpu) {
    let of_a_group = 0.5 / cpu.server;
    let row = |groups: u32| {
        let pairs = f64::from(groups) * of_a_group;
        vec![
            format!("{groups}"),
            format!("{}", 3 * groups),
            format!("{pairs:.0}"),
            format!("{:.1}", pairs * cpu.client),
            format!("{groups}"),
            format!("{}", 3 * groups),
        ]
    };
    section.say(format!(
        "On paper, not measured: groups of three servers on a core of their own, half full, at the CPU that 64 \
         callers took above. All clients together need so many cores. A process has a thread for each group and a \
         connection to each server; if one process did it all, each of its driver threads would be busy for {:.0} % \
         of the time, however many groups there are.",
        100.0 * of_a_group * cpu.driver,
    ));
    let columns = [
        "groups",
        "servers",
        "pairs per second",
        "client cores in all",
        "threads a process",
        "connections a process",
    ];
    section.table(&columns, &[1, 2, 4, 8, 16, 32].map(row));
}

/// What driving took.
struct Run {
    wall: Duration,
    /// Of this process.
    cpu: Duration,
    /// Of the lockers' threads in it.
    drivers: Duration,
}

/// Callers that acquire and release until so many pairs are done, one resource for each pair.
fn drive(
    runtime: &Runtime,
    callers: u64,
    pairs: u64,
    lock: impl Fn(&str) -> Acquire + Clone + Send + 'static,
) -> Result<Run> {
    let next = Arc::new(AtomicU64::new(0));
    let (wall, cpu, drivers) = (Instant::now(), process_cpu(), drivers_cpu()?);
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (next, lock) = (next.clone(), lock.clone());
            runtime.spawn(async move {
                let mut done = 0;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= pairs {
                        return Ok::<u64, String>(done);
                    }
                    let acquire = lock(&format!("orders/{number}"));
                    let guard = acquire.await.map_err(|error| error.to_string())?;
                    if !guard.is_valid() || guard.attempt().granted() < guard.attempt().quorum() {
                        return Err(format!("not a lock: {guard:?}"));
                    }
                    // An error if it was not ours on a quorum until now.
                    guard.release_async().await.map_err(|error| error.to_string())?;
                    done += 1;
                }
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += runtime.block_on(task)??;
    }
    if done == pairs {
        let (cpu, drivers) = (process_cpu() - cpu, drivers_cpu()? - drivers);
        Ok(Run { wall: wall.elapsed(), cpu, drivers })
    } else {
        Err(format!("{done} of {pairs} pairs were done").into())
    }
}

/// What servers used for so many pairs, once each of them has run a `SET` and a release for each.
fn settle(servers: &[Server], before: &[Usage], pairs: u64) -> Result<Vec<Usage>> {
    let used = || -> Result<Vec<Usage>> {
        Ok(usages(servers)?.iter().zip(before).map(|(now, before)| now.since(before)).collect())
    };
    eventually("two commands a pair on each server", || {
        Ok(used()?.iter().all(|usage| usage.sent == 2 * pairs))
    })?;
    used()
}

fn check_acquired(stats: Option<Stats>, pairs: u64) -> Result<()> {
    let stats = stats.ok_or("the locker is closed")?;
    if (stats.attempts, stats.acquired, stats.released) == (pairs, pairs, pairs) {
        return Ok(());
    }
    Err(format!("not {pairs} pairs in as many attempts: {stats:?}").into())
}

// Waiters.

/// One lock that many wait for.
fn waiters(runtime: &Runtime, section: &mut Section, hand_overs: usize) -> Result<()> {
    let servers = Servers::start(3)?;
    let mut rows = Vec::new();
    for lockers in [1, 2] {
        for waiting in [1, 10, 100, 1_000] {
            let lockers: Vec<_> = (0..lockers)
                .map(|_| settings().nodes(servers.tcp_urls()).connect())
                .collect::<std::result::Result<_, _>>()?;
            lockers.iter().try_for_each(|locker| await_nodes(|| locker.stats()))?;
            let rounds = (hand_overs / waiting).clamp(1, 100);
            let (mut gaps, mut trips) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                gaps.extend(runtime.block_on(hand_over(&lockers, waiting))?);
                let guard = lockers[0].lock("free").try_acquire()?;
                trips.push(guard.attempt().elapsed());
                guard.release()?;
            }
            assert_eq!(gaps.len(), rounds * waiting);
            gaps.sort_unstable();
            trips.sort_unstable();
            let at = |percent: usize| gaps[(gaps.len() - 1) * percent / 100];
            rows.push(vec![
                format!("{}", lockers.len()),
                format!("{waiting}"),
                format!("{}", gaps.len()),
                format!("{:.1?}", at(50)),
                format!("{:.1?}", at(99)),
                format!("{:.1?}", at(100)),
                format!("{:.1?}", trips[trips.len() / 2]),
            ]);
            for locker in lockers {
                locker.close(Duration::from_secs(10))?;
            }
        }
    }
    section.say(
        "One lock on three servers, and tasks that wait for it in line: from the moment a holder begins to let go \
         until the next one has it, and beside it the median acquire of a free lock. With two lockers the waiters \
         are spread over them, and a single waiter is not in the holder's.",
    );
    let columns =
        ["lockers", "waiters", "hand-overs", "median", "p99", "most", "acquire of a free lock"];
    section.table(&columns, &rows);
    Ok(())
}

/// One holder, and waiters of which each gets the lock once and lets it go at once. Returns how long nobody had
/// it between two of them.
async fn hand_over(lockers: &[Locker], waiting: usize) -> Result<Vec<Duration>> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let nanos = || clock::now().as_nanos();
    let first = lockers[0].lock("contended").timeout(PATIENCE).acquire_async().await?;
    let mut holds = vec![(0, 0)];
    let tasks: Vec<_> = (1..=waiting)
        .map(|i| {
            let locker = &lockers[i % lockers.len()];
            // In line from here on.
            let acquire = locker.lock("contended").timeout(PATIENCE).acquire_async();
            tokio::spawn(async move {
                let guard = acquire.await?;
                let from = nanos();
                if !guard.is_valid() {
                    return Err("a lock without validity".into());
                }
                let to = nanos();
                drop(guard);
                Ok::<_, Box<dyn Error + Send + Sync>>((from, to))
            })
        })
        .collect();
    // Until each locker has asked, was refused, and waits to be told.
    tokio::time::sleep(Duration::from_millis(50)).await;
    holds[0].1 = nanos();
    drop(first);
    for task in tasks {
        holds.push(task.await?.map_err(|error| error.to_string())?);
    }
    holds.sort_unstable();
    if holds.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err("two had the lock at a time".into());
    }
    Ok(holds.windows(2).map(|pair| Duration::from_nanos(pair[1].0 - pair[0].1)).collect())
}

// What the parts share.

/// No node is slow here, only the machine may be busy.
fn settings() -> Builder {
    Builder::new().ttl(TTL).node_timeout(Duration::from_secs(10))
}

/// A quorum is enough to connect; the work of a node is counted only if it gets all of it.
fn await_nodes(stats: impl Fn() -> Option<Stats>) -> Result<()> {
    eventually("every node is connected", || {
        Ok(stats().ok_or("the locker is closed")?.nodes.iter().all(|node| node.ready))
    })
}

/// What a server has used so far.
#[derive(Clone, Copy)]
struct Usage {
    /// Commands that lockers have sent: those inside scripts are not among them.
    sent: u64,
    /// In seconds.
    cpu: f64,
    /// In bytes.
    memory: u64,
}

impl Usage {
    fn of(server: &Server) -> Result<Self> {
        let Answer::Text(info) = server.command(&["INFO", "all"])? else {
            return Err("no INFO".into());
        };
        let fields: HashMap<_, _> = info.lines().filter_map(|line| line.split_once(':')).collect();
        let field = |name: &str| fields.get(name).ok_or_else(|| format!("no {name} in INFO"));
        // A command that never ran has no line.
        let calls = |command: &str| -> Result<u64> {
            let Some(line) = fields.get(&*format!("cmdstat_{command}")) else {
                return Ok(0);
            };
            let calls = line.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            Ok(calls.ok_or("a command without calls")?.parse()?)
        };
        let seconds = |name: &str| -> Result<f64> { Ok(field(name)?.parse()?) };
        Ok(Self {
            sent: calls("set")? + calls("evalsha")? + calls("eval")?,
            cpu: seconds("used_cpu_user")? + seconds("used_cpu_sys")?,
            memory: field("used_memory")?.parse()?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            cpu: self.cpu - before.cpu,
            memory: self.memory.saturating_sub(before.memory),
        }
    }
}

fn usages(servers: &[Server]) -> Result<Vec<Usage>> {
    servers.iter().map(Usage::of).collect()
}

fn eventually(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        if start.elapsed() > Duration::from_secs(30) {
            return Err(format!("waited in vain: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Of this process alone: the servers' CPU is not in it.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Of the threads that drive lockers, as far as they run.
fn drivers_cpu() -> Result<Duration> {
    let mut nanos = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == "quorlock" {
            let times = std::fs::read_to_string(task.join("schedstat"))?;
            nanos += times.split(' ').next().ok_or("no schedstat")?.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(nanos))
}

/// What this process has in memory, in bytes.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

fn micros(seconds: f64) -> String {
    format!("{:.1} µs", 1e6 * seconds)
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
