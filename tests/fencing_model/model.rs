//! What can happen in any state, and which properties it breaks.
//!
//! What a client decides is decided by the crate's own [`Fence`] and [`Quorum`]; what a node does, by the scripts'
//! transcription. Two things keep the number of states down, and lose no behaviour:
//!
//! - A message that never comes is left on its way for ever: there is no step for a loss, for giving up, or for a
//!   message that changes nothing on the node and whose reply changes nothing at the client.
//! - A reply is read when the client acts on it. That it lay there read or unread before makes no difference.
//!
//! So every step below is one that matters, and an attempt begins with the first acquire that runs.

use quorlock::{
    Fencing,
    internal::{
        fence::Fence,
        node::{NodeId, NodeSet},
        quorum::Quorum,
    },
};

use crate::{
    state::{ATTEMPTS, Acquire, Attempt, Confirm, Lane, NODES, Node, Phase, State},
    support::counter::{Answer, Count, Counter, Slot},
};

#[derive(Clone, Debug)]
pub struct Model {
    pub fencing: Fencing,
    pub attempts: usize,
    /// The counters begin at anything up to this, each at its own.
    pub leftover: u8,
    /// How many nodes fail.
    pub failures: u8,
    pub failure: Failure,
    pub flaw: Option<Flaw>,
    /// Whether what makes no difference any more is kept in the states.
    pub forgets: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// A node is restarted, with what it had written to its disk, and goes on from its clock.
    Restart,
    /// A node loses its last acquire, and goes on as if nothing had been.
    LostIncrement,
    /// A node loses everything, and goes on as if nothing had been.
    LostCounter,
}

/// A way to get it wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Flaw {
    /// All nodes are asked to confirm, and any that still has the key counts, whatever its counter.
    AnyAck,
    /// All nodes are asked to confirm, and any with the very number counts.
    LateGrants,
    /// Members count, whatever their counter.
    AnyAckOfMembers,
    /// What was confirmed in an earlier round counts in this one, if the number is the same.
    EarlierRound,
    /// An extension counts every node that has the key.
    ExtendAnywhere,
}

/// A set of properties that do not hold.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct Broken(u8);

impl Broken {
    /// No two attempts take one token.
    pub const UNIQUE: Self = Self(1);
    /// A token that was taken before another attempt sent its first byte is lower than that one's.
    pub const REAL_TIME: Self = Self(2);
    /// Tokens are in the order of an instant at which their attempts had the key on a quorum of nodes.
    pub const INSTANTS: Self = Self(4);
    /// While a quorum of the nodes that stand for a token have its key, no higher one is taken.
    pub const EXTENSION: Self = Self(8);
    pub const ALL: Self = Self(15);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn when(self, broken: bool) -> Self {
        if broken { self } else { Self::default() }
    }
}

impl std::fmt::Debug for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, name) in ["U", "R", "T", "E"].into_iter().enumerate() {
            if self.0 & (1 << i) != 0 {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

/// One step, and where it leads.
#[derive(Debug)]
pub struct Next {
    pub step: Step,
    pub state: State,
    pub broken: Broken,
}

/// Attempts and nodes by their numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    Acquire {
        attempt: usize,
        node: usize,
        count: u8,
    },
    /// By expiry, release or eviction.
    KeyVanishes {
        attempt: usize,
        node: usize,
    },
    Propose {
        attempt: usize,
        number: u8,
        to: NodeSet,
    },
    Confirm {
        attempt: usize,
        node: usize,
        count: u8,
    },
    /// In a round that is over.
    StaleConfirm {
        attempt: usize,
        node: usize,
        count: u8,
    },
    TakeAtOnce {
        attempt: usize,
        token: u8,
        read: NodeSet,
    },
    Take {
        attempt: usize,
        token: u8,
        by: NodeSet,
    },
    Fail {
        node: usize,
        how: Failure,
        key_stays: bool,
    },
}

impl Step {
    /// How many replies the client reads for it.
    pub fn reads(self) -> usize {
        match self {
            Self::Propose { to, .. } => to.len() as usize,
            Self::TakeAtOnce { read, .. } => read.len() as usize,
            Self::Take { by, .. } => by.len() as usize,
            _ => 0,
        }
    }
}

impl Model {
    pub fn new(fencing: Fencing, attempts: usize) -> Self {
        Self {
            fencing,
            attempts,
            leftover: 0,
            failures: 0,
            failure: Failure::Restart,
            flaw: None,
            forgets: true,
        }
    }

    pub fn initial(&self) -> Vec<State> {
        let mut attempts = [Attempt::ABSENT; ATTEMPTS];
        attempts[..self.attempts].fill(Attempt::default());
        let node = |count| Node { count, restarted: false };
        let counts = 0..=self.leftover;
        let mut states = Vec::new();
        for first in counts {
            for second in first..=self.leftover {
                for third in second..=self.leftover {
                    let nodes = [node(first), node(second), node(third)];
                    states.push(State { nodes, attempts, failures: self.failures });
                }
            }
        }
        states
    }

    pub fn successors(&self, state: &State, found: &mut Vec<Next>) {
        found.clear();
        for a in 0..ATTEMPTS {
            for n in 0..NODES {
                self.acquire(state, a, n, found);
                self.confirm(state, a, n, found);
                self.confirm_late(state, a, n, found);
                self.vanish(state, a, n, found);
            }
            for members in sets() {
                self.decide(state, a, members, found);
            }
            self.take(state, a, found);
        }
        for n in 0..NODES {
            self.fail(state, n, found);
        }
    }
}

// What happens on nodes.
impl Model {
    fn acquire(&self, state: &State, a: usize, n: usize, found: &mut Vec<Next>) {
        let mut slot = slot(state, n);
        if state.attempts[a].lanes[n].acquire != Acquire::Sent || slot.key.is_some() {
            return;
        }
        let Answer::Set(count) = slot.acquire(a, RUN, || i64::from(highest(state))) else {
            panic!("a free key is not granted");
        };
        let count = small(count);
        let mut next = *state;
        next.nodes[n] = node(slot);
        let attempt = &mut next.attempts[a];
        let begins = attempt.lanes.iter().all(|lane| lane.acquire == Acquire::Sent);
        if begins && attempt.phase == Phase::Claiming {
            attempt.floor = tokens(state).max().unwrap_or(0);
        }
        attempt.lanes[n].acquire = Acquire::Granted(count);
        attempt.lanes[n].holds = true;
        self.push(Step::Acquire { attempt: a, node: n, count }, next, Broken::default(), found);
    }

    fn confirm(&self, state: &State, a: usize, n: usize, found: &mut Vec<Next>) {
        let attempt = &state.attempts[a];
        if attempt.lanes[n].confirm != Confirm::Sent || !attempt.lanes[n].holds {
            return;
        }
        let mut next = *state;
        let Some(count) = raise(&mut next, a, n, attempt.number) else {
            return;
        };
        let counts = attempt.phase != Phase::Out && self.counts(attempt, n, count);
        let lane = &mut next.attempts[a].lanes[n];
        lane.confirm = if counts { Confirm::Counts } else { Confirm::None };
        if counts || next.nodes != state.nodes {
            let step = Step::Confirm { attempt: a, node: n, count };
            self.push(step, next, Broken::default(), found);
        }
    }

    /// A confirm of a round that is over. Its reply counts for nothing.
    fn confirm_late(&self, state: &State, a: usize, n: usize, found: &mut Vec<Next>) {
        let attempt = &state.attempts[a];
        let lane = attempt.lanes[n];
        if !lane.stale || !lane.holds {
            return;
        }
        let mut next = *state;
        let Some(count) = raise(&mut next, a, n, attempt.stale) else {
            return;
        };
        let lane = &mut next.attempts[a].lanes[n];
        lane.stale = false;
        let counts = self.flaw == Some(Flaw::EarlierRound)
            && attempt.phase == Phase::Confirming
            && lane.confirm == Confirm::Sent
            && self.counts(attempt, n, count);
        if counts {
            lane.confirm = Confirm::Counts;
        }
        if counts || next.nodes != state.nodes {
            let step = Step::StaleConfirm { attempt: a, node: n, count };
            self.push(step, next, Broken::default(), found);
        }
    }

    fn vanish(&self, state: &State, a: usize, n: usize, found: &mut Vec<Next>) {
        if state.attempts[a].lanes[n].holds {
            let mut next = *state;
            next.attempts[a].lanes[n].holds = false;
            let step = Step::KeyVanishes { attempt: a, node: n };
            self.push(step, next, Broken::default(), found);
        }
    }

    fn fail(&self, state: &State, n: usize, found: &mut Vec<Next>) {
        if state.failures == 0 {
            return;
        }
        let holder = state.holder(n);
        let mut next = *state;
        next.failures -= 1;
        let count = state.nodes[n].count;
        if let (Failure::Restart, Some(holder)) = (self.failure, holder) {
            // What was written after the acquire is lost.
            let mut next = next;
            if let Acquire::Granted(count) = state.attempts[holder].lanes[n].acquire {
                next.nodes[n] = Node { count, restarted: true };
                let step = Step::Fail { node: n, how: self.failure, key_stays: true };
                self.push(step, next, Broken::default(), found);
            }
        }
        if let Some(holder) = holder {
            next.attempts[holder].lanes[n].holds = false;
        }
        next.nodes[n] = match self.failure {
            Failure::Restart => Node { count: 0, restarted: true },
            Failure::LostIncrement => Node { count: count.saturating_sub(1), restarted: false },
            Failure::LostCounter => Node { count: 0, restarted: false },
        };
        let step = Step::Fail { node: n, how: self.failure, key_stays: false };
        self.push(step, next, Broken::default(), found);
    }
}

// What clients do.
impl Model {
    /// Having read the grants of `members`, the client takes its token at once or proposes one to them.
    fn decide(&self, state: &State, a: usize, members: NodeSet, found: &mut Vec<Next>) {
        let attempt = &state.attempts[a];
        let old = set(attempt, |lane| lane.member);
        let failed = old.without(members);
        let is_over = !quorum().is_met_by(old.without(failed));
        let may = |lane: &Lane| granted(lane).is_some() && !lane.is_out();
        let may_all = members.without(set(attempt, may)).is_empty();
        let acts = match attempt.phase {
            Phase::Claiming => true,
            Phase::Confirming => is_over,
            Phase::Through | Phase::Out => false,
        };
        if !acts || !may_all || !quorum().is_met_by(members) {
            return;
        }
        let mut fence = self.fence(attempt);
        for node in members {
            fence.counted(node, u64::from(granted(&attempt.lanes[node.index()]).unwrap()));
        }
        if attempt.phase == Phase::Claiming {
            if let Some((token, standing)) = fence.at_once(members, quorum()) {
                let token = small(token.get());
                let step = Step::TakeAtOnce { attempt: a, token, read: members };
                return self.get_through(*state, a, step, token, standing, found);
            }
        }
        fence.propose(members);
        let next = self.proposed(state, a, &fence);
        assert_eq!(fence, self.fence(&next.attempts[a]), "it depends on more than was told");
        let number = next.attempts[a].number;
        let step = Step::Propose { attempt: a, number, to: members };
        self.push(step, next, Broken::default(), found);
    }

    fn proposed(&self, state: &State, a: usize, fence: &Fence) -> State {
        let mut next = *state;
        let number = small(fence.proposed());
        let attempt = &mut next.attempts[a];
        for (id, lane) in ids().zip(&mut attempt.lanes) {
            if lane.confirm == Confirm::Sent {
                attempt.stale = attempt.number;
                lane.stale = true;
            }
            assert!(!lane.earlier, "a third round");
            lane.earlier = lane.member;
            lane.member = fence.members().contains(id);
            let is_asked =
                lane.member || matches!(self.flaw, Some(Flaw::AnyAck | Flaw::LateGrants));
            let counts_already = self.flaw == Some(Flaw::EarlierRound)
                && lane.confirm == Confirm::Counts
                && number == attempt.number;
            lane.confirm = match is_asked {
                true if counts_already => Confirm::Counts,
                true => Confirm::Sent,
                false => Confirm::None,
            };
        }
        attempt.phase = Phase::Confirming;
        attempt.number = number;
        attempt.rank = LATEST;
        next
    }

    fn take(&self, state: &State, a: usize, found: &mut Vec<Next>) {
        let attempt = &state.attempts[a];
        if attempt.phase != Phase::Confirming {
            return;
        }
        let by = set(attempt, |lane| lane.confirm == Confirm::Counts);
        if let Some(token) = self.fence(attempt).confirmed(by, quorum()) {
            let token = small(token.get());
            let step = Step::Take { attempt: a, token, by };
            self.get_through(*state, a, step, token, by, found);
        }
    }

    fn get_through(
        &self,
        mut next: State,
        a: usize,
        step: Step,
        token: u8,
        standing: NodeSet,
        found: &mut Vec<Next>,
    ) {
        let attempt = &mut next.attempts[a];
        if attempt.phase == Phase::Claiming && quorum().is_met_by(set(attempt, |lane| lane.holds)) {
            attempt.rank = LATEST;
        }
        let mut broken = Broken::REAL_TIME.when(token <= attempt.floor);
        let rank = attempt.rank;
        for other in next.attempts.iter().filter(|other| other.phase == Phase::Through) {
            let both = rank != 0 && other.rank != 0;
            let in_order = (rank < other.rank) == (token < other.number);
            broken = broken
                .and(Broken::UNIQUE.when(token == other.number))
                .and(Broken::INSTANTS.when(both && !in_order));
        }
        let attempt = &mut next.attempts[a];
        attempt.phase = Phase::Through;
        attempt.number = token;
        for (id, lane) in ids().zip(&mut attempt.lanes) {
            lane.stands = standing.contains(id);
        }
        self.push(step, next, broken, found);
    }

    /// The client's own part, as it is after all that it was told. What it has not read yet is left out.
    fn fence(&self, attempt: &Attempt) -> Fence {
        let mut fence = Fence::default();
        fence.begin(self.fencing, NODES);
        for (id, lane) in ids().zip(&attempt.lanes) {
            if let (true, Some(count)) = (lane.member || lane.earlier, granted(lane)) {
                fence.counted(id, u64::from(count));
            }
        }
        for members in [set(attempt, |lane| lane.earlier), set(attempt, |lane| lane.member)] {
            if !members.is_empty() {
                fence.propose(members);
            }
        }
        fence
    }

    /// Whether a reply to a confirm of this round counts.
    fn counts(&self, attempt: &Attempt, n: usize, count: u8) -> bool {
        let (lane, mut fence) = (attempt.lanes[n], self.fence(attempt));
        let id = ids().nth(n).unwrap();
        let counts = fence.is_confirmed_by(id, u64::from(count));
        for (id, lane) in ids().zip(&attempt.lanes) {
            if let (false, Some(count)) = (lane.member, granted(lane)) {
                fence.counted(id, u64::from(count));
            }
        }
        let counts_later = fence.is_confirmed_by(id, u64::from(count));
        assert_eq!(
            counts, counts_later,
            "a grant that is read in the second round makes a difference"
        );
        match self.flaw {
            Some(Flaw::AnyAck) => true,
            Some(Flaw::AnyAckOfMembers) => lane.member,
            Some(Flaw::LateGrants) => u64::from(count) == fence.proposed(),
            Some(Flaw::EarlierRound | Flaw::ExtendAnywhere) | None => counts,
        }
    }
}

// What is left of a state once it is asked what can still matter.
impl Model {
    fn push(&self, step: Step, mut state: State, broken: Broken, found: &mut Vec<Next>) {
        for a in 0..ATTEMPTS {
            let attempt = &mut state.attempts[a];
            for lane in attempt.lanes.iter_mut().filter(|lane| lane.confirm == Confirm::Counts) {
                lane.stands |= attempt.phase == Phase::Through;
            }
            if self.forgets {
                self.settle(&mut state, a);
            }
        }
        let mut ranks = state.attempts.map(|attempt| attempt.rank);
        ranks.sort_unstable();
        let mut rank = 0;
        for (i, old) in ranks.into_iter().enumerate() {
            if old > 0 && (i == 0 || ranks[i - 1] != old) {
                rank += 1;
                let of = |attempt: &&mut Attempt| attempt.rank == old;
                state.attempts.iter_mut().filter(of).for_each(|attempt| attempt.rank = rank);
            }
        }
        let broken = broken.and(Broken::EXTENSION.when(self.extends_superseded(&state)));
        found.push(Next { step, state, broken });
    }

    fn extends_superseded(&self, state: &State) -> bool {
        let anywhere = self.flaw == Some(Flaw::ExtendAnywhere);
        state.attempts.iter().any(|attempt| {
            let Some(token) = attempt.token() else {
                return false;
            };
            let has = set(attempt, |lane| lane.holds && (lane.stands || anywhere));
            quorum().is_met_by(has) && tokens(state).any(|other| other > token)
        })
    }

    /// Forgets what makes no difference any more.
    fn settle(&self, state: &mut State, a: usize) {
        let may_fail = state.failures > 0;
        let attempt = &mut state.attempts[a];
        for (lane, node) in attempt.lanes.iter_mut().zip(&state.nodes) {
            if !may_hold(lane) {
                lane.stale = false;
                lane.stands = false;
            }
            let lost = !may_hold(lane) || self.is_too_high(lane, node, attempt.number, may_fail);
            if lane.confirm == Confirm::Sent && lost {
                lane.confirm = Confirm::None;
            }
            let counts = self.flaw == Some(Flaw::EarlierRound);
            lane.stale &= counts || may_fail || node.count < attempt.stale;
        }
        if !self.can_get_through(attempt) {
            attempt.phase = Phase::Out;
        }
        match attempt.phase {
            Phase::Claiming | Phase::Confirming => {}
            Phase::Through => {
                attempt.floor = 0;
                for lane in &mut attempt.lanes {
                    lane.confirm = match lane.confirm {
                        Confirm::Counts => Confirm::None,
                        confirm => confirm,
                    };
                }
                if attempt.lanes.iter().all(|lane| lane.confirm == Confirm::None) {
                    attempt.lanes.iter_mut().for_each(|lane| lane.forget(may_fail));
                }
            }
            Phase::Out => {
                (attempt.floor, attempt.rank) = (0, 0);
                for (lane, node) in attempt.lanes.iter_mut().zip(&state.nodes) {
                    let raises = may_fail || node.count < attempt.number;
                    if lane.confirm != Confirm::Sent || !raises {
                        lane.confirm = Confirm::None;
                    }
                    lane.forget(may_fail);
                }
                if attempt.lanes.iter().all(|lane| lane.confirm == Confirm::None) {
                    attempt.number = 0;
                }
            }
        }
        if attempt.lanes.iter().all(|lane| !lane.stale) {
            attempt.stale = 0;
        }
    }

    /// Whether a confirm will neither count nor raise the node's counter.
    fn is_too_high(&self, lane: &Lane, node: &Node, number: u8, may_fail: bool) -> bool {
        use Flaw::{AnyAck, AnyAckOfMembers, EarlierRound};
        let exact = !matches!(self.flaw, Some(AnyAck | AnyAckOfMembers | EarlierRound));
        exact && !may_fail && lane.holds && node.count > number
    }

    fn can_get_through(&self, attempt: &Attempt) -> bool {
        let may_hold = |lane: &Lane| may_hold(lane) && !lane.is_out();
        let asks_again = quorum().is_met_by(set(attempt, may_hold));
        match attempt.phase {
            Phase::Claiming => asks_again || self.fencing == Fencing::OneRoundTrip,
            Phase::Confirming => {
                let counts = |lane: &Lane| lane.confirm != Confirm::None;
                let keeps = self.flaw == Some(Flaw::EarlierRound);
                keeps || asks_again || quorum().is_met_by(set(attempt, counts))
            }
            Phase::Through => true,
            Phase::Out => false,
        }
    }
}

impl Lane {
    /// Failed or denied in an earlier round.
    fn is_out(&self) -> bool {
        self.earlier && !self.member
    }

    fn forget(&mut self, may_fail: bool) {
        (self.member, self.earlier) = (false, false);
        if self.acquire != Acquire::Sent && !(may_fail && self.holds) {
            self.acquire = Acquire::Done;
        }
    }
}

/// A value is set once on each node: where it is gone, it is gone for good.
fn may_hold(lane: &Lane) -> bool {
    lane.holds || lane.acquire == Acquire::Sent
}

fn granted(lane: &Lane) -> Option<u8> {
    match lane.acquire {
        Acquire::Granted(count) => Some(count),
        Acquire::Sent | Acquire::Done => None,
    }
}

fn slot(state: &State, n: usize) -> Slot<usize> {
    let Node { count, restarted } = state.nodes[n];
    let run = if restarted { RUN - 1 } else { RUN };
    let counter = Counter::Hash { count: Count::Number(i64::from(count)), run: Some(run) };
    Slot { key: state.holder(n), counter }
}

fn node(slot: Slot<usize>) -> Node {
    let Counter::Hash { count: Count::Number(count), run } = slot.counter else {
        panic!("{slot:?}");
    };
    Node { count: small(count), restarted: run != Some(RUN) }
}

/// Runs a confirm where the key is. A node that was restarted since it counted last confirms nothing.
fn raise(state: &mut State, a: usize, n: usize, number: u8) -> Option<u8> {
    let mut slot = slot(state, n);
    match slot.confirm(a, RUN, i64::from(number)) {
        Answer::Count(count) => {
            state.nodes[n] = node(slot);
            Some(small(count))
        }
        Answer::Gone => None,
        answer => panic!("{answer:?}"),
    }
}

/// The highest number that anybody has seen: a clock is above it.
fn highest(state: &State) -> u8 {
    let of_attempt = |attempt: &Attempt| {
        let counts = attempt.lanes.iter().filter_map(granted).max();
        counts.unwrap_or(0).max(attempt.number).max(attempt.stale).max(attempt.floor)
    };
    let of_attempts = state.attempts.iter().map(of_attempt);
    of_attempts.chain(state.nodes.map(|node| node.count)).max().unwrap()
}

fn tokens(state: &State) -> impl Iterator<Item = u8> {
    state.attempts.iter().filter_map(Attempt::token)
}

fn ids() -> impl ExactSizeIterator<Item = NodeId> {
    NodeId::all(NODES as u8)
}

fn quorum() -> Quorum {
    Quorum::of(NODES as u8)
}

/// The nodes for which something is so.
fn set(attempt: &Attempt, is: impl Fn(&Lane) -> bool) -> NodeSet {
    ids().zip(&attempt.lanes).filter(|(_, lane)| is(lane)).map(|(id, _)| id).collect()
}

/// All sets of nodes.
fn sets() -> impl Iterator<Item = NodeSet> {
    (0..1_u8 << NODES).map(|bits| ids().filter(|id| bits & (1 << id.index()) != 0).collect())
}

fn small(count: impl TryInto<u8>) -> u8 {
    count.try_into().ok().expect("a small number")
}

/// The nodes' present run.
const RUN: u32 = 1;

/// Behind all others.
const LATEST: u8 = ATTEMPTS as u8 + 1;
