//! `ferroxy diff`: what `run` would change in this kernel now.

use std::io::{self, Write};

use clap::Args;
use ferroxy_core::resolve;
use serde_json::json;

use super::input::Input;
use super::{Answer, Output};
use crate::agent::inputs;
use crate::modes::Modes;

#[derive(Debug, Args)]
pub struct Diff {
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Input,
}

impl Diff {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let (settings, mut cluster) = self.input.look(modes)?;
        cluster.facts.apply(inputs::host_addresses(&settings.devices())?);
        let (intent, _) = resolve::all(&cluster.facts);
        let preview = settings.open()?.preview(&intent)?;
        let nothing = preview.operations.is_empty();
        let mut out = io::stdout().lock();
        match self.output {
            Output::Text if nothing => writeln!(out, "the kernel has exactly this")?,
            Output::Text => write!(out, "{}", preview.text)?,
            Output::Json => writeln!(out, "{:#}", json!({ "operations": preview.operations }))?,
        }
        Ok(if nothing { Answer::Yes } else { Answer::No })
    }
}
