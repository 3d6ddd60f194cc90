//! The kernel's sets of addresses and ports (ipset), which iptables rules match with `-m set`. Creates, fills, lists
//! and destroys them; the callers decide what a set is for.

#[cfg(target_os = "linux")]
mod connection;
mod decode;
mod encode;
mod wire;

#[cfg(target_os = "linux")]
pub use connection::{Connection, is_missing};

use std::fmt;
use std::net::IpAddr;

use crate::numbers::{IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP};

/// The type of a set's members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Ip,
    IpPort,
    IpPortIp,
    IpPortNet,
    /// All ports, a bit each. Has no family and no capacity.
    Port,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

/// A set to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// At most 31 bytes.
    pub name: String,
    pub kind: Kind,
    pub family: Family,
    /// The maximum number of members.
    pub capacity: u32,
    /// Initial size of the hash table, which grows.
    pub hash_size: u32,
}

/// A set that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `None` for a kind that this crate does not create; its members are not decoded.
    pub kind: Option<Kind>,
    /// `None` where the kind has none.
    pub family: Option<Family>,
    pub capacity: Option<u32>,
    /// How many rules, and sets of sets, use it.
    pub references: u32,
    pub members: Vec<Member>,
}

/// An address, a port and a protocol (`IPPROTO_*`), which belong together in most sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub ip: IpAddr,
    pub protocol: u8,
    pub port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    Ip(IpAddr),
    IpPort(Address),
    IpPortIp(Address, IpAddr),
    /// The prefix length must not be 0, which the kernel does not support: use two members with length 1.
    IpPortNet(Address, IpAddr, u8),
    Port(u16),
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Ip, Kind::IpPort, Kind::IpPortIp, Kind::IpPortNet, Kind::Port];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ip => "hash:ip",
            Kind::IpPort => "hash:ip,port",
            Kind::IpPortIp => "hash:ip,port,ip",
            Kind::IpPortNet => "hash:ip,port,net",
            Kind::Port => "bitmap:port",
        }
    }

    /// The revision to ask for, if the kernel has it: all of them are from Linux 3.19. A newer one has no advantage here, and
    /// the `ipset` tool refuses to list sets of revisions that it does not know.
    fn revision(self) -> u8 {
        match self {
            Kind::Port => 3,
            Kind::Ip => 4,
            Kind::IpPort | Kind::IpPortIp => 5,
            Kind::IpPortNet => 7,
        }
    }
}

/// As `ipset list` prints it.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Member::Ip(ip) => write!(f, "{ip}"),
            Member::IpPort(address) => write!(f, "{address}"),
            Member::IpPortIp(address, ip) => write!(f, "{address},{ip}"),
            Member::IpPortNet(address, ip, prefix) => write!(f, "{address},{ip}/{prefix}"),
            Member::Port(port) => write!(f, "{port}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { ip, protocol, port } = self;
        match *protocol {
            IPPROTO_TCP => write!(f, "{ip},tcp:{port}"),
            IPPROTO_UDP => write!(f, "{ip},udp:{port}"),
            IPPROTO_SCTP => write!(f, "{ip},sctp:{port}"),
            _ => write!(f, "{ip},{protocol}:{port}"),
        }
    }
}

/// Decodes bytes as every kind of message and discards the results. For the fuzzer.
#[doc(hidden)]
pub fn read_everything(bytes: &[u8]) {
    for message in crate::codec::Messages::new(bytes).flatten() {
        let mut found = None;
        let _ = (decode::read_part(&message, &mut found), decode::read_name(&message));
        let _ = (decode::line_of_refusal(&message), decode::read_number(&message));
    }
}
