//! The command's process, and the process group that it leads.
//!
//! Its process number is ours to signal until we have reaped it, and may be anybody's afterwards. So the thread
//! that waits for its end does not reap it, and the one thing that does, [`Child::reap`], takes the `Child`.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt, process::ExitStatusExt},
    process::ExitStatus,
    sync::mpsc::Sender,
    thread,
};

use quorlock::LockGuard;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};

use crate::{
    exec,
    exit::{self, Failure},
    signals::Event,
    terminal::{self, Lent},
};

#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    /// Its process number, and that of the group it leads.
    pid: Pid,
    terminal: Option<Lent>,
}

impl Child {
    /// Starts `command` in a process group of its own. Its end comes as an event.
    ///
    /// To be called from the main thread: on Linux the command dies with the thread that started it.
    pub(crate) fn start(
        command: &[OsString],
        resource: &[u8],
        guard: &LockGuard,
        events: Sender<Event>,
    ) -> Result<Self, Failure> {
        let mut starter = exec::bound_to_us(command);
        starter.env("QUORLOCK_RESOURCE", OsStr::from_bytes(resource));
        starter.env("QUORLOCK_TOKEN", guard.token().as_str());
        match guard.fencing_token() {
            Some(token) => starter.env("QUORLOCK_FENCING_TOKEN", token.to_string()),
            // Not one of a lock around us.
            None => starter.env_remove("QUORLOCK_FENCING_TOKEN"),
        };
        let process = starter.process_group(0).spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                if !cfg!(target_os = "linux") =>
            {
                exec::cannot_execute(command, &error)
            }
            _ => Failure::system(format_args!("cannot start a process: {error}")),
        })?;
        let pid = Pid::from_child(&process);
        let mut child = Self { process, pid, terminal: None };
        if let Err(error) = child.watch(events) {
            child.signal(Signal::KILL);
            child.reap();
            return Err(Failure::system(format_args!("cannot start a thread: {error}")));
        }
        child.borrow_terminal();
        Ok(child)
    }

    /// Gives the terminal to the command, if it is ours to give.
    pub(crate) fn borrow_terminal(&mut self) {
        if self.terminal.is_none() {
            self.terminal = terminal::lend(self.pid);
        }
    }

    /// To the whole group. Its leader is not reaped, so the group is its own.
    pub(crate) fn signal(&self, signal: Signal) {
        // The only way to fail that is left is a group of other users' processes, which we cannot help.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Whether the command has the terminal, and so can be suspended from it.
    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Whether nothing of the group runs any more. Where the system does not tell, it is taken to.
    pub(crate) fn is_group_gone(&self) -> bool {
        // Our own zombie must be among them, or this is not the /proc of our processes.
        let states = self.group_states();
        !states.is_empty() && states.iter().all(|state| matches!(state, b'Z' | b'X'))
    }

    /// Whether the command was suspended in the moment between `vfork` and `exec`: its child has stopped, and it
    /// waits for that child without being stoppable, so that no stop of its own is ever to be seen.
    pub(crate) fn is_stuck(&self) -> bool {
        let leader = std::fs::read(format!("/proc/{}/stat", Pid::as_raw(Some(self.pid))));
        let waits = leader.is_ok_and(|stat| matches!(state_and_group(&stat), Some((b'D', _))));
        waits && self.group_states().contains(&b'T')
    }

    /// How each process of the group is. Nothing where the system does not tell.
    fn group_states(&self) -> Vec<u8> {
        let Ok(processes) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let group = Pid::as_raw(Some(self.pid));
        let stats = processes.flatten().filter_map(|process| {
            let stat = std::fs::read(process.path().join("stat")).ok()?;
            state_and_group(&stat)
        });
        stats.filter(|(_, of)| *of == group).map(|(state, _)| state).collect()
    }

    /// Waits for the command, takes back the terminal, and returns what the command returned.
    pub(crate) fn reap(mut self) -> u8 {
        let pid = self.pid;
        // Whoever is in its group has the terminal, and the group is there only until it is reaped.
        if let Some(terminal) = self.terminal.take() {
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let _ = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), ended));
            let _ = terminal.give_back();
        }
        self.process.wait().map_or(exit::SYSTEM, code)
    }

    fn watch(&self, events: Sender<Event>) -> io::Result<()> {
        let pid = self.pid;
        let watch = move || {
            while let Some(event) = wait(pid) {
                // Fails only where the main thread is about to end.
                let _ = events.send(event);
                if event == Event::ChildEnded {
                    return;
                }
            }
        };
        thread::Builder::new().name("quorlock-child".into()).spawn(watch)?;
        Ok(())
    }
}

/// Waits until the child ends, leaving it to be reaped, or is suspended from the terminal. `None` if it was
/// reaped.
fn wait(pid: Pid) -> Option<Event> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
    loop {
        let status = retry(pid, options | WaitIdOptions::NOWAIT)?;
        if !status.stopped() {
            return Some(Event::ChildEnded);
        }
        // Takes note of the stop, or we would be told of it again at once.
        retry(pid, WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        if status.stopping_signal() == Some(Signal::TSTP.as_raw()) {
            return Some(Event::ChildSuspended);
        }
    }
}

fn retry(pid: Pid, options: WaitIdOptions) -> Option<WaitIdStatus> {
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).ok().flatten()
}

fn code(status: ExitStatus) -> u8 {
    let exited = status.code().map(|code| u8::try_from(code).unwrap_or(u8::MAX));
    let signalled = status.signal().map(exit::signalled);
    exited.or(signalled).unwrap_or(exit::SYSTEM)
}

/// From a line of `/proc/PID/stat`: `PID (NAME) STATE PARENT GROUP …`. A name may have anything in it.
fn state_and_group(stat: &[u8]) -> Option<(u8, i32)> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_it_is_called() {
        assert_eq!(state_and_group(b"12 (sh) S 1 42 42 0 -1"), Some((b'S', 42)));
        assert_eq!(state_and_group(b"12 (a) Z 9 (b) R 1 43 42 0"), Some((b'R', 43)));
        assert_eq!(state_and_group(b"12 (\xff\xfe) Z 1 44 4"), Some((b'Z', 44)));
        assert_eq!(state_and_group(b"12 (sh"), None);
        assert_eq!(state_and_group(b""), None);
    }
}
