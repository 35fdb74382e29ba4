//! The configuration: what a locker is told once, parsed at the edge.
//!
//! [`Builder::parse`] is the one way to a [`Config`], and a `Config` needs no checking again: its nodes are 1
//! to [`NODES_MAX`] different addresses and every setting is within its range. Nothing here does I/O or reads
//! a clock, so two names of one server (`localhost` and `127.0.0.1`) are told apart: that takes a connection.

mod node;
mod restart;
mod url;

use std::time::Duration;

pub(crate) use self::node::{Address, Host};
#[doc(hidden)]
pub use self::node::{Credentials, Secret};
pub use self::{node::NodeConfig, restart::RestartGuard};
use crate::{
    error::{ConfigError, InvalidRequest, NODES_MAX},
    proto::validity::Ttl,
};

/// What a locker is built from: its nodes, and the settings that its requests fall back to.
///
/// Only nodes must be given. Mistakes are not reported by the setters but all in one place, when the locker
/// is connected; of several mistakes, the first node URL that cannot be read comes first.
///
/// Clients that share resources must be given the same nodes, the same key prefix and the same database: two
/// majorities meet only within one set of nodes.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// let builder = quorlock::Builder::new()
///     .nodes(["redis://:hunter2@10.0.0.1", "redis://:hunter2@10.0.0.2", "unix:/run/redis.sock"])
///     .ttl(Duration::from_secs(30))
///     .key_prefix("billing/");
///
/// // Passwords stay out of logs.
/// assert!(!format!("{builder:?}").contains("hunter2"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until a locker is connected from it"]
pub struct Builder {
    /// The first URL that cannot be read takes the place of the nodes, and later ones are not looked at.
    nodes: Result<Vec<NodeConfig>, ConfigError>,
    ttl: Duration,
    timeout: Duration,
    node_timeout: Option<Duration>,
    connect_timeout: Duration,
    drift: Drift,
    retry: RetryPolicy,
    key_prefix: Vec<u8>,
    client_name: String,
    linger: Duration,
    spin: Duration,
    tracking: bool,
    restart_guard: RestartGuard,
    repair: bool,
    ttl_max: Option<Duration>,
}

impl Builder {
    /// A builder without nodes, and with the default for everything else.
    pub fn new() -> Self {
        Self {
            nodes: Ok(Vec::new()),
            ttl: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
            node_timeout: None,
            connect_timeout: Duration::from_secs(1),
            drift: Drift::default(),
            retry: RetryPolicy::default(),
            key_prefix: Vec::new(),
            client_name: String::from("quorlock"),
            linger: Duration::from_millis(100),
            spin: Duration::ZERO,
            tracking: true,
            restart_guard: RestartGuard::default(),
            repair: false,
            ttl_max: None,
        }
    }

    /// Adds a node by its URL; [`NodeConfig`] says how one is written.
    ///
    /// Nodes are independent masters: a replica of another node, or a second address of it, is not one more.
    /// To change the set, stop all clients, wait for the longest ttl, and start them with the new one.
    ///
    /// There may be 1 to 15 of them. One node is a plain lock that is as available as its server. An even
    /// number is safe but buys nothing: four nodes outlive one failure, as three do.
    pub fn node(mut self, url: impl AsRef<str>) -> Self {
        if let Ok(nodes) = &mut self.nodes {
            match url.as_ref().parse() {
                Ok(node) => nodes.push(node),
                Err(error) => self.nodes = Err(error),
            }
        }
        self
    }

    /// Adds every node of a list, as [`node`](Self::node) does.
    pub fn nodes(self, urls: impl IntoIterator<Item: AsRef<str>>) -> Self {
        urls.into_iter().fold(self, Self::node)
    }

    /// For how long a lock is taken where the request says nothing: the expiry of its keys.
    ///
    /// 10 ms to 24 h, by default 10 s. A holder that dies blocks the resource for this long, and a holder
    /// that lives must be done, or have extended the lock, before it is over.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// For how long an acquire waits for a lock that is taken, where the request says nothing.
    ///
    /// By default 10 s; any duration is accepted.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long one node may take to answer before it counts as failed in the attempt.
    ///
    /// 1 ms to 60 s. By default a twentieth of the request's ttl, but at least 5 ms and at most 50 ms: what
    /// is spent on waiting for a dead node is lost from the lock's validity. Where round trips between client
    /// and nodes take longer than that, set it.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }

    /// How long connecting to a node may take: resolving its name, the connection and the handshake.
    ///
    /// 1 ms to 60 s, by default 1 s. It is longer than the [`node_timeout`](Self::node_timeout) because a
    /// connection under way is worth keeping when the attempt that wanted it is over.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How far the clocks of client and nodes may differ over one ttl. By default 1 % of it and 2 ms.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// How long to wait before asking again for a lock that is taken. By default a random time from 50 ms to
    /// 250 ms.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// What every key on the nodes starts with, so that locks keep clear of other data there.
    ///
    /// Any bytes, at most 1 KiB; by default none. Clients with different prefixes do not exclude each other.
    pub fn key_prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// The name of this client's connections in the server's `CLIENT LIST`. By default `quorlock`.
    ///
    /// 1 to 64 bytes of printable ASCII without spaces: servers refuse others.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// How long the last handle of a [`Locker`](crate::Locker) to be dropped may wait until queued releases are
    /// written. By default 100 ms; there is no waiting where nothing is queued.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// How long to look for replies, again and again, before going to sleep until they come. By default not at
    /// all; at most 1 ms.
    ///
    /// A thread that is awake when the replies come need not be woken, which is most of what a lock costs
    /// beside the network. The cost is a core that is busy while replies are under way, for up to this long in
    /// each wait; where there is no core to spare it makes locks slower, as it takes the core from whoever
    /// would answer. A little more than the round trip to the nodes is a good value. BENCHMARKS.md has figures.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Whether a [`Locker`](crate::Locker) that waits for a lock asks the nodes to tell it when the lock is free,
    /// by RESP3's `CLIENT TRACKING`. By default it does, where a server can; elsewhere, and if nothing is
    /// heard, it asks again after the pause of [`retry`](Self::retry).
    pub fn tracking(mut self, tracking: bool) -> Self {
        self.tracking = tracking;
        self
    }

    /// These nodes with the settings of another builder.
    pub(crate) fn with_settings_of(self, settings: &Self) -> Self {
        Self { nodes: self.nodes, ..settings.clone() }
    }

    /// The nodes as far as they can be read, unchecked.
    pub(crate) fn given_nodes(&self) -> Result<&[NodeConfig], ConfigError> {
        self.nodes.as_deref().map_err(Clone::clone)
    }

    /// What to do about nodes that were restarted and may have forgotten what they granted. By default they are held
    /// back once this locker has seen them restart.
    pub fn restart_guard(mut self, guard: RestartGuard) -> Self {
        self.restart_guard = guard;
        self
    }

    /// The longest ttl that any client of these nodes asks for, which is how long a restarted node stays away.
    /// Requests for more are refused. Set it to the same for all clients.
    ///
    /// By default it is the longest that this locker was asked for so far, which is right where all clients use the
    /// same.
    pub fn ttl_max(mut self, ttl: Duration) -> Self {
        self.ttl_max = Some(ttl);
        self
    }

    /// Whether extending a lock also puts it back on nodes that lost it, as they were restarted, or never had it, as
    /// they were away. By default it does not, and a lock that is held through a few restarts is lost.
    ///
    /// Each extension then asks the nodes that do not hold the lock to take it (never where somebody else's key is). What
    /// was put back counts for nothing until a later extension by the others has shown that the lock was held all along.
    /// A node whose connection broke with such a command unanswered, which may therefore run at any time, is left out
    /// until it is seen to have been restarted.
    pub fn repair(mut self, repair: bool) -> Self {
        self.repair = repair;
        self
    }

    /// Checks everything that can be checked without a connection.
    pub(crate) fn parse(self) -> Result<Config, ConfigError> {
        Ok(Config {
            nodes: parse_nodes(self.nodes?)?,
            ttl: TTL.parse("ttl", self.ttl)?,
            timeout: self.timeout,
            node_timeout: self
                .node_timeout
                .map(|timeout| NODE_TIMEOUT.parse("node_timeout", timeout))
                .transpose()?,
            connect_timeout: CONNECT_TIMEOUT.parse("connect_timeout", self.connect_timeout)?,
            drift: self.drift.parse(self.ttl)?,
            retry: self.retry.parse()?,
            key_prefix: parse_key_prefix(self.key_prefix)?,
            client_name: parse_client_name(self.client_name)?,
            linger: self.linger,
            spin: SPIN.parse("spin", self.spin)?,
            tracking: self.tracking,
            restart_guard: self.restart_guard,
            repair: self.repair,
            ttl_max: parse_ttl_max(self.ttl_max, self.ttl, self.drift)?,
        })
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

/// How far the clocks of client and nodes may differ while a lock is held.
///
/// A lock's validity is shortened by this allowance: `ttl * ppm / 1_000_000 + constant`. The share covers
/// clocks that run at different speeds, the constant what does not grow with the ttl: servers expire keys to
/// the millisecond. The default, 10 000 ppm and 2 ms, is far above what a disciplined clock does. A smaller
/// allowance lengthens the validity and is safe only where the clocks are known to be that good.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use quorlock::Drift;
///
/// assert_eq!(Drift::default(), Drift::new(10_000, Duration::from_millis(2)));
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Drift {
    pub(crate) ppm: u32,
    pub(crate) constant: Duration,
}

impl Drift {
    /// A share of the ttl, in parts per million, and a constant.
    ///
    /// Together they must be less than the locker's ttl, or connecting reports a
    /// [`ConfigError`].
    pub const fn new(ppm: u32, constant: Duration) -> Self {
        Self { ppm, constant }
    }

    /// Only says whether any validity could be left; how much is computed, with its rounding, where it is
    /// used.
    fn parse(self, ttl: Duration) -> Result<Self, ConfigError> {
        let share = ttl.as_nanos() * u128::from(self.ppm) / 1_000_000;
        if share + self.constant.as_nanos() < ttl.as_nanos() {
            return Ok(self);
        }
        let Self { ppm, constant } = self;
        Err(setting(
            "drift",
            format!("{ppm} ppm and {constant:?} leave no validity of a ttl of {ttl:?}"),
        ))
    }
}

impl Default for Drift {
    fn default() -> Self {
        Self::new(10_000, Duration::from_millis(2))
    }
}

/// How long to wait before asking again for a lock that is taken.
///
/// The wait is random, because clients that start together and wait alike collide again: each takes a few
/// nodes, none a quorum.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use quorlock::RetryPolicy;
///
/// let patient = RetryPolicy::jittered(Duration::from_secs(1), Duration::from_secs(5));
/// assert_ne!(patient, RetryPolicy::default());
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetryPolicy {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl RetryPolicy {
    /// A delay drawn evenly from `min` to `max`, anew for each attempt.
    ///
    /// `max` is more than zero and at most 1 h, and `min` is not longer than `max`; otherwise connecting
    /// reports a [`ConfigError`]. Let the two differ by more than a round trip.
    pub const fn jittered(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    fn parse(self) -> Result<Self, ConfigError> {
        let Self { min, max } = self;
        let reason = if max.is_zero() {
            format!("a longest delay of {max:?} would ask without pause")
        } else if max > RETRY_MAX {
            format!("the longest delay, {max:?}, is out of range (at most 1 h)")
        } else if min > max {
            format!("the shortest delay, {min:?}, is longer than the longest, {max:?}")
        } else {
            return Ok(self);
        };
        Err(setting("retry", reason))
    }
}

impl Default for RetryPolicy {
    /// 50 ms to 250 ms: longer than a round trip, shorter than a person notices.
    fn default() -> Self {
        Self::jittered(Duration::from_millis(50), Duration::from_millis(250))
    }
}

/// A configuration without mistakes. See [`Builder`]'s setters for what each part means.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Invariant: 1 to [`NODES_MAX`], no two of them with one canonical address.
    pub(crate) nodes: Vec<NodeConfig>,
    pub(crate) ttl: Duration,
    pub(crate) timeout: Duration,
    /// `None` is [`node_timeout`] of each request's ttl.
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) drift: Drift,
    pub(crate) retry: RetryPolicy,
    pub(crate) key_prefix: Box<[u8]>,
    pub(crate) client_name: Box<str>,
    pub(crate) linger: Duration,
    pub(crate) spin: Duration,
    pub(crate) tracking: bool,
    pub(crate) restart_guard: RestartGuard,
    pub(crate) repair: bool,
    /// Invariant: not less than `ttl`.
    pub(crate) ttl_max: Option<Ttl>,
}

impl Config {
    /// A ttl that somebody asks for.
    pub(crate) fn parse_ttl(&self, ttl: Duration) -> Result<Ttl, InvalidRequest> {
        let parsed = Ttl::parse(ttl, self.drift)?;
        match self.ttl_max {
            Some(max) if parsed.millis() > max.millis() => {
                Err(InvalidRequest::TtlAboveMax { ttl, max: max.duration() })
            }
            _ => Ok(parsed),
        }
    }
}

/// How long a node may take to answer where nothing was configured.
///
/// A twentieth, so that a round that waits for dead nodes costs at most 5 % of the validity; 5 ms, so that
/// one late wake-up does not fail a healthy node; 50 ms, because no node that is worth waiting for takes
/// longer.
pub(crate) fn node_timeout(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(5), Duration::from_millis(50))
}

fn parse_nodes(nodes: Vec<NodeConfig>) -> Result<Vec<NodeConfig>, ConfigError> {
    if nodes.is_empty() {
        return Err(ConfigError::NoNodes);
    }
    if nodes.len() > NODES_MAX {
        return Err(ConfigError::TooManyNodes(nodes.len()));
    }
    let mut seen = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let address = node.address().canonical();
        if seen.contains(&address) {
            return Err(ConfigError::DuplicateNode(node.name().into()));
        }
        seen.push(address);
    }
    Ok(nodes)
}

fn parse_ttl_max(
    max: Option<Duration>,
    ttl: Duration,
    drift: Drift,
) -> Result<Option<Ttl>, ConfigError> {
    let Some(max) = max else {
        return Ok(None);
    };
    TTL.parse("ttl_max", max)?;
    if max < ttl {
        return Err(setting("ttl_max", format!("{max:?} is less than the ttl, {ttl:?}")));
    }
    let invalid = |error: InvalidRequest| setting("ttl_max", error.to_string());
    Ttl::parse(max, drift).map(Some).map_err(invalid)
}

fn parse_key_prefix(prefix: Vec<u8>) -> Result<Box<[u8]>, ConfigError> {
    if prefix.len() > KEY_PREFIX_LEN_MAX {
        let reason = format!("{} bytes are too many (at most {KEY_PREFIX_LEN_MAX})", prefix.len());
        return Err(setting("key_prefix", reason));
    }
    Ok(prefix.into_boxed_slice())
}

fn parse_client_name(name: String) -> Result<Box<str>, ConfigError> {
    let reason = if name.is_empty() {
        format!("{name:?} is empty")
    } else if name.len() > CLIENT_NAME_LEN_MAX {
        format!("{} bytes are too many (at most {CLIENT_NAME_LEN_MAX})", name.len())
    } else if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        format!("{name:?} is not printable ASCII without spaces")
    } else {
        return Ok(name.into_boxed_str());
    };
    Err(setting("client_name", reason))
}

fn setting(name: &'static str, reason: String) -> ConfigError {
    ConfigError::Setting { name, reason: reason.into_boxed_str() }
}

/// A range of durations, both ends included, and how a person writes it.
struct Bounds {
    min: Duration,
    max: Duration,
    text: &'static str,
}

impl Bounds {
    fn parse(&self, name: &'static str, value: Duration) -> Result<Duration, ConfigError> {
        if (self.min..=self.max).contains(&value) {
            return Ok(value);
        }
        Err(setting(name, format!("{value:?} is out of range ({})", self.text)))
    }
}

/// The shortest ttl: below it the drift allowance and one round trip leave nothing worth having.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(10);

/// The longest ttl: a holder that dies blocks the resource for this long.
pub(crate) const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

const TTL: Bounds = Bounds { min: TTL_MIN, max: TTL_MAX, text: "10 ms to 24 h" };

/// From what an event loop can keep to what a caller may be meant to wait for a machine.
const NODE_TIMEOUT: Bounds =
    Bounds { min: Duration::from_millis(1), max: Duration::from_secs(60), text: "1 ms to 60 s" };

/// The same range: the two differ in their defaults only.
const CONNECT_TIMEOUT: Bounds = NODE_TIMEOUT;

/// Whoever would wait longer than this does better to sleep.
const SPIN: Bounds =
    Bounds { min: Duration::ZERO, max: Duration::from_millis(1), text: "0 to 1 ms" };

/// A longer delay is a slip of units: 1 h is beyond every lock that is waited for.
const RETRY_MAX: Duration = Duration::from_secs(60 * 60);

/// With the longest resource this is a key of 5 KiB; a longer prefix is not a prefix.
const KEY_PREFIX_LEN_MAX: usize = 1024;

/// Servers have no limit; this one keeps `CLIENT LIST` readable.
const CLIENT_NAME_LEN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> Builder {
        Builder::new().node("redis://10.0.0.1")
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The text of the error; it must be there.
    fn refused(builder: Builder) -> String {
        builder.parse().expect_err("accepted").to_string()
    }

    #[test]
    fn defaults_are_as_documented() {
        let config = builder().parse().unwrap();
        assert_eq!(config.nodes.len(), 1);
        assert_eq!(config.ttl, ms(10_000));
        assert_eq!(config.timeout, ms(10_000));
        assert_eq!(config.node_timeout, None);
        assert_eq!(config.connect_timeout, ms(1000));
        assert_eq!((config.drift.ppm, config.drift.constant), (10_000, ms(2)));
        assert_eq!((config.retry.min, config.retry.max), (ms(50), ms(250)));
        assert_eq!(&*config.key_prefix, b"");
        assert_eq!(&*config.client_name, "quorlock");
        assert_eq!((config.linger, config.spin, config.tracking), (ms(100), ms(0), true));
    }

    #[test]
    fn every_setter_sets() {
        let config = Builder::default()
            .nodes(["redis://10.0.0.1", "redis://10.0.0.2"])
            .nodes(vec![String::from("unix:/run/a.sock")])
            .ttl(ms(1))
            .ttl(ms(20))
            .timeout(Duration::MAX)
            .node_timeout(ms(3))
            .connect_timeout(ms(4))
            .drift(Drift::new(0, Duration::ZERO))
            .retry(RetryPolicy::jittered(ms(5), ms(5)))
            .key_prefix(*b"\0\xff")
            .client_name("worker-7")
            .linger(ms(6))
            .spin(ms(1))
            .tracking(false)
            .parse()
            .unwrap();
        let names: Vec<_> = config.nodes.iter().map(NodeConfig::name).collect();
        assert_eq!(names, ["10.0.0.1:6379", "10.0.0.2:6379", "unix:/run/a.sock"]);
        assert_eq!(config.ttl, ms(20));
        assert_eq!(config.timeout, Duration::MAX);
        assert_eq!(config.node_timeout, Some(ms(3)));
        assert_eq!(config.connect_timeout, ms(4));
        assert_eq!(config.drift, Drift::new(0, Duration::ZERO));
        assert_eq!(config.retry, RetryPolicy::jittered(ms(5), ms(5)));
        assert_eq!(&*config.key_prefix, b"\0\xff");
        assert_eq!(&*config.client_name, "worker-7");
        assert_eq!((config.linger, config.spin, config.tracking), (ms(6), ms(1), false));
    }

    #[test]
    fn node_count_is_1_to_15() {
        let nodes = |count: u8| (0..count).map(|i| format!("redis://10.0.0.{i}"));
        assert_eq!(Builder::new().parse().unwrap_err(), ConfigError::NoNodes);
        assert!(Builder::new().nodes(nodes(15)).parse().is_ok());
        assert_eq!(
            Builder::new().nodes(nodes(16)).parse().unwrap_err(),
            ConfigError::TooManyNodes(16)
        );
    }

    #[test]
    fn first_bad_url_is_reported_whatever_else_is_wrong() {
        let text = refused(builder().nodes(["redis://first:0", "", "redis://10.0.0.1"]).ttl(ms(0)));
        assert!(text.contains("redis://first:0"), "{text}");
    }

    #[test]
    fn duplicates_are_found_however_spelled() {
        let pairs = [
            ("redis://10.0.0.1", "redis://10.0.0.1", "10.0.0.1:6379"),
            ("redis://10.0.0.1", "valkey://10.0.0.1:6379", "10.0.0.1:6379"),
            ("redis://10.0.0.1/0", "redis://10.0.0.1/1", "10.0.0.1:6379"),
            ("redis://10.0.0.1", "redis://:pass@10.0.0.1", "10.0.0.1:6379"),
            ("redis://10.0.0.1", "redis://10.0.0.1.:06379", "10.0.0.1:6379"),
            ("redis://10.0.0.1", "redis://[::ffff:10.0.0.1]", "10.0.0.1:6379"),
            ("redis://10.0.0.1", "redis://[::FFFF:a00:1]", "10.0.0.1:6379"),
            ("redis://[::1]", "redis://[0:0::0:1]:6379/", "[::1]:6379"),
            ("redis://a.example", "REDIS://A.Example.", "a.example:6379"),
            ("redis://[fe80::1%25eth0]", "redis://[FE80::0:1%25eth0]", "[fe80::1%25eth0]:6379"),
            ("unix:/run/a.sock", "unix:///run/a.sock?db=3", "unix:/run/a.sock"),
            ("unix:/run/a.sock", "unix:////run//./a.sock", "unix:/run/a.sock"),
            ("unix:/run/a.sock", "unix:/run/b/../a.sock", "unix:/run/b/../a.sock"),
            ("unix:/run/a.sock", "unix:/../run/%61.sock", "unix:/../run/a.sock"),
        ];
        for (first, second, name) in pairs {
            let builder = Builder::new().nodes([first, "redis://other", second]);
            let error = builder.parse().expect_err(second);
            assert_eq!(error, ConfigError::DuplicateNode(name.into()), "{first} {second}");
        }
    }

    #[test]
    fn different_addresses_are_not_duplicates() {
        let urls = [
            "redis://10.0.0.1",
            "redis://10.0.0.1:6380",
            "redis://[::1]",
            "redis://[fe80::1]",
            "redis://[fe80::1%25eth0]",
            "redis://[fe80::1%25ETH0]",
            "redis://a",
            "redis://a.b",
            "unix:/a",
            "unix:/A",
            "unix:/b/a",
        ];
        assert!(Builder::new().nodes(urls).parse().is_ok());
    }

    #[test]
    fn durations_are_bounded_at_both_ends() {
        type Set = fn(Builder, Duration) -> Builder;
        let day = ms(24 * 60 * 60 * 1000);
        let ns = Duration::from_nanos(1);
        let settings: [(Set, &str, &str, Duration, Duration); 3] = [
            (Builder::ttl, "ttl", "10 ms to 24 h", ms(10), day),
            (Builder::node_timeout, "node_timeout", "1 ms to 60 s", ms(1), ms(60_000)),
            (Builder::connect_timeout, "connect_timeout", "1 ms to 60 s", ms(1), ms(60_000)),
        ];
        for (set, name, range, min, max) in settings {
            for value in [min, max] {
                assert!(set(builder(), value).parse().is_ok(), "{name} {value:?}");
            }
            for value in [Duration::ZERO, min - ns, max + ns, Duration::MAX] {
                let expected = format!("{name}: {value:?} is out of range ({range})");
                assert_eq!(refused(set(builder(), value)), expected);
            }
        }
    }

    #[test]
    fn spinning_is_for_a_moment() {
        assert!(builder().spin(ms(1)).parse().is_ok());
        assert_eq!(refused(builder().spin(ms(2))), "spin: 2ms is out of range (0 to 1 ms)");
    }

    #[test]
    fn drift_leaves_some_of_the_ttl() {
        let with = |ppm, constant| builder().ttl(ms(100)).drift(Drift::new(ppm, constant));
        assert!(with(990_000, Duration::ZERO).parse().is_ok());
        assert!(with(0, ms(99)).parse().is_ok());
        assert_eq!(
            refused(with(900_000, ms(10))),
            "drift: 900000 ppm and 10ms leave no validity of a ttl of 100ms"
        );
        for (ppm, constant) in
            [(1_000_000, Duration::ZERO), (0, ms(100)), (u32::MAX, Duration::MAX)]
        {
            assert!(refused(with(ppm, constant)).starts_with("drift: "));
        }
        let longest = builder().ttl(TTL_MAX).drift(Drift::new(u32::MAX, Duration::MAX));
        assert!(refused(longest).starts_with("drift: "));
    }

    #[test]
    fn retry_delays_are_ordered_and_bounded() {
        let with = |min, max| builder().retry(RetryPolicy::jittered(min, max));
        for (min, max) in [(ms(0), ms(1)), (ms(7), ms(7)), (ms(0), RETRY_MAX)] {
            assert!(with(min, max).parse().is_ok());
        }
        for (min, max, expected) in [
            (ms(0), ms(0), "retry: a longest delay of 0ns would ask without pause"),
            (ms(2), ms(1), "retry: the shortest delay, 2ms, is longer than the longest, 1ms"),
            (
                ms(0),
                RETRY_MAX + ms(1),
                "retry: the longest delay, 3600.001s, is out of range (at most 1 h)",
            ),
        ] {
            assert_eq!(refused(with(min, max)), expected);
        }
    }

    #[test]
    fn key_prefix_is_at_most_1_kib() {
        assert!(builder().key_prefix(vec![b'a'; 1024]).parse().is_ok());
        assert_eq!(
            refused(builder().key_prefix(vec![b'a'; 1025])),
            "key_prefix: 1025 bytes are too many (at most 1024)"
        );
    }

    #[test]
    fn client_name_is_what_servers_accept() {
        for name in ["!", "~", &"a".repeat(64)] {
            assert!(builder().client_name(name).parse().is_ok(), "{name}");
        }
        for (name, expected) in [
            ("", r#"client_name: "" is empty"#),
            ("a b", r#"client_name: "a b" is not printable ASCII without spaces"#),
            ("a\r\n", r#"client_name: "a\r\n" is not printable ASCII without spaces"#),
            ("\x7f", r#"client_name: "\u{7f}" is not printable ASCII without spaces"#),
            ("é", r#"client_name: "é" is not printable ASCII without spaces"#),
            (&*"a".repeat(65), "client_name: 65 bytes are too many (at most 64)"),
        ] {
            assert_eq!(refused(builder().client_name(name)), expected);
        }
    }

    #[test]
    fn node_timeout_is_a_twentieth_within_5_and_50_ms() {
        for (ttl, expected) in [
            (Duration::ZERO, ms(5)),
            (TTL_MIN, ms(5)),
            (ms(100), ms(5)),
            (ms(101), Duration::from_micros(5050)),
            (ms(500), ms(25)),
            (ms(999), Duration::from_micros(49_950)),
            (ms(1000), ms(50)),
            (ms(1001), ms(50)),
            (TTL_MAX, ms(50)),
            (Duration::MAX, ms(50)),
        ] {
            assert_eq!(node_timeout(ttl), expected, "{ttl:?}");
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let builder = builder().nodes(["redis://u:hunter2@a", "unix:/b?user=u&pass=hunter2"]);
        let config = builder.clone().parse().unwrap();
        let failed = builder.clone().node("redis://u:hunter2@a:0");
        for text in [
            format!("{builder:?}{builder:#?}"),
            format!("{config:?}{config:#?}"),
            format!("{failed:?}{failed:#?}"),
        ] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
