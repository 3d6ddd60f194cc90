//! `ferroxy diff`: what `run` would change in this kernel now.

use anyhow::anyhow;
use clap::Args;
use ferroxy_core::resolve;
use ferroxy_dataplane::Preview;
use serde_json::json;

use super::bundle::Bundle;
use super::look::Look;
use super::verdicts::{self, warn_of};
use super::{Answer, Output};
use crate::agent::inputs;
use crate::log;
use crate::modes::Modes;
use crate::view::document;

#[derive(Debug, Args)]
pub struct Diff {
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Look,
}

impl Diff {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        if let Some(path) = &self.input.input.bundle {
            return self.recorded(&Bundle::read(path)?, modes);
        }
        let (settings, mut cluster) = self.input.look(modes)?;
        warn_of(verdicts::learn(&mut cluster.facts, &settings));
        cluster.facts.apply(inputs::host_addresses(&settings.devices())?);
        let (intent, _) = resolve::all(&cluster.facts);
        self.print(&settings.open()?.preview(&intent)?, SAME)
    }

    /// Prints the recorded difference of the kernel. If `record` could not read the kernel: the difference of the agent's ledger.
    fn recorded(&self, bundle: &Bundle, modes: Modes) -> anyhow::Result<Answer> {
        let (node, at) = (bundle.node().unwrap_or("that node"), bundle.recorded().at);
        let why = match bundle.difference() {
            Ok(preview) => {
                return self.print(&preview, &format!("the kernel of {node} had exactly this at {at}\n"));
            }
            Err(why) => why,
        };
        let (_, cluster) = self.input.look(modes)?;
        let (intent, _) = resolve::all(&cluster.facts);
        let not_compared = || anyhow!("--bundle: nothing was compared: {why}");
        let preview = bundle.behind(&intent).ok_or_else(not_compared)?;
        log::print_error(&format!(
            "ferroxy: --bundle: the kernel was not compared ({why}): this compares what the agent had programmed"
        ));
        self.print(&preview, &format!("the agent of {node} had programmed exactly this at {at}\n"))
    }

    fn print(&self, preview: &Preview, same: &str) -> anyhow::Result<Answer> {
        let Preview { text, operations } = preview;
        let nothing = text.is_empty() && operations.is_empty();
        self.output.print(
            || if nothing { same.to_owned() } else { text.clone() },
            || document("Diff", json!({ "operations": operations, "text": text })),
        )?;
        Ok(if nothing { Answer::Yes } else { Answer::No })
    }
}

const SAME: &str = "the kernel has exactly this\n";
