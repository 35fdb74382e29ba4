//! The smallest program that uses a lock.
//!
//! Give it your nodes, or it starts three servers of its own:
//! `cargo run --features testing --example basic -- redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::{error::Error, time::Duration};

use quorlock::{LocalLocker, testing::Servers};

fn main() -> Result<(), Box<dyn Error>> {
    let mut nodes: Vec<String> = std::env::args().skip(1).collect();
    let servers = if nodes.is_empty() { Some(Servers::start(3)?) } else { None };
    if let Some(servers) = &servers {
        nodes = servers.tcp_urls();
    }

    let locker = LocalLocker::connect(&nodes)?;
    let request = locker.lock("orders/42").ttl(Duration::from_secs(10));
    let guard = request.timeout(Duration::from_secs(2)).acquire()?;
    println!("held: {}", guard.attempt());
    println!("valid for another {:.3?}", guard.validity());

    match locker.lock("orders/42").try_acquire() {
        Ok(_) => return Err("two holders".into()),
        Err(error) => println!("nobody else gets it: {error}"),
    }

    guard.extend(Duration::from_secs(30))?;
    println!("extended: valid for another {:.3?}", guard.validity());

    guard.release()?;
    println!("released");
    Ok(())
}
