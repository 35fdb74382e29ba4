//! Time: nanoseconds that are true, and clocks that show something else.

/// A true moment, in nanoseconds from the schedule's start.
pub type At = u64;

pub const MS: u64 = 1_000_000;

/// A clock of its own rate. It never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub offset: u64,
    /// How much too fast, in parts per million.
    pub ppm: i64,
}

impl Clock {
    fn rate(self) -> u64 {
        (MILLION + self.ppm) as u64
    }

    pub fn local(self, at: At) -> u64 {
        self.offset + at * self.rate() / MILLION as u64
    }

    /// The first true moment at which the clock shows `local` or more.
    pub fn at(self, local: u64) -> At {
        (local.saturating_sub(self.offset) * MILLION as u64).div_ceil(self.rate())
    }
}

const MILLION: i64 = 1_000_000;

#[test]
fn a_clock_shows_a_moment_when_it_has_come_and_not_before() {
    for ppm in [-100_000, -4_900, 0, 1, 4_900, 100_000] {
        let clock = Clock { offset: 77, ppm };
        for local in [77, 78, 1000, 123_456_789, 5_000_000_000] {
            let at = clock.at(local);
            assert!(clock.local(at) >= local);
            assert!(at == 0 || clock.local(at - 1) < local);
        }
    }
}
