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
        let program = built(command_line(modes));
        let Some(directory) = self.directory else {
            io::stdout().write_all(&page(program)?)?;
            return Ok(Answer::Yes);
        };
        let programs = [Some(program), plugin().map(built)].into_iter().flatten();
        let with_commands = |program: clap::Command| {
            let shown = program.get_subcommands().filter(|it| !it.is_hide_set());
            shown.cloned().chain([program.clone()]).collect::<Vec<_>>()
        };
        for command in programs.flat_map(with_commands) {
            let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
            let path = directory.join(format!("{name}.1"));
            fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Answer::Yes)
    }
}

fn built(program: clap::Command) -> clap::Command {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    program
}

/// `kubectl ferroxy`
#[cfg(feature = "api")]
fn plugin() -> Option<clap::Command> {
    Some(super::fleet::command_line())
}

#[cfg(not(feature = "api"))]
fn plugin() -> Option<clap::Command> {
    None
}

fn page(command: clap::Command) -> io::Result<Vec<u8>> {
    let (mut page, synopsis) = (Vec::new(), synopsis(command.clone()));
    Man::new(command).source(concat!("ferroxy ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    let page = String::from_utf8_lossy(&page);
    // The generated synopsis lists all flags, without their values.
    let parts = page.split_once(".SH SYNOPSIS\n").and_then(|(head, rest)| {
        let (_, rest) = rest.split_once("\n.SH ")?;
        Some((head, rest))
    });
    let (head, rest) = parts.ok_or_else(|| io::Error::other("the generated page has no synopsis"))?;
    Ok(format!("{head}.SH SYNOPSIS\n{synopsis}\n.SH {rest}").into_bytes())
}

/// The usage as `--help` has it, one line for each form.
fn synopsis(mut command: clap::Command) -> String {
    let usage = command.render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(str::trim).filter(|line| !line.is_empty());
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let line = |line: &str| match line.strip_prefix(name) {
        Some(rest) => format!("\\fB{name}\\fR{rest}").replace('-', "\\-"),
        None => line.replace('-', "\\-"),
    };
    lines.map(line).collect::<Vec<_>>().join("\n.br\n")
}
