//! Real servers: what they count, through restarts and in the face of what should not be there.

use quorlock::{
    Builder, Fencing, FencingToken, InvalidRequest, LocalLocker, Locker, NodeError, RestartGuard,
    testing::{Answer, Data, Server, Servers},
};

use crate::support::{connected, connected_by, eventually, ms, secs, values};

const COUNTER: &str = "r:fencing-counter";

fn locked(locker: &LocalLocker, fencing: Fencing) -> FencingToken {
    let guard = locker.lock("r").fencing(fencing).timeout(secs(10)).acquire().unwrap();
    let token = guard.fencing_token().unwrap();
    guard.release().unwrap();
    token
}

fn counts(servers: &Servers) -> Vec<Option<String>> {
    let count = |server: &Server| match server.command(&["HGET", COUNTER, "count"]).unwrap() {
        Answer::Text(count) => Some(count),
        _ => None,
    };
    servers.iter().map(count).collect()
}

#[test]
fn each_holder_has_a_higher_token_than_the_one_before() {
    let servers = Servers::start(5).unwrap();
    let locker = connected(&servers);
    let mut tokens = Vec::new();
    for i in 0..200 {
        let fencing = if i % 2 == 0 { Fencing::Confirmed } else { Fencing::OneRoundTrip };
        tokens.push(locked(&locker, fencing));
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    locker.flush(secs(1));
    assert_eq!(values(&servers, "r"), vec![None; 5]);
}

#[test]
fn callers_on_many_threads_have_different_tokens_in_the_order_in_which_they_held_it() {
    let servers = Servers::start(3).unwrap();
    let locker = Locker::connect(servers.tcp_urls()).unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let request = locker.lock("r").fencing(Fencing::Confirmed).timeout(secs(30));
                    let guard = request.acquire().unwrap();
                    order.lock().unwrap().push(guard.fencing_token().unwrap());
                    guard.release().unwrap();
                }
            });
        }
    });
    let order = order.into_inner().unwrap();
    assert_eq!(order.len(), 160);
    assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
}

#[test]
fn a_server_that_forgot_its_counter_goes_on_from_its_clock() {
    let mut servers = Servers::start(3).unwrap();
    let locker = connected_by(Builder::new().restart_guard(RestartGuard::Off), &servers);
    let mut last = locked(&locker, Fencing::Confirmed);
    for i in 0..3 {
        servers[i].restart(Data::Wipe).unwrap();
        eventually("the restarted node counts again", || {
            let token = locked(&locker, Fencing::OneRoundTrip);
            assert!(token > last, "{token} after {last}");
            last = token;
            counts(&servers)[i].is_some()
        });
    }
}

/// It may be back at a time before somebody else was counted there, and would confirm their number again.
#[test]
fn a_server_that_was_restarted_between_the_rounds_confirms_nothing() {
    let mut server = Server::builder().persistent(true).start().unwrap();
    let locker = Builder::new().nodes([server.tcp_url()]).connect_local().unwrap();
    let guard = locker.lock("r").ttl(secs(60)).fencing(Fencing::Confirmed).try_acquire().unwrap();
    let count = guard.fencing_token().unwrap().to_string();
    let script = include_str!("../../lua/confirm.lua");
    let token = guard.token().as_str();
    let confirm = ["EVAL", script, "2", "r", COUNTER, token, &count];
    let said = |answer| Answer::Text(format!("{answer} {}", &token[..8]));
    assert_eq!(server.command(&confirm).unwrap(), said(format!("count {count}")));
    server.restart(Data::Keep).unwrap();
    assert_eq!(server.get("r").unwrap().as_deref(), Some(token), "the lock is there");
    assert_eq!(server.command(&confirm).unwrap(), said("gone".into()));
}

#[test]
fn a_flushed_counter_repeats_no_token() {
    let servers = Servers::start(3).unwrap();
    let locker = connected(&servers);
    let mut last = locked(&locker, Fencing::Confirmed);
    for i in [0, 1, 2, 0] {
        servers[i].command(&["FLUSHALL"]).unwrap();
        let token = locked(&locker, Fencing::Confirmed);
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

#[test]
fn the_counter_outlives_its_lock_by_a_week_and_no_more() {
    let servers = Servers::start(1).unwrap();
    let locker = connected(&servers);
    locked(&locker, Fencing::Confirmed);
    let Answer::Integer(left) = servers[0].command(&["PTTL", COUNTER]).unwrap() else { panic!() };
    let week = 7 * 24 * 60 * 60 * 1000;
    assert!((week - 60_000..=week).contains(&left), "{left} ms");
}

/// Lua does not roll back: what can fail has to fail before anything is set.
#[test]
fn a_counter_that_is_none_is_reported_and_leaves_nothing_behind() {
    let servers = Servers::start(1).unwrap();
    let locker = connected(&servers);
    let broken: [&[&str]; 4] = [
        &["SET", COUNTER, "seven"],
        &["HSET", COUNTER, "count", "seven"],
        &["HSET", COUNTER, "count", "-7"],
        &["HSET", COUNTER, "count", "9007199254740991"],
    ];
    for command in broken {
        servers[0].command(&["DEL", COUNTER]).unwrap();
        locked(&locker, Fencing::Confirmed);
        servers[0].command(command).unwrap();
        // At once, though it might wait: only a person can mend that.
        let request = locker.lock("r").fencing(Fencing::Confirmed).timeout(secs(60));
        let error = request.acquire().unwrap_err();
        let vote = error.attempt().unwrap().votes().next().unwrap().1.error().cloned();
        let Some(NodeError::Config(text)) = vote else { panic!("{error}") };
        assert!(text.contains("FENCING") || text.contains("WRONGTYPE"), "{text}");
        assert_eq!(values(&servers, "r"), [None], "{command:?}");
    }
}

#[test]
fn the_last_tokens_below_two_to_the_fifty_third_are_exact() {
    let servers = Servers::start(1).unwrap();
    let locker = connected(&servers);
    locked(&locker, Fencing::Confirmed);
    servers[0].command(&["HSET", COUNTER, "count", "9007199254740988"]).unwrap();
    assert_eq!(locked(&locker, Fencing::Confirmed).get(), 9_007_199_254_740_989);
    assert_eq!(locked(&locker, Fencing::OneRoundTrip).get(), 9_007_199_254_740_990);
    assert_eq!(locked(&locker, Fencing::Confirmed).get(), 9_007_199_254_740_991);
    locker.lock("r").fencing(Fencing::Confirmed).try_acquire().unwrap_err();
}

#[test]
fn a_resource_that_would_be_another_ones_counter_is_refused() {
    let servers = Servers::start(1).unwrap();
    let locker = connected(&servers);
    let error = locker.lock("r:fencing-counter").try_acquire().unwrap_err();
    let invalid = quorlock::AcquireError::InvalidRequest(InvalidRequest::ResourceReserved);
    assert_eq!(error.to_string(), invalid.to_string());
}

#[test]
fn a_user_who_may_not_read_the_clock_is_told_so_and_leaves_nothing_behind() {
    let servers = Servers::start(1).unwrap();
    let user = ["ACL", "SETUSER", "default", "-time"];
    if let Answer::Error(error) = servers[0].command(&user).unwrap() {
        return println!("skipped: no users on this server: {error}");
    }
    let locker = connected(&servers);
    let error = locker.lock("r").fencing(Fencing::Confirmed).try_acquire().unwrap_err();
    assert!(error.to_string().contains("0 of 1"), "{error}");
    assert_eq!(values(&servers, "r"), [None]);
}

#[test]
fn a_held_lock_is_put_back_on_a_node_that_was_restarted() {
    let mut servers = Servers::start(3).unwrap();
    let builder = Builder::new().repair(true).restart_guard(RestartGuard::Off);
    let locker = connected_by(builder, &servers);
    let request = locker.lock("r").ttl(secs(60)).fencing(Fencing::Confirmed);
    let guard = request.try_acquire().unwrap();
    // A node that came to it late: one extension reads its answer, and after the next one it counts.
    let let_join = || {
        for _ in 0..2 {
            std::thread::sleep(ms(20));
            guard.extend(secs(60)).unwrap();
        }
    };
    let_join();
    for i in 0..3 {
        servers[i].restart(Data::Wipe).unwrap();
        eventually("the lock is back", || {
            guard.extend(secs(60)).unwrap();
            std::thread::sleep(ms(5));
            servers[i].get("r").unwrap().is_some()
        });
        let_join();
    }
    assert!(guard.is_valid(), "though every node has forgotten it once");
    guard.release().unwrap();
    locker.flush(secs(1));
    assert_eq!(values(&servers, "r"), vec![None; 3]);
}
