//! The engine by scenario: each test is one thing that goes wrong, and what must come of it.
#![allow(clippy::unwrap_used)] // helpers are test code too

#[path = "support/world.rs"]
#[allow(dead_code, unreachable_pub)]
mod world;

use std::time::Duration;

use quorlock::{
    AcquireError, ExtendError, NodeError, ProtocolError, ReleaseError, Vote,
    internal::{
        Credentials, Secret,
        command::{By, Verb},
        engine::Event,
        handshake::Greeting,
        request::Spec,
    },
};
use world::{CONNECT_TIMEOUT, NODE_TIMEOUT, TTL, World, command, ms, spec, ttl};

fn votes(attempt: &quorlock::Attempt) -> Vec<String> {
    attempt.votes().map(|(_, vote)| vote.to_string()).collect()
}

// Acquire.

#[test]
fn one_write_to_each_node_and_settled_by_the_fastest_quorum() {
    let mut world = World::new(5);
    let writes: usize = world.nodes.iter().map(|node| node.writes).sum();
    world.acquire(spec("r"));
    assert_eq!(world.nodes.iter().map(|node| node.writes).sum::<usize>(), writes + 5);
    world.answer(4);
    world.answer(0);
    assert!(world.events.is_empty());
    world.answer(2);
    let [Event::Acquired { grant, .. }] = &world.events[..] else { panic!("{:?}", world.events) };
    assert_eq!(
        votes(&grant.attempt),
        ["granted", "not waited for", "granted", "not waited for", "granted"]
    );
}

#[test]
fn validity_is_counted_from_before_the_send_and_less_the_drift() {
    let mut world = World::new(3);
    world.acquire(spec("r"));
    let started = world.now;
    world.pass(ms(30));
    world.settle();
    let [Event::Acquired { grant, .. }] = &world.events[..] else { panic!("{:?}", world.events) };
    assert_eq!(grant.valid_until.since(started), TTL - ms(100 + 2));
}

#[test]
fn a_loss_is_released_at_once_behind_the_set_on_every_node() {
    let mut world = World::new(3);
    let first = world.acquired("r");
    world.take_logs();
    world.acquire(spec("r"));
    world.answer(0);
    world.answer(1);
    let [Event::NotAcquired { error: AcquireError::Contended(attempt), .. }] = &world.events[..]
    else {
        panic!("{:?}", world.events)
    };
    assert_eq!(votes(attempt), ["refused", "refused", "not waited for"]);
    world.settle();
    for log in world.take_logs() {
        let [set, release] = &log[..] else { panic!("{log:?}") };
        assert_eq!(set[0], b"SET");
        assert_eq!(release[0], b"EVALSHA");
        assert_eq!(set[2], release[4], "it undoes its own token");
    }
    assert_eq!(world.holders("r"), vec![Some(first.token.to_string()); 3]);
}

#[test]
fn each_attempt_has_a_fresh_token() {
    let mut world = World::new(1);
    let mut tokens = std::collections::HashSet::new();
    for i in 0..100 {
        let grant = world.acquired(&format!("r{i}"));
        assert!(tokens.insert(grant.token.to_string()));
    }
}

#[test]
fn a_late_grant_belongs_to_the_lock_and_is_released_with_it() {
    let mut world = World::new(3);
    world.acquire(spec("r"));
    world.answer(0);
    world.answer(1);
    let Event::Acquired { grant, .. } = world.events.remove(0) else { panic!() };
    world.pass(NODE_TIMEOUT * 2);
    world.answer(2);
    assert_eq!(world.holders("r"), vec![Some(grant.token.to_string()); 3]);
    world.release(grant.lease);
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_quorum_that_comes_too_late_is_expired_and_released() {
    let mut world = World::new(3);
    let min_validity = TTL - ms(102) - ms(5);
    world.acquire(Spec { min_validity, ..spec("r") });
    world.pass(ms(6));
    world.settle();
    let Event::NotAcquired { error: AcquireError::Expired(attempt), .. } = &world.events[0] else {
        panic!("{:?}", world.events)
    };
    assert_eq!(attempt.granted(), 2);
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn silent_nodes_fail_at_their_deadline_and_are_released_all_the_same() {
    let mut world = World::new(3);
    world.acquire(spec("r"));
    world.answer(0);
    world.pass(NODE_TIMEOUT - ms(1));
    assert!(world.events.is_empty());
    world.pass(ms(1));
    let [Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. }] = &world.events[..]
    else {
        panic!("{:?}", world.events)
    };
    assert_eq!(votes(attempt), ["granted", "timed out after sending", "timed out after sending"]);
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn replies_of_an_attempt_that_is_over_are_consumed_and_credited_to_nobody() {
    let mut world = World::new(3);
    world.acquire(spec("a"));
    world.pass(NODE_TIMEOUT);
    assert!(matches!(world.events.remove(0), Event::NotAcquired { .. }));
    world.acquire(spec("b"));
    // The replies to a's SETs and releases arrive first, then nobody knows about b.
    for node in 0..3 {
        world.serve(node);
        let outbox = std::mem::take(&mut world.nodes[node].outbox);
        let b = outbox.len() - b"+OK\r\n".len();
        world.feed(node, &outbox[..b]);
        world.nodes[node].outbox = outbox[b..].to_vec();
    }
    assert!(world.events.is_empty(), "a's OK is not b's: {:?}", world.events);
    assert_eq!(world.engine.counts().abandoned_replies, 3);
    world.settle();
    let [Event::Acquired { grant, .. }] = &world.events[..] else { panic!("{:?}", world.events) };
    assert_eq!(world.holders("b"), vec![Some(grant.token.to_string()); 3]);
    assert_eq!(world.holders("a"), [None, None, None]);
}

#[test]
fn error_replies_are_no_votes_and_keep_the_servers_words() {
    for reply in ["LOADING Redis is loading", "READONLY You can't write", "OOM command", "BUSY x"] {
        let mut world = World::new(3);
        for node in 0..2 {
            world.nodes[node].instead = Some(Box::new(move |command| {
                (command[0] == b"SET").then(|| format!("-{reply}\r\n").into())
            }));
        }
        world.acquire(spec("r"));
        world.settle();
        let Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. } = &world.events[0]
        else {
            panic!("{:?}", world.events)
        };
        assert_eq!(attempt.failed(), 2);
        assert!(
            attempt.to_string().contains("node-0: ") && attempt.to_string().contains("; node-1: ")
        );
        let (_, vote) = attempt.votes().next().unwrap();
        let Vote::Failed(NodeError::Server(words)) = vote else { panic!("{vote:?}") };
        assert_eq!(**words, reply.escape_default().to_string());
    }
}

#[test]
fn a_node_that_is_down_counts_as_failed_at_once() {
    let mut world = World::new(3);
    for node in 1..3 {
        world.nodes[node].up = false;
        world.cut(node);
    }
    world.pass(ms(1)); // The reconnect that is tried at once fails.
    world.acquire(spec("r"));
    let [Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. }] = &world.events[..]
    else {
        panic!("{:?}", world.events)
    };
    assert_eq!(attempt.elapsed(), Duration::ZERO);
    assert!(matches!(attempt.votes().nth(1).unwrap().1, Vote::NotSent(NodeError::Io(_))));
}

#[test]
fn a_set_waits_for_a_connection_in_the_making_within_its_own_deadline() {
    let mut world = World::unconnected(3);
    world.pass(Duration::ZERO);
    world.acquire(spec("r"));
    world.settle();
    assert!(matches!(world.events[..], [Event::Acquired { .. }]));

    let mut world = World::unconnected(3);
    world.pass(Duration::ZERO);
    world.acquire(spec("r"));
    world.pass(NODE_TIMEOUT);
    let Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. } = world.events.remove(0)
    else {
        panic!()
    };
    assert_eq!(votes(&attempt), ["not sent: timed out"; 3]);
    world.settle();
    assert_eq!(world.ready(), 3, "the connections outlive the attempt");
    assert!(world.take_logs().iter().all(Vec::is_empty), "what was not sent stays unsent");
}

// Retry.

#[test]
fn between_attempts_nothing_is_left_behind_and_the_last_ends_with_the_deadline() {
    let mut world = World::new(3);
    let holder = world.acquired("r");
    world.take_logs();
    let deadline = world.now.after(Duration::from_secs(2));
    world.acquire(Spec { deadline: Some(deadline), ..spec("r") });
    let mut pauses = Vec::new();
    let mut last = world.now;
    while world.events.is_empty() {
        world.settle();
        if !world.events.is_empty() {
            break;
        }
        assert_eq!(world.holders("r"), vec![Some(holder.token.to_string()); 3]);
        let due = world.engine.poll_timeout().unwrap();
        world.pass(due.since(world.now));
        pauses.push(world.now.since(last));
        last = world.now;
    }
    let Event::NotAcquired { error: AcquireError::DeadlineExceeded(Some(attempt)), .. } =
        &world.events[0]
    else {
        panic!("{:?}", world.events)
    };
    assert_eq!(usize::try_from(attempt.number()).unwrap(), pauses.len() + 1);
    assert_eq!(world.now, deadline.before(ms(10)));
    // One with all of a node's time before the deadline, and one as late as can be.
    let [full @ .., _, last] = &pauses[..] else { panic!("{pauses:?}") };
    assert_eq!(*last, ms(40));
    assert!(full.iter().all(|pause| (ms(50)..=ms(250)).contains(pause)), "{pauses:?}");
}

#[test]
fn a_waiter_gets_the_lock_once_it_is_free() {
    let mut world = World::new(3);
    let holder = world.acquired("r");
    let deadline = world.now.after(Duration::from_secs(2));
    world.acquire(Spec { deadline: Some(deadline), ..spec("r") });
    world.settle();
    world.release(holder.lease);
    world.settle();
    assert!(matches!(world.events.remove(0), Event::Released { result: Ok(()), .. }));
    world.live(ms(250));
    let [Event::Acquired { grant, .. }] = &world.events[..] else { panic!("{:?}", world.events) };
    assert_eq!(grant.attempt.number(), 2);
}

#[test]
fn nodes_that_only_a_person_can_mend_are_not_waited_for() {
    let mut world = World::new(3);
    for node in 0..2 {
        world.nodes[node].instead = Some(Box::new(|command| {
            (command[0] == b"SET").then(|| b"-NOPERM this user has no permissions\r\n".into())
        }));
    }
    let deadline = world.now.after(Duration::from_secs(2));
    world.acquire(Spec { deadline: Some(deadline), ..spec("r") });
    world.settle();
    assert!(
        matches!(world.events[..], [Event::NotAcquired { error: AcquireError::NoQuorum(_), .. }]),
        "{:?}",
        world.events
    );
}

// Cancel.

/// A request is cancelled after every number of steps that its life can have.
#[test]
fn cancelled_at_any_point_it_leaves_nothing_behind() {
    for steps in 0..=8 {
        let mut world = World::new(3);
        let request = world.acquire(spec("r"));
        for step in 0..steps {
            match step {
                0..3 => world.serve(step),
                3 => world.deliver(0),
                4 => world.pass(NODE_TIMEOUT / 2),
                5 => world.cut(1),
                6 => world.settle(),
                _ => world.pass(ms(1)),
            }
        }
        world.engine.cancel(world.now, request);
        world.carry();
        let granted = world.events.drain(..).find_map(|event| match event {
            Event::Acquired { grant, .. } => Some(grant.lease),
            _ => None,
        });
        if let Some(lease) = granted {
            world.release(lease);
        }
        world.pass(ms(1));
        world.settle();
        assert_eq!(world.holders("r"), [None, None, None], "after {steps} steps");
        assert_eq!(world.engine.releasing(), 0, "after {steps} steps");
    }
}

// Release.

#[test]
fn a_release_that_finds_the_lock_gone_says_so() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.nodes[0].keys.clear();
    world.nodes[1].keys.clear();
    world.release(grant.lease);
    world.settle();
    let Event::Released { result: Err(ReleaseError::NotHeld(attempt)), .. } = &world.events[0]
    else {
        panic!("{:?}", world.events)
    };
    assert_eq!(attempt.refused(), 2);
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_release_that_a_broken_connection_took_with_it_is_sent_again_on_the_next() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.release(grant.lease);
    world.nodes[0].inbox.clear(); // Lost on the way.
    world.cut(0);
    world.answer(1);
    world.answer(2);
    assert!(matches!(world.events.remove(0), Event::Released { result: Ok(()), .. }));
    assert_eq!(world.engine.releasing(), 1);
    assert!(world.holders("r")[0].is_some());
    world.pass(ms(1));
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_set_that_a_broken_connection_took_with_it_is_released_on_the_next() {
    let mut world = World::new(3);
    world.acquire(spec("r"));
    world.serve(0); // Executed; the reply is lost with the connection.
    world.cut(0);
    world.answer(1);
    assert!(world.events.is_empty());
    world.pass(NODE_TIMEOUT);
    let Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. } = &world.events[0] else {
        panic!("{:?}", world.events)
    };
    assert!(matches!(attempt.votes().next().unwrap().1, Vote::Unknown(NodeError::Closed)));
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn what_never_left_is_neither_unknown_nor_released() {
    let mut world = World::new(3);
    world.acquired("warm-up");
    world.take_logs();
    // The socket takes nothing: nothing of the SET is written.
    world.nodes[0].connected = false;
    world.acquire(spec("r"));
    world.cut(0);
    world.answer(1);
    world.answer(2);
    let Event::Acquired { grant, .. } = world.events.remove(0) else { panic!() };
    assert!(matches!(grant.attempt.votes().next().unwrap().1, Vote::NotSent(NodeError::Closed)));
    world.pass(ms(1));
    world.settle();
    world.release(grant.lease);
    world.settle();
    assert!(world.nodes[0].take_log().is_empty());
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_silent_connection_is_given_up_in_the_end_and_its_debts_are_kept() {
    let mut world = World::new(3);
    world.acquire(spec("r"));
    world.answer(1);
    world.answer(2);
    let Event::Acquired { grant, .. } = world.events.remove(0) else { panic!() };
    world.release(grant.lease);
    world.answer(1);
    world.answer(2);
    world.nodes[0].up = false;
    world.pass(CONNECT_TIMEOUT);
    assert_eq!(world.ready(), 2);
    assert_eq!(world.engine.releasing(), 1);
    // It wakes up: what it had been sent runs now, and its key is gone at once.
    world.nodes[0].up = true;
    world.serve(0);
    world.live(CONNECT_TIMEOUT * 3);
    assert_eq!(world.ready(), 3);
    assert_eq!(world.holders("r"), [None, None, None]);
    assert_eq!(world.engine.releasing(), 0);
}

// Extend.

fn extended(world: &mut World) -> Result<(), ExtendError> {
    match world.events.remove(0) {
        Event::Extended { result, .. } => result.map(drop),
        event => panic!("{event:?}"),
    }
}

#[test]
fn an_extension_by_a_quorum_moves_the_deadline() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.pass(Duration::from_secs(3));
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    let until = world.engine.valid_until(grant.lease);
    assert_eq!(until.since(world.now), TTL - ms(102));
}

#[test]
fn a_failed_extension_leaves_the_old_deadline_and_releases_nothing() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.pass(Duration::from_secs(3));
    world.extend(grant.lease, TTL).unwrap();
    world.answer(0);
    world.pass(NODE_TIMEOUT);
    let Err(ExtendError::NoQuorum { attempt, validity }) = extended(&mut world) else { panic!() };
    assert_eq!(attempt.granted(), 1);
    assert_eq!(validity, TTL - ms(102) - Duration::from_secs(3) - NODE_TIMEOUT);
    assert_eq!(world.engine.valid_until(grant.lease), grant.valid_until);
    world.settle();
    assert_eq!(world.holders("r"), vec![Some(grant.token.to_string()); 3]);
}

#[test]
fn a_shorter_extension_shortens_the_lock_before_it_is_sent() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.extend(grant.lease, Duration::from_secs(1)).unwrap();
    let until = world.engine.valid_until(grant.lease);
    assert_eq!(until.since(world.now), Duration::from_secs(1) - ms(12));
    world.pass(NODE_TIMEOUT);
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
    assert_eq!(world.engine.valid_until(grant.lease), until, "some nodes may have done it");
}

#[test]
fn an_extension_after_the_deadline_is_not_sent() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.pass(TTL - ms(102));
    world.take_logs();
    assert!(matches!(world.extend(grant.lease, TTL), Err(ExtendError::Expired)));
    world.settle();
    assert!(world.take_logs().iter().all(Vec::is_empty));
}

#[test]
fn an_extension_that_is_answered_after_the_deadline_comes_too_late() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.pass(TTL - ms(102) - ms(10));
    world.extend(grant.lease, TTL).unwrap();
    world.pass(ms(10));
    assert!(matches!(extended(&mut world), Err(ExtendError::Expired)));
    world.settle();
    assert!(world.events.is_empty());
    assert_eq!(world.engine.valid_until(grant.lease), grant.valid_until);
}

#[test]
fn an_earlier_extensions_answer_does_not_count_for_a_later_one() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.extend(grant.lease, TTL).unwrap();
    world.pass(NODE_TIMEOUT);
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
    world.extend(grant.lease, TTL).unwrap();
    for node in 0..3 {
        world.serve(node);
        let outbox = std::mem::take(&mut world.nodes[node].outbox);
        assert_eq!(outbox, b":2\r\n:2\r\n");
        world.feed(node, b":2\r\n");
    }
    assert!(world.events.is_empty(), "{:?}", world.events);
    assert_eq!(world.engine.counts().abandoned_replies, 3);
    world.feed(0, b":2\r\n");
    world.feed(1, b":2\r\n");
    extended(&mut world).unwrap();
}

#[test]
fn a_node_that_once_denied_the_lock_never_counts_again() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    let key = world.nodes[0].keys.remove(b"lock:r".as_slice()).unwrap();
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    // Its key is back, as after a SET that comes late.
    world.nodes[0].keys.insert(b"lock:r".to_vec(), key);
    world.take_logs();
    world.extend(grant.lease, TTL).unwrap();
    world.answer(0);
    world.answer(1);
    assert!(world.nodes[0].take_log().is_empty(), "it is not even asked");
    world.pass(NODE_TIMEOUT);
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
}

#[test]
fn a_node_that_denies_it_late_does_not_count_for_the_extension_that_was_begun_meanwhile() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.extend(grant.lease, TTL).unwrap();
    world.pass(NODE_TIMEOUT);
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
    world.extend(grant.lease, TTL).unwrap();
    world.feed(0, b":-2\r\n:2\r\n");
    world.answer(1);
    assert!(world.events.is_empty(), "{:?}", world.events);
    world.pass(NODE_TIMEOUT);
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
}

#[test]
fn a_lock_that_a_quorum_denies_is_lost_at_once() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.nodes[0].keys.clear();
    world.nodes[1].keys.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.answer(0);
    world.answer(1);
    let Err(ExtendError::Lost(attempt)) = extended(&mut world) else { panic!() };
    assert_eq!(attempt.refused(), 2);
    assert!(world.engine.valid_until(grant.lease) <= world.now);
    assert!(matches!(world.extend(grant.lease, TTL), Err(ExtendError::Expired)), "one way");
}

#[test]
fn half_of_an_even_number_denying_is_no_quorum_and_not_lost() {
    let mut world = World::new(4);
    let grant = world.acquired("r");
    world.nodes[0].keys.clear();
    world.nodes[1].keys.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
    assert_eq!(world.engine.valid_until(grant.lease), grant.valid_until);
}

#[test]
fn an_extension_never_creates_the_key_again() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.nodes[0].keys.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    assert_eq!(world.holders("r")[0], None);
}

// Scripts.

#[test]
fn a_lost_script_is_sent_in_full_once() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.take_logs();
    for node in &mut world.nodes {
        node.scripts.clear();
    }
    world.release(grant.lease);
    world.settle();
    assert!(matches!(world.events[0], Event::Released { result: Ok(()), .. }));
    let by = |by| command(Verb::Release, by, "r", &grant.token, ttl(TTL));
    assert_eq!(world.nodes[0].take_log(), [by(By::Digest), by(By::Source)]);
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn a_server_that_never_knows_the_script_is_not_asked_for_ever() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.take_logs();
    for node in &mut world.nodes {
        node.instead = Some(Box::new(|command| {
            command[0].starts_with(b"EVAL").then(|| b"-NOSCRIPT No matching script.\r\n".into())
        }));
    }
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    let Err(ExtendError::NoQuorum { attempt, .. }) = extended(&mut world) else { panic!() };
    assert_eq!(attempt.failed(), 2);
    assert_eq!(world.nodes[0].take_log().len(), 2);
}

/// As after a pause of the whole process: what lies in the socket is read before anybody looks at the time.
#[test]
fn the_full_script_of_an_extension_is_not_sent_after_the_locks_end() {
    let mut world = World::new(1);
    let grant = world.acquired("r");
    world.nodes[0].scripts.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.serve(0);
    world.take_logs();
    world.now = world.now.after(TTL);
    world.deliver(0);
    world.pass(Duration::ZERO);
    world.settle();
    assert!(matches!(extended(&mut world), Err(ExtendError::Expired)));
    assert!(world.take_logs().iter().all(Vec::is_empty));
}

#[test]
fn the_full_script_keeps_the_deadline_of_the_command_it_stands_for() {
    let mut world = World::new(1);
    let grant = world.acquired("r");
    world.take_logs();
    world.nodes[0].scripts.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.serve(0);
    world.pass(NODE_TIMEOUT);
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
    world.deliver(0);
    world.settle();
    assert_eq!(world.nodes[0].take_log().len(), 1, "nobody waits for it any more");
}

// Replies.

#[test]
fn a_reply_that_does_not_fit_its_command_ends_the_connection() {
    for reply in [&b":1\r\n"[..], b"+QUEUED\r\n", b"$2\r\nOK\r\n", b"*0\r\n", b"?\r\n"] {
        let mut world = World::new(1);
        world.acquire(spec("r"));
        world.feed(0, reply);
        assert!(!world.nodes[0].connected, "{reply:?}");
        assert_eq!(world.engine.counts().protocol_errors, 1);
        // And the attempt knows at once that this command was not answered.
        let [Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. }] = &world.events[..]
        else {
            panic!("{:?}", world.events)
        };
        let vote = attempt.votes().next().unwrap().1;
        assert!(matches!(vote, Vote::Unknown(NodeError::Protocol(_))), "{reply:?}");
        world.live(ms(100));
        assert_eq!(world.holders("r"), [None]);
        assert_eq!(world.engine.releasing(), 0);
    }
}

#[test]
fn a_reply_to_nothing_ends_the_connection() {
    let mut world = World::new(3);
    world.feed(0, b"+OK\r\n");
    assert!(!world.nodes[0].connected);
    world.feed(1, b"-ERR max number of clients reached\r\n");
    assert!(!world.nodes[1].connected);
    world.feed(2, b">2\r\n+invalidate\r\n*0\r\n");
    assert!(world.nodes[2].connected, "a push is nobody's reply");
}

#[test]
fn replies_may_come_in_pieces() {
    let mut world = World::new(1);
    world.acquire(spec("r"));
    for byte in b"+OK\r" {
        world.feed(0, &[*byte]);
        assert!(world.events.is_empty());
    }
    world.feed(0, b"\n");
    assert!(matches!(world.events[..], [Event::Acquired { .. }]));
}

/// A master that became a replica, or wants a password now, is connected to again, wherever its name leads.
#[test]
fn a_server_that_is_no_longer_ours_is_left_once_all_is_answered() {
    for reply in ["READONLY You can't write", "NOAUTH Authentication required.", "MASTERDOWN x"] {
        let mut world = World::new(3);
        world.nodes[0].instead = Some(Box::new(move |command| {
            (command[0] == b"SET").then(|| format!("-{reply}\r\n").into())
        }));
        let grant = world.acquired("r");
        assert!(!world.nodes[0].connected, "{reply}");
        let (_, votes) = world.engine.connections();
        let Vote::Failed(NodeError::Server(words)) = &votes[0] else { panic!("{votes:?}") };
        assert_eq!(**words, reply.escape_default().to_string());
        world.release(grant.lease);
        world.live(ms(100));
        assert_eq!(world.ready(), 3);
        assert_eq!(world.engine.releasing(), 0);
    }
}

// Connections.

fn greeting(user: Option<&str>, password: Option<&str>, db: u32) -> Greeting {
    let secret = |text: &str| Secret::new(text.as_bytes().to_vec());
    let credentials = Credentials { user: user.map(secret), password: password.map(secret) };
    Greeting { credentials, db, client_name: "me".into(), tracking: false, persistence: false }
}

/// One node's handshake, as words on the wire, and what the connection came to.
fn handshake(
    greeting: Greeting,
    mut instead: impl FnMut(&world::Command) -> Option<Vec<u8>> + 'static,
) -> (Vec<String>, Vec<Vote>, World) {
    let said = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let log = said.clone();
    let mut world = World::with_greetings(vec![greeting]);
    world.nodes[0].instead = Some(Box::new(move |command| {
        let words: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word)).collect();
        log.borrow_mut().push(words.join(" "));
        instead(command)
    }));
    world.pass(Duration::ZERO);
    world.settle();
    let (_, votes) = world.engine.connections();
    (said.take().into_iter().filter(|line| !line.starts_with("SCRIPT")).collect(), votes, world)
}

const SETINFO: [&str; 2] = [
    "CLIENT SETINFO LIB-NAME quorlock",
    concat!("CLIENT SETINFO LIB-VER ", env!("CARGO_PKG_VERSION")),
];

#[test]
fn the_greeting_is_one_write() {
    let (said, _, world) = handshake(greeting(Some("ann"), Some("pw"), 3), |_| None);
    let [name, version] = SETINFO;
    let hello = "HELLO 3 AUTH ann pw SETNAME me";
    assert_eq!(said, [hello, "SELECT 3", name, version, "INFO server", "INFO memory"]);
    assert_eq!(world.ready(), 1);
    assert_eq!(world.nodes[0].writes, 1);

    let (said, ..) = handshake(greeting(None, Some("pw"), 0), |_| None);
    assert_eq!(said[0], "HELLO 3 AUTH default pw SETNAME me");
    let (said, ..) = handshake(greeting(None, None, 0), |_| None);
    assert_eq!(said[0], "HELLO 3 SETNAME me");
}

/// Redis 5 has no HELLO, wants AUTH for all that follows, and echoes what it does not know.
#[test]
fn a_server_without_hello_is_greeted_again_in_resp2() {
    for refusal in [
        "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `pw`, \r\n",
        "-ERR unknown command 'hello'\r\n",
        "-unsupported command 'HELLO'\r\n",
        "-NOPROTO sorry, this protocol version is not supported\r\n",
    ] {
        let mut authenticated = false;
        let (said, _, world) = handshake(greeting(None, Some("pw"), 2), move |command| {
            authenticated |= command[0] == b"AUTH";
            match &*command[0] {
                b"HELLO" => Some(refusal.into()),
                b"CLIENT" if command[1] == b"SETINFO" => {
                    Some(b"-ERR unknown subcommand\r\n".into())
                }
                _ if !authenticated => Some(b"-NOAUTH Authentication required.\r\n".into()),
                _ => None,
            }
        });
        let [name, version] = SETINFO;
        let rest = ["SELECT 2", name, version, "INFO server", "INFO memory"];
        let first = [&["HELLO 3 AUTH default pw SETNAME me"][..], &rest];
        let second = [&["AUTH pw", "CLIENT SETNAME me"][..], &rest];
        assert_eq!(said, [first.concat(), second.concat()].concat(), "{refusal}");
        assert_eq!(world.ready(), 1);
        assert_eq!(world.nodes[0].writes, 2);
    }
}

#[test]
fn refusals_are_named_without_the_servers_words() {
    for (on, reply, expected) in [
        ("HELLO", "-WRONGPASS invalid pw pair", "wrong user or password (WRONGPASS)"),
        ("HELLO", "-NOAUTH HELLO must be called with pw", "wants a password (NOAUTH)"),
        (
            "HELLO",
            "-DENIED Redis is running pw",
            "in protected mode, takes no remote clients (DENIED)",
        ),
        ("HELLO", "-ERR max number of clients reached", "ERR max number of clients reached"),
        ("SELECT", "-ERR DB index pw is out of range", "refused SELECT 7"),
        ("INFO", "$22\r\nredis_mode:cluster\r\npw", "in cluster mode: not an independent master"),
        ("INFO", "$23\r\nserver_mode:cluster\r\npw", "in cluster mode: not an independent master"),
    ] {
        let (_, votes, mut world) = handshake(greeting(None, Some("pw"), 7), move |command| {
            (command[0] == on.as_bytes()).then(|| format!("{reply}\r\n").into())
        });
        assert_eq!(votes[0].to_string(), expected);
        assert!(!world.nodes[0].connected);
        world.acquire(spec("r"));
        assert!(!format!("{:?}", world.events).contains("pw"), "{:?}", world.events);
    }
}

#[test]
fn a_refused_login_is_not_repeated_soon() {
    let (said, _, mut world) = handshake(greeting(None, Some("pw"), 0), |command| {
        (command[0] == b"HELLO").then(|| b"-WRONGPASS no\r\n".into())
    });
    assert!(!said.is_empty());
    // Soon at first, then twice as late each time.
    world.nodes[0].writes = 0;
    world.live(ms(400));
    assert_eq!(world.nodes[0].writes, 0);
    world.live(Duration::from_secs(60));
    let tries = world.nodes[0].writes;
    assert!((3..=8).contains(&tries), "{tries} in a minute");
    world.live(Duration::from_secs(300));
    let tries = world.nodes[0].writes - tries;
    assert!((9..=21).contains(&tries), "{tries} in five minutes");
}

#[test]
fn courtesies_and_rights_may_be_refused() {
    let (_, _, world) = handshake(greeting(None, None, 0), |command| {
        matches!(&*command[0], b"CLIENT" | b"INFO" | b"SCRIPT")
            .then(|| b"-NOPERM this user has no permissions\r\n".into())
    });
    assert_eq!(world.ready(), 1);
}

#[test]
fn a_peer_that_hangs_up_on_hello_is_greeted_plainly_the_next_time() {
    let mut world = World::unconnected(1);
    world.pass(Duration::ZERO);
    world.nodes[0].inbox.clear();
    world.cut(0);
    world.nodes[0].instead = Some(Box::new(|command| {
        assert_ne!(command[0], b"HELLO");
        None
    }));
    world.live(ms(1));
    assert_eq!(world.ready(), 1);
}

#[test]
fn no_command_is_sent_before_every_reply_to_the_greeting_was_consumed() {
    let mut world = World::unconnected(1);
    world.pass(Duration::ZERO);
    world.acquire(spec("r"));
    world.serve(0);
    let replies = std::mem::take(&mut world.nodes[0].outbox);
    for (at, byte) in replies.iter().enumerate() {
        assert!(world.nodes[0].inbox.is_empty(), "after {at} bytes");
        world.feed(0, &[*byte]);
    }
    assert!(!world.nodes[0].inbox.is_empty());
}

#[test]
fn one_server_under_two_addresses_has_one_vote() {
    let mut world = World::unconnected(3);
    world.nodes[2].run_id = world.nodes[0].run_id.clone();
    world.pass(Duration::ZERO);
    world.settle();
    assert_eq!(world.ready(), 2);
    let (_, votes) = world.engine.connections();
    assert_eq!(votes[2].to_string(), "the same server as node-0");
}

/// Servers that hang up on idle clients, or are restarted, are connected to again at once: whoever asks in that
/// moment is not told that they are away.
#[test]
fn a_request_waits_for_connections_that_are_about_to_be_made() {
    let mut world = World::new(3);
    let lock = world.acquired("warm-up").lease;
    world.release(lock);
    world.settle();
    world.events.clear();
    for node in 0..3 {
        world.cut(node);
    }
    assert_eq!(world.ready(), 0);
    world.acquire(spec("r"));
    assert!(world.events.is_empty(), "not settled: {:?}", world.events);
    world.pass(Duration::ZERO);
    world.settle();
    assert!(matches!(world.events[..], [Event::Acquired { .. }]), "{:?}", world.events);
}

#[test]
fn a_stuck_connect_ends_with_its_own_timeout_and_backs_off() {
    let mut world = World::unconnected(1);
    world.pass(Duration::ZERO);
    world.nodes[0].inbox.clear(); // It never answers the greeting.
    world.pass(CONNECT_TIMEOUT - ms(1));
    assert!(world.nodes[0].connected);
    world.nodes[0].up = false;
    world.pass(ms(1));
    assert!(!world.nodes[0].connected);
    let (_, votes) = world.engine.connections();
    assert!(matches!(
        votes[0],
        Vote::Pending | Vote::Failed(NodeError::Timeout | NodeError::Io(_))
    ));
}

#[test]
fn time_in_which_nobody_looked_is_not_held_against_a_node() {
    // Answers that came meanwhile are read before the time is told.
    let mut world = World::new(3);
    world.acquire(spec("r"));
    (0..3).for_each(|node| world.serve(node));
    world.now = world.now.after(Duration::from_secs(60));
    (0..3).for_each(|node| world.deliver(node));
    world.engine.handle_timeout(world.now);
    world.carry();
    assert_eq!(world.ready(), 3);

    // A connection that was made meanwhile gets its time for the greeting.
    let mut world = World::unconnected(1);
    world.nodes[0].up = false;
    world.engine.handle_timeout(world.now);
    let node = world.engine.poll_connect().unwrap();
    world.now = world.now.after(Duration::from_secs(60));
    world.nodes[0].connected = true;
    world.engine.handle_connected(world.now, node);
    world.engine.handle_timeout(world.now);
    world.carry();
    assert!(world.nodes[0].connected);
    world.pass(CONNECT_TIMEOUT);
    assert!(!world.nodes[0].connected, "but not more than that");
}

#[test]
fn a_protocol_error_is_told_as_such() {
    let mut world = World::new(1);
    world.acquire(spec("r"));
    world.feed(0, b"HTTP/1.1 400 Bad Request\r\n");
    let Event::NotAcquired { error: AcquireError::NoQuorum(attempt), .. } = &world.events[0] else {
        panic!("{:?}", world.events)
    };
    assert!(matches!(
        attempt.votes().next().unwrap().1,
        Vote::Unknown(NodeError::Protocol(ProtocolError::BadTypeByte(b'H')))
    ));
}

// A reply needs a command that was written.

#[test]
fn a_reply_to_a_command_that_was_not_written_yet_is_a_reply_to_nothing() {
    // One too many at the end of the greeting, when the SET is only about to be sent.
    let mut world = World::unconnected(1);
    world.pass(Duration::ZERO);
    world.acquire(spec("r"));
    world.serve(0);
    let mut replies = std::mem::take(&mut world.nodes[0].outbox);
    replies.extend_from_slice(b"+OK\r\n");
    world.feed(0, &replies);
    assert!(!world.events.iter().any(|event| matches!(event, Event::Acquired { .. })));
    assert_eq!(world.engine.counts().protocol_errors, 1);

    // One on a connection whose socket takes nothing.
    let mut world = World::new(1);
    world.nodes[0].connected = false;
    world.acquire(spec("r"));
    let id = world.id(0);
    world.engine.handle_input(world.now, id, b"+OK\r\n");
    world.carry();
    assert!(!world.events.iter().any(|event| matches!(event, Event::Acquired { .. })));
    assert_eq!(world.engine.counts().protocol_errors, 1);
}

#[test]
fn a_reply_to_a_greeting_that_was_not_written_yet_is_a_reply_to_nothing() {
    // Right replies to all of it, when only some of it is written.
    for written in [0, 1, 100] {
        let mut world = World::unconnected(1);
        world.pass(Duration::ZERO);
        world.serve(0);
        let replies = std::mem::take(&mut world.nodes[0].outbox);
        world.cut(0);
        let id = world.id(0);
        world.engine.handle_timeout(world.now);
        assert_eq!(world.engine.poll_connect(), Some(id));
        world.engine.handle_connected(world.now, id);
        world.engine.wrote(id, written);
        world.engine.handle_input(world.now, id, &replies);
        assert_eq!(world.engine.poll_close(), Some(id), "{written}");
        assert_eq!(world.engine.counts().protocol_errors, 1, "{written}");
        assert_eq!(world.ready(), 0);
    }

    // To the second greeting, which follows a refusal of the first.
    let mut world = World::unconnected(1);
    world.pass(Duration::ZERO);
    world.nodes[0].instead = Some(Box::new(|command| {
        (command[0] == b"HELLO").then(|| b"-ERR unknown command\r\n".into())
    }));
    world.serve(0);
    let mut replies = std::mem::take(&mut world.nodes[0].outbox);
    replies.extend_from_slice(b"+OK\r\n");
    world.feed(0, &replies);
    assert_eq!(world.engine.counts().protocol_errors, 1);

    // A server that takes no client says so before it is asked anything.
    let mut world = World::unconnected(1);
    let id = world.id(0);
    world.engine.handle_timeout(world.now);
    assert_eq!(world.engine.poll_connect(), Some(id));
    world.engine.handle_connected(world.now, id);
    world.feed(0, b"-ERR max number of clients reached\r\n");
    let (_, votes) = world.engine.connections();
    assert_eq!(votes[0].to_string(), "ERR max number of clients reached");
}

#[test]
fn a_turn_that_comes_late_leaves_nothing_due_in_the_past() {
    let mut world = World::new(1);
    world.acquired("r");
    let deadline = Some(world.now.after(ms(300)));
    world.acquire(Spec { deadline, ..spec("r") });
    world.settle();
    assert!(world.events.is_empty(), "it waits for its next attempt: {:?}", world.events);
    world.now = world.now.after(ms(400));
    world.engine.handle_timeout(world.now);
    world.carry();
    let Event::NotAcquired { error: AcquireError::DeadlineExceeded(Some(attempt)), .. } =
        &world.events[0]
    else {
        panic!("{:?}", world.events)
    };
    assert_eq!(attempt.number(), 2);
    assert!(world.engine.poll_timeout().is_none_or(|due| due > world.now));
}

// Nodes that come late.

#[test]
fn a_node_that_was_slow_to_connect_gets_its_share_of_a_lock_that_was_won_without_it() {
    let mut world = World::unconnected(3);
    world.pass(Duration::ZERO);
    world.answer(0);
    world.answer(1);
    assert_eq!(world.ready(), 2);
    world.acquire(spec("r"));
    world.answer(0);
    world.answer(1);
    let Event::Acquired { grant, .. } = world.events.remove(0) else { panic!() };
    world.settle();
    assert_eq!(world.holders("r"), vec![Some(grant.token.to_string()); 3]);
    // And counts for what follows.
    world.nodes[0].keys.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.settle();
    extended(&mut world).unwrap();
    world.release(grant.lease);
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn an_extension_that_may_yet_come_does_not_undo_a_longer_one() {
    let mut world = World::new(1);
    let grant = world.acquired("r");
    world.extend(grant.lease, Duration::from_secs(4)).unwrap();
    // It is on its way when the connection is given up, and may run at any time.
    world.nodes[0].inbox.clear();
    world.pass(CONNECT_TIMEOUT);
    world.live(ms(100));
    assert_eq!(world.ready(), 1);
    world.events.clear();
    // A longer one cannot rely on this node, one that is no longer can.
    world.extend(grant.lease, Duration::from_secs(60)).unwrap();
    world.settle();
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
    world.extend(grant.lease, Duration::from_secs(4)).unwrap();
    world.settle();
    extended(&mut world).unwrap();
}

#[test]
fn denials_that_come_late_end_the_lock() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.nodes.iter_mut().for_each(|node| node.keys.clear());
    world.extend(grant.lease, TTL).unwrap();
    world.pass(NODE_TIMEOUT);
    assert!(matches!(extended(&mut world), Err(ExtendError::NoQuorum { .. })));
    world.settle();
    assert!(world.engine.valid_until(grant.lease) <= world.now);
}

#[test]
fn a_quorum_that_comes_after_the_callers_deadline_is_released() {
    let mut world = World::new(3);
    let deadline = world.now.after(ms(30));
    world.acquire(Spec { deadline: Some(deadline), ..spec("r") });
    (0..3).for_each(|node| world.serve(node));
    // The client was paused; the replies lie in its buffers.
    world.now = world.now.after(Duration::from_secs(5));
    (0..3).for_each(|node| world.deliver(node));
    let Event::NotAcquired { error: AcquireError::DeadlineExceeded(_), .. } = &world.events[0]
    else {
        panic!("{:?}", world.events)
    };
    world.settle();
    assert_eq!(world.holders("r"), [None, None, None]);
}

// Releases, once more.

#[test]
fn a_lock_that_was_held_is_not_said_to_be_gone() {
    let mut world = World::new(3);
    let until = world.now.after(Duration::from_secs(100));
    world.nodes[2].keys.insert(b"lock:r".to_vec(), (b"theirs".to_vec(), until));
    let grant = world.acquired("r");
    world.nodes[1].up = false;
    world.cut(1);
    world.pass(ms(1));
    world.release(grant.lease);
    world.settle();
    let Event::Released { result: Err(ReleaseError::NoQuorum(attempt)), .. } = &world.events[0]
    else {
        panic!("{:?}", world.events)
    };
    assert_eq!((attempt.granted(), attempt.refused(), attempt.failed()), (1, 1, 1));
}

#[test]
fn a_release_does_not_wait_for_nodes_that_are_known_to_be_down_and_is_owed_to_them() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    for node in 0..2 {
        world.nodes[node].up = false;
        world.cut(node);
    }
    world.pass(ms(1));
    world.release(grant.lease);
    assert!(matches!(
        world.events.remove(0),
        Event::Released { result: Err(ReleaseError::NoQuorum(_)), .. }
    ));
    world.nodes.iter_mut().for_each(|node| node.up = true);
    world.live(Duration::from_secs(3));
    assert_eq!(world.holders("r"), [None, None, None]);
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_release_that_is_put_off_is_done_once_the_node_works_again() {
    // Redis 5 and 6.2 say it of a script's command.
    let wrapped = "ERR Error running script (call to f_71c88938aaf8cc22722b7ef5bd77de28e0984f85): @user_script:5: \
                   @user_script: 5: -MISCONF cannot persist";
    for reply in
        ["BUSY Redis is busy", "LOADING Redis is loading", "MISCONF cannot persist", wrapped]
    {
        let mut world = World::new(3);
        let grant = world.acquired("r");
        world.nodes[0].instead = Some(Box::new(move |_| Some(format!("-{reply}\r\n").into())));
        world.release(grant.lease);
        world.settle();
        assert!(matches!(world.events.remove(0), Event::Released { result: Ok(()), .. }));
        assert_eq!(world.engine.releasing(), 1);
        assert_eq!(world.take_logs()[0].len(), 2, "not asked again and again");
        world.nodes[0].instead = None;
        let other = world.acquired("other");
        world.settle();
        assert_eq!(world.holders("r"), [None, None, None], "{reply}");
        world.release(other.lease);
        world.settle();
        assert_eq!(world.engine.releasing(), 0);
    }
}

/// A master that became a replica has its keys copied to where its name leads next, or has them again itself.
#[test]
fn a_release_that_a_replica_refuses_is_owed_to_the_next_master() {
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.settle();
    world.nodes[0].instead = Some(Box::new(|command| {
        command[0].starts_with(b"EVAL").then(|| b"-READONLY You can't write\r\n".into())
    }));
    world.release(grant.lease);
    world.settle();
    assert!(!world.nodes[0].connected);
    world.live(Duration::from_secs(10));
    assert_eq!(world.engine.releasing(), 1);
    let tries = world.take_logs()[0].len();
    assert!((6..=20).contains(&tries), "{tries} in ten seconds");
    world.nodes[0].instead = None;
    world.live(Duration::from_secs(3));
    assert_eq!(world.holders("r"), [None, None, None]);
    assert_eq!(world.engine.releasing(), 0);
}

#[test]
fn a_node_that_puts_a_release_off_is_asked_again_though_nothing_else_is_asked_of_it() {
    let mut world = World::new(3);
    let grants = ["a", "b", "c"].map(|resource| world.acquired(resource));
    world.nodes[0].instead = Some(Box::new(|_| Some(b"-BUSY Redis is busy\r\n".into())));
    world.take_logs();
    for grant in grants {
        world.release(grant.lease);
    }
    world.settle();
    assert_eq!(world.take_logs()[0].len(), 3);
    world.live(ms(1010));
    assert_eq!(world.take_logs()[0].len(), 4, "one at a time, four times a second");
    world.nodes[0].instead = None;
    world.live(ms(250));
    assert_eq!(world.take_logs()[0].len(), 3, "the others behind the first");
    assert_eq!(world.engine.releasing(), 0);
    assert_eq!(world.engine.poll_timeout(), None);
}

#[test]
fn a_release_is_sent_however_much_is_waiting_before_it() {
    // In the outbox of a node that takes nothing for a moment.
    let mut world = World::new(3);
    let long = "x".repeat(4000);
    let grant = world.acquired(&long);
    world.nodes[0].connected = false;
    for i in 0..300 {
        world.acquire(spec(&format!("{i:04}{long}")));
        world.answer(1);
        world.answer(2);
    }
    world.release(grant.lease);
    world.nodes[0].connected = true;
    world.carry();
    world.live(ms(500));
    assert_eq!(world.ready(), 3);
    assert_eq!(world.holders(&long)[0], None);

    // Before a connection that is being made.
    let mut world = World::new(3);
    let grant = world.acquired("r");
    world.cut(0);
    world.pass(ms(1));
    for i in 0..4100 {
        world.acquire(spec(&format!("x{i}")));
        world.answer(1);
        world.answer(2);
    }
    world.release(grant.lease);
    world.live(ms(500));
    assert_eq!(world.ready(), 3);
    assert_eq!(world.holders("r")[0], None);
}
