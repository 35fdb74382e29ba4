//! `Locker` on real servers: threads, futures, keep-alive, the lost signal, and the end.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Waker},
    thread,
    time::Instant,
};

use quorlock::{
    AcquireError, Builder, CloseError, ExtendError, InvalidRequest, KeepAlive, LockGuard, Locker,
    LostReason, ReleaseError,
    testing::{Server, Servers},
};
use support::{
    block_on, eventually, ms,
    proxy::{Plan, Proxy},
    secs, values,
};

fn connect(servers: &Servers) -> Locker {
    Locker::connect(servers.tcp_urls()).unwrap()
}

#[test]
fn it_goes_anywhere() {
    fn goes_anywhere<T: Send + Sync + 'static>() {}
    goes_anywhere::<Locker>();
    goes_anywhere::<LockGuard>();
    goes_anywhere::<quorlock::LostSignal>();
    fn is_sent<T: Send + 'static>() {}
    is_sent::<quorlock::Acquire>();
    is_sent::<quorlock::Extend>();
    is_sent::<quorlock::Release>();
    is_sent::<quorlock::Lost>();
}

#[test]
fn acquire_extend_release_by_blocking_and_by_waiting() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let guard = locker.lock("r").ttl(secs(10)).try_acquire().unwrap();
    assert!(guard.validity() > secs(9));
    assert!(locker.lock("r").try_acquire().unwrap_err().is_contended());
    assert!(guard.extend(secs(60)).unwrap() > secs(58));
    guard.release().unwrap();

    block_on(async {
        let guard = locker.lock("r").try_acquire_async().await.unwrap();
        let error = locker.lock("r").try_acquire_async().await.unwrap_err();
        assert!(error.is_contended());
        assert!(guard.extend_async(secs(60)).await.unwrap() > secs(58));
        guard.release_async().await.unwrap();
        let invalid = locker.lock("").acquire_async().await.unwrap_err();
        assert!(matches!(invalid, AcquireError::InvalidRequest(InvalidRequest::EmptyResource)));
    });
    locker.close(secs(1)).unwrap();
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

#[test]
fn many_threads_share_it_and_a_lock_has_one_holder() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let inside = AtomicUsize::new(0);
    let rounds = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            let (locker, inside, rounds) = (locker.clone(), &inside, &rounds);
            scope.spawn(move || {
                for _ in 0..10 {
                    let guard = locker.lock("r").timeout(secs(60)).acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), 80);
    locker.close(secs(1)).unwrap();
}

#[test]
fn a_dropped_future_leaves_nothing_behind() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    for i in 0..200 {
        let mut acquire = pin!(locker.lock("r").acquire_async());
        if i % 2 == 0 {
            let poll = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(poll.is_pending() || poll.is_ready());
        }
        if i % 3 == 0 {
            thread::sleep(std::time::Duration::from_micros(50 * i));
        }
    }
    let holder = locker.lock("r").timeout(secs(5)).acquire().unwrap();
    // A waiter that is dropped while it pauses between attempts.
    drop(locker.lock("r").timeout(secs(60)).acquire_async());
    holder.release().unwrap();
    thread::sleep(ms(300));
    assert_eq!(values(&servers, "r"), [None, None, None]);
    locker.close(secs(1)).unwrap();
}

#[test]
fn a_drop_hands_the_release_over() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    drop(locker.lock("r").try_acquire().unwrap());
    eventually("the release arrives", || values(&servers, "r") == [None, None, None]);
}

#[test]
fn the_last_guard_keeps_the_locker() {
    let servers = Servers::start(3).unwrap();
    let guard = connect(&servers).lock("r").try_acquire().unwrap();
    guard.extend(secs(5)).unwrap();
    guard.release().unwrap();
    assert_eq!(values(&servers, "r").iter().flatten().count(), 0);
}

/// Each of many that fail at once is told, and none is taken for another.
#[test]
fn requests_that_fail_at_once_are_all_answered() {
    let mut servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    eventually("the connections are gone", || {
        locker.stats().unwrap().nodes.iter().filter(|node| node.ready).count() == 1
    });
    let acquires: Vec<_> =
        (0..500).map(|i| locker.lock(&format!("r{i}")).try_acquire_async()).collect();
    for acquire in acquires {
        assert!(matches!(block_on(acquire), Err(AcquireError::NoQuorum(_))));
    }
    locker.close(secs(5)).unwrap();
}

// Keep-alive and loss.

#[test]
fn a_lock_is_kept_alive_and_not_longer_than_asked() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let request = || locker.lock("r").ttl(ms(200));
    let guard = request().keep_alive(KeepAlive::default()).try_acquire().unwrap();
    thread::sleep(secs(1));
    assert!(guard.is_valid());
    guard.release().unwrap();

    let bounded = KeepAlive::default().at_most(ms(600));
    let started = Instant::now();
    let guard = request().keep_alive(bounded).try_acquire().unwrap();
    assert_eq!(guard.lost_signal().wait(), LostReason::Expired);
    let held = started.elapsed();
    assert!(held > ms(450) && started.elapsed() <= ms(800), "{held:?}");
    let error = request().keep_alive(KeepAlive::default().every(ms(200))).try_acquire();
    assert!(matches!(
        error.unwrap_err(),
        AcquireError::InvalidRequest(InvalidRequest::KeepAlive(_))
    ));
}

#[test]
fn the_signal_fires_although_nobody_answers() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let request = locker.lock("r").ttl(ms(300)).keep_alive(KeepAlive::default());
    let guard = request.try_acquire().unwrap();
    let signal = guard.lost_signal();
    assert!(!signal.is_lost());
    for server in servers.iter() {
        server.pause().unwrap();
    }
    assert_eq!(signal.wait(), LostReason::Expired);
    assert!(!guard.is_valid());
    assert_eq!(block_on(signal.lost()), LostReason::Expired);
    assert!(matches!(guard.extend(secs(1)), Err(ExtendError::Expired)));
    for server in servers.iter() {
        server.resume().unwrap();
    }
}

#[test]
fn the_signal_fires_early_when_a_quorum_denies_the_lock() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let request = locker.lock("r").ttl(secs(3)).keep_alive(KeepAlive::default().every(ms(50)));
    let guard = request.try_acquire().unwrap();
    let started = Instant::now();
    for server in servers.iter() {
        server.command(&["FLUSHALL"]).unwrap();
    }
    let signal = guard.lost_signal();
    assert_eq!(block_on(signal.lost()), LostReason::Refused);
    assert!(started.elapsed() < secs(2));
    assert!(!guard.is_valid());
}

#[test]
fn a_released_lock_is_lost_to_its_signals() {
    let servers = Servers::start(1).unwrap();
    let locker = connect(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    let signal = guard.lost_signal();
    assert_eq!(signal.wait_until(Instant::now() + ms(20)), None);
    guard.release().unwrap();
    assert_eq!(signal.reason(), Some(LostReason::Released));
}

#[test]
fn a_failing_extension_does_not_delay_the_signal() {
    let servers = Servers::start(3).unwrap();
    let proxies: Vec<_> =
        servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect();
    let builder = Builder::new().nodes(proxies.iter().map(Proxy::url)).node_timeout(secs(10));
    let locker = builder.connect().unwrap();
    let request = locker.lock("r").ttl(ms(300)).keep_alive(KeepAlive::default());
    let guard = request.try_acquire().unwrap();
    for proxy in &proxies {
        proxy.set_live(Plan::silent());
    }
    let validity = guard.validity();
    let started = Instant::now();
    assert_eq!(guard.lost_signal().wait(), LostReason::Expired);
    assert!(started.elapsed() <= validity + ms(100));
    for proxy in &proxies {
        proxy.set_live(Plan::default());
    }
}

// The end.

#[test]
fn closing_ends_what_is_held_and_what_is_waited_for() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    let waiter = locker.lock("r").timeout(secs(60)).acquire_async();
    let copy = locker.clone();
    copy.close(secs(1)).unwrap();
    assert!(matches!(block_on(waiter), Err(AcquireError::Closed)));
    assert_eq!(guard.lost_signal().reason(), Some(LostReason::Closed));
    assert!(matches!(guard.extend(secs(1)), Err(ExtendError::Closed)));
    assert!(matches!(guard.release(), Err(ReleaseError::Closed)));
    assert!(matches!(locker.lock("r").try_acquire(), Err(AcquireError::Closed)));
    assert_eq!(values(&servers, "r"), [None, None, None]);
    assert_eq!(locker.close(secs(1)), Err(CloseError::Closed));
}

#[test]
fn closing_says_what_could_not_be_confirmed() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    servers[0].pause().unwrap();
    drop(guard);
    assert_eq!(locker.close(ms(50)), Err(CloseError::Unconfirmed { releases: 1 }));
    servers[0].resume().unwrap();
    eventually("it was sent all the same", || values(&servers, "r") == [None, None, None]);
}

#[test]
fn a_panic_in_the_driver_loses_every_lock_and_hangs_nobody() {
    let servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    let waiter = locker.lock("r").timeout(secs(60)).acquire_async();
    locker.panic_in_driver();
    assert!(matches!(block_on(waiter), Err(AcquireError::Closed)));
    assert_eq!(guard.lost_signal().wait(), LostReason::Closed);
    assert!(matches!(guard.release(), Err(ReleaseError::Closed)));
    assert!(matches!(locker.lock("r").try_acquire(), Err(AcquireError::Closed)));
    assert_eq!(locker.close(secs(1)), Err(CloseError::Closed));
}

#[test]
fn callers_that_come_together_share_their_writes() {
    let servers = Servers::start(3).unwrap();
    let proxies: Vec<_> =
        servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect();
    // A thousand at once take their time on a busy machine.
    let builder = Builder::new().nodes(proxies.iter().map(Proxy::url)).node_timeout(secs(10));
    let locker = builder.connect().unwrap();
    let before = proxies[0].chunks();
    let acquires: Vec<_> =
        (0..1000).map(|i| locker.lock(&format!("r{i}")).try_acquire_async()).collect();
    let guards: Vec<_> = acquires.into_iter().map(|acquire| block_on(acquire).unwrap()).collect();
    let chunks = proxies[0].chunks() - before;
    assert!(chunks < 1000, "{chunks} chunks for 1000 commands and their replies");
    drop(guards);
    locker.close(secs(5)).unwrap();
    let keys = |server: &Server| server.command(&["DBSIZE"]).unwrap();
    assert!(servers.iter().all(|server| keys(server) == quorlock::testing::Answer::Integer(0)));
}

// Numbers.

#[test]
fn what_happened_is_counted() {
    let mut servers = Servers::start(3).unwrap();
    let locker = connect(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    assert!(locker.lock("r").try_acquire().is_err());
    guard.extend(secs(5)).unwrap();
    guard.release().unwrap();
    let guard = locker.lock("lost").ttl(ms(20)).try_acquire().unwrap();
    assert_eq!(guard.lost_signal().wait(), LostReason::Expired);
    drop(guard);
    let stats = locker.stats().unwrap();
    assert_eq!((stats.attempts, stats.acquired, stats.contended), (3, 2, 1));
    assert_eq!((stats.extended, stats.lost, stats.released), (1, 1, 2));
    assert_eq!((stats.waits.count(), stats.holds.count()), (2, 2));
    assert!(stats.waits.quantile(0.5) < ms(50));
    let votes: u64 = stats
        .nodes
        .iter()
        .map(|node| node.granted + node.refused + node.not_waited_for + node.unanswered)
        .sum();
    assert_eq!(votes, 9);
    assert!(stats.nodes.iter().all(|node| node.ready && node.last_error.is_none()));

    servers[0].kill().unwrap();
    let guard = locker.lock("lost").ttl(ms(20)).try_acquire().unwrap();
    guard.lost_signal().wait();
    eventually("the loss is counted, and why the node is gone", || {
        let stats = locker.stats().unwrap();
        stats.lost == 2 && !stats.nodes[0].ready && stats.nodes[0].last_error.is_some()
    });
    let copy = locker.clone();
    locker.close(ms(100)).ok();
    assert!(copy.stats().is_none());
}
