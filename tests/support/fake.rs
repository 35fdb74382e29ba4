//! A server that answers as a test likes, and has a real one answer the rest.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
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
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Fake {
    /// In front of `redis://127.0.0.1:port`.
    pub fn start(
        upstream: impl AsRef<str>,
        decide: impl FnMut(&Command) -> Act + Send + 'static,
    ) -> io::Result<Self> {
        let upstream: SocketAddr =
            upstream.as_ref().trim_start_matches("redis://").parse().map_err(io::Error::other)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let decide: Decide = Arc::new(Mutex::new(decide));
        let acceptor = thread::spawn(move || {
            let mut threads = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((client, _)) => {
                        let (decide, stopped) = (decide.clone(), stopped.clone());
                        threads.push(thread::spawn(move || {
                            let _ = serve(client, upstream, &decide, &stopped);
                        }));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
            threads.into_iter().for_each(|thread| drop(thread.join()));
        });
        Ok(Self { address, stop, acceptor: Some(acceptor) })
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
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
