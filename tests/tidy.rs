//! What no compiler checks: the way the tree is kept.

#![allow(clippy::unwrap_used)] // helpers are test code too

use std::{fs, path::PathBuf};

fn sources(root: &str) -> Vec<(PathBuf, String)> {
    let mut dirs = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(root)];
    let mut sources = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.extend(Some(path).filter(|path| !path.ends_with("target")));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                sources.push((path, text));
            }
        }
    }
    assert!(!sources.is_empty());
    sources
}

#[test]
fn every_file_says_what_it_owns() {
    for root in ["src", "tests", "fuzz", "benches", "examples"] {
        for (path, text) in sources(root) {
            assert!(text.starts_with("//! "), "{} has no module doc", path.display());
        }
    }
}

#[test]
fn dependencies_point_one_way() {
    for (path, text) in sources("src/proto") {
        for above in ["driver", "local", "guard", "testing", "locker"] {
            let used = text.contains(&format!("crate::{above}"));
            assert!(!used, "{} uses {above}", path.display());
        }
        for foreign in ["mio::", "rustix::", "std::net", "std::thread", "std::sync::Mutex"] {
            assert!(!text.contains(foreign), "{} uses {foreign}", path.display());
        }
    }
    for (path, text) in sources("src/driver") {
        for above in ["local", "guard", "locker"] {
            let used = text.contains(&format!("crate::{above}"));
            assert!(!used, "{} uses {above}", path.display());
        }
    }
}

/// Without its tests.
#[test]
fn no_file_is_too_long_to_know() {
    for (path, text) in sources("src") {
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines = code.lines().count();
        assert!(lines <= 750, "{} has {lines} lines", path.display());
    }
}

#[test]
fn nothing_is_left_to_do_without_saying_where() {
    for root in ["src", "tests", "fuzz", "benches", "examples"] {
        for (path, text) in sources(root) {
            for (number, line) in text.lines().enumerate() {
                let marked = ["TO", "FIX"]
                    .iter()
                    .zip(["DO", "ME"])
                    .any(|(a, b)| line.contains(&format!("{a}{b}")));
                assert!(!marked, "{}:{}: {line}", path.display(), number + 1);
            }
        }
    }
}
