//! A locker over several groups of nodes: each resource belongs to one group, by its name.
//!
//! Knows no node and no lock: a request goes to its group's own [`Locker`], and everything else is the same.

mod builder;
mod rendezvous;

use std::{fmt, sync::Arc, time::Duration};

pub use self::builder::ShardedBuilder;
use crate::{error::CloseError, locker::Locker, proto::stats::Stats, request::LockRequest};

/// Locks over several groups of N independent masters, for more of them per second than one group can give.
///
/// Each resource belongs to one group, and its lock is an ordinary one of a [`Locker`] there: with the same
/// requests, guards, errors and blocking behaviour, and a majority of that group's nodes. So each group carries
/// its share of the locks, and a group without a quorum takes away its own resources only.
///
/// Which group it is follows from the groups' names and the resource, and from nothing else: not from the order
/// in which groups or nodes are given, the addresses, the key prefix, the platform or the version of this crate.
///
/// Clones are the same locker. When the last of them and of its guards is dropped, every group is closed, one
/// after the other as [`Locker`] says.
///
/// # All processes must be given the same groups
///
/// **Two processes that share resources and have different sets of group names are two holders of one lock**,
/// for every resource on whose group they disagree. No node can notice: the keys are on different servers.
/// The same goes for a name that stands for different nodes.
///
/// A group that is added takes its share of resources from each of the others; one that is removed leaves its
/// own to the rest. All other resources stay where they are. For those that move, a lock that is held in the
/// old group does not keep anybody from taking it in the new one. So change the set like this, and not by a
/// rolling restart:
///
/// 1. In every process, stop acquiring and extending (end what is kept alive), release what is held, and close
///    the old locker.
/// 2. Wait for the longest ttl in use, from the last acquire or extension of any process that did not end so:
///    one that was killed leaves its keys behind for so long.
/// 3. Connect with the new set.
///
/// A node that is replaced moves nothing between groups. It is still a change that all processes must agree on,
/// as with a single [`Locker`]: two majorities meet only within one set of nodes.
///
/// # How many groups
///
/// The capacity is that of one group times the number of groups, as long as resources are many and equally
/// busy: one resource is never spread, and a group's share of n resources is off by about the square root of it.
/// The limits, in the order in which they come:
///
/// - **The servers.** Each pair of acquire and release costs each server of its group a `SET` and a script, and a
///   server runs its commands on one core. That core is full at 1 / (server CPU per pair) pairs a second;
///   `cargo bench --bench scale` measures it. More nodes in a group outlive more failures and carry no more
///   load; more groups carry more load.
/// - **The clients.** A process has a thread for each group, a connection to each node of each group, and some
///   20 ns to choose at each lock. That thread spends about as much CPU on a pair as one server does, and the
///   callers come on top: a process with fewer cores than groups cannot load them, and it takes more processes,
///   not more groups, to do so.
/// - **Connections.** Every process has one to every node, whatever it locks there. Servers take 10 000 clients by
///   default: that bounds the processes, and no number of groups changes it.
///
/// So take as many groups as (pairs a second at the peak) / (half of what one group can do): the other half is
/// for the resources that are busier than others. Beyond four it is arithmetic: eight groups of three do twice
/// what four do, on 24 servers, with eight threads and 24 connections in each process. As changing the set means
/// stopping, begin with as many as will be needed. Stop adding when it is one resource that waits and not the sum
/// of them, which more groups never help: hold it for a shorter time, or lock something finer.
///
/// Whoever may choose resources freely can choose them all from one group: the hash is no secret.
///
/// # Examples
///
/// ```
/// # let (first, second) = (quorlock::testing::Servers::start(3)?, quorlock::testing::Servers::start(3)?);
/// # let (first, second) = (first.tcp_urls(), second.tcp_urls());
/// use std::time::Duration;
/// use quorlock::ShardedLocker;
///
/// let locker = ShardedLocker::builder()
///     .group("a", first)  // "redis://10.0.0.1", "redis://10.0.0.2", …
///     .group("b", second) // "redis://10.0.1.1", "redis://10.0.1.2", …
///     .connect()?;
/// let guard = locker.lock("orders/42").ttl(Duration::from_secs(10)).acquire()?;
/// assert!(guard.validity() > Duration::from_secs(9));
///
/// // For good: this is where every process looks for it.
/// assert_eq!(locker.group_of("orders/42"), "b");
/// assert_eq!(locker.group_of("orders/1"), "a");
///
/// guard.release()?;
/// locker.close(Duration::from_secs(1))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ShardedLocker {
    /// Invariant: at least one, in the order of their names, which are different.
    groups: Arc<[Group]>,
}

struct Group {
    name: Box<str>,
    /// Of the name.
    hash: u64,
    locker: Locker,
}

impl ShardedLocker {
    /// A builder, for the groups and for other than default settings.
    pub fn builder() -> ShardedBuilder {
        ShardedBuilder::new()
    }

    /// A request for the lock on `resource`: any bytes, 1 to 4096 of them. It goes to the resource's group.
    pub fn lock<'a>(
        &'a self,
        resource: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> LockRequest<'a, Locker> {
        self.group(resource.as_ref()).locker.lock(resource)
    }

    /// The name of the group that `resource` belongs to.
    pub fn group_of(&self, resource: impl AsRef<[u8]>) -> &str {
        &self.group(resource.as_ref()).name
    }

    /// The names of all groups, sorted.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = &str> {
        self.groups.iter().map(|group| &*group.name)
    }

    /// What all groups have done so far: the sums of their counters, and the nodes of all of them, group by
    /// group in the order of [`groups`](Self::groups). `None` once any of them is closed.
    ///
    /// # Blocking
    ///
    /// Until each group's thread has had a moment: microseconds.
    pub fn stats(&self) -> Option<Stats> {
        let mut sum = Stats::default();
        for group in &*self.groups {
            sum.add(group.locker.stats()?);
        }
        Some(sum)
    }

    /// What one group has done so far. `None` if there is no group of this name, and once it is closed.
    ///
    /// # Blocking
    ///
    /// Until its thread has a moment: microseconds.
    pub fn group_stats(&self, group: &str) -> Option<Stats> {
        self.groups.iter().find(|known| *known.name == *group)?.locker.stats()
    }

    /// Closes all groups at a time, as [`Locker::close`] does one.
    ///
    /// # Errors
    ///
    /// [`CloseError::Unconfirmed`] has the sum over all groups. [`CloseError::Closed`] if any of them was closed
    /// before, or its driver had failed; the others are closed all the same.
    ///
    /// # Blocking
    ///
    /// Until every release was answered by every node it went to, at most for `timeout`.
    pub fn close(self, timeout: Duration) -> Result<(), CloseError> {
        let closing: Vec<_> =
            self.groups.iter().map(|group| group.locker.begin_close(timeout)).collect();
        let ends = self.groups.iter().zip(&closing);
        let results: Vec<_> =
            ends.map(|(group, closing)| group.locker.end_close(closing)).collect();
        let mut unconfirmed = 0;
        for result in results {
            match result {
                Ok(()) => {}
                Err(CloseError::Unconfirmed { releases }) => unconfirmed += releases,
                Err(error) => return Err(error),
            }
        }
        if unconfirmed > 0 {
            Err(CloseError::Unconfirmed { releases: unconfirmed })
        } else {
            Ok(())
        }
    }

    fn group(&self, resource: &[u8]) -> &Group {
        let groups = self.groups.iter().map(|group| (group.hash, &*group.name));
        &self.groups[choose(groups, resource)]
    }
}

impl fmt::Debug for ShardedLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.groups.iter().map(|group| (&group.name, &group.locker));
        f.write_str("ShardedLocker ")?;
        f.debug_map().entries(groups).finish()
    }
}

/// The position of the group with the highest weight, of groups given by hash and name. Zero if there is none.
fn choose<'a>(groups: impl Iterator<Item = (u64, &'a str)>, resource: &[u8]) -> usize {
    let resource = rendezvous::hash(resource);
    // By name where two weights are the same, so that the order in which groups come never decides.
    let weights = groups.map(|(hash, name)| (rendezvous::weight(hash, resource), name)).enumerate();
    weights.max_by_key(|(_, weight)| *weight).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn chosen<'a>(groups: &[&'a str], resource: &[u8]) -> &'a str {
        let hashed = groups.iter().map(|name| (rendezvous::hash(name.as_bytes()), *name));
        groups[choose(hashed, resource)]
    }

    fn resources() -> impl Iterator<Item = String> {
        (0..20_000).map(|i| format!("orders/{i}"))
    }

    /// From a second implementation: what deployed processes choose.
    #[test]
    fn no_resource_ever_moves() {
        for (resource, of_two, of_four) in [
            (&b"orders/1"[..], "a", "a"),
            (b"orders/2", "a", "c"),
            (b"orders/42", "b", "d"),
            (b"leader", "b", "b"),
            (b"a", "b", "d"),
            (b"\0\xff", "b", "b"),
        ] {
            assert_eq!(chosen(&["a", "b"], resource), of_two, "{resource:?}");
            assert_eq!(chosen(&["a", "b", "c", "d"], resource), of_four, "{resource:?}");
        }
    }

    #[test]
    fn the_order_of_groups_makes_no_difference() {
        let orders = [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]];
        for resource in resources() {
            let [first, rest @ ..] = orders.map(|order| chosen(&order, resource.as_bytes()));
            assert!(rest.iter().all(|other| *other == first), "{resource}");
        }
        // Also where hashes collide.
        assert_eq!(choose([(7, "a"), (7, "b")].into_iter(), b"r"), 1);
        assert_eq!(choose([(7, "b"), (7, "a")].into_iter(), b"r"), 0);
    }

    /// Within five standard deviations, for names that differ in one character as people give them.
    #[test]
    fn resources_are_spread_evenly() {
        for count in [2, 3, 4, 7, 16] {
            let names: Vec<_> = (1..=count).map(|i| format!("group-{i}")).collect();
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let mut shares: BTreeMap<_, i32> = BTreeMap::new();
            for resource in resources() {
                *shares.entry(chosen(&names, resource.as_bytes())).or_default() += 1;
            }
            let share = 20_000 / count;
            let deviation = (f64::from(share) * (1.0 - 1.0 / f64::from(count))).sqrt();
            assert_eq!(shares.len(), names.len());
            for (name, resources) in shares {
                let off = f64::from((resources - share).abs());
                assert!(off < 5.0 * deviation, "{name} of {count}: {resources}, not {share}");
            }
        }
    }

    #[test]
    fn a_new_group_takes_resources_and_moves_no_other() {
        let (three, four) = (["a", "b", "c"], ["a", "b", "c", "d"]);
        let mut moved = 0;
        for resource in resources() {
            let before = chosen(&three, resource.as_bytes());
            let after = chosen(&four, resource.as_bytes());
            // Read the other way round: a group that is removed leaves its own resources, and no other moves.
            assert!(after == before || after == "d", "{resource}: {before} to {after}");
            moved += u32::from(after != before);
        }
        assert!((4_700..5_300).contains(&moved), "{moved} of 20000 moved to one group of four");
    }
}
