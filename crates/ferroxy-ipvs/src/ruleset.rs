//! The rendered State as the contract's Ruleset: text, JSON and traces.

use std::net::IpAddr;

use ferroxy_core::{Diagnostic, Family, Frontend, Packet, ServiceIntent};
use ferroxy_dataplane::{ChoiceOfEndpoints, Rendering, Ruleset, Trace};
use serde_json::{Value, json};

use crate::interpret;
use crate::options::Options;
use crate::render::{Parameters, render};
use crate::scheduler::Scheduler;
use crate::state::{Address, State};

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

    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        Some(ChoiceOfEndpoints::ByFrontend)
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

    /// The scheduler of its virtual servers, and whether an annotation or the configuration chose it.
    fn traits_of(&self, service: &ServiceIntent, _: Option<&[Diagnostic]>) -> Vec<(&'static str, String)> {
        let ports = service.ports.iter();
        let addresses = ports.flat_map(|port| {
            let at = |frontend: &Frontend| {
                Some(Address { ip: frontend.address?, protocol: port.protocol, port: frontend.port })
            };
            port.frontends.iter().filter_map(at)
        });
        let mut servers = addresses.filter_map(|address| self.servers.get(&address));
        let Some(server) = servers.next() else { return Vec::new() };
        let chosen_by = match service.annotation(Scheduler::ANNOTATION) {
            Some(_) => format!("annotation {}", Scheduler::ANNOTATION),
            None => "configuration, ipvs.scheduler".to_owned(),
        };
        vec![("IPVS scheduler", format!("{} ({chosen_by})", server.treatment.scheduler))]
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::testing::service;
    use ferroxy_core::{Intent, NodeIntent};

    use super::*;

    #[test]
    fn a_service_has_the_configured_scheduler_or_its_own() {
        let scheduler = |annotation: Option<&str>| {
            let (name, intent) = service(1, 0..2);
            let mut intent = ServiceIntent::clone(&intent);
            intent.annotations.extend(annotation.map(|own| (Scheduler::ANNOTATION, own.into())));
            let parameters = Parameters { scheduler: "wlc".into(), ..Parameters::default() };
            let services = [(name, intent.clone().into())].into();
            let state = render(&Intent { node: NodeIntent::default(), services }, &parameters, &Family::ALL);
            state.traits_of(&intent, None)
        };
        let named = |words: &str| vec![("IPVS scheduler", words.to_owned())];
        assert_eq!(scheduler(None), named("wlc (configuration, ipvs.scheduler)"));
        assert_eq!(scheduler(Some("sh")), named("sh (annotation ferroxy.io/scheduler)"));
    }
}
