//! How late is the lost signal when nobody answers? Every node is paused, and many kept-alive locks with
//! validities of their own run out: in threads that wait, and in one that asks.
//!
//! `cargo bench --bench lost [LOCKS]`.
#![allow(clippy::as_conversions)] // figures to print

#[path = "support/report.rs"]
#[allow(dead_code, unreachable_pub)]
mod report;
#[path = "support/samples.rs"]
#[allow(dead_code, unreachable_pub)]
mod samples;

use std::{
    error::Error,
    time::{Duration, Instant},
};

use quorlock::{KeepAlive, Locker, LostReason, testing::Servers};
use report::Section;
use samples::{Samples, micros};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(400);
    let servers = Servers::start(5)?;
    let locker = Locker::connect(servers.tcp_urls())?;
    let mut late = Samples::default();
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
            late.add(time);
        }
        Ok(())
    })?;
    let question = "How late is the lost signal when no node answers?";
    let mut section = Section::new("lost", question, "cargo bench --bench lost");
    section.say(format!(
        "{locks} kept-alive locks with every node paused; from the end of a lock's validity to the moment at which \
         a thread that waits for the signal is told."
    ));
    let late = late.sorted();
    let at = |percent| format!("{:.0} µs", micros(late.at(percent)));
    let row = vec!["late by".into(), at(50.0), at(90.0), at(99.0), at(100.0)];
    section.table(&["", "median", "p90", "p99", "most"], &[row]);
    section.finish()
}
