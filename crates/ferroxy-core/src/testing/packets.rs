//! Packets worth testing: to every frontend, and to addresses and ports next to it, from all kinds of senders that are
//! treated differently.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;

use super::HOST_ADDRESSES;
use crate::intent::{Frontend, Intent, NodePortAddresses};
use crate::name::{Family, Protocol};
use crate::packet::{Origin, Packet};

/// One packet out of [`interesting_packets`].
pub fn packets_for(intent: &Intent) -> impl Strategy<Value = Packet> + use<> {
    select(interesting_packets(intent))
}

/// Nearly every packet that can distinguish two Intents: all destinations × all kinds of senders of a family. Never
/// empty, always in the same order.
pub fn interesting_packets(intent: &Intent) -> Vec<Packet> {
    let senders = senders(intent);
    let mut packets = Vec::new();
    for (destination, port, protocol) in destinations(intent) {
        for (source, origin) in
            senders.iter().filter(|(source, _)| Family::of(*source) == Family::of(destination))
        {
            packets.push(Packet {
                source: *source,
                origin: origin.clone(),
                destination,
                port,
                protocol,
                to_this_host: is_host_address(intent, destination),
            });
        }
    }
    packets
}

fn addresses(texts: &[&str]) -> impl Iterator<Item = IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok())
}

/// The addresses on which node ports answer are the host's by definition.
fn is_host_address(intent: &Intent, address: IpAddr) -> bool {
    let answers_node_ports = match &intent.node.family(Family::of(address)).node_port_addresses {
        NodePortAddresses::These(these) => these.contains(&address),
        NodePortAddresses::AllLocal => false,
    };
    answers_node_ports || addresses(&HOST_ADDRESSES).any(|own| own == address)
}

/// External clients, the node with its different addresses, pods on this node and elsewhere, and every endpoint (which
/// may connect to itself).
fn senders(intent: &Intent) -> Vec<(IpAddr, Origin)> {
    let interface = |name: &str| Origin::Interface(name.to_owned());
    let strangers =
        addresses(&["172.18.0.100", "198.18.0.9", "203.0.113.1", "fd00:172:18::100", "fd00:b::1"]);
    let node =
        addresses(&["172.18.0.2", "10.244.1.1", "127.0.0.1", "fd00:172:18::2", "fd00:10:244:1::1", "::1"]);
    let pods_here = addresses(&["10.244.1.9", "fd00:10:244:1::9"]);
    let pods_elsewhere = addresses(&["10.244.2.9", "fd00:10:244:2::9"]);
    let mut senders: Vec<(IpAddr, Origin)> = Vec::new();
    senders.extend(strangers.map(|ip| (ip, interface("eth0"))));
    senders.extend(node.map(|ip| (ip, Origin::Host)));
    senders.extend(pods_here.map(|ip| (ip, interface("cbr0"))));
    senders.extend(pods_elsewhere.map(|ip| (ip, interface("eth0"))));
    let ports = intent.services.values().flat_map(|service| &service.ports);
    let endpoints: BTreeSet<_> = ports.flat_map(|port| port.cluster.iter().chain(&port.local)).collect();
    for endpoint in endpoints {
        let origin = match endpoint.is_local {
            true if is_host_address(intent, endpoint.ip) => Origin::Host,
            true => interface("cbr0"),
            false => interface("eth0"),
        };
        senders.push((endpoint.ip, origin));
    }
    senders.dedup();
    senders
}

/// Every frontend; the same address with another port or protocol; node ports on all host addresses, on another node
/// and on loopback; unused addresses in the ranges of Services; and addresses that no Service concerns.
fn destinations(intent: &Intent) -> BTreeSet<(IpAddr, u16, Protocol)> {
    let mut all = BTreeSet::new();
    let places: Vec<IpAddr> =
        addresses(&HOST_ADDRESSES).chain(addresses(&["172.18.0.3", "fd00:172:18::3"])).collect();
    for port in intent.services.values().flat_map(|service| &service.ports) {
        for frontend in &port.frontends {
            for address in at(frontend, &places).filter(|address| Family::of(*address) == port.family) {
                all.insert((address, frontend.port, port.protocol));
                all.insert((address, frontend.port ^ 1, port.protocol));
                all.extend(Protocol::ALL.map(|protocol| (address, frontend.port, protocol)));
            }
        }
    }
    let these = |family| match &intent.node.family(family).node_port_addresses {
        NodePortAddresses::These(these) => these.iter().copied().collect(),
        NodePortAddresses::AllLocal => Vec::new(),
    };
    let node_ports =
        all.iter().filter(|(_, port, _)| *port >= 30_000).map(|(_, port, protocol)| (*port, *protocol));
    let node_ports: BTreeSet<_> = node_ports.collect();
    for address in Family::ALL.into_iter().flat_map(these) {
        all.extend(node_ports.iter().map(|(port, protocol)| (address, *port, *protocol)));
    }
    let cluster_ips = intent.services.values().flat_map(|service| &service.cluster_ips);
    all.extend(cluster_ips.map(|ip| (*ip, 9, Protocol::Tcp)));
    let unused = ["10.96.0.99", "10.97.0.1", "fd00:10:96::99", "192.0.2.1", "2001:db8::1"];
    all.extend(addresses(&unused).map(|ip| (ip, 80, Protocol::Tcp)));
    all
}

fn at<'a>(frontend: &Frontend, places: &'a [IpAddr]) -> impl Iterator<Item = IpAddr> + use<'a> {
    let for_node_port = if frontend.address.is_none() { places } else { &[] };
    frontend.address.into_iter().chain(for_node_port.iter().copied())
}
