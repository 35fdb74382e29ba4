//! A lock held through a `LocalLocker`.

use std::{cell::Cell, fmt, rc::Rc, time::Duration};

use crate::{
    driver::clock,
    error::{Attempt, ExtendError, ReleaseError},
    fencing::FencingToken,
    local::Shared,
    proto::{
        engine::{Event, Grant},
        lease::Lease,
        slab::Id,
        time::Time,
        token::Token,
    },
    request::node_timeout,
};

/// A lock held through a [`LocalLocker`](crate::LocalLocker). Dropping it releases the lock.
///
/// The drop queues the release and writes it as far as the sockets take it at once; it waits for no reply,
/// never panics, and works while a panic unwinds. [`release`](Self::release) is the way to learn what came of
/// it. A guard that is forgotten (`mem::forget`), and one whose process is killed, leaves its keys until their
/// ttl is over.
///
/// # What a guard cannot promise
///
/// [`is_valid`](Self::is_valid) speaks of this machine's clock at that moment. A holder that is paused after
/// asking does not know that its validity ends meanwhile; servers expire keys by their wall clock, which may
/// be set; and a server that was restarted may have forgotten its keys.
#[must_use = "if unused the lock is released immediately"]
pub struct LocalGuard {
    shared: Rc<Shared>,
    lease: Id<Lease>,
    token: Token,
    valid_until: Cell<Time>,
    fencing_token: Option<FencingToken>,
    attempt: Attempt,
    released: bool,
}

impl LocalGuard {
    pub(crate) fn new(shared: Rc<Shared>, grant: Grant) -> Self {
        let Grant { lease, token, valid_until, fencing_token, attempt } = grant;
        let valid_until = Cell::new(valid_until);
        Self { shared, lease, token, valid_until, fencing_token, attempt, released: false }
    }

    /// How long the lock may still be relied on: `ttl - elapsed - drift`, and zero once that is over.
    ///
    /// Computed from our own clock on each call; asks no node.
    pub fn validity(&self) -> Duration {
        self.valid_until.get().since(clock::now())
    }

    /// Whether any validity is left. As [`validity`](Self::validity), a statement about this moment.
    pub fn is_valid(&self) -> bool {
        !self.validity().is_zero()
    }

    /// Sets the keys' remaining time to `ttl` from now, on the nodes that hold this lock, and returns the new
    /// validity. The ttl is set, not added; a shorter one shortens the lock.
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
        let config = &self.shared.config;
        let ttl = config.parse_ttl(ttl).map_err(ExtendError::InvalidRequest)?;
        if !self.is_valid() {
            return Err(ExtendError::Expired);
        }
        let mut driver = self.shared.driver.borrow_mut();
        if driver.is_foreign() {
            return Err(ExtendError::Closed);
        }
        driver.resume();
        let patience = node_timeout(config, ttl);
        if let Err(error) = driver.engine().extend(clock::now(), self.lease, ttl, patience) {
            // The nodes have denied it since we last heard.
            self.valid_until.set(driver.engine().valid_until(self.lease));
            return Err(error);
        }
        let event = driver
            .run(|event| matches!(event, Event::Extended { lease, .. } if *lease == self.lease));
        self.valid_until.set(driver.engine().valid_until(self.lease));
        match event {
            Event::Extended { result: Ok(_), .. } => Ok(self.validity()),
            Event::Extended { result: Err(error), .. } => Err(error),
            _ => Err(ExtendError::Closed),
        }
    }

    /// Releases the lock and waits until a quorum has confirmed it. The other nodes' answers are not waited
    /// for; [`LocalLocker::flush`](crate::LocalLocker::flush) does that.
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
    pub fn release(mut self) -> Result<(), ReleaseError> {
        self.released = true;
        let mut driver = self.shared.driver.borrow_mut();
        if driver.is_foreign() {
            return Err(ReleaseError::Closed);
        }
        driver.resume();
        driver.engine().release(clock::now(), self.lease, true);
        let event = driver
            .run(|event| matches!(event, Event::Released { lease, .. } if *lease == self.lease));
        match event {
            Event::Released { result, .. } => result,
            _ => Err(ReleaseError::Closed),
        }
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
}

impl Drop for LocalGuard {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        // The driver is in use only if a panic of its own is unwinding through here.
        let driver = self.shared.driver.try_borrow_mut();
        if let Some(mut driver) = driver.ok().filter(|driver| !driver.is_foreign()) {
            driver.engine().release(clock::now(), self.lease, false);
            driver.flush();
        }
    }
}

impl fmt::Debug for LocalGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalGuard")
            .field("token", &self.token)
            .field("fencing_token", &self.fencing_token)
            .field("validity", &self.validity())
            .field("attempt", &self.attempt)
            .finish()
    }
}
