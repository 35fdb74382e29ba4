//! A locker for a whole service: any number of threads and tasks over one connection to each node.

mod inbox;
mod service;

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread::{JoinHandle, ThreadId},
    time::Duration,
};

use self::inbox::Inbox;
pub(crate) use self::service::Service;
use crate::{
    completion::Completion,
    config::{Builder, Config},
    connect,
    driver::clock,
    error::{AcquireError, Attempt, CloseError, ConnectError, ExtendError, ReleaseError},
    fencing::Fencing,
    future::Acquire,
    guard::{KeepAlive, LockGuard},
    proto::{
        lease::Lease,
        request::{Care, Request},
        slab::Id,
        stats::Stats,
        time::Time,
        validity::Ttl,
    },
    request::LockRequest,
};

/// Locks over N independent masters for a whole service: cloned and shared at will, used from threads and from
/// tasks of any executor.
///
/// One connection to each node and one thread, however many callers and locks there are. What callers want
/// while that thread is at work leaves together: one write to each node.
///
/// A thread that needs no other can have less latency from a [`LocalLocker`](crate::LocalLocker), and more locks
/// per second than one group of servers can give are for a [`ShardedLocker`](crate::ShardedLocker).
///
/// Clones are the same locker. When the last of them and of its guards is dropped, the locker is closed, and
/// waits for a moment (see [`Builder::linger`]) so that queued releases are written. After a `fork` the
/// child's copies are closed: its acquires fail, and its drops do nothing.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # let servers = quorlock::testing::Servers::start(3)?;
/// # let urls = servers.tcp_urls();
/// use quorlock::Locker;
///
/// let locker = Locker::connect(urls)?;
/// let workers: Vec<_> = (0..4)
///     .map(|i| {
///         let locker = locker.clone();
///         std::thread::spawn(move || {
///             let guard = locker.lock(&format!("orders/{i}")).try_acquire()?;
///             guard.release()?;
///             Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
///         })
///     })
///     .collect();
/// for worker in workers {
///     assert!(worker.join().unwrap().is_ok());
/// }
/// locker.close(Duration::from_secs(1))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Locker {
    handle: Arc<Handle>,
}

/// What lockers and guards hold on to. The last one closes the locker.
pub(crate) struct Handle {
    shared: Arc<Shared>,
    thread: ThreadId,
    /// Taken by whoever waits for the thread's end.
    join: Mutex<Option<JoinHandle<()>>>,
    /// In a child of a fork there is no thread, and a lock may be held by nobody.
    process: u32,
}

/// What the driver's thread and the handles have in common.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) inbox: Inbox<Message>,
}

/// What callers want of the driver's thread.
#[derive(Debug)]
pub(crate) enum Message {
    Acquire {
        wish: Wish,
        acquisition: Arc<Acquisition>,
    },
    Cancel {
        acquisition: Arc<Acquisition>,
    },
    Close {
        /// When to stop waiting.
        deadline: Time,
        /// Wait for the nodes' answers, not only until all is written.
        answered: bool,
        answer: Arc<Completion<Result<(), CloseError>>>,
    },
    Extend {
        lease: Id<Lease>,
        ttl: Ttl,
        node_timeout: Duration,
        answer: Arc<Completion<Result<Time, ExtendError>>>,
    },
    /// For the test of what a panic does.
    Panic,
    Stats {
        answer: Arc<Completion<Stats>>,
    },
    Release {
        lease: Id<Lease>,
        answer: Option<Arc<Completion<Result<(), ReleaseError>>>>,
    },
    Votes {
        lease: Id<Lease>,
        answer: Arc<Completion<Votes>>,
    },
}

/// On the lock, and on its latest extension if there was one.
pub(crate) type Votes = (Attempt, Option<Attempt>);

/// A request on its way to another thread.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) resource: Box<[u8]>,
    pub(crate) ttl: Ttl,
    pub(crate) deadline: Option<Time>,
    pub(crate) min_validity: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) care: Care,
    pub(crate) fencing: Fencing,
}

/// A locker that was told to close and is not waited for yet.
#[derive(Debug)]
pub(crate) struct Closing {
    deadline: Time,
    answer: Arc<Completion<Result<(), CloseError>>>,
}

/// A lock that somebody waits for.
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) completion: Completion<Result<LockGuard, AcquireError>>,
    /// Set by the driver's thread when it has begun.
    pub(crate) request: OnceLock<Id<Request>>,
}

impl Locker {
    /// Connects to the nodes with default settings. See [`Builder::connect`].
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`].
    pub fn connect(urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, ConnectError> {
        Builder::new().nodes(urls).connect()
    }

    /// A builder, for other than default settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A request for the lock on `resource`: any bytes, 1 to 4096 of them.
    pub fn lock<'a>(&'a self, resource: &'a (impl AsRef<[u8]> + ?Sized)) -> LockRequest<'a, Self> {
        LockRequest::new(self, resource.as_ref())
    }

    /// Closes the locker, and with it all its clones: whatever is held is lost and released, whatever is waited
    /// for fails. Waits until every release was answered by every node it went to.
    ///
    /// # Errors
    ///
    /// [`CloseError`] says how many releases are not confirmed after `timeout`. They were sent, or are gone
    /// with their connections; the keys' ttl ends them.
    ///
    /// # Blocking
    ///
    /// Until then, at most for `timeout`.
    pub fn close(self, timeout: Duration) -> Result<(), CloseError> {
        self.handle.close(timeout, true)
    }

    /// What the locker has done so far. `None` once it is closed.
    ///
    /// # Blocking
    ///
    /// Until its thread has a moment: microseconds.
    pub fn stats(&self) -> Option<Stats> {
        let answer = Arc::new(Completion::new());
        self.handle.send(Message::Stats { answer: answer.clone() });
        answer.wait()
    }

    #[doc(hidden)]
    pub fn panic_in_driver(&self) {
        self.handle.send(Message::Panic);
    }
}

impl LockRequest<'_, Locker> {
    /// Has the locker extend the lock while it is held.
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        self.keep(keep_alive)
    }

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
    pub fn try_acquire(self) -> Result<LockGuard, AcquireError> {
        self.try_acquire_async().wait()
    }

    /// Attempts until one succeeds or the request's deadline has come: when the nodes say that the lock may be
    /// free, and after random pauses. Between attempts nothing is left behind.
    ///
    /// Requests for one resource are served in order, those of one locker; between lockers there is none.
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
    pub fn acquire(self) -> Result<LockGuard, AcquireError> {
        self.acquire_async().wait()
    }

    /// As [`try_acquire`](Self::try_acquire), as a future.
    pub fn try_acquire_async(self) -> Acquire {
        match self.single(&self.locker.handle.shared.config) {
            Ok(spec) => self.locker.start(spec),
            Err(invalid) => Acquire::failed(AcquireError::InvalidRequest(invalid)),
        }
    }

    /// As [`acquire`](Self::acquire), as a future. The deadline counts from now.
    pub fn acquire_async(self) -> Acquire {
        let now = clock::now();
        match self.repeated(&self.locker.handle.shared.config, now) {
            Ok(spec) if spec.deadline.is_some_and(|deadline| deadline <= now) => {
                Acquire::failed(AcquireError::DeadlineExceeded(None))
            }
            Ok(spec) => self.locker.start(spec),
            Err(invalid) => Acquire::failed(AcquireError::InvalidRequest(invalid)),
        }
    }
}

impl Locker {
    pub(crate) fn open(config: Config) -> Result<Self, ConnectError> {
        let (driver, _) = connect::quorum(&config, config.tracking)?;
        let shared = Arc::new(Shared { config, inbox: Inbox::new(driver.waker()) });
        let handle =
            Service::start(shared, driver).map_err(|error| ConnectError::Io(error.into()))?;
        Ok(Self { handle })
    }

    /// The first half of [`close`](Self::close), for a caller who closes several at a time.
    pub(crate) fn begin_close(&self, timeout: Duration) -> Closing {
        self.handle.begin_close(timeout, true)
    }

    /// The other half.
    pub(crate) fn end_close(&self, closing: &Closing) -> Result<(), CloseError> {
        self.handle.end_close(closing)
    }

    fn start(&self, spec: crate::proto::request::Spec<'_>) -> Acquire {
        let upkeep = match spec.care {
            Care::Engine { upkeep } => upkeep,
            Care::Holder => None,
        };
        let wish = Wish {
            resource: spec.resource.into(),
            ttl: spec.ttl,
            deadline: spec.deadline,
            min_validity: spec.min_validity,
            node_timeout: spec.node_timeout,
            care: Care::Engine { upkeep },
            fencing: spec.fencing,
        };
        let acquisition =
            Arc::new(Acquisition { completion: Completion::new(), request: OnceLock::new() });
        self.handle.send(Message::Acquire { wish, acquisition: acquisition.clone() });
        Acquire::started(self.handle.clone(), acquisition)
    }
}

impl Builder {
    /// Connects to the nodes, and starts the locker's thread.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Config`] before any I/O, [`ConnectError::NoQuorum`] with each node's reason.
    ///
    /// # Blocking
    ///
    /// Until a quorum of nodes is ready, and as long again for the others; at most for the connect timeout,
    /// and no longer than it takes to know that there will be no quorum. Nodes that are not ready then are
    /// connected to as they come.
    pub fn connect(self) -> Result<Locker, ConnectError> {
        Locker::open(self.parse()?)
    }
}

impl Handle {
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Whether this is a copy in a forked child.
    pub(crate) fn is_foreign(&self) -> bool {
        std::process::id() != self.process
    }

    pub(crate) fn send(&self, message: Message) {
        let refused =
            if self.is_foreign() { Err(message) } else { self.shared.inbox.send(message) };
        if let Err(message) = refused {
            message.fail();
        }
    }

    fn close(&self, timeout: Duration, answered: bool) -> Result<(), CloseError> {
        self.end_close(&self.begin_close(timeout, answered))
    }

    fn begin_close(&self, timeout: Duration, answered: bool) -> Closing {
        let answer = Arc::new(Completion::new());
        let deadline = clock::now().after(timeout);
        self.send(Message::Close { deadline, answered, answer: answer.clone() });
        Closing { deadline, answer }
    }

    fn end_close(&self, closing: &Closing) -> Result<(), CloseError> {
        if self.is_foreign() {
            return Err(CloseError::Closed);
        }
        // Beyond the deadline only for as long as it takes the thread to answer.
        let left = closing.deadline.since(clock::now());
        let result = closing.answer.wait_for(left.saturating_add(CLOSE_SLACK));
        let join = self.join.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(join), Some(_)) = (join, &result) {
            // It has answered, and has nothing more to do.
            let _ = join.join();
        }
        result.unwrap_or(Err(CloseError::Closed))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if std::thread::current().id() == self.thread {
            let answer = Arc::new(Completion::new());
            self.send(Message::Close { deadline: clock::now(), answered: false, answer });
        } else {
            // Closed already, or written as far as it could be: nobody is left to tell.
            let _ = self.close(self.shared.config.linger, false);
        }
    }
}

impl Message {
    /// Tells whoever waits that the locker is closed.
    pub(crate) fn fail(self) {
        match self {
            Self::Acquire { acquisition, .. } => {
                acquisition.completion.complete(Err(AcquireError::Closed));
            }
            Self::Close { answer, .. } => answer.complete(Err(CloseError::Closed)),
            Self::Extend { answer, .. } => answer.complete(Err(ExtendError::Closed)),
            Self::Release { answer: Some(answer), .. } => {
                answer.complete(Err(ReleaseError::Closed));
            }
            Self::Stats { answer } => drop(answer.abandon()),
            Self::Votes { answer, .. } => drop(answer.abandon()),
            Self::Cancel { .. } | Self::Panic | Self::Release { answer: None, .. } => {}
        }
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.handle.shared.config.nodes.iter();
        let names: Vec<_> = nodes.map(|node| node.name()).collect();
        f.debug_struct("Locker").field("nodes", &names).finish()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

/// How late the thread may be to say that it has closed.
const CLOSE_SLACK: Duration = Duration::from_millis(100);
