//! Every input that fuzzing has kept, through the check that it was kept for. No fuzzer is needed for that.
#![allow(clippy::as_conversions, clippy::too_many_lines, clippy::unwrap_used)] // test code

#[path = "../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub)]
mod checks;

use std::{fs, panic, path::PathBuf};

/// Runs all of a target's corpus, and names the inputs that panic.
fn replay(target: &str, check: fn(&[u8])) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!paths.is_empty(), "{} is empty", dir.display());
    let fails = |path: &&PathBuf| {
        let input = fs::read(path).unwrap();
        panic::catch_unwind(|| check(&input)).is_err()
    };
    let failed: Vec<_> = paths.iter().filter(fails).collect();
    assert!(failed.is_empty(), "of {} inputs these panic: {failed:#?}", paths.len());
}

#[test]
fn decode() {
    replay("decode", checks::decode::check);
}

#[test]
fn round_trip() {
    replay("round_trip", checks::round_trip::check);
}

#[test]
fn session() {
    replay("session", checks::session::check);
}

#[test]
fn engine() {
    replay("engine", checks::engine::check);
}

#[test]
fn url() {
    replay("url", checks::url::check);
}
