//! Who holds a resource, as far as each node knows: for people and scripts that ask, beside all locking.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    config::Builder,
    driver::inspect::inspect,
    error::{ConfigError, NodeError, RESOURCE_LEN_MAX},
    proto::handshake::Greeting,
};

/// What one node says of a resource. Made by [`Builder::status`].
#[derive(Clone, Debug)]
pub struct NodeStatus {
    name: Box<str>,
    state: KeyState,
}

/// What is in a resource's key on one node.
#[derive(Clone)]
#[non_exhaustive]
pub enum KeyState {
    /// There is no key: nobody holds the resource here.
    Free,
    /// Somebody holds it here. Whether they hold the lock is for a quorum to say.
    Held {
        /// The holder's token, escaped like a Rust string: what other libraries write may be any bytes.
        ///
        /// It is the right to release the lock, so `Debug` shows its first eight characters only.
        token: Box<str>,
        /// How long the key has to live. `None` is for ever: no lock is written so, and it has to be deleted
        /// by hand.
        remaining: Option<Duration>,
    },
    /// The key holds something that is no lock, and keeps the resource from being locked on this node.
    NotALock,
    /// The node does not say.
    Unknown(NodeError),
}

impl NodeStatus {
    /// The node's address without credentials, as [`NodeConfig::name`](crate::NodeConfig::name).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says.
    pub fn state(&self) -> &KeyState {
        &self.state
    }
}

impl fmt::Debug for KeyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("Free"),
            Self::Held { token, remaining } => {
                let start: String = token.chars().take(8).collect();
                let token = format_args!("{start}…");
                f.debug_struct("Held").field("token", &token).field("remaining", remaining).finish()
            }
            Self::NotALock => f.write_str("NotALock"),
            Self::Unknown(error) => f.debug_tuple("Unknown").field(error).finish(),
        }
    }
}

impl Builder {
    /// Asks every node, in the configured order, what it has for `resource`, and changes nothing.
    ///
    /// For diagnosis. What it says was true of each node at some moment, and of no two at the same: to act upon
    /// a resource, lock it. Each call makes its own connections; the only settings it uses are the nodes, the
    /// key prefix, the client name and the connect timeout.
    ///
    /// # Errors
    ///
    /// The builder's own mistakes, and a resource that is empty or longer than 4 KiB. A node that cannot be
    /// asked is no error: its state is [`KeyState::Unknown`].
    ///
    /// # Blocking
    ///
    /// Until every node has answered, at most for the [connect timeout](Self::connect_timeout). A name that
    /// takes longer to look up is looked up to its end in a thread that is left behind.
    ///
    /// # Examples
    ///
    /// ```
    /// # let servers = quorlock::testing::Servers::start(3)?;
    /// # let urls = servers.tcp_urls();
    /// use quorlock::{Builder, KeyState, LocalLocker};
    ///
    /// let locker = LocalLocker::connect(&urls)?;
    /// let guard = locker.lock("orders/42").try_acquire()?;
    ///
    /// let holders = Builder::new().nodes(&urls).status("orders/42")?;
    /// let ours = |state: &KeyState| match state {
    ///     KeyState::Held { token, .. } => **token == *guard.token().as_str(),
    ///     _ => false,
    /// };
    /// assert!(holders.iter().filter(|node| ours(node.state())).count() >= 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn status(self, resource: impl AsRef<[u8]>) -> Result<Vec<NodeStatus>, ConfigError> {
        let config = self.parse()?;
        let resource = parse_resource(resource.as_ref())?;
        let key: Arc<[u8]> = [&config.key_prefix, resource].concat().into();
        let nodes = config.nodes.iter().map(|node| {
            let greeting = Greeting {
                credentials: node.credentials().clone(),
                db: node.db(),
                client_name: config.client_name.clone(),
                tracking: false,
                persistence: false,
            };
            (node.address().clone(), greeting)
        });
        let answers = inspect(nodes.collect(), key, config.connect_timeout);
        let statuses = config.nodes.iter().zip(answers).map(|(node, answer)| NodeStatus {
            name: node.name().into(),
            state: answer.unwrap_or_else(KeyState::Unknown),
        });
        Ok(statuses.collect())
    }
}

fn parse_resource(resource: &[u8]) -> Result<&[u8], ConfigError> {
    let reason = match resource.len() {
        0 => "empty".into(),
        1..=RESOURCE_LEN_MAX => return Ok(resource),
        len => format!("{len} bytes long (at most {RESOURCE_LEN_MAX})").into(),
    };
    Err(ConfigError::Setting { name: "resource", reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_a_whole_token() {
        let state = KeyState::Held { token: "0123456789abcdef".into(), remaining: None };
        assert_eq!(format!("{state:?}"), "Held { token: 01234567…, remaining: None }");
    }

    #[test]
    fn a_resource_is_checked_before_any_node_is_asked() {
        let builder = Builder::new().node("redis://192.0.2.1");
        let error = builder.clone().status("").unwrap_err();
        assert_eq!(error.to_string(), "resource: empty");
        let error = builder.status([0; RESOURCE_LEN_MAX + 1]).unwrap_err();
        assert_eq!(error.to_string(), "resource: 4097 bytes long (at most 4096)");
    }
}
