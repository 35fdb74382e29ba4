//! The floor: prepared bytes go out to N sockets, and replies are read until a majority has come. Nothing else
//! is done, so nothing that does the same by the same means can be faster.

use std::{
    error::Error,
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::Duration,
};

use mio::{Events, Interest, Poll, Token, event::Source};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub struct Floor {
    poll: Poll,
    events: Events,
    nodes: Vec<Node>,
    acquire: Vec<u8>,
    release: Vec<u8>,
    how: How,
}

/// What might be done on top.
#[derive(Clone, Copy, Eq, PartialEq)]
pub enum How {
    /// Nothing.
    Plain,
    /// Acknowledge what was read at once.
    QuickAck,
    /// Do not sleep.
    Spinning,
    /// Sleep until a deadline at the latest.
    Timed,
}

struct Node {
    stream: Box<dyn Stream>,
    /// Bytes of replies that were asked for and have not come.
    owed: usize,
    /// Whether it is still to answer what was sent last.
    asked: bool,
}

trait Stream: Read + Write + Source {
    /// Now, not with the next command.
    fn acknowledge(&self) -> io::Result<()>;
}

impl Stream for mio::net::TcpStream {
    fn acknowledge(&self) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_tcp_quickack(self, true)?)
    }
}

impl Stream for mio::net::UnixStream {
    fn acknowledge(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What the servers answer to the two commands when all is well.
const GRANTED: &[u8] = b"+OK\r\n";
const DELETED: &[u8] = b":1\r\n";

impl Floor {
    /// `urls` as our own lockers take them: `redis://host:port` or `unix:/path`.
    pub fn connect(urls: &[String], resource: &str, how: How) -> Result<Self> {
        let poll = Poll::new()?;
        let mut nodes = Vec::new();
        for (i, url) in urls.iter().enumerate() {
            let mut stream = connect(url)?;
            poll.registry().register(&mut *stream, Token(i), Interest::READABLE)?;
            nodes.push(Node { stream, owed: 0, asked: false });
        }
        let token = [b'f'; 40];
        let (mut acquire, mut release) = (Vec::new(), Vec::new());
        command(&mut acquire, &[b"SET", resource.as_bytes(), &token, b"NX", b"PX", b"30000"]);
        // The release that our own lockers send. They have loaded it into the servers.
        let digest = quorlock::internal::script::Script::Release.digest();
        command(&mut release, &[b"EVALSHA", digest, b"1", resource.as_bytes(), &token]);
        Ok(Self { poll, events: Events::with_capacity(16), nodes, acquire, release, how })
    }

    /// Until a majority has granted it.
    pub fn acquire(&mut self) -> io::Result<()> {
        for node in &mut self.nodes {
            node.send(&self.acquire, GRANTED)?;
        }
        self.majority(GRANTED)
    }

    /// Until a majority has deleted it.
    pub fn release(&mut self) -> io::Result<()> {
        for node in &mut self.nodes {
            node.send(&self.release, DELETED)?;
        }
        self.majority(DELETED)
    }

    /// What is not read when a majority is there is read with the next reply.
    fn majority(&mut self, wanted: &[u8]) -> io::Result<()> {
        let mut missing = self.nodes.len() / 2 + 1;
        let timeout = match self.how {
            How::Plain | How::QuickAck => None,
            How::Spinning => Some(Duration::ZERO),
            How::Timed => Some(Duration::from_millis(50)),
        };
        loop {
            self.poll.poll(&mut self.events, timeout)?;
            for event in &self.events {
                let node = &mut self.nodes[event.token().0];
                let answered = node.receive(wanted)?;
                if self.how == How::QuickAck {
                    node.stream.acknowledge()?;
                }
                if answered {
                    missing -= 1;
                    if missing == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}

impl Node {
    fn send(&mut self, bytes: &[u8], reply: &[u8]) -> io::Result<()> {
        let written = self.stream.write(bytes)?;
        assert_eq!(written, bytes.len(), "the system takes a small command whole");
        self.owed += reply.len();
        self.asked = true;
        Ok(())
    }

    /// Whether it has answered what was sent last, and as `wanted`.
    fn receive(&mut self, wanted: &[u8]) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        let len = match self.stream.read(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        assert!(len <= self.owed, "a reply that nothing was asked for");
        self.owed -= len;
        let answered = self.asked && self.owed == 0;
        if answered {
            self.asked = false;
            assert!(buffer[..len].ends_with(wanted), "not the reply that was wanted");
        }
        Ok(answered)
    }
}

fn connect(url: &str) -> io::Result<Box<dyn Stream>> {
    if let Some(path) = url.strip_prefix("unix:") {
        let stream = UnixStream::connect(path.trim_start_matches("//"))?;
        stream.set_nonblocking(true)?;
        return Ok(Box::new(mio::net::UnixStream::from_std(stream)));
    }
    let stream = TcpStream::connect(url.trim_start_matches("redis://"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Box::new(mio::net::TcpStream::from_std(stream)))
}

fn command(out: &mut Vec<u8>, args: &[&[u8]]) {
    quorlock::internal::resp::encode::command(out, args);
}
