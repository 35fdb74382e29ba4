//! Who truly holds what, seen from outside: every key on every node, every byte that was written and read.
//!
//! It knows nothing of how an engine works. What it holds the engines to are the promises of the crate's front
//! page, and the rules of the wire that they rest on.

use std::fmt;

use quorlock::{
    Fencing, FencingToken, LostReason, Vote,
    internal::{engine::Grant, lease::Lease, slab::Id},
};

use crate::{
    client::Hold,
    link::{Link, Said},
    node::KEYS_MAX,
    schedule::{Mode, NODES_MAX},
    transport::token_in,
    wire::{Command, Lua},
    world::{World, trace},
};

/// What is checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Check {
    /// No two callers believe to hold one resource at one time.
    Exclusion,
    /// A caller believes no longer than a quorum of nodes keep its key.
    Support,
    /// A vote is what that node truly said of that token.
    Credit,
    /// A release deletes its own key alone.
    ForeignDelete,
    /// A `SET` replaces no key.
    Overwrite,
    /// Every key goes: by the release that its client sends, or at the end of a ttl that was asked for.
    Leftover,
    /// A loss is said at the validity's end, or when a quorum has denied; and not without a cause.
    Loss,
    /// Once the faults are over, everything works again. No request outlives its deadline.
    Progress,
    /// A lock is handed out with validity left.
    Validity,
    /// Each attempt has a token of its own.
    Token,
    /// A connection is not given up without a cause, and given up with one.
    Connection,
    /// A fencing token is what a quorum of nodes counted with the key at the attempt, and were asked about as the mode
    /// demands.
    Count,
    /// Fencing tokens are unique, and go up from one lock to the next.
    Fencing,
    /// An extension succeeds by the nodes that stand for the lock.
    Standing,
    /// Extensions are asked of nodes that hold the lock, in its lifetime, and never bring one back.
    Extension,
}

#[derive(Debug)]
pub struct Violation {
    pub check: Check,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}

#[derive(Debug, Default)]
pub struct Oracle {
    pub tokens: Vec<Token>,
    pub violation: Option<Violation>,
    /// If set, nothing else is looked for.
    pub only: Option<Check>,
    /// The fencing tokens that were given, for each resource.
    taken: [Vec<u64>; KEYS_MAX],
}

/// What is true of one token. Sets of nodes, a bit for each.
#[derive(Debug, Default)]
pub struct Token {
    id: u128,
    pub client: usize,
    /// Its client is gone.
    orphan: bool,
    /// Somebody else deleted a key of it.
    pub deleted: bool,
    /// Where the `SET` was written to, and a release.
    written: u8,
    release_written: u8,
    /// Where the `SET` ran and took the key; where it did on a connection that the client had left; where it was
    /// answered with an error.
    pub granted: u8,
    pub late: u8,
    pub failed: u8,
    /// Where a release ran since, or was refused for good.
    pub let_go: u8,
    /// Where the engine said that nothing was sent.
    pub not_sent: u8,
    /// What replies the client has read.
    heard_granted: u8,
    heard_refused: u8,
    heard_failed: u8,
    heard_denied: u8,
    heard_deleted: u8,
    /// Which counts the client has read, in answers to an acquire and to a confirm; 0 for none.
    heard_counts: [u64; NODES_MAX],
    heard_confirmed: [u64; NODES_MAX],
    /// The highest fencing token that was given before the first byte was written.
    floor: u64,
    /// Whether it came with one, and then: the nodes that stand for it; those to which it came later; those of them to
    /// which it had when the latest extension began; and those that have granted that one.
    fenced: bool,
    stands: u8,
    joined: u8,
    joined_before: u8,
    extended: u8,
    /// How many extensions were asked for and are not settled.
    extensions: u32,
}

impl Token {
    fn begin_extension(&mut self) {
        self.joined_before = self.joined;
        self.extended = 0;
    }

    /// A node has it again, and it counts there as if it had never been denied.
    fn repaired(&mut self, bit: u8) {
        self.heard_refused &= !bit;
        self.heard_failed &= !bit;
        self.heard_denied &= !bit;
        self.joined |= bit & !self.stands;
    }

    /// What a fenced reply repeats of it.
    pub fn digits(&self) -> String {
        String::from_utf8_lossy(&self.id.to_le_bytes()[..8]).into_owned()
    }
}

impl Oracle {
    /// The number of a token, from its digits.
    pub fn find(&mut self, id: u128) -> usize {
        match self.tokens.iter().rposition(|token| token.id == id) {
            Some(found) => found,
            None => {
                self.tokens.push(Token { id, ..Token::default() });
                self.tokens.len() - 1
            }
        }
    }

    /// A caller asks for an extension.
    pub fn extension_begins(&mut self, t: usize) {
        self.tokens[t].extensions += 1;
        if self.tokens[t].extensions == 1 {
            self.tokens[t].begin_extension();
        }
    }

    pub fn orphan(&mut self, client: usize) {
        let of_client = self.tokens.iter_mut().filter(|token| token.client == client);
        of_client.for_each(|token| token.orphan = true);
    }
}

impl World {
    pub fn violated(&mut self, check: Check, what: String) {
        let looked_for = self.oracle.only.is_none_or(|only| only == check);
        if looked_for && self.oracle.violation.is_none() {
            trace!(self, "VIOLATED {check:?}: {what}");
            self.oracle.violation = Some(Violation { check, what });
        }
    }

    fn quorum(&self) -> u32 {
        self.plan.nodes as u32 / 2 + 1
    }

    /// A client has written a command to its end. Gives the number of its token.
    pub fn asked(&mut self, l: usize, command: Command) -> usize {
        let Link { client: c, node: n, .. } = self.links[l];
        trace!(self, "c{c} > n{n} on link {l}: {command:?}");
        let Some(id) = token_in(command) else {
            return usize::MAX;
        };
        self.links[l].ready = true;
        let t = self.oracle.find(id);
        let bit = 1 << n;
        let token = &mut self.oracle.tokens[t];
        token.client = c;
        match command {
            Command::Set { key, .. } => self.check_claim(c, t, key, bit),
            Command::Run { lua, by_source: true, .. } if lua.claims() => {}
            Command::Run { lua, key, .. } if lua.claims() => self.check_claim(c, t, key, bit),
            Command::Run { lua: Lua::Confirm, .. } => {
                if token.heard_granted & bit == 0 {
                    let what = format!("c{c} asks n{n}, which is not known to have it, about t{t}");
                    self.violated(Check::Count, what);
                }
            }
            Command::Run { lua: Lua::Repair, .. } => {
                if token.release_written & bit != 0 {
                    let what = format!("c{c} puts t{t} back, which it has released");
                    self.violated(Check::Extension, what);
                }
            }
            Command::Run { lua, by_source, .. } if lua.extends() => {
                self.check_extension(l, t, by_source);
            }
            _ => token.release_written |= bit,
        }
        t
    }

    fn check_claim(&mut self, c: usize, t: usize, key: u8, bit: u8) {
        let token = &mut self.oracle.tokens[t];
        if token.written == 0 {
            let taken = &self.oracle.taken[usize::from(key)];
            token.floor = taken.iter().copied().max().unwrap_or(0);
        }
        if token.written & bit != 0 {
            self.violated(Check::Token, format!("c{c} uses t{t} a second time"));
        } else {
            token.written |= bit;
        }
    }

    fn check_extension(&mut self, l: usize, t: usize, again: bool) {
        let Link { client: c, node: n, excused, .. } = self.links[l];
        if excused {
            return; // The socket was full, and may have kept it back.
        }
        let token = &self.oracle.tokens[t];
        let out = token.heard_refused | token.heard_failed | token.heard_denied;
        // It was asked before that was heard.
        if out & (1 << n) != 0 && !again {
            let what = format!("c{c} extends t{t} on n{n}, which does not have it");
            return self.violated(Check::Extension, what);
        }
        if token.release_written & (1 << n) != 0 {
            let what = format!("c{c} extends t{t}, which it has released");
            return self.violated(Check::Extension, what);
        }
        let hold = self.clients[c].holds.iter().find(|hold| hold.token == t);
        let over = hold.is_some_and(|hold| !hold.is_believed(self.now));
        if over {
            self.violated(Check::Extension, format!("c{c} extends t{t} after its end"));
        }
    }

    /// A client has read what has come over a connection. Says whether that has to end it.
    pub fn heard(&mut self, l: usize) -> bool {
        let n = self.links[l].node;
        let bit = 1 << n;
        while let Some(reply) = self.links[l].replies.front().copied() {
            if reply.end > self.links[l].here {
                break;
            }
            self.links[l].replies.pop_front();
            let tokens = &mut self.oracle.tokens;
            match reply.said {
                Said::Push => continue,
                Said::Wrong => {
                    self.links[l].excused = true;
                    return true;
                }
                Said::Stale => self.links[l].excused = true,
                Said::Granted(t) => tokens[t].heard_granted |= bit,
                Said::Counted(t, count) => {
                    tokens[t].heard_granted |= bit;
                    tokens[t].heard_counts[n] = count;
                    tokens[t].joined |= if tokens[t].fenced { bit } else { 0 };
                }
                Said::Confirmed(t, count) => tokens[t].heard_confirmed[n] = count,
                Said::Repaired(t) => tokens[t].repaired(bit),
                Said::Extended(t) => tokens[t].extended |= bit,
                Said::Refused(t) => tokens[t].heard_refused |= bit,
                Said::SetFailed(t) => tokens[t].heard_failed |= bit,
                Said::Denied(t) => {
                    tokens[t].heard_denied |= bit;
                    tokens[t].stands &= !bit;
                    tokens[t].joined &= !bit;
                }
                Said::Deleted(t) => tokens[t].heard_deleted |= bit,
                Said::Courtesy | Said::Absent(_) | Said::ScriptFailed(_) => {}
            }
            self.links[l].asked.pop_front();
        }
        false
    }

    /// A lock is handed out.
    pub fn check_grant(&mut self, c: usize, t: usize, grant: &Grant) {
        let now = self.clients[c].time(self.now);
        if grant.valid_until <= now {
            self.violated(Check::Validity, format!("c{c} is given t{t}, which is over"));
        }
        for (n, (_, vote)) in grant.attempt.votes().enumerate() {
            let bit = 1 << n;
            let token = &mut self.oracle.tokens[t];
            let true_vote = match vote {
                Vote::Granted => token.heard_granted & bit != 0,
                Vote::Refused => (token.heard_refused | token.heard_denied) & bit != 0,
                Vote::Failed(_) => token.failed & bit != 0,
                Vote::NotSent(_) => {
                    token.not_sent |= bit;
                    token.granted & bit == 0
                }
                _ => true,
            };
            if !true_vote {
                let what = format!("c{c}, t{t}: n{n} is said to have voted {vote:?}");
                self.violated(Check::Credit, what);
            }
        }
    }

    /// A lock comes with the fencing token that was asked for.
    pub fn check_fencing(
        &mut self,
        t: usize,
        key: u8,
        fencing: Fencing,
        taken: Option<FencingToken>,
    ) {
        let Some(number) = taken.map(FencingToken::get) else {
            if fencing != Fencing::Off {
                self.violated(Check::Count, format!("t{t} has no fencing token"));
            }
            return;
        };
        let (quorum, nodes) = (self.quorum(), self.plan.nodes);
        let token = &mut self.oracle.tokens[t];
        let which = |counts: &[u64; NODES_MAX]| -> u8 {
            (0..nodes).filter(|n| counts[*n] == number).map(|n| 1 << n).sum()
        };
        let (counted, confirmed) = (which(&token.heard_counts), which(&token.heard_confirmed));
        let is_confirmed = confirmed.count_ones() >= quorum;
        let at_once = fencing == Fencing::OneRoundTrip && counted.count_ones() >= quorum;
        self.tally.fenced += 1;
        self.tally.confirmed += u64::from(is_confirmed);
        token.fenced = true;
        token.stands = if is_confirmed { confirmed } else { counted };
        token.joined = token.heard_granted & !token.stands;
        let floor = match self.plan.mode {
            // Whoever takes a token holds the lock. So did those before, and not any more.
            Mode::Fenced => self.oracle.taken[usize::from(key)].iter().copied().max().unwrap_or(0),
            _ => token.floor,
        };
        let twice = self.oracle.taken[usize::from(key)].contains(&number);
        self.oracle.taken[usize::from(key)].push(number);
        if !is_confirmed && !at_once {
            let what =
                format!("t{t}: {number} counted by {counted:#b}, confirmed by {confirmed:#b}");
            self.violated(Check::Count, what);
        }
        if twice || number <= floor {
            self.violated(
                Check::Fencing,
                format!("t{t} has {number}, after {floor}, twice: {twice}"),
            );
        }
    }

    /// An extension was granted, or was not.
    pub fn check_extended(&mut self, t: usize, granted: bool) {
        let quorum = self.quorum();
        let token = &mut self.oracle.tokens[t];
        let standing = token.extended & token.stands;
        if granted {
            token.stands |= token.joined_before & token.joined;
        }
        token.extensions = token.extensions.saturating_sub(1);
        token.begin_extension();
        if granted && token.fenced && standing.count_ones() < quorum {
            self.violated(Check::Standing, format!("t{t} is extended by {standing:#b}"));
        }
    }

    /// A caller begins to believe, or believes for longer.
    pub fn check_hold(&mut self, c: usize, i: usize) {
        let hold = self.clients[c].holds[i];
        if self.oracle.tokens[hold.token].deleted {
            return;
        }
        for (other_c, client) in self.clients.iter().enumerate() {
            let other = client.holds.iter().enumerate().find(|(other_i, other)| {
                (other_c, *other_i) != (c, i)
                    && other.key == hold.key
                    && other.is_believed(self.now)
                    && !self.oracle.tokens[other.token].deleted
            });
            if let Some((_, other)) = other {
                let what =
                    format!("c{c} holds t{} while c{other_c} holds t{}", hold.token, other.token);
                return self.violated(Check::Exclusion, what);
            }
        }
        self.check_support(hold.token);
    }

    /// Whoever believes to hold a token must have a quorum of nodes that keep its key until the end.
    pub fn check_support(&mut self, t: usize) {
        let token = &self.oracle.tokens[t];
        let held = |hold: &&Hold| hold.token == t && hold.is_believed(self.now);
        let Some(hold) = self.clients[token.client].holds.iter().find(held) else {
            return;
        };
        let end = hold.end;
        if token.deleted {
            return;
        }
        let keeps = self.nodes.iter().filter(|node| {
            let key = node.keys[usize::from(hold.key)];
            key.is_some_and(|key| key.token == t && node.end_of(key) >= end)
        });
        let keeps = keeps.count();
        if (keeps as u32) < self.quorum() {
            let what = format!("t{t} is believed until {end}, and only {keeps} nodes keep it");
            self.violated(Check::Support, what);
        }
    }

    /// A key went before its end.
    pub fn gone(&mut self, n: usize, t: usize) {
        trace!(self, "n{n} has lost t{t}");
        self.check_support(t);
    }

    pub fn check_released(&mut self, t: usize, said: bool) {
        let token = &self.oracle.tokens[t];
        if said && token.heard_deleted.count_ones() < self.quorum() {
            self.violated(Check::Credit, format!("t{t} is said to be released, and is not"));
        }
    }

    pub fn told_lost(&mut self, c: usize, lease: Id<Lease>, reason: LostReason) {
        let now = self.clients[c].time(self.now);
        let lost = self.clients[c].holds.iter().find(|hold| hold.lease == lease);
        let denied = lost.is_some_and(|hold| self.is_denied(hold.token));
        let Some(hold) = self.clients[c].holds.iter_mut().find(|hold| hold.lease == lease) else {
            return;
        };
        let due = match reason {
            LostReason::Expired => now >= hold.until,
            LostReason::Refused => denied,
            _ => true,
        };
        hold.lost = true;
        let t = hold.token;
        match reason {
            LostReason::Expired => self.tally.lost_expired += 1,
            _ => self.tally.lost_refused += 1,
        }
        if !due {
            self.violated(Check::Loss, format!("t{t} is said to be lost without a cause"));
        }
    }

    /// Whether its client has read of a quorum of nodes that they do not have it.
    pub fn is_denied(&self, t: usize) -> bool {
        let token = &self.oracle.tokens[t];
        (token.heard_denied | token.heard_refused).count_ones() >= self.quorum()
    }

    /// What has to hold whenever a client's engine has been turned.
    pub fn check_client(&mut self, c: usize) {
        if self.clients[c].asleep_until != 0 {
            return; // It is waking up, or asleep.
        }
        let now = self.clients[c].time(self.now.saturating_sub(2));
        let client = &self.clients[c];
        let wakes = client.engine.poll_timeout();
        for hold in client.holds.iter().filter(|hold| hold.watched && !hold.lost) {
            let in_time = hold.until > now && wakes.is_some_and(|at| at <= hold.until);
            if !in_time || self.is_denied(hold.token) {
                let what = format!("c{c} is not told that t{} is lost", hold.token);
                return self.violated(Check::Loss, what);
            }
        }
        if self.is_overdue(c) {
            self.violated(Check::Progress, format!("c{c}: a request outlives its deadline"));
        }
    }

    /// A client closes a connection by itself.
    pub fn check_close(&mut self, l: usize) {
        let link = &self.links[l];
        if !link.ready || link.excused {
            return;
        }
        let patience = self.plan.connect_timeout.max(self.plan.node_timeout).as_nanos() as u64;
        let now = self.clients[link.client].clock.local(self.now) + 2;
        if link.asked.front().is_none_or(|asked| asked + patience > now) {
            let what = format!("c{} closes link {l} without a cause", link.client);
            self.violated(Check::Connection, what);
        }
    }

    /// All is quiet, and every client has let go: every key that was taken was released, if it could be.
    pub fn check_let_go(&mut self) {
        for c in 0..self.plan.clients {
            let releasing = self.clients[c].engine.releasing();
            if releasing > 0 {
                self.violated(Check::Leftover, format!("c{c} still owes {releasing} releases"));
            }
        }
        let kept =
            |token: &Token| !token.orphan && token.granted & !token.late & !token.let_go != 0;
        if let Some(t) = self.oracle.tokens.iter().position(kept) {
            let token = &self.oracle.tokens[t];
            let nodes = token.granted & !token.late & !token.let_go;
            let what = format!("t{t} of c{} is not released on nodes {nodes:#b}", token.client);
            self.violated(Check::Leftover, what);
        }
    }

    pub fn check_no_keys(&mut self, when: &str) {
        for n in 0..self.plan.nodes {
            self.expire(n);
            if let Some(key) = self.nodes[n].keys.iter().flatten().next() {
                let what = format!("n{n} has a key of t{} {when}", key.token);
                self.violated(Check::Leftover, what);
            }
        }
    }
}
