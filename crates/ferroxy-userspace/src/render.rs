//! Renders an Intent to a State: what the proxy serves for each Service, and the rules that lead to it.

use ferroxy_core::{Family, Intent, NodeIntent};

use crate::fragment::{Scene, ports_of, redirect_key, redirects_wanted};
use crate::portals;
use crate::ports::Ports;
use crate::settings::{Rules, Settings};
use crate::state::State;

/// The State for an Intent, with ports in the order of the Services.
pub fn render(intent: &Intent, settings: &Settings, families: &[Family]) -> State {
    let mut ports = Ports::new(settings.ports.clone());
    assign(&mut ports, intent, settings);
    render_with(intent, settings, families, &ports)
}

/// Assigns the ports that the proxy needs for these Services.
pub fn assign(ports: &mut Ports, intent: &Intent, settings: &Settings) {
    assign_redirects(ports, settings);
    for service in intent.services.values() {
        for key in ports_of(service, settings) {
            ports.assign(&key);
        }
    }
}

/// To be called first: without these ports no TCP Service works.
pub fn assign_redirects(ports: &mut Ports, settings: &Settings) {
    if settings.rules == Rules::Nftables {
        for (family, class) in redirects_wanted() {
            ports.assign(&redirect_key(family, class));
        }
    }
}

/// The State for an Intent, with these ports.
pub fn render_with(intent: &Intent, settings: &Settings, families: &[Family], ports: &Ports) -> State {
    let scene = Scene { node: &intent.node, settings, ports };
    let mut state = State { redirects: scene.redirects(), ..State::default() };
    state.redirects.retain(|_, redirect| families.contains(&Family::of(redirect.address.ip())));
    for service in intent.services.values() {
        let mut service = ferroxy_core::ServiceIntent::clone(service);
        service.ports.retain(|port| families.contains(&port.family));
        let fragment = scene.fragment(&service);
        state.pools.extend(fragment.pools);
        state.frontends.extend(fragment.frontends);
        let routes = scene.routes(&service).into_iter();
        state.routes.extend(routes.filter(|address| families.contains(&Family::of(*address))));
    }
    match settings.rules {
        Rules::Nftables => {
            let addresses = families.iter().map(|family| settings.proxy().address(*family));
            state.routes.extend(addresses);
            let seen = for_rules(intent, &scene);
            state.rules.nftables = ferroxy_nftables::render(&seen, &settings.of_nftables(), families);
        }
        Rules::Iptables => state.rules.iptables = portals::render(intent, &scene, families),
        Rules::None => {}
    }
    state
}

/// The Intent as the rules of nftables mode get to see it.
fn for_rules(intent: &Intent, scene: &Scene<'_>) -> Intent {
    let node: NodeIntent = scene.node_for_rules();
    let services = intent.services.iter();
    Intent { node, services: services.map(|(name, it)| (name.clone(), scene.for_rules(it).into())).collect() }
}
