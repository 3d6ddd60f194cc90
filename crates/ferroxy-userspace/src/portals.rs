//! The rules of kube-proxy's own userspace mode (until 1.25), letter by letter: the `KUBE-PORTALS-…` and `KUBE-NODEPORT-…` chains.
//!
//! These rules ignore policies, source ranges and endpoints: all packets to a frontend go to the one listener of its Service
//! port. A port without endpoints has no listener, so the host refuses. A family without Services has no chains.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::intent::{FrontendKind, NodePortAddresses};
use ferroxy_core::{Family, Frontend, Intent, PortIntent, Protocol, ServiceIntent};
use ferroxy_iptables::rule::{Comment, Host, words};
use ferroxy_iptables::state::{Rules, Table};
use ferroxy_iptables::{State, TableName};

use crate::fragment::{Scene, pool_key};
use crate::ports::CLUSTER;

const PORTALS_CONTAINER: &str = "KUBE-PORTALS-CONTAINER";
const PORTALS_HOST: &str = "KUBE-PORTALS-HOST";
const NODE_PORT_CONTAINER: &str = "KUBE-NODEPORT-CONTAINER";
const NODE_PORT_HOST: &str = "KUBE-NODEPORT-HOST";
const NON_LOCAL: &str = "KUBE-NODEPORT-NON-LOCAL";

/// Whether a chain is one of this mode.
pub fn owns(table: TableName, chain: &str) -> bool {
    match table {
        TableName::Nat => {
            [PORTALS_CONTAINER, PORTALS_HOST, NODE_PORT_CONTAINER, NODE_PORT_HOST].contains(&chain)
        }
        TableName::Filter => chain == NON_LOCAL,
        TableName::Mangle => false,
    }
}

/// The ports that these rules lead to, by family, name of the Service port (as in the comment) and protocol.
pub fn known_ports(seen: &State) -> BTreeMap<(Family, String, Protocol), u16> {
    let mut known = BTreeMap::new();
    for ((family, _), table) in seen.tables.iter().filter(|((_, table), _)| *table == TableName::Nat) {
        let chains = [PORTALS_CONTAINER, NODE_PORT_CONTAINER].map(|chain| table.chains.get(chain));
        for rule in chains.into_iter().flatten().flat_map(Rules::iter) {
            let words: Vec<&str> = words(rule).collect();
            let after = |option: &str| {
                let at = words.iter().position(|word| *word == option)?;
                words.get(at + 1).copied()
            };
            let target = after("--to-ports").or_else(|| after("--to-destination")?.rsplit(':').next());
            let port = target.and_then(|port| port.parse().ok());
            let protocol = after("-p").and_then(Protocol::parse);
            if let (Some(port), Some(name), Some(protocol)) = (port, after("--comment"), protocol) {
                known.insert((*family, name.to_owned(), protocol), port);
            }
        }
    }
    known
}

/// The rules for all Services that the proxy can serve and that have a port.
pub fn render(intent: &Intent, scene: &Scene<'_>, families: &[Family]) -> State {
    let mut state = State::default();
    for family in families {
        let mut chains = Chains::default();
        for service in intent.services.values() {
            for port in service.ports.iter().filter(|port| port.family == *family) {
                chains.port(service, port, scene);
            }
        }
        if !chains.is_empty() {
            state.tables.insert((*family, TableName::Nat), chains.nat());
            state.tables.insert((*family, TableName::Filter), chains.filter());
        }
    }
    state
}

#[derive(Default)]
struct Chains {
    portals_container: Rules,
    portals_host: Rules,
    node_port_container: Rules,
    node_port_host: Rules,
    non_local: Rules,
}

/// Where the rules lead: the target for packets of other hosts and pods, and the target for packets of this host.
struct Target {
    others: String,
    host: Option<String>,
}

impl Chains {
    fn is_empty(&self) -> bool {
        self.portals_container.is_empty() && self.node_port_container.is_empty()
    }

    fn port(&mut self, service: &ServiceIntent, port: &PortIntent, scene: &Scene<'_>) {
        let number = scene.ports.get(&pool_key(service, port, CLUSTER));
        let (Some(number), false) = (number, port.protocol == Protocol::Sctp) else { return };
        let name = service.name.port(&port.name);
        let comment = Comment::new(format_args!("{name}"));
        let target = target(scene, port.family, number);
        for frontend in &port.frontends {
            let at = format!("-p {0} {comment} -m {0} --dport", port.protocol);
            match frontend.address {
                Some(address) => self.portal(frontend, address, &at, &target),
                None => {
                    let matches = format!("{at} {}", frontend.port);
                    self.node_port_container.push(format_args!("{matches} -j {}", target.others));
                    if let Some(host) = &target.host {
                        self.node_port_host.push(format_args!("{matches} -j {host}"));
                    }
                    self.non_local.push(format_args!("{at} {number} -m state --state NEW -j ACCEPT"));
                }
            }
        }
    }

    fn portal(&mut self, frontend: &Frontend, address: IpAddr, at: &str, target: &Target) {
        let matches = format!("-d {} {at} {}", Host(address), frontend.port);
        let others = &target.others;
        let local = "-m addrtype --dst-type LOCAL";
        if frontend.kind == FrontendKind::ExternalIp {
            self.portals_container.push(format_args!("{matches} -m physdev ! --physdev-is-in -j {others}"));
            self.portals_container.push(format_args!("{matches} {local} -j {others}"));
        } else {
            self.portals_container.push(format_args!("{matches} -j {others}"));
        }
        let Some(host) = &target.host else { return };
        match frontend.kind {
            FrontendKind::ExternalIp => self.portals_host.push(format_args!("{matches} {local} -j {host}")),
            _ => self.portals_host.push(format_args!("{matches} -j {host}")),
        }
    }

    fn nat(&mut self) -> Table {
        const PORTALS: &str =
            "-m comment --comment \"handle ClusterIPs; NOTE: this must be before the NodePort rules\"";
        const NODE_PORTS: &str = "-m addrtype --dst-type LOCAL -m comment --comment \"handle service NodePorts; NOTE: this must be the last rule in the chain\"";
        let jumps = |portals: &str, node_ports: &str| -> Rules {
            let rules = [format!("{PORTALS} -j {portals}"), format!("{NODE_PORTS} -j {node_ports}")];
            rules.iter().map(String::as_str).collect()
        };
        Table {
            chains: [
                (NODE_PORT_CONTAINER.into(), std::mem::take(&mut self.node_port_container)),
                (NODE_PORT_HOST.into(), std::mem::take(&mut self.node_port_host)),
                (PORTALS_CONTAINER.into(), std::mem::take(&mut self.portals_container)),
                (PORTALS_HOST.into(), std::mem::take(&mut self.portals_host)),
            ]
            .into(),
            jumps: [
                ("PREROUTING".into(), jumps(PORTALS_CONTAINER, NODE_PORT_CONTAINER)),
                ("OUTPUT".into(), jumps(PORTALS_HOST, NODE_PORT_HOST)),
            ]
            .into(),
        }
    }

    fn filter(&mut self) -> Table {
        let jump = format!(
            "-m comment --comment \"Ensure that non-local NodePort traffic can flow\" -j {NON_LOCAL}"
        );
        let jumps = [jump.as_str()].into_iter().collect();
        Table {
            chains: [(NON_LOCAL.into(), std::mem::take(&mut self.non_local))].into(),
            jumps: [("INPUT".into(), jumps)].into(),
        }
    }
}

/// The node's own packets cannot be redirected: they would arrive at a loopback address, and answers leave from another.
fn target(scene: &Scene<'_>, family: Family, port: u16) -> Target {
    let node = scene.node.family(family);
    let to = |address: IpAddr| format!("DNAT --to-destination {}", SocketAddr::new(address, port));
    let own = match &node.node_port_addresses {
        NodePortAddresses::These(addresses) => addresses.first().copied(),
        NodePortAddresses::AllLocal => None,
    };
    match node.bind_address {
        Some(address) => Target { others: to(address), host: Some(to(address)) },
        None => Target { others: format!("REDIRECT --to-ports {port}"), host: own.map(to) },
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_iptables::text::Reader;

    use super::*;

    #[test]
    fn ports_are_read_from_rules() {
        let text = "*nat\n:KUBE-PORTALS-CONTAINER - [0:0]\n:KUBE-NODEPORT-CONTAINER - [0:0]\n\
            -A KUBE-PORTALS-CONTAINER -d 10.96.0.1/32 -p tcp -m comment --comment \"a/b:c\" -m tcp --dport 443 -j REDIRECT --to-ports 15001\n\
            -A KUBE-NODEPORT-CONTAINER -p udp -m comment --comment \"a/d\" -m udp --dport 30053 -j DNAT --to-destination [fd00::1]:15002\n\
            COMMIT\n";
        let mut reader = Reader::of(Family::V6, owns);
        text.lines().for_each(|line| reader.line(line));
        let known = known_ports(&reader.finish());
        let port = |name: &str, protocol| known.get(&(Family::V6, name.to_owned(), protocol)).copied();
        assert_eq!(port("a/b:c", Protocol::Tcp), Some(15001));
        assert_eq!(port("a/d", Protocol::Udp), Some(15002));
        assert_eq!(known.len(), 2);
    }
}
