//! What goes wrong, and for how long.

use crate::{
    clock::MS,
    node::Refusal,
    schedule::Fault,
    world::{Event, World, trace},
};

impl World {
    /// One fault, and the time of the next.
    pub fn fault(&mut self) {
        if self.calm {
            return;
        }
        let next = self.now + self.rng.about(self.plan.fault_gap);
        self.push(next, Event::Fault);
        let fault = self.rng.pick(&self.plan.faults.clone());
        let n = self.rng.below(self.plan.nodes as u64) as usize;
        let c = self.rng.below(self.plan.clients as u64) as usize;
        let ttl = self.plan.ttls_ms[0] * MS;
        let time = self.rng.about(ttl / 3);
        trace!(self, "{fault:?}, c{c}, n{n}, {time} ns");
        match fault {
            Fault::Cut => {
                if let Some(l) = self.clients[c].links[n] {
                    self.cut(l);
                }
            }
            Fault::Partition => {
                self.tally.partitions += 1;
                self.blocked[c][n] = [self.now + time; 2];
            }
            Fault::PartitionUp => {
                self.tally.partitions_up += 1;
                self.blocked[c][n][0] = self.now + time;
            }
            Fault::PartitionDown => {
                self.tally.partitions_down += 1;
                self.blocked[c][n][1] = self.now + time;
            }
            Fault::Pause => {
                if !self.clients[c].sleeps(self.now) {
                    self.tally.pauses += 1;
                    self.clients[c].asleep_until = self.now + time;
                    self.push(self.now + time, Event::ClientWake(c));
                }
            }
            Fault::ClientCrash => {
                self.tally.client_crashes += 1;
                self.client_crashes(c);
            }
            _ => self.node_fault(fault, n, time),
        }
    }

    fn node_fault(&mut self, fault: Fault, n: usize, time: u64) {
        match fault {
            Fault::Stuck => {
                self.tally.stuck += 1;
                self.nodes[n].stuck_until = self.now + time;
                self.push(self.now + time, Event::NodeWake(n));
            }
            Fault::Slow => {
                self.tally.slow += 1;
                self.nodes[n].slowness = self.rng.below(self.plan.ttls_ms[0] * MS / 4);
            }
            Fault::Crash if self.nodes[n].up => {
                self.tally.crashes += 1;
                self.crash(n, time, false);
            }
            Fault::CrashLong if self.nodes[n].up => {
                self.tally.crashes_long += 1;
                let time = self.plan.longest_life() + time;
                self.crash(n, time, true);
            }
            Fault::CrashAmnesia if self.nodes[n].up => {
                self.tally.crashes_amnesia += 1;
                self.crash(n, time / 16, true);
            }
            Fault::Refusing => {
                self.tally.refusals += 1;
                self.nodes[n].refusing =
                    if self.rng.permille(300) { None } else { Some(self.rng.pick(&Refusal::ALL)) };
            }
            Fault::Error => self.nodes[n].error_next = true,
            Fault::WrongReply => self.nodes[n].wrong_next = true,
            Fault::ScriptFlush => {
                self.tally.flushes += 1;
                self.nodes[n].scripts = 0;
            }
            Fault::Delete => self.delete(n),
            _ => {}
        }
    }

    /// Somebody deletes what is there, on this node or on all.
    fn delete(&mut self, n: usize) {
        let everywhere = self.rng.coin();
        let key = self.rng.below(u64::from(self.plan.resources)) as usize;
        for other in 0..self.plan.nodes {
            if everywhere || other == n {
                if let Some(there) = self.nodes[other].keys[key].take() {
                    self.tally.deletions += 1;
                    self.oracle.tokens[there.token].deleted = true;
                    self.changed(other, key as u8, None);
                }
            }
        }
    }
}
