//! One token's life: from the `SET` that goes out to all nodes until no node can hold it any more.
//!
//! Whether the attempt is won or lost, the lease remembers which nodes its `SET` may have reached, and lives
//! until each of them has answered its release.

use std::time::Duration;

use super::{
    attempt::Attempt,
    command::Verb,
    node::{NodeId, NodeSet},
    request::Request,
    session::Command,
    slab::Id,
    time::Time,
    token::Token,
    validity::Ttl,
};
use crate::error::Vote;

#[derive(Debug)]
pub struct Lease {
    pub phase: Phase,
    pub key: Vec<u8>,
    pub token: Token,
    /// The ttl last set, or being set, on the keys.
    pub ttl: Ttl,
    pub node_timeout: Duration,
    /// Until when the lock may be relied on. Never moved forward but by an extension that a quorum granted.
    pub valid_until: Time,
    /// The `SET` and its votes.
    pub claim: Attempt,
    /// The latest extension or release and its votes.
    pub change: Attempt,
    /// Counts the changes: tells late answers to an earlier one from answers to this one.
    pub round: u32,
    /// Where the `SET` was sent to, and may have run or may yet run.
    pub sent: NodeSet,
    /// Where the latest change was sent to.
    pub asked: NodeSet,
    /// Nodes that granted the lock and have said "mine" ever since: only these count for an extension. A
    /// node that once said otherwise stays out, whatever it says later (fencing.md 4.6).
    pub mine: NodeSet,
    /// Nodes that said that another token, or none, is there.
    pub denied: NodeSet,
    /// Nodes whose release is still to be answered.
    pub owed: NodeSet,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// The votes on the `SET` are coming in.
    Claiming {
        request: Id<Request>,
    },
    /// A quorum extends it until `until`, or does not.
    Extending {
        until: Time,
    },
    Held,
    /// Lost, cancelled or released. `reported` if somebody waits to be told of the release.
    Releasing {
        reported: bool,
    },
}

impl Lease {
    /// Starts over with a new token. `deadline` is when the attempt is settled at the latest.
    pub fn begin(
        &mut self,
        id: Id<Request>,
        request: &Request,
        token: Token,
        nodes: usize,
        now: Time,
    ) {
        self.phase = Phase::Claiming { request: id };
        self.key.clear();
        self.key.extend_from_slice(&request.key);
        self.token = token;
        self.ttl = request.ttl;
        self.node_timeout = request.node_timeout;
        self.claim.begin(nodes, now, request.attempt_deadline(now));
        self.round = 0;
        self.sent = NodeSet::default();
        self.asked = NodeSet::default();
        self.mine = NodeSet::default();
        self.denied = NodeSet::default();
        self.owed = NodeSet::default();
    }

    pub fn validity(&self, now: Time) -> Duration {
        self.valid_until.since(now)
    }

    /// Whether a command that was put off is still to be sent.
    pub fn wants(&self, node: NodeId, command: Command) -> bool {
        match command.verb {
            Verb::Acquire => {
                matches!(self.phase, Phase::Claiming { .. }) && self.claim.is_pending(node)
            }
            Verb::Extend => self.is_extending(command.round) && self.change.is_pending(node),
            Verb::Release => self.owed.contains(node),
        }
    }

    /// The command is on its way to the node.
    pub fn mark_sent(&mut self, node: NodeId, verb: Verb) {
        match verb {
            Verb::Acquire => self.sent.insert(node),
            Verb::Extend | Verb::Release => self.asked.insert(node),
        }
    }

    /// Whether an answer still matters to anybody.
    pub fn awaits(&self, command: Command) -> bool {
        match command.verb {
            Verb::Acquire => !matches!(self.phase, Phase::Releasing { .. }),
            Verb::Extend => self.is_extending(command.round),
            Verb::Release => true,
        }
    }

    /// Takes what became of one command on one node, in time or late.
    pub fn credit(&mut self, node: NodeId, command: Command, vote: Vote) {
        match command.verb {
            Verb::Acquire => self.credit_claim(node, vote),
            Verb::Extend => {
                if matches!(vote, Vote::Refused) {
                    self.mine.remove(node);
                    self.denied.insert(node);
                }
                if self.is_extending(command.round) {
                    self.change.cast(node, vote);
                }
            }
            Verb::Release => {
                self.owed.remove(node);
                self.change.cast(node, vote);
            }
        }
    }

    /// A grant that comes after a quorum belongs to the lock. One that comes after a loss belongs to nobody:
    /// the release is right behind it.
    fn credit_claim(&mut self, node: NodeId, vote: Vote) {
        match vote {
            Vote::Granted => self.mine.insert(node),
            Vote::Refused => self.denied.insert(node),
            Vote::NotSent(_) => self.sent.remove(node),
            Vote::Failed(_) | Vote::Pending | Vote::Unknown(_) => {}
        }
        self.claim.cast(node, vote);
    }

    /// The deadline of whatever is being voted on has come.
    pub fn expire(&mut self, nodes: impl Iterator<Item = NodeId>) {
        match self.phase {
            Phase::Claiming { .. } => self.claim.expire(nodes, self.sent),
            Phase::Extending { .. } | Phase::Releasing { .. } => {
                self.change.expire(nodes, self.asked);
            }
            Phase::Held => {}
        }
    }

    /// Starts a change, and gives the nodes to ask: for an extension those that hold the lock or have not
    /// said yet, for a release all that the `SET` may have reached. The others' votes are cast here.
    pub fn begin_change(
        &mut self,
        nodes: impl ExactSizeIterator<Item = NodeId>,
        verb: Verb,
        now: Time,
        deadline: Time,
    ) -> NodeSet {
        self.round += 1;
        self.asked = NodeSet::default();
        self.change.begin(nodes.len(), now, deadline);
        let mut to = NodeSet::default();
        for node in nodes {
            let claim = self.claim.vote(node);
            let ask = match verb {
                Verb::Extend => self.mine.contains(node) || matches!(claim, Vote::Pending),
                Verb::Acquire | Verb::Release => true,
            };
            if ask && self.sent.contains(node) {
                to.insert(node);
            } else if self.denied.contains(node) {
                self.change.cast(node, Vote::Refused);
            } else {
                self.change.cast(node, not_asked(claim));
            }
        }
        to
    }

    fn is_extending(&self, round: u32) -> bool {
        matches!(self.phase, Phase::Extending { .. }) && round == self.round
    }
}

/// The vote of a node that is not asked about a lock it never got.
fn not_asked(claim: &Vote) -> Vote {
    Vote::NotSent(claim.error().cloned().unwrap_or(crate::error::NodeError::Timeout))
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            phase: Phase::Held,
            key: Vec::new(),
            token: Token::NONE,
            ttl: Ttl::NONE,
            node_timeout: Duration::ZERO,
            valid_until: Time::from_nanos(0),
            claim: Attempt::default(),
            change: Attempt::default(),
            round: 0,
            sent: NodeSet::default(),
            asked: NodeSet::default(),
            mine: NodeSet::default(),
            denied: NodeSet::default(),
            owed: NodeSet::default(),
        }
    }
}
