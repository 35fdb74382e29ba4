//! Rows T1 to T20: connecting, and moving bytes.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{TcpListener, TcpStream},
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use quorlock::{
    Attempt, Builder, ConnectError, LocalLocker, Locker, NodeError, RestartGuard, Vote,
    testing::{Answer, Data, Server, Servers},
};
use rustix::{
    io::Errno,
    process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit},
};

use crate::support::{
    all_vote,
    asked::{RELEASE, SET, asked},
    behind_proxies, calls,
    child::{again, apart, black_hole, in_namespace, ip, is_child, overlay, undo_black_hole},
    connected_by, connections_to, eventually,
    fake::Speaker,
    first_is_out, ms, no_quorum, proxies,
    proxy::{Accept, Cut, Flow, Plan, Proxy},
    reset_calls, said, secs, unhurried, values,
};

/// What a node that did not take part is said to have done, where it was an error of the system.
fn system_error(attempt: &Attempt, node: usize) -> Option<i32> {
    match attempt.votes().nth(node).unwrap().1 {
        Vote::NotSent(NodeError::Io(error)) => error.raw_os_error(),
        _ => None,
    }
}

/// One lock taken and given back. Gives what each node said.
fn pair(locker: &LocalLocker) -> Attempt {
    let guard = locker.lock("r").try_acquire().unwrap();
    let attempt = guard.attempt().clone();
    guard.release().unwrap();
    attempt
}

/// Each node's grant is waited for in one attempt or another.
fn all_grant(locker: &LocalLocker) {
    let mut missing: Vec<usize> = (0..3).collect();
    eventually("every node votes again", || {
        let attempt = pair(locker);
        missing.retain(|node| said(&attempt)[*node] != "granted");
        locker.flush(ms(5));
        missing.is_empty()
    });
}

/// Everything that was sent is answered, and no key is left.
fn comes_to_rest(locker: &LocalLocker, servers: &Servers) {
    eventually("nothing is left", || {
        locker.flush(ms(50)) == 0 && values(servers, "r").iter().all(Option::is_none)
    });
}

// T1: refused.

#[test]
fn t1_refused_is_said_at_once_and_the_others_go_on() {
    let mut servers = Servers::start(3).unwrap();
    let locker = connected_by(Builder::new().node_timeout(secs(30)), &servers);
    let refused = Some(Errno::CONNREFUSED.raw_os_error());
    servers[0].kill().unwrap();
    eventually("the first is known to refuse", || system_error(&pair(&locker), 0) == refused);
    let attempt = pair(&locker);
    assert_eq!(said(&attempt)[1..], ["granted", "granted"]);
    servers[1].kill().unwrap();
    eventually("the second is known to refuse", || {
        let attempt = match locker.lock("r").try_acquire() {
            Ok(guard) => guard.attempt().clone(),
            Err(error) => no_quorum(error),
        };
        system_error(&attempt, 1) == refused
    });
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert_eq!([0, 1].map(|node| system_error(&attempt, node)), [refused; 2], "{attempt}");
    assert!(attempt.elapsed() < secs(3), "a tenth of what a node is given: {attempt}");
    eventually("it is released", || servers[2].get("r").unwrap().is_none());
}

#[test]
fn t1_a_node_that_hangs_up_on_everybody_is_tried_less_and_less() {
    let (_servers, proxies, locker) = behind_proxies(3, unhurried());
    proxies[0].set(Plan { accept: Accept::Reset, ..Plan::default() });
    proxies[0].cut_all();
    let started = Instant::now();
    let mut rounds = 0;
    while started.elapsed() < secs(1) {
        assert_eq!(said(&pair(&locker))[1..], ["granted", "granted"]);
        rounds += 1;
    }
    // At once, and then after 25 to 50 ms, and twice as much each time.
    let tries = proxies[0].connections() - 1;
    assert!((2..=10).contains(&tries), "{tries} in {rounds} rounds");
    assert!([1, 2].map(|node: usize| proxies[node].connections()) == [1, 1]);
}

// T2: no answer to a connect.

/// A port whose queue is full: the system lets connects knock, and answers nothing.
struct Full {
    listener: TcpListener,
    _queue: Vec<TcpStream>,
}

impl Full {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, ms(500)) {
            queue.push(stream);
            assert!(queue.len() < 10, "the queue is never full");
        }
        Self { listener, _queue: queue }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// How many connects are knocking. The system's table is not of one moment: those that are in it twice.
    fn knocking(&self) -> usize {
        let [earlier, later] = [(); 2].map(|()| connections_to(self.port(), "02"));
        earlier.intersection(&later).count()
    }
}

#[test]
fn t2_a_connect_that_nobody_answers_is_one_connect_and_holds_up_nobody() {
    let (full, servers) = (Full::start(), Servers::start(2).unwrap());
    let urls = [full.url(), servers[0].tcp_url(), servers[1].tcp_url()];
    let builder = unhurried().nodes(&urls).node_timeout(secs(30)).connect_timeout(secs(60));
    let locker = builder.connect_local().unwrap();
    for _ in 0..50 {
        let attempt = pair(&locker);
        assert_eq!(said(&attempt), ["not waited for", "granted", "granted"]);
        assert!(attempt.elapsed() < secs(3), "a tenth of what a node is given: {attempt}");
        assert_eq!(full.knocking(), 1, "over all attempts");
    }
    drop(locker);

    // One that is given up is made again, and still there is one.
    let locker = unhurried().nodes(&urls).connect_timeout(ms(500)).connect_local().unwrap();
    eventually("it is given up", || {
        assert!(full.knocking() <= 1);
        said(&pair(&locker))[0] == "not sent: timed out"
    });
    assert_eq!(locker.flush(secs(5)), 0);
}

#[test]
fn t2_a_majority_that_does_not_answer_is_named() {
    let (full, servers) = ([Full::start(), Full::start()], Servers::start(1).unwrap());
    let builder = Builder::new().nodes([full[0].url(), servers[0].tcp_url(), full[1].url()]);
    let error = builder.connect_timeout(secs(1)).connect_local().unwrap_err();
    let ConnectError::NoQuorum(attempt) = error else { panic!("{error}") };
    assert_eq!(said(&attempt), ["timed out", "granted", "timed out"]);
}

// T3: connected, and silent.

#[test]
fn t3_a_peer_that_takes_the_connection_and_is_silent_does_not_hold_up_the_others() {
    let servers = Servers::start(3).unwrap();
    let proxy = Proxy::start(servers[0].tcp_url()).unwrap();
    proxy.set(Plan::silent());
    let urls = [proxy.url(), servers[1].tcp_url(), servers[2].tcp_url()];
    let locker = unhurried().nodes(urls).connect_timeout(secs(1)).connect_local().unwrap();
    let guard = locker.lock("r").try_acquire().unwrap();
    assert!(matches!(guard.attempt().votes().next().unwrap().1, Vote::Pending));
    guard.release().unwrap();
}

#[test]
fn t3_a_paused_node_is_not_waited_for_and_catches_up() {
    const ROUNDS: u64 = 20;
    let servers = Servers::start(3).unwrap();
    let builder = Builder::new().node_timeout(secs(30)).connect_timeout(secs(60));
    let locker = connected_by(builder, &servers);
    reset_calls(&servers);
    let before = locker.reply_counts();
    servers[0].pause().unwrap();
    for _ in 0..ROUNDS {
        let guard = locker.lock("r").try_acquire().unwrap();
        assert_eq!(said(guard.attempt()), ["not waited for", "granted", "granted"]);
        assert!(guard.attempt().elapsed() < secs(3), "a tenth of what a node is given");
        guard.extend(secs(20)).unwrap();
        guard.release().unwrap();
    }
    servers[0].resume().unwrap();
    comes_to_rest(&locker, &servers);
    assert_eq!(calls(&servers[0], "set"), ROUNDS);
    assert_eq!(calls(&servers[0], "evalsha"), 2 * ROUNDS);
    // Its answers to each SET and each extension came when all was over, and were nobody's.
    let after = locker.reply_counts();
    assert_eq!((after.0 - before.0, after.1), (2 * ROUNDS, 0));
}

// T4: slow.

#[test]
fn t4_a_slow_node_is_not_waited_for_and_its_late_grant_belongs_to_the_lock() {
    let builder = Builder::new().node_timeout(secs(20)).connect_timeout(secs(60));
    let (servers, proxies, locker) = behind_proxies(3, builder);
    let before = locker.reply_counts();
    proxies[0].set_live(Plan::delay(secs(2)));
    let guard = locker.lock("r").ttl(secs(30)).try_acquire().unwrap();
    assert_eq!(said(guard.attempt()), ["not waited for", "granted", "granted"]);
    assert!(guard.attempt().elapsed() < secs(2), "{}", guard.attempt());
    let token = guard.token().to_string();
    eventually("its key is there", || servers[0].get("r").unwrap().as_deref() == Some(&token));

    // It is asked to extend with the others, and counts: one of those that were faster has lost the key.
    servers[1].command(&["DEL", "r"]).unwrap();
    guard.extend(secs(300)).unwrap();
    let Answer::Integer(left) = servers[0].command(&["PTTL", "r"]).unwrap() else { panic!() };
    assert!((200_000..=300_000).contains(&left), "{left}");
    guard.release().unwrap(); // Only with this node: one of the others has not got it.
    comes_to_rest(&locker, &servers);
    let sent = asked(&proxies[0], "r");
    assert_eq!(sent.len(), 1, "one connection all along");
    let verbs: Vec<_> = sent[0].iter().map(|(verb, _)| *verb).collect();
    assert_eq!(verbs, [SET, "extend", RELEASE]);
    assert!(sent[0].iter().all(|(_, of)| *of == token));
    assert_eq!(locker.reply_counts(), before);
}

#[test]
fn t4_a_release_does_not_wait_for_a_slow_node_and_comes_behind_its_set() {
    let (servers, proxies, locker) = behind_proxies(3, unhurried());
    reset_calls(&servers);
    proxies[0].set_live(Plan::delay(secs(4)));
    let attempt = pair(&locker);
    assert_eq!(said(&attempt), ["not waited for", "granted", "granted"]);
    assert_eq!(calls(&servers[0], "set"), 0, "nothing has arrived there");
    comes_to_rest(&locker, &servers);
    assert_eq!((calls(&servers[0], "set"), calls(&servers[0], "evalsha")), (1, 1));
    assert_eq!(calls(&servers[0], "del"), 1, "it was set, and it was deleted");
}

// T5: byte by byte.

#[test]
fn t5_replies_byte_by_byte_and_requests_byte_by_byte() {
    let servers = Servers::start(3).unwrap();
    let slow = Flow { trickle: Some(Duration::from_micros(100)), ..Flow::default() };
    let proxies = proxies(&servers);
    for proxy in &proxies {
        proxy.set(Plan { up: slow.clone(), down: slow.clone(), ..Plan::default() });
    }
    let builder = Builder::new().nodes(proxies.iter().map(Proxy::url));
    let builder = builder.connect_timeout(secs(20)).node_timeout(secs(20));
    let locker = builder.connect_local().unwrap();
    let guard = locker.lock("r").try_acquire().unwrap();
    guard.extend(secs(20)).unwrap();
    guard.release().unwrap();
    assert_eq!(locker.flush(secs(10)), 0);
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

#[test]
fn t5_progress_byte_by_byte_does_not_move_a_deadline() {
    let servers = Servers::start(1).unwrap();
    let proxy = Proxy::start(servers[0].tcp_url()).unwrap();
    let locker = LocalLocker::connect([proxy.url()]).unwrap();
    proxy.set_live(Plan::down(Flow { trickle: Some(ms(40)), ..Flow::default() }));
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert_eq!(said(&attempt), ["timed out after sending"]);
    proxy.set_live(Plan::default());
    comes_to_rest(&locker, &servers);
    drop(locker.lock("r").timeout(secs(10)).acquire().unwrap());
}

// T6: a stall within a reply.

/// A reply that was given up in its middle is consumed when the rest comes, and the next one is nobody else's.
#[test]
fn t6_the_rest_of_a_stalled_reply_is_not_the_next_ones() {
    for held in ["first", "second"] {
        let servers = Servers::start(1).unwrap();
        let others = connected_by(unhurried(), &servers);
        let proxy = Proxy::start(servers[0].tcp_url()).unwrap();
        let builder = Builder::new().node(proxy.url());
        let builder = builder.node_timeout(ms(1500)).connect_timeout(secs(60));
        let locker = builder.connect_local().unwrap();
        let holder = others.lock(held).try_acquire().unwrap();
        let stall_after = Some(proxy.replied() + 1);
        proxy.set_live(Plan::down(Flow { stall_after, ..Flow::default() }));
        let attempt = no_quorum(locker.lock("first").try_acquire().unwrap_err());
        assert_eq!(said(&attempt), ["timed out after sending"]);
        let second = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(ms(50));
                proxy.set_live(Plan::default());
            });
            locker.lock("second").try_acquire()
        });
        match second {
            Ok(guard) => {
                assert_eq!(held, "first", "the OK was the first one's");
                let token = servers[0].get("second").unwrap();
                assert_eq!(token.as_deref(), Some(guard.token().as_str()));
                guard.release().unwrap();
            }
            Err(error) => assert!(error.is_contended() && held == "second", "{error}"),
        }
        assert_eq!(locker.flush(secs(5)), 0);
        assert_eq!(locker.reply_counts(), (1, 0));
        assert_eq!(proxy.connections(), 1, "nothing was wrong with it");
        assert_eq!(servers[0].get(held).unwrap().as_deref(), Some(holder.token().as_str()));
        holder.release().unwrap();
        assert_eq!(servers[0].command(&["DBSIZE"]).unwrap(), Answer::Integer(0));
    }
}

// T7: a connection that breaks.

const TTL: Duration = Duration::from_secs(10);

/// Three nodes behind proxies, a locker, and how long a `SET` for the resource is on the wire.
struct Broken {
    servers: Servers,
    proxies: Vec<Proxy>,
    locker: LocalLocker,
    set_bytes: usize,
}

impl Broken {
    fn start() -> Self {
        let builder = unhurried().connect_timeout(secs(1));
        let (servers, proxies, locker) = behind_proxies(3, builder);
        let sent = || proxies[0].sent()[0].len();
        let before = sent();
        let guard = locker.lock("r").ttl(TTL).try_acquire().unwrap();
        eventually("it is sent", || sent() > before);
        let set_bytes = sent() - before;
        guard.release().unwrap();
        assert_eq!(locker.flush(secs(5)), 0);
        reset_calls(&servers);
        Self { servers, proxies, locker, set_bytes }
    }

    /// Has the next attempt fail as two of its connections break: each goes by `plan` when so many bytes have
    /// passed up and down, and new ones are silent. Gives the attempt's token.
    fn fail(&self, ttl: Duration, plan: impl Fn(usize, usize) -> Plan) -> String {
        for proxy in &self.proxies[..2] {
            proxy.set_live(plan(proxy.sent()[0].len(), proxy.replied()));
            proxy.set(Plan::silent());
        }
        let attempt = no_quorum(self.locker.lock("r").ttl(ttl).try_acquire().unwrap_err());
        let said: Vec<_> = attempt.votes().map(|(_, vote)| vote).collect();
        let [Vote::Unknown(first), Vote::Unknown(second), Vote::Granted | Vote::Pending] = said[..]
        else {
            panic!("{attempt}")
        };
        for error in [first, second] {
            assert!(matches!(error, NodeError::Closed | NodeError::Io(_)), "{attempt}");
        }
        let last = || asked(&self.proxies[2], "r")[0].last().cloned().unwrap();
        eventually("the others are released", || last().0 == RELEASE);
        last().1
    }

    /// The network is well again: the release comes on the next connection, and first.
    fn mend(&self, token: &str) {
        for proxy in &self.proxies {
            proxy.set(Plan::default());
        }
        comes_to_rest(&self.locker, &self.servers);
        for proxy in &self.proxies[..2] {
            let connections = asked(proxy, "r");
            assert_eq!(connections.last().unwrap()[0], (RELEASE, token.into()));
            let releases = |of: &Vec<_>| of.contains(&(RELEASE, token.into()));
            assert_eq!(connections.iter().skip(1).filter(|of| releases(of)).count(), 1);
        }
        let (_, protocol_errors) = self.locker.reply_counts();
        assert_eq!(protocol_errors, 0);
        self.locker.lock("r").try_acquire().unwrap().release().unwrap();
    }
}

#[test]
fn t7_a_reply_that_a_broken_connection_took_with_it_is_unknown_and_released_on_the_next() {
    for cut in [Cut::Fin, Cut::Rst] {
        for read in [0, 3] {
            let scene = Broken::start();
            let token = scene.fail(TTL, |_, down| {
                Plan::down(Flow { cut_after: Some((down + read, cut)), ..Flow::default() })
            });
            // It was executed, whatever we have heard of it, and stays for as long as nobody can be reached.
            for server in &scene.servers[..2] {
                assert_eq!(server.get("r").unwrap().as_deref(), Some(&*token), "{cut:?}");
                let ttl = server.command(&["PTTL", "r"]).unwrap();
                assert!(matches!(ttl, Answer::Integer(1..=10_000)), "{ttl:?}");
            }
            assert_eq!(scene.locker.flush(ms(50)), 1, "it is owed to two nodes");
            scene.mend(&token);
        }
    }
}

#[test]
fn t7_a_request_that_was_cut_is_unknown_and_released_all_the_same() {
    for cut in [Cut::Fin, Cut::Rst] {
        let scene = Broken::start();
        let token = scene.fail(TTL, |up, _| {
            Plan::up(Flow { cut_after: Some((up + 20, cut)), ..Flow::default() })
        });
        assert_eq!(calls(&scene.servers[0], "set"), 0, "it came only in part");
        scene.mend(&token);
    }
}

/// "After a reset nothing happens" is wrong.
#[test]
fn t7_a_set_that_is_followed_by_a_reset_is_executed_and_released() {
    for cut in [Cut::Fin, Cut::Rst] {
        let scene = Broken::start();
        // Its replies are held back, so that it breaks before they come.
        let token = scene.fail(TTL, |up, down| Plan {
            up: Flow { cut_after: Some((up + scene.set_bytes, cut)), ..Flow::default() },
            down: Flow { stall_after: Some(down), ..Flow::default() },
            ..Plan::default()
        });
        for server in &scene.servers[..2] {
            eventually("it is executed", || calls(server, "set") == 1);
            assert_eq!(server.get("r").unwrap().as_deref(), Some(&*token), "{cut:?}");
        }
        scene.mend(&token);
    }
}

#[test]
fn t7_what_cannot_be_released_is_gone_with_its_ttl() {
    let scene = Broken::start();
    let token = scene.fail(secs(3), |_, down| {
        Plan::down(Flow { cut_after: Some((down, Cut::Rst)), ..Flow::default() })
    });
    for server in &scene.servers[..2] {
        let left = server.command(&["PTTL", "r"]).unwrap();
        assert!(matches!(left, Answer::Integer(1..=3000)), "{left:?}");
        assert_eq!(server.get("r").unwrap().as_deref(), Some(&*token));
    }
    eventually("they are over", || values(&scene.servers, "r") == [None, None, None]);
    assert_eq!([0, 1].map(|node: usize| calls(&scene.servers[node], "evalsha")), [0, 0]);
    scene.mend(&token);
}

// T8: a write that the system takes only in part.

/// A paused node's socket fills up in the middle of a command, attempts end meanwhile, and more are begun. When it
/// takes bytes again the command goes on where it stopped.
#[test]
fn t8_a_command_that_was_written_in_part_is_finished_before_the_next() {
    const ROUNDS: u64 = 100;
    let servers = Servers::start(3).unwrap();
    let builder = Builder::new().node_timeout(secs(30)).connect_timeout(secs(60));
    let locker = all_vote(builder.nodes(servers.unix_urls()).connect_local().unwrap(), &servers);
    reset_calls(&servers);
    servers[0].pause().unwrap();
    let long = "x".repeat(4000);
    for round in 0..ROUNDS {
        let guard = locker.lock(&format!("{round}{long}")).try_acquire().unwrap();
        assert_eq!(said(guard.attempt()), ["not waited for", "granted", "granted"]);
        guard.release().unwrap();
    }
    let before = locker.io_counts().writes;
    servers[0].resume().unwrap();
    assert_eq!(locker.flush(secs(30)), 0);
    let writes = locker.io_counts().writes - before;
    assert!(writes > 0, "all of it fitted into the socket");
    for server in servers.iter() {
        assert_eq!((calls(server, "set"), calls(server, "evalsha")), (ROUNDS, ROUNDS));
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), Answer::Integer(0));
    }
    assert_eq!(locker.reply_counts().1, 0);
}

// T9: a peer that has vanished.

/// Three servers on hosts of their own, of a sort.
struct Hosts {
    servers: Servers,
}

impl Hosts {
    const ADDRESSES: [&'static str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"];

    fn start() -> Self {
        for address in Self::ADDRESSES {
            ip(&format!("address add {address}/32 dev lo"));
        }
        let anywhere = Server::builder().config("bind", "0.0.0.0").config("protected-mode", "no");
        Self { servers: Servers::start_each(3, anywhere).unwrap() }
    }

    fn urls(&self) -> impl Iterator<Item = String> {
        let hosts = self.servers.iter().zip(Self::ADDRESSES);
        hosts.map(|(server, address)| format!("redis://{address}:{}", server.port()))
    }

    /// Packets to it and from it are lost.
    fn vanish(&self, host: usize) {
        ip(&format!("address delete {}/32 dev lo", Self::ADDRESSES[host]));
        black_hole(Self::ADDRESSES[host]);
    }

    fn come_back(&self, host: usize) {
        undo_black_hole(Self::ADDRESSES[host]);
        ip(&format!("address add {}/32 dev lo", Self::ADDRESSES[host]));
    }
}

#[test]
fn t9_a_node_that_vanished_is_given_up_by_its_deadline_and_comes_back() {
    in_namespace(
        "transport::t9_a_node_that_vanished_is_given_up_by_its_deadline_and_comes_back",
        || {
            let hosts = Hosts::start();
            let builder = Builder::new().nodes(hosts.urls()).node_timeout(secs(2));
            let locker = all_vote(builder.connect_local().unwrap(), &hosts.servers);
            hosts.vanish(0);
            let attempt = pair(&locker);
            assert_eq!(said(&attempt), ["not waited for", "granted", "granted"]);
            assert!(attempt.elapsed() < secs(1), "{attempt}");
            eventually("it is given up", || said(&pair(&locker))[0] == "not sent: timed out");
            hosts.come_back(0);
            comes_to_rest(&locker, &hosts.servers);
            all_grant(&locker);
            assert_eq!(locker.reply_counts().1, 0);
        },
    );
}

/// The hosts crash while nothing is said, and are back, knowing of no connection, when the next lock is wanted.
#[test]
fn t9_connections_that_died_while_idle_cost_the_next_attempt_nothing() {
    in_namespace(
        "transport::t9_connections_that_died_while_idle_cost_the_next_attempt_nothing",
        || {
            let hosts = Hosts::start();
            let locker = unhurried().nodes(hosts.urls()).connect_local().unwrap();
            let locker = all_vote(locker, &hosts.servers);
            for (host, server) in hosts.servers.iter().enumerate() {
                hosts.vanish(host);
                // It hangs up, which nobody hears.
                server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
            }
            let started = Instant::now();
            let idle = |server: &Server| connections_to(server.port(), "01").len();
            while hosts.servers.iter().map(idle).sum::<usize>() > 0 {
                assert!(started.elapsed() < secs(120), "the system keeps them for ever");
                std::thread::sleep(ms(50));
            }
            (0..3).for_each(|host| hosts.come_back(host));
            assert!(pair(&locker).granted() >= 2);
            comes_to_rest(&locker, &hosts.servers);
        },
    );
}

// T10, T11: one way only.

#[test]
fn t10_requests_that_are_lost_are_as_good_as_silence() {
    let (servers, proxies, locker) = behind_proxies(3, Builder::new().node_timeout(secs(1)));
    reset_calls(&servers);
    let lost = Plan::up(Flow { swallow: true, ..Flow::default() });
    proxies[0].set_live(lost.clone());
    assert_eq!(said(&pair(&locker)), ["not waited for", "granted", "granted"]);
    proxies[1].set_live(lost);
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    assert!(matches!(attempt.votes().nth(1).unwrap().1, Vote::Unknown(NodeError::Timeout)));
    assert_eq!([0, 1].map(|node: usize| calls(&servers[node], "set")), [0, 1]);
    for proxy in &proxies[..2] {
        proxy.set_live(Plan::default());
    }
    comes_to_rest(&locker, &servers);
    all_grant(&locker);
    assert_eq!(locker.reply_counts().1, 0);
}

#[test]
fn t11_replies_that_are_lost_leave_nothing_as_the_releases_are_not() {
    let (servers, proxies, locker) =
        behind_proxies(3, Builder::new().node_timeout(secs(1)).connect_timeout(secs(4)));
    reset_calls(&servers);
    for proxy in &proxies[..2] {
        proxy.set_live(Plan::down(Flow { swallow: true, ..Flow::default() }));
    }
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    let unknown = "timed out after sending";
    assert_eq!(said(&attempt), [unknown, unknown, "granted"]);
    let text = attempt.to_string();
    for proxy in &proxies[..2] {
        let name = proxy.url().trim_start_matches("redis://").to_owned();
        assert!(text.contains(&format!("; {name}: {unknown}")), "{text}");
    }
    // Both were executed long before we hear of it.
    for server in &servers[..2] {
        eventually("it is released", || calls(server, "del") == 1);
        assert_eq!((calls(server, "set"), calls(server, "evalsha")), (1, 1));
        assert_eq!(server.get("r").unwrap(), None);
    }
    assert_eq!(locker.flush(ms(1)), 1, "as far as we know it may be there");
    for proxy in &proxies[..2] {
        proxy.set_live(Plan::default());
    }
    comes_to_rest(&locker, &servers);
    assert_eq!(locker.reply_counts().1, 0);
}

// T12: what runs after the client has given up, or is gone.

/// Also where a node is given as long as a connection: the release goes out before that is given up.
#[test]
fn t12_a_set_that_runs_after_its_client_is_gone_is_released_behind_it() {
    for node_timeout in [ms(500), secs(1)] {
        let servers = Servers::start(3).unwrap();
        let builder = Builder::new().node_timeout(node_timeout).connect_timeout(secs(1));
        let locker = connected_by(builder, &servers);
        reset_calls(&servers);
        servers[0].pause().unwrap();
        servers[1].pause().unwrap();
        let attempt = no_quorum(locker.lock("r").ttl(secs(3600)).try_acquire().unwrap_err());
        let unknown = "timed out after sending";
        assert_eq!(said(&attempt), [unknown, unknown, "granted"]);
        drop(locker);
        for server in &servers[..2] {
            server.resume().unwrap();
            eventually("the SET has run", || calls(server, "set") == 1);
            eventually("it is released", || server.get("r").unwrap().is_none());
            assert_eq!((calls(server, "evalsha"), calls(server, "del")), (1, 1));
        }
    }
}

// T13: a release that may overtake its SET.

/// The network delivers what it was given long after the connection was given up: the SET, and the release behind
/// it on the same connection. Meanwhile the release has also been there, too early, by another one.
#[test]
fn t13_a_set_that_comes_after_the_reconnect_is_released_behind_it() {
    let builder = Builder::new().node_timeout(ms(500)).connect_timeout(secs(1));
    let (servers, proxies, locker) = behind_proxies(1, builder);
    reset_calls(&servers);
    proxies[0].set_live(Plan::up(Flow { delay: secs(4), ..Flow::default() }));
    proxies[0].set(Plan::default());
    let attempt = no_quorum(locker.lock("r").ttl(secs(3600)).try_acquire().unwrap_err());
    assert_eq!(said(&attempt), ["timed out after sending"]);
    eventually("the release is answered on another connection", || locker.flush(ms(50)) == 0);
    assert_eq!((calls(&servers[0], "set"), calls(&servers[0], "evalsha")), (0, 1));
    eventually("the first connection's commands arrive", || calls(&servers[0], "evalsha") == 2);
    assert_eq!((calls(&servers[0], "set"), calls(&servers[0], "del")), (1, 1));
    assert_eq!(servers[0].get("r").unwrap(), None, "an hour before its ttl");
    let sent = asked(&proxies[0], "r");
    let token = sent[0][0].1.clone();
    assert_eq!(sent[0], [(SET, token.clone()), (RELEASE, token.clone())]);
    assert_eq!(sent[1], [(RELEASE, token)]);
}

/// The worst there is: the SET comes alone, after everything that could undo it. Nobody believes to hold the lock, nobody
/// else gets it, and its ttl ends that.
#[test]
fn t13_a_set_that_comes_alone_and_last_ends_with_its_ttl() {
    let builder = Builder::new().node_timeout(ms(500)).connect_timeout(secs(1));
    let (servers, proxies, locker) = behind_proxies(1, builder);
    let set_bytes = {
        let before = proxies[0].sent()[0].len();
        let guard = locker.lock("r").ttl(secs(3)).try_acquire().unwrap();
        let after = proxies[0].sent()[0].len();
        guard.release().unwrap();
        after - before
    };
    assert_eq!(locker.flush(secs(5)), 0);
    reset_calls(&servers);
    let cut_after = Some((proxies[0].sent()[0].len() + set_bytes, Cut::Rst));
    proxies[0].set_live(Plan::up(Flow { delay: secs(4), cut_after, ..Flow::default() }));
    proxies[0].set(Plan::default());
    let attempt = no_quorum(locker.lock("r").ttl(secs(3)).try_acquire().unwrap_err());
    assert_eq!(said(&attempt), ["timed out after sending"]);
    eventually("the release is answered on another connection", || locker.flush(ms(50)) == 0);
    eventually("the SET arrives", || calls(&servers[0], "set") == 1);
    let left = servers[0].command(&["PTTL", "r"]).unwrap();
    assert!(matches!(left, Answer::Integer(1..=3000)), "{left:?}");
    assert_eq!(calls(&servers[0], "evalsha"), 1, "nothing comes behind it");
    locker.lock("r").try_acquire().unwrap_err();
    drop(locker.lock("r").timeout(secs(10)).acquire().unwrap());
    assert_eq!(locker.reply_counts().1, 0);
}

// T14: no file descriptors.

#[test]
fn t14_without_descriptors_a_node_is_not_reached_and_the_others_go_on() {
    apart("transport::t14_without_descriptors_a_node_is_not_reached_and_the_others_go_on", || {
        let mut servers = Servers::start(3).unwrap();
        let locker = connected_by(unhurried().restart_guard(RestartGuard::Off), &servers);
        servers[0].restart(Data::Wipe).unwrap();
        let limits = getrlimit(Resource::Nofile);
        // All numbers below are taken, and what is open stays open.
        let none = Rlimit { current: Some(3), maximum: limits.maximum };
        setrlimit(Resource::Nofile, none).unwrap();
        let full = Some(Errno::MFILE.raw_os_error());
        // The first attempts may find the old connection's end.
        eventually("it is to be connected to again", || system_error(&pair(&locker), 0) == full);
        for _ in 0..100 {
            let attempt = pair(&locker);
            assert_eq!(system_error(&attempt, 0), full, "{attempt}");
            assert_eq!(said(&attempt)[1..], ["granted", "granted"]);
        }
        // Nothing is tried over and over while somebody waits.
        let polls = locker.io_counts().polls;
        let holder = locker.lock("r").try_acquire().unwrap();
        locker.lock("r").timeout(secs(1)).acquire().unwrap_err();
        let polls = locker.io_counts().polls - polls;
        assert!(polls < 200, "{polls} in a second");
        holder.release().unwrap();
        setrlimit(Resource::Nofile, limits).unwrap();
        all_vote(locker, &servers);
    });
}

#[test]
fn t14_a_locker_that_cannot_be_made_says_so() {
    apart("transport::t14_a_locker_that_cannot_be_made_says_so", || {
        let servers = Servers::start(1).unwrap();
        let limits = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limits }).unwrap();
        for result in [
            LocalLocker::connect(servers.tcp_urls()).map(drop),
            Locker::connect(servers.tcp_urls()).map(drop),
        ] {
            let Err(ConnectError::Io(error)) = result else { panic!("{result:?}") };
            assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        }
        setrlimit(Resource::Nofile, limits).unwrap();
        LocalLocker::connect(servers.tcp_urls()).unwrap();
    });
}

// T15: no way there.

#[test]
fn t15_nodes_that_no_route_leads_to_are_named_by_the_systems_error() {
    in_namespace(
        "transport::t15_nodes_that_no_route_leads_to_are_named_by_the_systems_error",
        || {
            let servers = Servers::start(3).unwrap();
            ip("route add unreachable 10.30.0.1/32");
            let mut urls = servers.tcp_urls();
            urls.extend(["redis://10.20.0.1".into(), "redis://10.30.0.1".into()]);
            let locker = unhurried().nodes(urls).connect_local().unwrap();
            for _ in 0..20 {
                let attempt = pair(&locker);
                assert_eq!(system_error(&attempt, 3), Some(Errno::NETUNREACH.raw_os_error()));
                assert_eq!(system_error(&attempt, 4), Some(Errno::HOSTUNREACH.raw_os_error()));
                assert_eq!(attempt.granted(), 3);
            }
        },
    );
}

#[test]
fn t15_ports_that_are_used_up_keep_new_connections_off_and_old_ones_on() {
    in_namespace(
        "transport::t15_ports_that_are_used_up_keep_new_connections_off_and_old_ones_on",
        || {
            let range = |range| fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
            let servers = Servers::start(3).unwrap();
            range("60001 60001");
            let first = connected_by(unhurried(), &servers);
            let connect = || {
                Builder::new().nodes(servers.tcp_urls()).connect_timeout(ms(200)).connect_local()
            };
            let ConnectError::NoQuorum(attempt) = connect().unwrap_err() else { panic!() };
            for (_, vote) in attempt.votes() {
                let Vote::Failed(NodeError::Io(error)) = vote else { panic!("{attempt}") };
                assert_eq!(error.raw_os_error(), Some(Errno::ADDRNOTAVAIL.raw_os_error()));
            }
            pair(&first);
            range("60001 60999");
            pair(&connect().unwrap());
        },
    );
}

// T16: names.

#[test]
fn t16_a_name_that_does_not_resolve_is_one_failed_node() {
    let servers = Servers::start(2).unwrap();
    let urls = [servers[0].tcp_url(), servers[1].tcp_url(), "redis://no-such-host.invalid".into()];
    let locker = unhurried().nodes(urls).connect_timeout(secs(1)).connect_local().unwrap();
    locker.lock("r").try_acquire().unwrap().release().unwrap();
}

/// Which hosts `node.test` is, in this namespace.
fn node_test(addresses: &[&str]) {
    let lines: String = addresses.iter().map(|of| format!("{of} node.test\n")).collect();
    overlay("/etc/hosts", &format!("127.0.0.1 localhost\n{lines}"));
}

#[test]
fn t16_a_name_has_several_addresses_and_one_vote_and_is_looked_up_again() {
    in_namespace(
        "transport::t16_a_name_has_several_addresses_and_one_vote_and_is_looked_up_again",
        || {
            for address in ["10.9.1.1", "10.9.1.2", "10.9.1.3"] {
                ip(&format!("address add {address}/32 dev lo"));
            }
            let at = |address: &str| {
                Server::builder().config("bind", address).config("protected-mode", "no")
            };
            let mut here = at("10.9.1.2").start().unwrap();
            let port = here.port();
            let others = Servers::start(2).unwrap();
            let urls =
                [format!("redis://node.test:{port}"), others[0].tcp_url(), others[1].tcp_url()];
            let connect = || {
                let builder = unhurried().nodes(&urls).connect_timeout(ms(500));
                builder.restart_guard(RestartGuard::Off).connect_local().unwrap()
            };
            let all_vote = |locker: &LocalLocker, what| {
                eventually(what, || {
                    let attempt = pair(locker);
                    locker.flush(ms(5));
                    matches!(attempt.votes().next().unwrap().1, Vote::Granted)
                });
            };
            // One refuses; one is silent; whichever comes first.
            for other in ["10.9.1.1", "10.9.1.9"] {
                black_hole("10.9.1.9");
                for order in [[other, "10.9.1.2"], ["10.9.1.2", other]] {
                    node_test(&order);
                    let locker = connect();
                    all_vote(&locker, "the one that answers is found");
                    assert_eq!(locker.flush(secs(5)), 0);
                }
            }
            // The name moves.
            node_test(&["10.9.1.2"]);
            let locker = connect();
            all_vote(&locker, "it is there");
            let there = at("10.9.1.3").config("port", &port.to_string()).start().unwrap();
            node_test(&["10.9.1.3"]);
            here.kill().unwrap();
            all_vote(&locker, "it is followed");
            assert!(calls(&there, "set") > 0);
        },
    );
}

/// How many names are being looked up.
fn lookups() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap();
    let names = names.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "quorlock-resolv").count()
}

#[test]
fn t16_a_slow_lookup_is_one_and_holds_up_nobody() {
    in_namespace("transport::t16_a_slow_lookup_is_one_and_holds_up_nobody", || {
        black_hole("10.9.9.9");
        overlay("/etc/resolv.conf", "nameserver 10.9.9.9\noptions timeout:3 attempts:1\n");
        let servers = Servers::start(2).unwrap();
        let urls = ["redis://slow.test".into(), servers[0].tcp_url(), servers[1].tcp_url()];
        let locker = unhurried().nodes(urls).connect_timeout(ms(300)).connect_local().unwrap();
        let started = Instant::now();
        let mut most = 0;
        while started.elapsed() < secs(2) {
            let attempt = pair(&locker);
            assert_eq!(said(&attempt)[1..], ["granted", "granted"]);
            assert!(["not waited for", "not sent: timed out"].contains(&&*said(&attempt)[0]));
            most = most.max(lookups());
        }
        assert_eq!(most, 1);
    });
}

// T18: another protocol.

#[test]
fn t18_what_is_no_redis_server_is_said_to_be_none() {
    for (words, byte) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "H"),
        (b"\x15\x03\x01\x00\x02\x02\x0a", "\\x15"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "S"),
        (b"220 mail.example.org ESMTP\r\n", "2"),
    ] {
        for hangs_up in [false, true] {
            let (speaker, servers) =
                (Speaker::start(words, hangs_up).unwrap(), Servers::start(2).unwrap());
            let urls = [speaker.url(), servers[0].tcp_url(), servers[1].tcp_url()];
            let locker = unhurried().nodes(urls).connect().unwrap();
            let expected = format!("not a Redis server: no reply starts with '{byte}'");
            let stats = first_is_out(&locker, &expected);
            assert!(
                (1..=speaker.connections())
                    .contains(&usize::try_from(stats.protocol_errors).unwrap())
            );
        }
    }
}

// T19: events.

/// A reply and the end of its connection come in one event, and the next connection is at once there: the reply
/// counts, and the end is not the next one's.
#[test]
fn t19_a_reply_counts_that_comes_with_the_end_of_its_connection() {
    let (servers, proxies, mut locker) = behind_proxies(3, unhurried());
    for round in 1..=10 {
        for proxy in &proxies {
            let cut_after = Some((proxy.replied() + b"+OK\r\n".len(), Cut::Fin));
            proxy.set_live(Plan::down(Flow { cut_after, ..Flow::default() }));
            proxy.set(Plan::default());
        }
        let guard = locker.lock("r").try_acquire().unwrap();
        assert_eq!(guard.attempt().failed(), 0, "{}", guard.attempt());
        guard.release().unwrap();
        locker = all_vote(locker, &servers);
        comes_to_rest(&locker, &servers);
        let connections: Vec<_> = proxies.iter().map(Proxy::connections).collect();
        assert_eq!(connections, [round + 1; 3], "each ended once");
    }
    assert_eq!(locker.reply_counts().1, 0);
}

// T20: signals.

/// A test's own process, stopped and signalled from outside.
struct Signalled {
    child: Child,
}

impl Signalled {
    /// Starts it, and waits until it says that it is ready.
    fn start(test: &str) -> Self {
        let mut again = again(test);
        let mut child = again.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.as_mut().unwrap());
        let ready = stdout.lines().any(|line| line.unwrap().contains("ready"));
        assert!(ready, "{:?}", child.wait());
        Self { child }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Tells it to end.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

/// In the child: says that it is ready, and does it over and over until it is told to end.
fn until_told(mut work: impl FnMut()) {
    println!("ready");
    let told = Arc::new(AtomicBool::new(false));
    let teller = told.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        teller.store(true, Ordering::SeqCst);
    });
    while !told.load(Ordering::SeqCst) {
        work();
    }
}

/// Each stop interrupts a wait (signal(7)), and each signal that has a handler does.
#[test]
fn t20_a_storm_of_signals_interrupts_nothing() {
    const STORM: u64 = 300;
    if !is_child() {
        let child = Signalled::start("transport::t20_a_storm_of_signals_interrupts_nothing");
        for _ in 0..STORM {
            #[cfg(feature = "cli")]
            child.signal(Signal::USR1);
            child.signal(Signal::STOP);
            std::thread::sleep(ms(1));
            child.signal(Signal::CONT);
            std::thread::sleep(ms(2));
        }
        return child.end();
    }
    #[cfg(feature = "cli")]
    let signals = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    #[cfg(feature = "cli")]
    signal_hook::flag::register_usize(signal_hook::consts::SIGUSR1, signals.clone(), 1).unwrap();
    let servers = Servers::start(3).unwrap();
    let builder = || Builder::new().nodes(servers.unix_urls()).node_timeout(secs(30));
    let (local, shared) = (builder().connect_local().unwrap(), builder().connect().unwrap());
    let mut rounds = 0;
    until_told(|| {
        let guard = local.lock("r").ttl(secs(60)).try_acquire().unwrap();
        guard.extend(secs(60)).unwrap();
        guard.release().unwrap();
        let guard = shared.lock("s").ttl(secs(60)).try_acquire().unwrap();
        guard.extend(secs(60)).unwrap();
        guard.release().unwrap();
        rounds += 1;
    });
    #[cfg(feature = "cli")]
    assert_eq!(signals.load(Ordering::SeqCst), 1, "it was signalled");
    assert!(rounds > 0);
    assert_eq!(local.flush(secs(5)), 0);
    assert_eq!(values(&servers, "r"), [None, None, None]);
    assert_eq!(local.reply_counts().1 + shared.stats().unwrap().protocol_errors, 0);
}

/// A process that has not set it aside dies of SIGPIPE: a library must not raise it.
#[cfg(feature = "cli")]
#[test]
fn t20_a_write_to_a_node_that_is_gone_raises_no_signal() {
    apart("transport::t20_a_write_to_a_node_that_is_gone_raises_no_signal", || {
        let raised = Arc::new(AtomicBool::new(false));
        let mut servers = Servers::start(2).unwrap();
        let urls = [servers[0].tcp_url(), servers[1].unix_url()];
        let locker = unhurried().nodes(urls).restart_guard(RestartGuard::Off).connect_local();
        let locker = all_vote(locker.unwrap(), &servers);
        for _ in 0..5 {
            let guard = locker.lock("r").try_acquire().unwrap();
            servers[0].kill().unwrap();
            servers[1].kill().unwrap();
            let handler = signal_hook::flag::register(signal_hook::consts::SIGPIPE, raised.clone());
            drop(guard); // Writes without looking first.
            locker.lock("r").try_acquire().unwrap_err();
            signal_hook::low_level::unregister(handler.unwrap());
            for i in 0..2 {
                servers[i].restart(Data::Wipe).unwrap();
            }
            eventually("both are back", || locker.lock("r").try_acquire().is_ok());
            locker.flush(secs(5));
        }
        assert!(!raised.load(Ordering::SeqCst));
    });
}
