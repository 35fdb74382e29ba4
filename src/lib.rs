//! Distributed locks over N independent Redis or Valkey masters, in one network round trip.
//!
//! This is the [Redlock algorithm](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).
//! An acquire writes `SET key token NX PX ttl` to all N nodes first and only then reads replies; it is settled
//! as soon as N/2+1 nodes have granted it, or as soon as that has become impossible. One dead, silent or slow
//! node changes neither the outcome nor the latency of a round that a majority answers. With N = 1 it is the
//! plain single-instance lock.
//!
//! ```
//! # let servers = quorlock::testing::Servers::start(3)?;
//! # let urls = servers.tcp_urls();
//! use std::time::Duration;
//! use quorlock::LocalLocker;
//!
//! let locker = LocalLocker::connect(urls)?; // "redis://10.0.0.1", "redis://10.0.0.2", …
//! let guard = locker
//!     .lock("orders/42")
//!     .ttl(Duration::from_secs(10))
//!     .timeout(Duration::from_secs(2))
//!     .acquire()?;
//! assert!(guard.validity() > Duration::from_secs(9));
//!
//! guard.extend(Duration::from_secs(20))?; // from now, not added
//! assert!(guard.validity() > Duration::from_secs(19));
//!
//! guard.release()?; // or drop it, which does not wait
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What no lock of this kind can promise
//!
//! - A holder that is paused past its validity (a suspended machine, a page fault, `SIGSTOP`) does not know
//!   it. Checking [`is_valid`](LocalGuard::is_valid) just before the write does not close the gap (Kleppmann,
//!   "How to do distributed locking", 2016).
//! - Servers expire keys by their wall clock. Whoever sets a server's clock forward frees its locks early.
//! - A restarted server may have forgotten its keys, and then grants them again.
//!
//! Within these limits it is safe as long as clocks run at the same rate to within the
//! [drift allowance](Drift), nodes are independent masters, and all clients are given the same nodes.
//!
//! # What it does promise
//!
//! - A lock is handed out only by a quorum of the configured nodes and with validity left:
//!   `ttl - elapsed - drift`, where the clock starts before the first byte is sent and goes on while the
//!   machine is suspended.
//! - After a loss, a timeout or a drop the release goes, behind the `SET` on the same connection, to every node
//!   that the `SET` was sent to, answered or not. A connection that breaks in between leaves a debt that is
//!   paid on the next one. The ttl is the last resort, not the rule.
//! - A reply is credited to the command that it answers or to nobody, whatever times out.
//! - Every outcome says what each node said: see [`Attempt`].
//! - A lock that was asked to have one comes with a [`FencingToken`], by which a store can refuse a holder that was
//!   paused past its validity; and a [`RestartGuard`] keeps forgetful nodes from voting.
//!
//! # Features
//!
//! None is on by default.
//!
//! - `testing`: the `testing` module starts and stops real `redis-server` or `valkey-server` processes.
//! - `cli`: builds the `quorlock` command.

#![forbid(unsafe_code)]

mod completion;
mod config;
mod connect;
mod driver;
mod error;
mod fencing;
mod future;
mod guard;
mod local;
mod locker;
#[doc(hidden)]
mod proto;
mod request;
mod sharded;
mod status;
#[cfg(feature = "testing")]
pub mod testing;

/// For this crate's own tests, benchmarks and fuzz targets. May change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::config::{Credentials, Secret};
    pub use crate::driver::{IoCounts, clock};
    pub use crate::proto::*;
}

pub use config::{Builder, Drift, NodeConfig, RestartGuard, RetryPolicy};
pub use error::{
    AcquireError, Attempt, CloseError, ConfigError, ConnectError, ExtendError, InvalidRequest,
    LostReason, NodeError, ProtocolError, ReleaseError, Vote,
};
pub use fencing::{Fencing, FencingToken};
pub use future::{Acquire, Extend, Release};
pub use guard::{KeepAlive, LocalGuard, LockGuard, Lost, LostSignal};
pub use local::LocalLocker;
pub use locker::Locker;
pub use proto::{
    stats::{Histogram, NodeStats, Stats},
    token::Token,
};
pub use request::LockRequest;
pub use sharded::{ShardedBuilder, ShardedLocker};
pub use status::{KeyState, NodeStatus};
