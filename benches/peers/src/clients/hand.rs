//! What many write by hand: the redis crate, one multiplexed connection to each node, all asked at once and all
//! waited for.

use std::time::{Duration, Instant};

use futures::future::join_all;
use redis::{Script, aio::MultiplexedConnection};
use tokio::runtime::Runtime;

use super::{Client, Release, TTL, many};
use crate::Result;

pub struct Hand {
    nodes: Nodes,
    runtime: Runtime,
}

#[derive(Clone)]
struct Nodes(Vec<MultiplexedConnection>);

const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

impl Hand {
    pub fn connect(urls: &[String]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut nodes = Vec::new();
        for url in urls {
            let client = redis::Client::open(url.as_str())?;
            nodes.push(runtime.block_on(client.get_multiplexed_async_connection())?);
        }
        Ok(Self { nodes: Nodes(nodes), runtime })
    }
}

impl Nodes {
    /// The token, if a majority has granted it.
    async fn acquire(&self, resource: &str) -> Option<String> {
        let token = random_token();
        let set = self.0.iter().cloned().map(|mut node| {
            let mut command = redis::cmd("SET");
            command.arg(resource).arg(&token).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
            async move { command.query_async::<Option<String>>(&mut node).await }
        });
        let granted = join_all(set).await.iter().filter(|set| matches!(set, Ok(Some(_)))).count();
        if granted > self.0.len() / 2 {
            return Some(token);
        }
        self.release(resource, &token).await;
        None
    }

    async fn release(&self, resource: &str, token: &str) -> usize {
        let script = Script::new(RELEASE);
        let mut invocation = script.key(resource);
        invocation.arg(token);
        let delete = self.0.iter().cloned().map(|mut node| {
            let invocation = &invocation;
            async move { invocation.invoke_async::<i64>(&mut node).await }
        });
        join_all(delete).await.iter().filter(|deleted| matches!(deleted, Ok(1))).count()
    }
}

impl Client for Hand {
    fn try_acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        let token = self.runtime.block_on(self.nodes.acquire(resource)).ok_or("not acquired")?;
        let resource = resource.to_owned();
        Ok(Box::new(move || {
            let released = self.runtime.block_on(self.nodes.release(&resource, &token));
            if released > self.nodes.0.len() / 2 { Ok(()) } else { Err("not released".into()) }
        }))
    }

    fn acquire<'a>(&'a self, resource: &str) -> Result<Release<'a>> {
        loop {
            match self.try_acquire(resource) {
                Ok(release) => return Ok(release),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn many(&self, callers: usize, time: Duration) -> Option<Result<u64>> {
        let end = Instant::now() + time;
        let task = |caller: usize| {
            let nodes = self.nodes.clone();
            self.runtime.spawn(async move {
                let (resource, mut pairs) = (many(caller), 0);
                while Instant::now() < end {
                    let token = nodes.acquire(&resource).await.ok_or("not acquired")?;
                    nodes.release(&resource, &token).await;
                    pairs += 1;
                }
                Ok::<u64, &str>(pairs)
            })
        };
        let tasks: Vec<_> = (0..callers).map(task).collect();
        let sum = |sum: u64, task| -> Result<u64> { Ok(sum + self.runtime.block_on(task)??) };
        Some(tasks.into_iter().try_fold(0, sum))
    }
}

/// As unguessable as a counter and a clock make it, which is enough here, and cheaper than what others do.
fn random_token() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:08x}{:032x}", std::process::id(), u128::from(count))
}
