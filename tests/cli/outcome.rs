//! What came of it: the exit codes, and who owns which output.

use crate::*;

#[test]
fn the_commands_status_is_passed_on() {
    let servers = servers(1);
    for (line, expected) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        assert_code(&output(&mut run(&servers, &["r", "-c", line])), expected);
        assert_eq!(keys(&servers), 0);
    }
}

#[test]
fn a_command_that_cannot_be_executed_has_its_own_codes() {
    let servers = servers(1);
    let missing = output(&mut run(&servers, &["r", "--", "no-such-command"]));
    assert_code(&missing, 127);
    assert_eq!(
        stderr(&missing),
        "quorlock: cannot execute \"no-such-command\": No such file or directory (os error 2)\n"
    );
    assert_code(&output(&mut run(&servers, &["r", "--", "/etc/passwd"])), 126);
    assert_code(&output(&mut run(&servers, &["r", "--", ""])), 127);
    assert_eq!(keys(&servers), 0);
}

#[test]
fn stdout_belongs_to_the_command() {
    let servers = servers(3);
    let output = output(&mut run(&servers, &["-v", "r", "-c", "echo out; echo err >&2"]));
    assert_code(&output, 0);
    assert_eq!(stdout(&output), "out\n");
    let ours = stderr(&output).lines().filter(|line| *line != "err");
    let ours: Vec<_> = ours.collect();
    assert!(ours[0].starts_with("quorlock: locked in "), "{ours:?}");
    assert!(ours.iter().all(|line| line.starts_with("quorlock: ")), "{ours:?}");
    // Without -v, a run in which all is well says nothing.
    let quiet = crate::output(&mut run(&servers, &["r", "--", "true"]));
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
}

#[test]
fn both_forms_of_a_command_run() {
    let servers = servers(1);
    let plain = output(&mut run(&servers, &["r", "--", "echo", "a  b", "-n", "--", "$HOME"]));
    assert_eq!(stdout(&plain), "a  b -n -- $HOME\n");
    let shell = output(&mut run(&servers, &["r", "-c", "echo a  b | tr a c"]));
    assert_eq!(stdout(&shell), "c b\n");
}

#[test]
fn a_lock_that_is_taken_is_a_conflict() {
    let servers = servers(3);
    let holder = start(&mut run(&servers, &["r", "--", "sleep", "30"]));
    wait_until_held(&servers);
    for (args, expected) in [
        (&["-n", "r", "--", "true"][..], 1),
        (&["-w", "0", "r", "--", "true"], 1),
        (&["-E", "0", "-n", "r", "--", "true"], 0),
        (&["-E", "200", "-w", "0.1", "r", "--", "true"], 200),
    ] {
        let refused = output(&mut run(&servers, args));
        assert_code(&refused, expected);
        let message = stderr(&refused);
        assert!(message.starts_with("quorlock: cannot lock \"r\": "), "{message}");
        assert!(message.contains("0 of 3 nodes granted, 2 refused (need 2)"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    // Another resource is another lock, and so is another prefix.
    assert_code(&output(&mut run(&servers, &["-n", "other", "--", "true"])), 0);
    assert_code(&output(&mut run(&servers, &["-n", "--key-prefix", "p/", "r", "--", "true"])), 0);
    holder.signal(Signal::TERM);
    assert_code(&holder.output(), 143);
    assert_eq!(keys(&servers), 0);
}

#[test]
fn a_wait_lasts_as_long_as_it_is_told() {
    let servers = servers(3);
    let holder = start(&mut run(&servers, &["r", "--", "sleep", "30"]));
    wait_until_held(&servers);
    let started = Instant::now();
    assert_code(&output(&mut run(&servers, &["-w", "0.6", "r", "--", "true"])), 1);
    let waited = started.elapsed();
    // The last attempt ends with the wait, or a little earlier.
    assert!((580..1500).contains(&waited.as_millis()), "{waited:?}");
    drop(holder);
}

#[test]
fn a_wait_ends_when_the_lock_is_free() {
    let servers = servers(3);
    let holder = start(&mut run(&servers, &["r", "--", "sleep", "0.5"]));
    wait_until_held(&servers);
    let started = Instant::now();
    assert_code(&output(&mut run(&servers, &["r", "--", "true"])), 0);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_code(&holder.output(), 0);
    assert_eq!(keys(&servers), 0);
}

#[test]
fn too_few_nodes_are_no_quorum() {
    let mut servers = servers(3);
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    for args in [&["-n", "r", "--", "true"][..], &["-w", "0.3", "r", "--", "true"]] {
        let output = output(&mut run(&servers, args));
        assert_code(&output, 69);
        // Each node that failed is named, with a reason.
        for server in &servers[..2] {
            let reason = format!("127.0.0.1:{}: ", server.port());
            assert!(stderr(&output).lines().all(|line| line.contains(&reason)), "{output:?}");
        }
    }
}

/// Silence takes longer to notice than a refusal, and must not take longer than the wait.
#[test]
fn a_wait_for_silent_nodes_is_bounded() {
    let servers = servers(3);
    servers[0].pause().unwrap();
    servers[1].pause().unwrap();
    let started = Instant::now();
    let output = output(&mut run(&servers, &["-w", "0.4", "r", "--", "true"]));
    assert_code(&output, 69);
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    assert!(stderr(&output).contains("timed out"), "{output:?}");
}

#[test]
fn an_outage_is_waited_out() {
    let mut servers = servers(3);
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    let waiter = start(&mut run(&servers, &["-w", "20", "r", "--", "echo", "done"]));
    std::thread::sleep(Duration::from_millis(2500));
    servers[0].restart(Data::Wipe).unwrap();
    let output = waiter.output();
    assert_code(&output, 0);
    assert_eq!(stdout(&output), "done\n");
    // Said once, however often it was tried.
    assert_eq!(stderr(&output).matches("trying again").count(), 1, "{output:?}");
}

/// No time heals a wrong password, so nobody waits for it.
#[test]
fn refused_credentials_end_the_wait() {
    let servers = servers(3);
    for server in &servers[..2] {
        server.command(&["CONFIG", "SET", "requirepass", "correct-horse"]).unwrap();
    }
    let output = output(&mut run(&servers, &["r", "--", "true"]));
    assert_code(&output, 69);
    assert_eq!(stderr(&output).matches("NOAUTH").count(), 2, "{output:?}");
}

#[test]
fn young_nodes_have_no_vote_where_restarts_are_guarded_against() {
    let servers = servers(3);
    let args = ["--restart-guard", "always", "-t", "3s", "--no-wait", "r", "--", "true"];
    let first = output(&mut run(&servers, &args));
    assert_code(&first, 69);
    assert!(stderr(&first).contains("restarted, asked for no new lock"), "{first:?}");
    // Old enough once the longest ttl is over.
    let args = ["--restart-guard", "always", "-t", "3s", "--wait", "10", "r", "--", "true"];
    assert_code(&output(&mut run(&servers, &args)), 0);
    let args = ["--ttl-max", "1s", "-t", "3s", "r", "--", "true"];
    let refused = output(&mut run(&servers, &args));
    assert_code(&refused, 64);
    assert!(stderr(&refused).contains("ttl_max: 1s is less than the ttl, 3s"), "{refused:?}");
}

#[test]
fn nodes_that_may_not_be_asked_who_they_are_are_named_once() {
    let servers = servers(3);
    if features::lacks(&servers[1], features::ACL) {
        return;
    }
    servers[1].command(&["ACL", "SETUSER", "default", "-info"]).unwrap();
    let said = output(&mut run(&servers, &["r", "--", "true"]));
    assert_code(&said, 0);
    let name = servers[1].tcp_url().replace("redis://", "");
    assert_eq!(
        stderr(&said),
        format!(
            "quorlock: {name} does not say when it was started (INFO is refused): a restart of it goes unnoticed\n"
        )
    );
}

#[test]
fn nodes_that_throw_keys_away_are_named_once() {
    let servers = servers(3);
    for (name, value) in [("maxmemory-policy", "allkeys-lru"), ("maxmemory", "100mb")] {
        servers[2].command(&["CONFIG", "SET", name, value]).unwrap();
    }
    let said = output(&mut run(&servers, &["--restart-guard", "off", "r", "--", "true"]));
    assert_code(&said, 0);
    let name = servers[2].tcp_url().replace("redis://", "");
    assert_eq!(
        stderr(&said),
        format!(
            "quorlock: {name} throws keys away when its memory is full (maxmemory-policy): \
             a lock that is held may be among them\n"
        )
    );
}

#[test]
fn a_minority_that_fails_changes_nothing() {
    let mut servers = servers(3);
    servers[0].kill().unwrap();
    assert_code(&output(&mut run(&servers, &["-n", "r", "--", "true"])), 0);
    servers[0].restart(Data::Wipe).unwrap();
    servers[1].pause().unwrap();
    let output = output(&mut run(&servers, &["-n", "-v", "r", "--", "true"]));
    assert_code(&output, 0);
    servers[1].resume().unwrap();
}
