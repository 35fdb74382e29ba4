//! Who strikes at servers, connections and clients at random, and sets all right again in the end.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use quorlock::testing::{Data, Server, Servers};

use super::{
    ms,
    process::Process,
    support::proxy::{Plan, Proxy, Random},
};

pub struct Nemesis {
    pub servers: Servers,
    /// One in front of each server.
    pub proxies: Vec<Proxy>,
    pub clients: Vec<Process>,
    /// Those that were killed.
    pub fallen: Vec<Process>,
    /// Starts a client, given its number and its nodes.
    start: Box<Start>,
    faults: &'static [Fault],
    /// Those that are drawn next, each once, before it is filled again.
    bag: Vec<Fault>,
    /// What becomes of the data of servers that were killed.
    data: Data,
    random: Random,
    /// What is to be undone, and when.
    hits: Vec<(Instant, Hit)>,
    pub tally: BTreeMap<Fault, u64>,
}

type Start = dyn Fn(usize, &str) -> Process;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Fault {
    CutConnections,
    DelayBytes,
    KillClient,
    /// Three at a time.
    KillMajority,
    KillServer,
    PauseClient,
    PauseServer,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Hit {
    Delayed(usize),
    ClientGone(usize),
    ClientPaused(usize),
    ServerDown(usize),
    ServerPaused(usize),
}

impl Nemesis {
    /// Starts servers and clients.
    pub fn new(
        seed: u64,
        clients: usize,
        data: Data,
        faults: &'static [Fault],
        start: impl Fn(usize, &str) -> Process + 'static,
    ) -> Self {
        // What is written is there after a kill, whoever syncs it; and nothing waits for a sync.
        let builder = Server::builder().persistent(true).config("appendfsync", "no");
        let servers = Servers::start_each(SERVERS, builder).unwrap();
        let proxies: Vec<_> =
            servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect();
        let mut nemesis = Self {
            servers,
            proxies,
            clients: Vec::new(),
            fallen: Vec::new(),
            start: Box::new(start),
            faults,
            bag: Vec::new(),
            data,
            random: Random(seed),
            hits: Vec::new(),
            tally: BTreeMap::new(),
        };
        nemesis.clients = (0..clients).map(|number| nemesis.client(number)).collect();
        nemesis
    }

    fn client(&self, number: usize) -> Process {
        let nodes: Vec<_> = self.proxies.iter().map(Proxy::url).collect();
        (self.start)(number, &nodes.join(","))
    }

    /// Strikes for so long, and leaves what it has struck as it is.
    pub fn rage(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.undo(|due, _| *due <= Instant::now());
            if self.random.below(12) == 0 {
                let fault = self.draw();
                self.strike(fault);
            }
            assert!(self.clients_run(), "a client has ended");
            std::thread::sleep(ms(20));
        }
    }

    /// All is well again, except for those that have fallen.
    pub fn heal(&mut self) {
        self.undo(|_, _| true);
    }

    fn draw(&mut self) -> Fault {
        if self.bag.is_empty() {
            self.bag = self.faults.into();
        }
        let drawn = self.below(self.bag.len());
        self.bag.swap_remove(drawn)
    }

    fn strike(&mut self, fault: Fault) {
        let struck = match fault {
            Fault::CutConnections => {
                let first = self.below(SERVERS);
                let count = 1 + self.below(SERVERS);
                (0..count).for_each(|i| self.proxies[(first + i) % SERVERS].cut_all());
                count
            }
            Fault::DelayBytes => self.hit(Hit::Delayed, SERVERS, 2, 1000),
            Fault::KillClient => self.hit(Hit::ClientGone, self.clients.len(), 1, 200),
            Fault::KillMajority => self.hit(Hit::ServerDown, SERVERS, 3, 50),
            Fault::KillServer => self.hit(Hit::ServerDown, SERVERS, 2, 500),
            Fault::PauseClient => self.hit(Hit::ClientPaused, self.clients.len(), 1, 1500),
            Fault::PauseServer => self.hit(Hit::ServerPaused, SERVERS, 2, 1000),
        };
        *self.tally.entry(fault).or_default() += struck as u64;
    }

    /// Hits up to so many of all that are not hit in whatever way, for up to so many milliseconds.
    fn hit(&mut self, hit: fn(usize) -> Hit, all: usize, count: usize, time_ms: u64) -> usize {
        let count = if count == 2 { 1 + self.below(2) } else { count };
        let first = self.below(all);
        let hits = (0..all).map(|i| hit((first + i) % all));
        let taken = |hit: &Hit| self.hits.iter().any(|(_, other)| other.is_of_same(*hit));
        let hits: Vec<_> = hits.filter(|hit| !taken(hit)).take(count).collect();
        for hit in &hits {
            self.apply(*hit);
            let time = ms(20 + self.random.below(time_ms));
            self.hits.push((Instant::now() + time, *hit));
        }
        hits.len()
    }

    fn apply(&mut self, hit: Hit) {
        match hit {
            Hit::Delayed(i) => {
                let delay = ms(2 + self.random.below(100));
                self.proxies[i].set_live(Plan::delay(delay));
            }
            Hit::ClientGone(i) => self.clients[i].kill(),
            Hit::ClientPaused(i) => self.clients[i].pause(),
            Hit::ServerDown(i) => self.servers[i].kill().unwrap(),
            Hit::ServerPaused(i) => self.servers[i].pause().unwrap(),
        }
    }

    fn undo(&mut self, due: impl Fn(&Instant, &Hit) -> bool) {
        let (over, rest) =
            std::mem::take(&mut self.hits).into_iter().partition(|(at, hit)| due(at, hit));
        self.hits = rest;
        let over: Vec<_> = over;
        for (_, hit) in over {
            match hit {
                Hit::Delayed(i) => self.proxies[i].set_live(Plan::default()),
                Hit::ClientGone(i) => {
                    // Nobody has the number of another, or they would have the same resources.
                    let number = i + self.clients.len() * (1 + self.fallen.len());
                    let next = self.client(number);
                    self.fallen.push(std::mem::replace(&mut self.clients[i], next));
                }
                Hit::ClientPaused(i) => self.clients[i].resume(),
                Hit::ServerDown(i) => self.servers[i].restart(self.data).unwrap(),
                Hit::ServerPaused(i) => self.servers[i].resume().unwrap(),
            }
        }
    }

    fn clients_run(&mut self) -> bool {
        let gone = |i| self.hits.iter().any(|(_, hit)| *hit == Hit::ClientGone(i));
        self.clients.iter_mut().enumerate().all(|(i, client)| gone(i) || client.is_running())
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }
}

impl Hit {
    /// Whether both are of one server, one proxy or one client.
    fn is_of_same(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::ServerDown(i) | Self::ServerPaused(i),
                Self::ServerDown(j) | Self::ServerPaused(j),
            ) => i == j,
            (
                Self::ClientGone(i) | Self::ClientPaused(i),
                Self::ClientGone(j) | Self::ClientPaused(j),
            ) => i == j,
            _ => self == other,
        }
    }
}

/// How many servers there are.
pub const SERVERS: usize = 5;
