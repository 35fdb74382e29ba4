//! What the documents say and a machine can check.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use quorlock::{
    Builder, Fencing, KeyState, Locker,
    testing::{Answer, Server},
};
use support::{eventually, secs};

/// The line in SECURITY.md that makes a user, as it would be pasted.
fn acl_line() -> Vec<String> {
    let security = include_str!("../SECURITY.md");
    let start = security.find("ACL SETUSER").unwrap();
    let line = security[start..].lines().next().unwrap();
    line.split_whitespace().map(String::from).collect()
}

#[test]
fn the_rights_that_are_said_to_be_needed_are_enough() {
    let server = Server::start().unwrap();
    let line = acl_line();
    let words: Vec<_> = line.iter().map(String::as_str).collect();
    match server.command(&words).unwrap() {
        Answer::Error(error) if error.contains("unknown command") => {
            return println!("skipped: this server has no users: {error}");
        }
        answer => assert_eq!(answer, Answer::Text("OK".into())),
    }
    // Not all servers know it.
    let _ = server.command(&["ACL", "SETUSER", "quorlock", "+client|setinfo"]).unwrap();
    let url = format!("redis://quorlock:PASSWORD@127.0.0.1:{}", server.port());
    let builder = || Builder::new().nodes([&url]).key_prefix("locks/").repair(true);
    let locker: Locker = builder().connect().unwrap();
    let guard = locker.lock("r").fencing(Fencing::Confirmed).try_acquire().unwrap();
    assert!(guard.fencing_token().is_some());
    guard.extend(secs(60)).unwrap();
    let status = builder().status("r").unwrap();
    assert!(matches!(status[0].state(), KeyState::Held { .. }), "{status:?}");

    // A waiter is told by the node, which takes rights too: or it would ask again at random.
    let waiter = locker.lock("r").timeout(secs(30)).acquire_async();
    eventually("it waits", || locker.stats().unwrap().contended > 0);
    guard.release().unwrap();
    drop(waiter);
    let node = &locker.stats().unwrap().nodes[0];
    assert!(node.ready && node.identified, "{node:?}");
    let Answer::Array(denied) = server.command(&["ACL", "LOG"]).unwrap() else { panic!() };
    assert!(denied.is_empty(), "nothing was denied: {denied:?}");
}
