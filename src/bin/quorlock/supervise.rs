//! The time between the command's start and its end: passes signals on, says how the lock fares, and ends the
//! command when it is lost. Keeping it alive is the locker's business.
//!
//! One loop over one channel, in the main thread. It leaves the ended command to be reaped by others.

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use quorlock::{LockGuard, Locker, LostReason};
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
    locker: &'a Locker,
    guard: &'a LockGuard,
    child: &'a mut Child,
    terms: Terms,
    phase: Phase,
    outage: Outage,
}

/// How extending goes, as far as it was said.
#[derive(Clone, Copy, Debug, Default)]
struct Outage {
    extended: u64,
    not_extended: u64,
    said: bool,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The lock is held, as far as we know.
    Holding,
    /// It is lost, and the command was told to end.
    Ending { kill_at: Instant },
    /// It is lost, and there is nothing to do about it, or nothing more.
    Lost,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        locker: &'a Locker,
        guard: &'a LockGuard,
        child: &'a mut Child,
        terms: Terms,
    ) -> Self {
        let (phase, outage) = (Phase::Holding, Outage::default());
        Self { locker, guard, child, terms, phase, outage }
    }

    /// Until the command has ended, and, if that is because the lock was lost, everything in its group with it.
    pub(crate) fn supervise(mut self, events: &Receiver<Event>) -> Fate {
        loop {
            match events.recv_timeout(self.idle_for()) {
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Ok(Event::ChildSuspended) => self.resume(),
                Ok(Event::ChildEnded) => break,
                Ok(Event::Lost(reason)) => self.phase = self.lost(reason),
                Ok(Event::Woken) => {}
                // Something may be due. (It is never that all senders are gone: the thread that listens for
                // signals does not end.)
                Err(_) => {}
            }
            self.phase = self.advance();
        }
        match self.phase {
            Phase::Holding if self.guard.is_valid() => return Fate::Kept,
            Phase::Holding => say("the lock was lost before the command ended"),
            Phase::Ending { kill_at } => self.end_the_rest(kill_at),
            Phase::Lost => {}
        }
        Fate::Lost
    }

    /// How long nothing is due.
    fn idle_for(&self) -> Duration {
        let due = match self.phase {
            Phase::Holding => self.terms.ttl / LOOKS_PER_TTL,
            Phase::Ending { kill_at } => left(kill_at),
            Phase::Lost => Duration::MAX,
        };
        due.min(GLANCE)
    }

    /// Does what is due.
    fn advance(&mut self) -> Phase {
        match self.phase {
            Phase::Holding => {
                self.look();
                if self.child.has_terminal() && self.child.is_stuck() {
                    self.resume();
                }
                Phase::Holding
            }
            Phase::Ending { kill_at } if left(kill_at).is_zero() => {
                say("the command is still running: killing it");
                self.child.signal(Signal::KILL);
                Phase::Lost
            }
            phase => phase,
        }
    }

    /// Says, once per outage, that extending fails, and when it no longer does.
    fn look(&mut self) {
        let Some(stats) = self.locker.stats() else {
            return;
        };
        let failing = stats.not_extended > self.outage.not_extended;
        let mended = stats.extended > self.outage.extended;
        if failing && !mended && !self.outage.said {
            self.outage.said = true;
            let validity = self.guard.validity();
            say(format_args!(
                "cannot extend the lock, trying again: it is valid for {validity:.1?}"
            ));
        } else if mended && !failing && self.outage.said {
            self.outage.said = false;
            say("the lock is extended again");
        }
        self.outage.extended = stats.extended;
        self.outage.not_extended = stats.not_extended;
    }

    fn lost(&self, why: LostReason) -> Phase {
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

/// How often to look how extending goes.
const LOOKS_PER_TTL: u32 = 20;

/// The clock that we sleep by stops while the machine is suspended, and the lock's does not.
const GLANCE: Duration = Duration::from_secs(1);

const GROUP_PAUSE: Duration = Duration::from_millis(20);
