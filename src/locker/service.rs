//! The driver's thread: takes what callers want, turns the loop, and tells them what came of it.
//!
//! It alone touches the engine. A panic in it closes the locker: every lock counts as lost and every wait
//! fails, and the process goes on.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, Weak, mpsc},
    thread,
};

use super::{Acquisition, Handle, Message, Shared, Wish};
use crate::{
    completion::Completion,
    driver::{Driver, clock},
    error::{AcquireError, CloseError, ExtendError, LostReason, ReleaseError},
    guard::{Held, LockGuard},
    proto::{
        engine::{Event, Grant},
        lease::Lease,
        request::{Request, Spec},
        slab::Id,
        time::Time,
    },
};

pub(crate) struct Service {
    shared: Arc<Shared>,
    driver: Driver,
    /// What grants are handed out with. Gone once nobody is left to take them.
    handle: Weak<Handle>,
    /// Who waits for each request, by its slot.
    waiting: Vec<Option<Arc<Acquisition>>>,
    /// Who holds each lease and wants to know of it, by its slot.
    holders: Vec<Option<Holder>>,
    closing: Option<Closing>,
}

#[derive(Debug)]
struct Holder {
    lease: Id<Lease>,
    held: Arc<Held>,
    /// In the order in which the engine settles them.
    extensions: VecDeque<Arc<Completion<Result<Time, ExtendError>>>>,
    release: Option<Arc<Completion<Result<(), ReleaseError>>>>,
}

struct Closing {
    deadline: Time,
    answered: bool,
    answer: Arc<Completion<Result<(), CloseError>>>,
}

impl Service {
    /// Starts the thread.
    pub(crate) fn start(shared: Arc<Shared>, driver: Driver) -> io::Result<Arc<Handle>> {
        let (sender, receiver) = mpsc::channel();
        let service = shared.clone();
        let run = move || {
            let Ok(handle) = receiver.recv() else {
                return;
            };
            Self::new(service, driver, handle).live();
        };
        let join = thread::Builder::new().name("quorlock".into()).spawn(run)?;
        let handle = Arc::new(Handle {
            shared,
            thread: join.thread().id(),
            join: Mutex::new(Some(join)),
            process: std::process::id(),
        });
        // The thread waits for it.
        let _ = sender.send(Arc::downgrade(&handle));
        Ok(handle)
    }

    fn new(shared: Arc<Shared>, driver: Driver, handle: Weak<Handle>) -> Self {
        Self { shared, driver, handle, waiting: Vec::new(), holders: Vec::new(), closing: None }
    }

    fn live(mut self) {
        let lived = catch_unwind(AssertUnwindSafe(|| self.run()));
        let result = lived.map_err(|_| CloseError::Closed);
        self.fail_all();
        self.shared.inbox.close().into_iter().for_each(Message::fail);
        if let Some(closing) = self.closing.take() {
            closing.answer.complete(result.and_then(|unconfirmed| match unconfirmed {
                0 => Ok(()),
                releases => Err(CloseError::Unconfirmed { releases }),
            }));
        }
    }

    /// Until the locker is closed. Returns how many releases are not confirmed then.
    fn run(&mut self) -> usize {
        let mut messages = Vec::new();
        loop {
            self.shared.inbox.take(&mut messages);
            for message in messages.drain(..) {
                self.take(message);
                // At once: a request that failed at once has left its slot to the next one.
                self.tell();
            }
            let deadline = self.closing.as_ref().map(|closing| closing.deadline);
            if self.is_done() {
                return self.driver.engine().releasing();
            }
            let until = if self.shared.inbox.may_sleep() { deadline } else { Some(clock::now()) };
            self.driver.turn(until);
            self.shared.inbox.woke();
            self.tell();
        }
    }

    /// Whether there is nothing more to do before the end.
    fn is_done(&mut self) -> bool {
        let Some(Closing { deadline, answered, .. }) = self.closing else {
            return false;
        };
        self.driver.flush();
        let rest = if answered {
            self.driver.engine().releasing() > 0
        } else {
            self.driver.engine().is_sending()
        };
        !rest || clock::now() >= deadline
    }

    fn take(&mut self, message: Message) {
        let now = clock::now();
        match message {
            Message::Acquire { wish, acquisition } => self.acquire(now, &wish, acquisition),
            Message::Cancel { acquisition } => self.cancel(now, &acquisition),
            Message::Close { deadline, answered, answer } => {
                let closing = Closing { deadline, answered, answer };
                if let Some(earlier) = self.closing.replace(closing) {
                    earlier.answer.complete(Err(CloseError::Closed));
                }
                self.driver.engine().close(now);
            }
            Message::Extend { lease, ttl, node_timeout, answer } => {
                let begun = self.driver.engine().extend(now, lease, ttl, node_timeout);
                match (begun, self.holder(lease)) {
                    (Ok(()), Some(holder)) => holder.extensions.push_back(answer),
                    (Ok(()), None) => answer.complete(Err(ExtendError::Closed)),
                    (Err(error), _) => answer.complete(Err(error)),
                }
            }
            Message::Panic => panic!("asked to"),
            Message::Release { lease, answer } => self.release(now, lease, answer),
            Message::Stats { answer } => answer.complete(self.driver.engine().stats()),
            Message::Votes { lease, answer } => match self.driver.engine().votes(now, lease) {
                Some(votes) => answer.complete(votes),
                None => drop(answer.abandon()),
            },
        }
    }

    fn acquire(&mut self, now: Time, wish: &Wish, acquisition: Arc<Acquisition>) {
        if self.closing.is_some() {
            acquisition.completion.complete(Err(AcquireError::Closed));
            return;
        }
        let spec = Spec {
            resource: &wish.resource,
            ttl: wish.ttl,
            deadline: wish.deadline,
            min_validity: wish.min_validity,
            node_timeout: wish.node_timeout,
            care: wish.care,
            fencing: wish.fencing,
        };
        let id = self.driver.engine().acquire(now, spec);
        let _ = acquisition.request.set(id);
        *place(&mut self.waiting, id.slot()) = Some(acquisition);
    }

    fn cancel(&mut self, now: Time, acquisition: &Acquisition) {
        let Some(&id) = acquisition.request.get() else {
            return;
        };
        // It may have been settled, and its slot used again, since.
        let of_it = |other: &Arc<Acquisition>| std::ptr::eq(&**other, acquisition);
        let waiting = place(&mut self.waiting, id.slot());
        if waiting.as_ref().is_some_and(of_it) {
            *waiting = None;
            self.driver.engine().cancel(now, id);
        }
    }

    fn release(
        &mut self,
        now: Time,
        lease: Id<Lease>,
        answer: Option<Arc<Completion<Result<(), ReleaseError>>>>,
    ) {
        let reported = answer.is_some();
        let Some(holder) = self.holder(lease) else {
            // Closed meanwhile, which has released it.
            if let Some(answer) = answer {
                answer.complete(Err(ReleaseError::Closed));
            }
            return;
        };
        holder.release = answer;
        for extension in holder.extensions.drain(..) {
            extension.complete(Err(ExtendError::Expired));
        }
        self.driver.engine().release(now, lease, reported);
        if !reported {
            self.forget(lease);
        }
    }

    /// Tells callers what was settled.
    fn tell(&mut self) {
        while let Some(event) = self.driver.engine().poll_event() {
            match event {
                Event::Acquired { request, grant } => self.acquired(request, grant),
                Event::NotAcquired { request, error } => {
                    if let Some(acquisition) = place(&mut self.waiting, request.slot()).take() {
                        acquisition.completion.complete(Err(error));
                    }
                }
                Event::Extended { lease, asked_for, result } => {
                    self.extended(lease, asked_for, result);
                }
                Event::Lost { lease, reason } => {
                    if let Some(holder) = self.holder(lease) {
                        holder.held.end(reason);
                    }
                }
                Event::Shortened { lease, until } => {
                    if let Some(holder) = self.holder(lease) {
                        holder.held.set_valid_until(until);
                    }
                }
                Event::Released { lease, result } => {
                    let answer = self.holder(lease).and_then(|holder| holder.release.take());
                    self.forget(lease);
                    if let Some(answer) = answer {
                        answer.complete(result);
                    }
                }
            }
        }
    }

    fn acquired(&mut self, request: Id<Request>, grant: Grant) {
        let lease = grant.lease;
        let acquisition = place(&mut self.waiting, request.slot()).take();
        let (Some(acquisition), Some(handle)) = (acquisition, self.handle.upgrade()) else {
            self.driver.engine().release(clock::now(), lease, false);
            return;
        };
        let held = Arc::new(Held::new(grant.valid_until));
        let holder =
            Holder { lease, held: held.clone(), extensions: VecDeque::new(), release: None };
        *place(&mut self.holders, lease.slot()) = Some(holder);
        // A guard that nobody takes is dropped here, and its release comes as a message.
        acquisition.completion.complete(Ok(LockGuard::new(handle, grant, held)));
    }

    fn extended(&mut self, lease: Id<Lease>, asked_for: bool, result: Result<Time, ExtendError>) {
        let until = self.driver.engine().valid_until(lease);
        let Some(holder) = self.holder(lease) else {
            return;
        };
        holder.held.set_valid_until(until);
        if asked_for {
            if let Some(answer) = holder.extensions.pop_front() {
                answer.complete(result);
            }
        }
    }

    fn holder(&mut self, lease: Id<Lease>) -> Option<&mut Holder> {
        place(&mut self.holders, lease.slot()).as_mut().filter(|holder| holder.lease == lease)
    }

    fn forget(&mut self, lease: Id<Lease>) {
        if self.holder(lease).is_some() {
            *place(&mut self.holders, lease.slot()) = None;
        }
    }

    /// The end: nothing is held and nothing is waited for any more.
    fn fail_all(&mut self) {
        for acquisition in self.waiting.drain(..).flatten() {
            acquisition.completion.complete(Err(AcquireError::Closed));
        }
        for holder in self.holders.drain(..).flatten() {
            holder.held.end(LostReason::Closed);
            for extension in holder.extensions {
                extension.complete(Err(ExtendError::Closed));
            }
            if let Some(release) = holder.release {
                release.complete(Err(ReleaseError::Closed));
            }
        }
    }
}

fn place<T>(slots: &mut Vec<Option<T>>, slot: u32) -> &mut Option<T> {
    let slot = usize::try_from(slot).unwrap_or(usize::MAX);
    if slot >= slots.len() {
        slots.resize_with(slot + 1, || None);
    }
    &mut slots[slot]
}
