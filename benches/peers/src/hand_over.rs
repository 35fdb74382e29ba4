//! Two clients of a kind want the same lock: how long is nobody's between a release and the next acquire?

use std::time::Duration;

use quorlock::testing::Servers;

use crate::{
    Result,
    child::HOLD,
    peer::{ALL, Kind, Peer},
    report::Section,
    samples::{Samples, micros},
};

pub fn measure(scale: u32) -> Result<()> {
    let command = "cargo run --release --manifest-path benches/peers/Cargo.toml -- hand-over";
    let question = "How long is a contended lock nobody's, beside other libraries?";
    let mut section = Section::new("peers-hand-over", question, command);
    let time = (Duration::from_secs(8) * scale / 100).max(Duration::from_secs(1));
    section.say(format!(
        "Two clients of a kind in two processes take turns on one resource for {time:?}, each holding it for {HOLD:?} and \
         waiting for it as the library waits. From the moment at which one begins to release until the other has it; \
         a client that takes it again itself does not count."
    ));
    let mut rows = Vec::new();
    for (name, kind) in ALL {
        // That one does not hear of a release: waiting is what `Locker` is for.
        if kind != Kind::Rust("quorlock-local") && kind.missing().is_none() {
            rows.push(row(name, kind, time)?);
        }
    }
    let columns = ["", "hand-overs", "median", "p99", "holds in all", "overlaps"];
    section.table(&columns, &rows);
    section.finish()
}

fn row(name: &'static str, kind: Kind, time: Duration) -> Result<Vec<String>> {
    let servers = Servers::start(5)?;
    let urls = servers.tcp_urls();
    let mut pair = [Peer::start(name, kind, &urls)?, Peer::start(name, kind, &urls)?];
    for peer in &mut pair {
        peer.take_turns("contended", time);
    }
    let mut holds = Vec::new();
    for (who, peer) in pair.iter_mut().enumerate() {
        match peer.holds(time + Duration::from_secs(30)) {
            Ok(his) => holds.extend(his.into_iter().map(|(from, to)| (from, to, who))),
            Err(failure) => {
                let mut row = vec![name.to_string(), failure.to_string()];
                row.resize(6, String::new());
                return Ok(row);
            }
        }
    }
    holds.sort_unstable();
    let overlaps = holds.windows(2).filter(|two| two[1].0 < two[0].1).count();
    let mut gaps = Samples::default();
    for two in holds.windows(2).filter(|two| two[0].2 != two[1].2) {
        gaps.add(Duration::from_nanos(two[1].0.saturating_sub(two[0].1)));
    }
    let count = gaps.len();
    let mut row = vec![name.to_string(), count.to_string()];
    if count > 0 {
        let gaps = gaps.sorted();
        let cell = |gap: Duration| format!("{:.1} ms", micros(gap) / 1e3);
        row.extend([cell(gaps.median()), cell(gaps.p99())]);
    } else {
        row.extend(["never", ""].map(String::from));
    }
    row.extend([holds.len().to_string(), overlaps.to_string()]);
    Ok(row)
}
