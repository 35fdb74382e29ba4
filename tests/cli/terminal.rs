//! A command on a terminal: it can read it, its keys reach it, and the shell gets the terminal back.
//!
//! `script` (util-linux) makes the terminal. Where there is none, these tests say so and pass.
#![cfg(target_os = "linux")]

use std::io::Write;

use crate::*;

/// Runs a shell line on a terminal and types into it, each text after its prompt has come. (`script` begins with
/// the line itself, so the line has no prompt in one piece.)
fn on_a_terminal(servers: &Servers, line: &str, typed: &[(&str, &str)]) -> Option<String> {
    let scratch = Scratch::new(&format!("terminal-{}", typed.len() + line.len()));
    let seen = scratch.text("typescript");
    let mut script = Command::new("script");
    script.args(["-qefc", line, &seen]).env("QUORLOCK_NODES", servers.tcp_urls().join(","));
    script.env("QUORLOCK", env!("CARGO_BIN_EXE_quorlock")).stdin(Stdio::piped());
    let Ok(child) = script.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        eprintln!("skipped: there is no `script` to make a terminal with");
        return None;
    };
    let mut running = Running { child: Some(child) };
    let mut stdin = running.child.as_mut().and_then(|child| child.stdin.take()).expect("a pipe");
    let text = || String::from_utf8_lossy(&fs::read(&seen).unwrap_or_default()).into_owned();
    for (prompt, keys) in typed {
        wait_until(prompt, || text().contains(prompt));
        stdin.write_all(keys.as_bytes()).expect("it listens");
    }
    let output = running.output();
    Some(format!("{}\nstatus {:?}", text(), output.status.code()))
}

#[test]
fn a_command_can_read_the_terminal_and_so_can_what_comes_after() {
    let servers = servers(1);
    let line = "$QUORLOCK run r -c 'echo on\"\"e?; read a; echo got $a'; echo tw\"\"o?; read b; echo then $b";
    if let Some(seen) = on_a_terminal(&servers, line, &[("one?", "1\n"), ("two?", "2\n")]) {
        assert!(seen.contains("got 1") && seen.contains("then 2"), "{seen}");
        assert!(seen.ends_with("status Some(0)"), "{seen}");
    }
}

#[test]
fn an_interrupt_reaches_the_command() {
    let servers = servers(1);
    let line = "exec $QUORLOCK run r -c 'trap \"exit 9\" INT; echo re\"\"ady; while :; do sleep 0.05; done'";
    if let Some(seen) = on_a_terminal(&servers, line, &[("ready", "\u{3}")]) {
        assert!(seen.ends_with("status Some(9)"), "{seen}");
        assert_eq!(keys(&servers), 0);
    }
}

#[test]
fn a_command_that_holds_a_lock_is_not_suspended() {
    let servers = servers(1);
    let line = "exec $QUORLOCK run r -c 'echo re\"\"ady; sleep 1; exit 6'";
    if let Some(seen) = on_a_terminal(&servers, line, &[("ready", "\u{1a}")]) {
        assert!(seen.contains("cannot be suspended"), "{seen}");
        assert!(seen.ends_with("status Some(6)"), "{seen}");
    }
}
