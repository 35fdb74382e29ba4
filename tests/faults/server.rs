//! Servers that run and will not serve: that load, were demoted, are full, forbid, are busy, or are no lock servers
//! at all. Rows S1 to S13 of `docs/faults.md`.

use std::{
    fs,
    io::Write,
    net::TcpListener,
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use quorlock::{
    AcquireError, Attempt, Builder, ConnectError, ExtendError, Fencing, KeyState, LocalGuard,
    LocalLocker, Locker, NodeError, ReleaseError, RestartGuard, Vote,
    internal::resp::encode::command,
    testing::{Answer, Data, Server, ServerBuilder, Servers},
};

use crate::support::{
    Address, connected_by, eventually,
    fake::{Act, Fake},
    features::{ACL, can, lacks},
    is_ready, ms, no_quorum, patient, patient_shared,
    proxy::Proxy,
    said, secs, values,
};

/// The first two of three nodes are in trouble, and say so in these words. The third one works, and may not have been
/// waited for.
#[track_caller]
fn assert_two_say(attempt: &Attempt, words: &str) {
    assert_eq!((attempt.failed(), attempt.refused()), (2, 0), "{attempt}");
    let said = said(attempt);
    assert!(said[..2].iter().all(|said| said.starts_with(words)), "{words}: {said:?}");
}

/// The same of an acquire. What the third node granted is released.
#[track_caller]
fn assert_not_acquired(error: AcquireError, words: &str) {
    assert_two_say(&no_quorum(error), words);
}

/// The same of an extension, which leaves the lock as it is.
#[track_caller]
fn assert_not_extended(error: ExtendError, words: &str) {
    let ExtendError::NoQuorum { attempt, validity } = error else { panic!("{error:?}") };
    assert_two_say(&attempt, words);
    assert!(validity > secs(1), "{validity:?}");
}

/// The same of a release: done on the third node, or about to be.
#[track_caller]
fn assert_not_released(error: ReleaseError, words: &str) {
    let ReleaseError::NoQuorum(attempt) = error else { panic!("{error:?}") };
    assert_two_say(&attempt, words);
}

/// Waits until the third node has done what it was sent, and the first two still have the key.
fn assert_kept_by_two(servers: &[Server], key: &str) {
    eventually("the third node has released it", || {
        let there: Vec<_> = values(servers, key).iter().map(Option::is_some).collect();
        there == [true, true, false]
    });
}

fn on_all(servers: &[Server], words: &[&str]) {
    for server in servers {
        let answer = server.command(words).unwrap();
        assert!(!matches!(answer, Answer::Error(_)), "{words:?}: {answer:?}");
    }
}

/// Servers with directives that older ones do not know; then none, and a word about it.
fn started(count: usize, builder: ServerBuilder) -> Option<Servers> {
    match Servers::start_each(count, builder) {
        Err(error) if error.to_string().contains("does not start") => {
            eprintln!("skipped: {error}");
            None
        }
        servers => Some(servers.unwrap()),
    }
}

fn info(server: &Server, section: &str) -> String {
    match server.command(&["INFO", section]).unwrap() {
        Answer::Text(info) => info,
        answer => panic!("{answer:?}"),
    }
}

/// Sends a command whose answer is not waited for. It is lost with the stream.
fn send(server: &Server, words: &[&str]) -> UnixStream {
    let mut stream = UnixStream::connect(server.socket_path()).unwrap();
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    let mut bytes = Vec::new();
    command(&mut bytes, &words);
    stream.write_all(&bytes).unwrap();
    stream
}

fn hold(locker: &LocalLocker, servers: &Servers) -> LocalGuard {
    let guard = locker.lock("held").ttl(secs(60)).try_acquire().unwrap();
    eventually("every node has it", || values(servers, "held").iter().all(Option::is_some));
    guard
}

#[test]
fn s1_a_server_that_loads_is_no_vote_and_does_later_what_it_is_owed() {
    let slow = Server::builder()
        .config("key-load-delay", "10000")
        .config("loading-process-events-interval-bytes", "1024");
    let Some(mut servers) = started(3, slow) else { return };
    // Between two looks at its clients a server loads for longer than nodes are given by default.
    let builder = Builder::new().restart_guard(RestartGuard::Off).node_timeout(secs(5));
    let locker = connected_by(builder, &servers);
    let guard = hold(&locker, &servers);
    let fill = "for i = 1, 250 do redis.call('SET', 'k' .. i, string.rep('x', 100)) end";
    on_all(&servers[..2], &["EVAL", fill, "0"]);
    on_all(&servers[..2], &["SAVE"]);
    thread::scope(|scope| {
        for server in &mut servers[..2] {
            scope.spawn(|| server.restart(Data::Keep).unwrap());
        }
        let mut last = None;
        eventually("both load", || match locker.lock("r").try_acquire() {
            Ok(_) => false,
            Err(error) => {
                let attempt = no_quorum(error);
                let loading = said(&attempt)[..2].iter().all(|said| said.starts_with("LOADING"));
                last = Some(attempt);
                loading
            }
        });
        assert_two_say(&last.unwrap(), "LOADING");
        assert_not_released(guard.release().unwrap_err(), "LOADING");
    });
    assert!(values(&servers, "held")[..2].iter().all(Option::is_some), "loaded with its ttl");
    eventually("what was put off is done", || {
        locker.flush(ms(50)) == 0 && values(&servers, "held") == [None, None, None]
    });
    locker.lock("r").try_acquire().unwrap().release().unwrap();
    locker.flush(secs(1));
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

/// What the first two servers call the locker's connections.
fn connections(servers: &[Server]) -> Vec<Option<String>> {
    let connection = |server: &Server| {
        let Answer::Text(list) = server.command(&["CLIENT", "LIST"]).unwrap() else { panic!() };
        let ours = list.lines().find(|line| line.contains(" name=quorlock"))?;
        Some(ours.split(' ').next()?.to_owned())
    };
    servers[..2].iter().map(connection).collect()
}

fn all_are_new(known: &[Option<String>], now: &[Option<String>]) -> bool {
    known.iter().zip(now).all(|(known, now)| now.is_some() && now != known)
}

#[test]
fn s2_a_demoted_server_is_left_for_another_connection_and_owed_the_release() {
    let servers = Servers::start(3).unwrap();
    let locker = patient_shared(servers.tcp_urls());
    let guard = locker.lock("held").ttl(secs(60)).try_acquire().unwrap();
    eventually("every node has it", || values(&servers, "held").iter().all(Option::is_some));
    on_all(&servers[..2], &["REPLICAOF", "127.0.0.1", "1"]);

    let known = connections(&servers);
    assert_not_acquired(locker.lock("r").try_acquire().unwrap_err(), "READONLY");
    eventually("others are made", || {
        all_are_new(&known, &connections(&servers)) && is_ready(&locker)
    });
    for node in &locker.stats().unwrap().nodes[..2] {
        let Some(NodeError::Server(words)) = &node.last_error else { panic!("{node:?}") };
        assert!(words.starts_with("READONLY"), "{words}");
        assert_eq!(node.restarts, 0);
    }
    let known = connections(&servers);
    assert_not_extended(guard.extend(secs(60)).unwrap_err(), "READONLY");
    eventually("others are made", || {
        all_are_new(&known, &connections(&servers)) && is_ready(&locker)
    });
    assert_not_released(guard.release().unwrap_err(), "READONLY");
    assert_kept_by_two(&servers, "held");

    on_all(&servers[..2], &["REPLICAOF", "NO", "ONE"]);
    eventually("the releases are done", || values(&servers, "held") == [None, None, None]);
    locker.lock("r").timeout(secs(10)).acquire().unwrap().release().unwrap();
    locker.close(secs(1)).unwrap();
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

#[test]
fn s3_a_replica_in_its_masters_place_is_a_node_that_was_restarted() {
    let mut servers = Servers::start(3).unwrap();
    let replica = Server::start().unwrap();
    let address = Address::of(&servers[0]);
    let urls = [address.url(), servers[1].tcp_url(), servers[2].tcp_url()];
    let locker = patient_shared(urls);
    // It was not copied when its master died.
    let guard = locker.lock("held").ttl(secs(10)).try_acquire().unwrap();
    eventually("every node has it", || values(&servers, "held").iter().all(Option::is_some));
    servers[0].kill().unwrap();
    address.lead_to(&replica);
    eventually("the replica is connected", || locker.stats().unwrap().nodes[0].restarts == 1);

    let other = locker.lock("other").try_acquire().unwrap();
    let (_, vote) = other.attempt().votes().next().unwrap();
    assert!(matches!(vote, Vote::NotSent(NodeError::Restarted { .. })), "{vote:?}");
    assert!(locker.lock("held").try_acquire().unwrap_err().is_contended());
    guard.extend(secs(10)).unwrap();
    guard.release().unwrap();
    other.release().unwrap();
    locker.close(secs(1)).unwrap();
    assert_eq!(replica.command(&["DBSIZE"]).unwrap(), Answer::Integer(0));
}

#[test]
fn s4_a_full_server_grants_nothing_and_still_extends_and_releases() {
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers);
    let guard = hold(&locker, &servers);
    on_all(&servers[..2], &["CONFIG", "SET", "maxmemory", "1"]);
    assert_not_acquired(locker.lock("r").try_acquire().unwrap_err(), "OOM command not allowed");
    on_all(&servers, &["CONFIG", "SET", "maxmemory", "1"]);
    guard.extend(secs(5)).unwrap();
    guard.release().unwrap();
    assert_eq!(locker.flush(secs(1)), 0);
    assert_eq!(values(&servers, "held"), [None, None, None]);
    on_all(&servers, &["CONFIG", "SET", "maxmemory", "0"]);
    locker.lock("r").try_acquire().unwrap().release().unwrap();
}

/// Nothing but the warning can be had of a client: a server that evicts gives a held lock away.
#[test]
fn s5_a_server_that_evicts_is_warned_of_and_its_loss_is_noticed() {
    let servers = Servers::start(3).unwrap();
    for (server, policy) in servers.iter().zip(["volatile-ttl", "allkeys-lru", "noeviction"]) {
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]).unwrap();
    }
    let evicting = || {
        let locker = patient_shared(servers.tcp_urls());
        let nodes = locker.stats().unwrap().nodes;
        nodes.iter().map(|node| node.evicts).collect::<Vec<_>>()
    };
    assert_eq!(evicting(), [false; 3], "none of them is ever full");
    on_all(&servers, &["CONFIG", "SET", "maxmemory", "8mb"]);
    assert_eq!(evicting(), [true, true, false]);

    let locker = patient(&servers);
    let guard = hold(&locker, &servers);
    let value = "x".repeat(100_000);
    for server in &servers[..2] {
        for i in 0.. {
            if server.get("held").unwrap().is_none() {
                break;
            }
            assert!(i < 20_000, "it is not evicted");
            server.command(&["SET", &format!("k{i}"), &value, "EX", "1000"]).unwrap();
        }
    }
    assert!(guard.is_valid());
    assert!(matches!(guard.extend(secs(60)), Err(ExtendError::Lost(_))));
    assert!(!guard.is_valid());
}

/// A directory in the place of its file: the server cannot save, whoever it runs as.
fn break_disk(server: &Server, broken: bool) {
    let file = server.socket_path().with_file_name("dump.rdb");
    if broken {
        fs::create_dir(&file).unwrap();
    } else {
        fs::remove_dir(&file).unwrap();
    }
    on_all(std::slice::from_ref(server), &["CONFIG", "SET", "save", "3600 1"]);
    on_all(std::slice::from_ref(server), &["BGSAVE"]);
    let status = if broken { "rdb_last_bgsave_status:err" } else { "rdb_last_bgsave_status:ok" };
    eventually("it has tried to save", || info(server, "persistence").contains(status));
}

#[test]
fn s6_a_server_that_cannot_save_releases_when_it_can() {
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers);
    let guard = hold(&locker, &servers);
    servers[..2].iter().for_each(|server| break_disk(server, true));
    assert_not_acquired(locker.lock("r").try_acquire().unwrap_err(), "MISCONF");
    assert_not_extended(guard.extend(secs(60)).unwrap_err(), "MISCONF");
    assert_not_released(guard.release().unwrap_err(), "MISCONF");
    assert_kept_by_two(&servers, "held");
    servers[..2].iter().for_each(|server| break_disk(server, false));
    eventually("the releases are done", || {
        locker.flush(ms(50)) == 0 && values(&servers, "held") == [None, None, None]
    });
    locker.lock("r").try_acquire().unwrap().release().unwrap();
}

#[test]
fn s7_a_refused_login_is_one_node_out_and_not_repeated_soon() {
    let servers = Servers::start(3).unwrap();
    servers[0].command(&["CONFIG", "SET", "requirepass", "s3cret"]).unwrap();
    let proxy = Proxy::start(servers[0].tcp_url()).unwrap();
    let wrong = proxy.url().replace("redis://", "redis://:wr0ng@");
    let started = Instant::now();
    let locker = Locker::connect([wrong, servers[1].tcp_url(), servers[2].tcp_url()]).unwrap();
    for _ in 0..50 {
        let guard = locker.lock("r").timeout(secs(10)).acquire().unwrap();
        let (_, vote) = guard.attempt().votes().next().unwrap();
        let refused = |vote: &Vote| matches!(vote, Vote::NotSent(NodeError::Auth(_)));
        assert!(refused(vote) || matches!(vote, Vote::Pending), "{vote:?}");
        guard.release().unwrap();
        thread::sleep(ms(5));
    }
    eventually("the refusal is in", || locker.stats().unwrap().nodes[0].last_error.is_some());
    let stats = locker.stats().unwrap();
    let error = stats.nodes[0].last_error.as_ref().unwrap();
    let words = if can(&servers[1], ACL) { "WRONGPASS" } else { "refused AUTH" };
    assert!(error.is_permanent() && error.to_string().contains(words), "{error}");
    // The first pause is half a second at the least.
    let most = 1 + started.elapsed().as_millis() / 500;
    let logins = proxy.connections();
    assert!(logins as u128 <= most, "{logins} logins, and no more than {most} were due");
}

/// Each right is missed by the command that needs it, and not before: which keys a user may touch is known of those
/// keys alone.
#[test]
fn s8_a_right_that_is_missing_is_said_by_the_command_that_needs_it() {
    let servers = Servers::start(3).unwrap();
    if lacks(&servers[0], ACL) {
        return;
    }
    let locker = patient(&servers);
    // What is refused: an acquire, an extension, a release.
    // Also what only a fenced lock needs, and also where it waits.
    on_all(&servers[..2], &["ACL", "SETUSER", "default", "-hmget"]);
    let fenced = locker.lock("fenced").fencing(Fencing::Confirmed).timeout(secs(60)).acquire();
    let attempt = no_quorum(fenced.unwrap_err());
    assert!(
        attempt.votes().take(2).all(|(_, vote)| matches!(vote.error(), Some(NodeError::Auth(_))))
    );
    on_all(&servers[..2], &["ACL", "SETUSER", "default", "+hmget"]);
    for (rule, refused) in [
        ("-set", [true, false, false]),
        ("resetkeys", [true, true, true]),
        ("-evalsha", [false, true, true]),
        ("-get", [false, true, true]),
        ("-pexpire", [false, true, false]),
        ("-del", [false, false, true]),
    ] {
        let guard = hold(&locker, &servers);
        let deny = ["ACL", "SETUSER", "default", rule];
        on_all(&servers[..2], &deny);
        let denied = |attempt: &Attempt| {
            // Within a script it is not NOPERM, and other words in each version.
            let words = ["The user executing the script can", "ERR ACL failure in script"];
            let said = said(attempt);
            let denied = |said: &String| {
                said.starts_with("NOPERM") || words.iter().any(|words| said.contains(words))
            };
            assert!(said[..2].iter().all(denied), "{rule}: {said:?}");
            assert_eq!((attempt.failed(), attempt.refused()), (2, 0), "{rule}: {attempt}");
        };
        let acquired = locker.lock(rule).timeout(secs(60)).acquire();
        let extended = guard.extend(secs(60));
        let released = guard.release();
        let results = [acquired.is_err(), extended.is_err(), released.is_err()];
        assert_eq!(results, refused, "{rule}");
        match acquired {
            Err(error) => denied(&no_quorum(error)), // At once, not after a minute.
            Ok(guard) => std::mem::forget(guard),
        }
        if let Err(error) = extended {
            let ExtendError::NoQuorum { attempt, .. } = error else { panic!("{error:?}") };
            denied(&attempt);
        }
        if let Err(error) = &released {
            let ReleaseError::NoQuorum(attempt) = error else { panic!("{error:?}") };
            denied(attempt);
        }
        // A person has to act, and no retry is of use before that: what could not be released ends with its ttl.
        on_all(&servers[..2], &["ACL", "SETUSER", "default", "+@all", "allkeys"]);
        locker.flush(secs(1));
        let kept = values(&servers, "held").iter().filter(|value| value.is_some()).count();
        assert_eq!(kept, if released.is_err() { 2 } else { 0 }, "{rule}");
        if refused[0] {
            assert_eq!(values(&servers, rule), [None, None, None], "{rule}");
        }
        on_all(&servers, &["FLUSHALL"]);
    }
}

#[test]
fn s9_connections_that_were_closed_while_idle_cost_nothing() {
    let servers = Servers::start_each(3, Server::builder().config("timeout", "1")).unwrap();
    let locker = patient(&servers);
    locker.lock("r").try_acquire().unwrap().release().unwrap();
    eventually("the servers hang up", || {
        servers.iter().all(|server| {
            let Answer::Text(list) = server.command(&["CLIENT", "LIST"]).unwrap() else { panic!() };
            !list.contains("name=quorlock")
        })
    });
    locker.lock("r").try_acquire().unwrap().release().unwrap();
}

#[test]
fn s9_a_server_that_is_full_of_clients_says_so() {
    let server = Server::builder().config("maxclients", "1").start().unwrap();
    let first = LocalLocker::connect([server.tcp_url()]).unwrap();
    let builder = Builder::new().node(server.tcp_url()).connect_timeout(ms(200));
    let error = builder.connect_local().unwrap_err();
    assert!(error.to_string().contains("ERR max number of clients reached"), "{error}");
    first.lock("r").try_acquire().unwrap().release().unwrap();
}

#[test]
fn s10_a_long_script_is_left_to_run() {
    let servers = Servers::start_each(3, Server::builder().config("lua-time-limit", "20")).unwrap();
    let locker = patient(&servers);
    let guard = hold(&locker, &servers);
    let busy = |server: &Server| match server.command(&["PING"]).unwrap() {
        Answer::Error(text) => text.starts_with("BUSY"),
        _ => false,
    };
    let _running: Vec<_> = servers[..2]
        .iter()
        .map(|server| send(server, &["EVAL", "while true do end", "0"]))
        .collect();
    eventually("both are busy", || servers[..2].iter().all(busy));
    assert_not_acquired(locker.lock("r").try_acquire().unwrap_err(), "BUSY");
    assert_not_extended(guard.extend(secs(60)).unwrap_err(), "BUSY");
    assert_not_released(guard.release().unwrap_err(), "BUSY");
    // Nobody but us ends the scripts.
    assert!(servers[..2].iter().all(busy));
    on_all(&servers[..2], &["SCRIPT", "KILL"]);
    eventually("the releases are done", || {
        locker.flush(ms(50)) == 0 && values(&servers, "held") == [None, None, None]
    });
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

/// How many `SET`s a server has run.
fn sets(server: &Server) -> usize {
    let stats = info(server, "commandstats");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn s11_what_a_paused_server_was_sent_it_does_late_and_undoes() {
    let debugged = Server::builder().config("enable-debug-command", "yes");
    // Before version 7 nobody need ask.
    let servers = Servers::start_each(3, debugged).or_else(|_| Servers::start(3)).unwrap();
    // Their silence is not to end the connections.
    let builder = Builder::new().connect_timeout(secs(20)).node_timeout(ms(200));
    let locker = connected_by(builder, &servers);
    // Before 6.2 a pause is for all that clients send.
    let writes = can(&servers[0], &["CLIENT", "PAUSE", "0", "WRITE"]);
    let clients = &["CLIENT", "PAUSE", "1500", "WRITE"][..if writes { 4 } else { 3 }];
    for pause in [clients, &["DEBUG", "SLEEP", "1.5"]] {
        let before: Vec<_> = servers.iter().map(sets).collect();
        let _streams: Vec<_> = servers[..2].iter().map(|server| send(server, pause)).collect();
        let mut tries = 0;
        eventually("the pause begins", || {
            tries += 1;
            let error = locker.lock("r").try_acquire().map(drop).err();
            error.is_some_and(|error| {
                assert_not_acquired(error, "timed out after sending");
                true
            })
        });
        eventually("all is done and undone", || {
            locker.flush(ms(50)) == 0 && values(&servers, "r") == [None, None, None]
        });
        let ran: Vec<_> =
            servers.iter().zip(before).map(|(of, before)| sets(of) - before).collect();
        assert_eq!(ran, [tries; 3], "{pause:?}");
    }
}

#[test]
fn s12_a_server_in_cluster_mode_is_refused() {
    // The bus's port would be too high a number, if it were left to the server.
    let bus = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let clustered =
        Server::builder().config("cluster-enabled", "yes").config("cluster-port", &bus.to_string());
    let Some(servers) = started(1, clustered) else { return };
    let server = &servers[0];
    let error = LocalLocker::connect([server.tcp_url()]).unwrap_err();
    let ConnectError::NoQuorum(attempt) = &error else { panic!("{error:?}") };
    assert_eq!(said(attempt), ["in cluster mode: not an independent master"]);
    assert!(attempt.votes().all(|(_, vote)| vote.error().is_some_and(NodeError::is_permanent)));
    // Where it may not be asked, its first refusal tells.
    server.command(&["ACL", "SETUSER", "default", "-info"]).unwrap();
    let locker = LocalLocker::connect([server.tcp_url()]).unwrap();
    let error = locker.lock("r").timeout(secs(60)).acquire().unwrap_err();
    assert_eq!(said(&no_quorum(error)), ["CLUSTERDOWN Hash slot not served"]);
}

#[test]
fn s12_a_redirection_is_followed_by_nobody_and_retried_by_nobody() {
    let servers = Servers::start(3).unwrap();
    for words in [
        "MOVED 3999 127.0.0.1:6381",
        "ASK 3999 127.0.0.1:6381",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "CLUSTERDOWN The cluster is down",
    ] {
        let fake = |server: &Server| {
            Fake::start(server.tcp_url(), move |command| match &*command[0] {
                b"SET" => Act::Reply(format!("-{words}\r\n").into()),
                _ => Act::Forward,
            })
        };
        let (first, second) = (fake(&servers[0]).unwrap(), fake(&servers[1]).unwrap());
        let urls = [first.url(), second.url(), servers[2].tcp_url()];
        let builder = Builder::new().nodes(urls).node_timeout(secs(5));
        let locker = builder.connect_local().unwrap();
        let attempt = no_quorum(locker.lock("r").timeout(secs(60)).acquire().unwrap_err());
        assert_eq!(attempt.number(), 1);
        assert_two_say(&attempt, &words.escape_default().to_string());
        assert!(matches!(attempt.votes().next().unwrap().1, Vote::Failed(NodeError::Config(_))));
        assert_eq!(locker.flush(secs(5)), 0);
        assert_eq!(values(&servers, "r"), [None, None, None]);
    }
}

#[test]
fn s13_a_key_that_is_no_lock_is_taken_left_alone_and_counted() {
    let servers = Servers::start(3).unwrap();
    let locker = patient_shared(servers.tcp_urls());
    on_all(&servers, &["RPUSH", "r", "x"]);
    let error = locker.lock("r").try_acquire().unwrap_err();
    let AcquireError::Contended(attempt) = &error else { panic!("{error:?}") };
    assert_eq!(attempt.failed(), 0, "{attempt}");
    eventually("each node is counted once", || {
        locker.stats().unwrap().nodes.iter().all(|node| node.not_locks == 1)
    });
    for server in servers.iter() {
        assert_eq!(server.command(&["TYPE", "r"]).unwrap(), Answer::Text("list".into()));
    }
    let states = Builder::new().nodes(servers.tcp_urls()).status("r").unwrap();
    assert!(states.iter().all(|node| matches!(node.state(), KeyState::NotALock)), "{states:?}");
    // Another resource's counter stays.
    locker.lock("other").try_acquire().unwrap().release().unwrap();
    assert!(locker.lock("r").timeout(Duration::from_millis(1)).acquire().is_err());
}
