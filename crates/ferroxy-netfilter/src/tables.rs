//! The nftables tables that more than one mode must know: Ferroxy's own and those of kube-proxy's nftables mode.

use ferroxy_core::Family;
use ferroxy_netlink::nftables as nl;
#[cfg(target_os = "linux")]
use ferroxy_netlink::{error::Error, nftables::Connection};

/// Ferroxy's table, in `ip` and `ip6`. Everything that nftables mode owns in nf_tables is inside it.
pub const OWN: &str = "ferroxy";

/// The table of kube-proxy's nftables mode, in `ip` and `ip6`.
pub const KUBE_PROXY: &str = "kube-proxy";

/// The `nft` word for a family: `ip` or `ip6`.
pub fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

pub fn kernel_family(family: Family) -> nl::Family {
    match family {
        Family::V4 => nl::Family::Ip,
        Family::V6 => nl::Family::Ip6,
    }
}

/// For people: `table ip ferroxy`.
pub fn describe(family: Family, table: &str) -> String {
    format!("table {} {table}", family_word(family))
}

/// The families in which Ferroxy has a table.
#[cfg(target_os = "linux")]
pub fn of_ferroxy(connection: &mut Connection) -> Result<Vec<Family>, Error> {
    let mut found = Vec::new();
    for family in Family::ALL {
        if connection.table(kernel_family(family), OWN)?.is_some() {
            found.push(family);
        }
    }
    Ok(found)
}

/// The families in which kube-proxy has a table.
#[cfg(target_os = "linux")]
pub fn of_kube_proxy(connection: &mut Connection) -> Result<Vec<Family>, Error> {
    let mut found = Vec::new();
    for family in Family::ALL {
        if let Some(table) = connection.table(kernel_family(family), KUBE_PROXY)?
            && (has_comment_of_kube_proxy(&table)
                || has_chains_of_kube_proxy(&connection.chains(kernel_family(family), KUBE_PROXY)?))
        {
            found.push(family);
        }
    }
    Ok(found)
}

/// A table with only the name may belong to another program.
#[cfg(any(test, target_os = "linux"))]
fn has_comment_of_kube_proxy(table: &nl::Table) -> bool {
    table.comment.as_deref() == Some("rules for kube-proxy")
}

/// If the kernel or the tool cannot store a comment, the base chains that translate addresses identify the table.
#[cfg(any(test, target_os = "linux"))]
fn has_chains_of_kube_proxy(chains: &[nl::Chain]) -> bool {
    let has = |name: &str| chains.iter().any(|chain| chain.name == name && chain.hook.is_some());
    ["nat-prerouting", "nat-output", "nat-postrouting"].into_iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_kube_proxy_is_recognised_by_its_comment() {
        let with =
            |comment: Option<&str>| nl::Table { name: KUBE_PROXY.into(), comment: comment.map(Into::into) };
        assert!(has_comment_of_kube_proxy(&with(Some("rules for kube-proxy"))));
        assert!(!has_comment_of_kube_proxy(&with(Some("mine"))));
        assert!(!has_comment_of_kube_proxy(&with(None)));
    }

    #[test]
    fn a_table_of_kube_proxy_is_recognised_by_its_base_chains() {
        let hook = nl::Hook { kind: nl::ChainType::Nat, point: nl::HookPoint::Output, priority: 0 };
        let with = |names: &[&str], hook: Option<nl::Hook>| {
            let chain = |name: &&str| nl::Chain { name: (*name).into(), hook, comment: None };
            has_chains_of_kube_proxy(&names.iter().map(chain).collect::<Vec<_>>())
        };
        let all = ["filter-input", "nat-output", "nat-prerouting", "nat-postrouting"];
        assert!(with(&all, Some(hook)));
        assert!(!with(&all, None), "chains without a hook are another program's");
        assert!(!with(&["nat-output", "nat-prerouting"], Some(hook)));
        assert!(!with(&["input"], Some(hook)));
    }

    #[test]
    fn tables_are_described_as_nft_names_them() {
        assert_eq!(
            Family::ALL.map(|family| describe(family, OWN)),
            ["table ip ferroxy", "table ip6 ferroxy"]
        );
    }
}
