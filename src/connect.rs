//! From a configuration to a driver that has a quorum of nodes.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    config::{Config, RestartGuard},
    driver::{Driver, clock},
    error::{Attempt, ConnectError, NodeError, Vote},
    proto::{
        engine::{Engine, Settings},
        handshake::Greeting,
        time::Time,
        validity::Ttl,
    },
};

/// The nodes' names, in the configured order.
pub(crate) type Names = Arc<[Box<str>]>;

/// Also gives the nodes' names.
pub(crate) fn quorum(config: &Config, tracking: bool) -> Result<(Driver, Names), ConnectError> {
    let started = clock::now();
    let names: Arc<[_]> = config.nodes.iter().map(|node| node.name().into()).collect();
    let mut driver = driver(config, tracking, names.clone(), started)?;
    match driver.await_quorum(started, started.after(config.connect_timeout)) {
        Ok(()) => Ok((driver, names)),
        Err(votes) => Err(no_quorum(clock::now().since(started), names, votes)),
    }
}

fn driver(
    config: &Config,
    tracking: bool,
    names: Names,
    now: Time,
) -> Result<Driver, ConnectError> {
    let io = |error| ConnectError::Io(Arc::new(error));
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| io(error.into()))?;
    let settings = Settings {
        names,
        key_prefix: config.key_prefix.clone(),
        connect_timeout: config.connect_timeout,
        drift: config.drift,
        retry: config.retry,
        restart_guard: config.restart_guard,
        repair: config.repair,
        ttl_longest: config.ttl_max.unwrap_or(Ttl::NONE),
    };
    let greetings = config.nodes.iter().map(|node| Greeting {
        credentials: node.credentials().clone(),
        db: node.db(),
        client_name: config.client_name.clone(),
        tracking,
        persistence: config.restart_guard == RestartGuard::TrustPersisted,
    });
    let addresses = config.nodes.iter().map(|node| node.address().clone()).collect();
    Driver::new(Engine::new(settings, greetings, seed, now), addresses, config.spin).map_err(io)
}

fn no_quorum(elapsed: Duration, names: Names, votes: Vec<Vote>) -> ConnectError {
    let votes: SmallVec<_> = votes
        .into_iter()
        .map(|vote| match vote {
            Vote::Pending => Vote::Failed(NodeError::Timeout),
            vote => vote,
        })
        .collect();
    ConnectError::NoQuorum(Box::new(Attempt { elapsed, names, number: 1, votes }))
}
