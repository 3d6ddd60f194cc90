//! Assigns endpoints to slots: those that stay keep their slot, so that a small change stays small.
//!
//! `render` numbers endpoints in their given order. In sorted order, one departure would move half of them; here new endpoints
//! take the free slots, and the last endpoints move into the rest.

use std::collections::HashMap;
use std::sync::Arc;

use ferroxy_core::{Endpoint, Frontend, PortIntent, Route, ServiceIntent};

use crate::element::{Key, LOCAL_SLOTS, Scope, SetId, Value};
use crate::state::State;

/// `wanted`, in the order that moves as few endpoints as possible compared with `previous`.
pub fn place(previous: &[Endpoint], wanted: &[Endpoint]) -> Vec<Endpoint> {
    let mut unplaced: HashMap<_, Endpoint> = wanted.iter().map(|e| ((e.ip, e.port), *e)).collect();
    let mut slots: Vec<Option<Endpoint>> =
        previous.iter().take(wanted.len()).map(|old| unplaced.remove(&(old.ip, old.port))).collect();
    slots.resize(wanted.len(), None);
    let mut newcomers = wanted.iter().filter(|e| unplaced.contains_key(&(e.ip, e.port)));
    slots.iter().filter_map(|slot| slot.or_else(|| newcomers.next().copied())).collect()
}

/// A Service in slot order, compared with the Service before the change.
pub fn onto_previous(previous: &ServiceIntent, mut wanted: ServiceIntent) -> ServiceIntent {
    for port in &mut wanted.ports {
        let same = |old: &&PortIntent| {
            old.name == port.name && old.family == port.family && old.protocol == port.protocol
        };
        if let Some(old) = previous.ports.iter().find(same) {
            port.cluster = place(&old.cluster, &port.cluster);
            port.local = place(&old.local, &port.local);
        }
    }
    wanted
}

/// A Service in slot order, compared with what the kernel has.
pub fn onto_kernel(seen: &State, service: &Arc<ServiceIntent>) -> Arc<ServiceIntent> {
    if seen.is_empty() {
        return service.clone();
    }
    let mut placed = ServiceIntent::clone(service);
    for port in &mut placed.ports {
        // All frontends that use a pool have the same order: the first one tells.
        let first = |uses: &[(Route, u32)]| {
            port.frontends.iter().find_map(|frontend| {
                let (_, slot) = uses.iter().find(|(route, _)| *route == frontend.route)?;
                Some(kernel_pool(seen, port, frontend, *slot))
            })
        };
        let cluster = first(&[(Route::Cluster, 0), (Route::ExternalCluster, 0), (Route::ExternalLocal, 0)]);
        let local = first(&[(Route::Local, 0), (Route::ExternalLocal, LOCAL_SLOTS)]);
        port.cluster = place(&cluster.unwrap_or_default(), &port.cluster);
        port.local = place(&local.unwrap_or_default(), &port.local);
    }
    if placed == **service { service.clone() } else { Arc::new(placed) }
}

/// The endpoints that the kernel has for a frontend, in slot order.
fn kernel_pool(seen: &State, port: &PortIntent, frontend: &Frontend, first_slot: u32) -> Vec<Endpoint> {
    let Some(table) = seen.tables.get(&port.family) else { return Vec::new() };
    let (scope, key) = frontend_key(port, frontend);
    let endpoint = |set: SetId, key: Key| match table.get(set, &key)?.value {
        Value::Endpoint(ip, port) => Some(Endpoint { ip, port, is_local: false }),
        _ => None,
    };
    let at = |slot: u32| endpoint(SetId::Endpoints(scope), Key::EMPTY.number(slot).then(&key));
    match endpoint(SetId::SoleEndpoints, key) {
        Some(sole) if scope == Scope::Address => vec![sole],
        _ => (first_slot..).map_while(at).collect(),
    }
}

/// The key by which a frontend is looked up.
pub fn frontend_key(port: &PortIntent, frontend: &Frontend) -> (Scope, Key) {
    let by_port = |key: Key| key.protocol(port.protocol).port(frontend.port);
    match frontend.address {
        Some(address) => (Scope::Address, by_port(Key::EMPTY.address(address))),
        None => (Scope::NodePort, by_port(Key::EMPTY)),
    }
}

#[cfg(test)]
mod tests {
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
}
