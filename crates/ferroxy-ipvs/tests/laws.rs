//! Ring 0: laws that hold for every cluster, checked on random clusters.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::sync::Arc;

use ferroxy_core::oracle::ipvs as oracle;
use ferroxy_core::testing::{Cluster, HOST_ADDRESSES, clusters, config, interesting_packets};
use ferroxy_core::{
    Facts, Family, Intent, NodeIntent, Origin, Packet, Protocol, Route, ServiceIntent, Verdict, resolve,
};
use ferroxy_iptables::TableName;
use ferroxy_ipvs::diff::keeping_the_unknown;
use ferroxy_ipvs::ledger::Ledger;
use ferroxy_ipvs::scheduler::Scheduler;
use ferroxy_ipvs::{Op, Parameters, Plan, State, diff, interpret, render};
use proptest::prelude::*;
use support::{Kernel, changes, service};

/// The addresses on which node ports answer are addresses of the host.
fn parameters(intent: &Intent) -> Parameters {
    let mut host: std::collections::BTreeSet<std::net::IpAddr> =
        HOST_ADDRESSES.iter().map(|ip| ip.parse().unwrap()).collect();
    for family in Family::ALL {
        if let ferroxy_core::intent::NodePortAddresses::These(these) =
            &intent.node.family(family).node_port_addresses
        {
            host.extend(these);
        }
    }
    Parameters { host_addresses: host, ..Parameters::default() }
}

fn rendered(cluster: &Cluster) -> State {
    let intent = cluster.intent();
    render(&intent, &parameters(&intent), &Family::ALL)
}

fn carry_out(kernel: &mut Kernel, plan: &Plan) -> Result<(), TestCaseError> {
    kernel.carry_out(plan).map_err(|refused| TestCaseError::fail(format!("{refused}\nin\n{plan}")))
}

/// Commit this file together with the fix.
const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

proptest! {
    #![proptest_config(config(128, COUNTEREXAMPLES))]

    #[test]
    fn packets_go_where_the_oracle_says(cluster in clusters()) {
        let intent = cluster.intent();
        let state = render(&intent, &parameters(&intent), &Family::ALL);
        for packet in interesting_packets(&intent) {
            prop_assert_eq!(interpret(&state, &packet), oracle(&intent, &packet), "{:?}\n{}", packet, state);
        }
    }

    #[test]
    fn a_plan_does_what_it_is_for(a in clusters(), b in clusters()) {
        let (a, b) = (rendered(&a), rendered(&b));
        let mut kernel = Kernel::default();
        carry_out(&mut kernel, &diff(&State::default(), &a))?;
        prop_assert_eq!(&kernel.state, &a);
        carry_out(&mut kernel, &diff(&a, &b))?;
        prop_assert_eq!(&kernel.settled(), &b);
        prop_assert!(diff(&kernel.state, &b).is_empty(), "what drains is left alone");
        let back = diff(&kernel.state, &a);
        carry_out(&mut kernel, &back)?;
        prop_assert_eq!(&kernel.settled(), &a);
        let cleanup = diff(&kernel.state, &State::default());
        carry_out(&mut kernel, &cleanup)?;
        prop_assert!(kernel.state.is_empty(), "{}", kernel.state);
    }

    /// While not all of the cluster can be read, no existing object is removed.
    #[test]
    fn the_unknown_can_be_kept(a in clusters(), b in clusters()) {
        let (a, b) = (rendered(&a), rendered(&b));
        let plan = diff(&a, &keeping_the_unknown(&a, b));
        let takes = |op: &&Op| matches!(op, Op::RemoveServer(_) | Op::RemoveAddress(_) | Op::RemoveMember(..) | Op::Unguard(_) | Op::DestroySet(_));
        prop_assert_eq!(plan.ops().iter().find(takes), None);
    }

    #[test]
    fn changes_add_up(cluster in clusters(), all_are_large in any::<bool>()) {
        let mut facts = Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        let ledger = Ledger::new(&Family::ALL, parameters(&intent), intent.node.clone());
        let mut ledger = if all_are_large { ledger.treating_all_as_large() } else { ledger };
        let mut kernel = Kernel::default();
        carry_out(&mut kernel, &ledger.plan_program())?;
        for events in cluster.events.chunks(3) {
            let before = intent.clone();
            for event in events {
                let touched = facts.apply(event.clone());
                resolve::update(&facts, &touched, &mut intent);
            }
            let parameters = parameters(&intent);
            carry_out(&mut kernel, &ledger.plan_node(&intent.node, &parameters))?;
            ledger.settle_node(intent.node.clone(), parameters.clone());
            let (plan, settlement) = ledger.plan(&changes(&before, &intent));
            carry_out(&mut kernel, &plan)?;
            ledger.settle(settlement);
            let fresh = render(&intent, &parameters, &Family::ALL);
            prop_assert_eq!(&ledger.state(), &fresh);
            prop_assert_eq!(&kernel.settled(), &fresh);
        }
    }
}

mod size {
    //! The cost of a change is the size of the change.

    use std::sync::Arc;

    use ferroxy_core::intent::FrontendKind;
    use ferroxy_core::{Family, Frontend, NodeIntent, PortIntent, Protocol, Route, ServiceIntent};
    use ferroxy_dataplane::Change;
    use ferroxy_ipvs::ledger::Ledger;
    use ferroxy_ipvs::scheduler::Scheduler;
    use ferroxy_ipvs::{Op, Parameters};

    use super::support::{Kernel, service};

    fn change(number: u16, endpoints: std::ops::Range<u16>) -> Change {
        let (name, service) = service(number, Protocol::Tcp, endpoints);
        (name, Some(service))
    }

    fn ledger(services: u16) -> Ledger {
        let mut ledger = Ledger::new(&[Family::V4], Parameters::default(), NodeIntent::default());
        let all: Vec<Change> = (0..services).map(|n| change(n, 0..5)).collect();
        let settlement = ledger.plan(&all).1;
        ledger.settle(settlement);
        ledger
    }

    #[test]
    fn an_endpoint_costs_one_operation_whatever_the_cluster() {
        for services in [2, 200, 3000] {
            let ledger = ledger(services);
            let (gone, _) = ledger.plan(&[change(1, 1..5)]);
            assert!(
                matches!(gone.ops(), [Op::Drain(..)]),
                "others still have the pod in KUBE-LOOP-BACK: {gone}"
            );
            let (come, _) = ledger.plan(&[change(1, 0..6)]);
            assert!(matches!(come.ops(), [Op::AddEndpoint(..)]), "{come}");
        }
    }

    #[test]
    fn a_change_of_a_huge_service_costs_the_frontends_that_change() {
        let frontend = |number: u8| Frontend {
            kind: FrontendKind::ExternalIp,
            address: Some([192, 0, 2, number].into()),
            port: 80,
            route: Route::ExternalCluster,
            allowed_sources: None,
        };
        let (name, service) = service(7, Protocol::Tcp, 0..50);
        let mut huge = ServiceIntent::clone(&service);
        huge.ports[0].frontends.extend((0..100).map(frontend));
        huge.ports.push(PortIntent { name: "other".into(), ..huge.ports[0].clone() });
        huge.ports[1].frontends.iter_mut().for_each(|it| it.port = 81);
        let mut ledger = ledger(2);
        let mut kernel = Kernel::default();
        kernel.carry_out(&ledger.plan_program()).unwrap();
        kernel.carry_out(&ferroxy_ipvs::diff(&kernel.state, &ledger.state())).unwrap();
        let mut rendered = |huge: &ServiceIntent| {
            let (plan, settlement) = ledger.plan(&[(name.clone(), Some(Arc::new(huge.clone())))]);
            kernel.carry_out(&plan).unwrap();
            let rendered = settlement.rendered();
            ledger.settle(settlement);
            assert_eq!(kernel.settled(), ledger.state());
            rendered
        };
        let one = 51;
        assert_eq!(rendered(&huge), 202 * one);
        huge.ports[0].frontends.push(frontend(200));
        assert_eq!(rendered(&huge), one);
        // The other port still has the address.
        huge.ports[0].frontends.retain(|it| *it != frontend(7));
        assert_eq!(rendered(&huge), one);
        huge.ports[1].cluster.truncate(20);
        assert_eq!(rendered(&huge), 101 * (51 + 21));
        huge.annotations = vec![(Scheduler::ANNOTATION, "mh".into())];
        assert!(rendered(&huge) > 200 * 21);
    }

    #[test]
    fn a_service_costs_its_own_objects() {
        let ledger = ledger(500);
        let (gone, _) = ledger.plan(&[(service(7, Protocol::Tcp, 0..0).0, None)]);
        assert_eq!(gone.len(), 4, "two members, the address, the server: {gone}");
        let (come, _) = ledger.plan(&[change(1000, 0..5)]);
        assert_eq!(come.len(), 9, "two members, the server, its endpoints, the address: {come}");
        for op in come.ops() {
            assert_eq!(ledger.owner(&[change(1000, 0..5)], op).unwrap().as_str(), "default/s1000");
        }
    }

    #[test]
    fn an_endpoint_that_comes_back_is_revived() {
        let mut ledger = ledger(2);
        let mut kernel = Kernel::default();
        kernel.carry_out(&ferroxy_ipvs::diff(&kernel.state, &ledger.state())).unwrap();
        let (plan, settlement) = ledger.plan(&[change(1, 0..4)]);
        kernel.carry_out(&plan).unwrap();
        ledger.settle(settlement);
        let repaired = ferroxy_ipvs::diff(&kernel.state, &ledger.state());
        assert!(repaired.is_empty(), "{repaired}");
        let (plan, settlement) = ledger.plan(&[change(1, 0..5)]);
        assert!(
            matches!(plan.ops(), [Op::AddEndpoint(..)]),
            "the ledger does not know that it is still there: {plan}"
        );
        ledger.settle(settlement);
        let seen = ferroxy_ipvs::diff(&kernel.state, &ledger.state());
        assert!(matches!(seen.ops(), [Op::Revive(..)]), "who looks does: {seen}");
        kernel.carry_out(&plan).unwrap();
        assert_eq!(kernel.state, ledger.state());
    }

    #[test]
    fn udp_goes_at_once() {
        let mut ledger = ledger(2);
        let (name, before) = service(9, Protocol::Udp, 0..3);
        let settlement = ledger.plan(&[(name.clone(), Some(before))]).1;
        ledger.settle(settlement);
        let after = service(9, Protocol::Udp, 0..2).1;
        let (plan, _) = ledger.plan(&[(name, Some(after))]);
        assert!(matches!(plan.ops(), [Op::RemoveEndpoint(..)]), "{plan}");
    }
}

/// Until the virtual servers can serve, the rules of iptables mode serve, in chains of the same names.
#[test]
fn after_iptables_mode_rules_are_written_last() {
    let services = [service(1, Protocol::Tcp, 1..3), service(2, Protocol::Udp, 1..3)].into();
    let wanted = render(&Intent { services, ..Intent::default() }, &Parameters::default(), &[Family::V4]);
    let mut seen = State { rules: wanted.rules.clone(), ..State::default() };
    let nat = seen.rules.tables.get_mut(&(Family::V4, TableName::Nat)).unwrap();
    nat.chains.insert("KUBE-SERVICES".into(), ["-j KUBE-SVC-LOLE4ISW44XBNF3G"].into_iter().collect());
    let is_rules = |op: &Op| matches!(op, Op::WriteRules(_));
    let plan = diff(&seen, &wanted);
    assert_eq!(plan.ops().iter().position(is_rules), Some(plan.len() - 1), "{plan}");
    // If our device exists, the rules are ours, and are written before the virtual servers.
    let seen = State { device: Some(Default::default()), ..seen };
    let plan = diff(&seen, &wanted);
    let first_server = plan.ops().iter().position(|op| matches!(op, Op::AddServer(..)));
    assert!(plan.ops().iter().position(is_rules) < first_server, "{plan}");
}

/// `internalTrafficPolicy: Local` without an endpoint on this node: the original's virtual server has no endpoints, and the
/// kernel refuses connections of all clients.
#[test]
fn internal_policy_local_without_a_local_endpoint_refuses_everybody() {
    let (name, service) = service(1, Protocol::Tcp, 1..3);
    let mut service = ServiceIntent::clone(&service);
    service.ports[0].frontends[0].route = Route::Drop;
    let intent = Intent { services: [(name, Arc::new(service))].into(), ..Intent::default() };
    let state = render(&intent, &Parameters::default(), &[Family::V4]);
    let destination = [10, 96, 0, 1].into();
    let pod = ([10, 244, 1, 5].into(), Origin::Interface("cbr0".into()));
    let outside = ([172, 18, 0, 100].into(), Origin::Interface("eth0".into()));
    for (source, origin) in [pod, outside, (destination, Origin::Host)] {
        let packet =
            Packet { source, origin, destination, port: 80, protocol: Protocol::Tcp, to_this_host: false };
        assert_eq!(interpret(&state, &packet), Verdict::Reject, "{packet:?}");
        assert_eq!(oracle(&intent, &packet), Verdict::Reject, "{packet:?}");
    }
}

#[test]
fn another_scheduler_changes_a_virtual_server_in_place() {
    let (name, plain) = service(1, Protocol::Tcp, 1..3);
    let chosen = Arc::new(ServiceIntent {
        annotations: vec![(Scheduler::ANNOTATION, "mh".into())],
        ..(*plain).clone()
    });
    let mut ledger = Ledger::new(&[Family::V4], Parameters::default(), NodeIntent::default());
    let (_, settlement) = ledger.plan(&[(name.clone(), Some(plain.clone()))]);
    ledger.settle(settlement);
    let (plan, settlement) = ledger.plan(&[(name.clone(), Some(chosen))]);
    ledger.settle(settlement);
    assert_eq!(plan.to_string(), "ipvsadm -E -t 10.96.0.1:80 -s mh -b mh-port\n");
    let (plan, _) = ledger.plan(&[(name, Some(plain))]);
    assert_eq!(plan.to_string(), "ipvsadm -E -t 10.96.0.1:80 -s rr\n");
}
