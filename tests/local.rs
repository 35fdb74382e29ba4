//! `LocalLocker` on real servers: what it promises, and what it says when things go wrong.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use quorlock::{
    AcquireError, Builder, ConfigError, ConnectError, Drift, ExtendError, InvalidRequest,
    LocalLocker, NodeError, ReleaseError, RestartGuard, RetryPolicy, Vote,
    testing::{Answer, Data, Server, Servers},
};
use support::{
    connected, connected_by, eventually,
    features::{ACL, can, lacks},
    ms, no_quorum, proxies,
    proxy::{Plan, Proxy},
    said, secs, values,
};

/// A locker that takes restarted servers as they are.
fn unguarded(servers: &Servers) -> LocalLocker {
    connected_by(Builder::new().restart_guard(RestartGuard::Off), servers)
}

// The main job.

/// The system asks after peers that are idle, or a firewall would forget all connections at a time.
#[test]
#[cfg(target_os = "linux")]
fn idle_connections_are_kept_alive() {
    let servers = Servers::start(3).unwrap();
    let _locker = connected(&servers);
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    for server in servers.iter() {
        let to_it = format!("0100007F:{:04X}", server.port());
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row[2] == to_it && row[3] == "01").expect("a connection");
        assert!(row[5].starts_with("02:"), "a timer that keeps it alive: {row:?}");
    }
}

#[test]
fn acquire_extend_release() {
    let servers = Servers::start(5).unwrap();
    let locker = connected(&servers);
    let guard = locker.lock("orders/42").ttl(secs(10)).try_acquire().unwrap();
    assert!(guard.is_valid());
    assert!(guard.validity() <= secs(10) - ms(102) && guard.validity() > secs(9));
    assert_eq!(guard.attempt().quorum(), 3);
    assert!(guard.attempt().granted() >= 3);
    let token = guard.token().to_string();
    eventually("every node has it", || {
        values(&servers, "orders/42") == vec![Some(token.clone()); 5]
    });

    let validity = guard.extend(secs(60)).unwrap();
    assert!(validity > secs(58) && validity <= secs(60) - ms(602));
    eventually("every key lives longer", || {
        let ttl = |server: &Server| server.command(&["PTTL", "orders/42"]).unwrap();
        servers.iter().all(|server| matches!(ttl(server), Answer::Integer(50_000..=60_000)))
    });

    guard.release().unwrap();
    assert_eq!(locker.flush(secs(1)), 0);
    assert_eq!(values(&servers, "orders/42"), vec![None; 5]);
}

#[test]
fn one_node_alone_is_a_plain_lock() {
    let servers = Servers::start(1).unwrap();
    let locker = connected(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    assert!(locker.lock("r").try_acquire().unwrap_err().is_contended());
    guard.release().unwrap();
    assert!(locker.lock("r").try_acquire().is_ok());
}

#[test]
fn unix_sockets_and_ipv6_and_names() {
    let servers = Servers::start(3).unwrap();
    let urls = [
        servers[0].unix_url(),
        format!("redis://[::1]:{}", servers[1].port()),
        format!("redis://localhost:{}", servers[2].port()),
    ];
    let locker = LocalLocker::connect(urls).unwrap();
    // The name takes a thread: the third node may come a little later.
    eventually("all nodes vote", || {
        let guard = locker.lock("r").try_acquire().unwrap();
        let token = guard.token().to_string();
        guard.extend(secs(5)).unwrap();
        locker.flush(ms(1));
        values(&servers, "r") == vec![Some(token); 3]
    });
}

#[test]
fn a_second_locker_is_refused_and_waits_for_its_turn() {
    let servers = Servers::start(3).unwrap();
    let (ours, theirs) = (connected(&servers), connected(&servers));
    let guard = ours.lock("r").try_acquire().unwrap();
    let AcquireError::Contended(attempt) = theirs.lock("r").try_acquire().unwrap_err() else {
        panic!()
    };
    assert!(attempt.refused() >= 2 && attempt.failed() == 0);

    let error = theirs.lock("r").timeout(ms(300)).acquire().unwrap_err();
    assert!(error.is_contended() && matches!(error, AcquireError::DeadlineExceeded(Some(_))));

    guard.release().unwrap();
    let guard = theirs.lock("r").deadline(Instant::now() + secs(5)).acquire().unwrap();
    assert_eq!(values(&servers, "r").iter().flatten().collect::<HashSet<_>>().len(), 1);
    drop(guard);
}

#[test]
fn several_guards_at_a_time_and_none_disturbs_another() {
    let servers = Servers::start(3).unwrap();
    let locker = connected(&servers);
    let guards: Vec<_> =
        (0..100).map(|i| locker.lock(&format!("r{i}")).try_acquire().unwrap()).collect();
    let tokens: HashSet<_> = guards.iter().map(|guard| guard.token().to_string()).collect();
    assert_eq!(tokens.len(), 100);
    for (i, guard) in guards.into_iter().enumerate().rev() {
        let stays = i % 2 == 0;
        if stays {
            guard.extend(secs(20)).unwrap();
            std::mem::forget(guard);
        } else {
            guard.release().unwrap();
        }
        locker.flush(secs(1));
        assert!(values(&servers, &format!("r{i}")).iter().all(|value| value.is_some() == stays));
    }
}

#[test]
fn keys_carry_the_prefix_and_any_bytes() {
    let servers = Servers::start(1).unwrap();
    let builder = Builder::new().nodes(servers.tcp_urls()).key_prefix("locks:");
    let locker = builder.connect_local().unwrap();
    let guard = locker.lock("a b").try_acquire().unwrap();
    assert_eq!(servers[0].get("locks:a b").unwrap().as_deref(), Some(guard.token().as_str()));

    let every_byte: Vec<u8> = (0..=255).collect();
    let guard = locker.lock(&every_byte).try_acquire().unwrap();
    assert!(locker.lock(&every_byte).try_acquire().unwrap_err().is_contended());
    guard.release().unwrap();
    assert!(locker.lock(&every_byte).try_acquire().is_ok());
}

// Drop.

#[test]
fn a_drop_releases_without_waiting_for_replies() {
    let servers = Servers::start(3).unwrap();
    let locker = connected(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    for server in servers.iter() {
        server.pause().unwrap();
    }
    drop(guard); // Returns although nobody can answer.
    for server in servers.iter() {
        server.resume().unwrap();
    }
    eventually("the release arrives", || values(&servers, "r") == [None, None, None]);
}

#[test]
fn a_guard_outlives_its_locker() {
    let servers = Servers::start(3).unwrap();
    let guard = connected(&servers).lock("r").try_acquire().unwrap();
    guard.extend(secs(5)).unwrap();
    drop(guard);
    eventually("the release arrives", || values(&servers, "r") == [None, None, None]);
}

// Requests that are refused before any I/O.

#[test]
fn bad_requests_name_what_is_wrong_and_send_nothing() {
    let servers = Servers::start(1).unwrap();
    let locker = connected(&servers);
    let before = locker.io_counts();
    for (ttl, named) in [(Duration::ZERO, "0ns"), (ms(9), "9ms"), (secs(86_401), "86401s")] {
        let error = locker.lock("r").ttl(ttl).try_acquire().unwrap_err();
        assert!(matches!(error, AcquireError::InvalidRequest(InvalidRequest::Ttl(_))));
        assert!(error.to_string().contains(named), "{error}");
        let error = locker.lock("r").ttl(ttl).acquire().unwrap_err();
        assert!(matches!(error, AcquireError::InvalidRequest(InvalidRequest::Ttl(_))));
    }
    let error = locker.lock("").try_acquire().unwrap_err();
    assert!(matches!(error, AcquireError::InvalidRequest(InvalidRequest::EmptyResource)));
    let error = locker.lock(&[b'x'; 4097]).try_acquire().unwrap_err();
    assert!(matches!(error, AcquireError::InvalidRequest(InvalidRequest::ResourceTooLong(4097))));
    let error = locker.lock("r").ttl(secs(1)).min_validity(secs(1)).try_acquire().unwrap_err();
    assert!(matches!(error, AcquireError::InvalidRequest(InvalidRequest::MinValidity(_))));
    let error = locker.lock("r").timeout(Duration::ZERO).acquire().unwrap_err();
    assert!(matches!(error, AcquireError::DeadlineExceeded(None)));
    assert_eq!(locker.io_counts(), before);

    let guard = locker.lock(&[b'x'; 4096]).try_acquire().unwrap();
    let error = guard.extend(ms(5)).unwrap_err();
    assert!(matches!(error, ExtendError::InvalidRequest(InvalidRequest::Ttl(_))));
    guard.release().unwrap();
}

#[test]
fn bad_configurations_are_refused_before_any_io() {
    let config = |builder: Builder| match builder.connect_local() {
        Err(ConnectError::Config(error)) => error,
        other => panic!("{other:?}"),
    };
    let none: [&str; 0] = [];
    assert_eq!(config(Builder::new().nodes(none)), ConfigError::NoNodes);
    let many = (0..16).map(|i| format!("redis://10.0.0.{i}"));
    assert_eq!(config(Builder::new().nodes(many)), ConfigError::TooManyNodes(16));
    let twice = Builder::new().nodes(["redis://LOCALHOST:6379/1", "redis://localhost./2"]);
    assert_eq!(config(twice), ConfigError::DuplicateNode("localhost:6379".into()));
    let error = config(Builder::new().node("http://10.0.0.1"));
    assert!(error.to_string().contains("http://10.0.0.1"), "{error}");
    let error = config(Builder::new().node("redis://10.0.0.1").ttl(ms(3)));
    assert!(error.to_string().contains("3ms"), "{error}");
}

// Time.

#[test]
fn a_lock_ends_with_its_validity() {
    let servers = Servers::start(3).unwrap();
    let locker = connected(&servers);
    let guard = locker.lock("r").ttl(ms(50)).try_acquire().unwrap();
    std::thread::sleep(ms(60));
    assert!(!guard.is_valid());
    assert_eq!(guard.validity(), Duration::ZERO);
    assert!(matches!(guard.extend(secs(1)), Err(ExtendError::Expired)));
    let theirs = locker.lock("r").try_acquire().unwrap();
    assert!(matches!(guard.release(), Err(ReleaseError::NotHeld(_))));
    locker.flush(secs(1));
    let token = theirs.token().to_string();
    assert!(values(&servers, "r").iter().all(|value| value.as_deref() == Some(&token)));
}

#[test]
fn an_extension_of_a_lock_that_was_taken_away_says_lost() {
    let servers = Servers::start(3).unwrap();
    let locker = connected(&servers);
    let guard = locker.lock("r").try_acquire().unwrap();
    for server in servers.iter() {
        server.command(&["FLUSHALL"]).unwrap();
    }
    let error = guard.extend(secs(5)).unwrap_err();
    assert!(matches!(error, ExtendError::Lost(_)), "{error}");
    assert!(!guard.is_valid());
    assert_eq!(values(&servers, "r"), [None, None, None], "not created again");
}

#[test]
fn a_minimum_validity_that_cannot_be_kept_is_expired() {
    let servers = Servers::start(3).unwrap();
    let proxies = proxies(&servers);
    let locker = LocalLocker::connect(proxies.iter().map(Proxy::url)).unwrap();
    for proxy in &proxies {
        proxy.set_live(Plan::delay(ms(20)));
    }
    let request = locker.lock("r").ttl(secs(1)).min_validity(secs(1) - ms(13));
    let error = request.clone().try_acquire().unwrap_err();
    let AcquireError::Expired(attempt) = &error else { panic!("{error:?}") };
    assert!(attempt.granted() >= 2 && attempt.elapsed() >= ms(20));
    let error = request.timeout(ms(200)).acquire().unwrap_err();
    assert!(matches!(error, AcquireError::DeadlineExceeded(Some(_))));
    assert_eq!(locker.flush(secs(5)), 0);
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

#[test]
fn drift_is_taken_off_the_validity() {
    let servers = Servers::start(1).unwrap();
    let builder = Builder::new().nodes(servers.tcp_urls()).drift(Drift::new(500_000, ms(100)));
    let locker = builder.connect_local().unwrap();
    let guard = locker.lock("r").ttl(secs(1)).try_acquire().unwrap();
    assert!(guard.validity() <= ms(400) && guard.validity() > ms(300));
}

// Faults, one node at a time.

#[test]
fn one_node_of_three_in_trouble_changes_no_outcome() {
    let mut servers = Servers::start(3).unwrap();
    let locker = unguarded(&servers);
    let round = |count: u32| {
        for _ in 0..count {
            let guard = locker.lock("r").try_acquire().unwrap();
            guard.extend(secs(5)).unwrap();
            guard.release().unwrap();
        }
    };
    round(10);
    servers[0].pause().unwrap();
    round(200);
    servers[0].resume().unwrap();
    eventually("what was sent meanwhile is done", || {
        locker.flush(ms(100)) == 0 && servers[0].get("r").unwrap().is_none()
    });
    servers[1].kill().unwrap();
    round(200);
    servers[1].restart(Data::Wipe).unwrap();
    eventually("it votes again", || {
        let guard = locker.lock("r").try_acquire().unwrap();
        locker.flush(ms(5));
        let votes = servers[1].get("r").unwrap().as_deref() == Some(guard.token().as_str());
        guard.release().unwrap();
        votes
    });
    round(10);
    servers[2].command(&["SCRIPT", "FLUSH"]).unwrap();
    round(10);
    assert_eq!(locker.flush(secs(1)), 0);
    assert_eq!(values(&servers, "r"), [None, None, None]);
    let (_, protocol_errors) = locker.reply_counts();
    assert_eq!(protocol_errors, 0);
}

#[test]
fn a_majority_that_is_paused_is_named_and_nothing_stays() {
    let servers = Servers::start(3).unwrap();
    let locker = connected(&servers);
    servers[0].pause().unwrap();
    servers[2].pause().unwrap();
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert_eq!(said(&attempt), ["timed out after sending", "granted", "timed out after sending"]);
    for (server, (name, _)) in servers.iter().zip(attempt.votes()) {
        assert_eq!(name, format!("127.0.0.1:{}", server.port()));
    }
    let error = AcquireError::NoQuorum(attempt.into()).to_string();
    assert!(error.starts_with("no quorum: 1 of 3 nodes granted, 2 failed (need 2) in "), "{error}");
    servers[0].resume().unwrap();
    servers[2].resume().unwrap();
    eventually("the releases behind the SETs are done", || {
        locker.flush(ms(100)) == 0 && values(&servers, "r") == [None, None, None]
    });
}

#[test]
fn a_majority_that_is_gone_fails_at_once_and_comes_back() {
    let mut servers = Servers::start(3).unwrap();
    let locker = unguarded(&servers);
    locker.lock("r").try_acquire().unwrap().release().unwrap();
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    std::thread::sleep(ms(20));
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert_eq!(attempt.failed(), 2);
    let error = locker.lock("r").timeout(ms(200)).acquire().unwrap_err();
    assert!(!error.is_contended());
    servers[0].restart(Data::Wipe).unwrap();
    servers[1].restart(Data::Wipe).unwrap();
    locker.lock("r").timeout(secs(10)).acquire().unwrap().release().unwrap();
}

#[test]
fn no_quorum_at_connect_says_why_of_each_node() {
    let servers = Servers::start(1).unwrap();
    let proxy = Proxy::start(servers[0].tcp_url()).unwrap();
    proxy.set(Plan::silent());
    let closed = Proxy::start(servers[0].tcp_url()).unwrap();
    closed.refuse();
    let builder = Builder::new().nodes([servers[0].tcp_url(), proxy.url(), closed.url()]);
    let error = builder.connect_timeout(ms(200)).connect_local().unwrap_err();
    let ConnectError::NoQuorum(attempt) = &error else { panic!("{error:?}") };
    let votes: Vec<_> = attempt.votes().map(|(_, vote)| vote).collect();
    assert!(
        matches!(votes[..], [Vote::Granted, Vote::Failed(_), Vote::Failed(NodeError::Io(_))]),
        "{error}"
    );
    assert!(error.to_string().starts_with("connected to 1 of 3 nodes (need 2) in "), "{error}");
}

#[test]
fn servers_that_were_restarted_while_idle_cost_nothing() {
    let mut servers = Servers::start(3).unwrap();
    let locker = unguarded(&servers);
    locker.lock("r").try_acquire().unwrap().release().unwrap();
    for i in 0..3 {
        servers[i].restart(Data::Wipe).unwrap();
    }
    locker.lock("r").try_acquire().unwrap().release().unwrap();
}

// Credentials, databases.

#[test]
fn passwords_users_and_databases() {
    let server = Server::builder().config("requirepass", "s3cret/&").start().unwrap();
    let at = format!("127.0.0.1:{}", server.port());
    let works = |url: String| {
        let locker = LocalLocker::connect([url]).unwrap();
        locker.lock("r").try_acquire().unwrap()
    };
    works(format!("redis://:s3cret%2F%26@{at}")).release().unwrap();
    works(format!("redis://default:s3cret%2F%26@{at}")).release().unwrap();
    let in_three = works(format!("redis://:s3cret%2F%26@{at}/3"));
    let in_zero = works(format!("redis://:s3cret%2F%26@{at}"));
    drop((in_three, in_zero));

    let knows_users = can(&Server::start().unwrap(), ACL);
    let wrong = if knows_users { "wrong user or password (WRONGPASS)" } else { "refused AUTH" };
    for (url, expected) in [
        (format!("redis://{at}"), "wants a password (NOAUTH)"),
        (format!("redis://:wr0ng@{at}"), wrong),
        (format!("redis://ann:wr0ng@{at}"), wrong),
        (format!("redis://:s3cret%2F%26@{at}/99"), "refused SELECT 99"),
    ] {
        let error = LocalLocker::connect([url]).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3cret") && !shown.contains("wr0ng"), "{shown}");
    }
}

#[test]
fn the_rights_that_the_readme_names_are_enough() {
    let server = Server::start().unwrap();
    if lacks(&server, ACL) {
        return;
    }
    let rights = "+set +get +del +pexpire +eval +evalsha";
    let mut rule = vec!["ACL", "SETUSER", "ann", "on", ">pw", "~lock:*"];
    rule.extend(rights.split(' '));
    assert_eq!(server.command(&rule).unwrap(), Answer::Text("OK".into()));
    let builder = Builder::new().node(format!("redis://ann:pw@127.0.0.1:{}", server.port()));
    let locker = builder.key_prefix("lock:").connect_local().unwrap();
    let guard = locker.lock("r").try_acquire().unwrap();
    guard.extend(secs(5)).unwrap();
    guard.release().unwrap();

    let builder = Builder::new().node(format!("redis://ann:pw@127.0.0.1:{}", server.port()));
    let locker = builder.key_prefix("other:").connect_local().unwrap();
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert!(said(&attempt)[0].starts_with("NOPERM"), "{attempt}");
}

// Exact counts.

#[test]
fn an_acquire_is_n_writes_and_a_release_is_n_writes() {
    for nodes in [1, 3, 5] {
        let servers = Servers::start(usize::try_from(nodes).unwrap()).unwrap();
        let locker = connected(&servers);
        for _ in 0..10 {
            // Late connections and replies are done with.
            locker.lock("warm-up").try_acquire().unwrap().release().unwrap();
            locker.flush(secs(1));
        }
        let before = locker.io_counts();
        let guard = locker.lock("r").try_acquire().unwrap();
        let acquired = locker.io_counts();
        guard.release().unwrap();
        let released = locker.io_counts();
        assert_eq!(acquired.writes - before.writes, nodes);
        assert_eq!(released.writes - acquired.writes, nodes);
        assert_eq!(locker.flush(secs(1)), 0);
        let settled = locker.io_counts();
        assert_eq!(settled.writes, released.writes, "nothing else is ever sent");
        assert!(settled.reads - before.reads <= 2 * nodes, "a read for each reply, or fewer");
    }
}

/// What becomes of a request when its time is over is told then, and not when something else happens next: here
/// that would be after a minute.
#[test]
fn an_end_that_no_reply_brings_is_not_slept_on() {
    let servers = Servers::start(3).unwrap();
    let patient = Builder::new().connect_timeout(secs(60));
    let locker = connected_by(patient, &servers);
    for server in servers.iter() {
        server.pause().unwrap();
    }
    let started = Instant::now();
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert_eq!(said(&attempt), ["timed out after sending"; 3]);
    let error = locker.lock("r").timeout(ms(200)).acquire().unwrap_err();
    assert!(matches!(error, AcquireError::DeadlineExceeded(_)), "{error}");
    assert!(started.elapsed() < secs(30));
}

/// Looks again and again while replies are under way, and not once when there are none.
#[test]
fn spinning_is_for_replies_only() {
    let servers = Servers::start(3).unwrap();
    let proxies = proxies(&servers);
    let nodes = proxies.iter().map(Proxy::url);
    let locker = Builder::new().nodes(nodes).spin(ms(1)).connect_local().unwrap();
    locker.lock("r").try_acquire().unwrap().release().unwrap();
    assert_eq!(locker.flush(secs(5)), 0);
    for proxy in &proxies {
        proxy.set_live(Plan::delay(ms(3)));
    }
    let before = locker.io_counts();
    let guard = locker.lock("r").try_acquire().unwrap();
    let polls = locker.io_counts().polls - before.polls;
    assert!(polls > 10, "{polls} looks in a millisecond, and a sleep");
    guard.release().unwrap();
    assert_eq!(locker.flush(secs(5)), 0);
    let before = locker.io_counts();
    std::thread::sleep(ms(20));
    assert_eq!(locker.flush(ms(20)), 0);
    let polls = locker.io_counts().polls - before.polls;
    assert!(polls <= 2, "{polls} looks with nothing to come");
}

/// What goes over the wire for one lock, to the byte.
#[test]
fn an_acquire_is_one_set_and_a_release_is_one_evalsha() {
    let servers = Servers::start(1).unwrap();
    let proxy = Proxy::start(servers[0].tcp_url()).unwrap();
    let locker = LocalLocker::connect([proxy.url()]).unwrap();
    let handshake = proxy.sent()[0].len();
    let guard = locker.lock("orders/42").ttl(secs(10)).try_acquire().unwrap();
    let token = guard.token().to_string();
    guard.release().unwrap();
    let sent = String::from_utf8(proxy.sent()[0][handshake..].to_vec()).unwrap();
    let digest = std::str::from_utf8(quorlock::internal::script::Script::Release.digest()).unwrap();
    assert_eq!(
        sent,
        format!(
            "*6\r\n$3\r\nSET\r\n$9\r\norders/42\r\n$40\r\n{token}\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n\
             *5\r\n$7\r\nEVALSHA\r\n$40\r\n{digest}\r\n$1\r\n1\r\n$9\r\norders/42\r\n$40\r\n{token}\r\n"
        )
    );
}

#[test]
fn retries_pause_as_configured() {
    let servers = Servers::start(1).unwrap();
    let holder = connected(&servers).lock("r").try_acquire().unwrap();
    let builder = Builder::new().nodes(servers.tcp_urls());
    let locker = builder.retry(RetryPolicy::jittered(ms(20), ms(20))).connect_local().unwrap();
    let error = locker.lock("r").timeout(ms(500)).acquire().unwrap_err();
    let attempts = error.attempt().unwrap().number();
    assert!((2..=26).contains(&attempts), "{attempts}");
    drop(holder);
}
