//! rslock on tokio. It knows no single attempt that says why it failed; a retry count of one comes closest.

use std::time::{Duration, Instant};

use rslock::LockManager;
use tokio::runtime::Runtime;

use super::{Client, Release, TTL, many};
use crate::Result;

pub struct Rslock {
    once: LockManager,
    patient: LockManager,
    runtime: Runtime,
}

impl Rslock {
    pub fn connect(urls: &[String]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut once = LockManager::new(urls.to_vec());
        once.set_retry(1, Duration::ZERO);
        let mut patient = LockManager::new(urls.to_vec());
        // Its own delay, and no end.
        patient.set_retry(u32::MAX, Duration::from_millis(200));
        Ok(Self { once, patient, runtime })
    }

    fn lock<'a>(&'a self, manager: &'a LockManager, resource: &str) -> Result<Release<'a>> {
        let lock = self.runtime.block_on(manager.lock(resource.as_bytes(), TTL));
        let lock = lock.map_err(|error| format!("{error:?}"))?;
        Ok(Box::new(move || {
            self.runtime.block_on(manager.unlock(&lock));
            Ok(())
        }))
    }
}

impl Client for Rslock {
    fn try_acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        self.lock(&self.once, resource)
    }

    fn acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        self.lock(&self.patient, resource)
    }

    fn many(&self, callers: usize, time: Duration) -> Option<Result<u64>> {
        let end = Instant::now() + time;
        let task = |caller: usize| {
            let manager = self.once.clone();
            self.runtime.spawn(async move {
                let (resource, mut pairs) = (many(caller), 0);
                while Instant::now() < end {
                    let lock = manager.lock(resource.as_bytes(), TTL).await;
                    manager.unlock(&lock.map_err(|error| format!("{error:?}"))?).await;
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
