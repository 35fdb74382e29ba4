//! What became of each token on each node, as the nodes saw it: what a grant is held against.

use std::{collections::HashMap, time::Duration};

use quorlock::{Attempt, Fencing, Vote, internal::time::Time};

use super::{
    fences::{Fences, Taken},
    nodes::{Key, Meaning, Question, Sent},
};

pub const NODES_MAX: usize = 7;

#[derive(Clone, Copy)]
pub struct Allowance {
    pub ppm: u64,
    pub constant: Duration,
}

pub struct Claims {
    pub nodes: usize,
    pub drift: Allowance,
    /// Whether locks are put back.
    repair: bool,
    by_key: HashMap<Key, Claim>,
    pub fences: Fences,
}

#[derive(Debug, Default)]
pub struct Claim {
    on: [OnNode; NODES_MAX],
    /// The highest fencing token that others had taken when the first node was asked.
    above: u64,
    /// The fencing token that it came to.
    token: Option<u64>,
    /// When the latest extension began that was granted.
    extended_at: Option<Time>,
}

#[derive(Debug, Default)]
struct OnNode {
    /// When the first byte of a claim was written that has reached the node.
    set_at: Option<Time>,
    /// When we heard that the node granted it, and where its counter stood then.
    granted_at: Option<Time>,
    count: Option<u64>,
    /// What it said when asked to confirm a count, and when it was asked.
    confirmed: Vec<(Time, u64)>,
    /// Whether it said that the lock was put back, and nothing else since.
    repaired: bool,
    /// Since when it may hold the lock, where it came to it too late to count from the start.
    joined_at: Option<Time>,
    /// Whether it once said that the token is not there.
    denied: bool,
    /// Whether its counter stood at another number than it was asked to confirm.
    disputed: bool,
    /// Whether it was asked to put the lock back.
    asked_to_repair: bool,
    /// Whether a claim or a repair has reached it over this connection and is not answered.
    setting: bool,
    /// Whether a release was begun.
    releasing: bool,
    /// Whether a release was answered for good.
    undone: bool,
    /// Whether a release found the token.
    released: bool,
    /// When the node was asked for what it granted last, and for how long.
    held: Option<(Time, u64)>,
    /// The ttls of extensions and repairs that have reached it and were not answered: they may have run, or may yet
    /// run.
    unanswered: Vec<u64>,
}

impl Claims {
    pub fn new(nodes: usize, drift: Allowance, repair: bool) -> Self {
        Self { nodes, drift, repair, by_key: HashMap::new(), fences: Fences::default() }
    }

    pub fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    /// A whole command has reached a node.
    pub fn wrote(&mut self, node: usize, sent: &Sent) {
        match &sent.asked {
            Question::Set { claim, .. } => self.claimed(node, claim, sent.at),
            Question::SetFenced { claim, counter, .. } => {
                assert_counts(counter, claim);
                self.claimed(node, claim, sent.at);
            }
            Question::Release { claim, .. } => {
                self.by_key.entry(claim.clone()).or_default().on[node].releasing = true;
            }
            Question::Confirm { claim, counter, count, .. } => {
                assert_counts(counter, claim);
                let on = self.again(node, claim);
                assert!(on.granted_at.is_some(), "it is to confirm what it has not granted");
                assert!(on.count <= Some(*count), "{count} is proposed to {on:?}");
            }
            Question::Extend { claim, ttl_ms, .. } => {
                let on = self.again(node, claim);
                on.unanswered.push(*ttl_ms);
                let asked = on.set_at.is_some() || on.asked_to_repair;
                assert!(asked, "a node is asked to extend what it never had");
            }
            Question::Repair { claim, ttl_ms, fence, .. } => {
                assert!(self.repair, "a lock is put back, and nobody wished it");
                fence.iter().for_each(|(counter, _)| assert_counts(counter, claim));
                let token = self.get(claim).token;
                assert_eq!(fence.as_ref().map(|(_, count)| *count), token, "{claim:?}");
                let on = self.again(node, claim);
                assert!(!on.setting, "a repair behind an unanswered one, or behind the claim");
                on.setting = true;
                on.asked_to_repair = true;
                on.unanswered.push(*ttl_ms);
            }
            _ => {}
        }
    }

    fn claimed(&mut self, node: usize, key: &Key, at: Time) {
        let above = self.fences.highest(&key.key);
        let claim = Claim { above, ..Claim::default() };
        let on = &mut self.by_key.entry(key.clone()).or_insert(claim).on[node];
        assert!(on.set_at.is_none(), "a token is set twice on one node");
        assert!(!on.releasing, "a SET behind its own release");
        on.set_at = Some(at);
        on.setting = true;
    }

    /// A command after the claim and before the release.
    fn again(&mut self, node: usize, key: &Key) -> &mut OnNode {
        let claim = self.by_key.get_mut(key).expect("a lock that was never set");
        let on = &mut claim.on[node];
        assert!(!on.releasing, "a command behind the release");
        on
    }

    /// A node's reply has reached us.
    pub fn answered(&mut self, now: Time, node: usize, sent: &Sent, meaning: Meaning) {
        let Some(key) = sent.asked.claim() else {
            return;
        };
        let claim = self.by_key.get_mut(key).expect("what is answered was written");
        let late = claim.token.is_some();
        let on = &mut claim.on[node];
        on.setting &= !sent.asked.sets_the_key();
        match &sent.asked {
            Question::Set { ttl_ms, .. } | Question::SetFenced { ttl_ms, .. } => match meaning {
                Meaning::Granted | Meaning::Counted(_) => {
                    on.granted(now, (sent.at, *ttl_ms), meaning);
                    on.joined_at = late.then_some(now);
                }
                Meaning::Refused => on.denied = true,
                Meaning::NoScript => on.set_at = None,
                _ => {}
            },
            Question::Confirm { count, .. } => match meaning {
                Meaning::Counted(counted) => {
                    on.confirmed.push((sent.at, counted));
                    on.disputed |= counted != *count;
                }
                Meaning::Refused => on.denied = true,
                _ => {}
            },
            Question::Extend { ttl_ms, .. } => {
                on.answered(*ttl_ms);
                match meaning {
                    Meaning::Granted if on.is_mine() => on.held = Some((sent.at, *ttl_ms)),
                    Meaning::Granted | Meaning::Refused => on.denied = true,
                    _ => {}
                }
            }
            Question::Repair { ttl_ms, .. } => {
                on.answered(*ttl_ms);
                if meaning == Meaning::Granted {
                    on.held = Some((sent.at, *ttl_ms));
                    if !on.is_mine() {
                        on.repaired = true;
                        on.joined_at = Some(now);
                        (on.denied, on.disputed) = (false, false);
                    }
                }
            }
            _ if matches!(meaning, Meaning::NoScript | Meaning::PutOff) => {}
            _ => {
                on.undone = true;
                on.released |= meaning == Meaning::Granted;
            }
        }
    }

    /// A connection is gone, and what was not answered will not be.
    pub fn cut(&mut self, node: usize) {
        self.by_key.values_mut().for_each(|claim| claim.on[node].setting = false);
    }

    pub fn knows(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    pub fn get(&self, key: &Key) -> &Claim {
        self.by_key.get(key).expect("a lock was granted that no node was asked for")
    }

    /// A lock was granted with a fencing token.
    pub fn took(&mut self, now: Time, key: &Key, token: u64, fencing: Fencing) {
        let quorum = self.quorum();
        let claim = self.by_key.get_mut(key).expect("a lock that nodes were asked for");
        assert!(claim.token.replace(token).is_none(), "a lock has two fencing tokens");
        let (instant, standing) = claim.stand_for(token, fencing, quorum);
        for (node, on) in claim.on.iter_mut().enumerate() {
            on.joined_at = on.granted_at.filter(|_| !standing.contains(&node));
        }
        let above = claim.above;
        let taken = Taken { by: key.clone(), token, at: now, instant };
        self.fences.take(taken, above);
    }

    /// An extension was granted until then.
    pub fn extended(&mut self, key: &Key, until: Time) {
        let claim = self.get(key);
        let justified = self.justified(claim);
        assert!(justified >= Some(until), "{until:?} is more than {justified:?} of {claim:#?}");
        // When it began: some node that granted it holds the lock from no earlier than that.
        let held = claim.on.iter().filter_map(|on| on.held.filter(|_| on.is_mine()));
        let begins = held.filter_map(|(at, ttl_ms)| {
            let begin = until.before(self.validity(ttl_ms));
            (begin <= at).then_some(begin)
        });
        let begins: Vec<_> = begins.collect();
        let (first, last) = (begins.iter().min().copied(), begins.iter().max().copied());
        if let (Some(token), Some(first)) = (claim.token, first) {
            self.fences.assert_latest(key, token, first);
        }
        let claim = self.by_key.get_mut(key).expect("a lock that nodes were asked for");
        claim.extended_at = claim.extended_at.max(last);
    }

    /// Some attempt on the resource has had these votes.
    pub fn assert_voted(&self, resource: &[u8], attempt: &Attempt) {
        let is_said = |vote: &Vote| matches!(vote, Vote::Granted | Vote::Refused);
        let mut of_resource = self.by_key.iter().filter(|(key, _)| key.key.ends_with(resource));
        let voted = of_resource.any(|(_, claim)| {
            attempt.votes().enumerate().all(|(node, (_, vote))| claim.has_voted(node, vote))
        });
        assert!(voted || !attempt.votes().any(|(_, vote)| is_said(vote)), "{attempt}");
    }

    /// A quorum of nodes has given a reason to believe that it does not hold the lock.
    pub fn assert_denied(&self, key: &Key) {
        let claim = self.get(key);
        let denied = claim.on.iter().filter(|on| on.has_denied()).count();
        assert!(denied >= self.quorum(), "{denied} nodes deny {claim:#?}");
    }

    /// For how long a lock may be relied on, from when it was begun.
    fn validity(&self, ttl_ms: u64) -> Duration {
        // A millisecond is a million nanoseconds: so many parts per million of it are so many nanoseconds.
        let share = Duration::from_nanos(ttl_ms * self.drift.ppm);
        Duration::from_millis(ttl_ms) - share - self.drift.constant
    }

    /// Until when a quorum holds the lock for all we know: nodes that granted it, never said otherwise, and did not
    /// come to it too late.
    pub fn justified(&self, claim: &Claim) -> Option<Time> {
        let counts = |on: &&OnNode| on.joined_at.is_none_or(|at| claim.extended_at >= Some(at));
        let counting = claim.on.iter().filter(counts);
        let mut until: Vec<_> = counting.filter_map(|on| self.held_until(on)).collect();
        until.sort_unstable();
        until.iter().rev().nth(self.quorum() - 1).copied()
    }

    fn held_until(&self, on: &OnNode) -> Option<Time> {
        let (at, ttl_ms) = on.held.filter(|_| on.is_mine())?;
        // A shorter extension may have run since, or may yet run.
        let least = on.unanswered.iter().fold(ttl_ms, |least, ttl_ms| least.min(*ttl_ms));
        Some(at.after(self.validity(least)))
    }

    /// No node is left with a lock that nobody undid.
    pub fn assert_all_undone(&self) {
        for (key, claim) in &self.by_key {
            for (node, on) in claim.on.iter().enumerate() {
                let token = key.token.escape_ascii();
                let asked = on.set_at.is_some() || on.asked_to_repair;
                assert!(!asked || on.undone, "{token} was left behind on node {node}");
            }
        }
    }
}

impl Claim {
    /// For how long a node granted the token, if it did.
    pub fn granted_ms(&self, node: usize) -> Option<u64> {
        let on = &self.on[node];
        on.held.filter(|_| on.granted_at.is_some()).map(|(_, ttl_ms)| ttl_ms)
    }

    /// Whether the node has said what is taken for its vote.
    pub fn has_voted(&self, node: usize, vote: &Vote) -> bool {
        match vote {
            Vote::Granted => self.on[node].granted_at.is_some(),
            Vote::Refused => self.on[node].has_denied(),
            _ => true,
        }
    }

    pub fn released(&self) -> usize {
        self.on.iter().filter(|on| on.released).count()
    }

    /// Rule R: the nodes on which the key held the lock while the counter stood at exactly the fencing token; a quorum
    /// of them. Of a token that was confirmed also a moment at which the lock was on all of a quorum: all had granted
    /// it before, and confirmed it after.
    fn stand_for(&self, token: u64, fencing: Fencing, quorum: usize) -> (Option<Time>, Vec<usize>) {
        let nodes = |stands: &dyn Fn(&OnNode) -> bool| -> Vec<usize> {
            (0..NODES_MAX).filter(|node| stands(&self.on[*node])).collect()
        };
        let confirmed = self.on.iter().flat_map(|on| &on.confirmed);
        let moments = confirmed.filter(|(_, count)| *count == token).map(|(at, _)| *at);
        let rounds = moments.map(|moment| {
            let later = |answer: &(Time, u64)| answer.0 >= moment && answer.1 == token;
            let stands = |on: &OnNode| {
                on.granted_at.is_some_and(|at| at <= moment) && on.confirmed.iter().any(later)
            };
            (Some(moment), nodes(&stands))
        });
        let at_once = (None, nodes(&|on| on.count == Some(token)));
        let at_once = Some(at_once).filter(|_| fencing == Fencing::OneRoundTrip);
        let ways: Vec<_> = rounds.chain(at_once).filter(|way| way.1.len() >= quorum).collect();
        assert!(!ways.is_empty(), "no quorum stands for {token} of {self:#?}");
        let moment = ways.iter().find_map(|way| way.0);
        (moment, ways.into_iter().flat_map(|way| way.1).collect())
    }
}

impl OnNode {
    fn granted(&mut self, now: Time, held: (Time, u64), meaning: Meaning) {
        self.granted_at = Some(now);
        self.held = Some(held);
        if let Meaning::Counted(count) = meaning {
            self.count = Some(count);
        }
    }

    /// An extension or a repair was answered.
    fn answered(&mut self, ttl_ms: u64) {
        let place = self.unanswered.iter().position(|other| *other == ttl_ms);
        self.unanswered.remove(place.expect("what is answered was written"));
    }

    /// Whether it has given a reason to believe that it does not hold the lock.
    fn has_denied(&self) -> bool {
        self.denied || self.disputed
    }

    /// Whether it holds the lock, as far as it has said.
    fn is_mine(&self) -> bool {
        (self.granted_at.is_some() || self.repaired) && !self.denied
    }
}

fn assert_counts(counter: &[u8], claim: &Key) {
    assert_eq!(counter, [&claim.key, &b":fencing-counter"[..]].concat(), "another lock's counter");
}
