//! The last step before the command: ourselves again, in the child's process, for what may not be done between
//! `fork` and `exec` without unsafe code.
//!
//! Binds the command's life to ours, then becomes the command. How a command that cannot be executed ends is
//! decided here too.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
};

use crate::exit::{self, Failure};

/// As it stands on the command line: `quorlock __exec PARENT COMMAND [ARG]…`.
pub(crate) const SUBCOMMAND: &str = "__exec";

/// What starts `command` bound to this process, or directly where the system has nothing to bind it by.
pub(crate) fn bound_to_us(command: &[OsString]) -> Command {
    if !cfg!(target_os = "linux") {
        return plain(command);
    }
    let mut bound = ourselves();
    bound.arg(SUBCOMMAND).arg(std::process::id().to_string()).args(command);
    bound
}

/// This very program, on Linux also when its file was replaced by an update meanwhile.
pub(crate) fn ourselves() -> Command {
    let path = match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe().unwrap_or_else(|_| PathBuf::from("quorlock")),
    };
    let mut ourselves = Command::new(path);
    ourselves.arg0("quorlock");
    ourselves
}

/// In the child. Returns only if the command could not be executed.
pub(crate) fn main(args: &[OsString]) -> Result<u8, Failure> {
    let [parent, command @ ..] = args else {
        return Err(Failure::usage(format_args!("{SUBCOMMAND} is not for use by hand")));
    };
    if !die_with(parent).map_err(Failure::system)? {
        return Ok(exit::signalled(rustix::process::Signal::KILL.as_raw()));
    }
    let error = plain(command).exec();
    Err(cannot_execute(command, &error))
}

pub(crate) fn cannot_execute(command: &[OsString], error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    };
    let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    Failure::new(code, format_args!("cannot execute {name:?}: {error}"))
}

fn plain(command: &[OsString]) -> Command {
    let (name, args) = command.split_first().unzip();
    let mut plain = Command::new(name.map_or_else(|| OsStr::new(""), OsString::as_os_str));
    plain.args(args.unwrap_or_default());
    plain
}

/// Has the system kill this process when its parent ends. False if the parent has ended already: then nobody
/// would.
#[cfg(target_os = "linux")]
fn die_with(parent: &OsStr) -> io::Result<bool> {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = getppid().map(|pid| Pid::as_raw(Some(pid)).to_string());
    Ok(now.is_some_and(|now| parent == OsStr::new(&now)))
}

#[cfg(not(target_os = "linux"))]
fn die_with(_parent: &OsStr) -> io::Result<bool> {
    Ok(true)
}
