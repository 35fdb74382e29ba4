//! Nodes that lose the last that they counted: no fencing token may come twice.
//!
//! Of three nodes one is away while locks are taken. Then another loses the end of its append-only file, as in a power
//! cut, and the third goes away: a quorum is now one node that has never heard of the last locks, and one that has
//! forgotten them.

use std::{
    fs::{self, OpenOptions},
    path::PathBuf,
    time::Duration,
};

use quorlock::{
    Builder, Fencing, LocalGuard, LocalLocker, RestartGuard,
    testing::{Answer, Data, Server, Servers},
};

use super::{
    fresh_seed, ms, secs,
    support::proxy::{Proxy, Random},
};

/// Takes so many locks, while one node after another loses its tail. Panics at one that is not above the one before.
pub fn lose_tails(acquisitions: u64) {
    let mut scene = Scene::new();
    let (mut rounds, mut forgotten) = (0, 0);
    while scene.taken < acquisitions {
        forgotten += u64::from(scene.round(rounds));
        rounds += 1;
    }
    println!(
        "{} tokens went up, {forgotten} of {rounds} times with a count that went back",
        scene.taken
    );
    assert!(2 * forgotten >= rounds as u64, "too little is forgotten: {forgotten} of {rounds}");
}

struct Scene {
    servers: Servers,
    proxies: Vec<Proxy>,
    locker: LocalLocker,
    random: Random,
    /// The highest token of each resource.
    last: [u64; RESOURCES.len()],
    taken: u64,
}

impl Scene {
    fn new() -> Self {
        let builder = Server::builder().persistent(true).config("appendfsync", "no");
        let servers = Servers::start_each(3, builder).unwrap();
        let proxies: Vec<_> =
            servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect();
        // Nodes that may have forgotten something vote at once.
        let builder = Builder::new().nodes(proxies.iter().map(Proxy::url));
        let builder = builder.restart_guard(RestartGuard::Off).node_timeout(ms(200));
        let locker = builder.connect_local().unwrap();
        let last = [0; RESOURCES.len()];
        Self { servers, proxies, locker, random: Random(fresh_seed()), last, taken: 0 }
    }

    /// Whether a node's count went back.
    fn round(&mut self, round: usize) -> bool {
        let [away, forgets, goes_on] = [0, 1, 2].map(|i| (round + i) % 3);
        self.part(away);
        (0..TAKEN).for_each(|_| self.take_and_release());
        // A lock that is held when it is forgotten has a second holder soon.
        let held = self.take(0, secs(30));
        let before = count(&self.servers[forgets]);
        self.lose_tail(forgets);
        let after = count(&self.servers[forgets]);
        self.part(goes_on);
        self.join(away);
        let second = self.take(0, TTL);
        assert!(held.is_valid() && second.is_valid());
        let _ = second.release();
        (0..TAKEN).for_each(|_| self.take_and_release());
        self.join(goes_on);
        drop(held);
        after < before
    }

    fn take_and_release(&mut self) {
        for resource in 0..RESOURCES.len() {
            // A node that is slow to confirm it has it all the same.
            let _ = self.take(resource, TTL).release();
        }
    }

    fn take(&mut self, resource: usize, ttl: Duration) -> LocalGuard {
        let fencing =
            if self.random.below(2) == 0 { Fencing::Confirmed } else { Fencing::OneRoundTrip };
        let request = self.locker.lock(RESOURCES[resource]).ttl(ttl).timeout(secs(30));
        let guard = request.fencing(fencing).acquire().unwrap();
        let token = guard.fencing_token().unwrap().get();
        let last = std::mem::replace(&mut self.last[resource], token);
        assert!(token > last, "{token} after {last}, {}", guard.attempt());
        self.taken += 1;
        guard
    }

    /// Out of reach, with nothing under way that it would run later.
    fn part(&self, node: usize) {
        self.proxies[node].refuse();
        self.proxies[node].cut_all();
    }

    fn join(&self, node: usize) {
        self.proxies[node].admit().unwrap();
    }

    fn lose_tail(&mut self, node: usize) {
        self.servers[node].kill().unwrap();
        let path = append_only_file(&self.servers[node]);
        let len = fs::metadata(&path).unwrap().len();
        let cut = 1 + self.random.below(TAIL_MAX.min(len));
        OpenOptions::new().write(true).open(path).unwrap().set_len(len - cut).unwrap();
        self.servers[node].restart(Data::Keep).unwrap();
    }
}

/// What a server has counted for the first resource.
fn count(server: &Server) -> u64 {
    match server.command(&["HGET", &format!("{}:fencing-counter", RESOURCES[0]), "count"]).unwrap()
    {
        Answer::Text(count) => count.parse().unwrap(),
        _ => 0,
    }
}

/// In one piece up to Redis 6, in several since: then the one that grows.
fn append_only_file(server: &Server) -> PathBuf {
    let dir = server.socket_path().parent().unwrap().to_owned();
    let whole = dir.join("appendonly.aof");
    let pieces = fs::read_dir(dir.join("appendonlydir")).into_iter().flatten();
    let pieces = pieces.map(|piece| piece.unwrap().path());
    pieces.filter(|piece| piece.to_string_lossy().ends_with(".incr.aof")).max().unwrap_or(whole)
}

const RESOURCES: [&str; 3] = ["a", "b", "c"];

/// How often each resource is taken before a node forgets, and after.
const TAKEN: usize = 20;

/// Not long: where a release is forgotten and its lock is not, that is in the way until it ends by itself.
const TTL: Duration = secs(1);

/// In bytes: a few locks, of those that were just taken.
const TAIL_MAX: u64 = 4000;
