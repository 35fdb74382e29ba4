//! How a node's URL is read, and how it is shown when it cannot be.
//!
//! Everything that could make one server look like two, or that a resolver would read in its own way, is
//! refused here. What is shown of a refused URL leaves out too much rather than a part of a password.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use super::node::{Address, Credentials, Host, Secret};

/// What a URL says.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) address: Address,
    pub(super) credentials: Credentials,
    pub(super) db: u32,
}

/// Reads a URL, or says what is wrong with it.
pub(super) fn parse(url: &str) -> Result<Parts, &'static str> {
    if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(BAD_BLANK);
    }
    if url.contains('#') {
        return Err(BAD_HASH);
    }
    let (scheme, rest) = url.split_once(':').ok_or(BAD_SCHEME)?;
    match &*scheme.to_ascii_lowercase() {
        "redis" | "valkey" => parse_tcp(rest.strip_prefix("//").ok_or(BAD_SCHEME)?),
        "unix" => parse_unix(rest),
        "rediss" | "valkeys" => Err(NO_TLS),
        _ => Err(BAD_SCHEME),
    }
}

/// The URL as an error may show it: `***` in place of user, password and whatever could be a part of them.
///
/// The URL is one that cannot be read, so where its parts begin and end is a guess. A password with `/`, `?`
/// or `@` in it, and one whose host was forgotten, must not show either.
pub(super) fn redacted(url: &str) -> Box<str> {
    let (scheme, rest) = split_scheme(url);
    let (head, query) = split_before(rest, &['?', '&']);
    let is_path = scheme.eq_ignore_ascii_case("unix:");
    if query.contains('@') && !is_path {
        return format!("{scheme}***").into();
    }
    let (hidden, shown) = match head.rfind('@') {
        Some(at) => ("***", head.split_at(at).1),
        None => ("", head),
    };
    let (shown, cut) = if is_path { (shown, "") } else { without_bad_port(shown) };
    let query = redacted_query(query);
    format!("{scheme}{hidden}{shown}{cut}{query}").into()
}

/// `[user:pass@]host[:port][/db]`
fn parse_tcp(rest: &str) -> Result<Parts, &'static str> {
    let (authority, tail) = split_before(rest, &['/', '?']);
    if tail.contains('@') {
        return Err(BAD_USER_INFO);
    }
    let (user_info, place) = match authority.rsplit_once('@') {
        Some((user_info, place)) => (Some(user_info), place),
        None => (None, authority),
    };
    let (host, port) = parse_place(place)?;
    let credentials = match user_info {
        Some(user_info) => {
            let (user, password) = user_info.split_once(':').ok_or(NO_PASSWORD)?;
            parse_credentials(Some(user), Some(password))?
        }
        None => Credentials::default(),
    };
    let db = match tail.strip_prefix('/').unwrap_or(tail) {
        "" => 0,
        db if db.contains('?') => return Err(BAD_TCP_QUERY),
        db => parse_db(db)?,
    };
    Ok(Parts { address: Address::Tcp { host, port }, credentials, db })
}

/// `/path` or `///path`, then `[?db=n&user=u&pass=p]`
fn parse_unix(rest: &str) -> Result<Parts, &'static str> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let address = Address::Unix(parse_path(path.strip_prefix("//").unwrap_or(path))?);
    let (mut db, mut user, mut password) = (None, None, None);
    // An empty query is no pair; splitting it would give one.
    for pair in query.split('&').filter(|_| !query.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(BAD_QUERY)?;
        let slot = match key {
            "db" => &mut db,
            "user" => &mut user,
            "pass" => &mut password,
            _ => return Err(BAD_QUERY),
        };
        if slot.replace(value).is_some() {
            return Err(BAD_QUERY_TWICE);
        }
    }
    let credentials = parse_credentials(user, password)?;
    Ok(Parts { address, credentials, db: db.map_or(Ok(0), parse_db)? })
}

/// `host`, `host:port`, `[ipv6]` or `[ipv6]:port`
fn parse_place(place: &str) -> Result<(Host, u16), &'static str> {
    if let Some(rest) = place.strip_prefix('[') {
        let (ip, port) = rest.split_once(']').ok_or(BAD_BRACKETS)?;
        let port = match port.strip_prefix(':') {
            Some(port) => parse_port(port)?,
            None if port.is_empty() => PORT_DEFAULT,
            None => return Err(BAD_BRACKETS),
        };
        return Ok((parse_ipv6(ip)?, port));
    }
    match place.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(NO_BRACKETS),
        Some((host, port)) => Ok((parse_host(host)?, parse_port(port)?)),
        None => Ok((parse_host(place)?, PORT_DEFAULT)),
    }
}

/// An IPv4 address or a name.
fn parse_host(host: &str) -> Result<Host, &'static str> {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    if host.is_empty() {
        return Err(NO_HOST);
    }
    // Resolvers take any such name for an address, with octal and hexadecimal numbers and with parts left
    // out.
    if host.split('.').all(is_number) {
        let ip: Ipv4Addr = host.parse().map_err(|_| BAD_IPV4)?;
        return Ok(Host::Ip(IpAddr::V4(ip)));
    }
    if host.len() > NAME_LEN_MAX || !host.split('.').all(is_label) {
        return Err(BAD_HOST);
    }
    Ok(Host::Name(host.into()))
}

/// What stands between the brackets: an IPv6 address, and perhaps `%25` and its zone.
fn parse_ipv6(text: &str) -> Result<Host, &'static str> {
    let (ip, zone) = match text.split_once('%') {
        Some((ip, zone)) => (ip, Some(zone.strip_prefix("25").ok_or(BAD_ZONE)?)),
        None => (text, None),
    };
    let ip: Ipv6Addr = ip.parse().map_err(|_| BAD_IPV6)?;
    match zone {
        None => Ok(Host::Ip(IpAddr::V6(ip).to_canonical())),
        Some(zone) if is_zone(zone) && ip.is_unicast_link_local() => {
            Ok(Host::Name(format!("{ip}%{zone}").into()))
        }
        // With a zone, any other address would have a second spelling.
        Some(_) => Err(BAD_ZONE),
    }
}

fn parse_port(port: &str) -> Result<u16, &'static str> {
    // `parse` alone would take a sign.
    if !is_digits(port) {
        return Err(BAD_PORT);
    }
    match port.parse() {
        Ok(0) | Err(_) => Err(BAD_PORT),
        Ok(port) => Ok(port),
    }
}

fn parse_db(db: &str) -> Result<u32, &'static str> {
    if !is_digits(db) {
        return Err(BAD_DB);
    }
    db.parse().map_err(|_| BAD_DB)
}

/// Both may be missing. A user cannot be sent without a password, and where the password is empty some
/// variable was not set.
fn parse_credentials(
    user: Option<&str>,
    password: Option<&str>,
) -> Result<Credentials, &'static str> {
    match (user, password) {
        (None, None) => Ok(Credentials::default()),
        (_, None | Some("")) => Err(NO_PASSWORD),
        (user, Some(password)) => Ok(Credentials {
            user: user.filter(|user| !user.is_empty()).map(parse_secret).transpose()?,
            password: Some(parse_secret(password)?),
        }),
    }
}

fn parse_secret(text: &str) -> Result<Secret, &'static str> {
    Ok(Secret::new(percent_decoded(text)?))
}

fn parse_path(text: &str) -> Result<PathBuf, &'static str> {
    let bytes = percent_decoded(text)?;
    if !bytes.starts_with(b"/") {
        return Err(BAD_PATH_RELATIVE);
    }
    if bytes.contains(&0) {
        return Err(BAD_PATH_NUL);
    }
    // Drops `//`, `/.` and a final `/`, which mean nothing to the kernel; `..` may, and stays.
    let path: PathBuf = Path::new(&OsString::from_vec(bytes)).components().collect();
    if path.file_name().is_none() {
        return Err(BAD_PATH_DIRECTORY);
    }
    if path.as_os_str().len() > PATH_LEN_MAX {
        return Err(BAD_PATH_LENGTH);
    }
    Ok(path)
}

fn percent_decoded(text: &str) -> Result<Vec<u8>, &'static str> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        match (bytes.next().and_then(hex_digit), bytes.next().and_then(hex_digit)) {
            (Some(high), Some(low)) => decoded.push(high << 4 | low),
            _ => return Err(BAD_ESCAPE),
        }
    }
    Ok(decoded)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a resolver would read this part of a host as a number. Expects lower case.
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => is_digits(label),
    }
}

fn is_label(label: &str) -> bool {
    (1..=LABEL_LEN_MAX).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn is_zone(zone: &str) -> bool {
    (1..=ZONE_LEN_MAX).contains(&zone.len())
        && zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
}

/// Splits before the first of the characters, which begins the second part; that is empty if there is none.
fn split_before<'a>(text: &'a str, chars: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(chars).unwrap_or(text.len()))
}

/// Splits a URL that may be anything, behind `unix:` where a path follows and behind `scheme://` elsewhere.
///
/// The first part is empty if there is neither.
fn split_scheme(url: &str) -> (&str, &str) {
    let is_scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let len = match url.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("unix") && !is_authority(rest) => {
            "unix:".len()
        }
        Some((scheme, rest)) if is_scheme(scheme) && rest.starts_with("//") => {
            scheme.len() + "://".len()
        }
        _ => 0,
    };
    url.split_at(len)
}

/// Whether what follows `unix:` looks like a host, or like user info, rather than a path.
fn is_authority(rest: &str) -> bool {
    !rest.starts_with('/') || rest.starts_with("//") && !rest.starts_with("///")
}

/// Cuts what follows a colon and could not be a port: it may be a password whose host was forgotten.
fn without_bad_port(head: &str) -> (&str, &'static str) {
    let brackets = head.rfind(']').map_or(0, |end| end + 1);
    let Some(colon) = head.split_at(brackets).1.find(':') else {
        return (head, "");
    };
    let (host, rest) = head.split_at(brackets + colon + 1);
    let (port, _) = split_before(rest, &['/']);
    let is_port = port.len() <= PORT_LEN_MAX && port.bytes().all(|byte| byte.is_ascii_digit());
    if is_port && host != ":" { (head, "") } else { (host, "***") }
}

/// Shows the database, and of the other known keys that they are there; all else may be a part of a password.
fn redacted_query(query: &str) -> String {
    query.split_inclusive(['?', '&']).map(redacted_pair).collect()
}

/// A pair with the separator behind it; before the first pair there is only a separator.
fn redacted_pair(text: &str) -> String {
    let pair = text.trim_end_matches(['?', '&']);
    let separator = text.split_at(pair.len()).1;
    let shown = match pair.split_once('=') {
        Some(("db", _)) => pair,
        Some(("user", _)) => "user=***",
        Some(("pass", _)) => "pass=***",
        None if pair.is_empty() => "",
        _ => "***",
    };
    format!("{shown}{separator}")
}

const BAD_BLANK: &str =
    "it has white space or a control character in it; escape it: %20 is a space";
const BAD_BRACKETS: &str = "brackets go around the IPv6 address and nothing else";
const BAD_DB: &str = "the database is not a number";
const BAD_ESCAPE: &str =
    "% must be followed by two hexadecimal digits; write %25 for a percent sign";
const BAD_HASH: &str =
    "# means nothing in it; write %23 where it is part of a user, password or path";
const BAD_HOST: &str =
    "the host is neither a name of ASCII letters, digits, - and _ nor an address";
const BAD_IPV4: &str = "write an IPv4 address as four decimal numbers";
const BAD_IPV6: &str = "what is in brackets is not an IPv6 address";
const BAD_PATH_DIRECTORY: &str = "the path names a directory, not a socket";
const BAD_PATH_LENGTH: &str = "the path is longer than 107 bytes";
const BAD_PATH_NUL: &str = "the path has a NUL in it";
const BAD_PATH_RELATIVE: &str = "the path must begin with /, as in unix:/run/redis.sock";
const BAD_PORT: &str = "the port is not a number from 1 to 65535";
const BAD_QUERY: &str = "unknown query key; there are db, user and pass, each with = and a value";
const BAD_QUERY_TWICE: &str = "a query key is there twice";
const BAD_SCHEME: &str = "unknown scheme; it must begin with redis://, valkey:// or unix:";
const BAD_TCP_QUERY: &str =
    "unknown query key; there are none here, and the database is written as /2";
const BAD_USER_INFO: &str = "write / as %2F and ? as %3F in a user or password";
const BAD_ZONE: &str =
    "only a link-local address has a zone, which is written as in [fe80::1%25eth0]";
const NO_BRACKETS: &str = "write an IPv6 address in brackets";
const NO_HOST: &str = "the host is empty";
const NO_PASSWORD: &str =
    "the password is missing or empty; one without a user is written as :pass@host or ?pass=pass";
const NO_TLS: &str = "TLS is not built in";

/// The port that servers listen on where they are told nothing.
const PORT_DEFAULT: u16 = 6379;

/// As many digits as 65535 has.
const PORT_LEN_MAX: usize = 5;

/// The system's limit is 108 bytes with the NUL at the end.
const PATH_LEN_MAX: usize = 107;

/// DNS's limits, RFC 1035 2.3.4, as text: 255 bytes on the wire have a length more and the root.
const NAME_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;

/// An interface's name has at most 15 bytes on Linux and the BSDs; elsewhere a number is enough.
const ZONE_LEN_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{config::NodeConfig, error::ConfigError};

    /// Everything a URL says: address, user, password, database.
    fn parts(url: &str) -> (String, Option<String>, Option<String>, u32) {
        let node: NodeConfig = url.parse().expect(url);
        let text = |secret: &Option<Secret>| {
            secret.as_ref().map(|secret| secret.as_bytes().escape_ascii().to_string())
        };
        let Credentials { user, password } = node.credentials();
        (format!("{:?}", node.address()), text(user), text(password), node.db())
    }

    fn tcp(host: &str, port: u16) -> String {
        let host = match host.parse() {
            Ok(ip) => Host::Ip(ip),
            Err(_) => Host::Name(host.into()),
        };
        format!("{:?}", Address::Tcp { host, port })
    }

    fn unix(path: &str) -> String {
        format!("{:?}", Address::Unix(path.into()))
    }

    #[test]
    fn good_addresses() {
        let label = "a".repeat(63);
        let name = [&*label, &label, &label, &label[2..]].join(".");
        let path = format!("/{}", "a".repeat(106));
        for (url, address) in [
            ("redis://10.0.0.1", tcp("10.0.0.1", 6379)),
            ("redis://10.0.0.1.", tcp("10.0.0.1", 6379)),
            ("redis://10.0.0.1:1", tcp("10.0.0.1", 1)),
            ("redis://10.0.0.1:65535/", tcp("10.0.0.1", 65535)),
            ("redis://10.0.0.1:06379", tcp("10.0.0.1", 6379)),
            ("valkey://10.0.0.1", tcp("10.0.0.1", 6379)),
            ("Redis://Lock-1.Example.:6380", tcp("lock-1.example", 6380)),
            ("redis://1.example", tcp("1.example", 6379)),
            ("redis://0xy", tcp("0xy", 6379)),
            ("redis://under_score", tcp("under_score", 6379)),
            (&format!("redis://{name}."), tcp(&name, 6379)),
            ("redis://[::1]", tcp("::1", 6379)),
            ("redis://[2001:DB8::1]:6380", tcp("2001:db8::1", 6380)),
            ("redis://[::ffff:10.0.0.1]", tcp("10.0.0.1", 6379)),
            ("redis://[fe80::1%25eth0]", tcp("fe80::1%eth0", 6379)),
            ("redis://[FE80:0::1%25Br-lan.2]:1", tcp("fe80::1%Br-lan.2", 1)),
            ("unix:/run/a.sock", unix("/run/a.sock")),
            ("unix:///run/a.sock", unix("/run/a.sock")),
            ("UNIX:////run//./a.sock/", unix("/run/a.sock")),
            ("unix:/run/../a.sock", unix("/run/../a.sock")),
            ("unix:/a%20%3fb@c:d", unix("/a ?b@c:d")),
            ("unix:/\u{e9}", unix("/\u{e9}")),
            ("unix:%2Fa?", unix("/a")),
            (&format!("unix:{path}"), unix(&path)),
            (&format!("unix:{path}/"), unix(&path)),
        ] {
            assert_eq!(parts(url), (address, None, None, 0), "{url}");
        }
    }

    #[test]
    fn good_credentials_and_databases() {
        for (url, user, password, db) in [
            ("redis://u:p@a", Some("u"), Some("p"), 0),
            ("redis://:p@a/15", None, Some("p"), 15),
            ("redis://U:P@a:1/4294967295", Some("U"), Some("P"), u32::MAX),
            ("redis://a/007", None, None, 7),
            ("redis://u:p:q@r@[::1]/1", Some("u"), Some("p:q@r"), 1),
            ("redis://u%3a:%40%2F%00%ff@a", Some("u:"), Some("@/\\x00\\xff"), 0),
            ("redis://:a+b&c=d@a", None, Some("a+b&c=d"), 0),
            ("unix:/a?db=2&user=u&pass=p", Some("u"), Some("p"), 2),
            ("unix:///a?pass=p%26%3d=?+@", None, Some("p&==?+@"), 0),
            ("unix:/a?user=&pass=p", None, Some("p"), 0),
            ("unix:/a?db=3", None, None, 3),
        ] {
            let (_, found_user, found_password, found_db) = parts(url);
            let found = (found_user.as_deref(), found_password.as_deref(), found_db);
            assert_eq!(found, (user, password, db), "{url}");
        }
    }

    /// Each URL is refused for its reason, and nothing of the error has a password in it.
    fn assert_refused(table: &[(&str, &str)]) {
        for &(url, reason) in table {
            let error = url.parse::<NodeConfig>().expect_err(url);
            let text = format!("{error} {error:?} {error:#?}");
            assert!(!text.contains("hunter2"), "{text}");
            let ConfigError::BadUrl { reason: found, .. } = error else {
                panic!("{error:?}");
            };
            assert_eq!(found, reason, "{url}");
        }
    }

    #[test]
    fn bad_schemes() {
        assert_refused(&[
            ("", BAD_SCHEME),
            ("10.0.0.1", BAD_SCHEME),
            ("localhost:6379", BAD_SCHEME),
            ("/run/a.sock", BAD_SCHEME),
            ("http://a", BAD_SCHEME),
            ("://a", BAD_SCHEME),
            ("redis:a", BAD_SCHEME),
            ("redis:/a", BAD_SCHEME),
            ("redis+unix:///a", BAD_SCHEME),
            ("rediss://a", NO_TLS),
            ("Valkeys://a", NO_TLS),
            ("redis:hunter2@a", BAD_SCHEME),
            (":hunter2@a:1", BAD_SCHEME),
            ("u:hunter2@a", BAD_SCHEME),
            ("http://u:hunter2@a", BAD_SCHEME),
            ("rediss://u:hunter2@a", NO_TLS),
        ]);
    }

    #[test]
    fn bad_hosts() {
        let label = "a".repeat(64);
        let name = ["aaaaaaa"; 32].join(".");
        assert_refused(&[
            ("redis://", NO_HOST),
            ("redis://.", NO_HOST),
            ("redis://:6379", NO_HOST),
            ("redis:///0", NO_HOST),
            ("redis://u:hunter2@", NO_HOST),
            ("redis://u:hunter2@:1", NO_HOST),
            ("redis://127.1", BAD_IPV4),
            ("redis://2130706433", BAD_IPV4),
            ("redis://0x7f.1", BAD_IPV4),
            ("redis://0X7F000001", BAD_IPV4),
            ("redis://0x", BAD_IPV4),
            ("redis://127.0.0.01", BAD_IPV4),
            ("redis://127.0.0.0x1", BAD_IPV4),
            ("redis://127.0.0.256", BAD_IPV4),
            ("redis://127.0.0.0.1", BAD_IPV4),
            ("redis://a..b", BAD_HOST),
            ("redis://.a", BAD_HOST),
            ("redis://a..", BAD_HOST),
            ("redis://127..1", BAD_HOST),
            ("redis://\u{fc}", BAD_HOST),
            ("redis://a%20b", BAD_HOST),
            ("redis://a,b", BAD_HOST),
            ("redis://a]", BAD_HOST),
            (&format!("redis://{label}"), BAD_HOST),
            (&format!("redis://{name}"), BAD_HOST),
            ("redis://a&pass=hunter2", BAD_HOST),
        ]);
    }

    #[test]
    fn bad_ipv6_hosts() {
        assert_refused(&[
            ("redis://::1", NO_BRACKETS),
            ("redis://2001:db8::1", NO_BRACKETS),
            ("redis://::1:6379", NO_BRACKETS),
            ("redis://[::1", BAD_BRACKETS),
            ("redis://[::1]6379", BAD_BRACKETS),
            ("redis://[]", BAD_IPV6),
            ("redis://[10.0.0.1]", BAD_IPV6),
            ("redis://[a]", BAD_IPV6),
            ("redis://[::1::]", BAD_IPV6),
            ("redis://[fe80::1%eth0]", BAD_ZONE),
            ("redis://[fe80::1%25]", BAD_ZONE),
            ("redis://[fe80::1%25a%25]", BAD_ZONE),
            ("redis://[fe80::1%25aaaaaaaaaaaaaaaa]", BAD_ZONE),
            ("redis://[::1%25lo]", BAD_ZONE),
            ("redis://[::ffff:10.0.0.1%25lo]", BAD_ZONE),
        ]);
    }

    #[test]
    fn bad_ports_and_databases() {
        assert_refused(&[
            ("redis://a:", BAD_PORT),
            ("redis://a:0", BAD_PORT),
            ("redis://a:65536", BAD_PORT),
            ("redis://a:+1", BAD_PORT),
            ("redis://a:-1", BAD_PORT),
            ("redis://a:http", BAD_PORT),
            ("redis://u:hunter2", BAD_PORT),
            ("redis://[::1]:x", BAD_PORT),
            ("redis://a/b", BAD_DB),
            ("redis://a/-1", BAD_DB),
            ("redis://a/+1", BAD_DB),
            ("redis://a/0/", BAD_DB),
            ("redis://a//", BAD_DB),
            ("redis://a/4294967296", BAD_DB),
            ("unix:/a?db=", BAD_DB),
            ("unix:/a?db=x", BAD_DB),
        ]);
    }

    #[test]
    fn bad_user_info() {
        assert_refused(&[
            ("redis://@a", NO_PASSWORD),
            ("redis://hunter2@a", NO_PASSWORD),
            ("redis://u:@a", NO_PASSWORD),
            ("redis://:@a", NO_PASSWORD),
            ("unix:/a?user=u", NO_PASSWORD),
            ("unix:/a?pass=", NO_PASSWORD),
            ("redis://u:hunter2/x@a", BAD_USER_INFO),
            ("redis://u:x/hunter2@a", BAD_USER_INFO),
            ("redis://u:x?hunter2@a", BAD_USER_INFO),
            ("redis://u:hunter2?x@a", BAD_USER_INFO),
        ]);
    }

    #[test]
    fn bad_characters() {
        assert_refused(&[
            ("redis://u:hunter2%@a", BAD_ESCAPE),
            ("redis://u:hunter2%4@a", BAD_ESCAPE),
            ("redis://u%zz:hunter2@a", BAD_ESCAPE),
            ("redis://u:%\u{e9}hunter2@a", BAD_ESCAPE),
            ("unix:/a%+1", BAD_ESCAPE),
            ("unix:/a?pass=hunter2%f", BAD_ESCAPE),
            ("redis://u:hunter2#x@a", BAD_HASH),
            ("redis://u:x#hunter2@a", BAD_HASH),
            ("redis://u:hunter2 @a", BAD_BLANK),
            ("redis://u:hunter2@a\n", BAD_BLANK),
            (" redis://u:hunter2@a", BAD_BLANK),
            ("redis://a\0", BAD_BLANK),
            ("redis://a\u{a0}", BAD_BLANK),
            ("unix:/a\tb", BAD_BLANK),
        ]);
    }

    #[test]
    fn bad_queries() {
        assert_refused(&[
            ("redis://a?db=1", BAD_TCP_QUERY),
            ("redis://a?pass=hunter2", BAD_TCP_QUERY),
            ("redis://a/1?password=hunter2", BAD_TCP_QUERY),
            ("unix:/a?pass=x&hunter2", BAD_QUERY),
            ("unix:/a?password=hunter2", BAD_QUERY),
            ("unix:/a?p%61ss=hunter2", BAD_QUERY),
            ("unix:/a?db=1&", BAD_QUERY),
            ("unix:/a?PASS=hunter2", BAD_QUERY),
            ("unix:/a?pass=x&hunter2=", BAD_QUERY),
            ("unix:/a?pass=hunter2&pass=hunter2", BAD_QUERY_TWICE),
            ("unix:/a?db=1&db=1", BAD_QUERY_TWICE),
        ]);
    }

    #[test]
    fn bad_paths() {
        let path = format!("unix:/{}", "a".repeat(107));
        assert_refused(&[
            ("unix:", BAD_PATH_RELATIVE),
            ("unix://", BAD_PATH_RELATIVE),
            ("unix:a", BAD_PATH_RELATIVE),
            ("unix:./a", BAD_PATH_RELATIVE),
            ("unix://a/b", BAD_PATH_RELATIVE),
            ("unix://u:hunter2@/a", BAD_PATH_RELATIVE),
            ("unix:u:hunter2@/a", BAD_PATH_RELATIVE),
            ("unix:?pass=hunter2", BAD_PATH_RELATIVE),
            ("unix:/", BAD_PATH_DIRECTORY),
            ("unix:///", BAD_PATH_DIRECTORY),
            ("unix:/a/..", BAD_PATH_DIRECTORY),
            ("unix:/a%00", BAD_PATH_NUL),
            (&path, BAD_PATH_LENGTH),
        ]);
    }

    #[test]
    fn what_is_shown_of_a_bad_url() {
        for (url, shown) in [
            ("", ""),
            ("http://a:80/b", "http://a:80/b"),
            ("redis://a:99999/0", "redis://a:99999/0"),
            ("redis://u:p@a:0/1", "redis://***@a:0/1"),
            ("redis://:p@[::1]:0", "redis://***@[::1]:0"),
            ("redis://:p@a/b?c=d", "redis://***@a/b?***"),
            ("redis://p@q@a", "redis://***@a"),
            ("redis://a:p/q", "redis://a:***"),
            ("redis://:123/q", "redis://:***"),
            ("redis://::1", "redis://:***"),
            ("redis://u:p?q@a", "redis://***"),
            ("u:p@a", "***@a"),
            ("unix://u:p@/a", "unix://***@/a"),
            ("unix:/a@b", "unix:***@b"),
            ("unix:/a:b?db=x&user=u&pass=p@q&r", "unix:/a:b?db=x&user=***&pass=***&***"),
            ("unix:/a&pass=p", "unix:/a&pass=***"),
        ] {
            assert_eq!(&*redacted(url), shown, "{url}");
        }
    }

    /// The URL's error must not have the password in it, if it has one.
    fn assert_hidden(url: &str) {
        if let Err(error) = url.parse::<NodeConfig>() {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn user_info_is_never_shown(
            // After `unix:/` comes a path, and what is in it is no user info.
            scheme in "((redis|rediss|[a-z]{0,3}):?/{0,3}|unix:(//)?[a-z@:])",
            user in "[a-z%?&/#@:]{0,3}",
            before in "[a-z%?&/#@:]{0,3}",
            after in "[a-z%?&/#@:]{0,3}",
            rest in r"[a-z0-9%?&/#@:\[\]. ]{0,9}",
        ) {
            assert_hidden(&format!("{scheme}{user}:{before}hunter2{after}@{rest}"));
        }

        #[test]
        fn pass_is_never_shown(
            before in "unix:/{0,4}[a-z%/@:]{1,3}[?&](db=x&|x&)?",
            after in "[a-z0-9%?/@:=&# ]{0,9}",
        ) {
            assert_hidden(&format!("{before}pass=hunter2{after}"));
        }

        #[test]
        fn nothing_is_lost_by_escaping(password in prop::collection::vec(any::<u8>(), 1..20)) {
            let escaped: String = password.iter().map(|byte| format!("%{byte:02x}")).collect();
            let expected = Some(password.escape_ascii().to_string());
            prop_assert_eq!(&parts(&format!("redis://:{escaped}@a")).2, &expected);
            prop_assert_eq!(&parts(&format!("unix:/a?pass={escaped}")).2, &expected);
        }
    }
}
