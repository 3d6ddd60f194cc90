//! Turns Facts into an Intent: combines the Kubernetes rules, each of which has a file below.
//!
//! ```text
//! ownership ─▶ cluster_ips ─▶ frontends ─▶ conflicts ──────────────┐
//!              slices ─▶ candidates ─▶ topology, selection, probes ─┴▶ routes ─▶ ServiceIntent
//! ```

pub(crate) mod affinity;
pub(crate) mod annotations;
pub(crate) mod candidates;
pub(crate) mod cluster_ips;
pub(crate) mod conflicts;
pub(crate) mod frontends;
pub(crate) mod health_check;
pub(crate) mod limits;
pub(crate) mod local_detection;
pub(crate) mod node_ips;
pub(crate) mod node_port_addresses;
pub(crate) mod ownership;
pub(crate) mod probes;
pub(crate) mod routes;
pub(crate) mod selection;
pub(crate) mod service_cidrs;
pub(crate) mod serving;
pub(crate) mod source_ranges;
pub(crate) mod topology;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use candidates::Candidates;
use conflicts::Settled;
use frontends::Wanted;
pub(crate) use node_ips::node_ips;
pub use node_port_addresses::known as known_addresses;
pub use ownership::NotOurs;
pub use probes::Probing;
use probes::{Judge, Judged};
use selection::{Selection, Uses};
pub use serving::serving;
pub use topology::HINTS_WITHOUT_EFFECT;

use crate::diagnostic::{Cause, Diagnostic, Limited, Object};
use crate::facts::field::is_link_local;
use crate::facts::{Claim, Claimed, Facts, MOST_DIAGNOSTICS, Rank, Service, Touched};
use crate::intent::{FamilyIntent, Frontend, FrontendKind, Intent, NodeIntent, PortIntent, ServiceIntent};
use crate::name::{Family, ServiceName};
use crate::policy::Policy;

/// The result for one Service.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resolution {
    /// `None`: the Service has no frontend on this node (it is unknown, headless, assigned to another proxy, or other
    /// Services own all of its frontends).
    pub intent: Option<ServiceIntent>,
    /// The Diagnostics of the Service and its slices, up to a limit. Sorted.
    pub diagnostics: Vec<Diagnostic>,
    /// `None`: the Service requests no probes, or this node sends none.
    pub probing: Option<Probing>,
}

/// The most Diagnostics of a Service and its slices; further ones are only counted.
const MOST_PER_SERVICE: usize = 50;

/// The most Diagnostics of one rule for a Service; further ones are not even counted. A Service can have a hundred
/// thousand addresses.
pub(crate) const MOST_OF_A_RULE: usize = 1_000;

pub fn service(facts: &Facts, name: &ServiceName) -> Resolution {
    let Some(service) = facts.service(name) else { return Resolution::default() };
    let mut of_rules = Vec::new();
    let is_ours = ownership::check(&service).is_ok();
    let (intent, probing) = if is_ours { ours(facts, &service, &mut of_rules) } else { (None, None) };
    let mut diagnostics = Limited::to(MOST_PER_SERVICE);
    facts.diagnostics_of(name).for_each(|diagnostic| diagnostics.add(Cow::Borrowed(diagnostic)));
    of_rules.into_iter().for_each(|diagnostic| diagnostics.add(Cow::Owned(diagnostic)));
    Resolution { intent, diagnostics: diagnostics.finish(|| Object::service(name)), probing }
}

pub fn node(facts: &Facts) -> (NodeIntent, Vec<Diagnostic>) {
    let policy = facts.policy();
    let mut diagnostics = Vec::new();
    diagnostics.extend(missing_node(facts));
    diagnostics.extend(facts.own_node().iter().flat_map(|node| node.diagnostics.to_vec()));
    diagnostics.extend(facts.service_cidrs().flat_map(|cidr| cidr.diagnostics.to_vec()));
    let mut family = |family: Family| FamilyIntent {
        node_ip: node_ips(facts)[family as usize],
        local_detector: local_detection::detector(facts, family, &mut diagnostics),
        node_port_addresses: node_port_addresses::addresses(facts, family, &mut diagnostics),
        node_ports_on_loopback: node_port_addresses::on_localhost(facts, family),
        listen_on_loopback: node_port_addresses::listens_on_localhost(facts, family),
        service_cidrs: service_cidrs::merged(facts, family),
        bind_address: policy.bind_address.filter(|address| Family::of(*address) == family),
    };
    let intent = NodeIntent {
        masquerade_all: policy.masquerade_all,
        count_traffic: policy.count_traffic,
        primary_family: node_ips::primary_family(facts),
        host_addresses: host_addresses(facts),
        v4: family(Family::V4),
        v6: family(Family::V6),
    };
    diagnostics.sort();
    diagnostics.dedup();
    (intent, diagnostics)
}

/// Addresses that frontends cannot have are left out: most link-local ones belong to pods that come and go.
fn host_addresses(facts: &Facts) -> BTreeSet<IpAddr> {
    if !facts.policy().know_host_addresses {
        return BTreeSet::new();
    }
    let can_be_frontend = |ip: &IpAddr| !ip.is_loopback() && !is_link_local(*ip);
    known_addresses(facts).into_iter().filter(can_be_frontend).collect()
}

fn missing_node(facts: &Facts) -> Option<Diagnostic> {
    let (reason, effect) = match facts.own_node() {
        Some(node) if !node.gone => return None,
        Some(_) => ("the object was deleted", "its last addresses, zone and pod CIDRs stay in use"),
        None => (
            "the Node does not exist",
            "its addresses and its zone are unknown: zone hints are ignored, and so is `primary` in nodePortAddresses, \
             unless bindAddress is set; check --hostname-override",
        ),
    };
    Some(Diagnostic {
        object: Object::node(&facts.policy().node_name),
        field: "metadata.name".to_owned(),
        reason: reason.to_owned(),
        effect: effect.to_owned(),
        cause: Cause::Field,
    })
}

/// Resolves everything from scratch. The Diagnostics are sorted.
pub fn all(facts: &Facts) -> (Intent, Vec<Diagnostic>) {
    let (node, of_node) = node(facts);
    let mut intent = Intent { node, ..Intent::default() };
    let mut diagnostics = Limited::to(MOST_DIAGNOSTICS);
    of_node.into_iter().for_each(|diagnostic| diagnostics.add(Cow::Owned(diagnostic)));
    for name in facts.service_names() {
        let resolution = service(facts, name);
        resolution.diagnostics.into_iter().for_each(|diagnostic| diagnostics.add(Cow::Owned(diagnostic)));
        intent.services.extend(resolution.intent.map(|service| (name.clone(), Arc::new(service))));
    }
    facts.other_diagnostics().for_each(|diagnostic| diagnostics.add(Cow::Borrowed(diagnostic)));
    (intent, diagnostics.finish(|| Object::node(&facts.policy().node_name)))
}

/// Updates an Intent after an event: the same result as [`all`], at the cost of what was touched.
pub fn update(facts: &Facts, touched: &Touched, intent: &mut Intent) {
    if touched.everything {
        *intent = all(facts).0;
        return;
    }
    if touched.node {
        intent.node = node(facts).0;
    }
    for name in &touched.services {
        match service(facts, name).intent {
            Some(resolved) => intent.services.insert(name.clone(), Arc::new(resolved)),
            None => intent.services.remove(name),
        };
    }
}

/// How many frontends a Service wants, without any limit.
pub(crate) fn wanted_frontends(service: &Service, policy: &Policy) -> usize {
    if ownership::check(service).is_ok() { frontends::count(service, policy) } else { 0 }
}

/// The claims of a Service for at most `most` frontends, before conflicts are settled.
pub(crate) fn claims(service: &Service, policy: &Policy, most: usize) -> Claimed {
    if ownership::check(service).is_err() {
        return Claimed::default();
    }
    let of_frontend = |wanted: frontends::Wanted| {
        let whole = wanted.address.map(|address| (Claim::WholeAddress { address }, wanted.rank()));
        std::iter::once((wanted.claim(service), wanted.rank())).chain(whole)
    };
    let health_check = health_check::port(service).map(|port| (Claim::HealthCheck { port }, Rank::Allocated));
    frontends::wanted(service, policy, most).into_iter().flat_map(of_frontend).chain(health_check).collect()
}

/// One Service port in one family with everything that led to its Intent; `explain` shows the steps.
#[derive(Debug)]
pub(crate) struct ResolvedPort<'f> {
    /// Index into the Service's ports.
    pub(crate) port: usize,
    pub(crate) intent: PortIntent,
    pub(crate) candidates: Candidates<'f>,
    pub(crate) selection: Selection,
    pub(crate) judged: Judged,
}

fn ours(
    facts: &Facts,
    service: &Service,
    diagnostics: &mut Vec<Diagnostic>,
) -> (Option<ServiceIntent>, Option<Probing>) {
    let settled = conflicts::settle(facts, service);
    let ports = ports(facts, service, &settled);
    diagnostics.extend(cluster_ips::diagnostics(service));
    diagnostics.extend(frontends::stranded(service, facts.policy()).take(MOST_OF_A_RULE));
    diagnostics.extend(frontends::provisional(facts, service).take(MOST_OF_A_RULE));
    diagnostics.extend(settled.diagnostics(service).take(MOST_OF_A_RULE));
    diagnostics.extend(limits::diagnostics(facts, service, &settled, &ports));
    diagnostics.extend(probes::diagnostics(facts, service, &ports).take(MOST_OF_A_RULE));
    diagnostics.extend(topology::without_effect(facts, service, &ports));
    let probing = probes::probing(facts, service, &ports);
    let left_out = limits::left_out(facts, service, &settled, &ports);
    let health_check = health_check::resolve(facts, service, &ports, diagnostics);
    let annotations = annotations::chosen(service, facts.policy(), diagnostics);
    // Not `collect`: it would reuse the allocation of the steps, which is several times larger than the Intents.
    let mut intents = Vec::with_capacity(ports.len());
    intents.extend(ports.into_iter().map(|port| port.intent));
    let ports: Vec<PortIntent> = intents;
    let intent = (!ports.is_empty()).then(|| ServiceIntent {
        name: service.name.clone(),
        cluster_ips: live_cluster_ips(service, &ports),
        ports,
        health_check,
        annotations,
        left_out,
    });
    (intent, probing)
}

/// The cluster IPs on which the Service has a frontend. It does not own the others, so their unused ports are not
/// rejected.
fn live_cluster_ips(service: &Service, ports: &[PortIntent]) -> Vec<IpAddr> {
    let is_at =
        |frontend: &Frontend, ip| frontend.kind == FrontendKind::ClusterIp && frontend.address == Some(ip);
    let is_live =
        |ip: &IpAddr| ports.iter().flat_map(|port| &port.frontends).any(|frontend| is_at(frontend, *ip));
    cluster_ips::chosen(service).into_iter().filter(is_live).collect()
}

/// The ports that still have a frontend, in the Service's order, IPv4 first.
pub(crate) fn ports<'f>(facts: &'f Facts, service: &Service, settled: &Settled<'f>) -> Vec<ResolvedPort<'f>> {
    let mut by_port: BTreeMap<(usize, Family), Vec<&Wanted>> = BTreeMap::new();
    for wanted in &settled.kept {
        by_port.entry((wanted.port, wanted.family)).or_default().push(wanted);
    }
    let resolve = |((port, family), wanted): ((usize, Family), Vec<&Wanted>)| {
        let size = settled.sizes.of_port(&service.ports[port], family);
        let candidates = candidates::find(facts, service, &service.ports[port], family, size);
        resolve_port(facts, service, (port, family), candidates, &wanted)
    };
    by_port.into_iter().map(resolve).collect()
}

fn resolve_port<'f>(
    facts: &'f Facts,
    service: &Service,
    (port, family): (usize, Family),
    candidates: Candidates<'f>,
    wanted: &[&Wanted],
) -> ResolvedPort<'f> {
    let spec = &service.ports[port];
    let uses = Uses::of(service, wanted, facts.policy());
    let mut selection = selection::select(&candidates.usable, uses, &facts.policy().node_name, facts.zone());
    let judge = Judge::new(facts, service, spec.protocol);
    let judged = judge.map(|judge| probes::subtract(&mut selection, judge)).unwrap_or_default();
    let allowed_sources = source_ranges::allowed(service, family, node_ips(facts)[family as usize]);
    let frontend = |wanted: &&Wanted| Frontend {
        kind: wanted.kind,
        address: wanted.address,
        port: wanted.number,
        route: routes::route(wanted.kind, service, &selection),
        allowed_sources: allowed_sources.clone().filter(|_| wanted.kind == FrontendKind::LoadBalancer),
    };
    let mut frontends: Vec<Frontend> = wanted.iter().map(frontend).collect();
    frontends.sort_by_key(|frontend| frontend.kind);
    let intent = PortIntent {
        name: spec.name.clone(),
        family,
        protocol: spec.protocol,
        affinity: affinity::seconds(service),
        cluster: selection.cluster.clone(),
        local: selection.local.clone(),
        size: candidates.usable.len() as u32,
        frontends,
    };
    ResolvedPort { port, intent, candidates, selection, judged }
}

/// Small clusters for the tests of the rules.
#[cfg(test)]
pub(crate) mod tests {
    use super::candidates::{self, Candidate};
    use super::{all, node};
    use crate::event::{self, Event};
    use crate::facts::{Facts, Service};
    use crate::name::{Family, ServiceName};
    use crate::policy::Policy;

    /// The Service `default/web` as the store keeps it.
    pub(crate) fn read(object: event::Service) -> Service {
        let mut facts = Facts::new(Policy::default());
        let object = event::Service { namespace: "default".into(), name: "web".into(), ..object };
        facts.apply(Event::Service(object));
        facts.service(&ServiceName::new("default", "web")).unwrap()
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Pod {
        pub(crate) ready: bool,
        pub(crate) serving: bool,
        pub(crate) terminating: bool,
        pub(crate) node: &'static str,
        pub(crate) zones: &'static [&'static str],
        pub(crate) nodes: &'static [&'static str],
    }

    impl Pod {
        pub(crate) const READY: Pod =
            Pod { ready: true, serving: true, terminating: false, node: "kb", zones: &[], nodes: &[] };
    }

    /// The pods as candidates 10.0.0.0:80, 10.0.0.1:80, …, on the node `ka`.
    pub(crate) fn with_candidates(pods: &[Pod], test: impl FnOnce(&[Candidate<'_>])) {
        let strings = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        let endpoint = |(i, pod): (usize, &Pod)| event::SliceEndpoint {
            addresses: vec![format!("10.0.0.{i}")],
            ready: Some(pod.ready),
            serving: Some(pod.serving),
            terminating: Some(pod.terminating),
            node_name: Some(pod.node.into()),
            hint_zones: strings(pod.zones),
            hint_nodes: strings(pod.nodes),
            ..Default::default()
        };
        let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
        facts.apply(Event::Slice(event::EndpointSlice {
            namespace: "default".into(),
            name: "web-1".into(),
            service: Some("web".into()),
            address_type: "IPv4".into(),
            ports: vec![event::SlicePort { name: Some(String::new()), port: Some(80), ..Default::default() }],
            endpoints: pods.iter().enumerate().map(endpoint).collect(),
            last_change: None,
        }));
        let service = read(event::Service {
            ports: vec![event::ServicePort { port: 80, ..Default::default() }],
            ..Default::default()
        });
        test(&candidates::find(&facts, &service, &service.ports[0], Family::V4, pods.len()).usable);
    }

    #[test]
    fn an_unknown_node_is_reported() {
        let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
        let (_, diagnostics) = node(&facts);
        assert_eq!(diagnostics[0].reason, "the Node does not exist");
        facts.apply(Event::Node(event::Node { name: "ka".into(), ..Default::default() }));
        assert_eq!(node(&facts).1, []);
    }

    #[test]
    fn a_node_that_is_deleted_keeps_what_it_had() {
        let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
        let addresses = vec![("InternalIP".into(), "172.18.0.2".into())];
        facts.apply(Event::Node(event::Node { name: "ka".into(), addresses, ..Default::default() }));
        let before = node(&facts).0;
        facts.apply(Event::NodeGone { name: "ka".into() });
        let (after, diagnostics) = node(&facts);
        assert_eq!(after, before);
        assert_eq!(diagnostics[0].reason, "the object was deleted");
    }

    #[test]
    fn orphan_slices_are_no_diagnostic_of_the_intent() {
        let mut facts = Facts::new(Policy::default());
        facts.apply(Event::Node(event::Node::default()));
        facts.apply(Event::Slice(event::EndpointSlice {
            namespace: "default".into(),
            name: "web-1".into(),
            service: Some("web".into()),
            address_type: "IPv4".into(),
            ..Default::default()
        }));
        assert_eq!(all(&facts).1, []);
        assert_eq!(facts.orphans().len(), 1);
    }
}
