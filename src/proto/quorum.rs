//! Counting votes. Pure arithmetic: who voted is the attempt's business.

use super::node::NodeSet;

/// `N / 2 + 1` of the configured N, reachable or not: two quorums always share a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quorum {
    nodes: u8,
}

/// The votes so far. Invariant: `granted + refused + failed <= nodes`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    pub granted: u8,
    pub refused: u8,
    pub failed: u8,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// A quorum granted it.
    Won,
    /// No quorum can grant it any more, and a quorum of nodes works: somebody else has it.
    Contended,
    /// No quorum can grant it any more, as too few nodes work.
    NoQuorum,
    /// The votes still out decide.
    Open,
}

impl Quorum {
    pub fn of(nodes: u8) -> Self {
        assert!(nodes > 0, "a quorum of no nodes");
        Self { nodes }
    }

    pub fn needed(self) -> u8 {
        mutant!(HalfIsQuorum => return self.nodes.div_ceil(2));
        self.nodes / 2 + 1
    }

    pub fn is_met_by(self, nodes: NodeSet) -> bool {
        nodes.len() >= u32::from(self.needed())
    }

    /// How many nodes may fail or refuse.
    pub fn spare(self) -> usize {
        usize::from(self.nodes - self.needed())
    }

    /// Settles as early as possible, either way. The loss is named as RedLock.net does it: with enough nodes
    /// that did not fail it was contention, else it was the nodes.
    pub fn verdict(self, tally: Tally) -> Verdict {
        let spare = self.nodes - self.needed();
        debug_assert!(tally.granted + tally.refused + tally.failed <= self.nodes);
        mutant!(QuorumOfAnswering => if tally.granted > (self.nodes - tally.failed) / 2 { return Verdict::Won });
        if tally.granted >= self.needed() {
            Verdict::Won
        } else if tally.failed > spare {
            Verdict::NoQuorum
        } else if tally.refused + tally.failed > spare {
            Verdict::Contended
        } else {
            Verdict::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Ballot {
        Granted,
        Refused,
        Failed,
    }

    /// The rule in its longest form: look at every way the open votes can still fall.
    fn by_exhaustion(nodes: u8, votes: &[Ballot]) -> Verdict {
        let count = |is: fn(&Ballot) -> bool| {
            u8::try_from(votes.iter().filter(|ballot| is(ballot)).count()).unwrap()
        };
        let granted = count(|ballot| matches!(ballot, Ballot::Granted));
        let failed = count(|ballot| matches!(ballot, Ballot::Failed));
        let open = nodes - u8::try_from(votes.len()).unwrap();
        let majority = |votes: u8| 2 * u16::from(votes) > u16::from(nodes);
        if majority(granted) {
            Verdict::Won
        } else if (0..=open).any(|more| majority(granted + more)) {
            Verdict::Open
        } else if majority(nodes - failed) {
            Verdict::Contended
        } else {
            Verdict::NoQuorum
        }
    }

    /// Every outcome of N = 1..=5 nodes, in every order (a sequence of ballots is an order of arrival), with
    /// the verdict after each vote.
    #[test]
    fn every_outcome_in_every_order() {
        fn walk(nodes: u8, votes: &mut Vec<Ballot>, tally: Tally, seen: &mut u32) {
            assert_eq!(Quorum::of(nodes).verdict(tally), by_exhaustion(nodes, votes), "{votes:?}");
            *seen += 1;
            if votes.len() == usize::from(nodes) {
                assert_ne!(Quorum::of(nodes).verdict(tally), Verdict::Open);
                return;
            }
            for ballot in [Ballot::Granted, Ballot::Refused, Ballot::Failed] {
                let mut next = tally;
                match ballot {
                    Ballot::Granted => next.granted += 1,
                    Ballot::Refused => next.refused += 1,
                    Ballot::Failed => next.failed += 1,
                }
                votes.push(ballot);
                walk(nodes, votes, next, seen);
                votes.pop();
            }
        }
        let mut seen = 0;
        for nodes in 1..=5 {
            walk(nodes, &mut Vec::new(), Tally::default(), &mut seen);
        }
        assert_eq!(seen, 4 + 13 + 40 + 121 + 364);
    }

    #[test]
    fn any_two_quorums_share_a_node() {
        for nodes in 1..=15 {
            assert!(2 * Quorum::of(nodes).needed() > nodes, "{nodes}");
        }
    }

    #[test]
    fn an_even_number_needs_more_than_half() {
        assert_eq!(Quorum::of(1).needed(), 1);
        assert_eq!(Quorum::of(2).needed(), 2);
        assert_eq!(Quorum::of(4).needed(), 3);
        let half = Tally { granted: 2, refused: 2, failed: 0 };
        assert_eq!(Quorum::of(4).verdict(half), Verdict::Contended);
    }
}
