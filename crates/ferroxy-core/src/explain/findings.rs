//! What is wrong with a Service in plain words, and what would likely put it right.

use std::collections::BTreeSet;

use super::endpoints::port_words;
use super::{Finding, frontend_kinds};
use crate::facts::{Facts, Service, ServiceKind, Slice};
use crate::intent::Route;
use crate::name::{Family, ServiceName};
use crate::resolve::conflicts::Settled;
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
        ([], []) => "Check the name and the namespace; create the Service if it is missing.".to_owned(),
        ([], similar) => format!("Perhaps {} is meant.", list(similar)),
        (elsewhere, _) => format!("A Service of that name exists in another namespace: {}.", list(elsewhere)),
    };
    let mut findings = vec![finding(format!("There is no Service {name}."), fix)];
    if facts.slices_of(name).next().is_some() {
        findings.push(finding(
            "EndpointSlices for it exist, but the Service itself does not.",
            "Create the Service, or delete the left-over slices.",
        ));
    }
    findings
}

pub(super) fn of_not_ours(name: &ServiceName, not_ours: &NotOurs) -> Finding {
    let fix = match not_ours {
        NotOurs::OtherProxy(_) => "Remove the label if this proxy is to serve it.",
        NotOurs::ExternalName => "Look at DNS when it does not work; no proxy takes part.",
        NotOurs::Headless => "Look at DNS and at the pods when it does not work; no proxy takes part.",
        NotOurs::NoClusterIp => "Wait for the API server to assign one, or correct spec.clusterIPs.",
    };
    finding(format!("{name} is not handled: {}.", not_ours.words()), fix)
}

pub(super) fn of_service(
    facts: &Facts,
    service: &Service,
    settled: &Settled,
    ports: &[ResolvedPort<'_>],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if service.ports.is_empty() {
        findings.push(finding("The Service has no port that can be used.", "Correct spec.ports."));
    }
    findings.extend(lost_frontends(service, settled));
    match facts.slices_of(&service.name).next() {
        None => findings.push(finding(
            "There is no EndpointSlice for this Service.",
            "Does spec.selector match the labels of any pod? Without a selector, slices must be made by hand.",
        )),
        Some(_) => findings.extend(ports.iter().flat_map(|port| of_port(facts, service, port))),
    }
    findings.extend(of_load_balancer(service));
    if !facts.policy().external_ips && !service.external_ips.is_empty() {
        findings.push(finding(
            "External IPs are turned off on this node (feature gate AllowServiceExternalIPs).",
            "Turn the gate on, or use a load balancer.",
        ));
    }
    let mut seen = BTreeSet::new();
    findings.retain(|finding| seen.insert(finding.clone()));
    findings
}

fn lost_frontends(service: &Service, settled: &Settled) -> impl Iterator<Item = Finding> {
    settled.lost.iter().map(|lost| {
        let problem = format!("{}: {}.", capitalised(&lost.effect(service)), lost.reason(service));
        finding(problem, format!("Change {} here, or free it at its owner.", lost.wanted.field.path()))
    })
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

fn of_port(facts: &Facts, service: &Service, port: &ResolvedPort<'_>) -> Vec<Finding> {
    let family = port.intent.family;
    let slices: Vec<&Slice> =
        facts.slices_of(&service.name).filter(|slice| slice.family() == family).collect();
    if port.candidates.usable.is_empty() {
        return vec![no_candidates(service, port, family, &slices)];
    }
    let spec = &service.ports[port.port];
    let mut findings = Vec::new();
    if !port.selection.somewhere {
        findings.push(finding(
            format!("No {family} endpoint of port {} is ready.", spec.port),
            "Look at the pods' readiness probes: `kubectl get pods`, `kubectl describe pod`.",
        ));
    } else if !port.candidates.usable.iter().any(|candidate| candidate.conditions.ready()) {
        findings.push(finding(
            format!(
                "Every {family} endpoint of port {} is terminating; those that still serve are used.",
                spec.port
            ),
            "Look at why no new pod has become ready.",
        ));
    }
    findings.extend(nothing_local(port, spec.port));
    findings.extend(ignored_hints(facts, port, spec.port));
    findings
}

fn no_candidates(service: &Service, port: &ResolvedPort<'_>, family: Family, slices: &[&Slice]) -> Finding {
    let spec = &service.ports[port.port];
    if slices.is_empty() {
        return finding(
            format!("The Service has an {family} frontend, but no slice with {family} addresses."),
            format!("Do the pods have {family} addresses? If not, take {family} out of spec.ipFamilies."),
        );
    }
    if slices.iter().all(|slice| slice.is_empty()) {
        return finding(
            "Its slices hold no endpoint that can be used.",
            "Does spec.selector match the labels of any pod? Are the addresses in its slices right?",
        );
    }
    let others: BTreeSet<String> = slices
        .iter()
        .flat_map(|slice| &slice.ports)
        .map(|other| port_words(&other.name, other.protocol.lowercase()))
        .collect();
    let others = match others.is_empty() {
        true => "no port at all".to_owned(),
        false => others.into_iter().collect::<Vec<_>>().join(", "),
    };
    let own = port_words(&spec.name, spec.protocol.lowercase());
    finding(
        format!("The Service has a {own}, but its slices only have: {others}."),
        match spec.target_port.is_empty() || spec.target_port.parse::<u16>().is_ok() {
            true => "Name the ports alike in the Service and in its slices.".to_owned(),
            false => format!("Does a container of the pods have a port named `{}`?", spec.target_port),
        },
    )
}

/// The policy Local on a node without an endpoint: traffic vanishes, and only here.
fn nothing_local(port: &ResolvedPort<'_>, number: u16) -> Vec<Finding> {
    let mut findings = Vec::new();
    let internal = frontend_kinds(&port.intent, |frontend| frontend.route == Route::Drop);
    if !internal.is_empty() {
        findings.push(finding(
            format!("Connections to port {number} ({internal}) are dropped on this node: internalTrafficPolicy is Local and no endpoint is here."),
            "Run a pod on this node, or set internalTrafficPolicy: Cluster.",
        ));
    }
    let external = frontend_kinds(&port.intent, |frontend| frontend.route == Route::ExternalLocal);
    if !external.is_empty() && port.intent.local.is_empty() {
        findings.push(finding(
            format!("Traffic from outside to port {number} ({external}) is dropped on this node: externalTrafficPolicy is Local and no endpoint is here."),
            "Send it to a node with an endpoint (the health-check port tells which), or set externalTrafficPolicy: Cluster.",
        ));
    }
    findings
}

/// Hints are there, but the rule is off.
fn ignored_hints(facts: &Facts, port: &ResolvedPort<'_>, number: u16) -> Option<Finding> {
    let ready = || port.candidates.usable.iter().filter(|candidate| candidate.conditions.ready());
    let hinted = ready().any(|candidate| !candidate.place.hint_zones.is_empty());
    let unhinted = ready().find(|candidate| candidate.place.hint_zones.is_empty());
    let used = port.selection.preference != Preference::Anywhere || port.intent.cluster.is_empty();
    if !hinted || used {
        return None;
    }
    let why = match (unhinted, facts.zone()) {
        (Some(candidate), _) => format!("{} has none", candidate.address()),
        (None, None) => "this node has no zone".to_owned(),
        (None, Some(zone)) => format!("none is for this node's zone, {zone}"),
    };
    Some(finding(
        format!("The zone hints of port {number} are ignored: {why}."),
        "Traffic goes to all zones until the controller has given hints to all endpoints and zones.",
    ))
}

fn of_load_balancer(service: &Service) -> Vec<Finding> {
    let mut findings = Vec::new();
    if service.kind == ServiceKind::LoadBalancer && service.load_balancer_ips.is_empty() {
        findings.push(finding(
            "No load-balancer address is assigned.",
            "Wait for the load-balancer controller (kubectl describe service shows its events); a host name alone is not served here.",
        ));
    }
    for listed in service.load_balancer_ips.iter().filter(|listed| listed.value.via_proxy) {
        findings.push(finding(
            format!("The load-balancer address {} is not served on the node: its ipMode is Proxy.", listed.value.ip),
            "Nothing to do: traffic is meant to go out to the load balancer and come back by node port or pod address.",
        ));
    }
    findings
}
