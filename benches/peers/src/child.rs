//! The side of the process that does the work: a line asks, a line or more answer.
//!
//! | asked | answered |
//! | --- | --- |
//! | `pair RESOURCE` | `ok ACQUIRE_NS RELEASE_NS`, or `failed REASON` |
//! | `many CALLERS MILLIS` | `ok PAIRS WALL_NS CPU_NS`, or `failed REASON` |
//! | `turns RESOURCE MILLIS` | a line `FROM_NS TO_NS` for each hold, by the system's monotonic clock; then `ok` |

use std::{
    io::{BufRead, Write},
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

use crate::{Result, clients::Client};

/// How long each holder keeps a contended lock.
pub const HOLD: Duration = Duration::from_millis(5);

pub fn serve(client: Box<dyn Client>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        let answer = match words[..] {
            ["pair", resource] => pair(&*client, resource),
            ["many", callers, millis] => many(&*client, callers.parse()?, ms(millis)?),
            ["turns", resource, millis] => turns(&*client, resource, ms(millis)?),
            _ => return Err(format!("what is {line}?").into()),
        };
        match answer {
            Ok(answer) => writeln!(out, "{answer}")?,
            Err(error) => writeln!(out, "failed {}", error.to_string().replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}

fn ms(millis: &str) -> Result<Duration> {
    Ok(Duration::from_millis(millis.parse()?))
}

fn pair(client: &dyn Client, resource: &str) -> Result<String> {
    let started = Instant::now();
    let release = client.try_acquire(resource)?;
    let acquired = Instant::now();
    release()?;
    let released = acquired.elapsed();
    Ok(format!("ok {} {}", (acquired - started).as_nanos(), released.as_nanos()))
}

fn many(client: &dyn Client, callers: usize, time: Duration) -> Result<String> {
    let (started, cpu) = (Instant::now(), nanos(ClockId::ProcessCPUTime));
    let pairs = client.many(callers, time).ok_or("for one caller")??;
    let cpu = nanos(ClockId::ProcessCPUTime) - cpu;
    Ok(format!("ok {pairs} {} {cpu}", started.elapsed().as_nanos()))
}

fn turns(client: &dyn Client, resource: &str, time: Duration) -> Result<String> {
    let (end, mut holds) = (Instant::now() + time, String::new());
    while Instant::now() < end {
        let release = client.acquire(resource)?;
        let from = nanos(ClockId::Monotonic);
        thread::sleep(HOLD);
        let to = nanos(ClockId::Monotonic);
        release()?;
        holds.push_str(&format!("{from} {to}\n"));
    }
    Ok(holds + "ok")
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
