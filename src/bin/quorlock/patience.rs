//! How long to wait for a lock, and how to pass the time: in pauses that a signal ends.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::signals::{Event, suspend_ourselves};

/// One wait, from its first attempt to its last.
pub(crate) struct Patience<'a> {
    /// Where wakers knock.
    sender: Sender<Event>,
    events: &'a Receiver<Event>,
    /// `None` is never.
    deadline: Option<Instant>,
    /// The longest that the next pause can be.
    pause_max: Duration,
}

/// What a pause ended with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rest {
    /// Try again.
    Again,
    /// The wait is over.
    Over,
    /// Somebody wants us to leave.
    Signalled(Signal),
}

impl<'a> Patience<'a> {
    /// `wait` is `None` for ever, and zero for one attempt.
    pub(crate) fn new(
        wait: Option<Duration>,
        sender: Sender<Event>,
        events: &'a Receiver<Event>,
    ) -> Self {
        // A deadline beyond the clock's range is none.
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
        Self { sender, events, deadline, pause_max: PAUSE_FIRST }
    }

    /// What is left of the wait; `None` is no end of it.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether we were asked to leave meanwhile.
    pub(crate) fn signalled(&self) -> Option<Signal> {
        self.events.try_iter().find_map(leave)
    }

    /// After connecting failed. Each pause may be twice as long as the one before: servers that are starting are
    /// caught early, and those that stay away are asked seldom.
    pub(crate) fn rest(&mut self) -> Rest {
        if let Some(signal) = self.signalled() {
            return Rest::Signalled(signal);
        }
        let left = self.left().unwrap_or(Duration::MAX);
        if left.is_zero() {
            return Rest::Over;
        }
        let pause = jittered(self.pause_max).min(left);
        self.pause_max = (self.pause_max * 2).min(PAUSE_MAX);
        self.sleep(Instant::now() + pause)
    }

    /// Waits for a future, unless a signal ends the wait before it.
    pub(crate) fn wait_for<F: Future>(&self, future: F) -> Result<F::Output, Signal> {
        let waker = Waker::from(Arc::new(Knock(self.sender.clone())));
        let mut future = pin!(future);
        loop {
            let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(output) = poll {
                return Ok(output);
            }
            // Never fails: we hold a sender ourselves.
            if let Some(signal) = self.events.recv().ok().and_then(leave) {
                return Err(signal);
            }
        }
    }

    fn sleep(&self, until: Instant) -> Rest {
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => match leave(event) {
                    Some(signal) => return Rest::Signalled(signal),
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => return Rest::Again,
                // The thread that listens for signals never ends, so this one holds a sender.
                Err(RecvTimeoutError::Disconnected) => return Rest::Over,
            }
        }
    }
}

/// A waker that is one more event in the channel.
struct Knock(Sender<Event>);

impl Wake for Knock {
    fn wake(self: Arc<Self>) {
        // Fails only where nobody waits any more.
        let _ = self.0.send(Event::Woken);
    }
}

/// The signal that ends the wait, if this is one. Nothing is held here, so we may be suspended and continued.
fn leave(event: Event) -> Option<Signal> {
    match event {
        Event::Signal(Signal::TSTP) => {
            suspend_ourselves();
            None
        }
        Event::Signal(Signal::CONT) => None,
        Event::Signal(signal) => Some(signal),
        Event::ChildEnded | Event::ChildSuspended | Event::Lost(_) | Event::Woken => None,
    }
}

/// From a fifth of `max` to all of it: 50 to 250 ms where it is longest.
fn jittered(max: Duration) -> Duration {
    let least = max / 5;
    // Without randomness from the system we would not have come here; the middle does as well.
    let drawn = getrandom::u32().unwrap_or(u32::MAX / 2);
    least + (max - least).mul_f64(f64::from(drawn) / f64::from(u32::MAX))
}

const PAUSE_FIRST: Duration = Duration::from_millis(8);

/// Shorter than a person notices.
const PAUSE_MAX: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn pauses_grow_and_stay_within_bounds() {
        for _ in 0..1000 {
            let pause = jittered(PAUSE_MAX);
            assert!((PAUSE_MAX / 5..=PAUSE_MAX).contains(&pause), "{pause:?}");
        }
        let (sender, events) = channel();
        let mut patience = Patience::new(None, sender, &events);
        for _ in 0..4 {
            assert_eq!(patience.rest(), Rest::Again);
        }
        assert_eq!(patience.pause_max, PAUSE_FIRST * 16);
    }

    #[test]
    fn a_wait_of_zero_is_over_after_its_first_attempt() {
        let (sender, events) = channel();
        assert_eq!(Patience::new(Some(Duration::ZERO), sender, &events).rest(), Rest::Over);
    }

    #[test]
    fn a_signal_ends_a_pause_and_being_continued_does_not() {
        let (sender, events) = channel();
        sender.send(Event::Signal(Signal::CONT)).unwrap();
        sender.send(Event::Signal(Signal::TERM)).unwrap();
        let mut patience = Patience::new(None, sender, &events);
        assert_eq!(patience.rest(), Rest::Signalled(Signal::TERM));
    }
}
