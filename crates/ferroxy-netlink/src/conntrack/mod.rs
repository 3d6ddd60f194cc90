//! The kernel's connection tracking (ctnetlink): entries are listed as a stream, and deleted one by one. The callers decide
//! which to delete.

#[cfg(target_os = "linux")]
mod connection;
mod decode;
mod encode;
mod wire;

#[cfg(target_os = "linux")]
pub use connection::{Connection, is_missing};
#[doc(hidden)]
pub use decode::read_everything;

use std::net::{IpAddr, SocketAddr};

/// One tracked connection of a protocol that has ports. Entries of other protocols (ICMP, GRE) are not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The number in the IP header.
    pub protocol: u8,
    /// Of the first packet.
    pub original: Tuple,
    /// Of packets in the reply direction, before translation: its source is the endpoint that answers.
    pub reply: Tuple,
    /// The scope in which the original tuple is unique; 0 unless zones are in use.
    pub zone: u16,
    /// Distinguishes it from a later entry with the same tuple.
    pub id: u32,
    /// [`status`] bits.
    pub status: u32,
    /// Seconds left if no packet arrives. `None` for a connection that is offloaded to hardware or a flow table.
    pub timeout: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

/// Bits of [`Entry::status`] (`IPS_*`).
pub mod status {
    pub const SEEN_REPLY: u32 = 1 << 1;
    pub const ASSURED: u32 = 1 << 2;
    pub const CONFIRMED: u32 = 1 << 3;
    pub const SRC_NAT: u32 = 1 << 4;
    /// Netfilter has translated its destination: the reply's source is not the original's destination.
    pub const DST_NAT: u32 = 1 << 5;
}

/// Which entries to list. Fields that are `None` match everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    pub family: Family,
    pub protocol: Option<u8>,
    /// Of the original tuple.
    pub destination: Option<IpAddr>,
    /// Of the original tuple.
    pub destination_port: Option<u16>,
    /// [`status`] bits that must all be set.
    pub status: u32,
}

impl Entry {
    /// True if the destination was translated by netfilter, which sets a status bit, or by IPVS, which only changes the reply tuple.
    pub fn is_destination_translated(&self) -> bool {
        self.status & status::DST_NAT != 0 || self.reply.source != self.original.destination
    }
}

impl Filter {
    pub fn all(family: Family) -> Filter {
        Filter { family, protocol: None, destination: None, destination_port: None, status: 0 }
    }

    pub fn matches(&self, entry: &Entry) -> bool {
        let destination = entry.original.destination;
        destination.is_ipv4() == (self.family == Family::V4)
            && self.protocol.is_none_or(|protocol| protocol == entry.protocol)
            && self.destination.is_none_or(|ip| ip == destination.ip())
            && self.destination_port.is_none_or(|port| port == destination.port())
            && entry.status & self.status == self.status
    }
}
