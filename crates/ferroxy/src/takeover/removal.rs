//! Which chains and rules of one iptables table go. Pure, and the same for both variants of iptables.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{BUILT_IN, is_leftover};
use crate::config::Mode;

/// What matters of a table: its chains, and the rules that lead to them.
#[derive(Debug, Default)]
pub(super) struct Ruleset {
    /// Those that iptables has not built in.
    pub(super) chains: Vec<String>,
    pub(super) jumps: Vec<Jump>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Jump {
    pub(super) from: String,
    /// The rule's name in its table, whatever that is.
    pub(super) rule: u64,
    pub(super) to: String,
}

#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Removal {
    /// With all their rules.
    pub(super) chains: BTreeSet<String>,
    /// Rules of chains that stay.
    pub(super) rules: Vec<(String, u64)>,
    /// Chains that would go if no foreign chain led to them, and one such chain for each.
    pub(super) kept: BTreeMap<String, String>,
}

impl Removal {
    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.rules.is_empty()
    }
}

/// The chains that kube-proxy left go, and the rules of built-in chains that lead to them. A chain that somebody else's
/// chain leads to (port mappers of CNI use KUBE-MARK-MASQ) stays, with all that it needs.
pub(super) fn plan(table: &str, ruleset: &Ruleset, in_force: Option<Mode>) -> Removal {
    let left: BTreeSet<&str> = ruleset
        .chains
        .iter()
        .map(String::as_str)
        .filter(|chain| is_leftover(table, chain, in_force))
        .collect();
    let kept = needed_by_others(&left, &ruleset.jumps);
    let chains = left.iter().filter(|chain| !kept.contains_key(**chain)).map(ToString::to_string).collect();
    let goes = |jump: &&Jump| BUILT_IN.contains(&jump.from.as_str()) && left.contains(jump.to.as_str());
    let rules = ruleset.jumps.iter().filter(goes).map(|jump| (jump.from.clone(), jump.rule)).collect();
    let kept = kept.into_iter().map(|(chain, by)| (chain.to_owned(), by.to_owned())).collect();
    Removal { chains, rules, kept }
}

/// Those of the chains that a foreign chain leads to, directly or through others of them; with the one that does.
fn needed_by_others<'a>(left: &BTreeSet<&str>, jumps: &'a [Jump]) -> BTreeMap<&'a str, &'a str> {
    let is_foreign = |chain: &str| !left.contains(chain) && !BUILT_IN.contains(&chain);
    let into_left = |jump: &&Jump| left.contains(jump.to.as_str());
    let mut from: BTreeMap<&str, Vec<&Jump>> = BTreeMap::new();
    for jump in jumps.iter().filter(into_left) {
        from.entry(&jump.from).or_default().push(jump);
    }
    let mut needed: BTreeMap<&str, &str> = BTreeMap::new();
    let mut to_follow: Vec<&Jump> =
        jumps.iter().filter(into_left).filter(|jump| is_foreign(&jump.from)).collect();
    while let Some(jump) = to_follow.pop() {
        if needed.insert(&jump.to, &jump.from).is_none() {
            to_follow.extend(from.get(jump.to.as_str()).into_iter().flatten());
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVC: &str = "KUBE-SVC-LOLE4ISW44XBNF3G";

    fn ruleset(chains: &[&str], jumps: &[(&str, &str)]) -> Ruleset {
        let jump =
            |(rule, (from, to)): (u64, &(&str, &str))| Jump { from: (*from).into(), rule, to: (*to).into() };
        Ruleset {
            chains: chains.iter().map(ToString::to_string).collect(),
            jumps: (0..).zip(jumps).map(jump).collect(),
        }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn chains_go_with_the_rules_that_lead_to_them() {
        let ruleset = ruleset(
            &["KUBE-SERVICES", SVC, "MINE", "KUBE-FIREWALL"],
            &[
                ("PREROUTING", "MINE"),
                ("PREROUTING", "KUBE-SERVICES"),
                ("KUBE-SERVICES", SVC),
                ("INPUT", "KUBE-FIREWALL"),
            ],
        );
        let removal = plan("nat", &ruleset, Some(Mode::Nftables));
        assert_eq!(removal.chains, names(&["KUBE-SERVICES", SVC]));
        assert_eq!(removal.rules, [("PREROUTING".to_owned(), 1)]);
        assert!(removal.kept.is_empty());
        assert!(plan("nat", &ruleset, Some(Mode::Iptables)).is_empty());
    }

    #[test]
    fn what_others_lead_to_stays_with_what_it_needs() {
        let ruleset = ruleset(
            &["KUBE-SERVICES", SVC, "KUBE-MARK-MASQ", "CNI-DN"],
            &[
                ("OUTPUT", "KUBE-SERVICES"),
                ("KUBE-SERVICES", SVC),
                ("CNI-DN", SVC),
                (SVC, "KUBE-MARK-MASQ"),
                ("OUTPUT", "KUBE-MARK-MASQ"),
            ],
        );
        let removal = plan("nat", &ruleset, None);
        assert_eq!(removal.chains, names(&["KUBE-SERVICES"]));
        // Nothing sends packets there but the foreign chain.
        assert_eq!(removal.rules, [("OUTPUT".to_owned(), 0), ("OUTPUT".to_owned(), 4)]);
        let kept = [("KUBE-MARK-MASQ", SVC), (SVC, "CNI-DN")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(removal.kept, BTreeMap::from(kept));
    }

    #[test]
    fn chains_that_lead_to_each_other_end() {
        let ruleset = ruleset(
            &["KUBE-SERVICES", SVC, "MINE"],
            &[("MINE", SVC), (SVC, "KUBE-SERVICES"), ("KUBE-SERVICES", SVC)],
        );
        assert_eq!(plan("nat", &ruleset, None).chains, names(&[]));
    }

    #[test]
    fn nothing_of_kube_proxy_is_nothing_to_do() {
        assert!(plan("nat", &ruleset(&["MINE"], &[("INPUT", "MINE")]), None).is_empty());
    }
}
