//! Listening sockets while they are served: opened or adopted, spread over the threads, closed together.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use socket2::Socket;

#[cfg(target_os = "linux")]
use super::open::protocol_of;
use super::open::{Typed, address_of, open};
use crate::config::{Class, Protocol, Sockets};
use crate::shared::Shared;
use crate::system;
use crate::table::Frontend;
use crate::tcp::serve::Entry;
use crate::worker::{Listening, Siblings, Worker};

/// What to listen on.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub protocol: Protocol,
    pub address: SocketAddr,
    pub freebind: bool,
    pub sockets: Sockets,
    pub class: Class,
}

/// All sockets of one address.
#[derive(Debug)]
pub struct Opened {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "sockets are not handed over"))]
    pub protocol: Protocol,
    pub address: SocketAddr,
    pub listening: Vec<Listening>,
}

/// Sockets of a predecessor that no frontend has taken yet.
#[derive(Debug, Default)]
pub struct Adopted(HashMap<(Protocol, SocketAddr), Vec<Socket>>);

impl Adopted {
    #[cfg(target_os = "linux")]
    pub fn add(&mut self, socket: Socket) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let key = (protocol_of(&socket)?, address_of(&socket)?);
        self.0.entry(key).or_default().push(socket);
        Ok(())
    }

    #[cfg(target_os = "linux")]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, protocol: Protocol, address: SocketAddr) -> Vec<Socket> {
        self.0.remove(&(protocol, address)).unwrap_or_default()
    }
}

/// The threads that serve sockets.
#[derive(Debug)]
pub struct Threads {
    pub workers: Vec<Worker>,
    pub shared: Arc<Shared>,
    /// The thread that gets the next single socket.
    turn: usize,
}

impl Threads {
    pub fn new(workers: Vec<Worker>, shared: Arc<Shared>) -> Threads {
        Threads { workers, shared, turn: 0 }
    }

    pub fn listen(
        &mut self,
        wanted: &Wanted,
        entry: &Entry,
        frontend: Option<&Arc<Frontend>>,
        adopted: &mut Adopted,
    ) -> io::Result<Opened> {
        let sockets = self.sockets(wanted, adopted)?;
        let address = match sockets.first() {
            Some(socket) => address_of(socket)?,
            None => wanted.address,
        };
        let is_alone = sockets.len() == 1;
        let mut listening = Vec::with_capacity(sockets.len());
        for socket in sockets {
            let place = self.turn % self.workers.len();
            self.turn = self.turn.wrapping_add(1);
            let siblings = if is_alone { self.siblings(place) } else { Siblings::default() };
            let (worker, shared) = (&self.workers[place], self.shared.clone());
            listening.push(match (Typed::of(wanted.protocol, socket), frontend) {
                (Typed::Tcp(socket), _) => worker.listen_tcp(socket, entry.clone(), shared, siblings)?,
                (Typed::Udp(socket), Some(frontend)) => {
                    worker.listen_udp(socket, frontend.clone(), wanted.class, shared)?
                }
                (Typed::Udp(_), None) => return Err(io::ErrorKind::Unsupported.into()),
            });
        }
        Ok(Opened { protocol: wanted.protocol, address, listening })
    }

    /// As many sockets as wanted; adopted sockets are used first.
    fn sockets(&self, wanted: &Wanted, adopted: &mut Adopted) -> io::Result<Vec<Socket>> {
        let count = match wanted.sockets {
            Sockets::PerThread if system::SHARES_ADDRESSES => self.workers.len(),
            _ => 1,
        };
        let mut sockets = adopted.take(wanted.protocol, wanted.address);
        let mut address = wanted.address;
        while sockets.len() < count {
            let backlog = self.shared.settings.backlog;
            let socket = open(wanted.protocol, address, wanted.freebind, backlog)?;
            // If the kernel chooses the port, it does so for the first socket; the others use the same port.
            address = address_of(&socket)?;
            sockets.push(socket);
        }
        Ok(sockets)
    }

    fn siblings(&self, own: usize) -> Siblings {
        if self.workers.len() == 1 {
            return Siblings::default();
        }
        let workers = self.workers.iter().enumerate();
        let all = workers.map(|(place, it)| (place != own).then(|| it.sibling()));
        Siblings { all: all.collect(), turn: own }
    }
}

/// Closes sockets, and returns when they are closed.
pub fn close(opened: Vec<Opened>) {
    let listening: Vec<Listening> = opened.into_iter().flat_map(|it| it.listening).collect();
    listening.iter().for_each(Listening::abort);
    listening.into_iter().for_each(Listening::wait);
}
