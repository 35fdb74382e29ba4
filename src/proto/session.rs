//! One node's connection, as far as it is bytes: what goes out, what is expected back, and in which order.
//!
//! Keeps the rule that everything rests on: one queue of expected replies per connection, first in first
//! out. A command whose attempt is over stays in the queue, and its reply is consumed when it comes; a reply
//! that does not fit its place ends the connection. A mis-credited `+OK` would be a second holder.

use std::{collections::VecDeque, time::Duration};

use super::{
    command::{Ballot, Verb, ballot, is_stale, words},
    handshake::{Greeting, Handshake, Identity, Progress},
    lease::Lease,
    notification::{self, Remaining},
    request::Request,
    resp::decode::{Decoder, Kind, Limits, Reply},
    slab::Id,
    time::Time,
};
use crate::error::{NodeError, ProtocolError};

#[derive(Debug)]
pub struct Session {
    state: State,
    handshake: Handshake,
    decoder: Decoder,
    outbox: Outbox,
    /// Invariant: one entry for each command written or in the outbox and not yet answered, in that order.
    expected: VecDeque<Expected>,
    /// Commands that wait for the connection to be ready.
    parked: VecDeque<Command>,
    connect_timeout: Duration,
    /// How often in a row it went wrong since the node last answered a command.
    failures: u32,
    last_error: NodeError,
    ever_ended: bool,
    /// Why this connection is to be ended once all is answered.
    stale: Option<NodeError>,
    /// When to ask again a node that has put off what is parked.
    ask_again_at: Option<Time>,
}

/// What a reply is credited to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Command {
    pub lease: Id<Lease>,
    pub verb: Verb,
    /// Tells a lease's extensions from one another.
    pub round: u32,
}

/// What a reply can be to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Asked {
    Command(Command),
    /// `CLIENT CACHING YES`: makes the question behind it a subscription too.
    Caching,
    /// How long the key of a refused request has to live.
    Remaining(Question),
}

/// On whose behalf, and after which of its attempts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Question {
    pub request: Id<Request>,
    pub attempt: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub asked: Asked,
    /// Whether this is already the `EVAL` after a `NOSCRIPT`. There is no third try.
    pub by_source: bool,
    /// Where in the connection's stream the command starts and ends.
    start: u64,
    end: u64,
    /// A node that has not answered by then is taken for dead.
    overdue: Time,
}

impl Expected {
    /// Whether any of it can have reached the node, of whose stream `written` bytes were written.
    pub fn was_sent(&self, written: u64) -> bool {
        self.start < written
    }
}

#[derive(Debug)]
enum State {
    Down {
        retry_at: Time,
    },
    /// The driver resolves and connects.
    Connecting {
        deadline: Time,
    },
    Greeting {
        deadline: Time,
    },
    /// Invariant: every reply to the greeting was consumed.
    Ready,
}

#[derive(Debug)]
pub enum Delivery {
    /// In the outbox.
    Sent,
    /// Kept until there is a connection, which is not being made yet: for now the node has failed.
    Owed(NodeError),
    /// Kept until the connection is ready.
    Parked,
    /// Not sent, and not going to be.
    Refused(NodeError),
}

/// What came of input.
#[derive(Debug)]
pub enum Output {
    Answer {
        command: Command,
        by_source: bool,
        ballot: Ballot,
    },
    /// A key that was asked about has changed; `None` is all of them.
    Invalidated(Option<Box<[u8]>>),
    Ready,
    /// A key has so long to live, if it is there and the node says so.
    Remaining {
        question: Question,
        remaining: Remaining,
    },
}

impl Session {
    /// Not connected yet, and due to be.
    pub fn new(greeting: Greeting, connect_timeout: Duration, now: Time) -> Self {
        Self {
            state: State::Down { retry_at: now },
            handshake: Handshake::new(greeting),
            decoder: Decoder::new(Limits::default()),
            outbox: Outbox::default(),
            expected: VecDeque::new(),
            parked: VecDeque::new(),
            connect_timeout,
            failures: 0,
            last_error: NodeError::Timeout,
            ever_ended: false,
            stale: None,
            ask_again_at: None,
        }
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Backing off: no connection, and none being made.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    pub fn is_awaiting(&self) -> bool {
        !self.expected.is_empty()
    }

    pub fn last_error(&self) -> &NodeError {
        &self.last_error
    }

    /// Why the last connection ended, if there was one and it did.
    pub fn ended_by(&self) -> Option<&NodeError> {
        (self.ever_ended).then_some(&self.last_error)
    }

    pub fn identity(&self) -> &Identity {
        self.handshake.identity()
    }

    /// When this session next wants something done if nothing comes: to reconnect, or to be given up.
    pub fn timeout(&self) -> Option<Time> {
        match self.state {
            State::Down { retry_at } => Some(retry_at),
            State::Connecting { deadline } | State::Greeting { deadline } => Some(deadline),
            State::Ready if mutant!(SilentNodeKept) => self.ask_again_at,
            State::Ready => self.overdue().into_iter().chain(self.ask_again_at).min(),
        }
    }

    /// Whether nothing is due but to ask again for what was put off.
    pub fn is_to_ask_again(&self, now: Time) -> bool {
        self.is_ready() && self.overdue().is_none_or(|at| at > now)
    }

    fn overdue(&self) -> Option<Time> {
        self.expected.front().map(|front| front.overdue)
    }

    /// Connecting has come a step further. A deadline that has passed by then has passed while nobody was
    /// looking, and that is not held against the node.
    pub fn progressed(&mut self, now: Time) {
        match &mut self.state {
            State::Connecting { deadline } | State::Greeting { deadline } if *deadline <= now => {
                *deadline = now.after(self.connect_timeout);
            }
            _ => {}
        }
    }

    pub fn connecting(&mut self, now: Time) {
        self.state = State::Connecting { deadline: now.after(self.connect_timeout) };
    }

    /// The transport is up: greet. The deadline for connecting covers the greeting too.
    pub fn connected(&mut self, now: Time) {
        self.progressed(now);
        if let State::Connecting { deadline } = self.state {
            self.state = State::Greeting { deadline };
            self.handshake.greet(self.outbox.end());
        }
    }

    /// What is to be written to the transport.
    pub fn outgoing(&self) -> &[u8] {
        self.outbox.rest()
    }

    pub fn wrote(&mut self, bytes: usize) {
        self.outbox.wrote(bytes);
    }

    /// Sends a command, or keeps it for later, or says why not. A release is always kept: it is owed.
    pub fn deliver(
        &mut self,
        now: Time,
        bytes: &[u8],
        command: Command,
        overdue: Time,
    ) -> Delivery {
        let error = match self.state {
            // About to be connected to, if only somebody turns the loop.
            State::Down { retry_at } if retry_at <= now => return self.park(command),
            State::Down { .. } => self.last_error.clone(),
            State::Connecting { .. } | State::Greeting { .. } => return self.park(command),
            State::Ready => match self.send(bytes, command, false, overdue) {
                Ok(()) => return Delivery::Sent,
                Err(error) => error,
            },
        };
        match command.verb {
            Verb::Release => match self.park(command) {
                Delivery::Parked => Delivery::Owed(error),
                refused => refused,
            },
            _ => Delivery::Refused(error),
        }
    }

    /// Queues a command behind all others. Fails, sending nothing, where too much is waiting already.
    pub fn send(
        &mut self,
        bytes: &[u8],
        command: Command,
        by_source: bool,
        overdue: Time,
    ) -> Result<(), NodeError> {
        debug_assert!(self.is_ready());
        // There are no more releases than there were acquires, and they must not be lost.
        let limited = command.verb != Verb::Release;
        if limited && self.outbox.rest().len() + bytes.len() > OUTBOX_BYTES_MAX {
            return Err(NodeError::Backlog);
        }
        self.expect(Asked::Command(command), by_source, overdue, |out| {
            out.extend_from_slice(bytes);
        });
        Ok(())
    }

    /// Asks how long a key has to live and, where the server does that, to be told when it changes. Says
    /// whether it was asked.
    pub fn ask_remaining(&mut self, key: &[u8], question: Question, overdue: Time) -> bool {
        if !self.is_ready() || self.outbox.rest().len() > OUTBOX_BYTES_MAX {
            return false;
        }
        if self.handshake.is_tracking() {
            self.expect(Asked::Caching, false, overdue, notification::ask_caching);
        }
        self.expect(Asked::Remaining(question), false, overdue, |out| {
            notification::ask_remaining(out, key);
        });
        true
    }

    /// Appends what is asked, and an entry for its reply.
    fn expect(
        &mut self,
        asked: Asked,
        by_source: bool,
        overdue: Time,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.outbox.position();
        write(self.outbox.end());
        let end = self.outbox.position();
        self.expected.push_back(Expected { asked, by_source, start, end, overdue });
    }

    /// Keeps a command until the connection is ready.
    pub fn park(&mut self, command: Command) -> Delivery {
        let crowded = match command.verb {
            // What waits for an answer must not push out what is owed.
            Verb::Release => self.parked.len() >= 2 * PARKED_MAX,
            _ => self.parked.len() >= PARKED_MAX,
        };
        if crowded {
            return Delivery::Refused(NodeError::Backlog);
        }
        self.parked.push_back(command);
        Delivery::Parked
    }

    /// The node will do what was just parked another time, and says by nothing when that is.
    pub fn put_off(&mut self, now: Time) {
        self.ask_again_at = Some(now.after(PUT_OFF_PAUSE));
    }

    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub fn take_parked(&mut self) -> VecDeque<Command> {
        self.ask_again_at = None;
        std::mem::take(&mut self.parked)
    }

    /// The first of what is parked: enough to see whether the node works again.
    pub fn take_first_parked(&mut self) -> Option<Command> {
        self.ask_again_at = None;
        self.parked.pop_front()
    }

    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), NodeError> {
        Ok(self.decoder.feed(bytes)?)
    }

    /// What the bytes fed so far amount to, one thing at a time. After an error the session is of no use
    /// until [`fail`](Self::fail) was called.
    pub fn next(&mut self, now: Time) -> Result<Option<Output>, NodeError> {
        if self.expected.is_empty() {
            self.stale.take().map_or(Ok(()), Err)?;
        }
        while let Some(reply) = self.decoder.decode()? {
            let greeting = matches!(self.state, State::Greeting { .. });
            let output = match reply.kind() {
                // Out of band: it answers no command.
                Kind::Push(_) => notification::invalidated(reply).map(Output::Invalidated),
                _ if greeting => match self.handshake.reply(reply, self.outbox.rest().len())? {
                    Progress::Waiting => None,
                    Progress::Again => {
                        self.handshake.greet(self.outbox.end());
                        self.progressed(now);
                        None
                    }
                    Progress::Done => {
                        self.state = State::Ready;
                        Some(Output::Ready)
                    }
                },
                _ => {
                    // To what is not even written there is no reply.
                    let written = self.outbox.written();
                    let expected = self.expected.front().filter(|front| front.end <= written);
                    let expected = *expected.ok_or_else(|| unasked(reply))?;
                    // Answered only if the reply fits: else it is one of those that were not.
                    let output = match answered(&expected, reply) {
                        Err(_) if mutant!(WrongReplyTolerated) => None,
                        output => output?,
                    };
                    self.expected.pop_front();
                    match &output {
                        Some(Output::Answer {
                            ballot: Ballot::Failed(error @ NodeError::Server(text)),
                            ..
                        }) if is_stale(text) => self.stale = Some(error.clone()),
                        _ => self.failures = 0,
                    }
                    output
                }
            };
            if output.is_some() {
                return Ok(output);
            }
        }
        Ok(None)
    }

    /// The connection is over, or was never made. Gives back what was expected of it, and how many bytes of
    /// its stream were written.
    pub fn fail(&mut self, error: NodeError, retry_at: Time) -> (VecDeque<Expected>, u64) {
        self.failures += 1;
        self.last_error = error;
        self.ever_ended = true;
        self.stale = None;
        self.ask_again_at = None;
        self.state = State::Down { retry_at };
        let written = self.outbox.written();
        self.decoder.reset();
        self.outbox.reset();
        mutant!(QueueOutlivesConnection => return (self.expected.clone(), written));
        (std::mem::take(&mut self.expected), written)
    }

    #[cfg(quorlock_mutants)]
    pub(super) fn expected(&mut self) -> &mut VecDeque<Expected> {
        &mut self.expected
    }

    /// Why the connection ended, given what was noticed of it: what the peer had said before is better.
    pub fn explain(&mut self, noticed: NodeError) -> NodeError {
        match self.state {
            State::Greeting { .. } => self.handshake.hung_up().unwrap_or(noticed),
            _ => noticed,
        }
    }

    /// The span that the next wait before reconnecting is drawn from. A node that has answered since it was
    /// connected is tried again at once: servers close idle connections, and restart.
    pub fn backoff(&self, error: &NodeError) -> (Duration, Duration) {
        let max = match error {
            NodeError::Auth(_) | NodeError::Config(_) => BACKOFF_REFUSED_MIN
                .saturating_mul(1 << self.failures.min(10))
                .min(BACKOFF_REFUSED_MAX),
            _ if self.failures == 0 => return (Duration::ZERO, Duration::ZERO),
            _ => BACKOFF_MIN.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX),
        };
        (max / 2, max)
    }
}

/// What a reply means to what was asked.
fn answered(expected: &Expected, reply: Reply<'_>) -> Result<Option<Output>, ProtocolError> {
    Ok(match expected.asked {
        Asked::Command(command) => {
            let ballot = ballot(command.verb, reply)?;
            Some(Output::Answer { command, by_source: expected.by_source, ballot })
        }
        Asked::Caching => notification::caching(reply).map(|()| None)?,
        Asked::Remaining(question) => {
            let remaining = notification::remaining(reply)?;
            Some(Output::Remaining { question, remaining })
        }
    })
}

/// The error for a reply that nothing was asked for. An error reply is a server's last word before it hangs
/// up, and is kept.
fn unasked(reply: Reply<'_>) -> NodeError {
    match reply.kind() {
        Kind::Error(text) => NodeError::Server(words(text)),
        _ => ProtocolError::Unasked.into(),
    }
}

/// Bytes on their way out. In the steady state all of them go in one write, and nothing is ever moved.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// How many of `bytes` are written.
    done: usize,
    /// How many bytes of the connection's stream came before `bytes`.
    before: u64,
}

impl Outbox {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Where in the stream the next byte will stand.
    fn position(&self) -> u64 {
        self.before + len(&self.bytes)
    }

    fn written(&self) -> u64 {
        self.before + len(&self.bytes[..self.done])
    }

    fn wrote(&mut self, bytes: usize) {
        let forgotten = mutant!(PartialWriteForgotten);
        self.done += if forgotten { self.rest().len() } else { bytes };
        if self.done == self.bytes.len() {
            self.before += len(&self.bytes);
            self.bytes.clear();
            self.done = 0;
        } else if self.done >= OUTBOX_DONE_MAX {
            self.before += len(&self.bytes[..self.done]);
            self.bytes.drain(..self.done);
            self.done = 0;
        }
    }

    fn reset(&mut self) {
        self.bytes.clear();
        self.done = 0;
        self.before = 0;
    }
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// A node that takes no more than this is not worth more: some ten thousand commands.
const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// How much of what is written is kept before the rest is moved up: seldom, and never much.
const OUTBOX_DONE_MAX: usize = 1 << 16;

/// Releases owed to a node that is away, mostly. Beyond this the ttl frees the keys.
const PARKED_MAX: usize = 4096;

/// Short beside what a lock's ttl is, and one command each time.
const PUT_OFF_PAUSE: Duration = Duration::from_millis(250);

const BACKOFF_MIN: Duration = Duration::from_millis(25);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// For what only a person can mend: servers log refused logins, and some ban for them. Soon at first, as the
/// person may be at it, and locks are held meanwhile.
const BACKOFF_REFUSED_MIN: Duration = Duration::from_secs(1);
const BACKOFF_REFUSED_MAX: Duration = Duration::from_secs(30);
