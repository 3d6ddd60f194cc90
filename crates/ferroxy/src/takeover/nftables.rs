//! kube-proxy's nftables tables, where they do not go in the transaction that brings ours: when they have come back, and
//! for `cleanup`.

use ferroxy_core::Family;
use ferroxy_netlink::nftables::{self as nl, Batch, Connection};
use ferroxy_nftables::predecessor;

use super::Report;

pub(super) fn remove(report: &mut Report) {
    let found = Connection::open().and_then(|mut connection| {
        let families = predecessor::tables(&mut connection)?;
        Ok((connection, families))
    });
    let (mut connection, families) = match found {
        Ok(found) => found,
        Err(error) => return report.failed(&error),
    };
    for family in families {
        let mut batch = Batch::new();
        batch.delete_table(0, kernel_family(family), predecessor::TABLE);
        match connection.commit(&batch) {
            Ok(_) => report.removed.push(describe(family)),
            Err(error) => report.failed(&error),
        }
    }
}

pub(super) fn describe(family: Family) -> String {
    let word = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    format!("table {word} {}", predecessor::TABLE)
}

fn kernel_family(family: Family) -> nl::Family {
    match family {
        Family::V4 => nl::Family::Ip,
        Family::V6 => nl::Family::Ip6,
    }
}
