//! The oracle of iptables mode: what kube-proxy's rules do to a packet, including differences from [`super::oracle`].
//!
//! Two tables decide one after the other. In `nat`, a packet to a frontend without an endpoint continues to the next
//! matching frontend. In `filter`, untranslated packets are rejected, but only in the hooks that kube-proxy uses:
//!
//! | hook | cluster IP | external address | node port |
//! |---|---|---|---|
//! | input (for this host) | – | rejected | rejected, on every address of the host |
//! | forward | rejected | rejected | – |
//! | output (from this host) | rejected | – | – |
//!
//! This mode does not handle unused ports of a cluster IP and unused addresses.

use std::net::SocketAddr;

use super::{answers_node_ports, family, find, from_pod, pool};
use crate::intent::{Endpoint, Frontend, FrontendKind, Intent, PortIntent, Route};
use crate::name::{Family, Protocol};
use crate::packet::{Origin, Packet, Verdict};

type Found<'i> = (&'i PortIntent, &'i Frontend);

pub fn iptables(intent: &Intent, packet: &Packet) -> Verdict {
    let at_address = find(intent, packet, |frontend| frontend.address == Some(packet.destination));
    let node_port = find(intent, packet, |frontend| frontend.address.is_none());
    let answering = node_port.filter(|_| answers_node_ports(intent, packet));
    at_address
        .into_iter()
        .chain(answering)
        .find_map(|found| translated(intent, packet, found))
        .unwrap_or_else(|| untranslated(intent, packet, at_address, node_port))
}

fn translated(intent: &Intent, packet: &Packet, (port, frontend): Found<'_>) -> Option<Verdict> {
    if let Some(allowed) = &frontend.allowed_sources
        && !allowed.iter().any(|range| range.contains(&packet.source))
    {
        return None;
    }
    let (endpoints, masquerade) = pool(intent, packet, port, frontend).ok()?;
    let stranger = family(intent, packet).local_detector.is_some() && !from_pod(intent, packet);
    let masquerade =
        masquerade || (frontend.kind == FrontendKind::ClusterIp && (intent.node.masquerade_all || stranger));
    let answer = |endpoint: &Endpoint| {
        // kube-proxy compares the address only, even if the endpoint runs on another node.
        let hairpin = endpoint.ip == packet.source;
        (SocketAddr::new(endpoint.ip, endpoint.port), masquerade || hairpin)
    };
    Some(Verdict::Endpoints(endpoints.iter().map(answer).collect()))
}

fn untranslated(
    intent: &Intent,
    packet: &Packet,
    at_address: Option<Found<'_>>,
    node_port: Option<Found<'_>>,
) -> Verdict {
    let (input, output) = (packet.to_this_host, packet.origin == Origin::Host);
    let forward = !input && !output;
    // If loopback addresses are routed, only the host itself may use them.
    let guards_loopback = family(intent, packet).node_ports_on_loopback && (input || output);
    if guards_loopback && packet.destination.is_loopback() && !packet.source.is_loopback() {
        return Verdict::Drop;
    }
    let firewalled =
        |(_, frontend): Found<'_>| frontend.allowed_sources.is_some() && frontend.route != Route::Reject;
    if at_address.is_some_and(firewalled) {
        return Verdict::Drop;
    }
    let is_cluster_ip = |(_, frontend): &Found<'_>| frontend.kind == FrontendKind::ClusterIp;
    let cluster_ip = at_address.filter(|found| is_cluster_ip(found) && (output || forward));
    if let Some(refusal) = cluster_ip.and_then(refusal) {
        return refusal;
    }
    if input && is_health_check(intent, packet) {
        return Verdict::Pass;
    }
    let external = at_address.filter(|found| !is_cluster_ip(found) && (input || forward));
    let node_port = node_port.filter(|_| input);
    external.into_iter().chain(node_port).find_map(refusal).unwrap_or(Verdict::Pass)
}

fn refusal((port, frontend): Found<'_>) -> Option<Verdict> {
    match frontend.route {
        Route::Reject => Some(Verdict::Reject),
        Route::Drop => Some(Verdict::Drop),
        Route::ExternalLocal if port.local.is_empty() => Some(Verdict::Drop),
        _ => None,
    }
}

/// Health-check node ports are accepted before all other checks.
fn is_health_check(intent: &Intent, packet: &Packet) -> bool {
    let family = Family::of(packet.destination);
    packet.protocol == Protocol::Tcp
        && intent.services.values().any(|service| {
            service.health_check.is_some_and(|check| check.port == packet.port)
                && service.ports.iter().any(|port| port.family == family)
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::intent::{FamilyIntent, NodeIntent, NodePortAddresses, ServiceIntent};
    use crate::name::ServiceName;

    /// One Service on all kinds of frontends, with this route, on a node whose loopback answers node ports.
    fn intent(internal: Route, external: Route, pods: &[&str]) -> Intent {
        let frontend = |kind, address: Option<&str>, port, route| Frontend {
            kind,
            address: address.map(|text| text.parse().unwrap()),
            port,
            route,
            allowed_sources: None,
        };
        let endpoint = |ip: &&str| Endpoint { ip: ip.parse().unwrap(), port: 80, is_local: false };
        let name = ServiceName::new("default", "web");
        let port = PortIntent {
            name: "".into(),
            family: Family::V4,
            protocol: Protocol::Tcp,
            affinity: None,
            cluster: pods.iter().map(endpoint).collect(),
            local: Vec::new(),
            size: 0,
            frontends: vec![
                frontend(FrontendKind::ClusterIp, Some("10.96.0.80"), 80, internal),
                frontend(FrontendKind::LoadBalancer, Some("203.0.113.10"), 80, external),
                frontend(FrontendKind::NodePort, None, 30080, external),
            ],
        };
        let service = ServiceIntent {
            name: name.clone(),
            cluster_ips: vec!["10.96.0.80".parse().unwrap()],
            ports: vec![port],
            health_check: None,
            annotations: Vec::new(),
            left_out: Default::default(),
        };
        let v4 = FamilyIntent {
            node_port_addresses: NodePortAddresses::AllLocal,
            node_ports_on_loopback: true,
            ..FamilyIntent::default()
        };
        let node = NodeIntent { v4, ..NodeIntent::default() };
        Intent { node, services: [(name, Arc::new(service))].into() }
    }

    fn verdict(intent: &Intent, from: &str, to: &str) -> Verdict {
        let to: SocketAddr = to.parse().unwrap();
        let is_own = |ip: &str| ["172.18.0.2", "127.0.0.1"].contains(&ip);
        let packet = Packet {
            source: from.parse().unwrap(),
            origin: if is_own(from) { Origin::Host } else { Origin::Interface("eth0".into()) },
            destination: to.ip(),
            port: to.port(),
            protocol: Protocol::Tcp,
            to_this_host: is_own(&to.ip().to_string()),
        };
        iptables(intent, &packet)
    }

    #[test]
    fn what_is_refused_depends_on_the_hook() {
        let nobody = intent(Route::Reject, Route::Reject, &[]);
        for (from, to, expected) in [
            ("172.18.0.100", "10.96.0.80:80", Verdict::Reject),
            ("172.18.0.2", "10.96.0.80:80", Verdict::Reject),
            ("172.18.0.100", "203.0.113.10:80", Verdict::Reject),
            ("172.18.0.2", "203.0.113.10:80", Verdict::Pass),
            ("172.18.0.100", "172.18.0.2:30080", Verdict::Reject),
            ("172.18.0.2", "172.18.0.2:30080", Verdict::Reject),
            ("172.18.0.100", "172.18.0.3:30080", Verdict::Pass),
            ("172.18.0.100", "10.96.0.80:81", Verdict::Pass),
        ] {
            assert_eq!(verdict(&nobody, from, to), expected, "{from} -> {to}");
        }
    }

    #[test]
    fn a_node_port_is_refused_on_addresses_where_it_does_not_answer_too() {
        let mut elsewhere = intent(Route::Cluster, Route::ExternalLocal, &["10.244.2.5"]);
        elsewhere.node.v4.node_port_addresses = NodePortAddresses::default();
        assert_eq!(verdict(&elsewhere, "172.18.0.100", "172.18.0.2:30080"), Verdict::Drop);
    }

    #[test]
    fn a_health_check_port_is_let_in_before_anything_is_refused() {
        let mut nobody = intent(Route::Reject, Route::Reject, &[]);
        let service = nobody.services.values_mut().next().unwrap();
        Arc::make_mut(service).health_check =
            Some(crate::intent::HealthCheck { port: 30080, local_endpoints: 0 });
        assert_eq!(verdict(&nobody, "172.18.0.100", "172.18.0.2:30080"), Verdict::Pass);
    }

    #[test]
    fn loopback_answers_the_host_and_nobody_else() {
        let intent = intent(Route::Cluster, Route::ExternalCluster, &["10.244.2.5"]);
        let expected = Verdict::Endpoints([("10.244.2.5:80".parse().unwrap(), true)].into());
        assert_eq!(verdict(&intent, "127.0.0.1", "127.0.0.1:30080"), expected);
        assert_eq!(verdict(&intent, "127.0.0.1", "127.0.0.1:9"), Verdict::Pass);
        assert_eq!(verdict(&intent, "172.18.0.100", "127.0.0.1:9"), Verdict::Drop);
    }

    #[test]
    fn source_ranges_without_endpoints_are_not_looked_at() {
        for (route, expected) in [(Route::Reject, Verdict::Reject), (Route::ExternalCluster, Verdict::Drop)] {
            let mut intent = intent(Route::Reject, route, &["10.244.2.5"]);
            let service = Arc::make_mut(intent.services.values_mut().next().unwrap());
            service.ports[0].frontends[1].allowed_sources = Some(vec!["192.0.2.0/24".parse().unwrap()]);
            assert_eq!(verdict(&intent, "172.18.0.100", "203.0.113.10:80"), expected);
        }
    }

    #[test]
    fn an_endpoint_that_reaches_itself_is_masqueraded_wherever_it_runs() {
        let intent = intent(Route::Cluster, Route::ExternalCluster, &["10.244.2.5", "10.244.2.6"]);
        let expected = [("10.244.2.5:80".parse().unwrap(), true), ("10.244.2.6:80".parse().unwrap(), false)];
        assert_eq!(verdict(&intent, "10.244.2.5", "10.96.0.80:80"), Verdict::Endpoints(expected.into()));
    }
}
