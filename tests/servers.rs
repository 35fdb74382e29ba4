//! `quorlock::testing`: servers start, do what they are told, and are gone afterwards.
#![allow(clippy::unwrap_used)] // helpers are test code too

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use quorlock::testing::{Answer, Data, Server, Servers};

/// Whether a process is there, and not only waiting to be buried.
fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn it_answers_on_both_its_addresses() {
    let server = Server::start().unwrap();
    assert_eq!(server.command(&["SET", "k", "v"]).unwrap(), Answer::Text("OK".into()));
    assert_eq!(server.get("k").unwrap(), Some("v".into()));
    assert_eq!(server.get("none").unwrap(), None);
    assert!(std::net::TcpStream::connect(("127.0.0.1", server.port())).is_ok());
    assert_eq!(server.tcp_url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(server.unix_url(), format!("unix:{}", server.socket_path().display()));
}

#[test]
fn a_drop_leaves_neither_process_nor_directory() {
    let server = Server::start().unwrap();
    let pid = server.pid().unwrap();
    let dir = server.socket_path().parent().unwrap().to_owned();
    assert!(is_alive(pid) && dir.is_dir());
    server.pause().unwrap();
    drop(server);
    assert!(!is_alive(pid) && !dir.exists());
}

#[test]
fn a_paused_server_takes_connections_and_answers_later() {
    let server = Server::start().unwrap();
    server.pause().unwrap();
    assert!(server.is_running());
    let stream = std::os::unix::net::UnixStream::connect(server.socket_path());
    assert!(stream.is_ok());
    let resumed = std::thread::scope(|scope| {
        let answer = scope.spawn(|| server.command(&["PING"]).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!answer.is_finished());
        server.resume().unwrap();
        answer.join().unwrap()
    });
    assert_eq!(resumed, Answer::Text("PONG".into()));
}

#[test]
fn a_restart_keeps_or_wipes_the_data() {
    let mut server = Server::builder().persistent(true).start().unwrap();
    let port = server.port();
    server.command(&["SET", "k", "v"]).unwrap();
    server.restart(Data::Keep).unwrap();
    assert_eq!(server.get("k").unwrap(), Some("v".into()));
    server.kill().unwrap();
    assert!(!server.is_running());
    assert!(server.command(&["PING"]).is_err());
    server.restart(Data::Wipe).unwrap();
    assert_eq!(server.get("k").unwrap(), None);
    assert_eq!(server.port(), port);
}

#[test]
fn it_can_be_asked_to_end() {
    let mut server = Server::start().unwrap();
    server.terminate().unwrap();
    assert!(!server.is_running());
    assert!(server.pause().is_err());
}

#[test]
fn directives_are_passed_on() {
    let server = Server::builder().config("requirepass", "hunter2").start().unwrap();
    let Answer::Error(text) = server.command(&["GET", "k"]).unwrap() else { panic!() };
    assert!(text.starts_with("NOAUTH"), "{text}");
}

#[test]
fn what_does_not_start_says_why() {
    let error = Server::builder().config("no-such-directive", "1").start().unwrap_err();
    assert!(error.to_string().contains("does not start"), "{error}");
    let error = Server::builder().binary("/no/such/server").start().unwrap_err();
    assert!(error.to_string().contains("/no/such/server"), "{error}");
}

/// This test starts itself again in a child process, has that start servers, and kills it.
#[test]
fn servers_do_not_outlive_a_process_that_is_killed() {
    const IN_CHILD: &str = "QUORLOCK_TEST_IN_CHILD";
    if let Some(report) = std::env::var_os(IN_CHILD) {
        let mut servers = Servers::start(3).unwrap();
        servers[1].pause().unwrap();
        // One that was killed before has left a directory.
        let dead = servers[2].pid().unwrap();
        servers[2].kill().unwrap();
        let line = |server: &Server| {
            let dir = server.socket_path();
            format!("{} {}\n", server.pid().unwrap_or(dead), dir.parent().unwrap().display())
        };
        let lines: String = servers.iter().map(line).collect();
        fs::write(Path::new(&report).with_extension("new"), lines).unwrap();
        fs::rename(Path::new(&report).with_extension("new"), report).unwrap();
        loop {
            std::thread::park();
        }
    }
    let report = std::env::temp_dir().join(format!("quorlock-report-{}", std::process::id()));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "servers_do_not_outlive_a_process_that_is_killed"])
        .env(IN_CHILD, &report)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the child reports", || report.exists());
    let lines = fs::read_to_string(&report).unwrap();
    let servers: Vec<(u32, &Path)> = lines
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(pid, dir)| (pid.parse().unwrap(), Path::new(dir)))
        .collect();
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|(_, dir)| dir.is_dir()));
    assert!(servers[..2].iter().all(|(pid, _)| is_alive(*pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the servers are gone", || servers.iter().all(|(pid, _)| !is_alive(*pid)));
    eventually("their directories are gone", || servers.iter().all(|(_, dir)| !dir.exists()));
    fs::remove_file(report).unwrap();
}
