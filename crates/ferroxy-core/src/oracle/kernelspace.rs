//! The oracle of kernelspace mode (Windows): load balancers of HNS translate packets, and can do nothing else.
//!
//! - Nothing is rejected or dropped, and source ranges are ignored: a packet that no load balancer serves passes.
//! - A load balancer sends to one target port: only the endpoints with the most frequent port are used.
//! - External frontends with policy Local use the endpoints of this node for all clients if HNS has direct server
//!   return (DSR), and those of the cluster otherwise.
//! - Host-network pods of this node are not endpoints of HNS.
//! - On an overlay, pods of other nodes without a route are not endpoints. Other hosts need no route, and addresses in
//!   this node's own range are pods of this node.
//! - Load balancers without DSR replace the client's address.
//! - The node itself does not reach its node ports.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{family, find};
use crate::intent::{Endpoint, Frontend, FrontendKind, Intent, LocalDetector, PortIntent, Route};
use crate::name::Protocol;
use crate::packet::{Origin, Packet, Verdict};
use crate::policy::PRESERVE_DESTINATION;

/// The properties of the host that affect the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host<'a> {
    /// HNS has direct server return.
    pub has_dsr: bool,
    /// DSR is configured for cluster IPs.
    pub enable_dsr: bool,
    /// The most endpoints that a load balancer can have.
    pub most_endpoints: usize,
    /// Only on an overlay: the pod ranges of other nodes, each with its node.
    pub routes: Option<&'a [(IpNet, IpAddr)]>,
    /// Only on an overlay: the pod ranges of this node.
    pub own: &'a [IpNet],
}

impl Host<'_> {
    fn leads_to(&self, ip: IpAddr) -> bool {
        let is_own = self.own.iter().any(|range| range.contains(&ip));
        let has_route = |(range, node): &(IpNet, IpAddr)| range.contains(&ip) || *node == ip;
        is_own || self.routes.is_none_or(|all| all.iter().any(has_route))
    }
}

pub fn kernelspace(intent: &Intent, packet: &Packet, host: Host<'_>) -> Verdict {
    if packet.protocol == Protocol::Sctp {
        return Verdict::Pass;
    }
    let at_node_port = packet.to_this_host && packet.origin != Origin::Host;
    let found = find(intent, packet, |frontend| frontend.address == Some(packet.destination))
        .or_else(|| find(intent, packet, |frontend| frontend.address.is_none() && at_node_port));
    let Some((port, frontend)) = found else { return Verdict::Pass };
    let preserves = host.has_dsr && preserves_destination(intent, port);
    let own = family(intent, packet).node_ip;
    let is_pod = |ip: IpAddr| match &family(intent, packet).local_detector {
        Some(LocalDetector::SourceIn(range)) => range.contains(&ip),
        _ => false,
    };
    let in_hns = |endpoint: &Endpoint| match endpoint.is_local {
        true => Some(endpoint.ip) != own,
        false => host.leads_to(endpoint.ip) || !is_pod(endpoint.ip),
    };
    let mut pool = pool(port, frontend, preserves, host);
    pool.retain(in_hns);
    let answers = of_largest_port(&pool, host.most_endpoints);
    if answers.is_empty() {
        return Verdict::Pass;
    }
    let masquerade = !returns_directly(frontend, preserves, host);
    Verdict::Endpoints(answers.into_iter().map(|it| (it, masquerade)).collect())
}

fn preserves_destination(intent: &Intent, port: &PortIntent) -> bool {
    let has_port = |ports: &[PortIntent]| ports.iter().any(|it| std::ptr::eq(it, port));
    let mut services = intent.services.values();
    let service = services.find(|service| has_port(&service.ports));
    service.is_some_and(|service| service.annotation(PRESERVE_DESTINATION) == Some("true"))
}

fn pool(port: &PortIntent, frontend: &Frontend, preserves: bool, host: Host<'_>) -> Vec<Endpoint> {
    let narrowed = preserves && matches!(frontend.kind, FrontendKind::NodePort | FrontendKind::LoadBalancer);
    match frontend.route {
        Route::Reject | Route::Drop => Vec::new(),
        Route::Local => port.local.clone(),
        Route::ExternalLocal if host.has_dsr => port.local.clone(),
        Route::ExternalCluster | Route::ExternalLocal if narrowed => {
            port.cluster.iter().filter(|endpoint| endpoint.is_local).copied().collect()
        }
        Route::Cluster | Route::ExternalCluster | Route::ExternalLocal => port.cluster.clone(),
    }
}

/// The endpoints with the most frequent port. If two ports are equally frequent, the greater last endpoint decides.
fn of_largest_port(pool: &[Endpoint], most: usize) -> Vec<SocketAddr> {
    let mut by_port: BTreeMap<u16, Vec<SocketAddr>> = BTreeMap::new();
    for endpoint in pool {
        by_port.entry(endpoint.port).or_default().push(SocketAddr::new(endpoint.ip, endpoint.port));
    }
    let largest = by_port.into_values().max_by_key(|group| (group.len(), group.last().copied()));
    let mut largest = largest.unwrap_or_default();
    largest.truncate(most);
    largest
}

fn returns_directly(frontend: &Frontend, preserves: bool, host: Host<'_>) -> bool {
    match frontend.kind {
        FrontendKind::ClusterIp => host.enable_dsr && host.has_dsr,
        FrontendKind::LoadBalancer if preserves => true,
        _ => host.has_dsr && frontend.route == Route::ExternalLocal,
    }
}
