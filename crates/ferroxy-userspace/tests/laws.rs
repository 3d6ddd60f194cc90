//! Laws on random clusters: packets go where the oracle says, Plans lead from one State to the other, and a change costs its size.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use std::collections::BTreeSet;

use ferroxy_core::testing::{Cluster, clusters, config, interesting_packets};
use ferroxy_core::{Facts, Family, Intent, Packet, oracle, resolve};
use ferroxy_dataplane::Change;
use ferroxy_userspace::ledger::Ledger;
use ferroxy_userspace::settings::{ClusterIps, Rules};
use ferroxy_userspace::{Op, Plan, Settings, State, diff, interpret, render};
use proptest::prelude::*;

/// Seeds of counterexamples. They are committed with the fix.
const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

fn carried_out(mut state: State, ops: &[Op]) -> Result<State, TestCaseError> {
    for op in ops {
        state.apply(op).map_err(|refused| TestCaseError::fail(format!("{op}: {refused}")))?;
    }
    Ok(state)
}

fn all(plan: &Plan) -> Vec<Op> {
    plan.ops().cloned().collect()
}

fn rendered(cluster: &Cluster, settings: &Settings) -> State {
    render(&cluster.intent(), settings, &Family::ALL)
}

fn with(rules: Rules) -> Settings {
    Settings { rules, ..Settings::default() }
}

fn changes(before: &Intent, after: &Intent) -> Vec<Change> {
    let names: BTreeSet<_> = before.services.keys().chain(after.services.keys()).cloned().collect();
    let differs = |name: &_| before.services.get(name) != after.services.get(name);
    names.into_iter().filter(differs).map(|name| (name.clone(), after.services.get(&name).cloned())).collect()
}

proptest! {
    #![proptest_config(config(96, COUNTEREXAMPLES))]

    #[test]
    fn packets_go_where_the_oracle_says(cluster in clusters()) {
        let intent = cluster.intent();
        let state = render(&intent, &Settings::default(), &Family::ALL);
        for packet in interesting_packets(&intent) {
            prop_assert_eq!(interpret(&state, &packet), oracle::userspace(&intent, &packet), "{:?}", packet);
        }
    }

    /// A local route makes cluster IPs addresses of the host, which then refuses packets to them that no Service serves.
    #[test]
    fn without_translation_they_go_there_too(cluster in clusters()) {
        let intent = cluster.intent();
        let settings = Settings { cluster_ips: ClusterIps::Bind, ..Settings::default() };
        let state = render(&intent, &settings, &Family::ALL);
        for packet in interesting_packets(&intent) {
            let is_cluster_ip = intent.services.values().any(|it| it.cluster_ips.contains(&packet.destination));
            let to_this_host = packet.to_this_host || is_cluster_ip;
            let packet = Packet { to_this_host, ..packet };
            let served = oracle::userspace(&intent, &packet);
            if is_cluster_ip && !matches!(served, ferroxy_core::Verdict::Endpoints(_)) {
                continue;
            }
            prop_assert_eq!(interpret(&state, &packet), served, "{:?}", packet);
        }
    }

    #[test]
    fn a_plan_turns_one_state_into_the_other(a in clusters(), b in clusters()) {
        for rules in [Rules::Nftables, Rules::Iptables, Rules::None] {
            let (a, b) = (rendered(&a, &with(rules)), rendered(&b, &with(rules)));
            prop_assert!(diff(&a, &a).is_empty());
            prop_assert_eq!(carried_out(a.clone(), &all(&diff(&a, &b)))?, b);
        }
    }

    #[test]
    fn the_same_cluster_renders_to_the_same_bytes(cluster in clusters()) {
        let text = || rendered(&cluster, &Settings::default()).to_string();
        prop_assert_eq!(text(), text());
    }

    /// Changes one by one lead to the same listeners and pools as a start, and to the same answers.
    #[test]
    fn changes_lead_to_the_same_behaviour_as_a_start(cluster in clusters()) {
        let mut facts = Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        let settings = Settings::default();
        let mut ledger = Ledger::new(&Family::ALL, intent.node.clone(), settings.clone());
        let mut seen = State { redirects: ledger.scene().redirects(), ..State::default() };
        for event in &cluster.events {
            let before = intent.clone();
            let touched = facts.apply(event.clone());
            resolve::update(&facts, &touched, &mut intent);
            let step = ledger.plan_node(&intent.node, &settings);
            seen = carried_out(seen, &[step.first, step.last].concat())?;
            ledger.settle_node(intent.node.clone(), settings.clone());
            let changes = changes(&before, &intent);
            let step = ledger.plan(&changes);
            prop_assert!(step.without_port.is_empty());
            seen = carried_out(seen, &[step.first, step.last].concat())?;
            for (name, service) in changes {
                ledger.settle(&name, service, BTreeSet::new());
            }
            let wanted = ferroxy_userspace::render::render_with(&intent, &settings, &Family::ALL, ledger.ports());
            prop_assert_eq!((&seen.pools, &seen.frontends), (&wanted.pools, &wanted.frontends));
            for packet in interesting_packets(&intent) {
                prop_assert_eq!(interpret(&wanted, &packet), oracle::userspace(&intent, &packet), "{:?}", packet);
            }
        }
    }
}

mod one_endpoint {
    //! The cost of a change is the size of the change.

    use std::collections::BTreeSet;

    use ferroxy_core::testing::service_over;
    use ferroxy_core::{Family, NodeIntent, Protocol};
    use ferroxy_userspace::Settings;
    use ferroxy_userspace::ledger::Ledger;

    fn cost(protocol: Protocol, services: u16) -> (usize, usize, usize) {
        let mut ledger = Ledger::new(&[Family::V4], NodeIntent::default(), Settings::default());
        let all: Vec<_> = (0..services).map(|n| service_over(protocol, n, 0..10)).collect();
        let all: Vec<_> = all.into_iter().map(|(name, it)| (name, Some(it))).collect();
        ledger.plan(&all);
        all.into_iter().for_each(|(name, service)| ledger.settle(&name, service, BTreeSet::new()));
        let (name, changed) = service_over(protocol, 1, 0..9);
        let step = ledger.plan(&[(name, Some(changed))]);
        (step.first.len(), step.rules.len(), step.last.len())
    }

    #[test]
    fn costs_one_pool_and_no_rule_whatever_the_size() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            assert_eq!(cost(protocol, 10), (1, 0, 0));
            assert_eq!(cost(protocol, 10_000), (1, 0, 0));
        }
    }
}
