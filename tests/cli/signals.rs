//! Signals: while waiting they end the wait, and while holding they are the command's.

use crate::*;

#[test]
fn a_signal_ends_the_wait_at_once() {
    let servers = servers(3);
    let holder = start(&mut run(&servers, &["r", "--", "sleep", "30"]));
    wait_until_held(&servers);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let waiter = start(&mut run(&servers, &["r", "--", "echo", "never"]));
        std::thread::sleep(Duration::from_millis(400));
        let signalled = Instant::now();
        waiter.signal(signal);
        let output = waiter.output();
        assert_code(&output, 128 + signal.as_raw());
        assert!(signalled.elapsed() < Duration::from_millis(500), "{:?}", signalled.elapsed());
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    holder.signal(Signal::TERM);
    holder.output();
    assert_eq!(keys(&servers), 0, "something was left behind");
}

#[test]
fn a_signal_ends_the_wait_for_nodes_too() {
    let mut servers = servers(3);
    servers[0].pause().unwrap();
    servers[1].kill().unwrap();
    let waiter = start(&mut run(&servers, &["r", "--", "echo", "never"]));
    std::thread::sleep(Duration::from_millis(500));
    let signalled = Instant::now();
    waiter.signal(Signal::INT);
    assert_code(&waiter.output(), 130);
    assert!(signalled.elapsed() < Duration::from_millis(1500), "{:?}", signalled.elapsed());
}

#[test]
fn the_whole_group_gets_the_signal() {
    let servers = servers(1);
    let scratch = Scratch::new("group");
    let line = format!(
        "sh -c 'trap \"echo inner >> {got}; exit\" TERM; echo $$ > {inner}; while :; do sleep 0.05; done' & \
         trap 'wait; echo outer >> {got}; exit 7' TERM; echo $$ > {outer}; wait",
        got = scratch.text("got"),
        inner = scratch.text("inner"),
        outer = scratch.text("outer"),
    );
    let running = start(&mut run(&servers, &["r", "-c", &line]));
    let (inner, _) = (scratch.pid("inner"), scratch.pid("outer"));
    running.signal(Signal::TERM);
    assert_code(&running.output(), 7);
    assert_eq!(fs::read_to_string(scratch.path("got")).unwrap(), "inner\nouter\n");
    assert!(!is_running(inner));
    assert_eq!(keys(&servers), 0);
}

/// The command decides when it is over, not the signal.
#[test]
fn the_lock_is_kept_until_the_command_has_ended() {
    let servers = servers(1);
    let scratch = Scratch::new("kept");
    let line = format!(
        "trap 'sleep 0.5; exit 5' INT; echo ready > {}; while :; do sleep 0.05; done",
        scratch.text("ready")
    );
    let running = start(&mut run(&servers, &["-t", "0.3", "r", "-c", &line]));
    scratch.line("ready");
    running.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(350));
    assert_eq!(keys(&servers), 1, "released while the command ran");
    assert_code(&running.output(), 5);
    assert_eq!(keys(&servers), 0);
}

/// None of them ends us and leaves the lock to its ttl.
#[test]
fn other_signals_are_passed_on() {
    let servers = servers(1);
    let scratch = Scratch::new("usr");
    for signal in [
        Signal::HUP,
        Signal::QUIT,
        Signal::ABORT,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::XCPU,
        Signal::XFSZ,
        Signal::IO,
        #[cfg(target_os = "linux")]
        Signal::POWER,
    ] {
        let line = format!(
            "trap 'exit 99' {}; echo ready > {}; while :; do sleep 0.05; done",
            signal.as_raw(),
            scratch.text("ready")
        );
        let running = start(&mut run(&servers, &["r", "-c", &line]));
        scratch.line("ready");
        running.signal(signal);
        let output = running.output();
        assert_eq!(output.status.code(), Some(99), "{signal:?}: {output:?}");
        assert_eq!(keys(&servers), 0, "{signal:?}");
        fs::remove_file(scratch.path("ready")).unwrap();
    }
}

/// `nohup quorlock run …`: what was ignored when we were started stays ignored, for us and for the command.
#[test]
#[cfg(target_os = "linux")]
fn an_ignored_signal_stays_ignored() {
    let servers = servers(1);
    let scratch = Scratch::new("nohup");
    let line = format!("echo ready > {}; sleep 0.6", scratch.text("ready"));
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_quorlock"), "run"]);
    command.env("QUORLOCK_NODES", servers.tcp_urls().join(",")).args(["r", "-c", &line]);
    let running = start(&mut command);
    scratch.line("ready");
    running.signal(Signal::HUP);
    assert_code(&running.output(), 0);
}

/// Ctrl-Z where the command does not have the terminal: stopping us would leave the lock to run out.
#[test]
#[cfg(target_os = "linux")]
fn a_holder_is_not_suspended_and_a_waiter_is() {
    let servers = servers(1);
    let holder = start(&mut run(&servers, &["-t", "0.5", "r", "--", "sleep", "2"]));
    wait_until_held(&servers);
    let waiter = start(&mut run(&servers, &["r", "--", "echo", "got it"]));
    std::thread::sleep(Duration::from_millis(400));
    holder.signal(Signal::TSTP);
    waiter.signal(Signal::TSTP);
    wait_until("the waiter to be stopped", || waiter.is_stopped());
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(keys(&servers), 1, "the lock ran out");
    let output = holder.output();
    assert_code(&output, 0);
    assert!(stderr(&output).contains("cannot be suspended"), "{output:?}");
    waiter.signal(Signal::CONT);
    let output = waiter.output();
    assert_code(&output, 0);
    assert_eq!(stdout(&output), "got it\n");
}
