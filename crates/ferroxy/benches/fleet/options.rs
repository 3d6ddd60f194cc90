//! The command line of bench-fleet, checked. An error about wrong input is one line.

use std::path::{Path, PathBuf};

use clap::Parser;

use super::Result;
use super::command_line::{self, Output};
use super::size::Size;

/// The number of a node must fit into one byte of its address, and memory is limited.
const MOST_AGENTS: usize = 200;

#[derive(Debug, Clone, Parser)]
#[command(name = "bench-fleet")]
pub struct Options {
    /// Numbers of agents at one API server
    #[arg(long, value_delimiter = ',', default_value = "1,10,50")]
    pub agents: Vec<usize>,
    /// Size of the cluster: Services x endpoints of each
    #[arg(long, default_value = "1000x10")]
    pub size: Size,
    /// Our binary
    #[arg(long, default_value = env!("CARGO_BIN_EXE_ferroxy"))]
    pub ours: PathBuf,
    /// Another binary that takes kube-proxy's flags
    #[arg(long)]
    pub peer: Option<PathBuf>,
    /// A folder with etcd and kube-apiserver, to be used instead of the test API server
    #[arg(long)]
    pub assets: Option<PathBuf>,
    /// How many endpoint changes are made, one after the other
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub changes: u32,
    /// How long a start of all agents may take, in seconds
    #[arg(long, default_value_t = 1_800, value_parser = clap::value_parser!(u32).range(1..=36_000))]
    pub patience: u32,
    /// Print a table for people, or JSON
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Where files of the run go; removed at the end
    #[arg(long, default_value = concat!(env!("CARGO_TARGET_TMPDIR"), "/../bench-fleet"))]
    pub folder: PathBuf,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub fn from_command_line() -> Result<Options> {
        command_line::of_process::<Options>()?.checked()
    }

    /// The same from words, for tests.
    #[allow(dead_code, reason = "main has a command line")]
    pub fn from_words(words: &[&str]) -> Result<Options> {
        command_line::of_words::<Options>("bench-fleet", words)?.checked()
    }

    fn checked(self) -> Result<Options> {
        if let Some(wrong) = self.agents.iter().find(|count| !(1..=MOST_AGENTS).contains(count)) {
            return Err(format!("--agents={wrong}: from 1 to {MOST_AGENTS}").into());
        }
        command_line::check(&self.ours, self.peer.as_deref(), self.assets.as_deref())?;
        Ok(self)
    }

    /// The binaries to measure, with their names.
    pub fn binaries(&self) -> Vec<(&'static str, &Path)> {
        command_line::binaries(&self.ours, self.peer.as_deref())
    }
}
