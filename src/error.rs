//! What can go wrong, one enum per operation, and the per-node record that comes with it.
//!
//! This file knows no socket and no engine; everything else may use it.

use std::{fmt, io, sync::Arc, time::Duration};

use smallvec::SmallVec;

/// Why a lock was not acquired.
///
/// Which variant it is follows from the votes alone: with more than `N - quorum` nodes failed it is
/// [`NoQuorum`](Self::NoQuorum), with enough working nodes it is [`Contended`](Self::Contended), and with a
/// quorum that came too late it is [`Expired`](Self::Expired).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// The locker was closed.
    Closed,
    /// Somebody else holds the resource on so many nodes that no quorum was left.
    Contended(Box<Attempt>),
    /// The caller's deadline came first. Carries the last attempt that was settled, if there was one.
    DeadlineExceeded(Option<Box<Attempt>>),
    /// A quorum granted the lock, but too late: no validity, or less than the caller's minimum, was left.
    Expired(Box<Attempt>),
    /// The request was refused before anything was sent.
    InvalidRequest(InvalidRequest),
    /// Too few nodes answered.
    NoQuorum(Box<Attempt>),
}

/// Why a lock was not extended. Nothing is released by a failed extension.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ExtendError {
    /// The locker was closed.
    Closed,
    /// The lock's own validity was over, before or while the nodes were asked.
    Expired,
    /// The request was refused before anything was sent.
    InvalidRequest(InvalidRequest),
    /// A quorum of nodes says that it does not hold this lock: it is lost now, whatever validity was left.
    Lost(Box<Attempt>),
    /// Too few nodes answered. The lock stays valid for the time given, and may be extended again in it.
    NoQuorum {
        /// Who voted what.
        attempt: Box<Attempt>,
        /// How long the lock was still valid when the attempt was settled.
        validity: Duration,
    },
}

/// Why a release could not be confirmed. Whatever it says, the keys are gone at the latest after the ttl.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The locker was closed.
    Closed,
    /// Too few nodes answered.
    NoQuorum(Box<Attempt>),
    /// Too few nodes still held this lock: it had expired, or was removed by somebody else, before.
    NotHeld(Box<Attempt>),
}

/// What closing a locker left behind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum CloseError {
    /// It was closed before, or its driver failed.
    Closed,
    /// Some nodes have not confirmed so many releases. Their keys are gone when their ttl is over.
    Unconfirmed {
        /// How many locks' releases.
        releases: usize,
    },
}

/// A request's mistake, decided by the request alone and before any I/O.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The resource was empty.
    EmptyResource,
    /// The step of a keep-alive was zero, or not shorter than the validity.
    KeepAlive(Duration),
    /// More validity was asked for than the ttl leaves.
    MinValidity(Duration),
    /// The resource ended in `:fencing-counter`, which is where locks keep their fencing counters.
    ResourceReserved,
    /// The resource was longer than 4 KiB; gives its length in bytes.
    ResourceTooLong(usize),
    /// The ttl was not within 10 ms and 24 h, or not longer than the drift allowance.
    Ttl(Duration),
    /// The ttl was longer than [`Builder::ttl_max`](crate::Builder::ttl_max) allows.
    TtlAboveMax {
        /// What was asked for.
        ttl: Duration,
        /// What is allowed.
        max: Duration,
    },
}

/// Why a locker could not be built or connected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration was refused before any I/O.
    Config(ConfigError),
    /// A group of a [`ShardedLocker`](crate::ShardedLocker) could not be connected.
    Group {
        /// The group's name.
        group: Box<str>,
        /// Why.
        error: Box<Self>,
    },
    /// The event loop could not be set up.
    Io(Arc<io::Error>),
    /// No quorum of nodes was ready within the connect timeout. Says of each node why.
    NoQuorum(Box<Attempt>),
}

/// A mistake in a locker's configuration, found before any I/O. No variant carries a password.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A node's URL cannot be read.
    BadUrl {
        /// The URL, without its user and password.
        url: Box<str>,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Two groups have one name.
    DuplicateGroup(Box<str>),
    /// Two nodes have one address. A server that is counted twice would have two votes.
    DuplicateNode(Box<str>),
    /// The nodes of one group of a [`ShardedLocker`](crate::ShardedLocker) were refused.
    Group {
        /// The group's name.
        group: Box<str>,
        /// Why.
        error: Box<Self>,
    },
    /// No group was given.
    NoGroups,
    /// No node was given.
    NoNodes,
    /// A setting is out of its range: its name, and what was wrong.
    Setting {
        /// The setter's name.
        name: &'static str,
        /// The value refused, and the range.
        reason: Box<str>,
    },
    /// A node was given to two groups: it would carry the load of both.
    SharedNode {
        /// Its address, without credentials.
        node: Box<str>,
        /// The groups' names.
        groups: [Box<str>; 2],
    },
    /// More than 15 nodes were given.
    TooManyNodes(usize),
}

/// Why a node gave no vote.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// The server refuses the credentials, wants some, or does not let this user do what locks need. While
    /// logging in its own words are not repeated: some servers echo the password in them.
    Auth(Arc<str>),
    /// The node closed the connection.
    Closed,
    /// The server is not usable as a node as it is configured, and retrying will not help.
    Config(Arc<str>),
    /// The connection failed.
    Io(Arc<io::Error>),
    /// The node broke the protocol; the connection was closed.
    Protocol(ProtocolError),
    /// The server answered with an error. These are its words, escaped and cut to 200 bytes. The first word
    /// is its class: `LOADING`, `READONLY`, `OOM`, `NOPERM` …
    Server(Arc<str>),
    /// Nothing came in time.
    Timeout,
    /// More was waiting to be sent to this node than it is allowed to.
    Backlog,
    /// The node holds the lock, but came to it late (after the fencing token was taken, or by repair): it counts once
    /// an extension by the others has shown that the lock was held all along.
    Joining,
    /// The server was restarted and may have forgotten what it granted: it is asked for no new lock while an old one
    /// may still be held. See [`RestartGuard`](crate::RestartGuard).
    Restarted {
        /// For how long yet.
        stays_away: Duration,
    },
}

/// How a node broke the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A boolean was neither `t` nor `f`.
    BadBoolean,
    /// A floating-point number cannot be read.
    BadDouble,
    /// An integer is not an optional sign and digits, or does not fit.
    BadInteger,
    /// A length is negative, or otherwise impossible for its type.
    BadLength,
    /// A line or a bulk does not end in CRLF.
    BadLineEnd,
    /// A null carries something.
    BadNull,
    /// No reply starts with this byte.
    BadTypeByte(u8),
    /// A verbatim string is not three bytes, a colon and text.
    BadVerbatim,
    /// Replies are nested too deep.
    DepthExceeded,
    /// A reply came that nothing was asked for.
    Unasked,
    /// A reply, or a part of it, is larger than allowed.
    ReplyTooLarge,
    /// A streamed type of RESP3. No server sends them and this client does not read them.
    Streamed,
    /// The reply has another shape than the command's replies have.
    UnexpectedReply,
}

/// Why a lock can no longer be relied on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LostReason {
    /// The locker was closed, or its driver failed.
    Closed,
    /// The lock's validity is over.
    Expired,
    /// A quorum of nodes says that it does not hold this lock.
    Refused,
    /// It was released.
    Released,
}

/// What one node said, or did not say, in one attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Vote {
    /// The node answered with an error: the command was not run.
    Failed(NodeError),
    /// The node granted it.
    Granted,
    /// The command was not sent to the node.
    NotSent(NodeError),
    /// The attempt was settled before the node had answered.
    Pending,
    /// The node refused: another token is there, or ours is not.
    Refused,
    /// The command was sent and no answer came: it may or may not have been run.
    Unknown(NodeError),
}

/// The record of one attempt: one command to all nodes, and what each of them said.
#[derive(Clone)]
pub struct Attempt {
    pub(crate) elapsed: Duration,
    pub(crate) names: Arc<[Box<str>]>,
    pub(crate) number: u32,
    pub(crate) votes: SmallVec<[Vote; 7]>,
}

impl Attempt {
    /// From the first byte sent to the vote that settled it.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Which attempt of its request this was, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Every node's name (its address as configured, without credentials) and vote, in the configured order.
    pub fn votes(&self) -> impl ExactSizeIterator<Item = (&str, &Vote)> {
        self.names.iter().map(|name| &**name).zip(&self.votes)
    }

    /// How many nodes granted it.
    pub fn granted(&self) -> usize {
        self.count(|vote| matches!(vote, Vote::Granted))
    }

    /// How many nodes refused it.
    pub fn refused(&self) -> usize {
        self.count(|vote| matches!(vote, Vote::Refused))
    }

    /// How many nodes failed: an error, no answer in time, or not reached at all.
    pub fn failed(&self) -> usize {
        self.count(|vote| vote.error().is_some())
    }

    /// How many nodes had to grant it: `N / 2 + 1` of the configured N.
    pub fn quorum(&self) -> usize {
        self.votes.len() / 2 + 1
    }

    /// How many nodes will not vote until a person has changed something.
    pub(crate) fn permanently_failed(&self) -> usize {
        self.count(|vote| vote.error().is_some_and(NodeError::is_permanent))
    }

    fn count(&self, is: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| is(vote)).count()
    }

    fn first_error(&self) -> Option<&NodeError> {
        self.votes.iter().find_map(Vote::error)
    }
}

impl Vote {
    /// Why the node gave no vote, where it gave none.
    pub fn error(&self) -> Option<&NodeError> {
        match self {
            Self::Failed(error) | Self::NotSent(error) | Self::Unknown(error) => Some(error),
            Self::Granted | Self::Pending | Self::Refused => None,
        }
    }
}

impl NodeError {
    /// Whether asking again is no use before a person has changed something: the credentials, or the server's
    /// configuration.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Auth(_) | Self::Config(_))
    }
}

impl AcquireError {
    /// The record of the last attempt, where one was made.
    pub fn attempt(&self) -> Option<&Attempt> {
        match self {
            Self::Contended(attempt) | Self::Expired(attempt) | Self::NoQuorum(attempt) => {
                Some(attempt)
            }
            Self::DeadlineExceeded(attempt) => attempt.as_deref(),
            Self::Closed | Self::InvalidRequest(_) => None,
        }
    }

    /// Whether somebody else holds the resource: true also where the deadline came while waiting for them.
    pub fn is_contended(&self) -> bool {
        match self {
            Self::Contended(_) => true,
            Self::DeadlineExceeded(Some(attempt)) => {
                attempt.refused() > 0 && attempt.failed() <= attempt.votes.len() - attempt.quorum()
            }
            _ => false,
        }
    }
}

impl fmt::Display for Attempt {
    /// The arithmetic in one line, then each failed node with its cause.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} nodes granted", self.granted(), self.votes.len())?;
        if self.refused() > 0 {
            write!(f, ", {} refused", self.refused())?;
        }
        if self.failed() > 0 {
            write!(f, ", {} failed", self.failed())?;
        }
        write!(f, " (need {}) in {:.1?}", self.quorum(), self.elapsed)?;
        for (name, vote) in self.votes() {
            if vote.error().is_some() {
                write!(f, "; {name}: {vote}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("number", &self.number)
            .field("elapsed", &self.elapsed)
            .field("votes", &self.votes().collect::<Vec<_>>())
            .finish()
    }
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Granted => f.write_str("granted"),
            Self::NotSent(error) => write!(f, "not sent: {error}"),
            Self::Pending => f.write_str("not waited for"),
            Self::Refused => f.write_str("refused"),
            Self::Unknown(NodeError::Timeout) => f.write_str("timed out after sending"),
            Self::Unknown(error) => write!(f, "no answer after sending: {error}"),
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the locker is closed"),
            Self::Contended(attempt) => write!(f, "contended: {attempt}"),
            Self::DeadlineExceeded(None) => {
                f.write_str("deadline exceeded before an attempt was settled")
            }
            Self::DeadlineExceeded(Some(attempt)) => write!(
                f,
                "deadline exceeded after {} attempts; the last: {attempt}",
                attempt.number
            ),
            Self::Expired(attempt) => {
                write!(f, "expired: no validity left when a quorum had answered: {attempt}")
            }
            Self::InvalidRequest(invalid) => invalid.fmt(f),
            Self::NoQuorum(attempt) => write!(f, "no quorum: {attempt}"),
        }
    }
}

impl fmt::Display for ExtendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the locker is closed"),
            Self::Expired => f.write_str("expired: the lock's validity is over"),
            Self::InvalidRequest(invalid) => invalid.fmt(f),
            Self::Lost(attempt) => write!(f, "lost: not ours on a quorum of nodes: {attempt}"),
            Self::NoQuorum { attempt, validity } => {
                write!(f, "no quorum, still valid for {validity:.1?}: {attempt}")
            }
        }
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the locker is closed"),
            Self::NoQuorum(attempt) => write!(f, "release not confirmed: {attempt}"),
            Self::NotHeld(attempt) => write!(f, "no longer held when released: {attempt}"),
        }
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the locker is closed"),
            Self::Unconfirmed { releases } => write!(f, "{releases} releases are not confirmed"),
        }
    }
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyResource => f.write_str("the resource is empty"),
            Self::KeepAlive(every) => {
                write!(f, "a keep-alive every {every:?} does not come before the validity is over")
            }
            Self::MinValidity(min) => {
                write!(f, "a validity of {min:?} is more than the ttl leaves beside the drift")
            }
            Self::ResourceReserved => {
                f.write_str("the resource ends in \":fencing-counter\", as the keys of counters do")
            }
            Self::ResourceTooLong(len) => {
                write!(f, "the resource is {len} bytes long (at most {RESOURCE_LEN_MAX})")
            }
            Self::TtlAboveMax { ttl, max } => {
                write!(f, "ttl {ttl:?} is longer than the longest that is allowed, {max:?}")
            }
            Self::Ttl(ttl) => write!(
                f,
                "ttl {ttl:?} is out of range (10 ms to 24 h, and more than the drift allowance)"
            ),
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the locker is closed",
            Self::Expired => "its validity is over",
            Self::Refused => "a quorum of nodes does not hold it",
            Self::Released => "it was released",
        })
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Group { group, error } => write!(f, "group {group:?}: {error}"),
            Self::Io(error) => write!(f, "the event loop could not be set up: {error}"),
            Self::NoQuorum(attempt) => {
                write!(
                    f,
                    "connected to {} of {} nodes (need {}) in {:.1?}",
                    attempt.granted(),
                    attempt.votes.len(),
                    attempt.quorum(),
                    attempt.elapsed
                )?;
                for (name, vote) in attempt.votes() {
                    if let Some(error) = vote.error() {
                        write!(f, "; {name}: {error}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadUrl { url, reason } => write!(f, "bad node URL {url:?}: {reason}"),
            Self::DuplicateGroup(group) => {
                write!(f, "group {group:?} is configured twice: give all its nodes at once")
            }
            Self::DuplicateNode(name) => {
                write!(f, "{name} is configured twice: a node has one vote")
            }
            Self::Group { group, error } => write!(f, "group {group:?}: {error}"),
            Self::NoGroups => f.write_str("no group is configured"),
            Self::NoNodes => f.write_str("no node is configured"),
            Self::Setting { name, reason } => write!(f, "{name}: {reason}"),
            Self::SharedNode { node, groups: [first, second] } => {
                write!(f, "{node} is in group {first:?} and in group {second:?}")
            }
            Self::TooManyNodes(nodes) => {
                write!(f, "{nodes} nodes are configured (at most {NODES_MAX})")
            }
        }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auth(text) | Self::Config(text) | Self::Server(text) => f.write_str(text),
            Self::Backlog => f.write_str("too much is waiting to be sent"),
            Self::Joining => f.write_str("came to hold the lock too late to count yet"),
            Self::Restarted { stays_away } => {
                write!(f, "restarted, asked for no new lock for another {stays_away:.1?}")
            }
            Self::Closed => f.write_str("the node closed the connection"),
            Self::Io(error) => error.fmt(f),
            Self::Protocol(error) => error.fmt(f),
            Self::Timeout => f.write_str("timed out"),
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::BadBoolean => "bad boolean",
            Self::BadDouble => "bad floating-point number",
            Self::BadInteger => "bad integer",
            Self::BadLength => "bad length",
            Self::BadLineEnd => "a line does not end in CRLF",
            Self::BadNull => "a null carries something",
            Self::BadTypeByte(byte) => {
                return write!(
                    f,
                    "not a Redis server: no reply starts with '{}'",
                    byte.escape_ascii()
                );
            }
            Self::BadVerbatim => "bad verbatim string",
            Self::DepthExceeded => "replies are nested too deep",
            Self::ReplyTooLarge => "a reply is too large",
            Self::Streamed => "streamed types are not supported",
            Self::Unasked => "a reply came that nothing was asked for",
            Self::UnexpectedReply => "a reply does not fit its command",
        };
        write!(f, "protocol error: {text}")
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        source(self.attempt()?)
    }
}

impl std::error::Error for ExtendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lost(attempt) | Self::NoQuorum { attempt, .. } => source(attempt),
            _ => None,
        }
    }
}

impl std::error::Error for ReleaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoQuorum(attempt) | Self::NotHeld(attempt) => source(attempt),
            Self::Closed => None,
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Group { error, .. } => Some(error),
            Self::Io(error) => Some(error),
            Self::NoQuorum(attempt) => source(attempt),
        }
    }
}

impl std::error::Error for NodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Protocol(error) => Some(error),
            _ => None,
        }
    }
}

impl std::error::Error for CloseError {}
impl std::error::Error for InvalidRequest {}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Group { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl std::error::Error for ProtocolError {}

impl From<AcquireError> for io::Error {
    fn from(error: AcquireError) -> Self {
        let kind = match error {
            AcquireError::Closed => io::ErrorKind::BrokenPipe,
            AcquireError::Contended(_) => io::ErrorKind::WouldBlock,
            AcquireError::DeadlineExceeded(_) | AcquireError::Expired(_) => io::ErrorKind::TimedOut,
            AcquireError::InvalidRequest(_) => io::ErrorKind::InvalidInput,
            AcquireError::NoQuorum(_) => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<ProtocolError> for NodeError {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl From<io::Error> for NodeError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

fn source(attempt: &Attempt) -> Option<&(dyn std::error::Error + 'static)> {
    attempt.first_error().map(|error| {
        let error: &(dyn std::error::Error + 'static) = error;
        error
    })
}

/// The longest resource, in bytes. Keys this long still fit one packet or two.
pub(crate) const RESOURCE_LEN_MAX: usize = 4096;

/// The most nodes. More buy nothing: each adds load and a straggler, and seven already outlive three.
pub(crate) const NODES_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(votes: Vec<Vote>) -> Box<Attempt> {
        let names = (0..votes.len()).map(|i| format!("10.0.0.{i}:6379").into()).collect();
        let elapsed = Duration::from_micros(4_120);
        Box::new(Attempt { elapsed, names, number: 2, votes: votes.into() })
    }

    fn io() -> NodeError {
        io::Error::new(io::ErrorKind::ConnectionRefused, "Connection refused").into()
    }

    #[test]
    fn display_is_one_line_with_the_arithmetic_in_it() {
        use Vote::*;
        let contended = || attempt(vec![Granted, Granted, Refused, Refused, Refused]);
        let failed = || {
            let server = NodeError::Server("LOADING Redis is loading".into());
            attempt(vec![
                Granted,
                Unknown(NodeError::Timeout),
                NotSent(io()),
                Failed(server),
                Pending,
            ])
        };
        let failures = "1 of 5 nodes granted, 3 failed (need 3) in 4.1ms; \
                        10.0.0.1:6379: timed out after sending; \
                        10.0.0.2:6379: not sent: Connection refused; \
                        10.0.0.3:6379: LOADING Redis is loading";
        let refusals = "2 of 5 nodes granted, 3 refused (need 3) in 4.1ms";
        let second = Duration::from_secs(1);
        let no_quorum = ExtendError::NoQuorum { attempt: failed(), validity: second };
        let shown: [(Box<dyn std::error::Error>, String); 16] = [
            (AcquireError::Closed.into(), "the locker is closed".into()),
            (AcquireError::Contended(contended()).into(), format!("contended: {refusals}")),
            (
                AcquireError::DeadlineExceeded(None).into(),
                "deadline exceeded before an attempt was settled".into(),
            ),
            (
                AcquireError::DeadlineExceeded(Some(contended())).into(),
                format!("deadline exceeded after 2 attempts; the last: {refusals}"),
            ),
            (
                AcquireError::Expired(attempt(vec![Granted])).into(),
                "expired: no validity left when a quorum had answered: \
                 1 of 1 nodes granted (need 1) in 4.1ms"
                    .into(),
            ),
            (AcquireError::NoQuorum(failed()).into(), format!("no quorum: {failures}")),
            (
                AcquireError::InvalidRequest(InvalidRequest::Ttl(Duration::ZERO)).into(),
                "ttl 0ns is out of range (10 ms to 24 h, and more than the drift allowance)".into(),
            ),
            (
                InvalidRequest::ResourceTooLong(5000).into(),
                "the resource is 5000 bytes long (at most 4096)".into(),
            ),
            (InvalidRequest::EmptyResource.into(), "the resource is empty".into()),
            (
                InvalidRequest::MinValidity(second).into(),
                "a validity of 1s is more than the ttl leaves beside the drift".into(),
            ),
            (ExtendError::Expired.into(), "expired: the lock's validity is over".into()),
            (
                ExtendError::Lost(contended()).into(),
                format!("lost: not ours on a quorum of nodes: {refusals}"),
            ),
            (no_quorum.into(), format!("no quorum, still valid for 1.0s: {failures}")),
            (
                ReleaseError::NotHeld(contended()).into(),
                format!("no longer held when released: {refusals}"),
            ),
            (ReleaseError::NoQuorum(failed()).into(), format!("release not confirmed: {failures}")),
            (
                ConfigError::DuplicateNode("[::1]:6379".into()).into(),
                "[::1]:6379 is configured twice: a node has one vote".into(),
            ),
        ];
        for (error, expected) in shown {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn errors_of_groups_name_the_group() {
        let connect: ConnectError = ConfigError::NoGroups.into();
        assert_eq!(connect.to_string(), "no group is configured");
        let config = ConfigError::Group { group: "a".into(), error: ConfigError::NoNodes.into() };
        assert_eq!(config.to_string(), r#"group "a": no node is configured"#);
        let source = std::error::Error::source(&config).expect("the group's own");
        assert_eq!(source.to_string(), "no node is configured");
        let twice = ConfigError::DuplicateGroup("a".into());
        assert_eq!(
            twice.to_string(),
            r#"group "a" is configured twice: give all its nodes at once"#
        );
        let shared =
            ConfigError::SharedNode { node: "h:1".into(), groups: ["a".into(), "b".into()] };
        assert_eq!(shared.to_string(), r#"h:1 is in group "a" and in group "b""#);
        let down = ConnectError::NoQuorum(attempt(vec![Vote::Granted, Vote::Failed(io())]));
        let down = ConnectError::Group { group: "b".into(), error: down.into() };
        assert_eq!(
            down.to_string(),
            "group \"b\": connected to 1 of 2 nodes (need 2) in 4.1ms; \
             10.0.0.1:6379: Connection refused"
        );
    }

    #[test]
    fn contention_is_told_from_failing_nodes() {
        use Vote::*;
        let refused = || attempt(vec![Refused, Refused, Granted]);
        let failed = || attempt(vec![Refused, Failed(io()), Failed(io())]);
        assert!(AcquireError::Contended(refused()).is_contended());
        assert!(AcquireError::DeadlineExceeded(Some(refused())).is_contended());
        assert!(!AcquireError::DeadlineExceeded(Some(failed())).is_contended());
        assert!(!AcquireError::DeadlineExceeded(None).is_contended());
        assert!(!AcquireError::NoQuorum(failed()).is_contended());
    }

    #[test]
    fn io_errors_keep_the_kinds_apart() {
        use Vote::*;
        let attempt = || attempt(vec![Refused]);
        for (error, kind) in [
            (AcquireError::Closed, io::ErrorKind::BrokenPipe),
            (AcquireError::Contended(attempt()), io::ErrorKind::WouldBlock),
            (AcquireError::DeadlineExceeded(None), io::ErrorKind::TimedOut),
            (AcquireError::Expired(attempt()), io::ErrorKind::TimedOut),
            (AcquireError::NoQuorum(attempt()), io::ErrorKind::NotConnected),
            (
                AcquireError::InvalidRequest(InvalidRequest::EmptyResource),
                io::ErrorKind::InvalidInput,
            ),
        ] {
            assert_eq!(io::Error::from(error).kind(), kind);
        }
    }

    #[test]
    fn the_source_is_the_first_nodes_error() {
        let error = AcquireError::NoQuorum(attempt(vec![Vote::Refused, Vote::Failed(io())]));
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "Connection refused");
    }

    #[test]
    fn errors_are_small_and_go_anywhere() {
        fn goes_anywhere<T: Send + Sync + Clone + 'static>() {}
        goes_anywhere::<AcquireError>();
        goes_anywhere::<ExtendError>();
        goes_anywhere::<ReleaseError>();
        goes_anywhere::<ConnectError>();
        assert!(size_of::<AcquireError>() <= 32, "{}", size_of::<AcquireError>());
        assert!(size_of::<ReleaseError>() <= 16, "{}", size_of::<ReleaseError>());
    }
}
