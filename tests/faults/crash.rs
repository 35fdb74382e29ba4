//! Servers that stop and come back, and servers whose clocks are set. Rows C4 to C8 of `docs/faults.md`.

use std::{thread, time::Duration};

use quorlock::{
    Builder, ExtendError, KeepAlive, KeyState, LocalGuard, LocalLocker, LostReason, ReleaseError,
    RestartGuard,
    testing::{Answer, Data, Server, Servers},
};

use crate::support::{
    connected_by, eventually, ms, no_quorum, patient, patient_shared, preload::Preload, said, secs,
    values,
};

/// Takes restarted servers as they are: here it is seen what they remember.
fn unguarded(servers: &Servers) -> LocalLocker {
    connected_by(Builder::new().restart_guard(RestartGuard::Off).node_timeout(secs(5)), servers)
}

/// A lock on every node.
fn hold(locker: &LocalLocker, servers: &Servers, ttl: Duration) -> LocalGuard {
    let guard = locker.lock("r").ttl(ttl).try_acquire().unwrap();
    let token = guard.token().to_string();
    eventually("every node has it", || values(servers, "r") == vec![Some(token.clone()); 3]);
    guard
}

/// Ends every server as an operator does. It saves what it has.
fn stop(servers: &mut Servers) {
    for server in servers.iter_mut() {
        server.command(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
        server.terminate().unwrap();
    }
}

fn start(servers: &mut Servers) {
    for server in servers.iter_mut() {
        server.restart(Data::Keep).unwrap();
    }
}

fn pttl(server: &Server) -> i64 {
    match server.command(&["PTTL", "r"]).unwrap() {
        Answer::Integer(millis) => millis,
        answer => panic!("{answer:?}"),
    }
}

/// Somebody else's keys are there, and that is said as soon as the nodes are connected.
fn refused(locker: &LocalLocker) {
    eventually("it is contended", || locker.lock("r").try_acquire().unwrap_err().is_contended());
}

#[test]
fn c4_a_clean_stop_keeps_the_lock_and_its_time_goes_on() {
    let mut servers = Servers::start(3).unwrap();
    let (ours, theirs) = (unguarded(&servers), unguarded(&servers));
    let guard = hold(&ours, &servers, secs(60));
    let before: Vec<_> = servers.iter().map(pttl).collect();
    stop(&mut servers);
    start(&mut servers);
    assert_eq!(values(&servers, "r"), vec![Some(guard.token().to_string()); 3]);
    for (server, before) in servers.iter().zip(before) {
        assert!((1..before).contains(&pttl(server)));
    }
    refused(&theirs);
    eventually("it is extended", || guard.extend(secs(60)).is_ok());
    guard.release().unwrap();
    assert_eq!(ours.flush(secs(5)), 0);
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

#[test]
fn c5_a_lock_that_ends_while_the_servers_are_down_does_not_come_back() {
    let mut servers = Servers::start(3).unwrap();
    let (ours, theirs) = (unguarded(&servers), unguarded(&servers));
    let guard = hold(&ours, &servers, secs(2));
    stop(&mut servers);
    eventually("the lock is over", || !guard.is_valid());
    thread::sleep(ms(100));
    start(&mut servers);
    assert_eq!(values(&servers, "r"), [None, None, None]);
    let next = theirs.lock("r").timeout(secs(10)).acquire().unwrap();
    assert!(matches!(guard.extend(secs(2)), Err(ExtendError::Expired)));
    assert!(guard.release().is_err());
    ours.flush(secs(1));
    assert!(next.extend(secs(2)).is_ok(), "the old guard's release left it alone");
}

/// Servers expire keys by their wall clock. From here nothing is to be seen of it but by asking.
#[test]
fn c6_a_clock_that_is_set_forward_ends_the_lock_and_the_next_extension_says_so() {
    let Some(preload) = Preload::new() else { return };
    let servers = Servers::start_each(3, preload.server()).unwrap();
    let locker = patient(&servers);
    let guard = hold(&locker, &servers, secs(10));
    let shared = patient_shared(servers.tcp_urls());
    let kept = shared.lock("kept").ttl(secs(10)).keep_alive(KeepAlive::default().every(ms(50)));
    let kept = kept.try_acquire().unwrap();
    preload.set_clock(60);
    eventually("the keys are over", || values(&servers, "r") == [None, None, None]);
    assert!(guard.is_valid(), "as far as can be known");
    assert_eq!(kept.lost_signal().wait(), LostReason::Refused);
    assert!(matches!(guard.extend(secs(10)), Err(ExtendError::Lost(_))));
    assert!(!guard.is_valid());
    assert!(matches!(guard.release(), Err(ReleaseError::NotHeld(_))));
    locker.lock("r").try_acquire().unwrap().release().unwrap();
}

#[test]
fn c7_a_clock_that_is_set_back_holds_the_lock_up_and_its_status_shows_it() {
    let Some(preload) = Preload::new() else { return };
    let servers = Servers::start_each(3, preload.server()).unwrap();
    let locker = patient(&servers);
    let guard = hold(&locker, &servers, secs(1));
    preload.set_clock(-3600);
    eventually("the lock is over for its holder", || !guard.is_valid());
    std::mem::forget(guard); // Its holder dies.
    thread::sleep(secs(1));
    refused(&locker);
    for node in Builder::new().nodes(servers.tcp_urls()).status("r").unwrap() {
        let KeyState::Held { remaining: Some(left), .. } = node.state() else { panic!("{node:?}") };
        assert!(*left > secs(3590), "more than any lock was taken for: {left:?}");
    }
    // Other locks go on, and this one once the clock is right.
    locker.lock("other").try_acquire().unwrap().release().unwrap();
    preload.set_clock(0);
    locker.lock("r").timeout(secs(10)).acquire().unwrap().release().unwrap();
}

#[test]
fn c8_a_server_that_was_stopped_for_longer_than_the_ttl_has_no_old_lock_and_keeps_no_new_one() {
    let servers = Servers::start(3).unwrap();
    // Their silence is not to end the connections.
    let builder = Builder::new().connect_timeout(secs(20)).node_timeout(ms(500));
    let (ours, theirs) = (connected_by(builder.clone(), &servers), connected_by(builder, &servers));
    let guard = hold(&ours, &servers, ms(500));
    servers[..2].iter().for_each(|server| server.pause().unwrap());
    eventually("the lock is over", || !guard.is_valid());
    eventually("the third node says so", || servers[2].get("r").unwrap().is_none());
    let attempt = no_quorum(theirs.lock("r").try_acquire().unwrap_err());
    assert_eq!(said(&attempt), ["timed out after sending", "timed out after sending", "granted"]);
    assert!(matches!(guard.extend(secs(1)), Err(ExtendError::Expired)));
    servers[..2].iter().for_each(|server| server.resume().unwrap());
    eventually("what was sent is done and undone", || {
        theirs.flush(ms(50)) == 0 && values(&servers, "r") == [None, None, None]
    });
    assert!(matches!(guard.release(), Err(ReleaseError::NotHeld(_))));
    theirs.lock("r").try_acquire().unwrap().release().unwrap();
    for locker in [ours, theirs] {
        let (_, protocol_errors) = locker.reply_counts();
        assert_eq!(protocol_errors, 0);
    }
}
