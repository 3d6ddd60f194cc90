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
    /// `rr`, `wlc`, …: the kernel loads the scheduler's module at its first use.
    pub scheduler: String,
    /// [`PERSISTENT`] and the scheduler's flags, without the flags that the kernel keeps for itself.
    pub flags: u32,
    /// If the server is persistent: how long a client stays with its destination, in seconds. For 0 the kernel uses a default.
    pub timeout: u32,
    /// Clients whose addresses agree in this many bits count as one client. 32 (or 128): each address is a client.
    pub client_prefix: u8,
}

/// `IP_VS_SVC_F_PERSISTENT`, of [`VirtualServer::flags`]: a client stays with its destination for a while.
pub const PERSISTENT: u32 = 0x1;

/// A server that can get connections of a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    pub address: SocketAddr,
    pub forwarding: Forwarding,
    /// 0: no new connections; existing connections continue.
    pub weight: u32,
}

/// How packets get to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarding {
    /// By translation of addresses (`-m`).
    Masquerade,
    /// Another method (tunnels, direct routing), with the kernel's number.
    Other(u8),
}

/// A destination that exists, and the number of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub destination: Destination,
    pub active: u32,
    pub inactive: u32,
    /// Clients that persistence sends to this destination, whether or not they are connected now.
    pub persistent: u32,
}

/// How long the kernel remembers connections, in seconds. In a change, 0 leaves a timeout as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    pub tcp: u32,
    pub tcp_fin: u32,
    pub udp: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    AddServer(VirtualServer),
    /// Changes scheduler, flags or timeout.
    SetServer(VirtualServer),
    /// Removes the server with its destinations.
    RemoveServer(Address),
    AddDestination(Address, Destination),
    SetDestination(Address, Destination),
    RemoveDestination(Address, SocketAddr),
}

/// The changed object, for errors: `10.96.0.80:80/tcp`, `10.96.0.80:80/tcp to 10.244.1.5:80`.
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
