//! The engine by scenario: which answers make a token, and whose count for an extension afterwards.

use std::time::Duration;

use quorlock::{
    AcquireError, ExtendError, Fencing, NodeError, Vote,
    internal::{
        engine::{Event, Grant},
        request::Spec,
        script::Script,
    },
};

use crate::world::{NODE_TIMEOUT, TTL, World, ms, spec};

const COUNTER: &[u8] = b"lock:r:fencing-counter";

fn fenced(fencing: Fencing) -> Spec<'static> {
    Spec { fencing, ..spec("r") }
}

/// Nodes whose counters stand at these.
fn counting(counts: &[u64]) -> World {
    set_to(counts, World::new(counts.len()))
}

fn set_to(counts: &[u64], mut world: World) -> World {
    for (node, count) in world.nodes.iter_mut().zip(counts) {
        node.counters.insert(COUNTER.to_vec(), *count);
    }
    world
}

fn counts(world: &World) -> Vec<u64> {
    world.nodes.iter().map(|node| node.counters[COUNTER]).collect()
}

fn granted(world: &mut World) -> Grant {
    match world.events.remove(0) {
        Event::Acquired { grant, .. } => grant,
        event => panic!("{event:?}"),
    }
}

fn token(grant: &Grant) -> u64 {
    grant.fencing_token.unwrap().get()
}

/// What each node was sent, by how many commands.
fn commands(world: &mut World) -> Vec<usize> {
    world.take_logs().iter().map(Vec::len).collect()
}

fn extended(world: &mut World) -> Result<(), ExtendError> {
    match world.events.remove(0) {
        Event::Extended { result, .. } => result.map(drop),
        event => panic!("{event:?}"),
    }
}

#[test]
fn the_highest_count_of_the_first_quorum_is_confirmed_by_it() {
    let mut world = counting(&[4, 6, 9, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    for node in [0, 1, 3] {
        world.answer(node);
    }
    assert!(world.events.is_empty(), "not before the second round");
    world.settle();
    let grant = granted(&mut world);
    assert_eq!(token(&grant), 7);
    assert_eq!(commands(&mut world), [2, 2, 1, 2, 1], "only who had granted it by then");
    assert_eq!(counts(&world), [7, 7, 10, 7, 1]);
}

#[test]
fn tokens_go_up() {
    let mut world = counting(&[0, 0, 0]);
    let mut last = 0;
    for fencing in [Fencing::Confirmed, Fencing::OneRoundTrip, Fencing::Confirmed] {
        world.acquire(fenced(fencing));
        world.settle();
        let grant = granted(&mut world);
        assert!(token(&grant) > last);
        last = token(&grant);
        world.release(grant.lease);
        world.settle();
        world.events.clear();
    }
}

#[test]
fn a_lock_without_a_token_has_none_and_counts_nothing() {
    let mut world = counting(&[3, 3, 3]);
    let grant = world.acquired("r");
    assert_eq!(grant.fencing_token, None);
    assert_eq!(counts(&world), [3, 3, 3]);
}

#[test]
fn one_round_trip_is_enough_where_the_counters_agree() {
    let mut world = counting(&[5, 5, 5]);
    world.acquire(fenced(Fencing::OneRoundTrip));
    world.answer(0);
    world.answer(1);
    assert_eq!(token(&granted(&mut world)), 6);
    world.settle();
    assert_eq!(commands(&mut world), [1, 1, 1]);
}

#[test]
fn where_they_do_not_agree_there_is_a_second() {
    let mut world = counting(&[5, 8, 5]);
    world.acquire(fenced(Fencing::OneRoundTrip));
    world.answer(0);
    world.answer(1);
    assert!(world.events.is_empty());
    world.settle();
    assert_eq!(token(&granted(&mut world)), 9);
    assert_eq!(counts(&world), [9, 9, 6]);
}

/// Its counter is above what it was asked to confirm: somebody else was counted there in between.
#[test]
fn a_higher_count_confirms_nothing() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    world.answer(0);
    world.answer(1);
    world.serve(2);
    world.nodes[1].counters.insert(COUNTER.to_vec(), 7);
    world.answer(0);
    world.answer(1);
    assert!(world.events.is_empty(), "one of three has confirmed it");
    world.deliver(2);
    world.settle();
    let grant = granted(&mut world);
    assert_eq!(token(&grant), 1, "confirmed in another round, by the others");
    let votes: Vec<_> = grant.attempt.votes().map(|(_, vote)| vote.to_string()).collect();
    assert_eq!(votes, ["granted", "refused", "granted"]);
}

#[test]
fn a_node_that_dies_between_the_rounds_is_made_up_for_by_a_late_one() {
    let mut world = counting(&[0, 3, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    world.answer(0);
    world.answer(1);
    world.nodes[1].up = false;
    world.cut(1);
    world.answer(0);
    assert!(world.events.is_empty(), "node 2 may yet grant it");
    world.settle();
    let grant = granted(&mut world);
    assert_eq!(token(&grant), 4, "node 0 was raised to that in the first");
    assert!(matches!(grant.attempt.votes().nth(1), Some((_, Vote::Unknown(NodeError::Closed)))));
    assert_eq!(world.engine.releasing(), 0);
}

/// Answers to the first of two second rounds, which proposed less: they say that the node holds the lock.
#[test]
fn late_answers_to_an_earlier_round_deny_nothing() {
    let mut world = counting(&[0, 0, 0, 6, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    for node in [0, 1, 2] {
        world.answer(node);
    }
    world.serve(0);
    world.serve(1);
    world.nodes[2].up = false;
    world.cut(2);
    world.answer(3);
    world.settle();
    let grant = granted(&mut world);
    assert_eq!(token(&grant), 7, "of the second round, of nodes 0, 1 and 3");
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    assert!(world.events.is_empty(), "{:?}", world.events);
}

#[test]
fn a_node_that_has_denied_the_lock_confirms_it_no_more() {
    let mut world = counting(&[0, 0, 0, 6, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    for node in [0, 1, 2] {
        world.answer(node);
    }
    let keys = std::mem::take(&mut world.nodes[0].keys);
    world.serve(0);
    world.nodes[0].keys = keys;
    world.nodes[2].up = false;
    world.cut(2);
    world.answer(3);
    world.settle();
    let grant = granted(&mut world);
    assert_eq!(token(&grant), 7, "of the third round, of nodes 1, 3 and 4");
    assert!(matches!(grant.attempt.votes().next(), Some((_, Vote::Refused))));
}

#[test]
fn a_key_that_is_gone_before_the_second_round_loses_the_attempt_and_is_released() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    world.answer(0);
    world.answer(1);
    for node in [0, 1] {
        world.nodes[node].keys.clear();
    }
    world.settle();
    match world.events.remove(0) {
        Event::NotAcquired { error: AcquireError::Contended(attempt), .. } => {
            assert_eq!(attempt.refused(), 2);
        }
        event => panic!("{event:?}"),
    }
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None], "also where the late one granted it");
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_node_that_falls_silent_between_the_rounds_is_not_waited_for() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    world.pass(ms(3));
    for node in [0, 1, 2, 0] {
        world.answer(node);
    }
    world.pass(ms(6) - Duration::from_nanos(1));
    assert_eq!(commands(&mut world), [2, 1, 1], "for as long again as the first took, and again");
    world.pass(Duration::from_nanos(1));
    world.answer(0);
    world.answer(2);
    let grant = granted(&mut world);
    assert_eq!(token(&grant), 1);
    assert_eq!(commands(&mut world), [1, 0, 1]);
    assert_eq!(grant.attempt.elapsed(), ms(9));
}

#[test]
fn all_second_rounds_end_with_the_deadline_of_the_first() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    for node in [0, 1, 2] {
        world.answer(node);
    }
    // Proposed again, to all three, and answered by none of them.
    world.pass(NODE_TIMEOUT - ms(1));
    assert!(world.events.is_empty());
    world.pass(ms(1));
    assert!(matches!(world.events.remove(0), Event::NotAcquired { .. }));
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn a_second_round_that_nobody_answers_ends_with_its_deadline() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    for node in 0..3 {
        world.serve(node);
    }
    world.pass(ms(20));
    world.deliver(0);
    world.deliver(1);
    world.pass(NODE_TIMEOUT - ms(1));
    assert!(world.events.is_empty());
    world.pass(ms(1));
    match world.events.remove(0) {
        Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. } => {
            let silent = |vote: &Vote| matches!(vote, Vote::Unknown(NodeError::Timeout));
            assert_eq!(attempt.votes().filter(|(_, vote)| silent(vote)).count(), 3);
        }
        event => panic!("{event:?}"),
    }
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn validity_is_counted_from_before_the_first_round() {
    let mut world = counting(&[0, 0, 0]);
    let started = world.now;
    world.acquire(fenced(Fencing::Confirmed));
    world.pass(ms(30));
    for node in 0..3 {
        world.answer(node);
    }
    world.pass(ms(30));
    world.settle();
    assert_eq!(granted(&mut world).valid_until.since(started), TTL - ms(102));
}

#[test]
fn a_cancel_between_the_rounds_leaves_nothing() {
    let mut world = counting(&[0, 0, 0]);
    let request = world.acquire(fenced(Fencing::Confirmed));
    world.answer(0);
    world.answer(1);
    world.engine.cancel(world.now, request);
    world.carry();
    world.settle();
    assert!(world.events.is_empty(), "{:?}", world.events);
    assert_eq!(world.holders("r"), [None, None, None]);
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_reply_to_somebody_elses_token_ends_the_connection() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    world.feed(0, b"$14\r\nset 5 00000000\r\n");
    assert_eq!(world.engine.counts().protocol_errors, 1);
    assert_eq!(world.ready(), 2);
}

#[test]
fn a_refusal_of_somebody_elses_token_ends_the_connection() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    world.feed(0, b"$14\r\ntaken 00000000\r\n");
    world.answer(1);
    world.answer(2);
    world.feed(1, b"$13\r\ngone 00000000\r\n");
    assert_eq!(world.engine.counts().protocol_errors, 2);
    assert_eq!(world.ready(), 1);
}

#[test]
fn replies_of_another_shape_end_the_connection() {
    for reply in ["+OK", "_", ":1", "set", "set 0 ID", "set x ID", "set +5 ID", "set 5 IDx"]
        .into_iter()
        .chain([
            "set 9007199254740992 ID",
            "set 5 ID ID",
            "taken",
            "taken IDx",
            "gone ID",
            "gone 1 ID",
        ])
    {
        let mut world = counting(&[0, 0, 0]);
        world.acquire(fenced(Fencing::Confirmed));
        world.serve(1);
        let id = &world.holders("r")[1].clone().unwrap()[..8];
        let reply = reply.replace("ID", id);
        let bulk = format!("${}\r\n{reply}\r\n", reply.len());
        let is_text = reply.starts_with(char::is_alphabetic);
        world.feed(0, if is_text { bulk } else { reply.clone() + "\r\n" }.as_bytes());
        assert_eq!(world.engine.counts().protocol_errors, 1, "{reply}");
    }
}

#[test]
fn scripts_that_were_flushed_are_sent_again() {
    let mut world = counting(&[0, 0, 0]);
    world.nodes.iter_mut().for_each(|node| node.scripts.clear());
    world.acquire(fenced(Fencing::Confirmed));
    world.settle();
    assert_eq!(token(&granted(&mut world)), 1);
}

/// A node that came to the lock after the token was taken might have been taken, and left, by a later holder.
#[test]
fn a_late_node_counts_for_extensions_only_after_one_by_the_others() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    for node in [0, 1, 0, 1] {
        world.answer(node);
    }
    let grant = granted(&mut world);
    world.settle();
    world.take_logs();
    world.extend(grant.lease, TTL).unwrap();
    world.answer(0);
    world.answer(2);
    world.pass(NODE_TIMEOUT);
    let Err(ExtendError::NoQuorum { attempt, .. }) = extended(&mut world) else { panic!() };
    assert!(matches!(attempt.votes().nth(2), Some((_, Vote::Failed(NodeError::Joining)))));
    world.settle();

    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();

    world.extend(grant.lease, TTL).unwrap();
    world.answer(0);
    world.answer(2);
    extended(&mut world).unwrap();
}

/// The extension overtook the script that the node did not have: its answer is true, and comes first.
#[test]
fn a_node_that_denies_the_lock_and_grants_it_afterwards_stays_out() {
    let mut world = counting(&[0, 0, 0]);
    world.nodes[2].scripts.remove(Script::AcquireFenced.digest().as_slice());
    world.acquire(fenced(Fencing::Confirmed));
    for node in [0, 1, 0, 1] {
        world.answer(node);
    }
    let grant = granted(&mut world);
    world.serve(2);
    world.extend(grant.lease, TTL).unwrap();
    for node in [0, 1, 2] {
        world.answer(node);
    }
    extended(&mut world).unwrap();
    world.take_logs();
    for late in [true, false] {
        world.extend(grant.lease, TTL).unwrap();
        world.settle();
        extended(&mut world).unwrap();
        assert_eq!(commands(&mut world), [1, 1, usize::from(late)], "the script, and no more");
        assert_eq!(world.holders("r")[2], Some(grant.token.to_string()), "it grants it late");
    }
    world.release(grant.lease);
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn the_token_stays_the_same_when_the_lock_is_extended() {
    let mut world = counting(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    world.settle();
    let grant = granted(&mut world);
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    assert_eq!(counts(&world), [1, 1, 1]);
}

// Repair.

fn mending(counts: &[u64]) -> World {
    let greetings = World::greetings(counts.len());
    let world = World::with_settings(greetings, |settings| settings.repair = true);
    set_to(counts, world.connected())
}

/// A lock on all nodes, of which one then loses it.
fn lost_on_one(world: &mut World, fencing: Fencing) -> Grant {
    world.acquire(fenced(fencing));
    world.settle();
    let grant = granted(world);
    world.nodes[2].keys.clear();
    world.nodes[2].counters.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(world).unwrap();
    assert_eq!(world.holders("r")[2], None, "it denied it, and was not asked to take it yet");
    grant
}

#[test]
fn an_extension_puts_the_lock_back_where_that_is_wished() {
    let mut world = mending(&[0, 0, 0]);
    let grant = lost_on_one(&mut world, Fencing::Confirmed);
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    assert_eq!(world.holders("r"), vec![Some(grant.token.to_string()); 3]);
    assert_eq!(counts(&world), [1, 1, 1], "with the token as its count");
    world.release(grant.lease);
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn by_default_it_does_not() {
    let mut world = counting(&[0, 0, 0]);
    let grant = lost_on_one(&mut world, Fencing::Confirmed);
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    assert_eq!(world.holders("r")[2], None);
}

#[test]
fn a_repaired_node_counts_only_after_an_extension_that_did_not_need_it() {
    for fencing in [Fencing::Off, Fencing::Confirmed] {
        let mut world = mending(&[0, 0, 0]);
        let grant = lost_on_one(&mut world, fencing);
        world.extend(grant.lease, TTL).unwrap();
        world.settle();
        extended(&mut world).unwrap();

        // Put back during that one: it does not count for the next.
        world.extend(grant.lease, TTL).unwrap();
        world.answer(0);
        world.answer(2);
        world.pass(NODE_TIMEOUT);
        assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
        world.settle();
        world.extend(grant.lease, TTL).unwrap();
        world.settle();
        extended(&mut world).unwrap();

        world.extend(grant.lease, TTL).unwrap();
        world.answer(0);
        world.answer(2);
        extended(&mut world).unwrap();
    }
}

#[test]
fn a_repair_that_may_yet_run_is_followed_by_another_only_in_another_process() {
    for restarted in [false, true] {
        let mut world = mending(&[0, 0, 0]);
        let grant = lost_on_one(&mut world, Fencing::Confirmed);
        world.extend(grant.lease, TTL).unwrap();
        world.answer(0);
        world.answer(1);
        extended(&mut world).unwrap();
        world.cut(2);
        world.nodes[2].inbox.clear();
        if restarted {
            world.nodes[2].run_id = "another".into();
        }
        world.live(ms(500));
        assert_eq!(world.ready(), 3);
        world.take_logs();
        world.extend(grant.lease, TTL).unwrap();
        world.settle();
        extended(&mut world).unwrap();
        assert_eq!(commands(&mut world), [1, 1, usize::from(restarted)]);
    }
}

#[test]
fn somebody_elses_key_is_left_alone() {
    let mut world = mending(&[0, 0, 0]);
    let grant = lost_on_one(&mut world, Fencing::Off);
    let theirs = (b"theirs".to_vec(), world.now.after(Duration::from_secs(60)));
    world.nodes[2].keys.insert(b"lock:r".to_vec(), theirs);
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    assert_eq!(world.holders("r")[2].as_deref(), Some("theirs"));
}

/// Else it might have been put back by the later one, after an extension that was to show that it was held all along.
#[test]
fn it_is_put_back_by_one_command_at_a_time() {
    let mut world = mending(&[0, 0, 0]);
    let grant = lost_on_one(&mut world, Fencing::Confirmed);
    world.take_logs();
    for _ in 0..2 {
        world.extend(grant.lease, TTL).unwrap();
        world.answer(0);
        world.answer(1);
        extended(&mut world).unwrap();
    }
    world.settle();
    assert_eq!(commands(&mut world), [2, 2, 1]);
    world.nodes[2].keys.clear();
    for _ in 0..2 {
        world.extend(grant.lease, TTL).unwrap();
        world.settle();
        extended(&mut world).unwrap();
    }
    assert_eq!(commands(&mut world), [2, 2, 2], "after an answer, another one");
}

#[test]
fn a_late_node_that_loses_the_lock_and_has_it_back_is_late_again() {
    let mut world = mending(&[0, 0, 0]);
    world.acquire(fenced(Fencing::Confirmed));
    for node in [0, 1, 0, 1] {
        world.answer(node);
    }
    let grant = granted(&mut world);
    world.settle();
    world.nodes[2].keys.clear();
    extend_by_two_of_three(&mut world, &grant).unwrap_err();

    // Put back while this one is under way.
    world.extend(grant.lease, TTL).unwrap();
    world.answer(2);
    world.settle();
    extended(&mut world).unwrap();
    extend_by_two_of_three(&mut world, &grant).unwrap_err();

    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    extend_by_two_of_three(&mut world, &grant).unwrap();
}

/// It puts the lock back for as long as the extension it came with, whenever it runs.
#[test]
fn a_repair_that_a_connection_took_with_it_may_yet_cut_the_lock_short() {
    let mut world = mending(&[0, 0, 0]);
    let grant = lost_on_one(&mut world, Fencing::Off);
    world.extend(grant.lease, TTL / 10).unwrap();
    world.answer(0);
    world.answer(1);
    extended(&mut world).unwrap();
    world.cut(2);
    for _ in 0..2 {
        world.live(ms(10));
        world.extend(grant.lease, TTL).unwrap();
        world.settle();
        extended(&mut world).unwrap();
    }
    assert!(world.holders("r")[2].is_some(), "it is there");
    extend_by_two_of_three(&mut world, &grant).unwrap_err();
}

/// Nodes 0 and 2 answer in time.
fn extend_by_two_of_three(world: &mut World, grant: &Grant) -> Result<(), ExtendError> {
    world.extend(grant.lease, TTL).unwrap();
    world.answer(0);
    world.answer(2);
    world.pass(NODE_TIMEOUT);
    let result = extended(world);
    world.settle();
    result
}
