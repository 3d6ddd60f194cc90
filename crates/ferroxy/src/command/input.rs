//! What most commands begin with: the configuration and the manifests.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use ferroxy_core::{Diagnostic, Facts, Policy};
use ferroxy_source::manifest::ManifestSource;

use crate::config::{Config, Mode, Periods};
use crate::flags::Flags;

#[derive(Debug, Args)]
pub struct Input {
    /// A manifest, or a directory of them: Services, EndpointSlices, Nodes, ServiceCIDRs
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,
    #[command(flatten)]
    pub flags: Flags,
}

/// The configuration, as far as it concerns packets.
#[derive(Debug)]
pub struct Settings {
    pub config: Config,
    /// Never [`Mode::Unset`].
    pub mode: Mode,
    pub node_name: String,
    pub periods: Periods,
}

/// The cluster as the manifests show it now.
#[derive(Debug)]
pub struct Cluster {
    pub facts: Facts,
    pub source: ManifestSource,
    pub diagnostics: Vec<Diagnostic>,
}

impl Settings {
    /// What a configuration of this agent, its first or a later one, says about packets.
    pub fn policy(&self, config: &Config) -> Policy {
        config.policy(self.mode, self.node_name.clone())
    }

    /// No facts yet, to be judged by these settings.
    pub fn facts(&self) -> Facts {
        Facts::new(self.policy(&self.config))
    }
}

impl Input {
    /// Reads flags and configuration file; warnings go to `warn`.
    pub fn settings(&self, warn: &mut dyn FnMut(String)) -> anyhow::Result<Settings> {
        let (config, warnings) = Config::load(&self.flags).map_err(join_lines)?;
        warnings.into_iter().for_each(&mut *warn);
        match config.mode {
            Mode::Nftables => {}
            Mode::Unset => warn("no proxy mode is set: using nftables".into()),
            other => {
                let field = if self.flags.config.is_some() { "mode" } else { "--proxy-mode" };
                bail!("{field}: the mode {} is not there yet; use nftables", other.as_str());
            }
        }
        let node_name = config.node_name().map_err(anyhow::Error::msg)?;
        let mode = Mode::Nftables;
        let periods = config.periods(mode);
        Ok(Settings { config, mode, node_name, periods })
    }

    /// Reads the manifests once.
    pub fn cluster(&self, settings: &Settings) -> anyhow::Result<Cluster> {
        let path = self.manifests.as_ref().context(
            "--manifests: name a manifest or a directory of them (watching the Kubernetes API is not there yet)",
        )?;
        let mut facts = settings.facts();
        let (source, diagnostics) = ManifestSource::open(path, |event| drop(facts.apply(event)))
            .map_err(|error| anyhow::anyhow!("--manifests: {error}"))?;
        Ok(Cluster { facts, source, diagnostics })
    }

    /// For commands that only look: the facts, with warnings on standard error.
    pub fn look(&self) -> anyhow::Result<(Settings, Cluster)> {
        let settings = self.settings(&mut |warning| eprintln!("ferroxy: {warning}"))?;
        let cluster = self.cluster(&settings)?;
        for diagnostic in &cluster.diagnostics {
            eprintln!("ferroxy: {diagnostic}");
        }
        Ok((settings, cluster))
    }
}

/// Several problems are several lines.
fn join_lines(problems: Vec<String>) -> anyhow::Error {
    anyhow::Error::msg(problems.join("\n"))
}
