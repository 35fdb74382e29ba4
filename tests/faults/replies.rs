//! Rows R1 to R10: what comes back, and what must not be made of it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use quorlock::{
    AcquireError, Attempt, Builder, ConnectError, ExtendError, Fencing, LocalLocker, NodeError,
    ProtocolError, Vote,
    testing::{Answer, Server, Servers},
};

use crate::support::{
    all_vote,
    asked::{EXTEND, EXTEND_IN_FULL, RELEASE, RELEASE_IN_FULL, SET, asked},
    behind_proxies, calls,
    child::{in_namespace, ip},
    connected_by, connections_to, eventually,
    fake::{Act, Fake, Speaker},
    first_is_out, ms, no_quorum,
    proxy::{Cut, Flow, Plan, Proxy},
    reset_calls, said, secs, unhurried, values,
};

/// A server with a pretender before it, which answers each `SET` with these bytes, and all else as the server does.
struct Pretender {
    server: Server,
    fake: Fake,
    others: Servers,
}

impl Pretender {
    fn answering(reply: Vec<u8>) -> Self {
        let server = Server::start().unwrap();
        let fake = Fake::start(server.tcp_url(), move |command| match &*command[0] {
            b"SET" => Act::Reply(reply.clone()),
            _ => Act::Forward,
        });
        Self { server, fake: fake.unwrap(), others: Servers::start(2).unwrap() }
    }

    /// With a quorum of servers beside it.
    fn urls(&self) -> Vec<String> {
        let others = self.others.tcp_urls().into_iter();
        std::iter::once(self.fake.url()).chain(others).collect()
    }
}

/// What a locker of this one node says of an attempt.
fn alone(url: String) -> (LocalLocker, Attempt) {
    let locker = unhurried().node(url).connect_local().unwrap();
    let attempt = no_quorum(locker.lock("r").try_acquire().unwrap_err());
    (locker, attempt)
}

/// The node's one vote, which is that it broke the protocol.
fn protocol_error(attempt: &Attempt) -> ProtocolError {
    match attempt.votes().next().unwrap().1 {
        Vote::Unknown(NodeError::Protocol(error)) => *error,
        vote => panic!("{vote}"),
    }
}

// R1: the reply of another command.

/// A reply is lost in between, and those behind it move up by one: what comes next does not fit, and is nobody's.
#[test]
fn r1_replies_that_moved_up_by_one_are_noticed_and_never_a_grant() {
    for lost in ["SET", "EVALSHA"] {
        let server = Server::start().unwrap();
        let losing = Arc::new(AtomicBool::new(false));
        let loses = losing.clone();
        let fake = Fake::start(server.tcp_url(), move |command| {
            let is_lost = command[0] == lost.as_bytes() && loses.swap(false, Ordering::SeqCst);
            // As if it had been executed: nobody has the key.
            if is_lost { Act::Ignore } else { Act::Forward }
        });
        let fake = fake.unwrap();
        let builder = Builder::new().node(fake.url()).node_timeout(secs(1));
        let locker = builder.connect_timeout(secs(60)).connect_local().unwrap();
        losing.store(true, Ordering::SeqCst);
        match locker.lock("r").try_acquire() {
            // The release is answered, where the answer to the SET is expected.
            Err(error) => assert_eq!(said(&no_quorum(error)), ["timed out after sending"]),
            Ok(guard) => drop(guard.release().unwrap_err()),
        }
        // The other lock is held: any OK here would be another one's.
        let holder = connected_alone(&server).lock("other").try_acquire().unwrap();
        let error = locker.lock("other").try_acquire().unwrap_err();
        assert!(error.is_contended() || error.attempt().unwrap().failed() == 1, "{error}");
        eventually("all is answered on the next connection", || locker.flush(ms(50)) == 0);
        assert_eq!(locker.reply_counts().1, 1, "{lost} is lost");
        eventually("it hears of the other lock", || {
            locker.lock("other").try_acquire().unwrap_err().is_contended()
        });
        assert_eq!(server.get("other").unwrap().as_deref(), Some(holder.token().as_str()));
        assert_eq!(server.get("r").unwrap(), None);
    }
}

fn connected_alone(server: &Server) -> LocalLocker {
    unhurried().node(server.tcp_url()).connect_local().unwrap()
}

/// One that comes by itself is nobody's, and what is asked for next is asked on another connection.
#[test]
fn r1_a_grant_that_nobody_asked_for_is_not_the_next_ones() {
    let (servers, proxies, locker) = behind_proxies(1, unhurried());
    let holder = connected_by(unhurried(), &servers).lock("r").try_acquire().unwrap();
    // Behind the answer to something harmless, in one packet with it.
    let place = proxies[0].replied() + b"+OK\r\n".len();
    let inject = Some((place, b"+OK\r\n".to_vec()));
    proxies[0].set_live(Plan::down(Flow { inject, ..Flow::default() }));
    proxies[0].set(Plan::default());
    std::mem::forget(locker.lock("harmless").try_acquire().unwrap());
    eventually("it has come", || {
        locker.flush(ms(1));
        locker.reply_counts() == (0, 1)
    });
    let error = locker.lock("r").try_acquire().unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert_eq!(locker.reply_counts(), (0, 1));
    assert_eq!(proxies[0].connections(), 2);
    assert_eq!(servers[0].get("r").unwrap().as_deref(), Some(holder.token().as_str()));
    holder.release().unwrap();
}

#[test]
fn r1_bytes_from_elsewhere_in_a_reply_end_the_connection() {
    for garbage in [&b"+OK\r\n"[..], b":1\r\n", b"\x16\x03\x01", b"HTTP/1.1 400 Bad Request\r\n"] {
        let servers = Servers::start(1).unwrap();
        let proxy = Proxy::start(servers[0].tcp_url()).unwrap();
        let locker = unhurried().node(proxy.url()).connect_local().unwrap();
        let holder = connected_by(unhurried(), &servers).lock("r").try_acquire().unwrap();
        let place = proxy.replied();
        let inject = Some((place, garbage.to_vec()));
        proxy.set_live(Plan::down(Flow { inject, ..Flow::default() }));
        proxy.set(Plan::default());
        let result = locker.lock("r").try_acquire();
        if let Ok(guard) = result {
            // Nothing tells a forged OK from a real one: what follows it does.
            assert_eq!(garbage, b"+OK\r\n");
            assert!(guard.extend(secs(5)).is_err(), "the server's own reply does not fit");
        }
        let (_, protocol_errors) = locker.reply_counts();
        assert_eq!(protocol_errors, 1, "{garbage:?}");
        drop(holder);
    }
}

/// Grants of fenced locks say whose they are. A reply is lost, and the next one, of the same shape, stands in its place:
/// what would else be another lock's grant ends the connection.
#[test]
fn r1_a_grant_that_names_another_token_is_nobodys() {
    let servers = Servers::start(3).unwrap();
    let losing = Arc::new(AtomicBool::new(false));
    let loses = losing.clone();
    let fake = Fake::start(servers[0].tcp_url(), move |command| {
        let is_lost = command[0] == b"EVALSHA" && loses.swap(false, Ordering::SeqCst);
        if is_lost { Act::Ignore } else { Act::Forward }
    });
    let fake = fake.unwrap();
    let urls = [fake.url(), servers[1].tcp_url(), servers[2].tcp_url()];
    let builder = unhurried().nodes(urls);
    let locker = all_vote(builder.connect_local().unwrap(), &servers);
    let fenced = |resource| {
        let guard = locker.lock(resource).fencing(Fencing::OneRoundTrip).try_acquire().unwrap();
        assert!(guard.attempt().granted() >= 2 && guard.fencing_token().is_some());
        guard
    };
    losing.store(true, Ordering::SeqCst);
    let first = fenced("first");
    let second = fenced("second");
    eventually("the reply has come", || {
        locker.flush(ms(1));
        locker.lock("other").try_acquire().unwrap().release().unwrap();
        locker.reply_counts().1 == 1
    });
    assert_eq!(servers[0].get("first").unwrap(), None, "it was never taken there");
    first.extend(secs(10)).unwrap();
    first.release().unwrap();
    second.release().unwrap();
    eventually("all is answered", || locker.flush(ms(50)) == 0);
    assert_eq!(values(&servers, "first"), [None, None, None]);
    assert_eq!(values(&servers, "second"), [None, None, None]);
    assert_eq!(locker.reply_counts().1, 1);
}

/// Late is not wrong: every reply comes a command too late, and each finds its own.
#[test]
fn r1_replies_that_are_late_are_counted_as_abandoned_and_as_nothing_else() {
    const ROUNDS: u64 = 20;
    let builder = Builder::new().node_timeout(ms(20)).connect_timeout(secs(60));
    let (servers, proxies, locker) = behind_proxies(3, builder);
    let before = locker.reply_counts().0;
    proxies.iter().for_each(|proxy| proxy.set_live(Plan::delay(secs(1))));
    for round in 0..ROUNDS {
        let attempt = no_quorum(locker.lock(&format!("r{round}")).try_acquire().unwrap_err());
        assert_eq!(said(&attempt), ["timed out after sending"; 3]);
    }
    eventually("all of it is answered", || locker.flush(ms(100)) == 0);
    assert_eq!(locker.reply_counts(), (before + 3 * ROUNDS, 0));
    for server in servers.iter() {
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), Answer::Integer(0));
    }
}

// R2, R3, R4: what no server sends.

#[test]
fn r2_garbage_ends_the_connection_and_the_vote() {
    for (reply, error) in [
        (&b"?\r\n"[..], ProtocolError::BadTypeByte(b'?')),
        (b"\r\n", ProtocolError::BadTypeByte(b'\r')),
        (b"\0", ProtocolError::BadTypeByte(0)),
        (b"+OK\n\r\n", ProtocolError::BadLineEnd),
        (b"+O\rK\r\n", ProtocolError::BadLineEnd),
        (b"$2\r\nOKxx", ProtocolError::BadLineEnd),
        (b"$x\r\n", ProtocolError::BadInteger),
        (b"$-2\r\n", ProtocolError::BadLength),
        (b"$+2\r\nOK\r\n", ProtocolError::BadLength),
        (b":1x\r\n", ProtocolError::BadInteger),
        (b":99999999999999999999\r\n", ProtocolError::BadInteger),
        (b"_1\r\n", ProtocolError::BadNull),
        (b"#x\r\n", ProtocolError::BadBoolean),
        (b"$?\r\n", ProtocolError::Streamed),
    ] {
        let pretender = Pretender::answering(reply.to_vec());
        let (locker, attempt) = alone(pretender.fake.url());
        assert_eq!(protocol_error(&attempt), error, "{}", reply.escape_ascii());
        assert_eq!(locker.reply_counts(), (0, 1), "{}", reply.escape_ascii());
        assert_eq!(pretender.server.get("r").unwrap(), None);

        // Among others it is one vote less.
        let locker = unhurried().nodes(pretender.urls()).connect_local().unwrap();
        let guard = locker.lock("r").try_acquire().unwrap();
        guard.release().unwrap();
        assert_eq!(locker.flush(secs(5)), 0);
        assert_eq!(values(&pretender.others, "r"), [None, None]);
    }
}

#[test]
fn r3_a_size_that_is_out_of_all_proportion_is_refused_before_any_of_it_comes() {
    for reply in [
        &b"$1073741824\r\n"[..],
        b"$9223372036854775807\r\n",
        b"*2147483647\r\n",
        b"*9223372036854775807\r\n",
        b"%4611686018427387904\r\n",
        b"~1000000\r\n",
        b"=1073741824\r\n",
        b"!1073741824\r\n",
        b">1073741824\r\n",
    ] {
        let pretender = Pretender::answering(reply.to_vec());
        let (locker, attempt) = alone(pretender.fake.url());
        let error = protocol_error(&attempt);
        assert_eq!(error, ProtocolError::ReplyTooLarge, "{}", reply.escape_ascii());
        assert!(attempt.elapsed() < secs(1), "a tenth of what a node is given: {attempt}");
        assert_eq!(locker.reply_counts(), (0, 1));
    }
}

#[test]
fn r3_a_line_without_an_end_is_refused() {
    let pretender = Pretender::answering([b"+".as_slice(), &[b'x'; 1 << 17]].concat());
    let (_, attempt) = alone(pretender.fake.url());
    assert_eq!(protocol_error(&attempt), ProtocolError::ReplyTooLarge);
}

#[test]
fn r4_replies_within_replies_within_replies_are_refused() {
    for deep in [100, 100_000] {
        let pretender = Pretender::answering(b"*1\r\n".repeat(deep));
        let (locker, attempt) = alone(pretender.fake.url());
        assert_eq!(protocol_error(&attempt), ProtocolError::DepthExceeded);
        assert_eq!(locker.reply_counts(), (0, 1));
    }
}

// R5: what is no reply.

/// RESP3 has frames that answer nothing: they are read past, wherever they stand.
#[test]
fn r5_pushes_and_attributes_are_left_out_and_the_reply_behind_them_counts() {
    for frame in [
        &b">2\r\n+invalidate\r\n*1\r\n$1\r\nr\r\n"[..],
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\n+OK\r\n",
        b">1\r\n_\r\n",
        b"|1\r\n+ttl\r\n:3600\r\n",
        b"|1\r\n+popularity\r\n%1\r\n$1\r\na\r\n,0.5\r\n",
    ] {
        for (reply, granted) in [(&b"+OK\r\n"[..], true), (b"_\r\n", false)] {
            let pretender = Pretender::answering([frame, reply].concat());
            let locker = unhurried().node(pretender.fake.url()).connect_local().unwrap();
            match locker.lock("r").try_acquire() {
                Ok(guard) => {
                    assert!(granted, "{}", frame.escape_ascii());
                    drop(guard);
                }
                Err(error) => assert!(error.is_contended() && !granted, "{error}"),
            }
            assert_eq!(locker.reply_counts(), (0, 0), "{}", frame.escape_ascii());
        }
    }
}

/// In RESP2 the same is an array, which none of our commands is answered with.
#[test]
fn r5_a_message_of_a_subscription_in_resp2_is_nobodys() {
    let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nOK\r\n";
    let pretender = Pretender::answering([&message[..], b"+OK\r\n"].concat());
    let (locker, attempt) = alone(pretender.fake.url());
    assert_eq!(protocol_error(&attempt), ProtocolError::UnexpectedReply);
    assert_eq!(locker.reply_counts(), (0, 1));
}

// R6: words before anything was asked.

/// The server's own words, and no retry at every turn.
#[test]
fn r6_words_that_come_before_any_question_are_the_nodes_last_error() {
    for (words, last_error) in [
        ("-ERR max number of clients reached", "ERR max number of clients reached"),
        (
            "-DENIED Redis is running in protected mode",
            "in protected mode, takes no remote clients (DENIED)",
        ),
        ("+hello from a proxy", "protocol error: a reply does not fit its command"),
    ] {
        for hangs_up in [false, true] {
            let speaker = Speaker::start(format!("{words}\r\n").as_bytes(), hangs_up).unwrap();
            let builder = Builder::new().node(speaker.url()).connect_timeout(secs(1));
            let ConnectError::NoQuorum(attempt) = builder.connect_local().unwrap_err() else {
                panic!()
            };
            assert_eq!(said(&attempt), [last_error], "hangs up: {hangs_up}");
            assert!((1..=10).contains(&speaker.connections()), "{}", speaker.connections());
        }
    }
}

#[test]
fn r6_a_server_in_protected_mode_says_so_in_its_greeting() {
    in_namespace("replies::r6_a_server_in_protected_mode_says_so_in_its_greeting", || {
        ip("address add 10.9.0.1/32 dev lo");
        let protected = Server::builder().config("bind", "0.0.0.0").config("protected-mode", "yes");
        let server = protected.start().unwrap();
        let mut stream = TcpStream::connect(("10.9.0.1", server.port())).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        if answer == *b"+" {
            return println!("skipped: a server that is told where to listen is not protected");
        }
        let others = Servers::start(2).unwrap();
        let mut urls = vec![format!("redis://10.9.0.1:{}", server.port())];
        urls.extend(others.tcp_urls());
        let locker = unhurried().nodes(urls).connect().unwrap();
        let expected = "in protected mode, takes no remote clients (DENIED)";
        let stats = first_is_out(&locker, expected);
        assert_eq!(stats.protocol_errors, 0);
    });
}

#[test]
fn r6_a_server_that_is_full_of_clients_is_tried_again_and_votes_when_it_has_room() {
    let servers = Servers::start_each(3, Server::builder().config("maxclients", "1")).unwrap();
    let first = unhurried().nodes(servers.tcp_urls()).connect_local().unwrap();
    let builder = || unhurried().nodes(servers.tcp_urls()).connect_timeout(secs(1));
    let ConnectError::NoQuorum(attempt) = builder().connect_local().unwrap_err() else { panic!() };
    assert_eq!(said(&attempt), ["ERR max number of clients reached"; 3]);
    let guard = first.lock("r").try_acquire().unwrap();
    guard.release().unwrap();
    drop(first);
    let second = builder().connect_timeout(secs(10)).connect_local().unwrap();
    second.lock("r").timeout(secs(5)).acquire().unwrap().release().unwrap();
}

// R7: scripts that a server has forgotten.

/// The token and the deadline stay; each script goes in full once, and the server knows it then.
#[test]
fn r7_noscript_is_answered_with_the_script_once() {
    let (servers, proxies, locker) = behind_proxies(1, unhurried());
    let before = locker.reply_counts();
    let guard = locker.lock("r").ttl(secs(10)).try_acquire().unwrap();
    let token = guard.token().to_string();
    for server in servers.iter() {
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
    }
    reset_calls(&servers);
    let validity = guard.extend(secs(20)).unwrap();
    assert!(validity <= secs(20) - ms(202), "counted from before the first try");
    guard.extend(secs(30)).unwrap();
    guard.release().unwrap();
    assert_eq!(locker.flush(secs(5)), 0);
    assert_eq!(values(&servers, "r"), [None]);
    let verbs = [SET, EXTEND, EXTEND_IN_FULL, EXTEND, RELEASE, RELEASE_IN_FULL];
    let expected = verbs.map(|verb| (verb, token.clone()));
    for (proxy, server) in proxies.iter().zip(servers.iter()) {
        let asked = asked(proxy, "r");
        assert_eq!(asked.len(), 1, "one connection all along");
        assert_eq!(asked[0], expected);
        assert_eq!((calls(server, "evalsha"), calls(server, "eval")), (3, 2));
    }
    assert_eq!(locker.reply_counts().1, before.1);
}

/// As where a proxy leads each command to another server.
#[test]
fn r7_noscript_for_ever_is_no_vote_and_is_not_asked_again() {
    let servers = Servers::start(1).unwrap();
    let fake = Fake::start(servers[0].tcp_url(), |command| match &*command[0] {
        b"EVALSHA" | b"EVAL" => Act::Reply(b"-NOSCRIPT No matching script.\r\n".into()),
        _ => Act::Forward,
    });
    let fake = fake.unwrap();
    let proxy = Proxy::start(fake.url()).unwrap();
    let locker = unhurried().node(proxy.url()).connect_local().unwrap();
    let guard = locker.lock("r").try_acquire().unwrap();
    let token = guard.token().to_string();
    let ExtendError::NoQuorum { attempt, validity } = guard.extend(secs(10)).unwrap_err() else {
        panic!()
    };
    assert_eq!(said(&attempt), ["NOSCRIPT, though the script was sent"]);
    assert!(validity > secs(5), "the lock is as valid as it was");
    let expected = [SET, EXTEND, EXTEND_IN_FULL].map(|verb| (verb, token.clone()));
    assert_eq!(asked(&proxy, "r"), [expected]);
    assert_eq!(locker.reply_counts(), (0, 0));
}

// R8: a reply of another shape.

#[test]
fn r8_a_reply_of_the_wrong_shape_is_never_a_grant() {
    for shape in [
        &b":1\r\n"[..],
        b":2\r\n",
        b"$2\r\nOK\r\n",
        b"*0\r\n",
        b"#t\r\n",
        b"+Ok\r\n",
        b"+QUEUED\r\n",
    ] {
        let pretender = Pretender::answering(shape.into());
        let (locker, attempt) = alone(pretender.fake.url());
        assert_eq!(protocol_error(&attempt), ProtocolError::UnexpectedReply);
        let unexpected = NodeError::Protocol(ProtocolError::UnexpectedReply).to_string();
        assert_eq!(said(&attempt), [format!("no answer after sending: {unexpected}")], "{shape:?}");
        eventually("it is connected to again", || {
            matches!(locker.lock("r").try_acquire(), Err(AcquireError::NoQuorum(_)))
        });
    }
}

/// Neither of a release nor of an extension.
#[test]
fn r8_each_verb_takes_only_its_own_replies() {
    for shape in [&b"+OK\r\n"[..], b":3\r\n", b":-9\r\n", b"$1\r\n1\r\n", b"_\r\n", b"*1\r\n:1\r\n"]
    {
        let server = Server::start().unwrap();
        let fake = Fake::start(server.tcp_url(), move |command| match &*command[0] {
            b"EVALSHA" => Act::Reply(shape.into()),
            _ => Act::Forward,
        });
        let fake = fake.unwrap();
        let builder = unhurried().node(fake.url());
        let locker = builder.connect_local().unwrap();
        let guard = locker.lock("r").ttl(secs(3600)).try_acquire().unwrap();
        let ExtendError::NoQuorum { attempt, .. } = guard.extend(secs(3600)).unwrap_err() else {
            panic!()
        };
        assert_eq!(protocol_error(&attempt), ProtocolError::UnexpectedReply, "{shape:?}");
        assert_eq!(locker.reply_counts(), (0, 1));
        let token = guard.token().to_string();
        drop(guard);
        eventually("the release is answered as badly", || {
            locker.flush(ms(50));
            locker.reply_counts().1 >= 2
        });
        assert_eq!(locker.flush(ms(1)), 1, "it is owed all the time");
        assert_eq!(server.get("r").unwrap(), Some(token), "nobody was asked to delete it");
    }
}

// R9: a success that comes too late.

#[test]
fn r9_a_grant_after_the_nodes_deadline_is_not_counted_and_released() {
    let builder = Builder::new().node_timeout(ms(50)).connect_timeout(secs(60));
    let (servers, proxies, locker) = behind_proxies(3, builder);
    let before = locker.reply_counts().0;
    reset_calls(&servers);
    proxies.iter().for_each(|proxy| proxy.set_live(Plan::delay(ms(600))));
    let attempt = no_quorum(locker.lock("r").ttl(secs(3600)).try_acquire().unwrap_err());
    assert_eq!(said(&attempt), ["timed out after sending"; 3]);
    eventually("all is answered", || locker.flush(ms(50)) == 0);
    for server in servers.iter() {
        assert_eq!((calls(server, "set"), calls(server, "evalsha")), (1, 1));
        assert_eq!(calls(server, "del"), 1, "it was granted, and was deleted");
    }
    assert_eq!(values(&servers, "r"), [None, None, None]);
    assert_eq!(locker.reply_counts(), (before + 3, 0), "one late grant of each");
}

/// The quorum is there in the nodes' time, and not in the caller's.
#[test]
fn r9_a_quorum_after_the_callers_deadline_is_released() {
    let builder = unhurried();
    let (servers, proxies, locker) = behind_proxies(3, builder);
    reset_calls(&servers);
    proxies.iter().for_each(|proxy| proxy.set_live(Plan::delay(ms(600))));
    let error = locker.lock("r").ttl(secs(3600)).timeout(ms(100)).acquire().unwrap_err();
    assert!(matches!(error, AcquireError::DeadlineExceeded(_)), "{error}");
    assert!(!error.is_contended(), "{error}");
    eventually("all is answered", || locker.flush(ms(50)) == 0);
    assert_eq!(servers.iter().map(|server| calls(server, "del")).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

// R10: one success, asked for twice.

/// The reply to a SET is lost with its connection. It is not sent again: the next attempt has another token, and comes
/// behind the release of the first, which would else stand in its way.
#[test]
fn r10_a_set_is_never_sent_again_and_does_not_stand_in_the_way_of_the_next() {
    let (servers, proxies, locker) = behind_proxies(1, unhurried());
    let before = locker.reply_counts();
    reset_calls(&servers);
    for cut in [Cut::Fin, Cut::Rst] {
        let earlier = proxies[0].connections();
        let cut_after = Some((proxies[0].replied(), cut));
        proxies[0].set_live(Plan::down(Flow { cut_after, ..Flow::default() }));
        proxies[0].set(Plan::default());
        let guard = locker.lock("r").ttl(secs(3600)).timeout(secs(10)).acquire().unwrap();
        assert_eq!(guard.attempt().number(), 2, "its own key is not somebody else's");
        let second = guard.token().to_string();
        let sent = asked(&proxies[0], "r");
        assert_eq!(sent.len(), earlier + 1);
        let (verb, first) = sent[earlier - 1].last().unwrap().clone();
        assert_eq!(verb, SET);
        assert_ne!(first, second);
        assert_eq!(sent[earlier], [(RELEASE, first), (SET, second.clone())]);
        assert_eq!(servers[0].get("r").unwrap(), Some(second));
        guard.release().unwrap();
    }
    assert_eq!(calls(&servers[0], "set"), 4);
    assert_eq!(calls(&servers[0], "del"), 4, "two of attempts that failed, two of locks");
    assert_eq!(locker.reply_counts(), before);
}

/// A lock outlives its connections: what follows goes over new ones, and is sent once.
#[test]
fn r10_a_lock_outlives_connections_that_its_servers_have_cut() {
    let (servers, proxies, locker) = behind_proxies(3, unhurried());
    let guard = locker.lock("r").try_acquire().unwrap();
    eventually("every node has it", || values(&servers, "r").iter().all(Option::is_some));
    let cut = || {
        eventually("the system knows that all are cut", || {
            // Also those that were only about to be made.
            for server in servers.iter() {
                server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
            }
            proxies.iter().all(|proxy| connections_to(proxy.port(), "01").is_empty())
        });
    };
    cut();
    guard.extend(secs(20)).unwrap();
    cut();
    guard.release().unwrap();
    assert_eq!(locker.flush(secs(5)), 0);
    assert_eq!(values(&servers, "r"), [None, None, None]);
    // An extension needs a quorum's connections, and is not sent over those that come later than that.
    let mut extended = 0;
    for proxy in &proxies {
        let connections: Vec<Vec<_>> = asked(proxy, "r")
            .into_iter()
            .map(|connection| connection.into_iter().map(|(verb, _)| verb).collect())
            .collect();
        let [first, second, third] = &connections[..] else { panic!("{connections:?}") };
        assert!(first[..] == [SET] && third[..] == [RELEASE], "{connections:?}");
        assert!(second[..] == [EXTEND] || second.is_empty(), "{connections:?}");
        extended += second.len();
    }
    assert!(extended >= 2);
    assert_eq!(locker.reply_counts().1, 0);
}
