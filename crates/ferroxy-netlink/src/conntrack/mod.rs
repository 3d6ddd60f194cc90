//! The kernel's connection tracking (ctnetlink): entries are listed as a stream, and deleted one by one. Which of them
//! should go is its callers' knowledge.

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

/// One tracked connection of a protocol that has ports. Others (ICMP, GRE) are not listed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// The number in the IP header.
    pub protocol: u8,
    /// As its first packet was sent.
    pub original: Tuple,
    /// As answers come back, before they are translated: its source is who really answers.
    pub reply: Tuple,
    /// Where its original tuple is unique; 0 unless somebody uses zones.
    pub zone: u16,
    /// Tells it from another entry that has the same tuple later.
    pub id: u32,
    /// [`status`] bits.
    pub status: u32,
    /// Seconds left if no packet comes. `None` for a connection that the kernel has handed to hardware or a flow table.
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

/// Which entries to list. What is not said matches everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    pub family: Family,
    pub protocol: Option<u8>,
    /// Of the original tuple.
    pub destination: Option<IpAddr>,
    /// Of the original tuple.
    pub destination_port: Option<u16>,
    /// All of these bits are set.
    pub status: u32,
}

impl Entry {
    /// By netfilter, which notes it, or by IPVS, which only changes what the answer will look like.
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
