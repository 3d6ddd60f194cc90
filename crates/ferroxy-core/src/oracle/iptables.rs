//! The measure for iptables mode: what the original's rules do to a packet, where that is not what [`super::oracle`] asks.
//!
//! Two tables decide one after the other. In `nat` a frontend that finds no endpoint for a packet lets it go on to
//! the next that matches. In `filter`, what nobody translated is refused, but only in the hooks where the original looks:
//!
//! | hook | cluster IP | external address | node port |
//! |---|---|---|---|
//! | input (for this host) | – | refused | refused, on every address of the host |
//! | forward | refused | refused | – |
//! | output (from this host) | refused | – | – |
//!
//! Unused ports of a cluster IP and unused addresses are nobody's business in this mode.

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
        // The original asks for the address only; that the endpoint may run elsewhere makes no difference to it.
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
    // Where loopback addresses are routed, nobody but the host itself may use them.
    let guards_loopback = family(intent, packet).localhost_node_ports && (input || output);
    if guards_loopback && packet.destination.is_loopback() && !packet.source.is_loopback() {
        return Verdict::Drop;
    }
    let at_address = at_address.filter(|(_, frontend)| is_looked_at(frontend, input, output));
    let firewalled =
        |(_, frontend): &Found<'_>| frontend.allowed_sources.is_some() && frontend.route != Route::Reject;
    if at_address.as_ref().is_some_and(firewalled) {
        return Verdict::Drop;
    }
    let is_cluster_ip = |(_, frontend): &Found<'_>| frontend.kind == FrontendKind::ClusterIp;
    if let Some(refusal) = at_address.filter(is_cluster_ip).and_then(refusal) {
        return refusal;
    }
    if input && is_health_check(intent, packet) {
        return Verdict::Pass;
    }
    let external = at_address.filter(|found| !is_cluster_ip(found) && (input || forward));
    let node_port = node_port.filter(|_| input);
    external.into_iter().chain(node_port).find_map(refusal).unwrap_or(Verdict::Pass)
}

/// The firewall for source ranges is in all three hooks, cluster IPs are in all but input.
fn is_looked_at(frontend: &Frontend, input: bool, output: bool) -> bool {
    frontend.kind != FrontendKind::ClusterIp || output || !input
}

fn refusal((port, frontend): Found<'_>) -> Option<Verdict> {
    match frontend.route {
        Route::Reject => Some(Verdict::Reject),
        Route::Drop => Some(Verdict::Drop),
        Route::ExternalLocal if port.local.is_empty() => Some(Verdict::Drop),
        _ => None,
    }
}

/// Health-check node ports are let in before anything else is looked at.
fn is_health_check(intent: &Intent, packet: &Packet) -> bool {
    let family = Family::of(packet.destination);
    packet.protocol == Protocol::Tcp
        && intent.services.values().any(|service| {
            service.health_check.is_some_and(|check| check.port == packet.port)
                && service.ports.iter().any(|port| port.family == family)
        })
}
