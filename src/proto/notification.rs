//! Waiting for a key without polling: how long it has to live, and a word from the server when it changes.
//!
//! Server-assisted client side caching (redis.io, "Client-side caching") in its opt-in mode: the server
//! remembers the keys read by a command behind `CLIENT CACHING YES`, and pushes an invalidation once when one
//! is deleted, expires or is overwritten, whoever did it. A notification only ever shortens a wait that is
//! bounded anyhow: one that is lost costs time and nothing else.

use std::time::Duration;

use super::resp::{
    decode::{Kind, Reply},
    encode::command,
};
use crate::error::ProtocolError;

/// What a node says of a key's life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Remaining {
    /// It ends after this, if nobody ends it before.
    Ends(Duration),
    /// There is no key.
    Gone,
    /// It has no end, or the node does not say.
    Unknown,
}

pub fn ask_caching(out: &mut Vec<u8>) {
    command(out, &[b"CLIENT", b"CACHING", b"YES"]);
}

pub fn ask_remaining(out: &mut Vec<u8>, key: &[u8]) {
    command(out, &[b"PTTL", key]);
}

/// A server may refuse it; then there will be no notification.
pub fn caching(reply: Reply<'_>) -> Result<(), ProtocolError> {
    match reply.kind() {
        Kind::Simple(b"OK") | Kind::Error(_) => Ok(()),
        _ => Err(ProtocolError::UnexpectedReply),
    }
}

pub fn remaining(reply: Reply<'_>) -> Result<Remaining, ProtocolError> {
    match reply.kind() {
        Kind::Integer(-2) => Ok(Remaining::Gone),
        Kind::Integer(-1) | Kind::Error(_) => Ok(Remaining::Unknown),
        Kind::Integer(millis) => match u64::try_from(millis) {
            Ok(millis) => Ok(Remaining::Ends(Duration::from_millis(millis))),
            Err(_) => Err(ProtocolError::UnexpectedReply),
        },
        _ => Err(ProtocolError::UnexpectedReply),
    }
}

/// The key that a push says has changed; `Some(None)` if all have (`FLUSHALL`), `None` if it says something
/// else.
pub fn invalidated(push: Reply<'_>) -> Option<Option<Box<[u8]>>> {
    let mut children = push.children();
    let (kind, keys) = (children.next()?.kind(), children.next()?);
    if !matches!(kind, Kind::Bulk(b"invalidate") | Kind::Simple(b"invalidate")) {
        return None;
    }
    let mut keys = keys.children();
    match (keys.next().map(|key| key.kind()), keys.next()) {
        (Some(Kind::Bulk(key)), None) => Some(Some(key.into())),
        // All keys, or several: no server sends several but in another mode.
        _ => Some(None),
    }
}
