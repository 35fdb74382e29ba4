//! quorlock in the caller's thread.

use std::time::Duration;

use quorlock::LocalLocker;

use super::{Client, Release, TTL};
use crate::Result;

pub struct Local(LocalLocker);

impl Local {
    pub fn connect(urls: &[String]) -> Result<Self> {
        Ok(Self(LocalLocker::connect(urls)?))
    }
}

impl Client for Local {
    fn try_acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        let guard = self.0.lock(resource).ttl(TTL).try_acquire()?;
        Ok(Box::new(|| Ok(guard.release()?)))
    }

    fn acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        let guard = self.0.lock(resource).ttl(TTL).timeout(TTL).acquire()?;
        Ok(Box::new(|| Ok(guard.release()?)))
    }

    fn many(&self, _: usize, _: Duration) -> Option<Result<u64>> {
        None
    }
}
