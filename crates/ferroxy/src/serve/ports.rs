//! Which health-check node ports must be open on which addresses, and their answers. Opens nothing: see `service_health.rs`.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroxy_core::intent::{HealthCheck, NodePortAddresses};
use ferroxy_core::{Family, NodeIntent, ServiceIntent, ServiceName};

#[derive(Debug, Default)]
pub struct Ports {
    services: HashMap<ServiceName, Port>,
    v4: NodePortAddresses,
    v6: NodePortAddresses,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Port {
    check: HealthCheck,
    v4: bool,
    v6: bool,
}

impl Ports {
    /// Replaces the port of one Service. True if the set of open ports must change.
    pub fn replace(&mut self, name: &ServiceName, service: Option<&ServiceIntent>) -> bool {
        let new = service.and_then(|service| {
            let has = |family| service.ports.iter().any(|port| port.family == family);
            Some(Port { check: service.health_check?, v4: has(Family::V4), v6: has(Family::V6) })
        });
        let old = match new {
            Some(new) => self.services.insert(name.clone(), new),
            None => self.services.remove(name),
        };
        let place = |port: Port| (port.check.port, port.v4, port.v6);
        old.map(place) != new.map(place)
    }

    /// Sets the addresses of node ports. True if they changed.
    pub fn answer_on(&mut self, node: &NodeIntent) -> bool {
        let new = (&node.v4.node_port_addresses, &node.v6.node_port_addresses);
        let changed = (&self.v4, &self.v6) != new;
        (self.v4, self.v6) = (new.0.clone(), new.1.clone());
        changed
    }

    /// The sockets that must listen, and the Service of each.
    pub fn listeners(&self, families: &[Family]) -> BTreeMap<SocketAddr, ServiceName> {
        let mut listeners = BTreeMap::new();
        for family in families {
            for (name, port) in &self.services {
                let (wanted, addresses) = match family {
                    Family::V4 => (port.v4, &self.v4),
                    Family::V6 => (port.v6, &self.v6),
                };
                if wanted {
                    let places = ips(*family, addresses).map(|ip| SocketAddr::new(ip, port.check.port));
                    listeners.extend(places.map(|place| (place, name.clone())));
                }
            }
        }
        listeners
    }

    /// `None` if the Service has no health-check node port any more.
    pub fn local_endpoints(&self, name: &ServiceName) -> Option<u32> {
        self.services.get(name).map(|port| port.check.local_endpoints)
    }
}

fn ips(family: Family, addresses: &NodePortAddresses) -> Box<dyn Iterator<Item = IpAddr> + '_> {
    match (addresses, family) {
        (NodePortAddresses::These(these), _) => Box::new(these.iter().copied()),
        (NodePortAddresses::AllLocal, Family::V4) => Box::new([Ipv4Addr::UNSPECIFIED.into()].into_iter()),
        (NodePortAddresses::AllLocal, Family::V6) => Box::new([Ipv6Addr::UNSPECIFIED.into()].into_iter()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroxy_core::Protocol;
    use ferroxy_core::intent::{FamilyIntent, PortIntent};
    use std::collections::BTreeSet;

    fn name() -> ServiceName {
        ServiceName::new("default", "web")
    }

    fn service(port: u16, local_endpoints: u32, families: &[Family]) -> ServiceIntent {
        let port_of = |family: &Family| PortIntent {
            name: "".into(),
            family: *family,
            protocol: Protocol::Tcp,
            affinity: None,
            cluster: Vec::new(),
            local: Vec::new(),
            size: 0,
            frontends: Vec::new(),
        };
        ServiceIntent {
            name: name(),
            cluster_ips: Vec::new(),
            ports: families.iter().map(port_of).collect(),
            health_check: Some(HealthCheck { port, local_endpoints }),
            annotations: Vec::new(),
            left_out: Default::default(),
        }
    }

    fn everywhere() -> NodeIntent {
        let family = FamilyIntent { node_port_addresses: NodePortAddresses::AllLocal, ..Default::default() };
        NodeIntent { v4: family.clone(), v6: family, ..NodeIntent::default() }
    }

    fn open(ports: &Ports) -> Vec<String> {
        ports.listeners(&Family::ALL).keys().map(ToString::to_string).collect()
    }

    #[test]
    fn every_family_of_the_service_has_a_socket() {
        let mut ports = Ports::default();
        assert!(ports.answer_on(&everywhere()) && !ports.answer_on(&everywhere()));
        assert!(ports.replace(&name(), Some(&service(32000, 1, &[Family::V4]))));
        assert_eq!(open(&ports), ["0.0.0.0:32000"]);
        assert!(ports.replace(&name(), Some(&service(32000, 1, &Family::ALL))));
        assert_eq!(open(&ports), ["0.0.0.0:32000", "[::]:32000"]);
        assert_eq!(ports.listeners(&[Family::V4]).len(), 1, "IPv6 is off");
        assert!(ports.replace(&name(), None));
        assert!(open(&ports).is_empty());
    }

    #[test]
    fn endpoints_come_and_go_without_touching_sockets() {
        let mut ports = Ports::default();
        ports.replace(&name(), Some(&service(32000, 1, &Family::ALL)));
        assert!(!ports.replace(&name(), Some(&service(32000, 0, &Family::ALL))));
        assert_eq!(ports.local_endpoints(&name()), Some(0));
        assert!(ports.replace(&name(), Some(&service(32001, 0, &Family::ALL))), "another port");
    }

    #[test]
    fn node_port_addresses_are_kept_to() {
        let mut ports = Ports::default();
        ports.replace(&name(), Some(&service(32000, 1, &Family::ALL)));
        assert!(open(&ports).is_empty(), "no address is known yet");
        let these = NodePortAddresses::These(BTreeSet::from(["172.18.0.2".parse().unwrap()]));
        let v4 = FamilyIntent { node_port_addresses: these, ..Default::default() };
        assert!(ports.answer_on(&NodeIntent { v4, ..NodeIntent::default() }));
        assert_eq!(open(&ports), ["172.18.0.2:32000"]);
    }
}
