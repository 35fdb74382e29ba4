//! Workloads in the manner of [Jepsen](https://jepsen.io): processes that use locks of real servers, a nemesis that
//! strikes at servers, connections and processes, and checks of what the processes wrote down.
//!
//! `make soak SECONDS=…` runs them for longer.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions
#![allow(missing_debug_implementations, unreachable_pub)] // nobody else's

mod client;
mod history;
mod nemesis;
mod process;
mod set;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod tokens;

use std::time::{Duration, Instant, SystemTime};

use history::History;
use nemesis::{Fault, Nemesis};
use process::{Orders, Process};
use quorlock::testing::{Answer, Data, Server, Servers};
use store::{Counts, Store};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What the processes run: in them it is the only test.
#[test]
fn process() {
    match process::part().as_deref() {
        None => {}
        Some("client") => client::run(&Orders::follow()),
        Some("set") => set::run(&Orders::follow()),
        Some(other) => panic!("{other}"),
    }
}

#[test]
fn a_lock_has_one_holder_on_servers_that_keep_their_data() {
    contend(SHORT, Memory::Kept).assert_right();
}

#[test]
fn a_lock_has_one_holder_on_servers_that_forget_and_are_held_back() {
    contend(SHORT, Memory::Guarded).assert_right();
}

/// Else the two before would prove nothing.
#[test]
fn two_holders_are_seen_on_servers_that_forget_and_vote_at_once() {
    let seen = (0..10).any(|_| {
        let outcome = contend(secs(3), Memory::Lost);
        !history::overlaps(&outcome.history.claims).is_empty()
    });
    assert!(seen, "no two holders");
}

#[test]
fn a_set_under_a_lock_alone_loses_elements() {
    add_to_sets(SHORT, Protection::Lock).assert_right();
}

#[test]
fn a_set_with_fencing_tokens_loses_nothing() {
    add_to_sets(SHORT, Protection::FencingTokens).assert_right();
}

#[test]
fn no_token_repeats_where_nodes_lose_the_last_they_counted() {
    tokens::lose_tails(300);
}

/// As long as it is told to: `make soak`.
#[test]
#[ignore = "takes as long as it is told to"]
fn soak() {
    let all = secs(std::env::var("SECONDS").expect("SECONDS, please").parse().unwrap());
    let begun = Instant::now();
    tokens::lose_tails(TOKENS.max(25 * all.as_secs()));
    // Begun anew every now and then, so that neither logs nor sets grow without end.
    let rounds = |until_percent: u32, run: &dyn Fn(Duration)| loop {
        let left = (all * until_percent / 100).saturating_sub(begun.elapsed());
        run(left.clamp(SHORT, ROUND));
        if left < ROUND + SHORT {
            break;
        }
    };
    rounds(18, &|time| add_to_sets(time, Protection::Lock).assert_right());
    rounds(45, &|time| add_to_sets(time, Protection::FencingTokens).assert_right());
    rounds(72, &|time| contend(time, Memory::Kept).assert_right());
    rounds(100, &|time| contend(time, Memory::Guarded).assert_right());
}

/// What a soak takes at the least, while the nodes lose what they counted.
const TOKENS: u64 = 10_000;

/// What becomes of the data of servers that are killed, and what the clients do about that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Memory {
    Kept,
    /// Lost, and servers that may have lost something have no vote for a while.
    Guarded,
    Lost,
}

/// What came of clients that fought for locks.
struct Outcome {
    memory: Memory,
    time: Duration,
    history: History,
    /// Keys that should be gone.
    left: usize,
    nemesis: Nemesis,
}

/// Clients and the nemesis for so long, and then without it until all is settled.
fn contend(time: Duration, memory: Memory) -> Outcome {
    let seed = fresh_seed();
    let (data, guard, own) = match memory {
        Memory::Kept => (Data::Keep, "off", "yes"),
        Memory::Guarded => (Data::Wipe, "always", "no"),
        Memory::Lost => (Data::Wipe, "off", "no"),
    };
    let faults = if memory == Memory::Lost { &[Fault::KillMajority][..] } else { FAULTS };
    let start = move |number, nodes: &str| {
        let seed = seed.to_string();
        let settings = [("NODES", nodes), ("SEED", &seed), ("GUARD", guard), ("OWN", own)];
        Process::start("client", number, &settings)
    };
    let mut nemesis = Nemesis::new(seed, CLIENTS, data, faults, start);
    nemesis.wait_for("claim", 1);
    nemesis.rage(time);
    nemesis.heal();
    nemesis.next_phase("settled", 1);
    let left = left(&nemesis.servers, &nemesis.history());
    nemesis.next_phase("proved", client::RESOURCES.len());
    nemesis.end();
    Outcome { memory, time, history: nemesis.history(), left, nemesis }
}

impl Nemesis {
    /// Sends all clients on, until each has said something so often.
    fn next_phase(&mut self, word: &str, times: usize) {
        self.clients.iter_mut().for_each(Process::next_phase);
        self.wait_for(word, times);
    }

    fn wait_for(&mut self, word: &str, times: usize) {
        let end = Instant::now() + PHASE_TIMEOUT;
        for client in &mut self.clients {
            while client.log().lines().filter(|line| line.starts_with(word)).count() < times {
                assert!(client.is_running(), "a client has ended before it said {word}");
                assert!(Instant::now() < end, "a client has not said {word}");
                std::thread::sleep(ms(10));
            }
        }
    }

    fn end(&mut self) {
        let ends = self.clients.iter_mut().map(Process::end);
        assert!(ends.into_iter().all(|status| status.success()), "a client has failed");
    }

    fn history(&self) -> History {
        let mut history = History::default();
        for process in self.clients.iter().chain(&self.fallen) {
            history.add(History::read(&process.log()));
        }
        history
    }
}

/// How many keys there are that should be gone.
fn left(servers: &Servers, history: &History) -> usize {
    let text = |answer| match answer {
        Answer::Text(text) => Some(text),
        // Counters of fencing tokens are no strings, and have an error for a value.
        _ => None,
    };
    let of_server = |server: &Server| {
        let Answer::Array(keys) = server.command(&["KEYS", "*"]).unwrap() else { panic!() };
        let values = keys.into_iter().filter_map(text).filter_map(|key| {
            let value = text(server.command(&["GET", &key]).unwrap());
            value.map(|token| (key, token))
        });
        let left =
            |(key, token): &(_, _)| history.own.contains(key) || history.released.contains(token);
        values.filter(left).count()
    };
    servers.iter().map(of_server).sum()
}

impl Outcome {
    fn assert_right(&self) {
        let Self { memory, time, history, left, nemesis } = self;
        let (locks, extensions, released) =
            (history.locks(), history.extensions(), history.released.len());
        println!(
            "{memory:?} for {time:?}: {locks} locks, {extensions} extensions, {released} released"
        );
        println!("  {:?}\n  {:?}", nemesis.tally, history.counts);
        let overlaps = history::overlaps(&history.claims);
        assert!(
            overlaps.is_empty(),
            "{} times two holders: {:#?}",
            overlaps.len(),
            overlaps.first()
        );
        let disorders = history::disorders(&history.fenced);
        assert!(disorders.is_empty(), "{} in disorder: {:#?}", disorders.len(), disorders.first());
        assert_eq!(*left, 0, "keys that should be gone");
        assert_eq!(history.counts.get("unsettled"), None);
        assert_eq!(history.proved, CLIENTS * client::RESOURCES.len(), "all is well again");
        // A run in which nothing happened has shown nothing.
        let secs = time.as_secs() as usize;
        assert!(locks >= 5 * secs, "{locks} locks");
        assert!(2 * extensions >= secs, "{extensions} extensions");
        assert!(history.fenced.len() >= secs, "{} fencing tokens", history.fenced.len());
        assert!(released >= 2 * secs, "{released} releases");
        let strikes: u64 = nemesis.tally.values().sum();
        assert!(strikes >= time.as_secs(), "{strikes} strikes");
    }
}

/// What keeps writers of a set apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Protection {
    /// A lock, which is not enough for those who do not look.
    Lock,
    /// A lock and a store that compares tokens, which is enough, whatever the servers forget.
    FencingTokens,
}

/// What came of clients that added to sets.
struct Sum {
    protection: Protection,
    time: Duration,
    added: usize,
    lost: usize,
    counts: Counts,
}

/// Clients that add to sets for so long, while the nemesis does what the protection should bear.
fn add_to_sets(time: Duration, protection: Protection) -> Sum {
    let (seed, fenced) = (fresh_seed(), protection != Protection::Lock);
    let store = Store::start(set::SETS, fenced);
    let address = store.address();
    let start = move |number, nodes: &str| {
        let (seed, fenced) = (seed.to_string(), fenced.to_string());
        let settings =
            [("NODES", nodes), ("SEED", &seed), ("STORE", &address), ("FENCED", &fenced)];
        Process::start("set", number, &settings)
    };
    // What is lost under a lock alone is lost though every server does its duty.
    let faults = if fenced { FAULTS } else { &[Fault::PauseClient][..] };
    let mut nemesis = Nemesis::new(seed, WRITERS, Data::Wipe, faults, start);
    nemesis.wait_for("added", 1);
    nemesis.rage(time);
    nemesis.heal();
    nemesis.end();
    nemesis.clients.append(&mut nemesis.fallen);
    let (added, lost) = set::added_and_lost(&nemesis.clients, &store);
    Sum { protection, time, added, lost, counts: store.counts() }
}

impl Sum {
    fn assert_right(&self) {
        let Self { protection, time, added, lost, counts } = self;
        println!(
            "{protection:?} for {time:?}: {added} elements added, {lost} of them lost, {counts:?}"
        );
        assert!(*added as u64 >= 10 * time.as_secs(), "{added} elements added");
        match protection {
            Protection::Lock => assert!(*lost > 0, "what the pauses should have lost is there"),
            Protection::FencingTokens => {
                assert_eq!(*lost, 0);
                let at_least = STALE_WRITES_PER_SEC * time.as_secs();
                assert!(counts.stale_writes >= at_least, "less than {at_least} stale writes");
            }
        }
    }
}

fn fresh_seed() -> u64 {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    seed
}

/// As often as they are to be.
const FAULTS: &[Fault] = &[
    Fault::CutConnections,
    Fault::CutConnections,
    Fault::DelayBytes,
    Fault::DelayBytes,
    Fault::KillClient,
    Fault::KillMajority,
    Fault::KillServer,
    Fault::PauseClient,
    Fault::PauseClient,
    Fault::PauseServer,
    Fault::PauseServer,
];

const CLIENTS: usize = 5;
const WRITERS: usize = 4;

/// How many writers must come too late: more than a thousand in a soak of ten minutes.
const STALE_WRITES_PER_SEC: u64 = 10;

/// For `make test`.
const SHORT: Duration = secs(5);

/// For a soak.
const ROUND: Duration = secs(30);

/// More than the clients themselves have.
const PHASE_TIMEOUT: Duration = secs(120);
