//! Reads from the rules of an earlier run which ports its listeners had: a restart listens on the same ones, so that rules and
//! tracked connections lead to it at once.

use ferroxy_core::{Intent, PortIntent, Protocol, Route, ServiceIntent};
use ferroxy_nftables::State;
use ferroxy_nftables::element::LOCAL_SLOTS;
use ferroxy_nftables::place::kernel_pool;
use ferroxy_proxy::{Class, Key};

use crate::fragment::{pool_key, redirect_key};
use crate::portals;
use crate::ports::{CLUSTER, LOCAL, Ports};
use crate::settings::Settings;

pub(super) fn adopt(seen: &State, intent: &Intent, settings: &Settings, ports: &mut Ports) {
    if seen.is_empty() {
        return;
    }
    for service in intent.services.values() {
        for port in &service.ports {
            for class in [CLUSTER, LOCAL] {
                if let Some((key, number)) = known(seen, service, port, class, settings) {
                    ports.adopt(&key, number);
                }
            }
        }
    }
}

/// The same from the chains of the original.
pub(super) fn adopt_portals(seen: &ferroxy_iptables::State, intent: &Intent, ports: &mut Ports) {
    let known = portals::known_ports(seen);
    for service in intent.services.values() {
        for port in &service.ports {
            let name = service.name.port(&port.name);
            if let Some(number) = known.get(&(port.family, name, port.protocol)) {
                ports.adopt(&pool_key(service, port, CLUSTER), *number);
            }
        }
    }
}

fn known(
    seen: &State,
    service: &ServiceIntent,
    port: &PortIntent,
    class: Class,
    settings: &Settings,
) -> Option<(Key, u16)> {
    let own = settings.proxy().address(port.family);
    let key = match port.protocol {
        Protocol::Tcp => redirect_key(port.family, class),
        Protocol::Udp => pool_key(service, port, class),
        Protocol::Sctp => return None,
    };
    port.frontends.iter().find_map(|frontend| {
        let slot = match (frontend.route, class) {
            (Route::Local, LOCAL) => 0,
            (Route::ExternalLocal, LOCAL) => LOCAL_SLOTS,
            (Route::Local, _) | (_, LOCAL) => return None,
            _ => 0,
        };
        let first = kernel_pool(seen, port, frontend, slot).into_iter().next()?;
        (first.ip == own).then(|| (key.clone(), first.port))
    })
}
