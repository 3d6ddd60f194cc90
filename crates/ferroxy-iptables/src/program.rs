//! The chains that do not depend on Services, the jumps into them, and which chains are ours.
//!
//! ```text
//! nat     PREROUTING, OUTPUT ─▶ KUBE-SERVICES ─┬─▶ KUBE-SVC-… KUBE-SVL-…        cluster IPs
//!                                              ├─▶ KUBE-EXT-…                   external and load-balancer IPs
//!                                              ├─▶ KUBE-FW-… ─▶ KUBE-EXT-…      the same with source ranges
//!                                              └─▶ KUBE-NODEPORTS ─▶ KUBE-EXT-… node ports
//!         KUBE-EXT-… ─▶ KUBE-SVC-…, KUBE-SVL-… ─▶ KUBE-SEP-… one for each endpoint: translate
//!         POSTROUTING ─▶ KUBE-POSTROUTING         masquerade packets that KUBE-MARK-MASQ marked
//! filter  INPUT, FORWARD, OUTPUT ─▶ KUBE-FIREWALL, KUBE-PROXY-FIREWALL, KUBE-NODEPORTS (health checks),
//!                                   KUBE-FORWARD, KUBE-SERVICES, KUBE-EXTERNAL-SERVICES: refuse packets without endpoint
//! mangle  KUBE-PROXY-CANARY       empty; missing after another program flushed the tables
//! ```

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::{Family, NodeIntent};

use crate::name;
use crate::rule::{Comment, Host};
use crate::state::{Rules, TableName};

pub const SERVICES: &str = "KUBE-SERVICES";
pub const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
pub const FORWARD: &str = "KUBE-FORWARD";
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub const CANARY: &str = "KUBE-PROXY-CANARY";
/// The kubelet has this chain too, with the same rule. See [`is_shared`].
pub const FIREWALL: &str = "KUBE-FIREWALL";

/// What the rules depend on besides the Intent: the mode's settings, and what the host can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// The bit of the packet mark that requests masquerading, as a mask.
    pub masquerade_mark: u32,
    /// The counters of [`COUNTERS`] exist in the kernel.
    pub nfacct: bool,
    /// `nf_conntrack_tcp_be_liberal`: connection tracking accepts TCP segments outside the window.
    pub tcp_be_liberal: bool,
}

/// The default mark, on a host without counters.
impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { masquerade_mark: 1 << 14, nfacct: false, tcp_be_liberal: false }
    }
}

pub(crate) const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
pub(crate) const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";

/// The nfacct counters that rules refer to; they must exist before the rules do.
pub const COUNTERS: [&str; 2] = [INVALID_DROPPED, LOCALHOST_ACCEPTED];

/// Chains that have rules of all Services, in the order of the Services' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dispatch {
    /// nat: to the chains of cluster, external and load-balancer IPs. The rules of [`dispatch_tail`] follow them.
    Services,
    /// nat: to the chains of node ports.
    NodePorts,
    /// filter: cluster IPs without endpoints.
    Refused,
    /// filter: external addresses and node ports without endpoints.
    ExternalRefused,
    /// filter: health-check node ports.
    HealthChecks,
    /// filter: load-balancer IPs with source ranges.
    Firewall,
}

impl Dispatch {
    pub const ALL: [Dispatch; 6] = [
        Dispatch::Services,
        Dispatch::NodePorts,
        Dispatch::Refused,
        Dispatch::ExternalRefused,
        Dispatch::HealthChecks,
        Dispatch::Firewall,
    ];

    pub fn table(self) -> TableName {
        match self {
            Dispatch::Services | Dispatch::NodePorts => TableName::Nat,
            _ => TableName::Filter,
        }
    }

    pub fn chain(self) -> &'static str {
        match self {
            Dispatch::Services | Dispatch::Refused => SERVICES,
            Dispatch::NodePorts | Dispatch::HealthChecks => NODE_PORTS,
            Dispatch::ExternalRefused => EXTERNAL_SERVICES,
            Dispatch::Firewall => PROXY_FIREWALL,
        }
    }
}

/// Whether a chain is ours: created by us or by kube-proxy, and removed by cleanup.
pub fn owns(table: TableName, chain: &str) -> bool {
    const OF_A_SERVICE: [&str; 5] =
        [name::CLUSTER, name::LOCAL, name::EXTERNAL, name::FIREWALL, name::ENDPOINT];
    match table {
        TableName::Mangle => chain == CANARY,
        TableName::Filter => {
            [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL, CANARY, FIREWALL]
                .contains(&chain)
        }
        TableName::Nat => {
            [SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ, CANARY].contains(&chain)
                || OF_A_SERVICE.iter().any(|prefix| chain.starts_with(prefix))
        }
    }
}

/// A chain that the kubelet uses, too. If we have a rule for it, we write that rule; otherwise we leave the chain and the
/// jumps to it as they are. We never remove it.
pub fn is_shared(chain: &str) -> bool {
    chain == FIREWALL
}

pub fn is_builtin(chain: &str) -> bool {
    ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"].contains(&chain)
}

/// Our jumps in the host's chains, top-down.
pub fn jumps() -> [(TableName, &'static str, Rules); 6] {
    use TableName::{Filter, Nat};
    const NEW: &str = "-m conntrack --ctstate NEW ";
    let all = |words: &str, chain: &str| format!("-m comment --comment \"kubernetes {words}\" -j {chain}");
    let new = |words: &str, chain: &str| format!("{NEW}{}", all(words, chain));
    let firewall = || format!("-j {FIREWALL}");
    let balancers = || new("load balancer firewall", PROXY_FIREWALL);
    let portals = || new("service portals", SERVICES);
    let visible = || new("externally-visible service portals", EXTERNAL_SERVICES);
    let health = || all("health check service ports", NODE_PORTS);
    let rules = |rules: &[String]| rules.iter().map(String::as_str).collect();
    [
        (Filter, "INPUT", rules(&[firewall(), balancers(), health(), visible()])),
        (Filter, "FORWARD", rules(&[balancers(), all("forwarding rules", FORWARD), portals(), visible()])),
        (Filter, "OUTPUT", rules(&[firewall(), balancers(), portals()])),
        (Nat, "PREROUTING", rules(&[all("service portals", SERVICES)])),
        (Nat, "OUTPUT", rules(&[all("service portals", SERVICES)])),
        (Nat, "POSTROUTING", rules(&[all("postrouting rules", POSTROUTING)])),
    ]
}

/// The chains that always exist, without any Service in them.
pub fn chains(
    node: &NodeIntent,
    parameters: Parameters,
    family: Family,
) -> Vec<(TableName, &'static str, Rules)> {
    use TableName::{Filter, Mangle, Nat};
    let mark = parameters.masquerade_mark;
    let mut chains = vec![
        (Mangle, CANARY, Rules::new()),
        (Filter, CANARY, Rules::new()),
        (Nat, CANARY, Rules::new()),
        (Filter, FIREWALL, firewall(node, family)),
        (Filter, FORWARD, forward(parameters)),
        (Nat, MARK_MASQ, mark_masq(mark)),
        (Nat, POSTROUTING, postrouting(mark)),
    ];
    for dispatch in Dispatch::ALL {
        chains.push((dispatch.table(), dispatch.chain(), dispatch_tail(dispatch, node, family)));
    }
    chains
}

/// The rules after those of the Services: the jump to the node ports.
pub fn dispatch_tail(dispatch: Dispatch, node: &NodeIntent, family: Family) -> Rules {
    let mut rules = Rules::new();
    if dispatch != Dispatch::Services {
        return rules;
    }
    let intent = node.family(family);
    let comment = Comment::new(format_args!(
        "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
    ));
    match &intent.node_port_addresses {
        NodePortAddresses::AllLocal => {
            let but_loopback = match family {
                Family::V4 if intent.node_ports_on_loopback => "",
                Family::V4 => "! -d 127.0.0.0/8 ",
                Family::V6 => "! -d ::1/128 ",
            };
            rules.push(format_args!("{but_loopback}{comment} -m addrtype --dst-type LOCAL -j {NODE_PORTS}"));
        }
        NodePortAddresses::These(addresses) => {
            for address in addresses {
                rules.push(format_args!("-d {} {comment} -j {NODE_PORTS}", Host(*address)));
            }
        }
    }
    rules
}

/// Node ports on loopback addresses need `route_localnet`, which would let neighbours reach the host's loopback services.
fn firewall(node: &NodeIntent, family: Family) -> Rules {
    let mut rules = Rules::new();
    if node.family(family).node_ports_on_loopback {
        let comment = Comment::new(format_args!("block incoming localnet connections"));
        rules.push(format_args!(
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 {comment} -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
        ));
    }
    rules
}

fn forward(parameters: Parameters) -> Rules {
    let mark = parameters.masquerade_mark;
    let mut rules = Rules::new();
    if !parameters.tcp_be_liberal {
        // Connection tracking does not translate an invalid packet back: its receiver would answer with a reset.
        let counter = counted_by(parameters, INVALID_DROPPED);
        rules.push(format_args!("-m conntrack --ctstate INVALID {counter}-j DROP"));
    }
    let comment = Comment::new(format_args!("kubernetes forwarding rules"));
    rules.push(format_args!("{comment} -m mark --mark {mark:#x}/{mark:#x} -j ACCEPT"));
    let comment = Comment::new(format_args!("kubernetes forwarding conntrack rule"));
    rules.push(format_args!("{comment} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"));
    rules
}

/// `-m nfacct …` where there are counters. `iptables-save` prints two spaces before the name.
pub(crate) fn counted_by(parameters: Parameters, counter: &str) -> String {
    if parameters.nfacct { format!("-m nfacct --nfacct-name  {counter} ") } else { String::new() }
}

fn mark_masq(mark: u32) -> Rules {
    let mut rules = Rules::new();
    rules.push(format_args!("-j MARK --set-xmark {mark:#x}/{mark:#x}"));
    rules
}

fn postrouting(mark: u32) -> Rules {
    let mut rules = Rules::new();
    rules.push(format_args!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"));
    // Clears the mark, so that a packet that passes again (encapsulated, for example) is not masqueraded twice.
    rules.push(format_args!("-j MARK --set-xmark {mark:#x}/0x0"));
    let comment = Comment::new(format_args!("kubernetes service traffic requiring SNAT"));
    rules.push(format_args!("{comment} -j MASQUERADE --random-fully"));
    rules
}
