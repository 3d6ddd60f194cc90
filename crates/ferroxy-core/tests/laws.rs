//! Laws that hold for every cluster, checked on random ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ferroxy_core::event;
use ferroxy_core::resolve::{self, Resolution};
use ferroxy_core::testing::{Cluster, clusters, config, events, garbage, interesting_packets, policies};
use ferroxy_core::{
    Cause, Diagnostic, Endpoint, Event, Facts, Family, Intent, PortIntent, Route, ServiceName, Verdict,
    explain, oracle,
};
use proptest::prelude::*;

/// The resolution of every Service, including those without an Intent.
fn resolutions(facts: &Facts) -> BTreeMap<ServiceName, Resolution> {
    facts.service_names().map(|name| (name.clone(), resolve::service(facts, name))).collect()
}

/// The subject of an event: events about different subjects are independent.
fn subject(event: &Event) -> String {
    match event {
        Event::Service(event::Service { namespace, name, .. }) | Event::ServiceGone { namespace, name } => {
            format!("service {namespace}/{name}")
        }
        Event::Slice(event::EndpointSlice { namespace, name, .. }) | Event::SliceGone { namespace, name } => {
            format!("slice {namespace}/{name}")
        }
        Event::Node(event::Node { name, .. }) | Event::NodeGone { name } => format!("node {name}"),
        Event::ServiceCidr(event::ServiceCidr { name, .. }) | Event::ServiceCidrGone { name } => {
            format!("cidr {name}")
        }
        Event::HostAddresses(_) => "host".to_owned(),
        Event::Listed { kind, .. } => format!("all of {}", kind.as_str()),
        Event::Verdict(verdict) => format!("verdict {} {}", verdict.service, verdict.target),
    }
}

fn is_verdict(event: &Event) -> bool {
    matches!(event, Event::Verdict(_))
}

/// The rule of probes once more, as plain as possible: the endpoints that stay in a pool.
fn without_failing(facts: &Facts, name: &ServiceName, port: &PortIntent, pool: &[Endpoint]) -> Vec<Endpoint> {
    let probe = facts.service(name).and_then(|service| service.probe.clone());
    let Some(probe) = probe.filter(|_| facts.policy().probes) else { return pool.to_vec() };
    let is_down = |endpoint: &&Endpoint| {
        let target = probe.target(endpoint.ip, endpoint.port, port.protocol);
        target.is_some_and(|target| facts.probed(name).is_some_and(|it| it.down(&target).is_some()))
    };
    let left: Vec<Endpoint> = pool.iter().filter(|it| !is_down(it)).copied().collect();
    if left.len() * 2 < pool.len() { pool.to_vec() } else { left }
}

fn ports(intent: &Intent) -> impl Iterator<Item = &PortIntent> {
    intent.services.values().flat_map(|service| &service.ports)
}

/// The same event, with an address of this node as external IP and a node port as port: node ports are contested, too.
fn contested(mut event: Event) -> Event {
    if let Event::Service(service) = &mut event {
        for address in service.external_ips.iter_mut().filter(|ip| *ip == "198.51.100.2") {
            *address = "172.18.0.2".to_owned();
        }
        for port in service.ports.iter_mut().filter(|port| port.port == 81) {
            port.port = 30_080;
        }
    }
    event
}

/// The seeds of counterexamples. The file is committed, together with the fix.
const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

proptest! {
    #![proptest_config(config(256, COUNTEREXAMPLES))]

    #[test]
    fn following_events_equals_starting_from_scratch(cluster in clusters()) {
        let mut facts = Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        for event in &cluster.events {
            let touched = facts.apply(event.clone());
            resolve::update(&facts, &touched, &mut intent);
            prop_assert_eq!(&intent, &resolve::all(&facts).0, "after {:?}", event);
        }
    }

    #[test]
    fn what_is_not_touched_resolves_as_before(cluster in clusters(), event in events()) {
        let mut facts = cluster.facts();
        let (before, node_before) = (resolutions(&facts), resolve::node(&facts));
        let touched = facts.apply(event);
        if touched.everything {
            return Ok(());
        }
        let mut after = resolutions(&facts);
        after.retain(|name, _| !touched.services.contains(name));
        let mut before = before;
        before.retain(|name, _| !touched.services.contains(name));
        prop_assert_eq!(before, after);
        if !touched.node {
            prop_assert_eq!(node_before, resolve::node(&facts));
        }
    }

    #[test]
    fn contested_node_ports_touch_everyone_concerned(cluster in clusters(), event in events()) {
        let events = cluster.events.into_iter().map(contested).collect();
        let mut facts = Cluster { policy: cluster.policy, events }.facts();
        let before = resolutions(&facts);
        let touched = facts.apply(contested(event));
        let after = resolutions(&facts);
        let untouched = |name: &&ServiceName| !touched.everything && !touched.services.contains(*name);
        for name in after.keys().filter(untouched) {
            prop_assert_eq!(before.get(name), after.get(name));
        }
    }

    #[test]
    fn an_event_said_twice_touches_nothing(cluster in clusters(), event in events()) {
        let mut facts = cluster.facts();
        facts.apply(event.clone());
        prop_assert!(facts.apply(event).is_empty());
    }

    #[test]
    fn independent_events_commute(cluster in clusters(), seed in any::<u64>()) {
        // Keeps only the last event about each subject, so that the remaining events are independent. Verdicts are left
        // out: they depend on the endpoint that they are about.
        let objects = cluster.events.iter().filter(|event| !is_verdict(event));
        let last: BTreeMap<String, Event> = objects.map(|event| (subject(event), event.clone())).collect();
        let ordered: Vec<Event> = last.into_values().collect();
        let mut shuffled = ordered.clone();
        let mut state = seed | 1;
        for i in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(i, (state >> 33) as usize % (i + 1));
        }
        let all = |events| resolve::all(&Cluster { policy: cluster.policy.clone(), events }.facts());
        prop_assert_eq!(&all(shuffled), &all(ordered));
    }

    #[test]
    fn probes_subtract_from_pools_and_change_nothing_else(cluster in clusters()) {
        let facts = cluster.facts();
        let judged = resolve::all(&facts).0;
        let objects = cluster.events.into_iter().filter(|event| !is_verdict(event)).collect();
        let mut expected = Cluster { policy: cluster.policy, events: objects }.intent();
        for (name, service) in &mut expected.services {
            for port in &mut std::sync::Arc::make_mut(service).ports {
                port.cluster = without_failing(&facts, name, port, &port.cluster);
                port.local = without_failing(&facts, name, port, &port.local);
            }
        }
        prop_assert_eq!(judged, expected);
    }

    /// Every probed endpoint is ready and used, or would be used if it were up. An endpoint that is down is still
    /// probed.
    #[test]
    fn only_what_is_used_is_probed(cluster in clusters()) {
        let facts = cluster.facts();
        for (name, resolution) in resolutions(&facts) {
            let Some(probing) = resolution.probing else { continue };
            let intent = resolution.intent;
            let pools = intent.iter().flat_map(|it| &it.ports).flat_map(|port| {
                port.cluster.iter().chain(&port.local).map(|endpoint| (port.protocol, *endpoint))
            });
            let used: BTreeSet<_> = pools
                .filter_map(|(protocol, it)| probing.probe.target(it.ip, it.port, protocol))
                .collect();
            let probed = facts.probed(&name).unwrap();
            for (target, life) in &probing.targets {
                prop_assert!(used.contains(target) || probed.down(target).is_some());
                prop_assert_eq!(probed.life(target), Some(*life));
            }
        }
    }

    #[test]
    fn a_new_policy_equals_a_new_start(cluster in clusters(), policy in policies()) {
        let mut facts = cluster.facts();
        facts.set_policy(policy.clone());
        let fresh = Cluster { policy, events: cluster.events };
        prop_assert_eq!(resolve::all(&facts), resolve::all(&fresh.facts()));
    }

    #[test]
    fn removing_everything_leaves_nothing(cluster in clusters()) {
        let mut facts = cluster.facts();
        let services: Vec<ServiceName> = facts.service_names().cloned().collect();
        for name in services {
            facts.apply(Event::ServiceGone { namespace: name.namespace().into(), name: name.name().into() });
        }
        prop_assert!(resolve::all(&facts).0.services.is_empty());
    }

    #[test]
    fn garbage_is_skipped_not_fatal(cluster in clusters(), events in prop::collection::vec(garbage(), 1..8)) {
        let mut facts = cluster.facts();
        for event in events {
            facts.apply(event);
        }
        let (intent, diagnostics) = resolve::all(&facts);
        prop_assert!(diagnostics.is_sorted());
        for packet in interesting_packets(&intent).iter().take(50) {
            oracle(&intent, packet);
        }
        for name in facts.service_names() {
            explain(&facts, name);
        }
    }

    #[test]
    fn an_intent_keeps_its_promises(cluster in clusters()) {
        let intent = cluster.intent();
        let mut taken = BTreeMap::new();
        for (name, service) in &intent.services {
            prop_assert_eq!(name, &service.name);
            prop_assert!(!service.ports.is_empty());
            for port in &service.ports {
                check_port(port)?;
                for frontend in &port.frontends {
                    let family = frontend.address.is_none().then_some(port.family);
                    let key = (frontend.address, frontend.port, port.protocol, family);
                    prop_assert_eq!(taken.insert(key, name), None, "two owners of {:?}", key);
                }
            }
        }
    }

    #[test]
    fn explain_agrees_with_the_intent(cluster in clusters()) {
        let facts = cluster.facts();
        let (intent, _) = resolve::all(&facts);
        for name in facts.service_names() {
            let explanation = explain(&facts, name);
            let ports = intent.services.get(name).map(|service| service.ports.as_slice()).unwrap_or_default();
            prop_assert_eq!(explanation.ports.len(), ports.len());
            for (explained, port) in explanation.ports.iter().zip(ports) {
                let used = explained.endpoints.iter().filter(|e| e.used_for_cluster || e.used_for_local).count();
                let union: BTreeSet<_> = port.cluster.iter().chain(&port.local).collect();
                prop_assert_eq!(used, union.len());
                for endpoint in &explained.endpoints {
                    let is_used = endpoint.used_for_cluster || endpoint.used_for_local;
                    prop_assert_eq!(is_used, endpoint.reason.is_none(), "{:?}", endpoint);
                }
            }
        }
    }

    #[test]
    fn the_oracle_only_names_endpoints_of_the_intent(cluster in clusters()) {
        let intent = cluster.intent();
        let known: BTreeSet<_> = ports(&intent)
            .flat_map(|port| port.cluster.iter().chain(&port.local))
            .map(|endpoint| SocketAddr::new(endpoint.ip, endpoint.port))
            .collect();
        for packet in interesting_packets(&intent) {
            if let Verdict::Endpoints(endpoints) = oracle(&intent, &packet) {
                prop_assert!(!endpoints.is_empty(), "{packet:?}");
                prop_assert!(endpoints.keys().all(|endpoint| known.contains(endpoint)), "{packet:?}");
            }
        }
    }
}

/// Checks what the documentation of the types promises.
fn check_port(port: &PortIntent) -> Result<(), TestCaseError> {
    prop_assert!(!port.frontends.is_empty());
    for endpoints in [&port.cluster, &port.local] {
        let texts: Vec<_> = endpoints.iter().map(|e| SocketAddr::new(e.ip, e.port).to_string()).collect();
        prop_assert!(texts.is_sorted_by(|a, b| a < b), "sorted as text, each once: {:?}", texts);
        prop_assert!(endpoints.iter().all(|e| Family::of(e.ip) == port.family));
    }
    prop_assert!(port.local.iter().all(|endpoint| endpoint.is_local));
    for frontend in &port.frontends {
        match frontend.route {
            Route::Cluster | Route::ExternalCluster | Route::ExternalLocal => {
                prop_assert!(!port.cluster.is_empty())
            }
            Route::Local => prop_assert!(!port.local.is_empty()),
            Route::Reject => prop_assert!(port.cluster.is_empty() && port.local.is_empty()),
            Route::Drop => prop_assert!(port.local.is_empty()),
        }
    }
    Ok(())
}

/// The generator must reach the cases that the laws are about, or the laws prove nothing.
#[test]
fn random_clusters_have_variety() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut routes = BTreeMap::<Route, usize>::new();
    let mut verdicts = BTreeMap::<&str, usize>::new();
    let (mut conflicts, mut subtracted, mut ignored) = (0, 0, 0);
    for _ in 0..300 {
        let cluster = clusters().new_tree(&mut runner).unwrap().current();
        let facts = cluster.facts();
        let (intent, diagnostics) = resolve::all(&facts);
        for (name, probing) in
            resolutions(&facts).into_iter().filter_map(|(name, it)| Some((name, it.probing?)))
        {
            ignored += probing.ignored;
            subtracted +=
                probing.targets.keys().filter(|it| facts.probed(&name).unwrap().down(it).is_some()).count();
        }
        conflicts += diagnostics.iter().filter(|d: &&Diagnostic| d.cause == Cause::Conflict).count();
        for frontend in ports(&intent).flat_map(|port| &port.frontends) {
            *routes.entry(frontend.route).or_default() += 1;
        }
        for packet in interesting_packets(&intent) {
            let verdict = match oracle(&intent, &packet) {
                Verdict::Endpoints(endpoints) if endpoints.values().any(|masquerade| *masquerade) => {
                    "masqueraded"
                }
                Verdict::Endpoints(_) => "as it is",
                Verdict::Reject => "reject",
                Verdict::Drop => "drop",
                Verdict::Pass => "pass",
            };
            *verdicts.entry(verdict).or_default() += 1;
        }
    }
    assert_eq!(routes.len(), 6, "{routes:?}");
    assert_eq!(verdicts.len(), 5, "{verdicts:?}");
    assert!(conflicts > 20, "{conflicts}");
    assert!(
        ignored > 20 && subtracted > ignored + 20,
        "{subtracted} down, {ignored} ports where that is ignored"
    );
}
