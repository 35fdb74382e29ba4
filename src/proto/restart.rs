//! Nodes that may have forgotten what they granted: those that were restarted a short while ago.
//!
//! The page of the algorithm asks that a node which crashed stay away until every lock that was live then has expired
//! ("delayed restart"). Servers do not do that, so we do it for them: a node whose process is younger than the
//! longest ttl is asked for no new lock. What it holds is extended and released all the same.
//!
//! A node's age is by our own clock, from what it said of its uptime when it first answered. It speaks of whole
//! seconds of its wall clock, so one of them is not believed; and nothing is, where it claims to be older than the
//! time since another process answered in its place.

use std::time::Duration;

use super::{handshake::Identity, time::Time};
use crate::config::RestartGuard;

/// One node's restarts, as far as they can be seen.
#[derive(Debug)]
pub struct Restarts {
    guard: RestartGuard,
    run_id: Option<Box<str>>,
    /// When that process last answered.
    heard: Time,
    /// How often another process answered than before.
    seen: u64,
    /// How old the process was at the least, and when.
    age: Option<(Duration, Time)>,
}

impl Restarts {
    pub fn new(guard: RestartGuard, now: Time) -> Self {
        Self { guard, run_id: None, heard: now, seen: 0, age: None }
    }

    /// How often another process answered than before.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    pub fn heard(&mut self, now: Time) {
        self.heard = now;
    }

    /// A new connection's first words. Says whether another process answers than before.
    pub fn connected(&mut self, now: Time, identity: &Identity) -> bool {
        let Some(run_id) = &identity.run_id else {
            return false; // It may not say, and is believed.
        };
        let changed = match &self.run_id {
            Some(known) if known == run_id => {
                self.heard(now);
                return false;
            }
            known => known.is_some(),
        };
        let uptime = Duration::from_secs(identity.uptime_secs.unwrap_or(0));
        let mut age = uptime.saturating_sub(PRECISION);
        if changed {
            self.seen += 1;
            if age > now.since(self.heard) {
                age = Duration::ZERO;
            }
        }
        let forgetful = match self.guard {
            RestartGuard::Off => false,
            RestartGuard::AfterChange => self.seen > 0,
            RestartGuard::Always => true,
            RestartGuard::TrustPersisted => !identity.persisted,
        };
        self.age = forgetful.then_some((age, now));
        self.run_id = Some(run_id.clone());
        self.heard(now);
        changed
    }

    /// How long it is still to stay away, where a lock may live for `longest`.
    pub fn stays_away(&self, now: Time, longest: Duration) -> Option<Duration> {
        let (age, then) = self.age?;
        let left = longest.checked_sub(age)?.checked_sub(now.since(then))?;
        (!left.is_zero()).then_some(left)
    }
}

/// Of uptimes: whole seconds of a clock, less whole seconds of a clock.
const PRECISION: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn at(at: u64) -> Time {
        Time::from_nanos(0).after(secs(at))
    }

    fn identity(run_id: &str, uptime: u64) -> Identity {
        Identity { run_id: Some(run_id.into()), uptime_secs: Some(uptime), ..Identity::default() }
    }

    fn watched(guard: RestartGuard) -> Restarts {
        Restarts::new(guard, at(0))
    }

    #[test]
    fn a_fresh_cluster_starts_at_once_unless_told_otherwise() {
        let mut node = watched(RestartGuard::AfterChange);
        node.connected(at(0), &identity("a", 0));
        assert_eq!(node.stays_away(at(0), secs(10)), None);
        let mut node = watched(RestartGuard::Always);
        node.connected(at(0), &identity("a", 0));
        assert_eq!(node.stays_away(at(0), secs(10)), Some(secs(10)));
        assert_eq!(node.stays_away(at(9), secs(10)), Some(secs(1)));
        assert_eq!(node.stays_away(at(10), secs(10)), None);
    }

    #[test]
    fn another_process_stays_away_until_every_lock_of_the_one_before_is_over() {
        let mut node = watched(RestartGuard::AfterChange);
        node.connected(at(0), &identity("a", 1000));
        node.heard(at(50));
        node.connected(at(60), &identity("b", 4));
        assert_eq!(node.seen(), 1);
        // Four seconds may be three.
        assert_eq!(node.stays_away(at(60), secs(10)), Some(secs(7)));
        assert_eq!(node.stays_away(at(67), secs(10)), None);
        // Another connection to the same process makes it no younger and no older.
        node.connected(at(61), &identity("b", 900));
        assert_eq!(node.seen(), 1);
        assert_eq!(node.stays_away(at(61), secs(10)), Some(secs(6)));
        // A longer ttl than was known of before counts from then on.
        assert_eq!(node.stays_away(at(67), secs(20)), Some(secs(10)));
    }

    #[test]
    fn an_uptime_that_cannot_be_true_is_not_believed() {
        let mut node = watched(RestartGuard::AfterChange);
        node.connected(at(0), &identity("a", 1000));
        node.heard(at(50));
        node.connected(at(60), &identity("b", 5000));
        assert_eq!(node.stays_away(at(60), secs(10)), Some(secs(10)));
    }

    #[test]
    fn who_does_not_say_is_believed() {
        let mut node = watched(RestartGuard::Always);
        node.connected(at(0), &Identity::default());
        assert_eq!(node.stays_away(at(0), secs(10)), None);
    }

    #[test]
    fn off_is_off() {
        let mut node = watched(RestartGuard::Off);
        node.connected(at(0), &identity("a", 0));
        node.connected(at(1), &identity("b", 0));
        assert_eq!((node.seen(), node.stays_away(at(1), secs(10))), (1, None));
    }

    #[test]
    fn a_node_that_keeps_its_keys_is_trusted_where_that_is_asked_for() {
        let mut node = watched(RestartGuard::TrustPersisted);
        node.connected(at(0), &Identity { persisted: true, ..identity("a", 0) });
        assert_eq!(node.stays_away(at(0), secs(10)), None);
        node.connected(at(1), &identity("b", 0));
        assert_eq!(node.stays_away(at(1), secs(10)), Some(secs(10)));
    }
}
