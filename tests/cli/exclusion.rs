//! The one thing that it is for: two processes, one resource, never both.

use crate::*;

/// Two loops of `quorlock run`, each of which reads a number from a file and writes back one more. Nothing but
/// the lock keeps their rounds apart, so a round that overlaps another is missing from the number.
#[test]
fn no_update_is_lost() {
    const ROUNDS: u32 = 1000;
    let servers = servers(3);
    let scratch = Scratch::new("exclusion");
    fs::write(scratch.path("n"), "0\n").unwrap();
    let round = format!("n=$(cat {file}); echo $((n+1)) > {file}", file = scratch.text("n"));
    let rounds = format!(
        r#"i=0; while [ $i -lt {ROUNDS} ]; do "$0" run --wait 60 counter -c '{round}' || exit; i=$((i+1)); done"#
    );
    let started = Instant::now();
    let contender = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", &rounds, env!("CARGO_BIN_EXE_quorlock")]);
        start(shell.env("QUORLOCK_NODES", servers.tcp_urls().join(",")))
    };
    let both = [contender(), contender()];
    for contender in both {
        let output = contender.output();
        assert_code(&output, 0);
        // A busy machine may be slow to answer; nothing else is worth a word.
        let slow = stderr(&output).lines().all(|line| line.ends_with("; trying again"));
        assert!(slow, "{output:?}");
    }
    eprintln!("2 x {ROUNDS} rounds took {:.1?}", started.elapsed());
    assert_eq!(scratch.line("n"), (2 * ROUNDS).to_string());
    assert_eq!(keys(&servers), 0);
}
