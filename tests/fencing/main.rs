//! Locks with fencing tokens, and locks that are put back on nodes that lost them.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod rounds;
mod servers;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/world.rs"]
#[allow(dead_code, unreachable_pub)]
mod world;
