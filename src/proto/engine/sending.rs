//! Commands on their way to the nodes, and what comes back for each.

use super::Engine;
use crate::{
    error::{NodeError, ProtocolError, Vote},
    proto::{
        command::{Ballot, By, Verb, class, encode},
        lease::Lease,
        node::{NodeId, NodeSet},
        request::Request,
        session::{Asked, Command, Delivery, Expected},
        slab::Id,
        time::Time,
        validity::valid_until,
    },
};

/// Whether the node will do it another time: it runs a slow script, loads its data or cannot write to its disk. Or
/// whoever has taken its place will: the key was copied there. (Once the key is over, a replica says so.)
fn is_put_off(vote: &Vote) -> bool {
    let Vote::Failed(NodeError::Server(text)) = vote else {
        return false;
    };
    matches!(class(text.as_bytes()), b"BUSY" | b"LOADING" | b"MISCONF" | b"READONLY")
}

/// Whether the key holds something that no lock's key does.
fn is_of_no_lock(vote: &Vote) -> bool {
    matches!(vote, Vote::Failed(NodeError::Server(text)) if class(text.as_bytes()) == b"WRONGTYPE")
}

impl Engine {
    pub(super) fn attempt(&mut self, now: Time, id: Id<Request>) {
        let nodes = self.nodes();
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let (lease_id, lease) = self.leases.claim();
        lease.begin(id, request, self.tokens.token(), nodes.len(), now);
        lease.valid_until = valid_until(now, request.ttl, self.settings.drift);
        request.attempts += 1;
        self.stats.attempts += 1;
        request.lease = Some(lease_id);
        let verb = lease.claim_verb();
        let command = Command { lease: lease_id, verb, round: lease.round };
        let mut to = NodeSet::default();
        for node in nodes {
            match self.forgetful(now, node) {
                None => to.insert(node),
                Some(error) => self.delivered(node, command, Delivery::Refused(error)),
            }
        }
        self.broadcast(now, lease_id, verb, to);
        self.settle(now, lease_id);
    }

    /// Sends one command to several nodes. It is built once.
    pub(super) fn broadcast(
        &mut self,
        now: Time,
        id: Id<Lease>,
        verb: Verb,
        to: impl Iterator<Item = NodeId>,
    ) {
        let overdue = self.overdue(now, id);
        let Some(lease) = self.leases.get(id) else {
            return;
        };
        let command = Command { lease: id, verb, round: lease.round };
        self.scratch.clear();
        encode(&mut self.scratch, verb, By::Digest, lease.subject());
        for node in to {
            let session = &mut self.sessions[node.index()];
            let delivery = session.deliver(now, &self.scratch, command, overdue);
            self.delivered(node, command, delivery);
        }
    }

    /// Books what became of a command. It may cast a vote: the caller settles.
    pub(super) fn delivered(&mut self, node: NodeId, command: Command, delivery: Delivery) {
        let Some(lease) = self.leases.get_mut(command.lease) else {
            return;
        };
        match delivery {
            Delivery::Sent => lease.mark_sent(node, command.verb),
            Delivery::Owed(error) => lease.change.cast(node, Vote::NotSent(error)),
            Delivery::Parked => {}
            Delivery::Refused(error) => lease.credit(node, command, Vote::NotSent(error)),
        }
    }

    /// Fails where a reply that repeats the start of a token is to somebody else's command, though of the right shape.
    pub(super) fn check(&self, command: Command, ballot: &Ballot) -> Result<(), ProtocolError> {
        let (Ballot::Counted { id, .. } | Ballot::RefusedTo { id }) = ballot else {
            return Ok(());
        };
        match self.leases.get(command.lease) {
            Some(lease) if !lease.token.as_bytes().starts_with(id) => {
                Err(ProtocolError::UnexpectedReply)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn answer(
        &mut self,
        now: Time,
        node: NodeId,
        command: Command,
        by_source: bool,
        ballot: Ballot,
    ) {
        let vote = match ballot {
            Ballot::Failed(_) if mutant!(ErrorIsGrant) => Vote::Granted,
            Ballot::Failed(_) if mutant!(ErrorIsRefusal) => Vote::Refused,
            Ballot::Failed(error) => Vote::Failed(error),
            Ballot::Granted => Vote::Granted,
            Ballot::Counted { count, .. } => self.counted(node, command, count),
            Ballot::NoScript if mutant!(NoScriptIsGrant) => Vote::Granted,
            Ballot::NoScript if by_source => {
                Vote::Failed(NodeError::Server("NOSCRIPT, though the script was sent".into()))
            }
            Ballot::NoScript => return self.send_source(now, node, command),
            Ballot::Refused | Ballot::RefusedTo { .. } => Vote::Refused,
        };
        if command.verb == Verb::Release && is_of_no_lock(&vote) {
            self.stats.nodes[node.index()].not_locks += 1;
        }
        mutant!(LateReplyCredited => if self.credit_another(now, node, command, &vote) { return });
        let Some(lease) = self.leases.get_mut(command.lease) else {
            self.stats.abandoned_replies += 1;
            return;
        };
        if !lease.awaits(command) {
            self.stats.abandoned_replies += 1;
        }
        let works = !matches!(vote, Vote::Failed(_));
        if command.verb == Verb::Release && is_put_off(&vote) && !mutant!(PutOffForgotten) {
            // It has not happened, and is owed until the node works again.
            lease.change.cast(node, vote);
            self.owe(now, node, command);
            return self.session(node).put_off(now);
        }
        self.credit(now, node, command, vote);
        if works && self.session(node).has_parked() {
            self.send_parked(now, node);
        }
    }

    /// The vote of a node that holds the lock, with its fencing counter at `count`. An earlier round may have proposed
    /// less: an answer to that denies nothing.
    fn counted(&mut self, node: NodeId, command: Command, count: u64) -> Vote {
        let Some(lease) = self.leases.get_mut(command.lease) else {
            return Vote::Granted; // Nobody's.
        };
        if command.verb.is_claim() {
            lease.fence.counted(node, count);
        } else if command.round == lease.round && !lease.fence.is_confirmed_by(node, count) {
            return Vote::Refused;
        }
        Vote::Granted
    }

    /// The one fallback, within the deadline of the command it stands for: also where that has passed while
    /// nobody looked.
    fn send_source(&mut self, now: Time, node: NodeId, command: Command) {
        let overdue = self.overdue(now, command.lease);
        if let Some(lease) = self.leases.get_mut(command.lease) {
            lease.mark_settled(node, command.verb);
        }
        let wanted = |lease: &&Lease| lease.wants(node, command) && lease.is_worth(command, now);
        let Some(lease) = self.leases.get(command.lease).filter(wanted) else {
            self.stats.abandoned_replies += 1;
            return;
        };
        self.scratch.clear();
        encode(&mut self.scratch, command.verb, By::Source, lease.subject());
        let session = &mut self.sessions[node.index()];
        match session.send(&self.scratch, command, true, overdue) {
            Ok(()) => self.delivered(node, command, Delivery::Sent),
            Err(error) => self.credit(now, node, command, Vote::NotSent(error)),
        }
    }

    /// The connection died with this unanswered.
    pub(super) fn unanswered(
        &mut self,
        now: Time,
        node: NodeId,
        lost: Expected,
        written: u64,
        error: &NodeError,
    ) {
        let Asked::Command(command) = lost.asked else {
            return; // Nobody relies on it.
        };
        match command.verb {
            Verb::Release => self.owe(now, node, command),
            _ if lost.was_sent(written) && !mutant!(SentForgotten) => {
                self.credit(now, node, command, Vote::Unknown(error.clone()));
            }
            _ => self.credit(now, node, command, Vote::NotSent(error.clone())),
        }
    }

    /// A release that a connection took with it is owed on the next one, unless its `SET` never left.
    pub(super) fn owe(&mut self, now: Time, node: NodeId, command: Command) {
        let Some(lease) = self.leases.get(command.lease) else {
            return;
        };
        if lease.sent.contains(node) && !mutant!(OwedForgotten) {
            let delivery = self.session(node).park(command);
            self.delivered(node, command, delivery);
            self.settle(now, command.lease);
        } else {
            self.credit(now, node, command, Vote::NotSent(NodeError::Closed));
        }
    }

    /// Takes what became of a command, and acts on it.
    pub(super) fn credit(&mut self, now: Time, node: NodeId, command: Command, vote: Vote) {
        if let Some(lease) = self.leases.get_mut(command.lease) {
            lease.credit(node, command, vote);
            self.settle(now, command.lease);
        }
    }

    /// A node that has been silent until then after a command is taken for dead. Not before the attempt has ended and its
    /// release is written: a `SET` that lies in the server's buffer still runs.
    pub(super) fn overdue(&self, now: Time, id: Id<Lease>) -> Time {
        let longest = self.leases.get(id).map(|lease| {
            let rounds = if lease.fence.is_on() { 2 } else { 1 };
            lease.node_timeout.saturating_mul(rounds + 1)
        });
        now.after(self.settings.connect_timeout.max(longest.unwrap_or_default()))
    }
}
