//! One connection as its node sees it: the commands that were written to it, and what each reply to them
//! means. Written apart from the session that it judges; the two share only the decoder.

use std::collections::VecDeque;

use quorlock::internal::{
    resp::decode::{Decoder, Kind, Limits, Reply},
    script::Script,
    time::Time,
};

pub struct Wire {
    /// A command of which not all is written, and since when.
    partial: Vec<u8>,
    since: Time,
    /// Commands written and not answered.
    pub sent: VecDeque<Sent>,
    decoder: Decoder,
    /// How many replies to lock commands and questions fitted them.
    pub answered: usize,
    /// Whether a reply has told of a server that is not to be used much longer.
    pub stale: bool,
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub asked: Question,
    /// When its first byte was written.
    pub at: Time,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Question {
    Auth,
    Caching,
    Extend { claim: Key, ttl_ms: u64, by_source: bool },
    Hello,
    Info,
    Introduce,
    Load,
    Release { claim: Key, by_source: bool },
    Remaining { key: Vec<u8> },
    Select,
    Set { claim: Key, ttl_ms: u64 },
    Track,
}

/// A key and the token that is to be in it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    pub key: Vec<u8>,
    pub token: Vec<u8>,
}

/// What a reply that fits its command says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Meaning {
    /// An error.
    Failed,
    Granted,
    /// The script is not there.
    NoScript,
    /// It will be done another time.
    PutOff,
    Refused,
    /// To a command that is no lock's.
    Taken,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            partial: Vec::new(),
            since: Time::from_nanos(0),
            sent: VecDeque::new(),
            decoder: Decoder::new(Limits::default()),
            answered: 0,
            stale: false,
        }
    }
}

impl Wire {
    /// Takes bytes that were written, and gives the commands that they complete.
    pub fn wrote(&mut self, now: Time, bytes: &[u8]) -> Vec<Sent> {
        if self.partial.is_empty() {
            self.since = now;
        }
        self.partial.extend_from_slice(bytes);
        let mut rest = self.partial.as_slice();
        let mut complete = Vec::new();
        while let Some(words) = next_command(&mut rest) {
            complete.push(Sent { asked: Question::parse(&words), at: self.since });
            self.since = now;
        }
        self.partial = rest.to_vec();
        self.sent.extend(complete.iter().cloned());
        complete
    }

    /// Whether some bytes of a command are written and some are not.
    pub fn is_mid_command(&self) -> bool {
        !self.partial.is_empty()
    }

    pub fn front(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Takes bytes off the wire. Says whether all replies up to here fit what they answer.
    pub fn receive(&mut self, bytes: &[u8], mut credit: impl FnMut(&Sent, Meaning)) -> bool {
        if self.decoder.feed(bytes).is_err() {
            return false;
        }
        loop {
            let reply = match self.decoder.decode() {
                Ok(Some(reply)) => reply,
                Ok(None) => return true,
                Err(_) => return false,
            };
            if matches!(reply.kind(), Kind::Push(_)) {
                continue;
            }
            let Some(front) = self.sent.front() else {
                return false;
            };
            let Some(meaning) = front.asked.meaning(reply) else {
                return false;
            };
            self.stale |= front.asked.is_of_a_lock() && is_stale(reply);
            let counts =
                front.asked.is_of_a_lock() || matches!(front.asked, Question::Remaining { .. });
            self.answered += usize::from(counts);
            credit(front, meaning);
            self.sent.pop_front();
        }
    }
}

impl Question {
    fn parse(words: &[&[u8]]) -> Self {
        let claim = |key: &[u8], token: &[u8]| Key { key: key.into(), token: token.into() };
        match *words {
            [b"AUTH", _] | [b"AUTH", _, _] => Self::Auth,
            [b"HELLO", b"3", ..] => Self::Hello,
            [b"SELECT", _] => Self::Select,
            [b"CLIENT", b"SETNAME", _] | [b"CLIENT", b"SETINFO", _, _] => Self::Introduce,
            [b"CLIENT", b"TRACKING", b"ON", ..] => Self::Track,
            [b"CLIENT", b"CACHING", b"YES"] => Self::Caching,
            [b"INFO", b"server" | b"memory"] => Self::Info,
            [b"SCRIPT", b"LOAD", _] => Self::Load,
            [b"PTTL", key] => Self::Remaining { key: key.into() },
            [b"SET", key, token, b"NX", b"PX", millis] => {
                Self::Set { claim: claim(key, token), ttl_ms: number(millis) }
            }
            [eval @ (b"EVAL" | b"EVALSHA"), body, b"1", key, token, ref ttl @ ..] => {
                let by_source = eval == b"EVAL";
                let is = |script: Script| {
                    if by_source {
                        script.source().as_bytes() == body
                    } else {
                        script.digest() == body
                    }
                };
                match *ttl {
                    [] if is(Script::Release) => {
                        Self::Release { claim: claim(key, token), by_source }
                    }
                    [ttl] if is(Script::Extend) => {
                        Self::Extend { claim: claim(key, token), ttl_ms: number(ttl), by_source }
                    }
                    _ => panic!("another script"),
                }
            }
            _ => panic!("an unknown command: {}", words.concat().escape_ascii()),
        }
    }

    /// `None` for a reply that is none to this.
    fn meaning(&self, reply: Reply<'_>) -> Option<Meaning> {
        let kind = reply.kind();
        if let Kind::Error(text) | Kind::BulkError(text) = kind {
            let simple = matches!(kind, Kind::Error(_));
            return match self {
                Self::Caching | Self::Remaining { .. } => simple.then_some(Meaning::Taken),
                Self::Extend { .. } | Self::Release { .. } | Self::Set { .. } => {
                    Some(self.failure(text))
                }
                _ => Some(Meaning::Taken),
            };
        }
        match (self, kind) {
            (Self::Set { .. }, Kind::Simple(b"OK"))
            | (Self::Extend { .. }, Kind::Integer(2))
            | (Self::Release { .. }, Kind::Integer(1)) => Some(Meaning::Granted),
            (Self::Set { .. }, Kind::Null)
            | (Self::Extend { .. }, Kind::Integer(-2 | -3))
            | (Self::Release { .. }, Kind::Integer(0 | -1)) => Some(Meaning::Refused),
            (Self::Auth | Self::Select | Self::Caching, Kind::Simple(b"OK"))
            | (Self::Hello, Kind::Map(_) | Kind::Array(_))
            | (Self::Introduce | Self::Track, Kind::Simple(_))
            | (Self::Load, Kind::Bulk(_))
            | (Self::Info, Kind::Bulk(_) | Kind::Verbatim(_))
            | (Self::Remaining { .. }, Kind::Integer(-2..)) => Some(Meaning::Taken),
            _ => None,
        }
    }

    fn failure(&self, text: &[u8]) -> Meaning {
        let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        match (self, word) {
            (Self::Release { .. }, b"BUSY" | b"LOADING" | b"MISCONF" | b"READONLY") => {
                Meaning::PutOff
            }
            (
                Self::Extend { by_source: false, .. } | Self::Release { by_source: false, .. },
                b"NOSCRIPT",
            ) => Meaning::NoScript,
            _ => Meaning::Failed,
        }
    }

    pub fn is_of_a_lock(&self) -> bool {
        matches!(self, Self::Extend { .. } | Self::Release { .. } | Self::Set { .. })
    }

    /// What a server in good order answers while greeted.
    pub fn right_reply(&self, run_id: &str) -> Vec<u8> {
        match self {
            Self::Hello => b"%1\r\n$5\r\nproto\r\n:3\r\n".into(),
            Self::Info => {
                let info = format!("# Server\r\nrun_id:{run_id}\r\nuptime_in_seconds:9\r\n");
                format!("${}\r\n{info}\r\n", info.len()).into()
            }
            Self::Load => b"$2\r\nab\r\n".into(),
            _ => b"+OK\r\n".into(),
        }
    }
}

fn is_stale(reply: Reply<'_>) -> bool {
    let (Kind::Error(text) | Kind::BulkError(text)) = reply.kind() else {
        return false;
    };
    [&b"MASTERDOWN"[..], b"NOAUTH", b"READONLY"].iter().any(|word| text.starts_with(word))
}

/// Takes one whole command off the front: an array of bulks.
fn next_command<'a>(bytes: &mut &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let mut rest = *bytes;
    let count = header(&mut rest, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let len = usize::try_from(header(&mut rest, b'$')?).expect("a length");
        words.push(rest.get(..len)?);
        assert!(b"\r\n".starts_with(&rest[len..rest.len().min(len + 2)]), "a bulk ends in CRLF");
        rest = rest.get(len + 2..)?;
    }
    *bytes = rest;
    Some(words)
}

fn header(bytes: &mut &[u8], sign: u8) -> Option<u64> {
    assert_eq!(*bytes.first()?, sign, "only arrays of bulks are ever sent");
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let value = number(&bytes[1..end]);
    *bytes = &bytes[end + 2..];
    Some(value)
}

fn number(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).expect("a number")
}
