//! What must happen to a packet, in the plainest form: the measure for every dataplane. Not fast, on purpose.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::intent::{
    Endpoint, FamilyIntent, Frontend, Intent, LocalDetector, NodePortAddresses, PortIntent, Route, ServiceIntent,
};
use crate::name::Family;
use crate::packet::{Origin, Packet, Verdict};

pub fn oracle(intent: &Intent, packet: &Packet) -> Verdict {
    let at_address = |frontend: &Frontend| frontend.address == Some(packet.destination);
    let at_node_port = |frontend: &Frontend| frontend.address.is_none() && answers_node_ports(intent, packet);
    if let Some((port, frontend)) = find(intent, packet, at_address).or_else(|| find(intent, packet, at_node_port)) {
        return enter(intent, packet, port, frontend);
    }
    // What is addressed to this host and comes from outside is the host's own business, whatever the address.
    let is_guarded = packet.origin == Origin::Host || !packet.to_this_host;
    if is_guarded && is_cluster_ip(intent, packet) {
        Verdict::Reject
    } else if is_guarded && family(intent, packet).service_cidrs.iter().any(|cidr| cidr.contains(&packet.destination)) {
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
    let ports = intent.services.values().flat_map(|service: &'i std::sync::Arc<ServiceIntent>| &service.ports);
    let same_kind = ports.filter(|port| port.family == Family::of(packet.destination) && port.protocol == packet.protocol);
    let frontends = same_kind.flat_map(|port| port.frontends.iter().map(move |frontend| (port, frontend)));
    frontends.into_iter().find(|(_, frontend)| frontend.port == packet.port && matches(frontend))
}

/// The packet is for this frontend: who gets it?
fn enter(intent: &Intent, packet: &Packet, port: &PortIntent, frontend: &Frontend) -> Verdict {
    if let Some(allowed) = &frontend.allowed_sources
        && !allowed.iter().any(|range| range.contains(&packet.source))
    {
        return Verdict::Drop;
    }
    let (endpoints, masquerade) = match frontend.route {
        Route::Reject => return Verdict::Reject,
        Route::Drop => return Verdict::Drop,
        Route::Cluster => (&port.cluster, false),
        Route::Local => (&port.local, false),
        Route::ExternalCluster => (&port.cluster, true),
        Route::ExternalLocal if from_pod(intent, packet) => (&port.cluster, false),
        Route::ExternalLocal if packet.origin == Origin::Host => (&port.cluster, true),
        Route::ExternalLocal if port.local.is_empty() => return Verdict::Drop,
        Route::ExternalLocal => (&port.local, false),
    };
    let masquerade = masquerade || masqueraded_for_cluster_ip(intent, packet);
    let answer = |endpoint: &Endpoint| {
        let address = SocketAddr::new(endpoint.ip, endpoint.port);
        // A pod that reaches itself must not see its own address as the client: it would answer past the node.
        let hairpin = endpoint.is_local && endpoint.ip == packet.source;
        (address, masquerade || hairpin)
    };
    Verdict::Endpoints(endpoints.iter().map(answer).collect::<BTreeMap<_, _>>())
}

/// Decided by the destination alone, before the frontend is looked up: so it also holds for an external frontend on
/// an address that is a cluster IP.
fn masqueraded_for_cluster_ip(intent: &Intent, packet: &Packet) -> bool {
    let is_stranger = family(intent, packet).local_detector.is_some() && !from_pod(intent, packet);
    is_cluster_ip(intent, packet) && (intent.node.masquerade_all || is_stranger)
}

fn is_cluster_ip(intent: &Intent, packet: &Packet) -> bool {
    intent.services.values().any(|service| service.cluster_ips.contains(&packet.destination))
}

fn answers_node_ports(intent: &Intent, packet: &Packet) -> bool {
    match &family(intent, packet).node_port_addresses {
        NodePortAddresses::AllLocal => packet.to_this_host && !packet.destination.is_loopback(),
        NodePortAddresses::These(addresses) => addresses.contains(&packet.destination),
    }
}

/// A range looks at the source only, so it takes the host for a pod when the host speaks from the pods' range.
fn from_pod(intent: &Intent, packet: &Packet) -> bool {
    match (&family(intent, packet).local_detector, &packet.origin) {
        (None, _) => false,
        (Some(LocalDetector::SourceIn(range)), _) => range.contains(&packet.source),
        (Some(LocalDetector::Interface(name)), Origin::Interface(interface)) => interface == name,
        (Some(LocalDetector::InterfacePrefix(prefix)), Origin::Interface(interface)) => interface.starts_with(prefix),
        (Some(_), Origin::Host) => false,
    }
}

fn family<'i>(intent: &'i Intent, packet: &Packet) -> &'i FamilyIntent {
    intent.node.family(Family::of(packet.destination))
}
