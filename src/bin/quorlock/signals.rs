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

/// Sends every signal that somebody may send us to end or suspend us, and `CONT`, as an event from now on.
///
/// Not those that no process can take (`KILL`, `STOP`), those that the system sends for a fault of our own (`SEGV`,
/// `BUS`, `SYS` …), those that a terminal sends to who uses it in the background, and the real-time signals.
///
/// A signal that was ignored when we were started (`nohup`) stays ignored, also for the command: a handler
/// would end that.
pub(crate) fn listen(events: Sender<Event>) -> io::Result<()> {
    let ignored = ignored_mask();
    let signals = HANDLED.iter().copied().map(Signal::as_raw);
    let handled = signals.filter(|signal| ignored >> (signal - 1) & 1 == 0);
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

const HANDLED: &[Signal] = &[
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::ABORT, // A watchdog's: systemd sends it.
    Signal::ALARM,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    Signal::STKFLT,
    Signal::CONT,
    Signal::TSTP,
];
