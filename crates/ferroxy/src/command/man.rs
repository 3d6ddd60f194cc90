//! `ferroxy man`: the manual pages, one for the program and one for each command.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap_mangen::Man;

use super::{Answer, command_line};
use crate::modes::Modes;

/// Without a directory it prints the page of the program: `ferroxy man | man -l -`.
#[derive(Debug, Args)]
pub struct Manual {
    /// Write `ferroxy.1`, `ferroxy-run.1` and so on into this directory, which exists
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

impl Manual {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let mut program = command_line(modes).disable_help_subcommand(true);
        program.build();
        let Some(directory) = self.directory else {
            io::stdout().write_all(&page(program)?)?;
            return Ok(Answer::Yes);
        };
        let commands: Vec<_> = program.get_subcommands().filter(|it| !it.is_hide_set()).cloned().collect();
        for command in commands.into_iter().chain([program]) {
            let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
            let path = directory.join(format!("{name}.1"));
            fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Answer::Yes)
    }
}

fn page(command: clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).source(concat!("ferroxy ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    Ok(page)
}
