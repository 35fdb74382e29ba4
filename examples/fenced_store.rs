//! A store that refuses what is stale: a holder is paused past its lock, another one writes, and the first, which does
//! not know, writes too late.
//!
//! Starts three servers of its own: `cargo run --features testing --example fenced_store`.

use std::{error::Error, thread, time::Duration};

use quorlock::{Fencing, FencingToken, LocalGuard, LocalLocker, testing::Servers};

const TTL: Duration = Duration::from_millis(200);

/// What the lock is to protect. A real one keeps the highest token with its data, and compares in the transaction that
/// reads or writes.
#[derive(Debug, Default)]
struct Store {
    highest: Option<FencingToken>,
    value: String,
}

impl Store {
    fn write(&mut self, token: Option<FencingToken>, value: &str) -> Result<(), String> {
        if token < self.highest {
            return Err(format!("stale: {value:?} comes with an older token than the value here"));
        }
        self.highest = token;
        self.value = value.into();
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let servers = Servers::start(3)?;
    // Each as if in a process of its own: with a locker of its own.
    let (ann, bob) = (lock_of(&servers)?, lock_of(&servers)?);
    let mut store = Store::default();

    let first = acquire(&ann)?;
    println!("ann holds the lock, with token {}", first.fencing_token().ok_or("no token")?);
    if !first.is_valid() {
        return Err("ann is too slow for a lock of 200 ms".into());
    }
    // Here she is paused: a suspended machine, a page fault, a collector of garbage. Looking before writing does not
    // help, as the pause may come after the look.
    thread::sleep(TTL);

    let second = acquire(&bob)?;
    println!("bob holds the lock, with token {}", second.fencing_token().ok_or("no token")?);
    store.write(second.fencing_token(), "bob's")?;

    match store.write(first.fencing_token(), "ann's") {
        Ok(()) => return Err("ann has overwritten what bob wrote".into()),
        Err(refused) => println!("ann wakes up and writes: {refused}"),
    }
    println!("the value is {:?}", store.value);
    Ok(())
}

fn lock_of(servers: &Servers) -> Result<LocalLocker, Box<dyn Error>> {
    Ok(LocalLocker::connect(servers.tcp_urls())?)
}

fn acquire(locker: &LocalLocker) -> Result<LocalGuard, Box<dyn Error>> {
    let request = locker.lock("value").ttl(TTL).fencing(Fencing::Confirmed);
    Ok(request.timeout(Duration::from_secs(10)).acquire()?)
}
