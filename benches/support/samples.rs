//! What was measured, in order, and what is said of it.

use std::time::Duration;

/// Times of the same thing, done again and again.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn sorted(mut self) -> Sorted {
        self.0.sort_unstable();
        assert!(!self.0.is_empty(), "nothing was measured");
        Sorted(self.0)
    }
}

/// At least one time, the shortest first.
#[derive(Clone, Debug)]
pub struct Sorted(Vec<Duration>);

impl Sorted {
    pub fn median(&self) -> Duration {
        self.at(50.0)
    }

    pub fn p99(&self) -> Duration {
        self.at(99.0)
    }

    pub fn at(&self, percent: f64) -> Duration {
        let last = self.0.len() - 1;
        self.0[(last as f64 * percent / 100.0).round() as usize]
    }

    /// Microseconds against percent, for a plot.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let percents = (1..=99).map(f64::from).chain([99.5, 99.9]);
        percents.map(|percent| (micros(self.at(percent)), percent)).collect()
    }
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub fn ratio(time: Duration, to: Duration) -> f64 {
    time.as_secs_f64() / to.as_secs_f64()
}

/// A time and how it compares: `106.2 µs (1.04x)`.
pub fn compared(time: Duration, to: Duration) -> String {
    format!("{:.1} µs ({:.2}x)", micros(time), ratio(time, to))
}
