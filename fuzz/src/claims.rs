//! What became of each token on each node, as the nodes saw it: what a grant is held against.

use std::{collections::HashMap, time::Duration};

use quorlock::internal::time::Time;

use super::nodes::{Key, Meaning, Question, Sent};

pub const NODES_MAX: usize = 7;

#[derive(Clone, Copy)]
pub struct Allowance {
    pub ppm: u64,
    pub constant: Duration,
}

pub struct Claims {
    pub nodes: usize,
    pub drift: Allowance,
    by_key: HashMap<Key, Claim>,
}

#[derive(Debug, Default)]
pub struct Claim {
    on: [OnNode; NODES_MAX],
}

#[derive(Debug, Default)]
struct OnNode {
    /// When the first byte of a `SET` was written that has reached the node.
    set_at: Option<Time>,
    /// Whether the node said so, and we heard it.
    granted: bool,
    /// Whether it once said that the token is not there.
    denied: bool,
    /// Whether a release was begun.
    releasing: bool,
    /// Whether a release was answered for good.
    undone: bool,
    /// Whether a release found the token.
    released: bool,
    /// When the node was asked for what it granted last, and for how long.
    held: Option<(Time, u64)>,
    /// The ttls of extensions that have reached it and were not answered: they may have run, or may yet run.
    unanswered: Vec<u64>,
}

impl Claims {
    pub fn new(nodes: usize, drift: Allowance) -> Self {
        Self { nodes, drift, by_key: HashMap::new() }
    }

    pub fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    /// A whole command has reached a node.
    pub fn wrote(&mut self, node: usize, sent: &Sent) {
        match &sent.asked {
            Question::Set { claim, .. } => {
                let claim = self.by_key.entry(claim.clone()).or_default();
                let on = &mut claim.on[node];
                assert!(on.set_at.is_none(), "a token is set twice on one node");
                assert!(!on.releasing, "a SET behind its own release");
                on.set_at = Some(sent.at);
            }
            Question::Release { claim, .. } => {
                self.by_key.entry(claim.clone()).or_default().on[node].releasing = true;
            }
            Question::Extend { claim, ttl_ms, .. } => {
                let claim =
                    self.by_key.get_mut(claim).expect("a lock is extended that was never set");
                let on = &mut claim.on[node];
                on.unanswered.push(*ttl_ms);
                assert!(on.set_at.is_some(), "a node is asked to extend what it never had");
                assert!(!on.releasing, "an extension behind the release");
            }
            _ => {}
        }
    }

    /// A node's reply has reached us.
    pub fn answered(&mut self, node: usize, sent: &Sent, meaning: Meaning) {
        let (Question::Set { claim, .. }
        | Question::Extend { claim, .. }
        | Question::Release { claim, .. }) = &sent.asked
        else {
            return;
        };
        let claim = self.by_key.get_mut(claim).expect("what is answered was written");
        let on = &mut claim.on[node];
        if let Question::Extend { ttl_ms, .. } = &sent.asked {
            let place = on.unanswered.iter().position(|other| other == ttl_ms);
            on.unanswered.remove(place.expect("what is answered was written"));
        }
        match (&sent.asked, meaning) {
            (Question::Set { ttl_ms, .. }, Meaning::Granted) => {
                on.granted = true;
                on.held = Some((sent.at, *ttl_ms));
            }
            (Question::Set { .. } | Question::Extend { .. }, Meaning::Refused) => on.denied = true,
            (Question::Extend { ttl_ms, .. }, Meaning::Granted) => {
                on.held = Some((sent.at, *ttl_ms));
            }
            (Question::Release { .. }, Meaning::NoScript | Meaning::PutOff) => {}
            (Question::Release { .. }, meaning) => {
                on.undone = true;
                on.released |= meaning == Meaning::Granted;
            }
            _ => {}
        }
    }

    pub fn knows(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    pub fn get(&self, key: &Key) -> &Claim {
        self.by_key.get(key).expect("a lock was granted that no node was asked for")
    }

    /// Until when a lock may be relied on that was begun then.
    pub fn valid_until(&self, at: Time, ttl_ms: u64) -> Time {
        // A millisecond is a million nanoseconds: so many parts per million of it are so many nanoseconds.
        let share = ttl_ms * self.drift.ppm;
        at.after(Duration::from_millis(ttl_ms))
            .before(Duration::from_nanos(share))
            .before(self.drift.constant)
    }

    /// Until when a quorum holds the lock for all we know: nodes that granted it and never said otherwise.
    pub fn justified(&self, claim: &Claim) -> Option<Time> {
        let mut until: Vec<_> = claim.on.iter().filter_map(|on| self.held_until(on)).collect();
        until.sort_unstable();
        until.iter().rev().nth(self.quorum() - 1).copied()
    }

    fn held_until(&self, on: &OnNode) -> Option<Time> {
        let (at, ttl_ms) = on.held.filter(|_| on.granted && !on.denied)?;
        // A shorter extension may have run since, or may yet run.
        let least = on.unanswered.iter().fold(ttl_ms, |least, ttl_ms| least.min(*ttl_ms));
        Some(self.valid_until(at, least))
    }

    /// No node is left with a `SET` that nobody undid.
    pub fn assert_all_undone(&self) {
        for (key, claim) in &self.by_key {
            for (node, on) in claim.on.iter().enumerate() {
                let token = key.token.escape_ascii();
                assert!(on.set_at.is_none() || on.undone, "{token} was left behind on node {node}");
            }
        }
    }
}

impl Claim {
    /// For how long a node granted the token, if it did.
    pub fn granted_ms(&self, node: usize) -> Option<u64> {
        let on = &self.on[node];
        on.held.filter(|_| on.granted).map(|(_, ttl_ms)| ttl_ms)
    }

    pub fn released(&self) -> usize {
        self.on.iter().filter(|on| on.released).count()
    }
}
