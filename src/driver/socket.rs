//! A non-blocking stream to one node, TCP or Unix.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpStream, UnixStream},
};
use rustix::net::sockopt;

/// Where a stream can lead.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
pub(crate) struct Socket {
    stream: Stream,
    token: Token,
    state: State,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Writability says that it is connected, or not.
    Connecting,
    /// The system took all it was given. Only readability is asked for: writability would wake us each time
    /// the peer has read something.
    Open,
    /// The system takes no more until an event says so.
    Full,
    /// It does again, and is still asked about.
    Drained,
}

impl Socket {
    /// Starts to connect.
    pub(crate) fn connect(target: &Target, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut stream = match target {
            Target::Tcp(address) => Stream::Tcp(TcpStream::connect(*address)?),
            Target::Unix(path) => Stream::Unix(connect_unix(path)?),
        };
        registry.register(stream.source(), token, Interest::WRITABLE)?;
        Ok(Self { stream, token, state: State::Connecting })
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.state == State::Connecting
    }

    /// After an event while connecting: whether it is connected now.
    pub(crate) fn finish_connect(&mut self, registry: &Registry) -> io::Result<bool> {
        let connected = match &self.stream {
            Stream::Tcp(stream) => {
                stream.take_error()?.map_or_else(|| stream.peer_addr().map(drop), Err)
            }
            Stream::Unix(stream) => {
                stream.take_error()?.map_or_else(|| stream.peer_addr().map(drop), Err)
            }
        };
        match connected {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(error),
        }
        if let Stream::Tcp(stream) = &self.stream {
            // Every command is complete in its write; waiting for more to come would only delay it.
            stream.set_nodelay(true)?;
            keep_alive(stream)?;
        }
        self.become_(State::Open, registry)?;
        Ok(true)
    }

    /// Whether a write is worth the system call.
    pub(crate) fn takes_more(&self) -> bool {
        matches!(self.state, State::Open | State::Drained)
    }

    /// An event says that it can be written to.
    pub(crate) fn drained(&mut self) {
        if self.state == State::Full {
            self.state = State::Drained;
        }
    }

    pub(crate) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.read(buf),
            Stream::Unix(stream) => stream.read(buf),
        }
    }

    /// Writes what the system takes, which may be nothing; then an event tells when to go on.
    pub(crate) fn write(&mut self, bytes: &[u8], registry: &Registry) -> io::Result<usize> {
        let written = match &mut self.stream {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        };
        let written = match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            written => written?,
        };
        let state = if written < bytes.len() { State::Full } else { State::Open };
        if state != self.state {
            self.become_(state, registry)?;
        }
        Ok(written)
    }

    pub(crate) fn close(mut self, registry: &Registry) {
        // Closing takes it out of the poll too; this covers systems where it does not.
        let _ = registry.deregister(self.stream.source());
    }

    fn become_(&mut self, state: State, registry: &Registry) -> io::Result<()> {
        let interest = match state {
            State::Connecting => Interest::WRITABLE,
            State::Open => Interest::READABLE,
            State::Full | State::Drained => Interest::READABLE | Interest::WRITABLE,
        };
        registry.reregister(self.stream.source(), self.token, interest)?;
        self.state = state;
        Ok(())
    }
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

/// Has the system notice a peer that vanished while nothing was asked of it, within three quarters of a minute, and keeps
/// what stands between us from forgetting a connection that is idle: else the next lock would find all of them dead.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_EVERY)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_MISSES)?)
}

/// Below what firewalls and address translators forget idle connections after, which is minutes.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEP_ALIVE_MISSES: u32 = 3;

/// A Unix socket whose queue is full says so at once, and nothing tells when it no longer is.
fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path)
}
