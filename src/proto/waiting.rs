//! Who waits for which key in this process, and what is known of when it may be free.
//!
//! Waiters of one process stand in line: only the first makes attempts, so that a thousand of them are one
//! attempt on the wire.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::{
    node::{NodeId, NodeSet},
    quorum::Quorum,
    request::Request,
    slab::Id,
    time::Time,
};

/// The lines, by key.
#[derive(Debug, Default)]
pub struct Lines {
    by_key: BTreeMap<Box<[u8]>, Line>,
}

#[derive(Debug, Default)]
pub struct Line {
    /// Invariant: not empty.
    waiting: VecDeque<Id<Request>>,
    /// How often in a row the lock went from hand to hand in this process.
    pub handed: u8,
}

impl Lines {
    /// Puts a request at the end of its key's line. Says whether that is also the head.
    pub fn join(&mut self, key: &[u8], id: Id<Request>) -> bool {
        if let Some(line) = self.by_key.get_mut(key) {
            line.waiting.push_back(id);
            return false;
        }
        let line = Line { waiting: VecDeque::from([id]), handed: 0 };
        self.by_key.insert(key.into(), line);
        true
    }

    /// Takes a request out. Gives the new head if there is one.
    pub fn leave(&mut self, key: &[u8], id: Id<Request>) -> Option<Id<Request>> {
        let line = self.by_key.get_mut(key)?;
        let was_head = line.waiting.front() == Some(&id);
        if was_head {
            line.waiting.pop_front();
        } else {
            line.waiting.retain(|other| *other != id);
        }
        if line.waiting.is_empty() {
            self.by_key.remove(key);
            return None;
        }
        line.waiting.front().copied().filter(|_| was_head)
    }

    pub fn line(&mut self, key: &[u8]) -> Option<&mut Line> {
        self.by_key.get_mut(key)
    }

    pub fn heads(&self) -> impl Iterator<Item = Id<Request>> {
        self.by_key.values().filter_map(Line::head)
    }
}

impl Line {
    pub fn head(&self) -> Option<Id<Request>> {
        self.waiting.front().copied()
    }
}

/// What a request that was refused knows of the nodes.
#[derive(Debug, Default)]
pub struct Outlook {
    /// Where somebody else's key was, and is for all we know.
    taken: NodeSet,
    /// How many nodes failed. Those are not free either, and will not say when they are.
    failed: usize,
    /// When those keys end by themselves.
    ends: SmallVec<[(NodeId, Time); 5]>,
}

impl Outlook {
    pub fn begin(&mut self, taken: NodeSet, failed: usize) {
        self.taken = taken;
        self.failed = failed;
        self.ends.clear();
    }

    pub fn freed(&mut self, node: NodeId) {
        self.taken.remove(node);
    }

    pub fn ends(&mut self, node: NodeId, at: Time) {
        self.ends.push((node, at));
    }

    /// When a quorum of nodes may be free: the past if it may be now, `None` if nobody can say.
    pub fn free_at(&self, quorum: Quorum) -> Option<Time> {
        let taken = usize::try_from(self.taken.len()).unwrap_or(usize::MAX);
        // So many of the keys have to go.
        let too_many = (taken + self.failed).saturating_sub(quorum.spare());
        if too_many == 0 {
            return Some(Time::from_nanos(0));
        }
        let ends = self.ends.iter().filter(|(node, _)| self.taken.contains(*node));
        let mut ends: SmallVec<[Time; 5]> = ends.map(|(_, at)| *at).collect();
        ends.sort_unstable();
        ends.get(too_many - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_may_be_free_once_enough_keys_have_ended() {
        let nodes: Vec<_> = NodeId::all(5).collect();
        let at = Time::from_nanos;
        let mut taken = NodeSet::default();
        nodes.iter().take(4).for_each(|node| taken.insert(*node));
        let mut outlook = Outlook::default();
        outlook.begin(taken, 0);
        assert_eq!(outlook.free_at(Quorum::of(5)), None, "nobody has said");
        outlook.ends(nodes[0], at(30));
        assert_eq!(outlook.free_at(Quorum::of(5)), None, "one of two");
        outlook.ends(nodes[1], at(10));
        outlook.ends(nodes[2], at(20));
        assert_eq!(outlook.free_at(Quorum::of(5)), Some(at(20)), "the second of four");
        outlook.freed(nodes[3]);
        assert_eq!(outlook.free_at(Quorum::of(5)), Some(at(10)), "the first of three");
        outlook.freed(nodes[0]);
        assert_eq!(outlook.free_at(Quorum::of(5)), Some(at(0)), "now");
        outlook.begin(NodeSet::default(), 3);
        assert_eq!(outlook.free_at(Quorum::of(5)), None, "nodes that fail are not free");
    }

    #[test]
    fn lines_have_a_head_until_they_are_gone() {
        let mut slab = crate::proto::slab::Slab::<Request>::new();
        let ids: Vec<_> = (0..3).map(|_| slab.claim().0).collect();
        let mut lines = Lines::default();
        assert!(lines.join(b"k", ids[0]));
        assert!(!lines.join(b"k", ids[1]));
        assert!(!lines.join(b"k", ids[2]));
        assert_eq!(lines.leave(b"k", ids[1]), None, "not the head");
        assert_eq!(lines.leave(b"k", ids[0]), Some(ids[2]));
        assert_eq!(lines.leave(b"k", ids[2]), None);
        assert!(lines.line(b"k").is_none());
        assert!(lines.join(b"k", ids[1]));
    }
}
