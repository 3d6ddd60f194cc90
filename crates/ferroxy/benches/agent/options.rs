//! The command line of bench-agent, checked. An error about wrong input is one line.

use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use super::Result;
use super::command_line::{self, Output};
use super::size::Size;

#[derive(Debug, Clone, Parser)]
#[command(name = "bench-agent")]
pub struct Options {
    /// Sizes of clusters: Services x endpoints of each
    #[arg(long, value_delimiter = ',', default_value = "1000x10,10000x10,5000x50,44000x1")]
    pub sizes: Vec<Size>,
    /// Our binary
    #[arg(long, default_value = env!("CARGO_BIN_EXE_ferroxy"))]
    pub ours: PathBuf,
    /// Another binary that takes kube-proxy's flags
    #[arg(long)]
    pub peer: Option<PathBuf>,
    /// Of the proxies
    #[arg(long, value_enum, default_value_t = Mode::Nftables)]
    pub mode: Mode,
    /// A folder with etcd and kube-apiserver, to be used instead of the test API server
    #[arg(long)]
    pub assets: Option<PathBuf>,
    /// How many endpoint changes are made alone, one after the other
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub changes: u32,
    /// How long the churn lasts, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub churn_seconds: u32,
    /// Changes in each second of the churn
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub churn_rate: u32,
    /// Connections of each sort whose time is taken
    #[arg(long, default_value_t = 27_500, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub connections: u32,
    /// How long a start may take, in seconds
    #[arg(long, default_value_t = 1_800, value_parser = clap::value_parser!(u32).range(1..=36_000))]
    pub patience: u32,
    /// Print a table for people, or JSON
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Where the figures and the picture go
    #[arg(long, default_value = concat!(env!("CARGO_TARGET_TMPDIR"), "/../bench-agent"))]
    pub folder: PathBuf,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The most changes of a churn: each moves an endpoint to a new address, and the number of addresses is limited.
pub const MOST_CHURN: u32 = 1_000_000;

/// Those whose rules the kernel gives notice of; the notices are how a change is seen to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Nftables,
    /// With the nft variant of the iptables tools
    Iptables,
}

impl Mode {
    /// As `--proxy-mode` has it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
        }
    }
}

impl Options {
    pub fn from_command_line() -> Result<Options> {
        command_line::of_process::<Options>()?.checked()
    }

    /// The same from words, for tests.
    #[allow(dead_code, reason = "main has a command line")]
    pub fn from_words(words: &[&str]) -> Result<Options> {
        command_line::of_words::<Options>("bench-agent", words)?.checked()
    }

    fn checked(mut self) -> Result<Options> {
        command_line::check(&self.ours, self.peer.as_deref(), self.assets.as_deref())?;
        if self.churn_rate * self.churn_seconds > MOST_CHURN {
            return Err(
                format!("at most {MOST_CHURN} changes of a churn: fewer seconds, or a lower rate").into()
            );
        }
        let (mut seen, sizes) = (Vec::new(), std::mem::take(&mut self.sizes));
        sizes.into_iter().filter(|size| *size != Size::ONE).for_each(|size| {
            if !seen.contains(&size) {
                seen.push(size);
            }
        });
        self.sizes = seen;
        Ok(self)
    }

    /// The binaries to measure, with their names.
    pub fn binaries(&self) -> Vec<(&'static str, &Path)> {
        command_line::binaries(&self.ours, self.peer.as_deref())
    }
}
