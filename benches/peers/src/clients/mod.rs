//! The libraries that are written in Rust, behind one face.

mod hand;
mod local;
mod redlock_rs;
mod rslock_rs;
mod shared;

use std::time::Duration;

use crate::Result;

/// As long as no run takes.
pub const TTL: Duration = Duration::from_secs(30);

/// Gives the lock back.
pub type Release<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

pub trait Client {
    /// One attempt.
    fn try_acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>>;

    /// Waits as the library waits.
    fn acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>>;

    /// Pairs that so many callers at a time make in a while, each with a resource of its own. None if the library
    /// is for one caller.
    fn many(&self, callers: usize, time: Duration) -> Option<Result<u64>>;
}

/// What one of many callers locks. No other process's: what one leaves behind is not to stand in another's way.
fn many(caller: usize) -> String {
    format!("many-{}-{caller}", std::process::id())
}

pub fn connect(kind: &str, urls: &[String]) -> Result<Box<dyn Client>> {
    Ok(match kind {
        "quorlock-local" => Box::new(local::Local::connect(urls)?),
        "quorlock" => Box::new(shared::Shared::connect(urls)?),
        "rslock" => Box::new(rslock_rs::Rslock::connect(urls)?),
        "redlock-rs" => Box::new(redlock_rs::Redlock::connect(urls)),
        "hand" => Box::new(hand::Hand::connect(urls)?),
        _ => return Err(format!("what is {kind}?").into()),
    })
}
