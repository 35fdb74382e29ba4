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

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    command::{Ballot, By, Verb, encode},
    handshake::Greeting,
    lease::{Lease, Phase},
    node::{NodeId, NodeSet},
    quorum::{Quorum, Tally, Verdict},
    request::{Request, Spec},
    session::{Command, Delivery, Expected, Output, Session},
    slab::{Id, Slab},
    time::Time,
    timers::Timers,
    token::{Token, TokenSource},
    validity::{Ttl, valid_until},
};
use crate::{
    config::{Drift, RetryPolicy},
    error::{self, AcquireError, ExtendError, NodeError, ReleaseError, Vote},
};

/// What all nodes have in common.
#[derive(Debug)]
pub struct Settings {
    pub names: Arc<[Box<str>]>,
    pub key_prefix: Box<[u8]>,
    pub connect_timeout: Duration,
    pub drift: Drift,
    pub retry: RetryPolicy,
}

#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    quorum: Quorum,
    nodes: u8,
    sessions: Vec<Session>,
    requests: Slab<Request>,
    leases: Slab<Lease>,
    requests_due: Timers,
    leases_due: Timers,
    tokens: TokenSource,
    events: VecDeque<Event>,
    connects: NodeSet,
    closes: NodeSet,
    counts: Counts,
    /// Where commands are built: once per attempt, for all nodes.
    scratch: Vec<u8>,
}

/// What was settled. The large variant is the one that matters: boxing it would cost every lock an
/// allocation.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Event {
    Acquired { request: Id<Request>, grant: Grant },
    Extended { lease: Id<Lease>, result: Result<Time, ExtendError> },
    NotAcquired { request: Id<Request>, error: AcquireError },
    Released { lease: Id<Lease>, result: Result<(), ReleaseError> },
}

/// A lock: held by a quorum, with validity left.
#[derive(Debug)]
pub struct Grant {
    pub lease: Id<Lease>,
    pub token: Token,
    pub valid_until: Time,
    pub attempt: error::Attempt,
}

/// Events that leave no other trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Replies whose attempt was over: consumed, and credited to nobody.
    pub abandoned: u64,
    /// Connections closed because a reply did not fit its place.
    pub protocol_errors: u64,
}

// Getters.
impl Engine {
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + Clone + use<> {
        NodeId::all(self.nodes)
    }

    pub fn counts(&self) -> Counts {
        self.counts
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

    /// How connecting stands, as votes: granted is ready, failed is the last error of a node that is not.
    pub fn connections(&self) -> (Verdict, Vec<Vote>) {
        let votes = self.sessions.iter().map(|session| match session.last_error() {
            _ if session.is_ready() => Vote::Granted,
            error if session.is_down() => Vote::Failed(error.clone()),
            _ => Vote::Pending,
        });
        let votes: Vec<_> = votes.collect();
        let count = |is: fn(&Vote) -> bool| {
            u8::try_from(votes.iter().filter(|vote| is(vote)).count()).unwrap_or(u8::MAX)
        };
        let granted = count(|vote| matches!(vote, Vote::Granted));
        let failed = count(|vote| vote.error().is_some_and(NodeError::is_permanent));
        (self.quorum.verdict(Tally { granted, refused: 0, failed }), votes)
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
        Self {
            settings,
            quorum: Quorum::of(nodes),
            nodes,
            sessions,
            requests: Slab::new(),
            leases: Slab::new(),
            requests_due: Timers::default(),
            leases_due: Timers::default(),
            tokens: TokenSource::new(seed),
            events: VecDeque::new(),
            connects: NodeSet::default(),
            closes: NodeSet::default(),
            counts: Counts::default(),
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
        if let Err(error) = self.input(now, node, bytes) {
            if matches!(error, NodeError::Protocol(_)) {
                self.counts.protocol_errors += 1;
            }
            self.give_up(now, node, error);
        }
    }

    fn input(&mut self, now: Time, node: NodeId, bytes: &[u8]) -> Result<(), NodeError> {
        self.session(node).feed(bytes)?;
        while let Some(output) = self.session(node).next(now)? {
            match output {
                Output::Answer { expected, ballot } => self.answer(now, node, expected, ballot),
                Output::Ready => self.ready(now, node)?,
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
                Verb::Acquire | Verb::Extend => {
                    self.credit(now, node, command, Vote::NotSent(error.clone()));
                }
                Verb::Release => self.owe(now, node, command),
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
            } else {
                self.give_up(now, node, NodeError::Timeout);
            }
        }
        while let Some(slot) = self.leases_due.pop_due(now) {
            if let Some(id) = self.leases.id_at(slot) {
                self.expire(now, id);
            }
        }
        while let Some(slot) = self.requests_due.pop_due(now) {
            if let Some(id) = self.requests.id_at(slot) {
                self.attempt(now, id);
            }
        }
    }

    fn expire(&mut self, now: Time, id: Id<Lease>) {
        let nodes = self.nodes();
        if let Some(lease) = self.leases.get_mut(id) {
            lease.expire(nodes);
            self.settle(now, id);
        }
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
        for command in self.session(node).take_parked() {
            let overdue = self.overdue(now, command.lease);
            let Some(lease) = self.leases.get_mut(command.lease) else {
                continue;
            };
            if lease.wants(node, command) {
                self.scratch.clear();
                let Lease { key, token, ttl, .. } = &*lease;
                encode(&mut self.scratch, command.verb, By::Digest, key, token, *ttl);
                let session = &mut self.sessions[node.index()];
                let delivery = session.deliver(&self.scratch, command, overdue);
                self.delivered(node, command, delivery);
                self.settle(now, command.lease);
            }
        }
        Ok(())
    }
}

// What callers want.
impl Engine {
    /// Begins the first attempt at once. Ends in an `Acquired` or a `NotAcquired`.
    pub fn acquire(&mut self, now: Time, spec: Spec<'_>) -> Id<Request> {
        let (id, request) = self.requests.claim();
        request.begin(&self.settings.key_prefix, spec);
        self.attempt(now, id);
        id
    }

    /// Forgets a request. What its attempt took is released, behind the `SET`s; there is no event.
    pub fn cancel(&mut self, now: Time, id: Id<Request>) {
        let Some(request) = self.requests.get(id) else {
            return;
        };
        let lease = request.lease;
        self.requests_due.clear(id.slot());
        self.requests.free(id);
        if let Some(lease) = lease {
            self.begin_release(now, lease, false);
            self.reap(lease);
        }
    }

    /// Asks the nodes that hold the lock to let it live for `ttl` from now. Ends in an `Extended`, unless it
    /// is refused here and now.
    pub fn extend(
        &mut self,
        now: Time,
        id: Id<Lease>,
        ttl: Ttl,
        node_timeout: Duration,
    ) -> Result<(), ExtendError> {
        let nodes = self.nodes();
        let Some(lease) = self.leases.get_mut(id) else {
            return Err(ExtendError::Closed);
        };
        if lease.valid_until <= now || lease.phase != Phase::Held {
            return Err(ExtendError::Expired);
        }
        let until = valid_until(now, ttl, self.settings.drift);
        // A shorter ttl may take effect on nodes whose answers we never see.
        lease.valid_until = lease.valid_until.min(until);
        lease.ttl = ttl;
        lease.node_timeout = node_timeout;
        lease.phase = Phase::Extending { until };
        let deadline = now.after(node_timeout).min(lease.valid_until);
        let to = lease.begin_change(nodes, Verb::Extend, now, deadline);
        self.leases_due.set(id.slot(), deadline);
        self.broadcast(now, id, Verb::Extend, to);
        self.settle(now, id);
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

// Attempts, from first byte to verdict.
impl Engine {
    fn attempt(&mut self, now: Time, id: Id<Request>) {
        let nodes = self.nodes();
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let (lease_id, lease) = self.leases.claim();
        lease.begin(id, request, self.tokens.token(), nodes.len(), now);
        lease.valid_until = valid_until(now, request.ttl, self.settings.drift);
        request.attempts += 1;
        request.lease = Some(lease_id);
        self.leases_due.set(lease_id.slot(), lease.claim.deadline());
        self.broadcast(now, lease_id, Verb::Acquire, nodes);
        self.settle(now, lease_id);
    }

    /// Sends one command to several nodes. It is built once.
    fn broadcast(
        &mut self,
        now: Time,
        id: Id<Lease>,
        verb: Verb,
        to: impl Iterator<Item = NodeId>,
    ) {
        let overdue = self.overdue(now, id);
        let Some(lease) = self.leases.get(id) else {
            return;
        };
        let command = Command { lease: id, verb, round: lease.round };
        self.scratch.clear();
        encode(&mut self.scratch, verb, By::Digest, &lease.key, &lease.token, lease.ttl);
        for node in to {
            let session = &mut self.sessions[node.index()];
            let delivery = session.deliver(&self.scratch, command, overdue);
            self.delivered(node, command, delivery);
        }
    }

    /// Books what became of a command. It may cast a vote: the caller settles.
    fn delivered(&mut self, node: NodeId, command: Command, delivery: Delivery) {
        let Some(lease) = self.leases.get_mut(command.lease) else {
            return;
        };
        match delivery {
            Delivery::Sent => lease.mark_sent(node, command.verb),
            Delivery::Parked => {}
            Delivery::Refused(error) => lease.credit(node, command, Vote::NotSent(error)),
        }
    }

    fn answer(&mut self, now: Time, node: NodeId, expected: Expected, ballot: Ballot) {
        let command = expected.command;
        let vote = match ballot {
            Ballot::Failed(error) => Vote::Failed(error),
            Ballot::Granted => Vote::Granted,
            Ballot::NoScript if expected.by_source => {
                Vote::Failed(NodeError::Server("NOSCRIPT, though the script was sent".into()))
            }
            Ballot::NoScript => return self.send_source(now, node, command),
            Ballot::Refused => Vote::Refused,
        };
        if !self.leases.get(command.lease).is_some_and(|lease| lease.awaits(command)) {
            self.counts.abandoned += 1;
        }
        self.credit(now, node, command, vote);
    }

    /// The one fallback, within the deadline of the command it stands for.
    fn send_source(&mut self, now: Time, node: NodeId, command: Command) {
        let overdue = self.overdue(now, command.lease);
        let Some(lease) = self.leases.get(command.lease).filter(|lease| lease.wants(node, command))
        else {
            self.counts.abandoned += 1;
            return;
        };
        self.scratch.clear();
        let Lease { key, token, ttl, .. } = lease;
        encode(&mut self.scratch, command.verb, By::Source, key, token, *ttl);
        let session = &mut self.sessions[node.index()];
        if let Err(error) = session.send(&self.scratch, command, true, overdue) {
            self.credit(now, node, command, Vote::NotSent(error));
        }
    }

    /// The connection died with this unanswered.
    fn unanswered(
        &mut self,
        now: Time,
        node: NodeId,
        lost: Expected,
        written: u64,
        error: &NodeError,
    ) {
        let was_sent = lost.was_sent(written);
        match lost.command.verb {
            Verb::Release => self.owe(now, node, lost.command),
            _ if was_sent => self.credit(now, node, lost.command, Vote::Unknown(error.clone())),
            _ => self.credit(now, node, lost.command, Vote::NotSent(error.clone())),
        }
    }

    /// A release that a connection took with it is owed on the next one, unless its `SET` never left.
    fn owe(&mut self, now: Time, node: NodeId, command: Command) {
        let Some(lease) = self.leases.get(command.lease) else {
            return;
        };
        if lease.sent.contains(node) {
            let delivery = self.session(node).park(command);
            self.delivered(node, command, delivery);
            self.settle(now, command.lease);
        } else {
            self.credit(now, node, command, Vote::NotSent(NodeError::Closed));
        }
    }

    /// Takes what became of a command, and acts on it.
    fn credit(&mut self, now: Time, node: NodeId, command: Command, vote: Vote) {
        if let Some(lease) = self.leases.get_mut(command.lease) {
            lease.credit(node, command, vote);
            self.settle(now, command.lease);
        }
    }

    /// A node that has been silent for this long after a command is taken for dead.
    fn overdue(&self, now: Time, id: Id<Lease>) -> Time {
        let node_timeout = self.leases.get(id).map(|lease| lease.node_timeout);
        now.after(self.settings.connect_timeout.max(node_timeout.unwrap_or_default()))
    }
}

// Verdicts.
impl Engine {
    /// Acts on the verdict, if there is one by now. The only way out of voting.
    fn settle(&mut self, now: Time, id: Id<Lease>) {
        let Some(lease) = self.leases.get(id) else {
            return;
        };
        match lease.phase {
            Phase::Claiming { request } => match lease.claim.verdict(self.quorum) {
                Verdict::Open => {}
                verdict => self.settle_claim(now, id, request, verdict),
            },
            Phase::Extending { until } => match lease.change.verdict(self.quorum) {
                Verdict::Open => {}
                verdict => self.settle_extension(now, id, until, verdict),
            },
            Phase::Releasing { reported: true } => match lease.change.verdict(self.quorum) {
                Verdict::Open => {}
                verdict => self.settle_release(now, id, verdict),
            },
            Phase::Held | Phase::Releasing { reported: false } => {}
        }
        self.reap(id);
    }

    fn settle_claim(&mut self, now: Time, id: Id<Lease>, by: Id<Request>, verdict: Verdict) {
        let (Some(lease), Some(request)) = (self.leases.get_mut(id), self.requests.get_mut(by))
        else {
            return;
        };
        self.leases_due.clear(id.slot());
        let attempt = lease.claim.record(now, request.attempts, &self.settings.names);
        let validity = lease.validity(now);
        let valid = !validity.is_zero() && validity >= request.min_validity;
        if verdict == Verdict::Won && valid {
            assert!(validity <= lease.ttl.duration(), "more validity than was asked for");
            lease.phase = Phase::Held;
            let Lease { token, valid_until, .. } = *lease;
            let grant = Grant { lease: id, token, valid_until, attempt };
            self.events.push_back(Event::Acquired { request: by, grant });
            self.requests.free(by);
            return;
        }
        request.lease = None;
        self.begin_release(now, id, false);
        self.again(now, by, verdict, Box::new(attempt));
    }

    /// After a lost attempt: another one later, or the end.
    fn again(
        &mut self,
        now: Time,
        id: Id<Request>,
        verdict: Verdict,
        attempt: Box<error::Attempt>,
    ) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let RetryPolicy { min, max } = self.settings.retry;
        let next = request.next_attempt(now, self.tokens.delay(min, max));
        let hopeless = attempt.permanently_failed() > attempt.votes.len() - attempt.quorum();
        if let (Some(at), false) = (next, hopeless) {
            request.last = Some(attempt);
            self.requests_due.set(id.slot(), at);
            return;
        }
        let error = match verdict {
            _ if request.deadline.is_some() && !hopeless => {
                AcquireError::DeadlineExceeded(Some(attempt))
            }
            Verdict::Won => AcquireError::Expired(attempt),
            Verdict::Contended => AcquireError::Contended(attempt),
            Verdict::NoQuorum | Verdict::Open => AcquireError::NoQuorum(attempt),
        };
        self.events.push_back(Event::NotAcquired { request: id, error });
        self.requests.free(id);
    }

    fn settle_extension(&mut self, now: Time, id: Id<Lease>, until: Time, verdict: Verdict) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        self.leases_due.clear(id.slot());
        lease.phase = Phase::Held;
        let attempt = || Box::new(lease.change.record(now, 1, &self.settings.names));
        let result = if lease.valid_until <= now {
            // Too late, whatever they say: to go on now would be to hold a lock that was lost in between.
            Err(ExtendError::Expired)
        } else if verdict == Verdict::Won {
            lease.valid_until = until;
            Ok(until)
        } else if lease.denied.len() >= u32::from(self.quorum.needed()) {
            let attempt = attempt();
            lease.valid_until = lease.valid_until.min(now);
            Err(ExtendError::Lost(attempt))
        } else {
            Err(ExtendError::NoQuorum { attempt: attempt(), validity: lease.validity(now) })
        };
        self.events.push_back(Event::Extended { lease: id, result });
    }

    /// Sends the release to every node that the `SET` was sent to, answered or not.
    fn begin_release(&mut self, now: Time, id: Id<Lease>, reported: bool) {
        let nodes = self.nodes();
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        if matches!(lease.phase, Phase::Releasing { .. }) {
            return;
        }
        lease.phase = Phase::Releasing { reported };
        let deadline = now.after(lease.node_timeout);
        lease.owed = lease.begin_change(nodes, Verb::Release, now, deadline);
        let to = lease.owed;
        self.leases_due.clear(id.slot());
        if reported {
            self.leases_due.set(id.slot(), deadline);
        }
        self.broadcast(now, id, Verb::Release, to);
    }

    fn settle_release(&mut self, now: Time, id: Id<Lease>, verdict: Verdict) {
        let Some(lease) = self.leases.get_mut(id) else {
            return;
        };
        self.leases_due.clear(id.slot());
        lease.phase = Phase::Releasing { reported: false };
        let attempt = || Box::new(lease.change.record(now, 1, &self.settings.names));
        let result = match verdict {
            Verdict::Won => Ok(()),
            Verdict::Contended => Err(ReleaseError::NotHeld(attempt())),
            Verdict::NoQuorum | Verdict::Open => Err(ReleaseError::NoQuorum(attempt())),
        };
        self.events.push_back(Event::Released { lease: id, result });
    }

    /// Forgets a lease that nobody waits for and no node can hold.
    fn reap(&mut self, id: Id<Lease>) {
        let over = self.leases.get(id).is_some_and(|lease| {
            lease.phase == Phase::Releasing { reported: false } && lease.owed.is_empty()
        });
        if over {
            self.leases_due.clear(id.slot());
            self.leases.free(id);
        }
    }
}
