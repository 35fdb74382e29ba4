//! What the tests share: a fault proxy, servers that answer as a test likes, a clock that can be set, child processes,
//! and small helpers.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions
#![allow(dead_code, unreachable_pub)] // every test binary uses its own part

pub mod asked;
pub mod child;
pub mod counter;
pub mod fake;
pub mod features;
pub mod preload;
pub mod proxy;

use std::{
    collections::HashSet,
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

use proxy::Proxy;
use quorlock::{
    AcquireError, Attempt, Builder, LocalLocker, Locker, Stats,
    testing::{Answer, Server, Servers},
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

/// For lockers that wait for a busy machine, where it is not their patience that is tested.
pub fn unhurried() -> Builder {
    Builder::new().node_timeout(secs(10)).connect_timeout(secs(10))
}

/// A locker of which every node is connected: `connect` itself is content with a quorum.
pub fn connected(servers: &Servers) -> LocalLocker {
    connected_by(Builder::new(), servers)
}

pub fn connected_by(builder: Builder, servers: &Servers) -> LocalLocker {
    all_vote(builder.nodes(servers.tcp_urls()).connect_local().unwrap(), servers)
}

/// So many servers, a proxy before each, and a locker that is connected through them.
pub fn behind_proxies(count: usize, builder: Builder) -> (Servers, Vec<Proxy>, LocalLocker) {
    let servers = Servers::start(count).unwrap();
    let proxies = proxies(&servers);
    let locker = builder.nodes(proxies.iter().map(Proxy::url)).connect_local().unwrap();
    let locker = all_vote(locker, &servers);
    (servers, proxies, locker)
}

/// A proxy before each server.
pub fn proxies(servers: &[Server]) -> Vec<Proxy> {
    servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect()
}

/// Waits until every node is connected and has nothing left to do.
pub fn all_vote(locker: LocalLocker, servers: &Servers) -> LocalLocker {
    eventually("every node votes", || {
        let Ok(guard) = locker.lock("warm-up").try_acquire() else {
            return false;
        };
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

/// Waits until the first node has no vote for this reason, and the others go on.
pub fn first_is_out(locker: &Locker, reason: &str) -> Stats {
    eventually("it is out", || {
        let guard = locker.lock("r").try_acquire().unwrap();
        let said = said(guard.attempt());
        guard.release().unwrap();
        said[0] == format!("not sent: {reason}")
    });
    let stats = locker.stats().unwrap();
    assert_eq!(stats.nodes[0].last_error.as_ref().unwrap().to_string(), reason);
    stats
}

/// From which ports of ours there are connections to this one in a state, numbered as the system does.
pub fn connections_to(port: u16, state: &str) -> HashSet<String> {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row[2].ends_with(&port) && row[3] == state);
    rows.map(|row| row[1].to_owned()).collect()
}

/// How often a server ran a command since it was started, or since `CONFIG RESETSTAT`.
pub fn calls(server: &Server, command: &str) -> u64 {
    let Answer::Text(info) = server.command(&["INFO", "commandstats"]).unwrap() else { panic!() };
    let field = format!("cmdstat_{command}:calls=");
    let count = info.lines().find_map(|line| line.strip_prefix(&field));
    count.map_or(0, |count| count.split(',').next().unwrap().parse().unwrap())
}

pub fn reset_calls(servers: &[Server]) {
    for server in servers {
        server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    }
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

/// The programs of servers other than the one at hand. Says which are missing.
pub fn programs() -> Vec<PathBuf> {
    let tools = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".tools/bin");
    let programs = ["valkey-server", "redis-server-5"].map(|name| tools.join(name));
    for missing in programs.iter().filter(|program| !program.exists()) {
        println!("skipped: {} is missing (scripts/setup.sh fetches it)", missing.display());
    }
    programs.into_iter().filter(|program| program.exists()).collect()
}
