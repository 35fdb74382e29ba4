//! From a bare connection to a usable one: greet, authenticate, select, introduce, identify, load scripts.
//!
//! Everything goes out in one write. A server that knows no `HELLO` (Redis 5, some proxies) is greeted a
//! second time in plain RESP2, once every reply to the first greeting was consumed: no reply may be left
//! behind that a lock command could take for its own (go-redis CVE-2025-29923).
//!
//! A server's words are not repeated from here: Redis 5 echoes the password in them.

use std::collections::VecDeque;

use super::{
    command::class,
    resp::{
        decode::{Kind, Reply},
        encode::{Decimal, command},
    },
    script::Script,
};
use crate::{
    config::Credentials,
    error::{NodeError, ProtocolError},
};

/// What to say to one node at each connect.
#[derive(Debug)]
pub struct Greeting {
    pub credentials: Credentials,
    pub db: u32,
    pub client_name: Box<str>,
    /// Whether to ask the server to tell of keys that change.
    pub tracking: bool,
    /// Whether to ask how it keeps its data.
    pub persistence: bool,
}

/// Which server process answered. One that was restarted has a new `run_id`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identity {
    pub run_id: Option<Box<str>>,
    pub uptime_secs: Option<u64>,
    /// Whether it keeps an append-only file. Asked only where it matters.
    pub persisted: bool,
    /// Whether it throws keys away when its memory is full.
    pub evicts: bool,
}

#[derive(Debug)]
pub struct Handshake {
    greeting: Greeting,
    /// The replies still to come, in order, and how many bytes of the greeting go out behind each command.
    steps: VecDeque<(Step, usize)>,
    /// Whether to speak plain RESP2: learnt of the node, and remembered for its later connections.
    plain: bool,
    /// Whether anything has been answered on this connection.
    answered: bool,
    /// The first refusal that matters. It decides once all replies are in.
    refusal: Option<Refusal>,
    identity: Identity,
    /// Whether the server tells of keys that change.
    tracking: bool,
}

#[derive(Debug, Eq, PartialEq)]
pub enum Progress {
    /// No `HELLO` here: greet again.
    Again,
    /// Every reply was consumed and none was a refusal.
    Done,
    /// Replies are still to come.
    Waiting,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Auth,
    Hello,
    Info,
    /// `CLIENT SETNAME` and `CLIENT SETINFO`: courtesies that a server may refuse.
    Introduce,
    Load,
    Select,
    Track,
}

#[derive(Debug)]
enum Refusal {
    Node(NodeError),
    NoHello,
}

impl Handshake {
    pub fn new(greeting: Greeting) -> Self {
        Self {
            greeting,
            steps: VecDeque::new(),
            plain: false,
            answered: false,
            refusal: None,
            identity: Identity::default(),
            tracking: false,
        }
    }

    /// Appends the whole greeting, for a new connection or for another try on this one.
    pub fn greet(&mut self, out: &mut Vec<u8>) {
        let Self { greeting, steps, .. } = self;
        steps.clear();
        let mut say = |step, args: &[&[u8]]| {
            command(out, args);
            steps.push_back((step, out.len()));
        };
        if self.plain {
            greeting.authenticate(&mut say);
            let name = greeting.client_name.as_bytes();
            say(Step::Introduce, &[b"CLIENT", b"SETNAME", name]);
        } else {
            greeting.hello(&mut say);
        }
        if greeting.db > 0 {
            let db = Decimal::new(greeting.db.into());
            say(Step::Select, &[b"SELECT", db.as_bytes()]);
        }
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        say(Step::Introduce, &[b"CLIENT", b"SETINFO", b"LIB-NAME", b"quorlock"]);
        say(Step::Introduce, &[b"CLIENT", b"SETINFO", b"LIB-VER", version]);
        if greeting.tracking && !self.plain {
            // Not of our own changes: those we know of.
            say(Step::Track, &[b"CLIENT", b"TRACKING", b"ON", b"OPTIN", b"NOLOOP"]);
        }
        say(Step::Info, &[b"INFO", b"server"]);
        say(Step::Info, &[b"INFO", b"memory"]);
        if greeting.persistence {
            say(Step::Info, &[b"INFO", b"persistence"]);
        }
        for script in Script::ALL {
            say(Step::Load, &[b"SCRIPT", b"LOAD", script.source().as_bytes()]);
        }
        let end = out.len();
        steps.iter_mut().for_each(|(_, behind)| *behind = end - *behind);
        self.answered = false;
        self.refusal = None;
        self.identity = Identity::default();
        self.tracking = false;
    }

    /// Takes the next reply. To a command of which some is among the `unwritten` bytes there is none.
    pub fn reply(&mut self, reply: Reply<'_>, unwritten: usize) -> Result<Progress, NodeError> {
        self.answered = true;
        let (step, behind) = self.steps.pop_front().ok_or(ProtocolError::Unasked)?;
        if unwritten > behind {
            return Err(unasked(step, reply, self.greeting.db));
        }
        match reply.kind() {
            Kind::Error(text) | Kind::BulkError(text) => {
                if let Some(refusal) = refusal(step, text, self.greeting.db) {
                    self.refusal.get_or_insert(refusal);
                }
            }
            kind => self.accept(step, kind)?,
        }
        if self.steps.len() > usize::from(mutant!(HandshakeCutShort)) {
            return Ok(Progress::Waiting);
        }
        match self.refusal.take() {
            None => Ok(Progress::Done),
            Some(Refusal::Node(error)) => Err(error),
            Some(Refusal::NoHello) => {
                self.plain = true;
                Ok(Progress::Again)
            }
        }
    }

    /// The connection ended before the greeting was through. Says why, if the peer did: servers that take no
    /// more clients say so and hang up.
    ///
    /// A peer that hung up without a word may be a proxy that knows no `HELLO` (twemproxy), so the next
    /// greeting is of the other kind.
    pub fn hung_up(&mut self) -> Option<NodeError> {
        match self.refusal.take() {
            Some(Refusal::Node(error)) => return Some(error),
            Some(Refusal::NoHello) => self.plain = true,
            None if !self.answered => self.plain = !self.plain,
            None => {}
        }
        None
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn is_tracking(&self) -> bool {
        self.tracking
    }

    fn accept(&mut self, step: Step, kind: Kind<'_>) -> Result<(), ProtocolError> {
        match (step, kind) {
            (Step::Auth | Step::Select, Kind::Simple(b"OK"))
            | (Step::Hello, Kind::Map(_) | Kind::Array(_))
            | (Step::Introduce, Kind::Simple(_))
            | (Step::Load, Kind::Bulk(_)) => Ok(()),
            (Step::Track, Kind::Simple(_)) => {
                self.tracking = true;
                Ok(())
            }
            (Step::Info, Kind::Bulk(text) | Kind::Verbatim(text)) => {
                self.identify(&String::from_utf8_lossy(text));
                Ok(())
            }
            _ => Err(ProtocolError::UnexpectedReply),
        }
    }

    fn identify(&mut self, info: &str) {
        let mut limited = false;
        for (field, value) in info.lines().filter_map(|line| line.split_once(':')) {
            match field {
                "run_id" => self.identity.run_id = Some(value.into()),
                "uptime_in_seconds" => self.identity.uptime_secs = value.parse().ok(),
                // In this order, in every version.
                "maxmemory" => limited = value != "0",
                "maxmemory_policy" => self.identity.evicts = limited && value != "noeviction",
                "aof_enabled" => self.identity.persisted = value == "1",
                // Valkey has its own name for it.
                "redis_mode" | "server_mode" if value == "cluster" => {
                    let cluster = || config("in cluster mode: not an independent master");
                    self.refusal.get_or_insert_with(cluster);
                }
                _ => {}
            }
        }
    }
}

impl Greeting {
    fn hello(&self, say: &mut impl FnMut(Step, &[&[u8]])) {
        let name = self.client_name.as_bytes();
        let Credentials { user, password } = &self.credentials;
        let Some(password) = password else {
            return say(Step::Hello, &[b"HELLO", b"3", b"SETNAME", name]);
        };
        let user = user.as_ref().map_or(&b"default"[..], |user| user.as_bytes());
        let password = password.as_bytes();
        say(Step::Hello, &[b"HELLO", b"3", b"AUTH", user, password, b"SETNAME", name]);
    }

    /// Redis 5 knows no users: the default user is spoken of by the password alone.
    fn authenticate(&self, say: &mut impl FnMut(Step, &[&[u8]])) {
        let Credentials { user, password } = &self.credentials;
        let Some(password) = password else {
            return;
        };
        let password = password.as_bytes();
        match user.as_ref().map(|user| user.as_bytes()) {
            None | Some(b"default") => say(Step::Auth, &[b"AUTH", password]),
            Some(user) => say(Step::Auth, &[b"AUTH", user, password]),
        }
    }
}

/// The error for a reply that nothing was asked for. A server that takes no client says so at once.
fn unasked(step: Step, reply: Reply<'_>, db: u32) -> NodeError {
    match reply.kind() {
        Kind::Error(text) => match refusal(step, text, db) {
            Some(Refusal::Node(error)) => error,
            Some(Refusal::NoHello) | None => ProtocolError::Unasked.into(),
        },
        _ => ProtocolError::Unasked.into(),
    }
}

/// What an error reply to `step` means for the connection; `None` for what a server may refuse.
fn refusal(step: Step, text: &[u8], db: u32) -> Option<Refusal> {
    let auth = |text: &str| Some(Refusal::Node(NodeError::Auth(text.into())));
    let server = |text: &str| Some(Refusal::Node(NodeError::Server(text.into())));
    match (step, class(text)) {
        (_, b"DENIED") => Some(config("in protected mode, takes no remote clients (DENIED)")),
        (_, b"NOAUTH") => auth("wants a password (NOAUTH)"),
        (_, b"WRONGPASS") => auth("wrong user or password (WRONGPASS)"),
        _ if text.starts_with(b"ERR max number of clients") => {
            server("ERR max number of clients reached")
        }
        (Step::Auth, _) => auth("refused AUTH"),
        (Step::Hello, b"ERR" | b"NOPROTO") => Some(Refusal::NoHello),
        (Step::Hello, b"NOPERM") => auth("the user may not use HELLO (NOPERM)"),
        (Step::Hello, class) if class.eq_ignore_ascii_case(b"unsupported") => {
            Some(Refusal::NoHello)
        }
        (Step::Hello, _) => server("refused HELLO"),
        (Step::Select, _) => Some(config(&format!("refused SELECT {db}"))),
        // It may not be asked, which is no fault. Else it is to be asked again: who it is matters.
        (Step::Info, b"NOPERM" | b"ERR") => None,
        (Step::Info, _) => server("refused INFO"),
        (Step::Introduce | Step::Load | Step::Track, _) => None,
    }
}

fn config(text: &str) -> Refusal {
    Refusal::Node(NodeError::Config(text.into()))
}
