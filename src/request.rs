//! What a caller asks a locker for: one builder for every way to acquire.

use std::time::{Duration, Instant};

use crate::{
    config::{self, Config},
    error::{InvalidRequest, RESOURCE_LEN_MAX},
    fencing::Fencing,
    guard::KeepAlive,
    proto::{
        lease::COUNTER_SUFFIX,
        request::{Care, Spec},
        time::Time,
        validity::Ttl,
    },
};

/// A lock to be acquired. Made by a locker's `lock`; what it is not told, it takes from the locker's
/// [`Builder`](crate::Builder).
///
/// Nothing is checked and nothing sent before one of its acquire methods is called.
#[derive(Clone, Debug)]
#[must_use = "a lock request does nothing until one of its acquire methods is called"]
pub struct LockRequest<'a, L> {
    pub(crate) locker: &'a L,
    resource: &'a [u8],
    ttl: Option<Duration>,
    wait: Option<Wait>,
    min_validity: Duration,
    keep_alive: Option<KeepAlive>,
    fencing: Fencing,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    For(Duration),
    Until(Instant),
}

impl<'a, L> LockRequest<'a, L> {
    pub(crate) fn new(locker: &'a L, resource: &'a [u8]) -> Self {
        Self {
            locker,
            resource,
            ttl: None,
            wait: None,
            min_validity: Duration::ZERO,
            keep_alive: None,
            fencing: Fencing::Off,
        }
    }

    /// For how long to take the lock: the expiry of its keys, in whole milliseconds.
    ///
    /// 10 ms to 24 h, and more than the drift allowance. The holder may rely on the lock for a little less;
    /// see [`min_validity`](Self::min_validity).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long `acquire` tries. Zero does not try at all: that is what `try_acquire` is for.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.wait = Some(Wait::For(timeout));
        self
    }

    /// Until when `acquire` tries, in place of a [`timeout`](Self::timeout).
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.wait = Some(Wait::Until(deadline));
        self
    }

    /// Refuses a lock that would be too short to be useful: one whose validity, `ttl - elapsed - drift`, is
    /// less than this when a quorum has granted it. It is released and counts as expired.
    ///
    /// By default any validity above zero is enough. More than `ttl - drift` is an
    /// [`InvalidRequest`].
    pub fn min_validity(mut self, min: Duration) -> Self {
        self.min_validity = min;
        self
    }

    /// Whether the lock comes with a [fencing token](crate::FencingToken), for a store that refuses what is stale.
    ///
    /// All who lock this resource must ask for one, or tokens mean nothing: a lock without one is not counted.
    pub fn fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    pub(crate) fn keep(mut self, keep_alive: KeepAlive) -> Self {
        self.keep_alive = Some(keep_alive);
        self
    }

    /// One attempt, which ends with the deadline of its nodes.
    pub(crate) fn single(&self, config: &Config) -> Result<Spec<'a>, InvalidRequest> {
        self.spec(config, None)
    }

    /// Attempts until the request's deadline.
    pub(crate) fn repeated(&self, config: &Config, now: Time) -> Result<Spec<'a>, InvalidRequest> {
        let timeout = match self.wait {
            None => config.timeout,
            Some(Wait::For(timeout)) => timeout,
            Some(Wait::Until(deadline)) => deadline.saturating_duration_since(Instant::now()),
        };
        self.spec(config, Some(now.after(timeout)))
    }

    fn spec(&self, config: &Config, deadline: Option<Time>) -> Result<Spec<'a>, InvalidRequest> {
        if self.resource.is_empty() {
            return Err(InvalidRequest::EmptyResource);
        }
        if self.resource.len() > RESOURCE_LEN_MAX {
            return Err(InvalidRequest::ResourceTooLong(self.resource.len()));
        }
        if self.resource.ends_with(COUNTER_SUFFIX) {
            return Err(InvalidRequest::ResourceReserved);
        }
        let ttl = config.parse_ttl(self.ttl.unwrap_or(config.ttl))?;
        let validity = ttl.validity(config.drift);
        if self.min_validity > validity {
            return Err(InvalidRequest::MinValidity(self.min_validity));
        }
        let upkeep =
            self.keep_alive.map(|keep_alive| keep_alive.parse(ttl, validity)).transpose()?;
        Ok(Spec {
            resource: self.resource,
            ttl,
            deadline,
            min_validity: self.min_validity,
            node_timeout: node_timeout(config, ttl),
            care: upkeep.map_or(Care::Holder, |upkeep| Care::Engine { upkeep: Some(upkeep) }),
            fencing: self.fencing,
        })
    }
}

/// What each node is given in an attempt with this ttl.
pub(crate) fn node_timeout(config: &Config, ttl: Ttl) -> Duration {
    config.node_timeout.unwrap_or_else(|| config::node_timeout(ttl.duration()))
}
