//! Ring 0: what holds for every cluster, checked on random ones, on every kind of network and version of HNS.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::oracle::{Host as Windows, kernelspace as oracle};
use ferroxy_core::testing::{Cluster, clusters, config, interesting_packets};
use ferroxy_core::{Family, Intent};
use ferroxy_dataplane::{Change, Dataplane, Persists, Refusal, Verifies};
use ferroxy_hcn::{Code, RemoteSubnetRoute, Version};
use ferroxy_kernelspace::render::MOST_ENDPOINTS;
use ferroxy_kernelspace::{Frontend, Op, Overlay, Plan, State, Surroundings, diff, interpret, render};
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;
use support::{HOST_MAC, Host};

/// Seeds of counterexamples. They are committed with the fix.
const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

const VERSIONS: [&str; 7] = ["9.2", "9.3", "10.1", "11.10", "12.0", "15.4", "16.0"];

fn versions() -> impl Strategy<Value = Version> {
    select(VERSIONS.map(|text| text.parse().unwrap()).to_vec())
}

fn surroundings() -> impl Strategy<Value = Surroundings> {
    let flags = any::<(bool, bool, bool)>();
    (versions(), flags).prop_map(|(version, (is_overlay, has_own, enable_dsr))| {
        let route = RemoteSubnetRoute {
            network: [10, 244, 2, 0].into(),
            prefix_length: 24,
            provider: [172, 18, 0, 3].into(),
        };
        let own = if has_own { vec!["10.244.1.0/24".parse().unwrap()] } else { vec![] };
        let overlay =
            Overlay { routes: vec![route], own, source_vip: [10, 244, 1, 9].into(), host_mac: HOST_MAC };
        Surroundings {
            features: version.into(),
            overlay: is_overlay.then_some(overlay),
            enable_dsr,
            root: [None; 2],
        }
    })
}

/// Applies a Plan to a State, and checks after each operation that nothing names what does not exist.
fn carry_out(state: &mut State, of_others: &BTreeSet<IpAddr>, plan: &Plan) -> Result<(), TestCaseError> {
    for op in plan.ops() {
        match op.clone() {
            Op::CreateEndpoint(ip, endpoint) => {
                prop_assert!(state.endpoints.insert(ip, endpoint).is_none(), "{op} twice");
            }
            Op::DeleteEndpoint(ip) => {
                prop_assert!(state.endpoints.remove(&ip).is_some(), "{op} without effect")
            }
            Op::CreateBalancer(at, it) => {
                prop_assert!(state.balancers.insert(at, it).is_none(), "{op} twice");
            }
            Op::ChangeBalancer(at, it) => {
                prop_assert!(state.balancers.insert(at, it).is_some(), "{op}: none")
            }
            Op::DeleteBalancer(at) => {
                prop_assert!(state.balancers.remove(&at).is_some(), "{op} without effect")
            }
        }
        for (at, balancer) in &state.balancers {
            let known = |ip: &IpAddr| state.endpoints.contains_key(ip) || of_others.contains(ip);
            prop_assert!(balancer.endpoints.iter().all(known), "{at:?} dangles after {op}");
            prop_assert!(!balancer.endpoints.is_empty(), "{at:?} has no endpoint");
        }
    }
    Ok(())
}

/// The pods of this node, which the network plugin has made.
fn pods_here(intents: &[&Intent]) -> BTreeSet<IpAddr> {
    let ports = intents.iter().flat_map(|intent| intent.services.values()).flat_map(|it| &it.ports);
    let pods = ports.flat_map(|port| port.cluster.iter().chain(&port.local));
    pods.filter(|pod| pod.is_local).map(|pod| pod.ip).collect()
}

/// In this mode hints do not count.
fn intent(cluster: &Cluster) -> Intent {
    let policy = ferroxy_core::Policy { topology_hints: false, ..cluster.facts().policy().clone() };
    let mut facts = ferroxy_core::Facts::new(policy);
    for event in &cluster.events {
        facts.apply(event.clone());
    }
    ferroxy_core::resolve::all(&facts).0
}

proptest! {
    #![proptest_config(config(128, COUNTEREXAMPLES))]

    #[test]
    fn packets_go_where_the_oracle_says(cluster in clusters(), around in surroundings()) {
        let intent = intent(&cluster);
        let state = render(&intent, &around);
        let routes = around.overlay.as_ref().map(|overlay| {
            let route = |it: &RemoteSubnetRoute| (IpNet::new(it.network, it.prefix_length).unwrap(), it.provider);
            overlay.routes.iter().map(route).collect::<Vec<_>>()
        });
        let host = Windows {
            routes: routes.as_deref(),
            own: around.overlay.as_ref().map_or(&[], |overlay| &overlay.own),
            has_dsr: around.features.dsr,
            enable_dsr: around.enable_dsr,
            most_endpoints: MOST_ENDPOINTS,
        };
        let families = around.families(&intent.node);
        for packet in interesting_packets(&intent) {
            if families.contains(&Family::of(packet.destination)) {
                prop_assert_eq!(interpret(&state, &packet), oracle(&intent, &packet, host), "{:?}\n{}", packet, state);
            }
        }
    }

    #[test]
    fn a_plan_does_what_it_is_for_and_nothing_dangles(
        a in clusters(), b in clusters(), around in surroundings(), later in surroundings(),
    ) {
        let (a, b) = (intent(&a), intent(&b));
        let of_others = pods_here(&[&a, &b]);
        let (a, b) = (render(&a, &around).bound_to(&of_others), render(&b, &later).bound_to(&of_others));
        let mut state = State::default();
        for (from, to) in [(&State::default(), &a), (&a, &b), (&b, &a), (&a, &State::default())] {
            carry_out(&mut state, &of_others, &diff(from, to))?;
            prop_assert_eq!(&state, to);
        }
        prop_assert!(diff(&a, &a).is_empty() && diff(&b, &b).is_empty());
    }

    /// A frontend that stays has a gap only if one of its endpoints must be recreated.
    #[test]
    fn frontends_that_stay_are_served_all_the_time(a in clusters(), b in clusters(), around in surroundings()) {
        let (a, b) = (intent(&a), intent(&b));
        let of_others = pods_here(&[&a, &b]);
        let (a, b) = (render(&a, &around).bound_to(&of_others), render(&b, &around).bound_to(&of_others));
        let changed = |ip: &IpAddr| a.endpoints.get(ip).zip(b.endpoints.get(ip)).is_some_and(|(a, b)| a != b);
        for op in diff(&a, &b).ops() {
            if let Op::DeleteBalancer(at) = op {
                let may = !b.balancers.contains_key(at) || a.balancers[at].endpoints.iter().any(changed);
                prop_assert!(may, "{}", op);
            }
        }
    }

    /// Endpoints that must be recreated, whatever their number, cause a gap only for load balancers without other endpoints. While
    /// one load balancer is absent, all other absent ones share such an endpoint with it, directly or through others.
    #[test]
    fn a_gap_is_limited_to_what_shares_endpoints_that_are_made_anew(
        a in clusters(), b in clusters(), around in surroundings(), later in surroundings(),
    ) {
        let (a, b) = (intent(&a), intent(&b));
        let of_others = pods_here(&[&a, &b]);
        let (a, b) = (render(&a, &around).bound_to(&of_others), render(&b, &later).bound_to(&of_others));
        let anew = |ip: &IpAddr| a.endpoints.get(ip).zip(b.endpoints.get(ip)).is_some_and(|(a, b)| a != b);
        let staying: Vec<Frontend> =
            a.balancers.keys().filter(|at| b.balancers.contains_key(at)).copied().collect();
        let shared = |at: &Frontend| -> BTreeSet<IpAddr> {
            let all = a.balancers[at].endpoints.union(&b.balancers[at].endpoints);
            all.filter(|ip| anew(ip)).copied().collect()
        };
        let mut state = a.clone();
        for op in diff(&a, &b).ops() {
            carry_out(&mut state, &of_others, &[op.clone()].into_iter().collect())?;
            let away: Vec<Frontend> =
                staying.iter().filter(|at| !state.balancers.contains_key(at)).copied().collect();
            for at in &away {
                prop_assert!(b.balancers[at].endpoints.iter().all(anew), "{:?} is away after {}", at, op);
            }
            // All recreated endpoints that are connected to the first load balancer, directly or through others.
            let Some(first) = away.first() else { continue };
            let mut reached = shared(first);
            loop {
                let more: BTreeSet<IpAddr> = staying
                    .iter()
                    .map(shared)
                    .filter(|it| !it.is_disjoint(&reached))
                    .flatten()
                    .collect();
                if more.is_subset(&reached) {
                    break;
                }
                reached.extend(more);
            }
            for at in &away {
                prop_assert!(!shared(at).is_disjoint(&reached), "{:?} and {:?} are away after {}", first, at, op);
            }
        }
        prop_assert_eq!(state, b);
    }

    /// Step by step, with faults at any call, the dataplane reaches the same state as at once, and stays there.
    #[test]
    fn however_it_gets_there_the_state_is_the_same(
        steps in proptest::collection::vec(clusters(), 1..4),
        version in versions(),
        is_overlay in any::<bool>(),
        faults in proptest::collection::vec((select(FUNCTIONS.to_vec()), select(CODES.to_vec()), 0..3u32), 0..6),
    ) {
        let intents: Vec<Intent> = steps.iter().map(intent).collect();
        let has_address = |it: &Intent| Family::ALL.iter().any(|family| it.node.family(*family).node_ip.is_some());
        let is_overlay = is_overlay && intents.iter().all(has_address);
        let mut host = Host::new(is_overlay, version);
        add_pods(&mut host, is_overlay, &intents);
        let Some(last) = intents.last() else { return Ok(()) };
        let mut stepwise = host.open();
        let mut in_force = Intent::default();
        for step in &intents {
            for (function, code, times) in &faults {
                host.fake.fail(function, *code, *times);
            }
            go(&mut stepwise, &in_force, step);
            in_force = step.clone();
        }
        host.fake.service().faults.clear();
        let settled = settle(&mut stepwise, last);
        prop_assert!(settled, "it never settles");
        let reached = host.lines();

        let mut other = Host::new(is_overlay, version);
        add_pods(&mut other, is_overlay, &intents);
        let mut at_once = other.open();
        at_once.start(last).unwrap();
        prop_assert_eq!(&reached, &other.lines());

        let changes = host.fake.service().changes();
        prop_assert_eq!(host.open().start(last).unwrap().operations, 0);
        prop_assert_eq!(host.fake.service().changes(), changes, "a restart changes nothing");
        stepwise.cleanup().unwrap();
        drop(stepwise);
        prop_assert_eq!(host.lines(), BTreeSet::new());
        prop_assert_eq!(host.fake.service().open_handles(), 0);
    }

    /// While not all of the cluster can be read, nothing is removed.
    #[test]
    fn what_is_unknown_is_kept(a in clusters(), b in clusters(), version in versions()) {
        let (a, b) = (intent(&a), intent(&b));
        let mut host = Host::new(false, version);
        add_pods(&mut host, false, &[a.clone(), b.clone()]);
        host.open().start(&a).unwrap();
        let before: BTreeSet<String> = frontends(&host);
        let mut careful = host.open();
        careful.keep_unknown(true);
        careful.start(&b).unwrap();
        careful.verify().unwrap();
        let after = frontends(&host);
        prop_assert!(before.is_subset(&after), "{:?}", before.difference(&after).collect::<Vec<_>>());
    }
}

const FUNCTIONS: [&str; 12] = [
    "HcnEnumerateEndpoints",
    "HcnEnumerateLoadBalancers",
    "HcnEnumerateNetworks",
    "HcnOpenLoadBalancer",
    "HcnQueryEndpointProperties",
    "HcnQueryLoadBalancerProperties",
    "HcnCreateEndpoint",
    "HcnCreateLoadBalancer",
    "HcnModifyLoadBalancer",
    "HcnDeleteEndpoint",
    "HcnDeleteLoadBalancer",
    "HcnOpenNetwork",
];

const CODES: [Code; 10] = [
    Code::NOT_RUNNING,
    Code::TIMEOUT,
    Code::SERVER_UNAVAILABLE,
    Code::CALL_FAILED,
    Code::INVALID_POLICY,
    Code::PORT_EXISTS,
    Code::ALREADY_EXISTS,
    Code::MANAGER_STOPPING,
    Code::INVALID_REFERENCE,
    Code::HAS_REFERENCES,
];

/// The address and port of each load balancer.
fn frontends(host: &Host) -> BTreeSet<String> {
    let lines = host.lines().into_iter().filter(|line| line.starts_with("balancer"));
    lines.map(|line| line.split(" to ").next().unwrap_or_default().to_owned()).collect()
}

/// Adds the pods of this node that the host does not have from the beginning: on an overlay network it has none with IPv6.
fn add_pods(host: &mut Host, is_overlay: bool, intents: &[Intent]) {
    let all: Vec<&Intent> = intents.iter().collect();
    let known = ["10.244.1.5", "10.244.1.6", "10.244.1.2", "fd00:10:244:1::5", "fd00:10:244:1::6"];
    for ip in pods_here(&all) {
        let text = ip.to_string();
        let is_known = known.contains(&text.as_str()) && !(is_overlay && ip.is_ipv6());
        if !is_known {
            host.add_pod(&text, &[&text]);
        }
    }
}

/// As the agent does: a start, then changes of what differs. What fails is left to `settle`.
fn go(dataplane: &mut ferroxy_kernelspace::Kernelspace, from: &Intent, to: &Intent) {
    if dataplane.acknowledged().node() != &to.node || from.services.is_empty() {
        // The ledger must know the node, whatever fails.
        drop(dataplane.start(to));
        return;
    }
    drop(dataplane.change(changes(from, to)));
}

fn changes(from: &Intent, to: &Intent) -> Vec<Change> {
    let names: BTreeSet<_> = from.services.keys().chain(to.services.keys()).collect();
    let differs = |name: &&_| from.services.get(*name) != to.services.get(*name);
    names.into_iter().filter(differs).map(|name| (name.clone(), to.services.get(name).cloned())).collect()
}

/// Retries as the agent does: what is not acknowledged, and a verification. A Service with a pod to which no route leads is retried
/// until there is one; here there will be none.
fn settle(dataplane: &mut ferroxy_kernelspace::Kernelspace, wanted: &Intent) -> bool {
    for _ in 0..8 {
        let mut acknowledged = Intent { node: wanted.node.clone(), ..Intent::default() };
        let services = dataplane.acknowledged().services();
        acknowledged.services.extend(services.map(|(name, it)| (name.clone(), it)));
        let missing = changes(&acknowledged, wanted);
        let changed = dataplane.change(missing);
        let verified = dataplane.verify();
        let is_quiet = verified.is_ok_and(|repair| repair.operations == 0);
        let waits_for_route = |it: &Refusal| it.reason.starts_with("the overlay has no route to the pod");
        if changed.is_ok_and(|outcome| outcome.refused.iter().all(waits_for_route)) && is_quiet {
            return true;
        }
    }
    false
}
