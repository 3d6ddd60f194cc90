//! Which virtual servers are kube-proxy's. The kernel does not store the creator of a virtual server, so addresses and
//! sets identify it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_netlink::ipset::{self, Member};
use ferroxy_netlink::{ipvs, route};

use crate::leftovers::names::node_port_protocol;

/// What shows that a virtual server is kube-proxy's.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Addresses on its device: those of Services.
    pub(super) on_device: BTreeSet<IpAddr>,
    /// Addresses on other devices.
    of_host: BTreeSet<IpAddr>,
    /// Node ports: whether IPv6 (each family has its own sets), protocol, port.
    node_ports: BTreeSet<(bool, u8, u16)>,
    /// Addresses with ports from its sets; some are on other devices than its own.
    in_sets: BTreeSet<(IpAddr, u8, u16)>,
}

impl Evidence {
    pub(super) fn gather(
        addresses: &[route::Address],
        device: Option<u32>,
        sets: &[(String, Vec<Member>)],
    ) -> Evidence {
        let mut evidence = Evidence::default();
        for address in addresses {
            let on_device = device == Some(address.link);
            if on_device { &mut evidence.on_device } else { &mut evidence.of_host }.insert(address.ip);
        }
        for (name, members) in sets {
            evidence.read(name, members);
        }
        evidence
    }

    fn read(&mut self, set: &str, members: &[Member]) {
        for member in members {
            match *member {
                Member::Port(port) => {
                    self.node_ports
                        .extend(node_port_protocol(set).map(|(six, protocol)| (six, protocol, port)));
                }
                Member::IpPort(ipset::Address { ip, protocol, port }) => {
                    self.in_sets.insert((ip, protocol, port));
                }
                // These are endpoints and clients, not servers, or repeat the addresses of the device.
                Member::Ip(_) | Member::IpPortIp(..) | Member::IpPortNet(..) => {}
            }
        }
    }

    pub(super) fn shows(&self, server: &ipvs::Address) -> bool {
        let ipvs::Address { ip, protocol, port } = *server;
        let is_node_port =
            self.of_host.contains(&ip) && self.node_ports.contains(&(ip.is_ipv6(), protocol, port));
        is_node_port || self.on_device.contains(&ip) || self.in_sets.contains(&(ip, protocol, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: u8 = libc::IPPROTO_TCP as u8;
    const UDP: u8 = libc::IPPROTO_UDP as u8;
    const SCTP: u8 = libc::IPPROTO_SCTP as u8;

    fn at(ip: &str, protocol: u8, port: u16) -> ipvs::Address {
        ipvs::Address { ip: ip.parse().unwrap(), protocol, port }
    }

    fn member(ip: &str, protocol: u8, port: u16) -> Member {
        Member::IpPort(ipset::Address { ip: ip.parse().unwrap(), protocol, port })
    }

    #[test]
    fn a_server_is_recognised_by_its_address_or_its_node_port() {
        let mut evidence = Evidence {
            on_device: ["10.96.0.80".parse().unwrap()].into(),
            of_host: ["172.18.0.2", "fd00:172:18::2"].map(|ip| ip.parse().unwrap()).into(),
            ..Evidence::default()
        };
        evidence.read("KUBE-NODE-PORT-TCP", &[Member::Port(30080)]);
        evidence.read("KUBE-6-NODE-PORT-LOCAL-UDP", &[Member::Port(30053)]);
        evidence.read("KUBE-HEALTH-CHECK-NODE-PORT", &[Member::Port(32000)]);
        evidence.read("KUBE-NODE-PORT-SCTP-HASH", &[member("172.18.0.2", SCTP, 30077)]);
        evidence.read("KUBE-EXTERNAL-IP", &[member("172.18.0.2", TCP, 8080)]);
        for (server, its) in [
            (at("10.96.0.80", TCP, 80), true),
            (at("10.96.0.81", TCP, 80), false),
            (at("172.18.0.2", TCP, 30080), true),
            (at("172.18.0.2", UDP, 30080), false),
            (at("172.18.0.3", TCP, 30080), false),
            (at("fd00:172:18::2", UDP, 30053), true),
            (at("fd00:172:18::2", TCP, 30080), false),
            (at("172.18.0.2", TCP, 32000), false),
            (at("172.18.0.2", SCTP, 30077), true),
            (at("172.18.0.2", TCP, 8080), true),
        ] {
            assert_eq!(evidence.shows(&server), its, "{server}");
        }
    }
}
