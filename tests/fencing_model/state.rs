//! One state of the model, and its form in 192 bits, the same for all states that differ only in names.
//!
//! Nothing in the protocol tells nodes or attempts apart, so that a state stands for up to 36 of them.

pub const NODES: usize = 3;
pub const ATTEMPTS: usize = 3;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct State {
    pub nodes: [Node; NODES],
    pub attempts: [Attempt; ATTEMPTS],
    /// How many nodes may yet fail.
    pub failures: u8,
}

/// A node's counter. Who has its key is in [`Lane::holds`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Node {
    pub count: u8,
    /// Whether the counter was last counted before a restart.
    pub restarted: bool,
}

/// One value's life: the client that made it, and all of its messages.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Attempt {
    pub phase: Phase,
    pub lanes: [Lane; NODES],
    /// What is proposed, or was taken.
    pub number: u8,
    /// The highest fencing token that was taken before the first byte was sent.
    pub floor: u8,
    /// The place of its instant among those of the other attempts, from 1; 0 if it has none.
    pub rank: u8,
    /// What was proposed in an earlier round.
    pub stale: u8,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Phase {
    /// Its acquires are under way; or it has not begun.
    #[default]
    Claiming,
    Confirming,
    /// It has a fencing token.
    Through,
    /// It will never have one.
    Out,
}

/// What there is between one attempt and one node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lane {
    pub acquire: Acquire,
    pub confirm: Confirm,
    /// Whether the node is a member of the round.
    pub member: bool,
    /// It was one of an earlier round. If it is none any more, it is out.
    pub earlier: bool,
    /// An earlier round's confirm is under way.
    pub stale: bool,
    /// Stands for the token: an extension counts it.
    pub stands: bool,
    /// Truly has the key, now.
    pub holds: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Acquire {
    /// On its way: to the node, or nowhere.
    #[default]
    Sent,
    /// It ran, with this count. The client has read that, or may at any time.
    Granted(u8),
    /// It ran, and nobody will ask for the count any more.
    Done,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Confirm {
    #[default]
    None,
    Sent,
    /// It ran, and was answered with what counts.
    Counts,
}

impl Attempt {
    /// One that takes no part.
    pub const ABSENT: Self = Self {
        phase: Phase::Out,
        lanes: [Lane {
            acquire: Acquire::Done,
            confirm: Confirm::None,
            member: false,
            earlier: false,
            stale: false,
            stands: false,
            holds: false,
        }; NODES],
        number: 0,
        floor: 0,
        rank: 0,
        stale: 0,
    };

    pub fn token(&self) -> Option<u8> {
        (self.phase == Phase::Through).then_some(self.number)
    }
}

impl State {
    /// Which attempt has a node's key.
    pub fn holder(&self, node: usize) -> Option<usize> {
        self.attempts.iter().position(|attempt| attempt.lanes[node].holds)
    }
}

/// A word for each attempt, and in its top bits a node.
pub type Packed = [u64; ATTEMPTS];

impl State {
    pub fn unpack(words: Packed) -> Self {
        Self {
            nodes: words.map(|word| Node::unpack(word >> NODE_AT)),
            attempts: words.map(Attempt::unpack),
            failures: take(words[0], FAILURES_AT, 2),
        }
    }

    /// The least of all the forms that it has under other names.
    pub fn canonical(&self) -> Packed {
        let attempts = self.attempts.map(|attempt| attempt.pack());
        let nodes = self.nodes.map(|node| node.pack() << NODE_AT);
        let of = |order: [usize; NODES]| {
            let mut words = attempts.map(|word| reorder(word, order));
            words.sort_unstable();
            for (word, node) in words.iter_mut().zip(order) {
                *word |= nodes[node];
            }
            words
        };
        let mut least = of(ORDERS[0]);
        for order in &ORDERS[1..] {
            least = least.min(of(*order));
        }
        least[0] |= bits(self.failures, 2) << FAILURES_AT;
        least
    }
}

fn reorder(word: u64, order: [usize; NODES]) -> u64 {
    let mut to = word >> LANES_END << LANES_END;
    for (i, from) in order.into_iter().enumerate() {
        to |= ((word >> (from * LANE_BITS)) & LANE_MASK) << (i * LANE_BITS);
    }
    to
}

impl Node {
    fn pack(self) -> u64 {
        bits(self.count, COUNT_BITS) | u64::from(self.restarted) << COUNT_BITS
    }

    fn unpack(word: u64) -> Self {
        Self { count: take(word, 0, COUNT_BITS), restarted: flag(word, COUNT_BITS) }
    }
}

impl Attempt {
    fn pack(self) -> u64 {
        let mut word = 0;
        for (i, lane) in self.lanes.into_iter().enumerate() {
            word |= lane.pack() << (i * LANE_BITS);
        }
        let phase = match self.phase {
            Phase::Claiming => 0,
            Phase::Confirming => 1,
            Phase::Through => 2,
            Phase::Out => 3,
        };
        word | bits(phase, 2) << LANES_END
            | bits(self.rank, 2) << (LANES_END + 2)
            | bits(self.number, COUNT_BITS) << (LANES_END + 4)
            | bits(self.floor, COUNT_BITS) << (LANES_END + 4 + COUNT_BITS)
            | bits(self.stale, COUNT_BITS) << (LANES_END + 4 + 2 * COUNT_BITS)
    }

    fn unpack(word: u64) -> Self {
        let lane = |i| Lane::unpack(word >> (i * LANE_BITS));
        Self {
            phase: match take(word, LANES_END, 2) {
                0 => Phase::Claiming,
                1 => Phase::Confirming,
                2 => Phase::Through,
                _ => Phase::Out,
            },
            lanes: [lane(0), lane(1), lane(2)],
            rank: take(word, LANES_END + 2, 2),
            number: take(word, LANES_END + 4, COUNT_BITS),
            floor: take(word, LANES_END + 4 + COUNT_BITS, COUNT_BITS),
            stale: take(word, LANES_END + 4 + 2 * COUNT_BITS, COUNT_BITS),
        }
    }
}

impl Lane {
    fn pack(self) -> u64 {
        let acquire = match self.acquire {
            Acquire::Sent => 0,
            Acquire::Granted(count) => {
                assert!(0 < count && u64::from(count) < COUNT_MASK, "{count}");
                count
            }
            Acquire::Done => (1 << COUNT_BITS) - 1,
        };
        let confirm = match self.confirm {
            Confirm::None => 0,
            Confirm::Sent => 1,
            Confirm::Counts => 2,
        };
        let flags = [self.member, self.earlier, self.stale, self.stands, self.holds];
        let mut word = bits(acquire, COUNT_BITS) | bits(confirm, 2) << COUNT_BITS;
        for (i, flag) in flags.into_iter().enumerate() {
            word |= u64::from(flag) << (COUNT_BITS + 2 + i);
        }
        word
    }

    fn unpack(word: u64) -> Self {
        let is = |i| flag(word, COUNT_BITS + 2 + i);
        Self {
            acquire: match take(word, 0, COUNT_BITS) {
                0 => Acquire::Sent,
                count if u64::from(count) == COUNT_MASK => Acquire::Done,
                count => Acquire::Granted(count),
            },
            confirm: match take(word, COUNT_BITS, 2) {
                0 => Confirm::None,
                1 => Confirm::Sent,
                _ => Confirm::Counts,
            },
            member: is(0),
            earlier: is(1),
            stale: is(2),
            stands: is(3),
            holds: is(4),
        }
    }
}

fn bits(value: u8, count: usize) -> u64 {
    assert!(u32::from(value) < 1 << count, "{value} needs more than {count} bits");
    u64::from(value)
}

fn take(word: u64, at: usize, count: usize) -> u8 {
    ((word >> at) & ((1 << count) - 1)) as u8
}

fn flag(word: u64, at: usize) -> bool {
    (word >> at) & 1 != 0
}

const COUNT_BITS: usize = 5;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const LANE_BITS: usize = COUNT_BITS + 7;
const LANE_MASK: u64 = (1 << LANE_BITS) - 1;
const LANES_END: usize = NODES * LANE_BITS;
const NODE_AT: usize = LANES_END + 4 + 3 * COUNT_BITS;
const FAILURES_AT: usize = NODE_AT + COUNT_BITS + 1;

const ORDERS: [[usize; NODES]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
