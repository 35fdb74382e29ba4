//! What the tests share: a fault proxy, a server that answers as a test likes, and small helpers.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions
#![allow(dead_code, unreachable_pub)] // every test binary uses its own part

pub mod counter;
pub mod fake;
pub mod proxy;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use quorlock::{
    Builder, LocalLocker,
    testing::{Server, Servers},
};

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a key holds on each server.
pub fn values(servers: &[Server], key: &str) -> Vec<Option<String>> {
    servers.iter().map(|server| server.get(key).unwrap()).collect()
}

/// A locker of which every node is connected: `connect` itself is content with a quorum.
pub fn connected(servers: &Servers) -> LocalLocker {
    connected_by(Builder::new(), servers)
}

pub fn connected_by(builder: Builder, servers: &Servers) -> LocalLocker {
    let locker = builder.nodes(servers.tcp_urls()).connect_local().unwrap();
    eventually("every node votes", || {
        let guard = locker.lock("warm-up").try_acquire().unwrap();
        let voted = guard.extend(secs(5)).is_ok();
        locker.flush(ms(1));
        let all = values(servers, "warm-up").iter().all(Option::is_some);
        voted && guard.release().is_ok() && all
    });
    locker.flush(secs(1));
    locker
}

/// Waits for what must come true by itself.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < secs(10), "{what}");
        std::thread::sleep(ms(2));
    }
}

/// The programs of servers other than the one at hand. Says which are missing.
pub fn programs() -> Vec<PathBuf> {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".tools/bin");
    let programs = ["valkey-server", "redis-server-5"].map(|name| tools.join(name));
    for missing in programs.iter().filter(|program| !program.exists()) {
        println!("skipped: {} is missing (scripts/setup.sh fetches it)", missing.display());
    }
    programs.into_iter().filter(|program| program.exists()).collect()
}
