//! The futures on tokio, and dropped at any moment.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{future::Future, time::Duration};

use quorlock::{AcquireError, KeepAlive, Locker, LostReason, testing::Servers};
use support::{eventually, ms, proxy::Random, secs, values};
use tokio::time::{sleep, timeout};

/// Runs a test on one thread and on several.
fn on_each_runtime<F: Future<Output = ()>>(test: impl Fn() -> F) {
    use tokio::runtime::Builder;
    Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test());
}

#[test]
fn acquire_extend_release() {
    on_each_runtime(|| async {
        let servers = Servers::start(3).unwrap();
        let locker = Locker::connect(servers.tcp_urls()).unwrap();
        let guard = locker.lock("r").ttl(secs(5)).acquire_async().await.unwrap();
        assert!(guard.extend_async(secs(60)).await.unwrap() > secs(58));
        assert!(locker.lock("r").try_acquire_async().await.unwrap_err().is_contended());
        let waiter = tokio::spawn(locker.lock("r").timeout(secs(20)).acquire_async());
        sleep(ms(50)).await;
        guard.release_async().await.unwrap();
        waiter.await.unwrap().unwrap().release_async().await.unwrap();
        locker.close(secs(1)).unwrap();
        assert_eq!(values(&servers, "r"), [None, None, None]);
    });
}

#[test]
fn dropped_at_any_moment_they_leave_nothing_behind() {
    on_each_runtime(|| async {
        let servers = Servers::start(3).unwrap();
        let (locker, other) = (
            Locker::connect(servers.tcp_urls()).unwrap(),
            Locker::connect(servers.tcp_urls()).unwrap(),
        );
        let mut random = Random(7);
        let mut finished = 0;
        for i in 0..200 {
            // Half of them find it taken, and wait.
            let holder = match i % 2 {
                0 => None,
                _ => Some(other.lock("r").timeout(secs(5)).acquire_async().await.unwrap()),
            };
            let moment = Duration::from_micros(random.below(600));
            let acquire = locker.lock("r").timeout(secs(20)).acquire_async();
            if let Ok(guard) = timeout(moment, acquire).await {
                drop(guard.unwrap());
                finished += 1;
            }
            drop(holder);
        }
        println!("{finished} of 200 came first");
        locker.close(secs(2)).unwrap();
        other.close(secs(2)).unwrap();
        assert_eq!(values(&servers, "r"), [None, None, None]);
    });
}

#[test]
fn the_lost_signal_ends_a_select() {
    on_each_runtime(|| async {
        let servers = Servers::start(3).unwrap();
        let locker = Locker::connect(servers.tcp_urls()).unwrap();
        let request = locker.lock("r").ttl(ms(300)).keep_alive(KeepAlive::default());
        let guard = request.acquire_async().await.unwrap();
        let lost = guard.lost_signal();
        tokio::select! {
            reason = lost.lost() => panic!("{reason}"),
            () = sleep(ms(600)) => {}
        }
        servers.iter().for_each(|server| server.pause().unwrap());
        tokio::select! {
            reason = lost.lost() => assert_eq!(reason, LostReason::Expired),
            () = sleep(secs(10)) => panic!("not told"),
        }
        servers.iter().for_each(|server| server.resume().unwrap());
    });
}

#[test]
fn a_closed_locker_answers_every_future() {
    on_each_runtime(|| async {
        let servers = Servers::start(3).unwrap();
        let locker = Locker::connect(servers.tcp_urls()).unwrap();
        let guard = locker.lock("r").acquire_async().await.unwrap();
        let waiting = locker.lock("r").timeout(secs(60)).acquire_async();
        locker.clone().close(secs(1)).unwrap();
        assert!(matches!(waiting.await, Err(AcquireError::Closed)));
        assert!(guard.extend_async(secs(5)).await.is_err());
        assert!(guard.release_async().await.is_err());
        eventually("nothing is left", || values(&servers, "r") == [None, None, None]);
    });
}
