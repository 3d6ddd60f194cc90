//! A virtual server of kube-proxy and its connections, and which servers must stay for them. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_netlink::ipvs::{self, Found};

/// A virtual server and its destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) address: ipvs::Address,
    pub(super) destinations: Vec<Found>,
}

impl Server {
    /// The connections that break without this server. UDP has none: a client that keeps its socket starts again with
    /// our rules, once the connection tracking entry is deleted.
    pub(super) fn connections(&self) -> u64 {
        if self.is_udp() { 0 } else { self.remembered() }
    }

    /// All connections that IPVS knows. Those that are closing count, too: they may still transfer data.
    pub(super) fn remembered(&self) -> u64 {
        self.destinations.iter().map(|found| u64::from(found.active) + u64::from(found.inactive)).sum()
    }

    pub(super) fn is_udp(&self) -> bool {
        i32::from(self.address.protocol) == libc::IPPROTO_UDP
    }

    /// Whether it still accepts new connections.
    pub(super) fn is_open(&self) -> bool {
        self.destinations.iter().any(|found| found.destination.weight > 0)
    }
}

/// Splits the servers into those that stay and those that are removed. An address of the device stays or is removed
/// with all its servers: while it stays, packets to a port without a virtual server would reach the host's own
/// programs.
pub(super) fn partition(servers: Vec<Server>, on_device: &BTreeSet<IpAddr>) -> (Vec<Server>, Vec<Server>) {
    let busy = servers.iter().filter(|server| server.connections() > 0).map(|server| server.address.ip);
    let held: BTreeSet<IpAddr> = busy.filter(|ip| on_device.contains(ip)).collect();
    servers.into_iter().partition(|it| it.connections() > 0 || held.contains(&it.address.ip))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ferroxy_netlink::ipvs::{Destination, Forwarding};

    use super::*;

    const TCP: u8 = libc::IPPROTO_TCP as u8;
    const UDP: u8 = libc::IPPROTO_UDP as u8;

    fn server(ip: &str, protocol: u8, port: u16, connections: [u32; 2]) -> Server {
        let ip: IpAddr = ip.parse().unwrap();
        let [active, inactive] = connections;
        let to = SocketAddr::new([10, 244, 1, 5].into(), 80);
        let destination = Destination { address: to, forwarding: Forwarding::Masquerade, weight: 1 };
        let found = Found { destination, active, inactive, persistent: 7 };
        Server { address: ipvs::Address { ip, protocol, port }, destinations: vec![found] }
    }

    #[test]
    fn a_server_stays_for_its_connections_or_for_its_address() {
        let on_device = BTreeSet::from(["10.96.0.80", "10.96.0.81"].map(|ip| ip.parse().unwrap()));
        let cases = [
            (server("10.96.0.80", TCP, 80, [1, 0]), true),
            (server("10.96.0.80", TCP, 443, [0, 0]), true),
            (server("10.96.0.80", UDP, 80, [0, 9]), true),
            (server("10.96.0.81", TCP, 80, [0, 0]), false),
            (server("10.96.0.81", UDP, 80, [0, 9]), false),
            (server("172.18.0.2", TCP, 30080, [0, 1]), true),
            (server("172.18.0.2", TCP, 30081, [0, 0]), false),
        ];
        let (staying, going) =
            partition(cases.iter().map(|(server, _)| server.clone()).collect(), &on_device);
        for (server, stays) in &cases {
            assert_eq!(staying.contains(server), *stays, "{}", server.address);
            assert_eq!(going.contains(server), !stays, "{}", server.address);
        }
        assert_eq!(staying.iter().map(Server::connections).sum::<u64>(), 2);
    }
}
