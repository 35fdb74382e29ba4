//! What is checked of arbitrary bytes. Each file has one `check`, which panics if something is wrong.
//!
//! libFuzzer calls it through `fuzz_targets/`; `tests/corpus.rs` includes this file and calls it for every
//! input that was kept.

pub mod bytes;
pub mod claims;
pub mod decode;
pub mod engine;
pub mod fences;
pub mod nodes;
pub mod round_trip;
pub mod session;
pub mod url;
