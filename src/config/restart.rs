//! What is done about nodes that were restarted.

/// What to do about a node that was restarted, and may have forgotten what it granted.
///
/// A server that comes back without its keys grants again what somebody still holds. The
/// [page of the algorithm](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/) asks that such a
/// node stay away until every lock that was live when it crashed is over. This guard does that from our side: a node
/// whose process is younger than the [longest ttl](crate::Builder::ttl_max) gives no vote to new locks until it is
/// older. Locks that it holds are extended and released as ever.
///
/// How old a process is comes from `INFO server` at each connect. A node whose user may not ask that is believed,
/// and [`NodeStats::identified`](crate::NodeStats::identified) says so.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use quorlock::{Builder, RestartGuard};
///
/// // Every client of these nodes sets the same `ttl_max`; then no restart gives a lock away twice.
/// let builder = Builder::new().restart_guard(RestartGuard::Always).ttl_max(Duration::from_secs(30));
/// # let _ = builder;
/// assert_eq!(RestartGuard::default(), RestartGuard::AfterChange);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum RestartGuard {
    /// Nothing: nodes that are up vote. Safe only if no server ever loses a key.
    Off,
    /// A node is held back once this locker has seen it restart. A fresh cluster starts at once; a restart before
    /// this locker's first connection to the node goes unnoticed.
    #[default]
    AfterChange,
    /// Every node that is young is held back, also at the first connection. After a start of the whole cluster no lock
    /// is granted for one longest ttl.
    Always,
    /// As `Always`, but nodes with an append-only file are trusted to remember. That is true of a killed server with
    /// any `appendfsync`, and of a lost machine with `appendfsync always` only.
    TrustPersisted,
}
