//! The chains of `userspace.rules: iptables` that an earlier run left, for a process with other settings, such as `ferroxy cleanup`.
//!
//! kube-proxy up to 1.25 has chains of the same names in its own userspace mode. Where kube-proxy serves by other rules, these chains
//! are not its own, and they lead to ports that no process listens on.

use ferroxy_core::Family;
use ferroxy_dataplane::{Failure, FailureKind};
use ferroxy_iptables::door::Door as RuleDoor;
use ferroxy_netfilter::{failure, successor};
use ferroxy_netlink::nftables::Connection;

use super::rules::Portals;

/// The chains of one family and one variant of iptables.
#[derive(Debug)]
pub(super) struct Remnant {
    pub(super) family: Family,
    /// kube-proxy serves this family by other rules.
    pub(super) is_replaced: bool,
    pub(super) chains: Portals,
}

pub(super) fn find(families: &[Family]) -> Result<Vec<Remnant>, Failure> {
    let mut connection = Connection::open().map_err(failure::of)?;
    let mut found = Vec::new();
    for family in families {
        for door in [RuleDoor::nf_tables(*family), RuleDoor::legacy(*family)] {
            let door = match door.map_err(Failure::from) {
                Ok(door) => door,
                Err(failure) if failure.kind == FailureKind::NotPermitted => return Err(failure),
                // A kernel without this variant has no chains of it.
                Err(_) => continue,
            };
            let mut chains = Portals::of(vec![door]);
            if !chains.is_cold()? {
                let is_replaced = successor::serves(&mut connection, *family).map_err(failure::of)?;
                found.push(Remnant { family: *family, is_replaced, chains });
            }
        }
    }
    Ok(found)
}
