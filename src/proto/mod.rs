//! The protocol, and nothing else: no clock, no socket, no thread, no global.
//!
//! It is told the time and fed bytes, and says what to write and when to wake it. That is what lets a
//! simulation drive it through any fault at any moment. [`engine`] is its face.
//!
//! Its items are `pub` for the tests, benchmarks and fuzz targets, which reach them through the hidden
//! `internal` module. They are no part of the crate's API.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, clippy::new_without_default)]

#[macro_use]
pub mod mutant;

pub mod attempt;
pub mod command;
pub mod engine;
pub mod fence;
pub mod handshake;
pub(crate) mod inspection;
pub mod lease;
pub mod node;
pub mod notification;
pub mod quorum;
pub mod request;
pub mod resp;
pub mod restart;
pub mod script;
pub mod session;
pub mod sha1;
pub mod slab;
pub mod stats;
pub mod time;
pub mod timers;
pub mod token;
pub mod upkeep;
pub mod validity;
pub mod waiting;
