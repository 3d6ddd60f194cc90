//! Problems of a Service: what is wrong, the effect on traffic, and what to do next. Also notes: effects that follow
//! from the objects as written, so there is nothing to repair.

use std::collections::BTreeSet;

use super::endpoints::port_words;
use super::{Finding, frontend_kinds};
use crate::facts::{Facts, Service, ServiceKind, Slice};
use crate::intent::Route;
use crate::name::{Family, ServiceName};
use crate::resolve::candidates::Candidate;
use crate::resolve::conflicts::{OwnedAs, Settled};
use crate::resolve::probes::Judge;
use crate::resolve::topology::Preference;
use crate::resolve::{NotOurs, ResolvedPort};

fn finding(problem: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { problem: problem.into(), fix: fix.into() }
}

pub(super) fn of_unknown(
    facts: &Facts,
    name: &ServiceName,
    elsewhere: &[ServiceName],
    similar: &[ServiceName],
) -> Vec<Finding> {
    let list = |names: &[ServiceName]| names.iter().map(ServiceName::as_str).collect::<Vec<_>>().join(", ");
    let fix = match (elsewhere, similar) {
        ([], []) => "Check the name and the namespace, or create the Service.".to_owned(),
        ([], similar) => format!("Did you mean {}?", list(similar)),
        (elsewhere, _) => {
            format!("A Service with this name exists in another namespace: {}.", list(elsewhere))
        }
    };
    let mut findings = vec![finding(format!("Service {name} does not exist."), fix)];
    if facts.slices_of(name).next().is_some() {
        findings.push(finding(
            "EndpointSlices for this Service exist, but the Service does not.",
            "Create the Service, or delete the stale EndpointSlices.",
        ));
    }
    findings
}

pub(super) fn of_not_ours(name: &ServiceName, not_ours: &NotOurs) -> Finding {
    let fix = match not_ours {
        NotOurs::OtherProxy(_) => "Remove the label if this proxy should handle the Service.",
        NotOurs::ExternalName => "If it does not work, check DNS: no proxy is involved.",
        NotOurs::Headless => "If it does not work, check DNS and the pods: no proxy is involved.",
        NotOurs::NoClusterIp => "Wait until the API server assigns one, or correct spec.clusterIPs.",
    };
    finding(format!("{name} is not handled: {}.", not_ours.words()), fix)
}

pub(super) fn of_service(
    facts: &Facts,
    service: &Service,
    settled: &Settled<'_>,
    ports: &[ResolvedPort<'_>],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if service.ports.is_empty() {
        findings.push(finding(
            "The Service has no usable port, so it receives no traffic.",
            "Correct spec.ports; the diagnostics name the invalid values.",
        ));
    }
    findings.extend(lost_frontends(service, settled));
    match facts.slices_of(&service.name).next() {
        None => findings.push(finding(
            "The Service has no EndpointSlice: connections to it are rejected.",
            "Check that spec.selector matches the labels of running pods. A Service without a selector needs EndpointSlices that you create.",
        )),
        Some(_) => findings.extend(ports.iter().flat_map(|port| of_port(facts, service, port))),
    }
    if !facts.policy().external_ips && !service.external_ips.is_empty() {
        findings.push(finding(
            "spec.externalIPs is ignored: the feature gate AllowServiceExternalIPs is off on this node.",
            "Enable the feature gate, or use a load balancer.",
        ));
    }
    each_once(findings)
}

/// Effects that are by design:
/// - externalTrafficPolicy Local means that a node without an endpoint serves no client: load balancers send no traffic there.
/// - Hints that cannot be used are ignored by rule: all endpoints serve.
/// - A controller assigns the load-balancer IP. The status may have only a host name, which nodes do not program.
///   Whether it works does not depend on this node.
/// - ipMode Proxy says that nodes have nothing to do.
pub(super) fn notes(facts: &Facts, service: &Service, ports: &[ResolvedPort<'_>]) -> Vec<Finding> {
    let mut notes = Vec::new();
    for port in ports.iter().filter(|port| !port.candidates.usable.is_empty()) {
        let number = service.ports[port.port].port;
        notes.extend(nothing_local_for_clients(port, number));
        notes.extend(ignored_hints(facts, port, number));
    }
    notes.extend(of_load_balancer(service));
    each_once(notes)
}

fn each_once(mut findings: Vec<Finding>) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    findings.retain(|finding| seen.insert(finding.clone()));
    findings
}

/// The most lost frontends that are listed one by one.
const MOST_LOST: usize = 20;

fn lost_frontends(service: &Service, settled: &Settled<'_>) -> impl Iterator<Item = Finding> {
    let beyond = settled.lost.len().saturating_sub(MOST_LOST);
    let more = (beyond > 0).then(|| {
        finding(format!("{beyond} more frontends belong to other Services."), "Correct the ones above first.")
    });
    let first = settled.lost.iter().take(MOST_LOST).map(|lost| {
        let problem = format!("{}: {}.", capitalised(&lost.effect(service)), lost.reason(service));
        let field = lost.wanted.field.path();
        let fix = match lost.owned_as {
            OwnedAs::Same => {
                format!("Change {field} in this Service, or release it in the Service that owns it.")
            }
            OwnedAs::ClusterIp => {
                format!("Change {field} in this Service: a cluster IP takes precedence over it.")
            }
            OwnedAs::NodePort => {
                format!("Change {field} or the port in this Service: node ports take precedence.")
            }
        };
        finding(problem, fix)
    });
    first.chain(more)
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn of_port(facts: &Facts, service: &Service, port: &ResolvedPort<'_>) -> Vec<Finding> {
    let family = port.intent.family;
    let slices: Vec<Slice<'_>> =
        facts.slices_of(&service.name).filter(|slice| slice.family() == family).collect();
    if port.candidates.usable.is_empty() {
        return vec![no_candidates(service, port, family, &slices)];
    }
    let spec = &service.ports[port.port];
    let mut findings = Vec::new();
    if !port.selection.somewhere {
        findings.push(finding(
            format!("No {family} endpoint of port {} is ready: connections to it are rejected.", spec.port),
            "Check the readiness probes of the pods: `kubectl get pods`, `kubectl describe pod`.",
        ));
    } else if !port.candidates.usable.iter().any(|candidate| candidate.conditions.ready()) {
        findings.push(finding(
            format!(
                "No {family} endpoint of port {} is ready; traffic goes to terminating endpoints that still serve.",
                spec.port
            ),
            "Check why no new pod is ready: `kubectl get pods`, `kubectl describe pod`.",
        ));
    }
    findings.extend(failing_probes(facts, service, port));
    findings.extend(nothing_local_for_pods(port, spec.port));
    findings
}

fn no_candidates(
    service: &Service,
    port: &ResolvedPort<'_>,
    family: Family,
    slices: &[Slice<'_>],
) -> Finding {
    let spec = &service.ports[port.port];
    if slices.is_empty() {
        return finding(
            format!(
                "The Service has an {family} address, but no EndpointSlice with {family} addresses: connections to it are rejected."
            ),
            format!(
                "Check that the pods have {family} addresses. If not, remove {family} from spec.ipFamilies."
            ),
        );
    }
    if slices.iter().all(|slice| slice.is_empty()) {
        return finding(
            "The EndpointSlices of the Service have no usable endpoint: connections to it are rejected.",
            "Check that spec.selector matches the labels of running pods, and that the addresses in the EndpointSlices are valid.",
        );
    }
    let others = other_ports(slices);
    let own = port_words(&spec.name, spec.protocol.lowercase());
    finding(
        format!(
            "The Service has a {own}, but its EndpointSlices only have: {others}. Connections to the port are rejected."
        ),
        match spec.target_port.is_empty() || spec.target_port.parse::<u16>().is_ok() {
            true => "Use the same port names in the Service and in its EndpointSlices.".to_owned(),
            false => format!("Check that a container of the pods has a port named `{}`.", spec.target_port),
        },
    )
}

/// The ports that the slices have, for a sentence. Slices can have thousands, so not all are listed.
fn other_ports(slices: &[Slice<'_>]) -> String {
    const LISTED: usize = 10;
    const LOOKED_AT: usize = 1_000;
    let ports = slices.iter().flat_map(|slice| slice.ports()).take(LOOKED_AT);
    let names: BTreeSet<String> =
        ports.map(|port| port_words(&port.name, port.protocol.lowercase())).collect();
    let listed: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    match names.len() {
        0 => "no port at all".to_owned(),
        1..=LISTED => listed.join(", "),
        _ => format!("{}, and others", listed.join(", ")),
    }
}

/// internalTrafficPolicy Local on a node without an endpoint: pods of this node reach nothing.
fn nothing_local_for_pods(port: &ResolvedPort<'_>, number: u16) -> Option<Finding> {
    let kinds = frontend_kinds(&port.intent, |frontend| frontend.route == Route::Drop);
    (!kinds.is_empty()).then(|| {
        finding(
            format!("Connections to port {number} ({kinds}) are dropped on this node: internalTrafficPolicy is Local and this node has no endpoint."),
            "Run a pod of the Service on this node, or set internalTrafficPolicy: Cluster.",
        )
    })
}

/// externalTrafficPolicy Local on a node without an endpoint: load balancers send it no traffic.
fn nothing_local_for_clients(port: &ResolvedPort<'_>, number: u16) -> Option<Finding> {
    let kinds = frontend_kinds(&port.intent, |frontend| frontend.route == Route::ExternalLocal);
    (!kinds.is_empty() && port.intent.local.is_empty()).then(|| {
        finding(
            format!("External traffic to port {number} ({kinds}) is dropped on this node: externalTrafficPolicy is Local and this node has no endpoint."),
            "Send traffic to nodes with an endpoint (health-check node ports show which), or set externalTrafficPolicy: Cluster.",
        )
    })
}

fn failing_probes(facts: &Facts, service: &Service, port: &ResolvedPort<'_>) -> Option<Finding> {
    let spec = &service.ports[port.port];
    let judge = Judge::new(facts, service, spec.protocol)?;
    let is_down = |candidate: &&Candidate<'_>| judge.down(&candidate.endpoint).is_some();
    let down = port.candidates.usable.iter().filter(is_down).count();
    let (of, all) =
        (format!("{} endpoints of port {}", port.intent.family, spec.port), port.judged.targets.len());
    if down == 0 {
        None
    } else if port.judged.cluster_ignored || port.judged.local_ignored {
        Some(finding(
            format!("{down} of {all} {of} fail their probe. That is more than half, so they stay in use."),
            "Check the probe itself: its path and port, NetworkPolicies that keep this node out, TLS.",
        ))
    } else {
        Some(finding(
            format!("{down} of {all} {of} fail their probe and get no new connections."),
            "Check these pods: `kubectl describe pod`, `kubectl logs`. They return when their probes succeed.",
        ))
    }
}

/// Hints exist, but are ignored.
fn ignored_hints(facts: &Facts, port: &ResolvedPort<'_>, number: u16) -> Option<Finding> {
    let ready = || port.candidates.usable.iter().filter(|candidate| candidate.conditions.ready());
    let hinted = ready().any(|candidate| !candidate.place.hint_zones.is_empty());
    let unhinted = ready().find(|candidate| candidate.place.hint_zones.is_empty());
    let used = port.selection.preference != Preference::Anywhere || port.intent.cluster.is_empty();
    // Where a mode uses no hints at all a Diagnostic says so.
    if !hinted || used || !facts.policy().topology_hints {
        return None;
    }
    let why = match (unhinted, facts.zone()) {
        (Some(candidate), _) => format!("endpoint {} has none", candidate.address()),
        (None, None) => "this node has no zone".to_owned(),
        (None, Some(zone)) => format!("no hint is for this node's zone, {zone}"),
    };
    Some(finding(
        format!(
            "The zone hints of port {number} are ignored: {why}. Traffic goes to endpoints in all zones."
        ),
        "Hints take effect when every ready endpoint has one and this node's zone is among them; check the EndpointSlices.",
    ))
}

fn of_load_balancer(service: &Service) -> Vec<Finding> {
    let mut findings = Vec::new();
    if service.kind == ServiceKind::LoadBalancer && service.load_balancer_ips.is_empty() {
        findings.push(finding(
            "No load-balancer IP is assigned: only the other addresses of the Service work.",
            "Wait for the load-balancer controller; `kubectl describe service` shows its events. A host name in the status is not programmed on nodes.",
        ));
    }
    for listed in service.load_balancer_ips.iter().filter(|listed| listed.value.via_proxy) {
        findings.push(finding(
            format!("The load-balancer IP {} is not programmed on the node: its ipMode is Proxy.", listed.value.ip),
            "No action needed: traffic goes to the load balancer and returns through a node port or a pod address.",
        ));
    }
    findings
}
