//! Processes of a workload: this very program, started again with a part to play.
//!
//! A process is told what to do next by single bytes on its standard input, whose end ends it; what it has to say it
//! appends to a file, a line a write, so that one that is killed leaves whole lines. It does not outlive its parent.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use quorlock::internal::clock;
use rustix::process::{Pid, Signal, kill_process};

/// A process as its parent sees it. Dropping it kills it.
pub struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    log: File,
    /// Where the process itself finds its log. It removes the name.
    path: PathBuf,
}

/// What a process is to do, one after the other.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    Work,
    /// Hold nothing any more, and have that confirmed.
    Settle,
    /// Show that all is well again.
    Prove,
    End,
}

/// The phase that a process is in, as it is told from outside.
#[derive(Clone)]
pub struct Orders(Arc<AtomicU8>);

/// Where a process writes what happened. Several threads may.
pub struct Log(File);

impl Process {
    /// `settings` are for [`setting`].
    pub fn start(part: &str, number: usize, settings: &[(&str, &str)]) -> Self {
        let name = format!("quorlock-log-{}-{:016x}", std::process::id(), clock::now().as_nanos());
        let path = std::env::temp_dir().join(name);
        let log = OpenOptions::new().read(true).append(true).create_new(true).open(&path).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process", "--nocapture"]).env(PART, part);
        command.env(of_setting("LOG"), &path).env(of_setting("NUMBER"), number.to_string());
        command.envs(settings.iter().map(|(name, value)| (of_setting(name), value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let orders = child.stdin.take();
        Self { child, orders, log, path }
    }

    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// It does nothing any more, not even release what it holds.
    pub fn kill(&mut self) {
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends it to its next phase.
    pub fn next_phase(&mut self) {
        self.orders.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Sends it to its end, and waits for that.
    pub fn end(&mut self) -> ExitStatus {
        self.orders = None;
        self.child.wait().unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        let (mut file, mut text) = (&self.log, String::new());
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    /// Nobody else has its pid before it was waited for.
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_file(&self.path);
    }
}

/// Which part this process has to play, if any.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// What this process was started with.
pub fn setting(name: &str) -> String {
    std::env::var(of_setting(name)).expect(name)
}

fn of_setting(name: &str) -> String {
    format!("{PART}_{name}")
}

impl Orders {
    /// In the process itself, once.
    pub fn follow() -> Self {
        die_with_parent();
        let phase = Arc::new(AtomicU8::new(0));
        let told = phase.clone();
        std::thread::spawn(move || {
            while std::io::stdin().read_exact(&mut [0]).is_ok() {
                told.fetch_add(1, Ordering::SeqCst);
            }
            told.store(u8::MAX, Ordering::SeqCst);
        });
        Self(phase)
    }

    pub fn phase(&self) -> Phase {
        match self.0.load(Ordering::SeqCst) {
            0 => Phase::Work,
            1 => Phase::Settle,
            2 => Phase::Prove,
            _ => Phase::End,
        }
    }

    pub fn wait_for(&self, phase: Phase) {
        while self.phase() < phase {
            std::thread::sleep(super::ms(2));
        }
    }
}

/// A process that is stopped when its parent is killed would stay so for ever.
fn die_with_parent() {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
}

impl Log {
    /// In the process itself.
    pub fn open() -> Self {
        let path = setting("LOG");
        let log = OpenOptions::new().append(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
        Self(log)
    }

    pub fn line(&self, line: &str) {
        (&self.0).write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

const PART: &str = "QUORLOCK_WORKLOAD";
