//! Which fencing token an attempt may take. The only place that makes one.
//!
//! Every node counts the locks that it grants for a key. Rule R: an attempt may take a number only if, on each node of
//! a quorum, there was an instant at which the key held the attempt's token *and* the counter stood at exactly that
//! number. Two quorums share a node, and no node counts twice to one number, so no two attempts take the same; and one
//! that began after the other was through takes a higher one.
//!
//! A [confirmed](Fencing::Confirmed) token is taken after a second round, which goes only to nodes whose grants were
//! read before. So the attempt held all of these at the instant between the rounds, and tokens are in the order of
//! these instants. Without it a slow attempt may take a low token after a fast one took a high one, and really hold
//! its quorum.
//!
//! All of this is independent of time, and fails if a counter ever goes back: hence the clock in `acquire_fenced.lua`.
//! `tests/fencing_model` searches every order of events for a counterexample.

use smallvec::SmallVec;

use super::{
    node::{NodeId, NodeSet},
    quorum::Quorum,
};
use crate::fencing::{Fencing, FencingToken};

/// Tokens fit into a double, which is what Lua counts with.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Fence {
    mode: Fencing,
    /// What each node counted with its grant; zero for a node that has granted nothing.
    counts: SmallVec<[u64; 7]>,
    /// The number to be confirmed; zero before the second round.
    proposed: u64,
    /// Who may confirm it.
    members: NodeSet,
}

impl Fence {
    pub fn begin(&mut self, mode: Fencing, nodes: usize) {
        self.mode = mode;
        self.counts.clear();
        if mode != Fencing::Off {
            self.counts.resize(nodes, 0);
        }
        self.proposed = 0;
        self.members = NodeSet::default();
    }

    pub fn is_on(&self) -> bool {
        self.mode != Fencing::Off
    }

    /// The node granted the lock, with its counter at `count`, from 1.
    pub fn counted(&mut self, node: NodeId, count: u64) {
        if let Some(slot) = self.counts.get_mut(node.index()) {
            *slot = count;
        }
    }

    /// The token, if it can be had without a second round, and the nodes that stand for it. `granted` are the nodes
    /// whose grants count.
    pub fn at_once(&self, granted: NodeSet, quorum: Quorum) -> Option<(FencingToken, NodeSet)> {
        if self.mode != Fencing::OneRoundTrip && !mutant!(ConfirmationSkipped) {
            return None;
        }
        let highest = self.highest(granted)?;
        mutant!(CountedByOne => return Some((FencingToken::new(highest), granted)));
        let agreeing: NodeSet = granted.filter(|node| self.count(*node) == highest).collect();
        quorum.is_met_by(agreeing).then_some((FencingToken::new(highest), agreeing))
    }

    /// Begins a second round, or another one after that was lost: proposes the highest count to those that have
    /// `granted` the lock by now. Never less than before: counters were raised to that.
    pub fn propose(&mut self, granted: NodeSet) {
        self.members = granted;
        mutant!(AnyNodeConfirms => for node in NodeId::all(15).take(self.counts.len()) {
            self.members.insert(node);
        });
        self.proposed = self.highest(granted).unwrap_or(0).max(self.proposed);
    }

    /// What the second round proposes.
    pub fn proposed(&self) -> u64 {
        self.proposed
    }

    /// Who is asked to confirm it.
    pub fn members(&self) -> NodeSet {
        self.members
    }

    /// Whether a node that still holds the lock, with its counter at `count`, confirms the proposal.
    pub fn is_confirmed_by(&self, node: NodeId, count: u64) -> bool {
        mutant!(AnyNodeConfirms => return true);
        self.members.contains(node) && count == self.proposed
    }

    /// The token, once a second round's quorum has confirmed it.
    pub fn confirmed(&self, by: NodeSet, quorum: Quorum) -> Option<FencingToken> {
        mutant!(LowestCountTaken => {
            let lowest = by.map(|node| self.count(node)).min().unwrap_or(0);
            return quorum.is_met_by(by).then_some(FencingToken::new(lowest));
        });
        quorum.is_met_by(by).then_some(FencingToken::new(self.proposed))
    }

    fn highest(&self, nodes: NodeSet) -> Option<u64> {
        nodes.map(|node| self.count(node)).max().filter(|count| *count > 0)
    }

    fn count(&self, node: NodeId) -> u64 {
        self.counts.get(node.index()).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(mode: Fencing, counts: [u64; 3]) -> (Fence, Vec<NodeId>, NodeSet) {
        let mut fence = Fence::default();
        fence.begin(mode, 3);
        let nodes: Vec<_> = NodeId::all(3).collect();
        let mut granted = NodeSet::default();
        for (node, count) in nodes.iter().zip(counts).filter(|(_, count)| *count > 0) {
            fence.counted(*node, count);
            granted.insert(*node);
        }
        (fence, nodes, granted)
    }

    #[test]
    fn one_round_trip_is_enough_where_a_quorum_agrees_on_the_highest_count() {
        let quorum = Quorum::of(3);
        for (counts, token) in [
            ([7, 7, 0], Some(7)),
            ([7, 7, 7], Some(7)),
            ([6, 7, 7], Some(7)),
            ([7, 7, 8], None),
            ([7, 8, 0], None),
            ([7, 0, 0], None),
        ] {
            let (fence, _, granted) = fence(Fencing::OneRoundTrip, counts);
            let taken = fence.at_once(granted, quorum).map(|(token, _)| token.get());
            assert_eq!(taken, token, "{counts:?}");
        }
    }

    #[test]
    fn a_confirmed_token_is_never_had_at_once() {
        let (fence, _, granted) = fence(Fencing::Confirmed, [7, 7, 7]);
        assert_eq!(fence.at_once(granted, Quorum::of(3)), None);
    }

    #[test]
    fn only_the_very_number_confirms_and_only_from_who_was_counted_before() {
        let (mut fence, nodes, granted) = fence(Fencing::Confirmed, [4, 7, 0]);
        fence.propose(granted);
        assert_eq!(fence.proposed(), 7);
        assert!(fence.is_confirmed_by(nodes[0], 7));
        assert!(!fence.is_confirmed_by(nodes[0], 8), "somebody else was counted");
        assert!(!fence.is_confirmed_by(nodes[2], 7), "granted too late");
        assert_eq!(fence.confirmed(granted, Quorum::of(3)), Some(FencingToken::new(7)));
        assert_eq!(fence.confirmed(NodeSet::default(), Quorum::of(3)), None);
    }

    #[test]
    fn another_round_proposes_no_less_than_the_one_before() {
        let (mut fence, nodes, granted) = fence(Fencing::Confirmed, [4, 7, 0]);
        fence.propose(granted);
        fence.counted(nodes[2], 3);
        fence.propose([nodes[0], nodes[2]].into_iter().collect());
        assert_eq!(fence.proposed(), 7, "node 0 counts to that already");
    }
}
