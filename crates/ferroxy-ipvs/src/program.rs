//! The rules around the virtual servers. They do not depend on Services: the members of sets decide how a packet is treated.
//!
//! ```text
//! nat     PREROUTING, OUTPUT ─▶ KUBE-SERVICES ─┬─▶ KUBE-LOAD-BALANCER ─▶ KUBE-MARK-MASQ
//!                                              └─▶ KUBE-NODE-PORT ─▶ KUBE-MARK-MASQ
//!         POSTROUTING ─▶ KUBE-POSTROUTING         masquerade marked packets, and pods that connect to themselves
//! filter  INPUT   ─▶ KUBE-IPVS-FILTER             refuse unused ports of our addresses
//!         INPUT, FORWARD ─▶ KUBE-PROXY-FIREWALL ─▶ KUBE-SOURCE-RANGES-FIREWALL
//!         INPUT   ─▶ KUBE-NODE-PORT               let health checks in
//!         FORWARD ─▶ KUBE-FORWARD
//!         OUTPUT  ─▶ KUBE-IPVS-OUT-FILTER         load-balancer addresses that the node may not use
//! ```
//!
//! The kernel balances incoming packets after `filter INPUT`, and packets of the node itself between `nat OUTPUT` and `filter
//! OUTPUT`.
//!
//! The original writes a rule only while its set has members. A rule with an empty set matches nothing, so we always keep
//! all rules: adding or removing a Service changes no rule.

use ferroxy_core::intent::{LocalDetector, NodeIntent};
use ferroxy_core::{Family, Protocol};
use ferroxy_iptables::rule::{Comment, Host, Sender};
use ferroxy_iptables::state::{Rules, Table};
use ferroxy_iptables::{State as RuleState, TableName};

use crate::set::Set;
use crate::state::Address;

pub const SERVICES: &str = "KUBE-SERVICES";
pub const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
/// In `nat` and in `filter`.
pub const NODE_PORT: &str = "KUBE-NODE-PORT";
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub const FORWARD: &str = "KUBE-FORWARD";
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
pub const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
pub const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
pub const OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

/// Whether a chain is ours in this mode: created by us or by the original.
pub fn owns(table: TableName, chain: &str) -> bool {
    match table {
        TableName::Mangle => false,
        TableName::Filter => {
            [FORWARD, NODE_PORT, PROXY_FIREWALL, SOURCE_RANGES, IPVS_FILTER, OUT_FILTER].contains(&chain)
        }
        TableName::Nat => [SERVICES, LOAD_BALANCER, NODE_PORT, POSTROUTING, MARK_MASQ].contains(&chain),
    }
}

/// All chains and jumps. Guards ([`guard`]) are added to their chain one by one.
pub fn rules(node: &NodeIntent, mark: u32, families: &[Family]) -> RuleState {
    let mut state = RuleState::default();
    for &family in families {
        let detector = node.family(family).local_detector.as_ref();
        let tables = [
            (TableName::Filter, filter(mark, family, detector)),
            (TableName::Nat, nat(node, mark, family, detector)),
        ];
        state.tables.extend(tables.map(|(name, table)| ((family, name), table)));
    }
    state
}

/// Keeps the node from using a load-balancer address. The node connects to a local address from that same address. The kernel
/// has already balanced the packet, so the rule matches the virtual server instead of the destination.
pub fn guard(address: &Address) -> String {
    let Address { ip, protocol, port } = address;
    format!("-s {} -m ipvs --vproto {} --vaddr {ip} --vport {port} -j DROP", Host(*ip), protocol.number())
}

/// The inverse of [`guard`].
pub fn parse_guard(rule: &str) -> Option<Address> {
    let value = |option: &str| {
        let mut words = rule.split(' ').skip_while(|word| *word != option);
        words.nth(1)
    };
    let protocol = Protocol::from_number(value("--vproto")?.parse().ok()?)?;
    let address =
        Address { ip: value("--vaddr")?.parse().ok()?, protocol, port: value("--vport")?.parse().ok()? };
    (guard(&address) == rule).then_some(address)
}

fn table(chains: Vec<(&str, Rules)>, jumps: Vec<(&str, Rules)>) -> Table {
    let boxed =
        |list: Vec<(&str, Rules)>| list.into_iter().map(|(chain, rules)| (chain.into(), rules)).collect();
    Table { chains: boxed(chains), jumps: boxed(jumps) }
}

fn filter(mark: u32, family: Family, detector: Option<&LocalDetector>) -> Table {
    let access = jump("kubernetes ipvs access filter", IPVS_FILTER);
    let firewall = jump("kube-proxy firewall rules", PROXY_FIREWALL);
    let health = jump("kubernetes health check rules", NODE_PORT);
    let forwarding = jump("kubernetes forwarding rules", FORWARD);
    let out = jump("kubernetes ipvs access filter", OUT_FILTER);
    table(
        vec![
            (FORWARD, forward(mark)),
            (NODE_PORT, health_checks(family)),
            (PROXY_FIREWALL, proxy_firewall(family, detector)),
            (SOURCE_RANGES, source_ranges(family)),
            (IPVS_FILTER, ipvs_filter(family)),
            (OUT_FILTER, Rules::new()),
        ],
        vec![
            ("INPUT", list([access, firewall.clone(), health])),
            ("FORWARD", list([firewall, forwarding])),
            ("OUTPUT", list([out])),
        ],
    )
}

fn nat(node: &NodeIntent, mark: u32, family: Family, detector: Option<&LocalDetector>) -> Table {
    let portals = || list([jump("kubernetes service portals", SERVICES)]);
    let postrouting = list([jump("kubernetes postrouting rules", POSTROUTING)]);
    table(
        vec![
            (SERVICES, services(node, family, detector)),
            (LOAD_BALANCER, load_balancer(family)),
            (NODE_PORT, node_ports(family)),
            (POSTROUTING, self::postrouting(mark, family)),
            (MARK_MASQ, list([format!("-j MARK --set-xmark {mark:#x}/{mark:#x}")])),
        ],
        vec![("PREROUTING", portals()), ("OUTPUT", portals()), ("POSTROUTING", postrouting)],
    )
}

fn services(node: &NodeIntent, family: Family, detector: Option<&LocalDetector>) -> Rules {
    const EXTERNAL: &str = "Kubernetes service external ip + port for masquerade and filter purpose";
    const EXTERNAL_LOCAL: &str = "Kubernetes service external ip + port with externalTrafficPolicy=local";
    // An external IP can be reached in two ways: through this node, and on this node.
    const THROUGH: &str = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT";
    const ON: &str = "-m addrtype --dst-type LOCAL -j ACCEPT";
    let set = |set: Set, flags: &str| matches_set(set, family, flags);
    let external = set(Set::ExternalIp, "dst,dst");
    let external_local = set(Set::ExternalIpLocal, "dst,dst");
    let loopback = if family == Family::V4 { "127.0.0.0/8" } else { "::1/128" };
    // Without a detector only the node can be recognised: it connects to a cluster IP from that cluster IP.
    let (sender, flags) = match detector {
        _ if node.masquerade_all => (Sender::default(), "dst,dst"),
        Some(detector) => (Sender::is_not_pod(detector), "dst,dst"),
        None => (Sender::default(), "src,dst"),
    };
    let Sender { source, interface } = sender;
    list([
        format!("-s {loopback} -j RETURN"),
        format!(
            "{} {} -m addrtype --src-type LOCAL -j {MARK_MASQ}",
            comment("no endpoint on this node: the node itself reaches others"),
            set(Set::NoneLocal, "dst,dst")
        ),
        format!(
            "{} {} -j {LOAD_BALANCER}",
            comment("Kubernetes service lb portal"),
            set(Set::LoadBalancer, "dst,dst")
        ),
        format!(
            "{source}{interface}{} {} -j {MARK_MASQ}",
            comment("Kubernetes service cluster ip + port for masquerade purpose"),
            set(Set::ClusterIp, flags)
        ),
        format!("{} {external} -j {MARK_MASQ}", comment(EXTERNAL)),
        format!("{} {external} {THROUGH}", comment(EXTERNAL)),
        format!("{} {external} {ON}", comment(EXTERNAL)),
        format!("{} {external_local} {THROUGH}", comment(EXTERNAL_LOCAL)),
        format!("{} {external_local} {ON}", comment(EXTERNAL_LOCAL)),
        format!("-m addrtype --dst-type LOCAL -j {NODE_PORT}"),
        format!("{} -j ACCEPT", set(Set::ClusterIp, "dst,dst")),
        format!("{} -j ACCEPT", set(Set::LoadBalancer, "dst,dst")),
    ])
}

fn load_balancer(family: Family) -> Rules {
    let local = matches_set(Set::LoadBalancerLocal, family, "dst,dst");
    let words = comment("Kubernetes service load balancer ip + port with externalTrafficPolicy=local");
    list([format!("{words} {local} -j RETURN"), format!("-j {MARK_MASQ}")])
}

fn node_ports(family: Family) -> Rules {
    let rule = |protocol: Protocol, words: &str, set: Set, target: &str| {
        let flags = if protocol == Protocol::Sctp { "dst,dst" } else { "dst" };
        // Quoted as `iptables-save` prints it.
        let hash = if protocol == Protocol::Sctp { " with type \\'hash ip:port\\'" } else { "" };
        let name = protocol.lowercase().to_uppercase();
        let words = comment(&format!("Kubernetes nodeport {name} port {words}{hash}"));
        format!("-p {protocol} {words} {} -j {target}", matches_set(set, family, flags))
    };
    let local = |protocol, set| rule(protocol, "with externalTrafficPolicy=local", set, "RETURN");
    let all = |protocol, set| rule(protocol, "for masquerade purpose", set, MARK_MASQ);
    list([
        local(Protocol::Tcp, Set::NodePortLocalTcp),
        all(Protocol::Tcp, Set::NodePortTcp),
        local(Protocol::Udp, Set::NodePortLocalUdp),
        all(Protocol::Udp, Set::NodePortUdp),
        local(Protocol::Sctp, Set::NodePortLocalSctp),
        all(Protocol::Sctp, Set::NodePortSctp),
    ])
}

fn postrouting(mark: u32, family: Family) -> Rules {
    let loops = comment("Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose");
    let snat = comment("kubernetes service traffic requiring SNAT");
    list([
        format!("{loops} {} -j MASQUERADE", matches_set(Set::LoopBack, family, "dst,dst,src")),
        format!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"),
        format!("-j MARK --set-xmark {mark:#x}/0x0"),
        format!("{snat} -j MASQUERADE --random-fully"),
    ])
}

fn forward(mark: u32) -> Rules {
    let all = comment("kubernetes forwarding rules");
    let tracked = comment("kubernetes forwarding conntrack rule");
    list([
        format!("{all} -m mark --mark {mark:#x}/{mark:#x} -j ACCEPT"),
        format!("{tracked} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
    ])
}

fn health_checks(family: Family) -> Rules {
    let words = comment("Kubernetes health check node port");
    list([format!("{words} {} -j ACCEPT", matches_set(Set::HealthCheckNodePort, family, "dst"))])
}

fn proxy_firewall(family: Family, detector: Option<&LocalDetector>) -> Rules {
    let Sender { source, interface } = detector.map(Sender::is_not_pod).unwrap_or_default();
    let set = |set: Set| matches_set(set, family, "dst,dst");
    list([
        format!(
            "{source}{interface}{} {} -j DROP",
            comment("no endpoint on this node for traffic from outside"),
            set(Set::NoneLocal)
        ),
        format!(
            "{} {} -j {SOURCE_RANGES}",
            comment("Kubernetes service load balancer ip + port for load balancer with sourceRange"),
            set(Set::LoadBalancerFirewall)
        ),
    ])
}

fn source_ranges(family: Family) -> Rules {
    let rule = |words: &str, set: Set| {
        format!("{} {} -j RETURN", comment(words), matches_set(set, family, "dst,dst,src"))
    };
    list([
        rule(
            "Kubernetes service load balancer ip + port + source cidr for packet filter purpose",
            Set::LoadBalancerSourceCidr,
        ),
        rule(
            "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
            Set::LoadBalancerSourceIp,
        ),
        "-j DROP".into(),
    ])
}

fn ipvs_filter(family: Family) -> Rules {
    let known = |set: Set| format!("{} -j RETURN", matches_set(set, family, "dst,dst"));
    let reject = if family == Family::V4 { "icmp-port-unreachable" } else { "icmp6-port-unreachable" };
    list([
        known(Set::LoadBalancer),
        known(Set::ClusterIp),
        known(Set::ExternalIp),
        known(Set::ExternalIpLocal),
        format!("{} -j RETURN", matches_set(Set::HealthCheckNodePort, family, "dst")),
        format!(
            "-m conntrack --ctstate NEW {} -j REJECT --reject-with {reject}",
            matches_set(Set::IpvsIps, family, "dst")
        ),
    ])
}

fn jump(words: &str, chain: &str) -> String {
    format!("{} -j {chain}", comment(words))
}

fn comment(words: &str) -> Comment {
    Comment::new(format_args!("{words}"))
}

fn matches_set(set: Set, family: Family, flags: &str) -> String {
    format!("-m set --match-set {} {flags}", set.of(family))
}

fn list<const N: usize>(rules: [String; N]) -> Rules {
    rules.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_are_read_back() {
        for ip in ["203.0.113.10", "fd00:b::10"] {
            let address = Address { ip: ip.parse().unwrap(), protocol: Protocol::Udp, port: 53 };
            assert_eq!(parse_guard(&guard(&address)), Some(address));
        }
        assert_eq!(parse_guard("-s 203.0.113.10/32 -j DROP"), None);
        assert_eq!(parse_guard("-m ipvs --vproto 6 --vaddr 203.0.113.10 --vport 80 -j DROP"), None);
    }

    #[test]
    fn every_chain_is_ours() {
        let state = rules(&NodeIntent::default(), 0x4000, &Family::ALL);
        for ((_, name), table) in &state.tables {
            for chain in table.chains.keys() {
                assert!(owns(*name, chain), "{chain}");
            }
        }
    }
}
