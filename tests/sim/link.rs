//! One connection: two streams of bytes, each with an end of its own.
//!
//! What has been written goes on arriving after the client has closed, and runs. What has been answered goes on
//! arriving after the node is gone. So the order between an old connection's last bytes and a new one's first is
//! the schedule's choice.

use std::collections::VecDeque;

use crate::{clock::At, wire::Command};

#[derive(Debug, Default)]
pub struct Link {
    pub client: usize,
    pub node: usize,
    /// Whether the client's socket is open: being connected, or connected.
    pub client_open: bool,
    /// Whether the node takes bytes from it.
    pub node_open: bool,
    /// Whether the client is still to be told that it is connected.
    pub accepted: bool,
    /// Whether the client's socket takes nothing at the moment.
    pub full: bool,
    /// Whether the client's socket would say that it is over, once everything is read.
    pub broken: bool,

    /// The beginning of a command that is not written to its end.
    pub frame: Vec<u8>,
    pub written: u64,
    /// How far the bytes have come to the node.
    pub arrived: u64,
    /// Bytes beyond this are lost.
    pub up_limit: u64,
    pub up_due: At,
    /// Until when the network keeps what the client had written when it left.
    pub held_until: At,
    /// Commands that were written and have not run.
    pub queue: VecDeque<Sent>,

    pub down: Vec<u8>,
    /// How far the replies are on their way, lie in the client's socket, and were read.
    pub sent: usize,
    pub here: usize,
    pub fed: usize,
    pub down_limit: usize,
    pub down_due: At,
    /// What the replies in `down` truly are.
    pub replies: VecDeque<Reply>,

    /// Whether `CLIENT CACHING YES` was the last command.
    pub caching: bool,
    /// Whether lock commands were written.
    pub ready: bool,
    /// Since when the commands that are not answered are under way, by the client's clock.
    pub asked: VecDeque<u64>,
    /// Whether the client may close it whenever it likes.
    pub excused: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Where in the stream it ends.
    pub end: u64,
    pub command: Command,
    /// The oracle's number for its token.
    pub token: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Reply {
    pub end: usize,
    pub said: Said,
}

/// What a node truly said, and of which token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Said {
    /// Nothing of weight.
    Courtesy,
    Push,
    Granted(usize),
    /// Granted, and confirmed, with the counter at this.
    Counted(usize, u64),
    Confirmed(usize, u64),
    Repaired(usize),
    Refused(usize),
    SetFailed(usize),
    Extended(usize),
    Denied(usize),
    Deleted(usize),
    Absent(usize),
    ScriptFailed(usize),
    /// An error after which the client looks for a better connection.
    Stale,
    /// Not a reply that its command has.
    Wrong,
}

impl Link {
    /// As new, with the buffers it had.
    pub fn reset(&mut self, client: usize, node: usize, now: At) {
        self.frame.clear();
        self.queue.clear();
        self.down.clear();
        self.replies.clear();
        self.asked.clear();
        *self = Self {
            client,
            node,
            client_open: true,
            up_limit: u64::MAX,
            down_limit: usize::MAX,
            up_due: now,
            down_due: now,
            frame: std::mem::take(&mut self.frame),
            queue: std::mem::take(&mut self.queue),
            down: std::mem::take(&mut self.down),
            replies: std::mem::take(&mut self.replies),
            asked: std::mem::take(&mut self.asked),
            ..Self::default()
        };
    }

    /// The next command that has come to the node whole.
    pub fn next_command(&mut self) -> Option<Sent> {
        let front = self.queue.front().filter(|front| front.end <= self.arrived)?;
        let sent = *front;
        self.queue.pop_front();
        Some(sent)
    }

    pub fn has_work(&self) -> bool {
        self.node_open && self.queue.front().is_some_and(|front| front.end <= self.arrived)
    }

    pub fn say(&mut self, bytes: &[u8], said: Said) {
        self.down.extend_from_slice(bytes);
        self.replies.push_back(Reply { end: self.down.len(), said });
    }
}
