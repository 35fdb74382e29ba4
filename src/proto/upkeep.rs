//! When a lock that is kept alive is next to be extended, and for how long.

use std::time::Duration;

use super::{time::Time, validity::Ttl};

/// A caller's wish to have its lock kept alive.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    /// What each extension sets.
    pub ttl: Ttl,
    /// From one extension to the next.
    pub every: Duration,
    /// How long the lock may be held in all.
    pub at_most: Option<Duration>,
}

/// One lock's upkeep.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    upkeep: Upkeep,
    /// Nothing is extended beyond this.
    end: Option<Time>,
    /// None once the end is reached.
    next: Option<Time>,
}

impl Schedule {
    /// `at` is when the attempt began that took the lock.
    pub fn new(upkeep: Upkeep, at: Time) -> Self {
        let end = upkeep.at_most.map(|hold| at.after(hold));
        Self { upkeep, end, next: Some(at.after(upkeep.every)) }
    }

    pub fn next(&self) -> Option<Time> {
        self.next
    }

    /// What to extend by now, if there is any time left before the end.
    pub fn ttl(&mut self, now: Time) -> Option<Ttl> {
        let ttl = match self.end {
            None => Some(self.upkeep.ttl),
            Some(end) => self.upkeep.ttl.cut(end.since(now)),
        };
        if ttl.is_none() {
            self.next = None;
        }
        ttl
    }

    /// The extension that began at `at` is through. One that was cut short was the last.
    pub fn extended(&mut self, at: Time) {
        let more = self.end.is_none_or(|end| at.after(self.upkeep.ttl.duration()) < end);
        self.next = more.then(|| at.after(self.upkeep.every));
    }

    /// It is not; there are several tries in the validity that is left.
    pub fn failed(&mut self, now: Time) {
        let pause = (self.upkeep.every / RETRIES).max(PAUSE_MIN);
        self.next = Some(now.after(pause));
    }
}

/// With a third of the ttl between extensions this leaves some fifteen tries.
const RETRIES: u32 = 8;

const PAUSE_MIN: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Drift;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn at(seconds: u64) -> Time {
        Time::from_nanos(0).after(secs(seconds))
    }

    fn schedule(at_most: Option<Duration>) -> Schedule {
        let ttl = Ttl::parse(secs(9), Drift::default()).unwrap();
        Schedule::new(Upkeep { ttl, every: secs(3), at_most }, at(0))
    }

    #[test]
    fn it_goes_on_from_when_the_last_one_began() {
        let mut schedule = schedule(None);
        assert_eq!(schedule.next(), Some(at(3)));
        schedule.extended(at(3));
        assert_eq!(schedule.next(), Some(at(6)));
        schedule.failed(at(6));
        assert_eq!(schedule.next(), Some(at(6).after(secs(3) / 8)));
    }

    #[test]
    fn the_last_extension_ends_with_the_cap() {
        let mut schedule = schedule(Some(secs(20)));
        let millis = |ttl: Option<Ttl>| ttl.map(Ttl::millis);
        assert_eq!(millis(schedule.ttl(at(3))), Some(9_000));
        schedule.extended(at(3));
        assert_eq!(schedule.next(), Some(at(6)));
        assert_eq!(millis(schedule.ttl(at(12))), Some(8_000));
        schedule.extended(at(12));
        assert_eq!(schedule.next(), None);
        assert_eq!(millis(schedule.ttl(at(20))), None);
    }
}
