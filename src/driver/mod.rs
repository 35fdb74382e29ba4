//! The only code with I/O: it moves bytes between N sockets and the engine, and tells it the time.
//!
//! A turn of the loop does what the engine wants done (close, connect, write), sleeps until something comes
//! or is due, reads what came, and only then tells of the time: an answer that has come is not late.

#[doc(hidden)]
pub mod clock;
pub(crate) mod inspect;
mod resolve;
mod socket;

use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Duration};

use mio::{Events, Poll, Token, Waker};

use self::{
    resolve::Resolver,
    socket::{Socket, Target},
};
use crate::{
    config::{Address, Host},
    error::{NodeError, ProtocolError, Vote},
    proto::{
        engine::{Engine, Event},
        node::NodeId,
        quorum::Verdict,
        time::Time,
    },
};

#[derive(Debug)]
pub(crate) struct Driver {
    engine: Engine,
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    resolver: Resolver<(NodeId, usize)>,
    links: Vec<Link>,
    /// What the last wait has brought and nobody has acted on yet.
    ready: VecDeque<Readiness>,
    input: Box<[u8]>,
    /// How long to look for replies before sleeping.
    spin: Duration,
    counts: IoCounts,
    looked_at: Time,
    process: u32,
}

/// One node, as far as it is sockets.
#[derive(Debug)]
struct Link {
    address: Address,
    socket: Option<Socket>,
    /// Counts the connections, so that an event for an old one is not taken for this one's.
    generation: usize,
    /// Where else to connect to if this fails: a name's other addresses.
    alternatives: Vec<Target>,
    /// How often a connection ended unheard: a name's addresses take turns until one answers.
    failures: usize,
    /// Whether anything was read from this connection.
    heard: bool,
}

/// System calls made, for tests and tuning.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct IoCounts {
    /// Waits for events.
    pub polls: u64,
    /// Reads from sockets.
    pub reads: u64,
    /// Writes to sockets.
    pub writes: u64,
}

/// An event, taken out of mio's hands.
#[derive(Clone, Copy, Debug)]
struct Readiness {
    token: Token,
    readable: bool,
    writable: bool,
    closed: bool,
}

impl Driver {
    /// `addresses` are the engine's nodes, in order.
    pub(crate) fn new(engine: Engine, addresses: Vec<Address>, spin: Duration) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        Ok(Self {
            engine,
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            resolver: Resolver::new(waker.clone()),
            waker,
            links: addresses.into_iter().map(Link::new).collect(),
            ready: VecDeque::with_capacity(EVENTS_PER_TURN),
            input: vec![0; INPUT_BYTES].into(),
            spin,
            counts: IoCounts::default(),
            looked_at: clock::now(),
            process: std::process::id(),
        })
    }

    /// Whether this is a copy in a forked child: its sockets are its parent's, and so would be its tokens.
    pub(crate) fn is_foreign(&self) -> bool {
        std::process::id() != self.process
    }

    /// Ends the sleep of a turn, from any thread.
    pub(crate) fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    pub(crate) fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    pub(crate) fn counts(&self) -> IoCounts {
        self.counts
    }

    /// Comes back to a loop that was not turned for a while. What happened meanwhile (a server that was
    /// restarted, or closed an idle connection) is taken in first, so that no command is lost to it.
    pub(crate) fn resume(&mut self) {
        let now = clock::now();
        if now.since(self.looked_at) > GLANCE {
            self.turn(Some(now));
        }
    }

    /// Turns until a quorum of nodes is ready, and as long again for those that are a little slower: they
    /// would otherwise miss the first locks. Fails with what became of each node.
    pub(crate) fn await_quorum(&mut self, started: Time, deadline: Time) -> Result<(), Vec<Vote>> {
        loop {
            self.turn(Some(deadline));
            match self.engine.connections() {
                (Verdict::Won, _) => break,
                (Verdict::Open, _) if clock::now() < deadline => {}
                (_, votes) => return Err(votes),
            }
        }
        let now = clock::now();
        let patience = now.after(now.since(started)).min(deadline);
        while self.engine.is_connecting() && clock::now() < patience {
            self.turn(Some(patience));
        }
        Ok(())
    }

    /// Turns until an event that is `wanted` comes, and sees to it that what follows from it is on its way.
    ///
    /// What else has come by then is left for the next turn: it is read while that one's replies are under way.
    pub(crate) fn run(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        self.flush();
        loop {
            while let Some(event) = self.engine.poll_event() {
                if wanted(&event) {
                    self.flush();
                    return event;
                }
            }
            // What was due may be what is wanted, and must not be slept on.
            if !self.act() && !self.look_at_the_clock() {
                self.wait(None);
            }
        }
    }

    /// One turn. Sleeps until `until` at the latest.
    pub(crate) fn turn(&mut self, until: Option<Time>) {
        self.wait(until);
        while self.act() {}
        self.look_at_the_clock();
    }

    /// Does what the engine wants done, and waits until something comes or is due.
    fn wait(&mut self, until: Option<Time>) {
        self.flush();
        let due = self.engine.poll_timeout().into_iter().chain(until).min();
        let now = clock::now();
        if !self.ready.is_empty() {
            return self.poll(Some(Duration::ZERO));
        }
        let enough = now.after(self.spin);
        self.spin(due.map_or(enough, |due| due.min(enough)));
        if self.ready.is_empty() {
            self.poll(due.map(|due| due.since(now)));
        }
    }

    /// Looks again and again for as long as it is set to, if a reply is under way: the thread is then awake when it
    /// comes.
    fn spin(&mut self, end: Time) {
        if self.spin.is_zero() || !self.engine.is_awaiting() {
            return;
        }
        while self.ready.is_empty() && clock::now() < end {
            self.poll(Some(Duration::ZERO));
        }
    }

    fn poll(&mut self, timeout: Option<Duration>) {
        self.counts.polls += 1;
        // An interrupted wait is one in which nothing came. No other error can come of a valid poll, and
        // if it does, the deadlines still hold.
        if self.poll.poll(&mut self.events, timeout).is_ok() {
            self.ready.extend(self.events.iter().map(Readiness::of));
        }
    }

    /// Only when nothing that has come is unread: an answer in a buffer is not late. Says whether anything was due.
    fn look_at_the_clock(&mut self) -> bool {
        self.looked_at = clock::now();
        let due = self.engine.poll_timeout().is_some_and(|due| due <= self.looked_at);
        if due {
            self.engine.handle_timeout(self.looked_at);
        }
        due
    }

    /// Closes, connects and writes as the engine wants it, as far as that goes without waiting.
    pub(crate) fn flush(&mut self) {
        self.close_given_up();
        while let Some(node) = self.engine.poll_connect() {
            self.open(node);
        }
        for node in self.engine.nodes() {
            if !self.engine.outgoing(node).is_empty() {
                self.write(node);
            }
        }
    }

    /// Acts on the next thing that has come. Says whether there was one.
    fn act(&mut self) -> bool {
        let Some(readiness) = self.ready.pop_front() else {
            return false;
        };
        if readiness.token == WAKE {
            self.take_addresses();
        } else {
            self.act_on(readiness);
        }
        true
    }

    fn act_on(&mut self, readiness: Readiness) {
        let node = self.engine.nodes().find(|node| {
            let socket = &self.links[node.index()].socket;
            socket.as_ref().is_some_and(|socket| socket.token() == readiness.token)
        });
        // An event may outlive its socket (RUSTSEC-2024-0019).
        let Some(node) = node else {
            return;
        };
        if self.links[node.index()].is_connecting() {
            self.finish_connect(node);
        } else {
            if readiness.writable {
                self.links[node.index()].drained();
            }
            if readiness.readable {
                self.read(node, readiness.closed);
            }
        }
    }
}

// Connecting.
impl Driver {
    fn open(&mut self, node: NodeId) {
        let link = &mut self.links[node.index()];
        link.generation += 1;
        let target = match &link.address {
            Address::Unix(path) => Target::Unix(path.clone()),
            Address::Tcp { host: Host::Ip(ip), port } => Target::Tcp((*ip, *port).into()),
            Address::Tcp { host: Host::Name(name), port } => {
                let query = (node, link.generation);
                if let Err(error) = self.resolver.resolve(query, name, *port) {
                    self.disconnected(node, error.into());
                }
                return;
            }
        };
        link.alternatives = vec![target];
        self.connect(node, None);
    }

    /// Names have been looked up, some perhaps too late.
    fn take_addresses(&mut self) {
        while let Some(((node, generation), addresses)) = self.resolver.poll() {
            let link = &mut self.links[node.index()];
            if link.generation != generation || link.socket.is_some() {
                continue;
            }
            let error = match addresses {
                Ok(addresses) => {
                    link.set_alternatives(addresses);
                    None
                }
                Err(error) => Some(error),
            };
            self.engine.handle_resolved(clock::now(), node);
            self.connect(node, error);
        }
    }

    /// Connects to the next address there is. `error` is what happened to the one before.
    fn connect(&mut self, node: NodeId, mut error: Option<io::Error>) {
        let registry = self.poll.registry();
        let link = &mut self.links[node.index()];
        while let Some(target) = link.alternatives.pop() {
            let token = link.token(node);
            match Socket::connect(&target, registry, token) {
                Ok(socket) => {
                    link.socket = Some(socket);
                    return;
                }
                Err(failed) => error = Some(failed),
            }
        }
        let error = error.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable));
        self.disconnected(node, error.into());
    }

    fn finish_connect(&mut self, node: NodeId) {
        let registry = self.poll.registry();
        let link = &mut self.links[node.index()];
        let Some(socket) = &mut link.socket else {
            return;
        };
        match socket.finish_connect(registry) {
            Ok(false) => {}
            Ok(true) => {
                self.engine.handle_connected(clock::now(), node);
            }
            Err(error) => {
                link.close(registry);
                link.generation += 1;
                self.connect(node, Some(error));
            }
        }
    }

    fn disconnected(&mut self, node: NodeId, error: NodeError) {
        let link = &mut self.links[node.index()];
        link.close(self.poll.registry());
        self.engine.handle_disconnected(clock::now(), node, error);
    }

    /// Drops the sockets of the nodes that the engine wants nothing more of.
    fn close_given_up(&mut self) {
        while let Some(node) = self.engine.poll_close() {
            let link = &mut self.links[node.index()];
            // Whatever address is being looked up for it comes too late.
            link.generation += 1;
            link.close(self.poll.registry());
        }
    }
}

// Moving bytes.
impl Driver {
    /// Reads once, as a short read means that there is no more; to the end where the peer has `closed`.
    fn read(&mut self, node: NodeId, closed: bool) {
        for _ in 0..READS_PER_TURN {
            let Some(socket) = &mut self.links[node.index()].socket else {
                return;
            };
            self.counts.reads += 1;
            match socket.read(&mut self.input) {
                Ok(0) => return self.disconnected(node, NodeError::Closed),
                Ok(len) => {
                    self.links[node.index()].heard = true;
                    self.engine.handle_input(clock::now(), node, &self.input[..len]);
                    self.close_given_up();
                    if len < self.input.len() && !closed {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.disconnected(node, error.into()),
            }
        }
        // Megabytes that no command of ours can have asked for.
        self.disconnected(node, ProtocolError::ReplyTooLarge.into());
    }

    fn write(&mut self, node: NodeId) {
        let registry = self.poll.registry();
        let Some(socket) = &mut self.links[node.index()].socket else {
            return;
        };
        if !socket.takes_more() {
            return;
        }
        self.counts.writes += 1;
        match socket.write(self.engine.outgoing(node), registry) {
            Ok(written) => self.engine.wrote(node, written),
            Err(error) => {
                // The peer's last words come before its silence.
                self.read(node, true);
                if self.links[node.index()].socket.is_some() {
                    self.disconnected(node, error.into());
                }
            }
        }
    }
}

impl Link {
    fn new(address: Address) -> Self {
        Self {
            address,
            socket: None,
            generation: 0,
            alternatives: Vec::new(),
            failures: 0,
            heard: false,
        }
    }

    fn token(&self, node: NodeId) -> Token {
        Token((self.generation << NODE_BITS) | node.index())
    }

    fn is_connecting(&self) -> bool {
        self.socket.as_ref().is_some_and(Socket::is_connecting)
    }

    fn drained(&mut self) {
        if let Some(socket) = &mut self.socket {
            socket.drained();
        }
    }

    /// The addresses of the name, to be taken from the end. After a failure another one comes first: one
    /// that swallows connects must not keep the others from being tried.
    fn set_alternatives(&mut self, mut addresses: Vec<SocketAddr>) {
        if !addresses.is_empty() {
            let first = self.failures % addresses.len();
            addresses.rotate_left(first);
        }
        self.alternatives = addresses.into_iter().rev().map(Target::Tcp).collect();
    }

    fn close(&mut self, registry: &mio::Registry) {
        if !std::mem::take(&mut self.heard) {
            self.failures += 1;
        }
        if let Some(socket) = self.socket.take() {
            socket.close(registry);
        }
    }
}

impl Readiness {
    fn of(event: &mio::event::Event) -> Self {
        let closed = event.is_read_closed() || event.is_error();
        Self {
            token: event.token(),
            readable: event.is_readable() || closed,
            writable: event.is_writable(),
            closed,
        }
    }
}

const WAKE: Token = Token(usize::MAX);

/// Tokens hold a node in the low bits and its connection's generation above.
const NODE_BITS: u32 = 4;

/// One for each of 15 nodes, and the waker.
const EVENTS_PER_TURN: usize = 16;

/// Replies are a few bytes each; what a handshake brings fits too.
const INPUT_BYTES: usize = 16 * 1024;

/// Bounds what one peer can keep us busy with in a turn.
const READS_PER_TURN: u32 = 256;

/// After this long without looking, look before writing. A look costs a fraction of a microsecond.
const GLANCE: Duration = Duration::from_millis(5);
