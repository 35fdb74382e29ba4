//! The three commands of a lock: their bytes, and what their replies mean.

use std::sync::Arc;

use super::{
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
    /// The extend script.
    Extend,
    /// The release script.
    Release,
}

/// What a node's reply says.
#[derive(Debug)]
pub enum Ballot {
    Failed(NodeError),
    Granted,
    /// The server does not have the script (any more): it was restarted, or told `SCRIPT FLUSH`.
    NoScript,
    Refused,
}

/// How a script is named to the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum By {
    Digest,
    Source,
}

/// Appends the command. `ttl` counts for acquire and extend.
pub fn encode(out: &mut Vec<u8>, verb: Verb, by: By, key: &[u8], token: &Token, ttl: Ttl) {
    let token = token.as_bytes();
    let ttl = Decimal::new(millis(ttl));
    let script = match verb {
        Verb::Acquire => {
            mutant!(SetWithoutNx => return command(out, &[b"SET", key, token, b"PX", ttl.as_bytes()]));
            mutant!(SetWithoutPx => return command(out, &[b"SET", key, token, b"NX"]));
            return command(out, &[b"SET", key, token, b"NX", b"PX", ttl.as_bytes()]);
        }
        Verb::Extend => Script::Extend,
        Verb::Release => Script::Release,
    };
    let (eval, body): (&[u8], &[u8]) = match by {
        By::Digest => (b"EVALSHA", script.digest()),
        By::Source => (b"EVAL", script.source().as_bytes()),
    };
    match script {
        Script::Extend => command(out, &[eval, body, b"1", key, token, ttl.as_bytes()]),
        Script::Release => command(out, &[eval, body, b"1", key, token]),
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
        (Verb::Extend, Kind::Integer(2)) => Ok(Ballot::Granted),
        (Verb::Extend, Kind::Integer(-2 | -3)) => Ok(Ballot::Refused),
        (Verb::Release, Kind::Integer(1)) => Ok(Ballot::Granted),
        (Verb::Release, Kind::Integer(0 | -1)) => Ok(Ballot::Refused),
        _ => Err(ProtocolError::UnexpectedReply),
    }
}

fn refusal(verb: Verb, text: &[u8]) -> Ballot {
    match class(text) {
        b"NOSCRIPT" if verb != Verb::Acquire => Ballot::NoScript,
        b"NOPERM" => Ballot::Failed(NodeError::Auth(words(text))),
        _ => Ballot::Failed(NodeError::Server(words(text))),
    }
}

/// The first word of a server's error, which is all that may be relied on: the rest differs between
/// versions and vendors.
pub fn class(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == b' ').next().unwrap_or_default()
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
