//! An iptables rule as a value, and its conversion between its text and the kernel's formats.
//!
//! Pure. [`parse`] reads the text of a rule as `iptables-save` prints it, and a [`Spec`] prints as that text. `extension` has
//! the structs of matches and targets in the kernel, and [`expression`] the rule as expressions of nf_tables, in the encoding
//! of the nft variant of iptables 1.8.9. Only the features that rules of Kubernetes proxies use are known. A rule with anything
//! else is `None`, and never approximated.

pub mod entry;
pub mod expression;
mod extension;
mod parse;
mod print;
mod sets;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Protocol};

pub use parse::{parse, why_unknown};
pub use print::unknown;
pub use sets::Sets;

/// What the meaning of a rule depends on, besides its text or its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'s> {
    pub family: Family,
    pub sets: &'s Sets,
}

/// One rule, without its chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec<'a> {
    pub source: Option<Range>,
    pub destination: Option<Range>,
    pub input: Option<Interface<'a>>,
    pub protocol: Option<OfProtocol>,
    /// In the order in which they are evaluated.
    pub matches: Vec<Match<'a>>,
    pub target: Target<'a>,
}

/// `! -s 10.0.0.0/8`. Bits behind the prefix are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub negated: bool,
    pub address: IpAddr,
    /// At least 1: a range of everything is not written.
    pub prefix: u8,
}

/// `-i eth0`, or `-i cali+` for all interfaces whose names begin with `cali`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface<'a> {
    pub negated: bool,
    pub name: &'a str,
    pub is_prefix: bool,
}

/// `-p tcp`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfProtocol {
    pub negated: bool,
    pub protocol: Protocol,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Match<'a> {
    Comment(Cow<'a, str>),
    /// `-m tcp --dport 80`; without a port it only repeats the protocol.
    Port {
        protocol: Protocol,
        destination: Option<u16>,
    },
    /// In units of 2⁻³¹.
    Probability(u32),
    Recent(Recent<'a>),
    Mark {
        negated: bool,
        value: u32,
        mask: u32,
    },
    /// `-m addrtype --dst-type LOCAL`
    IsLocal {
        negated: bool,
        side: Side,
    },
    /// The bits of `--ctstate`, see [`STATES`].
    Tracked {
        negated: bool,
        states: u16,
        /// Printed as `-m state --state`, the match that this one has replaced.
        as_state: bool,
    },
    InSet(InSet<'a>),
    /// `-m ipvs --vproto … --vaddr … --vport …`: the virtual server that the packet was sent to.
    Balanced {
        protocol: u8,
        server: SocketAddr,
    },
    CountedBy(&'a str),
    /// `-m physdev --physdev-is-in`
    CameOverBridge {
        negated: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// `-m set --match-set KUBE-CLUSTER-IP dst,dst`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InSet<'a> {
    pub negated: bool,
    pub name: &'a str,
    /// The kernel's number of the set, valid while the set exists.
    pub number: u16,
    /// How many parts of the packet make up a member.
    pub parts: u8,
    /// Which of them are the source's, as bits; the others are the destination's.
    pub sources: u8,
}

/// `-m recent`, of whole source addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent<'a> {
    pub action: RecentAction,
    pub name: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecentAction {
    Set,
    /// `--rcheck --seconds … --reap`
    Check {
        seconds: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// A rule that only counts.
    None,
    Accept,
    Drop,
    Return,
    Jump(&'a str),
    Goto(&'a str),
    Dnat(SocketAddr),
    /// To this port of the host.
    Redirect(u16),
    Mark {
        value: u32,
        mask: u32,
    },
    Masquerade {
        fully_random: bool,
    },
    /// With "port unreachable" of the family's ICMP.
    Reject,
}

/// The states of a connection, in the order in which `iptables-save` prints them, and the kernel's bits for them.
pub const STATES: [(&str, u16); 7] = [
    ("INVALID", 1),
    ("NEW", 1 << 3),
    ("RELATED", 1 << 2),
    ("ESTABLISHED", 1 << 1),
    ("UNTRACKED", 1 << 8),
    ("SNAT", 1 << 6),
    ("DNAT", 1 << 7),
];

/// The kernel's limit for the parts of a member of a set.
const SET_PARTS: u8 = 6;
/// A probability of 1, in the kernel's units.
const CERTAIN: f64 = 2_147_483_648.0;
/// A comment in the kernel, with its terminating zero.
const COMMENT_SIZE: usize = 256;

#[cfg(test)]
mod tests;
