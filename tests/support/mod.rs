//! What the tests share: a fault proxy, a server that answers as a test likes, a clock that can be set, and small
//! helpers.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions
#![allow(dead_code, unreachable_pub)] // every test binary uses its own part

pub mod fake;
pub mod features;
pub mod preload;
pub mod proxy;

use std::{
    fs,
    future::Future,
    os::unix::fs::symlink,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use quorlock::{
    AcquireError, Attempt, Builder, LocalLocker, Locker,
    testing::{Server, Servers},
};

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a key holds on each server.
pub fn values(servers: &[Server], key: &str) -> Vec<Option<String>> {
    servers.iter().map(|server| server.get(key).unwrap()).collect()
}

/// Every node's vote, in words.
pub fn said(attempt: &Attempt) -> Vec<String> {
    attempt.votes().map(|(_, vote)| vote.to_string()).collect()
}

/// The record of an attempt that too few nodes answered.
#[track_caller]
pub fn no_quorum(error: AcquireError) -> Attempt {
    match error {
        AcquireError::NoQuorum(attempt) => *attempt,
        error => panic!("{error:?}"),
    }
}

/// An address that leads to one server, and later to another, as a name or a virtual IP does: a link to its socket.
pub struct Address {
    link: PathBuf,
}

impl Address {
    pub fn of(server: &Server) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("quorlock-link-{}-{count}", std::process::id());
        let address = Self { link: std::env::temp_dir().join(name) };
        address.lead_to(server);
        address
    }

    pub fn url(&self) -> String {
        format!("unix:{}", self.link.display())
    }

    /// For connections from now on.
    pub fn lead_to(&self, server: &Server) {
        let new = self.link.with_extension("new");
        symlink(server.socket_path(), &new).unwrap();
        fs::rename(new, &self.link).unwrap();
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.link);
    }
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

/// The same with settings that give the nodes all the time that a busy machine may take.
pub fn patient(servers: &Servers) -> LocalLocker {
    connected_by(Builder::new().node_timeout(secs(5)), servers)
}

/// And for many threads.
pub fn patient_shared(urls: impl IntoIterator<Item: AsRef<str>>) -> Locker {
    let locker = Builder::new().nodes(urls).node_timeout(secs(5)).connect().unwrap();
    eventually("all are connected", || is_ready(&locker));
    locker
}

/// Whether every node is connected.
pub fn is_ready(locker: &Locker) -> bool {
    locker.stats().unwrap().nodes.iter().all(|node| node.ready)
}

/// Waits for what must come true by itself.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < secs(10), "{what}");
        thread::sleep(ms(2));
    }
}

/// The smallest executor there is.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
