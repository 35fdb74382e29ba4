//! The real engine in a simulated world: some clients, some nodes, and all time, bytes and faults from one seed.
//!
//! `SEED=… cargo test --test sim replay -- --nocapture` runs one schedule again and prints what happens in it.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions
#![allow(missing_debug_implementations, unreachable_pub)] // nobody else's

mod client;
mod clock;
#[allow(dead_code)] // more than is needed here
#[path = "../support/counter.rs"]
mod counter;
mod faults;
mod link;
#[cfg(quorlock_mutants)]
mod mutants;
mod node;
mod oracle;
mod rng;
mod schedule;
mod tally;
mod transport;
mod wire;
mod world;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use oracle::{Check, Violation};
use schedule::Mode;
use tally::Tally;
use world::World;

/// Most seeds are of sound schedules; some of those with fencing tokens, or in which others delete keys.
fn mode(seed: u64) -> Mode {
    match seed % 8 {
        3 | 5 => Mode::Fenced,
        7 => Mode::Deleted,
        _ => Mode::Sound,
    }
}

fn run(mode: Mode, seed: u64, traced: bool) -> (Result<(), Violation>, Tally) {
    let mut world = World::new(mode, seed, traced);
    let result = world.run();
    (result, world.tally)
}

/// Runs one schedule. Panics with its seed if it goes wrong.
fn hold(seed: u64) -> Tally {
    let what = match std::panic::catch_unwind(|| run(mode(seed), seed, false)) {
        Ok((Ok(()), tally)) => return tally,
        Ok((Err(violation), _)) => violation.to_string(),
        Err(_) => "a panic".into(),
    };
    panic!("{what}\nSEED={seed} cargo test --release --test sim replay -- --nocapture");
}

fn hold_all(seeds: impl Iterator<Item = u64>) -> Tally {
    let mut tally = Tally::default();
    seeds.for_each(|seed| tally.add(&hold(seed)));
    tally
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect(name))
}

/// A number that no run had before.
fn fresh() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn replay() {
    let Some(seed) = number("SEED") else {
        return;
    };
    let (result, tally) = run(mode(seed), seed, true);
    println!("{tally}");
    if let Err(violation) = result {
        panic!("{violation}");
    }
}

#[test]
fn fixed_seeds() {
    let tally = hold_all(0..SCHEDULES);
    tally.assert_enough_was_done();
}

#[test]
fn fresh_seeds() {
    let first = fresh();
    hold_all((0..SCHEDULES).map(|i| first.wrapping_add(i)));
}

/// Whatever is pending is cancelled at every step there is, one after another.
#[test]
fn cancelled_at_every_step() {
    for seed in 0..CANCELLED {
        for step in 0.. {
            let (result, tally) = run(Mode::Cancel { step }, seed, false);
            if let Err(violation) = result {
                panic!("{violation}, seed {seed}, cancelled at step {step}");
            }
            if u64::from(step) > tally.steps {
                break;
            }
        }
    }
}

/// What is broken on purpose has to be seen: two holders at one time, within a number of schedules.
fn seen_within(schedules: u64, mode: Mode) -> u64 {
    let sees = |seed| {
        let mut world = World::new(mode, seed, false);
        world.oracle.only = Some(Check::Exclusion);
        world.run().is_err()
    };
    (0..schedules).find(|seed| sees(*seed)).expect("two holders") + 1
}

#[test]
fn nodes_that_forget_make_two_holders() {
    println!("seen in schedule {}", seen_within(5000, Mode::Amnesia));
}

/// The same schedules, with clients that hold restarted nodes back.
#[test]
fn nodes_that_forget_make_no_two_holders_where_they_are_held_back() {
    let mut tally = Tally::default();
    for seed in 0..SCHEDULES {
        let mut world = World::new(Mode::Guarded, seed, false);
        // A lock whose nodes forget it is gone before its holder knows. Another may not have it until he does.
        world.oracle.only = Some(Check::Exclusion);
        if let Err(violation) = world.run() {
            panic!("{violation}, seed {seed}");
        }
        tally.add(&world.tally);
    }
    println!("{tally}");
    assert!(tally.crashes_amnesia > SCHEDULES / 4 && tally.acquired > SCHEDULES, "{tally}");
}

/// Fencing tokens rest on no time and no key that lasts.
#[test]
fn nodes_that_forget_make_no_token_twice() {
    let mut tally = Tally::default();
    for seed in 0..SCHEDULES {
        let mut world = World::new(Mode::FencedAmnesia, seed, false);
        world.oracle.only = Some(Check::Fencing);
        if let Err(violation) = world.run() {
            panic!("{violation}, seed {seed}");
        }
        tally.add(&world.tally);
    }
    println!("{tally}");
    assert!(tally.crashes_amnesia > SCHEDULES / 4 && tally.fenced > SCHEDULES, "{tally}");
}

#[test]
fn clocks_that_run_apart_make_two_holders() {
    println!("seen in schedule {}", seen_within(5000, Mode::Drift));
}

/// A schedule is its seed, and nothing else.
#[test]
fn a_seed_replays_exactly() {
    for seed in 0..100 {
        assert_eq!(run(mode(seed), seed, false).1, run(mode(seed), seed, false).1);
    }
}

/// As many schedules as there is time for, on all cores: `make soak`.
#[test]
#[ignore = "takes as long as it is told to"]
fn soak() {
    let schedules = number("SCHEDULES").unwrap_or(u64::MAX / 2);
    let seconds = number("SECONDS").map(Duration::from_secs);
    assert!(schedules < u64::MAX / 2 || seconds.is_some(), "SCHEDULES or SECONDS, please");
    let (begun, first, next) = (Instant::now(), fresh(), AtomicU64::new(0));
    let total = Mutex::new(Tally::default());
    let work = || {
        let mut tally = Tally::default();
        let _stop = Stop(&next);
        while seconds.is_none_or(|limit| begun.elapsed() < limit) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= schedules {
                break;
            }
            tally.add(&hold(first.wrapping_add(i)));
        }
        total.lock().unwrap().add(&tally);
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    let total = total.into_inner().unwrap();
    let rate = total.schedules as f64 / begun.elapsed().as_secs_f64();
    println!("{total}\nseeds from {first}, {rate:.0} schedules/s, no violation");
    total.assert_enough_was_done();
}

/// Ends a soak if it goes out of scope in a panic.
struct Stop<'a>(&'a AtomicU64);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(u64::MAX / 2, Ordering::Relaxed);
        }
    }
}

const SCHEDULES: u64 = 2000;
const CANCELLED: u64 = 12;
