//! A packet and the verdict about it: where does it go?

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::name::Protocol;

/// The first packet of a new connection, as this node sees it before any translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub origin: Origin,
    pub destination: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
    /// The destination is an address of this host (loopback included).
    pub to_this_host: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Sent by this host itself.
    Host,
    /// Came in on this interface. For a bridge port that is the bridge's name.
    Interface(String),
}

/// What the node does with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// To one of these endpoints with equal probability; the value says whether it is masqueraded (its source becomes the
    /// address of the outgoing interface).
    Endpoints(BTreeMap<SocketAddr, bool>),
    /// Rejected: ICMP unreachable (a TCP client sees "connection refused").
    Reject,
    /// Dropped silently.
    Drop,
    /// Not a Service packet: unchanged.
    Pass,
}
