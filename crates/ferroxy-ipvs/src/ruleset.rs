//! The rendered State as the contract's Ruleset: text, JSON and traces.

use std::net::IpAddr;

use ferroxy_core::{Family, Packet};
use ferroxy_dataplane::{Rendering, Ruleset, Trace};
use serde_json::{Value, json};

use crate::interpret;
use crate::options::Options;
use crate::render::{Parameters, render};
use crate::state::State;

pub(crate) fn rendered(rendering: &Rendering<'_>) -> Box<dyn Ruleset> {
    let Options { masquerade_mark, scheduler, .. } = rendering.settings.into();
    let host_addresses = rendering.host_addresses.iter().copied().collect();
    let parameters = Parameters { masquerade_mark, scheduler, host_addresses };
    Box::new(render(rendering.intent, &parameters, &Family::ALL))
}

impl Ruleset for State {
    fn trace(&self, packet: &Packet) -> Trace {
        interpret::trace(self, packet)
    }

    /// The rules as iptables mode writes them, and the virtual servers, sets and addresses.
    fn to_json(&self) -> Value {
        let servers = self.servers.iter().map(|(address, server)| {
            let endpoints = server.endpoints.iter();
            let endpoints =
                endpoints.map(|(at, weight)| json!({ "address": at.to_string(), "weight": weight }));
            json!({
                "address": address.to_string(),
                "scheduler": &*server.treatment.scheduler,
                "persistence": server.treatment.persistence,
                "endpoints": endpoints.collect::<Vec<_>>(),
            })
        });
        let sets = self.sets.iter().map(|(name, set)| {
            let members: Vec<String> = set.members.iter().map(ToString::to_string).collect();
            json!({ "name": name.to_string(), "members": members })
        });
        let mut all = Ruleset::to_json(&self.all_rules());
        all["servers"] = servers.collect();
        all["sets"] = sets.collect();
        all["addresses"] = self.device.iter().flatten().map(|ip| json!(ip.to_string())).collect();
        all
    }

    /// The device has the addresses of Services.
    fn makes_local(&self, ip: IpAddr) -> bool {
        self.device.as_ref().is_some_and(|device| device.contains(&ip))
    }
}
