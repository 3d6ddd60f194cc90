//! `ferroxy cleanup`: removes everything of ours, in every mode, and whatever kube-proxy left; or, on the way back to kube-proxy,
//! only ours, as soon as its rules are there.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use ferroxy_core::Family;
use ferroxy_dataplane::capability::leftovers::{Established, InForce, Leftovers};
use ferroxy_dataplane::{Dataplane, FailureKind, Mode, Opening, Platform, Settings};
use ferroxy_platform::signals;

use super::Answer;
use crate::modes::Modes;
use crate::{host, log, panic, wrapper};

#[derive(Debug, Args)]
pub struct Cleanup {
    /// Remove only Ferroxy's rules and keep kube-proxy's, for nodes on which kube-proxy runs
    #[arg(long)]
    only_ours: bool,

    /// Wait until kube-proxy has written its rules, then remove only Ferroxy's: a rollback without interruption
    #[arg(long)]
    when_replaced: bool,

    /// Do not exit afterwards, but wait for SIGTERM: for containers that would be restarted
    #[arg(long, requires = "when_replaced")]
    stay: bool,

    /// Directory of pinned BPF programs and maps, as --sockets-pins of `run`
    #[arg(long, value_name = "DIRECTORY", default_value = wrapper::PINS)]
    sockets_pins: PathBuf,
}

impl Cleanup {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        if !self.when_replaced {
            return cleanup(modes, self.only_ours, &self.sockets_pins);
        }
        // PID 1 of a container receives SIGTERM only if it handles the signal.
        let (sender, stop) = mpsc::channel();
        let watched = signals::watch(move |reason| match reason {
            Ok(_) => sender.send(()).unwrap_or_default(),
            Err(error) => panic::ended("the thread that waits for signals", &error),
        });
        watched.context("cannot handle signals")?;
        // Reports a running agent now and not after the wait. Drops the claim, so that an agent may start during the wait.
        claim().map(drop)?;
        wait_until_replaced(&mut open_all(modes)?, &stop)?;
        let answer = cleanup(modes, true, &self.sockets_pins)?;
        if self.stay {
            log::print_error("done; waiting for SIGTERM");
            // An error says that the signal handler is gone: SIGTERM cannot arrive any more.
            stop.recv().ok();
        }
        Ok(answer)
    }
}

/// How often to check for kube-proxy's rules.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until kube-proxy's rules are there: until then, ours serve.
fn wait_until_replaced(opened: &mut Opened, stop: &Receiver<()>) -> anyhow::Result<()> {
    let mut reported = BTreeSet::new();
    loop {
        // Two modes may use the same rules.
        let mut alone = BTreeSet::new();
        for takes_over in opened.iter_mut().filter_map(|(_, dataplane)| dataplane.takes_over()) {
            alone.extend(takes_over.not_replaced()?);
        }
        if alone.is_empty() {
            return Ok(());
        }
        if reported != alone {
            let families: Vec<String> = alone.iter().map(Family::to_string).collect();
            log::print_error(&format!(
                "waiting for the rules of kube-proxy for {}; Ferroxy's rules stay until then",
                families.join(" and ")
            ));
            reported = alone;
        }
        if stop.recv_timeout(LOOK).is_ok() {
            bail!("stopped before kube-proxy had written its rules: Ferroxy's rules stay in force");
        }
    }
}

type Opened = Vec<(&'static Mode, Box<dyn Dataplane>)>;

fn open_all(modes: Modes) -> anyhow::Result<Opened> {
    let mut opened = Vec::new();
    for mode in modes.for_platform(Platform::HERE) {
        opened.extend(open(mode)?.map(|dataplane| (mode, dataplane)));
    }
    Ok(opened)
}

fn claim() -> anyhow::Result<host::Claim> {
    let claim = host::Claim::take().context("cannot check whether a Ferroxy agent runs here")?;
    claim
        .context("a Ferroxy agent runs in this network namespace and would restore everything; stop it first")
}

/// Removes everything, in every mode of this platform. Needs the claim, because a running agent would restore everything.
pub fn cleanup(modes: Modes, only_ours: bool, pins: &Path) -> anyhow::Result<Answer> {
    let _claim = claim()?;
    let mut opened = open_all(modes)?;
    // First of all: then packet rules, which are removed later, translate these connections.
    let mut removed = wrapper::remove(pins).map_err(anyhow::Error::msg)?;
    let mut left = Leftovers::default();
    let mut again = Vec::new();
    for (mode, dataplane) in opened.iter_mut().filter(|(mode, _)| !only_ours || !mode.shares_names) {
        match dataplane.cleanup() {
            Ok(all) => removed.extend(all.into_iter().map(|it| format!("{it} ({} mode)", mode.name))),
            // Rules of other programs may jump to chains with these names. Removing leftovers finds out which chains can go.
            Err(_) if mode.shares_names => again.push(mode.name),
            Err(error) => return Err(error.into()),
        }
    }
    for (_, dataplane) in opened.iter_mut().filter(|_| !only_ours) {
        if let Some(takes_over) = dataplane.takes_over() {
            merge(&mut left, takes_over.remove_leftovers(InForce::No, Established::End));
        }
    }
    for (mode, dataplane) in opened.iter_mut().filter(|(mode, _)| again.contains(&mode.name)) {
        match dataplane.cleanup() {
            Ok(_) => {}
            // The kernel refuses to remove objects in use by other programs. They stay and are listed; this line has the error.
            Err(error) if error.kind == FailureKind::Other && !left.kept.is_empty() => {
                log::print_error(&format!("ferroxy: {} mode: {error}", mode.name));
            }
            Err(error) => left.failed.push(format!("{} mode: {error}", mode.name)),
        }
    }
    report(&removed, &left)
}

/// `None` if the host lacks what the mode needs: then no object is left that only this mode can remove.
fn open(mode: &Mode) -> anyhow::Result<Option<Box<dyn Dataplane>>> {
    match (mode.open)(&Opening { families: mode.families, settings: &Settings::default() }) {
        Ok(dataplane) => Ok(Some(dataplane)),
        Err(error) if error.kind == FailureKind::Unsupported => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Several modes look for the same leftovers. A later mode may remove what an earlier one had to keep, so the last result counts.
fn merge(all: &mut Leftovers, found: Leftovers) {
    all.removed.extend(found.removed);
    all.own.extend(found.own);
    (all.kept, all.failed, all.connections) = (found.kept, found.failed, found.connections);
}

fn report(removed: &[String], left: &Leftovers) -> anyhow::Result<Answer> {
    let mut lines = String::new();
    for it in removed.iter().chain(&left.own) {
        lines.push_str(&format!("removed: {it}\n"));
    }
    for it in &left.removed {
        lines.push_str(&format!("removed rules of kube-proxy: {it}\n"));
    }
    for it in &left.kept {
        lines.push_str(&format!("kept, because another program uses it: {it}\n"));
    }
    if removed.is_empty() && *left == Leftovers::default() {
        lines.push_str("nothing to remove\n");
    }
    // Leftovers are reported even if the reader of the output is gone.
    let printed = io::stdout().write_all(lines.as_bytes());
    if !left.failed.is_empty() {
        bail!("cannot remove everything: {}", left.failed.join("; "));
    }
    printed?;
    Ok(Answer::Yes)
}
