//! Asking a node about a key without touching it: the bytes, and what the replies mean.

use std::time::Duration;

use super::{
    command::{class, words},
    resp::{
        decode::{Kind, Reply},
        encode::command,
    },
};
use crate::{
    error::{NodeError, ProtocolError},
    status::KeyState,
};

/// Appends the two questions. Each is answered by one reply, in this order.
pub(crate) fn ask(out: &mut Vec<u8>, key: &[u8]) {
    command(out, &[b"GET", key]);
    command(out, &[b"PTTL", key]);
}

/// What the key holds.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Value {
    None,
    /// A string, escaped.
    Token(Box<str>),
    /// Something that is no string.
    NotAString,
}

pub(crate) fn value(reply: Reply<'_>) -> Result<Value, NodeError> {
    match reply.kind() {
        Kind::Null => Ok(Value::None),
        Kind::Bulk(token) => Ok(Value::Token(token.escape_ascii().to_string().into())),
        Kind::Error(text) | Kind::BulkError(text) if class(text) == b"WRONGTYPE" => {
            Ok(Value::NotAString)
        }
        kind => Err(refusal(kind)),
    }
}

/// The reply to `PTTL`, in milliseconds: -1 is no expiry, and -2 no key.
pub(crate) fn pttl(reply: Reply<'_>) -> Result<i64, NodeError> {
    match reply.kind() {
        Kind::Integer(millis) => Ok(millis),
        kind => Err(refusal(kind)),
    }
}

/// The two answers together. The key may have expired, or been taken, between them: then the later one counts
/// as far as it goes.
pub(crate) fn state(value: Value, pttl: i64) -> KeyState {
    let remaining = match pttl {
        -1 => None,
        // Below -1 there is no key.
        _ => match u64::try_from(pttl) {
            Ok(millis) => Some(Duration::from_millis(millis)),
            Err(_) => return KeyState::Free,
        },
    };
    match value {
        Value::None => KeyState::Free,
        Value::Token(token) => KeyState::Held { token, remaining },
        Value::NotAString => KeyState::NotALock,
    }
}

fn refusal(kind: Kind<'_>) -> NodeError {
    match kind {
        Kind::Error(text) | Kind::BulkError(text) if class(text) == b"NOAUTH" => {
            NodeError::Auth(words(text))
        }
        Kind::Error(text) | Kind::BulkError(text) => NodeError::Server(words(text)),
        _ => ProtocolError::UnexpectedReply.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Value {
        Value::Token("a".into())
    }

    #[test]
    fn a_token_and_a_time_are_a_lock() {
        let KeyState::Held { token, remaining } = state(token(), 1500) else {
            panic!("not held");
        };
        assert_eq!((&*token, remaining), ("a", Some(Duration::from_millis(1500))));
    }

    #[test]
    fn a_time_of_minus_one_is_no_time() {
        assert!(matches!(state(token(), -1), KeyState::Held { remaining: None, .. }));
    }

    #[test]
    fn a_key_that_expires_between_the_questions_is_free() {
        assert!(matches!(state(token(), -2), KeyState::Free));
        assert!(matches!(state(Value::NotAString, -2), KeyState::Free));
        assert!(matches!(state(Value::None, 1500), KeyState::Free));
    }
}
