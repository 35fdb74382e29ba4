//! In a forked child a locker is closed: it sends nothing, its drops do nothing, and what it connects to anew
//! draws other tokens. Exits non-zero, saying what was wrong, if not.

use std::{error::Error, process::exit, time::Duration};

use quorlock::{AcquireError, LocalLocker, Locker, testing::Servers};

fn main() -> Result<(), Box<dyn Error>> {
    let servers = Servers::start(3)?;
    let urls = servers.tcp_urls();
    let (local, shared) = (LocalLocker::connect(&urls)?, Locker::connect(&urls)?);
    let guards = (local.lock("local").try_acquire()?, shared.lock("shared").try_acquire()?);
    let token = guards.0.token().to_string();

    // SAFETY: the child touches nothing that another thread of the parent may have locked, and ends by `exit`
    // without running destructors of the servers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let closed = |result: Result<(), AcquireError>| matches!(result, Err(AcquireError::Closed));
        check(closed(local.lock("x").try_acquire().map(drop)), "LocalLocker acquires");
        check(closed(shared.lock("x").try_acquire().map(drop)), "Locker acquires");
        check(guards.0.extend(Duration::from_secs(1)).is_err(), "LocalGuard extends");
        check(guards.1.extend(Duration::from_secs(1)).is_err(), "LockGuard extends");
        drop(guards);
        let anew = LocalLocker::connect(&urls).expect("the child connects anew");
        let guard = anew.lock("anew").try_acquire().expect("the child acquires anew");
        check(guard.token().as_str() != token, "tokens differ");
        std::mem::forget(servers);
        // SAFETY: ends the child at once; the parent's servers are not its to stop.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child, and writes to our own integer.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    check(status == 0, "the child's own checks");
    for server in servers.iter() {
        check(server.get("local")?.as_deref() == Some(guards.0.token().as_str()), "local is held");
        check(
            server.get("shared")?.as_deref() == Some(guards.1.token().as_str()),
            "shared is held",
        );
    }
    // The parent's connections are as they were.
    guards.0.extend(Duration::from_secs(5))?;
    guards.1.extend(Duration::from_secs(5))?;
    guards.0.release()?;
    guards.1.release()?;
    println!("a fork leaves the parent's locks alone");
    Ok(())
}

fn check(holds: bool, what: &str) {
    if !holds {
        eprintln!("after a fork: not so: {what}");
        exit(1);
    }
}
