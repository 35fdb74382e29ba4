//! The commands of a lock: their bytes, and what their replies mean.

use std::sync::Arc;

use super::{
    fence::COUNT_MAX,
    resp::{
        decode::{Kind, Reply},
        encode::{Decimal, command},
    },
    script::Script,
    token::Token,
    validity::Ttl,
};
use crate::error::{NodeError, ProtocolError};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verb {
    /// `SET key token NX PX ttl`.
    Acquire,
    /// The script that does the same and counts it.
    AcquireFenced,
    /// The second round of a fenced lock.
    Confirm,
    /// The extend script.
    Extend,
    /// The release script.
    Release,
    /// The script that puts a lock back on a node that lost it.
    Repair,
}

impl Verb {
    /// Whether it takes the lock.
    pub fn is_claim(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireFenced)
    }
}

/// What a command is about. Not every verb uses all of it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub key: &'a [u8],
    /// The key of the lock's fencing counter; empty for a lock without.
    pub counter: &'a [u8],
    pub token: &'a Token,
    pub ttl: Ttl,
    /// The count to be confirmed, or to be put back; zero for a lock without.
    pub count: u64,
}

/// What a node's reply says.
#[derive(Debug)]
pub enum Ballot {
    Failed(NodeError),
    Granted,
    /// Granted or confirmed, with the fencing counter at `count`, in answer to the token that begins with `id`.
    Counted {
        count: u64,
        id: [u8; ID_LEN],
    },
    /// The server does not have the script (any more): it was restarted, or told `SCRIPT FLUSH`.
    NoScript,
    Refused,
    /// Refused or not confirmed, in answer to the token that begins with `id`.
    RefusedTo {
        id: [u8; ID_LEN],
    },
}

/// How a script is named to the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum By {
    Digest,
    Source,
}

/// How much of the token a fenced reply repeats.
pub const ID_LEN: usize = 8;

/// Appends the command.
pub fn encode(out: &mut Vec<u8>, verb: Verb, by: By, subject: Subject<'_>) {
    let Subject { key, counter, .. } = subject;
    let token = subject.token.as_bytes();
    let ttl = Decimal::new(millis(subject.ttl));
    let count = Decimal::new(subject.count);
    let script = match verb {
        Verb::Acquire => {
            mutant!(SetWithoutNx => return command(out, &[b"SET", key, token, b"PX", ttl.as_bytes()]));
            mutant!(SetWithoutPx => return command(out, &[b"SET", key, token, b"NX"]));
            return command(out, &[b"SET", key, token, b"NX", b"PX", ttl.as_bytes()]);
        }
        Verb::AcquireFenced => Script::AcquireFenced,
        Verb::Confirm => Script::Confirm,
        Verb::Extend => Script::Extend,
        Verb::Release => Script::Release,
        Verb::Repair => Script::Repair,
    };
    let (eval, body): (&[u8], &[u8]) = match by {
        By::Digest => (b"EVALSHA", script.digest()),
        By::Source => (b"EVAL", script.source().as_bytes()),
    };
    let (ttl, count) = (ttl.as_bytes(), count.as_bytes());
    match script {
        Script::AcquireFenced => command(out, &[eval, body, b"2", key, counter, token, ttl]),
        Script::Confirm => command(out, &[eval, body, b"2", key, counter, token, count]),
        Script::Extend => command(out, &[eval, body, b"1", key, token, ttl]),
        Script::Release => command(out, &[eval, body, b"1", key, token]),
        Script::Repair if counter.is_empty() => command(out, &[eval, body, b"1", key, token, ttl]),
        Script::Repair => command(out, &[eval, body, b"2", key, counter, token, ttl, count]),
    }
}

fn millis(ttl: Ttl) -> u64 {
    mutant!(TtlSentLong => return ttl.millis() * 4);
    mutant!(TtlSentShort => return ttl.millis() * 3 / 4);
    ttl.millis()
}

/// Reads a reply to `verb`. Each verb has replies of its own shape, so that a reply that was meant for
/// another command is noticed, and closes the connection, rather than believed.
pub fn ballot(verb: Verb, reply: Reply<'_>) -> Result<Ballot, ProtocolError> {
    match (verb, reply.kind()) {
        (_, Kind::Error(text) | Kind::BulkError(text)) => Ok(refusal(verb, text)),
        (Verb::Acquire, Kind::Simple(b"OK")) => Ok(Ballot::Granted),
        (Verb::Acquire, Kind::Null) => Ok(Ballot::Refused),
        (Verb::AcquireFenced, Kind::Bulk(text)) => counted(text, b"set", b"taken"),
        (Verb::Confirm, Kind::Bulk(text)) => counted(text, b"count", b"gone"),
        (Verb::Extend, Kind::Integer(2)) => Ok(Ballot::Granted),
        (Verb::Extend, Kind::Integer(-2 | -3)) => Ok(Ballot::Refused),
        (Verb::Release, Kind::Integer(1)) => Ok(Ballot::Granted),
        (Verb::Release, Kind::Integer(0 | -1)) => Ok(Ballot::Refused),
        (Verb::Repair, Kind::Integer(4)) => Ok(Ballot::Granted),
        (Verb::Repair, Kind::Integer(-4)) => Ok(Ballot::Refused),
        _ => Err(ProtocolError::UnexpectedReply),
    }
}

/// Reads "set COUNT ID" or "taken ID", in whichever words the verb has for it.
fn counted(text: &[u8], granted: &[u8], refused: &[u8]) -> Result<Ballot, ProtocolError> {
    let mut words = text.split(|byte| *byte == b' ');
    let mut next = || words.next().unwrap_or_default();
    let ballot = match next() {
        word if word == granted => {
            let digits = Some(next()).filter(|digits| digits.iter().all(u8::is_ascii_digit));
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let count = digits.and_then(|digits| digits.parse().ok());
            let count = count.filter(|count| (1..=COUNT_MAX).contains(count));
            let id = next().try_into().ok();
            count.zip(id).map(|(count, id)| Ballot::Counted { count, id })
        }
        word if word == refused => next().try_into().ok().map(|id| Ballot::RefusedTo { id }),
        _ => None,
    };
    ballot.filter(|_| words.next().is_none()).ok_or(ProtocolError::UnexpectedReply)
}

fn refusal(verb: Verb, text: &[u8]) -> Ballot {
    let text = unwrapped(text);
    match class(text) {
        b"NOSCRIPT" if verb != Verb::Acquire => Ballot::NoScript,
        b"NOPERM" => Ballot::Failed(NodeError::Auth(words(text))),
        // What stands where the counter should be: only a person can tell what it is.
        b"FENCING" | b"WRONGTYPE" if matches!(verb, Verb::AcquireFenced | Verb::Confirm) => {
            Ballot::Failed(NodeError::Config(words(text)))
        }
        _ if is_denied_in_script(text) => Ballot::Failed(NodeError::Auth(words(text))),
        // Of a cluster, which is no independent master.
        b"ASK" | b"CLUSTERDOWN" | b"CROSSSLOT" | b"MOVED" => {
            Ballot::Failed(NodeError::Config(words(text)))
        }
        _ => Ballot::Failed(NodeError::Server(words(text))),
    }
}

/// Whether a script was refused a command that its user may not run. There is no word of its own for that: the first
/// words are Redis's from 6 on, the others Valkey's.
fn is_denied_in_script(text: &[u8]) -> bool {
    const DENIED: [&[u8]; 2] = [b"The user executing the script can't", b"ACL failure in script"];
    let text = text.strip_prefix(b"ERR ").unwrap_or(text);
    DENIED.iter().any(|words| text.starts_with(words))
}

/// The first word of a server's error, which is all that may be relied on: the rest differs between
/// versions and vendors.
pub fn class(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == b' ').next().unwrap_or_default()
}

/// What a command within a script was refused with. Up to version 6 Redis wraps it: `ERR Error running script (call to
/// f_…): @user_script:4: WRONGTYPE …`, or `… @user_script:6: @user_script: 6: -MISCONF …`.
fn unwrapped(text: &[u8]) -> &[u8] {
    const START: &[u8] = b"ERR Error running script ";
    const PLACE: &[u8] = b"@user_script:";
    let place = text.windows(PLACE.len()).rposition(|window| window == PLACE);
    let Some(place) = place.filter(|_| text.starts_with(START)) else {
        return text;
    };
    let line = &text[place + PLACE.len()..];
    let end = line.windows(2).position(|window| window == b": ");
    let error = end.map_or(text, |end| &line[end + 2..]);
    error.strip_prefix(b"-").unwrap_or(error)
}

/// Whether an error tells of a server that is no longer what it was when we connected: a master of ours, with
/// us logged in. Another connection, to wherever the name leads by then, may be better.
pub fn is_stale(text: &str) -> bool {
    matches!(class(text.as_bytes()), b"MASTERDOWN" | b"NOAUTH" | b"READONLY")
}

/// A server's words, fit to be kept and printed: escaped, and cut to 200 bytes.
pub fn words(text: &[u8]) -> Arc<str> {
    const LEN_MAX: usize = 200;
    let cut = &text[..text.len().min(LEN_MAX)];
    let ellipsis = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{ellipsis}", cut.escape_ascii()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_from_within_a_script_is_taken_out_of_its_wrapping() {
        let start = "ERR Error running script (call to f_41c9): @user_script:6: ";
        for (rest, expected) in [
            ("WRONGTYPE Operation", "WRONGTYPE Operation"),
            ("@user_script: 6: -READONLY You can't: no", "READONLY You can't: no"),
            ("@user_script: 6: The user may not", "The user may not"),
            ("@user_script: 6: -", ""),
        ] {
            let text = format!("{start}{rest}");
            assert_eq!(unwrapped(text.as_bytes()), expected.as_bytes(), "{text}");
        }
        for text in
            ["", "MISCONF @user_script: 6: -x", "ERR Error running script (x): @user_script:6"]
        {
            assert_eq!(unwrapped(text.as_bytes()), text.as_bytes());
        }
    }
}
