//! A locker among tasks: hundreds of locks at a time, and an acquire that is given up.
//!
//! Starts three servers of its own: `cargo run --features testing --example tokio`.

use std::{error::Error, time::Duration};

use quorlock::{Locker, testing::Servers};
use tokio::{task::JoinSet, time::timeout};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let servers = Servers::start(3)?;
    let locker = Locker::connect(servers.tcp_urls())?;

    let mut tasks = JoinSet::new();
    for i in 0..300 {
        let locker = locker.clone();
        tasks.spawn(async move {
            let resource = format!("job/{i}");
            let guard = locker.lock(&resource).try_acquire_async().await?;
            tokio::time::sleep(Duration::from_millis(10)).await; // The work.
            guard.release_async().await?;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
    }
    let results = tasks.join_all().await;
    println!("{} jobs done", results.iter().filter(|result| result.is_ok()).count());

    // Dropping the future is all it takes to cancel: nothing is left on any node.
    let guard = locker.lock("report").try_acquire_async().await?;
    let waiting = locker.lock("report").timeout(Duration::from_secs(60)).acquire_async();
    match timeout(Duration::from_millis(100), waiting).await {
        Ok(_) => return Err("two holders".into()),
        Err(_) => println!("gave up waiting after 100 ms"),
    }
    guard.release_async().await?;
    let guard = locker.lock("report").try_acquire_async().await?;
    println!("and the lock is free again for the next: {}", guard.attempt());
    drop(guard);
    locker.close(Duration::from_secs(1))?;
    Ok(())
}
