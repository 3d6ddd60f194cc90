//! `ferroxy run`: the node agent.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferroxy_core::{Facts, Family, resolve};
use ferroxy_dataplane::{Dataplane, Failure, Lifetime, Periods};
use ferroxy_source::{Occurrence, Regarding};
use tracing::{info, warn};

use super::input::{Cluster, Input, Settings};
use super::source::Source;
use super::{Answer, cleanup, version};
use crate::agent::{self, Agent, inputs};
use crate::config::reload::{self, Reload};
use crate::flags::Flags;
use crate::host::notify::Notifier;
use crate::modes::Modes;
use crate::serve::{Counters, Status};
use crate::{host, log, memory};

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    input: Input,
}

impl Run {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let flags = &self.input.flags;
        if let Some(version) = version(flags) {
            println!("{version}");
            return Ok(Answer::Yes);
        }
        let mut warnings = Vec::new();
        let settings = self.input.settings(modes, &mut |warning| warnings.push(warning))?;
        if let Some(path) = &flags.write_config_to {
            let text = settings.config.to_yaml().map_err(anyhow::Error::msg)?;
            std::fs::write(path, text).with_context(|| format!("--write-config-to: cannot write {path}"))?;
            return Ok(Answer::Yes);
        }
        if flags.cleanup == Some(true) {
            return cleanup::cleanup(modes, false);
        }
        settings.check_platform()?;
        log::start(&settings.config.logging);
        warnings.iter().for_each(|warning| warn!("{warning}"));
        log::flags(flags);
        memory::keep_memory_small();
        if flags.init_only == Some(true) {
            return init_only(&settings);
        }
        let (cluster, source) = self.input.open(&settings)?;
        serve(settings, cluster, source, flags)
    }
}

/// Only what needs privileges: prepares the host and checks that it has what this mode needs.
fn init_only(settings: &Settings) -> anyhow::Result<Answer> {
    let (node, _) = resolve::node(&settings.facts());
    settings.open()?.probe(&node)?;
    host::prepare(&settings.config);
    info!("this host has everything that {} mode needs", settings.mode.name);
    Ok(Answer::Yes)
}

fn serve(settings: Settings, cluster: Cluster, source: Source, flags: &Flags) -> anyhow::Result<Answer> {
    let families = settings.families();
    let Cluster { mut facts, diagnostics } = cluster;
    let mut dataplane = check_host(&settings, &families, &facts)?;
    // Everything needed is there: changes begin here. No thread may start before privileges are dropped.
    host::prepare(&settings.config);
    host::give_up_privileges(settings.mode, &settings.config);

    let (sender, receiver) = agent::inbox();
    inputs::watch_signals(sender.clone()).context("cannot handle signals")?;
    log::write_in_background();
    let Some(_claim) = claim(&receiver)? else { return Ok(Answer::Yes) };

    let status = Arc::new(Status::new(&families, settings.periods.sync));
    let counters = Counters { traffic: dataplane.counts_traffic(), packets: dataplane.counts_packets() };
    crate::serve::start(&settings.config, settings.mode, flags, counters, &status)?;
    watch_dataplane(&mut *dataplane, sender.clone())?;
    // Watch first, then list: no change is missed in between.
    inputs::watch_addresses(&settings.devices(), sender.clone())?;
    facts.apply(inputs::host_addresses(&settings.devices())?);
    info!(
        "ferroxy {} runs in {} mode as node {}, with {}",
        env!("CARGO_PKG_VERSION"),
        settings.mode.name,
        settings.node_name,
        source.describe(),
    );
    let is_api = matches!(source, Source::Api(_));
    let source_is_whole = agent::is_whole(&diagnostics);
    let _ = sender.send(agent::Input::SourceDiagnostics(diagnostics));
    status.show_inputs(sender.gauge());
    let _watching = source.watch(sender.clone(), &status)?;
    // Dropped before the source, whose thread may wait for room.
    let _closing = receiver.closing();
    announce(&settings, &status);
    let manager = host::service_manager();
    let _reload = follow_config(&settings, flags, &manager, sender, &status)?;

    let mut agent = Agent::new(settings.mode, facts, dataplane, periods(&settings.periods), status);
    agent.set_heart(manager.heart());
    if !source_is_whole {
        agent.distrust_source();
    }
    let why =
        is_api.then(|| agent.gather(&receiver)).flatten().or_else(|| agent.start(&receiver)).unwrap_or_else(
            || {
                manager.ready("in sync");
                agent.run(&receiver)
            },
        );
    manager.stopping(why);
    match settings.mode.lifetime {
        Lifetime::OutlivesProcess => {
            info!("{why}: the rules stay in place (`ferroxy cleanup` removes them)")
        }
        Lifetime::EndsWithProcess => info!("{why}: Services stop working on this node"),
    }
    log::flush();
    Ok(Answer::Yes)
}

/// Opens the dataplane if this host has what it needs. Changes nothing.
fn check_host(settings: &Settings, families: &[Family], facts: &Facts) -> anyhow::Result<Box<dyn Dataplane>> {
    let mut dataplane = settings.open()?;
    let warnings = settings.config.check_families(families);
    for warning in warnings.map_err(|lines| anyhow::anyhow!(lines.join("\n")))? {
        warn!("{warning}");
    }
    if !families.contains(&Family::V6) {
        info!("IPv6 is disabled on this host: only IPv4 is programmed");
    }
    let (node, _) = resolve::node(facts);
    dataplane.probe(&node)?;
    if settings.config.traffic_metrics && !settings.mode.counts_traffic {
        warn!("--traffic-metrics: {} mode cannot count the traffic of Services", settings.mode.name);
    }
    Ok(dataplane)
}

fn watch_dataplane(dataplane: &mut dyn Dataplane, inputs: agent::Sender) -> Result<(), Failure> {
    let Some(watches) = dataplane.watches() else { return Ok(()) };
    watches.watch(Box::new(move |what| inputs.send(agent::Input::Drift(what)).is_ok()))
}

fn periods(configured: &Periods) -> agent::Periods {
    agent::Periods { verify: configured.sync, pace: configured.min_sync, ..agent::Periods::default() }
}

/// Reports the start as an Event of the Node, as the original does.
fn announce(settings: &Settings, status: &Status) {
    let tell = |reason: &str, note: &str, warning| {
        status.record_event(Occurrence {
            regarding: Regarding::Node(settings.node_name.clone()),
            reason: reason.into(),
            action: "StartKubeProxy".into(),
            note: note.into(),
            warning,
        });
    };
    tell("Starting", "", false);
    if settings.config.mode.is_none() {
        let note = format!("no proxy mode is set: running in {} mode", settings.mode.name);
        tell("KubeProxyDefaultMode", &note, true);
    }
}

/// Applies what can be applied of a changed configuration file while we run.
fn follow_config(
    settings: &Settings,
    flags: &Flags,
    manager: &Notifier,
    inputs: agent::Sender,
    status: &Arc<Status>,
) -> anyhow::Result<Option<reload::Follower>> {
    let Some(path) = &flags.config else { return Ok(None) };
    let (mode, node_name, manager) = (settings.mode, settings.node_name.clone(), manager.clone());
    let status = Arc::clone(status);
    let mut current = settings.config.clone();
    let follower = reload::spawn(path.into(), flags.clone(), current.clone(), move |reload| {
        reload.tell();
        let Reload::Changed { new, .. } = reload else { return };
        manager.reloading();
        log::adjust(&new.logging);
        host::prepare_again(&current, &new);
        current.clone_from(&new);
        let reconfiguration = agent::Reconfiguration {
            policy: new.policy(mode, node_name.clone()),
            settings: new.settings(mode),
            periods: periods(&new.periods(mode)),
        };
        // An error means that the agent has ended, and the process with it.
        let _ = inputs.send(agent::Input::Reconfigured(Box::new(reconfiguration)));
        status.reconfigured(new);
        manager.ready("in sync, with a changed configuration");
    });
    Ok(Some(follower.with_context(|| format!("--config: cannot follow changes of {path}"))?))
}

/// Waits until no other agent runs in this network namespace: two would undo each other's work. `None`: asked to stop.
fn claim(inputs: &agent::Receiver) -> anyhow::Result<Option<host::Claim>> {
    let mut warned = false;
    loop {
        let claim = host::Claim::take().context("cannot check whether another Ferroxy agent runs here")?;
        if claim.is_some() {
            return Ok(claim);
        }
        if !warned {
            warn!("another Ferroxy agent runs in this network namespace: waiting for it to end");
            warned = true;
        }
        if let Ok(agent::Input::Stop(why)) = inputs.recv_timeout(Duration::from_millis(200)) {
            info!("{why} while waiting: nothing was changed");
            return Ok(None);
        }
    }
}
