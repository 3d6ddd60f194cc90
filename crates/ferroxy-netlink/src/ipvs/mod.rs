//! The kernel's load balancer (IPVS): virtual servers, their destinations, timeouts. The callers decide who owns a server, and
//! when a destination is removed.

#[cfg(target_os = "linux")]
mod connection;
mod decode;
mod encode;
mod wire;

#[cfg(target_os = "linux")]
pub use connection::{Connection, is_missing};

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::numbers::{IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP};

/// Where a virtual server listens; the protocol is `IPPROTO_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub ip: IpAddr,
    pub protocol: u8,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    pub address: Address,
    /// `rr`, `wlc`, …: the kernel loads it when it is first asked for.
    pub scheduler: String,
    /// [`PERSISTENT`] and the scheduler's own; those of the kernel's own book-keeping are not among them.
    pub flags: u32,
    /// How long a client stays with its destination, in seconds, when it is persistent. The kernel has a default for 0.
    pub timeout: u32,
    /// Clients that agree in this many bits are one client. 32 and 128: each for itself.
    pub client_prefix: u8,
}

/// `IP_VS_SVC_F_PERSISTENT`, of [`VirtualServer::flags`]: a client stays with its destination for a while.
pub const PERSISTENT: u32 = 0x1;

/// Who may get connections of a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    pub address: SocketAddr,
    pub forwarding: Forwarding,
    /// 0: no new connections, while those there go on.
    pub weight: u32,
}

/// How packets get to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarding {
    /// By translation of addresses (`-m`).
    Masquerade,
    /// Anything else, by the kernel's number: tunnels, direct routing.
    Other(u8),
}

/// A destination that is there, and how many connections it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub destination: Destination,
    pub active: u32,
    pub inactive: u32,
    /// Clients that will come back to it, whether or not they are connected.
    pub persistent: u32,
}

/// How long connections are remembered, in seconds. In a change 0 leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    pub tcp: u32,
    pub tcp_fin: u32,
    pub udp: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    AddServer(VirtualServer),
    /// Another scheduler, other flags, another timeout.
    SetServer(VirtualServer),
    /// With its destinations.
    RemoveServer(Address),
    AddDestination(Address, Destination),
    SetDestination(Address, Destination),
    RemoveDestination(Address, SocketAddr),
}

/// What is changed, for errors: `10.96.0.80:80/tcp`, `10.96.0.80:80/tcp to 10.244.1.5:80`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::AddServer(server) | Change::SetServer(server) => write!(f, "{}", server.address),
            Change::RemoveServer(server) => write!(f, "{server}"),
            Change::AddDestination(server, destination) | Change::SetDestination(server, destination) => {
                write!(f, "{server} to {}", destination.address)
            }
            Change::RemoveDestination(server, destination) => write!(f, "{server} to {destination}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = SocketAddr::new(self.ip, self.port);
        match self.protocol {
            IPPROTO_TCP => write!(f, "{at}/tcp"),
            IPPROTO_UDP => write!(f, "{at}/udp"),
            IPPROTO_SCTP => write!(f, "{at}/sctp"),
            number => write!(f, "{at}/{number}"),
        }
    }
}

/// Decodes bytes as every kind of message and discards the results. For the fuzzer.
#[doc(hidden)]
pub fn read_everything(bytes: &[u8]) {
    for message in crate::codec::Messages::new(bytes).flatten() {
        let _ = (decode::read_server(&message), decode::read_destination(&message, IpAddr::from([0; 4])));
        let _ = (decode::read_timeouts(&message), decode::read_family(&message));
    }
}
