//! What a server can do, found out by asking it.
#![allow(dead_code, unreachable_pub)] // every test binary uses its own part

use quorlock::testing::{Answer, Server};

/// Users, with rights of their own.
pub const ACL: &[&str] = &["ACL", "WHOAMI"];
/// The greeting that asks for RESP3.
pub const HELLO: &[&str] = &["HELLO", "2"];
/// Word of keys that change.
pub const TRACKING: &[&str] = &["CLIENT", "TRACKING", "OFF"];

/// Whether the server answers this with anything but an error.
pub fn can(server: &Server, feature: &[&str]) -> bool {
    !matches!(server.command(feature).expect("an answer"), Answer::Error(_))
}

/// Whether it does not, and the test is to end: that it was skipped is said here.
pub fn lacks(server: &Server, feature: &[&str]) -> bool {
    let lacks = !can(server, feature);
    if lacks {
        println!("skipped: this server knows no {}", feature.join(" "));
    }
    lacks
}
