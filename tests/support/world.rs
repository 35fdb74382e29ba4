//! The real engine among model nodes, with time and bytes moved by hand.
//!
//! Nothing happens by itself: a test says when a node executes what it was sent, when its replies arrive,
//! when connections break and how much time passes. The nodes are a few lines of Redis: `SET NX PX`, the
//! scripts, and the handshake.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions

use std::{
    collections::{HashMap, HashSet},
    io,
    time::Duration,
};

use quorlock::{
    Drift, Fencing, RestartGuard, RetryPolicy,
    internal::{
        Credentials,
        command::{By, Subject, Verb, encode},
        engine::{Engine, Event, Grant, Settings},
        handshake::Greeting,
        lease::Lease,
        node::NodeId,
        request::{Care, Request, Spec},
        script::Script,
        slab::Id,
        time::Time,
        token::Token,
        validity::Ttl,
    },
};

pub type Command = Vec<Vec<u8>>;
pub type Instead = Box<dyn FnMut(&Command) -> Option<Vec<u8>>>;

pub struct World {
    pub engine: Engine,
    pub now: Time,
    pub nodes: Vec<Node>,
    pub events: Vec<Event>,
}

#[derive(Default)]
pub struct Node {
    /// Whether it takes connections.
    pub up: bool,
    pub connected: bool,
    /// Bytes that have reached it and were not executed.
    pub inbox: Vec<u8>,
    /// Replies that have not reached the engine.
    pub outbox: Vec<u8>,
    /// Everything executed since the last `take_log`, handshakes excepted.
    pub log: Vec<Command>,
    /// How many writes it took to send what has reached it.
    pub writes: usize,
    pub keys: HashMap<Vec<u8>, (Vec<u8>, Time)>,
    /// The fencing counters. They never expire here, and begin at what the test puts into them.
    pub counters: HashMap<Vec<u8>, u64>,
    pub scripts: HashSet<Vec<u8>>,
    /// Whether the next question is a subscription too.
    caching: bool,
    /// Keys that the client wants to hear of.
    pub watched: HashSet<Vec<u8>>,
    pub run_id: String,
    /// Answers in the node's place, where it answers at all.
    pub instead: Option<Instead>,
}

pub const TTL: Duration = Duration::from_secs(10);
pub const NODE_TIMEOUT: Duration = Duration::from_millis(50);
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn ttl(ttl: Duration) -> Ttl {
    Ttl::parse(ttl, Drift::default()).unwrap()
}

pub fn spec(resource: &str) -> Spec<'_> {
    Spec {
        resource: resource.as_bytes(),
        ttl: ttl(TTL),
        deadline: None,
        min_validity: Duration::ZERO,
        node_timeout: NODE_TIMEOUT,
        care: Care::Holder,
        fencing: Fencing::Off,
    }
}

impl World {
    /// All nodes up, nothing connected.
    pub fn unconnected(nodes: usize) -> Self {
        Self::with_greetings(Self::greetings(nodes))
    }

    pub fn greetings(nodes: usize) -> Vec<Greeting> {
        let greeting = |_| Greeting {
            credentials: Credentials::default(),
            db: 0,
            client_name: "quorlock".into(),
            tracking: true,
            persistence: false,
        };
        (0..nodes).map(greeting).collect()
    }

    pub fn with_greetings(greetings: Vec<Greeting>) -> Self {
        Self::with_settings(greetings, |_| {})
    }

    pub fn with_settings(greetings: Vec<Greeting>, change: impl FnOnce(&mut Settings)) -> Self {
        let now = Time::from_nanos(1_000_000_000);
        let mut settings = Settings {
            names: (0..greetings.len()).map(|i| format!("node-{i}").into()).collect(),
            key_prefix: b"lock:".as_slice().into(),
            connect_timeout: CONNECT_TIMEOUT,
            drift: Drift::default(),
            retry: RetryPolicy::default(),
            restart_guard: RestartGuard::default(),
            ttl_longest: Ttl::NONE,
            repair: false,
        };
        change(&mut settings);
        let node = |i| Node { up: true, run_id: format!("{i:040}"), ..Node::default() };
        let nodes = (0..greetings.len()).map(node).collect();
        Self { engine: Engine::new(settings, greetings, [7; 32], now), now, nodes, events: vec![] }
    }

    /// All nodes connected and ready.
    pub fn new(nodes: usize) -> Self {
        Self::unconnected(nodes).connected()
    }

    pub fn connected(mut self) -> Self {
        self.pass(Duration::ZERO);
        self.settle();
        assert_eq!(self.ready(), self.nodes.len());
        self.take_logs();
        self
    }

    pub fn ready(&self) -> usize {
        let (_, votes) = self.engine.connections();
        votes.iter().filter(|vote| matches!(vote, quorlock::Vote::Granted)).count()
    }

    pub fn acquire(&mut self, spec: Spec<'_>) -> Id<Request> {
        let id = self.engine.acquire(self.now, spec);
        self.carry();
        id
    }

    /// Acquires with the help of all nodes that work.
    pub fn acquired(&mut self, resource: &str) -> Grant {
        self.acquire(spec(resource));
        self.settle();
        match self.events.remove(0) {
            Event::Acquired { grant, .. } => grant,
            event => panic!("{event:?}"),
        }
    }

    pub fn extend(&mut self, lease: Id<Lease>, by: Duration) -> Result<(), quorlock::ExtendError> {
        let result = self.engine.extend(self.now, lease, ttl(by), NODE_TIMEOUT);
        self.carry();
        result
    }

    pub fn release(&mut self, lease: Id<Lease>) {
        self.engine.release(self.now, lease, true);
        self.carry();
    }

    /// Does what the engine wants done: close, connect, write. Collects its events.
    pub fn carry(&mut self) {
        while let Some(node) = self.engine.poll_close() {
            self.nodes[node.index()].hang_up();
        }
        while let Some(node) = self.engine.poll_connect() {
            if self.nodes[node.index()].up {
                self.nodes[node.index()].connected = true;
                self.engine.handle_connected(self.now, node);
            } else {
                let refused = io::Error::from(io::ErrorKind::ConnectionRefused).into();
                self.engine.handle_disconnected(self.now, node, refused);
            }
        }
        for id in self.engine.nodes() {
            let bytes = self.engine.outgoing(id).to_vec();
            if self.nodes[id.index()].connected && !bytes.is_empty() {
                self.nodes[id.index()].inbox.extend_from_slice(&bytes);
                self.nodes[id.index()].writes += 1;
                self.engine.wrote(id, bytes.len());
            }
        }
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
        }
    }

    /// A node executes what it was sent; its replies stay with it.
    pub fn serve(&mut self, node: usize) {
        let now = self.now;
        self.nodes[node].serve(now);
    }

    /// A node's replies arrive.
    pub fn deliver(&mut self, node: usize) {
        let bytes = std::mem::take(&mut self.nodes[node].outbox);
        if !bytes.is_empty() {
            self.feed(node, &bytes);
        }
    }

    pub fn feed(&mut self, node: usize, bytes: &[u8]) {
        let id = self.id(node);
        self.engine.handle_input(self.now, id, bytes);
        self.carry();
    }

    /// A node executes, and its replies arrive.
    pub fn answer(&mut self, node: usize) {
        self.serve(node);
        self.deliver(node);
    }

    /// Everything that is under way arrives, without time passing.
    pub fn settle(&mut self) {
        let busy = |node: &Node| !node.inbox.is_empty() || !node.outbox.is_empty();
        for _ in 0..100 {
            if !self.nodes.iter().any(busy) {
                return;
            }
            (0..self.nodes.len()).for_each(|node| self.answer(node));
        }
        panic!("never quiet");
    }

    /// Time passes; whatever is due in between happens when it is due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        for _ in 0..1000 {
            match self.engine.poll_timeout() {
                Some(due) if due <= end => {
                    self.now = self.now.max(due);
                    self.engine.handle_timeout(self.now);
                    self.carry();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("always something due");
    }

    /// Time passes while everything that is sent arrives at once.
    pub fn live(&mut self, time: Duration) {
        let end = self.now.after(time);
        for _ in 0..1000 {
            self.settle();
            let due = self.engine.poll_timeout().map_or(end, |due| due.min(end));
            if due == end {
                break;
            }
            self.pass(due.since(self.now));
        }
        self.pass(end.since(self.now));
        self.settle();
    }

    /// The connection breaks. What has reached the node stays there; what had not left it is gone.
    pub fn cut(&mut self, node: usize) {
        self.nodes[node].connected = false;
        self.nodes[node].outbox.clear();
        let id = self.id(node);
        self.engine.handle_disconnected(self.now, id, quorlock::NodeError::Closed);
        self.carry();
    }

    pub fn id(&self, node: usize) -> NodeId {
        self.engine.nodes().nth(node).unwrap()
    }

    pub fn take_logs(&mut self) -> Vec<Vec<Command>> {
        self.nodes.iter_mut().map(Node::take_log).collect()
    }

    /// Somebody else deletes the resource's key on a node, which tells whoever wants to hear of it.
    pub fn delete(&mut self, node: usize, resource: &str) {
        let key = [b"lock:", resource.as_bytes()].concat();
        self.nodes[node].keys.remove(&key);
        if self.nodes[node].watched.remove(&key) {
            let push =
                format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\nlock:{resource}\r\n", key.len());
            self.nodes[node].outbox.extend_from_slice(push.as_bytes());
        }
    }

    /// What the resource's key holds on each node.
    pub fn holders(&self, resource: &str) -> Vec<Option<String>> {
        let key = [b"lock:", resource.as_bytes()].concat();
        let holder = |node: &Node| {
            let (token, until) = node.keys.get(&key)?;
            (self.now <= *until).then(|| String::from_utf8(token.clone()).unwrap())
        };
        self.nodes.iter().map(holder).collect()
    }
}

impl Node {
    pub fn take_log(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.log)
    }

    /// The client is gone. What it sent is executed all the same.
    fn hang_up(&mut self) {
        self.connected = false;
        self.outbox.clear();
    }

    fn serve(&mut self, now: Time) {
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = inbox.as_slice();
        while let Some(command) = next_command(&mut rest) {
            let reply = self.instead.as_mut().and_then(|instead| instead(&command));
            let reply = reply.unwrap_or_else(|| self.execute(now, &command));
            if self.connected {
                self.outbox.extend_from_slice(&reply);
            }
            if !matches!(
                &*command[0],
                b"HELLO" | b"CLIENT" | b"INFO" | b"SCRIPT" | b"AUTH" | b"PTTL"
            ) {
                self.log.push(command);
            }
        }
        self.inbox = rest.to_vec();
    }

    fn execute(&mut self, now: Time, command: &Command) -> Vec<u8> {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        match *words {
            [b"HELLO", ..] => b"%1\r\n$5\r\nproto\r\n:3\r\n".into(),
            [b"CLIENT", b"CACHING", b"YES"] => {
                self.caching = true;
                b"+OK\r\n".into()
            }
            [b"PTTL", key] => {
                if std::mem::take(&mut self.caching) {
                    self.watched.insert(key.to_vec());
                }
                let left = match self.keys.get(key) {
                    Some((_, until)) if now <= *until => until.since(now).as_millis().to_string(),
                    _ => "-2".into(),
                };
                format!(":{left}\r\n").into()
            }
            [b"CLIENT" | b"SELECT" | b"AUTH", ..] => b"+OK\r\n".into(),
            [b"INFO", ..] => {
                let info = format!("# Server\r\nrun_id:{}\r\nuptime_in_seconds:9\r\n", self.run_id);
                format!("${}\r\n{info}\r\n", info.len()).into()
            }
            [b"SCRIPT", b"LOAD", source] => {
                let script = Script::ALL.into_iter().find(|s| s.source().as_bytes() == source);
                let digest = script.unwrap().digest().as_slice();
                self.scripts.insert(digest.to_vec());
                [b"$40\r\n", digest, b"\r\n"].concat()
            }
            [b"SET", key, token, b"NX", b"PX", millis] => self.set(now, key, token, millis),
            [b"EVALSHA", digest, ref rest @ ..] => {
                if !self.scripts.contains(digest) {
                    return b"-NOSCRIPT No matching script.\r\n".into();
                }
                let mut scripts = Script::ALL.into_iter();
                let script = scripts.find(|script| script.digest().as_slice() == digest).unwrap();
                self.run(now, script, rest)
            }
            [b"EVAL", source, ref rest @ ..] => {
                let mut scripts = Script::ALL.into_iter();
                let script = scripts.find(|script| script.source().as_bytes() == source).unwrap();
                self.scripts.insert(script.digest().to_vec());
                self.run(now, script, rest)
            }
            _ => panic!(
                "{:?}",
                words.iter().map(|w| w.escape_ascii().to_string()).collect::<Vec<_>>()
            ),
        }
    }

    fn set(&mut self, now: Time, key: &[u8], token: &[u8], millis: &[u8]) -> Vec<u8> {
        if self.keys.get(key).is_some_and(|(_, until)| now <= *until) {
            return b"_\r\n".into();
        }
        self.keys.insert(key.to_vec(), (token.to_vec(), now.after(parse_ms(millis))));
        b"+OK\r\n".into()
    }

    fn run(&mut self, now: Time, script: Script, words: &[&[u8]]) -> Vec<u8> {
        let (key, counter, token, rest) = match *words {
            [b"1", key, token, ref rest @ ..] => (key, None, token, rest),
            [b"2", key, counter, token, ref rest @ ..] => (key, Some(counter), token, rest),
            _ => panic!("one key or two"),
        };
        let live = self.keys.get(key).filter(|(_, until)| now <= *until);
        let ours = live.map(|(holder, _)| holder == token);
        let count = counter.map(|counter| self.counters.entry(counter.to_vec()).or_default());
        let id = String::from_utf8_lossy(&token[..8]);
        let number = |word: &[u8]| -> u64 { std::str::from_utf8(word).unwrap().parse().unwrap() };
        let reply = match (script, ours) {
            (Script::AcquireFenced, None) => {
                let count = count.unwrap();
                *count += 1;
                let text = format!("set {count} {id}");
                self.set(now, key, token, rest[0]);
                return bulk(&text);
            }
            (Script::AcquireFenced, Some(_)) => return bulk(&format!("taken {id}")),
            (Script::Confirm, Some(true)) => {
                let count = count.unwrap();
                *count = number(rest[0]).max(*count);
                return bulk(&format!("count {count} {id}"));
            }
            (Script::Confirm, _) => return bulk(&format!("gone {id}")),
            (Script::Repair, Some(false)) => -4,
            (Script::Repair, _) => {
                if let Some(count) = count {
                    *count = number(rest[1]).max(*count);
                }
                self.keys.insert(key.to_vec(), (token.to_vec(), now.after(parse_ms(rest[0]))));
                4
            }
            (Script::Release, Some(true)) => {
                self.keys.remove(key);
                1
            }
            (Script::Release, Some(false)) => -1,
            (Script::Release, None) => 0,
            (Script::Extend, Some(true)) => {
                let until = now.after(parse_ms(rest[0]));
                self.keys.get_mut(key).unwrap().1 = until;
                2
            }
            (Script::Extend, Some(false)) => -3,
            (Script::Extend, None) => -2,
        };
        format!(":{reply}\r\n").into()
    }
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into()
}

fn parse_ms(millis: &[u8]) -> Duration {
    ms(std::str::from_utf8(millis).unwrap().parse().unwrap())
}

/// Takes one whole command off the front.
fn next_command(bytes: &mut &[u8]) -> Option<Command> {
    let mut rest = *bytes;
    let count = number(&mut rest, b'*')?;
    let mut command = Vec::new();
    for _ in 0..count {
        let len = number(&mut rest, b'$')?;
        command.push(rest.get(..len)?.to_vec());
        rest = rest.get(len + 2..)?;
    }
    *bytes = rest;
    Some(command)
}

fn number(bytes: &mut &[u8], sign: u8) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(bytes[0], sign, "only arrays of bulks are ever sent");
    let number = std::str::from_utf8(&bytes[1..end]).unwrap().parse().unwrap();
    *bytes = &bytes[end + 2..];
    Some(number)
}

/// What goes over the wire for one command, split into its words.
pub fn command(verb: Verb, by: By, resource: &str, token: &Token, ttl: Ttl) -> Command {
    let mut bytes = Vec::new();
    let key = format!("lock:{resource}");
    let subject = Subject { key: key.as_bytes(), counter: &[], token, ttl, count: 0 };
    encode(&mut bytes, verb, by, subject);
    next_command(&mut bytes.as_slice()).unwrap()
}
