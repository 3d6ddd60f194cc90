//! Recognises our virtual servers. Virtual servers of other programs are not touched.
//!
//! The kernel does not store who created a virtual server. Ours (and the original's) are recognised by their address: it is on
//! our device, or it is an address of the host with a port in one of our sets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::Protocol;

use crate::set::{Member, Set};
use crate::state::{Address, State};

/// Of `seen`, only the device and the sets are used.
pub fn is_ours(address: &Address, seen: &State, host_addresses: &BTreeSet<IpAddr>) -> bool {
    let on_device = seen.device.as_ref().is_some_and(|addresses| addresses.contains(&address.ip));
    on_device || (host_addresses.contains(&address.ip) && is_known_port(address, seen))
}

/// A node port, or an external address that another device has.
fn is_known_port(address: &Address, seen: &State) -> bool {
    let has = |set: Set, member: Member| seen.has_member(set.of(address.family()), &member);
    let is_node_port = match address.protocol {
        Protocol::Tcp => has(Set::NodePortTcp, Member::Port(address.port)),
        Protocol::Udp => has(Set::NodePortUdp, Member::Port(address.port)),
        Protocol::Sctp => has(Set::NodePortSctp, Member::IpPort(*address)),
    };
    let by_address = [Set::ExternalIp, Set::ExternalIpLocal, Set::LoadBalancer];
    is_node_port || by_address.into_iter().any(|set| has(set, Member::IpPort(*address)))
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Family;

    use super::*;

    fn address(text: &str, protocol: Protocol) -> Address {
        let at: std::net::SocketAddr = text.parse().unwrap();
        Address { ip: at.ip(), protocol, port: at.port() }
    }

    #[test]
    fn ours_are_recognised() {
        let mut seen = State { device: Some(["10.96.0.80".parse().unwrap()].into()), ..State::default() };
        let mut member = |set: Set, member| {
            seen.sets.entry(set.of(Family::V4)).or_default().members.insert(member);
        };
        member(Set::NodePortTcp, Member::Port(30080));
        member(Set::NodePortSctp, Member::IpPort(address("172.18.0.2:30077", Protocol::Sctp)));
        member(Set::ExternalIp, Member::IpPort(address("172.18.0.2:443", Protocol::Tcp)));
        let host = BTreeSet::from(["172.18.0.2".parse().unwrap()]);
        let check = |text: &str, protocol, expected: bool| {
            assert_eq!(is_ours(&address(text, protocol), &seen, &host), expected, "{text} {protocol}");
        };
        check("10.96.0.80:80", Protocol::Udp, true);
        check("172.18.0.2:30080", Protocol::Tcp, true);
        check("172.18.0.2:30077", Protocol::Sctp, true);
        check("172.18.0.2:443", Protocol::Tcp, true);
        check("172.18.0.2:30080", Protocol::Udp, false);
        check("172.18.0.2:8080", Protocol::Tcp, false);
        check("192.0.2.7:30080", Protocol::Tcp, false);
    }
}
