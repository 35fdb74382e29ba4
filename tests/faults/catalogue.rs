//! `docs/faults.md` and the tests say the same: each row is there once, and the tests that it names are there.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The rows of each section.
const SECTIONS: [(&str, char, usize); 7] = [
    ("Connect and transport", 'T', 20),
    ("Replies and protocol", 'R', 10),
    ("Server state", 'S', 16),
    ("Crash, restart, time on the server", 'C', 9),
    ("The client process", 'P', 15),
    ("Configuration and identity", 'I', 9),
    ("Inputs and load", 'L', 11),
];

/// How the reason begins why a row has no test.
const NOT_PRODUCED: &str = "not produced: ";

struct Row {
    section: String,
    name: String,
    /// What is in its last cell.
    tests: String,
}

fn rows() -> Vec<Row> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let mut section = String::new();
    let mut rows = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.into();
        }
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        if !line.starts_with('|') || cells[0] == "row" || cells[0].starts_with('-') {
            continue;
        }
        let [name, fault, does, tests] = cells[..] else { panic!("not four cells: {line}") };
        assert!(!fault.is_empty() && !tests.is_empty(), "{line}");
        assert!(!does.is_empty() || tests.starts_with(NOT_PRODUCED), "{line}");
        rows.push(Row { section: section.clone(), name: name.into(), tests: tests.into() });
    }
    rows
}

#[test]
fn every_row_of_the_catalogue_is_there_once_and_in_its_section() {
    let mut found: Vec<_> = rows().into_iter().map(|row| (row.section, row.name)).collect();
    let mut expected: Vec<(String, String)> = Vec::new();
    for (title, letter, count) in SECTIONS {
        expected.extend((1..=count).map(|number| (title.into(), format!("{letter}{number}"))));
    }
    expected.retain(|row| {
        let place = found.iter().position(|one| one == row);
        place.map(|place| found.remove(place)).is_none()
    });
    assert!(expected.is_empty(), "missing: {expected:?}");
    assert!(found.is_empty(), "twice, or unknown: {found:?}");
}

/// Or it says why there is none.
#[test]
fn every_test_that_a_row_names_is_there() {
    let sources = sources();
    for Row { name, tests, .. } in rows() {
        if tests.starts_with(NOT_PRODUCED) {
            continue;
        }
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{name} names no test: {tests}");
        for test in named {
            let (file, function) = test.split_once("::").unwrap();
            let mut files = sources.iter().filter(|(path, _)| path.ends_with(file));
            let (Some((_, text)), None) = (files.next(), files.next()) else {
                panic!("{name}: {file} is not one file");
            };
            assert!(text.contains(&format!("fn {function}(")), "{name}: {test} is not there");
        }
    }
}

/// And no test is forgotten that has a row's name.
#[test]
fn every_test_of_a_row_is_named_by_it() {
    let rows = rows();
    for (path, text) in sources().iter().filter(|(path, _)| path.starts_with("tests/faults")) {
        for function in text.lines().filter_map(|line| line.strip_prefix("fn ")) {
            let function = function.split('(').next().unwrap();
            let row = function.split('_').next().unwrap().to_uppercase();
            let Some(row) = rows.iter().find(|known| known.name == row) else {
                continue;
            };
            let file = path.file_name().unwrap().to_str().unwrap();
            let named = row.tests.contains(&format!("{file}::{function}`"));
            assert!(named || !has_test(text, function), "{} does not name {function}", row.name);
        }
    }
}

fn has_test(text: &str, function: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let it = format!("fn {function}(");
    let Some(place) = lines.iter().position(|line| line.starts_with(&it)) else {
        return false;
    };
    let attributes = lines[..place].iter().rev().take_while(|line| line.starts_with("#["));
    attributes.into_iter().any(|line| *line == "#[test]")
}

/// All sources that tests can be in, by their path from the root.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut dirs = vec![root.join("src"), root.join("tests")];
    let mut sources = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                sources.push((path.strip_prefix(root).unwrap().into(), text));
            }
        }
    }
    sources
}
