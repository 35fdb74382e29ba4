//! What the command is given, and what ties it to us.

use crate::*;

#[test]
fn the_command_is_told_what_it_holds() {
    let servers = servers(1);
    let line = r#"echo "$QUORLOCK_RESOURCE"; echo "$QUORLOCK_TOKEN""#;
    let output = output(&mut run(&servers, &["orders/4 2", "-c", line]));
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(lines[0], "orders/4 2");
    assert_eq!(lines[1].len(), 40);
    assert!(lines[1].bytes().all(|digit| digit.is_ascii_hexdigit()), "{lines:?}");
}

#[test]
fn the_token_is_the_one_in_the_key() {
    let servers = servers(1);
    let scratch = Scratch::new("token");
    let line = format!("echo $QUORLOCK_TOKEN > {}; sleep 30", scratch.text("token"));
    let _holder = start(&mut run(&servers, &["r", "-c", &line]));
    let token = scratch.line("token");
    assert_eq!(servers[0].get("r").unwrap(), Some(token));
}

#[test]
fn with_fencing_it_has_a_number_that_goes_up() {
    let servers = servers(3);
    let number = || {
        let line = r#"printf %s "$QUORLOCK_FENCING_TOKEN""#;
        let output = output(&mut run(&servers, &["--fencing", "r", "-c", line]));
        assert_code(&output, 0);
        stdout(&output).parse::<u64>().unwrap()
    };
    let (first, second) = (number(), number());
    assert!(first < second, "{first}, {second}");
}

#[test]
fn without_fencing_it_has_not_even_that_of_a_lock_around_it() {
    let servers = servers(1);
    let line = r#"echo "${QUORLOCK_FENCING_TOKEN-none}""#;
    let mut command = run(&servers, &["r", "-c", line]);
    let output = output(command.env("QUORLOCK_FENCING_TOKEN", "7"));
    assert_eq!(stdout(&output), "none\n");
}

#[test]
fn any_bytes_make_a_resource() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let servers = servers(1);
    let mut command = run(&servers, &[]);
    command.arg(OsStr::from_bytes(b"\xff\n{x}")).args(["-c", "printf %s \"$QUORLOCK_RESOURCE\""]);
    let output = output(&mut command);
    assert_code(&output, 0);
    assert_eq!(output.stdout, b"\xff\n{x}");
}

/// Standard in, out and error, and the directory that is being listed.
#[test]
#[cfg(target_os = "linux")]
fn the_command_inherits_no_socket() {
    let servers = servers(3);
    let output = output(&mut run(&servers, &["r", "--", "ls", "-l", "/proc/self/fd"]));
    assert_code(&output, 0);
    let listed = stdout(&output);
    assert!(!listed.contains("socket:") && !listed.contains("anon_inode"), "{listed}");
    let unlisted = quorlock_free_listing();
    assert_eq!(listed.lines().count(), unlisted, "{listed}");
}

/// How long the same list is without us: the test's own surroundings may leave descriptors open.
#[cfg(target_os = "linux")]
fn quorlock_free_listing() -> usize {
    let mut ls = Command::new("ls");
    let output = output(ls.args(["-l", "/proc/self/fd"]).stdin(Stdio::null()));
    stdout(&output).lines().count()
}

#[test]
fn the_command_has_our_stdin() {
    let servers = servers(1);
    let mut cat = start(run(&servers, &["r", "--", "cat"]).stdin(Stdio::piped()));
    let mut stdin = cat.child.as_mut().and_then(|child| child.stdin.take()).unwrap();
    std::io::Write::write_all(&mut stdin, b"through").unwrap();
    drop(stdin);
    assert_eq!(stdout(&cat.output()), "through");
}

/// Nobody is left to extend the lock, so the command must not run on.
#[test]
#[cfg(target_os = "linux")]
fn the_command_dies_with_us() {
    let servers = servers(1);
    let scratch = Scratch::new("pdeathsig");
    let line = format!("echo $$ > {}; exec sleep 30", scratch.text("pid"));
    let running = start(&mut run(&servers, &["r", "-c", &line]));
    let command = scratch.pid("pid");
    assert!(is_running(command));
    running.signal(Signal::KILL);
    wait_until("the command to be killed", || !is_running(command));
    assert_eq!(ended_by(running.output().status), Some(9));
}

/// Its lock is not kept from others for what it left in the background, nor is that killed.
#[test]
fn what_the_command_leaves_behind_runs_on() {
    let servers = servers(1);
    let scratch = Scratch::new("background");
    let line = format!("sleep 30 >/dev/null 2>&1 & echo $! > {}", scratch.text("pid"));
    assert_code(&output(&mut run(&servers, &["r", "-c", &line])), 0);
    assert_eq!(keys(&servers), 0);
    let left = scratch.pid("pid");
    assert!(is_running(left));
    kill_process(left, Signal::KILL).unwrap();
}
