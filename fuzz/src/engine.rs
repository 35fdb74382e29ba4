//! Whatever callers, nodes, connections and the clock do, in whatever order: the engine keeps its promises.
//!
//! The input is a list of such events. What reached which node, and what was answered to it, is booked outside
//! of the engine (`nodes.rs`, `claims.rs`), and everything that the engine says is held against that:
//!
//! - a lock is only handed out by a quorum of nodes that truly granted this token, with validity left and no
//!   more than `ttl - elapsed - drift`; so is an extension, to which nodes that came too late to the lock add nothing;
//! - a fencing token comes only where it was asked for, and from a quorum of nodes that stand for exactly that number
//!   (rule R in `proto/fence.rs`); as long as no node has lied, tokens are unique, in the order of their holders, and
//!   no holder extends its lock once another has a higher one (`fences.rs`);
//! - there is a vote for each node, and none is granted or refused that was not;
//! - a reply that fits nothing ends its connection, and nothing else does but silence and a refusal;
//! - whatever reached a node is undone there once the lock is given up, lost or cancelled;
//! - each request and each question ends in one event; a lock that was lost stays lost;
//! - the engine never wants to be woken in the past, nor for ever at once.

use std::{collections::HashMap, io, time::Duration};

use quorlock::{
    AcquireError, Drift, ExtendError, Fencing, LostReason, NodeError, RestartGuard, RetryPolicy,
    Vote,
    internal::{
        Credentials, Secret,
        engine::{Engine, Event, Grant, Settings},
        handshake::Greeting,
        lease::Lease,
        node::NodeId,
        request::{Care, Request, Spec},
        slab::Id,
        time::Time,
        upkeep::Upkeep,
        validity::Ttl,
    },
};

use super::{
    bytes::Bytes,
    claims::{Allowance, Claims, NODES_MAX},
    nodes::{Key, Meaning, Question, Wire},
};

pub fn check(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World::draw(&mut bytes);
    while !bytes.is_empty() {
        world.step(&mut bytes);
    }
    world.heal();
}

struct World {
    engine: Engine,
    now: Time,
    drift: Drift,
    nodes: Vec<Node>,
    claims: Claims,
    requests: Vec<Asked>,
    locks: Vec<Held>,
}

struct Node {
    id: NodeId,
    link: Link,
    /// Whether it takes connections at once; else an event of its own says what comes of one.
    up: bool,
    /// Whether it has been greeted on this connection.
    ready: bool,
    connecting_since: Time,
    /// Whether an answer of it is waited for.
    owing: bool,
    /// At most so many bytes are written to it at a time.
    window: usize,
    wire: Wire,
    /// The rest of a reply of which a part has arrived.
    late: Vec<u8>,
    /// Whether what arrives, or has arrived in part, is none of its own answers.
    forged: bool,
    run_id: u8,
    /// Who holds what there, as far as the node answers as it should.
    keys: HashMap<Vec<u8>, (Vec<u8>, Time)>,
    /// The fencing counters, and what one that is not there begins at.
    counters: HashMap<Vec<u8>, u64>,
    floor: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Link {
    Connecting,
    Down,
    Up,
}

struct Asked {
    id: Id<Request>,
    key: Vec<u8>,
    ttl_ms: u64,
    deadline: Option<Time>,
    min_validity: Duration,
    watched: bool,
    fencing: Fencing,
    over: bool,
}

struct Held {
    id: Id<Lease>,
    key: Key,
    watched: bool,
    lost: bool,
    /// Whether it was released, and whether an event is to say so.
    released: bool,
    to_report: bool,
    /// Extensions that were asked for and not answered.
    extending: usize,
}

/// What was done to the engine, which limits what it may do now.
#[derive(Clone, Copy)]
enum Cause {
    Caller,
    Input { node: usize, legal: bool },
    Timeout,
}

impl World {
    fn draw(bytes: &mut Bytes<'_>) -> Self {
        let count = 1 + bytes.index(NODES_MAX);
        let flags = bytes.byte();
        let now = Time::from_nanos(1_000_000_000);
        let (ppm, constant) = if flags & 1 == 0 { (10_000, 2) } else { (0, 0) };
        let constant = Duration::from_millis(constant);
        let drift = Drift::new(ppm, constant);
        let repair = flags & 128 != 0;
        let settings = Settings {
            names: (0..count).map(|i| format!("node-{i}").into()).collect(),
            key_prefix: if flags & 2 == 0 {
                b"".as_slice().into()
            } else {
                b"lock:".as_slice().into()
            },
            connect_timeout: CONNECT_TIMEOUT,
            drift,
            retry: RetryPolicy::jittered(ms(1), ms(if flags & 4 == 0 { 20 } else { 200 })),
            restart_guard: RestartGuard::default(),
            ttl_longest: Ttl::NONE,
            repair,
        };
        let password = (flags & 8 != 0).then(|| Secret::new(b"hunter2".to_vec()));
        let greetings = (0..count).map(|_| Greeting {
            credentials: Credentials { user: None, password: password.clone() },
            db: u32::from(flags >> 4 & 1),
            client_name: "quorlock".into(),
            tracking: flags & 32 == 0,
            persistence: false,
        });
        let engine = Engine::new(settings, greetings, [flags; 32], now);
        let nodes = engine.nodes().map(|id| Node::new(id, now)).collect();
        let claims = Claims::new(count, Allowance { ppm: ppm.into(), constant }, repair);
        let mut world =
            Self { engine, now, drift, nodes, claims, requests: Vec::new(), locks: Vec::new() };
        if flags & 64 == 0 {
            world.live(ms(1));
        }
        world
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.below(21) {
            0 | 1 => self.acquire(bytes),
            2 => self.cancel(bytes),
            3 => self.extend(bytes),
            4 => self.release(bytes),
            5 => self.pass_to_next(),
            6 => self.pass(Duration::from_micros(u64::from(bytes.byte()) << bytes.below(10))),
            // Nobody looks for so long.
            7 => self.now = self.now.after(ms(u64::from(bytes.byte()))),
            8 | 9 => {
                let node = self.node(bytes);
                let count = bytes.below(8);
                (0..count).for_each(|_| self.answer_rightly(node));
            }
            10 => (0..self.nodes.len()).for_each(|node| self.answer_all(node)),
            11 | 12 => {
                let (node, reply) = (self.node(bytes), bytes.pick(REPLIES));
                let cut = usize::from(bytes.byte());
                self.reply(node, reply, cut);
            }
            13 => {
                let node = self.node(bytes);
                let len = bytes.index(48);
                let raw = bytes.take(len).to_vec();
                self.reply(node, &raw, raw.len());
            }
            14 => {
                let node = self.node(bytes);
                self.cut(node);
            }
            15 => {
                let (node, window) = (self.node(bytes), bytes.byte());
                self.nodes[node].window = if window > 200 { usize::MAX } else { window.into() };
                self.carry(Cause::Caller);
            }
            16 => {
                let (node, choice) = (self.node(bytes), bytes.byte());
                self.nodes[node].up = choice & 1 == 0;
                self.nodes[node].run_id =
                    if choice & 2 == 0 { self.nodes[node].own_run_id() } else { 0 };
                self.connection_goes_on(node, choice >> 2);
            }
            17 => {
                let (node, key) = (self.node(bytes), self.key(bytes));
                self.invalidate(node, &key);
            }
            18 => self.forge(bytes),
            19 => {
                let node = self.node(bytes);
                self.nodes[node].keys.clear();
            }
            _ => {
                let node = self.node(bytes);
                self.wipe(node);
            }
        }
    }

    fn node(&self, bytes: &mut Bytes<'_>) -> usize {
        bytes.index(self.nodes.len())
    }

    fn key(&self, bytes: &mut Bytes<'_>) -> Vec<u8> {
        bytes.pick(RESOURCES).to_vec()
    }
}

// What callers do.
impl World {
    fn acquire(&mut self, bytes: &mut Bytes<'_>) {
        let resource = self.key(bytes);
        let (flags, short) = (bytes.byte(), u64::from(bytes.byte()));
        let ttl = ms(if flags & 1 == 0 { 1_000 } else { 30 + short });
        let ttl = Ttl::parse(ttl, self.drift).expect("in range");
        let validity = ttl.validity(self.drift);
        let every = validity / 3;
        let at_most = Some(ms(if flags & 2 == 0 { 300 } else { short }));
        let upkeep = (flags & 4 != 0).then_some(Upkeep { ttl, every, at_most });
        let watched = flags & 8 != 0;
        let spec = Spec {
            resource: &resource,
            ttl,
            deadline: (flags & 16 != 0).then(|| self.now.after(ms(short))),
            min_validity: if flags & 32 == 0 { Duration::ZERO } else { validity / 2 },
            node_timeout: ms(5 + short % 46),
            care: if watched { Care::Engine { upkeep } } else { Care::Holder },
            fencing: match flags >> 6 {
                0 => Fencing::Off,
                2 => Fencing::OneRoundTrip,
                _ => Fencing::Confirmed,
            },
        };
        let Spec { deadline, min_validity, fencing, .. } = spec;
        let id = self.engine.acquire(self.now, spec);
        let over = false;
        let ttl_ms = ttl.millis();
        let key = resource;
        let asked = Asked { id, key, ttl_ms, deadline, min_validity, watched, fencing, over };
        self.requests.push(asked);
        self.carry(Cause::Caller);
    }

    fn cancel(&mut self, bytes: &mut Bytes<'_>) {
        if self.requests.is_empty() {
            return;
        }
        let index = bytes.index(self.requests.len());
        self.requests[index].over = true;
        self.engine.cancel(self.now, self.requests[index].id);
        self.carry(Cause::Caller);
    }

    fn extend(&mut self, bytes: &mut Bytes<'_>) {
        if self.locks.is_empty() {
            return;
        }
        let index = bytes.index(self.locks.len());
        let ttl = Ttl::parse(ms(10 + 5 * u64::from(bytes.byte())), self.drift).expect("in range");
        let id = self.locks[index].id;
        let result = self.engine.extend(self.now, id, ttl, EXTENSION_TIMEOUT);
        if result.is_ok() {
            assert!(!self.locks[index].released, "a lock that was released is extended");
            self.locks[index].extending += 1;
        }
        self.carry(Cause::Caller);
    }

    fn release(&mut self, bytes: &mut Bytes<'_>) {
        if self.locks.is_empty() {
            return;
        }
        let index = bytes.index(self.locks.len());
        let reported = bytes.chance();
        self.let_go(index, reported);
    }

    fn let_go(&mut self, index: usize, reported: bool) {
        let lock = &mut self.locks[index];
        if !lock.released {
            lock.released = true;
            lock.to_report = reported;
            self.engine.release(self.now, lock.id, reported);
            self.carry(Cause::Caller);
        }
    }
}

// What the clock does.
impl World {
    fn pass_to_next(&mut self) {
        if let Some(due) = self.engine.poll_timeout() {
            self.now = self.now.max(due);
            self.timeout();
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        for _ in 0..10_000 {
            match self.engine.poll_timeout() {
                Some(due) if due <= end => self.pass_to_next(),
                _ => {
                    self.now = self.now.max(end);
                    return;
                }
            }
        }
        panic!("always something due");
    }

    fn timeout(&mut self) {
        for _ in 0..8 {
            self.engine.handle_timeout(self.now);
            self.carry(Cause::Timeout);
            match self.engine.poll_timeout() {
                Some(due) if due <= self.now => assert_eq!(due, self.now, "due in the past"),
                _ => return,
            }
        }
        panic!("due at once for ever");
    }
}

// What the nodes and their connections do.
impl World {
    fn answer_rightly(&mut self, node: usize) {
        if !self.nodes[node].late.is_empty() {
            return self.feed(node, b"");
        }
        let Some(sent) = self.nodes[node].wire.front().cloned() else {
            return;
        };
        let reply = self.nodes[node].execute(self.now, &sent.asked);
        self.feed(node, &reply);
    }

    fn answer_all(&mut self, node: usize) {
        for _ in 0..1_000 {
            let Node { wire, late, .. } = &self.nodes[node];
            if wire.front().is_none() && late.is_empty() {
                return;
            }
            self.answer_rightly(node);
        }
        panic!("never quiet");
    }

    /// A reply of which `cut` bytes come now, and the rest with whatever comes next.
    fn reply(&mut self, node: usize, reply: &[u8], cut: usize) {
        let (now, later) = reply.split_at(cut.min(reply.len()));
        self.nodes[node].forged = self.nodes[node].link == Link::Up;
        self.feed(node, now);
        if self.nodes[node].link == Link::Up {
            self.nodes[node].late = later.to_vec();
            self.nodes[node].forged |= !later.is_empty();
        }
    }

    /// The reply of a lock with a fencing token, though perhaps with a wrong number or to somebody else.
    fn forge(&mut self, bytes: &mut Bytes<'_>) {
        let (node, choice, small) = (self.node(bytes), bytes.byte(), bytes.byte());
        let front = self.nodes[node].wire.front().map(|sent| &sent.asked);
        let proposed = match front {
            Some(Question::Confirm { count, .. }) => *count,
            _ => small.into(),
        };
        let count = match choice >> 3 & 7 {
            0 => proposed + 1,
            1 => proposed.saturating_sub(1),
            2 => (1 << 53) - 1,
            3 => 1 << 53,
            4 => small.into(),
            _ => proposed,
        };
        let id = match front.and_then(Question::claim) {
            Some(claim) if choice < 192 => claim.id(),
            _ => b"00000000",
        };
        let id = id.escape_ascii();
        let text = match choice & 7 {
            0 => format!("taken {id}"),
            1 => format!("gone {id}"),
            2 => return self.reply(node, b":4\r\n", usize::MAX),
            3 => return self.reply(node, b":-4\r\n", usize::MAX),
            4 | 5 => format!("set {count} {id}"),
            _ => format!("count {count} {id}"),
        };
        self.reply(node, &bulk(&text), usize::MAX);
    }

    /// A node loses all that it knew. As its clock goes on, its counters will go on from above all others.
    fn wipe(&mut self, node: usize) {
        let counters =
            self.nodes.iter().flat_map(|node| node.counters.values().chain([&node.floor]));
        let highest = counters.max().copied().unwrap_or(0);
        self.nodes[node].keys.clear();
        self.nodes[node].counters.clear();
        self.nodes[node].floor = highest;
    }

    fn invalidate(&mut self, node: usize, resource: &[u8]) {
        let len = resource.len();
        let head = format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${len}\r\n");
        self.feed(node, &[head.as_bytes(), resource, b"\r\n"].concat());
    }

    fn feed(&mut self, node: usize, bytes: &[u8]) {
        // No two things happen at one time, so that it tells which was first.
        self.now = self.now.after(Duration::from_nanos(1));
        let Self { nodes, claims, now, .. } = self;
        let Node { id, link, wire, late, forged, .. } = &mut nodes[node];
        if *link != Link::Up {
            return;
        }
        let mut input = std::mem::take(late);
        input.extend_from_slice(bytes);
        if input.is_empty() {
            return;
        }
        let legal = wire.receive(&input, |sent, meaning| {
            let said = !matches!(meaning, Meaning::Failed | Meaning::NoScript | Meaning::PutOff);
            claims.fences.lied_to |= *forged && said && sent.asked.claim().is_some();
            claims.answered(*now, node, sent, meaning);
        });
        *forged &= wire.is_mid_reply();
        self.engine.handle_input(self.now, *id, &input);
        self.carry(Cause::Input { node, legal });
    }

    fn cut(&mut self, node: usize) {
        if self.nodes[node].link == Link::Down {
            return;
        }
        self.nodes[node].hang_up();
        self.claims.cut(node);
        self.engine.handle_disconnected(self.now, self.nodes[node].id, NodeError::Closed);
        self.carry(Cause::Caller);
    }

    fn connection_goes_on(&mut self, node: usize, choice: u8) {
        let id = self.nodes[node].id;
        if self.nodes[node].link == Link::Connecting {
            match choice % 3 {
                0 => self.engine.handle_resolved(self.now, id),
                1 => self.connect(node),
                _ => self.refuse(node),
            }
        }
        self.carry(Cause::Caller);
    }

    fn connect(&mut self, node: usize) {
        self.nodes[node].link = Link::Up;
        self.engine.handle_connected(self.now, self.nodes[node].id);
    }

    fn refuse(&mut self, node: usize) {
        self.nodes[node].hang_up();
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused).into();
        self.engine.handle_disconnected(self.now, self.nodes[node].id, refused);
    }
}

// What the engine wants done, and says.
impl World {
    fn carry(&mut self, cause: Cause) {
        self.close(cause);
        while let Some(id) = self.engine.poll_connect() {
            let node = &mut self.nodes[id.index()];
            assert_eq!(node.link, Link::Down, "a connection in place of one that is not closed");
            node.link = Link::Connecting;
            node.connecting_since = self.now;
            if node.up {
                self.connect(id.index());
            }
        }
        while let Some(event) = self.engine.poll_event() {
            self.hear(event);
        }
        // Only now, as what is written next may shorten a lock that was just extended.
        (0..self.nodes.len()).for_each(|node| self.write(node));
        let (_, votes) = self.engine.connections();
        assert_eq!(votes.len(), self.nodes.len());
        for (node, vote) in self.nodes.iter_mut().zip(votes) {
            node.ready = matches!(vote, Vote::Granted);
            assert!(!node.ready || node.link == Link::Up, "ready without a connection");
        }
    }

    fn close(&mut self, cause: Cause) {
        let mut closed = 0_u8;
        while let Some(id) = self.engine.poll_close() {
            let node = &mut self.nodes[id.index()];
            closed |= 1 << id.index();
            match cause {
                Cause::Caller => panic!("a connection is closed without a reason"),
                Cause::Input { node: other, legal } => {
                    assert_eq!(id.index(), other, "another node's connection is closed");
                    assert!(!legal || !node.ready || node.wire.stale, "it had done nothing wrong");
                }
                Cause::Timeout if node.ready => assert!(node.owing, "it owed no answer"),
                Cause::Timeout => {
                    let waited = self.now.since(node.connecting_since);
                    assert!(waited >= CONNECT_TIMEOUT, "closed after {waited:?} of connecting");
                }
            }
            node.hang_up();
            self.claims.cut(id.index());
        }
        if let Cause::Input { node, legal: false } = cause {
            assert!(closed & 1 << node != 0, "a reply that does not fit was believed");
        }
    }

    fn write(&mut self, node: usize) {
        let Self { engine, nodes, claims, now, .. } = self;
        let Node { id, link, wire, window, owing, .. } = &mut nodes[node];
        let outgoing = engine.outgoing(*id);
        assert!(outgoing.is_empty() || *link == Link::Up, "bytes for no connection");
        let len = outgoing.len().min(*window);
        for sent in wire.wrote(*now, &outgoing[..len]) {
            claims.wrote(node, &sent);
        }
        *owing = !outgoing.is_empty() || !wire.sent.is_empty();
        engine.wrote(*id, len);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Acquired { request, grant } => self.acquired(request, grant),
            Event::NotAcquired { request, error } => self.not_acquired(request, &error),
            Event::Extended { lease, asked_for, result } => {
                let lock = self.locks.iter_mut().find(|lock| lock.id == lease).expect("a lock");
                if asked_for {
                    lock.extending = lock.extending.checked_sub(1).expect("an extension asked for");
                }
                match result {
                    Ok(until) => {
                        assert!(!lock.lost && !lock.released, "a lock is extended that was lost");
                        assert!(until > self.now, "an extension that is over");
                        self.claims.extended(&lock.key, until);
                        assert!(self.engine.valid_until(lease) <= until);
                    }
                    Err(ExtendError::Lost(_)) => self.claims.assert_denied(&lock.key),
                    Err(_) => {}
                }
            }
            Event::Lost { lease, reason } => {
                let lock = self.locks.iter_mut().find(|lock| lock.id == lease).expect("a lock");
                assert!(lock.watched && !lock.lost && !lock.released, "lost twice: {reason:?}");
                lock.lost = true;
                assert!(self.engine.valid_until(lease) <= self.now);
                if reason == LostReason::Refused {
                    self.claims.assert_denied(&lock.key);
                }
            }
            Event::Shortened { lease, until } => {
                let lock = self.locks.iter().find(|lock| lock.id == lease).expect("a lock");
                assert!(lock.watched && !lock.released, "nobody is to be told");
                assert!(self.engine.valid_until(lease) <= until);
            }
            Event::Released { lease, result } => {
                let lock = self.locks.iter_mut().find(|lock| lock.id == lease).expect("a lock");
                assert!(std::mem::take(&mut lock.to_report), "released, and nobody asked");
                let released = self.claims.get(&lock.key).released();
                assert!(result.is_err() || released >= self.claims.quorum(), "{released} released");
            }
        }
    }

    fn acquired(&mut self, request: Id<Request>, grant: Grant) {
        let asked = self.requests.iter_mut().find(|asked| asked.id == request);
        let asked = asked.expect("a request");
        assert!(!std::mem::replace(&mut asked.over, true), "a request ends twice");
        let Grant { lease, token, valid_until, fencing_token, attempt } = grant;
        let mut keys = [&b""[..], b"lock:"]
            .into_iter()
            .map(|prefix| Key { key: [prefix, &asked.key].concat(), token: token.as_str().into() });
        let key = keys.find(|key| self.claims.knows(key)).expect("granted, and no node was asked");
        let fenced = asked.fencing != Fencing::Off;
        assert_eq!(fencing_token.is_some(), fenced, "a fencing token for {:?}", asked.fencing);
        if let Some(token) = fencing_token {
            self.claims.took(self.now, &key, token.get(), asked.fencing);
        }
        let claim = self.claims.get(&key);
        assert_eq!(attempt.votes().len(), self.nodes.len());
        for (node, (_, vote)) in attempt.votes().enumerate() {
            let granted = matches!(vote, Vote::Granted).then_some(asked.ttl_ms);
            // A node that does not confirm its grant has not granted it.
            let revoked = fenced && granted.is_none() && !matches!(vote, Vote::Pending);
            assert!(revoked || granted == claim.granted_ms(node), "node {node}: {vote}");
            assert!(claim.has_voted(node, vote), "node {node}: {vote}");
        }
        assert!(attempt.granted() >= self.claims.quorum(), "{attempt}");
        let validity = valid_until.since(self.now);
        assert!(!validity.is_zero() && validity >= asked.min_validity, "{validity:?}");
        let justified = self.claims.justified(claim);
        assert!(
            justified >= Some(valid_until),
            "{valid_until:?} is more than {justified:?} of {claim:#?}"
        );
        assert!(asked.deadline.is_none_or(|deadline| self.now <= deadline), "after the deadline");
        self.locks.push(Held {
            id: lease,
            key,
            watched: asked.watched,
            lost: false,
            released: false,
            to_report: false,
            extending: 0,
        });
    }

    fn not_acquired(&mut self, request: Id<Request>, error: &AcquireError) {
        let asked = self.requests.iter_mut().find(|asked| asked.id == request);
        let asked = asked.expect("a request");
        assert!(!std::mem::replace(&mut asked.over, true), "a request ends twice");
        let in_vain = matches!(error, AcquireError::Contended(_) | AcquireError::NoQuorum(_));
        if let Some(attempt) = error.attempt() {
            assert_eq!(attempt.votes().len(), self.nodes.len());
            self.claims.assert_voted(&asked.key, attempt);
            assert!(!in_vain || attempt.granted() < self.claims.quorum(), "{error}");
        }
    }
}

// The end: everything works again, and nothing must be left.
impl World {
    fn heal(&mut self) {
        for node in &mut self.nodes {
            node.up = true;
            node.window = usize::MAX;
            node.run_id = node.own_run_id();
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].link == Link::Connecting {
                self.connection_goes_on(node, 1);
            }
        }
        // Extensions come one after the other, each with its own time.
        let waiting = self.locks.iter().map(|lock| lock.extending).max().unwrap_or_default();
        self.live(ms(400) + EXTENSION_TIMEOUT * u32::try_from(waiting).expect("few"));
        assert!(self.requests.iter().all(|asked| asked.over), "a request without an end");
        for lock in self.locks.iter().filter(|lock| !lock.released) {
            assert_eq!(lock.extending, 0, "an extension without an end");
            let over = self.engine.valid_until(lock.id) <= self.now;
            assert!(!lock.watched || over == lock.lost, "lost, and nobody is told");
        }
        (0..self.locks.len()).for_each(|index| self.let_go(index, index % 2 == 0));
        // A node that has refused us is asked again after half a minute at the latest.
        self.live(ms(35_000));
        assert!(self.nodes.iter().all(|node| node.ready), "a node that works is not used");
        assert!(self.locks.iter().all(|lock| !lock.to_report), "a release without an end");
        assert_eq!(self.engine.releasing(), 0);
        self.claims.assert_all_undone();
        let counts = self.engine.counts();
        assert_eq!(usize::try_from(counts.acquired).ok(), Some(self.locks.len()));
        assert_eq!(self.engine.poll_timeout(), None, "nothing is left to do");
    }

    /// Time passes while everything that is sent arrives at once.
    fn live(&mut self, time: Duration) {
        let end = self.now.after(time);
        for _ in 0..20_000 {
            self.carry(Cause::Caller);
            (0..self.nodes.len()).for_each(|node| self.answer_all(node));
            match self.engine.poll_timeout() {
                Some(due) if due <= end.max(self.now) => self.pass_to_next(),
                _ => {
                    self.now = self.now.max(end);
                    return;
                }
            }
        }
        panic!("always something due");
    }
}

impl Node {
    fn new(id: NodeId, now: Time) -> Self {
        Self {
            id,
            link: Link::Down,
            up: true,
            ready: false,
            connecting_since: now,
            owing: false,
            window: usize::MAX,
            wire: Wire::of_known_tokens(),
            late: Vec::new(),
            forged: false,
            run_id: 1 + u8::try_from(id.index()).expect("few nodes"),
            keys: HashMap::new(),
            counters: HashMap::new(),
            floor: 0,
        }
    }

    fn own_run_id(&self) -> u8 {
        1 + u8::try_from(self.id.index()).expect("few nodes")
    }

    fn hang_up(&mut self) {
        self.link = Link::Down;
        self.wire = Wire::of_known_tokens();
        self.late.clear();
        self.forged = false;
        self.ready = false;
    }

    /// What a server in good order does and answers.
    fn execute(&mut self, now: Time, asked: &Question) -> Vec<u8> {
        let live = |key: &[u8]| self.keys.get(key).filter(|(_, until)| now <= *until);
        let ours = asked.claim().and_then(|claim| {
            let (token, _) = live(&claim.key)?;
            Some(*token == claim.token)
        });
        let reply = match asked {
            Question::Set { .. } if ours.is_some() => return b"_\r\n".into(),
            Question::Set { claim, ttl_ms } => {
                self.put(now, claim, *ttl_ms);
                return b"+OK\r\n".into();
            }
            Question::SetFenced { claim, .. } if ours.is_some() => {
                return bulk(&format!("taken {}", claim.id().escape_ascii()));
            }
            Question::SetFenced { claim, counter, ttl_ms, .. } => {
                let count = self.counters.entry(counter.clone()).or_default();
                *count = self.floor.max(*count);
                if *count >= (1 << 53) - 1 {
                    return b"-FENCING the counter of this lock can go up no more\r\n".into();
                }
                *count += 1;
                let text = format!("set {count} {}", claim.id().escape_ascii());
                self.put(now, claim, *ttl_ms);
                return bulk(&text);
            }
            Question::Confirm { claim, counter, count, .. } => {
                let id = claim.id().escape_ascii();
                if ours != Some(true) {
                    return bulk(&format!("gone {id}"));
                }
                return bulk(&format!("count {} {id}", self.raise(counter, *count)));
            }
            Question::Repair { .. } if ours == Some(false) => -4,
            Question::Repair { claim, ttl_ms, fence, .. } => {
                if let Some((counter, count)) = fence {
                    self.raise(counter, *count);
                }
                self.put(now, claim, *ttl_ms);
                4
            }
            Question::Extend { claim, ttl_ms, .. } => match ours {
                Some(true) => {
                    self.put(now, claim, *ttl_ms);
                    2
                }
                Some(false) => -3,
                None => -2,
            },
            Question::Release { claim, .. } => match ours {
                Some(true) => {
                    self.keys.remove(&claim.key);
                    1
                }
                Some(false) => -1,
                None => 0,
            },
            Question::Remaining { key } => live(key).map_or(-2, |(_, until)| {
                i64::try_from(until.since(now).as_millis()).expect("not so long")
            }),
            _ => return asked.right_reply(&self.run_id.to_string()),
        };
        format!(":{reply}\r\n").into()
    }

    fn put(&mut self, now: Time, claim: &Key, ttl_ms: u64) {
        let until = now.after(ms(ttl_ms));
        self.keys.insert(claim.key.clone(), (claim.token.clone(), until));
    }

    fn raise(&mut self, counter: &[u8], to: u64) -> u64 {
        let count = self.counters.entry(counter.to_vec()).or_default();
        *count = to.max(*count);
        *count
    }
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into()
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const EXTENSION_TIMEOUT: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);

const RESOURCES: &[&[u8]] = &[b"a", b"b", b"\r\n\0\xff"];

/// Right for some command, and wrong for others.
const REPLIES: &[&[u8]] = &[
    b"+OK\r\n",
    b"_\r\n",
    b"$-1\r\n",
    b":2\r\n",
    b":1\r\n",
    b":0\r\n",
    b":-1\r\n",
    b":-2\r\n",
    b":-3\r\n",
    b":500\r\n",
    b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"-BUSY Redis is busy running a script.\r\n",
    b"-MISCONF Redis is configured to save RDB snapshots\r\n",
    b"-READONLY You can't write against a read only replica.\r\n",
    b"-MASTERDOWN Link with MASTER is down\r\n",
    b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    b"-NOPERM User default has no permissions\r\n",
    b"-NOAUTH Authentication required.\r\n",
    b"-ERR max number of clients reached\r\n",
    b"-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `hunter2`\r\n",
    b"-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    b"!9\r\nERR a\r\nbc\r\n",
    b">2\r\n$10\r\ninvalidate\r\n_\r\n",
    b"%1\r\n$5\r\nproto\r\n:3\r\n",
    b"*2\r\n$5\r\nproto\r\n:2\r\n",
    b"$4\r\ntext\r\n",
    b"=8\r\ntxt:text\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
];
