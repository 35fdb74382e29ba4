//! One parallel command to all nodes, and what they vote.
//!
//! Knows no bytes and no connections: it is told of votes, and counts each node's first one.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    node::{NodeId, NodeSet},
    quorum::{Quorum, Tally, Verdict},
    time::Time,
};
use crate::error::{self, NodeError, Vote};

#[derive(Debug)]
pub struct Attempt {
    started: Time,
    deadline: Time,
    votes: SmallVec<[Vote; 7]>,
    /// Invariant: what `votes` adds up to, counting neither what came after the deadline nor `Pending`.
    tally: Tally,
}

impl Attempt {
    /// `started` is a time before the first byte is written.
    pub fn begin(&mut self, nodes: usize, started: Time, deadline: Time) {
        self.started = started;
        self.deadline = deadline;
        self.votes.clear();
        self.votes.resize(nodes, Vote::Pending);
        self.tally = Tally::default();
    }

    pub fn started(&self) -> Time {
        self.started
    }

    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Counts a node's vote; only its first one.
    pub fn cast(&mut self, node: NodeId, vote: Vote) {
        let Some(slot @ Vote::Pending) = self.votes.get_mut(node.index()) else {
            return;
        };
        match vote {
            Vote::Granted => self.tally.granted += 1,
            Vote::Refused => self.tally.refused += 1,
            Vote::Failed(_) | Vote::NotSent(_) | Vote::Unknown(_) => self.tally.failed += 1,
            Vote::Pending => return,
        }
        *slot = vote;
    }

    /// A node that had granted it does not count any more, but votes as given.
    pub fn revoke(&mut self, node: NodeId, vote: Vote) {
        let slot = self.votes.get_mut(node.index());
        if let Some(slot) = slot.filter(|slot| matches!(slot, Vote::Granted)) {
            *slot = Vote::Pending;
            self.tally.granted -= 1;
            self.cast(node, vote);
        }
    }

    /// Who has granted it.
    pub fn granted(&self) -> NodeSet {
        let nodes = NodeId::all(u8::try_from(self.votes.len()).unwrap_or(u8::MAX));
        nodes.filter(|node| matches!(self.vote(*node), Vote::Granted)).collect()
    }

    pub fn is_pending(&self, node: NodeId) -> bool {
        matches!(self.votes.get(node.index()), Some(Vote::Pending))
    }

    pub fn vote(&self, node: NodeId) -> &Vote {
        &self.votes[node.index()]
    }

    /// The deadline has come: whoever has not voted has failed. `sent` tells of whom the command was sent
    /// to, and may yet run.
    pub fn expire(&mut self, nodes: impl Iterator<Item = NodeId>, sent: NodeSet) {
        for node in nodes {
            if sent.contains(node) {
                self.cast(node, Vote::Unknown(NodeError::Timeout));
            } else {
                self.cast(node, Vote::NotSent(NodeError::Timeout));
            }
        }
    }

    pub fn verdict(&self, quorum: Quorum) -> Verdict {
        quorum.verdict(self.tally)
    }

    /// The public record, as of `now`.
    pub fn record(&self, now: Time, number: u32, names: &Arc<[Box<str>]>) -> error::Attempt {
        error::Attempt {
            elapsed: now.since(self.started),
            names: names.clone(),
            number,
            votes: self.votes.clone(),
        }
    }
}

impl Default for Attempt {
    fn default() -> Self {
        let epoch = Time::from_nanos(0);
        Self {
            started: epoch,
            deadline: epoch.after(Duration::ZERO),
            votes: SmallVec::new(),
            tally: Tally::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(nodes: u8) -> (Attempt, Vec<NodeId>) {
        let mut attempt = Attempt::default();
        attempt.begin(usize::from(nodes), Time::from_nanos(0), Time::from_nanos(10));
        (attempt, NodeId::all(nodes).collect())
    }

    #[test]
    fn a_node_has_one_vote() {
        let (mut attempt, nodes) = attempt(3);
        attempt.cast(nodes[0], Vote::Granted);
        attempt.cast(nodes[0], Vote::Granted);
        attempt.cast(nodes[0], Vote::Refused);
        assert_eq!(attempt.verdict(Quorum::of(3)), Verdict::Open);
        attempt.cast(nodes[2], Vote::Granted);
        assert_eq!(attempt.verdict(Quorum::of(3)), Verdict::Won);
    }

    #[test]
    fn at_the_deadline_the_silent_have_failed() {
        let (mut attempt, nodes) = attempt(3);
        attempt.cast(nodes[0], Vote::Granted);
        let mut sent = NodeSet::default();
        sent.insert(nodes[0]);
        sent.insert(nodes[1]);
        attempt.expire(nodes.iter().copied(), sent);
        assert!(matches!(attempt.vote(nodes[0]), Vote::Granted));
        assert!(matches!(attempt.vote(nodes[1]), Vote::Unknown(NodeError::Timeout)));
        assert!(matches!(attempt.vote(nodes[2]), Vote::NotSent(NodeError::Timeout)));
        assert_eq!(attempt.verdict(Quorum::of(3)), Verdict::NoQuorum);
    }
}
