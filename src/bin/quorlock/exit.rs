//! The exit codes, documented in one place: `--help` shows this table, and the README repeats it.

use std::fmt;

/// Somebody else holds the resource, or did until the wait was over. `-E` sets another.
pub(crate) const CONFLICT: u8 = 1;
/// The arguments, or the environment variable that stands for some.
pub(crate) const USAGE: u8 = 64;
/// Too few nodes answered.
pub(crate) const NO_QUORUM: u8 = 69;
/// The system could not do something that has nothing to do with the lock, such as start a process.
pub(crate) const SYSTEM: u8 = 71;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 75;
/// The command is there and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// What a process that a signal ended is said to have returned.
pub(crate) fn signalled(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

/// Why there is nothing more to do: what to say, and what to return.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn system(message: impl fmt::Display) -> Self {
        Self::new(SYSTEM, message)
    }
}

/// The codes of `quorlock run`.
pub(crate) fn run_help() -> String {
    format!(
        "\
Exit codes:
  N    the command's own; 128 + N if signal N ended it
  {CONFLICT:<3}  the lock is taken: at once, or when the wait was over (see -E)
  {USAGE:<3}  usage: a mistake in the arguments or in QUORLOCK_NODES
  {NO_QUORUM:<3}  no quorum: too few nodes answered
  {SYSTEM:<3}  the system could not start a process
  {LOST:<3}  the lock was lost while the command ran (see --on-lost)
  {NOT_EXECUTABLE:<3}  the command cannot be executed
  {NOT_FOUND:<3}  the command is not found
  128 + N if signal N ended the wait for the lock

Environment of the command:
  QUORLOCK_RESOURCE       the resource
  QUORLOCK_TOKEN          the random value that stands in the lock's keys
  QUORLOCK_FENCING_TOKEN  with --fencing: the number that is higher than any earlier holder's

The lock is held until the command has ended. What the command leaves behind
in the background runs on without it. If quorlock is killed (kill -9), the
system kills the command too (Linux), but not the command's own children.
While quorlock is stopped (kill -STOP), nothing extends the lock."
    )
}

/// The codes of `quorlock status`.
pub(crate) fn status_help() -> String {
    format!(
        "\
Exit codes:
  0    one holder has a quorum of the nodes
  {CONFLICT:<3}  nobody has: the lock is free, or the nodes are split
  {USAGE:<3}  usage: a mistake in the arguments or in QUORLOCK_NODES
  {NO_QUORUM:<3}  too few nodes answered to say"
    )
}
