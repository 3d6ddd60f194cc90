//! The tables of legacy iptables (`iptables-legacy`). They are not netlink objects: the kernel passes a table as one block of
//! bytes through socket options. Matches and targets of rules are not decoded here.

mod assembly;
#[cfg(target_os = "linux")]
mod connection;
mod parts;
mod table;

pub use assembly::Unassembled;
#[cfg(target_os = "linux")]
pub use connection::{Connection, tables};
pub use parts::{ChainId, Goal, Leads, Parts, Rule};
#[cfg(target_os = "linux")]
pub(crate) use table::COUNTER;
pub use table::{Jump, Replacement, Table};

pub use crate::nftables::Family;

/// The size of a table: its rules, and the entries that begin and end chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub entries: usize,
    pub bytes: usize,
}
