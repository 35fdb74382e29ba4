//! The signal that a lock can no longer be relied on.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crate::{driver::clock, error::LostReason, proto::time::Time};

/// Tells when a lock is lost: once, and for good.
///
/// That is at the earliest of: its validity is over by our own clock, a quorum of nodes says that it does not
/// hold it, it was released, or the locker was closed or failed. It needs no reply from anybody: with every
/// node out of reach it fires when the validity ends.
///
/// Clones tell of the same lock, and outlive its guard.
#[derive(Clone, Debug)]
pub struct LostSignal {
    held: Arc<Held>,
}

/// A future for a lock's loss, by [`LostSignal::lost`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Lost {
    held: Arc<Held>,
}

/// A held lock, as its guard, its signals and the driver's thread share it.
#[derive(Debug)]
pub(crate) struct Held {
    /// In the clock's nanoseconds. Only ever read as a promise: it is lowered before, and raised after, the
    /// nodes agree.
    valid_until: AtomicU64,
    end: Mutex<End>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct End {
    reason: Option<LostReason>,
    wakers: Vec<Waker>,
}

impl LostSignal {
    pub(crate) fn new(held: Arc<Held>) -> Self {
        Self { held }
    }

    /// Whether the lock is lost by now.
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Why it is lost, if it is.
    pub fn reason(&self) -> Option<LostReason> {
        self.held.reason()
    }

    /// Waits until the lock is lost.
    ///
    /// # Blocking
    ///
    /// Until then.
    pub fn wait(&self) -> LostReason {
        loop {
            if let Some(reason) = self.held.wait(None) {
                return reason;
            }
        }
    }

    /// Waits until the lock is lost, or until `deadline`: then it returns `None`.
    ///
    /// # Blocking
    ///
    /// Until then.
    pub fn wait_until(&self, deadline: Instant) -> Option<LostReason> {
        loop {
            let reason = self.held.wait(Some(deadline));
            if reason.is_some() || Instant::now() >= deadline {
                return reason;
            }
        }
    }

    /// A future that is ready when the lock is lost. Works on any executor.
    pub fn lost(&self) -> Lost {
        Lost { held: self.held.clone() }
    }
}

impl Future for Lost {
    type Output = LostReason;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LostReason> {
        self.held.poll(context)
    }
}

impl Held {
    pub(crate) fn new(valid_until: Time) -> Self {
        Self {
            valid_until: AtomicU64::new(valid_until.as_nanos()),
            end: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// Zero once it is lost, for whatever reason.
    pub(crate) fn validity(&self) -> Duration {
        self.valid_until().since(clock::now())
    }

    pub(crate) fn reason(&self) -> Option<LostReason> {
        self.ended(&mut self.lock())
    }

    /// By the driver's thread, which knows.
    pub(crate) fn set_valid_until(&self, until: Time) {
        let end = self.lock();
        if end.reason.is_none() {
            self.valid_until.store(until.as_nanos(), Ordering::SeqCst);
        }
    }

    /// Ends it, unless it has ended before.
    pub(crate) fn end(&self, reason: LostReason) {
        let mut end = self.lock();
        if end.reason.is_none() {
            end.reason = Some(reason);
            self.valid_until.store(0, Ordering::SeqCst);
        }
        let wakers = std::mem::take(&mut end.wakers);
        drop(end);
        self.ended.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// One wait, for an end or until something changes.
    fn wait(&self, deadline: Option<Instant>) -> Option<LostReason> {
        let mut end = self.lock();
        if let Some(reason) = self.ended(&mut end) {
            return Some(reason);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // By our own clock, should the driver be late.
        let timeout = self.validity().min(left.unwrap_or(Duration::MAX));
        let result = self.ended.wait_timeout(end, timeout);
        let (mut end, _) = result.unwrap_or_else(PoisonError::into_inner);
        self.ended(&mut end)
    }

    /// Woken by the driver's thread alone: whoever polls has no clock of ours.
    #[allow(clippy::needless_pass_by_ref_mut)] // as `Future::poll` has it
    fn poll(&self, context: &mut Context<'_>) -> Poll<LostReason> {
        let mut end = self.lock();
        if let Some(reason) = self.ended(&mut end) {
            return Poll::Ready(reason);
        }
        if !end.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            end.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// A validity that has passed has ended it, whether or not anybody has said so.
    fn ended(&self, end: &mut End) -> Option<LostReason> {
        if end.reason.is_none() && self.validity().is_zero() {
            end.reason = Some(LostReason::Expired);
            self.valid_until.store(0, Ordering::SeqCst);
        }
        end.reason
    }

    fn valid_until(&self) -> Time {
        Time::from_nanos(self.valid_until.load(Ordering::SeqCst))
    }

    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
