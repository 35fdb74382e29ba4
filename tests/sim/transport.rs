//! How connections are made, carry bytes and end.

use crate::{
    clock::{At, MS},
    counter::Counter,
    link::{Link, Sent},
    schedule::Mode,
    wire::{Command, parse},
    world::{Event, World, trace},
};

impl World {
    /// The client's engine wants to be connected.
    pub fn connect(&mut self, c: usize, n: usize) {
        let l = self.links_used;
        self.links_used += 1;
        if l == self.links.len() {
            self.links.push(Link::default());
        }
        self.links[l].reset(c, n, self.now);
        self.clients[c].links[n] = Some(l);
        let at = self.now + self.delay() + self.delay();
        trace!(self, "c{c} connects to n{n}: link {l}");
        self.push(at, Event::Connected(l));
    }

    pub fn connected(&mut self, l: usize) {
        let Link { client: c, node: n, client_open, .. } = self.links[l];
        let blocked = self.blocked[c][n][0].max(self.blocked[c][n][1]);
        if !client_open {
            return;
        }
        if blocked > self.now {
            return self.push(blocked + self.plan.latency, Event::Connected(l));
        }
        if !self.nodes[n].up {
            self.links[l].broken = true;
        } else {
            self.links[l].node_open = true;
            self.links[l].accepted = true;
        }
        self.listen(c, l);
    }

    /// Writes what the engine has for a node, or a part of it.
    pub fn write(&mut self, l: usize) {
        let Link { client: c, node: n, .. } = self.links[l];
        let bytes = self.clients[c].engine.outgoing(self.ids[n]);
        let mut len = bytes.len();
        if len == 0 || self.links[l].full || self.clients[c].sleeps(self.now) {
            return;
        }
        let partial = !self.calm && len > 1 && self.rng.permille(self.plan.partial_permille);
        if partial {
            len = 1 + self.rng.below(len as u64 - 1) as usize;
            self.links[l].full = true;
            self.links[l].excused = true;
            self.tally.partial_writes += 1;
        }
        self.links[l].frame.extend_from_slice(&bytes[..len]);
        self.links[l].written += len as u64;
        self.clients[c].engine.wrote(self.ids[n], len);
        self.read_frames(l);
        let to = self.links[l].written;
        self.send_up(l, to);
        if self.plan.cuts_writes && !self.calm && self.rng.permille(20) {
            let at = self.now + self.rng.below(self.plan.latency);
            self.push(at, Event::Cut(l));
        }
        if partial {
            let at = self.now + self.rng.below(self.plan.latency * 4);
            self.push(at, Event::Writable(l));
        }
    }

    /// Takes note of the commands that are written to their end.
    fn read_frames(&mut self, l: usize) {
        let frame = std::mem::take(&mut self.links[l].frame);
        let Link { client: c, written, .. } = self.links[l];
        let start = written - frame.len() as u64;
        let mut done = 0;
        while let Some((command, len)) =
            Some(&frame[done..]).filter(|rest| !rest.is_empty()).and_then(parse)
        {
            done += len;
            let end = start + done as u64;
            let token = self.asked(l, command);
            let local = self.clients[c].clock.local(self.now);
            self.links[l].asked.push_back(local);
            self.links[l].queue.push_back(Sent { end, command, token });
        }
        let link = &mut self.links[l];
        link.frame = frame;
        link.frame.drain(..done);
    }

    fn send_up(&mut self, l: usize, to: u64) {
        let at = self.links[l].up_due.max(self.now + self.delay());
        let before = self.links[l].arrived;
        if !self.calm && to > before + 1 && self.rng.permille(30) {
            // In two pieces.
            let part = before + 1 + self.rng.below(to - before - 1);
            self.push(at, Event::Up(l, part));
        }
        let at = at + self.rng.below(self.plan.latency / 8 + 1);
        self.links[l].up_due = at;
        self.push(at, Event::Up(l, to));
    }

    pub fn up(&mut self, l: usize, to: u64) {
        let Link { client: c, node: n, .. } = self.links[l];
        let blocked = self.blocked[c][n][0].max(self.links[l].held_until);
        if blocked > self.now {
            let at = blocked + self.rng.below(self.plan.latency + 1);
            self.links[l].up_due = self.links[l].up_due.max(at);
            return self.push(at, Event::Up(l, to));
        }
        let link = &mut self.links[l];
        link.arrived = link.arrived.max(to.min(link.up_limit));
        if !link.node_open {
            // Nobody listens there: a reset.
            if link.client_open && self.nodes[n].up {
                self.end_soon(l);
            }
            return;
        }
        self.serve(l);
    }

    /// Sends on what the node has answered.
    pub fn answer(&mut self, l: usize) {
        let Link { node: n, sent, down_due, .. } = self.links[l];
        let to = self.links[l].down.len();
        if to == sent {
            return;
        }
        let at = down_due.max(self.now + self.nodes[n].slowness + self.delay());
        if !self.calm && self.rng.permille(30) {
            let part = sent + self.rng.below((to - sent) as u64) as usize;
            self.push(at, Event::Down(l, part));
        }
        let at = at + self.rng.below(self.plan.latency / 8 + 1);
        self.links[l].sent = to;
        self.links[l].down_due = at;
        self.push(at, Event::Down(l, to));
    }

    pub fn down(&mut self, l: usize, to: usize) {
        let Link { client: c, node: n, .. } = self.links[l];
        let blocked = self.blocked[c][n][1];
        if blocked > self.now {
            let at = blocked + self.rng.below(self.plan.latency + 1);
            self.links[l].down_due = self.links[l].down_due.max(at);
            return self.push(at, Event::Down(l, to));
        }
        let link = &mut self.links[l];
        link.here = link.here.max(to.min(link.down_limit));
        self.listen(c, l);
    }

    pub fn broken(&mut self, l: usize) {
        let Link { client: c, node: n, client_open, .. } = self.links[l];
        let blocked = self.blocked[c][n][1];
        if client_open && blocked > self.now {
            return self.push(blocked + self.plan.latency, Event::Broken(l));
        }
        self.links[l].broken = true;
        self.listen(c, l);
    }

    /// What a client has left behind on a connection may take its time, and come after what it writes to the next.
    pub fn hold_back(&mut self, l: usize) {
        if !self.calm && self.rng.coin() {
            self.links[l].held_until = self.now + self.rng.below(self.plan.ttls_ms[0] * MS);
        }
    }

    /// The client will learn that the connection is over.
    fn end_soon(&mut self, l: usize) {
        let at = self.now + self.delay();
        self.push(at, Event::Broken(l));
    }

    /// A connection ends, in one of several ways.
    pub fn cut(&mut self, l: usize) {
        if self.calm || !self.links[l].client_open || !self.links[l].node_open {
            return;
        }
        self.tally.cuts += 1;
        let way = self.rng.below(4);
        trace!(self, "link {l} is cut, in way {way}");
        let (arrived, written) = (self.links[l].arrived, self.links[l].written);
        let some = arrived + self.rng.below(written - arrived + 1);
        match way {
            // The client alone believes so. What it wrote goes on arriving.
            0 => {
                self.links[l].broken = true;
                self.hold_back(l);
                let c = self.links[l].client;
                self.listen(c, l);
            }
            // The node hangs up: its last replies come, and then the end.
            1 => {
                self.links[l].node_open = false;
                let at: At = self.links[l].down_due.max(self.now) + self.delay();
                self.push(at, Event::Broken(l));
            }
            // A reset in the middle: some of what is under way is lost, both ways.
            2 => {
                self.links[l].up_limit = some;
                let link = &mut self.links[l];
                let lost = link.sent - link.here;
                link.down_limit = link.here + self.rng.below(lost as u64 + 1) as usize;
                self.end_soon(l);
            }
            // A part is lost, and nobody says so.
            _ => {
                self.links[l].up_limit = some;
                self.links[l].down_limit = self.links[l].here;
            }
        }
    }

    /// A node's process ends, and with it all that had reached it and was not run.
    pub fn crash(&mut self, n: usize, downtime: u64, forgets: bool) {
        trace!(self, "n{n} crashes for {downtime} ns, forgets: {forgets}");
        self.nodes[n].up = false;
        self.nodes[n].forgets = forgets;
        self.forget_trackers(n);
        for l in 0..self.links_used {
            if self.links[l].node == n && self.links[l].node_open {
                self.links[l].node_open = false;
                // Some machines say so, some just go.
                if self.rng.coin() {
                    self.end_soon(l);
                }
            }
        }
        self.push(self.now + downtime, Event::Restart(n));
    }

    pub fn restart(&mut self, n: usize) {
        trace!(self, "n{n} is back");
        self.processes += 1;
        self.nodes[n].process = self.processes;
        self.nodes[n].started = Some(self.now);
        self.nodes[n].restart();
        self.expire(n);
        if !std::mem::take(&mut self.nodes[n].forgets) {
            return;
        }
        self.nodes[n].counters.fill(Counter::NONE);
        for slot in 0..self.nodes[n].keys.len() {
            if let Some(key) = self.nodes[n].keys[slot].take() {
                assert_ne!(self.plan.mode, Mode::Sound, "a key outlived the longest life");
                self.gone(n, key.token);
            }
        }
    }
}

/// Which token a command is about.
pub fn token_in(command: Command) -> Option<u128> {
    match command {
        Command::Set { token, .. } | Command::Run { token, .. } => Some(token),
        _ => None,
    }
}
