//! One answer on its way from the driver's thread to whoever waits for it, in a thread or as a future.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Completed at most once, and taken at most once.
#[derive(Debug)]
pub(crate) struct Completion<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

#[derive(Debug)]
enum State<T> {
    Pending(Option<Waker>),
    Done(T),
    /// Taken, or no longer wanted.
    Over,
}

impl<T> Completion<T> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::Pending(None)), done: Condvar::new() }
    }

    /// Gives the answer to whoever waits. Where nobody does any more it is dropped.
    pub(crate) fn complete(&self, answer: T) {
        let mut state = self.lock();
        let State::Pending(waker) = &mut *state else {
            drop(state); // The answer's own drop may do anything.
            return;
        };
        let waker = waker.take();
        *state = State::Done(answer);
        drop(state);
        self.done.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Blocks until the answer is there. `None` if it was taken before.
    pub(crate) fn wait(&self) -> Option<T> {
        let pending = |state: &mut State<T>| matches!(state, State::Pending(_));
        let state = self.done.wait_while(self.lock(), pending);
        take(&mut state.unwrap_or_else(PoisonError::into_inner))
    }

    /// Blocks until the answer is there, at most for `timeout`.
    pub(crate) fn wait_for(&self, timeout: Duration) -> Option<T> {
        let pending = |state: &mut State<T>| matches!(state, State::Pending(_));
        let result = self.done.wait_timeout_while(self.lock(), timeout, pending);
        let (mut state, _) = result.unwrap_or_else(PoisonError::into_inner);
        take(&mut state)
    }

    /// `Ready(None)` if the answer was taken before.
    #[allow(clippy::needless_pass_by_ref_mut)] // as `Future::poll` has it
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.lock();
        match &mut *state {
            State::Pending(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
            State::Done(_) | State::Over => Poll::Ready(take(&mut state)),
        }
    }

    /// Nobody waits any more. An answer that was there already is given back.
    pub(crate) fn abandon(&self) -> Abandoned<T> {
        let state = std::mem::replace(&mut *self.lock(), State::Over);
        self.done.notify_all();
        match state {
            State::Pending(_) => Abandoned::Pending,
            State::Done(answer) => Abandoned::Done(answer),
            State::Over => Abandoned::Over,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // A waker that panics leaves the state as it was meant to be.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an abandoned completion had come to.
#[derive(Debug)]
pub(crate) enum Abandoned<T> {
    Done(T),
    Over,
    Pending,
}

fn take<T>(state: &mut State<T>) -> Option<T> {
    match std::mem::replace(state, State::Over) {
        State::Done(answer) => Some(answer),
        pending @ State::Pending(_) => {
            *state = pending;
            None
        }
        State::Over => None,
    }
}
