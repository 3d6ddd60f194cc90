//! Adopts the order of endpoints that an earlier run left in the kernel: an endpoint that stays keeps its slot.

use ferroxy_core::{Endpoint, PortIntent, ServiceIntent};
use ferroxy_dataplane::place::place;

use crate::entry::{PoolId, SlotKey};
use crate::state::State;
use crate::terms::{Pool, Terms};

pub fn onto_kernel(seen: &State, terms: &Terms, mut service: ServiceIntent) -> ServiceIntent {
    if seen.endpoints.is_empty() {
        return service;
    }
    let name = service.name.clone();
    for port in &mut service.ports {
        let pool = |port: &PortIntent, pool| slots(seen, terms.pool(&name, &port.name, port.family, pool));
        let (cluster, local) = (pool(port, Pool::Cluster), pool(port, Pool::Local));
        // A pool that is not in the kernel defines no order.
        if !cluster.is_empty() {
            port.cluster = place(&cluster, &port.cluster);
        }
        if !local.is_empty() {
            port.local = place(&local, &port.local);
        }
    }
    service
}

fn slots(seen: &State, pool: PoolId) -> Vec<Endpoint> {
    let at = |slot: u32| {
        let address = seen.endpoints.get(&SlotKey::new(pool, slot))?.endpoint();
        Some(Endpoint { ip: address.ip(), port: address.port(), is_local: false })
    };
    (0..).map_while(at).collect()
}
