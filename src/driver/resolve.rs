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

/// One thread for each name under way, and none otherwise. A lookup cannot be ended: whoever asks for the same name
/// again, having given it up, is answered by the one that there is.
#[derive(Debug)]
pub(crate) struct Resolver<Q> {
    waker: Arc<Waker>,
    answers: (Sender<Resolved<Name>>, Receiver<Resolved<Name>>),
    under_way: Vec<(Name, Q)>,
}

type Name = (Box<str>, u16);

impl<Q> Resolver<Q> {
    /// `waker` is woken for each answer.
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { waker, answers: channel(), under_way: Vec::new() }
    }

    /// Looks a name up; the answer comes with the last `query` for it, by [`poll`](Self::poll).
    pub(crate) fn resolve(&mut self, query: Q, host: &str, port: u16) -> io::Result<()> {
        let name: Name = (host.into(), port);
        if let Some((_, earlier)) = self.under_way.iter_mut().find(|(of, _)| *of == name) {
            *earlier = query;
            return Ok(());
        }
        let (asked, waker, answer) = (name.clone(), self.waker.clone(), self.answers.0.clone());
        let lookup = move || {
            let addresses = (&*asked.0, asked.1).to_socket_addrs().map(Iterator::collect);
            // Neither fails but for a locker that is gone.
            let _ = answer.send((asked, addresses));
            let _ = waker.wake();
        };
        thread::Builder::new().name("quorlock-resolve".into()).spawn(lookup)?;
        self.under_way.push((name, query));
        Ok(())
    }

    pub(crate) fn poll(&mut self) -> Option<Resolved<Q>> {
        let (name, addresses) = self.answers.1.try_recv().ok()?;
        let place = self.under_way.iter().position(|(of, _)| *of == name)?;
        let (_, query) = self.under_way.swap_remove(place);
        Some((query, addresses))
    }
}
