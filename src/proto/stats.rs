//! Counters and histograms: what a service would export of its locks.

use std::{fmt, sync::Arc, time::Duration};

use crate::error::{LostReason, NodeError, Vote};

/// What a [`Locker`](crate::Locker) has done since it was connected, as of one moment. Counters only grow.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Attempts begun: each is one command to every node.
    pub attempts: u64,
    /// Locks handed out.
    pub acquired: u64,
    /// Attempts that failed as somebody else held the resource.
    pub contended: u64,
    /// Attempts that failed as too few nodes answered.
    pub no_quorum: u64,
    /// Attempts that had a quorum, too late.
    pub expired: u64,
    /// Requests that were cancelled before they were settled.
    pub cancelled: u64,
    /// Extensions that a quorum granted, those by keep-alive included.
    pub extended: u64,
    /// Extensions that no quorum granted.
    pub not_extended: u64,
    /// Locks that were lost while held.
    pub lost: u64,
    /// Locks given up by their holders.
    pub released: u64,
    /// Replies that came when nobody waited for them any more. They were consumed, and credited to nobody.
    pub abandoned_replies: u64,
    /// Connections closed as a reply did not fit its command.
    pub protocol_errors: u64,
    /// From asking for a lock to having it.
    pub waits: Histogram,
    /// From asking for a lock that was got at once, or at last, to giving it up.
    pub holds: Histogram,
    /// Each node, in the configured order.
    pub nodes: Vec<NodeStats>,
}

/// One node's part in all attempts to acquire.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct NodeStats {
    /// Its address as configured, without credentials.
    pub name: Box<str>,
    /// Whether its connection is ready.
    pub ready: bool,
    /// Whether it says which process it is. Where it may not (`INFO` is refused), a restart of it goes unnoticed, and
    /// so does another address of the same server.
    pub identified: bool,
    /// Whether it throws keys away when its memory is full (`maxmemory-policy` is not `noeviction`): a lock that is held
    /// may be among them. Also false where it may not be asked.
    pub evicts: bool,
    /// How often another process answered than before: it was restarted, or something else took its place.
    pub restarts: u64,
    /// Attempts that it granted.
    pub granted: u64,
    /// Attempts that it refused.
    pub refused: u64,
    /// Attempts that were settled before it had answered.
    pub not_waited_for: u64,
    /// Attempts that it answered with an error.
    pub errors: u64,
    /// Attempts that it did not answer in time, or at all.
    pub unanswered: u64,
    /// Attempts that were not sent to it.
    pub not_sent: u64,
    /// Releases that found a key which is no lock (a list, say). It refuses its resource to everybody for as long as it
    /// is there, and is left alone; [`Builder::status`](crate::Builder::status) says where it is.
    pub not_locks: u64,
    /// Why its last connection ended, if it did.
    pub last_error: Option<NodeError>,
}

/// How often something took how long: in steps of a factor of two, from a microsecond up.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Histogram {
    /// The first counts what took less than a microsecond, each other one what took less than twice as long as
    /// the one before.
    buckets: [u64; Self::BUCKETS],
}

impl Histogram {
    /// The last but one ends at nine days.
    const BUCKETS: usize = 41;

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// A time that the given share of them did not exceed, exact to a factor of two: `quantile(0.5)` is the
    /// median, `quantile(1.0)` the longest. Zero if nothing was counted.
    pub fn quantile(&self, share: f64) -> Duration {
        let total = self.count();
        let mut seen = 0;
        for (bucket, upper) in self.buckets() {
            seen += bucket;
            if total > 0 && share_of(seen, total) >= share.clamp(0.0, 1.0) && seen > 0 {
                return upper;
            }
        }
        Duration::ZERO
    }

    /// Each bucket's count, with the time that it stays below; the last one has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, Duration)> + '_ {
        (0..).zip(&self.buckets).map(|(power, count)| (*count, Duration::from_micros(1 << power)))
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bits = usize::try_from(u64::BITS - micros.leading_zeros()).unwrap_or(0);
        self.buckets[bits.min(Self::BUCKETS - 1)] += 1;
    }
}

impl Histogram {
    fn merge(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
    }
}

impl Stats {
    pub(crate) fn new(names: &Arc<[Box<str>]>) -> Self {
        let node = |name: &str| NodeStats { name: name.into(), ..NodeStats::default() };
        Self { nodes: names.iter().map(|name| node(name)).collect(), ..Self::default() }
    }

    /// Counts what another locker did as well. Its nodes come behind ours.
    pub(crate) fn add(&mut self, other: Self) {
        // By name, so that no counter can be forgotten here.
        let Self {
            attempts,
            acquired,
            contended,
            no_quorum,
            expired,
            cancelled,
            extended,
            not_extended,
            lost,
            released,
            abandoned_replies,
            protocol_errors,
            waits,
            holds,
            nodes,
        } = other;
        self.attempts += attempts;
        self.acquired += acquired;
        self.contended += contended;
        self.no_quorum += no_quorum;
        self.expired += expired;
        self.cancelled += cancelled;
        self.extended += extended;
        self.not_extended += not_extended;
        self.lost += lost;
        self.released += released;
        self.abandoned_replies += abandoned_replies;
        self.protocol_errors += protocol_errors;
        self.waits.merge(&waits);
        self.holds.merge(&holds);
        self.nodes.extend(nodes);
    }

    pub(crate) fn lost(&mut self, reason: LostReason) {
        if reason != LostReason::Released {
            self.lost += 1;
        }
    }
}

impl NodeStats {
    pub(crate) fn count(&mut self, vote: &Vote) {
        let counter = match vote {
            Vote::Failed(_) => &mut self.errors,
            Vote::Granted => &mut self.granted,
            Vote::NotSent(_) => &mut self.not_sent,
            Vote::Pending => &mut self.not_waited_for,
            Vote::Refused => &mut self.refused,
            Vote::Unknown(_) => &mut self.unanswered,
        };
        *counter += 1;
    }
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss)] // shares need no more precision
fn share_of(part: u64, total: u64) -> f64 {
    part as f64 / total as f64
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; Self::BUCKETS] }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = self.buckets().filter(|(count, _)| *count > 0);
        f.debug_map().entries(some.map(|(count, below)| (below, count))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_did_is_summed() {
        let stats = |scale: u64, name: &str| {
            let mut waits = Histogram::default();
            waits.add(Duration::from_micros(scale));
            let mut holds = waits;
            holds.add(Duration::from_micros(scale));
            let nodes = vec![NodeStats { name: name.into(), ..NodeStats::default() }];
            Stats {
                attempts: scale,
                acquired: 2 * scale,
                contended: 3 * scale,
                no_quorum: 4 * scale,
                expired: 5 * scale,
                cancelled: 6 * scale,
                extended: 7 * scale,
                not_extended: 8 * scale,
                lost: 9 * scale,
                released: 10 * scale,
                abandoned_replies: 11 * scale,
                protocol_errors: 12 * scale,
                waits,
                holds,
                nodes,
            }
        };
        let mut sum = Stats::default();
        sum.add(stats(100, "a"));
        sum.add(stats(1, "b"));
        let mut expected = stats(101, "a");
        expected.nodes.extend(stats(0, "b").nodes);
        (expected.waits, expected.holds) = (sum.waits, sum.holds);
        assert_eq!(format!("{sum:?}"), format!("{expected:?}"));
        assert_eq!((sum.waits.count(), sum.holds.count()), (2, 4));
        assert_eq!(sum.waits.quantile(0.5), Duration::from_micros(2));
        assert_eq!(sum.waits.quantile(1.0), Duration::from_micros(128));
    }

    #[test]
    fn quantiles_are_the_upper_ends_of_their_buckets() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for micros in [0, 1, 3, 100, 100, 100, 100, 100, 100, 5000] {
            histogram.add(Duration::from_micros(micros));
        }
        assert_eq!(histogram.count(), 10);
        assert_eq!(histogram.quantile(0.0), Duration::from_micros(1));
        assert_eq!(histogram.quantile(0.3), Duration::from_micros(4));
        assert_eq!(histogram.quantile(0.5), Duration::from_micros(128));
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(8192));
        histogram.add(Duration::MAX);
        assert_eq!(histogram.count(), 11);
    }
}
