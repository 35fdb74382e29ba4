//! Verdicts on attempts to acquire: the only way out of voting, and the only place that hands out a lock.

use std::time::Duration;

use super::{Engine, Event, Grant};
use crate::{
    config::RetryPolicy,
    error::{self, AcquireError},
    proto::{
        command::Verb,
        lease::{Lease, Phase},
        node::{NodeId, NodeSet},
        quorum::Verdict,
        request::Request,
        slab::Id,
        time::Time,
    },
};

impl Engine {
    /// Acts on the verdict, if there is one by now, and on the next one if that is due at once.
    pub(super) fn settle(&mut self, now: Time, id: Id<Lease>) {
        self.propose_again(now, id);
        while let Some((phase, verdict)) = self.verdict(id) {
            match phase {
                Phase::Claiming { request } | Phase::Confirming { request } => {
                    self.settle_claim(now, id, request, verdict);
                }
                Phase::Extending { until } => self.settle_extension(now, id, until, verdict),
                Phase::Held | Phase::Releasing { .. } => self.settle_release(now, id, verdict),
            }
        }
        self.lose_if_denied(now, id);
        self.reap(id);
        self.arm(id);
    }

    /// What is being voted on, once it is decided.
    fn verdict(&self, id: Id<Lease>) -> Option<(Phase, Verdict)> {
        let lease = self.leases.get(id)?;
        let attempt = match lease.phase {
            Phase::Claiming { .. } => &lease.claim,
            // Until the round is decided. If it is lost, those that are left may be enough for another.
            Phase::Confirming { .. } => match lease.change.verdict(self.quorum) {
                Verdict::Won | Verdict::Open => &lease.change,
                Verdict::Contended | Verdict::NoQuorum => &lease.claim,
            },
            Phase::Extending { .. } | Phase::Releasing { reported: true } => &lease.change,
            Phase::Held | Phase::Releasing { reported: false } => return None,
        };
        mutant!(ExtendByAny => if self.any_extended(lease) { return Some((lease.phase, Verdict::Won)) });
        let verdict = match lease.phase {
            // Also by answers to an extension before this one.
            Phase::Extending { .. } if lease.is_denied(self.quorum) => Verdict::Contended,
            _ => attempt.verdict(self.quorum),
        };
        (verdict != Verdict::Open).then_some((lease.phase, verdict))
    }

    /// Sets the lease's timer to what is due next, if it is still there.
    fn arm(&mut self, id: Id<Lease>) {
        match self.leases.get(id).map(Lease::due) {
            Some(Some(due)) => self.leases_due.set(id.slot(), due),
            Some(None) => self.leases_due.clear(id.slot()),
            None => {}
        }
    }

    /// The second round of a fenced lock: the highest count is proposed to the nodes that have granted it. Says whether
    /// there is time for it.
    fn begin_confirmation(&mut self, now: Time, id: Id<Lease>, by: Id<Request>) -> bool {
        let nodes = self.nodes();
        let (Some(lease), Some(request)) = (self.leases.get_mut(id), self.requests.get(by)) else {
            return false;
        };
        // All second rounds of an attempt have one deadline.
        let deadline = match lease.phase {
            Phase::Confirming { .. } => lease.change.deadline(),
            _ => {
                lease.patience = (now.since(lease.claim.started()) * 2).max(PATIENCE_MIN);
                request.attempt_deadline(now).min(lease.valid_until)
            }
        };
        if deadline <= now {
            return false;
        }
        lease.phase = Phase::Confirming { request: by };
        lease.fence.propose(lease.claim.granted());
        let to = lease.begin_change(nodes, Verb::Confirm, now, deadline);
        self.broadcast(now, id, Verb::Confirm, to);
        true
    }

    /// A node that fell silent between the rounds is not waited for if others have granted the lock meanwhile.
    fn propose_again(&mut self, now: Time, id: Id<Lease>) {
        let Some(lease) = self.leases.get(id) else {
            return;
        };
        let Phase::Confirming { request } = lease.phase else {
            return;
        };
        let due = lease.proposes_again_at().is_some_and(|at| at <= now);
        if due && lease.change.verdict(self.quorum) == Verdict::Open {
            self.begin_confirmation(now, id, request);
        }
    }

    fn settle_claim(&mut self, now: Time, id: Id<Lease>, by: Id<Request>, verdict: Verdict) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        let complete = verdict == Verdict::Won && lease.take_fencing_token(self.quorum);
        if verdict == Verdict::Won && !complete && self.begin_confirmation(now, id, by) {
            return;
        }
        let (Some(lease), Some(request)) = (self.leases.get_mut(id), self.requests.get_mut(by))
        else {
            return;
        };
        mutant!(ValidityFromReply => lease.count_from(now, self.settings.drift));
        let attempt = lease.claim.record(now, request.attempts, &self.settings.names);
        for (node, vote) in self.stats.nodes.iter_mut().zip(&attempt.votes) {
            node.count(vote);
        }
        let validity = lease.validity(now);
        let in_time = request.deadline.is_none_or(|deadline| now <= deadline);
        let valid = in_time && !validity.is_zero() && validity >= request.min_validity;
        let valid = valid || mutant!(ExpiredGrant);
        if complete && valid {
            assert!(validity <= lease.ttl.duration(), "more validity than was asked for");
            lease.phase = Phase::Held;
            self.stats.acquired += 1;
            self.stats.waits.add(now.since(request.asked_at));
            let Lease { token, valid_until, fencing_token, .. } = *lease;
            let grant = Grant { lease: id, token, valid_until, fencing_token, attempt };
            self.events.push_back(Event::Acquired { request: by, grant });
            // The next one in line would be refused until this lock is given up.
            let RetryPolicy { min, max } = self.settings.retry;
            let pause = self.tokens.delay(min, max);
            self.leave_line(now, by, pause);
            self.requests.free(by);
            return;
        }
        match verdict {
            Verdict::Won => self.stats.expired += 1,
            Verdict::Contended => self.stats.contended += 1,
            Verdict::NoQuorum | Verdict::Open => self.stats.no_quorum += 1,
        }
        request.lease = None;
        request.elapsed = attempt.elapsed;
        request.misses = if std::mem::take(&mut request.woken) { request.misses + 1 } else { 0 };
        let taken = lease.not_granted(NodeId::all(self.nodes));
        mutant!(NoReleaseAfterLoss => lease.sent = Default::default());
        self.begin_release(now, id, false);
        self.again(now, by, verdict, attempt, taken);
    }

    /// After a lost attempt: another one later, or the end.
    fn again(
        &mut self,
        now: Time,
        id: Id<Request>,
        verdict: Verdict,
        attempt: error::Attempt,
        taken: NodeSet,
    ) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let RetryPolicy { min, max } = self.settings.retry;
        let next = request.next_attempt(now, self.tokens.delay(min, max));
        let hopeless = attempt.permanently_failed() > attempt.votes.len() - attempt.quorum();
        if let (Some(at), false) = (next, hopeless) {
            request.retry_at = at;
            self.requests_due.set(id.slot(), at);
            return self.look_out(now, id, taken, attempt.failed());
        }
        let attempt = Box::new(attempt);
        let error = match verdict {
            _ if request.deadline.is_some() && !hopeless => {
                AcquireError::DeadlineExceeded(Some(attempt))
            }
            Verdict::Won => AcquireError::Expired(attempt),
            Verdict::Contended => AcquireError::Contended(attempt),
            Verdict::NoQuorum | Verdict::Open => AcquireError::NoQuorum(attempt),
        };
        self.events.push_back(Event::NotAcquired { request: id, error });
        self.leave_line(now, id, Duration::ZERO);
        self.requests.free(id);
    }
}

/// Below this a second round is not impatient: a busy machine takes as long.
const PATIENCE_MIN: Duration = Duration::from_millis(1);
