//! The engine as a shared locker uses it, by scenario: locks that are kept alive, locks that are lost, and
//! requests that wait in line and are told when a lock is free.
#![allow(clippy::unwrap_used)] // helpers are test code too

#[path = "support/world.rs"]
#[allow(dead_code, unreachable_pub)]
mod world;

use std::time::Duration;

use quorlock::{
    AcquireError, ExtendError, LostReason,
    internal::{
        engine::{Event, Grant},
        lease::Lease,
        request::{Care, Request, Spec},
        slab::Id,
        time::Time,
        upkeep::Upkeep,
    },
};
use world::{NODE_TIMEOUT, TTL, World, ms, spec, ttl};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn watched(resource: &str) -> Spec<'_> {
    Spec { care: Care::Engine { upkeep: None }, ..spec(resource) }
}

fn kept(resource: &str, at_most: Option<Duration>) -> Spec<'_> {
    let upkeep = Upkeep { ttl: ttl(TTL), every: TTL / 4, at_most };
    Spec { care: Care::Engine { upkeep: Some(upkeep) }, ..spec(resource) }
}

/// One that tries until a deadline, in line with others.
fn patient(world: &World, timeout: Duration) -> Spec<'static> {
    Spec { deadline: Some(world.now.after(timeout)), ..watched("r") }
}

fn granted(world: &mut World) -> Grant {
    match world.events.remove(0) {
        Event::Acquired { grant, .. } => grant,
        event => panic!("{event:?}"),
    }
}

fn acquired(world: &mut World, spec: Spec<'_>) -> Grant {
    world.acquire(spec);
    world.settle();
    granted(world)
}

fn lost(world: &World, lease: Id<Lease>) -> Option<LostReason> {
    world.events.iter().find_map(|event| match event {
        Event::Lost { lease: of, reason } if *of == lease => Some(*reason),
        _ => None,
    })
}

// Loss.

#[test]
fn a_loss_is_said_at_the_validitys_end_and_once() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, watched("r"));
    world.pass(TTL - ms(102) - ms(1));
    assert_eq!(lost(&world, grant.lease), None);
    world.pass(ms(1));
    assert_eq!(world.now, grant.valid_until, "not a moment later");
    assert_eq!(lost(&world, grant.lease), Some(LostReason::Expired));
    world.pass(TTL);
    world.release(grant.lease);
    world.live(secs(1));
    let losses = world.events.iter().filter(|event| matches!(event, Event::Lost { .. })).count();
    assert_eq!(losses, 1);
}

#[test]
fn a_released_lock_is_not_said_to_be_lost() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, watched("r"));
    world.release(grant.lease);
    world.live(TTL * 2);
    assert_eq!(lost(&world, grant.lease), None);
}

// Keep-alive.

#[test]
fn it_is_extended_in_steps_for_as_long_as_it_is_held() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, kept("r", None));
    world.take_logs();
    world.live(TTL * 5);
    assert_eq!(lost(&world, grant.lease), None);
    assert_eq!(world.nodes[0].take_log().len(), 20, "one extension every quarter of the ttl");
    world.release(grant.lease);
    world.live(TTL * 2);
    assert_eq!(world.nodes[0].take_log().len(), 1, "the release, and nothing after it");
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn it_is_tried_several_times_in_the_validity_that_is_left() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, kept("r", None));
    world.take_logs();
    // Nobody answers: each try takes the node timeout.
    world.pass(TTL - ms(102));
    assert_eq!(lost(&world, grant.lease), Some(LostReason::Expired));
    assert_eq!(world.now, grant.valid_until);
    (0..3).for_each(|node| world.serve(node));
    let tries = world.nodes[0].take_log().len();
    assert!(tries >= 3, "{tries}");
}

#[test]
fn one_that_comes_late_in_the_validity_still_saves_it() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, kept("r", None));
    for node in &mut world.nodes {
        node.instead = Some(Box::new(|command| {
            command[0].starts_with(b"EVAL").then(|| b"-LOADING please wait\r\n".into())
        }));
    }
    world.live(TTL / 2);
    world.nodes.iter_mut().for_each(|node| node.instead = None);
    world.live(TTL * 2);
    assert_eq!(lost(&world, grant.lease), None);
}

#[test]
fn a_cap_ends_it_and_nothing_is_extended_beyond() {
    let mut world = World::new(3);
    let started = world.now;
    let grant = acquired(&mut world, kept("r", Some(secs(25))));
    world.live(secs(24));
    assert_eq!(lost(&world, grant.lease), None);
    world.live(secs(1));
    assert_eq!(lost(&world, grant.lease), Some(LostReason::Expired));
    let ends = world.nodes.iter().flat_map(|node| node.keys.values()).map(|(_, until)| *until);
    assert!(ends.max().unwrap() <= started.after(secs(25)));
}

#[test]
fn a_quorum_that_denies_it_ends_it_at_the_next_step() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, kept("r", None));
    world.nodes[0].keys.clear();
    world.nodes[2].keys.clear();
    world.live(TTL / 4);
    assert_eq!(lost(&world, grant.lease), Some(LostReason::Refused));
    assert!(world.engine.valid_until(grant.lease) <= world.now);
}

#[test]
fn a_denial_ends_it_also_while_a_later_extension_is_under_way() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, watched("r"));
    world.nodes[0].keys.clear();
    world.nodes[1].keys.clear();
    world.extend(grant.lease, TTL).unwrap();
    world.answer(1);
    world.serve(0);
    world.pass(NODE_TIMEOUT);
    world.extend(grant.lease, TTL).unwrap();
    world.deliver(0);
    assert_eq!(lost(&world, grant.lease), Some(LostReason::Refused), "two of three have denied it");
}

#[test]
fn a_holder_is_told_of_an_earlier_end_before_anything_is_sent() {
    let mut world = World::new(3);
    let cut_short = kept("r", Some(TTL / 2));
    let grant = acquired(&mut world, cut_short);
    let begun = world.now;
    world.pass(TTL / 4);
    let until = match world.events.remove(0) {
        Event::Shortened { lease, until } if lease == grant.lease => until,
        event => panic!("{event:?}"),
    };
    assert!(until < grant.valid_until && until < begun.after(TTL / 2), "{until:?}");
    assert_eq!(world.events.len(), 0, "no node has answered");
}

#[test]
fn the_holders_own_extension_comes_after_the_one_under_way() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, kept("r", None));
    world.pass(TTL / 4); // The schedule's is under way.
    world.extend(grant.lease, secs(60)).unwrap();
    world.extend(grant.lease, secs(70)).unwrap();
    world.settle();
    let results: Vec<_> = world.events.drain(..).collect();
    let [
        Event::Extended { asked_for: false, result: Ok(_), .. },
        Event::Extended { asked_for: true, result: Ok(_), .. },
        Event::Extended { asked_for: true, result: Ok(until), .. },
    ] = &results[..]
    else {
        panic!("{results:?}")
    };
    assert_eq!(until.since(world.now), secs(70) - ms(702));
}

#[test]
fn what_was_asked_for_fails_with_the_lock() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, watched("r"));
    world.extend(grant.lease, TTL).unwrap();
    world.extend(grant.lease, TTL).unwrap();
    world.nodes.iter_mut().for_each(|node| node.keys.clear());
    world.settle();
    let results: Vec<_> = world.events.drain(..).collect();
    assert!(
        matches!(
            results[..],
            [
                Event::Extended { result: Err(ExtendError::Lost(_)), .. },
                Event::Extended { result: Err(ExtendError::Expired), .. },
                Event::Lost { reason: LostReason::Refused, .. },
            ]
        ),
        "{results:?}"
    );
}

// Waiting.

/// Somebody else's lock, out of this engine's sight.
fn taken(world: &mut World, until: Time) {
    for node in &mut world.nodes {
        node.keys.insert(b"lock:r".to_vec(), (b"theirs".to_vec(), until));
    }
}

fn attempts(world: &World) -> u64 {
    world.engine.counts().attempts
}

#[test]
fn a_waiter_tries_when_a_quorum_may_be_free_and_not_before() {
    let mut world = World::new(5);
    let end = world.now.after(secs(60));
    taken(&mut world, end);
    world.acquire(patient(&world, secs(30)));
    world.settle();
    assert_eq!(attempts(&world), 1);
    for node in 0..2 {
        world.delete(node, "r");
        world.deliver(node);
        world.pass(Duration::ZERO);
        assert_eq!(attempts(&world), 1, "{} nodes may be free", node + 1);
    }
    world.delete(4, "r");
    world.deliver(4);
    world.pass(Duration::ZERO);
    assert_eq!(attempts(&world), 2);
    world.settle();
    assert_eq!(granted(&mut world).attempt.number(), 2);
}

#[test]
fn a_waiter_tries_when_the_keys_end() {
    let mut world = World::new(3);
    let end = world.now.after(ms(40));
    taken(&mut world, end);
    world.acquire(patient(&world, secs(30)));
    world.settle();
    world.live(ms(40));
    assert_eq!(attempts(&world), 1);
    world.live(ms(2));
    assert_eq!(attempts(&world), 2);
    granted(&mut world);
}

#[test]
fn a_word_that_is_lost_costs_nothing_but_the_pause() {
    let mut world = World::new(3);
    let end = world.now.after(secs(60));
    taken(&mut world, end);
    world.acquire(patient(&world, secs(30)));
    world.settle();
    world.nodes.iter_mut().for_each(|node| node.keys.clear());
    world.live(ms(250));
    granted(&mut world);
}

#[test]
fn pushes_may_come_anywhere_and_mean_anything() {
    let mut world = World::new(3);
    let end = world.now.after(secs(60));
    taken(&mut world, end);
    world.acquire(patient(&world, secs(30)));
    world.settle();
    for push in [
        &b">2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nother\r\n"[..],
        b">2\r\n+invalidate\r\n*2\r\n$5\r\nother\r\n$1\r\nx\r\n",
        b">1\r\n+tracking-redir-broken\r\n",
        b">3\r\n$7\r\nmessage\r\n_\r\n:1\r\n",
        b">0\r\n",
    ] {
        world.feed(0, push);
        assert!(world.nodes[0].connected, "{push:?}");
    }
    // All keys are gone, on two nodes.
    for node in 0..2 {
        world.nodes[node].keys.clear();
        world.feed(node, b">2\r\n$10\r\ninvalidate\r\n_\r\n");
    }
    world.pass(Duration::ZERO);
    world.settle();
    granted(&mut world);
}

#[test]
fn a_server_that_will_not_tell_is_asked_again_after_the_pause() {
    let mut world = World::new(3);
    for node in &mut world.nodes {
        node.instead = Some(Box::new(|command| match &*command[0] {
            b"PTTL" => Some(b"-NOPERM this user has no permissions\r\n".into()),
            b"CLIENT" => Some(b"-ERR no\r\n".into()),
            _ => None,
        }));
    }
    let end = world.now.after(ms(600));
    taken(&mut world, end);
    world.acquire(patient(&world, secs(30)));
    world.live(secs(1));
    granted(&mut world);
    assert_eq!(world.ready(), 3);
}

/// With too few nodes there is nothing to hear of: a node that answers must not have the others asked again and
/// again.
#[test]
fn an_outage_is_not_taken_for_a_free_lock() {
    let mut world = World::new(3);
    for node in 1..3 {
        world.nodes[node].up = false;
        world.cut(node);
    }
    world.live(ms(1));
    world.acquire(patient(&world, secs(30)));
    world.live(secs(1));
    let attempts = attempts(&world);
    assert!((4..=20).contains(&attempts), "{attempts} in a second, at 50 to 250 ms each");
}

#[test]
fn those_in_line_make_one_attempt_among_them() {
    let mut world = World::new(3);
    let end = world.now.after(secs(60));
    taken(&mut world, end);
    for _ in 0..100 {
        world.acquire(patient(&world, secs(30)));
    }
    world.settle();
    assert_eq!(attempts(&world), 1);
    (0..3).for_each(|node| world.delete(node, "r"));
    world.settle();
    world.pass(Duration::ZERO);
    world.settle();
    assert_eq!(attempts(&world), 2);
    // From hand to hand, each with one attempt and in one round trip.
    for served in 0..100 {
        let grant = granted(&mut world);
        let before = attempts(&world);
        world.release(grant.lease);
        world.settle();
        world.events.retain(|event| !matches!(event, Event::Released { .. }));
        if served == 99 {
            break;
        }
        if world.events.is_empty() {
            world.live(ms(6)); // The others' chance.
        }
        assert_eq!(attempts(&world), before + 1, "after {served}");
    }
    assert_eq!(world.holders("r"), [None, None, None]);
}

#[test]
fn each_in_line_keeps_its_own_deadline() {
    let mut world = World::new(3);
    let end = world.now.after(secs(60));
    taken(&mut world, end);
    let ids: Vec<Id<Request>> =
        [secs(9), secs(1), secs(5)].map(|timeout| world.acquire(patient(&world, timeout))).into();
    let mut ended = Vec::new();
    for second in 1..=10 {
        world.live(secs(1));
        for event in world.events.drain(..) {
            let Event::NotAcquired { request, error: AcquireError::DeadlineExceeded(_) } = event
            else {
                panic!("{event:?}")
            };
            ended.push((second, ids.iter().position(|id| *id == request).unwrap()));
        }
    }
    assert_eq!(ended, [(1, 1), (5, 2), (9, 0)]);
}

/// Of three in line one is cancelled, whichever, after every number of steps: the others are served.
#[test]
fn cancelled_at_any_place_and_time_it_neither_stops_the_line_nor_leaves_anything() {
    for cancelled in 0..3 {
        for steps in 0..=7 {
            let mut world = World::new(3);
            let end = world.now.after(secs(60));
            taken(&mut world, end);
            let ids: Vec<_> = (0..3).map(|_| world.acquire(patient(&world, secs(30)))).collect();
            for step in 0..steps {
                match step {
                    0 => world.serve(0),
                    1 => world.deliver(0),
                    2 => world.settle(),
                    3 => (0..2).for_each(|node| world.delete(node, "r")),
                    4 => world.deliver(0),
                    5 => world.deliver(1),
                    _ => world.pass(Duration::ZERO),
                }
            }
            world.engine.cancel(world.now, ids[cancelled]);
            world.carry();
            world.nodes.iter_mut().for_each(|node| {
                node.keys.retain(|_, (token, _)| token != b"theirs");
            });
            let mut served = 0;
            for _ in 0..20 {
                world.live(ms(300));
                while let Some(position) =
                    world.events.iter().position(|event| matches!(event, Event::Acquired { .. }))
                {
                    let Event::Acquired { grant, request } = world.events.remove(position) else {
                        unreachable!()
                    };
                    assert_ne!(request, ids[cancelled], "{cancelled} after {steps}");
                    served += 1;
                    world.release(grant.lease);
                    world.settle();
                }
            }
            assert_eq!(served, 2, "{cancelled} after {steps}");
            assert_eq!(world.holders("r"), [None, None, None]);
            assert_eq!(world.engine.releasing(), 0);
        }
    }
}

#[test]
fn a_locker_that_closes_ends_everything() {
    let mut world = World::new(3);
    let grant = acquired(&mut world, kept("held", None));
    let end = world.now.after(secs(60));
    taken(&mut world, end);
    for _ in 0..3 {
        world.acquire(patient(&world, secs(30)));
    }
    world.engine.close(world.now);
    world.carry();
    assert_eq!(lost(&world, grant.lease), Some(LostReason::Closed));
    let closed =
        |event: &&Event| matches!(event, Event::NotAcquired { error: AcquireError::Closed, .. });
    assert_eq!(world.events.iter().filter(closed).count(), 3);
    world.live(secs(1));
    assert_eq!(world.holders("held"), [None, None, None]);
    assert_eq!(world.engine.releasing(), 0);
    world.pass(NODE_TIMEOUT);
}
