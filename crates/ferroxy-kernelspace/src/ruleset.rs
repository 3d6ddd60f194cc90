//! The rendered State as the contract's Ruleset: text, JSON and traces.

use std::fmt;

use ferroxy_core::{Diagnostic, NodeIntent, Packet, ServiceIntent};
use ferroxy_dataplane::{Rendering, Ruleset, Trace};
use serde_json::{Value, json};

use crate::interpret;
use crate::options::Options;
use crate::render::render;
use crate::shortcomings::{self, Here};
use crate::state::State;
use crate::surroundings::Surroundings;
use crate::text;

/// Assumes an L2Bridge network and the newest version, because there is no HNS to query.
pub(crate) fn rendered(rendering: &Rendering<'_>) -> Box<dyn Ruleset> {
    let surroundings = Surroundings::assumed(&Options::new(rendering.settings, None));
    let state = render(rendering.intent, &surroundings);
    Box::new(Rendered { state, node: rendering.intent.node.clone() })
}

/// A State, and the node that it is for.
#[derive(Debug)]
struct Rendered {
    state: State,
    node: NodeIntent,
}

impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl Ruleset for Rendered {
    fn trace(&self, packet: &Packet) -> Trace {
        interpret::trace(&self.state, packet)
    }

    fn to_json(&self) -> Value {
        let endpoints = self.state.endpoints.iter().map(|(ip, endpoint)| {
            json!({
                "address": ip.to_string(),
                "macAddress": endpoint.mac.to_string(),
                "provider": endpoint.provider.map(|ip| ip.to_string()),
                "remote": endpoint.is_remote,
            })
        });
        let balancers = self.state.balancers.iter().map(|(at, balancer)| {
            let endpoints: Vec<String> = balancer.endpoints.iter().map(ToString::to_string).collect();
            json!({
                "frontend": text::frontend(at),
                "kind": balancer.role.as_str(),
                "targetPort": balancer.target_port,
                "endpoints": endpoints,
                "sourceVip": balancer.source_vip.map(|ip| ip.to_string()),
                "sessionAffinity": balancer.is_sticky,
                "directServerReturn": balancer.dsr,
                "flags": balancer.mapping_flags,
            })
        });
        json!({ "endpoints": endpoints.collect::<Vec<_>>(), "loadBalancers": balancers.collect::<Vec<_>>() })
    }

    /// The limits of HNS for a Service. If HNS was queried, nothing is assumed.
    fn traits_of(
        &self,
        service: &ServiceIntent,
        shortcomings: Option<&[Diagnostic]>,
    ) -> Vec<(&'static str, String)> {
        let here = Here { node: &self.node, surroundings: None };
        let found = shortcomings.map_or_else(|| shortcomings::of(service, here), <[Diagnostic]>::to_vec);
        let said: Vec<String> = found
            .into_iter()
            .chain(shortcomings::of_its_kind(service))
            .map(|it| format!("{}; {}", it.reason, it.effect))
            .collect();
        if said.is_empty() { Vec::new() } else { vec![("limits of Windows", said.join(". "))] }
    }
}
