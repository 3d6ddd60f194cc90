//! A State as the Ruleset of the contract: JSON and traces. Its text is in `text.rs`.

use ferroxy_core::{Family, Packet};
use ferroxy_dataplane::{ChoiceOfEndpoints, Ruleset, Trace};
use serde_json::{Value, json};

use crate::TABLE;
use crate::element::SetId;
use crate::interpret::trace;
use crate::state::{Chain, State, Table};
use crate::text::{element_text, hook_text};

impl Ruleset for State {
    fn trace(&self, packet: &Packet) -> Trace {
        trace(self, packet)
    }

    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        Some(ChoiceOfEndpoints::ByClient)
    }

    fn to_json(&self) -> Value {
        let tables = self.tables.iter().map(|(family, table)| table_json(*family, table));
        json!({ "tables": tables.collect::<Vec<_>>() })
    }
}

fn table_json(family: Family, table: &Table) -> Value {
    let sets: Vec<Value> = table.sets.keys().map(|name| set_json(family, table, name)).collect();
    let chains: Vec<Value> = table.chains.iter().map(|(name, chain)| chain_json(name, chain)).collect();
    json!({ "family": family.to_string(), "name": TABLE, "sets": sets, "chains": chains })
}

fn set_json(family: Family, table: &Table, name: &str) -> Value {
    let set = SetId::parse(name).and_then(|set| Some((set, table.elements.get(&set)?)));
    let elements = set.into_iter().flat_map(|(set, entries)| {
        entries.iter().map(move |(key, entry)| element_text(family, &entry.element(set, *key)))
    });
    json!({ "name": name, "elements": elements.collect::<Vec<_>>() })
}

fn chain_json(name: &str, chain: &Chain) -> Value {
    let rules: Vec<&str> = chain.rules.iter().map(|rule| rule.text.as_str()).collect();
    json!({ "name": name, "hook": chain.hook.map(|hook| hook_text(&hook)), "rules": rules })
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Intent;
    use ferroxy_dataplane::{Rendering, Settings};

    use crate::MODE;

    #[test]
    fn the_mode_renders_without_a_kernel() {
        let (intent, settings) = (Intent::default(), Settings::default());
        let rendering = Rendering { intent: &intent, settings: &settings, host_addresses: &[] };
        let ruleset = (MODE.render)(&rendering);
        assert!(ruleset.to_string().starts_with("table ip ferroxy {"), "{ruleset}");
        let json = ruleset.to_json();
        let families: Vec<_> = json["tables"].as_array().unwrap().iter().map(|it| &it["family"]).collect();
        assert_eq!(families, ["IPv4", "IPv6"]);
        let chains = json["tables"][0]["chains"].as_array().unwrap();
        let services = chains.iter().find(|chain| chain["name"] == "services").unwrap();
        assert!(services["hook"].is_null() && !services["rules"].as_array().unwrap().is_empty());
        let hooked = chains.iter().find(|chain| chain["name"] == "nat-prerouting").unwrap();
        assert_eq!(hooked["hook"], "type nat hook prerouting priority dstnat; policy accept;");
    }
}
