//! The floor for many callers: one loop keeps many locks going over one connection to each node, with prepared
//! bytes. What is to be sent after one turn leaves in one write to each node. Nothing else is done.

use std::{
    collections::VecDeque,
    error::Error,
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub struct Pipelined {
    poll: Poll,
    events: Events,
    nodes: Vec<Node>,
    locks: Vec<Lock>,
    pairs: u64,
}

struct Node {
    stream: net::TcpStream,
    out: Vec<u8>,
    /// Which lock each reply to come is for, and the round it was asked in.
    asked: VecDeque<(usize, u64)>,
    input: Vec<u8>,
}

/// A caller that takes and releases its own lock again and again.
struct Lock {
    acquire: Vec<u8>,
    release: Vec<u8>,
    /// Counts what was sent: even while acquiring, odd while releasing.
    round: u64,
    missing: usize,
}

impl Pipelined {
    /// `urls` as `redis://host:port`. The scripts must be loaded.
    pub fn connect(urls: &[String], callers: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let mut nodes = Vec::new();
        for (i, url) in urls.iter().enumerate() {
            let stream = TcpStream::connect(url.trim_start_matches("redis://"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = net::TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(i), Interest::READABLE)?;
            nodes.push(Node {
                stream,
                out: vec![],
                asked: VecDeque::new(),
                input: vec![0; 1 << 16],
            });
        }
        let locks = (0..callers).map(Lock::new).collect();
        Ok(Self { poll, events: Events::with_capacity(16), nodes, locks, pairs: 0 })
    }

    /// Keeps all locks going for a while, ends with all released, and says how many pairs that made.
    pub fn run(&mut self, time: Duration) -> Result<u64> {
        let end = Instant::now() + time;
        self.pairs = 0;
        for lock in 0..self.locks.len() {
            self.send(lock);
        }
        let mut idle = 0;
        while idle < self.locks.len() {
            for node in &mut self.nodes {
                node.write()?;
            }
            self.poll.poll(&mut self.events, None)?;
            let ready: Vec<_> = self.events.iter().map(|event| event.token().0).collect();
            let going = Instant::now() < end;
            for node in ready {
                idle += self.read(node, going)?;
            }
        }
        Ok(self.pairs)
    }

    fn send(&mut self, lock: usize) {
        let majority = self.nodes.len() / 2 + 1;
        let Lock { acquire, release, round, missing } = &mut self.locks[lock];
        let command = if *round % 2 == 0 { acquire } else { release };
        *missing = majority;
        for node in &mut self.nodes {
            node.out.extend_from_slice(command);
            node.asked.push_back((lock, *round));
        }
    }

    /// Says how many callers have stopped.
    fn read(&mut self, node: usize, going: bool) -> Result<usize> {
        let Node { stream, input, .. } = &mut self.nodes[node];
        let len = match stream.read(input) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let (mut at, mut stopped) = (0, 0);
        while at < len {
            // A reply that is cut would be seen here as one that is wrong; loopback does not cut so few bytes.
            let (lock, round) = self.nodes[node].asked.pop_front().ok_or("a reply too many")?;
            let wanted: &[u8] = if round % 2 == 0 { b"+OK\r\n" } else { b":1\r\n" };
            let got = &self.nodes[node].input[at..len];
            assert!(
                got.starts_with(wanted),
                "not {wanted:?}: {:?}",
                got.escape_ascii().to_string()
            );
            at += wanted.len();
            let settled = &mut self.locks[lock];
            if settled.round == round {
                settled.missing -= 1;
                if settled.missing == 0 {
                    settled.round += 1;
                    self.pairs += round % 2;
                    if going || round % 2 == 0 {
                        self.send(lock);
                    } else {
                        stopped += 1;
                    }
                }
            }
        }
        Ok(stopped)
    }
}

impl Node {
    fn write(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            let written = self.stream.write(&self.out)?;
            assert_eq!(written, self.out.len(), "the system takes it whole");
            self.out.clear();
        }
        Ok(())
    }
}

impl Lock {
    fn new(caller: usize) -> Self {
        let (mut acquire, mut release) = (Vec::new(), Vec::new());
        let resource = format!("floor-{caller}");
        let (resource, token) = (resource.as_bytes(), [b'f'; 40]);
        let digest = quorlock::internal::script::Script::Release.digest();
        let command = quorlock::internal::resp::encode::command;
        command(&mut acquire, &[b"SET", resource, &token, b"NX", b"PX", b"30000"]);
        command(&mut release, &[b"EVALSHA", digest, b"1", resource, &token]);
        Self { acquire, release, round: 0, missing: 0 }
    }
}
