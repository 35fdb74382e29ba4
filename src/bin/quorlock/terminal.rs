//! The terminal, lent to the command: it runs in a process group of its own, and the system stops a group that
//! reads a terminal without being in its foreground.

use std::{
    ffi::OsString,
    io::{self, stdin},
    os::unix::process::CommandExt,
};

use rustix::{
    process::{Pid, Signal, getpgrp, kill_process_group},
    termios::{isatty, tcgetpgrp, tcsetpgrp},
};

use crate::{exec, exit::Failure};

/// As it stands on the command line: `quorlock __foreground GROUP`.
pub(crate) const SUBCOMMAND: &str = "__foreground";

/// A terminal that is the command's until it is given back.
#[derive(Debug)]
pub(crate) struct Lent {
    to: Pid,
}

/// Makes `group` the foreground group of the terminal on stdin, if there is one and it is ours.
pub(crate) fn lend(group: Pid) -> Option<Lent> {
    let stdin = stdin();
    if !isatty(&stdin) || tcgetpgrp(&stdin).ok()? != getpgrp() {
        return None;
    }
    tcsetpgrp(&stdin, group).ok()?;
    // It may have tried to read, and been stopped, before this.
    let _ = kill_process_group(group, Signal::CONT);
    Some(Lent { to: group })
}

impl Lent {
    /// Takes the terminal back. The group must still be there, so call this before its leader is reaped.
    ///
    /// We are in the background now, and a background process that takes a terminal is stopped for it, unless
    /// it ignores a signal that only unsafe code can ignore. So a process in the group that has it hands it
    /// over: ourselves again.
    pub(crate) fn give_back(self) -> io::Result<()> {
        let group = Pid::as_raw(Some(self.to));
        let ours = Pid::as_raw(Some(getpgrp()));
        let mut helper = exec::ourselves();
        helper.arg(SUBCOMMAND).arg(ours.to_string()).process_group(group);
        helper.status().map(drop)
    }
}

/// In the helper.
pub(crate) fn main(args: &[OsString]) -> Result<u8, Failure> {
    let group = args.first().and_then(|group| group.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let Some(group) = group else {
        return Err(Failure::usage(format_args!("{SUBCOMMAND} is not for use by hand")));
    };
    let stdin = stdin();
    // A command that gave the terminal to somebody else meant it.
    if tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp()) {
        tcsetpgrp(&stdin, group).map_err(Failure::system)?;
    }
    Ok(0)
}
