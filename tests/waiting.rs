//! Waiting for a lock without polling, on real servers. The pause between attempts is a minute here, so that
//! whoever gets a lock was told that it is free.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use quorlock::{AcquireError, Builder, LockGuard, Locker, RetryPolicy, testing::Servers};
use support::{
    eventually,
    features::{TRACKING, lacks},
    ms,
    proxy::{Plan, Proxy},
    secs, values,
};

const MINUTE: Duration = Duration::from_secs(60);

fn patient(urls: &[String]) -> Builder {
    Builder::new().nodes(urls).retry(RetryPolicy::jittered(MINUTE, MINUTE))
}

/// A waiter that has been refused, and what it gets.
fn wait_for<'a>(
    scope: &'a thread::Scope<'a, '_>,
    locker: &Locker,
    timeout: Duration,
) -> thread::ScopedJoinHandle<'a, Result<LockGuard, AcquireError>> {
    let locker = locker.clone();
    let waiter = scope.spawn(move || locker.lock("r").timeout(timeout).acquire());
    thread::sleep(ms(100));
    assert!(!waiter.is_finished());
    waiter
}

#[test]
fn a_release_in_another_locker_is_heard_of() {
    let servers = Servers::start(5).unwrap();
    if lacks(&servers[0], TRACKING) {
        return;
    }
    let (ours, theirs) =
        (Locker::connect(servers.tcp_urls()).unwrap(), patient(&servers.tcp_urls()));
    let theirs = theirs.connect().unwrap();
    for _ in 0..5 {
        let guard = ours.lock("r").try_acquire().unwrap();
        thread::scope(|scope| {
            let waiter = wait_for(scope, &theirs, secs(20));
            let free = Instant::now();
            guard.release().unwrap();
            waiter.join().unwrap().unwrap().release().unwrap();
            assert!(free.elapsed() < secs(10), "that was its last chance, at the deadline");
        });
    }
}

#[test]
fn so_are_expiry_and_deletion_and_a_flush() {
    let servers = Servers::start(3).unwrap();
    if lacks(&servers[0], TRACKING) {
        return;
    }
    let (ours, theirs) =
        (Locker::connect(servers.tcp_urls()).unwrap(), patient(&servers.tcp_urls()));
    let theirs = theirs.connect().unwrap();
    // On every node: else two are free already when one is freed, and the other's turn comes under the next holder.
    let hold = |ttl| {
        eventually("nothing is left", || values(&servers, "r") == [None, None, None]);
        std::mem::forget(ours.lock("r").ttl(ttl).try_acquire().unwrap());
        eventually("all hold it", || values(&servers, "r").iter().all(Option::is_some));
    };
    let till_free = |free: &dyn Fn()| {
        thread::scope(|scope| {
            let waiter = wait_for(scope, &theirs, secs(20));
            free();
            waiter.join().unwrap().unwrap().release().unwrap();
        });
    };
    hold(ms(400));
    till_free(&|| {});
    for command in [&["DEL", "r"][..], &["FLUSHALL"]] {
        hold(secs(50));
        till_free(&|| servers.iter().for_each(|server| drop(server.command(command).unwrap())));
    }
}

#[test]
fn a_lock_that_cannot_be_heard_of_is_asked_for_after_the_pause() {
    let servers = Servers::start(3).unwrap();
    let ours = Locker::connect(servers.tcp_urls()).unwrap();
    let deaf = patient(&servers.tcp_urls()).tracking(false).connect().unwrap();
    let guard = ours.lock("r").try_acquire().unwrap();
    thread::scope(|scope| {
        let waiter = wait_for(scope, &deaf, secs(2));
        guard.release().unwrap();
        // Its one chance is the last attempt, which ends with the deadline.
        let started = Instant::now();
        let guard = waiter.join().unwrap().unwrap();
        assert!(started.elapsed() > secs(1));
        guard.release().unwrap();
    });
    let often = Builder::new().nodes(servers.tcp_urls()).tracking(false).connect().unwrap();
    let guard = ours.lock("r").try_acquire().unwrap();
    thread::scope(|scope| {
        let waiter = wait_for(scope, &often, secs(20));
        guard.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
}

#[test]
fn a_release_next_door_goes_to_the_next_in_line() {
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers.tcp_urls()).tracking(false).connect().unwrap();
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let guard = locker.lock("r").timeout(secs(30)).acquire().unwrap();
                served.fetch_add(1, Ordering::SeqCst);
                drop(guard);
            });
        }
    });
    assert_eq!(served.into_inner(), 10);
    eventually("the last release arrives", || values(&servers, "r") == [None, None, None]);
}

/// And so does one of a lock that was not waited for.
#[test]
fn a_try_next_door_is_heard_of_too() {
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers.tcp_urls()).connect().unwrap();
    let guard = locker.lock("r").try_acquire().unwrap();
    thread::scope(|scope| {
        let waiter = wait_for(scope, &locker, secs(20));
        guard.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
}

#[test]
fn a_thousand_waiters_here_are_one_attempt_on_the_wire() {
    let servers = Servers::start(3).unwrap();
    let proxies: Vec<_> =
        servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect();
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let ours = Locker::connect(servers.tcp_urls()).unwrap();
    let theirs = patient(&urls).connect().unwrap();
    let guard = ours.lock("r").try_acquire().unwrap();
    let waiters: Vec<_> =
        (0..1000).map(|_| theirs.lock("r").timeout(secs(30)).acquire_async()).collect();
    thread::sleep(ms(300));
    let sets = |proxy: &Proxy| {
        let sent = proxy.sent().concat();
        sent.windows(9).filter(|window| window == b"\r\nSET\r\n$1").count()
    };
    assert!(proxies.iter().all(|proxy| sets(proxy) == 1), "one SET to each node");
    drop(waiters);
    guard.release().unwrap();
    theirs.close(secs(5)).unwrap();
    eventually("nothing is left", || values(&servers, "r") == [None, None, None]);
}

#[test]
fn a_waiter_in_line_keeps_its_own_deadline() {
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers.tcp_urls()).connect().unwrap();
    let guard = locker.lock("r").try_acquire().unwrap();
    thread::scope(|scope| {
        let first = wait_for(scope, &locker, secs(20));
        let second = locker.lock("r").timeout(ms(200)).acquire();
        assert!(matches!(second, Err(AcquireError::DeadlineExceeded(_))));
        assert!(!first.is_finished());
        guard.release().unwrap();
        first.join().unwrap().unwrap().release().unwrap();
    });
}

/// The one at the head leaves; the next one takes its place.
#[test]
fn a_head_that_leaves_does_not_stop_the_line() {
    let servers = Servers::start(3).unwrap();
    if lacks(&servers[0], TRACKING) {
        return;
    }
    let (ours, theirs) =
        (Locker::connect(servers.tcp_urls()).unwrap(), patient(&servers.tcp_urls()));
    let theirs = theirs.connect().unwrap();
    let guard = ours.lock("r").try_acquire().unwrap();
    let head = theirs.lock("r").timeout(secs(20)).acquire_async();
    thread::scope(|scope| {
        let second = wait_for(scope, &theirs, secs(20));
        drop(head);
        thread::sleep(ms(100));
        guard.release().unwrap();
        second.join().unwrap().unwrap().release().unwrap();
    });
}

#[test]
fn waiters_survive_nodes_that_come_and_go() {
    let servers = Servers::start(3).unwrap();
    let proxies: Vec<_> =
        servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect();
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let ours = Locker::connect(servers.tcp_urls()).unwrap();
    let theirs = Builder::new().nodes(&urls).connect().unwrap();
    let guard = ours.lock("r").try_acquire().unwrap();
    thread::scope(|scope| {
        let waiter = wait_for(scope, &theirs, secs(20));
        for proxy in &proxies {
            proxy.cut_all();
            thread::sleep(ms(30));
            proxy.set(Plan::default());
        }
        guard.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
}
