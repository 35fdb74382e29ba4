//! `ShardedLocker` on real servers: where locks go, what a group that is down takes away, and the end.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use quorlock::{
    AcquireError, Builder, CloseError, ConnectError, KeepAlive, KeyState, LockGuard, LostReason,
    ShardedBuilder, ShardedLocker, Vote,
    testing::{Answer, Server, Servers},
};
use support::{eventually, ms, secs, values};

/// Two groups of three, and a builder with both.
fn two_groups() -> ([Servers; 2], ShardedBuilder) {
    let groups = [Servers::start(3).unwrap(), Servers::start(3).unwrap()];
    let builder =
        ShardedLocker::builder().group("a", groups[0].tcp_urls()).group("b", groups[1].tcp_urls());
    (groups, builder)
}

/// A locker with every node connected: a quorum is enough to connect, and on a busy machine the others are late.
fn connect(builder: ShardedBuilder) -> ShardedLocker {
    let locker = builder.connect().unwrap();
    eventually("every node is connected", || {
        locker.stats().unwrap().nodes.iter().all(|node| node.ready)
    });
    locker
}

/// The first resources of a group.
fn resources(locker: &ShardedLocker, group: &str, count: usize) -> Vec<String> {
    let all = (0..).map(|i| format!("orders/{i}"));
    all.filter(|resource| locker.group_of(resource) == group).take(count).collect()
}

fn keys(servers: &[Server]) -> Vec<Answer> {
    servers.iter().map(|server| server.command(&["DBSIZE"]).unwrap()).collect()
}

#[test]
fn it_goes_anywhere() {
    fn goes_anywhere<T: Clone + Send + Sync + 'static>() {}
    goes_anywhere::<ShardedLocker>();
}

#[test]
fn keys_are_on_the_servers_of_their_group_and_nowhere_else() {
    let ([a, b], builder) = two_groups();
    let settings = Builder::new().ttl(secs(60)).key_prefix("p/");
    let locker = connect(builder.settings(settings));
    assert_eq!(locker.groups().collect::<Vec<_>>(), ["a", "b"]);
    let names: Vec<_> = (0..40).map(|i| format!("orders/{i}")).collect();
    let guards: Vec<_> =
        names.iter().map(|name| locker.lock(name).try_acquire().unwrap()).collect();
    let mut counts = [0, 0];
    for (name, guard) in names.iter().zip(&guards) {
        let (own, other) = match locker.group_of(name) {
            "a" => (&a, &b),
            group => {
                assert_eq!(group, "b");
                (&b, &a)
            }
        };
        counts[usize::from(std::ptr::eq(own, &b))] += 1;
        let key = format!("p/{name}");
        // A quorum has it now, and the third in a moment.
        eventually("the key is on each server of the group", || {
            let token = Some(guard.token().as_str().to_owned());
            values(own, &key).iter().all(|value| *value == token)
        });
        assert_eq!(values(other, &key), [None, None, None], "{name}");
        assert!(guard.validity() > secs(50), "the settings count");
    }
    assert!(counts.iter().all(|count| *count >= 10), "{counts:?}");

    let stats = locker.stats().unwrap();
    assert_eq!((stats.acquired, stats.nodes.len()), (40, 6));
    for (group, count) in ["a", "b"].into_iter().zip(counts) {
        assert_eq!(locker.group_stats(group).unwrap().acquired, count);
    }
    assert!(locker.group_stats("c").is_none());
    let nodes: Vec<_> = stats.nodes.iter().map(|node| format!("redis://{}", node.name)).collect();
    assert_eq!(nodes, [a.tcp_urls(), b.tcp_urls()].concat());
    assert!(format!("{locker:?}").contains(&format!("127.0.0.1:{}", b[2].port())));

    drop(guards);
    locker.close(secs(5)).unwrap();
    for group in [&a, &b] {
        assert_eq!(keys(group), vec![Answer::Integer(0); 3]);
    }
}

#[test]
fn a_lock_has_one_holder_whatever_the_order_of_groups_and_nodes() {
    let (groups, builder) = two_groups();
    let reversed = |servers: &Servers| servers.tcp_urls().into_iter().rev().collect::<Vec<_>>();
    let other =
        ShardedLocker::builder().group("b", reversed(&groups[1])).group("a", reversed(&groups[0]));
    let (one, other) = (connect(builder), connect(other));
    for i in 0..100 {
        let resource = format!("orders/{i}");
        assert_eq!(one.group_of(&resource), other.group_of(&resource));
        let guard = one.lock(&resource).try_acquire().unwrap();
        assert!(other.lock(&resource).try_acquire().unwrap_err().is_contended());
        guard.release().unwrap();
    }
    let resources = [resources(&one, "a", 1), resources(&one, "b", 1)].concat();
    let inside = [const { AtomicUsize::new(0) }; 2];
    thread::scope(|scope| {
        for i in 0..8 {
            let (locker, resources, inside) = ([&one, &other][i % 2], &resources, &inside);
            scope.spawn(move || {
                for round in 0..10 {
                    let at = (i / 2 + round) % 2;
                    let request = locker.lock(&resources[at]).timeout(secs(60));
                    let guard = request.acquire().unwrap();
                    assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0);
                    inside[at].fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
                }
            });
        }
    });
    let acquired = one.stats().unwrap().acquired + other.stats().unwrap().acquired;
    assert_eq!(acquired, 100 + 80);
}

#[test]
fn a_group_that_is_down_takes_away_its_own_resources_only() {
    let ([_a, mut b], builder) = two_groups();
    let locker = connect(builder);
    let [of_a, of_b] = ["a", "b"].map(|group| resources(&locker, group, 20));
    for server in b.iter_mut() {
        server.kill().unwrap();
    }
    eventually("the connections are gone", || {
        locker.group_stats("b").unwrap().nodes.iter().all(|node| !node.ready)
    });
    for resource in &of_b {
        let error = locker.lock(resource).try_acquire().unwrap_err();
        let AcquireError::NoQuorum(attempt) = &error else { panic!("{error:?}") };
        // Settled once two have failed: the third may be on its way to be connected to again.
        assert!(attempt.failed() >= 2, "{error}");
        let names: Vec<_> = attempt.votes().map(|(name, _)| format!("redis://{name}")).collect();
        assert_eq!(names, b.tcp_urls());
        for (name, vote) in attempt.votes() {
            assert_eq!(error.to_string().contains(name), vote.error().is_some(), "{error}");
        }
    }
    for resource in &of_a {
        let guard = locker.lock(resource).try_acquire().unwrap();
        assert!(guard.attempt().votes().all(|(_, vote)| !matches!(vote, Vote::Failed(_))));
        guard.release().unwrap();
    }
    let stats = locker.stats().unwrap();
    assert_eq!((stats.acquired, stats.no_quorum), (20, 20));
    for server in b.iter_mut() {
        server.restart(quorlock::testing::Data::Wipe).unwrap();
    }
    locker.lock(&of_b[0]).timeout(secs(20)).acquire().unwrap().release().unwrap();
}

#[test]
fn connecting_says_which_group_has_no_quorum() {
    let ([_a, mut b], builder) = two_groups();
    b[0].kill().unwrap();
    builder.clone().connect().unwrap();
    b[2].kill().unwrap();
    let error = builder.settings(Builder::new().connect_timeout(ms(200))).connect().unwrap_err();
    let ConnectError::Group { group, error: cause } = &error else { panic!("{error:?}") };
    assert_eq!(&**group, "b");
    let ConnectError::NoQuorum(attempt) = &**cause else { panic!("{cause:?}") };
    assert_eq!((attempt.granted(), attempt.failed()), (1, 2));
    let text = error.to_string();
    assert!(text.starts_with("group \"b\": connected to 1 of 3 nodes (need 2) in "), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{}: ", b[2].port())), "{text}");
}

#[test]
fn status_asks_the_group_of_the_resource() {
    let (groups, builder) = two_groups();
    let builder = builder.settings(Builder::new().key_prefix("p/"));
    let locker = connect(builder.clone());
    for (group, servers) in ["a", "b"].into_iter().zip(&groups) {
        let resource = resources(&locker, group, 1).remove(0);
        let guard = locker.lock(&resource).try_acquire().unwrap();
        let status = builder.clone().status(&resource).unwrap();
        let names: Vec<_> = status.iter().map(|node| format!("redis://{}", node.name())).collect();
        assert_eq!(names, servers.tcp_urls());
        let ours = |state: &KeyState| match state {
            KeyState::Held { token, .. } => **token == *guard.token().as_str(),
            _ => false,
        };
        assert!(status.iter().filter(|node| ours(node.state())).count() >= 2, "{status:?}");
    }
    assert_eq!(builder.status("").unwrap_err().to_string(), "resource: empty");
}

#[test]
fn locks_of_every_group_are_kept_alive_awaited_and_ended_by_closing() {
    let (groups, builder) = two_groups();
    let locker = connect(builder);
    let names = [resources(&locker, "a", 1), resources(&locker, "b", 1)].concat();
    let request = |i: usize| locker.lock(&names[i]).ttl(ms(300)).keep_alive(KeepAlive::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let guards: Vec<LockGuard> = runtime.block_on(async {
        let guards = [request(0).acquire_async(), request(1).try_acquire_async()];
        let [one, other] = guards;
        vec![one.await.unwrap(), other.await.unwrap()]
    });
    thread::sleep(ms(700));
    assert!(guards.iter().all(LockGuard::is_valid));
    let waiter = locker.lock(&names[1]).timeout(secs(60)).acquire_async();

    let copy = locker.clone();
    copy.close(secs(5)).unwrap();
    for guard in &guards {
        assert_eq!(guard.lost_signal().reason(), Some(LostReason::Closed));
    }
    assert!(matches!(runtime.block_on(waiter), Err(AcquireError::Closed)));
    for (servers, name) in groups.iter().zip(&names) {
        assert_eq!(values(servers, name), [None, None, None]);
        assert!(matches!(locker.lock(name).try_acquire(), Err(AcquireError::Closed)));
    }
    assert!(locker.stats().is_none());
    assert_eq!(locker.close(secs(5)), Err(CloseError::Closed));
}

#[test]
fn closing_sums_what_could_not_be_confirmed() {
    let (groups, builder) = two_groups();
    let locker = connect(builder);
    let names = [resources(&locker, "a", 2), resources(&locker, "b", 3)].concat();
    let guards: Vec<_> =
        names.iter().map(|name| locker.lock(name).try_acquire().unwrap()).collect();
    for servers in &groups {
        servers[0].pause().unwrap();
    }
    drop(guards);
    assert_eq!(locker.close(ms(100)), Err(CloseError::Unconfirmed { releases: 5 }));
    for servers in &groups {
        servers[0].resume().unwrap();
    }
    for servers in &groups {
        eventually("it was sent all the same", || keys(servers) == vec![Answer::Integer(0); 3]);
    }
}

#[test]
fn guards_keep_their_group() {
    let (_groups, builder) = two_groups();
    let locker = connect(builder);
    let names = [resources(&locker, "a", 1), resources(&locker, "b", 1)].concat();
    let guards: Vec<_> =
        names.iter().map(|name| locker.lock(name).try_acquire().unwrap()).collect();
    drop(locker);
    for guard in guards {
        guard.extend(secs(5)).unwrap();
        guard.release().unwrap();
    }
}
