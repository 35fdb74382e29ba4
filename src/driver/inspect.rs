//! One look at one key on every node, over blocking connections that are closed again.
//!
//! For people who ask, not for locks: it has a thread for each node and shares nothing with the event loop but
//! the bytes.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use crate::{
    config::{Address, Host},
    error::NodeError,
    proto::{
        handshake::{Greeting, Handshake, Progress},
        inspection,
        resp::decode::{Decoder, Kind, Limits, Reply},
    },
    status::KeyState,
};

/// Asks every node at once, each within `timeout` for all of it. The answers are in the nodes' order.
pub(crate) fn inspect(
    nodes: Vec<(Address, Greeting)>,
    key: Arc<[u8]>,
    timeout: Duration,
) -> Vec<Result<KeyState, NodeError>> {
    let deadline = Instant::now() + timeout;
    let mut results: Vec<_> = nodes.iter().map(|_| Err(NodeError::Timeout)).collect();
    let (answers, answered) = channel();
    for (index, (address, greeting)) in nodes.into_iter().enumerate() {
        let (key, answers) = (key.clone(), answers.clone());
        let ask = move || {
            // Fails only if it is too late.
            let _ = answers.send((index, ask(&address, greeting, &key, deadline)));
        };
        // A thread that is late is left to itself: looking up a name, for one, takes the time it takes.
        let thread = thread::Builder::new().name("quorlock-inspect".into()).spawn(ask);
        if let Err(error) = thread {
            results[index] = Err(error.into());
        }
    }
    drop(answers);
    while let Ok((index, answer)) = answered.recv_timeout(left(deadline)) {
        results[index] = answer;
    }
    results
}

fn ask(
    address: &Address,
    greeting: Greeting,
    key: &[u8],
    deadline: Instant,
) -> Result<KeyState, NodeError> {
    let mut handshake = Handshake::new(greeting);
    // A node that hangs up on one kind of greeting may take the other.
    let mut line = match greet(address, &mut handshake, deadline) {
        Err(NodeError::Closed) => {
            handshake.hung_up();
            greet(address, &mut handshake, deadline)?
        }
        greeted => greeted?,
    };
    let mut question = Vec::new();
    inspection::ask(&mut question, key);
    line.send(&question)?;
    let value = line.reply(inspection::value)??;
    let pttl = line.reply(inspection::pttl)??;
    Ok(inspection::state(value, pttl))
}

fn greet(
    address: &Address,
    handshake: &mut Handshake,
    deadline: Instant,
) -> Result<Line, NodeError> {
    let mut line = Line::open(address, deadline)?;
    loop {
        let mut greeting = Vec::new();
        handshake.greet(&mut greeting);
        line.send(&greeting)?;
        loop {
            match line.reply(|reply| handshake.reply(reply, 0))?? {
                Progress::Waiting => {}
                Progress::Again => break,
                Progress::Done => return Ok(line),
            }
        }
    }
}

/// A connection on which every wait ends at the deadline.
struct Line {
    stream: Stream,
    decoder: Decoder,
    deadline: Instant,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Line {
    fn open(address: &Address, deadline: Instant) -> Result<Self, NodeError> {
        let stream = match address {
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Address::Tcp { host: Host::Ip(ip), port } => {
                Stream::Tcp(connect(&[(*ip, *port).into()], deadline)?)
            }
            Address::Tcp { host: Host::Name(name), port } => {
                let addresses: Vec<_> = (&**name, *port).to_socket_addrs()?.collect();
                Stream::Tcp(connect(&addresses, deadline)?)
            }
        };
        Ok(Self { stream, decoder: Decoder::new(Limits::default()), deadline })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), NodeError> {
        let timeout = Some(time(self.deadline)?);
        let sent = match &mut self.stream {
            Stream::Tcp(stream) => {
                stream.set_write_timeout(timeout).and_then(|()| stream.write_all(bytes))
            }
            Stream::Unix(stream) => {
                stream.set_write_timeout(timeout).and_then(|()| stream.write_all(bytes))
            }
        };
        sent.map_err(late)
    }

    /// Waits for one reply and reads it.
    fn reply<T>(&mut self, read: impl FnOnce(Reply<'_>) -> T) -> Result<T, NodeError> {
        let mut input = [0; INPUT_BYTES];
        loop {
            if let Some(reply) = self.decoder.decode()? {
                if matches!(reply.kind(), Kind::Push(_)) {
                    continue; // Out of band, for nobody: it answers no command.
                }
                return Ok(read(reply));
            }
            let len = self.read(&mut input)?;
            self.decoder.feed(&input[..len])?;
        }
    }

    fn read(&mut self, input: &mut [u8]) -> Result<usize, NodeError> {
        let timeout = Some(time(self.deadline)?);
        let read = match &mut self.stream {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.read(input))
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.read(input))
            }
        };
        match read {
            Ok(0) => Err(NodeError::Closed),
            Ok(len) => Ok(len),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(late(error)),
        }
    }
}

/// Tries the addresses in turn. Each has its share of the time, as the first may be the one that is silent.
fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, NodeError> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address").into();
    for (address, others) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let share = time(deadline)? / u32::try_from(others).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, share.max(SHARE_MIN)) {
            Ok(stream) => return Ok(stream),
            Err(failed) => error = late(failed),
        }
    }
    Err(error)
}

/// What is left, which must be some time.
fn time(deadline: Instant) -> Result<Duration, NodeError> {
    Some(left(deadline)).filter(|left| !left.is_zero()).ok_or(NodeError::Timeout)
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn late(error: io::Error) -> NodeError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NodeError::Timeout,
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => NodeError::Closed,
        _ => error.into(),
    }
}

/// The system wants a timeout to be some time.
const SHARE_MIN: Duration = Duration::from_millis(1);

/// All the replies to a greeting fit.
const INPUT_BYTES: usize = 16 * 1024;
