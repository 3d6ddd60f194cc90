//! `ferroxy explain NAMESPACE/SERVICE`: what a Service does on this node, and why it does not work.

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use ferroxy_core::explain::{Explanation, Finding, PortExplanation, Standing, explain};
use ferroxy_core::{Diagnostic, Intent, ServiceIntent, ServiceName, resolve};
use ferroxy_dataplane::{Dataplane, Failure, FailureKind, Programmed};

use super::input::{Recorded, Settings};
use super::look::Look;
use super::{Answer, Output, sockets, verdicts};
use crate::modes::Modes;
use crate::output::{Paint, Table};
use crate::serve::probes::rfc3339;
use crate::view::explanation::{OnHost, frontend_address, retried, to_json};

#[derive(Debug, Args)]
pub struct Explain {
    /// The Service; without a namespace, `default` is meant
    #[arg(value_name = "NAMESPACE/SERVICE")]
    service: String,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    input: Look,
}

impl Explain {
    pub fn run(self, modes: Modes) -> anyhow::Result<Answer> {
        let name = ServiceName::parse(&self.service)
            .with_context(|| format!("`{}` is not of the form NAMESPACE/SERVICE", self.service))?;
        let (settings, mut cluster) = self.input.look(modes)?;
        let verdicts = verdicts::learn(&mut cluster.facts, &settings);
        let verdicts = verdicts.filter(|_| cluster.facts.probed(&name).is_some());
        let mut explanation = explain(&cluster.facts, &name);
        let (intent, _) = resolve::all(&cluster.facts);
        let kernel = intent.services.get(&name).map(|service| in_kernel(&intent, service, &settings));
        explanation.findings.extend(kernel.as_ref().and_then(|it| it.problem.clone()));
        let shortcomings = kernel.as_ref().and_then(|it| it.shortcomings.as_deref());
        let traits = intent.services.get(&name).map(|service| {
            // Renders only this Service: a cluster of 10,000 Services takes long to render.
            let services = [(name.clone(), Arc::clone(service))].into();
            let alone = Intent { node: intent.node.clone(), services };
            settings.ruleset(&alone, &cluster.facts).traits_of(service, shortcomings)
        });
        let mut traits = traits.unwrap_or_default();
        if let Some(words) = sockets::in_force(&name, &settings).filter(|_| !traits.is_empty()) {
            traits.push(("sockets in force", words));
        }
        let on_host = OnHost { kernel: kernel.map(|it| it.words), traits, verdicts };
        self.output
            .print(|| text(&explanation, &on_host, Paint::stdout()), || to_json(&explanation, &on_host))?;
        Ok(if explanation.is_fine() { Answer::Yes } else { Answer::No })
    }
}

/// How much of the Service this machine has in force.
#[derive(Debug)]
pub(super) struct InKernel {
    pub(super) words: String,
    /// The finding, if a check showed that something is missing.
    problem: Option<Finding>,
    /// Features of the Service that the dataplane does not support here; `None` if that is not known.
    shortcomings: Option<Vec<Diagnostic>>,
}

pub(super) fn in_kernel(intent: &Intent, service: &Arc<ServiceIntent>, settings: &Settings) -> InKernel {
    if let Some(recorded) = &settings.recorded {
        let (words, problem) = when_recorded(recorded, service);
        return InKernel { words, problem, shortcomings: None };
    }
    let (seen, shortcomings) = match settings.open() {
        Ok(mut dataplane) => look(&mut *dataplane, intent, service),
        Err(error) => (Err(error), None),
    };
    let (words, problem) = in_words(seen, settings.mode.name);
    InKernel { words, problem, shortcomings }
}

/// The state of the Service in a bundle.
fn when_recorded(recorded: &Recorded, service: &ServiceIntent) -> (String, Option<Finding>) {
    let Recorded { at, refused, is_equal, .. } = recorded;
    match (refused.get(service.name.as_str()), is_equal) {
        (Some(reason), _) => {
            let problem = format!("The kernel refused the Service: {reason}.");
            (format!("no, at {at}"), Some(Finding { problem, fix: retried(&service.name) }))
        }
        (None, Ok(true)) => (format!("yes, at {at}: the kernel had exactly what it should have"), None),
        (None, Ok(false)) => {
            (format!("the kernel differed at {at}: `ferroxy diff` with the bundle prints where"), None)
        }
        (None, Err(why)) => (format!("not checked at {at}: {why}"), None),
    }
}

type Seen = Result<Option<Programmed>, Failure>;

/// `Ok(None)`: the mode keeps no state that outlives its process.
/// A dataplane knows its shortcomings on this host only after it has read the kernel.
fn look(
    dataplane: &mut dyn Dataplane,
    intent: &Intent,
    service: &Arc<ServiceIntent>,
) -> (Seen, Option<Vec<Diagnostic>>) {
    let seen = dataplane.persists().map(|it| it.programmed(intent, service)).transpose();
    let has_looked = matches!(seen, Ok(Some(_)));
    (seen, has_looked.then(|| dataplane.shortcomings(service)))
}

fn in_words(seen: Seen, mode: &str) -> (String, Option<Finding>) {
    let fine = |words: String| (words, None);
    let wrong = |words: String, problem: &str, fix: &str| {
        (words, Some(Finding { problem: problem.into(), fix: fix.into() }))
    };
    match seen {
        Ok(None) => fine(format!("not checked: {mode} mode keeps no state on the host")),
        Ok(Some(Programmed::Nothing)) => wrong(
            "no".into(),
            "Nothing of Ferroxy is in this kernel: no Service works here.",
            "Check that `ferroxy run` runs in this network namespace; its log says what it waits for.",
        ),
        Ok(Some(Programmed::Parts { right, wanted })) if right == wanted => {
            fine(format!("yes, all {wanted} objects"))
        }
        Ok(Some(Programmed::Parts { right, wanted })) => wrong(
            format!("incomplete: {right} of {wanted} objects are in the kernel"),
            "The kernel's rules do not match the Service.",
            "`ferroxy diff` shows what is missing; if `ferroxy run` runs here, its log says why.",
        ),
        Err(error) => fine(match error.kind {
            FailureKind::NotPermitted => "not checked: needs the privileges of `ferroxy run`".into(),
            FailureKind::Unsupported => format!("not checked: {error}"),
            FailureKind::Other | FailureKind::Drift => format!("unknown: {error}"),
        }),
    }
}

pub(super) fn text(explanation: &Explanation, on_host: &OnHost, paint: Paint) -> String {
    let mut text = format!("{} {}\n", paint.strong("Service"), explanation.service);
    match &explanation.standing {
        Standing::Ours => {}
        Standing::NotOurs(why) => text.push_str(&format!("  not handled here: {}\n", why.words())),
        Standing::Unknown { .. } => text.push_str("  there is no such Service\n"),
    }
    if let Some(kernel) = &on_host.kernel {
        text.push_str(&format!("  programmed in this kernel: {kernel}\n"));
    }
    for (name, value) in &on_host.traits {
        text.push_str(&format!("  {name}: {value}\n"));
    }
    if let Some(probe) = &explanation.probe {
        text.push_str(&format!("  probe: {probe}\n"));
    }
    if let Some(reason) = &on_host.verdicts {
        text.push_str(&format!("  results of the probe are not known: {reason}\n"));
    }
    for port in &explanation.ports {
        text.push_str(&port_text(port, paint));
    }
    if explanation.is_fine() {
        text.push_str(&format!("\n{}\n", paint.good("no problem found on this node")));
    }
    for finding in &explanation.findings {
        text.push_str(&finding_text(&paint.bad("problem"), finding, paint));
    }
    for note in &explanation.notes {
        text.push_str(&finding_text(&paint.strong("note   "), note, paint));
    }
    if !explanation.diagnostics.is_empty() {
        text.push_str(&format!("\n{}\n", paint.strong("invalid objects")));
        for diagnostic in &explanation.diagnostics {
            text.push_str(&format!("  {diagnostic}\n"));
        }
    }
    text
}

fn finding_text(title: &str, finding: &Finding, paint: Paint) -> String {
    let mut text = format!("\n{title} {}\n", finding.problem);
    if !finding.fix.is_empty() {
        text.push_str(&format!("{} {}\n", paint.doubtful("try    "), finding.fix));
    }
    text
}

fn port_text(port: &PortExplanation, paint: Paint) -> String {
    let name = if port.name.is_empty() { String::new() } else { format!(" ({})", port.name) };
    let affinity = port.affinity.map(|seconds| format!(", session affinity {seconds} s")).unwrap_or_default();
    let mut text = format!(
        "\n{} {}/{}{name}, {}, target {}{affinity}\n",
        paint.strong("port"),
        port.port,
        port.protocol,
        port.family,
        port.target_port,
    );
    let mut frontends = Table::indented(2);
    for frontend in &port.frontends {
        frontends.row([
            frontend.frontend.kind.words().to_owned(),
            frontend_address(&frontend.frontend),
            frontend.words.clone(),
        ]);
    }
    let mut endpoints = Table::indented(2);
    for endpoint in &port.endpoints {
        let place = match (&endpoint.node, endpoint.is_local) {
            (_, true) => "on this node".to_owned(),
            (Some(node), _) => format!("on {node}"),
            (None, _) => "on no known node".to_owned(),
        };
        let used = match (endpoint.used_for_cluster, endpoint.used_for_local) {
            (true, true) | (true, false) => paint.good("used"),
            (false, true) => paint.good("used for policy Local"),
            (false, false) => paint.doubtful("not used"),
        };
        let reason = match (&endpoint.reason, endpoint.down) {
            (None, None) => String::new(),
            (Some(reason), None) => reason.clone(),
            (Some(reason), Some(down)) => format!("{reason}, since {}", rfc3339(down.since)),
            (None, Some(down)) => format!("fails its probe: {}, since {}", down.fault, rfc3339(down.since)),
        };
        endpoints.row([endpoint.address.clone(), endpoint.target.clone(), place, used, reason]);
    }
    text.push_str(&format!("{frontends}"));
    if port.endpoints.is_empty() {
        text.push_str("  no endpoints\n");
    }
    text.push_str(&format!("{endpoints}"));
    text
}
