//! The transcription of the scripts against the scripts: the same operations, at random, on both.
//!
//! After each, the replies are equal, and so is what is there.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use quorlock::{
    internal::script::Script,
    testing::{Answer as Reply, Server},
};

use crate::{
    rng::Rng,
    support::{
        counter::{Answer, Count, Counter, Slot},
        programs,
    },
};

/// A real server, and what it should be.
struct Pair {
    server: Server,
    model: Slot<usize>,
    run_id: String,
}

impl Pair {
    fn start(program: Option<PathBuf>) -> Self {
        let builder = Server::builder();
        let builder = program.into_iter().fold(builder, |builder, program| builder.binary(program));
        let server = builder.start().unwrap();
        let run_id = run_id(&server);
        Self { server, model: Slot { key: None, counter: Counter::NONE }, run_id }
    }

    fn ask(&self, words: &[&str]) -> Reply {
        self.server.command(words).unwrap()
    }

    fn eval(&self, script: Script, keys: usize, args: &[&str]) -> Answer {
        let source = match script {
            Script::AcquireFenced => include_str!("../../lua/acquire_fenced.lua"),
            Script::Confirm => include_str!("../../lua/confirm.lua"),
            Script::Extend => include_str!("../../lua/extend.lua"),
            Script::Release => include_str!("../../lua/release.lua"),
            Script::Repair => include_str!("../../lua/repair.lua"),
        };
        let count = keys.to_string();
        let words = [&["EVAL", source, &count], &[KEY, COUNTER][..keys], args].concat();
        read(self.ask(&words), args[0])
    }

    /// One operation on both, and what it was.
    fn step(&mut self, rng: &mut Rng) -> String {
        let token = rng.below(TOKENS.len() as u64) as usize;
        let digits = TOKENS[token];
        let number = self.some_number(rng);
        let (name, real, model) = match rng.below(16) {
            0..5 => return self.acquire(token),
            5..8 => {
                let real = self.eval(Script::Confirm, 2, &[digits, &number.to_string()]);
                (format!("confirm {number}"), real, self.model.confirm(token, RUN, number))
            }
            8 => {
                let real = self.eval(Script::Extend, 1, &[digits, TTL]);
                ("extend".into(), real, self.model.extend(token))
            }
            9..11 => {
                let real = self.eval(Script::Release, 1, &[digits]);
                ("release".into(), real, self.model.release(token))
            }
            11 if rng.coin() => {
                let real = self.eval(Script::Repair, 1, &[digits, TTL]);
                ("repair".into(), real, self.model.repair(token, None))
            }
            11 => {
                let real = self.eval(Script::Repair, 2, &[digits, TTL, &number.to_string()]);
                (format!("repair {number}"), real, self.model.repair(token, Some(number)))
            }
            12..14 => {
                self.ask(&["DEL", KEY]);
                self.model.key = None;
                return "the key is deleted".into();
            }
            _ => return self.meddle(rng),
        };
        assert_eq!(real, model, "{name}");
        format!("{name} by {token}: {real:?}")
    }

    /// Where the counter goes on from the clock, the model is told by how much; it has to be the time of this call.
    fn acquire(&mut self, token: usize) -> String {
        let earliest = micros();
        let real = self.eval(Script::AcquireFenced, 2, &[TOKENS[token], TTL]);
        let latest = micros();
        let seed = match real {
            Answer::Set(count) => count - 1,
            _ => earliest,
        };
        let before = self.model.counter;
        let mut seeded = false;
        let model = self.model.acquire(token, RUN, || {
            seeded = true;
            seed
        });
        assert_eq!(real, model, "acquire");
        if let (true, Counter::Hash { count, .. }, Answer::Set(_)) = (seeded, before, real) {
            let count = if let Count::Number(count) = count { count } else { 0 };
            let due = count.max(earliest)..=count.max(latest);
            assert!(due.contains(&seed), "{before:?} went on from {seed}, at {due:?}");
        }
        format!("acquire by {token}: {real:?}, from the clock: {seeded}")
    }

    /// Something happens to the counter.
    fn meddle(&mut self, rng: &mut Rng) -> String {
        self.ask(&["DEL", COUNTER]);
        self.model.counter = match rng.below(8) {
            0 => Counter::NONE,
            1 => {
                self.ask(&["SET", COUNTER, "5"]);
                Counter::WrongType
            }
            2 => {
                self.ask(&["HSET", COUNTER, "count", "many", "run", &self.run_id]);
                Counter::Hash { count: Count::Text, run: Some(RUN) }
            }
            3 => {
                self.ask(&["HSET", COUNTER, "run", &self.run_id]);
                Counter::Hash { count: Count::None, run: Some(RUN) }
            }
            _ => {
                let number = rng.pick(&[-1, 0, 1, 7, 1 << 40, MAX - 3, MAX - 2, MAX - 1, MAX]);
                // Another run, as after a restart; or none, as after a repair.
                let run = rng.pick(&[Some(RUN), Some(RUN), Some(RUN - 1), None]);
                self.ask(&["HSET", COUNTER, "count", &number.to_string()]);
                if let Some(run) = run {
                    let id = if run == RUN { &self.run_id } else { "another" };
                    self.ask(&["HSET", COUNTER, "run", id]);
                }
                Counter::Hash { count: Count::Number(number), run }
            }
        };
        format!("the counter is now {:?}", self.model.counter)
    }

    /// One that may be proposed: around where the counter is.
    fn some_number(&self, rng: &mut Rng) -> i64 {
        let count = match self.model.counter {
            Counter::Hash { count: Count::Number(count), .. } => count,
            _ => 3,
        };
        (count + rng.below(5) as i64 - 2).clamp(1, MAX)
    }

    fn assert_equal(&self) {
        let key = self.model.key.map(|token| TOKENS[token].to_owned());
        assert_eq!(self.server.get(KEY).unwrap(), key);
        if key.is_some() {
            let ttl = self.ask(&["PTTL", KEY]);
            assert!(matches!(ttl, Reply::Integer(1..=600_000)), "{ttl:?}");
        }
        match self.model.counter {
            Counter::WrongType => assert_eq!(self.server.get(COUNTER).unwrap().unwrap(), "5"),
            Counter::Hash { count, run } => {
                let count = match count {
                    Count::None => Reply::Null,
                    Count::Number(number) => Reply::Text(number.to_string()),
                    Count::Text => Reply::Text("many".into()),
                };
                let run = run.map_or(Reply::Null, |run| {
                    Reply::Text(if run == RUN { self.run_id.clone() } else { "another".into() })
                });
                let both = self.ask(&["HMGET", COUNTER, "count", "run"]);
                assert_eq!(both, Reply::Array(vec![count, run]));
            }
        }
    }
}

/// What a reply says. One with an id has to have this token's.
fn read(reply: Reply, token: &str) -> Answer {
    let text = match reply {
        Reply::Integer(number) => return Answer::Number(number),
        // Servers before 7 tell at length where in the script it was.
        Reply::Error(text) if text.contains("WRONGTYPE") => return Answer::WrongType,
        Reply::Error(text) if text.starts_with("FENCING ") => return Answer::CounterError,
        Reply::Text(text) => text,
        reply => panic!("{reply:?}"),
    };
    let words: Vec<_> = text.split(' ').collect();
    assert_eq!(*words.last().unwrap(), &token[..8]);
    match words[..] {
        ["set", count, _] => Answer::Set(count.parse().unwrap()),
        ["taken", _] => Answer::Taken,
        ["count", count, _] => Answer::Count(count.parse().unwrap()),
        ["gone", _] => Answer::Gone,
        _ => panic!("{text}"),
    }
}

fn run_id(server: &Server) -> String {
    let Reply::Text(info) = server.command(&["INFO", "server"]).unwrap() else { panic!() };
    info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().to_owned()
}

fn micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64
}

/// The server at hand, and the others that `make setup` fetched.
#[test]
fn the_transcription_does_what_the_scripts_do() {
    let programs = programs().into_iter().map(Some);
    for program in std::iter::once(None).chain(programs) {
        let mut pair = Pair::start(program);
        let seed = micros() as u64;
        let mut rng = Rng::new(seed);
        let mut done = Vec::new();
        for _ in 0..OPERATIONS {
            done.push(pair.step(&mut rng));
            let result = std::panic::catch_unwind(|| pair.assert_equal());
            let last = &done[done.len().saturating_sub(5)..];
            assert!(result.is_ok(), "seed {seed}, after {last:#?}");
        }
        for way in ["Set(", "Taken", "Count(", "Gone", "CounterError", "WrongType", "clock: true"] {
            let count = done.iter().filter(|what| what.contains(way)).count();
            assert!(count > 0, "nothing came to {way} with seed {seed}");
        }
    }
}

const KEY: &str = "lock:r";
const COUNTER: &str = "lock:r:fence";
const TTL: &str = "600000";
const TOKENS: [&str; 3] = [
    "a000000000000000000000000000000000000000",
    "b000000000000000000000000000000000000000",
    "c000000000000000000000000000000000000000",
];
const RUN: u32 = 2;
/// The last number that Lua can count up to: 2^53 - 1.
const MAX: i64 = (1 << 53) - 1;
const OPERATIONS: usize = 4000;
