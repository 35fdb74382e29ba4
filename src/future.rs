//! What a locker does in the background, as futures of any executor. Blocking calls are the same, waited for.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    completion::{Abandoned, Completion},
    error::{AcquireError, ExtendError, ReleaseError},
    guard::{Held, LockGuard},
    locker::{Acquisition, Handle, Message},
    proto::{lease::Lease, slab::Id, time::Time},
};

/// A lock being acquired, by [`acquire_async`](crate::LockRequest::acquire_async) or
/// [`try_acquire_async`](crate::LockRequest::try_acquire_async).
///
/// Works on any executor, and needs none: what it waits for is done by the locker's thread. It is under way
/// from the moment it was made, polled or not.
///
/// # Cancel safety
///
/// Dropping it cancels the acquisition. Whatever was taken, on however many nodes, is released behind what was
/// sent; the drop itself waits for nobody.
#[derive(Debug)]
#[must_use = "dropping it cancels the acquisition"]
pub struct Acquire {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Refused before anything was sent. `None` once taken.
    Failed(Option<AcquireError>),
    Started {
        handle: Arc<Handle>,
        acquisition: Arc<Acquisition>,
    },
}

/// A lock being extended, by [`LockGuard::extend_async`].
///
/// # Cancel safety
///
/// Dropping it takes nothing back: the lock may be extended all the same.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Extend {
    answer: Result<Arc<Completion<Result<Time, ExtendError>>>, Option<ExtendError>>,
    held: Option<Arc<Held>>,
}

/// A lock being released, by [`LockGuard::release_async`].
///
/// # Cancel safety
///
/// Dropping it takes nothing back: the lock is released all the same.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Release {
    /// Keeps the locker from being closed before it has answered.
    _handle: Arc<Handle>,
    answer: Arc<Completion<Result<(), ReleaseError>>>,
}

impl Acquire {
    pub(crate) fn failed(error: AcquireError) -> Self {
        Self { state: State::Failed(Some(error)) }
    }

    pub(crate) fn started(handle: Arc<Handle>, acquisition: Arc<Acquisition>) -> Self {
        Self { state: State::Started { handle, acquisition } }
    }

    pub(crate) fn wait(mut self) -> Result<LockGuard, AcquireError> {
        match &mut self.state {
            State::Failed(error) => Err(error.take().unwrap_or(AcquireError::Closed)),
            State::Started { acquisition, .. } => {
                acquisition.completion.wait().unwrap_or(Err(AcquireError::Closed))
            }
        }
    }
}

impl Future for Acquire {
    type Output = Result<LockGuard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            State::Failed(error) => Poll::Ready(Err(error.take().unwrap_or(AcquireError::Closed))),
            State::Started { acquisition, .. } => acquisition
                .completion
                .poll(context)
                .map(|answer| answer.unwrap_or(Err(AcquireError::Closed))),
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let State::Started { handle, acquisition } = &self.state else {
            return;
        };
        match acquisition.completion.abandon() {
            // A guard that came and was not taken is dropped here, and with it the lock.
            Abandoned::Done(_) | Abandoned::Over => {}
            Abandoned::Pending => handle.send(Message::Cancel { acquisition: acquisition.clone() }),
        }
    }
}

impl Extend {
    pub(crate) fn failed(error: ExtendError) -> Self {
        Self { answer: Err(Some(error)), held: None }
    }

    pub(crate) fn start(
        held: Arc<Held>,
        send: impl FnOnce(Arc<Completion<Result<Time, ExtendError>>>),
    ) -> Self {
        let answer = Arc::new(Completion::new());
        send(answer.clone());
        Self { answer: Ok(answer), held: Some(held) }
    }

    pub(crate) fn wait(mut self) -> Result<Duration, ExtendError> {
        let answer = match &mut self.answer {
            Ok(answer) => answer.wait().unwrap_or(Err(ExtendError::Closed)),
            Err(error) => Err(error.take().unwrap_or(ExtendError::Closed)),
        };
        answer.map(|_| self.validity())
    }

    fn validity(&self) -> Duration {
        self.held.as_ref().map_or(Duration::ZERO, |held| held.validity())
    }
}

impl Future for Extend {
    type Output = Result<Duration, ExtendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.answer {
            Ok(answer) => match answer.poll(context) {
                Poll::Ready(answer) => answer.unwrap_or(Err(ExtendError::Closed)),
                Poll::Pending => return Poll::Pending,
            },
            Err(error) => Err(error.take().unwrap_or(ExtendError::Closed)),
        };
        Poll::Ready(answer.map(|_| self.validity()))
    }
}

impl Release {
    pub(crate) fn start(handle: Arc<Handle>, lease: Id<Lease>) -> Self {
        let answer = Arc::new(Completion::new());
        handle.send(Message::Release { lease, answer: Some(answer.clone()) });
        Self { _handle: handle, answer }
    }

    pub(crate) fn wait(self) -> Result<(), ReleaseError> {
        self.answer.wait().unwrap_or(Err(ReleaseError::Closed))
    }
}

impl Future for Release {
    type Output = Result<(), ReleaseError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.poll(context).map(|answer| answer.unwrap_or(Err(ReleaseError::Closed)))
    }
}
