//! The tables that kube-proxy's own nftables mode has left: recognised here, so that they can go in the transaction that
//! brings ours. Other modes of kube-proxy are not this crate's business.

use ferroxy_core::Family;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{self as nl, Connection};

use crate::plan::{Action, Op};
use crate::rule::kernel_family;

/// Its name, in `ip` and `ip6`.
pub const TABLE: &str = "kube-proxy";

const COMMENT: &str = "rules for kube-proxy";
/// Its base chains that translate addresses. They are recognised where the kernel or the tool could not keep a comment.
const NAT_CHAINS: [&str; 3] = ["nat-prerouting", "nat-output", "nat-postrouting"];

/// The families with a table of kube-proxy's.
pub fn tables(connection: &mut Connection) -> Result<Vec<Family>, Error> {
    let mut found = Vec::new();
    for family in Family::ALL {
        if let Some(table) = connection.table(kernel_family(family), TABLE)?
            && is_kube_proxys(&table, || connection.chains(kernel_family(family), TABLE))?
        {
            found.push(family);
        }
    }
    Ok(found)
}

/// Removes them: after all else in a Plan, so that they are in force until ours are.
pub fn removal(families: &[Family]) -> impl Iterator<Item = Op> {
    families.iter().map(|family| Op { family: *family, action: Action::RemovePredecessor })
}

/// A name can be anybody's: it must look like kube-proxy's inside, too.
fn is_kube_proxys(
    table: &nl::Table,
    chains: impl FnOnce() -> Result<Vec<nl::Chain>, Error>,
) -> Result<bool, Error> {
    if table.comment.as_deref() == Some(COMMENT) {
        return Ok(true);
    }
    let chains = chains()?;
    let has = |name: &&str| chains.iter().any(|chain| chain.name == **name && chain.hook.is_some());
    Ok(NAT_CHAINS.iter().all(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(comment: Option<&str>, chains: &[&str]) -> bool {
        let table = nl::Table { name: TABLE.into(), comment: comment.map(Into::into) };
        let hook = nl::Hook { kind: nl::ChainType::Nat, point: nl::HookPoint::Output, priority: 0 };
        let chain = |name: &&str| nl::Chain { name: (*name).into(), hook: Some(hook), comment: None };
        is_kube_proxys(&table, || Ok(chains.iter().map(chain).collect())).unwrap()
    }

    #[test]
    fn a_table_is_known_by_its_comment_or_by_its_chains() {
        assert!(judge(Some(COMMENT), &[]));
        assert!(judge(None, &["filter-input", "nat-output", "nat-prerouting", "nat-postrouting"]));
        assert!(!judge(None, &["nat-output", "nat-prerouting"]));
        assert!(!judge(Some("mine"), &["input"]));
    }
}
