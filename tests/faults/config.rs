//! Nodes that are not what they are taken for. Rows I2 to I9 of `docs/faults.md`.

use std::time::Instant;

use quorlock::{
    AcquireError, Builder, ConnectError, LocalLocker, NodeError, Vote,
    testing::{Server, Servers},
};

use crate::support::{
    Address, connected_by, eventually,
    features::{ACL, lacks},
    is_ready, ms, no_quorum, patient, patient_shared, said, secs, values,
};

#[test]
fn i2_one_server_under_two_addresses_is_refused() {
    let server = Server::start().unwrap();
    let error = LocalLocker::connect([server.tcp_url(), server.unix_url()]).unwrap_err();
    assert!(error.to_string().contains("the same server as "), "{error}");
}

#[test]
fn i2_an_address_that_comes_to_lead_to_another_node_loses_its_vote() {
    let mut servers = Servers::start(3).unwrap();
    let address = Address::of(&servers[0]);
    let urls = [address.url(), servers[1].tcp_url(), servers[2].tcp_url()];
    let locker = Builder::new().nodes(urls).node_timeout(ms(500)).connect().unwrap();
    eventually("all are connected", || is_ready(&locker));
    address.lead_to(&servers[1]);
    servers[0].kill().unwrap();
    let twin = format!("the same server as 127.0.0.1:{}", servers[1].port());
    eventually("it is refused", || {
        let error = locker.stats().unwrap().nodes[0].last_error.clone();
        matches!(error, Some(NodeError::Config(words)) if *words == *twin)
    });
    let guard = locker.lock("r").try_acquire().unwrap();
    assert_eq!(said(guard.attempt())[0], format!("not sent: {twin}"));
    guard.release().unwrap();
    // With one of the two others gone there is no quorum of two servers, whatever the addresses say.
    servers[1].pause().unwrap();
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert_eq!(
        said(&attempt)[..2],
        [format!("not sent: {twin}"), "timed out after sending".into()]
    );
    servers[1].resume().unwrap();
}

/// A name that leads to one master now and to another then. A lock that one has the other has not.
#[test]
fn i3_masters_that_take_turns_at_one_address_have_no_vote() {
    let mut servers = Servers::start(3).unwrap();
    let other = Server::start().unwrap();
    let address = Address::of(&servers[0]);
    let urls = [address.url(), servers[1].tcp_url(), servers[2].tcp_url()];
    let locker = patient_shared(urls);
    for (turn, (from, to)) in (1..).zip([(&servers[0], &other), (&other, &servers[0])]) {
        address.lead_to(to);
        from.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        eventually("the change is seen", || locker.stats().unwrap().nodes[0].restarts == turn);
        let guard = locker.lock("r").try_acquire().unwrap();
        let (_, vote) = guard.attempt().votes().next().unwrap();
        assert!(matches!(vote, Vote::NotSent(NodeError::Restarted { .. })), "{vote:?}");
        guard.release().unwrap();
    }
    servers[1].kill().unwrap();
    eventually("it is noticed", || !locker.stats().unwrap().nodes[1].ready);
    let error = locker.lock("r").try_acquire().unwrap_err();
    assert!(error.to_string().contains("restarted, asked for no new lock"), "{error}");
}

#[test]
fn i5_an_even_number_outlives_what_one_less_does() {
    for (nodes, outlived) in [(2, 0), (3, 1), (4, 1)] {
        let servers = Servers::start(nodes).unwrap();
        let locker = connected_by(Builder::new().node_timeout(ms(500)), &servers);
        for down in 0..=outlived {
            locker.lock("r").try_acquire().unwrap().release().unwrap();
            servers[down].pause().unwrap();
        }
        let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
        assert_eq!(attempt.quorum(), nodes / 2 + 1);
        assert_eq!(attempt.failed(), outlived + 1, "{nodes} nodes");
        assert_eq!(attempt.granted(), nodes - outlived - 1, "{nodes} nodes");
        servers.iter().for_each(|server| server.resume().unwrap());
    }
}

/// Two clients with two lists: nothing that either is told can say so. It is the one fault here that costs the
/// exclusion, and the reason why lists are to be the same.
#[test]
fn i6_clients_with_different_lists_are_not_told_and_both_hold() {
    let servers = Servers::start(5).unwrap();
    let urls = servers.tcp_urls();
    let (ours, theirs) =
        (LocalLocker::connect(&urls[..3]).unwrap(), LocalLocker::connect(&urls[2..]).unwrap());
    let (first, second) =
        (ours.lock("r").try_acquire().unwrap(), theirs.lock("r").try_acquire().unwrap());
    assert!(first.is_valid() && second.is_valid());
    // With one list it cannot be.
    let same = LocalLocker::connect(&urls[..3]).unwrap();
    assert!(same.lock("r").try_acquire().unwrap_err().is_contended());
    drop((first, second));
}

#[test]
fn i9_nodes_that_a_person_must_mend_are_each_named_with_the_reason() {
    let open = Server::start().unwrap();
    let locked = Server::builder().config("requirepass", "s3cret").start().unwrap();
    let small = Server::builder().config("databases", "1").start().unwrap();
    let urls = [open.tcp_url(), locked.tcp_url(), format!("{}/7", small.tcp_url())];
    let patient = Builder::new().connect_timeout(secs(60));
    let error = patient.nodes(&urls).connect_local().unwrap_err();
    let ConnectError::NoQuorum(attempt) = &error else { panic!("{error:?}") };
    assert_eq!(said(attempt)[1..], ["wants a password (NOAUTH)", "refused SELECT 7"]);
    for (server, reason) in [(&locked, "wants a password"), (&small, "refused SELECT 7")] {
        let named = format!("127.0.0.1:{}: {reason}", server.port());
        assert!(error.to_string().contains(&named), "{error}");
    }
}

/// The same of nodes that are connected, and while somebody holds the resource on the others.
#[test]
fn i9_a_majority_that_refuses_us_is_not_taken_for_a_lock_that_is_taken() {
    let servers = Servers::start(3).unwrap();
    if lacks(&servers[0], ACL) {
        return;
    }
    let (ours, theirs) = (patient(&servers), patient(&servers));
    let held = ours.lock("r").try_acquire().unwrap();
    eventually("every node has it", || values(&servers, "r").iter().all(Option::is_some));
    for server in &servers[..2] {
        server.command(&["ACL", "SETUSER", "default", "-set"]).unwrap();
    }
    // It may take attempts: one that the holder's node settles with one of the others is contended.
    let started = Instant::now();
    let error = theirs.lock("r").timeout(secs(60)).acquire().unwrap_err();
    assert!(!error.is_contended() && started.elapsed() < secs(30));
    let AcquireError::NoQuorum(attempt) = &error else { panic!("{error:?}") };
    assert_eq!(attempt.failed(), 2, "{attempt}");
    assert!(said(attempt)[..2].iter().all(|said| said.starts_with("NOPERM")), "{attempt}");
    for server in &servers[..2] {
        assert!(error.to_string().contains(&format!("127.0.0.1:{}: NOPERM", server.port())));
    }
    held.release().unwrap();
    ours.flush(ms(500));
    assert_eq!(values(&servers, "r"), [None, None, None]);
}
