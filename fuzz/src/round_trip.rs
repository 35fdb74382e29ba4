//! What is encoded decodes to itself, whatever bytes are in it: commands as the crate encodes them, and
//! replies of every type as a server does.

use std::time::Duration;

use quorlock::{
    Drift,
    internal::{
        command::{self, By, Subject, Verb},
        resp::{
            decode::{Decoder, Kind, Limits, Reply},
            encode,
        },
        script::Script,
        token::TokenSource,
        validity::Ttl,
    },
};

use super::bytes::{Bytes, pieces};

pub fn check(data: &[u8]) {
    let mut bytes = Bytes(data);
    match bytes.below(3) {
        0 => any_command(bytes),
        1 => lock_command(bytes),
        _ => replies(bytes),
    }
}

/// Words split at a byte of the input's own choice.
fn any_command(mut bytes: Bytes<'_>) {
    let (seed, separator) = (bytes.byte(), bytes.byte());
    let words: Vec<&[u8]> = bytes.0.split(|byte| *byte == separator).collect();
    let mut wire = Vec::new();
    encode::command(&mut wire, &words);
    assert_words(&wire, seed, &words);
}

fn lock_command(mut bytes: Bytes<'_>) {
    let seed = bytes.byte();
    let verb = bytes.pick(VERBS);
    let by = bytes.pick(&[By::Digest, By::Source]);
    let token = TokenSource::new([bytes.byte(); 32]).token();
    let millis = 10 + (u64::from(bytes.byte()) << 16 | u64::from(bytes.byte()));
    let ttl = Ttl::parse(Duration::from_millis(millis), Drift::new(0, Duration::ZERO));
    let ttl = ttl.expect("within its bounds");
    let (count, counter) = if is_fenced(verb) {
        let len = bytes.index(32);
        (u64::from_le_bytes(bytes.word()), bytes.take(len))
    } else {
        (0, &b""[..])
    };
    let key = bytes.0;
    let mut wire = Vec::new();
    command::encode(&mut wire, verb, by, Subject { key, counter, token: &token, ttl, count });

    let (millis, count) = (millis.to_string(), count.to_string());
    let (token, millis, count) = (token.as_str().as_bytes(), millis.as_bytes(), count.as_bytes());
    let (script, arguments): (_, &[&[u8]]) = match verb {
        Verb::Acquire => {
            return assert_words(&wire, seed, &[b"SET", key, token, b"NX", b"PX", millis]);
        }
        Verb::AcquireFenced => (Script::AcquireFenced, &[b"2", key, counter, token, millis]),
        Verb::Confirm => (Script::Confirm, &[b"2", key, counter, token, count]),
        Verb::Extend => (Script::Extend, &[b"1", key, token, millis]),
        Verb::Release => (Script::Release, &[b"1", key, token]),
        Verb::Repair if counter.is_empty() => (Script::Repair, &[b"1", key, token, millis]),
        Verb::Repair => (Script::Repair, &[b"2", key, counter, token, millis, count]),
    };
    let run: [&[u8]; 2] = match by {
        By::Digest => [b"EVALSHA", script.digest()],
        By::Source => [b"EVAL", script.source().as_bytes()],
    };
    assert_words(&wire, seed, &[&run, arguments].concat());
}

/// Whether the command may be about a fencing counter.
fn is_fenced(verb: Verb) -> bool {
    matches!(verb, Verb::AcquireFenced | Verb::Confirm | Verb::Repair)
}

const VERBS: &[Verb] =
    &[Verb::Acquire, Verb::Extend, Verb::Release, Verb::AcquireFenced, Verb::Confirm, Verb::Repair];

fn assert_words(wire: &[u8], seed: u8, words: &[&[u8]]) {
    let elements = words.iter().map(|word| Tree::Text('$', word.to_vec())).collect();
    assert_decodes(wire, seed, &[Tree::Many('*', elements)]);
}

fn replies(mut bytes: Bytes<'_>) {
    let seed = bytes.byte();
    let mut trees = Vec::new();
    let mut wire = Vec::new();
    while !bytes.is_empty() {
        let tree = Tree::draw(&mut bytes, 0);
        tree.encode(&mut wire);
        trees.push(tree);
    }
    assert_decodes(&wire, seed, &trees);
}

fn assert_decodes(wire: &[u8], seed: u8, expected: &[Tree]) {
    let mut decoder = Decoder::new(Limits::default());
    let mut expected = expected.iter();
    for piece in pieces(wire, 1 + usize::from(seed), seed.into()) {
        decoder.feed(piece).expect("a legal stream");
        while let Some(reply) = decoder.decode().expect("a legal stream") {
            expected.next().expect("no more than was encoded").assert_is(reply);
        }
    }
    assert!(expected.next().is_none(), "no less than was encoded");
    assert!(!decoder.is_mid_reply());
}

/// A reply, by the sign that it has on the wire.
enum Tree {
    Boolean(bool),
    Double(f64),
    Integer(i64),
    Line(char, Vec<u8>),
    Many(char, Vec<Self>),
    Null(&'static str),
    Text(char, Vec<u8>),
}

impl Tree {
    fn draw(bytes: &mut Bytes<'_>, depth: usize) -> Self {
        match bytes.below(if depth < 5 { 9 } else { 7 }) {
            0 => Self::Boolean(bytes.chance()),
            1 => Self::Double(f64::from_le_bytes(bytes.word())),
            2 => Self::Integer(i64::from_le_bytes(bytes.word())),
            3 => {
                let sign = bytes.pick(&['+', '-']);
                let len = bytes.index(32);
                let mut line = bytes.take(len).to_vec();
                line.retain(|byte| !b"\r\n".contains(byte));
                Self::Line(sign, line)
            }
            4 => Self::Line('(', u64::from_le_bytes(bytes.word()).to_string().into_bytes()),
            5 => Self::Null(bytes.pick(&["_\r\n", "$-1\r\n", "*-1\r\n"])),
            6 => {
                let sign = bytes.pick(&['$', '!', '=']);
                let len = bytes.index(64);
                Self::Text(sign, bytes.take(len).to_vec())
            }
            _ => {
                let sign = bytes.pick(&['*', '~', '%', '>']);
                // In the middle of another reply a push is no part of it.
                let sign = if sign == '>' && depth > 0 { '*' } else { sign };
                let count = bytes.index(5) * if sign == '%' { 2 } else { 1 };
                Self::Many(sign, (0..count).map(|_| Self::draw(bytes, depth + 1)).collect())
            }
        }
    }

    fn encode(&self, wire: &mut Vec<u8>) {
        match self {
            Self::Boolean(boolean) => {
                wire.extend_from_slice(if *boolean { b"#t\r\n" } else { b"#f\r\n" });
            }
            Self::Double(double) => {
                wire.extend_from_slice(format!(",{double:e}\r\n").to_lowercase().as_bytes());
            }
            Self::Integer(integer) => wire.extend_from_slice(format!(":{integer}\r\n").as_bytes()),
            Self::Line(sign, text) => {
                wire.extend_from_slice(sign.to_string().as_bytes());
                wire.extend_from_slice(text);
                wire.extend_from_slice(b"\r\n");
            }
            Self::Many(sign, elements) => {
                let count = elements.len() / if *sign == '%' { 2 } else { 1 };
                wire.extend_from_slice(format!("{sign}{count}\r\n").as_bytes());
                elements.iter().for_each(|element| element.encode(wire));
            }
            Self::Null(text) => wire.extend_from_slice(text.as_bytes()),
            Self::Text(sign, text) => {
                let format: &[u8] = if *sign == '=' { b"txt:" } else { b"" };
                let len = format.len() + text.len();
                wire.extend_from_slice(format!("{sign}{len}\r\n").as_bytes());
                wire.extend_from_slice(format);
                wire.extend_from_slice(text);
                wire.extend_from_slice(b"\r\n");
            }
        }
    }

    fn assert_is(&self, reply: Reply<'_>) {
        let kind = reply.kind();
        let same = match (self, kind) {
            (Self::Boolean(ours), Kind::Boolean(theirs)) => *ours == theirs,
            (Self::Double(ours), Kind::Double(theirs)) => {
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan()
            }
            (Self::Integer(ours), Kind::Integer(theirs)) => *ours == theirs,
            (Self::Line('+', ours), Kind::Simple(theirs))
            | (Self::Line('-', ours), Kind::Error(theirs))
            | (Self::Line('(', ours), Kind::BigNumber(theirs))
            | (Self::Text('$', ours), Kind::Bulk(theirs))
            | (Self::Text('!', ours), Kind::BulkError(theirs))
            | (Self::Text('=', ours), Kind::Verbatim(theirs)) => ours == theirs,
            (Self::Null(_), Kind::Null) => true,
            (Self::Many('*', ours), Kind::Array(theirs))
            | (Self::Many('~', ours), Kind::Set(theirs))
            | (Self::Many('>', ours), Kind::Push(theirs)) => ours.len() == theirs,
            (Self::Many('%', ours), Kind::Map(pairs)) => ours.len() == 2 * pairs,
            _ => false,
        };
        assert!(same, "{kind:?}");
        if let Self::Many(_, ours) = self {
            assert_eq!(reply.children().count(), ours.len());
            ours.iter().zip(reply.children()).for_each(|(ours, theirs)| ours.assert_is(theirs));
        }
    }
}
