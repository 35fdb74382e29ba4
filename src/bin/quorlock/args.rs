//! The command line, parsed once. Passwords in node URLs do not get into messages from here: `clap` repeats
//! what it does not understand, so its messages are read through before they are shown.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    time::Duration,
};

use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{OsStringValueParser, TypedValueParser},
    error::ErrorKind,
};
use quorlock::{Builder, RestartGuard};

use crate::{duration, exit, exit::Failure};

/// Distributed locks over N independent Redis or Valkey masters.
#[derive(Debug, Parser)]
#[command(name = "quorlock", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs: flock(1) across machines.
    #[command(override_usage = RUN_USAGE, after_help = exit::run_help())]
    Run(Run),
    /// Show who holds a lock, node by node.
    #[command(after_help = exit::status_help())]
    Status(Status),
    /// Start servers on this machine and show what the lock does when they fail.
    Demo(Demo),
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    /// For how long the lock is taken. It is extended every third of this while the command runs; if this
    /// machine dies, the others wait for so long.
    #[arg(short, long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// Wait no longer than this for the lock, in seconds; 0 is --no-wait. Default: wait for ever.
    #[arg(short, long, value_name = "SECONDS", value_parser = duration::parse)]
    wait: Option<Duration>,

    /// Do not wait: one attempt.
    #[arg(short, long, conflicts_with = "wait")]
    no_wait: bool,

    /// The exit code for a lock that is taken.
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// What becomes of the command when the lock is lost under it.
    #[arg(long, value_enum, default_value_t = OnLost::Kill)]
    pub(crate) on_lost: OnLost,

    /// With --on-lost kill: how long the command has from TERM to KILL, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = duration::parse)]
    pub(crate) kill_after: Duration,

    /// How long a node may take to answer before it counts as failed. Default: a twentieth of the ttl, within
    /// 5 to 50 ms.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) node_timeout: Option<Duration>,

    /// What to do about nodes that were restarted and may have forgotten who holds what. As this command does not live
    /// long enough to see much of them, `always` is what protects: a node that is up for less than --ttl-max has no
    /// vote.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Guard::AfterChange)]
    restart_guard: Guard,

    /// The longest ttl that anybody uses with these nodes: how long a restarted node has no vote. Default: the ttl.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    ttl_max: Option<Duration>,

    /// Give the command a number in QUORLOCK_FENCING_TOKEN that is higher than any earlier holder's, for a store that
    /// refuses what is stale. Costs a second round trip; all who use the lock must ask for it.
    #[arg(long)]
    pub(crate) fencing: bool,

    /// Put the lock back on nodes that were restarted while the command runs, so that it outlives restarts of all nodes,
    /// one after another.
    #[arg(long)]
    repair: bool,

    /// Say how long it took to get the lock and what each node voted.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// A shell line, run by `/bin/sh -c`, in place of a command.
    #[arg(short = 'c', value_name = "STRING")]
    shell: Option<OsString>,

    /// What to lock: any name. All who use it with the same nodes and key prefix exclude one another.
    #[arg(value_name = "RESOURCE", value_parser = OsStringValueParser::new().try_map(resource))]
    pub(crate) resource: OsString,

    /// The command and its arguments, after `--`.
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "shell",
        conflicts_with = "shell"
    )]
    command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    /// Show tokens in full. Whoever has the token can release the lock.
    #[arg(long)]
    pub(crate) full_token: bool,

    /// The lock to look at.
    #[arg(value_name = "RESOURCE", value_parser = OsStringValueParser::new().try_map(resource))]
    pub(crate) resource: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// How many servers to start.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(3..=15))]
    pub(crate) nodes: u8,
}

#[derive(Args, Debug)]
pub(crate) struct Nodes {
    /// A node: redis://[user:password@]host[:port][/db] or unix:/path. Give each of them, an odd number in all.
    /// Default: the environment variable QUORLOCK_NODES, URLs with commas or spaces between them (which keeps
    /// passwords out of the process list; a comma in a password is %2C there).
    #[arg(short = 'N', long = "node", value_name = "URL")]
    urls: Vec<String>,

    /// What the keys on the nodes start with.
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    key_prefix: OsString,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum OnLost {
    /// End it and everything in its process group: TERM, then KILL.
    Kill,
    /// Let it run on.
    Ignore,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Guard {
    /// Let every node vote.
    Off,
    /// Hold a node back once it was seen to be restarted.
    AfterChange,
    /// Hold back every node that is young.
    Always,
    /// As always, but trust nodes with an append-only file.
    TrustPersisted,
}

/// What the arguments come to.
#[derive(Debug)]
pub(crate) enum Parsed {
    Command(Command),
    /// What was asked for is a text: help, or the version.
    Answer(String),
}

impl Cli {
    pub(crate) fn parse_args(args: &[OsString]) -> Result<Parsed, Failure> {
        let error = match Self::try_parse_from(args) {
            Ok(cli) => return Ok(Parsed::Command(cli.command)),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Ok(Parsed::Answer(error.to_string()))
            }
            _ => {
                let message = without_urls(error.to_string(), args);
                Err(Failure::usage(message.trim_start_matches("error: ")))
            }
        }
    }
}

impl Run {
    /// `None` is for ever, and zero is one attempt.
    pub(crate) fn wait(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }

    /// What to execute, and its arguments.
    pub(crate) fn command(&self) -> Vec<OsString> {
        match &self.shell {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }

    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        let builder = self.nodes.builder()?.ttl(self.ttl).restart_guard(self.guard());
        let mut builder = builder.repair(self.repair);
        if let Some(timeout) = self.node_timeout {
            builder = builder.node_timeout(timeout);
        }
        if let Some(ttl) = self.ttl_max {
            builder = builder.ttl_max(ttl);
        }
        Ok(builder)
    }

    pub(crate) fn guard(&self) -> RestartGuard {
        match self.restart_guard {
            Guard::Off => RestartGuard::Off,
            Guard::AfterChange => RestartGuard::AfterChange,
            Guard::Always => RestartGuard::Always,
            Guard::TrustPersisted => RestartGuard::TrustPersisted,
        }
    }
}

impl Nodes {
    /// The nodes as they were given, whichever way.
    pub(crate) fn urls(&self) -> Result<Vec<String>, Failure> {
        if !self.urls.is_empty() {
            return Ok(self.urls.clone());
        }
        let listed = std::env::var(NODES_VARIABLE).unwrap_or_default();
        let listed = listed.split(|c: char| c == ',' || c.is_whitespace());
        let urls: Vec<_> = listed.filter(|url| !url.is_empty()).map(String::from).collect();
        if urls.is_empty() {
            let message = format!("no node is given: use --node URL, or set {NODES_VARIABLE}");
            return Err(Failure::usage(message));
        }
        // Not shown: it may be a part of a password.
        if let Some(place) = urls.iter().position(|url| !is_url(url)) {
            let message = format!(
                "{NODES_VARIABLE}: what stands in place {} is no URL; write a comma in a password as %2C",
                place + 1,
            );
            return Err(Failure::usage(message));
        }
        Ok(urls)
    }

    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        let prefix = self.key_prefix.clone().into_vec();
        Ok(Builder::new().nodes(self.urls()?).key_prefix(prefix))
    }
}

/// The message without what stands in it of any node URL on the command line, but for the scheme.
fn without_urls(message: String, args: &[OsString]) -> String {
    args.iter().fold(message, |message, arg| {
        let arg = String::from_utf8_lossy(arg.as_bytes());
        let marks = ["://", "unix:"].into_iter();
        match marks.filter_map(|mark| Some((arg.find(mark)?, mark))).min() {
            Some((start, mark)) => message.replace(&arg[start..], &format!("{mark}***")),
            None => message,
        }
    })
}

/// The library's own limits, found before we connect: nobody should wait for nodes to be told of a mistake.
fn resource(resource: OsString) -> Result<OsString, String> {
    const LEN_MAX: usize = 4096;
    match resource.len() {
        0 => Err(String::from("a resource cannot be empty")),
        _ if resource.as_bytes().ends_with(b":fencing-counter") => Err(String::from(
            "a resource cannot end in \":fencing-counter\", as the keys of counters do",
        )),
        1..=LEN_MAX => Ok(resource),
        len => Err(format!("a resource of {len} bytes is too long (at most {LEN_MAX})")),
    }
}

const RUN_USAGE: &str = "quorlock run [OPTIONS] <RESOURCE> -- <COMMAND> [ARG]...
       quorlock run [OPTIONS] <RESOURCE> -c <STRING>";

const NODES_VARIABLE: &str = "QUORLOCK_NODES";

fn is_url(text: &str) -> bool {
    text.contains("://") || text.starts_with("unix:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Parsed, Failure> {
        let args: Vec<_> = ["quorlock"].iter().chain(args).map(OsString::from).collect();
        Cli::parse_args(&args)
    }

    fn run(args: &[&str]) -> Run {
        match parse(args) {
            Ok(Parsed::Command(Command::Run(run))) => run,
            other => panic!("{args:?} is {other:?}"),
        }
    }

    #[test]
    fn the_definition_has_no_mistakes() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn both_forms_of_a_command_are_read() {
        let given = run(&["run", "-N", "redis://a", "r", "--", "echo", "-n", "--", "x"]);
        assert_eq!(given.command(), ["echo", "-n", "--", "x"]);
        let given = run(&["run", "r", "-c", "a && b"]);
        assert_eq!(given.command(), ["/bin/sh", "-c", "a && b"]);
    }

    #[test]
    fn waiting_is_for_ever_unless_told() {
        assert_eq!(run(&["run", "r", "--", "x"]).wait(), None);
        assert_eq!(run(&["run", "-n", "r", "--", "x"]).wait(), Some(Duration::ZERO));
        assert_eq!(run(&["run", "-w", "0", "r", "--", "x"]).wait(), Some(Duration::ZERO));
        assert_eq!(
            run(&["run", "-w1.5", "r", "--", "x"]).wait(),
            Some(Duration::from_millis(1500))
        );
    }

    #[test]
    fn mistakes_are_usage_errors() {
        for args in [
            &["run", "r"][..],
            &["run", "--", "x"],
            &["run", "r", "-c", "x", "--", "y"],
            &["run", "-n", "-w", "1", "r", "--", "x"],
            &["run", "-t", "soon", "r", "--", "x"],
            &["run", "-E", "256", "r", "--", "x"],
            &["run", "--on-lost", "panic", "r", "--", "x"],
            &["demo", "--nodes", "1"],
            &["walk"],
            &[],
        ] {
            assert_eq!(parse(args).map(drop).unwrap_err().code, exit::USAGE, "{args:?}");
        }
    }

    #[test]
    fn no_password_gets_into_a_message() {
        for args in [
            &["run", "r", "redis://:hunter2@a"][..],
            &["run", "--nodes=redis://:hunter2@a", "r"],
            &["run", "-n=redis://:hunter2@a", "r"],
            &["redis://:hunter2@a"],
            &["run", "r", "unix:/a?pass=hunter2"],
            &["run", "-t", "redis://:hunter2@a", "r"],
            &["run", "-tredis://:hunter2@a", "r"],
        ] {
            let message = parse(args).map(drop).unwrap_err().message;
            assert!(!message.contains("hunter2"), "{args:?}: {message}");
        }
    }
}
