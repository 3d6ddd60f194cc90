//! Which chains and rules of one iptables table go. Pure, and the same for both variants of iptables.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{BUILT_IN, Spared, is_leftover};

/// A rule that leads to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Jump {
    /// Its name in the table, whatever that is.
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
///
/// `chains` are all there are. `jumps_of` is asked for those of others, and for those of kube-proxy's that stay: it has
/// tens of thousands, and most are none of our business before they go.
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
    use crate::dataplane::Mode;

    const SVC: &str = "KUBE-SVC-LOLE4ISW44XBNF3G";

    fn plan(chains: &[&str], jumps: &[(&str, &str)], in_force: Option<Mode>) -> Removal {
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
    fn chains_go_with_the_rules_that_lead_to_them() {
        let chains = ["KUBE-SERVICES", SVC, "MINE", "KUBE-FIREWALL"];
        let jumps = [
            ("PREROUTING", "MINE"),
            ("PREROUTING", "KUBE-SERVICES"),
            ("KUBE-SERVICES", SVC),
            ("INPUT", "KUBE-FIREWALL"),
        ];
        let removal = plan(&chains, &jumps, Some(Mode::Nftables));
        assert_eq!(removal.chains, names(&["KUBE-SERVICES", SVC]));
        assert_eq!(removal.rules, [("PREROUTING".to_owned(), 1)]);
        assert!(removal.kept.is_empty());
        assert!(plan(&chains, &jumps, Some(Mode::Iptables)).is_empty());
    }

    #[test]
    fn what_others_lead_to_stays_with_what_it_needs() {
        let jumps = [
            ("OUTPUT", "KUBE-SERVICES"),
            ("KUBE-SERVICES", SVC),
            ("CNI-DN", SVC),
            (SVC, "KUBE-MARK-MASQ"),
            ("OUTPUT", "KUBE-MARK-MASQ"),
        ];
        let removal = plan(&["KUBE-SERVICES", SVC, "KUBE-MARK-MASQ", "CNI-DN"], &jumps, None);
        assert_eq!(removal.chains, names(&["KUBE-SERVICES"]));
        // Nothing sends packets there but the foreign chain.
        assert_eq!(removal.rules, [("OUTPUT".to_owned(), 0), ("OUTPUT".to_owned(), 4)]);
        let kept = [("KUBE-MARK-MASQ", SVC), (SVC, "CNI-DN")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(removal.kept, BTreeMap::from(kept));
    }

    #[test]
    fn chains_that_lead_to_each_other_end() {
        let jumps = [("MINE", SVC), (SVC, "KUBE-SERVICES"), ("KUBE-SERVICES", SVC)];
        assert_eq!(plan(&["KUBE-SERVICES", SVC, "MINE"], &jumps, None).chains, names(&[]));
    }

    #[test]
    fn nothing_of_kube_proxy_is_nothing_to_do() {
        assert!(plan(&["MINE"], &[("INPUT", "MINE")], None).is_empty());
    }
}
