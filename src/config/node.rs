//! One node as configured: where it is, who we are to it, and which database.
//!
//! Passwords live in [`Secret`]s, which no formatting shows. A node's name and its canonical address are here
//! too; how a URL is read is `url`'s business.

use std::{
    fmt,
    net::IpAddr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use super::url;
use crate::error::ConfigError;

/// A node: an address, and the credentials and the database to use there. Parsed from a URL.
///
/// | URL | |
/// |---|---|
/// | `redis://10.0.0.1` | port 6379, database 0, no password |
/// | `redis://[::1]:6380/2` | an IPv6 address in brackets, a port, a database |
/// | `redis://[fe80::1%25eth0]` | a link-local address with its zone, after `%25` |
/// | `redis://user:pass@lock-1.example` | a user and a password |
/// | `redis://:pass@lock-1.example` | a password alone |
/// | `valkey://10.0.0.1` | the same as `redis://` |
/// | `unix:/run/redis.sock` | a Unix socket, also `unix:///run/redis.sock` |
/// | `unix:/run/redis.sock?db=2&user=user&pass=pass` | with database and credentials, each as needed |
///
/// In user, password and path, a byte may be written as `%` and two hexadecimal digits. `%`, `#`, `?`, `&`
/// and white space must be, and in a user or password `/`, `:` and `@` as well. IPv4 addresses are four
/// decimal numbers: the shorter forms that some resolvers read (`127.1`) are refused, because they would hide
/// that two nodes are one.
///
/// # Examples
///
/// ```
/// use quorlock::{ConfigError, NodeConfig};
///
/// let node: NodeConfig = "redis://user:hunter2@Lock-1.example/2".parse()?;
/// assert_eq!(node.name(), "lock-1.example:6379");
/// assert!(!format!("{node:?}").contains("hunter2"));
///
/// let error = NodeConfig::try_from("redis://user:hunter2@lock-1:port").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"bad node URL "redis://***@lock-1:***": the port is not a number from 1 to 65535"#
/// );
/// # Ok::<(), ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeConfig {
    name: Box<str>,
    address: Address,
    credentials: Credentials,
    db: u32,
}

impl NodeConfig {
    /// The address without credentials and database: `10.0.0.1:6379`, `[::1]:6379` or `unix:/run/redis.sock`.
    ///
    /// This is what errors call the node. In a path, bytes that a URL cannot have as they are stay escaped.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub(crate) fn db(&self) -> u32 {
        self.db
    }
}

impl FromStr for NodeConfig {
    type Err = ConfigError;

    fn from_str(url: &str) -> Result<Self, ConfigError> {
        match url::parse(url) {
            Ok(url::Parts { address, credentials, db }) => {
                Ok(Self { name: address.to_string().into(), address, credentials, db })
            }
            Err(reason) => Err(ConfigError::BadUrl { url: url::redacted(url), reason }),
        }
    }
}

impl TryFrom<&str> for NodeConfig {
    type Error = ConfigError;

    fn try_from(url: &str) -> Result<Self, ConfigError> {
        url.parse()
    }
}

/// Where a node is, to be connected to as it stands here.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Address {
    Tcp {
        host: Host,
        /// Invariant: not 0.
        port: u16,
    },
    /// Invariant: absolute, without NUL, at most 107 bytes, and with no `//`, `/.` or `/` at the end. A `..`
    /// is kept: behind a symbolic link it leads elsewhere than its text says.
    Unix(PathBuf),
}

impl Address {
    /// The form in which two addresses are compared. Hosts are parsed into it already.
    pub(crate) fn canonical(&self) -> Self {
        match self {
            Self::Tcp { .. } => self.clone(),
            Self::Unix(path) => Self::Unix(without_parents(path)),
        }
    }
}

impl fmt::Display for Address {
    /// What is written reads back as the same address: behind `redis://`, or, a Unix socket's, as it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => {
                f.write_str("unix:")?;
                path.as_os_str().as_bytes().iter().try_for_each(|&byte| match byte {
                    b'%' | b'?' | b'#' => write!(f, "%{byte:02X}"),
                    b'!'..=b'~' => write!(f, "{}", char::from(byte)),
                    _ => write!(f, "%{byte:02X}"),
                })
            }
        }
    }
}

/// A TCP host, in its canonical form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Host {
    /// Invariant: no IPv6 address that stands for an IPv4 one.
    Ip(IpAddr),
    /// For the system to resolve: a name in lower case and without its final dot, or an IPv6 address with its
    /// zone, `fe80::1%eth0`, since only the system knows the number of an interface.
    Name(Box<str>),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Name(name) => match name.split_once('%') {
                Some((ip, zone)) => write!(f, "[{ip}%25{zone}]"),
                None => f.write_str(name),
            },
        }
    }
}

/// What to authenticate with.
///
/// Invariant: a user comes with a password, and neither is empty.
#[derive(Clone, Debug, Default)]
#[allow(clippy::exhaustive_structs)] // internal
pub struct Credentials {
    /// `None` is the default user.
    pub user: Option<Secret>,
    /// `None` is to send no credentials.
    pub password: Option<Secret>,
}

/// Bytes that are sent to the server and shown to nobody.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Takes the bytes as they are.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into_boxed_slice())
    }

    /// What is sent.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The absolute path with each `..` taken for the text that it says.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                // Above the root is the root: there `pop` does nothing, and so does the kernel.
                plain.pop();
            }
            component => plain.push(component),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The URL that a name stands for.
    fn url_of(name: &str) -> String {
        if name.starts_with("unix:/") { name.into() } else { format!("redis://{name}") }
    }

    fn assert_name_reads_back(url: &str) {
        if let Ok(node) = url.parse::<NodeConfig>() {
            let again: NodeConfig = url_of(node.name()).parse().expect("a name is a URL");
            assert_eq!(again.address(), node.address());
            assert_eq!(again.name(), node.name());
            let canonical = node.address().canonical();
            assert_eq!(canonical.canonical(), canonical);
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        for url in ["redis://alice:hunter2@a/3", "unix:/a?user=alice&pass=hunter2"] {
            let node: NodeConfig = url.parse().unwrap();
            for text in [format!("{node:?}"), format!("{node:#?}")] {
                assert!(!text.contains("hunter2") && !text.contains("alice"), "{text}");
                assert!(text.contains("***"), "{text}");
            }
        }
    }

    #[test]
    fn parents_are_dropped_as_text() {
        for (path, plain) in
            [("/a", "/a"), ("/a/../b", "/b"), ("/../../a", "/a"), ("/a/b/../../c", "/c")]
        {
            assert_eq!(without_parents(Path::new(path)), Path::new(plain));
        }
    }

    proptest! {
        #[test]
        fn any_string_is_read_or_refused(url in ".*") {
            assert_name_reads_back(&url);
        }

        #[test]
        fn names_of_tcp_nodes_read_back(
            host in r"[a-zA-Z0-9.-]{1,12}|(0x)?[0-9.]{1,9}|\[[0-9a-f:.]{2,20}(%25[a-z0-9]{1,4})?\]",
            port in "(:[0-9]{1,5})?",
        ) {
            assert_name_reads_back(&format!("redis://{host}{port}"));
        }

        #[test]
        fn names_of_ip_nodes_read_back(ip: IpAddr, port in 1_u16..) {
            let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
            let url = format!("redis://{host}:{port}");
            let node: NodeConfig = url.parse().unwrap();
            prop_assert_eq!(node.address(), &Address::Tcp { host: Host::Ip(ip.to_canonical()), port });
            assert_name_reads_back(&url);
        }

        #[test]
        fn names_of_unix_nodes_read_back(path in "/([a./&@é]|%[0-9A-F]{2}){1,30}") {
            assert_name_reads_back(&format!("unix:{path}"));
        }
    }
}
