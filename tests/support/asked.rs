//! What a locker has sent, read back from the bytes that went through a proxy.
#![allow(clippy::unwrap_used)] // test code, outside of test functions

use quorlock::internal::{
    resp::decode::{Decoder, Kind, Limits},
    script::Script,
};

use super::proxy::Proxy;

/// A lock's command: what it does, and the token that it is about.
pub type Asked = (&'static str, String);

pub const SET: &str = "set";
pub const EXTEND: &str = "extend";
pub const EXTEND_IN_FULL: &str = "extend, in full";
pub const RELEASE: &str = "release";
pub const RELEASE_IN_FULL: &str = "release, in full";

/// What passed up each connection for this resource, without the greetings. What is not there to its last byte was
/// not asked.
pub fn asked(proxy: &Proxy, resource: &str) -> Vec<Vec<Asked>> {
    proxy.sent().iter().map(|bytes| read(bytes, resource)).collect()
}

fn read(bytes: &[u8], resource: &str) -> Vec<Asked> {
    let mut decoder = Decoder::new(Limits::default());
    decoder.feed(bytes).unwrap();
    let mut asked = Vec::new();
    while let Some(command) = decoder.decode().unwrap() {
        let word = |kind| match kind {
            Kind::Bulk(word) => String::from_utf8_lossy(word).into_owned(),
            kind => panic!("not a command: {kind:?}"),
        };
        let words: Vec<_> = command.children().map(|child| word(child.kind())).collect();
        match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["SET", key, token, ..] if *key == resource => asked.push((SET, (*token).into())),
            ["EVAL" | "EVALSHA", script, "1", key, token, ..] if *key == resource => {
                asked.push((named(script), (*token).into()));
            }
            _ => {}
        }
    }
    asked
}

fn named(script: &str) -> &'static str {
    let digest = |of: Script| of.digest().as_slice() == script.as_bytes();
    match script {
        _ if digest(Script::Extend) => EXTEND,
        _ if digest(Script::Release) => RELEASE,
        _ if script == Script::Extend.source() => EXTEND_IN_FULL,
        _ if script == Script::Release.source() => RELEASE_IN_FULL,
        _ => panic!("no script of ours: {script}"),
    }
}
