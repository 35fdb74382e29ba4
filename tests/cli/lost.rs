//! The lock is lost under a command that runs: what becomes of it, and of us.

use crate::*;

/// Says when it is ready, and when it is told to end.
fn obedient(scratch: &Scratch) -> String {
    format!(
        "trap 'echo term > {}; exit 0' TERM; echo ready > {}; while :; do sleep 0.05; done",
        scratch.text("term"),
        scratch.text("ready")
    )
}

#[test]
fn a_lost_lock_ends_the_command() {
    let mut servers = servers(3);
    let scratch = Scratch::new("obedient");
    let running = start(&mut run(&servers, &["-t", "1", "r", "-c", &obedient(&scratch)]));
    scratch.line("ready");
    servers[0].pause().unwrap();
    servers[1].kill().unwrap();
    let lost = Instant::now();
    let output = running.output();
    assert_code(&output, 75);
    assert_eq!(scratch.line("term"), "term");
    // Not before the validity is over, and not long after.
    let took = lost.elapsed();
    assert!((300..2500).contains(&took.as_millis()), "{took:?}");
    assert!(stderr(&output).contains("cannot extend the lock, trying again: it is valid for "));
    assert!(stderr(&output).contains("the lock is lost, ending the command: "), "{output:?}");
    servers[0].resume().unwrap();
}

#[test]
fn with_repair_a_lock_outlives_restarts_of_all_nodes_one_after_another() {
    let mut servers = servers(3);
    let scratch = Scratch::new("repair");
    let line = format!("while ! [ -e {} ]; do sleep 0.05; done", scratch.text("end"));
    let running = start(&mut run(&servers, &["--repair", "-t", "1.5", "r", "-c", &line]));
    wait_until_held(&servers);
    for i in 0..3 {
        // Extended every 500 ms: by now the nodes that came late to it count.
        std::thread::sleep(Duration::from_millis(1600));
        servers[i].restart(Data::Wipe).unwrap();
        wait_until("it is back", || servers[i].get("r").unwrap().is_some());
    }
    fs::write(scratch.path("end"), "").unwrap();
    assert_code(&running.output(), 0);
    assert_eq!(keys(&servers), 0);
}

#[test]
fn a_command_that_will_not_end_is_killed() {
    let mut servers = servers(3);
    let scratch = Scratch::new("stubborn");
    let line =
        format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.05; done", scratch.text("pid"));
    let mut command = run(&servers, &["-t", "0.5", "--kill-after", "0.4", "r", "-c", &line]);
    let running = start(&mut command);
    let command = scratch.pid("pid");
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    assert_code(&running.output(), 75);
    assert!(!is_running(command));
}

/// A shell ends at TERM, and what it has started may not: the lock must not be outlived by either.
#[test]
fn the_commands_own_children_are_ended_too() {
    let mut servers = servers(3);
    let scratch = Scratch::new("children");
    let line = format!(
        "sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 0.05; done'; true",
        scratch.text("inner")
    );
    let mut command = run(&servers, &["-t", "0.5", "--kill-after", "0.4", "r", "-c", &line]);
    let running = start(&mut command);
    let inner = scratch.pid("inner");
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    assert_code(&running.output(), 75);
    assert!(!is_running(inner));
}

/// Its grace is for all of the group: a child that cleans up is not cut short by its parent's end.
#[test]
#[cfg(target_os = "linux")]
fn the_grace_is_for_the_whole_group() {
    let mut servers = servers(3);
    let scratch = Scratch::new("grace");
    let line = format!(
        "sh -c 'trap \"sleep 0.4; echo clean > {}; exit\" TERM; echo ready > {}; \
         while :; do sleep 0.05; done'; true",
        scratch.text("clean"),
        scratch.text("ready")
    );
    let running = start(&mut run(&servers, &["-t", "0.5", "--kill-after", "20", "r", "-c", &line]));
    scratch.line("ready");
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    let lost = Instant::now();
    assert_code(&running.output(), 75);
    assert_eq!(scratch.line("clean"), "clean");
    assert!(lost.elapsed() < Duration::from_secs(10), "the whole grace was waited out");
}

#[test]
fn a_lost_lock_can_be_ignored() {
    let mut servers = servers(3);
    let args = ["-t", "0.5", "--on-lost", "ignore", "r", "-c", "sleep 1.5; echo done; exit 4"];
    let running = start(&mut run(&servers, &args));
    wait_until_held(&servers);
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    let output = running.output();
    assert_code(&output, 4);
    assert_eq!(stdout(&output), "done\n");
    assert_eq!(stderr(&output).matches("the command runs on without it").count(), 1, "{output:?}");
}

/// Somebody deletes the keys: a quorum says so, and no validity that is left makes up for it.
#[test]
fn deleted_keys_are_a_lost_lock() {
    let servers = servers(3);
    let scratch = Scratch::new("deleted");
    let running = start(&mut run(&servers, &["-t", "3", "r", "-c", &obedient(&scratch)]));
    scratch.line("ready");
    for server in servers.iter() {
        server.command(&["DEL", "r"]).unwrap();
    }
    let output = running.output();
    assert_code(&output, 75);
    assert!(stderr(&output).contains("a quorum of nodes does not hold it"), "{output:?}");
}

/// The same, noticed only when the command has ended by itself: what it did may not have been exclusive.
#[test]
fn a_loss_found_at_the_end_is_a_loss() {
    let servers = servers(3);
    for (on_lost, expected) in [("kill", 75), ("ignore", 6)] {
        let args = ["--on-lost", on_lost, "r", "-c", "sleep 1.5; exit 6"];
        let running = start(&mut run(&servers, &args));
        wait_until_held(&servers);
        // Past the first extension, which would find it out.
        std::thread::sleep(Duration::from_millis(600));
        for server in servers.iter() {
            server.command(&["DEL", "r"]).unwrap();
        }
        let output = running.output();
        assert_code(&output, expected);
        assert!(stderr(&output).contains("the lock was lost while the command ran"), "{output:?}");
    }
}

/// An outage that ends within the validity is nothing but a message.
#[test]
fn a_short_outage_is_survived() {
    let servers = servers(3);
    let running = start(&mut run(&servers, &["-t", "3", "r", "-c", "sleep 3.5; exit 8"]));
    wait_until_held(&servers);
    std::thread::sleep(Duration::from_millis(700));
    servers[0].pause().unwrap();
    servers[1].pause().unwrap();
    std::thread::sleep(Duration::from_millis(1600));
    servers[0].resume().unwrap();
    servers[1].resume().unwrap();
    let output = running.output();
    assert_code(&output, 8);
    assert!(stderr(&output).contains("the lock is extended again"), "{output:?}");
}

#[test]
fn a_lock_is_extended_for_as_long_as_the_command_runs() {
    let servers = servers(3);
    let running = start(&mut run(&servers, &["-t", "0.3", "r", "--", "sleep", "2"]));
    wait_until_held(&servers);
    while running.child.as_ref().is_some_and(|child| is_running(Pid::from_child(child))) {
        let state =
            output(quorlock(&["status", "r"]).env("QUORLOCK_NODES", servers.tcp_urls().join(",")));
        if state.status.code() != Some(0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = running.output();
    assert_code(&output, 0);
    assert!(output.stderr.is_empty(), "{output:?}");
}

/// Nobody extends the lock while we are stopped. All that can be done is to notice it first thing afterwards.
#[test]
fn a_lock_that_runs_out_while_we_are_stopped_is_lost() {
    let servers = servers(3);
    let scratch = Scratch::new("stopped");
    let running = start(&mut run(&servers, &["-t", "0.6", "r", "-c", &obedient(&scratch)]));
    scratch.line("ready");
    running.signal(Signal::STOP);
    wait_until("the keys to expire", || keys(&servers) == 0);
    running.signal(Signal::CONT);
    let output = running.output();
    assert_code(&output, 75);
    assert_eq!(scratch.line("term"), "term");
    assert!(stderr(&output).contains("its validity is over"), "{output:?}");
}
