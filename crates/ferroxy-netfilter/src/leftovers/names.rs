//! The names that kube-proxy uses: its chains in the tables of iptables, by the modes that create them, and the sets and the
//! device of its ipvs mode. Chains of the kubelet (KUBE-FIREWALL, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT, KUBE-MARK-DROP) are
//! not among them.

use super::Own::{self, Iptables, Ipvs, Portals};

/// The tables in which kube-proxy creates chains.
pub(super) const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// The built-in chains of iptables. The rules that kube-proxy adds to them jump to its own chains.
pub(super) const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

const CHAINS: [(&str, &str, &[Own]); 23] = [
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
    // Chains of kube-proxy's former userspace mode, and of ours.
    ("nat", "KUBE-PORTALS-CONTAINER", &[Portals]),
    ("nat", "KUBE-PORTALS-HOST", &[Portals]),
    ("nat", "KUBE-NODEPORT-CONTAINER", &[Portals]),
    ("nat", "KUBE-NODEPORT-HOST", &[Portals]),
    ("filter", "KUBE-NODEPORT-NON-LOCAL", &[Portals]),
];

/// Chains for one Service port or endpoint, in `nat`, in iptables mode. (XLB is the name of EXT before 1.24.)
const PREFIXES: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"];

/// The device of ipvs mode that carries the addresses of Services.
pub(super) const DEVICE: &str = "kube-ipvs0";

/// The sets of ipvs mode, without the prefix `KUBE-`, or `KUBE-6-` for IPv6.
const SETS: [&str; 17] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
];

/// Additional sets of Ferroxy's ipvs mode. The last one exists only while one set replaces another.
const OWN_SETS: [&str; 3] = ["NONE-LOCAL", "DROPPED", "REPLACEMENT"];

/// The chain of ipvs mode that rejects packets to addresses of [`DEVICE`] at ports without a virtual server, so that they do
/// not reach programs of the host.
const GUARD: (&str, &str) = ("filter", "KUBE-IPVS-FILTER");

/// Objects with kube-proxy's names that stay.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spared {
    /// The objects that this mode creates itself.
    pub(super) in_force: Option<Own>,
    /// The chain that guards the addresses of [`DEVICE`], while some of them stay.
    pub(super) guard: bool,
}

/// The longest name that a set can have. kube-proxy truncates the two that are longer.
const LONGEST_SET_NAME: usize = 31;

/// Whether a chain is kube-proxy's and unused: no mode in force creates it, and it is not the guard that is spared.
pub(super) fn is_leftover(table: &str, chain: &str, spared: Spared) -> bool {
    if spared.guard && (table, chain) == GUARD {
        return false;
    }
    let unused = |modes: &[Own]| spared.in_force.is_none_or(|mode| !modes.contains(&mode));
    let named = CHAINS.iter().any(|(of, name, modes)| *of == table && *name == chain && unused(modes));
    named || table == "nat" && is_of_a_service(chain) && unused(&[Iptables])
}

/// Whether ipvs mode creates a set of this name.
pub(super) fn is_set(name: &str) -> bool {
    let is_one = |prefix: &str, set: &str| {
        let whole = format!("{prefix}{set}");
        whole.get(..LONGEST_SET_NAME).unwrap_or(&whole) == name
    };
    SETS.iter().chain(&OWN_SETS).any(|set| is_one("KUBE-", set) || is_one("KUBE-6-", set))
}

/// Whether a set of node ports is for IPv6, and its protocol. `None` for other sets.
pub(super) fn node_port_protocol(set: &str) -> Option<(bool, u8)> {
    let six = set.starts_with("KUBE-6-");
    let protocol = match set.strip_prefix(if six { "KUBE-6-" } else { "KUBE-" })? {
        "NODE-PORT-TCP" | "NODE-PORT-LOCAL-TCP" => libc::IPPROTO_TCP,
        "NODE-PORT-UDP" | "NODE-PORT-LOCAL-UDP" => libc::IPPROTO_UDP,
        _ => return None,
    };
    Some((six, protocol as u8))
}

/// A prefix and sixteen characters of a base32 hash.
fn is_of_a_service(chain: &str) -> bool {
    let is_hash =
        |rest: &str| rest.len() == 16 && rest.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'));
    PREFIXES.iter().any(|prefix| chain.strip_prefix(prefix).is_some_and(is_hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_force(mode: Own) -> Spared {
        Spared { in_force: Some(mode), guard: false }
    }

    #[test]
    fn the_guard_chain_stays_while_it_is_needed() {
        let guarding = Spared { guard: true, ..in_force(Own::Nftables) };
        assert!(!is_leftover("filter", "KUBE-IPVS-FILTER", guarding));
        assert!(is_leftover("filter", "KUBE-IPVS-FILTER", in_force(Own::Nftables)));
        assert!(is_leftover("filter", "KUBE-IPVS-OUT-FILTER", guarding));
    }

    #[test]
    fn chains_of_a_mode_are_leftovers_in_other_modes() {
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
            let modes = [Own::Nftables, Own::Iptables, Own::Ipvs];
            let found = modes.map(|mode| is_leftover(table, chain, in_force(mode)));
            assert_eq!(found, expected, "{table} {chain}");
            assert!(is_leftover(table, chain, Spared::default()), "{table} {chain}");
        }
    }

    #[test]
    fn chains_of_others_are_no_leftovers() {
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
            assert!(!is_leftover(table, chain, Spared::default()), "{table} {chain}");
        }
    }

    #[test]
    fn sets_are_recognised_by_their_exact_names() {
        for set in
            ["KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-IPVS-IPS"]
        {
            assert!(is_set(set), "{set}");
        }
        for other in
            ["KUBE-", "KUBE-MINE", "CLUSTER-IP", "KUBE-CLUSTER-IP2", "KUBE-6-LOAD-BALANCER-SOURCE-CIDR"]
        {
            assert!(!is_set(other), "{other}");
        }
        assert_eq!(node_port_protocol("KUBE-6-NODE-PORT-LOCAL-UDP"), Some((true, 17)));
        assert_eq!(node_port_protocol("KUBE-NODE-PORT-TCP"), Some((false, 6)));
        assert_eq!(node_port_protocol("KUBE-HEALTH-CHECK-NODE-PORT"), None);
    }

    /// The list has exactly the sets that kube-proxy created in the recorded corpus.
    #[test]
    fn every_recorded_set_is_known() {
        let mut seen = std::collections::BTreeSet::new();
        for case in ferroxy_lab::conformance::cases().unwrap() {
            let rules = std::fs::read_to_string(case.folder.join("ipvs.rules")).unwrap_or_default();
            for line in rules.lines() {
                let Some(name) = line.strip_prefix("create ").and_then(|rest| rest.split(' ').next()) else {
                    continue;
                };
                assert!(is_set(name), "{}: {name}", case.name);
                seen.insert(name.to_owned());
            }
        }
        let v4 = seen.iter().filter(|name| !name.starts_with("KUBE-6-")).count();
        assert_eq!(v4, SETS.len(), "{seen:?}");
    }

    /// The list has every chain that kube-proxy created in the recorded corpus, in iptables and in ipvs mode.
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
                            is_leftover(&table, chain, Spared::default()),
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
