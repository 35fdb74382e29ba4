//! A server as far as locks need one, with a clock of its own.
//!
//! Keys with tokens and an end, the two scripts, the greeting, invalidations, and the errors of a server that
//! does not do what it is asked. Behaviour as observed on real ones: expiry in whole milliseconds rounded so
//! that a key never lives shorter than its ttl, bytes of a closed connection run all the same.

use std::io::Write as _;

use crate::{
    clock::{At, Clock, MS},
    counter::{Answer, Counter, Slot},
    link::{Said, Sent},
    oracle::Check,
    wire::{Command, Lua, PREFIX},
    world::{Event, World, trace},
};

#[derive(Debug)]
pub struct Node {
    pub clock: Clock,
    pub keys: [Option<Key>; KEYS_MAX],
    pub counters: [Counter; KEYS_MAX],
    pub scripts: u8,
    /// Which process this is: each restart makes another one.
    pub process: u32,
    /// When that was, if the simulation has seen it.
    pub started: Option<At>,
    pub up: bool,
    /// Whether a restart finds no keys.
    pub forgets: bool,
    pub stuck_until: At,
    /// How long it takes for each reply, beside the network.
    pub slowness: u64,
    pub refusing: Option<Refusal>,
    pub error_next: bool,
    pub wrong_next: bool,
    /// Knows no `HELLO`.
    pub plain: bool,
    /// Which connection wants to hear of which key.
    trackers: Vec<(usize, u8)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Key {
    pub token: usize,
    /// The last millisecond of its life, by the node's clock.
    pub ends_ms: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    Busy,
    Loading,
    MasterDown,
    Misconf,
    NoAuth,
    Oom,
    ReadOnly,
}

pub const KEYS_MAX: usize = 4;

impl Node {
    pub fn new(clock: Clock, plain: bool, process: u32) -> Self {
        Self {
            clock,
            keys: [None; KEYS_MAX],
            counters: [Counter::NONE; KEYS_MAX],
            scripts: 0,
            process,
            started: None,
            up: true,
            forgets: false,
            stuck_until: 0,
            slowness: 0,
            refusing: None,
            error_next: false,
            wrong_next: false,
            plain,
            trackers: Vec::new(),
        }
    }

    pub fn runs(&self, now: At) -> bool {
        self.up && self.stuck_until <= now
    }

    fn now_ms(&self, now: At) -> u64 {
        self.clock.local(now) / MS
    }

    /// The first true moment at which the key is gone.
    pub fn end_of(&self, key: Key) -> At {
        if key.ends_ms == u64::MAX { At::MAX } else { self.clock.at((key.ends_ms + 1) * MS) }
    }

    /// What went down with the process.
    pub fn restart(&mut self) {
        self.up = true;
        self.scripts = 0;
        self.refusing = None;
        self.error_next = false;
        self.wrong_next = false;
    }
}

impl Refusal {
    pub const ALL: [Self; 7] = [
        Self::Busy,
        Self::Loading,
        Self::MasterDown,
        Self::Misconf,
        Self::NoAuth,
        Self::Oom,
        Self::ReadOnly,
    ];

    fn text(self) -> &'static [u8] {
        match self {
            Self::Busy => b"-BUSY Redis is busy running a script.\r\n",
            Self::Loading => b"-LOADING Redis is loading the dataset in memory\r\n",
            Self::MasterDown => b"-MASTERDOWN Link with MASTER is down.\r\n",
            Self::Misconf => b"-MISCONF Redis is configured to save RDB snapshots.\r\n",
            Self::NoAuth => b"-NOAUTH Authentication required.\r\n",
            Self::Oom => b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
            Self::ReadOnly => b"-READONLY You can't write against a read only replica.\r\n",
        }
    }

    /// Whether a client is right to look for a better connection afterwards.
    fn is_stale(self) -> bool {
        matches!(self, Self::MasterDown | Self::NoAuth | Self::ReadOnly)
    }

    /// Whether the client is to come back with a release.
    fn puts_off(self) -> bool {
        matches!(self, Self::Busy | Self::Loading | Self::Misconf | Self::ReadOnly)
    }

    fn applies(self, command: Command, key_is_there: bool) -> bool {
        use Command as C;
        match command {
            C::Hello | C::Auth => self == Self::NoAuth,
            C::Introduce | C::Track => matches!(self, Self::NoAuth | Self::Busy),
            C::Caching => self == Self::NoAuth,
            C::Info => matches!(self, Self::NoAuth | Self::Busy | Self::MasterDown),
            C::Load(_) => matches!(self, Self::NoAuth | Self::Busy | Self::Loading),
            C::Pttl { .. } => !matches!(self, Self::Misconf | Self::Oom | Self::ReadOnly),
            C::Set { .. } => true,
            C::Run { lua: Lua::AcquireFenced, .. } => self != Self::ReadOnly || !key_is_there,
            C::Run { lua: Lua::Repair, .. } => true,
            // Refused where it comes to a write.
            C::Run { .. } if self == Self::ReadOnly => key_is_there,
            C::Run { .. } => self != Self::Oom,
        }
    }
}

// What a node does.
impl World {
    /// Runs what has come over one connection.
    pub fn serve(&mut self, l: usize) {
        let n = self.links[l].node;
        while self.nodes[n].runs(self.now) && self.links[l].node_open {
            let Some(sent) = self.links[l].next_command() else {
                break;
            };
            self.do_command(l, sent);
        }
        self.answer(l);
    }

    /// Runs what has come over any connection, in any order.
    pub fn serve_all(&mut self, n: usize) {
        while self.nodes[n].runs(self.now) {
            let mut waiting = std::mem::take(&mut self.scratch);
            waiting.clear();
            let of_node = |l: &usize| self.links[*l].node == n && self.links[*l].has_work();
            waiting.extend((0..self.links_used).filter(of_node));
            let chosen = waiting.get(self.rng.below(waiting.len() as u64) as usize).copied();
            self.scratch = waiting;
            let Some(l) = chosen else {
                return;
            };
            if let Some(sent) = self.links[l].next_command() {
                self.do_command(l, sent);
            }
            self.answer(l);
        }
    }

    fn do_command(&mut self, l: usize, sent: Sent) {
        let n = self.links[l].node;
        let caching = std::mem::take(&mut self.links[l].caching);
        self.expire(n);
        if !self.links[l].client_open {
            self.tally.run_after_close += 1;
        }
        let key_is_there = match sent.command {
            Command::Run { key, .. } => self.nodes[n].keys[usize::from(key)].is_some(),
            _ => false,
        };
        let refusal = self.nodes[n].refusing.filter(|by| by.applies(sent.command, key_is_there));
        if let Some(refusal) = refusal {
            self.refuse(l, sent, refusal.text(), refusal.is_stale(), refusal.puts_off());
        } else if matches!(sent.command, Command::Set { .. } | Command::Run { .. })
            && std::mem::take(&mut self.nodes[n].error_next)
        {
            self.tally.errors += 1;
            self.refuse(l, sent, b"-ERR something went wrong\r\n", false, false);
        } else if self.nodes[n].wrong_next && self.links[l].ready {
            self.nodes[n].wrong_next = false;
            self.answer_wrongly(l, sent);
        } else {
            self.execute(l, sent, caching);
        }
    }

    fn refuse(&mut self, l: usize, sent: Sent, text: &[u8], stale: bool, puts_off: bool) {
        let n = self.links[l].node;
        trace!(self, "n{n} refuses {:?}: {}", sent.command, text.escape_ascii());
        let said = match sent.command {
            _ if stale => Said::Stale,
            Command::Set { .. } => Said::SetFailed(sent.token),
            Command::Run { lua, .. } if lua.claims() => Said::SetFailed(sent.token),
            Command::Run { .. } => Said::ScriptFailed(sent.token),
            _ => Said::Courtesy,
        };
        match sent.command {
            Command::Set { .. } => self.oracle.tokens[sent.token].failed |= 1 << n,
            Command::Run { lua, .. } if lua.claims() || lua == Lua::Confirm => {
                self.oracle.tokens[sent.token].failed |= 1 << n;
            }
            Command::Run { lua, .. } if lua.releases() && !puts_off => {
                self.oracle.tokens[sent.token].let_go |= 1 << n;
            }
            _ => {}
        }
        self.links[l].say(text, said);
    }

    /// The command runs, but its reply is none that it can have; or something comes before its reply.
    fn answer_wrongly(&mut self, l: usize, sent: Sent) {
        self.tally.wrong_replies += 1;
        let inserted = self.rng.coin();
        if inserted {
            self.links[l].say(b"+PONG\r\n", Said::Wrong);
        }
        let before = self.links[l].down.len();
        self.execute(l, sent, false);
        if !inserted {
            self.links[l].down.truncate(before);
            self.links[l].replies.pop_back();
            self.links[l].say(b"*1\r\n:7\r\n", Said::Wrong);
        }
        trace!(self, "n{} answers wrongly on link {l}", self.links[l].node);
    }

    fn execute(&mut self, l: usize, sent: Sent, caching: bool) {
        let n = self.links[l].node;
        match sent.command {
            Command::Hello if self.nodes[n].plain => {
                self.links[l].say(b"-ERR unknown command `HELLO`\r\n", Said::Courtesy);
            }
            Command::Hello => self.links[l].say(b"%1\r\n$5\r\nproto\r\n:3\r\n", Said::Courtesy),
            Command::Auth | Command::Introduce | Command::Track => {
                self.links[l].say(b"+OK\r\n", Said::Courtesy);
            }
            Command::Caching => {
                self.links[l].caching = true;
                self.links[l].say(b"+OK\r\n", Said::Courtesy);
            }
            Command::Info => self.say_who(l),
            Command::Load(lua) => {
                self.nodes[n].scripts |= lua.bit();
                self.links[l].say(b"$3\r\nsha\r\n", Said::Courtesy);
            }
            Command::Pttl { key } => self.say_remaining(l, key, caching),
            Command::Set { key, nx, px, .. } => self.set(l, sent.token, key, nx, px),
            Command::Run { lua, by_source, key, ttl_ms, count, .. } => {
                if by_source {
                    self.nodes[n].scripts |= lua.bit();
                    self.tally.by_source += 1;
                }
                if self.nodes[n].scripts & lua.bit() == 0 {
                    trace!(self, "n{n} has no script for {lua:?}");
                    self.links[l].say(b"-NOSCRIPT No matching script.\r\n", Said::Courtesy);
                } else if lua.extends() || lua.releases() {
                    self.script(l, lua, sent.token, key, ttl_ms);
                } else {
                    self.fenced(l, lua, sent.token, key, ttl_ms, count);
                }
            }
        }
    }

    fn say_who(&mut self, l: usize) {
        let n = self.links[l].node;
        let mut info = *b"$42\r\nuptime_in_seconds:0000\r\nrun_id:n0-00000000\r\n";
        let len = info.len();
        info[len - 12] += n as u8;
        let mut rest = self.nodes[n].process;
        for digit in info[len - 10..len - 2].iter_mut().rev() {
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
        // By its own clock, as all that it says of time.
        let clock = self.nodes[n].clock;
        let local = |at| clock.local(at) / 1_000_000_000;
        let mut uptime = self.nodes[n].started.map_or(1000, |at| local(self.now) - local(at));
        for digit in info[len - 26..len - 22].iter_mut().rev() {
            *digit += (uptime % 10) as u8;
            uptime /= 10;
        }
        self.links[l].say(&info, Said::Courtesy);
    }

    fn say_remaining(&mut self, l: usize, key: u8, caching: bool) {
        let n = self.links[l].node;
        let now_ms = self.nodes[n].now_ms(self.now);
        let left = match self.nodes[n].keys[usize::from(key)] {
            Some(found) => {
                if caching {
                    self.nodes[n].trackers.push((l, key));
                    let end = self.nodes[n].end_of(found);
                    if end < At::MAX {
                        let seen = end + self.rng.below(2 * MS);
                        self.push(seen, Event::Expire(n));
                    }
                }
                found.ends_ms.saturating_sub(now_ms) as i64
            }
            None => -2,
        };
        let down = &mut self.links[l].down;
        write!(down, ":{left}\r\n").unwrap();
        self.links[l].say(b"", Said::Courtesy);
    }

    fn set(&mut self, l: usize, token: usize, key: u8, nx: bool, px: Option<u64>) {
        let n = self.links[l].node;
        self.check_sent(n, token);
        if let (Some(there), true) = (self.nodes[n].keys[usize::from(key)], nx) {
            trace!(self, "n{n} refuses t{token}: t{} is there", there.token);
            let null: &[u8] = if self.nodes[n].plain { b"$-1\r\n" } else { b"_\r\n" };
            return self.links[l].say(null, Said::Refused(token));
        }
        self.links[l].say(b"+OK\r\n", Said::Granted(token));
        self.grant(l, token, key, px);
    }

    /// A token takes the key.
    fn grant(&mut self, l: usize, token: usize, key: u8, px: Option<u64>) {
        let n = self.links[l].node;
        let late = !self.links[l].client_open;
        let ends_ms = match px {
            Some(ttl) if ttl <= self.plan.ttls_ms[2] => self.nodes[n].now_ms(self.now) + ttl,
            Some(ttl) => {
                self.violated(Check::Leftover, format!("a key is to live for {ttl} ms"));
                self.nodes[n].now_ms(self.now) + ttl
            }
            None => {
                self.violated(Check::Leftover, format!("a key without an end on n{n}"));
                u64::MAX
            }
        };
        let before = self.nodes[n].keys[usize::from(key)].replace(Key { token, ends_ms });
        trace!(self, "n{n} grants t{token} until {ends_ms} ms by its clock, late: {late}");
        let facts = &mut self.oracle.tokens[token];
        facts.granted |= 1 << n;
        facts.let_go &= !(1 << n);
        if late {
            facts.late |= 1 << n;
            self.tally.late_sets += 1;
        }
        if let Some(before) = before.filter(|before| before.token != token) {
            self.violated(Check::Overwrite, format!("t{token} overwrites t{}", before.token));
            self.gone(n, before.token);
        }
        self.changed(n, key, Some(l));
    }

    /// The scripts of fenced locks, and the one that puts locks back.
    fn fenced(&mut self, l: usize, lua: Lua, token: usize, key: u8, ttl_ms: u64, count: u64) {
        let n = self.links[l].node;
        let slot = usize::from(key);
        if lua.claims() {
            self.check_sent(n, token);
        }
        let there = self.nodes[n].keys[slot].map(|there| there.token);
        let mut both = Slot { key: there, counter: self.nodes[n].counters[slot] };
        let (run, count) = (self.nodes[n].process, count as i64);
        let answer = match lua {
            Lua::AcquireUnseeded => both.acquire(token, run, || 0),
            Lua::AcquireFenced => both.acquire(token, run, || self.wall_clock(n)),
            Lua::Confirm => both.confirm(token, run, count),
            _ => both.repair(token, (count > 0).then_some(count)),
        };
        trace!(self, "n{n} runs {lua:?} of t{token} with {count}: {answer:?}");
        self.nodes[n].counters[slot] = both.counter;
        let id = self.oracle.tokens[token].digits();
        match answer {
            Answer::Set(count) => {
                let said = Said::Counted(token, count as u64);
                self.links[l].say(&bulk(&format!("set {count} {id}")), said);
                self.grant(l, token, key, Some(ttl_ms));
            }
            Answer::Taken => {
                self.links[l].say(&bulk(&format!("taken {id}")), Said::Refused(token));
            }
            Answer::Count(count) => {
                let said = Said::Confirmed(token, count as u64);
                self.links[l].say(&bulk(&format!("count {count} {id}")), said);
            }
            Answer::Gone => self.links[l].say(&bulk(&format!("gone {id}")), Said::Denied(token)),
            Answer::Number(4) => {
                self.tally.repairs += 1;
                self.links[l].say(b":4\r\n", Said::Repaired(token));
                self.grant(l, token, key, Some(ttl_ms));
                self.check_support(token);
            }
            Answer::Number(number) => {
                self.links[l].say(format!(":{number}\r\n").as_bytes(), Said::Absent(token));
            }
            Answer::CounterError | Answer::WrongType => panic!("nobody else writes counters"),
        }
    }

    fn check_sent(&mut self, n: usize, token: usize) {
        if self.oracle.tokens[token].not_sent & (1 << n) != 0 {
            self.violated(Check::Credit, format!("n{n} runs a SET that was said not to be sent"));
        }
    }

    /// In microseconds.
    fn wall_clock(&self, n: usize) -> i64 {
        (WALL_CLOCK + (self.now + self.plan.wall_clocks[n]) / 1000) as i64
    }

    fn script(&mut self, l: usize, lua: Lua, token: usize, key: u8, ttl_ms: u64) {
        let n = self.links[l].node;
        let slot = usize::from(key);
        let there = self.nodes[n].keys[slot];
        let ours = there.map(|there| there.token == token);
        trace!(self, "n{n} runs {lua:?} of t{token}, ours: {ours:?}");
        if lua.releases() {
            self.oracle.tokens[token].let_go |= 1 << n;
        }
        let now_ms = self.nodes[n].now_ms(self.now);
        match (lua, ours) {
            (Lua::Extend | Lua::ExtendOrCreate, Some(true)) | (Lua::ExtendOrCreate, None) => {
                self.nodes[n].keys[slot] = Some(Key { token, ends_ms: now_ms + ttl_ms });
                self.links[l].say(b":2\r\n", Said::Extended(token));
                if ttl_ms > self.plan.ttls_ms[2] {
                    self.violated(Check::Leftover, format!("a key is to live for {ttl_ms} ms"));
                }
                if ours.is_none() {
                    self.violated(Check::Extension, format!("n{n}: t{token} comes back to life"));
                }
                self.check_support(token);
                self.changed(n, key, Some(l));
            }
            (Lua::Extend, None) => self.links[l].say(b":-2\r\n", Said::Denied(token)),
            (Lua::Extend | Lua::ExtendOrCreate, Some(false)) => {
                self.links[l].say(b":-3\r\n", Said::Denied(token));
            }
            (Lua::Release | Lua::ReleaseAnything, None) => {
                self.links[l].say(b":0\r\n", Said::Absent(token));
            }
            (Lua::Release, Some(false)) => self.links[l].say(b":-1\r\n", Said::Absent(token)),
            (Lua::Release, Some(true)) | (Lua::ReleaseAnything, Some(_)) => {
                self.nodes[n].keys[slot] = None;
                self.links[l].say(b":1\r\n", Said::Deleted(token));
                if let Some(there) = there.filter(|there| there.token != token) {
                    let what = format!("n{n}: the release of t{token} deletes t{}", there.token);
                    self.violated(Check::ForeignDelete, what);
                }
                if let Some(there) = there {
                    self.gone(n, there.token);
                }
                self.changed(n, key, Some(l));
            }
            (Lua::AcquireFenced | Lua::AcquireUnseeded | Lua::Confirm | Lua::Repair, _) => {
                unreachable!("{lua:?} has its own place")
            }
        }
    }

    /// Removes what has ended.
    pub fn expire(&mut self, n: usize) {
        let now_ms = self.nodes[n].now_ms(self.now);
        for slot in 0..KEYS_MAX {
            if self.nodes[n].keys[slot].is_some_and(|key| now_ms > key.ends_ms) {
                self.nodes[n].keys[slot] = None;
                self.changed(n, slot as u8, None);
            }
        }
    }

    /// Tells who wants to hear of a key.
    pub fn changed(&mut self, n: usize, key: u8, by: Option<usize>) {
        let mut i = 0;
        while let Some(&(l, of)) = self.nodes[n].trackers.get(i) {
            if of != key {
                i += 1;
                continue;
            }
            self.nodes[n].trackers.swap_remove(i);
            if self.links[l].node_open && Some(l) != by {
                self.tally.invalidations += 1;
                let push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\n";
                self.links[l].down.extend_from_slice(push);
                self.links[l].down.extend_from_slice(PREFIX);
                self.links[l].say(&[b'a' + key, b'\r', b'\n'], Said::Push);
                self.answer(l);
            }
        }
    }

    pub fn forget_trackers(&mut self, n: usize) {
        self.nodes[n].trackers.clear();
    }
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into()
}

/// What a wall clock shows at the start of a schedule: some day in 2025.
const WALL_CLOCK: u64 = 1_750_000_000_000_000;
