//! The one clock.

use rustix::time::{ClockId, clock_gettime};

use crate::proto::time::Time;

/// The time now, by a clock that never jumps and goes on while the machine is suspended, as the servers'
/// clocks do.
pub fn now() -> Time {
    let now = clock_gettime(CLOCK);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Time::from_nanos(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Counts suspended time on macOS; elsewhere the best there is.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

#[cfg(test)]
mod tests {
    #[test]
    fn it_does_not_go_back() {
        let mut last = super::now();
        for _ in 0..1000 {
            let now = super::now();
            assert!(now >= last);
            last = now;
        }
    }
}
