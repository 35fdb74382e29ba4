//! Every mutant of the protocol is caught, and how soon: the source of `docs/mutants.md`.
//!
//! `make mutants`. With `WRITE=1` it writes the table.

use std::{
    fmt::Write as _,
    fs,
    panic::{catch_unwind, set_hook},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use quorlock::internal::mutant::{Mutant, become_mutant};

use crate::{mode, oracle::Check, world::World};

struct Catch {
    seeds: u64,
    by: String,
}

/// The first of the seeds in which a mutant is caught, and by what. A panic is a catch too.
fn hunt(mutant: Mutant, only: Option<Check>, seeds: u64) -> Option<Catch> {
    become_mutant(Some(mutant));
    let caught = (0..seeds).find_map(|seed| {
        let result = catch_unwind(|| {
            let mut world = World::new(mode(seed), seed, false);
            world.oracle.only = only;
            world.run()
        });
        let by = match result {
            Ok(Ok(())) => return None,
            Ok(Err(violation)) => format!("{:?}", violation.check),
            Err(_) if only.is_some() => return None,
            Err(_) => "an assertion of the engine or of the model".into(),
        };
        Some(Catch { seeds: seed + 1, by })
    });
    become_mutant(None);
    caught
}

#[test]
fn every_mutant_is_caught() {
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    set_hook(Box::new(|_| {})); // Many panics are to come.
    let work = || {
        while let Some(&mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let first = hunt(mutant, None, SEEDS_MAX);
            let double = hunt(mutant, Some(Check::Exclusion), SEEDS_FOR_DOUBLE);
            rows.lock().unwrap().push((mutant, first, double));
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    let _ = std::panic::take_hook();
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(|(mutant, ..)| *mutant as usize);
    let mut table = String::new();
    let mut free = Vec::new();
    for (mutant, first, double) in &rows {
        let double = double.as_ref().map_or_else(|| "–".into(), |double| double.seeds.to_string());
        let (seeds, by) = match first {
            Some(catch) => (catch.seeds.to_string(), catch.by.clone()),
            None => {
                free.push(*mutant);
                ("none".into(), "–".into())
            }
        };
        let wrong = mutant.wrong();
        writeln!(table, "| `{mutant:?}` | {wrong} | {seeds} | {by} | {double} |").unwrap();
    }
    println!("{table}");
    assert!(free.is_empty(), "not caught in {SEEDS_MAX} schedules: {free:?}");
    publish(&table);
}

/// Writes the table if that is wished, and else sees that it has every mutant.
fn publish(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mutants.md");
    let page = fs::read_to_string(path).unwrap();
    let (head, rows) = page.split_once(HEADER).expect("a table");
    if std::env::var_os("WRITE").is_some() {
        let checks = Mutant::ALL.len();
        println!("{checks} mutants written to {path}");
        return fs::write(path, format!("{head}{HEADER}{table}")).unwrap();
    }
    let names = |rows: &str| -> Vec<String> {
        rows.lines().filter_map(|row| Some(row.split('|').nth(1)?.trim().to_owned())).collect()
    };
    assert_eq!(names(rows), names(table), "make mutants WRITE=1");
}

/// Without mutants nothing is found: what catches them is no false alarm.
#[test]
fn the_build_itself_is_right() {
    become_mutant(None);
    for seed in 0..1000 {
        World::new(mode(seed), seed, false).run().unwrap();
    }
}

const HEADER: &str = "\
| mutant | what it does wrong | schedules | caught by | to two holders |
| --- | --- | ---: | --- | ---: |
";

const SEEDS_MAX: u64 = 200_000;
/// Few, as most mutants do other harm first, and that is enough.
const SEEDS_FOR_DOUBLE: u64 = 2_000;
