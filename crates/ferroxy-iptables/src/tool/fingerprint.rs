//! A cheap check whether another program changed a table: with an unchanged fingerprint, none of our rules was flushed or removed.
//! `save` finds out what changed.
//!
//! Reading 10,000 Services back takes some seconds of CPU in either variant; a fingerprint is one system call.
//!
//! - **nf_tables**: the generation, which counts the commits of all programs to all tables of this network namespace. No change
//!   is missed. [`ferroxy_netlink::nftables::Monitor`] receives notifications of changes.
//! - **legacy**: there are no notifications and no generation. The kernel returns the number of entries of a table and their
//!   size, and the whole table as one block of bytes. A block of up to some megabytes is read, and digested without counters.
//!   Of a larger table only the size is known: a rule that was replaced with one of the same size is missed, and a full
//!   comparison is needed now and then.

use ferroxy_netlink::nftables::Connection;
use ferroxy_netlink::xtables;

use super::{Error, Family, Variant};

/// A legacy table that is larger is not read: it would be tens of megabytes every time. 16 MB are some 5,000 Services.
const LARGEST_READ: usize = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fingerprint {
    /// No such table, so none of our rules.
    Absent,
    /// The generation of nf_tables as a whole. Each commit of a [`Receipt`](super::Receipt) raises it by at most one.
    Generation(u32),
    /// Of a legacy table; with a digest of its rules unless it is too large.
    Entries { count: usize, bytes: usize, digest: Option<u64> },
}

impl Fingerprint {
    /// Whether a table with the same fingerprint is the same table.
    pub fn is_exact(self) -> bool {
        !matches!(self, Fingerprint::Entries { digest: None, .. })
    }
}

/// Of the network namespace that the calling thread is in.
pub fn fingerprint(family: Family, variant: Variant, table: &str) -> Result<Fingerprint, Error> {
    match variant {
        Variant::NfTables => Ok(Fingerprint::Generation(Connection::open()?.generation()?)),
        Variant::Legacy => Ok(ask_legacy(family, table)?),
    }
}

fn ask_legacy(family: Family, table: &str) -> Result<Fingerprint, ferroxy_netlink::error::Error> {
    let family = match family {
        Family::V4 => xtables::Family::Ip,
        Family::V6 => xtables::Family::Ip6,
    };
    // Reading a table creates it: check first whether it exists.
    if !xtables::tables(family)?.iter().any(|name| name == table) {
        return Ok(Fingerprint::Absent);
    }
    let connection = xtables::Connection::open(family)?;
    let size = connection.size(table)?;
    let digest = if size.bytes <= LARGEST_READ { Some(connection.read(table)?.digest()) } else { None };
    Ok(Fingerprint::Entries { count: size.entries, bytes: size.bytes, digest })
}
