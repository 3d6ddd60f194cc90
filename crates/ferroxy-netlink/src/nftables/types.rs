//! The objects of nf_tables as plain data. No encoding here.

use super::expr::Expr;

/// Address family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    Ip,
    Ip6,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// Where a base chain sits in the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HookPoint {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainType {
    Filter,
    Nat,
    /// Only decoded: a chain type that this crate does not write, or a policy other than accept.
    Other,
}

/// What makes a chain a base chain. Its policy is accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hook {
    pub kind: ChainType,
    pub point: HookPoint,
    pub priority: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    pub name: String,
    pub comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chain {
    pub name: String,
    pub hook: Option<Hook>,
    pub comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    pub exprs: Vec<Expr>,
    pub comment: Option<String>,
}

/// A new rule of iptables, without its expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRule<'a> {
    pub family: Family,
    pub table: &'a str,
    pub chain: &'a str,
    pub place: Place,
    /// The protocol that the rule matches, which its xt matches need, and whether that match is inverted.
    pub protocol: Option<(u8, bool)>,
    /// Request the handle of the new rule; see `Connection::commit_echoed`.
    pub echo: bool,
}

/// A place in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    First,
    /// Before the rule with this handle.
    Before(u64),
    Last,
}

/// A rule as the kernel holds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObservedRule {
    pub chain: String,
    /// Identifies the rule, to delete it.
    pub handle: u64,
    pub rule: Rule,
}

/// The type of one field of a key or value. The kernel only uses lengths; `nft list` uses the types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Datatype {
    Ipv4Addr,
    Ipv6Addr,
    InetProto,
    InetService,
    /// The priority of a packet (`nft` says `classid`): 4 bytes in host byte order.
    Priority,
    /// What `numgen` yields: 4 bytes in host byte order.
    Integer32,
    /// Only decoded: the number of an `nft` type that this crate does not write.
    Unknown(u8),
}

impl Datatype {
    /// Bytes of a value, before the padding to 4 that it gets in a concatenation.
    pub const fn size(self) -> usize {
        match self {
            Self::InetProto => 1,
            Self::InetService => 2,
            Self::Ipv4Addr | Self::Priority | Self::Integer32 | Self::Unknown(_) => 4,
            Self::Ipv6Addr => 16,
        }
    }
}

/// What a map's elements hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetData {
    Verdict,
    Value(Vec<Datatype>),
}

/// A named set, or a map when it has data.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Set {
    pub name: String,
    pub key: Vec<Datatype>,
    pub data: Option<SetData>,
    pub interval: bool,
    /// Rules may add elements, which expire. Set a size: otherwise the kernel picks a size, and the set reads back with it.
    pub dynamic: bool,
    pub timeout_ms: Option<u64>,
    pub size: Option<u32>,
    pub comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Data {
    None,
    Verdict(Verdict),
    /// A value, or the code (in big endian) of a verdict that this crate does not write (`continue`, `queue`).
    Value(Vec<u8>),
}

/// An element of a set or map. In a concatenation every field of key and data is padded with zeros to 4 bytes.
///
/// Intervals come in two shapes. A set with one field has two elements for each interval: its first key, and the key
/// after its last with `interval_end`. A concatenation has one element, from `key` to `key_end`, both included.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    pub key: Vec<u8>,
    pub key_end: Option<Vec<u8>>,
    pub interval_end: bool,
    pub data: Data,
    pub comment: Option<String>,
}

/// Packets and bytes that an element has counted since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// A borrowed [`Verdict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictRef<'a> {
    Accept,
    Drop,
    Return,
    Jump(&'a str),
    Goto(&'a str),
}

/// A borrowed [`Data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataRef<'a> {
    None,
    Verdict(VerdictRef<'a>),
    Value(&'a [u8]),
}

/// A borrowed [`Element`], to write and read hundreds of thousands without allocating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementRef<'a> {
    pub key: &'a [u8],
    pub key_end: Option<&'a [u8]>,
    pub interval_end: bool,
    pub data: DataRef<'a>,
    pub comment: Option<&'a str>,
}

impl<'a> From<&'a Verdict> for VerdictRef<'a> {
    fn from(verdict: &'a Verdict) -> Self {
        match verdict {
            Verdict::Accept => Self::Accept,
            Verdict::Drop => Self::Drop,
            Verdict::Return => Self::Return,
            Verdict::Jump(chain) => Self::Jump(chain),
            Verdict::Goto(chain) => Self::Goto(chain),
        }
    }
}

impl<'a> From<&'a Data> for DataRef<'a> {
    fn from(data: &'a Data) -> Self {
        match data {
            Data::None => Self::None,
            Data::Verdict(verdict) => Self::Verdict(verdict.into()),
            Data::Value(value) => Self::Value(value),
        }
    }
}

impl<'a> From<&'a Element> for ElementRef<'a> {
    fn from(element: &'a Element) -> Self {
        Self {
            key: &element.key,
            key_end: element.key_end.as_deref(),
            interval_end: element.interval_end,
            data: (&element.data).into(),
            comment: element.comment.as_deref(),
        }
    }
}

impl From<VerdictRef<'_>> for Verdict {
    fn from(verdict: VerdictRef<'_>) -> Self {
        match verdict {
            VerdictRef::Accept => Self::Accept,
            VerdictRef::Drop => Self::Drop,
            VerdictRef::Return => Self::Return,
            VerdictRef::Jump(chain) => Self::Jump(chain.into()),
            VerdictRef::Goto(chain) => Self::Goto(chain.into()),
        }
    }
}

impl From<DataRef<'_>> for Data {
    fn from(data: DataRef<'_>) -> Self {
        match data {
            DataRef::None => Self::None,
            DataRef::Verdict(verdict) => Self::Verdict(verdict.into()),
            DataRef::Value(value) => Self::Value(value.into()),
        }
    }
}

impl From<ElementRef<'_>> for Element {
    fn from(element: ElementRef<'_>) -> Self {
        Self {
            key: element.key.into(),
            key_end: element.key_end.map(Into::into),
            interval_end: element.interval_end,
            data: element.data.into(),
            comment: element.comment.map(Into::into),
        }
    }
}
