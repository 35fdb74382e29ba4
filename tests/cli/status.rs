//! `quorlock status`: who holds what.

use crate::*;

fn status(servers: &Servers, args: &[&str]) -> Output {
    let mut command = quorlock(&["status"]);
    output(command.env("QUORLOCK_NODES", servers.tcp_urls().join(",")).args(args))
}

fn set(servers: &Servers, node: usize, args: &[&str]) {
    let answer = servers[node].command(&[&["SET", "r"], args].concat()).expect("an answer");
    assert_eq!(answer, Answer::Text("OK".into()));
}

#[test]
fn a_free_resource_is_free() {
    let servers = servers(3);
    let output = status(&servers, &["r"]);
    assert_code(&output, 1);
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert!(lines[..3].iter().all(|line| line.ends_with("  free")), "{lines:?}");
    assert_eq!(lines[3], "\"r\": free on 3 of 3 nodes");
}

#[test]
fn a_holder_is_shown_by_the_start_of_its_token() {
    let servers = servers(3);
    let scratch = Scratch::new("status");
    let line = format!("echo $QUORLOCK_TOKEN > {}; sleep 30", scratch.text("token"));
    let _holder = start(&mut run(&servers, &["--key-prefix", "p:", "r", "-c", &line]));
    let token = scratch.line("token");
    // A node that was slower to connect gets its share a moment later.
    wait_until("the lock to be on all nodes", || keys(&servers) == 3);
    let output = status(&servers, &["--key-prefix", "p:", "r"]);
    assert_code(&output, 0);
    let shown = format!("held by {}…", &token[..8]);
    let lines: Vec<_> = stdout(&output).lines().collect();
    let held = format!("  {shown}, expires in ");
    assert!(lines[..3].iter().all(|line| line.contains(&held)), "{lines:?}");
    assert_eq!(lines[3], format!("\"r\": {shown} on 3 of 3 nodes"));
    assert!(!stdout(&output).contains(&token));
    let output = status(&servers, &["--key-prefix", "p:", "--full-token", "r"]);
    assert_eq!(stdout(&output).matches(&token).count(), 4, "{output:?}");
}

#[test]
fn nodes_that_disagree_are_split() {
    let servers = servers(3);
    set(&servers, 0, &["aaaa", "PX", "60000"]);
    set(&servers, 1, &["bbbb", "PX", "60000"]);
    let output = status(&servers, &["r"]);
    assert_code(&output, 1);
    assert!(stdout(&output).ends_with("\"r\": split: nobody holds it on a quorum of 2 nodes\n"));
    set(&servers, 2, &["bbbb", "PX", "60000"]);
    let output = status(&servers, &["r"]);
    assert_code(&output, 0);
    assert!(stdout(&output).ends_with("\"r\": held by bbbb on 2 of 3 nodes\n"), "{output:?}");
}

#[test]
fn odd_keys_are_told_from_locks() {
    let servers = servers(3);
    set(&servers, 0, &["a\u{1b}[31m"]);
    servers[1].command(&["LPUSH", "r", "x"]).unwrap();
    let output = status(&servers, &["r"]);
    assert_code(&output, 1);
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert!(lines[0].contains(r"held by a\x1b[31…, never expires"), "{lines:?}");
    assert!(lines[1].ends_with("taken by a key that is no lock"), "{lines:?}");
}

#[test]
fn nodes_that_cannot_say_say_why() {
    let mut servers = servers(3);
    let down = servers[0].tcp_url().replace("redis://", "");
    servers[0].kill().unwrap();
    let output = status(&servers, &["r"]);
    assert_code(&output, 1);
    assert!(
        stdout(&output).contains(&format!("{down}  no answer: Connection refused")),
        "{output:?}"
    );
    servers[1].pause().unwrap();
    let started = Instant::now();
    let output = status(&servers, &["r"]);
    assert_code(&output, 69);
    assert!(started.elapsed() < Duration::from_secs(3));
    assert!(stdout(&output).contains("no answer: timed out"), "{output:?}");
    assert!(
        stdout(&output).ends_with("\"r\": unknown: 1 of 3 nodes answered (need 2)\n"),
        "{output:?}"
    );
    servers[1].resume().unwrap();
}
