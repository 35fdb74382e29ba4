//! What a caller asked for: one attempt, or attempts until a deadline.

use std::time::Duration;

use super::{
    lease::Lease, node::NodeSet, slab::Id, time::Time, upkeep::Upkeep, validity::Ttl,
    waiting::Outlook,
};
use crate::fencing::Fencing;

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
    /// What is done about the lock once it is held, without being asked.
    pub care: Care,
    pub fencing: Fencing,
}

/// Who looks after a lock that is held.
#[derive(Clone, Copy, Debug, Default)]
pub enum Care {
    /// Its holder alone, by its own clock.
    #[default]
    Holder,
    /// The engine says when it is lost, and keeps it alive if that is wished.
    Engine { upkeep: Option<Upkeep> },
}

#[derive(Debug)]
pub struct Request {
    pub key: Vec<u8>,
    pub ttl: Ttl,
    pub deadline: Option<Time>,
    pub min_validity: Duration,
    pub node_timeout: Duration,
    pub care: Care,
    pub fencing: Fencing,
    /// When the caller asked.
    pub asked_at: Time,
    /// How many attempts were begun.
    pub attempts: u32,
    /// The attempt under way; none between attempts.
    pub lease: Option<Id<Lease>>,
    /// Whether it stands in line for its key.
    pub in_line: bool,
    /// When the next attempt begins if nothing is heard before.
    pub retry_at: Time,
    pub outlook: Outlook,
    /// How long the last attempt took.
    pub elapsed: Duration,
    /// Whether the next attempt was brought forward by what was heard.
    pub woken: bool,
    /// How many such attempts in a row were in vain.
    pub misses: u32,
}

impl Request {
    pub fn begin(&mut self, prefix: &[u8], spec: Spec<'_>, now: Time) {
        self.key.clear();
        self.key.extend_from_slice(prefix);
        self.key.extend_from_slice(spec.resource);
        self.ttl = spec.ttl;
        self.deadline = spec.deadline;
        self.min_validity = spec.min_validity;
        self.node_timeout = spec.node_timeout;
        self.care = spec.care;
        self.fencing = spec.fencing;
        self.asked_at = now;
        self.attempts = 0;
        self.lease = None;
        self.in_line = false;
        self.outlook.begin(NodeSet::default(), 0);
        self.woken = false;
        self.misses = 0;
    }

    /// When an attempt that starts now is settled at the latest.
    pub fn attempt_deadline(&self, now: Time) -> Time {
        let deadline = now.after(self.node_timeout);
        self.deadline.map_or(deadline, |last| last.min(deadline))
    }

    /// Over how long to spread the attempts of those who hear of a free lock together, lest they split the
    /// votes for ever. Nothing for the first time that it is heard of; then twice as long each time.
    pub fn spread(&self) -> Duration {
        match self.misses {
            0 => Duration::ZERO,
            misses => self.elapsed.clamp(SPREAD_MIN, SPREAD_MAX) * (1 << misses.min(5)),
        }
    }

    /// When to try again after a pause of `delay`, if there is time for it. A pause that would leave too little is cut
    /// short: for an attempt with all the time that nodes are given and then, if that was not needed, for one that
    /// is as late as it can be.
    pub fn next_attempt(&self, now: Time, delay: Duration) -> Option<Time> {
        let deadline = self.deadline?;
        let short = (self.elapsed * 2).max(LAST_ATTEMPT_MIN).min(self.node_timeout);
        let lasts = [self.node_timeout, short].map(|length| deadline.before(length));
        let last = lasts.into_iter().find(|last| now < *last)?;
        Some(now.after(delay).min(last))
    }
}

/// What an attempt may take on a busy machine, however fast the one before was.
const LAST_ATTEMPT_MIN: Duration = Duration::from_millis(10);

/// About a round trip, whatever the last attempt took.
const SPREAD_MIN: Duration = Duration::from_micros(100);
const SPREAD_MAX: Duration = Duration::from_millis(10);

impl Default for Request {
    fn default() -> Self {
        Self {
            key: Vec::new(),
            ttl: Ttl::NONE,
            deadline: None,
            min_validity: Duration::ZERO,
            node_timeout: Duration::ZERO,
            care: Care::default(),
            fencing: Fencing::Off,
            asked_at: Time::from_nanos(0),
            attempts: 0,
            lease: None,
            in_line: false,
            retry_at: Time::from_nanos(0),
            outlook: Outlook::default(),
            elapsed: Duration::ZERO,
            woken: false,
            misses: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempts_have_the_time_they_need_and_end_with_the_deadline() {
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let ms = Duration::from_millis;
        let took = |elapsed| Request {
            deadline: Some(at(1000)),
            node_timeout: ms(50),
            elapsed,
            ..Request::default()
        };
        let request = took(ms(50));
        assert_eq!(request.next_attempt(at(0), ms(100)), Some(at(100)));
        assert_eq!(request.next_attempt(at(900), ms(100)), Some(at(950)));
        assert_eq!(request.next_attempt(at(950), ms(100)), None);
        assert_eq!(took(ms(5)).next_attempt(at(930), ms(100)), Some(at(950)));
        assert_eq!(took(ms(5)).next_attempt(at(950), ms(100)), Some(at(990)));
        assert_eq!(took(ms(5)).next_attempt(at(950), ms(10)), Some(at(960)));
        assert_eq!(took(ms(0)).next_attempt(at(989), ms(100)), Some(at(990)));
        assert_eq!(took(ms(0)).next_attempt(at(990), ms(100)), None);
        assert_eq!(request.attempt_deadline(at(100)), at(150));
        assert_eq!(request.attempt_deadline(at(980)), at(1000));
        assert_eq!(Request::default().next_attempt(at(0), ms(1)), None, "one attempt");
    }
}
