//! How we speak: on stderr, as `quorlock: …`. In `run`, stdout belongs to the command.

use std::{
    fmt,
    io::{Write, stderr},
};

/// One message. Nothing is to be done about a stderr that is closed, and it is no reason to fail.
pub(crate) fn say(message: impl fmt::Display) {
    // In one write, so that lines of several processes do not run into one another.
    let line = format!("quorlock: {message}\n");
    let _ = stderr().write_all(line.as_bytes());
}

/// A resource as it is shown: quoted, and printable whatever its bytes are.
pub(crate) fn quoted(resource: &[u8]) -> String {
    format!("\"{}\"", resource.escape_ascii())
}
