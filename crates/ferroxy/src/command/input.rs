//! The input of most commands: the configuration, and the cluster from manifests or from the API server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferroxy_core::{Diagnostic, Event, Facts, Family, Intent, Policy, resolve};
use ferroxy_dataplane::{Dataplane, Failure, Mode, Opening, Periods, Platform, Ruleset};
use ferroxy_source::manifest::ManifestSource;

use super::agent_page;
use super::bundle::Bundle;
use super::source::{ApiSource, Source};
use crate::agent::inputs;
use crate::config::Config;
use crate::flags::Flags;
use crate::modes::Modes;
use crate::progress::while_waiting;
use crate::{host, log, wrapper};

#[derive(Debug, Args)]
pub struct Input {
    /// A manifest, or a directory of them, instead of the API server: Services, EndpointSlices, Nodes, ServiceCIDRs
    #[arg(long, value_name = "PATH")]
    pub manifests: Option<PathBuf>,
    /// A support bundle of `ferroxy record`, instead of the API server and of this machine's configuration
    #[arg(long, value_name = "PATH", conflicts_with = "manifests")]
    pub bundle: Option<PathBuf>,
    #[command(flatten)]
    pub flags: Flags,
}

/// The configuration, as far as it concerns packets.
#[derive(Debug)]
pub struct Settings {
    pub config: Config,
    /// The configured mode, or the one chosen where none is configured.
    pub mode: &'static Mode,
    pub modes: Modes,
    pub node_name: String,
    pub periods: Periods,
    /// Set for settings from a bundle: this machine's kernel and agent are irrelevant to them.
    pub recorded: Option<Recorded>,
}

/// The recorded state of the node of a bundle.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub has_verdicts: bool,
    /// The time of the recording, as text of the bundle.
    pub at: String,
    /// The Services that the kernel refused, and why.
    pub refused: BTreeMap<String, String>,
    /// Whether the kernel had exactly what it should have; the error says why that is not known.
    pub is_equal: Result<bool, String>,
}

/// The cluster as far as it is known.
#[derive(Debug)]
pub struct Cluster {
    pub facts: Facts,
    pub diagnostics: Vec<Diagnostic>,
}

/// How long a read-only command waits for the API server.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

impl Settings {
    /// The packet policy of a configuration of this agent, its first or a later one.
    pub fn policy(&self, config: &Config) -> Policy {
        config.policy(self.mode, self.node_name.clone())
    }

    /// Empty facts with the policy of these settings.
    pub fn facts(&self) -> Facts {
        Facts::new(self.policy(&self.config))
    }

    /// An error if the mode cannot run on this platform.
    pub fn check_platform(&self) -> Result<(), Failure> {
        if self.mode.runs_on(Platform::HERE) {
            return Ok(());
        }
        let platforms: Vec<&str> = self.mode.platforms.iter().map(|it| it.as_str()).collect();
        Err(Failure::unsupported(format!(
            "{} mode needs {}, and this is {}; `render`, `trace` and `explain` work here",
            self.mode.name,
            platforms.join(" or "),
            Platform::HERE.as_str()
        )))
    }

    /// The dataplane of this mode, on a platform that has it.
    pub fn open(&self) -> Result<Box<dyn Dataplane>, Failure> {
        self.check_platform()?;
        let opening = Opening { families: &self.families(), settings: &self.config.settings(self.mode) };
        Ok(wrapper::wrap((self.mode.open)(&opening)?, &self.config.sockets))
    }

    /// The families that both this host and the mode have.
    pub fn families(&self) -> Vec<Family> {
        let mut families = host::families();
        families.retain(|family| self.mode.families.contains(family));
        families
    }

    /// Devices that carry addresses of Services in some mode: those addresses are not the host's own.
    pub fn devices(&self) -> Vec<&'static str> {
        self.modes.devices()
    }

    /// Adds the addresses of this host to the facts if it has an address of our Node. Otherwise, and on a platform that cannot
    /// list addresses, only the addresses of the Node are known.
    fn learn_addresses(&self, facts: &mut Facts) {
        let Ok(Event::HostAddresses(here)) = inputs::host_addresses(&self.devices()) else { return };
        let is_here = |address: &IpAddr| here.contains(address);
        let node = facts.own_node();
        if node.is_some_and(|node| node.internal_ips.iter().chain(&node.external_ips).any(is_here)) {
            facts.apply(Event::HostAddresses(here));
        }
    }

    /// Renders the rules for an Intent, without a kernel.
    pub fn ruleset(&self, intent: &Intent, facts: &Facts) -> Box<dyn Ruleset> {
        let host_addresses: Vec<IpAddr> = resolve::known_addresses(facts).into_iter().collect();
        self.config.ruleset(self.mode, intent, &host_addresses)
    }
}

impl Input {
    /// Reads flags and configuration file; warnings go to `warn`.
    pub fn settings(&self, modes: Modes, warn: &mut dyn FnMut(String)) -> anyhow::Result<Settings> {
        self.settings_of(None, modes, warn)
    }

    /// For read-only commands. If no mode is configured, uses the mode of the agent on this node.
    fn settings_for_looking(
        &self,
        bundle: Option<&Bundle>,
        modes: Modes,
        warn: &mut dyn FnMut(String),
    ) -> anyhow::Result<Settings> {
        let mut said = Vec::new();
        let mut settings = self.settings_of(bundle, modes, &mut |warning| said.push(warning))?;
        let is_open = settings.config.mode.is_none() && bundle.is_none();
        let of_agent = || modes.find(&agent_page::mode(&settings)?);
        if let Some(mode) = is_open.then(of_agent).flatten() {
            settings = Settings { mode, periods: settings.config.periods(mode), ..settings };
            said = vec![format!("no proxy mode is set: using {}, as the agent on this node does", mode.name)];
        }
        said.into_iter().for_each(warn);
        Ok(settings)
    }

    /// The same, but from a bundle if there is one.
    pub fn settings_of(
        &self,
        bundle: Option<&Bundle>,
        modes: Modes,
        warn: &mut dyn FnMut(String),
    ) -> anyhow::Result<Settings> {
        let loaded = match bundle {
            Some(bundle) => bundle.config(&self.flags, modes),
            None => Config::load(&self.flags, modes),
        };
        let (config, warnings) = loaded.map_err(join_lines)?;
        warnings.into_iter().for_each(&mut *warn);
        let mode_in_force = bundle.and_then(|bundle| modes.find(bundle.mode()?));
        let mode = match config.mode.or(mode_in_force) {
            Some(mode) => mode,
            None => {
                let (mode, why) = default_mode(modes)?;
                warn(format!("no proxy mode is set: using {}, {why}", mode.name));
                config.doubts_about_default(mode).into_iter().for_each(&mut *warn);
                mode
            }
        };
        let node_name = match bundle.and_then(Bundle::node) {
            Some(node) => node.to_owned(),
            None => config.node_name().map_err(anyhow::Error::msg)?,
        };
        let periods = config.periods(mode);
        let recorded = bundle.map(Bundle::recorded);
        Ok(Settings { config, mode, modes, node_name, periods, recorded })
    }

    /// Reads manifests once; sends no request to the API server yet.
    pub fn open(&self, settings: &Settings) -> anyhow::Result<(Cluster, Source)> {
        let mut facts = settings.facts();
        let Some(path) = &self.manifests else {
            let source = ApiSource::open(settings, self.flags.master.as_deref())?;
            return Ok((Cluster { facts, diagnostics: Vec::new() }, Source::Api(source)));
        };
        let (source, diagnostics) = ManifestSource::open(path, |event| drop(facts.apply(event)))
            .map_err(|error| anyhow::anyhow!("--manifests: {error}"))?;
        Ok((Cluster { facts, diagnostics }, Source::Manifests(source)))
    }

    /// For read-only commands: the whole cluster, with warnings on standard error.
    pub fn look(&self, modes: Modes) -> anyhow::Result<(Settings, Cluster)> {
        let bundle = self.bundle.as_deref().map(Bundle::read).transpose()?;
        let warn = &mut |warning| log::print_error(&format!("ferroxy: {warning}"));
        let settings = self.settings_for_looking(bundle.as_ref(), modes, warn)?;
        if let Some(bundle) = bundle {
            let mut facts = settings.facts();
            let diagnostics = bundle.facts(&mut facts);
            return Ok((settings, Cluster { facts, diagnostics }));
        }
        let (mut cluster, source) = self.open(&settings)?;
        if let Source::Api(source) = source {
            let read = || source.read_once(LOOK_LIMIT);
            let (events, diagnostics) = while_waiting("reading from the API server", read)?;
            events.into_iter().for_each(|event| drop(cluster.facts.apply(event)));
            cluster.diagnostics = diagnostics;
        }
        settings.learn_addresses(&mut cluster.facts);
        for diagnostic in &cluster.diagnostics {
            log::print_error(&format!("ferroxy: {diagnostic}"));
        }
        Ok((settings, cluster))
    }
}

/// The mode to use where none is configured; and why.
fn default_mode(modes: Modes) -> anyhow::Result<(&'static Mode, String)> {
    let choice = modes.default().context("this binary has no proxy mode")?;
    let why = match choice.unavailable.first() {
        Some((_, reason)) => format!("because {reason}"),
        None => "the default of kube-proxy; `--help` lists the modes".to_owned(),
    };
    Ok((choice.mode, why))
}

/// Several problems are several lines.
fn join_lines(problems: Vec<String>) -> anyhow::Error {
    anyhow::Error::msg(problems.join("\n"))
}
