//! What callers want of the driver's thread, in order. Any number of threads put in, one takes out.
//!
//! The thread is woken only if it sleeps: callers that come while it turns cost no system call, and what they
//! want leaves together.

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use mio::Waker;

#[derive(Debug)]
pub(crate) struct Inbox<M> {
    queue: Mutex<Queue<M>>,
    /// Whether the thread may be asleep, and so must be woken. Set before it looks at the queue for the last
    /// time, and cleared by whoever wakes it.
    asleep: AtomicBool,
    waker: Arc<Waker>,
}

#[derive(Debug)]
struct Queue<M> {
    messages: Vec<M>,
    closed: bool,
}

impl<M> Inbox<M> {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        let queue = Mutex::new(Queue { messages: Vec::new(), closed: false });
        Self { queue, asleep: AtomicBool::new(false), waker }
    }

    /// Gives the message back if nobody will read it.
    pub(crate) fn send(&self, message: M) -> Result<(), M> {
        let mut queue = self.lock();
        if queue.closed {
            return Err(message);
        }
        queue.messages.push(message);
        drop(queue);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // Fails only if the counter behind it is full, and then the thread is awake.
            let _ = self.waker.wake();
        }
        Ok(())
    }

    /// Swaps what has come for an empty buffer.
    pub(crate) fn take(&self, buffer: &mut Vec<M>) {
        buffer.clear();
        mem::swap(&mut self.lock().messages, buffer);
    }

    /// Whether the thread may sleep. If so it will be woken by the next message.
    pub(crate) fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let empty = self.lock().messages.is_empty();
        if !empty {
            self.asleep.store(false, Ordering::SeqCst);
        }
        empty
    }

    pub(crate) fn woke(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Takes no more messages, and gives back those that were not read.
    pub(crate) fn close(&self) -> Vec<M> {
        let mut queue = self.lock();
        queue.closed = true;
        mem::take(&mut queue.messages)
    }

    fn lock(&self) -> MutexGuard<'_, Queue<M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
