//! The wire format and the scripts, held against a real server.
#![allow(clippy::unwrap_used)] // helpers are test code too

#[path = "support/features.rs"]
mod features;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use features::{HELLO, lacks};
use quorlock::{
    internal::{
        resp::{
            decode::{Decoder, Kind, Limits, Reply},
            encode::command,
        },
        script::Script,
    },
    testing::{Answer, Server},
};

#[test]
fn the_digests_are_the_servers_own() {
    let server = Server::start().unwrap();
    for script in Script::ALL {
        let digest = server.command(&["SCRIPT", "LOAD", script.source()]).unwrap();
        assert_eq!(digest, Answer::Text(String::from_utf8(script.digest().to_vec()).unwrap()));
    }
}

#[test]
fn each_script_replies_as_its_file_says() {
    let server = Server::start().unwrap();
    let run = |script: Script, args: &[&str]| {
        let mut all = vec!["EVAL", script.source(), "1", "k"];
        all.extend(args);
        server.command(&all).unwrap()
    };
    let set = |value| server.command(&["SET", "k", value, "PX", "60000"]).unwrap();

    assert_eq!(run(Script::Extend, &["ours", "90000"]), Answer::Integer(-2));
    assert_eq!(run(Script::Release, &["ours"]), Answer::Integer(0));
    set("theirs");
    assert_eq!(run(Script::Extend, &["ours", "90000"]), Answer::Integer(-3));
    assert_eq!(run(Script::Release, &["ours"]), Answer::Integer(-1));
    assert_eq!(server.get("k").unwrap().as_deref(), Some("theirs"));
    set("ours");
    assert_eq!(run(Script::Extend, &["ours", "90000"]), Answer::Integer(2));
    let ttl = server.command(&["PTTL", "k"]).unwrap();
    assert!(matches!(ttl, Answer::Integer(60_001..=90_000)), "{ttl:?}");
    assert_eq!(run(Script::Release, &["ours"]), Answer::Integer(1));
    assert_eq!(server.get("k").unwrap(), None);

    server.command(&["RPUSH", "k", "x"]).unwrap();
    for (script, args) in [(Script::Extend, &["ours", "90000"][..]), (Script::Release, &["ours"])] {
        let Answer::Error(text) = run(script, args) else { panic!() };
        // Up to 6.2 it is wrapped.
        assert!(text.starts_with("WRONGTYPE") || text.contains(": WRONGTYPE "), "{text}");
    }
}

/// A connection that shows each reply as it is decoded, byte by byte.
struct Line {
    stream: TcpStream,
    decoder: Decoder,
}

impl Line {
    fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Self { stream, decoder: Decoder::new(Limits::default()) }
    }

    fn ask(&mut self, words: &[&str]) -> String {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
        let mut bytes = Vec::new();
        command(&mut bytes, &words);
        self.stream.write_all(&bytes).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> String {
        loop {
            if let Some(reply) = self.decoder.decode().unwrap() {
                return shown(reply);
            }
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            self.decoder.feed(&byte).unwrap();
        }
    }
}

fn shown(reply: Reply<'_>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = || reply.children().map(shown).collect::<Vec<_>>().join(" ");
    match reply.kind() {
        Kind::Array(_) => format!("[{}]", all()),
        Kind::BigNumber(digits) => format!("({}", text(digits)),
        Kind::Boolean(boolean) => format!("#{boolean}"),
        Kind::Bulk(bytes) => format!("${}", text(bytes)),
        Kind::BulkError(bytes) => format!("!{}", text(bytes)),
        Kind::Double(double) => format!(",{double}"),
        Kind::Error(bytes) => format!("-{}", text(bytes)),
        Kind::Integer(integer) => format!(":{integer}"),
        Kind::Map(_) => format!("%{{{}}}", all()),
        Kind::Null => "_".into(),
        Kind::Push(_) => format!(">[{}]", all()),
        Kind::Set(_) => format!("~{{{}}}", all()),
        Kind::Simple(bytes) => format!("+{}", text(bytes)),
        Kind::Verbatim(bytes) => format!("={}", text(bytes)),
    }
}

#[test]
fn every_type_a_server_can_be_made_to_send() {
    // Up to 6.2 there is no such directive, and no need of one.
    let server = Server::builder().config("enable-debug-command", "yes").start();
    let server = server.or_else(|_| Server::start()).unwrap();
    if lacks(&server, HELLO) {
        return;
    }
    let mut line = Line::open(&server);
    // In RESP2, and in RESP3.
    for (kind, two, three) in [
        ("string", "$Hello World", "$Hello World"),
        ("integer", ":12345", ":12345"),
        ("null", "_", "_"),
        ("array", "[:0 :1 :2]", "[:0 :1 :2]"),
        ("set", "[:0 :1 :2]", "~{:0 :1 :2}"),
        ("map", "[:0 :0 :1 :1 :2 :0]", "%{:0 #false :1 #true :2 #false}"),
        ("verbatim", "$This is a verbatim\nstring", "=This is a verbatim\nstring"),
        ("true", ":1", "#true"),
        ("false", ":0", "#false"),
    ] {
        assert_eq!(line.ask(&["DEBUG", "PROTOCOL", kind]), two, "{kind} in RESP2");
        let hello = line.ask(&["HELLO", "3"]);
        assert!(hello.starts_with("%{$server $"), "{hello}");
        assert_eq!(line.ask(&["DEBUG", "PROTOCOL", kind]), three, "{kind} in RESP3");
        let hello = line.ask(&["HELLO", "2"]);
        assert!(hello.starts_with("[$server $"), "{hello}");
    }
    // With more digits up to 6.2.
    let double = line.ask(&["DEBUG", "PROTOCOL", "double"]);
    assert!(double.starts_with("$3.141"), "{double}");
    line.ask(&["HELLO", "3"]);
    let double = line.ask(&["DEBUG", "PROTOCOL", "double"]);
    assert!(double.starts_with(",3.141"), "{double}");
    let number = "1234567999999999999999999999999999999";
    assert_eq!(line.ask(&["DEBUG", "PROTOCOL", "bignum"]), format!("({number}"));
    let attributed = line.ask(&["DEBUG", "PROTOCOL", "attrib"]);
    assert!(attributed.starts_with("$Some real reply"), "the attribute is left out: {attributed}");
    // Servers up to 7.0 send the push before the reply to the command, later ones after it.
    let mut both = [line.ask(&["DEBUG", "PROTOCOL", "push"]), line.reply()];
    both.sort();
    assert!(both[1].starts_with(">[$server-cpu-usage :42]"), "{both:?}");
}

#[test]
fn replies_that_lock_clients_never_ask_for_are_read_all_the_same() {
    let server = Server::start().unwrap();
    if lacks(&server, HELLO) {
        return;
    }
    let mut line = Line::open(&server);
    line.ask(&["HELLO", "3"]);
    assert!(line.ask(&["COMMAND", "INFO", "set", "nonesuch"]).starts_with("[[$set :-3 "));
    assert!(line.ask(&["NONESUCH"]).starts_with("-ERR unknown command"));
    let nested = "return {1, {2, {3, {}}}, 'text', redis.status_reply('fine')}";
    assert_eq!(line.ask(&["EVAL", nested, "0"]), "[:1 [:2 [:3 []]] $text +fine]");
    assert!(line.ask(&["INFO", "server"]).starts_with("=# Server\r\n"));
    assert_eq!(line.ask(&["BLPOP", "none", "0.01"]), "_");
}
