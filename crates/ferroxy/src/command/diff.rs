//! `ferroxy diff`: what `run` would change in this kernel now.

use std::io::{self, Write};

use clap::Args;
use ferroxy_core::resolve;
use ferroxy_nftables::Dataplane;
use serde_json::json;

use super::input::Input;
use super::{Answer, Output};
use crate::agent::inputs;
use crate::host;

#[derive(Debug, Args)]
pub struct Diff {
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Input,
}

impl Diff {
    pub fn run(self) -> anyhow::Result<Answer> {
        let (_, mut cluster) = self.input.look()?;
        cluster.facts.apply(inputs::host_addresses()?);
        let (intent, _) = resolve::all(&cluster.facts);
        let plan = Dataplane::open(&host::families())?.preview(&intent)?;
        let mut out = io::stdout().lock();
        match self.output {
            Output::Text if plan.is_empty() => writeln!(out, "the kernel has exactly this")?,
            Output::Text => write!(out, "{plan}")?,
            Output::Json => {
                let operations: Vec<String> = plan.ops().map(ToString::to_string).collect();
                writeln!(out, "{:#}", json!({ "operations": operations }))?;
            }
        }
        Ok(if plan.is_empty() { Answer::Yes } else { Answer::No })
    }
}
