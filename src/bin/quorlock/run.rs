//! `quorlock run`: get the lock, run the command, give the lock back, in this order and on every way out.

use std::{
    io,
    os::unix::ffi::OsStrExt,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use quorlock::{
    AcquireError, Attempt, Builder, ConnectError, Fencing, KeepAlive, LockGuard, Locker,
    LostSignal, NodeStats, ReleaseError, RestartGuard,
};

use crate::{
    args::{OnLost, Run},
    child::Child,
    exit::{self, Failure},
    patience::{Patience, Rest},
    say::{quoted, say},
    signals::{self, Event},
    supervise::{Fate, Supervisor, Terms},
};

pub(crate) fn main(options: &Run) -> Result<u8, Failure> {
    let builder = options.builder()?;
    warn_of_even(options.nodes.urls()?.len());
    let (sender, events) = channel();
    signals::listen(sender.clone())
        .map_err(|error| Failure::system(format_args!("cannot listen for signals: {error}")))?;
    let started = Instant::now();
    let mut patience = Patience::new(options.wait(), sender.clone(), &events);
    let locker = connect(&builder, &mut patience)?;
    warn_of_nodes(&locker, options.guard());
    let result = acquire(&locker, options, &patience).and_then(|guard| {
        if options.verbose {
            say(format_args!("locked in {:.1?}", started.elapsed()));
            say_votes(guard.attempt());
        }
        hold(&locker, guard, options, (sender, &events))
    });
    // Whatever was released is answered, or the system might discard it with our sockets.
    match locker.close(CLOSE_MAX) {
        Err(error) if options.verbose => say(error),
        _ => {}
    }
    result
}

/// Nodes that may forget, by what they say or because they may not be asked.
fn warn_of_nodes(locker: &Locker, guard: RestartGuard) {
    let nodes = locker.stats().unwrap_or_default().nodes;
    for node in nodes.iter().filter(|node| node.ready && node.evicts) {
        say(format_args!(
            "{} throws keys away when its memory is full (maxmemory-policy): a lock that is held may be among them",
            node.name
        ));
    }
    let unknown = |node: &&NodeStats| node.ready && !node.identified && guard != RestartGuard::Off;
    for node in nodes.iter().filter(unknown) {
        say(format_args!(
            "{} does not say when it was started (INFO is refused): a restart of it goes unnoticed",
            node.name
        ));
    }
}

/// Runs the command under the lock, and releases the lock.
fn hold(
    locker: &Locker,
    guard: LockGuard,
    options: &Run,
    (sender, events): (Sender<Event>, &Receiver<Event>),
) -> Result<u8, Failure> {
    let resource = options.resource.as_bytes();
    let mut child = Child::start(&options.command(), resource, &guard, sender.clone())?;
    watch(guard.lost_signal(), sender)
        .map_err(|error| Failure::system(format_args!("cannot start a thread: {error}")))?;
    let &Run { ttl, on_lost, kill_after, .. } = options;
    let terms = Terms { ttl, on_lost, kill_after };
    let mut fate = Supervisor::new(locker, &guard, &mut child, terms).supervise(events);
    let code = child.reap();
    match guard.release() {
        Err(error @ ReleaseError::NotHeld(_)) if fate == Fate::Kept => {
            say(format_args!("the lock was lost while the command ran: {error}"));
            fate = Fate::Lost;
        }
        Err(error) if fate == Fate::Kept || options.verbose => say(error),
        _ => {}
    }
    Ok(match (fate, on_lost) {
        (Fate::Lost, OnLost::Kill) => exit::LOST,
        _ => code,
    })
}

/// Has the lock's loss come as an event.
fn watch(signal: LostSignal, events: Sender<Event>) -> io::Result<()> {
    let watch = move || {
        let reason = signal.wait();
        // Fails only where the main thread is about to end.
        let _ = events.send(Event::Lost(reason));
    };
    thread::Builder::new().name("quorlock-lost".into()).spawn(watch)?;
    Ok(())
}

/// Connects to a quorum of nodes, for as long as the wait allows.
fn connect(builder: &Builder, patience: &mut Patience<'_>) -> Result<Locker, Failure> {
    let mut said = false;
    loop {
        let left = patience.left().filter(|left| !left.is_zero());
        let timeout = left.map_or(CONNECT_MAX, |left| left.clamp(CONNECT_MIN, CONNECT_MAX));
        let error = match builder.clone().connect_timeout(timeout).connect() {
            Ok(locker) => return Ok(locker),
            Err(ConnectError::Config(error)) => return Err(Failure::usage(error)),
            Err(error @ ConnectError::Io(_)) => return Err(Failure::system(error)),
            Err(error) => error,
        };
        let failure = Failure::new(exit::NO_QUORUM, format_args!("no quorum: {error}"));
        if matches!(&error, ConnectError::NoQuorum(attempt) if is_hopeless(attempt)) {
            return Err(failure);
        }
        match patience.rest() {
            Rest::Again if said => {}
            Rest::Again => say(format_args!("{}; trying again", failure.message)),
            Rest::Over => return Err(failure),
            Rest::Signalled(signal) => return Err(left_by(signal)),
        }
        said = true;
    }
}

/// Acquires the lock, for as long as the wait allows. Leaving early cancels what is under way.
fn acquire(locker: &Locker, options: &Run, patience: &Patience<'_>) -> Result<LockGuard, Failure> {
    let fencing = if options.fencing { Fencing::Confirmed } else { Fencing::Off };
    let request = locker.lock(options.resource.as_bytes()).fencing(fencing);
    let request = request.keep_alive(KeepAlive::default());
    let acquire = match patience.left() {
        Some(Duration::ZERO) => request.try_acquire_async(),
        Some(left) => request.timeout(left).acquire_async(),
        None => request.timeout(Duration::MAX).acquire_async(),
    };
    match patience.wait_for(acquire).map_err(left_by)? {
        // Asked to leave while the nodes were: the guard is dropped, which releases the lock.
        Ok(guard) => patience.signalled().map_or(Ok(guard), |by| Err(left_by(by))),
        Err(AcquireError::InvalidRequest(error)) => Err(Failure::usage(error)),
        Err(error) => Err(not_acquired(&error, options)),
    }
}

/// What it means that there is no lock.
fn not_acquired(error: &AcquireError, options: &Run) -> Failure {
    let code = if error.is_contended() { options.conflict_exit_code } else { exit::NO_QUORUM };
    let resource = quoted(options.resource.as_bytes());
    Failure::new(code, format_args!("cannot lock {resource}: {error}"))
}

/// Whether waiting cannot help: too many nodes need a person.
fn is_hopeless(attempt: &Attempt) -> bool {
    let errors = attempt.votes().filter_map(|(_, vote)| vote.error());
    let hopeless = errors.filter(|error| error.is_permanent()).count();
    hopeless > attempt.votes().len() - attempt.quorum()
}

fn left_by(signal: rustix::process::Signal) -> Failure {
    let message =
        format_args!("gave up waiting for the lock: signal {}", signal.as_raw()).to_string();
    Failure::new(exit::signalled(signal.as_raw()), message)
}

fn warn_of_even(nodes: usize) {
    if nodes % 2 == 0 {
        let failures = (nodes - 1) / 2;
        say(format_args!(
            "warning: {nodes} nodes outlive {failures} failed, no more than {} do: use an odd number",
            nodes - 1
        ));
    }
}

fn say_votes(attempt: &Attempt) {
    for (node, vote) in attempt.votes() {
        say(format_args!("  {node}: {vote}"));
    }
}

/// How long a connection and its greeting may take. Short, as a signal is noticed between attempts only.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// The shortest there is, for a wait that is about to be over.
const CONNECT_MIN: Duration = Duration::from_millis(1);

/// How long the slowest node may keep us from ending.
const CLOSE_MAX: Duration = Duration::from_millis(500);
