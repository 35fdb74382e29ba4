//! Timeouts and cancels by the thousand, on real servers and among callers that share their connections: each leaves
//! replies on the way that could be taken for another command's. That none is shows in what the servers hold. Where a
//! node is said to have granted, extended or released a lock, the lock's key says the same, asked past the proxies.
//!
//! No connection is lost here, so that every reply comes, late or not; the test that cuts them is `chaos.rs`.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use quorlock::{
    Acquire, AcquireError, Attempt, Builder, ExtendError, LockGuard, Locker, NodeError,
    ReleaseError, RetryPolicy, Stats, Vote,
    testing::{Answer, Server, Servers},
};
use support::{
    block_on, eventually, ms,
    proxy::{Chaos, Flow, Plan, Proxy, Random},
    secs,
};

const NODES: usize = 3;
const QUORUM: usize = 2;
/// Each locker has its own connections, and its own patience with a node.
const NODE_TIMEOUTS: [Duration; 2] = [ms(1), ms(5)];
const CALLERS: u64 = 8;
/// What a caller has under way at a time.
const BATCH: usize = 8;
/// What all callers want.
const SHARED: [&str; 4] = ["a", "b", "c", "d"];
/// No lock is over before it was looked at, but those that are meant to be.
const TTL: Duration = secs(60);
const TTL_SHORT: Duration = ms(40);
/// Longer than anything here takes, and far from what a node is given before it counts as dead.
const LIMIT: Duration = secs(900);

#[test]
fn late_replies_are_credited_to_nobody_else() {
    hold(2000);
}

#[test]
#[ignore = "takes minutes: `make soak`"]
fn soak() {
    let timeouts = std::env::var("TIMEOUTS").expect("TIMEOUTS, please");
    hold(timeouts.parse().expect("TIMEOUTS is a number"));
}

/// Goes on until so many commands have timed out or were cancelled, and looks at what the servers hold all the while.
fn hold(injected: u64) {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    });
    println!("SEED={seed}");
    let servers = Servers::start(NODES).unwrap();
    let proxies: Vec<_> =
        servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect();
    let lockers = NODE_TIMEOUTS.map(|timeout| connect(&proxies, timeout));
    let run =
        Run { servers, held: [const { AtomicBool::new(false) }; 4], over: AtomicBool::new(false) };
    let begun = Instant::now();
    let seen = thread::scope(|scope| {
        let _over = Over(&run.over);
        scope.spawn(|| run.make_trouble(&proxies, Random(seed)));
        let caller = |name| {
            let locker = lockers[name as usize % lockers.len()].clone();
            let caller = Caller {
                run: &run,
                locker,
                random: Random(seed ^ name),
                name,
                seen: Seen::default(),
            };
            scope.spawn(|| caller.work())
        };
        let callers: Vec<_> = (1..=CALLERS).map(caller).collect();
        while !run.is_over() && !counted(&lockers).is_enough(injected) {
            assert!(begun.elapsed() < LIMIT, "it takes too long: {}", counted(&lockers));
            thread::sleep(ms(20));
        }
        run.over.store(true, Ordering::SeqCst);
        let seen = callers.into_iter().map(|caller| caller.join().expect("no panic"));
        seen.reduce(Seen::and).unwrap()
    });
    let took = begun.elapsed();
    let counted = counted(&lockers);
    println!("{counted}\n{seen:?}");
    let done = counted.injected();
    println!(
        "{done} timeouts and cancels in {took:.1?}, {:.0}/s",
        done as f64 / took.as_secs_f64()
    );
    assert_eq!((counted.protocol_errors, counted.faults), (0, 0), "nothing else went wrong");
    assert_eq!(proxies.iter().map(Proxy::ended).sum::<usize>(), 0, "no connection was lost");
    for locker in lockers {
        locker.close(secs(30)).expect("every release is answered by every node");
    }
    for server in run.servers.iter() {
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), Answer::Integer(0), "nothing is left");
    }
    assert!(counted.late_replies > injected / 2, "{counted}");
    seen.assert_enough(injected);
}

/// With all nodes, and before there is trouble.
fn connect(proxies: &[Proxy], node_timeout: Duration) -> Locker {
    let builder = Builder::new().nodes(proxies.iter().map(Proxy::url)).node_timeout(node_timeout);
    // A node that is slow is not to be taken for dead.
    let builder = builder.connect_timeout(secs(60)).retry(RetryPolicy::jittered(ms(1), ms(5)));
    let locker = builder.connect().unwrap();
    eventually("all are connected", || locker.stats().unwrap().nodes.iter().all(|node| node.ready));
    locker
}

struct Run {
    servers: Servers,
    /// Whether somebody holds what is shared.
    held: [AtomicBool; SHARED.len()],
    over: AtomicBool,
}

impl Run {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Nodes that are slow in either direction, that answer byte by byte, or that stop for a while; and at last none.
    fn make_trouble(&self, proxies: &[Proxy], mut random: Random) {
        let _over = Over(&self.over);
        while !self.is_over() {
            let node = random.below(NODES as u64) as usize;
            match random.below(4) {
                0 => proxies[node].set_live(Plan::default()),
                1 => proxies[node].set_live(rough(&mut random, None)),
                2 => proxies[node].set_live(rough(&mut random, Some(Duration::ZERO))),
                _ => {
                    self.servers[node].pause().unwrap();
                    thread::sleep(ms(1 + random.below(10)));
                    self.servers[node].resume().unwrap();
                }
            }
            thread::sleep(ms(random.below(40)));
        }
        proxies.iter().for_each(|proxy| proxy.set_live(Plan::default()));
    }
}

fn rough(random: &mut Random, trickle: Option<Duration>) -> Plan {
    let mut flow = |trickle| {
        let seed = random.below(u64::MAX);
        let chaos = Chaos { seed, delay_max: ms(2), stall: (5, ms(20)), cut: 0 };
        Flow { chaos: Some(chaos), trickle, ..Flow::default() }
    };
    Plan { up: flow(None), down: flow(trickle), ..Plan::default() }
}

/// Ends the run for all with the scope that it is in, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What a caller wants.
struct Wish {
    resource: String,
    /// Its place among what is shared. A resource that is not has one caller, once: no node may refuse it.
    shared: Option<usize>,
    ttl: Duration,
    /// Whether it waits for its turn, and for how long.
    patience: Option<Duration>,
}

impl Wish {
    fn start(&self, locker: &Locker) -> Acquire {
        let request = locker.lock(&self.resource).ttl(self.ttl);
        match self.patience {
            Some(patience) => request.timeout(patience).acquire_async(),
            None => request.try_acquire_async(),
        }
    }

    /// What a node says to a command is one of those things that it can say.
    fn check_votes(&self, attempt: &Attempt) {
        for (_, vote) in attempt.votes() {
            match vote {
                Vote::Refused => {
                    assert!(self.shared.is_some(), "nobody else wants it: {attempt:?}")
                }
                Vote::Granted | Vote::Pending | Vote::Unknown(NodeError::Timeout) => {}
                _ => panic!("{attempt:?}"),
            }
        }
    }
}

/// One of many that share a locker.
struct Caller<'a> {
    run: &'a Run,
    locker: Locker,
    random: Random,
    name: u64,
    seen: Seen,
}

impl<'a> Caller<'a> {
    fn work(mut self) -> Seen {
        let _over = Over(&self.run.over);
        while !self.run.is_over() {
            self.batch();
        }
        self.seen
    }

    /// Starts some requests at once, drops some of them at a moment of their own, and sees what comes of the others.
    fn batch(&mut self) {
        let wishes: Vec<_> = (0..BATCH).map(|_| self.wish()).collect();
        let mut acquires: Vec<_> =
            wishes.iter().map(|wish| Some(wish.start(&self.locker))).collect();
        for acquire in &mut acquires {
            if self.random.below(3) == 0 {
                thread::sleep(Duration::from_micros(self.random.below(800)));
                drop(acquire.take());
            }
        }
        for (wish, acquire) in wishes.iter().zip(acquires) {
            if let Some(acquire) = acquire {
                self.settled(wish, block_on(acquire));
            }
        }
    }

    fn wish(&mut self) -> Wish {
        self.seen.wishes += 1;
        let kind = self.random.below(16);
        let shared = (kind < 6).then(|| self.random.below(SHARED.len() as u64) as usize);
        let own = || format!("{}-{}", self.name, self.seen.wishes);
        Wish {
            resource: shared.map_or_else(own, |which| SHARED[which].into()),
            shared,
            ttl: if kind == 15 { TTL_SHORT } else { TTL },
            patience: (kind < 2).then(|| ms(2 + self.random.below(20))),
        }
    }

    fn settled(&mut self, wish: &Wish, result: Result<LockGuard, AcquireError>) {
        match result {
            Ok(guard) if wish.ttl == TTL_SHORT => self.outlive(wish, guard),
            Ok(guard) => self.hold(wish, guard),
            Err(AcquireError::DeadlineExceeded(None)) => self.seen.refused += 1,
            Err(AcquireError::DeadlineExceeded(Some(attempt))) => {
                wish.check_votes(&attempt);
                self.seen.refused += 1;
            }
            Err(AcquireError::NoQuorum(attempt) | AcquireError::Contended(attempt)) => {
                wish.check_votes(&attempt);
                self.seen.refused += 1;
            }
            Err(AcquireError::Expired(_)) if wish.ttl == TTL_SHORT => self.seen.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn hold(&mut self, wish: &Wish, guard: LockGuard) {
        let held = wish.shared.map(|which| &self.run.held[which]);
        let others = held.is_some_and(|held| held.swap(true, Ordering::SeqCst));
        assert!(!others, "two holders of {}", wish.resource);
        self.check_granted(wish, &guard);
        let mut ttl = TTL;
        for _ in 0..self.random.below(3) {
            let longer = ttl + TTL;
            if self.random.below(4) == 0 {
                // It is done all the same, at some time.
                drop(guard.extend_async(longer));
            } else {
                self.extend(wish, &guard, ttl, longer);
            }
            ttl = longer;
        }
        if let Some(held) = held {
            held.store(false, Ordering::SeqCst);
        }
        match self.random.below(4) {
            0 => drop(guard),
            1 => drop(guard.release_async()),
            _ => self.release(wish, guard),
        }
    }

    fn servers(&self) -> std::slice::Iter<'a, Server> {
        self.run.servers.iter()
    }

    fn holds(server: &Server, wish: &Wish, token: &str) -> bool {
        server.get(&wish.resource).unwrap().as_deref() == Some(token)
    }

    /// Every node that has granted the lock by now has its token.
    fn check_granted(&mut self, wish: &Wish, guard: &LockGuard) {
        let (claim, _) = guard.votes().unwrap();
        wish.check_votes(&claim);
        assert!(claim.granted() >= QUORUM, "{claim:?}");
        for (server, (_, vote)) in self.servers().zip(claim.votes()) {
            if matches!(vote, Vote::Granted) {
                let holds = Self::holds(server, wish, guard.token().as_str());
                assert!(holds || !guard.is_valid(), "not granted: {claim:?}");
                self.seen.grants_read += u64::from(holds);
            }
        }
        self.seen.granted += 1;
    }

    /// A lock that is left to run out: as long as it is valid it is there, and then it is not.
    fn outlive(&mut self, wish: &Wish, guard: LockGuard) {
        let granted = Instant::now();
        self.check_granted(wish, &guard);
        thread::sleep((TTL_SHORT + ms(5)).saturating_sub(granted.elapsed()));
        for (server, (_, vote)) in self.servers().zip(guard.attempt().votes()) {
            let over = matches!(vote, Vote::Granted);
            assert!(!over || server.get(&wish.resource).unwrap().is_none(), "its time is over");
        }
        self.seen.outlived += 1;
        drop(guard);
    }

    /// Every node that is said to have extended it has a key that lives longer than before.
    fn extend(&mut self, wish: &Wish, guard: &LockGuard, before: Duration, ttl: Duration) {
        let attempt = match block_on(guard.extend_async(ttl)) {
            Ok(_) => {
                let attempt = guard.votes().unwrap().1.unwrap();
                assert!(attempt.granted() >= QUORUM, "{attempt:?}");
                attempt
            }
            Err(ExtendError::NoQuorum { attempt, .. }) => *attempt,
            Err(error) => panic!("{error}"),
        };
        let (claim, _) = guard.votes().unwrap();
        let votes = claim.votes().zip(attempt.votes());
        for (server, ((_, claim), (_, vote))) in self.servers().zip(votes) {
            match vote {
                Vote::Granted => {
                    let left = server.command(&["PTTL", &wish.resource]).unwrap();
                    let Answer::Integer(left) = left else { panic!("{left:?}") };
                    let longer = Duration::from_millis(left.max(0) as u64) > before;
                    assert!(longer, "not extended: {left} ms are left, {attempt:?}");
                    self.seen.extensions_read += 1;
                }
                Vote::Refused => {
                    assert!(!matches!(claim, Vote::Granted), "it holds it: {attempt:?}")
                }
                Vote::Unknown(NodeError::Timeout) => self.seen.changes_late += 1,
                Vote::Pending | Vote::NotSent(NodeError::Timeout) => {}
                _ => panic!("{attempt:?}"),
            }
        }
    }

    /// No node that is said to have released it has its token.
    fn release(&mut self, wish: &Wish, guard: LockGuard) {
        let token = guard.token().to_string();
        let (claim, _) = guard.votes().unwrap();
        let attempt = match block_on(guard.release_async()) {
            Ok(()) => {
                let held = self.servers().filter(|server| Self::holds(server, wish, &token));
                assert!(held.count() <= NODES - QUORUM, "not released");
                self.seen.releases_read += QUORUM as u64;
                return;
            }
            Err(ReleaseError::NoQuorum(attempt)) => attempt,
            Err(error) => panic!("{error}"),
        };
        let votes = claim.votes().zip(attempt.votes());
        for (server, ((_, claim), (_, vote))) in self.servers().zip(votes) {
            match vote {
                Vote::Granted => {
                    assert!(!Self::holds(server, wish, &token), "not released: {attempt:?}");
                    self.seen.releases_read += 1;
                }
                Vote::Refused => {
                    assert!(!matches!(claim, Vote::Granted), "it held it: {attempt:?}")
                }
                Vote::Unknown(NodeError::Timeout) => self.seen.changes_late += 1,
                _ => panic!("{attempt:?}"),
            }
        }
    }
}

/// What the callers saw: proof that there was something to see.
#[derive(Debug, Default)]
struct Seen {
    wishes: u64,
    granted: u64,
    refused: u64,
    outlived: u64,
    /// Extensions and releases that a node had not answered when they were given up.
    changes_late: u64,
    /// Votes that were held against the server's own word.
    grants_read: u64,
    extensions_read: u64,
    releases_read: u64,
}

impl Seen {
    fn and(self, other: Self) -> Self {
        Self {
            wishes: self.wishes + other.wishes,
            granted: self.granted + other.granted,
            refused: self.refused + other.refused,
            outlived: self.outlived + other.outlived,
            changes_late: self.changes_late + other.changes_late,
            grants_read: self.grants_read + other.grants_read,
            extensions_read: self.extensions_read + other.extensions_read,
            releases_read: self.releases_read + other.releases_read,
        }
    }

    fn assert_enough(&self, injected: u64) {
        assert!(self.grants_read > injected / 50 && self.outlived > 0, "{self:?}");
        assert!(self.extensions_read > injected / 200, "{self:?}");
        assert!(self.releases_read > injected / 200, "{self:?}");
        assert!(self.changes_late > injected / 200, "{self:?}");
    }
}

/// What the lockers counted, together.
struct Counted {
    attempts: u64,
    acquired: u64,
    timed_out: u64,
    cancelled: u64,
    late_replies: u64,
    protocol_errors: u64,
    /// Error replies, and commands that could not be sent.
    faults: u64,
}

fn counted(lockers: &[Locker]) -> Counted {
    let stats: Vec<Stats> = lockers.iter().filter_map(Locker::stats).collect();
    let sum = |of: fn(&Stats) -> u64| stats.iter().map(of).sum();
    Counted {
        attempts: sum(|stats| stats.attempts),
        acquired: sum(|stats| stats.acquired),
        timed_out: sum(|stats| stats.nodes.iter().map(|node| node.unanswered).sum()),
        cancelled: sum(|stats| stats.cancelled),
        late_replies: sum(|stats| stats.abandoned_replies),
        protocol_errors: sum(|stats| stats.protocol_errors),
        faults: sum(|stats| stats.nodes.iter().map(|node| node.errors + node.not_sent).sum()),
    }
}

impl Counted {
    fn injected(&self) -> u64 {
        self.timed_out + self.cancelled
    }

    /// Of each kind, and of locks that there were in spite of it.
    fn is_enough(&self, injected: u64) -> bool {
        let Self { acquired, timed_out, cancelled, .. } = *self;
        self.injected() >= injected
            && timed_out >= injected / 4
            && acquired.min(cancelled) >= injected / 20
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, acquired, timed_out, cancelled, late_replies, .. } = self;
        write!(
            f,
            "{attempts} attempts, {acquired} locks; {timed_out} SETs timed out and {cancelled} requests were \
             cancelled; {late_replies} replies came too late and were skipped"
        )
    }
}
