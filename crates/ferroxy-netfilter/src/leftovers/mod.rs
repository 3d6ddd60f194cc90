//! Taking over: removes what kube-proxy left in this kernel, in whatever mode it ran, and what Ferroxy left in another
//! mode. (iptables chains have the same names in both; the nftables tables differ.) The agent decides when to look for
//! leftovers, and how long connections may continue.
//!
//! ```text
//! nftables.rs         kube-proxy's nftables tables that were recreated after ours replaced them; our own table, in another mode
//! iptables_nft.rs     kube-proxy's chains of the nft variant of iptables, over netlink
//! iptables_legacy.rs  the same of the legacy variant, through socket options, holding its lock (xtables_lock.rs)
//! ipvs.rs             kube-proxy's virtual servers, after the chains, with their device and the sets that chains match against;
//!                     what established connections need stays until they end
//! ```
//! `names.rs` has the names that kube-proxy uses, `removal.rs` decides which chains can be removed. Rules of other
//! programs stay, even in the same chains.

mod iptables_legacy;
mod iptables_nft;
mod ipvs;
mod names;
mod nftables;
mod removal;
mod xtables_lock;

use std::fmt::Display;

use ferroxy_dataplane::capability::leftovers::{Established, Leftovers};

use ipvs::VirtualServers;
use names::Spared;

/// A netfilter mode of Ferroxy. Its own objects are no leftovers while it is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    Nftables,
    Iptables,
    Ipvs,
    /// Userspace mode with the chains of kube-proxy's own userspace mode.
    Portals,
}

/// Removes what was left, except for the objects of the mode in force. With no mode in force, everything is removed. If
/// one object cannot be removed, the others are removed nevertheless.
pub fn remove(in_force: Option<Own>, established: Established) -> Leftovers {
    let mut report = Leftovers::default();
    nftables::remove(in_force, &mut report);
    let servers = VirtualServers::find(in_force, established);
    // If we cannot find out whether the guard chain is needed, it stays.
    let guard = servers.as_ref().map_or(true, VirtualServers::are_needed);
    let spared = Spared { in_force, guard };
    iptables_nft::remove(spared, &mut report);
    iptables_legacy::remove(spared, &mut report);
    match servers {
        Ok(servers) => servers.remove(&mut report),
        Err(error) => failed(&mut report, &error),
    }
    report
}

fn failed(report: &mut Leftovers, error: &impl Display) {
    report.failed.push(error.to_string());
}
