//! The face of the protocol: N sessions, and the requests and leases that speak through them.
//!
//! Like quinn-proto's connection it does nothing by itself. There are four kinds of methods:
//!
//! - getters, on `&self`;
//! - `handle_*`: what the network and the clock did. Every one is told the time, which never goes back;
//! - commands: [`acquire`](Engine::acquire), [`cancel`](Engine::cancel), [`extend`](Engine::extend),
//!   [`release`](Engine::release);
//! - `poll_*`: what is to be done now. After any of the above a driver drains, in this order,
//!   [`poll_close`](Engine::poll_close), [`poll_connect`](Engine::poll_connect),
//!   [`outgoing`](Engine::outgoing) of every node, [`poll_event`](Engine::poll_event), and then sleeps until
//!   [`poll_timeout`](Engine::poll_timeout) or input.
//!
//! Before a `handle_timeout` the driver reads what has already come: an answer that lies in a socket's
//! buffer is not late.

mod holding;
mod lines;
#[cfg(quorlock_mutants)]
mod mutations;
mod sending;
mod settling;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    command::{By, Verb, encode},
    handshake::Greeting,
    lease::{Lease, Phase},
    node::{NodeId, NodeSet},
    quorum::{Quorum, Tally, Verdict},
    request::{Request, Spec},
    restart::Restarts,
    session::{Command, Output, Session},
    slab::{Id, Slab},
    stats::Stats,
    time::Time,
    timers::Timers,
    token::{Token, TokenSource},
    validity::{Ttl, surely_over},
    waiting::Lines,
};
use crate::{
    config::{Drift, RestartGuard, RetryPolicy},
    error::{self, AcquireError, ExtendError, LostReason, NodeError, ReleaseError, Vote},
    fencing::FencingToken,
};

/// What all nodes have in common.
#[derive(Debug)]
pub struct Settings {
    pub names: Arc<[Box<str>]>,
    pub key_prefix: Box<[u8]>,
    pub connect_timeout: Duration,
    pub drift: Drift,
    pub retry: RetryPolicy,
    pub restart_guard: RestartGuard,
    /// No lock lives longer than this, here or elsewhere, as far as is known now.
    pub ttl_longest: Ttl,
    /// Whether extensions put locks back on nodes that lost them.
    pub repair: bool,
}

#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    quorum: Quorum,
    nodes: u8,
    sessions: Vec<Session>,
    restarts: Vec<Restarts>,
    requests: Slab<Request>,
    leases: Slab<Lease>,
    requests_due: Timers,
    leases_due: Timers,
    lines: Lines,
    tokens: TokenSource,
    events: VecDeque<Event>,
    connects: NodeSet,
    closes: NodeSet,
    stats: Stats,
    /// Where commands are built: once per attempt, for all nodes.
    scratch: Vec<u8>,
}

/// What was settled. The large variant is the one that matters: boxing it would cost every lock an
/// allocation.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Event {
    Acquired {
        request: Id<Request>,
        grant: Grant,
    },
    /// `asked_for` by the holder, or done by the schedule and granted.
    Extended {
        lease: Id<Lease>,
        asked_for: bool,
        result: Result<Time, ExtendError>,
    },
    NotAcquired {
        request: Id<Request>,
        error: AcquireError,
    },
    /// Once for each lock that the engine cares for, and at the moment it is.
    Lost {
        lease: Id<Lease>,
        reason: LostReason,
    },
    Released {
        lease: Id<Lease>,
        result: Result<(), ReleaseError>,
    },
    /// A lock that the engine cares for is about to be given less time than it had: by an extension to an earlier
    /// end, whose answers may never be seen.
    Shortened {
        lease: Id<Lease>,
        until: Time,
    },
}

/// A lock: held by a quorum, with validity left.
#[derive(Debug)]
pub struct Grant {
    pub lease: Id<Lease>,
    pub token: Token,
    pub valid_until: Time,
    pub fencing_token: Option<FencingToken>,
    pub attempt: error::Attempt,
}

// Getters.
impl Engine {
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + Clone + use<> {
        NodeId::all(self.nodes)
    }

    /// The counters, without the state of the connections.
    pub fn counts(&self) -> &Stats {
        &self.stats
    }

    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.clone();
        let nodes = self.sessions.iter().zip(&self.restarts);
        for (node, (session, restarts)) in stats.nodes.iter_mut().zip(nodes) {
            node.ready = session.is_ready();
            node.identified = session.identity().run_id.is_some();
            node.evicts = session.identity().evicts;
            node.restarts = restarts.seen();
            node.last_error = session.ended_by().cloned();
        }
        stats
    }

    /// How many locks were given up and are not yet known to be gone from every node.
    pub fn releasing(&self) -> usize {
        let releasing = |lease: &&Lease| matches!(lease.phase, Phase::Releasing { .. });
        self.leases.iter().filter(releasing).count()
    }

    /// Until when a lock may be relied on, as of now.
    pub fn valid_until(&self, id: Id<Lease>) -> Time {
        self.leases.get(id).map_or(Time::from_nanos(0), |lease| lease.valid_until)
    }

    /// What the nodes have said by now to a lock's `SET`, and to the latest extension if there was one.
    pub fn votes(
        &self,
        now: Time,
        id: Id<Lease>,
    ) -> Option<(error::Attempt, Option<error::Attempt>)> {
        let lease = self.leases.get(id)?;
        let names = &self.settings.names;
        let change = (lease.round > 0).then(|| lease.change.record(now, 1, names));
        Some((lease.claim.record(now, 1, names), change))
    }

    /// How connecting stands, as votes: granted is ready, failed is the last error of a node that is not. Its next try
    /// may be under way by then; pending is its first.
    pub fn connections(&self) -> (Verdict, Vec<Vote>) {
        let votes = self.sessions.iter().map(|session| match session.last_error() {
            _ if session.is_ready() => Vote::Granted,
            error if session.is_down() => Vote::Failed(error.clone()),
            _ => session.ended_by().cloned().map_or(Vote::Pending, Vote::Failed),
        });
        let votes: Vec<_> = votes.collect();
        let count = |is: fn(&Vote) -> bool| {
            u8::try_from(votes.iter().filter(|vote| is(vote)).count()).unwrap_or(u8::MAX)
        };
        let granted = count(|vote| matches!(vote, Vote::Granted));
        let failed = count(|vote| vote.error().is_some_and(NodeError::is_permanent));
        (self.quorum.verdict(Tally { granted, refused: 0, failed }), votes)
    }

    /// Whether anything waits to be written.
    pub fn is_sending(&self) -> bool {
        self.sessions.iter().any(|session| !session.outgoing().is_empty())
    }

    /// Whether a node is still to answer something.
    pub fn is_awaiting(&self) -> bool {
        self.sessions.iter().any(Session::is_awaiting)
    }

    /// Whether a connection is in the making.
    pub fn is_connecting(&self) -> bool {
        self.sessions.iter().any(|session| !session.is_ready() && !session.is_down())
    }

    fn session(&mut self, node: NodeId) -> &mut Session {
        &mut self.sessions[node.index()]
    }
}

// What the network and the clock did.
impl Engine {
    /// One greeting for each of the settings' names.
    pub fn new(
        settings: Settings,
        greetings: impl IntoIterator<Item = Greeting>,
        seed: [u8; 32],
        now: Time,
    ) -> Self {
        let timeout = settings.connect_timeout;
        let sessions: Vec<_> =
            greetings.into_iter().map(|greeting| Session::new(greeting, timeout, now)).collect();
        let nodes = u8::try_from(sessions.len()).expect("the configuration caps the nodes");
        assert_eq!(sessions.len(), settings.names.len(), "a greeting for each node");
        let stats = Stats::new(&settings.names);
        let restarts =
            sessions.iter().map(|_| Restarts::new(settings.restart_guard, now)).collect();
        Self {
            settings,
            restarts,
            quorum: Quorum::of(nodes),
            nodes,
            sessions,
            requests: Slab::new(),
            leases: Slab::new(),
            requests_due: Timers::default(),
            leases_due: Timers::default(),
            lines: Lines::default(),
            tokens: TokenSource::new(seed),
            events: VecDeque::new(),
            connects: NodeSet::default(),
            closes: NodeSet::default(),
            stats,
            scratch: Vec::new(),
        }
    }

    /// The node's name was looked up, and connecting goes on.
    pub fn handle_resolved(&mut self, now: Time, node: NodeId) {
        self.session(node).progressed(now);
    }

    pub fn handle_connected(&mut self, now: Time, node: NodeId) {
        self.session(node).connected(now);
    }

    /// `now` is a time after the bytes were read.
    pub fn handle_input(&mut self, now: Time, node: NodeId, bytes: &[u8]) {
        if self.sessions[node.index()].is_ready() {
            self.restarts[node.index()].heard(now);
        }
        if let Err(error) = self.input(now, node, bytes) {
            if matches!(error, NodeError::Protocol(_)) {
                self.stats.protocol_errors += 1;
            }
            self.give_up(now, node, error);
        }
    }

    fn input(&mut self, now: Time, node: NodeId, bytes: &[u8]) -> Result<(), NodeError> {
        self.session(node).feed(bytes)?;
        while let Some(output) = self.session(node).next(now)? {
            match output {
                Output::Answer { command, by_source, ballot } => {
                    self.check(command, &ballot)?;
                    self.answer(now, node, command, by_source, ballot);
                }
                Output::Invalidated(key) => self.invalidated(now, node, key.as_deref()),
                Output::Ready => self.ready(now, node)?,
                Output::Remaining { question, remaining } => {
                    self.learned(now, node, question, remaining);
                }
            }
        }
        Ok(())
    }

    /// The connection is gone, or could not be made.
    pub fn handle_disconnected(&mut self, now: Time, node: NodeId, error: NodeError) {
        self.connects.remove(node);
        let error = self.session(node).explain(error);
        let (min, max) = self.session(node).backoff(&error);
        let retry_at = now.after(self.tokens.delay(min, max));
        let (expected, written) = self.session(node).fail(error.clone(), retry_at);
        for lost in &expected {
            self.unanswered(now, node, *lost, written, &error);
        }
        for command in self.session(node).take_parked() {
            match command.verb {
                Verb::Release => self.owe(now, node, command),
                _ => self.credit(now, node, command, Vote::NotSent(error.clone())),
            }
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        for node in self.nodes() {
            if self.session(node).timeout().is_none_or(|at| at > now) {
                continue;
            }
            if self.session(node).is_down() {
                self.session(node).connecting(now);
                self.connects.insert(node);
            } else if self.session(node).is_to_ask_again(now) {
                let first = self.session(node).take_first_parked();
                self.send_again(now, node, first);
            } else {
                self.give_up(now, node, NodeError::Timeout);
            }
        }
        // Each may make the other due: an attempt that begins when its deadline is over, say.
        while self.lease_timeout(now) || self.request_timeout(now) {}
    }

    /// Sees to one lease that is due. Says whether there was one.
    fn lease_timeout(&mut self, now: Time) -> bool {
        let slot = self.leases_due.pop_due(now);
        if let Some(id) = slot.and_then(|slot| self.leases.id_at(slot)) {
            self.lease_due(now, id);
        }
        slot.is_some()
    }

    fn request_timeout(&mut self, now: Time) -> bool {
        let slot = self.requests_due.pop_due(now);
        if let Some(id) = slot.and_then(|slot| self.requests.id_at(slot)) {
            self.request_due(now, id);
        }
        slot.is_some()
    }

    /// Ends a connection from our side.
    fn give_up(&mut self, now: Time, node: NodeId, error: NodeError) {
        self.closes.insert(node);
        self.handle_disconnected(now, node, error);
    }

    /// A node that was reached may be one that has a vote already, under another address.
    fn ready(&mut self, now: Time, node: NodeId) -> Result<(), NodeError> {
        let run_id = &self.sessions[node.index()].identity().run_id;
        let twin = self.nodes().find(|other| {
            let session = &self.sessions[other.index()];
            *other != node && session.is_ready() && session.identity().run_id == *run_id
        });
        if let (Some(twin), Some(_)) = (twin, run_id) {
            let name = &self.settings.names[twin.index()];
            return Err(NodeError::Config(format!("the same server as {name}").into()));
        }
        let identity = self.sessions[node.index()].identity();
        if self.restarts[node.index()].connected(now, identity) {
            self.leases.iter_mut().for_each(|lease| lease.restarted(node));
        }
        self.send_parked(now, node);
        Ok(())
    }

    /// Why a node is not to be asked for a new lock: what it held before it was restarted may still be relied on.
    pub(super) fn forgetful(&self, now: Time, node: NodeId) -> Option<NodeError> {
        let Settings { ttl_longest, drift, .. } = self.settings;
        let longest = surely_over(ttl_longest, drift);
        let left = self.restarts[node.index()].stays_away(now, longest)?;
        Some(NodeError::Restarted { stays_away: left })
    }

    /// A lock may live for so long: from now on a node that was restarted stays away for at least as long.
    fn reckon_with(&mut self, ttl: Ttl) {
        if ttl.millis() > self.settings.ttl_longest.millis() {
            self.settings.ttl_longest = ttl;
        }
    }

    /// Sends what was kept for a node that can take it now.
    pub(super) fn send_parked(&mut self, now: Time, node: NodeId) {
        let parked = self.session(node).take_parked();
        self.send_again(now, node, parked);
    }

    /// Sends what was kept, as far as it is still wanted.
    fn send_again(&mut self, now: Time, node: NodeId, parked: impl IntoIterator<Item = Command>) {
        for command in parked {
            let overdue = self.overdue(now, command.lease);
            let forgetful = command.verb.is_claim().then(|| self.forgetful(now, node));
            if let Some(error) = forgetful.flatten() {
                self.credit(now, node, command, Vote::NotSent(error));
                continue;
            }
            let Some(lease) = self.leases.get_mut(command.lease) else {
                continue;
            };
            if lease.is_worth(command, now) && lease.wants(node, command) {
                mutant!(ValidityFromSend => if command.verb.is_claim() {
                    lease.count_from(now, self.settings.drift)
                });
                self.scratch.clear();
                encode(&mut self.scratch, command.verb, By::Digest, lease.subject());
                let session = &mut self.sessions[node.index()];
                let delivery = session.deliver(now, &self.scratch, command, overdue);
                self.delivered(node, command, delivery);
                self.settle(now, command.lease);
            }
        }
    }
}

// What callers want.
impl Engine {
    /// Begins the first attempt at once. Ends in an `Acquired` or a `NotAcquired`.
    pub fn acquire(&mut self, now: Time, spec: Spec<'_>) -> Id<Request> {
        self.reckon_with(spec.ttl);
        let (id, request) = self.requests.claim();
        request.begin(&self.settings.key_prefix, spec, now);
        self.queue(now, id);
        id
    }

    /// Forgets a request. What its attempt took is released, behind the `SET`s; there is no event, but of a request
    /// that was settled before: a grant that nobody polled for yet is to be released by whoever does.
    pub fn cancel(&mut self, now: Time, id: Id<Request>) {
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let lease = request.lease;
        self.stats.cancelled += 1;
        self.leave_line(now, id, Duration::ZERO);
        self.requests.free(id);
        if let Some(lease) = lease {
            mutant!(NoReleaseAfterCancel => self.forget_sent(lease));
            self.begin_release(now, lease, false);
            self.settle(now, lease);
        }
    }

    /// Asks the nodes that hold the lock to let it live for `ttl` from now. Ends in an `Extended`, unless it
    /// is refused here and now. One that is asked for while another is under way comes after it.
    pub fn extend(
        &mut self,
        now: Time,
        id: Id<Lease>,
        ttl: Ttl,
        node_timeout: Duration,
    ) -> Result<(), ExtendError> {
        self.reckon_with(ttl);
        let Some(lease) = self.leases.get_mut(id) else {
            return Err(ExtendError::Closed);
        };
        match lease.phase {
            Phase::Held if now < lease.valid_until || mutant!(ExtendAfterEnd) => {
                self.begin_extension(now, id, ttl, node_timeout, true);
                self.settle(now, id);
            }
            Phase::Extending { .. } => lease.extensions.push_back((ttl, node_timeout)),
            _ => return Err(ExtendError::Expired),
        }
        Ok(())
    }

    /// Deletes the keys. Ends in a `Released` if that is to be `reported`; either way it goes on until every
    /// node has answered.
    pub fn release(&mut self, now: Time, id: Id<Lease>, reported: bool) {
        self.begin_release(now, id, reported);
        self.settle(now, id);
    }
}

// What is to be done.
impl Engine {
    /// A node whose connection, if there is one, is to be closed.
    pub fn poll_close(&mut self) -> Option<NodeId> {
        self.closes.pop()
    }

    /// A node to connect to.
    pub fn poll_connect(&mut self) -> Option<NodeId> {
        self.connects.pop()
    }

    /// Bytes to write to a node. [`wrote`](Self::wrote) says how many were.
    pub fn outgoing(&self, node: NodeId) -> &[u8] {
        self.sessions[node.index()].outgoing()
    }

    pub fn wrote(&mut self, node: NodeId, bytes: usize) {
        self.session(node).wrote(bytes);
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) if nothing comes.
    pub fn poll_timeout(&self) -> Option<Time> {
        let sessions = self.sessions.iter().filter_map(Session::timeout);
        sessions.chain(self.leases_due.next()).chain(self.requests_due.next()).min()
    }
}
