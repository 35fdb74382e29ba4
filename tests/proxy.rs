//! The fault proxy does what the tests that use it believe.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use quorlock::testing::Server;
use support::{
    eventually, ms,
    proxy::{Accept, Cut, Flow, Plan, Proxy},
    secs,
};

const PING: &[u8] = b"PING\r\n";
const PONG: &[u8] = b"+PONG\r\n";

struct Rig {
    proxy: Proxy,
    _server: Server,
}

impl Rig {
    fn with(plan: Plan) -> Self {
        let server = Server::start().unwrap();
        let proxy = Proxy::start(server.tcp_url()).unwrap();
        proxy.set(plan);
        Self { proxy, _server: server }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy.url().trim_start_matches("redis://")).unwrap();
        stream.set_read_timeout(Some(ms(200))).unwrap();
        stream
    }
}

/// Everything until the end, or until nothing comes any more; and how it ended.
fn read_all(stream: &mut TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut all = Vec::new();
    let end = stream.read_to_end(&mut all).map(drop).map_err(|error| error.kind());
    (all, end)
}

fn silent() -> (Vec<u8>, Result<(), ErrorKind>) {
    (Vec::new(), Err(ErrorKind::WouldBlock))
}

#[test]
fn without_a_plan_it_changes_nothing() {
    let rig = Rig::with(Plan::default());
    let mut stream = rig.connect();
    stream.write_all(&PING.repeat(100)).unwrap();
    assert_eq!(read_all(&mut stream), (PONG.repeat(100), Err(ErrorKind::WouldBlock)));
    assert_eq!(rig.proxy.sent(), [PING.repeat(100)]);
}

#[test]
fn delays_do_not_add_up() {
    let rig = Rig::with(Plan::delay(ms(60)));
    let mut stream = rig.connect();
    stream.set_read_timeout(Some(secs(5))).unwrap();
    let started = Instant::now();
    for _ in 0..10 {
        stream.write_all(PING).unwrap();
        std::thread::sleep(ms(2));
    }
    let mut replies = vec![0; 10 * PONG.len()];
    stream.read_exact(&mut replies).unwrap();
    assert!(started.elapsed() >= ms(60) && started.elapsed() < ms(60 * 5));
}

#[test]
fn it_trickles() {
    let trickle = Some(ms(2));
    let rig = Rig::with(Plan::down(Flow { trickle, ..Flow::default() }));
    let mut stream = rig.connect();
    stream.write_all(PING).unwrap();
    let mut reads = 0;
    let mut got = Vec::new();
    while got.len() < PONG.len() {
        let mut buffer = [0; 64];
        let len = stream.read(&mut buffer).unwrap();
        got.extend_from_slice(&buffer[..len]);
        reads += 1;
    }
    assert_eq!(got, PONG);
    assert!(reads > 2, "{reads} reads");
}

#[test]
fn it_stalls_and_goes_on() {
    let rig = Rig::with(Plan::down(Flow { stall_after: Some(3), ..Flow::default() }));
    let mut stream = rig.connect();
    stream.write_all(PING).unwrap();
    assert_eq!(read_all(&mut stream), (PONG[..3].to_vec(), Err(ErrorKind::WouldBlock)));
    rig.proxy.set_live(Plan::default());
    assert_eq!(read_all(&mut stream).0, &PONG[3..]);
}

#[test]
fn it_cuts_replies_and_requests() {
    for (cut, end) in [(Cut::Fin, Ok(())), (Cut::Rst, Err(ErrorKind::ConnectionReset))] {
        let rig = Rig::with(Plan::down(Flow { cut_after: Some((4, cut)), ..Flow::default() }));
        let mut stream = rig.connect();
        stream.set_read_timeout(Some(secs(5))).unwrap();
        stream.write_all(PING).unwrap();
        let (got, ended) = read_all(&mut stream);
        assert_eq!(ended, end, "{cut:?}");
        assert!(got == PONG[..4] || cut == Cut::Rst, "a reset may overtake what came before it");

        let rig = Rig::with(Plan::up(Flow { cut_after: Some((4, cut)), ..Flow::default() }));
        let mut stream = rig.connect();
        stream.set_read_timeout(Some(secs(5))).unwrap();
        stream.write_all(PING).unwrap();
        assert_eq!(read_all(&mut stream).0, b"");
        assert_eq!(rig.proxy.sent(), [PING[..4].to_vec()]);
    }
}

#[test]
fn it_swallows_one_direction() {
    let swallow = || Flow { swallow: true, ..Flow::default() };
    for (plan, sent) in [(Plan::up(swallow()), &b""[..]), (Plan::down(swallow()), PING)] {
        let rig = Rig::with(plan);
        let mut stream = rig.connect();
        stream.write_all(PING).unwrap();
        assert_eq!(read_all(&mut stream), silent());
        assert_eq!(rig.proxy.sent(), [sent.to_vec()]);
    }
}

#[test]
fn it_injects() {
    let rig = Rig::with(Plan::down(Flow { inject: Some((1, b"x".into())), ..Flow::default() }));
    let mut stream = rig.connect();
    stream.write_all(PING).unwrap();
    assert_eq!(read_all(&mut stream).0, b"+xPONG\r\n");
}

#[test]
fn it_accepts_and_is_silent_or_resets() {
    let rig = Rig::with(Plan::silent());
    let mut stream = rig.connect();
    stream.write_all(PING).unwrap();
    assert_eq!(read_all(&mut stream), silent());

    rig.proxy.set(Plan { accept: Accept::Reset, ..Plan::default() });
    let mut stream = rig.connect();
    assert_eq!(read_all(&mut stream).1, Err(ErrorKind::ConnectionReset));
}

#[test]
fn it_refuses_and_admits_on_one_port() {
    let rig = Rig::with(Plan::default());
    let address = rig.proxy.url().trim_start_matches("redis://").to_owned();
    rig.proxy.refuse();
    eventually("it refuses", || {
        TcpStream::connect(&address)
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    rig.proxy.admit().unwrap();
    let mut stream = rig.connect();
    stream.write_all(PING).unwrap();
    assert_eq!(read_all(&mut stream).0, PONG);
}

#[test]
fn it_cuts_what_there_is_by_hand_and_by_script() {
    let rig = Rig::with(Plan::default());
    let mut first = rig.connect();
    first.write_all(PING).unwrap();
    assert_eq!(read_all(&mut first).0, PONG);
    rig.proxy.cut_all();
    first.set_read_timeout(Some(secs(5))).unwrap();
    assert_eq!(read_all(&mut first).0, b"");
    assert_eq!(rig.proxy.ended(), 1);

    rig.proxy.script(|number| match number {
        1 => Plan::silent(),
        _ => Plan::default(),
    });
    let (mut second, mut third) = (rig.connect(), rig.connect());
    for stream in [&mut second, &mut third] {
        stream.write_all(PING).unwrap();
    }
    assert_eq!(read_all(&mut second), silent());
    assert_eq!(read_all(&mut third).0, PONG);
    assert_eq!(rig.proxy.connections(), 3);
}

#[test]
fn its_threads_end_with_it() {
    let threads = || std::fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(0);
    let started = Instant::now();
    let rig = Rig::with(Plan::silent());
    let _streams = [rig.connect(), rig.connect()];
    eventually("both are taken", || rig.proxy.connections() == 2);
    let before = threads();
    drop(rig);
    assert!(threads() < before);
    assert!(started.elapsed() < Duration::from_secs(5));
}
