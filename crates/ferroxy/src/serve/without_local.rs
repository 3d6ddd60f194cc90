//! How many Service ports have traffic policy Local and endpoints, but none on this node: a metric of kube-proxy.

use std::collections::HashMap;

use ferroxy_core::intent::{FrontendKind, PortIntent, Route};
use ferroxy_core::{Family, ServiceIntent, ServiceName};

/// The policy without an endpoint on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Internal,
    External,
}

/// Updated Service by Service; it stores only Services that count.
#[derive(Debug, Default)]
pub struct WithoutLocal {
    services: HashMap<ServiceName, Counted>,
    total: Counted,
}

/// By policy and family.
type Counted = [[u64; 2]; 2];

impl WithoutLocal {
    pub fn replace(&mut self, name: &ServiceName, service: Option<&ServiceIntent>) {
        let new = service.map(count).unwrap_or_default();
        let old = self.services.remove(name).unwrap_or_default();
        for (policy, family) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            self.total[policy][family] += new[policy][family];
            self.total[policy][family] -= old[policy][family];
        }
        if new != Counted::default() {
            self.services.insert(name.clone(), new);
        }
    }

    pub fn total(&self, policy: Policy, family: Family) -> u64 {
        self.total[policy as usize][family as usize]
    }
}

fn count(service: &ServiceIntent) -> Counted {
    let mut counted = Counted::default();
    for port in &service.ports {
        let found = [(Policy::Internal, lacks_internal(port)), (Policy::External, lacks_external(port))];
        for (policy, lacks) in found {
            counted[policy as usize][port.family as usize] += u64::from(lacks);
        }
    }
    counted
}

fn lacks_internal(port: &PortIntent) -> bool {
    port.frontends.iter().any(|it| it.kind == FrontendKind::ClusterIp && it.route == Route::Drop)
}

fn lacks_external(port: &PortIntent) -> bool {
    port.local.is_empty()
        && port.frontends.iter().any(|frontend| match frontend.route {
            Route::ExternalLocal => true,
            Route::Drop => frontend.kind != FrontendKind::ClusterIp,
            Route::Reject | Route::Cluster | Route::Local | Route::ExternalCluster => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroxy_core::Protocol;
    use ferroxy_core::intent::{Endpoint, Frontend};

    fn service(kind: FrontendKind, route: Route, has_local: bool) -> ServiceIntent {
        let endpoint = Endpoint { ip: "10.244.1.5".parse().unwrap(), port: 80, is_local: true };
        let frontend = Frontend { kind, address: None, port: 80, route, allowed_sources: None };
        let port = PortIntent {
            name: "".into(),
            family: Family::V4,
            protocol: Protocol::Tcp,
            affinity: None,
            cluster: vec![endpoint],
            local: if has_local { vec![endpoint] } else { Vec::new() },
            size: 1,
            frontends: vec![frontend],
        };
        ServiceIntent {
            name: name(),
            cluster_ips: Vec::new(),
            ports: vec![port],
            health_check: None,
            annotations: Vec::new(),
            left_out: Default::default(),
        }
    }

    fn name() -> ServiceName {
        ServiceName::new("default", "web")
    }

    #[test]
    fn services_without_local_endpoints_are_counted_while_they_are() {
        use FrontendKind::{ClusterIp, NodePort};
        let cases = [
            (ClusterIp, Route::Drop, false, [1, 0]),
            (ClusterIp, Route::Local, true, [0, 0]),
            (ClusterIp, Route::Reject, false, [0, 0]),
            (ClusterIp, Route::Cluster, false, [0, 0]),
            (NodePort, Route::ExternalLocal, false, [0, 1]),
            (NodePort, Route::ExternalLocal, true, [0, 0]),
            (NodePort, Route::ExternalCluster, false, [0, 0]),
        ];
        let mut counted = WithoutLocal::default();
        for (kind, route, has_local, expected) in cases {
            counted.replace(&name(), Some(&service(kind, route, has_local)));
            let totals = [Policy::Internal, Policy::External].map(|policy| counted.total(policy, Family::V4));
            assert_eq!(totals, expected, "{kind:?} {route:?}");
            assert_eq!(counted.total(Policy::External, Family::V6), 0);
        }
        counted.replace(&name(), None);
        assert!(counted.services.is_empty() && counted.total == Counted::default());
    }
}
