//! What locks protect: sets of numbers, which are read as a whole and written as a whole, over TCP.
//!
//! A store that looks at fencing tokens refuses whoever comes with a lower one than it has seen, readers too: a reader
//! that was let in late would write what it has read long after.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

pub struct Store {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    sets: Vec<Mutex<Set>>,
    fenced: bool,
    stop: AtomicBool,
}

#[derive(Default)]
struct Set {
    elements: Vec<u64>,
    highest: u64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub writes: u64,
    pub stale_reads: u64,
    pub stale_writes: u64,
}

/// One user's connection.
pub struct Visitor {
    stream: BufReader<TcpStream>,
}

impl Store {
    pub fn start(sets: usize, fenced: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sets = (0..sets).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { sets, fenced, stop: AtomicBool::new(false) });
        let shop = shared.clone();
        let acceptor = Some(std::thread::spawn(move || shop.accept(&listener)));
        Self { address, shared, acceptor }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn elements(&self, set: usize) -> HashSet<u64> {
        self.shared.set(set).elements.iter().copied().collect()
    }

    /// Of all sets together.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for set in 0..self.shared.sets.len() {
            let Counts { writes, stale_reads, stale_writes } = self.shared.set(set).counts;
            sum.writes += writes;
            sum.stale_reads += stale_reads;
            sum.stale_writes += stale_writes;
        }
        sum
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    /// Those who serve end with their visitors.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for visitor in listener.incoming() {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let shared = self.clone();
            std::thread::spawn(move || shared.serve(visitor.unwrap()));
        }
    }

    fn serve(&self, stream: TcpStream) {
        let (mut answers, mut line) = (stream.try_clone().unwrap(), String::new());
        let mut requests = BufReader::new(stream);
        while requests.read_line(&mut line).is_ok_and(|_| line.ends_with('\n')) {
            let answer = self.answer(&line);
            if answers.write_all(answer.as_bytes()).is_err() {
                return;
            }
            line.clear();
        }
    }

    /// `read SET TOKEN` or `write SET TOKEN ELEMENT…`.
    fn answer(&self, line: &str) -> String {
        let (what, rest) = line.trim_end().split_once(' ').expect(line);
        let mut numbers = rest.split(' ').map(|number| number.parse::<u64>().expect(line));
        let mut number = || numbers.next().expect(line);
        let (mut set, token) = (self.set(number() as usize), number());
        if self.fenced && token < set.highest {
            match what {
                "read" => set.counts.stale_reads += 1,
                _ => set.counts.stale_writes += 1,
            }
            return "stale\n".into();
        }
        set.highest = token;
        if what == "write" {
            set.elements = numbers.collect();
            set.counts.writes += 1;
            return "ok\n".into();
        }
        let elements = set.elements.iter().map(|element| format!(" {element}"));
        format!("ok{}\n", elements.collect::<String>())
    }

    fn set(&self, set: usize) -> MutexGuard<'_, Set> {
        self.sets[set].lock().unwrap()
    }
}

impl Visitor {
    pub fn new(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// `None` if the token is stale.
    pub fn read(&mut self, set: usize, token: u64) -> Option<Vec<u64>> {
        let answer = self.ask(&format!("read {set} {token}\n"));
        let elements = answer.strip_prefix("ok")?;
        Some(elements.split_ascii_whitespace().map(|element| element.parse().unwrap()).collect())
    }

    /// Whether it was written: not if the token is stale.
    pub fn write(&mut self, set: usize, token: u64, elements: &[u64]) -> bool {
        let elements: String = elements.iter().map(|element| format!(" {element}")).collect();
        self.ask(&format!("write {set} {token}{elements}\n")) == "ok\n"
    }

    fn ask(&mut self, request: &str) -> String {
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        self.stream.read_line(&mut answer).unwrap();
        assert!(answer.ends_with('\n'), "the store is gone");
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_fencing_the_last_writer_is_right() {
        let store = Store::start(1, false);
        let mut visitor = Visitor::new(&store.address());
        assert_eq!(visitor.read(0, 9), Some(vec![]));
        assert!(visitor.write(0, 9, &[1, 2]));
        assert!(visitor.write(0, 8, &[3]));
        assert_eq!(visitor.read(0, 1), Some(vec![3]));
    }

    #[test]
    fn with_fencing_nobody_comes_after_a_higher_token() {
        let store = Store::start(2, true);
        let mut visitor = Visitor::new(&store.address());
        assert_eq!(visitor.read(0, 7), Some(vec![]));
        assert!(visitor.write(0, 7, &[1]) && visitor.write(0, 7, &[1, 2]));
        assert_eq!(visitor.read(0, 8), Some(vec![1, 2]), "to read is enough");
        assert!(!visitor.write(0, 7, &[]));
        assert_eq!(visitor.read(0, 7), None);
        assert!(visitor.write(1, 7, &[3]), "each set has its own");
        assert_eq!(store.elements(0), HashSet::from([1, 2]));
        let Counts { writes, stale_reads, stale_writes } = store.counts();
        assert_eq!((writes, stale_reads, stale_writes), (3, 1, 1));
    }
}
