//! Signals, as events among the others: a thread of its own waits for them, and handlers do nothing else.

use std::{io, sync::mpsc::Sender, thread};

use quorlock::LostReason;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::iterator::Signals;

/// What can happen while we wait or hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// Somebody sent us this.
    Signal(Signal),
    /// The command has ended and is not reaped yet.
    ChildEnded,
    /// The lock is lost, or was released.
    Lost(LostReason),
    /// Something that was waited for may have come.
    Woken,
    /// The command was suspended from the terminal (Ctrl-Z).
    ChildSuspended,
}

/// Sends every signal that would end or suspend us, and `CONT`, as an event from now on.
///
/// A signal that was ignored when we were started (`nohup`) stays ignored, also for the command: a handler
/// would end that.
pub(crate) fn listen(events: Sender<Event>) -> io::Result<()> {
    let ignored = ignored_mask();
    let signals = HANDLED.map(Signal::as_raw);
    let handled = signals.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(handled)?;
    let forward = move || {
        for signal in signals.forever().filter_map(Signal::from_named_raw) {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("quorlock-signals".into()).spawn(forward)?;
    Ok(())
}

/// What `TSTP` (Ctrl-Z) would have done, had we not asked for it.
pub(crate) fn suspend_ourselves() {
    // We may always signal ourselves.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Which signals this process ignores, the lowest bit for signal 1. Where the system does not say: none.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

const HANDLED: [Signal; 8] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
    Signal::TSTP,
];
