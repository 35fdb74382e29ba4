//! A pair of acquire and release under criterion, for comparing one version of the code with another: the floor and
//! each front end, for several N, over TCP and Unix sockets.
//!
//! `cargo bench --bench acquire`. One after another; for ratios that can be relied on see `latency`, in which all take
//! turns.

#[path = "support/contenders.rs"]
#[allow(unreachable_pub)]
mod contenders;
#[path = "support/floor.rs"]
#[allow(dead_code, unreachable_pub)]
mod floor;

use std::{error::Error, time::Duration};

use contenders::{Blocking, Contender, Future, Local};
use criterion::{BenchmarkId, Criterion};
use floor::{Floor, How};
use quorlock::{LocalLocker, Locker, testing::Servers};

fn main() -> Result<(), Box<dyn Error>> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for nodes in [1, 3, 5] {
        let servers = Servers::start(nodes)?;
        for (transport, urls) in [("tcp", servers.tcp_urls()), ("unix", servers.unix_urls())] {
            let local = LocalLocker::connect(&urls)?; // Loads the scripts that the floor uses too.
            let contenders: [(&str, Box<dyn Contender>); 4] = [
                ("floor", Box::new(Floor::connect(&urls, "floor", How::Plain)?)),
                ("local", Box::new(Local::new(local))),
                ("blocking", Box::new(Blocking::new(Locker::connect(&urls)?))),
                ("future", Box::new(Future::new(Locker::connect(&urls)?))),
            ];
            let mut group = criterion.benchmark_group(format!("acquire/{transport}"));
            for (name, mut contender) in contenders {
                group.bench_function(BenchmarkId::new(name, nodes), |bencher| {
                    bencher.iter(|| {
                        contender.acquire().expect("acquires");
                        contender.release().expect("releases");
                    });
                });
            }
            group.finish();
        }
    }
    criterion.final_summary();
    Ok(())
}
