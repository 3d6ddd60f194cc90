//! `ferroxy run`: the node agent.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ferroxy_core::{Facts, Family, resolve};
use ferroxy_dataplane::{Dataplane, Failure, Lifetime, Periods, Platform};
use ferroxy_source::{Occurrence, Regarding};
use tracing::{error, info, warn};

use super::input::{Cluster, Input, Settings};
use super::source::Source;
use super::{Answer, cleanup, print_line, service, version};
use crate::agent::{self, Agent, inputs};
use crate::config::Config;
use crate::config::reload::{self, Reload};
use crate::flags::Flags;
use crate::host::notify::Notifier;
use crate::journal::Journal;
use crate::modes::Modes;
use crate::serve::{AgentLink, Counters, Status};
use crate::{host, log, memory, wrapper};

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    input: Input,
}

impl Run {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let flags = &self.input.flags;
        if let Some(version) = version(flags) {
            return print_line(&version);
        }
        if self.input.bundle.is_some() {
            bail!("--bundle: `run` needs a cluster; explain, trace, render and diff read bundles");
        }
        let mut warnings = Vec::new();
        let settings = self.input.settings(modes, &mut |warning| warnings.push(warning))?;
        if let Some(path) = &flags.write_config_to {
            let text = settings.config.to_yaml().map_err(anyhow::Error::msg)?;
            std::fs::write(path, text).with_context(|| format!("--write-config-to: cannot write {path}"))?;
            return Ok(Answer::Yes);
        }
        if flags.cleanup == Some(true) {
            return cleanup::cleanup(modes, false, &settings.config.sockets.pins);
        }
        settings.check_platform()?;
        log_to_file(&settings.config)?;
        log::start(&settings.config.logging);
        warnings.iter().for_each(|warning| warn!("{warning}"));
        log::flags(flags);
        memory::keep_memory_small();
        if flags.init_only == Some(true) {
            return init_only(&settings);
        }
        if is_service(&settings) { self.work_as_service(settings) } else { self.work(settings) }
    }

    fn work(self, settings: Settings) -> anyhow::Result<Answer> {
        let (cluster, source) = self.input.open(&settings)?;
        serve(settings, cluster, source, &self.input.flags)
    }

    /// The service manager gets the result as an exit code; the reason is in the log.
    fn work_as_service(self, settings: Settings) -> anyhow::Result<Answer> {
        let work = move || match self.work(settings) {
            Ok(_) => 0,
            Err(error) => {
                error!("{error:#}");
                log::flush();
                1
            }
        };
        if let Err(error) = log::to_event_log(service::NAME) {
            warn!("warnings and errors do not go to the Event Log: {error}");
        }
        ferroxy_platform::service::run(service::NAME, work)
            .context("--windows-service: the service manager did not start this process")?;
        Ok(Answer::Yes)
    }
}

fn log_to_file(config: &Config) -> anyhow::Result<()> {
    let Some((path, megabytes)) = config.log_file() else { return Ok(()) };
    log::to_file(&path, megabytes).with_context(|| format!("--log-file: cannot write {}", path.display()))
}

fn is_service(settings: &Settings) -> bool {
    settings.config.windows_run_as_service && Platform::HERE == Platform::Windows
}

/// Does only the work that needs privileges: prepares the host and checks that it has what this mode needs.
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
    // The host has everything that is needed: changes begin here. No thread may start before privileges are dropped.
    host::prepare(&settings.config);
    host::give_up_privileges(settings.mode, &settings.config);

    let (sender, receiver) = agent::inbox();
    inputs::watch_signals(sender.clone()).context("cannot handle signals")?;
    log::write_in_background();
    let Some(claim) = claim(&receiver, settings.mode.lifetime)? else { return Ok(Answer::Yes) };
    let is_api = matches!(source, Source::Api(_));
    // As early as possible: this takes longest at a restart.
    if let Some(persists) = dataplane.persists().filter(|_| is_api) {
        persists.look_ahead();
    }
    remove_stale_pins(&settings);

    let mut status = Status::new(&families, settings.periods.sync);
    status.journal = has_journal(&settings).then(Journal::default);
    let status = Arc::new(status);
    let counters = Counters::of(&*dataplane);
    let link = AgentLink { node: settings.node_name.clone(), inputs: sender.clone() };
    crate::serve::start(&settings.config, settings.mode, flags, counters, link, &status)?;
    send_traces(&settings, &status)?;
    watch_dataplane(&mut *dataplane, sender.clone())?;
    // Watch first, then list: no change is missed in between.
    inputs::watch_addresses(&settings.devices(), sender.clone())?;
    facts.apply(inputs::host_addresses(&settings.devices())?);
    introduce(&settings, &source);
    let source_is_whole = agent::is_whole(&diagnostics);
    let _ = sender.send(agent::Input::SourceDiagnostics(diagnostics));
    status.show_inputs(sender.gauge());
    let _watching = source.watch(sender.clone(), &status)?;
    // Dropped before the source, whose thread may wait for room.
    let _closing = receiver.closing();
    announce(&settings, &status);
    let manager = host::service_manager();
    let prober = agent::prober(sender.clone(), &status, dataplane.ejects());
    let _reload = follow_config(&settings, flags, &manager, sender, &status)?;

    let stops = Arc::clone(&status);
    let mut agent = Agent::new(settings.mode, facts, dataplane, periods(&settings.periods), status);
    agent.set_heart(manager.heart());
    agent.set_prober(prober);
    if !source_is_whole {
        agent.distrust_source();
    }
    let stopped = is_api.then(|| agent.gather(&receiver)).flatten().or_else(|| agent.start(&receiver));
    let why = stopped.unwrap_or_else(|| {
        manager.ready("in sync");
        agent.run(&receiver)
    });
    manager.stopping(why);
    stops.stopping();
    finish(settings.mode.lifetime, agent, claim, why);
    Ok(Answer::Yes)
}

/// Only the page and traces read the journal.
fn has_journal(settings: &Settings) -> bool {
    settings.config.page.is_some() || settings.config.otlp.is_some()
}

fn send_traces(settings: &Settings, status: &Arc<Status>) -> anyhow::Result<()> {
    let Some(endpoint) = settings.config.otlp.clone() else { return Ok(()) };
    crate::otlp::start(endpoint, &settings.node_name, settings.mode.name, Arc::clone(status))
        .context("cannot start the thread that sends traces")
}

fn finish(lifetime: Lifetime, agent: Agent, claim: Mine, why: &str) {
    match lifetime {
        Lifetime::OutlivesProcess => {
            info!("{why}: what is programmed stays in force (`ferroxy cleanup` removes it)")
        }
        Lifetime::EndsWithProcess => end(agent, claim, why),
    }
    log::flush();
}

fn introduce(settings: &Settings, source: &Source) {
    info!(
        "ferroxy {} runs in {} mode as node {}, with {}",
        env!("CARGO_PKG_VERSION"),
        settings.mode.name,
        settings.node_name,
        source.describe(),
    );
}

/// If a successor waits for our end, it takes over the listeners, and our connections may finish.
fn end(mut agent: Agent, claim: Mine, why: &str) {
    let Some(listeners) = agent.dataplane().hands_over() else {
        return info!("{why}: Services stop working on this node");
    };
    let is_alone = matches!(claim, Mine::Unclaimed);
    drop(claim);
    if is_alone || !has_successor() {
        let cut = listeners.finish(Duration::ZERO);
        return info!("{why}: Services stop working on this node ({cut} connections end)");
    }
    info!("{why}: the listeners are handed over");
    let deadline = Instant::now() + SUCCESSION;
    while !listeners.is_superseded() && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
    let superseded = listeners.is_superseded();
    let cut = listeners.finish(if superseded { GRACE } else { Duration::ZERO });
    match superseded {
        true => info!("another process took over; {cut} connections were closed"),
        false => {
            warn!("no other process took over: Services stop working on this node ({cut} connections end)")
        }
    }
}

/// How long a successor may take to its first sync, and connections to their end after that.
const SUCCESSION: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(25);

/// How often a waiting agent tries to take the claim, and how often we check for a successor.
const LOOK: Duration = Duration::from_millis(200);

/// Whether another agent has taken the claim that was ours.
fn has_successor() -> bool {
    (0..4).any(|_| {
        thread::sleep(LOOK);
        matches!(host::Claim::take(), Ok(None))
    })
}

/// Prevents other agents from programming this host.
enum Mine {
    Claimed(#[allow(dead_code, reason = "held until it is dropped")] host::Claim),
    /// No permission to take a claim, nor to program the kernel. Two such agents cannot bind the same sockets.
    Unclaimed,
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
        warn!(
            "--traffic-metrics: {} mode cannot count the traffic of Services; {} mode can",
            settings.mode.name,
            settings.modes.counting("and"),
        );
    }
    Ok(dataplane)
}

/// Objects that an earlier run with accelerated sockets pinned would stay in force without updates.
fn remove_stale_pins(settings: &Settings) {
    let sockets = &settings.config.sockets;
    if wrapper::is_on(sockets) {
        return;
    }
    match wrapper::remove(&sockets.pins) {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => {
            info!("removed what an earlier run with --accelerate-sockets left: {}", removed.join(", "))
        }
        Err(error) => warn!(
            "cannot remove what an earlier run with --accelerate-sockets left, so connections may go to endpoints that are gone: \
             {error}"
        ),
    }
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
            about: String::new(),
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

/// Applies the fields of a changed configuration file that need no restart.
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
    let place = ferroxy_platform::sandbox::locate(path.as_ref());
    let follower = reload::spawn(place, flags.clone(), current.clone(), move |reload| {
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

/// Waits until no other agent runs in this network namespace: two would undo each other's work. `None` if it has to stop.
fn claim(inputs: &agent::Receiver, lifetime: Lifetime) -> anyhow::Result<Option<Mine>> {
    let mut warned = false;
    loop {
        match host::Claim::take() {
            Ok(Some(claim)) => return Ok(Some(Mine::Claimed(claim))),
            Ok(None) => {}
            Err(error)
                if lifetime == Lifetime::EndsWithProcess
                    && error.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                return Ok(Some(Mine::Unclaimed));
            }
            Err(error) => {
                return Err(error).context("cannot check whether another Ferroxy agent runs here");
            }
        }
        if !warned {
            warn!("another Ferroxy agent runs in this network namespace: waiting for it to end");
            warned = true;
        }
        if let Ok(agent::Input::Stop(why)) = inputs.recv_timeout(LOOK) {
            info!("{why} while waiting: nothing was changed");
            return Ok(None);
        }
    }
}
