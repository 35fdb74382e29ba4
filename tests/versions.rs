//! The main job on other servers than the one at hand, as far as `make setup` could fetch them: Valkey 9.1 and
//! Redis 5.0, which knows no `HELLO`, no users and no RESP3. And on servers that only pretend.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::path::PathBuf;

use quorlock::{
    Builder, ConnectError, LocalLocker, NodeError, RestartGuard, Vote,
    testing::{Data, Server, ServerBuilder, Servers},
};
use support::{
    fake::{Act, Fake},
    ms, programs, secs, values,
};

fn of(program: PathBuf) -> ServerBuilder {
    Server::builder().binary(program)
}

#[test]
fn acquire_extend_release() {
    for program in programs() {
        let servers = Servers::start_each(3, of(program)).unwrap();
        for urls in [servers.tcp_urls(), servers.unix_urls()] {
            let locker = LocalLocker::connect(urls).unwrap();
            let guard = locker.lock("r").try_acquire().unwrap();
            assert!(locker.lock("r").try_acquire().unwrap_err().is_contended());
            assert!(guard.extend(secs(60)).unwrap() > secs(58));
            guard.release().unwrap();
            assert_eq!(locker.flush(secs(1)), 0);
            assert_eq!(values(&servers, "r"), [None, None, None]);
            let (_, protocol_errors) = locker.reply_counts();
            assert_eq!(protocol_errors, 0);
        }
    }
}

#[test]
fn scripts_that_were_flushed_are_sent_again() {
    for program in programs() {
        let servers = Servers::start_each(3, of(program)).unwrap();
        let locker = LocalLocker::connect(servers.tcp_urls()).unwrap();
        let guard = locker.lock("r").try_acquire().unwrap();
        for server in servers.iter() {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
        }
        guard.extend(secs(5)).unwrap();
        for server in servers.iter() {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
        }
        guard.release().unwrap();
        locker.flush(secs(1));
        assert_eq!(values(&servers, "r"), [None, None, None]);
    }
}

#[test]
fn a_restarted_server_votes_again() {
    for program in programs() {
        let mut servers = Servers::start_each(3, of(program)).unwrap();
        let builder = Builder::new().nodes(servers.tcp_urls()).restart_guard(RestartGuard::Off);
        let locker = builder.connect_local().unwrap();
        for i in 0..3 {
            servers[i].restart(Data::Wipe).unwrap();
        }
        locker.lock("r").timeout(secs(5)).acquire().unwrap().release().unwrap();
    }
}

#[test]
fn passwords_and_databases() {
    for program in programs() {
        let server = of(program.clone()).config("requirepass", "s3cretpw").start().unwrap();
        let at = format!("127.0.0.1:{}", server.port());
        let locker = LocalLocker::connect([format!("redis://:s3cretpw@{at}/3")]).unwrap();
        locker.lock("r").try_acquire().unwrap().release().unwrap();
        let open = of(program).start().unwrap();
        let without_need = format!("redis://:s3cretpw@127.0.0.1:{}", open.port());
        for url in [format!("redis://:n0tthis@{at}"), format!("redis://{at}"), without_need] {
            let result = LocalLocker::connect([url]);
            let shown = format!("{result:?}");
            assert!(!shown.contains("s3cretpw") && !shown.contains("n0tthis"), "{shown}");
            if let Err(error) = result {
                let shown = error.to_string();
                assert!(!shown.contains("s3cretpw") && !shown.contains("n0tthis"), "{shown}");
            }
        }
    }
}

#[test]
fn a_wrong_password_is_told_from_a_missing_one() {
    for program in programs() {
        let server = of(program).config("requirepass", "s3cretpw").start().unwrap();
        let refused = |url: String| match LocalLocker::connect([url]).unwrap_err() {
            ConnectError::NoQuorum(attempt) => attempt.votes().next().unwrap().1.to_string(),
            error => panic!("{error}"),
        };
        let port = server.port();
        assert_eq!(refused(format!("redis://127.0.0.1:{port}")), "wants a password (NOAUTH)");
        let wrong = refused(format!("redis://:wrong@127.0.0.1:{port}"));
        assert!(
            ["wrong user or password (WRONGPASS)", "refused AUTH"].contains(&wrong.as_str()),
            "{wrong}"
        );
    }
}

// Pretenders.

#[test]
fn a_proxy_that_knows_no_hello_is_greeted_plainly() {
    for by_closing in [false, true] {
        let server = Server::start().unwrap();
        let fake = Fake::start(server.tcp_url(), move |command| match &*command[0] {
            b"HELLO" if by_closing => Act::Close,
            b"HELLO" => Act::Reply(b"-ERR unknown command 'HELLO'\r\n".into()),
            _ => Act::Forward,
        });
        let fake = fake.unwrap();
        let locker = LocalLocker::connect([fake.url()]).unwrap();
        let guard = locker.lock("r").try_acquire().unwrap();
        guard.extend(secs(5)).unwrap();
        guard.release().unwrap();
        assert_eq!(server.get("r").unwrap(), None);
    }
}

#[test]
fn a_greeting_that_is_not_answered_to_the_end_is_no_connection() {
    for silent in ["INFO", "SCRIPT"] {
        let server = Server::start().unwrap();
        let fake = Fake::start(server.tcp_url(), move |command| {
            if command[0] == silent.as_bytes() { Act::Ignore } else { Act::Forward }
        });
        let fake = fake.unwrap();
        let builder = Builder::new().node(fake.url()).connect_timeout(ms(200));
        let ConnectError::NoQuorum(attempt) = builder.connect_local().unwrap_err() else {
            panic!()
        };
        let (_, vote) = attempt.votes().next().unwrap();
        assert!(matches!(vote, Vote::Failed(NodeError::Timeout)), "{vote:?}");
    }
}
