//! Decides which chains and rules of one iptables table to remove. Pure, and the same for both variants of iptables.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{BUILT_IN, Spared, is_leftover};

/// A rule that jumps to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Jump {
    /// Identifies the rule in its table.
    pub(super) rule: u64,
    pub(super) to: String,
}

#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Removal {
    /// Chains to remove, with all their rules.
    pub(super) chains: BTreeSet<String>,
    /// Single rules to remove from chains that stay.
    pub(super) rules: Vec<(String, u64)>,
    /// Chains that stay because another chain that stays jumps to them, each with one such chain.
    pub(super) kept: BTreeMap<String, String>,
}

impl Removal {
    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.rules.is_empty()
    }
}

/// Removes the chains that kube-proxy left, and the rules of built-in chains that jump to them. If a chain of another
/// program jumps to a chain (port mappers of CNI use KUBE-MARK-MASQ), the chain stays, with all chains that it needs.
///
/// `chains` are all chains of the table. `jumps_of` is called only for chains of other programs, and for chains of
/// kube-proxy that stay: kube-proxy may have tens of thousands of chains, and reading the rules of all would take long.
pub(super) fn plan<E>(
    table: &str,
    chains: &[String],
    spared: Spared,
    mut jumps_of: impl FnMut(&str) -> Result<Vec<Jump>, E>,
) -> Result<Removal, E> {
    let names = chains.iter().map(String::as_str);
    let (left, others): (BTreeSet<&str>, BTreeSet<&str>) =
        names.partition(|chain| is_leftover(table, chain, spared));
    let mut removal = Removal::default();
    if left.is_empty() {
        return Ok(removal);
    }
    let mut into_left = |from: &str| -> Result<Vec<Jump>, E> {
        Ok(jumps_of(from)?.into_iter().filter(|jump| left.contains(jump.to.as_str())).collect())
    };
    let mut needed: Vec<(String, String)> = Vec::new();
    for from in others {
        for jump in into_left(from)? {
            if BUILT_IN.contains(&from) {
                removal.rules.push((from.to_owned(), jump.rule));
            } else {
                needed.push((jump.to, from.to_owned()));
            }
        }
    }
    while let Some((chain, by)) = needed.pop() {
        if removal.kept.insert(chain.clone(), by).is_none() {
            needed.extend(into_left(&chain)?.into_iter().map(|jump| (jump.to, chain.clone())));
        }
    }
    let goes = |chain: &&str| !removal.kept.contains_key(*chain);
    removal.chains = left.iter().copied().filter(goes).map(str::to_owned).collect();
    Ok(removal)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::leftovers::Own;

    const SVC: &str = "KUBE-SVC-LOLE4ISW44XBNF3G";

    fn plan(chains: &[&str], jumps: &[(&str, &str)], in_force: Option<Own>) -> Removal {
        let chains: Vec<String> = BUILT_IN.iter().chain(chains).map(ToString::to_string).collect();
        let jumps_of = |from: &str| {
            let of_chain = (0..).zip(jumps).filter(|(_, jump)| jump.0 == from);
            Ok::<_, Infallible>(of_chain.map(|(rule, (_, to))| Jump { rule, to: (*to).into() }).collect())
        };
        super::plan("nat", &chains, Spared { in_force, guard: false }, jumps_of).unwrap()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn chains_are_removed_with_the_rules_that_jump_to_them() {
        let chains = ["KUBE-SERVICES", SVC, "MINE", "KUBE-FIREWALL"];
        let jumps = [
            ("PREROUTING", "MINE"),
            ("PREROUTING", "KUBE-SERVICES"),
            ("KUBE-SERVICES", SVC),
            ("INPUT", "KUBE-FIREWALL"),
        ];
        let removal = plan(&chains, &jumps, Some(Own::Nftables));
        assert_eq!(removal.chains, names(&["KUBE-SERVICES", SVC]));
        assert_eq!(removal.rules, [("PREROUTING".to_owned(), 1)]);
        assert!(removal.kept.is_empty());
        assert!(plan(&chains, &jumps, Some(Own::Iptables)).is_empty());
    }

    #[test]
    fn a_chain_that_others_use_stays_with_the_chains_that_it_needs() {
        let jumps = [
            ("OUTPUT", "KUBE-SERVICES"),
            ("KUBE-SERVICES", SVC),
            ("CNI-DN", SVC),
            (SVC, "KUBE-MARK-MASQ"),
            ("OUTPUT", "KUBE-MARK-MASQ"),
        ];
        let removal = plan(&["KUBE-SERVICES", SVC, "KUBE-MARK-MASQ", "CNI-DN"], &jumps, None);
        assert_eq!(removal.chains, names(&["KUBE-SERVICES"]));
        // Only the foreign chain still sends packets there.
        assert_eq!(removal.rules, [("OUTPUT".to_owned(), 0), ("OUTPUT".to_owned(), 4)]);
        let kept = [("KUBE-MARK-MASQ", SVC), (SVC, "CNI-DN")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(removal.kept, BTreeMap::from(kept));
    }

    #[test]
    fn chains_that_jump_to_each_other_do_not_loop() {
        let jumps = [("MINE", SVC), (SVC, "KUBE-SERVICES"), ("KUBE-SERVICES", SVC)];
        assert_eq!(plan(&["KUBE-SERVICES", SVC, "MINE"], &jumps, None).chains, names(&[]));
    }

    #[test]
    fn without_chains_of_kube_proxy_nothing_is_removed() {
        assert!(plan(&["MINE"], &[("INPUT", "MINE")], None).is_empty());
    }
}
