//! Much of everything. Rows L6 to L9 of `docs/faults.md`; the requests that are refused are in `tests/local.rs`.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use quorlock::{
    AcquireError, Builder, Locker,
    testing::{Answer, Server, Servers},
};

use crate::support::{
    eventually, ms,
    proxy::{Plan, Proxy},
    secs, values,
};

fn keys(server: &Server) -> i64 {
    match server.command(&["DBSIZE"]).unwrap() {
        Answer::Integer(keys) => keys,
        answer => panic!("{answer:?}"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn l6_ten_thousand_locks_are_held_over_one_connection_to_each_node() {
    const LOCKS: usize = 10_000;
    let servers = Servers::start(3).unwrap();
    let builder = Builder::new().nodes(servers.tcp_urls()).ttl(secs(600)).node_timeout(secs(60));
    let locker = builder.connect().unwrap();
    eventually("all are connected", || locker.stats().unwrap().nodes.iter().all(|node| node.ready));
    let resources: Vec<_> = (0..LOCKS).map(|i| format!("r{i}")).collect();
    let guards: Vec<_> = runtime().block_on(async {
        let acquires: Vec<_> =
            resources.iter().map(|resource| locker.lock(resource).try_acquire_async()).collect();
        let mut guards = Vec::new();
        for acquire in acquires {
            guards.push(acquire.await.unwrap());
        }
        guards
    });
    assert!(guards.iter().all(|guard| guard.is_valid()));
    let all = i64::try_from(LOCKS).unwrap();
    eventually("every node has them", || servers.iter().all(|server| keys(server) == all));
    for server in servers.iter() {
        let Answer::Text(list) = server.command(&["CLIENT", "LIST"]).unwrap() else { panic!() };
        assert_eq!(list.matches(" name=quorlock").count(), 1);
    }
    // Each is its own: one by one they are refused to others, and let go.
    assert!(locker.lock("r77").try_acquire().unwrap_err().is_contended());
    let half = guards.len() / 2;
    let mut guards = guards;
    drop(guards.split_off(half));
    eventually("half of them are gone", || servers.iter().all(|server| keys(server) == all / 2));
    assert!(guards.iter().all(|guard| guard.is_valid()));
    drop(guards);
    locker.close(secs(60)).unwrap();
    assert!(servers.iter().all(|server| keys(server) == 0));
}

/// Of eight processes, as it were: lockers of their own.
#[test]
fn l7_a_thousand_waiters_hold_it_one_after_another_and_all_do() {
    const LOCKERS: usize = 8;
    const WAITERS: usize = 125;
    let servers = Servers::start(3).unwrap();
    let lockers: Vec<_> = (0..LOCKERS)
        .map(|_| {
            let builder = Builder::new().nodes(servers.tcp_urls()).node_timeout(secs(1));
            builder.connect().unwrap()
        })
        .collect();
    let (inside, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    runtime().block_on(async {
        let waiters = lockers.iter().flat_map(|locker| {
            let (inside, served) = (inside.clone(), served.clone());
            (0..WAITERS).map(move |_| {
                let acquire = locker.lock("r").timeout(secs(240)).acquire_async();
                let (inside, served) = (inside.clone(), served.clone());
                tokio::spawn(async move {
                    let guard = acquire.await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two of them hold it");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    served.fetch_add(1, Ordering::SeqCst);
                    guard.release_async().await.unwrap();
                })
            })
        });
        for waiter in waiters.collect::<Vec<_>>() {
            waiter.await.unwrap();
        }
    });
    assert_eq!(served.load(Ordering::SeqCst), LOCKERS * WAITERS);
    let attempts: u64 = lockers.iter().map(|locker| locker.stats().unwrap().attempts).sum();
    println!("{attempts} attempts for {} locks", LOCKERS * WAITERS);
    // Each lock that changes hands between lockers is tried for by all of them, at the most, and some time after.
    assert!(attempts < u64::try_from(LOCKERS * WAITERS * 4).unwrap(), "{attempts} attempts");
    lockers.into_iter().for_each(|locker| locker.close(secs(10)).unwrap());
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

/// Each of three clients is near to one node and far from the others, and all begin together.
#[test]
fn l8_clients_that_split_the_votes_leave_nothing_and_are_through_soon() {
    let servers = Servers::start(3).unwrap();
    let proxies: Vec<Vec<_>> = (0..3)
        .map(|_| servers.iter().map(|server| Proxy::start(server.tcp_url()).unwrap()).collect())
        .collect();
    for (client, proxies) in proxies.iter().enumerate() {
        for (node, proxy) in proxies.iter().enumerate() {
            proxy.set(if node == client { Plan::default() } else { Plan::delay(ms(100)) });
        }
    }
    let connect = |proxies: &Vec<Proxy>| {
        let builder = Builder::new().nodes(proxies.iter().map(Proxy::url));
        builder.connect_timeout(secs(20)).node_timeout(secs(10)).connect().unwrap()
    };
    let lockers: Vec<Locker> = proxies.iter().map(connect).collect();
    eventually("all are connected", || {
        lockers.iter().all(|of| of.stats().unwrap().nodes.iter().all(|node| node.ready))
    });
    let barrier = Barrier::new(lockers.len());
    let together = |act: &(dyn Fn(&Locker) -> Result<u32, AcquireError> + Sync)| {
        thread::scope(|scope| {
            let clients = lockers.iter().map(|locker| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    act(locker)
                })
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
        })
    };
    // One vote for each, for as long as it takes that they do begin together.
    eventually("the votes are split", || {
        let tried = together(&|locker| locker.lock("r").try_acquire().map(|_| 1));
        eventually("nothing is left", || values(&servers, "r") == [None, None, None]);
        tried.iter().all(|result| match result {
            Err(AcquireError::Contended(attempt)) => {
                (attempt.granted(), attempt.refused()) == (1, 2)
            }
            _ => false,
        })
    });
    let attempts = together(&|locker| {
        let guard = locker.lock("r").timeout(secs(120)).acquire()?;
        let number = guard.attempt().number();
        guard.release().map(|()| number).map_err(|error| panic!("{error}"))
    });
    let attempts: Vec<_> = attempts.into_iter().map(Result::unwrap).collect();
    println!("through after {attempts:?} attempts");
    assert!(attempts.iter().sum::<u32>() <= 100, "{attempts:?}");
    lockers.into_iter().for_each(|locker| locker.close(secs(10)).unwrap());
    assert_eq!(values(&servers, "r"), [None, None, None]);
}

#[test]
fn l9_locks_that_are_never_released_end_with_their_ttl() {
    const LOCKS: usize = 1000;
    let servers = Servers::start(3).unwrap();
    let builder = Builder::new().nodes(servers.tcp_urls()).node_timeout(secs(1));
    let (ours, theirs) = (builder.clone().connect().unwrap(), builder.connect().unwrap());
    let names: Vec<_> = (0..LOCKS).map(|i| format!("r{i}")).collect();
    for name in &names {
        std::mem::forget(theirs.lock(name).ttl(secs(2)).try_acquire().unwrap());
    }
    let stats = theirs.stats().unwrap();
    assert_eq!((stats.acquired, stats.released), (1000, 0));
    eventually("they are over", || servers.iter().all(|server| keys(server) == 0));
    assert_eq!(theirs.stats().unwrap().lost, 1000);
    for name in names.iter().step_by(100) {
        ours.lock(name).try_acquire().unwrap().release().unwrap();
    }
    ours.close(secs(5)).unwrap();
    theirs.close(secs(5)).unwrap();
    assert!(servers.iter().all(|server| keys(server) == 0));
}
