//! Worker threads that share one locker: each order is worked on by one of them at a time.
//!
//! Starts three servers of its own: `cargo run --features testing --example threads`.

use std::{
    error::Error,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use quorlock::{Locker, testing::Servers};

const WORKERS: u32 = 8;
const ORDERS: u32 = 3;
const ROUNDS: u32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let servers = Servers::start(3)?;
    let locker = Locker::connect(servers.tcp_urls())?;
    let inside = [const { AtomicU32::new(0) }; 3];
    let worked = AtomicU32::new(0);
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (locker, inside, worked) = (locker.clone(), &inside, &worked);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let order = (worker + round) % ORDERS;
                    let resource = format!("orders/{order}");
                    let request = locker.lock(&resource).timeout(Duration::from_secs(30));
                    let guard = match request.acquire() {
                        Ok(guard) => guard,
                        Err(error) => return eprintln!("worker {worker}: {error}"),
                    };
                    let others = &inside[usize::try_from(order).unwrap_or_default()];
                    assert_eq!(others.fetch_add(1, Ordering::SeqCst), 0, "alone in {resource}");
                    thread::sleep(Duration::from_millis(2)); // The work.
                    others.fetch_sub(1, Ordering::SeqCst);
                    worked.fetch_add(1, Ordering::SeqCst);
                    drop(guard); // Waits for nobody.
                }
            });
        }
    });
    let stats = locker.stats().ok_or("closed")?;
    println!("{} rounds of work, never two on one order", worked.into_inner());
    println!(
        "{} locks in {} attempts; waited for at most {:?}, half of them less than {:?}",
        stats.acquired,
        stats.attempts,
        stats.waits.quantile(1.0),
        stats.waits.quantile(0.5),
    );
    locker.close(Duration::from_secs(1))?;
    Ok(())
}
