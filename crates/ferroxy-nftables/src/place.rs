//! The order of endpoints that the kernel has: at a start, whoever stays keeps its slot. `render` numbers endpoints in their
//! given order.

use std::borrow::Cow;
use std::sync::Arc;

use ferroxy_core::{Endpoint, Frontend, PortIntent, Route, ServiceIntent};
pub use ferroxy_dataplane::place::{onto_previous, place};

use crate::element::{Key, LOCAL_SLOTS, Scope, SetId, Value};
use crate::part::Part;
use crate::state::State;

/// A Service in slot order, compared with what the kernel has.
pub fn onto_kernel(seen: &State, service: &Arc<ServiceIntent>) -> Arc<ServiceIntent> {
    if seen.is_empty() {
        return service.clone();
    }
    // Most Services have the order of the kernel already: these are not copied.
    let mut placed = Cow::Borrowed(&**service);
    for (index, port) in service.ports.iter().enumerate() {
        // All frontends that use a pool have the same order: the first one tells.
        let first = |uses: &[(Route, u32)]| {
            port.frontends.iter().find_map(|frontend| {
                let (_, slot) = uses.iter().find(|(route, _)| *route == frontend.route)?;
                Some(kernel_pool(seen, port, frontend, *slot))
            })
        };
        let cluster = first(&[(Route::Cluster, 0), (Route::ExternalCluster, 0), (Route::ExternalLocal, 0)]);
        let local = first(&[(Route::Local, 0), (Route::ExternalLocal, LOCAL_SLOTS)]);
        let cluster = place(&cluster.unwrap_or_default(), &port.cluster);
        let local = place(&local.unwrap_or_default(), &port.local);
        if cluster != port.cluster || local != port.local {
            let port = &mut placed.to_mut().ports[index];
            (port.cluster, port.local) = (cluster, local);
        }
    }
    match placed {
        Cow::Borrowed(_) => service.clone(),
        Cow::Owned(placed) => Arc::new(placed),
    }
}

/// The endpoints that the kernel has for a frontend, in slot order.
pub fn kernel_pool(seen: &State, port: &PortIntent, frontend: &Frontend, first_slot: u32) -> Vec<Endpoint> {
    let Some(table) = seen.tables.get(&port.family) else { return Vec::new() };
    let (scope, key) = frontend_key(port, frontend);
    let endpoint = |set: SetId, key: Key| match table.get(set, &key)?.value {
        Value::Endpoint(ip, port) => Some(Endpoint { ip, port, is_local: false }),
        _ => None,
    };
    let endpoints = SetId::Endpoints(scope, Part::of(&key));
    let at = |slot: u32| endpoint(endpoints, Key::EMPTY.number(slot).then(&key));
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
