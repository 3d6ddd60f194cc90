//! `ferroxy render`: the ruleset for manifests, as text. Touches no kernel.

use clap::Args;
use ferroxy_core::resolve;
use ferroxy_dataplane::{Mode, Ruleset};
use serde_json::Value;

use super::look::Look;
use super::{Answer, Output};
use crate::log;
use crate::modes::Modes;
use crate::view::document;

#[derive(Debug, Args)]
pub struct Render {
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Look,
}

impl Render {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let (settings, cluster) = self.input.look(modes)?;
        let (intent, diagnostics) = resolve::all(&cluster.facts);
        for diagnostic in diagnostics.into_iter().chain(cluster.facts.orphans()) {
            log::print_error(&format!("ferroxy: {diagnostic}"));
        }
        let ruleset = settings.ruleset(&intent, &cluster.facts);
        self.output.print(|| ruleset.to_string(), || value(&*ruleset, settings.mode))?;
        Ok(Answer::Yes)
    }
}

/// The rules have different fields in each mode.
fn value(ruleset: &dyn Ruleset, mode: &Mode) -> Value {
    let mut value = ruleset.to_json();
    value["mode"] = mode.name.into();
    document("Ruleset", value)
}
