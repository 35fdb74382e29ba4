//! Locks that are held: extended when asked or by schedule, lost, released.

use std::time::Duration;

use super::{Engine, Event};
use crate::{
    error::{ExtendError, LostReason, ReleaseError},
    proto::{
        command::Verb,
        lease::{Lease, Phase},
        quorum::Verdict,
        slab::Id,
        time::Time,
        validity::{Ttl, valid_until},
    },
};

impl Engine {
    /// What the lease's timer stood for is due.
    pub(super) fn lease_due(&mut self, now: Time, id: Id<Lease>) {
        let nodes = self.nodes();
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        match lease.phase {
            Phase::Held if lease.valid_until <= now => self.lose(now, id, LostReason::Expired),
            Phase::Held => self.keep_alive(now, id),
            // There is somebody else to ask: see `propose_again`.
            Phase::Confirming { .. } if now < lease.change.deadline() => {}
            _ => lease.expire(nodes),
        }
        self.settle(now, id);
    }

    fn keep_alive(&mut self, now: Time, id: Id<Lease>) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        let patience = lease.node_timeout;
        if let Some(ttl) = lease.schedule.as_mut().and_then(|schedule| schedule.ttl(now)) {
            self.begin_extension(now, id, ttl, patience, false);
        }
    }

    /// Asks the nodes that hold the lock to let it live longer.
    pub(super) fn begin_extension(
        &mut self,
        now: Time,
        id: Id<Lease>,
        ttl: Ttl,
        node_timeout: Duration,
        asked_for: bool,
    ) {
        let nodes = self.nodes();
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        let until = valid_until(now, ttl, self.settings.drift);
        // A shorter ttl may take effect on nodes whose answers we never see. Whoever relies on the lock is told
        // before the first byte is written.
        if until < lease.valid_until && !mutant!(ShorteningIgnored) {
            lease.valid_until = until;
            if lease.watched {
                self.events.push_back(Event::Shortened { lease: id, until });
            }
        }
        lease.ttl = ttl;
        lease.ttl_min = if ttl.millis() < lease.ttl_min.millis() { ttl } else { lease.ttl_min };
        lease.node_timeout = node_timeout;
        lease.asked_for = asked_for;
        lease.phase = Phase::Extending { until };
        let deadline = now.after(node_timeout).min(lease.valid_until);
        let deadline = if mutant!(ExtendAfterEnd) { now.after(node_timeout) } else { deadline };
        // Of those that are connected: for the others there is the next extension.
        let sessions = &self.sessions;
        let ready = nodes.clone().filter(|node| sessions[node.index()].is_ready());
        let missing = lease.missing(ready);
        let to = lease.begin_change(nodes, Verb::Extend, now, deadline);
        self.broadcast(now, id, Verb::Extend, to);
        if self.settings.repair {
            self.broadcast(now, id, Verb::Repair, missing);
        }
    }

    pub(super) fn settle_extension(
        &mut self,
        now: Time,
        id: Id<Lease>,
        until: Time,
        verdict: Verdict,
    ) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        lease.phase = Phase::Held;
        let attempt = || Box::new(lease.change.record(now, 1, &self.settings.names));
        let denied = lease.is_denied(self.quorum);
        let result = if lease.valid_until <= now && !mutant!(ExtendAfterEnd) {
            // Too late, whatever they say: to go on now would be to hold a lock that was lost in between.
            Err(ExtendError::Expired)
        } else if verdict == Verdict::Won {
            let replied = valid_until(now, lease.ttl, self.settings.drift);
            Ok(if mutant!(ExtensionFromReply) { replied } else { until })
        } else if denied {
            Err(ExtendError::Lost(attempt()))
        } else {
            Err(ExtendError::NoQuorum { attempt: attempt(), validity: lease.validity(now) })
        };
        self.extension_settled(now, id, result);
    }

    /// Acts on an extension's outcome, says it to whom it matters, and begins the next one that waits.
    fn extension_settled(&mut self, now: Time, id: Id<Lease>, result: Result<Time, ExtendError>) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        let asked_for = lease.asked_for;
        let lost = match &result {
            Ok(until) => {
                lease.valid_until = *until;
                lease.let_join();
                None
            }
            Err(ExtendError::Expired) => Some(LostReason::Expired),
            Err(ExtendError::Lost(_)) => Some(LostReason::Refused),
            Err(_) => None,
        };
        if let Some(schedule) = &mut lease.schedule {
            match &result {
                Ok(_) => schedule.extended(lease.change.started()),
                Err(_) => schedule.failed(now),
            }
        }
        match &result {
            Ok(_) => self.stats.extended += 1,
            Err(_) => self.stats.not_extended += 1,
        }
        if asked_for || result.is_ok() {
            self.events.push_back(Event::Extended { lease: id, asked_for, result });
        }
        match lost {
            Some(reason) => self.lose(now, id, reason),
            None => self.next_extension(now, id),
        }
    }

    /// Denials count whenever they come, also in answer to an extension that was given up.
    pub(super) fn lose_if_denied(&mut self, now: Time, id: Id<Lease>) {
        let denied = self.leases.get(id).is_some_and(|lease| {
            let held = lease.phase == Phase::Held && lease.valid_until > now;
            held && lease.is_denied(self.quorum)
        });
        if denied {
            self.lose(now, id, LostReason::Refused);
        }
    }

    fn next_extension(&mut self, now: Time, id: Id<Lease>) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        if let Some((ttl, node_timeout)) = lease.extensions.pop_front() {
            self.begin_extension(now, id, ttl, node_timeout, true);
        }
    }

    /// One way. The keys stay as they are, until the holder has let go.
    fn lose(&mut self, now: Time, id: Id<Lease>, reason: LostReason) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        lease.valid_until = lease.valid_until.min(now);
        lease.schedule = None;
        for _ in lease.extensions.drain(..) {
            let result = Err(ExtendError::Expired);
            self.events.push_back(Event::Extended { lease: id, asked_for: true, result });
        }
        if std::mem::take(&mut lease.watched) {
            self.stats.lost(reason);
            self.events.push_back(Event::Lost { lease: id, reason });
            self.tell_next(now, id);
        }
    }

    /// The locker is being closed: nothing is held or waited for any more.
    pub fn close(&mut self, now: Time) {
        let requests: Vec<_> = self.requests.ids().collect();
        for id in requests {
            self.cancel(now, id);
            let error = crate::error::AcquireError::Closed;
            self.events.push_back(Event::NotAcquired { request: id, error });
        }
        let leases: Vec<_> = self.leases.ids().collect();
        for id in leases {
            self.lose(now, id, LostReason::Closed);
            mutant!(CloseLeavesLocks => self.forget_sent(id));
            self.release(now, id, false);
        }
    }

    /// Sends the release to every node that the `SET` was sent to, answered or not.
    pub(super) fn begin_release(&mut self, now: Time, id: Id<Lease>, reported: bool) {
        mutant!(AbandonedReplySkipped => self.sessions.iter_mut().for_each(|session| session.forget(id)));
        let nodes = self.nodes();
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        let was_held = match lease.phase {
            Phase::Releasing { .. } => return,
            Phase::Claiming { .. } | Phase::Confirming { .. } => false,
            Phase::Held | Phase::Extending { .. } => true,
        };
        lease.phase = Phase::Releasing { reported };
        let deadline = now.after(lease.node_timeout);
        lease.owed = lease.begin_change(nodes, Verb::Release, now, deadline);
        let (to, began) = (lease.owed, lease.claim.started());
        mutant!(ReleaseOnNewConnection => self.hang_up_on_unanswered(now, id));
        self.broadcast(now, id, Verb::Release, to);
        if was_held {
            self.stats.released += 1;
            self.stats.holds.add(now.since(began));
            self.tell_next(now, id);
        }
    }

    /// The lock is free, as far as we are concerned.
    fn tell_next(&mut self, now: Time, id: Id<Lease>) {
        if let Some(lease) = self.leases.get_mut(id) {
            let key = std::mem::take(&mut lease.key);
            self.freed_here(now, &key);
            if let Some(lease) = self.leases.get_mut(id) {
                lease.key = key;
            }
        }
    }

    pub(super) fn settle_release(&mut self, now: Time, id: Id<Lease>, verdict: Verdict) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        lease.phase = Phase::Releasing { reported: false };
        let result = if verdict == Verdict::Won || mutant!(ReleasedByAny) {
            Ok(())
        } else {
            let attempt = Box::new(lease.change.record(now, 1, &self.settings.names));
            Err(if attempt.refused() >= attempt.quorum() {
                ReleaseError::NotHeld(attempt)
            } else {
                ReleaseError::NoQuorum(attempt)
            })
        };
        self.events.push_back(Event::Released { lease: id, result });
    }

    /// Forgets a lease that nobody waits for and no node can hold.
    pub(super) fn reap(&mut self, id: Id<Lease>) {
        let over = self.leases.get(id).is_some_and(|lease| {
            lease.phase == Phase::Releasing { reported: false } && lease.owed.is_empty()
        });
        if over {
            self.leases_due.clear(id.slot());
            self.leases.free(id);
        }
    }
}
