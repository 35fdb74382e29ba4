//! The ways to take a lock, behind one face, so that they can take turns.

use std::{
    error::Error,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use quorlock::{Fencing, LocalGuard, LocalLocker, LockGuard, Locker};

use crate::floor::Floor;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Acquires and releases in turns, one lock at a time.
pub trait Contender {
    fn acquire(&mut self) -> Result<()>;
    fn release(&mut self) -> Result<()>;
}

impl Contender for Floor {
    fn acquire(&mut self) -> Result<()> {
        Ok(self.acquire()?)
    }

    fn release(&mut self) -> Result<()> {
        Ok(self.release()?)
    }
}

pub struct Local {
    pub locker: LocalLocker,
    fencing: Fencing,
    guard: Option<LocalGuard>,
}

impl Local {
    pub fn new(locker: LocalLocker) -> Self {
        Self::fenced(locker, Fencing::Off)
    }

    pub fn fenced(locker: LocalLocker, fencing: Fencing) -> Self {
        Self { locker, fencing, guard: None }
    }
}

impl Contender for Local {
    fn acquire(&mut self) -> Result<()> {
        // Each on a resource of its own: they take turns.
        let resource = match self.fencing {
            Fencing::Off => "local",
            Fencing::OneRoundTrip => "once",
            _ => "twice",
        };
        self.guard = Some(self.locker.lock(resource).fencing(self.fencing).try_acquire()?);
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        Ok(self.guard.take().ok_or("not acquired")?.release()?)
    }
}

pub struct Blocking {
    locker: Locker,
    guard: Option<LockGuard>,
}

impl Blocking {
    pub fn new(locker: Locker) -> Self {
        Self { locker, guard: None }
    }
}

impl Contender for Blocking {
    fn acquire(&mut self) -> Result<()> {
        self.guard = Some(self.locker.lock("blocking").try_acquire()?);
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        Ok(self.guard.take().ok_or("not acquired")?.release()?)
    }
}

/// Futures, on the simplest executor there is.
pub struct Future {
    locker: Locker,
    guard: Option<LockGuard>,
}

impl Future {
    pub fn new(locker: Locker) -> Self {
        Self { locker, guard: None }
    }
}

impl Contender for Future {
    fn acquire(&mut self) -> Result<()> {
        self.guard = Some(block_on(self.locker.lock("future").try_acquire_async())?);
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        Ok(block_on(self.guard.take().ok_or("not acquired")?.release_async())?)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl std::future::Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
