//! The fault suite: what lock clients meet, by the rows of `docs/faults.md`. Each test is named by its row.
#![allow(clippy::as_conversions, clippy::unwrap_used)] // test code, outside of test functions

mod catalogue;
mod config;
mod crash;
mod inputs;
mod process;
mod replies;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod transport;
