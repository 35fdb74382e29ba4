//! A server that answers as a test likes, and has a real one answer the rest.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use quorlock::internal::resp::{
    decode::{Decoder, Kind, Limits},
    encode::command,
};

pub type Command = Vec<Vec<u8>>;

/// What to do with a command.
pub enum Act {
    Close,
    /// Let the real server answer.
    Forward,
    /// Say nothing, ever.
    Ignore,
    Reply(Vec<u8>),
}

type Decide = Arc<Mutex<dyn FnMut(&Command) -> Act + Send>>;

pub struct Fake {
    acceptor: Acceptor,
}

impl Fake {
    /// In front of `redis://127.0.0.1:port`.
    pub fn start(
        upstream: impl AsRef<str>,
        decide: impl FnMut(&Command) -> Act + Send + 'static,
    ) -> io::Result<Self> {
        let upstream: SocketAddr =
            upstream.as_ref().trim_start_matches("redis://").parse().map_err(io::Error::other)?;
        let decide: Decide = Arc::new(Mutex::new(decide));
        let take = move |client, stopped: Arc<AtomicBool>| {
            let decide = decide.clone();
            thread::spawn(move || drop(serve(client, upstream, &decide, &stopped)))
        };
        let acceptor = Acceptor::start(take, |thread| drop(thread.join()))?;
        Ok(Self { acceptor })
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.acceptor.address)
    }

    pub fn port(&self) -> u16 {
        self.acceptor.address.port()
    }
}

/// A peer that is no Redis server: it says something of its own accord, and then nothing more.
pub struct Speaker {
    acceptor: Acceptor,
}

impl Speaker {
    /// Says this to everybody who connects, and hangs up if it `hangs_up`.
    pub fn start(words: &[u8], hangs_up: bool) -> io::Result<Self> {
        let words = words.to_vec();
        let take = move |mut client: TcpStream, _| {
            let _ = client.write_all(&words);
            if hangs_up {
                let _ = client.shutdown(std::net::Shutdown::Write);
            }
            client
        };
        Ok(Self { acceptor: Acceptor::start(take, drop)? })
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.acceptor.address)
    }

    /// How often somebody connected.
    pub fn connections(&self) -> usize {
        self.acceptor.connections.load(Ordering::SeqCst)
    }
}

/// A thread that takes connections on a port of its own, until it is dropped.
struct Acceptor {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// What `take` makes of each connection is kept, and given to `end` when all is over.
    fn start<T: 'static>(
        mut take: impl FnMut(TcpStream, Arc<AtomicBool>) -> T + Send + 'static,
        end: fn(T),
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, connections) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stopped, counter) = (stop.clone(), connections.clone());
        let thread = thread::spawn(move || {
            let mut taken = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((client, _)) => {
                        counter.fetch_add(1, Ordering::SeqCst);
                        taken.push(take(client, stopped.clone()));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
            taken.into_iter().for_each(end);
        });
        Ok(Self { address, connections, stop, thread: Some(thread) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut client: TcpStream,
    upstream: SocketAddr,
    decide: &Decide,
    stop: &AtomicBool,
) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(Duration::from_millis(10)))?;
    client.set_nodelay(true)?;
    let mut server = TcpStream::connect(upstream)?;
    server.set_nodelay(true)?;
    let mut decoder = Decoder::new(Limits::default());
    let mut buffer = [0; 4096];
    while !stop.load(Ordering::SeqCst) {
        match client.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => decoder.feed(&buffer[..len]).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        while let Some(reply) = decoder.decode().map_err(io::Error::other)? {
            let word = |kind| match kind {
                Kind::Bulk(word) => word.to_vec(),
                kind => panic!("not a command: {kind:?}"),
            };
            let words: Command = reply.children().map(|child| word(child.kind())).collect();
            let act = (decide.lock().unwrap())(&words);
            match act {
                Act::Close => return Ok(()),
                Act::Ignore => {}
                Act::Reply(bytes) => client.write_all(&bytes)?,
                Act::Forward => client.write_all(&forward(&mut server, &words)?)?,
            }
        }
    }
    Ok(())
}

/// Has the real server answer one command.
fn forward(server: &mut TcpStream, words: &Command) -> io::Result<Vec<u8>> {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let mut bytes = Vec::new();
    command(&mut bytes, &words);
    server.write_all(&bytes)?;
    let mut decoder = Decoder::new(Limits::default());
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let len = server.read(&mut buffer)?;
        answer.extend_from_slice(&buffer[..len]);
        decoder.feed(&buffer[..len]).map_err(io::Error::other)?;
        if len == 0 || decoder.decode().map_err(io::Error::other)?.is_some() {
            return Ok(answer);
        }
    }
}
