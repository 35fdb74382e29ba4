//! The client's own process: stopped, ended, out of randomness, with its clock set. Rows P1 to P14 of
//! `docs/faults.md`; what the command does about them is in `tests/cli`.
//!
//! Where a process of its own is needed, a test starts itself again in one and tells it by the environment what to
//! do there. The two talk in lines.

use std::{
    future::Future,
    io::{BufRead, BufReader, Write},
    pin::pin,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant, SystemTime},
};

use quorlock::{
    Builder, ConnectError, ExtendError, KeepAlive, LocalLocker, LockGuard, LostReason,
    ReleaseError,
    internal::clock,
    testing::{Answer, Server, Servers},
};
use rustix::{
    process::{Pid, Signal, kill_process},
    time::{ClockId, clock_gettime},
};

use crate::support::{eventually, ms, patient, patient_shared, preload::Preload, secs, values};

/// What this process is to do, if it is one that a test has started.
const ROLE: &str = "QUORLOCK_TEST_ROLE";

/// Where it finds its servers.
const NODES: &str = "QUORLOCK_TEST_NODES";

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

fn nodes() -> Vec<String> {
    std::env::var(NODES).unwrap().split(',').map(String::from).collect()
}

/// The test of that name in a process of its own.
fn again(test: &str, role: &str, servers: &Servers) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", &format!("process::{test}")]);
    command.env(ROLE, role).env(NODES, servers.tcp_urls().join(","));
    command
}

/// In the started process: one line for the test.
fn tell(line: &str) {
    println!("@{line}");
}

/// In the started process: waits until the test says something.
fn listen() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A process that a test has started. It does not outlive it.
struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// What it tells next. (Its test harness talks too.)
    #[track_caller]
    fn hears(&mut self) -> String {
        let told = self.lines.by_ref().map(Result::unwrap);
        let mut told = told.filter_map(|line| Some(line.split_once('@')?.1.to_owned()));
        told.next().expect("it tells something")
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pttl(server: &Server, key: &str) -> i64 {
    match server.command(&["PTTL", key]).unwrap() {
        Answer::Integer(millis) => millis,
        answer => panic!("{answer:?}"),
    }
}

/// The keys outlive the stop, as the servers' clock is set back: an extension that came late would be granted.
#[test]
fn p1_a_process_that_was_stopped_for_too_long_knows_it_first_thing() {
    if role().is_some() {
        let locker = patient_shared(nodes());
        let request = |resource| locker.lock(resource).ttl(secs(2));
        let plain = request("plain").try_acquire().unwrap();
        // Due while the process is stopped.
        let kept = request("kept").keep_alive(KeepAlive::default().every(ms(1900)));
        let kept = kept.try_acquire().unwrap();
        let local = Builder::new().nodes(nodes()).node_timeout(secs(1)).connect_local().unwrap();
        let alone = local.lock("alone").ttl(secs(2)).try_acquire().unwrap();
        tell("held");
        listen();
        tell(&format!("{} {} {}", plain.is_valid(), kept.is_valid(), alone.is_valid()));
        let errors = [plain.extend(secs(2)), kept.extend(secs(2)), alone.extend(secs(2))];
        tell(&format!("{}", errors.iter().all(|e| matches!(e, Err(ExtendError::Expired)))));
        tell(&format!("{:?}", kept.lost_signal().reason()));
        tell(&format!("{}", locker.stats().unwrap().extended));
        listen();
        return;
    }
    let Some(preload) = Preload::new() else { return };
    let servers = Servers::start_each(3, preload.server()).unwrap();
    let mut other = Other::start(&mut again(
        "p1_a_process_that_was_stopped_for_too_long_knows_it_first_thing",
        "hold",
        &servers,
    ));
    assert_eq!(other.hears(), "held");
    other.signal(Signal::STOP);
    preload.set_clock(-3600);
    thread::sleep(ms(2500));
    let there = |key: &str| servers.iter().filter(|server| pttl(server, key) > 0).count();
    assert!(["plain", "kept", "alone"].into_iter().all(|key| there(key) >= 2), "keys are left");
    other.go_on();
    other.signal(Signal::CONT);
    assert_eq!(other.hears(), "false false false");
    assert_eq!(other.hears(), "true", "each is over");
    assert_eq!(other.hears(), "Some(Expired)");
    assert_eq!(other.hears(), "0", "nothing was extended");
    for server in servers.iter() {
        // No extension has come: those would have set the time anew, by the clock that was set back.
        assert!(pttl(server, "kept") > 3_500_000 || pttl(server, "kept") == -2);
    }
    other.go_on();
    assert!(other.end().success());
}

/// A machine that sleeps stops one clock and not the other. In a time namespace the two are apart.
#[test]
#[cfg(target_os = "linux")]
fn p3_the_clock_of_validity_is_the_one_that_counts_sleep() {
    const APART: u64 = 86_400;
    if role().is_some() {
        let at = |id| Duration::try_from(clock_gettime(id)).unwrap();
        let awake = at(ClockId::Monotonic);
        let ours = Duration::from_nanos(clock::now().as_nanos());
        let all = at(ClockId::Boottime);
        tell(&format!("{}", ours >= awake + secs(APART) && ours <= all));
        return;
    }
    let test = "process::p3_the_clock_of_validity_is_the_one_that_counts_sleep";
    let mut namespace = Command::new("unshare");
    namespace.args(["--time", "--boottime", &APART.to_string(), "--fork"]);
    let probe = Command::new("unshare").args(["--time", "--fork", "true"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("skipped: time namespaces are not to be had here");
        return;
    }
    namespace.arg(std::env::current_exe().unwrap());
    namespace.args(["--exact", "--nocapture", test]).env(ROLE, "look");
    assert_eq!(Other::start(&mut namespace).hears(), "true");
}

#[test]
fn p4_a_wall_clock_that_is_set_changes_nothing_for_the_client() {
    const JUMP: Duration = Duration::from_secs(7200);
    if role().is_some() {
        let began = SystemTime::now();
        let locker = patient_shared(nodes());
        let request = |resource| locker.lock(resource).ttl(secs(5));
        let plain = request("plain").try_acquire().unwrap();
        let kept = request("kept").keep_alive(KeepAlive::default().every(ms(50)));
        let kept = kept.try_acquire().unwrap();
        for _ in 0..2 {
            tell("held");
            listen();
            let jump = match SystemTime::now().duration_since(began) {
                Ok(ahead) if ahead > JUMP => "ahead",
                Err(behind) if behind.duration() > JUMP / 2 => "behind",
                _ => "as ever",
            };
            plain.extend(secs(5)).unwrap();
            let validity = plain.validity();
            let right = validity > secs(3) && validity < secs(5) && kept.is_valid();
            tell(&format!("{jump} {right}"));
        }
        locker.lock("more").timeout(secs(5)).acquire().unwrap().release().unwrap();
        plain.release().unwrap();
        kept.release().unwrap();
        return;
    }
    let Some(preload) = Preload::new() else { return };
    let servers = Servers::start(3).unwrap();
    let test = "p4_a_wall_clock_that_is_set_changes_nothing_for_the_client";
    let mut other = Other::start(preload.apply(&mut again(test, "hold", &servers)));
    for (sign, seen) in [(1, "ahead true"), (-1, "behind true")] {
        assert_eq!(other.hears(), "held");
        preload.set_clock(sign * i64::try_from(JUMP.as_secs()).unwrap());
        other.go_on();
        assert_eq!(other.hears(), seen);
    }
    assert!(other.end().success());
}

#[test]
fn p7_a_panic_releases_on_its_way_out() {
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = locker.lock("r").try_acquire().unwrap();
        std::panic::resume_unwind(Box::new("work failed"));
    }));
    assert!(result.is_err());
    eventually("the release arrives", || values(&servers, "r") == [None, None, None]);
}

/// Drops what it holds in whatever thread wakes it.
struct DropsWhenWoken(Mutex<Option<LockGuard>>);

impl Wake for DropsWhenWoken {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn p8_a_drop_in_an_event_loop_waits_for_nobody() {
    let servers = Servers::start(3).unwrap();
    let builder = Builder::new().nodes(servers.tcp_urls()).node_timeout(ms(500));
    let locker = builder.connect().unwrap();
    let on_all = |act: fn(&Server) -> std::io::Result<()>| {
        servers.iter().for_each(|server| act(server).unwrap());
    };
    // On a runtime's only thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let guard = locker.lock("r").try_acquire_async().await.unwrap();
        on_all(Server::pause);
        drop(guard);
        tokio::time::sleep(ms(10)).await;
        on_all(Server::resume);
    });
    eventually("the release arrives", || values(&servers, "r") == [None, None, None]);

    // On the locker's own thread: that is where the answer to another request wakes its waiter.
    let held = locker.lock("held").try_acquire().unwrap();
    let dropper = Arc::new(DropsWhenWoken(Mutex::new(Some(held))));
    on_all(Server::pause);
    let mut other = pin!(locker.lock("other").try_acquire_async());
    let waker = Waker::from(dropper.clone());
    assert!(other.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    eventually("it is dropped", || dropper.0.try_lock().is_ok_and(|held| held.is_none()));
    on_all(Server::resume);
    eventually("the release arrives", || values(&servers, "held") == [None, None, None]);
    locker.lock("r").timeout(secs(10)).acquire().unwrap().release().unwrap();
}

/// Nothing is released, and the next one has the lock when the ttl is over.
#[test]
fn p9_a_process_that_ends_without_a_word_leaves_its_lock_to_the_ttl() {
    if let Some(end) = role() {
        let locker = patient_shared(nodes());
        let kept = locker.lock(&end).ttl(secs(2)).keep_alive(KeepAlive::default().every(ms(100)));
        let _guard = kept.try_acquire().unwrap();
        thread::sleep(ms(300)); // Every node has it, and it was extended.
        tell("held");
        match &*end {
            "abort" => std::process::abort(),
            "exit" => std::process::exit(3),
            _ => listen(),
        }
        return;
    }
    let servers = Servers::start(3).unwrap();
    let locker = patient(&servers);
    let test = "p9_a_process_that_ends_without_a_word_leaves_its_lock_to_the_ttl";
    let others = ["abort", "exit", "kill"].map(|end| {
        let mut other = Other::start(&mut again(test, end, &servers));
        assert_eq!(other.hears(), "held");
        if end == "kill" {
            other.signal(Signal::KILL);
        }
        assert!(!other.end().success());
        assert!(locker.lock(end).try_acquire().unwrap_err().is_contended(), "{end}");
        (end, other)
    });
    for (end, _) in &others {
        let left = servers.iter().map(|server| pttl(server, end)).max().unwrap();
        assert!(left <= 2000, "{end}: {left} ms");
        let asked = Instant::now();
        locker.lock(end).timeout(secs(30)).acquire().unwrap().release().unwrap();
        let waited = asked.elapsed() + ms(5); // Servers count in milliseconds.
        let least = u64::try_from(left).unwrap_or(0) / 2;
        assert!(waited >= ms(least), "{end}: {waited:?} of {left} ms");
    }
}

#[test]
fn p13_without_randomness_there_is_no_locker() {
    if role().is_some() {
        let io = |error: Result<(), ConnectError>| match error {
            Err(ConnectError::Io(error)) => error.raw_os_error() == Some(5),
            _ => false,
        };
        let local = io(LocalLocker::connect(nodes()).map(drop));
        let shared = io(Builder::new().nodes(nodes()).connect().map(drop));
        tell(&format!("{local} {shared}"));
        return;
    }
    let Some(preload) = Preload::new() else { return };
    let servers = Servers::start(3).unwrap();
    let mut command = again("p13_without_randomness_there_is_no_locker", "connect", &servers);
    let mut other = Other::start(preload.apply(&mut command).env("PRELOAD_NO_SEED", "1"));
    assert_eq!(other.hears(), "true true");
}

/// That it is released twice, and used after that, does not compile.
#[test]
fn p14_threads_share_a_guard_and_its_late_release_says_so() {
    let servers = Servers::start(3).unwrap();
    let locker = patient_shared(servers.tcp_urls());
    let guard = locker.lock("r").ttl(secs(10)).try_acquire().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    assert!(guard.extend(secs(10)).unwrap() > secs(5));
                }
            });
        }
    });
    assert_eq!(locker.stats().unwrap().extended, 100);
    let signal = guard.lost_signal();
    guard.release().unwrap();
    assert_eq!(signal.reason(), Some(LostReason::Released));

    let guard = locker.lock("r").ttl(ms(100)).try_acquire().unwrap();
    let signal = guard.lost_signal();
    assert_eq!(signal.wait(), LostReason::Expired);
    eventually("the keys are over", || values(&servers, "r") == [None, None, None]);
    let error = guard.release().unwrap_err();
    assert!(matches!(error, ReleaseError::NotHeld(_)), "{error}");
    assert_eq!(signal.reason(), Some(LostReason::Expired), "what it was lost by stays");
}
