//! One caller: how long does an acquire take, and a release, with all nodes well and with one that is not?

use std::time::{Duration, Instant};

use quorlock::testing::Servers;

use crate::{
    Result,
    peer::{ALL, Failure, Peer},
    proxy::{Plan, Proxy},
    report::{Plot, Section},
    samples::{Samples, Sorted, micros, ratio},
};

/// What is wrong, and how it is brought about once everyone is connected and warm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Scenario {
    Healthy,
    OneSlow,
    OneStopped,
    OneDown,
    AllFar,
}

const SCENARIOS: [(Scenario, &str); 5] = [
    (Scenario::Healthy, "five nodes, all well"),
    (Scenario::OneSlow, "one of five answers 20 ms late"),
    (Scenario::OneStopped, "one of five is stopped (SIGSTOP)"),
    (Scenario::OneDown, "one of five is down"),
    (Scenario::AllFar, "all five answer 1 ms late"),
];

/// Whoever takes longer for one pair is taken to hang.
const PATIENCE: Duration = Duration::from_secs(4);

pub fn measure(scale: u32) -> Result<()> {
    let command = "cargo run --release --manifest-path benches/peers/Cargo.toml -- latency";
    let question = "How long does a lock take, beside other libraries?";
    let mut section = Section::new("peers-latency", question, command);
    section.say(
        "One caller takes and releases a lock, everyone in turns on the same five servers, each library with its own \
         defaults and a single attempt. In brackets the median as a multiple of `LocalLocker`'s. Each client measures \
         itself in its own process.",
    );
    let missing: Vec<_> =
        ALL.iter().filter_map(|(name, kind)| Some((name, kind.missing()?))).collect();
    for (name, reason) in missing {
        section.say(format!("Not measured: {name} ({reason})."));
    }
    section.say(
        "Not measured: redlock-cpp, which no package registry has, and whose source cannot be had where this was run.",
    );
    for (scenario, name) in SCENARIOS {
        let runs = run(scenario, Duration::from_secs(15) * scale / 100)?;
        tabulate(&mut section, name, &runs);
        if matches!(scenario, Scenario::Healthy | Scenario::OneSlow) {
            plot(&mut section, &format!("peers-{scenario:?}").to_lowercase(), name, &runs)?;
        }
    }
    section.finish()
}

struct Run {
    name: &'static str,
    times: Option<(Sorted, Sorted)>,
    failed: usize,
    /// Why it was not gone on with.
    gone: Option<String>,
}

fn run(scenario: Scenario, time: Duration) -> Result<Vec<Run>> {
    let mut servers = Servers::start(5)?;
    let proxies: Vec<_> = servers
        .iter()
        .map(|server| Proxy::start(server.tcp_url()))
        .collect::<std::io::Result<_>>()?;
    let mut urls = servers.tcp_urls();
    match scenario {
        Scenario::OneSlow => urls[4] = proxies[4].url(),
        Scenario::AllFar => urls = proxies.iter().map(Proxy::url).collect(),
        _ => {}
    }
    let mut peers = Vec::new();
    for (name, kind) in ALL {
        if kind.missing().is_none() {
            peers.push(Peer::start(name, kind, &urls)?);
        }
    }
    match scenario {
        Scenario::Healthy => {}
        Scenario::OneSlow => proxies[4].set_live(Plan::delay(Duration::from_millis(20))),
        Scenario::OneStopped => servers[4].pause()?,
        Scenario::OneDown => servers[4].kill()?,
        Scenario::AllFar => {
            for proxy in &proxies {
                proxy.set_live(Plan::delay(Duration::from_millis(1)));
            }
        }
    }
    in_turns(&mut peers, time)
}

/// Rounds of everyone who has not had his share of the time yet: who takes long has fewer rounds.
fn in_turns(peers: &mut [Peer], time: Duration) -> Result<Vec<Run>> {
    struct Tally {
        acquire: Samples,
        release: Samples,
        failed: usize,
        spent: Duration,
        gone: Option<String>,
    }
    let tally = || Tally {
        acquire: Samples::default(),
        release: Samples::default(),
        failed: 0,
        spent: Duration::ZERO,
        gone: None,
    };
    let mut tallies: Vec<_> = peers.iter().map(|_| tally()).collect();
    let share = time / u32::try_from(peers.len())?;
    for round in 0.. {
        // Each round begins with another one, and every other one goes backwards: nobody always follows the same.
        let mut asked: Vec<_> = (0..peers.len()).map(|i| (i + round / 2) % peers.len()).collect();
        if round % 2 == 1 {
            asked.reverse();
        }
        let mut busy = false;
        for i in asked {
            let tally = &mut tallies[i];
            if tally.gone.is_some() || tally.spent > share {
                continue;
            }
            busy = true;
            let asked = Instant::now();
            match peers[i].pair(&format!("latency-{i}"), PATIENCE) {
                Ok((acquire, release)) => {
                    tally.acquire.add(acquire);
                    tally.release.add(release);
                }
                Err(Failure::Failed(_)) => tally.failed += 1,
                Err(Failure::Gone(reason)) => tally.gone = Some(reason),
            }
            tally.spent += asked.elapsed();
        }
        if !busy {
            break;
        }
    }
    let runs = peers.iter().zip(tallies).map(|(peer, tally)| Run {
        name: peer.name,
        times: (tally.acquire.len() > 0).then(|| (tally.acquire.sorted(), tally.release.sorted())),
        failed: tally.failed,
        gone: tally.gone,
    });
    Ok(runs.collect())
}

fn tabulate(section: &mut Section, name: &str, runs: &[Run]) {
    let (acquire, release) = runs[0].times.as_ref().expect("ours has acquired");
    let (acquire, release) = (acquire.median(), release.median());
    let cell = |time: Duration, to| format!("{:.0} µs ({:.2}x)", micros(time), ratio(time, to));
    let p99 = |time: &Sorted| format!("{:.0} µs", micros(time.p99()));
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            let mut row = vec![run.name.to_string()];
            match &run.times {
                Some(times) => row.extend([
                    cell(times.0.median(), acquire),
                    p99(&times.0),
                    cell(times.1.median(), release),
                    p99(&times.1),
                ]),
                None => row.extend(["", "", "", ""].map(String::from)),
            }
            row.push(match (&run.gone, run.failed) {
                (Some(reason), _) => reason.clone(),
                (None, 0) => String::new(),
                (None, failed) => format!("{failed} failed"),
            });
            row
        })
        .collect();
    section.table(&[name, "acquire, median", "p99", "release, median", "p99", "remarks"], &rows);
}

fn plot(section: &mut Section, file: &str, name: &str, runs: &[Run]) -> Result<()> {
    let lines: Vec<_> = runs
        .iter()
        .filter_map(|run| Some((run.name.to_string(), run.times.as_ref()?.0.curve())))
        .collect();
    let title = format!("Acquire, {name}: how many are done within a time");
    section.plot(file, &Plot { title: &title, x: "µs", y: "percent", lines: &lines })
}
