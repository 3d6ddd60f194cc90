//! Renders an Intent to a State: the listeners of each Service, and which clients go to which pool.
//!
//! Every address of a TCP or UDP port is on the interface, whether it has endpoints or not: then the host refuses ports without a
//! listener, and no packet leaves by the default route. A socket shows only the source of a client: pods are recognised by their
//! range, this host by its addresses. Classes of clients and source ranges are therefore routes of a frontend.

use std::net::{IpAddr, SocketAddr};

use ferroxy_core::intent::{FrontendKind, LocalDetector, NodePortAddresses};
use ferroxy_core::{Family, Frontend, Intent, NodeIntent, PortIntent, Route, ServiceIntent};
use ferroxy_pools::{CLUSTER, LOCAL, balancing, pool, pool_key, proxied, socket_key, unspecified};
use ferroxy_proxy::{self as proxy, Class};
use ipnet::IpNet;

use crate::settings::Settings;
use crate::state::{State, node_port_key};

/// `families`: those that this host has.
pub fn render(intent: &Intent, settings: &Settings, families: &[Family]) -> State {
    let mut state = State::default();
    for service in intent.services.values() {
        state.extend(fragment(service, &intent.node, settings, families));
    }
    state
}

/// The part of one Service.
pub fn fragment(
    service: &ServiceIntent,
    node: &NodeIntent,
    settings: &Settings,
    families: &[Family],
) -> State {
    let mut state = State::default();
    for port in service.ports.iter().filter(|port| families.contains(&port.family)) {
        if let Some(protocol) = proxied(port.protocol) {
            PortScene { service, port, protocol, node, settings }.add_to(&mut state);
        }
    }
    state
}

/// One Service port that the proxy serves.
struct PortScene<'a> {
    service: &'a ServiceIntent,
    port: &'a PortIntent,
    protocol: proxy::Protocol,
    node: &'a NodeIntent,
    settings: &'a Settings,
}

impl PortScene<'_> {
    fn add_to(&self, state: &mut State) {
        for frontend in &self.port.frontends {
            state.addresses.extend(frontend.address);
            // No endpoint: without a listener, the host refuses.
            if frontend.route == Route::Reject && !self.holds() {
                continue;
            }
            if frontend.kind == FrontendKind::NodePort {
                for address in self.node_port_addresses() {
                    self.listen(frontend, SocketAddr::new(address, frontend.port), state);
                }
            } else if let Some(address) = frontend.address {
                self.listen(frontend, SocketAddr::new(address, frontend.port), state);
            }
        }
    }

    fn listen(&self, frontend: &Frontend, address: SocketAddr, state: &mut State) {
        let is_node_port = frontend.kind == FrontendKind::NodePort;
        let key = match is_node_port {
            true => node_port_key(self.protocol, address),
            false => socket_key(self.protocol, address),
        };
        let arrival = proxy::Arrival::Socket {
            protocol: self.protocol,
            address,
            freebind: false,
            sockets: proxy::Sockets::One,
            class: CLUSTER,
        };
        let mut routes = Vec::new();
        for (class, sources) in self.clients(frontend) {
            let to = pool_key(self.service, self.port, class);
            let pool = || pool(self.service, self.port, class, self.settings.udp_idle);
            state.pools.entry(to.clone()).or_insert_with(pool);
            routes.push(proxy::Route { sources, ..proxy::Route::to(to) });
        }
        // Without any route it still listens: datagrams of clients without a route are dropped.
        state.frontends.insert(key, proxy::Frontend { arrival, routes });
    }

    /// Which clients go to which endpoints: the first entry that matches counts. An entry without sources is for all clients.
    fn clients(&self, frontend: &Frontend) -> Vec<(Class, Vec<IpNet>)> {
        let allowed = frontend.allowed_sources.as_deref();
        let all_clients = |class| match allowed {
            None => vec![(class, Vec::new())],
            Some([]) => Vec::new(),
            Some(allowed) => vec![(class, allowed.to_vec())],
        };
        match frontend.route {
            Route::Drop => Vec::new(),
            // Connections wait for an endpoint.
            Route::Reject => all_clients(CLUSTER),
            Route::Cluster | Route::ExternalCluster => all_clients(CLUSTER),
            Route::Local => all_clients(LOCAL),
            Route::ExternalLocal => {
                let near = within(self.near(frontend), allowed);
                let mut clients = if near.is_empty() { Vec::new() } else { vec![(CLUSTER, near)] };
                if !self.port.local.is_empty() {
                    clients.extend(all_clients(LOCAL));
                }
                clients
            }
        }
    }

    /// Pods and this host. The host's own connections to an address of a Service come from that address.
    fn near(&self, frontend: &Frontend) -> Vec<IpNet> {
        let family = self.port.family;
        let mut near: Vec<IpNet> = match &self.node.family(family).local_detector {
            Some(LocalDetector::SourceIn(range)) => vec![*range],
            // A socket does not show by which interface a client came.
            Some(LocalDetector::Interface(_) | LocalDetector::InterfacePrefix(_)) | None => Vec::new(),
        };
        near.push(loopback(family));
        near.extend(frontend.address.map(IpNet::from));
        let own = self.node.host_addresses.iter().filter(|ip| Family::of(**ip) == family);
        near.extend(own.map(|ip| IpNet::from(*ip)));
        near
    }

    /// Connections wait for an endpoint.
    fn holds(&self) -> bool {
        self.protocol == proxy::Protocol::Tcp && balancing::hold(self.service).is_some()
    }

    fn node_port_addresses(&self) -> Vec<IpAddr> {
        match &self.node.family(self.port.family).node_port_addresses {
            NodePortAddresses::AllLocal => vec![unspecified(self.port.family)],
            NodePortAddresses::These(addresses) => addresses.iter().copied().collect(),
        }
    }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8)),
        Family::V6 => IpNet::from(IpAddr::from(std::net::Ipv6Addr::LOCALHOST)),
    }
}

/// The ranges in common. Of two ranges one contains the other, or they are disjoint.
fn within(ranges: Vec<IpNet>, allowed: Option<&[IpNet]>) -> Vec<IpNet> {
    let Some(allowed) = allowed else { return ranges };
    let common = |a: &IpNet, b: &IpNet| match () {
        () if a.contains(b) => Some(*b),
        () if b.contains(a) => Some(*a),
        () => None,
    };
    ranges.iter().flat_map(|range| allowed.iter().filter_map(move |it| common(range, it))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_common_are_the_smaller_ones() {
        let nets = |texts: &[&str]| texts.iter().map(|it| it.parse().unwrap()).collect::<Vec<IpNet>>();
        let near = nets(&["10.244.0.0/16", "172.18.0.2/32"]);
        assert_eq!(within(near.clone(), None), near);
        assert_eq!(
            within(near.clone(), Some(&nets(&["10.244.1.0/24", "192.0.2.0/24"]))),
            nets(&["10.244.1.0/24"])
        );
        assert_eq!(within(near.clone(), Some(&nets(&["0.0.0.0/0"]))), near);
        assert_eq!(within(near, Some(&[])), []);
    }
}
