//! Name resolution off the loop: `getaddrinfo` blocks for as long as it likes.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use mio::Waker;

/// What was asked for, and what came of it.
pub(crate) type Resolved<Q> = (Q, io::Result<Vec<SocketAddr>>);

/// One thread for each name under way, and none otherwise.
#[derive(Debug)]
pub(crate) struct Resolver<Q> {
    waker: Arc<Waker>,
    answers: (Sender<Resolved<Q>>, Receiver<Resolved<Q>>),
}

impl<Q: Send + 'static> Resolver<Q> {
    /// `waker` is woken for each answer.
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { waker, answers: channel() }
    }

    /// Looks a name up; the answer comes with `query`, by [`poll`](Self::poll).
    pub(crate) fn resolve(&self, query: Q, host: &str, port: u16) -> io::Result<()> {
        let (host, waker, answer) = (host.to_owned(), self.waker.clone(), self.answers.0.clone());
        let lookup = move || {
            let addresses = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            // Neither fails but for a locker that is gone.
            let _ = answer.send((query, addresses));
            let _ = waker.wake();
        };
        thread::Builder::new().name("quorlock-resolve".into()).spawn(lookup)?;
        Ok(())
    }

    pub(crate) fn poll(&self) -> Option<Resolved<Q>> {
        self.answers.1.try_recv().ok()
    }
}
