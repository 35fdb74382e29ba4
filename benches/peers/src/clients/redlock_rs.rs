//! The redlock crate: blocking, one node after the other, with new connections each time.

use std::{
    thread,
    time::{Duration, Instant},
};

use redlock::RedLock;

use super::{Client, Release, TTL, many};
use crate::Result;

pub struct Redlock {
    once: RedLock,
    patient: RedLock,
}

impl Redlock {
    pub fn connect(urls: &[String]) -> Self {
        let new = || RedLock::new(urls.iter().map(String::as_str).collect::<Vec<_>>());
        let mut once = new();
        once.set_retry(1, 0);
        Self { once, patient: new() }
    }
}

impl Client for Redlock {
    fn try_acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        let lock = self.once.lock(resource.as_bytes(), TTL.as_millis() as usize)?;
        let lock = lock.ok_or("not acquired")?;
        Ok(Box::new(move || {
            self.once.unlock(&lock);
            Ok(())
        }))
    }

    fn acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        let guard = self.patient.acquire(resource.as_bytes(), TTL.as_millis() as usize)?;
        Ok(Box::new(move || {
            drop(guard);
            Ok(())
        }))
    }

    fn many(&self, callers: usize, time: Duration) -> Option<Result<u64>> {
        let end = Instant::now() + time;
        let work = |caller: usize| {
            let (resource, mut pairs) = (many(caller), 0);
            while Instant::now() < end {
                let release = self.try_acquire(&resource).map_err(|error| error.to_string())?;
                release().map_err(|error| error.to_string())?;
                pairs += 1;
            }
            Ok::<u64, String>(pairs)
        };
        Some(thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> =
                (0..callers).map(|caller| scope.spawn(move || work(caller))).collect();
            let sum = |sum: u64, thread: thread::ScopedJoinHandle<'_, _>| -> Result<u64> {
                Ok(sum + thread.join().map_err(|_| "a caller panicked")??)
            };
            threads.into_iter().try_fold(0, sum)
        }))
    }
}
