//! Whatever is given for a node's URL: it is read or refused without a panic, a name that was read reads back
//! as the same node, and neither the node nor the error shows a password.
//!
//! No locker is ever connected: every configuration here has one more mistake in it.

use std::time::Duration;

use quorlock::{Builder, ConfigError, ConnectError, LocalLocker, NodeConfig};

use super::bytes::Bytes;

pub fn check(data: &[u8]) {
    let mut bytes = Bytes(data);
    let choice = bytes.byte();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match choice % 4 {
        0 | 1 => assert_read_or_refused(&text(bytes.0)),
        2 => {
            let scheme = bytes.pick(SCHEMES);
            let [user, before, after] = [(); 3].map(|()| text(bytes.field(0)));
            let rest = text(bytes.0);
            // After `unix:/` comes a path, and what is in it is no user.
            if !(scheme.starts_with("unix:") && user.starts_with('/')) {
                assert_hidden(&format!("{scheme}{user}:{before}{SECRET}{after}@{rest}"));
            }
        }
        _ => {
            let path = text(bytes.field(0));
            let keys = bytes.pick(&["?", "?db=1&", "?user=u&", "&", "?x&", "?x=y&"]);
            assert_hidden(&format!("unix:/{path}{keys}pass={SECRET}{}", text(bytes.0)));
        }
    }
}

fn assert_read_or_refused(url: &str) {
    match url.parse::<NodeConfig>() {
        Ok(node) => {
            let name = node.name();
            assert!(name.is_ascii() && !name.contains(char::is_whitespace), "{name:?}");
            let prefix = if name.starts_with("unix:/") { "" } else { "redis://" };
            let again: NodeConfig = format!("{prefix}{name}").parse().expect("a name is a URL");
            assert_eq!(again.name(), name);
            let twice = Builder::new().nodes([url, &format!("{prefix}{name}")]);
            assert!(matches!(refused(twice), ConfigError::DuplicateNode(_)), "{name}: two votes");
        }
        Err(error) => assert_eq!(refused(Builder::new().node(url)), error),
    }
    if is_password(url) {
        assert_hidden(url);
    }
}

/// The secret stands in the URL as a password, or in the place of one, and must not be shown.
fn assert_hidden(url: &str) {
    if plain(url).matches(SECRET).count() != 1 {
        return; // It is somewhere else too, and there it may be.
    }
    let shown = match url.parse::<NodeConfig>() {
        Ok(_) if is_path(url) => return,
        Ok(node) => {
            let builder = Builder::new().node(url);
            format!("{node:?} {node:#?} {} {builder:?}", node.name())
        }
        Err(error) => {
            let refused = refused(Builder::new().node(url));
            format!("{error} {error:?} {error:#?} {refused}")
        }
    };
    assert!(!plain(&shown).contains(SECRET), "{shown}");
}

/// Whether the secret is a password, going by the outlines of the URL.
fn is_password(url: &str) -> bool {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    if scheme.eq_ignore_ascii_case("unix") {
        let pairs = rest.split(['?', '&']).skip(1);
        return pairs
            .filter_map(|pair| pair.strip_prefix("pass="))
            .any(|pass| pass.contains(SECRET));
    }
    let user_info = rest.rsplit_once('@').map(|(user_info, _)| user_info);
    let password = user_info.and_then(|user_info| user_info.split_once(':'));
    rest.starts_with("//") && password.is_some_and(|(_, password)| password.contains(SECRET))
}

/// Whether the secret is a part of a Unix socket's path, which is shown.
fn is_path(url: &str) -> bool {
    let (path, _) = url.split_once('?').unwrap_or((url, ""));
    path.to_ascii_lowercase().starts_with("unix:") && path.contains(SECRET)
}

/// As a name may show it: in lower case, without escapes.
fn plain(text: &str) -> String {
    let mut plain = Vec::new();
    let mut rest = Bytes(text.as_bytes());
    while !rest.is_empty() {
        let byte = rest.byte();
        let escape = rest.0.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escape.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|_| byte == b'%') {
            Some(escaped) => {
                rest.take(2);
                plain.push(escaped.to_ascii_lowercase());
            }
            None => plain.push(byte.to_ascii_lowercase()),
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The mistake that is found first. The last is the ttl, which is always one.
fn refused(builder: Builder) -> ConfigError {
    let builder = builder.ttl(Duration::ZERO);
    let error: Result<LocalLocker, _> = builder.connect_local();
    match error.expect_err("a ttl of zero is refused") {
        ConnectError::Config(error) => error,
        error => panic!("it went on to connect: {error}"),
    }
}

const SECRET: &str = "hunter2";

const SCHEMES: &[&str] = &[
    "redis://",
    "valkey://",
    "rediss://",
    "redis:",
    "redis:/",
    "unix:",
    "unix://",
    "http://",
    "Redis://",
    "",
];
