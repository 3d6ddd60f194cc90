//! Where clients arrive, and which clients go to which pool.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Key;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// A kind of client that a socket cannot recognise, but packet rules can: they redirect each class to a listener of its
/// own. The caller gives the numbers their meaning ("pods", "this node", "outside").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Class(pub u8);

/// A place where clients arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    pub arrival: Arrival,
    /// The first route that matches decides. If none matches, TCP connections are reset and datagrams are dropped. If
    /// clients must see "connection refused" instead, packet rules have to reject their packets before the engine gets
    /// them.
    pub routes: Vec<Route>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// At a socket that the engine opens for this frontend. Port 0 lets the kernel choose one ([`crate::Applied::bound`]).
    Socket {
        protocol: Protocol,
        address: SocketAddr,
        /// The address need not be one of the host's (`IP_FREEBIND`; Linux only): for addresses that arrive by a local route.
        freebind: bool,
        sockets: Sockets,
        /// The class of clients that arrive here, as with [`Redirect::class`].
        class: Class,
    },
    /// At any [`Redirect`] listener: TCP connections whose original destination is this address (Linux only). The
    /// unspecified address (`0.0.0.0`, `::`) stands for every address of its family that has no frontend of its own on
    /// that port.
    OriginalDestination(SocketAddr),
}

/// How many sockets serve one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sockets {
    /// One for each thread (`SO_REUSEPORT`): the kernel spreads clients over them. The fastest for busy frontends.
    PerThread,
    /// A single socket on one thread, which spreads accepted connections over all threads. Fewer descriptors: for
    /// thousands of frontends, and where `SO_REUSEPORT` does not exist.
    #[default]
    One,
}

/// Which clients go to a pool. A frontend with different endpoints for internal and external clients has two routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Only clients of these classes; empty for all.
    pub classes: Vec<Class>,
    /// Only clients with these source addresses; empty for all.
    pub sources: Vec<IpNet>,
    /// The pool. `None` refuses the client: an exception before a wider route. A pool that does not exist (yet) refuses, too.
    pub pool: Option<Key>,
}

/// A TCP socket to which packet rules redirect the connections of many frontends; the original destination selects the
/// frontend. It always has a socket for each thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    pub address: SocketAddr,
    /// Clients that arrive here are of this class.
    pub class: Class,
}

impl Frontend {
    /// A TCP socket of its own, without a route.
    pub fn tcp(address: SocketAddr) -> Frontend {
        Frontend::socket(Protocol::Tcp, address)
    }

    /// A UDP socket of its own, without a route.
    pub fn udp(address: SocketAddr) -> Frontend {
        Frontend::socket(Protocol::Udp, address)
    }

    pub fn redirected(original: SocketAddr) -> Frontend {
        Frontend { arrival: Arrival::OriginalDestination(original), routes: Vec::new() }
    }

    /// All clients that no earlier route matches go to this pool.
    pub fn to(mut self, pool: impl Into<Key>) -> Frontend {
        self.routes.push(Route::to(pool));
        self
    }

    pub fn route(mut self, route: Route) -> Frontend {
        self.routes.push(route);
        self
    }

    pub fn with_sockets(mut self, wanted: Sockets) -> Frontend {
        if let Arrival::Socket { sockets, .. } = &mut self.arrival {
            *sockets = wanted;
        }
        self
    }

    pub fn with_freebind(mut self) -> Frontend {
        if let Arrival::Socket { freebind, .. } = &mut self.arrival {
            *freebind = true;
        }
        self
    }

    fn socket(protocol: Protocol, address: SocketAddr) -> Frontend {
        let sockets = Sockets::default();
        let class = Class::default();
        Frontend {
            arrival: Arrival::Socket { protocol, address, freebind: false, sockets, class },
            routes: Vec::new(),
        }
    }
}

impl Route {
    pub fn to(pool: impl Into<Key>) -> Route {
        Route { classes: Vec::new(), sources: Vec::new(), pool: Some(pool.into()) }
    }

    /// Whether a client with this source and class takes this route.
    pub fn matches(&self, source: IpAddr, class: Class) -> bool {
        let source = source.to_canonical();
        (self.classes.is_empty() || self.classes.contains(&class))
            && (self.sources.is_empty() || self.sources.iter().any(|it| it.contains(&source)))
    }
}
