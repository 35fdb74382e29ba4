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
    /// Whether who reads the replies knows whose token they are to repeat.
    knows_tokens: bool,
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
    Confirm {
        claim: Key,
        counter: Vec<u8>,
        count: u64,
        by_source: bool,
    },
    Extend {
        claim: Key,
        ttl_ms: u64,
        by_source: bool,
    },
    Hello,
    Info,
    Introduce,
    Load,
    Release {
        claim: Key,
        by_source: bool,
    },
    Remaining {
        key: Vec<u8>,
    },
    /// With the counter and what it is to stand at, if the lock has a fencing token.
    Repair {
        claim: Key,
        ttl_ms: u64,
        fence: Option<(Vec<u8>, u64)>,
        by_source: bool,
    },
    Select,
    Set {
        claim: Key,
        ttl_ms: u64,
    },
    SetFenced {
        claim: Key,
        counter: Vec<u8>,
        ttl_ms: u64,
        by_source: bool,
    },
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
    /// Granted or confirmed, with the counter at this.
    Counted(u64),
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
            knows_tokens: false,
        }
    }
}

impl Wire {
    pub fn of_known_tokens() -> Self {
        Self { knows_tokens: true, ..Self::default() }
    }

    pub fn is_mid_reply(&self) -> bool {
        self.decoder.is_mid_reply()
    }

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
            let Some(meaning) = front.asked.meaning(reply, self.knows_tokens) else {
                return false;
            };
            let of_a_lock = front.asked.claim().is_some();
            self.stale |= of_a_lock && is_stale(reply);
            let counts = of_a_lock || matches!(front.asked, Question::Remaining { .. });
            self.answered += usize::from(counts);
            credit(front, meaning);
            self.sent.pop_front();
        }
    }
}

impl Question {
    fn parse(words: &[&[u8]]) -> Self {
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
                Self::Set { claim: Key::new(key, token), ttl_ms: number(millis) }
            }
            [eval @ (b"EVAL" | b"EVALSHA"), body, ref rest @ ..] => {
                let by_source = eval == b"EVAL";
                let is = |script: &Script| match by_source {
                    true => script.source().as_bytes() == body,
                    false => script.digest() == body,
                };
                let script = Script::ALL.into_iter().find(is).expect("a known script");
                Self::of_script(script, by_source, rest)
            }
            _ => panic!("an unknown command: {}", words.concat().escape_ascii()),
        }
    }

    fn of_script(script: Script, by_source: bool, words: &[&[u8]]) -> Self {
        let (counter, claim, rest) = match *words {
            [b"1", key, token, ref rest @ ..] => (None, Key::new(key, token), rest),
            [b"2", key, counter, token, ref rest @ ..] => {
                (Some(counter.to_vec()), Key::new(key, token), rest)
            }
            _ => panic!("one key or two"),
        };
        let rest: Vec<_> = rest.iter().map(|word| number(word)).collect();
        match (script, counter, &rest[..]) {
            (Script::AcquireFenced, Some(counter), &[ttl_ms]) => {
                Self::SetFenced { claim, counter, ttl_ms, by_source }
            }
            (Script::Confirm, Some(counter), &[count]) => {
                Self::Confirm { claim, counter, count, by_source }
            }
            (Script::Extend, None, &[ttl_ms]) => Self::Extend { claim, ttl_ms, by_source },
            (Script::Release, None, []) => Self::Release { claim, by_source },
            (Script::Repair, None, &[ttl_ms]) => {
                Self::Repair { claim, ttl_ms, fence: None, by_source }
            }
            (Script::Repair, Some(counter), &[ttl_ms, count]) => {
                Self::Repair { claim, ttl_ms, fence: Some((counter, count)), by_source }
            }
            _ => panic!("{script:?} with {} numbers", rest.len()),
        }
    }

    /// `None` for a reply that is none to this.
    fn meaning(&self, reply: Reply<'_>, knows_tokens: bool) -> Option<Meaning> {
        let kind = reply.kind();
        if let Kind::Error(text) | Kind::BulkError(text) = kind {
            let simple = matches!(kind, Kind::Error(_));
            return match self {
                Self::Caching | Self::Remaining { .. } => simple.then_some(Meaning::Taken),
                _ if self.claim().is_some() => Some(self.failure(text)),
                _ => Some(Meaning::Taken),
            };
        }
        match (self, kind) {
            (Self::SetFenced { claim, .. }, Kind::Bulk(text)) => {
                counted(text, b"set", b"taken", knows_tokens.then_some(&claim.token))
            }
            (Self::Confirm { claim, .. }, Kind::Bulk(text)) => {
                counted(text, b"count", b"gone", knows_tokens.then_some(&claim.token))
            }
            (Self::Set { .. }, Kind::Simple(b"OK"))
            | (Self::Extend { .. }, Kind::Integer(2))
            | (Self::Release { .. }, Kind::Integer(1))
            | (Self::Repair { .. }, Kind::Integer(4)) => Some(Meaning::Granted),
            (Self::Set { .. }, Kind::Null)
            | (Self::Extend { .. }, Kind::Integer(-2 | -3))
            | (Self::Release { .. }, Kind::Integer(0 | -1))
            | (Self::Repair { .. }, Kind::Integer(-4)) => Some(Meaning::Refused),
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
                Self::Confirm { by_source, .. }
                | Self::Extend { by_source, .. }
                | Self::Release { by_source, .. }
                | Self::Repair { by_source, .. }
                | Self::SetFenced { by_source, .. },
                b"NOSCRIPT",
            ) if !by_source => Meaning::NoScript,
            _ => Meaning::Failed,
        }
    }

    /// Which lock it is about.
    pub fn claim(&self) -> Option<&Key> {
        match self {
            Self::Confirm { claim, .. }
            | Self::Extend { claim, .. }
            | Self::Release { claim, .. }
            | Self::Repair { claim, .. }
            | Self::Set { claim, .. }
            | Self::SetFenced { claim, .. } => Some(claim),
            _ => None,
        }
    }

    pub fn sets_the_key(&self) -> bool {
        matches!(self, Self::Repair { .. } | Self::Set { .. } | Self::SetFenced { .. })
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

impl Key {
    fn new(key: &[u8], token: &[u8]) -> Self {
        Self { key: key.into(), token: token.into() }
    }

    /// How much of the token a reply repeats.
    pub fn id(&self) -> &[u8] {
        &self.token[..ID_LEN]
    }
}

/// "set COUNT ID" or "taken ID", or the words of another command for that. The count has 53 bits, and the ID is the
/// start of the token, if it is known.
fn counted(
    text: &[u8],
    granted: &[u8],
    refused: &[u8],
    token: Option<&Vec<u8>>,
) -> Option<Meaning> {
    let words: Vec<_> = text.split(|byte| *byte == b' ').collect();
    let (meaning, id) = match *words {
        [word, count, id] if word == granted => {
            let digits = count.iter().all(u8::is_ascii_digit).then_some(count)?;
            let count = std::str::from_utf8(digits).ok()?.parse().ok()?;
            let count = Some(count).filter(|count| (1..1 << 53).contains(count))?;
            (Meaning::Counted(count), id)
        }
        [word, id] if word == refused => (Meaning::Refused, id),
        _ => return None,
    };
    let fits = id.len() == ID_LEN && token.is_none_or(|token| token.starts_with(id));
    fits.then_some(meaning)
}

const ID_LEN: usize = 8;

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
