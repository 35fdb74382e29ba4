//! Fencing tokens, searched for a counterexample: every order of events that a few nodes and attempts can have.
//!
//! Clients are the crate's own `proto::fence`; nodes are a transcription of the scripts, which `scripts.rs` holds
//! against real servers. What holds is searched to the end; what does not hold, or would not if a rule were left out,
//! is found broken. A release build searches more: `cargo test --release --test fencing_model -- --nocapture` prints
//! how much.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions
#![allow(missing_debug_implementations, unreachable_pub)] // nobody else's

mod model;
#[allow(dead_code)] // the simulation's
#[path = "../sim/rng.rs"]
mod rng;
mod scripts;
mod search;
mod state;
#[path = "../support/mod.rs"]
mod support;

use model::{Broken, Failure, Flaw, Model};
use quorlock::Fencing::{Confirmed, OneRoundTrip};
use search::{Trace, search};

/// Every state is looked at, and nothing is broken. Gives how many there are.
fn holds(model: &Model, properties: Broken) -> usize {
    let outcome = search(model, properties);
    match outcome.trace {
        None => outcome.states,
        Some(trace) => panic!("{model:?}: {trace:#?}"),
    }
}

fn is_broken(model: &Model, properties: Broken) -> Trace {
    let trace = search(model, properties).trace;
    trace.unwrap_or_else(|| panic!("{model:?} holds"))
}

/// All but the order of instants.
const WITHOUT_INSTANTS: Broken = Broken::UNIQUE.and(Broken::REAL_TIME).and(Broken::EXTENSION);

#[test]
fn a_confirmed_token_is_unique_and_in_order() {
    let states = holds(&Model::new(Confirmed, 2), Broken::ALL);
    assert!(states > 5_000, "{states}");
    if THOROUGH {
        holds(&Model { leftover: 2, ..Model::new(Confirmed, 2) }, Broken::ALL);
        let states = holds(&Model::new(Confirmed, 3), Broken::ALL);
        assert!(states > 500_000, "{states}");
    }
}

#[test]
#[ignore = "takes minutes"]
fn a_confirmed_token_is_so_too_among_more_states() {
    holds(&Model { leftover: 1, ..Model::new(Confirmed, 3) }, Broken::ALL);
    holds(&Model { failures: 1, ..Model::new(Confirmed, 3) }, Broken::ALL);
}

#[test]
fn a_token_from_one_round_trip_is_unique_and_above_those_taken_before() {
    holds(&Model::new(OneRoundTrip, 2), WITHOUT_INSTANTS);
    if THOROUGH {
        holds(&Model { leftover: 2, ..Model::new(OneRoundTrip, 2) }, WITHOUT_INSTANTS);
        holds(&Model::new(OneRoundTrip, 3), WITHOUT_INSTANTS);
    }
}

/// Its price: it may be lower than that of somebody who held the lock before.
#[test]
fn a_token_from_one_round_trip_is_not_in_the_order_of_holding() {
    for (attempts, leftover, steps) in [(2, 2, 13), (3, 0, 15)] {
        let model = Model { leftover, ..Model::new(OneRoundTrip, attempts) };
        let trace = is_broken(&model, Broken::INSTANTS);
        assert_eq!(trace.steps.len() + trace.reads, steps, "{trace:#?}");
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimization: scripts/test.sh")]
fn restarted_nodes_that_go_on_from_their_clocks_do_no_harm() {
    holds(&Model { failures: 1, leftover: 1, ..Model::new(Confirmed, 2) }, Broken::ALL);
    holds(&Model { failures: 2, ..Model::new(Confirmed, 2) }, Broken::ALL);
    holds(&Model { failures: 1, ..Model::new(OneRoundTrip, 2) }, WITHOUT_INSTANTS);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimization: scripts/test.sh")]
fn nodes_that_go_on_from_what_they_have_make_one_token_twice() {
    for failure in [Failure::LostIncrement, Failure::LostCounter] {
        let model = Model { failures: 1, failure, leftover: 2, ..Model::new(Confirmed, 2) };
        is_broken(&model, Broken::UNIQUE);
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimization: scripts/test.sh")]
fn without_any_of_the_rules_a_property_is_broken() {
    for (flaw, property) in FLAWS {
        for (attempts, leftover) in [(2, 2), (3, 0)] {
            let model = Model { leftover, flaw: Some(flaw), ..Model::new(Confirmed, attempts) };
            is_broken(&model, property);
        }
    }
}

/// Of the two rules, exact match and only members, either makes tokens unique, even where the other is left out.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimization: scripts/test.sh")]
fn either_of_two_rules_is_enough_for_unique_tokens() {
    for flaw in [Flaw::AnyAckOfMembers, Flaw::LateGrants] {
        let model = Model { leftover: 2, flaw: Some(flaw), ..Model::new(Confirmed, 2) };
        holds(&model, Broken::UNIQUE.and(Broken::REAL_TIME));
    }
}

/// What the search leaves out of the states changes nothing about what it finds, nor how soon.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes long without optimization: scripts/test.sh")]
fn what_is_forgotten_makes_no_difference() {
    let small = Model::new(Confirmed, 2);
    let leftover = Model { leftover: 1, ..small };
    let lossy = |failure| Model { failures: 1, failure, ..leftover.clone() };
    let mut models = vec![
        (small.clone(), Broken::ALL),
        (Model { fencing: OneRoundTrip, ..small }, WITHOUT_INSTANTS),
        (Model { fencing: OneRoundTrip, ..leftover.clone() }, Broken::INSTANTS),
        (lossy(Failure::LostIncrement), Broken::UNIQUE),
        (lossy(Failure::LostCounter), Broken::UNIQUE),
    ];
    for (flaw, property) in FLAWS {
        models.push((Model { flaw: Some(flaw), ..leftover.clone() }, property));
    }
    models.push((Model { failures: 1, ..small }, Broken::ALL));
    for (model, property) in models {
        let steps = |forgets| {
            let model = Model { forgets, ..model.clone() };
            search(&model, property).trace.map(|trace| trace.steps.len())
        };
        assert_eq!(steps(true), steps(false), "{model:?}, {property:?}");
    }
}

/// What is broken if a rule is left out.
const FLAWS: [(Flaw, Broken); 4] = [
    (Flaw::AnyAck, Broken::UNIQUE),
    (Flaw::LateGrants, Broken::INSTANTS),
    (Flaw::EarlierRound, Broken::INSTANTS),
    (Flaw::ExtendAnywhere, Broken::EXTENSION),
];

/// What takes too long without optimization.
const THOROUGH: bool = !cfg!(debug_assertions);
