//! How late is the lost signal when nobody answers? Every node is paused, and many kept-alive locks with
//! validities of their own run out: in threads that wait, and in one that asks.
//!
//! `cargo bench --bench lost [LOCKS]`.
#![allow(clippy::as_conversions)] // figures to print

use std::{
    error::Error,
    time::{Duration, Instant},
};

use quorlock::{KeepAlive, Locker, LostReason, testing::Servers};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(400);
    let servers = Servers::start(5)?;
    let locker = Locker::connect(servers.tcp_urls())?;
    let mut late = Vec::new();
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let mut waits = Vec::new();
        for i in 0..locks {
            let resource = format!("lock-{i}");
            let ttl = Duration::from_millis(500 + 5 * (i % 200));
            let request = locker.lock(&resource).ttl(ttl);
            let guard = request.keep_alive(KeepAlive::default()).try_acquire()?;
            waits.push(scope.spawn(move || {
                // Extensions end when the nodes do; from then on the end of the validity is known.
                std::thread::sleep(Duration::from_millis(250));
                let end = Instant::now() + guard.validity();
                let reason = guard.lost_signal().wait();
                (Instant::now().saturating_duration_since(end), reason)
            }));
        }
        for server in servers.iter() {
            server.pause()?;
        }
        for wait in waits {
            let (time, reason) = wait.join().map_err(|_| "a waiter panicked")?;
            assert_eq!(reason, LostReason::Expired);
            late.push(time);
        }
        Ok(())
    })?;
    late.sort_unstable();
    let at = |percent: usize| late[(late.len() - 1) * percent / 100];
    println!(
        "{locks} locks lost with every node paused; late by: median {:.2?}, p90 {:.2?}, p99 {:.2?}, most {:.2?}",
        at(50),
        at(90),
        at(99),
        at(100),
    );
    Ok(())
}
