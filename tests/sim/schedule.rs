//! From a seed to a schedule: how many take part, how fast everything is, and which faults come how often.

use std::time::Duration;

use quorlock::Drift;

use crate::{
    clock::{Clock, MS},
    rng::Rng,
};

/// Which assumptions hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// All that the algorithm asks for: whatever happens, nothing may go wrong.
    Sound,
    /// Keys are deleted by others. Each client has a resource of its own: nobody can be excluded any more, but
    /// losses are to be noticed.
    Deleted,
    /// As sound; and locks come with fencing tokens, and are put back where they are missing.
    Fenced,
    /// Nodes restart without their memory, and take part again at once. Broken on purpose.
    Amnesia,
    /// The same, with fencing tokens: they at least are not given twice.
    FencedAmnesia,
    /// Nodes restart without their memory, and clients hold them back.
    Guarded,
    /// Clocks run apart by more than is allowed for. Broken on purpose.
    Drift,
    /// No faults at all, and the cancel of whatever is pending at one step.
    Cancel { step: u32 },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// A connection ends, in one of several ways.
    Cut,
    /// Nothing passes between a client and a node for a while: neither way, or only one.
    Partition,
    PartitionUp,
    PartitionDown,
    /// A node is stopped for a while (`SIGSTOP`): it takes connections and bytes, and runs nothing.
    Stuck,
    Slow,
    /// A node is restarted, with its memory.
    Crash,
    /// A node is restarted without its memory, after every lock has ended.
    CrashLong,
    /// A node is restarted without its memory at once.
    CrashAmnesia,
    /// A node answers everything with one kind of error for a while.
    Refusing,
    /// One command is answered with an error.
    Error,
    /// One reply is not what the command has.
    WrongReply,
    ScriptFlush,
    /// A client is stopped for a while.
    Pause,
    ClientCrash,
    /// Somebody deletes a key.
    Delete,
}

impl Fault {
    pub const ALL: [Self; 16] = [
        Self::Cut,
        Self::Partition,
        Self::PartitionUp,
        Self::PartitionDown,
        Self::Stuck,
        Self::Slow,
        Self::Crash,
        Self::CrashLong,
        Self::CrashAmnesia,
        Self::Refusing,
        Self::Error,
        Self::WrongReply,
        Self::ScriptFlush,
        Self::Pause,
        Self::ClientCrash,
        Self::Delete,
    ];
}

#[derive(Debug)]
pub struct Plan {
    pub mode: Mode,
    pub nodes: usize,
    pub clients: usize,
    pub resources: u8,
    /// The ttls that clients ask for.
    pub ttls_ms: [u64; 3],
    pub drift: Drift,
    /// One way, mostly.
    pub latency: u64,
    /// How often a delay is of the order of a ttl.
    pub spikes_permille: u32,
    pub partial_permille: u32,
    pub node_timeout: Duration,
    pub connect_timeout: Duration,
    pub retry: (Duration, Duration),
    pub fault_gap: u64,
    pub faults: Vec<Fault>,
    /// Whether connections are cut with something under way more often than by chance.
    pub cuts_writes: bool,
    pub op_gap: u64,
    /// Whether callers keep their locks to the end of the validity, and do not extend them.
    pub to_the_end: bool,
    pub steps: u32,
    /// Whether every node is connected before anything begins.
    pub connected: bool,
    pub tracking: bool,
    pub client_clocks: [Clock; CLIENTS_MAX],
    pub node_clocks: [Clock; NODES_MAX],
    /// Nodes that know no `HELLO`.
    pub plain: u8,
    /// Whether extensions put locks back.
    pub repair: bool,
    /// How far each node's wall clock is ahead. All less than any outage with a loss of memory takes.
    pub wall_clocks: [u64; NODES_MAX],
}

impl Mode {
    pub fn is_fenced(self) -> bool {
        matches!(self, Self::Fenced | Self::FencedAmnesia)
    }
}

pub const NODES_MAX: usize = 5;
pub const CLIENTS_MAX: usize = 4;

impl Plan {
    pub fn draw(mode: Mode, rng: &mut Rng) -> Self {
        let ttl_ms = rng.pick(&[20, 40, 100, 200, 500]);
        let ttl = ttl_ms * MS;
        let latency = ttl / rng.pick(&[1000, 300, 100, 30, 12]);
        let share = |part: u64| Duration::from_nanos(ttl / part);
        // Where nothing is wrong two round trips fit in.
        let trips = |count: u64| Duration::from_nanos(latency * count);
        let exact = rng.coin();
        let faults = faults(mode, rng);
        let contended = mode != Mode::Deleted;
        let clients = if contended { rng.pick(&[2, 2, 2, 3, 3, 4]) } else { rng.pick(&[1, 2, 3]) };
        Self {
            mode,
            nodes: rng.pick(&[1, 2, 3, 3, 3, 3, 4, 5, 5]),
            clients,
            resources: if contended { rng.pick(&[1, 1, 1, 2]) } else { clients as u8 },
            ttls_ms: [ttl_ms, ttl_ms / 2, ttl_ms * 2],
            drift: if exact { Drift::new(10_000, Duration::ZERO) } else { Drift::default() },
            latency,
            spikes_permille: rng.pick(&[0, 5, 20, 60]),
            partial_permille: rng.pick(&[0, 20, 100]),
            node_timeout: share(rng.pick(&[20, 8, 4, 2])).max(trips(8)),
            connect_timeout: share(rng.pick(&[8, 3, 1])).max(trips(12)),
            retry: (share(40), share(rng.pick(&[16, 8, 4]))),
            // Where restarted nodes stay away, fewer faults leave anybody to ask.
            fault_gap: ttl / rng.pick(&[12, 6, 3, 1]) * if mode == Mode::Guarded { 2 } else { 1 },
            cuts_writes: faults.contains(&Fault::Cut),
            faults,
            op_gap: ttl / rng.pick(&[40, 20, 10, 5]),
            to_the_end: rng.permille(400),
            steps: rng.between(100, 180) as u32,
            connected: mode == Mode::Sound && rng.permille(850) || mode != Mode::Sound,
            tracking: rng.permille(700),
            client_clocks: std::array::from_fn(|_| clock(mode, rng)),
            node_clocks: std::array::from_fn(|_| clock(mode, rng)),
            plain: if rng.permille(200) { rng.below(32) as u8 } else { 0 },
            repair: mode.is_fenced() && rng.coin(),
            wall_clocks: std::array::from_fn(|_| match mode {
                Mode::Fenced => rng.below(ttl),
                _ => 0,
            }),
        }
    }

    /// No key lives longer, by any clock.
    pub fn longest_life(&self) -> u64 {
        self.ttls_ms[2] * MS * 11 / 10 + 2 * MS
    }
}

fn faults(mode: Mode, rng: &mut Rng) -> Vec<Fault> {
    if matches!(mode, Mode::Cancel { .. }) {
        return Vec::new();
    }
    let possible = Fault::ALL.into_iter().filter(|fault| match fault {
        Fault::CrashAmnesia => matches!(mode, Mode::Amnesia | Mode::FencedAmnesia | Mode::Guarded),
        Fault::Delete => mode == Mode::Deleted,
        _ => true,
    });
    // A few kinds each time: with all of them at once nobody ever gets a lock.
    let kinds = rng.between(1, 5) as usize;
    let mut faults: Vec<_> = possible.collect();
    while faults.len() > kinds {
        faults.swap_remove(rng.below(faults.len() as u64) as usize);
    }
    match mode {
        Mode::Amnesia | Mode::FencedAmnesia | Mode::Guarded => faults.push(Fault::CrashAmnesia),
        Mode::Deleted => faults.push(Fault::Delete),
        _ => {}
    }
    faults
}

/// Two clocks may run apart by a little less than the drift allows for, one percent of the ttl.
fn clock(mode: Mode, rng: &mut Rng) -> Clock {
    let ppm = match mode {
        Mode::Drift => rng.pick(&[-150_000, 150_000]),
        _ => rng.pick(&[-PPM_MAX, -PPM_MAX, -PPM_MAX / 2, 0, PPM_MAX, PPM_MAX]),
    };
    Clock { offset: 1_000 * MS + rng.below(1_000 * MS), ppm }
}

const PPM_MAX: i64 = 4_900;
