//! The pure half of the modes, side by side: the ruleset for an Intent, as text, as JSON, and a packet's way through it.
//! Touches no kernel.

use std::fmt;
use std::net::IpAddr;

use ferroxy_core::{Family, Intent, Packet, Verdict};
use ferroxy_iptables::Settings;
use ferroxy_nftables::text;
use serde_json::{Value, json};

use super::Mode;

#[derive(Debug)]
pub enum Ruleset {
    Nftables(ferroxy_nftables::State),
    Iptables(ferroxy_iptables::State),
    Ipvs(ferroxy_ipvs::State),
}

/// Where a packet's path led.
#[derive(Debug)]
pub struct Path {
    pub verdict: Verdict,
    /// The rules that did something, in order.
    pub steps: Vec<Step>,
}

#[derive(Debug)]
pub struct Step {
    pub chain: String,
    pub rule: String,
    pub effect: String,
    /// Whoever comes again goes where it went.
    pub is_sticky: bool,
}

/// Without a kernel to ask, iptables rules are those for one that has what most have: packet counters, and connection
/// tracking that is not liberal.
const USUAL_HOST: Settings = Settings { nfacct: true, tcp_be_liberal: false };

impl Ruleset {
    /// `balancing` is ipvs mode's.
    pub fn of(mode: Mode, intent: &Intent, balancing: &ferroxy_ipvs::Settings) -> Ruleset {
        match mode {
            Mode::Iptables => Ruleset::Iptables(ferroxy_iptables::render(intent, USUAL_HOST, &Family::ALL)),
            Mode::Ipvs => Ruleset::Ipvs(ferroxy_ipvs::render(intent, balancing, &Family::ALL)),
            Mode::Nftables => Ruleset::Nftables(ferroxy_nftables::render(intent, &Family::ALL)),
        }
    }

    pub fn trace(&self, packet: &Packet) -> Path {
        match self {
            Ruleset::Nftables(state) => {
                let trace = ferroxy_nftables::trace(state, packet);
                let step = |step: ferroxy_nftables::interpret::Step| Step {
                    is_sticky: step.effect.contains("sticky"),
                    chain: step.chain,
                    rule: step.rule,
                    effect: step.effect,
                };
                Path { verdict: trace.verdict, steps: trace.steps.into_iter().map(step).collect() }
            }
            Ruleset::Iptables(state) => {
                let trace = ferroxy_iptables::trace(state, packet);
                let step = |step: ferroxy_iptables::interpret::Step| Step {
                    is_sticky: step.rule.contains("-m recent --set"),
                    chain: step.chain,
                    rule: step.rule,
                    effect: step.effect,
                };
                Path { verdict: trace.verdict, steps: trace.steps.into_iter().map(step).collect() }
            }
            Ruleset::Ipvs(state) => {
                let trace = ferroxy_ipvs::trace(state, packet);
                let step = |step: ferroxy_ipvs::interpret::Step| Step {
                    is_sticky: step.is_sticky,
                    chain: step.place,
                    rule: step.rule,
                    effect: step.effect,
                };
                Path { verdict: trace.verdict, steps: trace.steps.into_iter().map(step).collect() }
            }
        }
    }

    /// Whether an address is the node's own because of this ruleset: ipvs mode's device has those of Services.
    pub fn makes_local(&self, ip: IpAddr) -> bool {
        match self {
            Ruleset::Ipvs(state) => state.device.as_ref().is_some_and(|device| device.contains(&ip)),
            Ruleset::Nftables(_) | Ruleset::Iptables(_) => false,
        }
    }

    pub fn to_json(&self) -> Value {
        match self {
            Ruleset::Nftables(state) => nftables_json(state),
            Ruleset::Iptables(state) => iptables_json(state),
            Ruleset::Ipvs(state) => ipvs_json(state),
        }
    }
}

/// As the mode's own tool prints it.
impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ruleset::Nftables(state) => state.fmt(f),
            Ruleset::Iptables(state) => state.fmt(f),
            Ruleset::Ipvs(state) => state.fmt(f),
        }
    }
}

fn nftables_json(state: &ferroxy_nftables::State) -> Value {
    let table = |(family, table): (&Family, &ferroxy_nftables::state::Table)| {
        let sets: Vec<Value> = table
            .sets
            .keys()
            .map(|name| {
                let elements: Vec<String> = table
                    .elements()
                    .filter(|element| element.set.name() == name)
                    .map(|element| text::element_text(*family, &element))
                    .collect();
                json!({ "name": name, "elements": elements })
            })
            .collect();
        let chains: Vec<Value> = table
            .chains
            .iter()
            .map(|(name, chain)| {
                let rules: Vec<&str> = chain.rules.iter().map(|rule| rule.text.as_str()).collect();
                json!({ "name": name, "hook": chain.hook.map(|hook| text::hook_text(&hook)), "rules": rules })
            })
            .collect();
        json!({ "family": family.to_string(), "name": ferroxy_nftables::TABLE, "sets": sets, "chains": chains })
    };
    json!({ "tables": state.tables.iter().map(table).collect::<Vec<_>>() })
}

/// The host's own chains are there with our jumps only.
fn iptables_json(state: &ferroxy_iptables::State) -> Value {
    let tables = state.tables.iter().map(|((family, name), table)| {
        let chains = table.jumps.iter().chain(&table.chains);
        let chains: Vec<Value> = chains
            .map(|(name, rules)| json!({ "name": name, "rules": rules.iter().collect::<Vec<_>>() }))
            .collect();
        json!({ "family": family.to_string(), "name": name.as_str(), "chains": chains })
    });
    json!({ "tables": tables.collect::<Vec<_>>() })
}

fn ipvs_json(state: &ferroxy_ipvs::State) -> Value {
    let servers = state.servers.iter().map(|(address, server)| {
        let endpoints = server.endpoints.iter();
        let endpoints = endpoints.map(|(at, weight)| json!({ "address": at.to_string(), "weight": weight }));
        json!({
            "address": address.to_string(),
            "scheduler": &*server.treatment.scheduler,
            "persistence": server.treatment.persistence,
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    });
    let sets = state.sets.iter().map(|(name, set)| {
        let members: Vec<String> = set.members.iter().map(ToString::to_string).collect();
        json!({ "name": name.to_string(), "members": members })
    });
    let mut all = iptables_json(&state.all_rules());
    all["servers"] = servers.collect();
    all["sets"] = sets.collect();
    all["addresses"] = state.device.iter().flatten().map(|ip| json!(ip.to_string())).collect();
    all
}
