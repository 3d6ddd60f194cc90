//! An Intent becomes the State that HNS must have: a load balancer for each frontend that an endpoint serves, and the endpoints
//! of other nodes that load balancers name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferroxy_core::intent::{Endpoint as Pod, Frontend as Entry, FrontendKind};
use ferroxy_core::policy::PRESERVE_DESTINATION;
use ferroxy_core::{Intent, NodeIntent, PortIntent, Protocol, Route, ServiceIntent};
use ferroxy_hcn::mapping_flag;

use crate::state::{Balancer, Endpoint, Frontend, Role, State};
use crate::surroundings::Surroundings;

/// HNS refuses load balancers with more endpoints.
pub const MOST_ENDPOINTS: usize = 1024;

pub fn render(intent: &Intent, surroundings: &Surroundings) -> State {
    let mut state = base(&intent.node, surroundings);
    for service in intent.services.values() {
        add(&mut state, fragment(service, &intent.node, surroundings));
    }
    state
}

/// The State without any Service: on an overlay, the endpoint of the source VIP.
pub fn base(_: &NodeIntent, surroundings: &Surroundings) -> State {
    let mut state = State::default();
    if let Some(overlay) = &surroundings.overlay {
        let own = Endpoint { mac: overlay.host_mac, provider: None, is_remote: false };
        state.endpoints.insert(overlay.source_vip, own);
    }
    state
}

/// Of two Services with the same frontend the first keeps it.
pub fn add(state: &mut State, fragment: State) {
    for (frontend, balancer) in fragment.balancers {
        state.balancers.entry(frontend).or_insert(balancer);
    }
    state.endpoints.extend(fragment.endpoints);
}

/// Renders one Service.
pub fn fragment(service: &ServiceIntent, node: &NodeIntent, surroundings: &Surroundings) -> State {
    let mut state = State::default();
    let families = surroundings.families(node);
    for port in service.ports.iter().filter(|port| families.contains(&port.family)) {
        let rendering = Rendering::new(service, port, node, surroundings);
        for entry in &port.frontends {
            rendering.add(&mut state, entry);
        }
    }
    let node_ip = |ip: IpAddr| node.family(ferroxy_core::Family::of(ip)).node_ip;
    if let Some(overlay) = &surroundings.overlay {
        let cluster_ips = service.cluster_ips.iter().copied();
        for ip in cluster_ips.filter(|ip| families.contains(&ferroxy_core::Family::of(*ip))) {
            // HNS routes a cluster IP only if an HNS endpoint has it, even if the Service has no endpoints.
            let here = Endpoint { mac: overlay.host_mac, provider: node_ip(ip), is_remote: true };
            state.endpoints.insert(ip, here);
        }
    }
    state
}

/// The pods that load balancers of a port can name.
pub fn pool(
    port: &PortIntent,
    entry: &Entry,
    service: &ServiceIntent,
    surroundings: &Surroundings,
) -> Vec<Pod> {
    let narrowed = preserves_destination(service, surroundings)
        && matches!(entry.kind, FrontendKind::NodePort | FrontendKind::LoadBalancer);
    match entry.route {
        Route::Reject | Route::Drop => Vec::new(),
        Route::Local => port.local.clone(),
        Route::ExternalLocal if surroundings.features.dsr => port.local.clone(),
        Route::ExternalCluster | Route::ExternalLocal if narrowed => {
            port.cluster.iter().filter(|pod| pod.is_local).copied().collect()
        }
        Route::Cluster | Route::ExternalCluster | Route::ExternalLocal => port.cluster.clone(),
    }
}

/// A pod that a load balancer should name, but to which the overlay has no route.
pub fn lost(service: &ServiceIntent, node: &NodeIntent, surroundings: &Surroundings) -> Option<IpAddr> {
    surroundings.overlay.as_ref()?;
    let families = surroundings.families(node);
    let is_served = |port: &&PortIntent| families.contains(&port.family) && port.protocol != Protocol::Sctp;
    let mut ports = service.ports.iter().filter(is_served);
    let is_lost = |pod: &Pod| !pod.is_local && surroundings.is_lost(pod.ip, node);
    ports.find_map(|port| {
        let mut pods = port.frontends.iter().flat_map(|entry| pool(port, entry, service, surroundings));
        pods.find(is_lost).map(|pod| pod.ip)
    })
}

/// Needs direct server return, as policy Local does.
pub fn preserves_destination(service: &ServiceIntent, surroundings: &Surroundings) -> bool {
    surroundings.features.dsr && service.annotation(PRESERVE_DESTINATION) == Some("true")
}

/// The one port that a load balancer can send to, and its pods: the port that most pods have. If several have as many pods,
/// the port of the pod with the highest address.
pub fn largest_group(pods: &[Pod]) -> Option<(u16, BTreeSet<IpAddr>)> {
    let mut by_port: BTreeMap<u16, BTreeSet<IpAddr>> = BTreeMap::new();
    for pod in pods {
        by_port.entry(pod.port).or_default().insert(pod.ip);
    }
    by_port.into_iter().max_by_key(|(port, ips)| (ips.len(), ips.last().copied(), *port))
}

struct Rendering<'a> {
    service: &'a ServiceIntent,
    port: &'a PortIntent,
    surroundings: &'a Surroundings,
    node: &'a NodeIntent,
    node_ip: Option<IpAddr>,
    source_vip: Option<IpAddr>,
    preserves: bool,
}

impl<'a> Rendering<'a> {
    fn new(
        service: &'a ServiceIntent,
        port: &'a PortIntent,
        node: &'a NodeIntent,
        surroundings: &'a Surroundings,
    ) -> Rendering<'a> {
        let node_ip = node.family(port.family).node_ip;
        let is_elsewhere = |pod: &&Pod| !pod.is_local && !surroundings.is_lost(pod.ip, node);
        let mut pods = port.cluster.iter().chain(&port.local).filter(is_elsewhere);
        let source_vip = surroundings.overlay.as_ref().and_then(|overlay| {
            match pods.any(|pod| overlay.is_outside(pod.ip)) {
                true => node_ip,
                false => Some(overlay.source_vip),
            }
        });
        let preserves = preserves_destination(service, surroundings);
        Rendering { service, port, surroundings, node, node_ip, source_vip, preserves }
    }

    fn add(&self, state: &mut State, entry: &Entry) {
        let mut pods = pool(self.port, entry, self.service, self.surroundings);
        // HNS has no endpoint for a pod of this node in the host's network.
        pods.retain(|pod| !(pod.is_local && Some(pod.ip) == self.node_ip));
        // An endpoint with a wrong provider would make every connection to the pod fail.
        pods.retain(|pod| pod.is_local || !self.surroundings.is_lost(pod.ip, self.node));
        // An EndpointSlice must not take the source VIP from all other Services.
        let reserved = self.surroundings.overlay.as_ref().map(|overlay| overlay.source_vip);
        pods.retain(|pod| Some(pod.ip) != reserved);
        let Some((target_port, ips)) = largest_group(&pods) else { return };
        if self.port.protocol == Protocol::Sctp {
            return;
        }
        let endpoints: BTreeSet<IpAddr> = ips.into_iter().take(MOST_ENDPOINTS).collect();
        let elsewhere = pods.iter().filter(|pod| !pod.is_local && endpoints.contains(&pod.ip));
        state.endpoints.extend(elsewhere.map(|pod| (pod.ip, self.surroundings.remote(pod.ip, self.node_ip))));
        let (role, mapping_flags) = self.role(entry);
        let balancer = Balancer {
            role,
            endpoints,
            target_port,
            source_vip: self.source_vip,
            is_sticky: self.port.affinity.is_some(),
            dsr: self.returns_directly(entry),
            mapping_flags,
        };
        state.balancers.insert(self.at(entry.address, self.port.protocol, entry.port), balancer);
        if role == Role::IngressIp {
            self.forward_health_checks(state, entry.address);
        }
    }

    fn at(&self, vip: Option<IpAddr>, protocol: Protocol, port: u16) -> Frontend {
        Frontend { family: self.port.family, vip, protocol, port }
    }

    fn role(&self, entry: &Entry) -> (Role, u32) {
        use mapping_flag::{EXTERNAL_VIP, LOCAL_ROUTED_VIP};
        match entry.kind {
            FrontendKind::ClusterIp => (Role::ClusterIp, 0),
            FrontendKind::NodePort => (Role::NodePort, EXTERNAL_VIP | LOCAL_ROUTED_VIP),
            FrontendKind::ExternalIp => (Role::ExternalIp, EXTERNAL_VIP),
            FrontendKind::LoadBalancer => (Role::IngressIp, EXTERNAL_VIP | self.preserving()),
        }
    }

    fn preserving(&self) -> u32 {
        use mapping_flag::{PRESERVE_DESTINATION, USE_MUX};
        if self.preserves { USE_MUX | PRESERVE_DESTINATION } else { 0 }
    }

    /// Policy Local uses direct server return whatever `enableDSR` says: endpoints must see the client's address.
    fn returns_directly(&self, entry: &Entry) -> bool {
        let has_dsr = self.surroundings.features.dsr;
        match entry.kind {
            FrontendKind::ClusterIp => self.surroundings.enable_dsr && has_dsr,
            FrontendKind::LoadBalancer if self.preserves => true,
            _ => has_dsr && entry.route == Route::ExternalLocal,
        }
    }

    /// External load balancers that check health at the load-balancer IP get the answer of this node's health-check port.
    fn forward_health_checks(&self, state: &mut State, vip: Option<IpAddr>) {
        let root = self.surroundings.root[self.port.family as usize];
        let (Some(check), Some(root)) = (self.service.health_check, root) else { return };
        let balancer = Balancer {
            role: Role::HealthCheck,
            endpoints: [root].into(),
            target_port: check.port,
            source_vip: self.source_vip,
            is_sticky: false,
            dsr: false,
            mapping_flags: self.preserving(),
        };
        state.balancers.entry(self.at(vip, Protocol::Tcp, check.port)).or_insert(balancer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(last: u8, port: u16) -> Pod {
        Pod { ip: [10, 0, 0, last].into(), port, is_local: false }
    }

    #[test]
    fn the_port_of_most_pods_is_used() {
        let group = |pods: &[Pod]| largest_group(pods).map(|(port, ips)| (port, ips.len()));
        assert_eq!(group(&[]), None);
        assert_eq!(group(&[pod(1, 80), pod(2, 80), pod(3, 8080)]), Some((80, 2)));
        assert_eq!(group(&[pod(1, 80), pod(2, 8080)]), Some((8080, 1)), "as many: that of the last");
        assert_eq!(group(&[pod(1, 80), pod(1, 8080)]), Some((8080, 1)), "a pod counts once for each port");
    }
}
