//! One client: its engine, as a driver would turn it, and what its callers believe.
//!
//! A caller believes what a guard says: that it holds the lock from the moment it was told so, until its own
//! clock shows the end it was told, it was told of a loss, or it let go.

use std::time::Duration;

use quorlock::{
    AcquireError, Fencing, RestartGuard, RetryPolicy,
    internal::{
        Credentials,
        engine::{Engine, Event, Settings},
        handshake::Greeting,
        lease::Lease,
        request::{Care, Request, Spec},
        slab::Id,
        time::Time,
        upkeep::Upkeep,
        validity::Ttl,
    },
};

use crate::{
    clock::{At, Clock, MS},
    link::Link,
    oracle::Check,
    rng::Rng,
    schedule::{Mode, NODES_MAX, Plan},
    wire::{PREFIX, token_of},
    world::{self, World, trace},
};

#[derive(Debug)]
pub struct Client {
    pub engine: Engine,
    pub clock: Clock,
    /// The connection to each node.
    pub links: [Option<usize>; NODES_MAX],
    pub asleep_until: At,
    /// When the engine is to be woken next.
    timer_at: At,
    pub pending: Vec<Pending>,
    pub holds: Vec<Hold>,
    /// Releases that callers wait for, and of which tokens.
    releasing: Vec<(Id<Lease>, usize)>,
    /// What the last request came to.
    pub last: Option<Result<(), AcquireError>>,
    pub last_release: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub id: Id<Request>,
    key: u8,
    watched: bool,
    deadline: Option<Time>,
    fencing: Fencing,
}

/// What one caller believes to hold.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub lease: Id<Lease>,
    pub token: usize,
    pub key: u8,
    /// Until when, by the client's clock and truly.
    pub until: Time,
    pub end: At,
    /// Whether the engine says when it is lost.
    pub watched: bool,
    /// Whether it has said so.
    pub lost: bool,
}

impl Hold {
    pub fn is_believed(&self, now: At) -> bool {
        !self.lost && now < self.end
    }
}

impl Client {
    pub fn new(plan: &Plan, clock: Clock, rng: &mut Rng) -> Self {
        let mut client = Self {
            engine: engine(plan, clock, rng, 0),
            clock,
            links: [None; NODES_MAX],
            asleep_until: 0,
            timer_at: At::MAX,
            pending: Vec::new(),
            holds: Vec::new(),
            releasing: Vec::new(),
            last: None,
            last_release: None,
        };
        client.holds.reserve(8);
        client
    }

    pub fn sleeps(&self, now: At) -> bool {
        self.asleep_until > now
    }

    pub fn time(&self, now: At) -> Time {
        Time::from_nanos(self.clock.local(now))
    }

    /// Whether every node can be asked, and none is still to answer.
    pub fn is_at_rest(&self, links: &[Link]) -> bool {
        let count = self.engine.nodes().len();
        let at_rest = |l: &Option<usize>| {
            l.is_some_and(|l| links[l].client_open && links[l].asked.is_empty())
        };
        self.links[..count].iter().all(at_rest)
            && !self.engine.is_connecting()
            && !self.engine.is_sending()
    }
}

fn engine(plan: &Plan, clock: Clock, rng: &mut Rng, now: At) -> Engine {
    let settings = Settings {
        names: (0..plan.nodes).map(|n| ["n0", "n1", "n2", "n3", "n4"][n].into()).collect(),
        key_prefix: PREFIX.into(),
        connect_timeout: plan.connect_timeout,
        drift: plan.drift,
        retry: RetryPolicy::jittered(plan.retry.0, plan.retry.1),
        restart_guard: match plan.mode {
            Mode::Guarded => RestartGuard::Always,
            _ => RestartGuard::Off,
        },
        repair: plan.repair,
        ttl_longest: Ttl::parse(Duration::from_millis(plan.ttls_ms[2]), plan.drift).unwrap(),
    };
    let greeting = || Greeting {
        credentials: Credentials::default(),
        db: 0,
        client_name: "sim".into(),
        tracking: plan.tracking,
        persistence: false,
    };
    let greetings = (0..plan.nodes).map(|_| greeting());
    Engine::new(settings, greetings, rng.bytes(), Time::from_nanos(clock.local(now)))
}

// What a driver does.
impl World {
    /// Something is to be read from a client's socket.
    pub fn listen(&mut self, c: usize, l: usize) {
        if !self.clients[c].sleeps(self.now) {
            self.take_in(c, l);
        }
    }

    fn take_in(&mut self, c: usize, l: usize) {
        if !self.links[l].client_open {
            return;
        }
        let id = self.ids[self.links[l].node];
        let now = self.clients[c].time(self.now);
        if std::mem::take(&mut self.links[l].accepted) {
            self.clients[c].engine.handle_connected(now, id);
            self.carry(c);
        }
        if self.links[l].client_open && self.links[l].here > self.links[l].fed {
            self.feed(c, l);
        }
        if self.links[l].client_open && self.links[l].broken {
            trace!(self, "c{c} learns that link {l} is over");
            self.links[l].client_open = false;
            self.clients[c].links[self.links[l].node] = None;
            let error = quorlock::NodeError::Closed;
            self.clients[c].engine.handle_disconnected(now, id, error);
            self.carry(c);
        }
    }

    fn feed(&mut self, c: usize, l: usize) {
        let wrong = self.heard(l);
        let now = self.clients[c].time(self.now);
        let link = &mut self.links[l];
        let (id, here) = (self.ids[link.node], link.here);
        let bytes = &link.down[std::mem::replace(&mut link.fed, here)..here];
        let engine = &mut self.clients[c].engine;
        if self.rng.permille(50) {
            let (first, second) = bytes.split_at(self.rng.below(bytes.len() as u64) as usize);
            engine.handle_input(now, id, first);
            // Unless that has ended the connection.
            if engine.poll_close().is_none() {
                engine.handle_input(now, id, second);
            } else {
                self.close(c, l);
            }
        } else {
            engine.handle_input(now, id, bytes);
        }
        self.carry(c);
        if wrong && self.links[l].client_open {
            self.violated(Check::Connection, format!("c{c} goes on after a wrong reply"));
        }
    }

    /// Does what the engine wants done, and takes what it has to say.
    pub fn carry(&mut self, c: usize) {
        while let Some(id) = self.clients[c].engine.poll_close() {
            if let Some(l) = self.clients[c].links[id.index()] {
                self.close(c, l);
            }
        }
        while let Some(id) = self.clients[c].engine.poll_connect() {
            self.connect(c, id.index());
        }
        for n in 0..self.plan.nodes {
            if let Some(l) = self.clients[c].links[n] {
                self.write(l);
            }
        }
        while let Some(event) = self.clients[c].engine.poll_event() {
            self.told(c, event);
        }
        self.check_client(c);
        if let Some(due) = self.clients[c].engine.poll_timeout() {
            let at = self.clients[c].clock.at(due.as_nanos()).max(self.now);
            if at < self.clients[c].timer_at {
                self.clients[c].timer_at = at;
                self.push(at, world::Event::Timer(c));
            }
        }
    }

    fn close(&mut self, c: usize, l: usize) {
        trace!(self, "c{c} closes link {l}");
        self.check_close(l);
        self.links[l].client_open = false;
        self.clients[c].links[self.links[l].node] = None;
        self.hold_back(l);
        if !self.calm && self.rng.permille(250) {
            // What was not read makes it a reset, which may overtake what was written.
            let (arrived, written) = (self.links[l].arrived, self.links[l].written);
            self.links[l].up_limit = arrived + self.rng.below(written - arrived + 1);
        }
    }

    pub fn timer(&mut self, c: usize) {
        if self.clients[c].timer_at != self.now || self.clients[c].sleeps(self.now) {
            return;
        }
        self.wake_engine(c);
    }

    /// Tells the engine the time.
    pub fn wake_engine(&mut self, c: usize) {
        self.clients[c].timer_at = At::MAX;
        let now = self.clients[c].time(self.now);
        if self.clients[c].engine.poll_timeout().is_some_and(|due| due <= now) {
            self.clients[c].engine.handle_timeout(now);
        }
        self.carry(c);
    }

    pub fn client_wakes(&mut self, c: usize) {
        if self.clients[c].sleeps(self.now) {
            return;
        }
        trace!(self, "c{c} wakes");
        let first = self.rng.below(self.plan.nodes as u64) as usize;
        for n in 0..self.plan.nodes {
            if let Some(l) = self.clients[c].links[(first + n) % self.plan.nodes] {
                self.take_in(c, l);
            }
        }
        self.clients[c].asleep_until = 0;
        self.wake_engine(c);
    }
}

// What callers do.
impl World {
    pub fn op(&mut self, c: usize) {
        if self.calm {
            return;
        }
        let next = self
            .rng
            .about(self.plan.op_gap)
            .max(self.clients[c].asleep_until.saturating_sub(self.now));
        self.push(self.now + next, world::Event::Op(c));
        if self.clients[c].sleeps(self.now) {
            return;
        }
        if self.plan.to_the_end {
            let over = |hold: &Hold| !hold.is_believed(self.now);
            if let Some(i) = self.clients[c].holds.iter().position(over) {
                return self.release(c, i, false);
            }
            if !self.clients[c].holds.is_empty() {
                return;
            }
        }
        let (pending, holds) = (self.clients[c].pending.len(), self.clients[c].holds.len());
        let roll = self.rng.below(100);
        match (pending, holds) {
            (0, 0) => self.acquire(c),
            (1.., _) if roll < 12 => {
                let i = self.rng.below(pending as u64) as usize;
                self.cancel(c, i);
            }
            (1..3, _) if roll < 30 => self.acquire(c),
            (_, 1..) if roll < 55 => {
                let i = self.rng.below(holds as u64) as usize;
                let reported = self.rng.coin();
                self.release(c, i, reported);
            }
            (_, 1..) if roll < 85 => {
                let i = self.rng.below(holds as u64) as usize;
                self.extend(c, i);
            }
            (0, 1..4) if roll < 92 => self.acquire(c),
            _ => {}
        }
    }

    fn ttl(&mut self) -> Ttl {
        let ms = self.rng.pick(&self.plan.ttls_ms.clone());
        Ttl::parse(Duration::from_millis(ms), self.plan.drift).unwrap()
    }

    fn acquire(&mut self, c: usize) {
        let now = self.clients[c].time(self.now);
        let ttl = self.ttl();
        let upkeep = || Upkeep { ttl, every: ttl.duration() / 3, at_most: None };
        let care = match self.rng.below(10) {
            0..4 => Care::Holder,
            4..6 => Care::Engine { upkeep: None },
            6..8 => Care::Engine { upkeep: Some(upkeep()) },
            _ => {
                let at_most = Some(ttl.duration() * self.rng.between(1, 4) as u32);
                Care::Engine { upkeep: Some(Upkeep { at_most, ..upkeep() }) }
            }
        };
        let patience = ttl.duration() * self.rng.between(1, 6) as u32 / 2;
        let deadline = self.rng.permille(600).then(|| now.after(patience));
        let min_validity = if self.rng.permille(100) { ttl.duration() / 2 } else { Duration::ZERO };
        let key = match self.plan.mode {
            Mode::Deleted => c as u8,
            _ => self.rng.below(u64::from(self.plan.resources)) as u8,
        };
        self.ask(c, key, ttl, deadline, min_validity, care);
    }

    pub fn ask(
        &mut self,
        c: usize,
        key: u8,
        ttl: Ttl,
        deadline: Option<Time>,
        min_validity: Duration,
        care: Care,
    ) {
        let now = self.clients[c].time(self.now);
        let node_timeout = self.plan.node_timeout;
        let resource = [b'a' + key];
        let fencing = if self.plan.mode.is_fenced() {
            use Fencing::{Confirmed, Off, OneRoundTrip};
            self.rng.pick(&[Confirmed, Confirmed, OneRoundTrip, OneRoundTrip, Off])
        } else {
            Fencing::Off
        };
        let spec =
            Spec { resource: &resource, ttl, deadline, min_validity, node_timeout, care, fencing };
        trace!(self, "c{c} acquires: {spec:?}");
        let id = self.clients[c].engine.acquire(now, spec);
        let watched = matches!(care, Care::Engine { .. });
        self.clients[c].pending.push(Pending { id, key, watched, deadline, fencing });
        self.carry(c);
    }

    pub fn cancel(&mut self, c: usize, i: usize) {
        let pending = self.clients[c].pending.swap_remove(i);
        trace!(self, "c{c} cancels {:?}", pending.id);
        self.tally.cancelled += 1;
        let now = self.clients[c].time(self.now);
        self.clients[c].engine.cancel(now, pending.id);
        self.carry(c);
    }

    pub fn release(&mut self, c: usize, i: usize, reported: bool) {
        let hold = self.clients[c].holds.swap_remove(i);
        trace!(self, "c{c} releases t{}", hold.token);
        self.tally.released += 1;
        if reported {
            self.clients[c].releasing.push((hold.lease, hold.token));
        }
        let now = self.clients[c].time(self.now);
        self.clients[c].engine.release(now, hold.lease, reported);
        self.carry(c);
    }

    fn extend(&mut self, c: usize, i: usize) {
        let hold = self.clients[c].holds[i];
        let (ttl, now) = (self.ttl(), self.clients[c].time(self.now));
        trace!(self, "c{c} extends t{} by {ttl:?}", hold.token);
        let result = self.clients[c].engine.extend(now, hold.lease, ttl, self.plan.node_timeout);
        match result {
            Ok(()) => {
                if !hold.watched {
                    self.oracle.extension_begins(hold.token);
                }
                self.believe(c, i);
            }
            Err(_) => {
                if hold.is_believed(self.now) && !self.is_denied(hold.token) {
                    let what = format!("c{c} may not extend t{}, which it holds", hold.token);
                    self.violated(Check::Extension, what);
                }
                self.believe(c, i);
            }
        }
        self.carry(c);
    }

    /// The caller looks up until when its lock is valid.
    fn believe(&mut self, c: usize, i: usize) {
        let hold = self.clients[c].holds[i];
        let until = self.clients[c].engine.valid_until(hold.lease);
        let end = self.clients[c].clock.at(until.as_nanos());
        let raised = end > hold.end;
        let was_believed = hold.is_believed(self.now);
        let hold = &mut self.clients[c].holds[i];
        hold.until = until;
        hold.end = end;
        let token = hold.token;
        if raised && end > self.now {
            trace!(self, "c{c} believes to hold t{token} until {end}");
            if !was_believed {
                self.violated(Check::Extension, format!("c{c}: t{token} was over, and is not"));
            }
            self.check_hold(c, i);
        }
    }

    fn told(&mut self, c: usize, event: Event) {
        trace!(self, "c{c} is told {event:?}");
        match event {
            Event::Acquired { request, grant } => {
                let pending = &mut self.clients[c].pending;
                let Some(place) = pending.iter().position(|pending| pending.id == request) else {
                    let now = self.clients[c].time(self.now);
                    return self.clients[c].engine.release(now, grant.lease, false);
                };
                let Pending { key, watched, fencing, .. } = pending.swap_remove(place);
                self.tally.acquired += 1;
                let token = self.oracle.find(token_of(grant.token.as_bytes()));
                self.check_grant(c, token, &grant);
                self.check_fencing(token, key, fencing, grant.fencing_token);
                let end = self.clients[c].clock.at(grant.valid_until.as_nanos());
                let lease = grant.lease;
                let until = grant.valid_until;
                let hold = Hold { lease, token, key, until, end, watched, lost: false };
                self.clients[c].holds.push(hold);
                self.check_hold(c, self.clients[c].holds.len() - 1);
                self.clients[c].last = Some(Ok(()));
            }
            Event::NotAcquired { request, error } => {
                self.tally.not_acquired += 1;
                self.clients[c].pending.retain(|pending| pending.id != request);
                self.clients[c].last = Some(Err(error));
            }
            Event::Extended { lease, result, .. } => {
                match &result {
                    Ok(_) => self.tally.extended += 1,
                    Err(_) => self.tally.not_extended += 1,
                }
                let of = |hold: &Hold| hold.lease == lease;
                if let Some(i) = self.clients[c].holds.iter().position(of) {
                    let hold = self.clients[c].holds[i];
                    if !hold.watched {
                        self.check_extended(hold.token, result.is_ok());
                    }
                    self.believe(c, i);
                }
            }
            Event::Lost { lease, reason } => self.told_lost(c, lease, reason),
            Event::Shortened { lease, until } => {
                let end = self.clients[c].clock.at(until.as_nanos());
                let of = |hold: &&mut Hold| hold.lease == lease;
                if let Some(hold) = self.clients[c].holds.iter_mut().find(of) {
                    (hold.until, hold.end) = (until, end.min(hold.end));
                }
            }
            Event::Released { lease, result } => {
                let of = |(other, _): &(Id<Lease>, usize)| *other == lease;
                let place = self.clients[c].releasing.iter().position(of);
                let Some((_, token)) = place.map(|i| self.clients[c].releasing.swap_remove(i))
                else {
                    return;
                };
                self.clients[c].last_release = Some(result.is_ok());
                self.check_released(token, result.is_ok());
            }
        }
    }

    /// Whether a request has outlived its deadline, and nothing is about to be done about it.
    pub fn is_overdue(&self, c: usize) -> bool {
        let now = self.clients[c].time(self.now.saturating_sub(2));
        let acts = self.clients[c].engine.poll_timeout();
        acts.is_none_or(|at| at > self.clients[c].time(self.now))
            && self.clients[c]
                .pending
                .iter()
                .any(|pending| pending.deadline.is_some_and(|at| at < now))
    }

    /// The process dies, and another takes its place.
    pub fn client_crashes(&mut self, c: usize) {
        trace!(self, "c{c} crashes");
        for n in 0..self.plan.nodes {
            if let Some(l) = self.clients[c].links[n].take() {
                self.links[l].client_open = false;
            }
        }
        self.oracle.orphan(c);
        let fresh = engine(&self.plan, self.clients[c].clock, &mut self.rng, self.now);
        let client = &mut self.clients[c];
        client.engine = fresh;
        client.asleep_until = 0;
        client.timer_at = At::MAX;
        client.pending.clear();
        client.holds.clear();
        client.releasing.clear();
        self.wake_engine(c);
    }
}

// The end of a schedule.
impl World {
    /// The faults heal, everybody lets go; then everything is as at the beginning.
    pub fn finish(&mut self) {
        if self.oracle.violation.is_some() {
            return;
        }
        trace!(self, "all faults heal");
        self.heal();
        for c in 0..self.plan.clients {
            self.let_go(c);
        }
        if !self.until_quiet() {
            return;
        }
        for c in 0..self.plan.clients {
            self.nudge(c);
        }
        if !self.until_quiet() {
            return;
        }
        self.check_let_go();
        self.pass(self.plan.longest_life() + 2 * MS);
        self.check_no_keys("after the longest life");
        for c in 0..self.plan.clients {
            if self.oracle.violation.is_none() && !self.hopeless {
                self.make_progress(c);
            }
        }
        if self.until_quiet() {
            self.check_no_keys("after the last release");
        }
    }

    fn heal(&mut self) {
        self.calm = true;
        self.blocked = Default::default();
        for node in &mut self.nodes {
            node.refusing = None;
            node.slowness = 0;
            node.error_next = false;
            node.wrong_next = false;
        }
        // Whoever sleeps has an event to wake up by.
        for c in 0..self.plan.clients {
            self.until("wake", |world| !world.clients[c].sleeps(world.now));
        }
    }

    fn let_go(&mut self, c: usize) {
        if self.rng.permille(200) {
            trace!(self, "c{c} closes");
            self.clients[c].holds.clear();
            self.clients[c].pending.clear();
            let now = self.clients[c].time(self.now);
            self.clients[c].engine.close(now);
            return self.carry(c);
        }
        while !self.clients[c].pending.is_empty() {
            self.cancel(c, 0);
        }
        while !self.clients[c].holds.is_empty() {
            self.release(c, 0, false);
        }
    }

    /// A node that has put a release off is asked again when it has done something else.
    fn nudge(&mut self, c: usize) {
        if self.clients[c].engine.releasing() > 0 {
            let ttl = self.ttl();
            self.ask(c, 0, ttl, None, Duration::ZERO, Care::Holder);
            self.clients[c].last = None;
            self.until("verdict", |world| world.clients[c].last.is_some());
            self.let_go(c);
        }
    }

    /// A client gets a lock and gives it back.
    fn make_progress(&mut self, c: usize) {
        let ms = self.plan.ttls_ms[2];
        let ttl = Ttl::parse(Duration::from_millis(ms), self.plan.drift).unwrap();
        self.clients[c].last = None;
        self.clients[c].last_release = None;
        let deadline = self.clients[c].time(self.now).after(ttl.duration() * 10);
        self.ask(c, 0, ttl, Some(deadline), Duration::ZERO, Care::Holder);
        if !self.until("verdict", |world| world.clients[c].last.is_some()) {
            return;
        }
        match self.clients[c].last.take() {
            Some(Ok(())) => {}
            other => {
                let what = format!("c{c} gets no lock though nothing is wrong: {other:?}");
                return self.violated(Check::Progress, what);
            }
        }
        if self.clients[c].holds.is_empty() {
            return; // A violation that is not looked for.
        }
        self.release(c, 0, true);
        let told = self.until("release", |world| world.clients[c].last_release.is_some());
        if told && self.clients[c].last_release != Some(true) {
            self.violated(Check::Progress, format!("c{c} cannot release though nothing is wrong"));
        }
    }
}
