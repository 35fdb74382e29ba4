//! Ten thousand acquires through proxies that delay, stall and cut at random, with timeouts hitting many of
//! them. Three things must hold whatever happens: a lock has one holder; a node's grant means that the node
//! has that very token; and no key is left where the connection survived.
#![allow(clippy::unwrap_used)] // helpers are test code too

mod support;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use quorlock::{
    AcquireError, Builder, LocalGuard, LocalLocker, NodeError, Vote,
    testing::{Answer, Server, Servers},
};
use support::{
    eventually, ms,
    proxy::{Chaos, Flow, Plan, Proxy, Random},
};

const CLIENTS: u64 = 3;
const ACQUIRES: u64 = 10_200;
const RESOURCES: [&str; 3] = ["a", "b", "c"];
const TTL: Duration = Duration::from_secs(60);

/// What happened, summed over the clients: proof that something did.
#[derive(Default, Debug)]
struct Seen {
    granted: AtomicU64,
    contended: AtomicU64,
    no_quorum: AtomicU64,
    timed_out: AtomicU64,
    abandoned: AtomicU64,
    extended: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn nothing_is_mis_credited_and_nothing_is_left() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    });
    println!("SEED={seed}");
    let servers = Servers::start(5).unwrap();
    let proxies: Vec<_> = servers.iter().map(|server| rough_proxy(server, seed)).collect();
    let (seen, held) = (Seen::default(), [const { AtomicBool::new(false) }; RESOURCES.len()]);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (servers, proxies, seen, held) = (&servers, &proxies, &seen, &held);
            scope.spawn(move || {
                let locker = connect(proxies);
                let mut random = Random(seed ^ client);
                for _ in 0..ACQUIRES / CLIENTS {
                    round(&locker, servers, &mut random, seen, held);
                }
                let (abandoned, protocol_errors) = locker.reply_counts();
                assert_eq!(protocol_errors, 0);
                seen.abandoned.fetch_add(abandoned, Ordering::SeqCst);
                proxies.iter().for_each(|proxy| proxy.set_live(Plan::default()));
                eventually("every release is answered", || locker.flush(ms(100)) == 0);
            });
        }
    });
    let ended: usize = proxies.iter().map(Proxy::ended).sum();
    println!("{seen:?}, {ended} connections ended");
    let left =
        servers.iter().zip(&proxies).map(|(server, proxy)| left(server, proxy)).sum::<usize>();
    println!("{left} keys left of connections that ended");
    let at_least = |counter: &AtomicU64, bound| assert!(counter.load(Ordering::SeqCst) >= bound);
    at_least(&seen.granted, 1000);
    at_least(&seen.no_quorum, 100);
    at_least(&seen.timed_out, 500);
    at_least(&seen.abandoned, 200);
    assert!(ended > 50);
}

fn rough_proxy(server: &Server, seed: u64) -> Proxy {
    let proxy = Proxy::start(server.tcp_url()).unwrap();
    let mut random = Random(seed ^ u64::from(server.port()));
    proxy.script(move |_| {
        let mut flow = || {
            let seed = random.below(u64::MAX);
            let chaos = Chaos { seed, delay_max: ms(2), stall: (15, ms(40)), cut: 2 };
            Flow { chaos: Some(chaos), ..Flow::default() }
        };
        Plan { up: flow(), down: flow(), ..Plan::default() }
    });
    proxy
}

fn connect(proxies: &[Proxy]) -> LocalLocker {
    let builder = || Builder::new().nodes(proxies.iter().map(Proxy::url)).node_timeout(ms(6));
    (0..20).find_map(|_| builder().connect_local().ok()).expect("a quorum, sooner or later")
}

fn round(
    locker: &LocalLocker,
    servers: &Servers,
    random: &mut Random,
    seen: &Seen,
    held: &[AtomicBool; 3],
) {
    let which = usize::try_from(random.below(3)).unwrap();
    let resource = RESOURCES[which];
    match locker.lock(resource).ttl(TTL).try_acquire() {
        Ok(guard) => {
            count(&seen.granted);
            assert!(!held[which].swap(true, Ordering::SeqCst), "two holders of {resource}");
            check(&guard, servers, resource);
            if random.below(4) == 0 && guard.extend(TTL).is_ok() {
                count(&seen.extended);
                check(&guard, servers, resource);
            }
            held[which].store(false, Ordering::SeqCst);
            if random.below(2) == 0 {
                drop(guard);
            } else {
                let _ = guard.release();
            }
        }
        Err(AcquireError::Contended(_)) => count(&seen.contended),
        Err(AcquireError::NoQuorum(attempt)) => {
            count(&seen.no_quorum);
            let timed_out = |vote: &Vote| matches!(vote, Vote::Unknown(NodeError::Timeout));
            if attempt.votes().any(|(_, vote)| timed_out(vote)) {
                count(&seen.timed_out);
            }
        }
        Err(error) => panic!("{error}"),
    }
}

/// Every node that is said to have granted the lock has its token, asked past the proxies.
fn check(guard: &LocalGuard, servers: &Servers, resource: &str) {
    for (server, (_, vote)) in servers.iter().zip(guard.attempt().votes()) {
        if matches!(vote, Vote::Granted) {
            let value = server.get(resource).unwrap();
            assert_eq!(value.as_deref(), Some(guard.token().as_str()), "{}", guard.attempt());
        }
    }
}

/// Keys that are still there must be of connections that broke, and must be going to expire.
fn left(server: &Server, proxy: &Proxy) -> usize {
    let tokens = RESOURCES.iter().filter_map(|resource| {
        let token = server.get(resource).unwrap()?;
        let ttl = server.command(&["PTTL", resource]).unwrap();
        assert!(matches!(ttl, Answer::Integer(1..=60_000)), "{ttl:?}");
        Some(token)
    });
    tokens
        .inspect(|token| assert!(!proxy.has_sent_on_a_survivor(token.as_bytes()), "{token}"))
        .count()
}
