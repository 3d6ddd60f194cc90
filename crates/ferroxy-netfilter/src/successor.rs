//! Detects whether kube-proxy, in any mode, serves Services in this kernel: for a rollback to it without a gap. Reads
//! only.
//!
//! kube-proxy commits the rules of a family so that one object shows that all of them are there:
//!
//! ```text
//! nftables       one transaction: cluster IPs in the set `cluster-ips`
//! iptables, ipvs the table `nat` last, in one commit: rules in KUBE-SERVICES, to which PREROUTING jumps from the beginning
//! ```

use ferroxy_core::Family;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{Connection, Expr, Verdict};
use ferroxy_netlink::xtables;
use rustix::io::Errno;

use crate::tables::{KUBE_PROXY, kernel_family, of_kube_proxy};

const NAT: &str = "nat";
const PREROUTING: &str = "PREROUTING";
const SERVICES: &str = "KUBE-SERVICES";

/// Whether the rules of kube-proxy for this family are in force.
pub fn serves(connection: &mut Connection, family: Family) -> Result<bool, Error> {
    Ok(by_nftables(connection, family)?
        || by_iptables_nft(connection, family)?
        || by_iptables_legacy(family)?)
}

/// Whether a set of a table has an element; false if there is no such set.
pub fn has_elements(
    connection: &mut Connection,
    family: Family,
    table: &str,
    set: &str,
) -> Result<bool, Error> {
    let mut any = false;
    match connection.elements(kernel_family(family), table, set, &mut |_| any = true) {
        Err(error) if error.errno == Errno::NOENT => Ok(false),
        listed => listed.map(|()| any),
    }
}

fn by_nftables(connection: &mut Connection, family: Family) -> Result<bool, Error> {
    Ok(of_kube_proxy(connection)?.contains(&family)
        && has_elements(connection, family, KUBE_PROXY, "cluster-ips")?)
}

fn by_iptables_nft(connection: &mut Connection, family: Family) -> Result<bool, Error> {
    let family = kernel_family(family);
    if connection.rules_of(family, NAT, SERVICES)?.is_empty() {
        return Ok(false);
    }
    let jumps = |expr: &Expr| matches!(expr, Expr::Immediate(Verdict::Jump(chain)) if chain == SERVICES);
    let rules = connection.rules_of(family, NAT, PREROUTING)?;
    Ok(rules.iter().any(|observed| observed.rule.exprs.iter().any(jumps)))
}

/// A legacy table is one value, which the kernel replaces as a whole.
fn by_iptables_legacy(family: Family) -> Result<bool, Error> {
    let family = match family {
        Family::V4 => xtables::Family::Ip,
        Family::V6 => xtables::Family::Ip6,
    };
    match xtables::tables(family) {
        Ok(tables) if tables.iter().any(|table| table == NAT) => {}
        // Only root may read the list. A process that may not see these tables cannot wait for them.
        Ok(_) | Err(Error { errno: Errno::ACCESS, .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    let jumps = xtables::Connection::open(family)?.read(NAT)?.jumps();
    let is_entered = jumps.iter().any(|jump| jump.from.is_none() && jump.to == SERVICES);
    Ok(is_entered && jumps.iter().any(|jump| jump.from.as_deref() == Some(SERVICES)))
}
