//! Many callers on one client: how many pairs a second, and what does each cost the client?

use std::time::Duration;

use quorlock::testing::Servers;

use crate::{
    Result,
    peer::{ALL, Kind, Peer},
    report::{Plot, Section},
};

pub fn measure(scale: u32) -> Result<()> {
    let command = "cargo run --release --manifest-path benches/peers/Cargo.toml -- callers";
    let question = "How much does one client do for many callers, beside other libraries?";
    let mut section = Section::new("peers-callers", question, command);
    section.say(
        "Callers on distinct resources, through one client in its own process, on five servers that share the cores; \
         in turns of a second. In brackets multiples of `Locker`'s.",
    );
    let turns = (5 * scale).div_ceil(100);
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for callers in [1, 16, 64, 256] {
        let rows = with(callers, turns, &mut lines)?;
        let columns = [&format!("{callers} callers"), "pairs/s", "client CPU a pair"];
        section.table(&columns.map(|column: &str| column), &rows);
    }
    let title = "Pairs of acquire and release per second";
    section.plot("peers-callers", &Plot { title, x: "callers", y: "pairs/s", lines: &lines })?;
    section.finish()
}

#[derive(Default)]
struct Total {
    pairs: u64,
    wall: Duration,
    cpu: Duration,
    failed: Option<String>,
}

fn with(
    callers: usize,
    turns: u32,
    lines: &mut Vec<(String, Vec<(f64, f64)>)>,
) -> Result<Vec<Vec<String>>> {
    let servers = Servers::start(5)?;
    let urls = servers.tcp_urls();
    let mut peers = Vec::new();
    for (name, kind) in ALL {
        // That one is for a single caller.
        if kind != Kind::Rust("quorlock-local") && kind.missing().is_none() {
            peers.push((Peer::start(name, kind, &urls)?, Total::default()));
        }
    }
    for _ in 0..turns {
        for (peer, total) in &mut peers {
            if total.failed.is_some() {
                continue;
            }
            match peer.many(callers, Duration::from_secs(1)) {
                Ok((pairs, wall, cpu)) => {
                    total.pairs += pairs;
                    total.wall += wall;
                    total.cpu += cpu;
                }
                Err(failure) => total.failed = Some(failure.to_string()),
            }
        }
    }
    let rate = |total: &Total| total.pairs as f64 / total.wall.as_secs_f64();
    let cost = |total: &Total| total.cpu.as_secs_f64() * 1e6 / total.pairs as f64;
    let (ours, our_cost) = (rate(&peers[0].1), cost(&peers[0].1));
    let mut rows = Vec::new();
    for (peer, total) in &peers {
        rows.push(match &total.failed {
            Some(reason) => vec![peer.name.into(), reason.clone(), String::new()],
            None => vec![
                peer.name.into(),
                format!("{:.0} ({:.2}x)", rate(total), rate(total) / ours),
                format!("{:.1} µs ({:.1}x)", cost(total), cost(total) / our_cost),
            ],
        });
        if total.failed.is_none() {
            let point = (callers as f64, rate(total));
            match lines.iter_mut().find(|(name, _)| name == peer.name) {
                Some((_, line)) => line.push(point),
                None => lines.push((peer.name.into(), vec![point])),
            }
        }
    }
    Ok(rows)
}
