//! Assigns endpoints to slots: those that stay keep their slot, so that a small change stays small.
//!
//! If slots were in sorted order, one removed endpoint would move half of the endpoints. Here new endpoints take the
//! free slots, and the last endpoints move into the remaining free slots.

use std::collections::HashMap;

use ferroxy_core::{Endpoint, Family, PortIntent, Protocol, ServiceIntent};

/// `wanted`, in the order that moves as few endpoints as possible compared with `previous`.
pub fn place(previous: &[Endpoint], wanted: &[Endpoint]) -> Vec<Endpoint> {
    let is_at = |(old, new): (&Endpoint, &Endpoint)| (old.ip, old.port) == (new.ip, new.port);
    if previous.len() == wanted.len() && previous.iter().zip(wanted).all(is_at) {
        return wanted.to_vec();
    }
    let mut unplaced: HashMap<_, Endpoint> = wanted.iter().map(|e| ((e.ip, e.port), *e)).collect();
    let mut slots: Vec<Option<Endpoint>> =
        previous.iter().take(wanted.len()).map(|old| unplaced.remove(&(old.ip, old.port))).collect();
    slots.resize(wanted.len(), None);
    let mut newcomers = wanted.iter().filter(|e| unplaced.contains_key(&(e.ip, e.port)));
    slots.iter().filter_map(|slot| slot.or_else(|| newcomers.next().copied())).collect()
}

/// A Service in slot order, compared with the Service before the change.
pub fn onto_previous(previous: &ServiceIntent, mut wanted: ServiceIntent) -> ServiceIntent {
    let ports = Ports::of(previous);
    for port in &mut wanted.ports {
        if let Some(old) = ports.same(port) {
            port.cluster = place(&old.cluster, &port.cluster);
            port.local = place(&old.local, &port.local);
        }
    }
    wanted
}

/// Up to this many ports are searched one by one: that is cheaper than building a map.
const FEW: usize = 64;

/// The ports of a Service, found by name. A Service can have thousands.
#[derive(Debug)]
pub struct Ports<'s> {
    ports: &'s [PortIntent],
    /// Empty if there are few ports.
    places: HashMap<(&'s str, Family, Protocol), &'s PortIntent>,
}

impl<'s> Ports<'s> {
    pub fn of(service: &'s ServiceIntent) -> Ports<'s> {
        let ports = &*service.ports;
        let many = if ports.len() > FEW { ports } else { &[] };
        // If two ports have the same name, the first one is found.
        let places =
            many.iter().rev().map(|port| ((&*port.name, port.family, port.protocol), port)).collect();
        Ports { ports, places }
    }

    /// The port with the same name, family and protocol.
    pub fn same(&self, port: &PortIntent) -> Option<&'s PortIntent> {
        if self.places.is_empty() {
            let is_same = |it: &&PortIntent| {
                it.name == port.name && it.family == port.family && it.protocol == port.protocol
            };
            return self.ports.iter().find(is_same);
        }
        self.places.get(&(&*port.name, port.family, port.protocol)).copied()
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::ServiceName;

    use super::*;

    fn pool(numbers: &[u8]) -> Vec<Endpoint> {
        let endpoint = |n: &u8| Endpoint { ip: [10, 0, 0, *n].into(), port: 80, is_local: false };
        numbers.iter().map(endpoint).collect()
    }

    #[test]
    fn endpoints_that_stay_keep_their_slots() {
        let cases: [(&[u8], &[u8], &[u8]); 6] = [
            (&[], &[1, 2], &[1, 2]),
            (&[1, 2, 3], &[1, 3], &[1, 3]), // 2 left: the last moves down
            (&[1, 2, 3, 4], &[2, 3, 4], &[4, 2, 3]),
            (&[1, 2, 3], &[1, 2, 3, 9], &[1, 2, 3, 9]),
            (&[1, 2, 3], &[0, 1, 3], &[1, 0, 3]), // a newcomer takes the free slot
            (&[1, 2], &[], &[]),
        ];
        for (before, wanted, expected) in cases {
            assert_eq!(place(&pool(before), &pool(wanted)), pool(expected), "{before:?} -> {wanted:?}");
        }
    }

    #[test]
    fn many_ports_are_found_as_few_are() {
        let port = |name: String| PortIntent {
            name: name.into(),
            family: Family::V4,
            protocol: Protocol::Tcp,
            affinity: None,
            cluster: pool(&[1]),
            local: Vec::new(),
            size: 1,
            frontends: Vec::new(),
        };
        for count in [2, FEW + 20] {
            let service = ServiceIntent {
                name: ServiceName::new("default", "web"),
                cluster_ips: Vec::new(),
                ports: (0..count).map(|number| port(number.to_string())).collect(),
                health_check: None,
                annotations: Vec::new(),
                left_out: Default::default(),
            };
            let ports = Ports::of(&service);
            let found = |name: &str| ports.same(&port(name.to_owned())).map(|it| it.name.to_string());
            assert_eq!(found("1").as_deref(), Some("1"), "of {count}");
            assert_eq!(found(&count.to_string()), None, "of {count}");
        }
    }
}
