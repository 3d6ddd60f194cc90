//! A cheap sign that somebody changed a table: the same fingerprint as before means that nothing of ours was flushed or
//! removed. What changed is for `save` to find out.
//!
//! Reading 10,000 Services back takes some seconds of CPU in either variant; a fingerprint is one system call.
//!
//! - **nf_tables**: the generation, which counts the commits of everybody to all tables of this network namespace. No change is
//!   missed; a foreign one is a reason to look. It can also be had without asking:
//!   [`ferroxy_netlink::nftables::Monitor`] tells of changes to the tables `nat`, `filter` and `mangle` of the family.
//! - **legacy**: there are no notifications and no generation. The kernel tells the number of entries of a table and their size,
//!   and hands out all of it as one block of bytes. Up to some megabytes that block is read, without what rules have
//!   counted. Of a larger table only the size is known: there a rule that was replaced by one of the same size is not
//!   seen, and a full comparison now and then is still needed.

use ferroxy_netlink::nftables::Connection;
use ferroxy_netlink::xtables;

use super::{Error, Family, Variant};

/// A legacy table that is larger is not read: it would be tens of megabytes every time. 16 MB are some 5,000 Services.
const LARGEST_READ: usize = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fingerprint {
    /// No such table, so none of our rules.
    Absent,
    /// Of all of nf_tables. A [`Receipt`](super::Receipt) says by how much our own restore may have raised it.
    Generation(u32),
    /// Of a legacy table; of its rules, where it is not too large.
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
    // Asking the kernel about a table makes it: look whether it is there first.
    if !xtables::tables(family)?.iter().any(|name| name == table) {
        return Ok(Fingerprint::Absent);
    }
    let connection = xtables::Connection::open(family)?;
    let size = connection.size(table)?;
    let digest = if size.bytes <= LARGEST_READ { Some(connection.read(table)?.digest()) } else { None };
    Ok(Fingerprint::Entries { count: size.entries, bytes: size.bytes, digest })
}
