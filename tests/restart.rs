//! Servers that are killed and come back without their keys, with the guard against that and without it.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::time::{Duration, Instant};

use quorlock::{
    AcquireError, Attempt, Builder, InvalidRequest, LocalGuard, LocalLocker, Locker, NodeError,
    RestartGuard, Vote,
    testing::{Data, Server, Servers},
};
use support::{
    connected_by, eventually,
    features::{ACL, lacks},
    ms, secs,
};

const TTL: Duration = Duration::from_secs(4);

fn locker(servers: &Servers, guard: RestartGuard) -> LocalLocker {
    connected_by(Builder::new().ttl(TTL).restart_guard(guard), servers)
}

fn restarted(attempt: &Attempt) -> bool {
    let away = |vote: &Vote| matches!(vote, Vote::NotSent(NodeError::Restarted { .. }));
    attempt.votes().filter(|(_, vote)| away(vote)).count() >= attempt.quorum()
}

fn forget_a_majority(servers: &mut Servers) {
    for i in [0, 1] {
        servers[i].kill().unwrap();
        servers[i].restart(Data::Wipe).unwrap();
    }
}

/// One client holds a lock, two of three nodes have forgotten it, and another client tries.
struct Scene {
    _servers: Servers,
    theirs: LocalLocker,
    /// Since before it was taken.
    taken: Instant,
    held: LocalGuard,
    /// What the other client was told once it was connected to the restarted nodes.
    told: Result<LocalGuard, AcquireError>,
}

fn scene(guard: RestartGuard) -> Scene {
    let mut servers = Servers::start(3).unwrap();
    let (ours, theirs) = (locker(&servers, guard), locker(&servers, guard));
    let taken = Instant::now();
    let held = ours.lock("r").try_acquire().unwrap();
    forget_a_majority(&mut servers);
    let mut told = theirs.lock("r").try_acquire();
    eventually("the restarted nodes are connected", || {
        let heard = match &told {
            Ok(_) => true,
            Err(error) => error.attempt().is_some_and(restarted),
        };
        if !heard {
            told = theirs.lock("r").try_acquire();
        }
        heard
    });
    Scene { _servers: servers, theirs, taken, held, told }
}

#[test]
fn without_the_guard_a_restart_makes_a_second_holder() {
    let Scene { held, told, .. } = scene(RestartGuard::Off);
    let second = told.unwrap();
    assert!(held.is_valid() && second.is_valid(), "both rely on it");
}

#[test]
fn with_the_guard_there_is_none_until_the_first_lock_is_over() {
    let Scene { theirs, taken, held, told, _servers } = scene(RestartGuard::AfterChange);
    let error = told.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("restarted, asked for no new lock for another "), "{text}");
    // Its holder dies, and releases nothing.
    std::mem::forget(held);
    let again = theirs.lock("r").timeout(secs(10)).acquire().unwrap();
    assert!(taken.elapsed() > TTL, "not before the first lock was over");
    again.release().unwrap();
}

#[test]
fn a_fresh_cluster_starts_at_once_by_default_and_waits_where_always_is_asked_for() {
    let servers = Servers::start(3).unwrap();
    let connect = |guard| {
        let builder = Builder::new().nodes(servers.tcp_urls()).restart_guard(guard);
        builder.ttl(secs(3)).connect_local().unwrap()
    };
    connect(RestartGuard::AfterChange).lock("r").try_acquire().unwrap().release().unwrap();
    let error = connect(RestartGuard::Always).lock("r").try_acquire().unwrap_err();
    assert!(error.attempt().is_some_and(restarted), "{error}");
    let waited = connect(RestartGuard::Always).lock("r").timeout(secs(10)).acquire().unwrap();
    waited.release().unwrap();
}

#[test]
fn a_node_that_keeps_its_keys_on_disk_is_trusted_where_that_is_asked_for() {
    let mut servers = Servers::start_each(3, Server::builder().persistent(true)).unwrap();
    let (ours, theirs) = (
        locker(&servers, RestartGuard::TrustPersisted),
        locker(&servers, RestartGuard::TrustPersisted),
    );
    let held = ours.lock("r").ttl(secs(60)).try_acquire().unwrap();
    ours.flush(secs(1));
    for i in [0, 1] {
        servers[i].kill().unwrap();
        servers[i].restart(Data::Keep).unwrap();
    }
    eventually("the restarted nodes vote", || {
        let error = theirs.lock("r").try_acquire().unwrap_err();
        assert!(!error.attempt().is_some_and(restarted), "{error}");
        error.is_contended() && theirs.lock("other").try_acquire().is_ok()
    });
    held.release().unwrap();
}

/// What is held is held: only new locks are not asked for.
#[test]
fn a_restarted_node_is_still_asked_to_extend_and_release() {
    let mut servers = Servers::start_each(3, Server::builder().persistent(true)).unwrap();
    let locker = locker(&servers, RestartGuard::AfterChange);
    let held = locker.lock("r").ttl(secs(60)).try_acquire().unwrap();
    locker.flush(secs(1));
    for i in [0, 1] {
        servers[i].kill().unwrap();
        servers[i].restart(Data::Keep).unwrap();
    }
    eventually("the nodes are connected again", || held.extend(secs(60)).is_ok());
    let error = locker.lock("other").try_acquire().unwrap_err();
    assert!(error.attempt().is_some_and(restarted), "{error}");
    held.release().unwrap();
    assert_eq!(locker.flush(secs(5)), 0);
    assert!(support::values(&servers, "r").iter().all(Option::is_none));
}

#[test]
fn a_node_that_may_not_be_asked_is_used_and_said_to_be_unknown() {
    let servers = Servers::start(3).unwrap();
    if lacks(&servers[0], ACL) {
        return;
    }
    for server in servers.iter() {
        server.command(&["ACL", "SETUSER", "default", "-info"]).unwrap();
    }
    let builder = Builder::new().nodes(servers.tcp_urls());
    let locker = builder.restart_guard(RestartGuard::Always).connect().unwrap();
    locker.lock("r").timeout(secs(5)).acquire().unwrap().release().unwrap();
    let stats = locker.stats().unwrap();
    assert!(stats.nodes.iter().filter(|node| node.ready).all(|node| !node.identified), "{stats:?}");
    assert!(stats.nodes.iter().all(|node| node.restarts == 0));
}

#[test]
fn restarts_are_counted() {
    let mut servers = Servers::start(3).unwrap();
    let locker = Locker::connect(servers.tcp_urls()).unwrap();
    eventually("all are ready", || locker.stats().unwrap().nodes.iter().all(|node| node.ready));
    forget_a_majority(&mut servers);
    eventually("two restarts are seen", || {
        let nodes = locker.stats().unwrap().nodes;
        assert!(nodes.iter().filter(|node| node.ready).all(|node| node.identified));
        nodes.iter().map(|node| node.restarts).collect::<Vec<_>>() == [1, 1, 0]
    });
}

#[test]
fn more_than_the_longest_ttl_is_refused() {
    let servers = Servers::start(1).unwrap();
    let builder = Builder::new().nodes(servers.tcp_urls()).ttl(secs(5)).ttl_max(secs(6));
    let locker = builder.connect_local().unwrap();
    let guard = locker.lock("r").ttl(secs(6)).try_acquire().unwrap();
    let refused = |error: &InvalidRequest| {
        assert_eq!(error.to_string(), "ttl 7s is longer than the longest that is allowed, 6s");
    };
    match locker.lock("s").ttl(secs(7)).try_acquire().unwrap_err() {
        AcquireError::InvalidRequest(error) => refused(&error),
        other => panic!("{other}"),
    }
    match guard.extend(secs(7)).unwrap_err() {
        quorlock::ExtendError::InvalidRequest(error) => refused(&error),
        other => panic!("{other}"),
    }
    guard.release().unwrap();
    let refused = |ttl: Duration, max: Duration| {
        let builder = Builder::new().node("redis://127.0.0.1:1").ttl(ttl).ttl_max(max);
        builder.connect_local().unwrap_err().to_string()
    };
    assert!(refused(secs(5), secs(4)).contains("ttl_max: 4s is less than the ttl, 5s"));
    assert!(refused(ms(10), secs(100_000)).contains("ttl_max: 100000s is out of range"));
}
