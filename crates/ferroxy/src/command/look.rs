//! The input of read-only commands: the cluster as the agent on this node knows it, through the API of its page; without
//! such an agent, from the API server; or from manifests or a bundle.
//!
//! With an agent, its configuration counts, and flags of the command override it. So `diff`, `explain` and `trace` show what
//! that agent does, with the same code and without reading from the API server again.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::Args;
use ferroxy_core::Event;
use serde_json::{Value, json};

use super::bundle::Bundle;
use super::input::{Cluster, Input, Settings};
use super::objects::objects;
use crate::agent::inputs;
use crate::client::{AgentAddress, Api, Local};
use crate::config::Config;
use crate::log;
use crate::modes::Modes;
use crate::progress::{Step, in_steps};

#[derive(Debug, Args)]
pub struct Look {
    #[command(flatten)]
    pub input: Input,
    /// Address of the page of the agent on this node: IP, or IP:port. Without it, an agent that answers at --page-address or 127.0.0.1 is asked, and the API server if none does
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["manifests", "bundle", "kubeconfig", "master"])]
    pub agent: Option<String>,
    /// File with the token of the page, if the agent has one
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
}

impl Look {
    /// The whole cluster, with warnings on standard error.
    pub fn look(&self, modes: Modes) -> anyhow::Result<(Settings, Cluster)> {
        match self.ask(modes)? {
            Some(known) => self.of_agent(&known, modes),
            None => self.input.look(modes),
        }
    }

    /// The agent's knowledge. `None` if flags name another source, or if no agent answers and no flag names one.
    fn ask(&self, modes: Modes) -> anyhow::Result<Option<Bundle>> {
        let Input { manifests, bundle, flags } = &self.input;
        let is_named = |flag: &Option<String>| flag.is_some();
        if manifests.is_some() || bundle.is_some() || is_named(&flags.kubeconfig) || is_named(&flags.master) {
            return Ok(None);
        }
        let asked = self.agent(modes).and_then(|agent| match self.agent.is_some() || agent.is_there() {
            true => in_steps(|step| self.known_by(&agent, modes, step)).map(Some),
            false => Ok(None),
        });
        match asked {
            Err(error) if self.agent.is_none() => {
                log::print_error(&format!("ferroxy: {error:#}; asking the API server instead"));
                Ok(None)
            }
            asked => asked,
        }
    }

    /// The agent that a flag names, or the configuration; the default is the usual address.
    fn agent(&self, modes: Modes) -> anyhow::Result<Local> {
        // Errors of the configuration are reported where it is used.
        let page = Config::load(&self.input.flags, modes).ok().and_then(|(config, _)| config.page);
        let configured = page.as_ref().map(|page| page.address.to_string());
        let agent = self.agent.clone().or(configured).unwrap_or_else(|| AgentAddress::USUAL.to_owned());
        let token_file = self.token_file.clone().or_else(|| page?.token_file);
        AgentAddress { agent, token_file }.open()
    }

    fn known_by(&self, agent: &Local, modes: Modes, step: &Step) -> anyhow::Result<Bundle> {
        step.is("asking the agent");
        ensure!(
            is_of_this_host(agent.ip(), modes),
            "--agent: {} is on another node, and this command looks at the kernel of this one; `kubectl ferroxy` asks other nodes",
            agent.who()
        );
        let status = agent.get("status")?;
        let node = status["node"].as_str().unwrap_or_default();
        if let Some(wanted) = self.input.flags.hostname_override.as_deref().filter(|wanted| *wanted != node) {
            bail!("the agent at {} is that of node {node}, not of {wanted}", agent.who());
        }
        ensure!(
            !status["lastSync"].is_null(),
            "the agent at {} has not finished its first sync",
            agent.who()
        );
        let config = agent.get("config")?;
        let known = objects(agent, step)?;
        Ok(Bundle::of_agent(json!({
            "status": status,
            "configuration": config["configuration"],
            "objects": known.objects,
            "hostAddresses": known.host_addresses,
            "probes": Value::Null,
        })))
    }

    fn of_agent(&self, known: &Bundle, modes: Modes) -> anyhow::Result<(Settings, Cluster)> {
        // The agent itself has logged warnings about its configuration.
        let is_own = self.input.flags.config.is_some();
        let warn = &mut |warning: String| {
            if is_own {
                log::print_error(&format!("ferroxy: {warning}"));
            }
        };
        // The agent's answers are about this kernel, now: they are not a recording.
        let settings = Settings { recorded: None, ..self.input.settings_of(Some(known), modes, warn)? };
        let mut facts = settings.facts();
        let diagnostics = known.facts(&mut facts);
        Ok((settings, Cluster { facts, diagnostics }))
    }
}

/// True for every address if the addresses of the host cannot be listed.
fn is_of_this_host(address: IpAddr, modes: Modes) -> bool {
    let here = inputs::host_addresses(&modes.devices());
    address.is_loopback() || !matches!(here, Ok(Event::HostAddresses(here)) if !here.contains(&address))
}
