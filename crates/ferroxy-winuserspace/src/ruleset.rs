//! A State as the Ruleset of the contract: JSON and traces. Its text is in `text.rs`.

use std::net::IpAddr;

use ferroxy_core::{Diagnostic, Family, Packet, ServiceIntent};
use ferroxy_dataplane::{Rendering, Ruleset, Trace};
use ferroxy_pools::balancing;
use ferroxy_pools::text::{frontend_text, pool_text};
use serde_json::{Value, json};

use crate::interpret::trace;
use crate::render::render;
use crate::settings::Settings;
use crate::state::State;

pub(crate) fn rendered(rendering: &Rendering<'_>) -> Box<dyn Ruleset> {
    Box::new(render(rendering.intent, &Settings::read(rendering.settings), &Family::ALL))
}

impl Ruleset for State {
    fn trace(&self, packet: &Packet) -> Trace {
        trace(self, packet)
    }

    fn to_json(&self) -> Value {
        json!({
            "addresses": self.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>(),
            "pools": self.pools.iter().map(|(key, it)| pool_text(key, it)).collect::<Vec<_>>(),
            "frontends": self.frontends.values().map(frontend_text).collect::<Vec<_>>(),
        })
    }

    fn makes_local(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    fn traits_of(&self, service: &ServiceIntent, _: Option<&[Diagnostic]>) -> Vec<(&'static str, String)> {
        let text = pool_text("", &balancing::pool(service));
        let words = text.split_once('}').map_or("", |(_, words)| words.trim());
        if words.is_empty() { Vec::new() } else { vec![("proxy", words.to_owned())] }
    }
}
