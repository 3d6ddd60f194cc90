//! The path of a packet through a State.

use std::net::SocketAddr;

use ferroxy_core::{Family, Origin, Packet, Verdict};
use ferroxy_dataplane::{Step, Trace};

use crate::state::{Balancer, Frontend, State};
use crate::text;

pub fn interpret(state: &State, packet: &Packet) -> Verdict {
    trace(state, packet).verdict
}

pub fn trace(state: &State, packet: &Packet) -> Trace {
    let Some((at, balancer)) = find(state, packet) else {
        return Trace { verdict: Verdict::Pass, steps: Vec::new() };
    };
    let masquerade = !balancer.dsr;
    let answers =
        balancer.endpoints.iter().map(|ip| (SocketAddr::new(*ip, balancer.target_port), masquerade));
    let source = match balancer.source_vip {
        Some(ip) if masquerade => format!(", from {ip}"),
        None if masquerade => ", from the node's address".to_owned(),
        _ => String::new(),
    };
    let step = Step {
        place: "HNS".to_owned(),
        rule: text::balancer(&at, balancer),
        effect: format!("to one of {} endpoints{source}", balancer.endpoints.len()),
        is_sticky: balancer.is_sticky,
    };
    Trace { verdict: Verdict::Endpoints(answers.collect()), steps: vec![step] }
}

/// A load balancer without an address takes packets to any address of the node, unless the node itself sends them.
fn find<'s>(state: &'s State, packet: &Packet) -> Option<(Frontend, &'s Balancer)> {
    let at = Frontend {
        family: Family::of(packet.destination),
        vip: Some(packet.destination),
        protocol: packet.protocol,
        port: packet.port,
    };
    let here = packet.to_this_host && packet.origin != Origin::Host;
    let node_port = here.then_some(Frontend { vip: None, ..at });
    [Some(at), node_port].into_iter().flatten().find_map(|at| Some((at, state.balancers.get(&at)?)))
}
