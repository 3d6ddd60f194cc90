//! The pure half of the modes, side by side: the ruleset for an Intent, as text, as JSON, and a packet's way through it.
//! Touches no kernel.

use std::fmt;

use ferroxy_core::{Family, Intent, Packet, Verdict};
use ferroxy_iptables::Settings;
use ferroxy_nftables::text;
use serde_json::{Value, json};

use crate::config::Mode;

#[derive(Debug)]
pub enum Ruleset {
    Nftables(ferroxy_nftables::State),
    Iptables(ferroxy_iptables::State),
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
    pub fn of(mode: Mode, intent: &Intent) -> Ruleset {
        match mode {
            Mode::Iptables => Ruleset::Iptables(ferroxy_iptables::render(intent, USUAL_HOST, &Family::ALL)),
            Mode::Nftables | Mode::Ipvs | Mode::Unset => {
                Ruleset::Nftables(ferroxy_nftables::render(intent, &Family::ALL))
            }
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
        }
    }

    pub fn to_json(&self) -> Value {
        match self {
            Ruleset::Nftables(state) => nftables_json(state),
            Ruleset::Iptables(state) => iptables_json(state),
        }
    }
}

/// As the mode's own tool prints it.
impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ruleset::Nftables(state) => state.fmt(f),
            Ruleset::Iptables(state) => state.fmt(f),
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
