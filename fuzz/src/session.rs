//! Whatever bytes a server sends: a session does not panic, says the same however they are cut, and takes no
//! reply for more than there were questions, nor for anything else than it says.
//!
//! An input says how the session stands (greeting, or ready with commands under way, of which only some bytes
//! are written yet) and then what comes off the wire.

use std::{collections::VecDeque, time::Duration};

use quorlock::internal::{
    Credentials, Secret,
    command::{Ballot, By, Subject, Verb, encode},
    handshake::Greeting,
    lease::Lease,
    request::Request,
    session::{Command, Output, Question, Session},
    slab::Slab,
    time::Time,
    token::Token,
    validity::Ttl,
};

use super::{
    bytes::{Bytes, pieces},
    nodes::{Meaning, Question as Asked, Wire},
};

pub fn check(data: &[u8]) {
    let mut bytes = Bytes(data);
    let stand = Stand::draw(&mut bytes);
    let seed = bytes.byte();
    let whole = stand.clone().take([bytes.0]);
    assert_eq!(stand.clone().take(bytes.0.chunks(1)), whole, "byte by byte");
    let pieces = pieces(bytes.0, 2 + usize::from(seed >> 3), seed.into());
    assert_eq!(stand.take(pieces), whole, "in pieces");
}

/// How a session stands when the bytes come.
#[derive(Clone)]
struct Stand {
    password: bool,
    db: u32,
    tracking: bool,
    ready: bool,
    plain: bool,
    commands: Vec<u8>,
    /// How many bytes of what is to be written are not.
    unwritten: usize,
}

impl Stand {
    fn draw(bytes: &mut Bytes<'_>) -> Self {
        let flags = bytes.byte();
        let count = bytes.index(8);
        Self {
            password: flags & 1 != 0,
            db: u32::from(flags >> 1 & 1),
            tracking: flags & 4 != 0,
            ready: flags & 8 != 0,
            plain: flags & 16 != 0,
            commands: bytes.take(count).to_vec(),
            unwritten: if flags & 32 != 0 { usize::from(bytes.byte()) * 4 } else { 0 },
        }
    }

    /// Everything that a session says of the bytes.
    fn take<'a>(self, pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut model = Model::new(&self);
        for piece in pieces {
            if !model.feed(piece) {
                break;
            }
        }
        model.said
    }
}

/// A session, and what is known of it from outside.
struct Model {
    session: Session,
    now: Time,
    wire: Wire,
    /// How many replies may be credited to commands, and how many were.
    asked: usize,
    answered: usize,
    /// What replies to a lock's commands mean, as far as the session has not said it.
    meanings: VecDeque<Meaning>,
    said: String,
}

impl Model {
    fn new(stand: &Stand) -> Self {
        let secret = |text: &str| Some(Secret::new(text.into()));
        let greeting = Greeting {
            credentials: Credentials {
                user: stand.password.then(|| secret("alice")).flatten(),
                password: stand.password.then(|| secret("hunter2")).flatten(),
            },
            db: stand.db,
            client_name: "quorlock".into(),
            tracking: stand.tracking,
            persistence: false,
        };
        let now = Time::from_nanos(1_000_000_000);
        let mut session = Session::new(greeting, Duration::from_secs(1), now);
        session.connecting(now);
        session.connected(now);
        let wire = Wire::default();
        let (meanings, said) = (VecDeque::new(), String::new());
        let mut model = Self { session, now, wire, asked: 0, answered: 0, meanings, said };
        if stand.ready {
            model.become_ready(stand.plain);
            stand.commands.iter().for_each(|command| model.send(*command));
        }
        let rest = model.session.outgoing().len();
        model.write(rest.saturating_sub(stand.unwritten));
        model
    }

    fn write(&mut self, len: usize) {
        let bytes = self.session.outgoing()[..len].to_vec();
        self.wire.wrote(self.now, &bytes);
        self.session.wrote(len);
    }

    /// Answers the greeting as a server does.
    fn become_ready(&mut self, plain: bool) {
        while !self.session.is_ready() {
            let rest = self.session.outgoing().len();
            assert!(rest > 0, "the greeting is answered, and nothing is asked");
            self.write(rest);
            while let Some(front) = self.wire.front() {
                let no_hello = plain && front.asked == Asked::Hello;
                let reply = if no_hello {
                    b"-ERR unknown command `HELLO`\r\n".to_vec()
                } else {
                    front.asked.right_reply("0123")
                };
                assert!(self.wire.receive(&reply, |_, _| {}));
                self.session.feed(&reply).expect("a legal reply");
                let output = self.session.next(self.now).expect("a right reply");
                assert!(matches!(output, None | Some(Output::Ready)), "{output:?}");
            }
        }
    }

    fn send(&mut self, choice: u8) {
        let lease = Slab::<Lease>::new().claim().0;
        let request = Slab::<Request>::new().claim().0;
        let overdue = self.now.after(Duration::from_secs(1));
        let Some(verb) = VERBS[usize::from(choice % 8)] else {
            let question = Question { request, attempt: 1 };
            assert!(self.session.ask_remaining(b"key", question, overdue));
            self.asked += 1;
            return;
        };
        let by = if choice & 8 == 0 { By::Digest } else { By::Source };
        let mut bytes = Vec::new();
        let counter: &[u8] = if choice & 16 == 0 { b"counter" } else { b"" };
        let (token, ttl, count) = (&Token::NONE, Ttl::NONE, choice.into());
        encode(&mut bytes, verb, by, Subject { key: b"key", counter, token, ttl, count });
        let command = Command { lease, verb, round: choice.into() };
        self.session.send(&bytes, command, by == By::Source, overdue).expect("there is room");
        self.asked += 1;
    }

    /// Says whether the session is to be fed any more.
    fn feed(&mut self, piece: &[u8]) -> bool {
        let Self { wire, meanings, .. } = self;
        let legal = wire.receive(piece, |sent, meaning| {
            meanings.extend(sent.asked.claim().map(|_| meaning));
        });
        let mut result = self.session.feed(piece).map(|()| None);
        while result.is_ok() {
            result = self.session.next(self.now);
            match &result {
                Ok(None) => break,
                Ok(Some(output)) => {
                    let credited =
                        matches!(output, Output::Answer { .. } | Output::Remaining { .. });
                    self.answered += usize::from(credited);
                    if let Output::Answer { ballot, by_source, .. } = output {
                        let meaning = self.meanings.pop_front().expect("a reply that means it");
                        let right = is_meant(ballot, *by_source, meaning);
                        assert!(right, "{ballot:?} for {meaning:?}");
                    }
                    self.said.push_str(&format!("{output:?}\n"));
                }
                Err(_) => {}
            }
        }
        assert!(self.answered <= self.asked, "more answers than questions");
        let replies = self.wire.answered;
        assert!(self.answered <= replies, "more answers than replies to what was written");
        assert!(legal || result.is_err(), "a reply that does not fit was believed: {}", self.said);
        match &result {
            Ok(_) => assert_eq!(self.answered, replies, "a reply was credited to nobody"),
            Err(error) => {
                let words = format!("{error} {error:?}");
                assert!(self.session.is_ready() || !words.contains("hunter2"), "{words}");
                self.said.push_str(&words);
            }
        }
        result.is_ok()
    }
}

/// Whether a ballot says what the reply does.
fn is_meant(ballot: &Ballot, by_source: bool, meaning: Meaning) -> bool {
    match (ballot, meaning) {
        (Ballot::Counted { count, .. }, Meaning::Counted(counted)) => *count == counted,
        (Ballot::Failed(_), Meaning::Failed | Meaning::PutOff)
        | (Ballot::Granted, Meaning::Granted)
        | (Ballot::Refused | Ballot::RefusedTo { .. }, Meaning::Refused) => true,
        // Where the script itself was sent, that is nothing but an error.
        (Ballot::NoScript, Meaning::NoScript) => !by_source,
        (Ballot::NoScript, Meaning::Failed) => by_source,
        _ => false,
    }
}

/// What is asked, and `None` for how long a key has to live.
const VERBS: [Option<Verb>; 8] = [
    Some(Verb::Acquire),
    Some(Verb::Extend),
    Some(Verb::Release),
    None,
    Some(Verb::AcquireFenced),
    Some(Verb::Confirm),
    Some(Verb::Repair),
    None,
];
