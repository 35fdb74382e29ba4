//! From groups and settings to a connected [`ShardedLocker`].

use std::{io, thread};

use super::{Group, ShardedLocker, choose, rendezvous};
use crate::{
    config::{Address, Builder, Config},
    error::{ConfigError, ConnectError},
    locker::Locker,
    status::NodeStatus,
};

/// What a [`ShardedLocker`] is built from: groups of nodes, and the settings that all of them share.
///
/// Mistakes are reported when the locker is connected.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use quorlock::{Builder, ShardedLocker};
///
/// let builder = ShardedLocker::builder()
///     .settings(Builder::new().ttl(Duration::from_secs(30)).key_prefix("billing/"))
///     .group("a", ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .group("b", ["redis://10.0.0.1", "redis://10.0.1.2", "redis://10.0.1.3"]);
///
/// let error = builder.connect().unwrap_err();
/// assert_eq!(error.to_string(), r#"10.0.0.1:6379 is in group "a" and in group "b""#);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until a locker is connected from it"]
pub struct ShardedBuilder {
    settings: Builder,
    /// Names, and builders of which only the nodes count.
    groups: Vec<(String, Builder)>,
}

/// A group without mistakes.
struct Parsed {
    name: Box<str>,
    config: Config,
}

impl ShardedBuilder {
    /// A builder without groups, and with default settings.
    pub fn new() -> Self {
        Self { settings: Builder::new(), groups: Vec::new() }
    }

    /// Adds a group: its name, and its nodes as [`Builder::node`] takes them, 1 to 15.
    ///
    /// The name, any that is not empty, decides which resources are the group's, and the nodes' addresses do
    /// not. In which order groups and nodes are given makes no difference.
    pub fn group(
        mut self,
        name: impl Into<String>,
        urls: impl IntoIterator<Item: AsRef<str>>,
    ) -> Self {
        self.groups.push((name.into(), Builder::new().nodes(urls)));
        self
    }

    /// Everything but nodes: ttl, timeouts, drift, key prefix and so on, for all groups. By default the
    /// defaults of [`Builder`].
    ///
    /// A builder that has nodes is refused: they would be in no group.
    pub fn settings(mut self, settings: Builder) -> Self {
        self.settings = settings;
        self
    }

    /// Connects to all groups at a time, and starts a thread for each.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Config`] before any I/O, and [`ConnectError::Group`] with the name of a group that has no
    /// quorum and each of its nodes' reasons; of several such groups, the first by name.
    ///
    /// # Blocking
    ///
    /// As [`Builder::connect`]: for the slowest group, at most for the connect timeout.
    pub fn connect(self) -> Result<ShardedLocker, ConnectError> {
        let parsed = self.parse()?;
        let names: Vec<_> = parsed.iter().map(|group| group.name.clone()).collect();
        let lockers = thread::scope(|scope| {
            let connects: Vec<_> = parsed
                .into_iter()
                .map(|group| {
                    let thread = thread::Builder::new().name("quorlock-connect".into());
                    thread.spawn_scoped(scope, || Locker::open(group.config))
                })
                .collect();
            let results = connects.into_iter().map(|connect| {
                let connect = connect.map_err(|error| ConnectError::Io(error.into()))?;
                connect.join().unwrap_or_else(|_| {
                    Err(ConnectError::Io(io::Error::other("connecting panicked").into()))
                })
            });
            results.collect::<Vec<_>>()
        });
        let groups = names.into_iter().zip(lockers).map(|(name, locker)| match locker {
            Ok(locker) => Ok(Group { hash: rendezvous::hash(name.as_bytes()), name, locker }),
            Err(error) => Err(ConnectError::Group { group: name, error: error.into() }),
        });
        Ok(ShardedLocker { groups: groups.collect::<Result<_, _>>()? })
    }

    /// Asks the nodes of the resource's group what they have for it. See [`Builder::status`].
    ///
    /// # Errors
    ///
    /// As [`Builder::status`], and the mistakes of the other groups.
    ///
    /// # Blocking
    ///
    /// As [`Builder::status`].
    pub fn status(self, resource: impl AsRef<[u8]>) -> Result<Vec<NodeStatus>, ConfigError> {
        self.clone().parse()?;
        let Self { settings, groups } = self;
        let hashes = groups.iter().map(|(name, _)| (rendezvous::hash(name.as_bytes()), &**name));
        let hashes: Vec<_> = hashes.collect();
        let index = choose(hashes.iter().copied(), resource.as_ref());
        let group = groups.into_iter().nth(index).map(|(_, nodes)| nodes);
        group.ok_or(ConfigError::NoGroups)?.with_settings_of(&settings).status(resource)
    }

    /// The groups in the order of their names, without mistakes.
    fn parse(self) -> Result<Vec<Parsed>, ConfigError> {
        let Self { settings, mut groups } = self;
        if let Some(node) = settings.given_nodes()?.first() {
            let reason = format!("{} is in no group", node.name()).into();
            return Err(ConfigError::Setting { name: "settings", reason });
        }
        if groups.is_empty() {
            return Err(ConfigError::NoGroups);
        }
        groups.sort_by(|(one, _), (other, _)| one.cmp(other));
        if let Some(pair) = groups.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(ConfigError::DuplicateGroup(pair[0].0.as_str().into()));
        }
        let parsed: Vec<_> = groups
            .into_iter()
            .map(|(name, nodes)| parse_group(name, nodes, &settings))
            .collect::<Result<_, _>>()?;
        refuse_shared_nodes(&parsed)?;
        Ok(parsed)
    }
}

impl Default for ShardedBuilder {
    fn default() -> Self {
        Self::new()
    }
}

fn parse_group(name: String, nodes: Builder, settings: &Builder) -> Result<Parsed, ConfigError> {
    let name = name.into_boxed_str();
    if name.is_empty() {
        let reason = "a name is empty".into();
        return Err(ConfigError::Setting { name: "group", reason });
    }
    match nodes.with_settings_of(settings).parse() {
        Ok(config) => Ok(Parsed { name, config }),
        // A mistake of all groups.
        Err(error @ ConfigError::Setting { .. }) => Err(error),
        Err(error) => Err(ConfigError::Group { group: name, error: error.into() }),
    }
}

fn refuse_shared_nodes(groups: &[Parsed]) -> Result<(), ConfigError> {
    let mut seen: Vec<(Address, &Parsed)> = Vec::new();
    for group in groups {
        for node in &group.config.nodes {
            let address = node.address().canonical();
            if let Some((_, other)) = seen.iter().find(|(known, _)| *known == address) {
                let groups = [other.name.clone(), group.name.clone()];
                return Err(ConfigError::SharedNode { node: node.name().into(), groups });
            }
            seen.push((address, group));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn builder() -> ShardedBuilder {
        ShardedBuilder::default().group("b", ["redis://10.0.1.1"]).group("a", ["redis://10.0.0.1"])
    }

    /// The text of the error; it must be there.
    fn refused(builder: ShardedBuilder) -> String {
        builder.parse().map(drop).expect_err("accepted").to_string()
    }

    #[test]
    fn groups_are_in_the_order_of_their_names_and_share_settings() {
        let settings = Builder::new().ttl(Duration::from_secs(7)).key_prefix("p/");
        let parsed = builder().settings(settings).parse().unwrap();
        let names: Vec<_> = parsed.iter().map(|group| &*group.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(parsed[0].config.nodes[0].name(), "10.0.0.1:6379");
        for Parsed { config, .. } in &parsed {
            assert_eq!((config.ttl, &*config.key_prefix), (Duration::from_secs(7), &b"p/"[..]));
        }
    }

    #[test]
    fn mistakes_name_the_input() {
        let none: [&str; 0] = [];
        let nodes = |count: u8| (0..count).map(|i| format!("redis://10.1.0.{i}"));
        for (builder, expected) in [
            (ShardedBuilder::new(), "no group is configured"),
            (builder().group("", nodes(1)), "group: a name is empty"),
            (
                builder().group("a", nodes(1)),
                r#"group "a" is configured twice: give all its nodes at once"#,
            ),
            (builder().group("c", none), r#"group "c": no node is configured"#),
            (builder().group("c", nodes(16)), r#"group "c": 16 nodes are configured (at most 15)"#),
            (
                builder().group("c", ["redis://x", "redis://X."]),
                r#"group "c": x:6379 is configured twice: a node has one vote"#,
            ),
            (
                builder().group("c", ["redis://u:hunter2@x:0"]),
                "group \"c\": bad node URL \"redis://***@x:0\": \
                 the port is not a number from 1 to 65535",
            ),
            (
                builder().group("c", ["redis://x", "valkey://:pass@10.0.1.1:6379/3"]),
                r#"10.0.1.1:6379 is in group "b" and in group "c""#,
            ),
            (
                builder().settings(Builder::new().node("redis://x")),
                "settings: x:6379 is in no group",
            ),
            (
                builder().settings(Builder::new().node("redis://x:0")),
                "bad node URL \"redis://x:0\": the port is not a number from 1 to 65535",
            ),
            (
                builder().settings(Builder::new().ttl(Duration::ZERO)),
                "ttl: 0ns is out of range (10 ms to 24 h)",
            ),
        ] {
            assert_eq!(refused(builder), expected);
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let builder = builder().group("c", ["redis://u:hunter2@a"]);
        assert!(!format!("{builder:?}{builder:#?}").contains("hunter2"));
    }
}
