//! Work that takes longer than the ttl: the locker keeps the lock alive, and the work ends when it is lost.
//!
//! Starts three servers of its own, and stops two of them in the middle:
//! `cargo run --features testing --example keep_alive`.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use quorlock::{KeepAlive, Locker, testing::Servers};

fn main() -> Result<(), Box<dyn Error>> {
    let servers = Servers::start(3)?;
    let locker = Locker::connect(servers.tcp_urls())?;
    let ttl = Duration::from_millis(400);
    // However long the work hangs, others get their turn after a minute.
    let keep_alive = KeepAlive::default().at_most(Duration::from_secs(60));
    let guard = locker.lock("nightly").ttl(ttl).keep_alive(keep_alive).try_acquire()?;
    let lost = guard.lost_signal();

    let started = Instant::now();
    for step in 1.. {
        // A step of the work, which looks up from it now and then.
        if let Some(reason) = lost.wait_until(Instant::now() + Duration::from_millis(200)) {
            println!("step {step}: stopping after {:.1?}: {reason}", started.elapsed());
            break;
        }
        println!("step {step}: {:.1?} in, valid for {:.1?}", started.elapsed(), guard.validity());
        if step == 5 {
            println!("two of three servers stop");
            servers[0].pause()?;
            servers[1].pause()?;
        }
    }
    if guard.is_valid() {
        return Err("a lost lock is not valid".into());
    }
    servers[0].resume()?;
    servers[1].resume()?;
    Ok(())
}
