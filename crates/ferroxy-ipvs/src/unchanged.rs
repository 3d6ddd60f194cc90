//! The frontends of a large Service that a change leaves alone. They are rendered neither before nor after the change. So a portion
//! of a huge Service, or a change of one of its ports, costs the changed frontends, not all frontends with all their endpoints.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use ferroxy_core::intent::FrontendKind;
use ferroxy_core::{Family, Frontend, PortIntent, Protocol, ServiceIntent};
use ferroxy_dataplane::place::Ports;

use crate::scheduler::Scheduler;

/// Up to this many frontends are all rendered and compared: that is cheaper than finding out which of them change.
pub const FEW: usize = 64;

/// The frontends of a Service that are the same before and after a change. Empty if it has few.
#[derive(Debug, Default)]
pub struct Unchanged {
    places: HashSet<Place>,
    /// The addresses of unchanged frontends. They stay on the device and in the sets of addresses, whatever else changes there.
    held: HashSet<IpAddr>,
}

/// Identifies a frontend of a Service.
type Place = (Family, Protocol, IpAddr, u16);

fn place(port: &PortIntent, frontend: &Frontend) -> Option<Place> {
    Some((port.family, port.protocol, frontend.address?, frontend.port))
}

impl Unchanged {
    pub fn between(
        before: &ServiceIntent,
        after: &ServiceIntent,
        host_addresses: &BTreeSet<IpAddr>,
        few: usize,
    ) -> Unchanged {
        let frontends = || before.ports.iter().map(|port| port.frontends.len());
        let scheduler =
            |service: &ServiceIntent| service.annotation(Scheduler::ANNOTATION).map(str::to_owned);
        if frontends().sum::<usize>() <= few || scheduler(before) != scheduler(after) {
            return Unchanged::default();
        }
        if has_places_twice(before) || has_places_twice(after) {
            return Unchanged::default();
        }
        let earlier = Ports::of(before);
        let mut unchanged = Unchanged::default();
        for port in &after.ports {
            let Some(before) = earlier.same(port).filter(|before| same_endpoints(before, port)) else {
                continue;
            };
            let known: HashMap<_, &Frontend> =
                before.frontends.iter().filter_map(|it| Some((place(before, it)?, it))).collect();
            let can_stay = |it: &&Frontend| is_alone(it, host_addresses);
            for frontend in port.frontends.iter().filter(can_stay) {
                if let Some(place) = place(port, frontend)
                    && known.get(&place) == Some(&frontend)
                {
                    unchanged.places.insert(place);
                    unchanged.held.insert(place.2);
                }
            }
        }
        unchanged
    }

    pub fn contains(&self, port: &PortIntent, frontend: &Frontend) -> bool {
        !self.places.is_empty() && place(port, frontend).is_some_and(|it| self.places.contains(&it))
    }

    pub fn holds(&self, address: IpAddr) -> bool {
        self.held.contains(&address)
    }
}

/// Compares the inputs of a frontend's rendering, except for the frontend itself.
fn same_endpoints(one: &PortIntent, other: &PortIntent) -> bool {
    one.affinity == other.affinity && one.cluster == other.cluster && one.local == other.local
}

/// True if the rendering of this frontend depends on no other frontend. The source ranges of load-balancer IPs depend on each
/// other, and an external IP and a node port can share an address of the host. Tenants cannot have many such frontends.
fn is_alone(frontend: &Frontend, host_addresses: &BTreeSet<IpAddr>) -> bool {
    let has_no_other_at = |ip: IpAddr| !host_addresses.contains(&ip);
    match frontend.kind {
        FrontendKind::ClusterIp | FrontendKind::ExternalIp => frontend.address.is_some_and(has_no_other_at),
        FrontendKind::LoadBalancer | FrontendKind::NodePort => false,
    }
}

/// True if two frontends have the same place. `resolve` prevents such conflicts; a Service that has one is rendered as a whole.
fn has_places_twice(service: &ServiceIntent) -> bool {
    let mut known = HashSet::new();
    let mut places =
        service.ports.iter().flat_map(|port| port.frontends.iter().filter_map(|it| place(port, it)));
    places.any(|place| !known.insert(place))
}
