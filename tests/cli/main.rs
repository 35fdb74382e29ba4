//! The command as its users meet it: the binary, its exit codes and what it prints, against real servers.
//!
//! What the tests have in common is here; each file has one side of the command.

mod child;
mod demo;
mod exclusion;
#[path = "../support/features.rs"]
mod features;
mod lost;
mod outcome;
mod signals;
mod status;
mod terminal;
mod usage;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use quorlock::testing::{Answer, Data, Servers};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// `quorlock` with these arguments, and no node.
fn quorlock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorlock"));
    command.env_remove("QUORLOCK_NODES").args(args).stdin(Stdio::null());
    command
}

/// `quorlock run` with these arguments, on these servers.
fn run(servers: &Servers, args: &[&str]) -> Command {
    let mut command = quorlock(&["run"]);
    command.env("QUORLOCK_NODES", servers.tcp_urls().join(",")).args(args);
    command
}

fn servers(n: usize) -> Servers {
    Servers::start(n).expect("servers start")
}

/// Runs it to its end.
fn output(command: &mut Command) -> Output {
    command.output().expect("quorlock starts")
}

/// Starts it in the background, with both its outputs kept.
fn start(command: &mut Command) -> Running {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Running { child: Some(child.expect("quorlock starts")) }
}

/// Longer than anything here takes.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// A command in the background, which does not outlive its test.
struct Running {
    child: Option<Child>,
}

impl Running {
    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it was not waited for");
        kill_process(Pid::from_child(child), signal).expect("it runs");
    }

    fn is_stopped(&self) -> bool {
        let child = self.child.as_ref().expect("it was not waited for");
        state(Pid::from_child(child)) == Some('T')
    }

    /// Waits for its end, which must come: one that hangs is killed, and fails its test.
    fn output(mut self) -> Output {
        let child = self.child.take().expect("it was not waited for");
        let pid = Pid::from_child(&child);
        let (ended, end) = channel::<()>();
        let watch = std::thread::spawn(move || {
            let hangs = end.recv_timeout(HANGS_AFTER) == Err(RecvTimeoutError::Timeout);
            if hangs {
                // Its outputs may be held open by others of its group, which are not its own.
                let _ = kill_process(pid, Signal::KILL);
            }
            hangs
        });
        let output = child.wait_with_output().expect("it ends");
        drop(ended);
        assert!(!watch.join().expect("no panic"), "it did not end by itself: {output:?}");
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("stdout is text")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("stderr is text")
}

/// Fails with all there is to know if the exit code is another.
#[track_caller]
fn assert_code(output: &Output, expected: i32) {
    assert_eq!(output.status.code(), Some(expected), "{output:?}");
}

/// A directory of a test's own, empty, and removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("quorlock-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a scratch directory");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What a command wrote into the file, once it has written a whole line.
    fn line(&self, name: &str) -> String {
        let path = self.path(name);
        let mut text = String::new();
        wait_until(&format!("a line in {name}"), || {
            text = fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n')
        });
        text.trim_end().into()
    }

    fn pid(&self, name: &str) -> Pid {
        self.line(name).parse().ok().and_then(Pid::from_raw).expect("a process number")
    }

    /// For a shell line.
    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a printable path").into()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs. A zombie does not.
fn is_running(pid: Pid) -> bool {
    if !Path::new("/proc/self").exists() {
        return test_kill_process(pid).is_ok();
    }
    state(pid).is_some_and(|state| state != 'Z')
}

/// A process's state, by the letter that `ps` has for it.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", Pid::as_raw(Some(pid)))).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// How many keys all the servers have together.
fn keys(servers: &Servers) -> usize {
    let count = |answer| match answer {
        Answer::Integer(count) => usize::try_from(count).expect("a count"),
        answer => panic!("DBSIZE: {answer:?}"),
    };
    servers.iter().map(|server| count(server.command(&["DBSIZE"]).expect("an answer"))).sum()
}

/// Until somebody holds something on a quorum of the servers. The others may be connected to later.
#[track_caller]
fn wait_until_held(servers: &Servers) {
    wait_until("the lock to be taken", || keys(servers) > servers.len() / 2);
}

fn ended_by(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}
