//! A point in time, as the driver's clock gives it.
//!
//! The clock counts time spent in suspend and never jumps; std's `Instant` stops in suspend on Linux
//! (rust-lang/rust#87906), which would let a lock look alive after its keys have expired.

use std::{fmt, time::Duration};

/// Nanoseconds of the driver's clock. Only differences mean anything.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
pub struct Time {
    nanos: u64,
}

impl Time {
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    pub fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Saturates: 584 years are as good as never.
    pub fn after(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos: self.nanos.saturating_add(nanos) }
    }

    pub fn before(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self { nanos: self.nanos.saturating_sub(nanos) }
    }

    /// How long after `earlier` this is; zero where it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.nanos))
    }
}
