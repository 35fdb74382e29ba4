//! A lock held through a `Locker`.

use std::{fmt, sync::Arc, time::Duration};

use super::{Held, LostSignal};
use crate::{
    completion::Completion,
    error::{Attempt, ExtendError, LostReason, ReleaseError},
    fencing::FencingToken,
    future::{Extend, Release},
    locker::{Handle, Message},
    proto::{engine::Grant, lease::Lease, slab::Id, token::Token},
    request::node_timeout,
};

/// A lock held through a [`Locker`](crate::Locker), for use from any thread and any task. Dropping it releases
/// the lock.
///
/// The drop hands the release to the locker's thread and returns at once; it waits for nobody, never panics,
/// and works while a panic unwinds. [`release`](Self::release) is the way to learn what came of it. A guard
/// that is forgotten (`mem::forget`), and one whose process is killed, leaves its keys until their ttl is over.
///
/// # What a guard cannot promise
///
/// [`is_valid`](Self::is_valid) speaks of this machine's clock at that moment. A holder that is paused after
/// asking does not know that its validity ends meanwhile; servers expire keys by their wall clock, which may
/// be set; and a server that was restarted may have forgotten its keys.
#[must_use = "if unused the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    handle: Arc<Handle>,
    lease: Id<Lease>,
    token: Token,
    fencing_token: Option<FencingToken>,
    attempt: Attempt,
    held: Arc<Held>,
    released: bool,
}

impl LockGuard {
    pub(crate) fn new(handle: Arc<Handle>, grant: Grant, held: Arc<Held>) -> Self {
        let Grant { lease, token, fencing_token, attempt, .. } = grant;
        Self { handle, lease, token, fencing_token, attempt, held, released: false }
    }

    /// How long the lock may still be relied on: `ttl - elapsed - drift`, and zero once that is over or the
    /// lock was lost. Computed from our own clock on each call; asks no node.
    pub fn validity(&self) -> Duration {
        self.held.validity()
    }

    /// Whether any validity is left. As [`validity`](Self::validity), a statement about this moment.
    pub fn is_valid(&self) -> bool {
        !self.validity().is_zero()
    }

    /// The signal that says when the lock is lost.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::new(self.held.clone())
    }

    /// Sets the keys' remaining time to `ttl` from now, on the nodes that hold this lock, and returns the new
    /// validity. The ttl is set, not added; a shorter one shortens the lock. Extensions of one lock, also
    /// those by its [`KeepAlive`](crate::KeepAlive), come one after another.
    ///
    /// Keys that are gone are not created again, and after the lock's own deadline nothing is sent at all:
    /// somebody else may have had it in between.
    ///
    /// # Errors
    ///
    /// [`ExtendError::NoQuorum`] leaves the lock as valid as it was (or as valid as a shorter `ttl` makes it)
    /// and says for how long: there is time to try again. [`ExtendError::Lost`] and [`ExtendError::Expired`]
    /// end it. Nothing is released by a failed extension.
    ///
    /// # Blocking
    ///
    /// For one round trip to the fastest quorum, at most for the node timeout or the lock's validity.
    pub fn extend(&self, ttl: Duration) -> Result<Duration, ExtendError> {
        self.extend_async(ttl).wait()
    }

    /// As [`extend`](Self::extend), as a future. Dropping it does not take back what was sent.
    pub fn extend_async(&self, ttl: Duration) -> Extend {
        let config = &self.handle.shared().config;
        let ttl = match config.parse_ttl(ttl) {
            Ok(ttl) => ttl,
            Err(invalid) => return Extend::failed(ExtendError::InvalidRequest(invalid)),
        };
        let (lease, node_timeout) = (self.lease, node_timeout(config, ttl));
        let held = self.held.clone();
        Extend::start(held, |answer| {
            self.handle.send(Message::Extend { lease, ttl, node_timeout, answer })
        })
    }

    /// Releases the lock and waits until a quorum has confirmed it. The other nodes' answers are not waited
    /// for; [`Locker::close`](crate::Locker::close) does that.
    ///
    /// The release is sent whether or not the lock is still valid: it only ever deletes our own token.
    ///
    /// # Errors
    ///
    /// [`ReleaseError::NotHeld`] if the lock was over before: expired, or removed by somebody.
    /// [`ReleaseError::NoQuorum`] if too few nodes answered: the keys there are gone when their ttl is over, or
    /// earlier, as what was queued is still sent.
    ///
    /// # Blocking
    ///
    /// For one round trip to the fastest quorum, at most for the node timeout.
    pub fn release(self) -> Result<(), ReleaseError> {
        self.release_async().wait()
    }

    /// As [`release`](Self::release), as a future. The release is sent whether or not the future is polled.
    pub fn release_async(mut self) -> Release {
        self.released = true;
        self.held.end(LostReason::Released);
        Release::start(self.handle.clone(), self.lease)
    }

    /// The random value that stands in this lock's keys.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The number by which a store can tell this holder from earlier ones, if the request
    /// [asked](crate::LockRequest::fencing) for one. It stays the same when the lock is extended.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }

    /// Who voted what in the attempt that took the lock, and how long it took.
    ///
    /// A node that had not answered when a quorum was there is [`Pending`](crate::Vote::Pending) in it.
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// What the nodes have said by now to this lock, and to its latest extension if there was one: for tests.
    #[doc(hidden)]
    pub fn votes(&self) -> Option<(Attempt, Option<Attempt>)> {
        let answer = Arc::new(Completion::new());
        self.handle.send(Message::Votes { lease: self.lease, answer: answer.clone() });
        answer.wait()
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released && !self.handle.is_foreign() {
            self.held.end(LostReason::Released);
            let message = Message::Release { lease: self.lease, answer: None };
            self.handle.send(message);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("token", &self.token)
            .field("fencing_token", &self.fencing_token)
            .field("validity", &self.validity())
            .field("attempt", &self.attempt)
            .finish()
    }
}
