//! Which connection is closed when there are too many: the rule, as a value. No I/O and no clock; `http.rs` closes connections.
//!
//! A new connection is always accepted, because it may be the kubelet's probe; an old one is closed for it: the one that has
//! been idle for longest. Only whole requests count, not bytes, so a client that sends its head one byte at a time is idle.
//! The connection is taken from the peer with the most connections, so that a peer with many closes its own.
//!
//! A connection that has sent nothing yet costs little more than its descriptor. Many of these have a separate limit: so in
//! a flood of silent connections, a client that is slow to send its first byte is not closed at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

/// How many connections there may be at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections of all sockets of a service together.
    pub service: usize,
    pub socket: usize,
    /// Connections of one peer to one socket. The other places of the socket are for other peers.
    pub peer: usize,
    /// Connections without a first byte, of all sockets of a service together. They do not count for the limits above.
    pub silent: usize,
}

impl Limits {
    /// Lower limits, if fewer connections are possible: half of them for connections that have sent something.
    pub fn at_most(self, connections: usize) -> Limits {
        let service = self.service.min(connections.div_ceil(2)).max(1);
        let silent = self.silent.min(connections / 2).max(1);
        Limits { service, socket: self.socket.min(service), peer: self.peer.min(service), silent }
    }

    /// The limits of a room for silent connections. One peer may fill it: then its own are closed first.
    pub fn of_silent(self) -> Limits {
        let silent = self.silent;
        Limits { service: silent, socket: silent, peer: silent, silent }
    }
}

/// The connections of one service; `T` closes one.
#[derive(Debug)]
pub struct Room<T> {
    limits: Limits,
    connections: BTreeMap<Id, Connection<T>>,
    of_socket: HashMap<Socket, usize>,
    /// Keyed by what clients choose: the standard library's hash has a random key.
    of_peer: HashMap<(Socket, Peer), usize>,
    /// Increases with every event: an order, not a time.
    order: u64,
}

/// The number of a connection.
pub type Id = u64;
/// The number of a listening socket.
pub type Socket = u64;

/// A client address. For IPv6, the /64: one client usually has all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

#[derive(Debug)]
struct Connection<T> {
    socket: Socket,
    peer: Peer,
    /// The server is answering a request.
    is_busy: bool,
    last_used: u64,
    close: T,
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Peer {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = v6.to_bits() >> 64 << 64;
                Peer(Ipv6Addr::from_bits(network).into())
            }
            v4 => Peer(v4),
        }
    }
}

impl<T> Room<T> {
    pub fn new(limits: Limits) -> Room<T> {
        Room {
            limits,
            connections: BTreeMap::new(),
            of_socket: HashMap::new(),
            of_peer: HashMap::new(),
            order: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Removes a connection if a new one from this peer would exceed a limit: the caller closes it.
    pub fn make_way(&mut self, socket: Socket, peer: Peer) -> Option<T> {
        let of_peer = self.of_peer.get(&(socket, peer)).copied().unwrap_or_default();
        let of_socket = self.of_socket.get(&socket).copied().unwrap_or_default();
        let victim = if of_peer >= self.limits.peer {
            self.idlest(|it| it.socket == socket && it.peer == peer)
        } else if of_socket >= self.limits.socket {
            self.idlest(|it| it.socket == socket)
        } else if self.connections.len() >= self.limits.service {
            self.idlest(|_| true)
        } else {
            None
        };
        self.leave(victim?)
    }

    /// Removes the least useful connection, regardless of the limits: the caller closes it.
    pub fn shrink(&mut self) -> Option<T> {
        self.idlest(|_| true).and_then(|id| self.leave(id))
    }

    pub fn enter(&mut self, id: Id, socket: Socket, peer: Peer, close: T) {
        let last_used = self.next();
        *self.of_socket.entry(socket).or_default() += 1;
        *self.of_peer.entry((socket, peer)).or_default() += 1;
        self.connections.insert(id, Connection { socket, peer, is_busy: false, last_used, close });
    }

    /// A request has arrived (`true`), or its answer is ready (`false`).
    pub fn used(&mut self, id: Id, is_busy: bool) {
        let last_used = self.next();
        if let Some(connection) = self.connections.get_mut(&id) {
            (connection.is_busy, connection.last_used) = (is_busy, last_used);
        }
    }

    /// Does nothing if the connection was removed before.
    pub fn leave(&mut self, id: Id) -> Option<T> {
        let connection = self.connections.remove(&id)?;
        decrease(&mut self.of_socket, connection.socket);
        decrease(&mut self.of_peer, (connection.socket, connection.peer));
        Some(connection.close)
    }

    /// Connections that wait for an answer are removed last. Sockets are compared before peers: a Service whose health-check
    /// node port is flooded loses connections before other Services do.
    fn idlest(&self, may_go: impl Fn(&Connection<T>) -> bool) -> Option<Id> {
        let all = self.connections.iter().filter(|(_, it)| may_go(it));
        let victim = all.max_by_key(|(_, it)| {
            let (of_socket, of_peer) =
                (self.of_socket.get(&it.socket), self.of_peer.get(&(it.socket, it.peer)));
            (!it.is_busy, of_socket, of_peer, Reverse(it.last_used))
        });
        victim.map(|(id, _)| *id)
    }

    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

fn decrease<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { service: 6, socket: 4, peer: 2, silent: 3 };

    /// A room whose connections return their number when they are closed.
    struct Hall {
        room: Room<Id>,
        next: Id,
    }

    impl Hall {
        fn new() -> Hall {
            Hall { room: Room::new(LIMITS), next: 0 }
        }

        /// Returns the connection that is closed for the new one.
        fn connect(&mut self, socket: Socket, address: &str) -> Option<Id> {
            let peer = Peer::from(address.parse::<IpAddr>().unwrap());
            let closed = self.room.make_way(socket, peer);
            self.room.enter(self.next, socket, peer, self.next);
            self.next += 1;
            closed
        }
    }

    #[test]
    fn a_peer_with_too_many_closes_its_own_idlest() {
        let mut hall = Hall::new();
        assert_eq!(hall.connect(1, "10.0.0.9"), None);
        assert_eq!(hall.connect(1, "10.0.0.1"), None);
        assert_eq!(hall.connect(1, "10.0.0.1"), None);
        hall.room.used(1, true);
        hall.room.used(1, false);
        assert_eq!(hall.connect(1, "10.0.0.1"), Some(2), "1 was used after 2 had come");
        assert_eq!(hall.connect(1, "10.0.0.1"), Some(1));
        assert_eq!(hall.room.len(), 3);
    }

    #[test]
    fn a_full_socket_takes_from_the_peer_that_has_most() {
        let mut hall = Hall::new();
        for address in ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"] {
            assert_eq!(hall.connect(1, address), None);
        }
        assert_eq!(hall.connect(1, "10.0.0.4"), Some(1), "one of the two of 10.0.0.2");
        assert_eq!(hall.connect(1, "10.0.0.5"), Some(0), "all have one: the idlest");
    }

    #[test]
    fn a_full_service_takes_from_the_socket_that_has_most() {
        let mut hall = Hall::new();
        hall.connect(2, "10.0.0.1");
        hall.connect(3, "10.0.0.1");
        for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"] {
            assert_eq!(hall.connect(1, address), None);
        }
        assert_eq!(hall.connect(2, "10.0.0.7"), Some(2), "the idlest of socket 1, not of all");
        assert_eq!(hall.room.len(), LIMITS.service);
    }

    #[test]
    fn what_is_being_answered_goes_last() {
        let mut hall = Hall::new();
        hall.connect(1, "10.0.0.1");
        hall.room.used(0, true);
        hall.connect(1, "10.0.0.1");
        assert_eq!(hall.connect(1, "10.0.0.1"), Some(1));
        hall.room.used(2, true);
        assert_eq!(hall.connect(1, "10.0.0.1"), Some(0), "if all are, the first");
        assert_eq!(hall.room.shrink(), Some(3));
        assert_eq!((hall.room.shrink(), hall.room.shrink()), (Some(2), None));
    }

    #[test]
    fn limits_can_be_lowered_but_not_to_nothing() {
        let Limits { service, socket, peer, silent } = LIMITS.at_most(5);
        assert_eq!((service, socket, peer, silent), (3, 3, 2, 2));
        let Limits { service, silent, .. } = LIMITS.at_most(0);
        assert_eq!((service, silent), (1, 1));
        let Limits { service, silent, .. } = LIMITS.at_most(1000);
        assert_eq!((service, silent), (LIMITS.service, LIMITS.silent));
    }

    #[test]
    fn the_silent_make_way_for_each_other_only_when_they_are_very_many() {
        let mut hall = Hall { room: Room::new(LIMITS.of_silent()), next: 0 };
        for address in ["10.0.0.1", "10.0.0.2", "10.0.0.2"] {
            assert_eq!(hall.connect(1, address), None);
        }
        assert_eq!(hall.connect(1, "10.0.0.3"), Some(1), "of the peer with the most");
        assert_eq!(hall.connect(1, "10.0.0.3"), Some(0), "the one that came first");
    }

    #[test]
    fn a_peer_is_an_ipv4_address_or_an_ipv6_network() {
        let peer = |address: &str| Peer::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
    }

    #[test]
    fn nothing_is_kept_of_connections_that_have_ended() {
        let mut hall = Hall::new();
        for n in 0..1000 {
            hall.connect(n % 5, &format!("10.0.0.{}", n % 200));
        }
        assert_eq!(hall.room.len(), LIMITS.service);
        for id in 0..hall.next {
            hall.room.leave(id);
        }
        assert_eq!((hall.room.len(), hall.room.of_socket.len(), hall.room.of_peer.len()), (0, 0, 0));
    }
}
