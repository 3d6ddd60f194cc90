//! `ferroxy completions SHELL`: a script that completes commands and flags, for the shell to read.

use std::io::{self, Write};

use clap::Args;
use clap_complete::Shell;

use super::{Answer, command_line};
use crate::modes::Modes;

/// In bash: `source <(ferroxy completions bash)`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell that reads the script
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        // Into memory first: the generator panics if the reader of a pipe is gone.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command_line(modes), "ferroxy", &mut script);
        io::stdout().write_all(&script)?;
        Ok(Answer::Yes)
    }
}
