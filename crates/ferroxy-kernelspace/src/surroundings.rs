//! What a State depends on besides the Intent: the network, the version of HNS, the settings.

use std::net::IpAddr;

use ferroxy_core::intent::LocalDetector;
use ferroxy_core::{Family, NodeIntent};
use ferroxy_hcn::{Features, Network, RemoteSubnetRoute, Version};
use ipnet::IpNet;

use crate::options::Options;
use crate::state::{Endpoint, Mac};

#[derive(Debug, Clone, PartialEq)]
pub struct Surroundings {
    pub features: Features,
    /// `None` for an L2Bridge network, or one that works as it does.
    pub overlay: Option<Overlay>,
    /// `enableDSR`: direct server return for cluster IPs.
    pub enable_dsr: bool,
    /// The addresses of the host's own endpoint (IPv4, IPv6), if health checks are forwarded to it.
    pub root: [Option<IpAddr>; 2],
}

/// A network that wraps packets to other nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlay {
    pub routes: Vec<RemoteSubnetRoute>,
    /// Ranges of pods of this node: no route names them.
    pub own: Vec<IpNet>,
    pub source_vip: IpAddr,
    /// The hardware address of the interface with the node's address.
    pub host_mac: Mac,
}

impl Surroundings {
    /// Assumptions where there is no HNS to query: an L2Bridge network and the newest version.
    pub fn assumed(options: &Options) -> Surroundings {
        Surroundings {
            features: Version::NEWEST.into(),
            overlay: None,
            enable_dsr: options.enable_dsr,
            root: [None; 2],
        }
    }

    /// The families that work: both, or that of the node's first address.
    pub fn families(&self, node: &NodeIntent) -> Vec<Family> {
        match self.features.dual_stack && self.overlay.is_none() {
            true => Family::ALL.to_vec(),
            false => vec![node.primary_family.unwrap_or(Family::V4)],
        }
    }

    /// Whether this is a pod of another node to which the overlay has no route yet. An address outside of the cluster's range of
    /// pods needs no route, nor does any address if that range is unknown: this node sends to it as to any other host. Pods of this
    /// node need no route, whatever node their EndpointSlice names.
    pub fn is_lost(&self, ip: IpAddr, node: &NodeIntent) -> bool {
        let is_pod = match &node.family(Family::of(ip)).local_detector {
            Some(LocalDetector::SourceIn(range)) => range.contains(&ip),
            _ => false,
        };
        let is_lost = |overlay: &Overlay| overlay.provider(ip).is_none() && !overlay.is_own(ip);
        is_pod && self.overlay.as_ref().is_some_and(is_lost)
    }

    /// The HNS endpoint for a pod of another node.
    pub fn remote(&self, ip: IpAddr, node_ip: Option<IpAddr>) -> Endpoint {
        let provider = self.overlay.as_ref().and_then(|overlay| overlay.provider(ip).or(node_ip));
        Endpoint { mac: Mac::invented(ip), provider, is_remote: true }
    }
}

impl Overlay {
    /// The node behind which an address is: that of the last route to it. `None`: outside of the overlay.
    pub fn provider(&self, ip: IpAddr) -> Option<IpAddr> {
        let leads_to = |route: &&RemoteSubnetRoute| {
            let range = IpNet::new(route.network, route.prefix_length);
            route.provider == ip || range.is_ok_and(|range| range.contains(&ip))
        };
        self.routes.iter().rfind(leads_to).map(|route| route.provider)
    }

    /// Nodes, and addresses outside of the overlay: packets to them must come from the node's own address.
    pub fn is_outside(&self, ip: IpAddr) -> bool {
        !self.is_own(ip) && self.provider(ip).is_none_or(|provider| provider == ip)
    }

    /// Whether the address is in a range of pods of this node.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|range| range.contains(&ip))
    }

    pub fn routes_of(network: &Network) -> Vec<RemoteSubnetRoute> {
        network.remote_subnets().collect()
    }

    pub fn own_of(network: &Network) -> Vec<IpNet> {
        network.own_subnets().filter_map(|(ip, length)| IpNet::new(ip, length).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(routes: &[(&str, u8, &str)]) -> Overlay {
        let route = |(network, prefix_length, provider): &(&str, u8, &str)| RemoteSubnetRoute {
            network: network.parse().unwrap(),
            prefix_length: *prefix_length,
            provider: provider.parse().unwrap(),
        };
        Overlay {
            routes: routes.iter().map(route).collect(),
            own: vec!["10.244.1.0/24".parse().unwrap()],
            source_vip: [10, 244, 1, 9].into(),
            host_mac: Mac::default(),
        }
    }

    #[test]
    fn the_last_route_that_leads_to_an_address_counts() {
        let overlay = overlay(&[
            ("10.244.2.0", 24, "172.18.0.3"),
            ("10.244.0.0", 16, "172.18.0.4"),
            ("10.244.3.0", 24, "172.18.0.5"),
        ]);
        let provider = |ip: &str| overlay.provider(ip.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(provider("10.244.2.5").as_deref(), Some("172.18.0.4"));
        assert_eq!(provider("10.244.3.5").as_deref(), Some("172.18.0.5"));
        assert_eq!(provider("172.18.0.3").as_deref(), Some("172.18.0.3"), "a node is behind itself");
        assert_eq!(provider("192.0.2.7"), None);
        assert!(overlay.is_outside([172, 18, 0, 3].into()) && overlay.is_outside([192, 0, 2, 7].into()));
        assert!(!overlay.is_outside([10, 244, 2, 5].into()) && !overlay.is_outside([10, 244, 1, 5].into()));
    }
}
