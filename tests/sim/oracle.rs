//! Who truly holds what, seen from outside: every key on every node, every byte that was written and read.
//!
//! It knows nothing of how an engine works. What it holds the engines to are the promises of the crate's front
//! page, and the rules of the wire that they rest on.

use std::fmt;

use quorlock::{
    LostReason, Vote,
    internal::{engine::Grant, lease::Lease, slab::Id},
};

use crate::{
    client::Hold,
    link::{Link, Said},
    transport::token_in,
    wire::Command,
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
            Command::Set { .. } => {
                if token.written & bit != 0 {
                    self.violated(Check::Token, format!("c{c} uses t{t} a second time"));
                } else {
                    token.written |= bit;
                }
            }
            Command::Run { lua, by_source, .. } if lua.extends() => {
                self.check_extension(l, t, by_source);
            }
            _ => token.release_written |= bit,
        }
        t
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
                Said::Refused(t) => tokens[t].heard_refused |= bit,
                Said::SetFailed(t) => tokens[t].heard_failed |= bit,
                Said::Denied(t) => tokens[t].heard_denied |= bit,
                Said::Deleted(t) => tokens[t].heard_deleted |= bit,
                Said::Courtesy | Said::Extended(_) | Said::Absent(_) | Said::ScriptFailed(_) => {}
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
                Vote::Refused => token.heard_refused & bit != 0,
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
