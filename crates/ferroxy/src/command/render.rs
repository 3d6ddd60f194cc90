//! `ferroxy render`: the ruleset for manifests, as text. Touches no kernel.

use std::io::{self, Write};

use clap::Args;
use ferroxy_core::{Family, resolve};
use ferroxy_nftables::{State, text};
use serde_json::{Value, json};

use super::input::Input;
use super::{Answer, Output};

#[derive(Debug, Args)]
pub struct Render {
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Input,
}

impl Render {
    pub fn run(self) -> anyhow::Result<Answer> {
        let (_, cluster) = self.input.look()?;
        let (intent, diagnostics) = resolve::all(&cluster.facts);
        for diagnostic in diagnostics.into_iter().chain(cluster.facts.orphans()) {
            eprintln!("ferroxy: {diagnostic}");
        }
        let state = ferroxy_nftables::render(&intent, &Family::ALL);
        let mut out = io::stdout().lock();
        match self.output {
            Output::Text => write!(out, "{state}")?,
            Output::Json => writeln!(out, "{:#}", state_json(&state))?,
        }
        Ok(Answer::Yes)
    }
}

fn state_json(state: &State) -> Value {
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
