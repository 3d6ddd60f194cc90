//! The oracle of ipvs mode: what virtual servers and the rules around them do to a packet, including differences from
//! [`super::oracle`].
//!
//! A virtual server has one list of endpoints for all clients. So with policy `Local`, pods also reach only endpoints
//! of this node, while there are any. A virtual server without endpoints rejects at once. Unused ports of a Service
//! address are rejected in every hook; unused addresses are not handled. Several decisions depend on the port alone.

use std::net::{IpAddr, SocketAddr};

use super::{answers_node_ports, family, find, from_pod};
use crate::intent::{Endpoint, Frontend, FrontendKind, Intent, PortIntent, Route};
use crate::name::Family;
use crate::packet::{Origin, Packet, Verdict};

type Found<'i> = (&'i PortIntent, &'i Frontend);

pub fn ipvs(intent: &Intent, packet: &Packet) -> Verdict {
    let at_address = find(intent, packet, |frontend| frontend.address == Some(packet.destination));
    let from_host = packet.origin == Origin::Host;
    let may_be_node_port = answers_node_ports(intent, packet)
        && !packet.destination.is_loopback()
        && !is_link_local(packet.destination);
    let node_port = find(intent, packet, |frontend| frontend.address.is_none() && may_be_node_port);
    // Packets of the host reach the virtual servers before the filter rules.
    let refused_first = !from_host && at_address.is_none() && is_refused(intent, packet);
    match at_address.or(node_port).filter(|_| !refused_first) {
        Some(found) => served(intent, packet, found),
        None if is_refused(intent, packet) => Verdict::Reject,
        None => Verdict::Pass,
    }
}

fn served(intent: &Intent, packet: &Packet, (port, frontend): Found<'_>) -> Verdict {
    let from_host = packet.origin == Origin::Host;
    if !from_host && is_kept_out(intent, packet, port, frontend) {
        return Verdict::Drop;
    }
    let endpoints: &[Endpoint] = match frontend.route {
        Route::Reject | Route::Drop => &[],
        Route::Cluster | Route::ExternalCluster => &port.cluster,
        Route::ExternalLocal if port.local.is_empty() => &port.cluster,
        Route::Local | Route::ExternalLocal => &port.local,
    };
    if endpoints.is_empty() {
        return Verdict::Reject;
    }
    // A packet of the host is dropped only if it comes from exactly this address.
    if from_host && frontend.address == Some(packet.source) && !allows(port, frontend, packet.source) {
        return Verdict::Drop;
    }
    let masquerade = is_marked(intent, packet);
    let answer = |endpoint: &Endpoint| {
        let hairpin = endpoint.is_local && endpoint.ip == packet.source;
        (SocketAddr::new(endpoint.ip, endpoint.port), masquerade || hairpin)
    };
    Verdict::Endpoints(endpoints.iter().map(answer).collect())
}

fn is_kept_out(intent: &Intent, packet: &Packet, port: &PortIntent, frontend: &Frontend) -> bool {
    let none_local = frontend.route == Route::ExternalLocal && port.local.is_empty();
    (none_local && !from_pod(intent, packet)) || !allows(port, frontend, packet.source)
}

/// A load-balancer IP among the source ranges admits the node, but only to this load-balancer IP.
fn allows(port: &PortIntent, frontend: &Frontend, source: IpAddr) -> bool {
    let Some(allowed) = &frontend.allowed_sources else { return true };
    let of_balancer = |range: &ipnet::IpNet| {
        let mut frontends = port.frontends.iter();
        frontends.any(|it| {
            it.kind == FrontendKind::LoadBalancer && it.address.map(ipnet::IpNet::from) == Some(*range)
        })
    };
    allowed
        .iter()
        .any(|range| range.contains(&source) && (!of_balancer(range) || frontend.address == Some(source)))
}

/// Whether the packet is masqueraded, as far as that is known before an endpoint is selected.
fn is_marked(intent: &Intent, packet: &Packet) -> bool {
    if packet.source.is_loopback() {
        return false;
    }
    let at = |ip: IpAddr, kind: FrontendKind| {
        find(intent, packet, move |frontend| frontend.kind == kind && frontend.address == Some(ip))
    };
    let is_local = |(_, frontend): Found<'_>| frontend.route == Route::ExternalLocal;
    let here = |kind: FrontendKind| at(packet.destination, kind);
    let balancer = here(FrontendKind::LoadBalancer).is_some_and(|found| !is_local(found));
    balancer
        || (packet.origin == Origin::Host && is_none_local(intent, packet))
        || is_marked_for_cluster_ip(intent, packet, &at)
        || match here(FrontendKind::ExternalIp) {
            Some(found) => !is_local(found),
            None => is_marked_for_node_port(intent, packet),
        }
}

fn is_none_local(intent: &Intent, packet: &Packet) -> bool {
    let is_here = |frontend: &Frontend| match frontend.address {
        Some(address) => address == packet.destination,
        None => answers_node_ports(intent, packet),
    };
    let ports = intent.services.values().flat_map(|service| &service.ports);
    ports
        .filter(|port| port.family == Family::of(packet.destination) && port.protocol == packet.protocol)
        .any(|port| {
            port.local.is_empty()
                && port.frontends.iter().any(|frontend| {
                    frontend.route == Route::ExternalLocal
                        && frontend.port == packet.port
                        && is_here(frontend)
                })
        })
}

fn is_marked_for_cluster_ip<'i>(
    intent: &Intent,
    packet: &Packet,
    at: &impl Fn(IpAddr, FrontendKind) -> Option<Found<'i>>,
) -> bool {
    let to = at(packet.destination, FrontendKind::ClusterIp).is_some();
    match &family(intent, packet).local_detector {
        _ if intent.node.masquerade_all => to,
        Some(_) => to && !from_pod(intent, packet),
        // Only the node sends from a cluster IP.
        None => at(packet.source, FrontendKind::ClusterIp).is_some(),
    }
}

/// Decided by the port alone, on all addresses of the host, including those of Services. (SCTP: only on node
/// addresses.)
fn is_marked_for_node_port(intent: &Intent, packet: &Packet) -> bool {
    let is_sctp = packet.protocol == crate::name::Protocol::Sctp;
    let node_port = find(intent, packet, |frontend| frontend.address.is_none());
    let any_address = has_node_port_address(intent, packet);
    node_port.is_some_and(|(_, frontend)| frontend.route != Route::ExternalLocal && (is_sctp || any_address))
        && (!is_sctp || answers_node_ports(intent, packet))
}

/// Without an address for node ports there is no virtual server, and no rule for the port.
fn has_node_port_address(intent: &Intent, packet: &Packet) -> bool {
    use crate::intent::NodePortAddresses::{AllLocal, These};
    match &family(intent, packet).node_port_addresses {
        AllLocal => true,
        These(these) => these.iter().any(|ip| !ip.is_loopback() && !is_link_local(*ip)),
    }
}

/// An unused port of a Service address. Health-check node ports are accepted on every address.
fn is_refused(intent: &Intent, packet: &Packet) -> bool {
    let of_family = |port: &&PortIntent| port.family == Family::of(packet.destination);
    let is_bound = |frontend: &Frontend| {
        frontend.address == Some(packet.destination)
            && (frontend.kind == FrontendKind::ClusterIp || !packet.to_this_host)
    };
    let mut services = intent.services.values();
    let is_health_check = services.clone().any(|service| {
        service.health_check.is_some_and(|check| check.port == packet.port)
            && service.ports.iter().any(|port| of_family(&port))
    });
    let is_bound = services.any(|service| {
        service.ports.iter().filter(of_family).any(|port| port.frontends.iter().any(is_bound))
    });
    is_bound && !is_health_check
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
