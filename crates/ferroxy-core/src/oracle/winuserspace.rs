//! The oracle of winuserspace mode: [`super::oracle`], and what sockets on a host without packet rules must do differently.
//!
//! - Every address of a TCP or UDP port is an address of this host. There the host refuses ports without a listener, and node
//!   ports that answer on all addresses answer there, too, as they do on loopback addresses.
//! - The proxy connects to endpoints itself, so they see an address of this node, as if every connection was masqueraded.
//! - Clients are classified by their source address: this host by its addresses (at the address of a Service also by
//!   that address, which its own connections come from), pods by their range. Interfaces do not count.
//! - A socket cannot drop a TCP connection silently: instead, the connection is reset.
//! - SCTP is not served.

use super::{enter, find};
use crate::intent::{Frontend, Intent, LocalDetector, NodePortAddresses, Route};
use crate::name::{Family, Protocol};
use crate::packet::{Origin, Packet, Verdict};

pub fn winuserspace(intent: &Intent, packet: &Packet) -> Verdict {
    let is_of_service = is_of_service(intent, packet);
    if !is_of_service && !packet.to_this_host {
        return Verdict::Pass;
    }
    let at_address = |it: &Frontend| it.address == Some(packet.destination);
    let at_node_port = |it: &Frontend| it.address.is_none() && answers_node_ports(intent, packet);
    let found = match packet.protocol {
        Protocol::Sctp => None,
        _ => find(intent, packet, at_address).or_else(|| find(intent, packet, at_node_port)),
    };
    // Without endpoints there is no listener: the host decides what to do on its own addresses.
    let Some((port, frontend)) = found.filter(|(_, frontend)| frontend.route != Route::Reject) else {
        return if is_of_service { Verdict::Reject } else { Verdict::Pass };
    };
    let (seen, packet) = as_a_socket_sees_it(intent, packet, frontend);
    match enter(&seen, &packet, port, frontend) {
        Verdict::Endpoints(endpoints) => {
            Verdict::Endpoints(endpoints.into_keys().map(|endpoint| (endpoint, true)).collect())
        }
        Verdict::Drop if packet.protocol == Protocol::Tcp => Verdict::Reject,
        other => other,
    }
}

fn is_of_service(intent: &Intent, packet: &Packet) -> bool {
    let ports = intent.services.values().flat_map(|service| &service.ports);
    let mut served = ports.filter(|port| port.protocol != Protocol::Sctp);
    served.any(|port| port.frontends.iter().any(|it| it.address == Some(packet.destination)))
}

fn answers_node_ports(intent: &Intent, packet: &Packet) -> bool {
    match &intent.node.family(Family::of(packet.destination)).node_port_addresses {
        NodePortAddresses::AllLocal => true,
        NodePortAddresses::These(addresses) => addresses.contains(&packet.destination),
    }
}

fn as_a_socket_sees_it(intent: &Intent, packet: &Packet, frontend: &Frontend) -> (Intent, Packet) {
    // Services do not matter for a client's class.
    let mut seen = Intent { node: intent.node.clone(), ..Intent::default() };
    for family in [&mut seen.node.v4, &mut seen.node.v6] {
        family.local_detector.take_if(|it| !matches!(it, LocalDetector::SourceIn(_)));
    }
    let source = packet.source;
    let is_own = source.is_loopback()
        || frontend.address == Some(source)
        || intent.node.host_addresses.contains(&source);
    let origin = if is_own { Origin::Host } else { Origin::Interface(String::new()) };
    (seen, Packet { origin, to_this_host: true, ..packet.clone() })
}
