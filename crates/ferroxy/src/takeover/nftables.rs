//! nftables tables that are not the mode's own: kube-proxy's, where they do not go in the transaction that brings ours (when
//! they have come back, and for `cleanup`), and Ferroxy's, where it now runs in another mode.

use ferroxy_core::Family;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{self as nl, Batch, Connection};
use ferroxy_nftables::{TABLE, predecessor};

use super::Report;
use crate::dataplane::Mode;

pub(super) fn remove(in_force: Option<Mode>, report: &mut Report) {
    let found = Connection::open().and_then(|mut connection| {
        let kube_proxys = predecessor::tables(&mut connection)?;
        let ours = if in_force == Some(Mode::Nftables) { Vec::new() } else { own(&mut connection)? };
        Ok((connection, kube_proxys, ours))
    });
    let (mut connection, kube_proxys, ours) = match found {
        Ok(found) => found,
        Err(error) => return report.failed(&error),
    };
    for family in kube_proxys {
        match delete(&mut connection, family, predecessor::TABLE) {
            Ok(()) => report.removed.push(describe(family)),
            Err(error) => report.failed.push(error),
        }
    }
    for family in ours {
        match delete(&mut connection, family, TABLE) {
            Ok(()) => report.own.push(table(family, TABLE)),
            Err(error) => report.failed.push(error),
        }
    }
}

pub(super) fn describe(family: Family) -> String {
    table(family, predecessor::TABLE)
}

/// The families in which our own nftables mode has a table.
fn own(connection: &mut Connection) -> Result<Vec<Family>, Error> {
    let mut found = Vec::new();
    for family in Family::ALL {
        if connection.table(kernel_family(family), TABLE)?.is_some() {
            found.push(family);
        }
    }
    Ok(found)
}

fn delete(connection: &mut Connection, family: Family, table: &str) -> Result<(), String> {
    let mut batch = Batch::new();
    batch.delete_table(0, kernel_family(family), table);
    connection.commit(&batch).map(drop).map_err(|error| error.to_string())
}

fn table(family: Family, name: &str) -> String {
    let word = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    format!("table {word} {name}")
}

fn kernel_family(family: Family) -> nl::Family {
    match family {
        Family::V4 => nl::Family::Ip,
        Family::V6 => nl::Family::Ip6,
    }
}
