//! The time between the command's start and its end: keeps the lock alive, passes signals on, and ends the
//! command when the lock is lost.
//!
//! One loop over one channel, in the main thread. It leaves the ended command to be reaped by others.

use std::{
    fmt,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use quorlock::{ExtendError, LocalGuard};
use rustix::process::Signal;

use crate::{args::OnLost, child::Child, say::say, signals::Event};

/// What is asked of us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) kill_after: Duration,
}

/// What became of the lock while the command ran.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    Kept,
    Lost,
}

pub(crate) struct Supervisor<'a> {
    guard: &'a LocalGuard,
    child: &'a mut Child,
    terms: Terms,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The lock is held, as far as we know.
    Holding { extend_at: Instant, failing: bool },
    /// It is lost, and the command was told to end.
    Ending { kill_at: Instant },
    /// It is lost, and there is nothing to do about it, or nothing more.
    Lost,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(guard: &'a LocalGuard, child: &'a mut Child, terms: Terms) -> Self {
        let extend_at = after((terms.ttl / EXTENSIONS_PER_TTL).min(FIRST_EXTENSION));
        Self { guard, child, terms, phase: Phase::Holding { extend_at, failing: false } }
    }

    /// Until the command has ended, and, if that is because the lock was lost, everything in its group with it.
    pub(crate) fn supervise(mut self, events: &Receiver<Event>) -> Fate {
        loop {
            match events.recv_timeout(self.idle_for()) {
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Ok(Event::ChildSuspended) => self.resume(),
                Ok(Event::ChildEnded) => break,
                // Something may be due. (It is never that all senders are gone: the thread that listens for
                // signals does not end.)
                Err(_) => {}
            }
            self.phase = self.advance();
        }
        match self.phase {
            Phase::Holding { .. } if self.guard.is_valid() => return Fate::Kept,
            Phase::Holding { .. } => say("the lock was lost before the command ended"),
            Phase::Ending { kill_at } => self.end_the_rest(kill_at),
            Phase::Lost => {}
        }
        Fate::Lost
    }

    /// How long nothing is due.
    fn idle_for(&self) -> Duration {
        let due = match self.phase {
            Phase::Holding { extend_at, .. } => left(extend_at).min(self.guard.validity()),
            Phase::Ending { kill_at } => left(kill_at),
            Phase::Lost => Duration::MAX,
        };
        due.min(GLANCE)
    }

    /// Does what is due.
    fn advance(&self) -> Phase {
        match self.phase {
            Phase::Holding { .. } if !self.guard.is_valid() => self.lost(&ExtendError::Expired),
            Phase::Holding { extend_at, failing } if left(extend_at).is_zero() => {
                self.extend(failing)
            }
            Phase::Ending { kill_at } if left(kill_at).is_zero() => {
                say("the command is still running: killing it");
                self.child.signal(Signal::KILL);
                Phase::Lost
            }
            phase => phase,
        }
    }

    fn extend(&self, failing: bool) -> Phase {
        let ttl = self.terms.ttl;
        match self.guard.extend(ttl) {
            Ok(_) => {
                if failing {
                    say("the lock is extended again");
                }
                Phase::Holding { extend_at: after(ttl / EXTENSIONS_PER_TTL), failing: false }
            }
            Err(error @ ExtendError::NoQuorum { .. }) => {
                // Once per outage.
                if !failing {
                    say(format_args!("cannot extend the lock, trying again: {error}"));
                }
                let pause = (ttl / RETRIES_PER_TTL).max(RETRY_PAUSE_MIN);
                Phase::Holding { extend_at: after(pause), failing: true }
            }
            Err(error) => self.lost(&error),
        }
    }

    fn lost(&self, why: &dyn fmt::Display) -> Phase {
        match self.terms.on_lost {
            OnLost::Ignore => {
                say(format_args!("the lock is lost, and the command runs on without it: {why}"));
                Phase::Lost
            }
            OnLost::Kill => {
                say(format_args!("the lock is lost, ending the command: {why}"));
                self.child.signal(Signal::TERM);
                // A stopped process acts on no signal but this one and KILL.
                self.child.signal(Signal::CONT);
                Phase::Ending { kill_at: after(self.terms.kill_after) }
            }
        }
    }

    /// The command was ended, but it is the lock that must not be outlived, by its helpers neither.
    fn end_the_rest(&self, kill_at: Instant) {
        while !self.child.is_group_gone() && !left(kill_at).is_zero() {
            std::thread::sleep(GROUP_PAUSE.min(left(kill_at)));
        }
        self.child.signal(Signal::KILL);
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            // If we stopped, nobody would extend the lock, and the command would run on.
            Signal::TSTP => return say(NOT_SUSPENDED),
            // The shell may have brought us to the foreground.
            Signal::CONT => self.child.borrow_terminal(),
            _ => {}
        }
        self.child.signal(signal);
    }

    /// A command that is suspended would hold the lock for as long as nobody thinks of it.
    fn resume(&self) {
        if self.child.has_terminal() {
            say(NOT_SUSPENDED);
            self.child.signal(Signal::CONT);
        }
    }
}

/// A time too far away for the clock to tell is as good as a day.
fn after(delay: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(delay).unwrap_or(now + Duration::from_secs(86_400))
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

const NOT_SUSPENDED: &str = "a command that holds a lock cannot be suspended";

/// Two of them may fail before the third decides.
const EXTENSIONS_PER_TTL: u32 = 3;

/// The lock is ours as soon as a quorum was connected and has granted it. A node that was slower to connect is
/// sent its share only when the locker is next at work; the lock should not hang by a bare quorum until then.
const FIRST_EXTENSION: Duration = Duration::from_millis(100);

/// How often at most a failed extension is tried again: some ten times in the validity that is left.
const RETRIES_PER_TTL: u32 = 20;

/// No less than a node has to answer in.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);

/// The clock that we sleep by stops while the machine is suspended, and the lock's does not.
const GLANCE: Duration = Duration::from_secs(1);

const GROUP_PAUSE: Duration = Duration::from_millis(20);
