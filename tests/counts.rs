//! What a lock costs, counted exactly: heap allocations, system calls, and what the servers see. Times differ from
//! machine to machine and day to day; these do not.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    alloc::System,
    collections::BTreeMap,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use quorlock::{
    Fencing, LocalLocker,
    testing::{Answer, Server, Servers},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{patient, patient_shared};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The allocator counts for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const PAIRS: usize = 200;

/// Of so many pairs in the steady state. Buffers that grow, as a node is behind by more than ever before, are not that;
/// they cannot go on doing so, and the least of several runs has none of it.
fn allocations(mut pair: impl FnMut()) -> usize {
    let mut run = || {
        let region = Region::new(ALLOCATOR);
        for _ in 0..PAIRS {
            pair();
        }
        let change = region.change();
        change.allocations + change.reallocations
    };
    (0..10).map(|_| run()).min().unwrap()
}

#[test]
fn a_local_locker_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for nodes in [1, 3, 5, 7] {
        let servers = Servers::start(nodes).unwrap();
        let locker = patient(&servers);
        let released = allocations(|| locker.lock("x").try_acquire().unwrap().release().unwrap());
        assert_eq!(released, 0, "N = {nodes}, released");
        let dropped = allocations(|| drop(locker.lock("x").try_acquire().unwrap()));
        assert_eq!(dropped, 0, "N = {nodes}, dropped");
        for fencing in [Fencing::OneRoundTrip, Fencing::Confirmed] {
            let request = || locker.lock("z").fencing(fencing).try_acquire().unwrap();
            let fenced = allocations(|| request().release().unwrap());
            assert_eq!(fenced, 0, "N = {nodes}, {fencing:?}");
        }
        let guard = locker.lock("y").try_acquire().unwrap();
        let extended = allocations(|| {
            guard.extend(Duration::from_secs(10)).unwrap();
        });
        assert_eq!(extended, 0, "N = {nodes}, extended");
    }
}

/// A resource that somebody else has: the refusal says what each node said, in one box.
#[test]
fn a_refusal_allocates_its_record() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = Servers::start(5).unwrap();
    let locker = patient(&servers);
    let _guard = locker.lock("x").try_acquire().unwrap();
    let refused = allocations(|| drop(locker.lock("x").try_acquire().unwrap_err()));
    assert_eq!(refused, PAIRS);
}

/// What goes to another thread and back is shared with it: the resource, the request, the lock, and the release.
const SHARED_LOCKER: usize = 4;

#[test]
fn a_shared_locker_allocates_what_it_hands_over() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = Servers::start(5).unwrap();
    let locker = patient_shared(servers.tcp_urls());
    let released = allocations(|| locker.lock("x").try_acquire().unwrap().release().unwrap());
    assert_eq!(released, SHARED_LOCKER * PAIRS, "released");
}

/// Run as a child under `strace`: so many pairs, and no more than it takes to make them.
#[test]
#[ignore = "for system_calls_of_a_pair"]
fn pairs_for_strace() {
    let pairs: usize = std::env::var("QUORLOCK_TEST_PAIRS").unwrap().parse().unwrap();
    let urls = std::env::var("QUORLOCK_TEST_URLS").unwrap();
    let locker = LocalLocker::connect(urls.split(',')).unwrap();
    let pair = || locker.lock("x").try_acquire().unwrap().release().unwrap();
    let before = locker.io_counts();
    pair();
    let nodes = u64::try_from(urls.split(',').count()).unwrap();
    assert_eq!(locker.io_counts().writes - before.writes, 2 * nodes, "a node came late");
    for _ in 0..pairs {
        pair();
    }
}

/// How often the system is called by a process that makes so many pairs, by the calls' names. None if it failed.
fn traced(servers: &Servers, pairs: usize) -> Option<BTreeMap<String, i64>> {
    let out = std::env::temp_dir().join(format!("quorlock-strace-{}", std::process::id()));
    let status = Command::new("strace")
        .args(["-f", "-c", "-U", "calls,name", "-o"])
        .arg(&out)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "pairs_for_strace", "--ignored"])
        .env("QUORLOCK_TEST_PAIRS", pairs.to_string())
        .env("QUORLOCK_TEST_URLS", servers.tcp_urls().join(","))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let text = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    if !status.is_ok_and(|status| status.success()) {
        return None;
    }
    let line = |line: &str| {
        let (calls, name) = line.trim().split_once(' ')?;
        Some((name.trim().to_owned(), calls.parse().ok()?))
    };
    Some(text.unwrap().lines().filter_map(line).collect())
}

fn system_calls(servers: &Servers, pairs: usize) -> BTreeMap<String, i64> {
    // A node that is connected a moment later than the others spoils the count.
    (0..20).find_map(|_| traced(servers, pairs)).unwrap()
}

#[test]
fn system_calls_of_a_pair() {
    const NODES: i64 = 5;
    const MORE: i64 = 200;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !Command::new("strace").args(["-qq", "true"]).output().is_ok_and(|out| out.status.success())
    {
        println!("skipped: there is no strace here that may trace");
        return;
    }
    let servers = Servers::start(5).unwrap();
    let (few, many) = (system_calls(&servers, 100), system_calls(&servers, 300));
    // What 200 pairs more have cost.
    let cost = |name: &str| many.get(name).unwrap_or(&0) - few.get(name).unwrap_or(&0);
    let (writes, reads, polls) = (cost("sendto"), cost("recvfrom"), cost("epoll_wait"));
    assert_eq!(writes, 2 * NODES * MORE, "one write a node for each of the two");
    // What has come when a quorum is there may be read with the next reply, so a few may differ at the end.
    assert!(reads <= 2 * NODES * MORE + NODES, "{reads} reads: at most one for each reply");
    assert!(polls <= reads, "{polls} waits, {reads} reads: every wait has brought something");
    assert_eq!(cost("getpid"), 2 * MORE, "looks for a fork before each of the two");
    let known = ["sendto", "recvfrom", "epoll_wait", "getpid", "total"];
    for name in many.keys().filter(|name| !known.contains(&name.as_str())) {
        assert!(cost(name).abs() < MORE / 10, "{} {name} for {MORE} pairs", cost(name));
    }
}

/// What the servers have counted, and beside it what a look at their books costs.
struct Books<'a> {
    locker: &'a LocalLocker,
    servers: &'a Servers,
    looks: Vec<u64>,
}

/// Of one server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Entry {
    set: u64,
    evalsha: u64,
    bytes: u64,
}

impl<'a> Books<'a> {
    fn new(locker: &'a LocalLocker, servers: &'a Servers) -> Self {
        let mut books = Self { locker, servers, looks: vec![0; servers.len()] };
        let _ = books.read();
        let (before, after) = (books.read(), books.read());
        let pairs = before.iter().zip(&after);
        books.looks = pairs.map(|(before, after)| after.bytes - before.bytes).collect();
        books
    }

    fn read(&self) -> Vec<Entry> {
        assert_eq!(self.locker.flush(Duration::from_secs(5)), 0);
        let figure = |server: &Server, section: &str, name: &str| {
            let Answer::Text(info) = server.command(&["INFO", section]).unwrap() else { panic!() };
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split([',', '\r']).next().unwrap().parse::<u64>().unwrap()
        };
        let entry = |server: &Server| Entry {
            set: figure(server, "commandstats", "cmdstat_set:calls="),
            evalsha: figure(server, "commandstats", "cmdstat_evalsha:calls="),
            bytes: figure(server, "stats", "total_net_input_bytes:"),
        };
        self.servers.iter().map(entry).collect()
    }

    /// What `work` makes of them, beside the look.
    fn of(&self, work: impl FnOnce()) -> Vec<Entry> {
        let before = self.read();
        work();
        let after = self.read();
        let change = |((before, after), look): ((&Entry, &Entry), &u64)| Entry {
            set: after.set - before.set,
            evalsha: after.evalsha - before.evalsha,
            bytes: after.bytes - before.bytes - look,
        };
        before.iter().zip(&after).zip(&self.looks).map(change).collect()
    }
}

/// A `SET` and a run of the release script a pair on each server, and not a byte besides.
#[test]
fn commands_and_bytes_of_a_pair() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers);
    let pair = || locker.lock("orders/42").try_acquire().unwrap().release().unwrap();
    pair();
    let (set, release) = (102, 133);
    let each = Entry { set: 100, evalsha: 100, bytes: 100 * (set + release) };
    let cost = Books::new(&locker, &servers).of(|| (0..100).for_each(|_| pair()));
    assert_eq!(cost, [each; 3]);
}

fn counters(servers: &Servers) -> Vec<Answer> {
    let counter = ["HGET", "orders/42:fencing-counter", "count"];
    servers.iter().map(|server| server.command(&counter).unwrap()).collect()
}

/// Two scripts a pair on each server, and a third on the quorum that confirms the token. (The servers book the `SET` in
/// the script as one too.)
#[test]
fn commands_of_a_fenced_pair() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers);
    for (fencing, runs) in [(Fencing::OneRoundTrip, 6), (Fencing::Confirmed, 6 + 2)] {
        let request = || locker.lock("orders/42").fencing(fencing);
        let pair = || request().try_acquire().unwrap().release().unwrap();
        // Until the counters, which begin at each server's own clock, are the same on all.
        while {
            pair();
            locker.flush(Duration::from_secs(5));
            counters(&servers).windows(2).any(|two| two[0] != two[1])
        } {}
        let books = Books::new(&locker, &servers);
        let cost = || {
            let cost = books.of(|| (0..20).for_each(|_| pair()));
            assert!(cost.iter().all(|entry| entry.set == 20), "{cost:?}");
            cost.iter().map(|entry| entry.evalsha).sum::<u64>()
        };
        // A node that is late to confirm on a busy machine is not waited for: others are asked too.
        let least = (0..10).map(|_| cost()).min();
        assert_eq!(least, Some(20 * runs), "{fencing:?}");
    }
}
