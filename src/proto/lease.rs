//! One token's life: from the `SET` that goes out to all nodes until no node can hold it any more.
//!
//! Whether the attempt is won or lost, the lease remembers which nodes its `SET` may have reached, and lives
//! until each of them has answered its release.

use std::{collections::VecDeque, time::Duration};

use super::{
    attempt::Attempt,
    command::{Subject, Verb},
    fence::Fence,
    node::{NodeId, NodeSet},
    quorum::Quorum,
    request::{Care, Request},
    session::Command,
    slab::Id,
    time::Time,
    token::Token,
    upkeep::Schedule,
    validity::Ttl,
};
use crate::{
    error::{NodeError, Vote},
    fencing::FencingToken,
};

#[derive(Debug)]
pub struct Lease {
    pub phase: Phase,
    pub key: Vec<u8>,
    /// Where the nodes count this lock's holders; empty for a lock without a fencing token.
    pub counter: Vec<u8>,
    pub token: Token,
    /// The ttl last set, or being set, on the keys.
    pub ttl: Ttl,
    pub node_timeout: Duration,
    /// Until when the lock may be relied on. Never moved forward but by an extension that a quorum granted.
    pub valid_until: Time,
    /// Whether the engine is to say so when it is lost. It says so once.
    pub watched: bool,
    pub schedule: Option<Schedule>,
    /// Who asked for the extension under way: the holder, or the schedule.
    pub asked_for: bool,
    /// What else the holder asked for meanwhile.
    pub extensions: VecDeque<(Ttl, Duration)>,
    /// The `SET` and its votes.
    pub claim: Attempt,
    /// The latest confirmation, extension or release and its votes.
    pub change: Attempt,
    pub fence: Fence,
    /// How long a second round waits for those it went to, if there are others to ask.
    pub patience: Duration,
    /// The token that the holder was given.
    pub fencing_token: Option<FencingToken>,
    /// Counts the changes: tells late answers to an earlier one from answers to this one.
    pub round: u32,
    /// Where the `SET` was sent to, and may have run or may yet run.
    pub sent: NodeSet,
    /// Nodes where the `SET` or the latest repair may yet run: it was not answered, or lost with its connection. It could
    /// put the lock back where it was lost after another repair was answered, and nobody would know.
    pub setting: NodeSet,
    /// Where the latest change was sent to.
    pub asked: NodeSet,
    /// Nodes that granted the lock and have said "mine" ever since: only these count for an extension. A
    /// node that once said otherwise stays out, whatever it says later: somebody else may have had it in between.
    pub mine: NodeSet,
    /// Of `mine`, nodes that do not count yet, as it came to them too late: after the fencing token was taken,
    /// or by repair. They count once an extension by the others has shown that the lock was held all along.
    pub joining: NodeSet,
    /// Those of them to which the lock had come when the latest change began.
    pub joined_before: NodeSet,
    /// Nodes where an extension or a repair was lost with its connection, and may yet run, after later ones.
    pub doubtful: NodeSet,
    /// The shortest ttl that was ever sent.
    pub ttl_min: Ttl,
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
    /// A quorum has granted it, and is to confirm its fencing token.
    Confirming {
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
        self.counter.clear();
        self.fence.begin(request.fencing, nodes);
        self.fencing_token = None;
        if self.fence.is_on() {
            self.counter.extend_from_slice(&request.key);
            self.counter.extend_from_slice(COUNTER_SUFFIX);
        }
        let reused = mutant!(TokenReused) && self.token != Token::NONE;
        self.token = if reused { self.token } else { token };
        self.ttl = request.ttl;
        self.node_timeout = request.node_timeout;
        self.watched = matches!(request.care, Care::Engine { .. });
        self.schedule = match request.care {
            Care::Engine { upkeep: Some(upkeep) } => Some(Schedule::new(upkeep, now)),
            Care::Engine { upkeep: None } | Care::Holder => None,
        };
        self.extensions.clear();
        self.claim.begin(nodes, now, request.attempt_deadline(now));
        self.round = 0;
        self.sent = NodeSet::default();
        self.setting = NodeSet::default();
        self.asked = NodeSet::default();
        self.mine = NodeSet::default();
        self.joining = NodeSet::default();
        self.joined_before = NodeSet::default();
        self.doubtful = NodeSet::default();
        self.ttl_min = request.ttl;
        self.denied = NodeSet::default();
        self.owed = NodeSet::default();
    }

    /// When something is to be done if no vote comes first.
    pub fn due(&self) -> Option<Time> {
        match self.phase {
            Phase::Claiming { .. } => Some(self.claim.deadline()),
            // Not after the validity's end.
            Phase::Confirming { .. } => {
                let deadline = self.change.deadline();
                Some(self.proposes_again_at().map_or(deadline, |at| at.min(deadline)))
            }
            Phase::Extending { .. } | Phase::Releasing { reported: true } => {
                Some(self.change.deadline())
            }
            Phase::Held if self.watched && !mutant!(LossOnlyOnReply) => {
                let next = self.schedule.and_then(|schedule| schedule.next());
                Some(next.map_or(self.valid_until, |next| next.min(self.valid_until)))
            }
            Phase::Held | Phase::Releasing { reported: false } => None,
        }
    }

    pub fn validity(&self, now: Time) -> Duration {
        self.valid_until.since(now)
    }

    /// The verb that takes it.
    pub fn claim_verb(&self) -> Verb {
        if self.fence.is_on() { Verb::AcquireFenced } else { Verb::Acquire }
    }

    /// What its commands are about.
    pub fn subject(&self) -> Subject<'_> {
        let Self { key, counter, token, ttl, .. } = self;
        let count = self.fencing_token.map_or_else(|| self.fence.proposed(), FencingToken::get);
        Subject { key, counter, token, ttl: *ttl, count }
    }

    /// Where the `SET` was sent to and not granted, as far as is known: somebody else's key may be there.
    pub fn not_granted(&self, nodes: impl Iterator<Item = NodeId>) -> NodeSet {
        let not_granted =
            |node: &NodeId| matches!(self.claim.vote(*node), Vote::Refused | Vote::Pending);
        nodes.filter(|node| self.sent.contains(*node)).filter(not_granted).collect()
    }

    /// Whether a command that was put off is still to be sent.
    pub fn wants(&self, node: NodeId, command: Command) -> bool {
        match command.verb {
            // Also for a lock that was won without this node: it had better not stand on a bare quorum.
            Verb::Acquire | Verb::AcquireFenced => {
                !matches!(self.phase, Phase::Releasing { .. }) && self.claim.is_pending(node)
            }
            Verb::Confirm => self.is_confirming(command.round) && self.change.is_pending(node),
            Verb::Repair => {
                matches!(self.phase, Phase::Held | Phase::Extending { .. })
                    && !self.mine.contains(node)
                    && !self.setting.contains(node)
            }
            Verb::Extend => self.is_extending(command.round) && self.change.is_pending(node),
            Verb::Release => self.owed.contains(node),
        }
    }

    /// Whether a quorum of nodes has said that it does not hold the lock.
    pub fn is_denied(&self, quorum: Quorum) -> bool {
        self.denied.len() >= u32::from(quorum.needed())
    }

    /// Whether a command comes before the end of what it is for.
    pub fn is_worth(&self, command: Command, now: Time) -> bool {
        command.verb == Verb::Release || now < self.valid_until
    }

    /// The command is on its way to the node.
    pub fn mark_sent(&mut self, node: NodeId, verb: Verb) {
        match verb {
            Verb::Acquire | Verb::AcquireFenced | Verb::Repair => {
                self.sent.insert(node);
                self.setting.insert(node);
            }
            Verb::Confirm | Verb::Extend | Verb::Release => self.asked.insert(node),
        }
    }

    /// Whether an answer still matters to anybody.
    pub fn awaits(&self, command: Command) -> bool {
        match command.verb {
            Verb::Acquire | Verb::AcquireFenced | Verb::Repair => {
                !matches!(self.phase, Phase::Releasing { .. })
            }
            Verb::Confirm => self.is_confirming(command.round),
            Verb::Extend => self.is_extending(command.round),
            Verb::Release => true,
        }
    }

    /// Another process answers at the node: what its connections took with them does not run any more.
    pub fn restarted(&mut self, node: NodeId) {
        self.setting.remove(node);
    }

    /// The command has been answered, or was not sent.
    pub fn mark_settled(&mut self, node: NodeId, verb: Verb) {
        if verb.is_claim() || verb == Verb::Repair {
            self.setting.remove(node);
        }
    }

    /// Takes what became of one command on one node, in time or late.
    pub fn credit(&mut self, node: NodeId, command: Command, vote: Vote) {
        // What a connection took with it may yet run.
        if !matches!(vote, Vote::Unknown(_)) {
            self.mark_settled(node, command.verb);
        }
        match command.verb {
            Verb::Acquire | Verb::AcquireFenced => self.credit_claim(node, vote),
            Verb::Confirm => self.credit_confirmation(node, command.round, vote),
            Verb::Extend => self.credit_extension(node, command.round, vote),
            Verb::Release => {
                self.owed.remove(node);
                self.change.cast(node, vote);
            }
            Verb::Repair => self.credit_repair(node, &vote),
        }
    }

    /// A node that does not confirm has not granted it, as far as the attempt is concerned.
    fn credit_confirmation(&mut self, node: NodeId, round: u32, vote: Vote) {
        let vote = match vote {
            // The `SET` was granted, and who knows what became of it.
            Vote::NotSent(error) => Vote::Unknown(error),
            // It had denied it before, in answer to an earlier round.
            Vote::Granted if !self.mine.contains(node) => Vote::Refused,
            vote => vote,
        };
        if matches!(vote, Vote::Refused) {
            self.deny(node);
        }
        if self.is_confirming(round) {
            if !matches!(vote, Vote::Granted) {
                self.claim.revoke(node, vote.clone());
            }
            self.change.cast(node, vote);
        }
    }

    fn credit_extension(&mut self, node: NodeId, round: u32, vote: Vote) {
        let vote = match vote {
            // It had denied it before, in answer to an earlier extension that came late.
            Vote::Granted if !self.mine.contains(node) => Vote::Refused,
            Vote::Granted if self.joining.contains(node) => Vote::Failed(NodeError::Joining),
            vote => vote,
        };
        match vote {
            Vote::Refused if mutant!(DenialIgnored) => {}
            Vote::Refused if mutant!(DenierStays) => self.denied.insert(node),
            Vote::Refused => self.deny(node),
            Vote::Unknown(_) => self.doubtful.insert(node),
            _ => {}
        }
        if self.is_extending(round) {
            self.change.cast(node, vote);
        }
    }

    /// The node does not hold it. If it ever does again, that was too late to count at first.
    fn deny(&mut self, node: NodeId) {
        self.mine.remove(node);
        self.joining.remove(node);
        self.denied.insert(node);
    }

    /// The lock was put back, or is to be put back no more.
    fn credit_repair(&mut self, node: NodeId, vote: &Vote) {
        if matches!(vote, Vote::Granted) && !self.mine.contains(node) {
            self.mine.insert(node);
            if !mutant!(RepairedStands) {
                self.joining.insert(node);
            }
            self.denied.remove(node);
        }
        if matches!(vote, Vote::Unknown(_)) {
            self.doubtful.insert(node);
        }
    }

    /// A quorum has granted it. Takes its fencing token if it can, and says whether nothing is missing now.
    pub fn take_fencing_token(&mut self, quorum: Quorum) -> bool {
        if !self.fence.is_on() {
            return true;
        }
        let taken = match self.phase {
            Phase::Confirming { .. } => {
                let by = self.change.granted();
                self.fence.confirmed(by, quorum).map(|token| (token, by))
            }
            _ => self.fence.at_once(self.claim.granted(), quorum),
        };
        if let Some((token, by)) = taken {
            self.fencing_token = Some(token);
            self.joining = self.mine.without(by);
            mutant!(LateGrantStands => self.joining = NodeSet::default());
        }
        taken.is_some()
    }

    /// A grant that comes after a quorum belongs to the lock. One that comes after a loss belongs to nobody:
    /// the release is right behind it.
    fn credit_claim(&mut self, node: NodeId, vote: Vote) {
        match vote {
            // An extension overtook it while its script was sent: what was denied before is left to a repair.
            Vote::Granted if self.denied.contains(node) => {}
            Vote::Granted => {
                self.mine.insert(node);
                if self.fencing_token.is_some() && !mutant!(LateGrantStands) {
                    self.joining.insert(node);
                }
            }
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
            Phase::Confirming { .. } => {
                for node in self.fence.members() {
                    if self.change.is_pending(node) {
                        let silent = Vote::Unknown(NodeError::Timeout);
                        self.credit_confirmation(node, self.round, silent);
                    }
                }
                self.claim.expire(nodes, self.sent);
            }
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
        self.joined_before = self.joining;
        self.change.begin(nodes.len(), now, deadline);
        let mut to = NodeSet::default();
        for node in nodes {
            let claim = self.claim.vote(node);
            let ask = match verb {
                Verb::Extend => {
                    let is_pending = matches!(claim, Vote::Pending) && !self.denied.contains(node);
                    let may_hold = self.mine.contains(node) || is_pending;
                    (may_hold || mutant!(ExtendAsksAll)) && !self.may_be_cut_short(node)
                }
                Verb::Confirm => self.fence.members().contains(node),
                Verb::Release if mutant!(ReleaseOnlyWhereGranted) => self.mine.contains(node),
                Verb::Acquire | Verb::AcquireFenced | Verb::Release | Verb::Repair => true,
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

    /// The latest extension was granted: what was there before it began counts from now on.
    pub fn let_join(&mut self) {
        self.joining = self.joining.without(self.joined_before);
    }

    /// Nodes that do not hold the lock, though nothing is under way to them.
    pub fn missing(&self, nodes: impl Iterator<Item = NodeId>) -> NodeSet {
        let is_missing = |node: &NodeId| {
            let comes = self.setting.contains(*node) || self.claim.is_pending(*node);
            !self.mine.contains(*node) && !comes
        };
        nodes.filter(is_missing).collect()
    }

    /// Whether an earlier, shorter extension may still come to the node and undo this one.
    fn may_be_cut_short(&self, node: NodeId) -> bool {
        !mutant!(DoubtIgnored)
            && self.doubtful.contains(node)
            && self.ttl_min.millis() < self.ttl.millis()
    }

    /// When a second round gives up waiting for those it went to, if others have granted the lock meanwhile: after twice
    /// what the first round took.
    pub fn proposes_again_at(&self) -> Option<Time> {
        let late = self.claim.granted().without(self.fence.members());
        (!late.is_empty()).then(|| self.change.started().after(self.patience))
    }

    fn is_confirming(&self, round: u32) -> bool {
        matches!(self.phase, Phase::Confirming { .. }) && round == self.round
    }

    fn is_extending(&self, round: u32) -> bool {
        let this_one = round == self.round || mutant!(OldExtensionCredited);
        matches!(self.phase, Phase::Extending { .. }) && this_one
    }
}

/// What a counter's key has behind its lock's.
pub const COUNTER_SUFFIX: &[u8] = b":fencing-counter";

/// The vote of a node that is not asked about a lock it never got.
fn not_asked(claim: &Vote) -> Vote {
    Vote::NotSent(claim.error().cloned().unwrap_or(NodeError::Timeout))
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            phase: Phase::Held,
            key: Vec::new(),
            counter: Vec::new(),
            token: Token::NONE,
            ttl: Ttl::NONE,
            node_timeout: Duration::ZERO,
            valid_until: Time::from_nanos(0),
            watched: false,
            schedule: None,
            asked_for: false,
            extensions: VecDeque::new(),
            claim: Attempt::default(),
            change: Attempt::default(),
            fence: Fence::default(),
            patience: Duration::ZERO,
            fencing_token: None,
            round: 0,
            sent: NodeSet::default(),
            setting: NodeSet::default(),
            asked: NodeSet::default(),
            mine: NodeSet::default(),
            joining: NodeSet::default(),
            joined_before: NodeSet::default(),
            doubtful: NodeSet::default(),
            ttl_min: Ttl::NONE,
            denied: NodeSet::default(),
            owed: NodeSet::default(),
        }
    }
}
