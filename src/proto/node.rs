//! Nodes by number, and sets of them.

/// A node, by its place in the configuration.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct NodeId(u8);

impl NodeId {
    /// All nodes of a configuration of `count`.
    pub fn all(count: u8) -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..count).map(Self)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of nodes, a bit for each: there are at most 15.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct NodeSet(u16);

impl NodeSet {
    pub fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    pub fn remove(&mut self, node: NodeId) {
        self.0 &= !(1 << node.0);
    }

    pub fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// The nodes of this set that are not in the other.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub fn pop(&mut self) -> Option<NodeId> {
        if self.is_empty() {
            return None;
        }
        let first = NodeId(u8::try_from(self.0.trailing_zeros()).ok()?);
        self.remove(first);
        Some(first)
    }
}

impl Iterator for NodeSet {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        self.pop()
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::default();
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

impl std::fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.map(|node| node.0)).finish()
    }
}
