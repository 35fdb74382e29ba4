//! The bytes of a client, read as the commands they are.

use quorlock::internal::script::Script;

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
    },
    Set {
        key: u8,
        token: u128,
        nx: bool,
        px: Option<u64>,
    },
    Track,
}

/// What a script does; the last two are of mutants. Sources are compared as a whole; tests with real servers hold them to this.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(quorlock_mutants), expect(dead_code))]
pub enum Lua {
    Extend,
    Release,
    /// Those of fenced locks.
    Fenced,
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

    fn of_source(source: &[u8]) -> Self {
        const EXTEND: &str = include_str!("../../lua/extend.lua");
        const RELEASE: &str = include_str!("../../lua/release.lua");
        #[cfg(quorlock_mutants)]
        {
            use quorlock::internal::mutant::{EXTEND_OR_CREATE, RELEASE_ANYTHING};
            match source {
                _ if source == EXTEND_OR_CREATE.as_bytes() => return Self::ExtendOrCreate,
                _ if source == RELEASE_ANYTHING.as_bytes() => return Self::ReleaseAnything,
                _ => {}
            }
        }
        match source {
            _ if source == EXTEND.as_bytes() => Self::Extend,
            _ if source == RELEASE.as_bytes() => Self::Release,
            _ if Script::ALL.iter().any(|script| script.source().as_bytes() == source) => {
                Self::Fenced
            }
            _ => panic!("an unknown script: {}", source.escape_ascii()),
        }
    }

    fn of_digest(digest: &[u8]) -> Self {
        match digest {
            _ if digest == Script::Extend.digest() => Self::Extend,
            _ if digest == Script::Release.digest() => Self::Release,
            _ => panic!("an unknown digest: {}", digest.escape_ascii()),
        }
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
        [b"EVALSHA", digest, b"1", key, token, ref ttl @ ..] => {
            run(Lua::of_digest(digest), false, key, token, ttl)
        }
        [b"EVAL", source, b"1", key, token, ref ttl @ ..] => {
            run(Lua::of_source(source), true, key, token, ttl)
        }
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

fn run(lua: Lua, by_source: bool, key: &[u8], token: &[u8], ttl: &[&[u8]]) -> Command {
    let ttl_ms = ttl.first().map_or(0, |ttl| decimal(ttl));
    assert_eq!(lua.extends(), !ttl.is_empty());
    Command::Run { lua, by_source, key: key_of(key), token: token_of(token), ttl_ms }
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
