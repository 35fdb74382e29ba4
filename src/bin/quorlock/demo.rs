//! `quorlock demo`: five servers on this machine, and what the lock does when they fail.
//!
//! It is told as it happens, and checked: a step that does not go as it says fails the demo.

use std::{
    fmt,
    io::{Write, stdout},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use quorlock::{
    AcquireError, Attempt, LocalGuard, LocalLocker, NodeError, Vote,
    testing::{Answer, Data, Servers},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{args::Demo, exit, exit::Failure};

pub(crate) fn main(options: &Demo) -> Result<u8, Failure> {
    let story = Story::begin(usize::from(options.nodes))?;
    let signal = story.signal.clone();
    // Whatever it comes to, the servers are gone with it.
    let told = story.tell();
    match i32::try_from(signal.load(Ordering::Relaxed)) {
        Ok(0) | Err(_) => told.map(|()| 0),
        Ok(signal) => Err(Failure::new(exit::signalled(signal), "interrupted")),
    }
}

/// The servers, the client that speaks to them, and how fast it was when all was well.
struct Story {
    servers: Servers,
    locker: LocalLocker,
    began: Instant,
    /// The signal that we got, or zero.
    signal: Arc<AtomicUsize>,
}

type Step<T = ()> = Result<T, Failure>;

impl Story {
    fn begin(nodes: usize) -> Step<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGTERM] {
            let value = usize::try_from(number).unwrap_or(usize::MAX);
            signal_hook::flag::register_usize(number, signal.clone(), value)
                .map_err(Failure::system)?;
        }
        let began = Instant::now();
        let servers = Servers::start(nodes)
            .map_err(|error| Failure::system(format_args!("cannot start a server: {error}")))?;
        let locker = LocalLocker::connect(servers.tcp_urls()).map_err(unexpected)?;
        Ok(Self { servers, locker, began, signal })
    }

    fn tell(mut self) -> Step {
        let nodes = self.servers.len();
        self.line(format_args!("{nodes} servers are up, each a master of its own"))?;
        let healthy = self.all_is_well()?;
        self.two_want_it()?;
        let stopped = self.a_minority_fails(healthy)?;
        self.a_majority_fails(stopped)?;
        self.all_is_well_again(healthy)
    }

    fn all_is_well(&self) -> Step<Duration> {
        self.title("All nodes answer")?;
        // A node that connects last has its say in the next round.
        drop(self.settle(|attempt| attempt.failed() == 0)?);
        let guard = self.acquire()?;
        self.took("acquired", guard.attempt())?;
        self.votes(guard.attempt())?;
        guard.release().map_err(unexpected)?;
        self.line("released: a majority confirmed it")?;
        let (healthy, _) = self.measure()?;
        self.line(format_args!(
            "typical of {ROUNDS} rounds: acquire {}, which is one round trip to all at once",
            ms(healthy)
        ))?;
        Ok(healthy)
    }

    fn two_want_it(&self) -> Step {
        self.title("Two clients want one lock")?;
        let ours = self.acquire()?;
        self.line("A has it")?;
        let urls = self.servers.tcp_urls();
        let (tell, told) = channel();
        // A client of its own: it has connections of its own and knows nothing of A.
        let other = thread::spawn(move || -> Result<Duration, String> {
            let locker = LocalLocker::connect(urls).map_err(|error| error.to_string())?;
            let refusal = locker.lock(RESOURCE).try_acquire().map(drop);
            tell.send(refusal).map_err(|error| error.to_string())?;
            let waiting = Instant::now();
            let request = locker.lock(RESOURCE).timeout(Duration::from_secs(10));
            let guard = request.acquire().map_err(|error| error.to_string())?;
            guard.release().map_err(|error| error.to_string())?;
            Ok(waiting.elapsed())
        });
        let refusal = told.recv_timeout(PATIENCE).map_err(unexpected)?;
        match refusal {
            Err(error) if error.is_contended() => self.line(format_args!("B is told: {error}"))?,
            Err(error) => return Err(unexpected(error)),
            Ok(()) => return Err(unexpected("B has it too")),
        }
        self.line("B waits …")?;
        thread::sleep(Duration::from_millis(300));
        ours.release().map_err(unexpected)?;
        self.line("A releases it")?;
        let waited = other.join().map_err(|_| unexpected("B panicked"))?.map_err(unexpected)?;
        self.line(format_args!("B got it after {}, and gave it back", ms(waited)))
    }

    /// Kills one node and pauses as many as a majority can do without. Says how many that are.
    fn a_minority_fails(&mut self, healthy: Duration) -> Step<usize> {
        let spare = (self.servers.len() - 1) / 2;
        self.title(format_args!("A minority fails: {spare} of {}", self.servers.len()))?;
        self.servers[0].kill().map_err(unexpected)?;
        self.line(format_args!("{} is killed (kill -9)", self.name(0)))?;
        for node in 1..spare {
            self.servers[node].pause().map_err(unexpected)?;
            self.line(format_args!(
                "{} is paused (kill -STOP): it is there and silent",
                self.name(node)
            ))?;
        }
        let guard = self.acquire()?;
        self.took("acquired", guard.attempt())?;
        self.votes(guard.attempt())?;
        let extended = guard.extend(TTL).map_err(unexpected)?;
        self.line(format_args!("extended: valid for {extended:.2?}"))?;
        guard.release().map_err(unexpected)?;
        self.line("released: a majority confirmed it")?;
        let (typical, slowest) = self.measure()?;
        let ratio = typical.as_secs_f64() / healthy.as_secs_f64();
        self.line(format_args!(
            "typical of {ROUNDS} rounds: acquire {}, {ratio:.1} times the healthy {} (slowest {})",
            ms(typical),
            ms(healthy),
            ms(slowest)
        ))?;
        // Nobody has waited for the silent one, or it would be ten times that.
        if typical > NOTICEABLE {
            return Err(unexpected("a minority of failed nodes is felt"));
        }
        Ok(spare)
    }

    fn a_majority_fails(&self, stopped: usize) -> Step {
        self.title(format_args!(
            "One more, and no majority is left: {} of {}",
            stopped + 1,
            self.servers.len()
        ))?;
        self.servers[stopped].pause().map_err(unexpected)?;
        self.line(format_args!("{} is paused", self.name(stopped)))?;
        match self.locker.lock(RESOURCE).ttl(TTL).try_acquire() {
            Err(AcquireError::NoQuorum(attempt)) => {
                self.took("refused: no quorum", &attempt)?;
                self.votes(&attempt)
            }
            Err(error) => Err(unexpected(error)),
            Ok(_) => Err(unexpected("a lock without a majority")),
        }
    }

    fn all_is_well_again(&mut self, healthy: Duration) -> Step {
        self.title("The nodes come back")?;
        for node in 1..self.servers.len() {
            self.servers[node].resume().map_err(unexpected)?;
        }
        self.servers[0].restart(Data::Wipe).map_err(unexpected)?;
        let guard = self.settle(|attempt| attempt.failed() == 1 && is_held_back(attempt))?;
        self.line("one has forgotten what it held, and has no vote until every old lock is over")?;
        self.votes(guard.attempt())?;
        guard.release().map_err(unexpected)?;
        self.line("a client that starts now has seen no restart, and takes the nodes as they are")?;
        self.locker.flush(PATIENCE);
        self.locker = LocalLocker::connect(self.servers.tcp_urls()).map_err(unexpected)?;
        drop(self.settle(|attempt| attempt.failed() == 0)?);
        let guard = self.acquire()?;
        self.took("acquired", guard.attempt())?;
        self.votes(guard.attempt())?;
        guard.release().map_err(unexpected)?;
        let (typical, _) = self.measure()?;
        self.line(format_args!("typical again: {}, was {}", ms(typical), ms(healthy)))?;
        self.locker.flush(PATIENCE);
        let left = self.keys_left()?;
        if left > 0 {
            return Err(unexpected(format_args!("{left} keys were left behind")));
        }
        self.line("no key is left on any server: every release arrived, late ones too")
    }
}

// What the steps are made of.
impl Story {
    fn acquire(&self) -> Step<LocalGuard> {
        self.check_interrupted()?;
        self.locker.lock(RESOURCE).ttl(TTL).try_acquire().map_err(unexpected)
    }

    /// Takes rounds until one goes as it is to: nodes that were away connect again meanwhile.
    fn settle(&self, goes: fn(&Attempt) -> bool) -> Step<LocalGuard> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let guard = self.acquire()?;
            if goes(guard.attempt()) && self.locker.flush(Duration::from_millis(100)) == 0 {
                return Ok(guard);
            }
            guard.release().map_err(unexpected)?;
            if Instant::now() > deadline {
                return Err(unexpected("a node does not come back"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// How long an acquire takes: in half of the rounds at most, and in the slowest.
    fn measure(&self) -> Step<(Duration, Duration)> {
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            let guard = self.acquire()?;
            took.push(guard.attempt().elapsed());
            guard.release().map_err(unexpected)?;
        }
        took.sort_unstable();
        Ok((took[ROUNDS / 2], took[ROUNDS - 1]))
    }

    fn keys_left(&self) -> Step<i64> {
        let mut left = 0;
        for server in self.servers.iter() {
            match server.command(&["DBSIZE"]).map_err(unexpected)? {
                Answer::Integer(keys) => left += keys,
                answer => return Err(unexpected(format_args!("DBSIZE: {answer:?}"))),
            }
        }
        Ok(left)
    }

    fn name(&self, node: usize) -> String {
        self.servers[node].tcp_url().trim_start_matches("redis://").into()
    }

    fn check_interrupted(&self) -> Step {
        if self.signal.load(Ordering::Relaxed) != 0 {
            return Err(unexpected("it was interrupted"));
        }
        Ok(())
    }
}

// How it is told.
impl Story {
    fn title(&self, title: impl fmt::Display) -> Step {
        self.check_interrupted()?;
        print(format_args!("\n{title}\n"))
    }

    fn line(&self, text: impl fmt::Display) -> Step {
        print(format_args!("{:>7.3} s  {text}\n", self.began.elapsed().as_secs_f64()))
    }

    fn took(&self, what: &str, attempt: &Attempt) -> Step {
        let (granted, nodes) = (attempt.granted(), attempt.votes().len());
        self.line(format_args!(
            "{what} in {}: {granted} of {nodes} granted (need {})",
            ms(attempt.elapsed()),
            attempt.quorum()
        ))
    }

    fn votes(&self, attempt: &Attempt) -> Step {
        for (node, vote) in attempt.votes() {
            let vote = match vote {
                Vote::Pending => "not waited for: the majority was there",
                vote => &vote.to_string(),
            };
            print(format_args!("             {node}  {vote}\n"))?;
        }
        Ok(())
    }
}

fn is_held_back(attempt: &Attempt) -> bool {
    let restarted = |vote: &Vote| matches!(vote, Vote::NotSent(NodeError::Restarted { .. }));
    attempt.votes().any(|(_, vote)| restarted(vote))
}

fn print(text: fmt::Arguments<'_>) -> Step {
    let mut stdout = stdout();
    let printed = stdout.write_all(text.to_string().as_bytes()).and_then(|()| stdout.flush());
    printed.map_err(Failure::system)
}

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

fn unexpected(what: impl fmt::Display) -> Failure {
    Failure::new(FAILED, format_args!("the demo went wrong: {what}"))
}

const RESOURCE: &str = "demo";

/// Long enough for a person to read along, and short enough not to keep anybody waiting.
const TTL: Duration = Duration::from_secs(10);

/// Enough for a median on a machine that does other things too.
const ROUNDS: usize = 101;

/// A node is given 50 ms to answer: an acquire that waits for one takes as long, and no other does.
const NOTICEABLE: Duration = Duration::from_millis(25);

/// For what takes no time at all.
const PATIENCE: Duration = Duration::from_secs(10);

const FAILED: u8 = 1;
