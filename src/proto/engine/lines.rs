//! Waiting for a lock that is taken: in line, and with an ear for when it is free.

use std::time::Duration;

use super::{Engine, Event};
use crate::{
    error::AcquireError,
    proto::{
        node::{NodeId, NodeSet},
        notification::Remaining,
        request::{Care, Request},
        session::Question,
        slab::Id,
        time::Time,
    },
};

impl Engine {
    /// Begins a request: at once, or when those before it in line are done.
    pub(super) fn queue(&mut self, now: Time, id: Id<Request>) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        // A locker that is driven by one caller has nobody to stand in line with.
        let in_line = matches!(request.care, Care::Engine { .. });
        let (Some(deadline), true) = (request.deadline, in_line) else {
            return self.attempt(now, id);
        };
        request.in_line = true;
        if self.lines.join(&request.key, id) {
            self.attempt(now, id);
        } else {
            self.requests_due.set(id.slot(), deadline);
        }
    }

    /// A request's time has come: to try again or, not being at the head of its line, to give up.
    pub(super) fn request_due(&mut self, now: Time, id: Id<Request>) {
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let head = self.lines.line(&request.key).and_then(|line| line.head());
        if request.in_line && head != Some(id) {
            self.leave_line(now, id, Duration::ZERO);
            let error = AcquireError::DeadlineExceeded(None);
            self.events.push_back(Event::NotAcquired { request: id, error });
            self.requests.free(id);
        } else {
            self.attempt(now, id);
        }
    }

    /// The request waits no longer. Who is at the head now begins after `pause`.
    pub(super) fn leave_line(&mut self, now: Time, id: Id<Request>, pause: Duration) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        self.requests_due.clear(id.slot());
        if !std::mem::take(&mut request.in_line) {
            return;
        }
        if let Some(head) = self.lines.leave(&request.key, id) {
            // By the timer: one that is refused at once must not have the next one begin within itself.
            let begin = now.after(pause);
            let deadline = self.requests.get(head).and_then(|request| request.deadline);
            self.requests_due.set(head.slot(), deadline.map_or(begin, |last| last.min(begin)));
        }
    }

    /// A lock of ours is given up, or lost: whoever is next in line here need not hear of it from the nodes.
    /// Its `SET` goes out right behind the release.
    pub(super) fn freed_here(&mut self, now: Time, key: &[u8]) {
        let Some(line) = self.lines.line(key) else {
            return;
        };
        let Some(head) = line.head() else {
            return;
        };
        if self.requests.get(head).is_none_or(|request| request.lease.is_some()) {
            return; // It is trying already.
        }
        line.handed += 1;
        if line.handed <= HANDED_MAX {
            self.requests_due.clear(head.slot());
            return self.attempt(now, head);
        }
        // Those who wait in other processes get their chance.
        line.handed = 0;
        let pause = self.tokens.delay(YIELD_MIN, YIELD_MAX);
        self.requests_due.set(head.slot(), now.after(pause));
    }

    /// After a loss: asks the nodes where the key was how long it will be there, and to be told when not.
    pub(super) fn look_out(&mut self, now: Time, id: Id<Request>, taken: NodeSet, failed: usize) {
        let Some(request) = self.requests.get_mut(id).filter(|request| request.in_line) else {
            return;
        };
        request.outlook.begin(taken, failed);
        let question = Question { request: id, attempt: request.attempts };
        let overdue = now.after(self.settings.connect_timeout.max(request.node_timeout));
        for node in taken {
            self.sessions[node.index()].ask_remaining(&request.key, question, overdue);
        }
    }

    pub(super) fn learned(
        &mut self,
        now: Time,
        node: NodeId,
        question: Question,
        remaining: Remaining,
    ) {
        let Some(request) = self.requests.get_mut(question.request) else {
            return;
        };
        if request.attempts != question.attempt {
            return;
        }
        match remaining {
            Remaining::Ends(left) => request.outlook.ends(node, now.after(left + EXPIRY_SLACK)),
            Remaining::Gone => request.outlook.freed(node),
            Remaining::Unknown => {}
        }
        self.reconsider(now, question.request);
    }

    /// A node says that a key has changed, or that all have.
    pub(super) fn invalidated(&mut self, now: Time, node: NodeId, key: Option<&[u8]>) {
        let heads: Vec<_> = match key {
            Some(key) => self.lines.line(key).and_then(|line| line.head()).into_iter().collect(),
            None => self.lines.heads().collect(),
        };
        for head in heads {
            if let Some(request) = self.requests.get_mut(head) {
                request.outlook.freed(node);
                self.reconsider(now, head);
            }
        }
    }

    /// Tries earlier than planned if a quorum may be free by then.
    fn reconsider(&mut self, now: Time, id: Id<Request>) {
        let Some(request) = self.requests.get_mut(id).filter(|request| request.lease.is_none())
        else {
            return;
        };
        let Some(free_at) = request.outlook.free_at(self.quorum) else {
            return;
        };
        let spread = request.spread();
        let begin = free_at.max(now).after(self.tokens.delay(Duration::ZERO, spread));
        if begin < request.retry_at {
            request.woken = true;
            self.requests_due.set(id.slot(), begin);
        }
    }
}

/// How often a lock may go from hand to hand in one process while others wait.
const HANDED_MAX: u8 = 16;

/// Time for others: longer than a round trip in one place, shorter than a pause between attempts.
const YIELD_MIN: Duration = Duration::from_millis(1);
const YIELD_MAX: Duration = Duration::from_millis(5);

/// A key with a millisecond to live is gone a millisecond after the one it ends in.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);
