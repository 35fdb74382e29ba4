//! Fencing tokens: numbers by which a store can tell the latest holder of a lock from the ones before.

use std::fmt;

/// Whether a lock comes with a fencing token, and at what price.
///
/// # Examples
///
/// ```
/// # let servers = quorlock::testing::Servers::start(3)?;
/// # let urls = servers.tcp_urls();
/// use quorlock::{Fencing, LocalLocker};
///
/// let locker = LocalLocker::connect(urls)?;
/// let first = locker.lock("report").fencing(Fencing::Confirmed).try_acquire()?;
/// let first_token = first.fencing_token().expect("it was asked for");
/// first.release()?;
///
/// let second = locker.lock("report").fencing(Fencing::Confirmed).try_acquire()?;
/// assert!(second.fencing_token() > Some(first_token));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Fencing {
    /// No token, and nothing but the lock's own key on the nodes.
    #[default]
    Off,
    /// A token from two round trips: the lock is taken, and then a quorum of the nodes that granted it confirms the
    /// number. Tokens are in the order in which their holders had the lock. Each round trip has the node timeout; a
    /// node that falls silent just between the two is waited for as long again as the first took.
    Confirmed,
    /// A token from one round trip where the nodes' counters agree, as they mostly do, and from two where not. Tokens
    /// are unique, and a lock asked for after another was granted has the higher one; but of two that were asked for
    /// at a time, the first to hold the lock may have the higher.
    OneRoundTrip,
}

/// A number that goes up from holder to holder of one resource, below 2^53.
///
/// Send it with every operation, reads too, to the store that the lock is to protect, and have the store refuse any
/// that is lower than the highest it has seen. Then a holder that was paused past its lock's validity, and does not
/// know it, does no harm (Kleppmann, "How to do distributed locking", 2016).
///
/// Numbers are not consecutive, and mean nothing between resources. They go up as long as a node that lost its counter
/// (in a restart, by `FLUSHALL`, by eviction) has a clock that is past the highest number that any node gave before.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}
