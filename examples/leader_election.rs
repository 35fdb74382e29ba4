//! Three candidates, one leader: when it dies the next one takes over, at the latest when its lock has expired.
//!
//! Starts three servers of its own: `cargo run --features testing --example leader_election`.

use std::{
    error::Error,
    sync::mpsc::{Sender, channel},
    thread,
    time::{Duration, Instant},
};

use quorlock::{KeepAlive, Locker, testing::Servers};

const TTL: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let servers = Servers::start(3)?;
    let (elected, elections) = channel();
    for name in ["ann", "bob", "cyd"] {
        // Each as if in a process of its own: with a locker of its own.
        let locker = Locker::connect(servers.tcp_urls())?;
        let elected = elected.clone();
        thread::spawn(move || stand(name, &locker, &elected));
    }
    let mut died = None;
    let mut leaders = Vec::new();
    for _ in 0..3 {
        let leader = elections.recv_timeout(Duration::from_secs(20))?;
        match died {
            None => println!("{leader} leads"),
            Some(at) => println!("{leader} leads, {:.1?} later", Instant::now() - at),
        }
        thread::sleep(Duration::from_millis(300));
        println!("{leader} dies without a word");
        died = Some(Instant::now());
        leaders.push(leader);
    }
    leaders.sort_unstable();
    if leaders != ["ann", "bob", "cyd"] {
        return Err(format!("led: {leaders:?}").into());
    }
    Ok(())
}

/// Waits to be leader, leads for a moment, and dies.
fn stand(name: &'static str, locker: &Locker, elected: &Sender<&'static str>) {
    let request = locker.lock("leader").ttl(TTL).timeout(Duration::from_secs(60));
    // It dies in 300 ms: what is kept alive for no longer is as good as a process that is killed then.
    let keep_alive = KeepAlive::default().at_most(Duration::from_millis(600));
    match request.keep_alive(keep_alive).acquire() {
        Ok(guard) => {
            // Fails only where nobody counts any more.
            let _ = elected.send(name);
            std::mem::forget(guard);
        }
        Err(error) => eprintln!("{name}: {error}"),
    }
}
