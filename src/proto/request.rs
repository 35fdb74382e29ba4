//! What a caller asked for: one attempt, or attempts until a deadline.

use std::time::Duration;

use super::{lease::Lease, slab::Id, time::Time, validity::Ttl};
use crate::error;

/// What to acquire, and how.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    pub resource: &'a [u8],
    pub ttl: Ttl,
    /// Until when to try again; without one there is one attempt.
    pub deadline: Option<Time>,
    /// A lock with less than this left when a quorum has answered is not taken.
    pub min_validity: Duration,
    /// What each node is given in each attempt.
    pub node_timeout: Duration,
}

#[derive(Debug)]
pub struct Request {
    pub key: Vec<u8>,
    pub ttl: Ttl,
    pub deadline: Option<Time>,
    pub min_validity: Duration,
    pub node_timeout: Duration,
    /// How many attempts were begun.
    pub attempts: u32,
    /// The attempt under way; none between attempts.
    pub lease: Option<Id<Lease>>,
    /// The record of the last attempt that was settled.
    pub last: Option<Box<error::Attempt>>,
}

impl Request {
    pub fn begin(&mut self, prefix: &[u8], spec: Spec<'_>) {
        self.key.clear();
        self.key.extend_from_slice(prefix);
        self.key.extend_from_slice(spec.resource);
        self.ttl = spec.ttl;
        self.deadline = spec.deadline;
        self.min_validity = spec.min_validity;
        self.node_timeout = spec.node_timeout;
        self.attempts = 0;
        self.lease = None;
        self.last = None;
    }

    /// When an attempt that starts now is settled at the latest.
    pub fn attempt_deadline(&self, now: Time) -> Time {
        let deadline = now.after(self.node_timeout);
        self.deadline.map_or(deadline, |last| last.min(deadline))
    }

    /// When to try again after a pause of `delay`, if there is time for it. The last pause is cut short, so
    /// that the last attempt ends with the deadline.
    pub fn next_attempt(&self, now: Time, delay: Duration) -> Option<Time> {
        let last = self.deadline?.before(self.node_timeout);
        (now < last).then(|| now.after(delay).min(last))
    }
}

impl Default for Request {
    fn default() -> Self {
        Self {
            key: Vec::new(),
            ttl: Ttl::NONE,
            deadline: None,
            min_validity: Duration::ZERO,
            node_timeout: Duration::ZERO,
            attempts: 0,
            lease: None,
            last: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_ends_with_the_deadline() {
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let ms = Duration::from_millis;
        let request =
            Request { deadline: Some(at(1000)), node_timeout: ms(50), ..Request::default() };
        assert_eq!(request.next_attempt(at(0), ms(100)), Some(at(100)));
        assert_eq!(request.next_attempt(at(900), ms(100)), Some(at(950)));
        assert_eq!(request.next_attempt(at(950), ms(100)), None);
        assert_eq!(request.attempt_deadline(at(100)), at(150));
        assert_eq!(request.attempt_deadline(at(980)), at(1000));
        assert_eq!(Request::default().next_attempt(at(0), ms(1)), None, "one attempt");
    }
}
