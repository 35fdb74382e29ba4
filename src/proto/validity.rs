//! How long a lock may be relied on. The only place that takes a drift from a ttl.
//!
//! `validity = ttl - elapsed - drift`, in whole nanoseconds and rounded against ourselves: a fast server
//! clock or a slow one of ours breaks safety, the reverse costs only time (Gray & Cheriton, "Leases",
//! SOSP 1989). The servers' own rounding can only lengthen a key's life.

use std::time::Duration;

use super::time::Time;
use crate::{config::Drift, error::InvalidRequest};

/// The expiry set on the keys, in whole milliseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ttl {
    millis: u64,
}

impl Ttl {
    /// Stands where no ttl was set yet.
    pub const NONE: Self = Self { millis: 0 };

    /// Takes the whole milliseconds of `ttl`, if they are in range and leave something beside the drift.
    pub fn parse(ttl: Duration, drift: Drift) -> Result<Self, InvalidRequest> {
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let parsed = Self { millis };
        let in_range =
            (TTL_MS_MIN..=TTL_MS_MAX).contains(&millis) && ttl <= parsed.duration_ceiling();
        if in_range && allowance(parsed, drift) < parsed.duration() {
            Ok(parsed)
        } else {
            Err(InvalidRequest::Ttl(ttl))
        }
    }

    pub fn millis(self) -> u64 {
        self.millis
    }

    pub fn duration(self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// As much of it as there is time for, if that is worth anything.
    pub fn cut(self, time: Duration) -> Option<Self> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(self.millis);
        (millis >= TTL_MS_MIN).then_some(Self { millis })
    }

    /// What is left of it to rely on, if no time passes at all.
    pub fn validity(self, drift: Drift) -> Duration {
        mutant!(DriftIgnored => return self.duration());
        self.duration().saturating_sub(allowance(self, drift))
    }

    /// 24 h and a fraction of a millisecond is over 24 h.
    fn duration_ceiling(self) -> Duration {
        if self.millis == TTL_MS_MAX {
            self.duration()
        } else {
            Duration::from_millis(self.millis + 1)
        }
    }
}

/// Until when a lock may be relied on whose attempt started, before its first byte was sent, at `started`.
pub fn valid_until(started: Time, ttl: Ttl, drift: Drift) -> Time {
    started.after(ttl.validity(drift))
}

/// How long until a lock with this ttl is over on every node, whosever clock is right.
pub fn surely_over(ttl: Ttl, drift: Drift) -> Duration {
    ttl.duration().saturating_add(allowance(ttl, drift))
}

/// `ttl * ppm`, rounded up, and the constant.
fn allowance(ttl: Ttl, drift: Drift) -> Duration {
    let nanos = u128::from(ttl.millis) * 1_000_000 * u128::from(drift.ppm);
    let nanos = u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos).saturating_add(drift.constant)
}

/// Below this the drift and two network trips leave nothing to work in.
const TTL_MS_MIN: u64 = 10;

/// Servers accept 31 700 years; a lock that nobody can wait out is a mistake.
const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn validity_is_ttl_less_one_percent_and_two_ms() {
        let ttl = Ttl::parse(ms(10_000), Drift::default()).unwrap();
        let started = Time::from_nanos(7);
        assert_eq!(valid_until(started, ttl, Drift::default()).since(started), ms(9_898));
    }

    #[test]
    fn drift_is_rounded_up() {
        let ttl = Ttl::parse(ms(11), Drift::new(1, Duration::ZERO)).unwrap();
        assert_eq!(allowance(ttl, Drift::new(1, Duration::ZERO)), Duration::from_nanos(11));
        let ttl = Ttl::parse(ms(10), Drift::new(1, Duration::ZERO)).unwrap();
        let odd = Drift::new(333_333, Duration::ZERO);
        assert_eq!(allowance(ttl, odd), Duration::from_nanos(3_333_330));
    }

    #[test]
    fn ttl_bounds() {
        for (ttl, fits) in [
            (Duration::ZERO, false),
            (ms(9), false),
            (Duration::from_nanos(9_999_999), false),
            (ms(10), true),
            (Duration::from_micros(10_999), true),
            (ms(TTL_MS_MAX), true),
            (ms(TTL_MS_MAX) + Duration::from_nanos(1), false),
            (ms(TTL_MS_MAX + 1), false),
            (Duration::MAX, false),
        ] {
            assert_eq!(Ttl::parse(ttl, Drift::default()).is_ok(), fits, "{ttl:?}");
        }
    }

    #[test]
    fn a_ttl_must_exceed_the_drift() {
        assert!(Ttl::parse(ms(50), Drift::new(0, ms(50))).is_err());
        assert!(Ttl::parse(ms(51), Drift::new(0, ms(50))).is_ok());
        assert!(Ttl::parse(ms(50), Drift::new(1_000_000, Duration::ZERO)).is_err());
    }

    #[test]
    fn a_fraction_of_a_millisecond_is_cut_off_the_ttl() {
        let ttl = Ttl::parse(Duration::from_micros(10_999), Drift::default()).unwrap();
        assert_eq!(ttl.millis(), 10);
    }
}
