//! The reference implementation: what must happen to a packet. Every dataplane is compared with it. Simple, not fast.
//!
//! [`oracle`] is the wanted behaviour. Modes that must keep peculiarities of kube-proxy have their own oracle here.

mod iptables;
mod ipvs;
mod kernelspace;
mod userspace;
mod winuserspace;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::intent::{
    Endpoint, FamilyIntent, Frontend, Intent, LocalDetector, NodePortAddresses, PortIntent, Route,
};
use crate::name::Family;
use crate::packet::{Origin, Packet, Verdict};

pub use iptables::iptables;
pub use ipvs::ipvs;
pub use kernelspace::{Host, kernelspace};
pub use userspace::userspace;
pub use winuserspace::winuserspace;

pub fn oracle(intent: &Intent, packet: &Packet) -> Verdict {
    let at_address = |frontend: &Frontend| frontend.address == Some(packet.destination);
    let at_node_port = |frontend: &Frontend| frontend.address.is_none() && answers_node_ports(intent, packet);
    if let Some((port, frontend)) =
        find(intent, packet, at_address).or_else(|| find(intent, packet, at_node_port))
    {
        return enter(intent, packet, port, frontend);
    }
    // Packets from outside to an address of this host are left to the host.
    let is_guarded = packet.origin == Origin::Host || !packet.to_this_host;
    if is_guarded && is_cluster_ip(intent, packet) {
        Verdict::Reject
    } else if is_guarded
        && family(intent, packet).service_cidrs.iter().any(|cidr| cidr.contains(&packet.destination))
    {
        Verdict::Drop
    } else {
        Verdict::Pass
    }
}

fn find<'i>(
    intent: &'i Intent,
    packet: &Packet,
    matches: impl Fn(&Frontend) -> bool,
) -> Option<(&'i PortIntent, &'i Frontend)> {
    for port in intent.services.values().flat_map(|service| &service.ports) {
        if port.family != Family::of(packet.destination) || port.protocol != packet.protocol {
            continue;
        }
        let mut frontends = port.frontends.iter();
        if let Some(frontend) = frontends.find(|frontend| frontend.port == packet.port && matches(frontend)) {
            return Some((port, frontend));
        }
    }
    None
}

/// Selects the endpoints for a packet to this frontend.
fn enter(intent: &Intent, packet: &Packet, port: &PortIntent, frontend: &Frontend) -> Verdict {
    if let Some(allowed) = &frontend.allowed_sources
        && !allowed.iter().any(|range| range.contains(&packet.source))
    {
        return Verdict::Drop;
    }
    let (endpoints, masquerade) = match pool(intent, packet, port, frontend) {
        Ok(pool) => pool,
        Err(refusal) => return refusal,
    };
    let masquerade = masquerade || masqueraded_for_cluster_ip(intent, packet);
    let answer = |endpoint: &Endpoint| {
        let address = SocketAddr::new(endpoint.ip, endpoint.port);
        // A pod that reaches itself must not see its own address as the client: its reply would bypass the node.
        let hairpin = endpoint.is_local && endpoint.ip == packet.source;
        (address, masquerade || hairpin)
    };
    Verdict::Endpoints(endpoints.iter().map(answer).collect::<BTreeMap<_, _>>())
}

/// The endpoints of this frontend for this packet and whether it is masqueraded, or the verdict if there are none.
fn pool<'i>(
    intent: &Intent,
    packet: &Packet,
    port: &'i PortIntent,
    frontend: &Frontend,
) -> Result<(&'i [Endpoint], bool), Verdict> {
    match frontend.route {
        Route::Reject => Err(Verdict::Reject),
        Route::Drop => Err(Verdict::Drop),
        Route::Cluster => Ok((&port.cluster, false)),
        Route::Local => Ok((&port.local, false)),
        Route::ExternalCluster => Ok((&port.cluster, true)),
        Route::ExternalLocal if from_pod(intent, packet) => Ok((&port.cluster, false)),
        Route::ExternalLocal if packet.origin == Origin::Host => Ok((&port.cluster, true)),
        Route::ExternalLocal if port.local.is_empty() => Err(Verdict::Drop),
        Route::ExternalLocal => Ok((&port.local, false)),
    }
}

/// Depends on the destination only, before the frontend lookup: so it also applies to an external frontend on an address
/// that is a cluster IP.
fn masqueraded_for_cluster_ip(intent: &Intent, packet: &Packet) -> bool {
    let is_stranger = family(intent, packet).local_detector.is_some() && !from_pod(intent, packet);
    is_cluster_ip(intent, packet) && (intent.node.masquerade_all || is_stranger)
}

fn is_cluster_ip(intent: &Intent, packet: &Packet) -> bool {
    intent.services.values().any(|service| service.cluster_ips.contains(&packet.destination))
}

fn answers_node_ports(intent: &Intent, packet: &Packet) -> bool {
    match &family(intent, packet).node_port_addresses {
        NodePortAddresses::AllLocal => {
            let on_localhost = family(intent, packet).node_ports_on_loopback;
            packet.to_this_host && (on_localhost || !packet.destination.is_loopback())
        }
        NodePortAddresses::These(addresses) => addresses.contains(&packet.destination),
    }
}

/// A CIDR checks the source only, so the host counts as a pod if it sends from an address in the pod CIDR.
fn from_pod(intent: &Intent, packet: &Packet) -> bool {
    match (&family(intent, packet).local_detector, &packet.origin) {
        (None, _) => false,
        (Some(LocalDetector::SourceIn(range)), _) => range.contains(&packet.source),
        (Some(LocalDetector::Interface(name)), Origin::Interface(interface)) => interface == name,
        (Some(LocalDetector::InterfacePrefix(prefix)), Origin::Interface(interface)) => {
            interface.starts_with(prefix)
        }
        (Some(_), Origin::Host) => false,
    }
}

fn family<'i>(intent: &'i Intent, packet: &Packet) -> &'i FamilyIntent {
    intent.node.family(Family::of(packet.destination))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::facts::Facts;
    use crate::name::Protocol;
    use crate::policy::{DetectLocal, Policy};
    use crate::resolve;

    const LOCAL: &str = "10.244.1.6:80";
    const REMOTE: &str = "10.244.2.5:80";
    const CLUSTER_IP: &str = "10.96.0.80:80";
    const NODE_PORT: &str = "172.18.0.2:30080";
    const BALANCER: &str = "203.0.113.10:80";

    #[derive(Clone, Copy, PartialEq)]
    enum From {
        Pod,
        Node,
        Outside,
    }

    fn policy(detector: bool) -> Policy {
        let ranges = if detector { vec!["10.244.0.0/16".parse().unwrap()] } else { vec![] };
        Policy { node_name: "ka".into(), detect_local: DetectLocal::ClusterCidr(ranges), ..Policy::default() }
    }

    fn service() -> event::Service {
        event::Service {
            namespace: "default".into(),
            name: "web".into(),
            kind: "LoadBalancer".into(),
            cluster_ip: "10.96.0.80".into(),
            ports: vec![event::ServicePort { port: 80, node_port: 30080, ..Default::default() }],
            ingress: vec![event::Ingress { ip: "203.0.113.10".into(), ip_mode: String::new() }],
            ..Default::default()
        }
    }

    /// The network of the conformance corpus: node ka with pod 10.244.1.6, node kb with pod 10.244.2.5.
    fn intent(policy: Policy, service: event::Service, pods: &[(&str, &str)]) -> Intent {
        let endpoint = |(address, node): &(&str, &str)| event::SliceEndpoint {
            addresses: vec![address.to_string()],
            node_name: Some(node.to_string()),
            ..Default::default()
        };
        let mut facts = Facts::new(policy);
        facts.apply(Event::Service(service));
        facts.apply(Event::ServiceCidr(event::ServiceCidr {
            name: "kubernetes".into(),
            cidrs: vec!["10.96.0.0/16".into()],
        }));
        facts.apply(Event::Node(event::Node {
            name: "ka".into(),
            addresses: vec![("InternalIP".into(), "172.18.0.2".into())],
            ..Default::default()
        }));
        facts.apply(Event::Slice(event::EndpointSlice {
            namespace: "default".into(),
            name: "web-1".into(),
            service: Some("web".into()),
            address_type: "IPv4".into(),
            ports: vec![event::SlicePort { name: Some(String::new()), port: Some(80), ..Default::default() }],
            endpoints: pods.iter().map(endpoint).collect(),
            last_change: None,
        }));
        resolve::all(&facts).0
    }

    const BOTH: [(&str, &str); 2] = [("10.244.1.6", "ka"), ("10.244.2.5", "kb")];

    fn packet(from: From, to: &str) -> Packet {
        let to: SocketAddr = to.parse().unwrap();
        let (source, origin) = match from {
            From::Pod => ("10.244.1.5", Origin::Interface("cbr0".into())),
            From::Node => ("172.18.0.2", Origin::Host),
            From::Outside => ("172.18.0.100", Origin::Interface("eth0".into())),
        };
        Packet {
            source: source.parse().unwrap(),
            origin,
            destination: to.ip(),
            port: to.port(),
            protocol: Protocol::Tcp,
            to_this_host: to.ip().is_loopback() || to.ip().to_string() == "172.18.0.2",
        }
    }

    fn endpoints(list: &[&str], masquerade: bool) -> Verdict {
        Verdict::Endpoints(list.iter().map(|text| (text.parse().unwrap(), masquerade)).collect())
    }

    /// One cell of the matrix that the original's tests check: which endpoints get the packet, masqueraded or not.
    fn cell(intent: &Intent, from: From, to: &[&str], expected: (&[&str], bool)) {
        for to in to {
            assert_eq!(oracle(intent, &packet(from, to)), endpoints(expected.0, expected.1), "{to}");
        }
    }

    const ALL: &[&str] = &[LOCAL, REMOTE];
    const HERE: &[&str] = &[LOCAL];
    const EXTERNAL: &[&str] = &[NODE_PORT, BALANCER];

    fn matrix(detector: bool, masquerade_all: bool) {
        let policy = Policy { masquerade_all, ..policy(detector) };
        let external_local = event::Service { external_traffic_policy: "Local".into(), ..service() };
        let internal_local = event::Service { internal_traffic_policy: "Local".into(), ..service() };
        let default = intent(policy.clone(), service(), &BOTH);
        let external_local = intent(policy.clone(), external_local, &BOTH);
        let internal_local = intent(policy, internal_local, &BOTH);
        for (from, stranger) in [(From::Pod, false), (From::Node, true), (From::Outside, true)] {
            let masqueraded = masquerade_all || (stranger && detector);
            cell(&default, from, &[CLUSTER_IP], (ALL, masqueraded));
            cell(&external_local, from, &[CLUSTER_IP], (ALL, masqueraded));
            cell(&internal_local, from, &[CLUSTER_IP], (HERE, masqueraded));
            cell(&default, from, EXTERNAL, (ALL, true));
            cell(&internal_local, from, EXTERNAL, (ALL, true));
        }
        cell(&external_local, From::Pod, EXTERNAL, if detector { (ALL, false) } else { (HERE, false) });
        cell(&external_local, From::Node, EXTERNAL, (ALL, true));
        cell(&external_local, From::Outside, EXTERNAL, (HERE, false));
    }

    #[test]
    fn masquerade_matrix() {
        for detector in [true, false] {
            for masquerade_all in [true, false] {
                matrix(detector, masquerade_all);
            }
        }
    }

    #[test]
    fn nobody_to_serve_is_refused_and_nobody_here_is_silence() {
        let nobody = intent(policy(true), service(), &[]);
        let local = event::Service {
            external_traffic_policy: "Local".into(),
            internal_traffic_policy: "Local".into(),
            ..service()
        };
        let elsewhere = intent(policy(true), local, &[("10.244.2.5", "kb")]);
        for from in [From::Pod, From::Node, From::Outside] {
            for to in [CLUSTER_IP, NODE_PORT, BALANCER] {
                assert_eq!(oracle(&nobody, &packet(from, to)), Verdict::Reject);
            }
            assert_eq!(oracle(&elsewhere, &packet(from, CLUSTER_IP)), Verdict::Drop);
        }
        for to in EXTERNAL {
            assert_eq!(oracle(&elsewhere, &packet(From::Pod, to)), endpoints(&[REMOTE], false));
            assert_eq!(oracle(&elsewhere, &packet(From::Node, to)), endpoints(&[REMOTE], true));
            assert_eq!(oracle(&elsewhere, &packet(From::Outside, to)), Verdict::Drop);
        }
    }

    #[test]
    fn what_no_service_has() {
        let intent = intent(policy(true), service(), &BOTH);
        let verdict = |to| oracle(&intent, &packet(From::Outside, to));
        assert_eq!(verdict("10.96.0.80:81"), Verdict::Reject);
        assert_eq!(verdict("10.96.0.99:80"), Verdict::Drop);
        assert_eq!(verdict("203.0.113.10:81"), Verdict::Pass);
        assert_eq!(verdict("172.18.0.2:30081"), Verdict::Pass);
        assert_eq!(verdict("172.18.0.3:30080"), Verdict::Pass);
        let udp = Packet { protocol: Protocol::Udp, ..packet(From::Outside, NODE_PORT) };
        assert_eq!(oracle(&intent, &udp), Verdict::Pass);
    }

    #[test]
    fn node_ports_answer_on_every_address_but_loopback() {
        let mut intent = intent(policy(true), service(), &BOTH);
        intent.node.v4.node_port_addresses = NodePortAddresses::AllLocal;
        assert_eq!(oracle(&intent, &packet(From::Node, NODE_PORT)), endpoints(ALL, true));
        assert_eq!(oracle(&intent, &packet(From::Node, "127.0.0.1:30080")), Verdict::Pass);
        assert_eq!(oracle(&intent, &packet(From::Node, "172.18.0.3:30080")), Verdict::Pass);
    }

    #[test]
    fn source_ranges_come_first() {
        let restricted =
            event::Service { load_balancer_source_ranges: vec!["172.18.0.100/32".into()], ..service() };
        for pods in [&BOTH[..], &[]] {
            let intent = intent(policy(true), restricted.clone(), pods);
            assert_eq!(oracle(&intent, &packet(From::Pod, BALANCER)), Verdict::Drop);
            assert_ne!(oracle(&intent, &packet(From::Outside, BALANCER)), Verdict::Drop);
            assert_ne!(oracle(&intent, &packet(From::Pod, NODE_PORT)), Verdict::Drop);
        }
    }

    #[test]
    fn a_pod_that_reaches_itself_is_masqueraded() {
        let intent = intent(policy(true), service(), &BOTH);
        let hairpin =
            |source: &str| Packet { source: source.parse().unwrap(), ..packet(From::Pod, CLUSTER_IP) };
        let expected = [(LOCAL.parse().unwrap(), true), (REMOTE.parse().unwrap(), false)].into();
        assert_eq!(oracle(&intent, &hairpin("10.244.1.6")), Verdict::Endpoints(expected));
        assert_eq!(
            oracle(&intent, &hairpin("10.244.2.5")),
            endpoints(ALL, false),
            "not an endpoint of this node"
        );
    }

    #[test]
    fn interfaces_tell_pods_apart_but_never_the_host() {
        let local = event::Service { external_traffic_policy: "Local".into(), ..service() };
        for detect_local in
            [DetectLocal::BridgeInterface("cbr0".into()), DetectLocal::InterfaceNamePrefix("cb".into())]
        {
            let intent = intent(Policy { detect_local, ..policy(true) }, local.clone(), &BOTH);
            cell(&intent, From::Pod, EXTERNAL, (ALL, false));
            cell(&intent, From::Pod, &[CLUSTER_IP], (ALL, false));
            cell(&intent, From::Node, &[CLUSTER_IP], (ALL, true));
            cell(&intent, From::Outside, EXTERNAL, (HERE, false));
        }
    }

    #[test]
    fn the_host_speaking_from_the_pods_range_counts_as_a_pod() {
        let local = event::Service { external_traffic_policy: "Local".into(), ..service() };
        let intent = intent(policy(true), local, &BOTH);
        let packet = Packet { source: "10.244.1.1".parse().unwrap(), ..packet(From::Node, NODE_PORT) };
        assert_eq!(oracle(&intent, &packet), endpoints(ALL, false));
    }

    #[test]
    fn an_external_frontend_on_a_cluster_ip_is_masqueraded_like_one() {
        let mut other = service();
        other.kind = "ClusterIP".into();
        other.external_traffic_policy = "Local".into();
        other.external_ips = vec!["10.96.0.80".into()];
        other.ports[0].port = 81;
        other.cluster_ip = "10.96.0.81".into();
        let mut intent = intent(policy(true), other, &BOTH);
        let holder = self::intent(policy(true), service(), &BOTH);
        let (name, holder) = holder.services.into_iter().next().unwrap();
        intent.services.insert(crate::ServiceName::new("default", "holder"), holder);
        assert!(intent.services.contains_key(&name));
        assert_eq!(oracle(&intent, &packet(From::Outside, "10.96.0.80:81")), endpoints(HERE, true));
        assert_eq!(oracle(&intent, &packet(From::Pod, "10.96.0.80:81")), endpoints(ALL, false));
    }
}
