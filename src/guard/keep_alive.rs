//! How a lock is kept alive.

use std::time::Duration;

use crate::{
    error::InvalidRequest,
    proto::{upkeep::Upkeep, validity::Ttl},
};

/// Extension of a held lock by the locker itself, until it is released: for holders that cannot say how long
/// their work takes.
///
/// It hides a holder that hangs: [`at_most`](Self::at_most) bounds for how long. And it does not make a lock
/// hold as long as the process lives: nodes may be out of reach for longer than the validity, and then it is
/// lost, which its [`LostSignal`](crate::LostSignal) says.
///
/// # Examples
///
/// ```
/// # let servers = quorlock::testing::Servers::start(3)?;
/// # let urls = servers.tcp_urls();
/// use std::time::Duration;
/// use quorlock::{KeepAlive, Locker};
///
/// let locker = Locker::connect(urls)?;
/// let request = locker.lock("leader").ttl(Duration::from_millis(300));
/// let guard = request.keep_alive(KeepAlive::default()).try_acquire()?;
/// std::thread::sleep(Duration::from_secs(1));
/// assert!(guard.is_valid());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KeepAlive {
    every: Option<Duration>,
    at_most: Option<Duration>,
}

impl KeepAlive {
    /// Extends in other steps than a third of the ttl, the default. They must be shorter than the validity;
    /// a third leaves time for several tries.
    pub const fn every(mut self, step: Duration) -> Self {
        self.every = Some(step);
        self
    }

    /// Keeps the lock for this long at the most, counted from when it was acquired. After that it expires.
    pub const fn at_most(mut self, hold: Duration) -> Self {
        self.at_most = Some(hold);
        self
    }

    pub(crate) fn parse(self, ttl: Ttl, validity: Duration) -> Result<Upkeep, InvalidRequest> {
        let every = self.every.unwrap_or_else(|| ttl.duration() / 3);
        if every.is_zero() || every >= validity {
            return Err(InvalidRequest::KeepAlive(every));
        }
        Ok(Upkeep { ttl, every, at_most: self.at_most })
    }
}
