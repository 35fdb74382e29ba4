//! A TCP proxy on loopback that breaks things, byte by byte and in each direction by itself.
//!
//! Each connection follows the plan that its number is given, until [`Proxy::set_live`] gives it another. A
//! chunk that is read at `t` with a delay of `d` is written at `t + d`: delays do not add up.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What happens to a connection.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub accept: Accept,
    /// From the client to the server.
    pub up: Flow,
    /// From the server to the client.
    pub down: Flow,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Accept {
    #[default]
    Connect,
    /// Take the connection, and never say or do anything.
    Silent,
    Reset,
}

/// What happens to the bytes in one direction. Places are counted from the connection's first byte.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    pub delay: Duration,
    /// One byte at a time, with this much time in between.
    pub trickle: Option<Duration>,
    /// After so many bytes nothing moves any more, until another plan lets it.
    pub stall_after: Option<usize>,
    pub cut_after: Option<(usize, Cut)>,
    /// What comes is read, and gone.
    pub swallow: bool,
    pub inject: Option<(usize, Vec<u8>)>,
    pub chaos: Option<Chaos>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cut {
    Fin,
    Rst,
}

/// Delays, stalls and cuts, drawn for each chunk.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    pub seed: u64,
    pub delay_max: Duration,
    /// Chunks in a thousand that wait this much longer.
    pub stall: (u64, Duration),
    /// Chunks in a thousand in the middle of which the connection is cut.
    pub cut: u64,
}

impl Plan {
    pub fn silent() -> Self {
        let stall = Flow { stall_after: Some(0), ..Flow::default() };
        Self { accept: Accept::Silent, up: stall.clone(), down: stall }
    }

    /// So much each way together: half of it up, half of it down.
    pub fn delay(delay: Duration) -> Self {
        let half = Flow { delay: delay / 2, ..Flow::default() };
        Self { up: half.clone(), down: half, ..Self::default() }
    }

    pub fn up(up: Flow) -> Self {
        Self { up, ..Self::default() }
    }

    pub fn down(down: Flow) -> Self {
        Self { down, ..Self::default() }
    }
}

pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

type Script = Box<dyn FnMut(usize) -> Plan + Send>;

struct Shared {
    upstream: SocketAddr,
    address: SocketAddr,
    listener: Mutex<Option<TcpListener>>,
    script: Mutex<Script>,
    connections: Mutex<Vec<Arc<Connection>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: AtomicBool,
}

#[derive(Default)]
struct Connection {
    plan: Mutex<Plan>,
    dead: AtomicBool,
    /// What has passed, up and down.
    log: [Mutex<Vec<u8>>; 2],
    chunks: AtomicUsize,
}

impl Proxy {
    /// In front of `redis://127.0.0.1:port`, with no faults yet.
    pub fn start(upstream: impl AsRef<str>) -> io::Result<Self> {
        let upstream = upstream.as_ref().trim_start_matches("redis://");
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let shared = Arc::new(Shared {
            upstream: upstream.parse().map_err(io::Error::other)?,
            address: listener.local_addr()?,
            listener: Mutex::new(None),
            script: Mutex::new(Box::new(|_| Plan::default())),
            connections: Mutex::default(),
            threads: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        shared.listen(listener)?;
        let acceptor = shared.clone();
        let acceptor = Some(thread::spawn(move || acceptor.accept()));
        Ok(Self { shared, acceptor })
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.shared.address)
    }

    pub fn port(&self) -> u16 {
        self.shared.address.port()
    }

    /// The plan for connections from now on.
    pub fn set(&self, plan: Plan) {
        self.script(move |_| plan.clone());
    }

    /// A plan for each connection by its number, from 0.
    pub fn script(&self, script: impl FnMut(usize) -> Plan + Send + 'static) {
        *self.shared.script.lock().unwrap() = Box::new(script);
    }

    /// The plan from now on, for connections that there are as well.
    pub fn set_live(&self, plan: Plan) {
        for connection in self.shared.connections.lock().unwrap().iter() {
            *connection.plan.lock().unwrap() = plan.clone();
        }
        self.set(plan);
    }

    /// Takes no more connections; its port refuses them.
    pub fn refuse(&self) {
        *self.shared.listener.lock().unwrap() = None;
    }

    /// Takes connections again, on the same port.
    pub fn admit(&self) -> io::Result<()> {
        self.shared.listen(TcpListener::bind(self.shared.address)?)
    }

    /// Cuts all connections that there are.
    pub fn cut_all(&self) {
        for connection in self.shared.connections.lock().unwrap().iter() {
            connection.dead.store(true, Ordering::SeqCst);
        }
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.lock().unwrap().len()
    }

    /// How many chunks were read from either side of any connection.
    pub fn chunks(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap();
        connections.iter().map(|connection| connection.chunks.load(Ordering::SeqCst)).sum()
    }

    /// How many connections have ended.
    pub fn ended(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap();
        connections.iter().filter(|connection| connection.dead.load(Ordering::SeqCst)).count()
    }

    /// Whether these bytes have passed up a connection that there still is.
    pub fn has_sent_on_a_survivor(&self, bytes: &[u8]) -> bool {
        let connections = self.shared.connections.lock().unwrap();
        let survivors = connections.iter().filter(|of| !of.dead.load(Ordering::SeqCst));
        survivors.into_iter().any(|survivor| {
            let log = survivor.log[0].lock().unwrap();
            log.windows(bytes.len()).any(|window| window == bytes)
        })
    }

    /// How many bytes have passed down the last connection.
    pub fn replied(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap();
        connections.last().map_or(0, |connection| connection.log[1].lock().unwrap().len())
    }

    /// What has passed up each connection.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        let connections = self.shared.connections.lock().unwrap();
        connections.iter().map(|connection| connection.log[0].lock().unwrap().clone()).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let threads = self.shared.threads.lock().map(|mut threads| std::mem::take(&mut *threads));
        for thread in self.acceptor.take().into_iter().chain(threads.unwrap_or_default()) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn listen(&self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        *self.listener.lock().unwrap() = Some(listener);
        Ok(())
    }

    fn accept(self: Arc<Self>) {
        while !self.stop.load(Ordering::SeqCst) {
            let accepted = self.listener.lock().unwrap().as_ref().map(TcpListener::accept);
            match accepted {
                Some(Ok((client, _))) => self.connect(client),
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream) {
        let number = self.connections.lock().unwrap().len();
        let plan = (self.script.lock().unwrap())(number);
        let accept = plan.accept;
        let connection = Arc::new(Connection { plan: Mutex::new(plan), ..Connection::default() });
        self.connections.lock().unwrap().push(connection.clone());
        match accept {
            Accept::Reset => {
                connection.dead.store(true, Ordering::SeqCst);
                return reset(&client);
            }
            Accept::Silent => {
                let shared = self.clone();
                let hold = move || {
                    while shared.goes_on(&connection) {
                        thread::sleep(TICK);
                    }
                    drop(client);
                };
                return self.threads.lock().unwrap().push(thread::spawn(hold));
            }
            Accept::Connect => {}
        }
        let Ok(server) = TcpStream::connect(self.upstream) else {
            return connection.dead.store(true, Ordering::SeqCst);
        };
        for stream in [&client, &server] {
            stream.set_nonblocking(false).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(TICK)).unwrap();
        }
        self.carry(&connection, 0, &client, &server);
        self.carry(&connection, 1, &server, &client);
    }

    /// Starts to carry bytes in one direction.
    fn carry(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        way: usize,
        from: &TcpStream,
        to: &TcpStream,
    ) {
        let (chunks, due) = channel();
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let (shared, of) = (self.clone(), connection.clone());
        let reader = thread::spawn(move || shared.read(&of, way, from, &chunks));
        let (shared, of) = (self.clone(), connection.clone());
        let writer = thread::spawn(move || shared.write(&of, way, to, &due));
        self.threads.lock().unwrap().extend([reader, writer]);
    }

    fn goes_on(&self, connection: &Connection) -> bool {
        !self.stop.load(Ordering::SeqCst) && !connection.dead.load(Ordering::SeqCst)
    }

    fn read(&self, of: &Connection, way: usize, mut from: TcpStream, chunks: &Sender<Chunk>) {
        let mut buffer = [0; 4096];
        let mut random = of.flow(way).chaos.map(|chaos| Random(chaos.seed ^ u64::MAX));
        let mut last = Instant::now();
        while self.goes_on(of) {
            let len = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(len) => len,
                Err(error) if is_pause(&error) => continue,
                Err(_) => return,
            };
            of.chunks.fetch_add(1, Ordering::SeqCst);
            let flow = of.flow(way);
            let mut chunk = Chunk { bytes: buffer[..len].into(), due: Instant::now(), cut: None };
            chunk.due += flow.delay;
            if let Some(chaos) = flow.chaos {
                let random = random.get_or_insert(Random(chaos.seed));
                chaos.strike(&mut chunk, random);
            }
            last = last.max(chunk.due);
            chunk.due = last;
            if chunks.send(chunk).is_err() {
                return;
            }
        }
    }

    fn write(&self, of: &Connection, way: usize, mut to: TcpStream, chunks: &Receiver<Chunk>) {
        let mut place = 0;
        while self.goes_on(of) {
            let chunk = match chunks.recv_timeout(TICK) {
                Ok(chunk) => chunk,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            thread::sleep(chunk.due.saturating_duration_since(Instant::now()));
            if self.pass(of, way, &mut to, &mut place, &chunk).is_err() {
                break;
            }
        }
        // One direction ending ends both, as with most middleboxes.
        of.dead.store(true, Ordering::SeqCst);
    }

    /// Writes a chunk, as far as the plan lets it.
    fn pass(
        &self,
        of: &Connection,
        way: usize,
        to: &mut TcpStream,
        place: &mut usize,
        chunk: &Chunk,
    ) -> io::Result<()> {
        let mut rest = &chunk.bytes[..];
        if let Some((keep, _)) = chunk.cut {
            rest = &rest[..keep];
        }
        let mut flow = of.flow(way);
        loop {
            if !self.goes_on(of) {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            match &flow {
                Flow { cut_after: Some((at, cut)), .. } if *place >= *at => return end(to, *cut),
                Flow { stall_after: Some(at), .. } if *place >= *at => {
                    thread::sleep(Duration::from_millis(1));
                    flow = of.flow(way);
                    continue;
                }
                Flow { inject: Some((at, bytes)), .. } if *place == *at => {
                    to.write_all(bytes)?;
                    of.plan.lock().unwrap().flow_mut(way).inject = None;
                    flow.inject = None;
                    continue;
                }
                _ if rest.is_empty() => break,
                _ => {}
            }
            let (piece, tail) = rest.split_at(flow.next_stop(*place, rest.len()));
            if !flow.swallow {
                // First, so that who has received it finds it there.
                of.log[way].lock().unwrap().extend_from_slice(piece);
                to.write_all(piece)?;
            }
            *place += piece.len();
            rest = tail;
            thread::sleep(flow.trickle.unwrap_or_default());
            // What happens at a chunk's end is by the plan that it came under: whoever has received it may give another.
            if !rest.is_empty() {
                flow = of.flow(way);
            }
        }
        match chunk.cut {
            Some((_, cut)) => end(to, cut),
            None => Ok(()),
        }
    }
}

struct Chunk {
    bytes: Box<[u8]>,
    due: Instant,
    /// After how many of its bytes the connection ends, and how.
    cut: Option<(usize, Cut)>,
}

impl Connection {
    fn flow(&self, way: usize) -> Flow {
        self.plan.lock().unwrap().flow_mut(way).clone()
    }
}

impl Plan {
    fn flow_mut(&mut self, way: usize) -> &mut Flow {
        if way == 0 { &mut self.up } else { &mut self.down }
    }
}

impl Flow {
    /// How many of the next `len` bytes may go in one write.
    fn next_stop(&self, place: usize, len: usize) -> usize {
        let stops = [
            self.trickle.map(|_| place + 1),
            self.stall_after,
            self.cut_after.map(|(at, _)| at),
            self.inject.as_ref().map(|(at, _)| *at),
        ];
        let ahead = stops.into_iter().flatten().filter(|stop| *stop > place);
        ahead.map(|stop| stop - place).min().unwrap_or(len).min(len)
    }
}

impl Chaos {
    fn strike(&self, chunk: &mut Chunk, random: &mut Random) {
        chunk.due += self.delay_max.mul_f64(f64::from(random.below(1000) as u32) / 1000.0);
        if random.below(1000) < self.stall.0 {
            chunk.due += self.stall.1;
        }
        if random.below(1000) < self.cut {
            let keep = random.below(chunk.bytes.len() as u64) as usize;
            chunk.cut = Some((keep, if random.below(2) == 0 { Cut::Fin } else { Cut::Rst }));
        }
    }
}

/// splitmix64 (Steele, Lea and Flood 2014): small, and the same on every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// Ends a connection: cleanly, or by a reset.
fn end(stream: &TcpStream, cut: Cut) -> io::Result<()> {
    match cut {
        Cut::Fin => stream.shutdown(std::net::Shutdown::Write)?,
        Cut::Rst => reset(stream),
    }
    Err(ErrorKind::ConnectionAborted.into())
}

/// Has the stream end with a reset instead of an orderly close, once nobody holds it any more.
fn reset(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// How soon a thread notices that it is no longer wanted.
const TICK: Duration = Duration::from_millis(10);
