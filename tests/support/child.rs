//! Tests that run themselves again in a process of their own: for limits, signals and namespaces that the other
//! tests must not see.
#![allow(clippy::unwrap_used)] // test code, outside of test functions

use std::{
    fs,
    process::{Command, Stdio},
};

const IN_CHILD: &str = "QUORLOCK_TEST_IN_CHILD";

/// Whether this process is the one that a test has started for itself.
pub fn is_child() -> bool {
    std::env::var_os(IN_CHILD).is_some()
}

/// This test binary once more, for one test, by its full path.
pub fn again(test: &str) -> Command {
    prepared(Command::new(std::env::current_exe().unwrap()), test)
}

/// Runs `body` in a child process of the test with this name, and fails with it.
pub fn apart(test: &str, body: impl FnOnce()) {
    if is_child() {
        return body();
    }
    succeeds(&mut again(test));
}

/// The same in a network and a mount namespace, where `body` is root; not at all where the system has none for us.
/// There is a loopback interface, and [`black_hole`] can be called.
pub fn in_namespace(test: &str, body: impl FnOnce()) {
    if is_child() {
        ip("link set lo up");
        ip("address add 10.10.10.10/32 dev lo");
        ip("link add hole type veth peer name nothing");
        ip("link set hole up");
        ip("link set nothing up");
        return body();
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--net", "--mount"]);
    let works = |command: &mut Command| {
        let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
        silent.status().is_ok_and(|status| status.success())
    };
    // In a namespace of its own, so that nothing is left of it.
    let mut probe = Command::new("unshare");
    probe.args(["--map-root-user", "--net", "--mount", "ip", "link"]);
    probe.args(["add", "hole", "type", "veth", "peer", "name", "nothing"]);
    if !works(&mut probe) {
        return println!("skipped: {test} needs unshare, ip, and the right to use them");
    }
    unshare.arg(std::env::current_exe().unwrap());
    succeeds(&mut prepared(unshare, test));
}

/// From now on whatever is sent to this address is gone without a word, also on connections that there are.
pub fn black_hole(address: &str) {
    ip(&format!("route replace {address}/32 dev hole src 10.10.10.10"));
    // Delivered to a neighbour that is not there.
    ip(&format!("neighbour replace {address} lladdr 02:00:00:00:00:01 dev hole nud permanent"));
}

pub fn undo_black_hole(address: &str) {
    ip(&format!("route delete {address}/32 dev hole"));
}

/// Runs `ip` with these arguments, which must succeed.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// In a mount namespace: has this file hold this text, for this process and its children.
pub fn overlay(path: &str, text: &str) {
    let name = path.replace('/', "-");
    let own = std::env::temp_dir().join(format!("quorlock{name}-{}", std::process::id()));
    let is_new = !own.exists();
    fs::write(&own, text).unwrap();
    if is_new {
        let mount = Command::new("mount").arg("--bind").arg(&own).arg(path).status();
        assert!(mount.unwrap().success(), "{path}");
    }
}

fn prepared(mut command: Command, test: &str) -> Command {
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(IN_CHILD, test);
    command
}

fn succeeds(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (shown(&output.stdout), shown(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "no such test: {stdout}");
    for (_, reason) in stdout.lines().filter_map(|line| line.split_once("skipped: ")) {
        println!("skipped: {reason}");
    }
}
