//! Mistakes, and what is asked of the command itself.

use crate::*;

#[test]
fn help_and_version_are_answers() {
    for args in [&["--help"][..], &["run", "--help"], &["status", "-h"], &["--version"]] {
        let output = output(&mut quorlock(args));
        assert_code(&output, 0);
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn help_lists_the_exit_codes() {
    let output = output(&mut quorlock(&["run", "--help"]));
    for code in
        ["  1    ", "  64   ", "  69   ", "  71   ", "  75   ", "  126  ", "  127  ", "128 + N"]
    {
        assert!(stdout(&output).contains(code), "{code:?} is missing: {}", stdout(&output));
    }
}

/// Every mistake is named, and ends with 64 before anything is started.
#[test]
fn mistakes_are_named() {
    let long = "x".repeat(4097);
    for (args, named) in [
        (
            &["run", "r", "--", "true"][..],
            "no node is given: use --node URL, or set QUORLOCK_NODES",
        ),
        (&["run", "-N", "http://a", "r", "--", "true"], r#"bad node URL "http://a""#),
        (
            &["run", "-N", "redis://a", "-N", "redis://a:6379", "r", "--", "true"],
            "a:6379 is configured twice",
        ),
        (&["run", "-N", "redis://a", "-t", "5ms", "r", "--", "true"], "5ms is out of range"),
        (&["run", "-N", "redis://a", "-t", "soon", "r", "--", "true"], "soon"),
        (&["run", "-N", "redis://a", "-t", "-5", "r", "--", "true"], "-5"),
        (&["run", "-N", "redis://a", "-w", "1x", "r", "--", "true"], "1x"),
        (&["run", "-N", "redis://a", "--node-timeout", "2h", "r", "--", "true"], "node_timeout"),
        (&["run", "-N", "redis://a", "-E", "256", "r", "--", "true"], "256"),
        (&["run", "-N", "redis://a", "r"], "<COMMAND>"),
        (&["run", "-N", "redis://a", "r", "true"], "true"),
        (&["run", "-N", "redis://a", "--frob", "r", "--", "true"], "--frob"),
        (&["status", "-N", "redis://a", ""], "cannot be empty"),
        (&["status", "-N", "redis://a", &long], "4097 bytes"),
        (&["frob"], "frob"),
        (&[], "Usage"),
    ] {
        let output = output(&mut quorlock(args));
        assert_code(&output, 64);
        assert!(stderr(&output).starts_with("quorlock: "), "{output:?}");
        assert!(stderr(&output).contains(named), "{args:?} does not name {named:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

/// Found before a lock is asked for, so no server needs to be there.
#[test]
fn a_resource_out_of_range_is_a_mistake() {
    for (resource, named) in [("", "empty"), (&*"x".repeat(4097), "4097 bytes")] {
        let output =
            output(&mut quorlock(&["run", "-N", "redis://192.0.2.1", resource, "--", "true"]));
        assert_code(&output, 64);
        assert!(stderr(&output).contains(named), "{output:?}");
    }
}

#[test]
fn passwords_are_not_repeated() {
    let servers = servers(1);
    servers[0].command(&["CONFIG", "SET", "requirepass", "correct-horse"]).unwrap();
    let address = servers[0].tcp_url().replace("redis://", "");
    let wrong = format!("redis://:hunter2@{address}");
    let user = format!("redis://bob:hunter2@{address}");
    let bad = format!("redis://:hunter2@{address}:x");
    let typo = format!("--nodes={wrong}");
    for (args, expected) in [
        (&["run", "-v", "-N", &wrong, "r", "--", "true"][..], 69),
        (&["run", "-v", "-N", &user, "r", "--", "true"], 69),
        (&["run", "-v", "-N", &bad, "r", "--", "true"], 64),
        (&["run", &typo, "r", "--", "true"], 64),
        (&["run", "r", &wrong], 64),
        (&["status", "-N", &wrong, "r"], 69),
    ] {
        let output = output(&mut quorlock(args));
        assert_code(&output, expected);
        let said = format!("{output:?}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let right = format!("redis://:correct-horse@{address}");
    let output = output(&mut quorlock(&["run", "-v", "-N", &right, "r", "--", "true"]));
    assert_code(&output, 0);
    assert!(!format!("{output:?}").contains("correct-horse"), "{output:?}");
}

/// Commas separate the URLs of the variable. One in a password makes pieces of it, none of which is shown.
#[test]
fn a_comma_in_a_password_shows_no_part_of_it() {
    for url in ["redis://:hun,ter2@127.0.0.1:1", "redis://:hun,te:r2@127.0.0.1:1"] {
        let mut command = quorlock(&["run", "-v", "r", "--", "true"]);
        let output = output(command.env("QUORLOCK_NODES", url));
        assert_code(&output, 64);
        assert_eq!(
            stderr(&output),
            "quorlock: QUORLOCK_NODES: what stands in place 2 is no URL; write a comma in a password as %2C\n"
        );
    }
    let servers = servers(1);
    servers[0].command(&["CONFIG", "SET", "requirepass", "hun,ter2"]).unwrap();
    let url = servers[0].tcp_url().replace("redis://", "redis://:hun%2Cter2@");
    let output = output(quorlock(&["run", "r", "--", "true"]).env("QUORLOCK_NODES", url));
    assert_code(&output, 0);
}

#[test]
fn an_even_number_of_nodes_is_warned_of() {
    let servers = servers(2);
    let output = output(&mut run(&servers, &["r", "--", "true"]));
    assert_code(&output, 0);
    assert_eq!(
        stderr(&output),
        "quorlock: warning: 2 nodes outlive 0 failed, no more than 1 do: use an odd number\n"
    );
}

#[test]
fn nodes_come_from_arguments_or_the_environment() {
    let servers = servers(3);
    let urls = servers.tcp_urls();
    for separator in [",", " ", " ,\n"] {
        let mut command = quorlock(&["run", "-v", "r", "--", "true"]);
        let output = output(command.env("QUORLOCK_NODES", urls.join(separator)));
        assert_code(&output, 0);
        // One line for the time, and one for each node.
        assert_eq!(stderr(&output).lines().count(), 4, "{output:?}");
    }
    // Arguments win over the environment, as a whole.
    let mut command = quorlock(&["run", "-v", "-N", &urls[0], "r", "--", "true"]);
    let output = output(command.env("QUORLOCK_NODES", "redis://192.0.2.1"));
    assert_code(&output, 0);
    assert_eq!(stderr(&output).lines().count(), 2, "{output:?}");
}
