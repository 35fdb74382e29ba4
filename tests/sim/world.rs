//! Time, and what happens in it: one queue of events, taken in the order of true time.

use std::{cmp::Reverse, collections::BinaryHeap};

use quorlock::internal::node::NodeId;

use crate::{
    client::Client,
    clock::{At, MS},
    link::Link,
    node::Node,
    oracle::{Check, Oracle, Violation},
    rng::Rng,
    schedule::{Mode, NODES_MAX, Plan},
    tally::Tally,
};

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Event {
    /// A connection is made, if both ends are there.
    Connected(usize),
    /// Bytes come to the node, up to here.
    Up(usize, u64),
    /// Replies come to the client's socket, up to here.
    Down(usize, usize),
    /// The client's socket is told that the connection is over.
    Broken(usize),
    /// A socket that took only a part takes more.
    Writable(usize),
    /// The connection is cut, soon after something was written to it.
    Cut(usize),
    Restart(usize),
    NodeWake(usize),
    ClientWake(usize),
    /// The client's engine wanted to be woken.
    Timer(usize),
    /// A client does something.
    Op(usize),
    Fault,
    /// A node looks for keys that have ended.
    Expire(usize),
}

impl Event {
    /// Whether there is quiet only without it.
    fn is_traffic(self) -> bool {
        !matches!(self, Self::Timer(_) | Self::Op(_) | Self::Fault | Self::Expire(_))
    }
}

#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub rng: Rng,
    pub now: At,
    queue: BinaryHeap<Reverse<(At, u32, Event)>>,
    /// Tells apart what happens at one moment.
    drawn: u32,
    /// How many events of `queue` are traffic.
    flying: u32,
    pub clients: Vec<Client>,
    pub nodes: Vec<Node>,
    pub ids: Vec<NodeId>,
    /// The first `links_used` are of this schedule.
    pub links: Vec<Link>,
    pub links_used: usize,
    /// Until when nothing passes from a client to a node (`[0]`) and back (`[1]`).
    pub blocked: [[[At; 2]; NODES_MAX]; crate::schedule::CLIENTS_MAX],
    pub processes: u32,
    pub steps: u32,
    /// No more faults, and no delays beyond the usual.
    pub calm: bool,
    /// Something that has to come about never will.
    pub hopeless: bool,
    pub oracle: Oracle,
    pub tally: Tally,
    /// Whether to print what happens.
    pub traced: bool,
    pub scratch: Vec<usize>,
}

/// Prints what happens, in a schedule that is looked at.
macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.traced {
            println!("{:>12.6} ms  {}", $world.now as f64 / 1e6, format!($($what)*));
        }
    };
}
pub(crate) use trace;

impl World {
    pub fn new(mode: Mode, seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(mode, &mut rng);
        let mut world = Self {
            rng,
            now: 0,
            queue: BinaryHeap::with_capacity(128),
            drawn: 0,
            flying: 0,
            clients: Vec::new(),
            nodes: Vec::new(),
            ids: NodeId::all(plan.nodes as u8).collect(),
            links: Vec::new(),
            links_used: 0,
            blocked: Default::default(),
            processes: 0,
            steps: 0,
            calm: false,
            hopeless: false,
            oracle: Oracle::default(),
            tally: Tally::default(),
            traced,
            scratch: Vec::new(),
            plan,
        };
        trace!(world, "{:?}", world.plan);
        for n in 0..world.plan.nodes {
            let plain = world.plan.plain & (1 << n) != 0;
            world.processes += 1;
            world.nodes.push(Node::new(world.plan.node_clocks[n], plain, world.processes));
        }
        for c in 0..world.plan.clients {
            let client = Client::new(&world.plan, world.plan.client_clocks[c], &mut world.rng);
            world.clients.push(client);
        }
        world
    }

    /// Runs the schedule to its end, or to the first thing that must not be.
    pub fn run(&mut self) -> Result<(), Violation> {
        if self.plan.connected {
            self.calm = true;
            self.start_engines();
            self.until_quiet();
            self.calm = false;
            self.steps = 0;
        } else {
            self.start_engines();
        }
        for c in 0..self.plan.clients {
            let first = self.now + self.rng.below(self.plan.op_gap);
            self.push(first, Event::Op(c));
        }
        if !self.plan.faults.is_empty() {
            let first = self.now + self.rng.about(self.plan.fault_gap);
            self.push(first, Event::Fault);
        }
        while self.steps < self.plan.steps && self.oracle.violation.is_none() && self.step() {}
        // What only the end shows is not looked for with anything else.
        if self.oracle.only.is_none() {
            self.finish();
        }
        self.tally.schedules += 1;
        self.tally.steps += u64::from(self.steps);
        for client in &self.clients {
            self.tally.abandoned_replies += client.engine.counts().abandoned_replies;
        }
        self.oracle.violation.take().map_or(Ok(()), Err)
    }

    fn start_engines(&mut self) {
        for c in 0..self.plan.clients {
            self.wake_engine(c);
        }
    }

    pub fn push(&mut self, at: At, event: Event) {
        self.drawn += 1;
        self.flying += u32::from(event.is_traffic());
        self.queue.push(Reverse((at.max(self.now), self.drawn, event)));
    }

    /// The next thing happens. False if there is none.
    pub fn step(&mut self) -> bool {
        let Some(Reverse((at, _, event))) = self.queue.pop() else {
            self.violated(Check::Progress, "nothing will ever happen again".into());
            self.hopeless = true;
            return false;
        };
        self.flying -= u32::from(event.is_traffic());
        self.now = at;
        self.steps += 1;
        if self.plan.mode == (Mode::Cancel { step: self.steps }) && !self.calm {
            for c in 0..self.plan.clients {
                while !self.clients[c].pending.is_empty() {
                    self.cancel(c, 0);
                }
            }
        }
        match event {
            Event::Connected(l) => self.connected(l),
            Event::Up(l, to) => self.up(l, to),
            Event::Down(l, to) => self.down(l, to),
            Event::Broken(l) => self.broken(l),
            Event::Writable(l) => {
                self.links[l].full = false;
                if self.links[l].client_open {
                    self.write(l);
                }
            }
            Event::Cut(l) => self.cut(l),
            Event::Restart(n) => self.restart(n),
            Event::NodeWake(n) => {
                if self.nodes[n].stuck_until <= self.now {
                    self.serve_all(n);
                }
            }
            Event::ClientWake(c) => self.client_wakes(c),
            Event::Timer(c) => self.timer(c),
            Event::Op(c) => self.op(c),
            Event::Fault => self.fault(),
            Event::Expire(n) => self.expire(n),
        }
        true
    }

    /// No bytes under way, everybody connected.
    fn is_quiet(&self) -> bool {
        self.flying == 0 && self.clients.iter().all(|client| client.is_at_rest(&self.links))
    }

    pub fn until_quiet(&mut self) -> bool {
        self.until("quiet", Self::is_quiet)
    }

    /// Goes on until something has come about, which takes a bounded time where nothing is wrong.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> bool {
        let (last, most) = (self.now + BOUND, self.steps + BOUND_STEPS);
        while !is_so(self) {
            if self.now > last || self.steps > most {
                self.violated(Check::Progress, format!("no {what} after {} steps", self.steps));
                self.hopeless = true;
            }
            if self.hopeless || self.oracle.violation.is_some() || !self.step() {
                return false;
            }
        }
        true
    }

    pub fn pass(&mut self, time: u64) {
        let end = self.now + time;
        let most = self.steps + BOUND_STEPS;
        while self.oracle.violation.is_none() && self.steps < most {
            match self.queue.peek() {
                Some(Reverse((at, ..))) if *at <= end => self.step(),
                _ => break,
            };
        }
        self.now = end;
    }

    /// One way over the network.
    pub fn delay(&mut self) -> u64 {
        let latency = self.plan.latency;
        if !self.calm && self.rng.permille(self.plan.spikes_permille) {
            return self.rng.below(self.plan.ttls_ms[0] * MS * 3 / 2);
        }
        latency / 2 + self.rng.below(latency + 1)
    }
}

/// Enough for the longest wait of an engine before it connects again, which is half a minute.
const BOUND: u64 = 120_000 * MS;
const BOUND_STEPS: u32 = 20_000;
