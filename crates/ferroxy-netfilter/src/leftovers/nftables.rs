//! Removes unused nftables tables: kube-proxy's, and Ferroxy's own if another mode is in force. (Usually the
//! transaction that creates our table deletes kube-proxy's. This code deletes it if it was recreated, and for
//! `cleanup`.)

use ferroxy_core::Family;
use ferroxy_dataplane::capability::leftovers::Leftovers;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{Batch, Connection};

use super::{Own, failed};
use crate::tables::{self, KUBE_PROXY, OWN, describe, kernel_family};

pub(super) fn remove(in_force: Option<Own>, report: &mut Leftovers) {
    let (mut connection, kube_proxys, ours) = match find(in_force) {
        Ok(found) => found,
        Err(error) => return failed(report, &error),
    };
    for family in kube_proxys {
        match delete(&mut connection, family, KUBE_PROXY) {
            Ok(()) => report.removed.push(describe(family, KUBE_PROXY)),
            Err(error) => report.failed.push(error),
        }
    }
    for family in ours {
        match delete(&mut connection, family, OWN) {
            Ok(()) => report.own.push(describe(family, OWN)),
            Err(error) => report.failed.push(error),
        }
    }
}

fn find(in_force: Option<Own>) -> Result<(Connection, Vec<Family>, Vec<Family>), Error> {
    let mut connection = Connection::open()?;
    let kube_proxys = tables::of_kube_proxy(&mut connection)?;
    let ours = match in_force {
        Some(Own::Nftables) => Vec::new(),
        _ => tables::of_ferroxy(&mut connection)?,
    };
    Ok((connection, kube_proxys, ours))
}

fn delete(connection: &mut Connection, family: Family, table: &str) -> Result<(), String> {
    let mut batch = Batch::new();
    batch.delete_table(0, kernel_family(family), table);
    connection.commit(&batch).map(drop).map_err(|error| error.to_string())
}
