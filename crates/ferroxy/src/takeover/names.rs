//! The chains that kube-proxy makes in iptables' tables, by table and by the modes that make them. Only names: those of
//! the kubelet (KUBE-FIREWALL, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT, KUBE-MARK-DROP) are not among them.

use crate::config::Mode::{self, Iptables, Ipvs};

/// The tables it makes chains in.
pub(super) const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// The chains that iptables has by itself. Rules that kube-proxy adds to them lead to its own chains.
pub(super) const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

const CHAINS: [(&str, &str, &[Mode]); 23] = [
    ("nat", "KUBE-SERVICES", &[Iptables, Ipvs]),
    ("nat", "KUBE-POSTROUTING", &[Iptables, Ipvs]),
    ("nat", "KUBE-MARK-MASQ", &[Iptables, Ipvs]),
    ("nat", "KUBE-NODEPORTS", &[Iptables]),
    ("nat", "KUBE-PROXY-CANARY", &[Iptables]),
    ("nat", "KUBE-NODE-PORT", &[Ipvs]),
    ("nat", "KUBE-LOAD-BALANCER", &[Ipvs]),
    ("filter", "KUBE-FORWARD", &[Iptables, Ipvs]),
    ("filter", "KUBE-PROXY-FIREWALL", &[Iptables, Ipvs]),
    ("filter", "KUBE-SERVICES", &[Iptables]),
    ("filter", "KUBE-EXTERNAL-SERVICES", &[Iptables]),
    ("filter", "KUBE-NODEPORTS", &[Iptables]),
    ("filter", "KUBE-PROXY-CANARY", &[Iptables]),
    ("filter", "KUBE-NODE-PORT", &[Ipvs]),
    ("filter", "KUBE-SOURCE-RANGES-FIREWALL", &[Ipvs]),
    ("filter", "KUBE-IPVS-FILTER", &[Ipvs]),
    ("filter", "KUBE-IPVS-OUT-FILTER", &[Ipvs]),
    ("mangle", "KUBE-PROXY-CANARY", &[Iptables]),
    // Of its userspace mode, which is no more.
    ("nat", "KUBE-PORTALS-CONTAINER", &[]),
    ("nat", "KUBE-PORTALS-HOST", &[]),
    ("nat", "KUBE-NODEPORT-CONTAINER", &[]),
    ("nat", "KUBE-NODEPORT-HOST", &[]),
    ("filter", "KUBE-NODEPORT-NON-LOCAL", &[]),
];

/// A chain for each Service port or endpoint, in `nat`, in iptables mode. (XLB: EXT as it was called before 1.24.)
const PREFIXES: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"];

/// Whether a chain is kube-proxy's, and not one that the mode in force makes itself.
pub(super) fn is_leftover(table: &str, chain: &str, in_force: Option<Mode>) -> bool {
    let unused = |modes: &[Mode]| in_force.is_none_or(|mode| !modes.contains(&mode));
    let named = CHAINS.iter().any(|(of, name, modes)| *of == table && *name == chain && unused(modes));
    named || table == "nat" && is_of_a_service(chain) && unused(&[Iptables])
}

/// A prefix, and sixteen letters of a base32 hash.
fn is_of_a_service(chain: &str) -> bool {
    let is_hash =
        |rest: &str| rest.len() == 16 && rest.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'));
    PREFIXES.iter().any(|prefix| chain.strip_prefix(prefix).is_some_and(is_hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chains_of_each_mode_are_left_by_the_others() {
        let cases = [
            ("nat", "KUBE-SERVICES", [true, false, false]),
            ("nat", "KUBE-SVC-LOLE4ISW44XBNF3G", [true, false, true]),
            ("nat", "KUBE-NODEPORTS", [true, false, true]),
            ("nat", "KUBE-NODE-PORT", [true, true, false]),
            ("filter", "KUBE-SERVICES", [true, false, true]),
            ("filter", "KUBE-IPVS-OUT-FILTER", [true, true, false]),
            ("mangle", "KUBE-PROXY-CANARY", [true, false, true]),
            ("nat", "KUBE-PORTALS-HOST", [true, true, true]),
        ];
        for (table, chain, expected) in cases {
            let modes = [Mode::Nftables, Mode::Iptables, Mode::Ipvs];
            let found = modes.map(|mode| is_leftover(table, chain, Some(mode)));
            assert_eq!(found, expected, "{table} {chain}");
            assert!(is_leftover(table, chain, None), "{table} {chain}");
        }
    }

    #[test]
    fn chains_of_others_are_not_kube_proxys() {
        let others = [
            ("filter", "KUBE-FIREWALL"),
            ("mangle", "KUBE-KUBELET-CANARY"),
            ("mangle", "KUBE-IPTABLES-HINT"),
            ("nat", "KUBE-MARK-DROP"),
            ("nat", "KUBE-SVC-mine"),
            ("nat", "KUBE-SVC-LOLE4ISW44XBNF3"),
            ("nat", "KUBE-SVC-LOLE4ISW44XBNF3GX"),
            ("nat", "KUBE-SVC-LOLE4ISW44XBNF31"),
            ("filter", "KUBE-SVC-LOLE4ISW44XBNF3G"),
            ("filter", "KUBE-MARK-MASQ"),
            ("nat", "kube-services"),
            ("nat", "PREROUTING"),
            ("raw", "KUBE-SERVICES"),
        ];
        for (table, chain) in others {
            assert!(!is_leftover(table, chain, None), "{table} {chain}");
        }
    }

    /// Every chain that the original made in the recorded corpus is known, in iptables and in ipvs mode.
    #[test]
    fn every_recorded_chain_is_known() {
        let mut seen = 0;
        for case in ferroxy_lab::conformance::cases().unwrap() {
            for file in ["iptables.rules", "ipvs.rules"] {
                // Not every case was recorded in every mode.
                let rules = std::fs::read_to_string(case.folder.join(file)).unwrap_or_default();
                let mut table = String::new();
                for line in rules.lines() {
                    if let Some(name) = line.strip_prefix('*') {
                        table = name.to_owned();
                    } else if let Some(chain) = line.strip_prefix(':').and_then(|it| it.split(' ').next()) {
                        let is_ours = !BUILT_IN.contains(&chain) && chain != "KUBE-FIREWALL";
                        assert_eq!(
                            is_leftover(&table, chain, None),
                            is_ours,
                            "{}: {table} {chain}",
                            case.name
                        );
                        seen += usize::from(is_ours);
                    }
                }
            }
        }
        assert!(seen > 500, "only {seen} chains");
    }
}
