//! What to measure: the command line, checked. Wrong input is one line.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use ferroxy::flags::one_line;
use ferroxy_lab::api::Assets;
use ferroxy_lab::api::cluster::Cluster;

use super::Result;

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

/// Each moves an endpoint to an address of its own, and there are only so many.
pub const MOST_CHURN: u32 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

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

/// So many Services with so many endpoints each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    pub services: usize,
    pub endpoints: usize,
}

impl Size {
    pub const ONE: Size = Size { services: 1, endpoints: 1 };

    /// The addresses of Services and of endpoints are counted up in ranges of this size, and moved endpoints in another.
    const MOST_SERVICES: usize = 100_000;
    const MOST_ENDPOINTS: usize = 1_000_000;

    pub fn cluster(self) -> Cluster {
        Cluster::new(self.services, self.endpoints)
    }
}

impl Options {
    pub fn from_command_line() -> Result<Options> {
        match Options::try_parse() {
            Ok(options) => options.checked(),
            Err(error) if error.use_stderr() => Err(one_line(&error).into()),
            Err(help) => help.exit(),
        }
    }

    /// The same from words, for tests.
    #[allow(dead_code, reason = "main has a command line")]
    pub fn from_words(words: &[&str]) -> Result<Options> {
        let words = ["bench-agent"].iter().chain(words);
        Options::try_parse_from(words).map_err(|error| one_line(&error))?.checked()
    }

    fn checked(mut self) -> Result<Options> {
        for program in [Some(&self.ours), self.peer.as_ref()].into_iter().flatten() {
            if !program.is_file() {
                return Err(format!("{}: no such program", program.display()).into());
            }
        }
        if let Some(folder) = &self.assets {
            Assets::of(folder)?;
        }
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

    /// What is measured, with what it is called.
    pub fn binaries(&self) -> Vec<(&'static str, &Path)> {
        let peer = self.peer.as_deref().map(|peer| ("peer", peer));
        std::iter::once(("ours", self.ours.as_path())).chain(peer).collect()
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        let numbers = text.split_once('x').and_then(|(services, endpoints)| {
            Some(Size { services: services.trim().parse().ok()?, endpoints: endpoints.trim().parse().ok()? })
        });
        match numbers {
            Some(size) if size.services == 0 || size.endpoints == 0 => {
                Err("there must be some of each".into())
            }
            Some(size) if size.services > Size::MOST_SERVICES => {
                Err(format!("at most {} Services", Size::MOST_SERVICES))
            }
            Some(size) if size.services.saturating_mul(size.endpoints) > Size::MOST_ENDPOINTS => {
                Err(format!("at most {} endpoints in all", Size::MOST_ENDPOINTS))
            }
            Some(size) => Ok(size),
            None => Err("a size is Services x endpoints of each, such as 1000x10".into()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.services, self.endpoints)
    }
}
