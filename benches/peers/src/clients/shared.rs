//! quorlock for a whole service: calls that block, and tasks.

use std::time::{Duration, Instant};

use quorlock::Locker;
use tokio::runtime::Runtime;

use super::{Client, Release, TTL, many};
use crate::Result;

pub struct Shared {
    locker: Locker,
    runtime: Runtime,
}

impl Shared {
    pub fn connect(urls: &[String]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { locker: Locker::connect(urls)?, runtime })
    }
}

impl Client for Shared {
    fn try_acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        let guard = self.locker.lock(resource).ttl(TTL).try_acquire()?;
        Ok(Box::new(|| Ok(guard.release()?)))
    }

    fn acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        let guard = self.locker.lock(resource).ttl(TTL).timeout(TTL).acquire()?;
        Ok(Box::new(|| Ok(guard.release()?)))
    }

    fn many(&self, callers: usize, time: Duration) -> Option<Result<u64>> {
        let end = Instant::now() + time;
        let task = |caller: usize| {
            let locker = self.locker.clone();
            self.runtime.spawn(async move {
                let (resource, mut pairs) = (many(caller), 0);
                while Instant::now() < end {
                    let guard = locker.lock(&resource).ttl(TTL).try_acquire_async().await;
                    let guard = guard.map_err(|error| error.to_string())?;
                    guard.release_async().await.map_err(|error| error.to_string())?;
                    pairs += 1;
                }
                Ok::<u64, String>(pairs)
            })
        };
        let tasks: Vec<_> = (0..callers).map(task).collect();
        let sum = |sum: u64, task| -> Result<u64> { Ok(sum + self.runtime.block_on(task)??) };
        Some(tasks.into_iter().try_fold(0, sum))
    }
}
