//! Clients that add to a set under a lock: read it, take their time, write it back. Some never look whether the lock
//! is still theirs, and take longer than that.

use std::{collections::HashSet, thread, time::Duration};

use quorlock::{Builder, Fencing, FencingToken, Locker, RestartGuard};

use super::{
    ms,
    process::{Log, Orders, Phase, Process, setting},
    store::{Store, Visitor},
    support::proxy::Random,
};

/// Short, so that it is often outlived; for how long a node may take there must be time.
const TTL: Duration = ms(120);
const NODE_TIMEOUT: Duration = ms(40);

/// Each client has a thread for each set, with its own seed.
pub const SETS: usize = 12;

/// Plays the part to its end.
pub fn run(orders: &Orders) {
    let number: u64 = setting("NUMBER").parse().unwrap();
    let seed: u64 = setting("SEED").parse().unwrap();
    let log = Log::open();
    let Some(locker) = connect(orders) else {
        return;
    };
    thread::scope(|scope| {
        for set in 0..SETS {
            let random = Random(seed ^ (number << 8) ^ set as u64);
            let visitor = Visitor::new(&setting("STORE"));
            let first = (number * SETS as u64 + set as u64) << 32;
            let fencing = match setting("FENCED").as_str() {
                "true" if set % 2 == 0 => Fencing::Confirmed,
                "true" => Fencing::OneRoundTrip,
                _ => Fencing::Off,
            };
            let mut writer = Writer {
                set,
                fencing,
                next: first,
                locker: locker.clone(),
                visitor,
                random,
                log: &log,
            };
            scope.spawn(move || {
                while orders.phase() == Phase::Work {
                    writer.add();
                }
            });
        }
    });
    orders.wait_for(Phase::End);
}

fn connect(orders: &Orders) -> Option<Locker> {
    let builder =
        Builder::new().nodes(setting("NODES").split(',')).restart_guard(RestartGuard::Off);
    let builder = builder.ttl(TTL).node_timeout(NODE_TIMEOUT);
    loop {
        match builder.clone().connect() {
            Ok(locker) => return Some(locker),
            Err(_) if orders.phase() == Phase::Work => {}
            Err(_) => return None,
        }
    }
}

struct Writer<'a> {
    set: usize,
    fencing: Fencing,
    /// The next element: nobody else adds it.
    next: u64,
    locker: Locker,
    visitor: Visitor,
    random: Random,
    log: &'a Log,
}

impl Writer<'_> {
    fn add(&mut self) {
        let resource = format!("set-{}", self.set);
        let request = self.locker.lock(&resource).timeout(ms(400)).fencing(self.fencing);
        let Ok(guard) = request.acquire() else {
            return;
        };
        let token = guard.fencing_token().map_or(0, FencingToken::get);
        if self.random.below(16) == 0 {
            self.outlive(guard.validity());
        }
        let Some(mut elements) = self.visitor.read(self.set, token) else {
            return;
        };
        thread::sleep(ms(self.random.below(4)));
        if self.random.below(2) == 0 {
            self.outlive(guard.validity());
        }
        self.next += 1;
        elements.push(self.next);
        if self.visitor.write(self.set, token, &elements) {
            self.log.line(&format!("added {} {}", self.set, self.next));
        }
    }

    /// Until others have had time to come.
    fn outlive(&mut self, validity: Duration) {
        let extra = self.random.below(100);
        thread::sleep(validity + ms(5 + extra));
    }
}

/// Elements that the store said it has, and how many of them it has not.
pub fn added_and_lost(clients: &[Process], store: &Store) -> (usize, usize) {
    let sets: Vec<HashSet<u64>> = (0..SETS).map(|set| store.elements(set)).collect();
    let (mut added, mut lost) = (0, 0);
    for log in clients.iter().map(Process::log) {
        for line in log.lines() {
            let numbers =
                line.strip_prefix("added ").and_then(|line| line.split_once(' ')).unwrap();
            let (set, element): (usize, u64) =
                (numbers.0.parse().unwrap(), numbers.1.parse().unwrap());
            added += 1;
            lost += usize::from(!sets[set].contains(&element));
        }
    }
    (added, lost)
}
