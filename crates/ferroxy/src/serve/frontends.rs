//! Which Service port a frontend belongs to, updated Service by Service. The kernel's traffic counters only have
//! addresses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::{Family, Protocol, ServiceIntent, ServiceName};
use ferroxy_dataplane::Acknowledged;
use ferroxy_dataplane::capability::traffic::Flow;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePort {
    pub service: ServiceName,
    /// The port's name; often empty.
    pub port: Arc<str>,
}

#[derive(Debug, Default)]
pub struct Frontends {
    owners: HashMap<Frontend, ServicePort>,
    of_service: HashMap<ServiceName, Vec<Frontend>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Frontend {
    family: Family,
    protocol: Protocol,
    /// `None` for a node port: which of the host's addresses a client used does not matter.
    address: Option<IpAddr>,
    port: u16,
}

impl Frontends {
    /// The frontends of everything in force.
    pub fn of(in_force: &Acknowledged) -> Frontends {
        let mut frontends = Frontends::default();
        in_force.services().for_each(|(name, service)| frontends.replace(name, Some(&service)));
        frontends
    }

    /// Replaces the frontends of one Service.
    pub fn replace(&mut self, name: &ServiceName, service: Option<&ServiceIntent>) {
        for old in self.of_service.remove(name).unwrap_or_default() {
            // Another Service may own the frontend by now.
            if self.owners.get(&old).is_some_and(|owner| owner.service == *name) {
                self.owners.remove(&old);
            }
        }
        let mut frontends = Vec::new();
        for port in service.iter().flat_map(|service| &service.ports) {
            for it in &port.frontends {
                let (family, protocol) = (port.family, port.protocol);
                let frontend = Frontend { family, protocol, address: it.address, port: it.port };
                let owner = ServicePort { service: name.clone(), port: Arc::clone(&port.name) };
                self.owners.insert(frontend, owner);
                frontends.push(frontend);
            }
        }
        if !frontends.is_empty() {
            self.of_service.insert(name.clone(), frontends);
        }
    }

    /// `None` if no Service owns the flow's frontend.
    pub fn owner(&self, flow: &Flow) -> Option<&ServicePort> {
        let (address, port) = (flow.frontend.ip(), flow.frontend.port());
        let at = |address| {
            let (family, protocol) = (Family::of(flow.frontend.ip()), flow.protocol);
            self.owners.get(&Frontend { family, protocol, address, port })
        };
        at(Some(address)).or_else(|| at(None))
    }

    pub fn has(&self, name: &ServiceName) -> bool {
        self.of_service.contains_key(name)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ferroxy_core::intent::{FrontendKind, PortIntent, Route};

    /// A Service with a cluster IP and a node port, both for TCP port `http`.
    pub fn service(name: &str, address: &str, node_port: u16) -> ServiceIntent {
        let name = ServiceName::new("default", name);
        let frontend = |kind, address, port| ferroxy_core::Frontend {
            kind,
            address,
            port,
            route: Route::Cluster,
            allowed_sources: None,
        };
        let address: IpAddr = address.parse().unwrap();
        let port = PortIntent {
            name: "http".into(),
            family: Family::of(address),
            protocol: Protocol::Tcp,
            affinity: None,
            cluster: Vec::new(),
            local: Vec::new(),
            size: 0,
            frontends: vec![
                frontend(FrontendKind::ClusterIp, Some(address), 80),
                frontend(FrontendKind::NodePort, None, node_port),
            ],
        };
        ServiceIntent {
            name,
            cluster_ips: vec![address],
            ports: vec![port],
            health_check: None,
            annotations: Vec::new(),
            left_out: Default::default(),
        }
    }

    pub fn flow(frontend: &str, endpoint: &str) -> Flow {
        let (frontend, endpoint) = (frontend.parse().unwrap(), endpoint.parse().unwrap());
        Flow { protocol: Protocol::Tcp, frontend, endpoint }
    }

    fn owner(frontends: &Frontends, frontend: &str) -> Option<String> {
        frontends.owner(&flow(frontend, "10.244.1.5:80")).map(|owner| owner.service.port(&owner.port))
    }

    #[test]
    fn addresses_are_found_as_they_are_and_node_ports_on_every_address() {
        let mut frontends = Frontends::default();
        let web = service("web", "10.96.0.1", 30080);
        frontends.replace(&web.name, Some(&web));
        for (frontend, expected) in [
            ("10.96.0.1:80", Some("default/web:http")),
            ("172.18.0.2:30080", Some("default/web:http")),
            ("10.0.0.9:30080", Some("default/web:http")),
            ("10.96.0.1:81", None),
            ("10.96.0.2:80", None),
            ("[fd00::1]:30080", None),
        ] {
            assert_eq!(owner(&frontends, frontend).as_deref(), expected, "{frontend}");
        }
        let udp = Flow { protocol: Protocol::Udp, ..flow("10.96.0.1:80", "10.244.1.5:80") };
        assert_eq!(frontends.owner(&udp), None);
    }

    #[test]
    fn a_frontend_that_changes_hands_is_not_lost_in_between() {
        let mut frontends = Frontends::default();
        let (web, shop) = (service("web", "10.96.0.1", 30080), service("shop", "10.96.0.1", 30080));
        frontends.replace(&web.name, Some(&web));
        frontends.replace(&shop.name, Some(&shop));
        frontends.replace(&web.name, None);
        assert_eq!(owner(&frontends, "10.96.0.1:80").as_deref(), Some("default/shop:http"));
        assert!(!frontends.has(&web.name) && frontends.has(&shop.name));
        frontends.replace(&shop.name, None);
        assert!(frontends.owners.is_empty() && frontends.of_service.is_empty());
    }
}
