//! `ferroxy run`: the node agent.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferroxy_core::{Family, resolve};
use ferroxy_nftables::Dataplane;
use tracing::{info, warn};

use super::input::{Cluster, Input, Settings};
use super::{Answer, cleanup, version};
use crate::agent::{self, Agent, inputs};
use crate::config::{LogFormat, Mode};
use crate::flags::Flags;
use crate::host::notify::Notifier;
use crate::serve::Status;
use crate::{host, log, memory};

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    input: Input,
}

impl Run {
    pub fn run(self) -> anyhow::Result<Answer> {
        let flags = &self.input.flags;
        if let Some(version) = version(flags) {
            println!("{version}");
            return Ok(Answer::Yes);
        }
        let mut warnings = Vec::new();
        let settings = self.input.settings(&mut |warning| warnings.push(warning))?;
        if let Some(path) = &flags.write_config_to {
            let text = settings.config.to_yaml().map_err(anyhow::Error::msg)?;
            std::fs::write(path, text).with_context(|| format!("--write-config-to: cannot write {path}"))?;
            return Ok(Answer::Yes);
        }
        if flags.cleanup == Some(true) {
            return cleanup::cleanup();
        }
        log::start(&settings.config.logging);
        warnings.iter().for_each(|warning| warn!("{warning}"));
        if settings.config.logging.format == LogFormat::Json {
            warn!("--logging-format: JSON is not there yet; this is text");
        }
        memory::keep_memory_small();
        if flags.init_only == Some(true) {
            return init_only(&settings);
        }
        let cluster = self.input.cluster(&settings)?;
        serve(settings, cluster, flags)
    }
}

/// Only what needs privileges: the host is prepared, and the kernel is asked whether it can do what this mode needs.
fn init_only(settings: &Settings) -> anyhow::Result<Answer> {
    let (node, _) = resolve::node(&settings.facts());
    let mut dataplane = Dataplane::open(&host::families())?;
    dataplane.probe(&node).map_err(|error| host::explain_missing(&error))?;
    host::prepare(&settings.config);
    info!("this kernel can do all that nftables mode needs");
    Ok(Answer::Yes)
}

fn serve(settings: Settings, cluster: Cluster, flags: &Flags) -> anyhow::Result<Answer> {
    let Cluster { mut facts, source, diagnostics } = cluster;
    let families = host::families();
    if !families.contains(&Family::V6) {
        info!("IPv6 is switched off on this host: only IPv4 is programmed");
    }
    let mut dataplane = Dataplane::open(&families)?;
    let (node, _) = resolve::node(&facts);
    dataplane.probe(&node).map_err(|error| host::explain_missing(&error))?;
    // Nothing stands in the way: from here on things are changed. No thread may be started before this.
    host::prepare(&settings.config);
    host::give_up_privileges(Mode::Nftables, &settings.config);

    let (sender, receiver) = mpsc::channel();
    inputs::watch_signals(sender.clone()).context("cannot listen for signals")?;
    let Some(_claim) = claim(&receiver)? else { return Ok(Answer::Yes) };

    let source_is_whole = agent::is_whole(&diagnostics);
    let _ = sender.send(agent::Input::SourceDiagnostics(diagnostics));
    let status = Arc::new(Status::new(&families, settings.periods.sync));
    crate::serve::start(&settings.config, Mode::Nftables.as_str(), flags.given(), &status)?;
    inputs::watch_rules(dataplane.port_id(), sender.clone())?;
    // First the watch, then the look: no change is missed between them.
    inputs::watch_addresses(sender.clone())?;
    facts.apply(inputs::host_addresses()?);
    info!(
        "ferroxy {} runs in nftables mode as node {}, with the manifests in {}",
        env!("CARGO_PKG_VERSION"),
        settings.node_name,
        source.path().display(),
    );
    let events = sender.clone();
    let listening = Listening::new(Arc::clone(&status));
    let _watch = source
        .watch(move |batch| {
            listening.status.source_spoke();
            // The agent ends by ending the process; there is nobody left to tell.
            let _ = events.send(agent::Input::Events(batch.events));
            let _ = events.send(agent::Input::SourceDiagnostics(batch.diagnostics));
        })
        .context("cannot watch the manifests")?;
    drop(sender);

    let periods = agent::Periods { verify: settings.periods.sync, ..agent::Periods::default() };
    let mut agent = Agent::new(facts, dataplane, periods, status);
    if !source_is_whole {
        agent.distrust_source();
    }
    let manager = Notifier::from_environment();
    agent.live_by(manager.heart());
    let why = match agent.start(&receiver) {
        Some(why) => why,
        None => {
            manager.ready("in sync");
            agent.run(&receiver)
        }
    };
    manager.stopping(why);
    info!("{why}: the rules stay in place (`ferroxy cleanup` removes them)");
    Ok(Answer::Yes)
}

/// Waits until no other Ferroxy programs this network namespace: two would undo each other's work. `None`: told to stop.
fn claim(inputs: &mpsc::Receiver<agent::Input>) -> anyhow::Result<Option<host::Claim>> {
    let mut told = false;
    loop {
        if let Some(claim) =
            host::Claim::take().context("cannot find out whether another Ferroxy runs here")?
        {
            if !claim.is_exclusive() {
                warn!(
                    "another user's process has the name by which agents notice each other; going on without"
                );
            }
            return Ok(Some(claim));
        }
        if !told {
            warn!("another Ferroxy programs this network namespace: waiting for it to end");
            told = true;
        }
        if let Ok(agent::Input::Stop(why)) = inputs.recv_timeout(Duration::from_millis(200)) {
            info!("{why} while waiting: nothing was changed");
            return Ok(None);
        }
    }
}

/// Held by whoever listens to the source: when that ends, however it ends, the status says so.
struct Listening {
    status: Arc<Status>,
}

impl Listening {
    /// The source has been read once.
    fn new(status: Arc<Status>) -> Listening {
        status.source_spoke();
        Listening { status }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.status.source_ended();
    }
}
