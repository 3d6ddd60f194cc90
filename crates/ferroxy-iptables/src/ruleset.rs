//! The rendered rules as the contract's Ruleset: text, JSON and traces.

use ferroxy_core::{Family, Packet};
use ferroxy_dataplane::{ChoiceOfEndpoints, Rendering, Ruleset, Trace};
use serde_json::{Value, json};

use crate::interpret;
use crate::program::Parameters;
use crate::render::render;
use crate::settings::masquerade_mark;
use crate::state::State;

/// Without a kernel, the rules are those for a usual host: it has packet counters, and connection tracking is not liberal.
pub(crate) fn rendered(rendering: &Rendering<'_>) -> Box<dyn Ruleset> {
    let masquerade_mark = masquerade_mark(rendering.settings);
    let parameters = Parameters { masquerade_mark, nfacct: true, tcp_be_liberal: false };
    Box::new(render(rendering.intent, parameters, &Family::ALL))
}

impl Ruleset for State {
    fn trace(&self, packet: &Packet) -> Trace {
        interpret::trace(self, packet)
    }

    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        Some(ChoiceOfEndpoints::ByClient)
    }

    /// Built-in chains contain our jumps only.
    fn to_json(&self) -> Value {
        let tables = self.tables.iter().map(|((family, name), table)| {
            let chains = table.jumps.iter().chain(&table.chains);
            let chains: Vec<Value> = chains
                .map(|(name, rules)| json!({ "name": name, "rules": rules.iter().collect::<Vec<_>>() }))
                .collect();
            json!({ "family": family.to_string(), "name": name.as_str(), "chains": chains })
        });
        json!({ "tables": tables.collect::<Vec<_>>() })
    }
}
