//! The demo is a check of its own: it fails if anything does not go as it says.

use crate::*;

#[test]
fn the_demo_goes_as_it_says() {
    for nodes in ["3", "5"] {
        let output = output(&mut quorlock(&["demo", "--nodes", nodes]));
        assert_code(&output, 0);
        assert!(output.stderr.is_empty(), "{output:?}");
        assert!(stdout(&output).contains("no key is left on any server"), "{output:?}");
    }
}

#[test]
fn an_interrupted_demo_leaves_no_server_behind() {
    let running = start(&mut quorlock(&["demo"]));
    let demo = Pid::from_child(running.child.as_ref().unwrap());
    wait_until("servers to be started", || servers_of(demo) > 0);
    running.signal(Signal::INT);
    assert_code(&running.output(), 130);
    assert_eq!(servers_of(demo), 0);
}

/// How many running processes have this one among their ancestors.
fn servers_of(ancestor: Pid) -> usize {
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| {
        let mut line = std::iter::successors(parent(pid), |&pid| parent(pid));
        line.any(|pid| pid == Pid::as_raw(Some(ancestor)))
    })
    .count()
}
