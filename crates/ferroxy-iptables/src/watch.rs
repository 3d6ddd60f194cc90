//! Watches the chains of the nft variant for changes by other programs: notifications of nf_tables name the changed chain.
//! (Legacy tables send no notifications.) ipvs mode uses this for its rules, too.

use ferroxy_dataplane::Failure;
use ferroxy_dataplane::capability::Notify;
use ferroxy_netfilter::watch::watch;
use ferroxy_netlink::nftables::{Ignorer, Notice};

use crate::program::is_builtin;
use crate::state::TableName;

/// Whether a chain is the mode's own.
pub type Owns = fn(TableName, &str) -> bool;

/// An event that another program caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A change of our chains, or of chains that contain our jumps.
    Ours,
    /// The end of a commit, with the generation after it.
    Commit(u32),
}

/// Calls `seen` for each event, and then `notify` if our chains, or chains that contain our jumps, changed. Changes by
/// processes that are registered with the [`Ignorer`] are left out.
pub fn watch_chains(
    owns: Owns,
    seen: impl Fn(Seen) + Send + 'static,
    notify: Notify,
) -> Result<Ignorer, Failure> {
    let report = move |notice: &Notice| match notice {
        Notice::Changed { family: Some(_), table, what, chain, .. } => {
            let is_ours = concerns_us(owns, table, what, chain.as_deref());
            if is_ours {
                seen(Seen::Ours);
            }
            is_ours.then_some("another program changed our chains, or chains that jump to them")
        }
        Notice::Generation { id, .. } => {
            seen(Seen::Commit(*id));
            None
        }
        _ => None,
    };
    Ok(watch(report, notify)?.ignorer)
}

fn concerns_us(owns: Owns, table: &str, what: &str, chain: Option<&str>) -> bool {
    let Some(table) = TableName::parse(table) else { return false };
    chain.map_or(what == "table", |chain| owns(table, chain) || is_builtin(chain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::owns;

    #[test]
    fn chains_of_others_are_ignored() {
        for (table, what, chain, expected) in [
            ("nat", "rule", Some("KUBE-SERVICES"), true),
            ("nat", "rule", Some("PREROUTING"), true),
            ("nat", "chain", Some("KUBE-SVC-LOLE4ISW44XBNF3G"), true),
            ("filter", "rule", Some("KUBE-IPVS-FILTER"), false),
            ("filter", "table", None, true),
            ("nat", "rule", Some("CNI-DN-0123456789"), false),
            ("nat", "set", None, false),
            ("raw", "table", None, false),
            ("mine", "rule", Some("PREROUTING"), false),
        ] {
            assert_eq!(concerns_us(owns, table, what, chain), expected, "{table} {what} {chain:?}");
        }
    }
}
