//! A locker for one thread: the caller's thread drives the sockets.

use std::{cell::RefCell, fmt, rc::Rc, sync::Arc, time::Duration};

use crate::{
    config::{Builder, Config},
    connect,
    driver::{Driver, IoCounts, clock},
    error::{AcquireError, ConnectError},
    guard::LocalGuard,
    proto::{engine::Event, request::Spec},
    request::LockRequest,
};

/// Locks over N independent masters, driven by the thread that uses them: the lowest latency there is, as
/// nothing is handed to another thread.
///
/// One connection to each node, however many locks are held. Any number of guards may be alive at a time.
/// Work is done only while a method is called: between calls nothing is read, written or reconnected. (A
/// node that is given by name is looked up in a short-lived thread, as looking up blocks.)
///
/// It cannot be sent to another thread, and after a `fork` the child's copy is closed: its acquires fail, and its
/// guards' drops do nothing. Its guards keep it alive; dropping it closes nothing while there are
/// any.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # let servers = quorlock::testing::Servers::start(3)?;
/// # let urls = servers.tcp_urls();
/// use quorlock::LocalLocker;
///
/// let locker = LocalLocker::connect(urls)?;
/// let guard = locker.lock("orders/42").ttl(Duration::from_secs(10)).try_acquire()?;
/// assert!(guard.is_valid());
///
/// // Nobody else gets it meanwhile, and we know who said so.
/// let error = locker.lock("orders/42").try_acquire().unwrap_err();
/// assert!(error.is_contended());
///
/// guard.release()?;
/// assert!(locker.lock("orders/42").try_acquire().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LocalLocker {
    shared: Rc<Shared>,
}

/// What a locker and its guards have in common.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) names: Arc<[Box<str>]>,
    pub(crate) driver: RefCell<Driver>,
}

impl LocalLocker {
    /// Connects to the nodes with default settings. See [`Builder::connect_local`].
    ///
    /// # Errors
    ///
    /// As [`Builder::connect_local`].
    pub fn connect(urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, ConnectError> {
        Builder::new().nodes(urls).connect_local()
    }

    /// A builder, for other than default settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A request for the lock on `resource`: any bytes, 1 to 4096 of them.
    pub fn lock<'a>(&'a self, resource: &'a (impl AsRef<[u8]> + ?Sized)) -> LockRequest<'a, Self> {
        LockRequest::new(self, resource.as_ref())
    }

    /// Waits until every release that is under way was answered by every node it went to, and returns how
    /// many are not.
    ///
    /// A guard that is released or dropped does not wait for the slowest nodes, and need not: what is sent
    /// arrives. Call this before the process ends, so that the system does not discard what it still holds.
    ///
    /// # Blocking
    ///
    /// Until then, at most for `timeout`.
    pub fn flush(&self, timeout: Duration) -> usize {
        let mut driver = self.shared.driver.borrow_mut();
        if driver.is_foreign() {
            return 0;
        }
        driver.resume();
        let deadline = clock::now().after(timeout);
        while driver.engine().releasing() > 0 && clock::now() < deadline {
            driver.turn(Some(deadline));
        }
        driver.engine().releasing()
    }

    /// System calls so far, for tests and benchmarks.
    #[doc(hidden)]
    pub fn io_counts(&self) -> IoCounts {
        self.shared.driver.borrow().counts()
    }

    /// Replies that came too late for anybody, and connections closed for replies that fit nothing.
    #[doc(hidden)]
    pub fn reply_counts(&self) -> (u64, u64) {
        let mut driver = self.shared.driver.borrow_mut();
        let counts = driver.engine().counts();
        (counts.abandoned_replies, counts.protocol_errors)
    }
}

impl LockRequest<'_, LocalLocker> {
    /// One attempt: sends to all nodes, and returns as soon as a quorum has granted the lock, or no longer
    /// can. Never sleeps, and never tries again.
    ///
    /// # Errors
    ///
    /// [`Contended`](AcquireError::Contended), [`NoQuorum`](AcquireError::NoQuorum) and
    /// [`Expired`](AcquireError::Expired), each with what every node said, and
    /// [`InvalidRequest`](AcquireError::InvalidRequest) before anything was sent. Whatever was taken is
    /// released, behind what was sent.
    ///
    /// # Blocking
    ///
    /// For one round trip to the fastest quorum, at most for the node timeout; twice that for a confirmed
    /// [fencing token](LockRequest::fencing).
    pub fn try_acquire(self) -> Result<LocalGuard, AcquireError> {
        let spec = self.single(&self.locker.shared.config);
        self.locker.acquire(spec.map_err(AcquireError::InvalidRequest)?)
    }

    /// Attempts until one succeeds or the request's deadline has come, with random pauses in between. Between
    /// attempts nothing is left behind.
    ///
    /// # Errors
    ///
    /// [`DeadlineExceeded`](AcquireError::DeadlineExceeded) with the last attempt's record,
    /// [`NoQuorum`](AcquireError::NoQuorum) at once if too many nodes need a person's help (refused
    /// credentials, for one), and [`InvalidRequest`](AcquireError::InvalidRequest) before anything was sent.
    ///
    /// # Blocking
    ///
    /// Until then.
    pub fn acquire(self) -> Result<LocalGuard, AcquireError> {
        let now = clock::now();
        let spec = self.repeated(&self.locker.shared.config, now);
        let spec = spec.map_err(AcquireError::InvalidRequest)?;
        if spec.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(AcquireError::DeadlineExceeded(None));
        }
        self.locker.acquire(spec)
    }
}

impl LocalLocker {
    fn acquire(&self, spec: Spec<'_>) -> Result<LocalGuard, AcquireError> {
        let mut driver = self.shared.driver.borrow_mut();
        if driver.is_foreign() {
            return Err(AcquireError::Closed);
        }
        driver.resume();
        let request = driver.engine().acquire(clock::now(), spec);
        let event = driver.run(|event| match event {
            Event::Acquired { request: of, .. } | Event::NotAcquired { request: of, .. } => {
                *of == request
            }
            _ => false,
        });
        drop(driver);
        match event {
            Event::Acquired { grant, .. } => Ok(LocalGuard::new(self.shared.clone(), grant)),
            Event::NotAcquired { error, .. } => Err(error),
            _ => Err(AcquireError::Closed),
        }
    }
}

impl Builder {
    /// Connects to the nodes, for use by this thread.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Config`] before any I/O, [`ConnectError::NoQuorum`] with each node's reason.
    ///
    /// # Blocking
    ///
    /// Until a quorum of nodes is ready, and as long again for the others, at most for the connect timeout.
    /// It ends at once where too many nodes need a person (refused credentials, for one); nodes that refuse
    /// connections may be starting, and are tried again. Nodes that are not ready then are connected to by
    /// later calls.
    pub fn connect_local(self) -> Result<LocalLocker, ConnectError> {
        let config = self.parse()?;
        let (driver, names) = connect::quorum(&config, false)?;
        let driver = RefCell::new(driver);
        Ok(LocalLocker { shared: Rc::new(Shared { config, names, driver }) })
    }
}

impl fmt::Debug for LocalLocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLocker").field("nodes", &self.shared.names).finish()
    }
}
