//! The bytes of a client, read as the commands they are.

use quorlock::internal::{lease::COUNTER_SUFFIX, script::Script};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    Auth,
    Caching,
    Hello,
    Info,
    Introduce,
    Load(Lua),
    Pttl {
        key: u8,
    },
    /// `EVALSHA` or, `by_source`, `EVAL`.
    Run {
        lua: Lua,
        by_source: bool,
        key: u8,
        token: u128,
        ttl_ms: u64,
        /// What is to be confirmed, or to be put back with the lock; 0 if nothing is.
        count: u64,
    },
    Set {
        key: u8,
        token: u128,
        nx: bool,
        px: Option<u64>,
    },
    Track,
}

/// What a script does; the last three are of mutants. Sources are compared as a whole; tests with real servers hold them to this.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(quorlock_mutants), expect(dead_code))]
pub enum Lua {
    AcquireFenced,
    Confirm,
    Extend,
    Release,
    Repair,
    AcquireUnseeded,
    ExtendOrCreate,
    ReleaseAnything,
}

impl Lua {
    pub fn bit(self) -> u8 {
        1 << self as u8
    }

    pub fn extends(self) -> bool {
        matches!(self, Self::Extend | Self::ExtendOrCreate)
    }

    pub fn releases(self) -> bool {
        matches!(self, Self::Release | Self::ReleaseAnything)
    }

    /// Whether it takes the lock.
    pub fn claims(self) -> bool {
        matches!(self, Self::AcquireFenced | Self::AcquireUnseeded)
    }

    fn of_source(source: &[u8]) -> Self {
        #[cfg(quorlock_mutants)]
        {
            use quorlock::internal::mutant::{
                ACQUIRE_UNSEEDED, EXTEND_OR_CREATE, RELEASE_ANYTHING,
            };
            match source {
                _ if source == ACQUIRE_UNSEEDED.as_bytes() => return Self::AcquireUnseeded,
                _ if source == EXTEND_OR_CREATE.as_bytes() => return Self::ExtendOrCreate,
                _ if source == RELEASE_ANYTHING.as_bytes() => return Self::ReleaseAnything,
                _ => {}
            }
        }
        let script = Script::ALL.into_iter().find(|script| file(*script).as_bytes() == source);
        script.map_or_else(|| panic!("an unknown script: {}", source.escape_ascii()), Self::of)
    }

    fn of_digest(digest: &[u8]) -> Self {
        let script = Script::ALL.into_iter().find(|script| script.digest() == digest);
        script.map_or_else(|| panic!("an unknown digest: {}", digest.escape_ascii()), Self::of)
    }

    fn of(script: Script) -> Self {
        match script {
            Script::AcquireFenced => Self::AcquireFenced,
            Script::Confirm => Self::Confirm,
            Script::Extend => Self::Extend,
            Script::Release => Self::Release,
            Script::Repair => Self::Repair,
        }
    }
}

fn file(script: Script) -> &'static str {
    match script {
        Script::AcquireFenced => include_str!("../../lua/acquire_fenced.lua"),
        Script::Confirm => include_str!("../../lua/confirm.lua"),
        Script::Extend => include_str!("../../lua/extend.lua"),
        Script::Release => include_str!("../../lua/release.lua"),
        Script::Repair => include_str!("../../lua/repair.lua"),
    }
}

/// The first whole command, and how many bytes it is.
pub fn parse(bytes: &[u8]) -> Option<(Command, usize)> {
    let mut words: [&[u8]; WORDS_MAX] = [&[]; WORDS_MAX];
    let mut at = 0;
    let count = number(bytes, b'*', &mut at)?;
    for word in &mut words[..count] {
        let len = number(bytes, b'$', &mut at)?;
        *word = bytes.get(at..at + len)?;
        assert_eq!(bytes.get(at + len..at + len + 2)?, b"\r\n");
        at += len + 2;
    }
    Some((read(&words[..count]), at))
}

fn read(words: &[&[u8]]) -> Command {
    match *words {
        [b"SET", key, token, ref options @ ..] => Command::Set {
            key: key_of(key),
            token: token_of(token),
            nx: options.contains(&b"NX".as_slice()),
            px: options.iter().position(|word| *word == b"PX").map(|at| decimal(options[at + 1])),
        },
        [b"EVALSHA", digest, ref rest @ ..] => run(Lua::of_digest(digest), false, rest),
        [b"EVAL", source, ref rest @ ..] => run(Lua::of_source(source), true, rest),
        [b"PTTL", key] => Command::Pttl { key: key_of(key) },
        [b"CLIENT", b"CACHING", b"YES"] => Command::Caching,
        [b"CLIENT", b"TRACKING", ..] => Command::Track,
        [b"CLIENT", ..] => Command::Introduce,
        [b"HELLO", ..] => Command::Hello,
        [b"AUTH", ..] => Command::Auth,
        [b"INFO", ..] => Command::Info,
        [b"SCRIPT", b"LOAD", source] => Command::Load(Lua::of_source(source)),
        _ => panic!("an unknown command: {words:?}"),
    }
}

fn run(lua: Lua, by_source: bool, words: &[&[u8]]) -> Command {
    let (key, token, rest) = match *words {
        [b"1", key, token, ref rest @ ..] => (key, token, rest),
        [b"2", key, counter, token, ref rest @ ..] => {
            assert_eq!(counter.strip_prefix(key), Some(COUNTER_SUFFIX));
            (key, token, rest)
        }
        _ => panic!("one key or two: {words:?}"),
    };
    let counts = words[0] == b"2";
    assert_eq!(counts, lua.claims() || lua == Lua::Confirm || lua == Lua::Repair && rest.len() > 1);
    let (ttl_ms, count) = match *rest {
        [count] if lua == Lua::Confirm => (0, decimal(count)),
        [ttl] if !lua.releases() => (decimal(ttl), 0),
        [ttl, count] if lua == Lua::Repair => (decimal(ttl), decimal(count)),
        [] if lua.releases() => (0, 0),
        _ => panic!("{lua:?} with {rest:?}"),
    };
    Command::Run { lua, by_source, key: key_of(key), token: token_of(token), ttl_ms, count }
}

/// Keys are a prefix and one letter.
fn key_of(key: &[u8]) -> u8 {
    assert_eq!(key.len(), PREFIX.len() + 1);
    key[PREFIX.len()] - b'a'
}

/// Half of the token's digits are enough to tell it from all others.
pub fn token_of(digits: &[u8]) -> u128 {
    assert_eq!(digits.len(), 40);
    u128::from_le_bytes(digits[..16].try_into().unwrap())
}

fn number(bytes: &[u8], sign: u8, at: &mut usize) -> Option<usize> {
    assert_eq!(*bytes.get(*at)?, sign, "only arrays of bulks are ever sent");
    let mut number = 0;
    for (i, byte) in bytes[*at + 1..].iter().enumerate() {
        match byte {
            b'\r' => {
                *at += i + 3;
                return Some(number);
            }
            digit => number = number * 10 + usize::from(digit - b'0'),
        }
    }
    None
}

fn decimal(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

pub const PREFIX: &[u8] = b"k:";

const WORDS_MAX: usize = 9;
