//! Why a Service works or does not work on this node: data for people, made from the steps of `resolve`. It prints
//! nothing.

mod endpoints;
mod findings;
mod similar;
pub use similar::distance;

use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::facts::{Facts, Service};
use crate::intent::{Frontend, FrontendKind, PortIntent, Route};
use crate::name::{Family, Protocol, ServiceName};
use crate::probe::{Down, Probe};
use crate::resolve::{self, NotOurs, ResolvedPort, conflicts, ownership};

#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub service: ServiceName,
    pub standing: Standing,
    /// How its endpoints are probed.
    pub probe: Option<Arc<Probe>>,
    /// One for each (port, family) that has a frontend, in the order of the Intent.
    pub ports: Vec<PortExplanation>,
    /// Problems, most important first.
    pub findings: Vec<Finding>,
    /// Effects that may surprise but follow from the objects as written: no problems. Each says how to change the
    /// effect.
    pub notes: Vec<Finding>,
    /// The Diagnostics that logs and Events have, too, except those that a finding already describes.
    pub diagnostics: Vec<Diagnostic>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    Ours,
    NotOurs(NotOurs),
    /// The Service does not exist; the user may mean one of these.
    Unknown {
        elsewhere: Vec<ServiceName>,
        similar: Vec<ServiceName>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct PortExplanation {
    pub name: Arc<str>,
    pub family: Family,
    pub protocol: Protocol,
    pub port: u16,
    /// As in the Service; the EndpointSlice has the real port of each pod.
    pub target_port: String,
    pub affinity: Option<u32>,
    pub frontends: Vec<FrontendExplanation>,
    pub endpoints: Vec<EndpointExplanation>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FrontendExplanation {
    pub frontend: Frontend,
    /// What happens to a new connection, as a sentence.
    pub words: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointExplanation {
    /// `10.244.1.5:8080`; only the address, or the field, if there is no port or no valid address.
    pub address: String,
    /// The pod; empty when unknown.
    pub target: String,
    pub node: Option<String>,
    pub zone: Option<String>,
    pub is_local: bool,
    /// `namespace/name` of the slice it is in.
    pub slice: String,
    /// Gets traffic under the policy Cluster.
    pub used_for_cluster: bool,
    /// Gets traffic under the policy Local.
    pub used_for_local: bool,
    /// Why it gets no traffic at all; `None` when it gets some.
    pub reason: Option<String>,
    /// Set if the endpoint fails its probes; it may be used nevertheless.
    pub down: Option<Down>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// What is wrong, or unexpected, and the effect on traffic.
    pub problem: String,
    /// What to do next.
    pub fix: String,
}

impl Explanation {
    /// There is no problem. There may be notes.
    pub fn is_fine(&self) -> bool {
        self.findings.is_empty() && self.diagnostics.is_empty()
    }
}

/// As much of an explanation as fits into a line of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Brief {
    pub standing: Standing,
    pub is_probed: bool,
    /// How many findings and Diagnostics there are.
    pub problems: usize,
    /// The most important one.
    pub problem: Option<String>,
}

/// Like [`explain`], but does not look at single endpoints.
pub fn brief(facts: &Facts, name: &ServiceName) -> Brief {
    let Explanation { standing, probe, findings, diagnostics, .. } = assess(facts, name, false);
    let problems = findings.len() + diagnostics.len();
    let finding = findings.into_iter().next().map(|finding| finding.problem);
    let problem = finding.or_else(|| diagnostics.first().map(ToString::to_string));
    Brief { standing, is_probed: probe.is_some(), problems, problem }
}

pub fn explain(facts: &Facts, name: &ServiceName) -> Explanation {
    assess(facts, name, true)
}

fn assess(facts: &Facts, name: &ServiceName, with_ports: bool) -> Explanation {
    let mut explanation = Explanation {
        service: name.clone(),
        standing: Standing::Ours,
        probe: None,
        ports: Vec::new(),
        findings: Vec::new(),
        notes: Vec::new(),
        diagnostics: resolve::service(facts, name).diagnostics,
    };
    let service = facts.service(name);
    let Some(service) = &service else {
        let (elsewhere, similar) = similar::services(facts, name);
        explanation.findings = findings::of_unknown(facts, name, &elsewhere, &similar);
        explanation.standing = Standing::Unknown { elsewhere, similar };
        return explanation;
    };
    if let Err(not_ours) = ownership::check(service) {
        let found = vec![findings::of_not_ours(name, &not_ours)];
        match not_ours {
            // The owner of the Service expects it to work.
            NotOurs::NoClusterIp => explanation.findings = found,
            NotOurs::OtherProxy(_) | NotOurs::ExternalName | NotOurs::Headless => explanation.notes = found,
        }
        explanation.standing = Standing::NotOurs(not_ours);
        return explanation;
    }
    explanation.probe = service.probe.clone().filter(|_| facts.policy().probes);
    let settled = conflicts::settle(facts, service);
    let ports = resolve::ports(facts, service, &settled);
    explanation.findings = findings::of_service(facts, service, &settled, &ports);
    explanation.notes = findings::notes(facts, service, &ports);
    // A lost frontend is a finding.
    let told: Vec<Diagnostic> = settled.lost_diagnostics(service).take(resolve::MOST_OF_A_RULE).collect();
    explanation.diagnostics.retain(|diagnostic| !told.contains(diagnostic));
    if with_ports {
        explanation.ports = ports.iter().map(|port| explain_port(facts, service, port)).collect();
    }
    explanation
}

fn explain_port(facts: &Facts, service: &Service, port: &ResolvedPort<'_>) -> PortExplanation {
    let spec = &service.ports[port.port];
    let frontend = |frontend: &Frontend| FrontendExplanation {
        frontend: frontend.clone(),
        words: words(&port.intent, frontend),
    };
    PortExplanation {
        name: spec.name.clone(),
        family: port.intent.family,
        protocol: spec.protocol,
        port: spec.port,
        target_port: match spec.target_port.is_empty() {
            // The API's default.
            true => spec.port.to_string(),
            false => spec.target_port.to_string(),
        },
        affinity: port.intent.affinity,
        frontends: port.intent.frontends.iter().map(frontend).collect(),
        endpoints: endpoints::explain(facts, service, port),
    }
}

fn words(port: &PortIntent, frontend: &Frontend) -> String {
    let count = |endpoints: &[_]| match endpoints.len() {
        1 => "1 endpoint".to_owned(),
        many => format!("{many} endpoints"),
    };
    let (cluster, local) = (count(&port.cluster), count(&port.local));
    let route = match frontend.route {
        Route::Reject => "rejected: no usable endpoint".to_owned(),
        Route::Drop => "dropped: the traffic policy is Local and this node has no endpoint".to_owned(),
        Route::Cluster => format!("to {cluster}"),
        Route::Local => format!("to {local} on this node"),
        Route::ExternalCluster => format!("to {cluster}, masqueraded"),
        Route::ExternalLocal if port.local.is_empty() => {
            format!(
                "external traffic: dropped, no endpoint on this node; from pods and this node: to {cluster}"
            )
        }
        Route::ExternalLocal => {
            format!(
                "external traffic: to {local} on this node, client IP preserved; from pods and this node: to {cluster}"
            )
        }
    };
    match &frontend.allowed_sources {
        Some(ranges) if ranges.is_empty() => "dropped: loadBalancerSourceRanges allows no source".to_owned(),
        Some(ranges) => {
            let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            format!("only from {}: {route}", ranges.join(", "))
        }
        None => route,
    }
}

/// The kinds of these frontends for a sentence: `cluster IP, node port`.
fn frontend_kinds(port: &PortIntent, wanted: impl Fn(&Frontend) -> bool) -> String {
    let mut kinds: Vec<FrontendKind> = port.frontends.iter().filter(|f| wanted(f)).map(|f| f.kind).collect();
    kinds.dedup();
    let words: Vec<&str> = kinds.into_iter().map(FrontendKind::words).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests;
