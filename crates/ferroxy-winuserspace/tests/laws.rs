//! Laws on random clusters: packets go where the oracle says, Plans lead from one State to the other and can be cut anywhere, and
//! a change costs its size.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use std::collections::BTreeSet;

use ferroxy_core::testing::{Cluster, clusters, config, interesting_packets};
use ferroxy_core::{Facts, Family, Intent, Packet, Policy, oracle, resolve};
use ferroxy_dataplane::{Change, Settings as Values};
use ferroxy_winuserspace::ledger::Ledger;
use ferroxy_winuserspace::settings::shape;
use ferroxy_winuserspace::{Op, Settings, State, diff, interpret, render};
use proptest::prelude::*;

/// Seeds of counterexamples. They are committed with the fix.
const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

fn policy(cluster: &Cluster) -> Policy {
    let mut policy = cluster.policy.clone();
    shape(&Values::default(), &mut policy);
    policy
}

fn intent(cluster: &Cluster) -> Intent {
    let mut facts = Facts::new(policy(cluster));
    cluster.events.iter().for_each(|event| drop(facts.apply(event.clone())));
    resolve::all(&facts).0
}

fn rendered(cluster: &Cluster) -> State {
    render(&intent(cluster), &Settings::default(), &Family::ALL)
}

/// Applies operations as the host and the engine do: objects that are referred to must exist after every operation.
fn carried_out(mut state: State, ops: &[Op]) -> Result<State, TestCaseError> {
    for op in ops {
        state.apply(op).map_err(|refused| TestCaseError::fail(format!("{op}: {refused}")))?;
    }
    Ok(state)
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
        let intent = intent(&cluster);
        let state = render(&intent, &Settings::default(), &Family::ALL);
        for packet in interesting_packets(&intent) {
            // This host connects to an address of its own from that address.
            let own = Packet { source: packet.destination, ..packet.clone() };
            for packet in [packet, own] {
                prop_assert_eq!(interpret(&state, &packet), oracle::winuserspace(&intent, &packet), "{:?}\n{}", packet, state);
            }
        }
    }

    #[test]
    fn a_plan_turns_one_state_into_the_other_in_a_safe_order(a in clusters(), b in clusters()) {
        let (a, b) = (rendered(&a), rendered(&b));
        prop_assert!(diff(&a, &a).is_empty());
        prop_assert_eq!(carried_out(a.clone(), diff(&a, &b).ops())?, b.clone());
        // A process that ends at any operation leaves only addresses: a start leads to the same State.
        let plan = diff(&a, &b);
        for cut in 0..=plan.len() {
            let left = State { addresses: carried_out(a.clone(), &plan.ops()[..cut])?.addresses, ..State::default() };
            prop_assert_eq!(carried_out(left.clone(), diff(&left, &b).ops())?, b.clone());
        }
    }

    #[test]
    fn the_same_cluster_renders_to_the_same_bytes(cluster in clusters()) {
        prop_assert_eq!(rendered(&cluster).to_string(), rendered(&cluster).to_string());
    }

    /// Changes one by one lead to the same State as a start.
    #[test]
    fn changes_lead_to_the_same_state_as_a_start(cluster in clusters()) {
        let mut facts = Facts::new(policy(&cluster));
        let mut intent = resolve::all(&facts).0;
        let settings = Settings::default();
        let mut ledger = Ledger::new(&Family::ALL, intent.node.clone(), settings.clone());
        let mut seen = State::default();
        for event in &cluster.events {
            let before = intent.clone();
            let touched = facts.apply(event.clone());
            resolve::update(&facts, &touched, &mut intent);
            if !ledger.has_node(&intent.node, &settings) {
                ledger.set_node(intent.node.clone(), settings.clone());
                seen = carried_out(seen.clone(), diff(&seen, &ledger.state()).ops())?;
            }
            let changes = changes(&before, &intent);
            let touched = ledger.want(&changes);
            seen = carried_out(seen.clone(), diff(&touched.part_of(&seen), &touched.wanted).ops())?;
            ledger.settle(changes.iter().map(|(name, _)| name), &BTreeSet::new());
            prop_assert_eq!(&seen, &ledger.state());
            prop_assert_eq!(&seen, &render(&intent, &settings, &Family::ALL));
        }
    }
}

mod one_endpoint {
    //! The cost of a change is the size of the change.

    use std::collections::BTreeSet;

    use ferroxy_core::testing::service_over;
    use ferroxy_core::{Family, NodeIntent, Protocol};
    use ferroxy_winuserspace::ledger::Ledger;
    use ferroxy_winuserspace::{Settings, diff};

    fn cost(protocol: Protocol, services: u16) -> usize {
        let mut ledger = Ledger::new(&[Family::V4], NodeIntent::default(), Settings::default());
        let all: Vec<_> = (0..services).map(|n| service_over(protocol, n, 0..10)).collect();
        let all: Vec<_> = all.into_iter().map(|(name, it)| (name, Some(it))).collect();
        ledger.want(&all);
        ledger.settle(all.iter().map(|(name, _)| name), &BTreeSet::new());
        let in_force = ledger.state();
        let (name, changed) = service_over(protocol, 1, 0..9);
        let touched = ledger.want(&[(name, Some(changed))]);
        diff(&touched.part_of(&in_force), &touched.wanted).len()
    }

    #[test]
    fn costs_one_pool_whatever_the_size() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            assert_eq!((cost(protocol, 10), cost(protocol, 10_000)), (1, 1));
        }
    }
}
