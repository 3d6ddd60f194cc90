//! All endpoints of a port: whether each gets traffic, and if not, why.

use super::EndpointExplanation;
use crate::diagnostic::Cause;
use crate::facts::{Conditions, Facts, Place, Service, Slice};
use crate::probe::Down;
use crate::resolve::ResolvedPort;
use crate::resolve::candidates::Candidate;
use crate::resolve::probes::Judge;
use crate::resolve::selection::is_leaving;
use crate::resolve::topology::Preference;

pub(super) fn explain(facts: &Facts, service: &Service, port: &ResolvedPort<'_>) -> Vec<EndpointExplanation> {
    let candidates = &port.candidates;
    let judge = Judge::new(facts, service, service.ports[port.port].protocol);
    let down = |candidate: &Candidate<'_>| judge.and_then(|judge| judge.down(&candidate.endpoint)).copied();
    let usable = candidates.usable.iter().map(|candidate| usable(facts, port, candidate, down(candidate)));
    let duplicates = candidates.duplicates.iter().map(|candidate| duplicate(port, candidate));
    let spec = &service.ports[port.port];
    let slices = || facts.slices_of(&service.name).filter(|slice| slice.family() == port.intent.family);
    let portless =
        slices().filter(|slice| slice.port(&spec.name, spec.protocol).is_none()).flat_map(|slice| {
            (0..slice.len()).map(move |index| {
                portless(facts, &slice, index, &port_words(&spec.name, spec.protocol.lowercase()))
            })
        });
    usable.chain(duplicates).chain(portless).chain(slices().flat_map(unreadable)).collect()
}

/// `port named http (tcp)`, or `unnamed port (tcp)`.
pub(super) fn port_words(name: &str, protocol: &str) -> String {
    match name {
        "" => format!("unnamed port ({protocol})"),
        name => format!("port named {name} ({protocol})"),
    }
}

fn usable(
    facts: &Facts,
    port: &ResolvedPort<'_>,
    candidate: &Candidate<'_>,
    down: Option<Down>,
) -> EndpointExplanation {
    let used_for_cluster = port.intent.cluster.contains(&candidate.endpoint);
    let used_for_local = port.intent.local.contains(&candidate.endpoint);
    let reason = (!used_for_cluster && !used_for_local).then(|| match down {
        Some(down) => format!("fails its probe: {}", down.fault),
        None => why_unused(facts, port, candidate),
    });
    EndpointExplanation { used_for_cluster, used_for_local, reason, down, ..row(candidate) }
}

fn why_unused(facts: &Facts, port: &ResolvedPort<'_>, candidate: &Candidate<'_>) -> String {
    if !candidate.conditions.ready() && !is_leaving(candidate) {
        return not_serving(candidate.conditions).to_owned();
    }
    // It can serve and only the local selection exists: so it is unused because it runs on another node.
    if !candidate.endpoint.is_local && port.intent.cluster.is_empty() {
        return "on another node, and the traffic policy is Local".to_owned();
    }
    if !candidate.conditions.ready() {
        return "terminating while ready endpoints exist".to_owned();
    }
    let hints = |list: &[Box<str>]| list.join(", ");
    let place = candidate.place;
    match port.selection.preference {
        Preference::SameNode => {
            format!("hinted for node {}, this node is {}", hints(&place.hint_nodes), facts.policy().node_name)
        }
        _ => {
            let own = facts.zone().unwrap_or("no zone");
            format!("hinted for zone {}, this node is in {own}", hints(&place.hint_zones))
        }
    }
}

fn not_serving(conditions: Conditions) -> &'static str {
    if conditions.terminating() { "terminating and no longer serving" } else { "not ready" }
}

fn duplicate(port: &ResolvedPort<'_>, candidate: &Candidate<'_>) -> EndpointExplanation {
    let other = port.candidates.usable.iter().find(|other| other.address() == candidate.address());
    let slice = other.map_or_else(|| "another slice".to_owned(), |other| other.slice.name());
    EndpointExplanation { reason: Some(format!("duplicate of an endpoint in {slice}")), ..row(candidate) }
}

fn portless(facts: &Facts, slice: &Slice<'_>, index: usize, port: &str) -> EndpointExplanation {
    let place = facts.place(slice, index).cloned().unwrap_or_default();
    let is_local = place.node.as_deref() == Some(facts.policy().node_name.as_str());
    let address = slice.address(index).map(|ip| ip.to_string()).unwrap_or_default();
    EndpointExplanation {
        reason: Some(format!("its EndpointSlice has no {port}")),
        ..blank(address, slice, index, &place, is_local)
    }
}

/// Endpoints that the store could not read: only their diagnostics are left.
fn unreadable(slice: Slice<'_>) -> impl Iterator<Item = EndpointExplanation> {
    let about_endpoints = slice.diagnostics().iter().filter(|it| it.cause == Cause::Endpoint);
    about_endpoints.map(move |diagnostic| EndpointExplanation {
        reason: Some(format!("invalid address: {}", diagnostic.reason)),
        ..blank(diagnostic.field.clone(), &slice, usize::MAX, &Place::default(), false)
    })
}

fn row(candidate: &Candidate<'_>) -> EndpointExplanation {
    let address = candidate.address().to_string();
    blank(address, &candidate.slice, candidate.index, candidate.place, candidate.endpoint.is_local)
}

fn blank(
    address: String,
    slice: &Slice<'_>,
    index: usize,
    place: &Place,
    is_local: bool,
) -> EndpointExplanation {
    EndpointExplanation {
        address,
        target: slice.target(index),
        node: place.node.as_deref().map(Into::into),
        zone: place.zone.as_deref().map(Into::into),
        is_local,
        slice: slice.name(),
        used_for_cluster: false,
        used_for_local: false,
        reason: None,
        down: None,
    }
}
