//! What a change of a large Service leaves alone: such frontends are rendered neither before nor after. So a portion of a huge
//! Service, or a change of one of its ports, costs the frontends that change and not all of them with all their endpoints.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ferroxy_core::{Family, Frontend, PortIntent, Protocol, ServiceIntent};
use ferroxy_dataplane::place::Ports;

/// Up to so many are rendered and compared: that is cheaper than finding out which of them change.
const FEW: usize = 64;

/// The frontends of a Service that are the same elements before and after a change. Empty if it has few.
#[derive(Debug, Default)]
pub struct Unchanged(HashSet<Place>);

/// What distinguishes the frontends of a Service.
type Place = (Family, Protocol, Option<IpAddr>, u16);

fn place(port: &PortIntent, frontend: &Frontend) -> Place {
    (port.family, port.protocol, frontend.address, frontend.port)
}

impl Unchanged {
    /// Both in slot order: see `place.rs`.
    pub fn between(before: &ServiceIntent, after: &ServiceIntent) -> Unchanged {
        let frontends: usize = before.ports.iter().map(|port| port.frontends.len()).sum();
        if frontends <= FEW {
            return Unchanged::default();
        }
        let earlier = Ports::of(before);
        let mut unchanged = HashSet::new();
        for port in &after.ports {
            let Some(before) = earlier.same(port).filter(|before| same_endpoints(before, port)) else {
                continue;
            };
            let known: HashMap<Place, &Frontend> =
                before.frontends.iter().map(|frontend| (place(before, frontend), frontend)).collect();
            let is_same = |it: &&Frontend| known.get(&place(port, it)) == Some(it);
            unchanged.extend(port.frontends.iter().filter(is_same).map(|frontend| place(port, frontend)));
        }
        Unchanged(unchanged)
    }

    pub fn contains(&self, port: &PortIntent, frontend: &Frontend) -> bool {
        !self.0.is_empty() && self.0.contains(&place(port, frontend))
    }
}

/// Everything that the elements of a frontend are made of, except for the frontend.
fn same_endpoints(one: &PortIntent, other: &PortIntent) -> bool {
    one.affinity == other.affinity && one.cluster == other.cluster && one.local == other.local
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferroxy_core::intent::{FrontendKind, Route};
    use ferroxy_core::{Endpoint, NodeIntent, ServiceName};

    use super::*;
    use crate::ledger::Ledger;
    use crate::settings::Settings;

    const FRONTENDS: u8 = 100;
    const ENDPOINTS: u8 = 50;

    fn frontend(number: u8) -> Frontend {
        let (kind, address) = (FrontendKind::ExternalIp, Some([192, 0, 2, number].into()));
        Frontend { kind, address, port: 80, route: Route::ExternalCluster, allowed_sources: None }
    }

    fn endpoint(number: u8) -> Endpoint {
        Endpoint { ip: [10, 0, 0, number].into(), port: 8080, is_local: number == 1 }
    }

    /// Two ports; the first has many frontends, the second has one.
    fn service() -> ServiceIntent {
        let port = |name: &str, protocol, frontends: std::ops::Range<u8>| PortIntent {
            name: name.into(),
            family: Family::V4,
            protocol,
            affinity: None,
            cluster: (0..ENDPOINTS).map(endpoint).collect(),
            local: Vec::new(),
            size: ENDPOINTS.into(),
            frontends: frontends.map(frontend).collect(),
        };
        ServiceIntent {
            name: ServiceName::new("default", "huge"),
            cluster_ips: Vec::new(),
            ports: vec![port("web", Protocol::Tcp, 0..FRONTENDS), port("dns", Protocol::Udp, 0..1)],
            health_check: None,
            annotations: Vec::new(),
            left_out: Default::default(),
        }
    }

    /// Changes the Service, and compares the kernel with what all of it is rendered to. Returns how many elements were rendered for it.
    fn change(ledger: &mut Ledger, to: ServiceIntent) -> usize {
        let mut kernel = ledger.state();
        let (plan, settlement) = ledger.plan(&[(to.name.clone(), Some(Arc::new(to)))]);
        for op in plan.ops() {
            kernel.apply(op).unwrap_or_else(|refused| panic!("{op}: {refused}"));
        }
        let rendered = settlement.rendered();
        ledger.settle(settlement);
        assert_eq!(kernel, ledger.state());
        rendered
    }

    #[test]
    fn a_change_of_a_large_service_costs_the_frontends_that_change() {
        let mut ledger = Ledger::new(&[Family::V4], NodeIntent::default(), Settings::default());
        let (all, one) = (usize::from(FRONTENDS) * usize::from(ENDPOINTS), usize::from(ENDPOINTS));
        let mut now = service();
        assert!(change(&mut ledger, now.clone()) >= all);
        // One frontend, once or twice, and what the port has anyway.
        let is_small = |rendered: usize| (1..2 * one + 20).contains(&rendered);
        let changes: [fn(&mut ServiceIntent); 5] = [
            |service| service.ports[0].frontends.push(frontend(200)),
            |service| service.ports[0].frontends.retain(|it| *it != frontend(7)),
            |service| service.ports[0].frontends[3].route = Route::Reject,
            |service| service.ports[0].frontends.swap(1, 2),
            |service| service.ports[1].cluster.truncate(20),
        ];
        for (number, small_change) in changes.into_iter().enumerate() {
            small_change(&mut now);
            let rendered = change(&mut ledger, now.clone());
            assert!(is_small(rendered), "change {number}: {rendered} elements");
        }
    }

    #[test]
    fn what_every_frontend_is_made_of_changes_all_of_them() {
        let mut ledger = Ledger::new(&[Family::V4], NodeIntent::default(), Settings::default());
        let mut now = service();
        change(&mut ledger, now.clone());
        let changes: [fn(&mut ServiceIntent); 6] = [
            |service| service.ports[0].cluster.retain(|it| *it != endpoint(9)),
            |service| service.ports[0].affinity = Some(60),
            |service| service.ports[0].name = "renamed".into(),
            |service| service.ports[0].cluster[0].is_local = true,
            |service| service.ports[0].cluster.clear(),
            |service| service.ports.truncate(1),
        ];
        for large_change in changes {
            large_change(&mut now);
            change(&mut ledger, now.clone());
        }
    }
}
