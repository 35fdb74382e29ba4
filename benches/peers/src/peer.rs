//! The side of the process that asks: every library as a child process that can be ended.

use std::{
    fmt,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use crate::Result;

/// A library, and how to start a process that speaks for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// This very program, told which client to be.
    Rust(&'static str),
    /// A script under `target/peers`, told which client to be.
    Node,
    Python(&'static str),
}

/// Every library, ours first: the others are compared with it.
pub const ALL: [(&str, Kind); 8] = [
    ("quorlock LocalLocker", Kind::Rust("quorlock-local")),
    ("quorlock Locker", Kind::Rust("quorlock")),
    ("rslock 0.10 (tokio)", Kind::Rust("rslock")),
    ("redis crate by hand (tokio)", Kind::Rust("hand")),
    ("redlock 2.0 (Rust)", Kind::Rust("redlock-rs")),
    ("redlock 5 beta, ioredis (Node)", Kind::Node),
    ("pottery 3.0 (Python)", Kind::Python("pottery")),
    ("redlock-py 1.0 (Python)", Kind::Python("redlock-py")),
];

pub struct Peer {
    pub name: &'static str,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// It said so.
    Failed(String),
    /// It said nothing for too long, or died.
    Gone(String),
}

impl Kind {
    fn command(self) -> Result<Command> {
        let mut command = match self {
            Self::Rust(client) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["child", client]);
                command
            }
            Self::Node => {
                let mut command = Command::new("node");
                command.arg("target/peers/node/peer.mjs");
                command
            }
            Self::Python(client) => {
                let mut command = Command::new("target/peers/python/bin/python");
                command.args(["benches/peers/python/peer.py", client]);
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(command)
    }

    /// Why it cannot be measured here, if it cannot.
    pub fn missing(self) -> Option<&'static str> {
        let needed = match self {
            Self::Rust(_) => return None,
            Self::Node => "target/peers/node/node_modules/redlock",
            Self::Python(_) => "target/peers/python/bin/python",
        };
        (!Path::new(needed).exists()).then_some("not installed by scripts/peers.sh")
    }
}

impl Peer {
    /// Started, connected and warm.
    pub fn start(name: &'static str, kind: Kind, urls: &[String]) -> Result<Self> {
        let mut child = kind.command()?.arg(urls.join(",")).spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut peer = Self { name, child, stdin, lines };
        let said =
            peer.line(Duration::from_secs(20)).map_err(|failure| format!("{name}: {failure}"))?;
        if said != "ready" {
            return Err(format!("{name} is not ready: {said}").into());
        }
        for _ in 0..20 {
            peer.pair("warm-up", Duration::from_secs(5))
                .map_err(|failure| format!("{name}: {failure}"))?;
        }
        Ok(peer)
    }

    /// How long acquiring and releasing took.
    pub fn pair(
        &mut self,
        resource: &str,
        patience: Duration,
    ) -> std::result::Result<(Duration, Duration), Failure> {
        self.ask(&format!("pair {resource}"));
        let numbers = numbers(&self.line(patience)?)?;
        match numbers[..] {
            [acquire, release] => {
                Ok((Duration::from_nanos(acquire), Duration::from_nanos(release)))
            }
            _ => Err(Failure::Gone(format!("answers {numbers:?}"))),
        }
    }

    /// Pairs, and the wall time and CPU time that they took.
    pub fn many(
        &mut self,
        callers: usize,
        time: Duration,
    ) -> std::result::Result<(u64, Duration, Duration), Failure> {
        self.ask(&format!("many {callers} {}", time.as_millis()));
        let numbers = numbers(&self.line(time + Duration::from_secs(20))?)?;
        match numbers[..] {
            [pairs, wall, cpu] => {
                Ok((pairs, Duration::from_nanos(wall), Duration::from_nanos(cpu)))
            }
            _ => Err(Failure::Gone(format!("answers {numbers:?}"))),
        }
    }

    /// Starts taking turns on a contended lock. [`Self::holds`] has the outcome.
    pub fn take_turns(&mut self, resource: &str, time: Duration) {
        self.ask(&format!("turns {resource} {}", time.as_millis()));
    }

    /// When it had the lock.
    pub fn holds(&mut self, patience: Duration) -> std::result::Result<Vec<(u64, u64)>, Failure> {
        let mut holds = Vec::new();
        loop {
            let line = self.line(patience)?;
            if line == "ok" {
                return Ok(holds);
            }
            match numbers(&format!("ok {line}")).as_deref() {
                Ok([from, to]) => holds.push((*from, *to)),
                _ => return Err(Failure::Failed(line)),
            }
        }
    }

    fn ask(&mut self, line: &str) {
        // Whoever is gone does not answer, which is noticed.
        let _ = writeln!(self.stdin, "{line}");
    }

    fn line(&self, patience: Duration) -> std::result::Result<String, Failure> {
        self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => Failure::Gone(format!("no answer in {patience:?}")),
            RecvTimeoutError::Disconnected => Failure::Gone("it has ended".into()),
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbers(line: &str) -> std::result::Result<Vec<u64>, Failure> {
    match line.split_once(' ') {
        Some(("ok", numbers)) => {
            let numbers: std::result::Result<_, _> = numbers.split(' ').map(str::parse).collect();
            numbers.map_err(|_| Failure::Gone(format!("answers {line:?}")))
        }
        Some(("failed", reason)) => Err(Failure::Failed(reason.into())),
        _ => Err(Failure::Gone(format!("answers {line:?}"))),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(reason) | Self::Gone(reason) => f.write_str(reason),
        }
    }
}
