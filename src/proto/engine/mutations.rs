//! What mutants do that takes more than a line.

use super::Engine;
use crate::{
    config::Drift,
    error::{NodeError, Vote},
    proto::{
        lease::{Lease, Phase},
        node::{NodeId, NodeSet},
        session::{Asked, Command, Session},
        slab::Id,
        time::Time,
        validity::valid_until,
    },
};

impl Engine {
    /// Of the mutant `ReleaseOnNewConnection`.
    pub(super) fn hang_up_on_unanswered(&mut self, now: Time, id: Id<Lease>) {
        for node in self.nodes() {
            if self.session(node).expects_claim(id) {
                self.give_up(now, node, NodeError::Timeout);
            }
        }
    }

    /// Of the mutant `LateReplyCredited`: credits another attempt for the same key.
    pub(super) fn credit_another(
        &mut self,
        now: Time,
        node: NodeId,
        command: Command,
        vote: &Vote,
    ) -> bool {
        let Some(lease) = self.leases.get(command.lease) else {
            return false;
        };
        if !command.verb.is_claim() || lease.awaits(command) {
            return false;
        }
        let other = self.leases.ids().find(|id| {
            self.leases.get(*id).is_some_and(|other| {
                matches!(other.phase, Phase::Claiming { .. }) && other.key == lease.key
            })
        });
        if let Some(other) = other {
            self.credit(now, node, Command { lease: other, ..command }, vote.clone());
        }
        other.is_some()
    }

    /// Of the mutant `ExtendByAny`.
    pub(super) fn any_extended(&self, lease: &Lease) -> bool {
        let granted = |node| matches!(lease.change.vote(node), Vote::Granted);
        matches!(lease.phase, Phase::Extending { .. }) && self.nodes().any(granted)
    }

    /// Of the mutants that leave keys behind.
    pub(super) fn forget_sent(&mut self, id: Id<Lease>) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.sent = NodeSet::default();
        }
    }
}

impl Lease {
    /// Of the mutants that count the validity from too late.
    pub(super) fn count_from(&mut self, now: Time, drift: Drift) {
        self.valid_until = valid_until(now, self.ttl, drift);
    }
}

impl Session {
    /// Of the mutant `ReleaseOnNewConnection`.
    fn expects_claim(&mut self, id: Id<Lease>) -> bool {
        self.expected().iter().any(|expected| is_claim(expected.asked, id))
    }

    /// Of the mutant `AbandonedReplySkipped`.
    pub(super) fn forget(&mut self, id: Id<Lease>) {
        self.expected().retain(|expected| !is_claim(expected.asked, id));
    }
}

fn is_claim(asked: Asked, id: Id<Lease>) -> bool {
    matches!(asked, Asked::Command(command) if command.lease == id && command.verb.is_claim())
}
