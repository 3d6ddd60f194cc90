//! Ring 0: what holds for every cluster, checked on random ones.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use ferroxy_core::oracle::iptables as oracle;
use ferroxy_core::testing::{Cluster, clusters, config, interesting_packets};
use ferroxy_core::{Facts, Family, resolve};
use ferroxy_iptables::ledger::Ledger;
use ferroxy_iptables::state::Rules;
use ferroxy_iptables::text::parse;
use ferroxy_iptables::xt::expression::Found;
use ferroxy_iptables::{Parameters, Plan, State, TableName, diff, interpret, render, xt};
use ferroxy_netlink::nftables::{decode_expressions, encode_expressions};
use proptest::prelude::*;
use support::{Kernel, changes, turned_into};

/// Clusters as iptables mode meets them.
fn iptables_clusters() -> impl Strategy<Value = Cluster> {
    (clusters(), any::<bool>()).prop_map(|(mut cluster, localhost)| {
        cluster.policy.node_ports_on_loopback = localhost;
        cluster
    })
}

fn parameters() -> impl Strategy<Value = Parameters> {
    (any::<bool>(), any::<bool>(), 0..32u32).prop_map(|(nfacct, tcp_be_liberal, bit)| Parameters {
        masquerade_mark: 1 << bit,
        nfacct,
        tcp_be_liberal,
    })
}

fn rendered(cluster: &Cluster, parameters: Parameters) -> State {
    render(&cluster.intent(), parameters, &Family::ALL)
}

fn carry_out(kernel: &mut Kernel, plan: &Plan) -> Result<(), TestCaseError> {
    let foreign = kernel.foreign();
    kernel.carry_out(plan).map_err(|refused| TestCaseError::fail(format!("{refused}\nin\n{plan}")))?;
    prop_assert_eq!(kernel.foreign(), foreign, "others' rules were touched");
    Ok(())
}

/// Output that a save tool might print, and much that it would not.
fn saved() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("*nat".to_owned()),
        Just("*filter".to_owned()),
        Just("COMMIT".to_owned()),
        "(:|\\[1:2\\] -A |-A )(KUBE-S(VC-[AB]|ERVICES)|INPUT|KUBE-FIREWALL|MINE)( -|.{0,9})( -j KUBE-(SERVICES|FIREWALL)|\"| )?",
        ".{0,20}",
    ];
    prop::collection::vec(line, 0..20).prop_map(|lines| lines.join("\n"))
}

/// Seeds of counterexamples. They are committed with the fix.
const COUNTEREXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/laws.txt");

proptest! {
    #![proptest_config(config(128, COUNTEREXAMPLES))]

    /// Every rule that we write has a form in the kernel, which is read as the same rule.
    #[test]
    fn every_rule_is_the_same_as_text_and_in_the_kernel(cluster in iptables_clusters(), parameters in parameters()) {
        let state = rendered(&cluster, parameters);
        let sets = xt::Sets::default();
        for ((family, _), table) in &state.tables {
            let terms = xt::Terms { family: *family, sets: &sets };
            for rule in table.chains.values().chain(table.jumps.values()).flat_map(Rules::iter) {
                // A detector of all addresses: "not from 0.0.0.0/0" has no form, and the tool refuses it, too.
                if rule.contains("! -s 0.0.0.0/0") || rule.contains("! -s ::/0") {
                    continue;
                }
                let Some(spec) = xt::parse(terms, rule) else {
                    return Err(TestCaseError::fail(format!("not known: {rule}")));
                };
                prop_assert_eq!(spec.display(*family).to_string(), rule);
                let bytes = encode_expressions(|out| xt::expression::write(&spec, *family, out));
                let read = xt::expression::read(terms, decode_expressions(&bytes));
                prop_assert_eq!(read, Ok(Found::Known(spec)));
            }
        }
    }

    /// The fuzzer in `fuzz/targets/iptables.rs` does the same with arbitrary bytes.
    #[test]
    fn whatever_is_read_prints_as_something_that_reads_the_same(text in saved()) {
        for family in Family::ALL {
            let state = parse(family, &text);
            prop_assert_eq!(&parse(family, &state.to_string()), &state);
            prop_assert!(diff(&state, &state).is_empty());
            prop_assert_eq!(diff(&State::default(), &state).is_empty(), state.is_empty());
        }
    }

    #[test]
    fn packets_go_where_the_oracle_says(cluster in iptables_clusters(), parameters in parameters()) {
        let intent = cluster.intent();
        let state = render(&intent, parameters, &Family::ALL);
        for packet in interesting_packets(&intent) {
            prop_assert_eq!(interpret(&state, &packet), oracle(&intent, &packet), "{:?}\n{}", packet, state);
        }
    }

    #[test]
    fn a_plan_does_what_it_is_for(a in iptables_clusters(), b in iptables_clusters(), parameters in parameters()) {
        let (a, b) = (rendered(&a, parameters), rendered(&b, Parameters::default()));
        let mut kernel = Kernel::new();
        carry_out(&mut kernel, &diff(&State::default(), &a))?;
        prop_assert_eq!(&kernel.state(), &a);
        carry_out(&mut kernel, &diff(&a, &b))?;
        prop_assert_eq!(kernel.state(), turned_into(&a, &b));
    }

    #[test]
    fn back_to_nothing(cluster in iptables_clusters()) {
        let state = rendered(&cluster, Parameters::default());
        let mut kernel = Kernel::new();
        carry_out(&mut kernel, &diff(&State::default(), &state))?;
        carry_out(&mut kernel, &diff(&state, &State::default()))?;
        prop_assert_eq!(kernel.state(), turned_into(&state, &State::default()));
    }

    #[test]
    fn equal_states_need_nothing(cluster in iptables_clusters(), parameters in parameters()) {
        let state = rendered(&cluster, parameters);
        prop_assert!(diff(&state, &state).is_empty());
    }

    #[test]
    fn what_is_printed_is_read_back(cluster in iptables_clusters(), parameters in parameters()) {
        let state = rendered(&cluster, parameters);
        let text = state.to_string();
        let (v4, v6) = text.split_once("# ip6tables-save").unwrap();
        let mut read = parse(Family::V4, v4);
        read.tables.extend(parse(Family::V6, v6).tables);
        prop_assert_eq!(read, state);
        prop_assert_eq!(rendered(&cluster, parameters).to_string(), text, "the same bytes every time");
    }

    #[test]
    fn following_changes_is_the_same_as_starting_anew(cluster in iptables_clusters(), parameters in parameters()) {
        let mut facts = Facts::new(cluster.policy.clone());
        let mut intent = resolve::all(&facts).0;
        let mut ledger = Ledger::new(&Family::ALL, parameters, intent.node.clone());
        let mut kernel = Kernel::new();
        carry_out(&mut kernel, &ledger.plan_program())?;
        // Several events at once, too: Services that change together edit the same shared chains.
        for events in cluster.events.chunks(3) {
            let (before, seen) = (intent.clone(), kernel.state());
            for event in events {
                let touched = facts.apply(event.clone());
                resolve::update(&facts, &touched, &mut intent);
            }
            carry_out(&mut kernel, &ledger.plan_node(&intent.node, parameters))?;
            ledger.settle_node(intent.node.clone(), parameters);
            let (plan, settlement) = ledger.plan(&changes(&before, &intent));
            carry_out(&mut kernel, &plan)?;
            ledger.settle(settlement);
            let fresh = render(&intent, parameters, &Family::ALL);
            prop_assert_eq!(&ledger.state(), &fresh);
            prop_assert_eq!(kernel.state(), turned_into(&seen, &fresh));
        }
    }

    /// After another program flushes, deletes or adds rules of ours, the diff repairs them and leaves the rest alone.
    #[test]
    fn drift_is_mended(cluster in iptables_clusters(), salt in any::<prop::sample::Index>()) {
        let wanted = rendered(&cluster, Parameters::default());
        let mut kernel = Kernel::new();
        carry_out(&mut kernel, &diff(&State::default(), &wanted))?;
        let table = wanted.table(Family::V4, TableName::Nat).unwrap();
        let chains: Vec<_> = table.chains.keys().collect();
        let chain = salt.get(&chains);
        let damage = format!(
            "*nat\n:{chain} - [0:0]\n-A {chain} -j ACCEPT\n-D OUTPUT {jump}\n-A OUTPUT {jump}\n:KUBE-SEP-X - [0:0]\nCOMMIT\n",
            jump = table.jumps["OUTPUT"].iter().next().unwrap()
        );
        kernel.restore(Family::V4, &damage).unwrap();
        let plan = diff(&kernel.state(), &wanted);
        prop_assert_eq!(plan.len(), 2, "one chain written, one removed; the jump still stands: {}", plan);
        carry_out(&mut kernel, &plan)?;
        prop_assert_eq!(kernel.state(), wanted);
    }
}

mod size {
    //! The cost of a change is the size of the change.

    use ferroxy_core::{Family, Intent, NodeIntent};
    use ferroxy_dataplane::Change;
    use ferroxy_iptables::ledger::Ledger;
    use ferroxy_iptables::plan::Op;
    use ferroxy_iptables::{Parameters, Plan, TableName, render};

    use super::support::Kernel;
    use ferroxy_core::testing::service;

    fn change(number: u16, endpoints: std::ops::Range<u16>) -> Change {
        let (name, service) = service(number, endpoints);
        (name, Some(service))
    }

    fn ledger(services: u16, endpoints: u16) -> Ledger {
        let mut ledger = Ledger::new(&[Family::V4], Parameters::default(), NodeIntent::default());
        let all: Vec<Change> = (0..services).map(|n| change(n, 0..endpoints)).collect();
        let settlement = ledger.plan(&all).1;
        ledger.settle(settlement);
        ledger
    }

    fn lines(plan: &Plan) -> usize {
        plan.restore_input(Family::V4).lines().count()
    }

    #[test]
    fn an_endpoint_costs_its_service_whatever_the_cluster() {
        for services in [2, 200, 3000] {
            let ledger = ledger(services, 10);
            let gone = ledger.plan(&[change(1, 0..9)]).0;
            assert_eq!(gone.len(), 2, "the Service's chain is written, the endpoint's removed: {gone}");
            assert_eq!(lines(&gone), 2 + 2 + 9 + 1);
            let come = ledger.plan(&[change(1, 0..11)]).0;
            assert_eq!(come.len(), 2, "the Service's chain is written, the endpoint's made: {come}");
            assert_eq!(lines(&come), 2 + 2 + 11 + 2);
        }
    }

    #[test]
    fn a_service_costs_one_rule_in_a_shared_chain() {
        let ledger = ledger(2000, 1);
        let (name, _) = service(700, 0..0);
        let gone = ledger.plan(&[(name, None)]).0;
        let in_shared = |plan: &Plan| plan.ops().filter(|(_, _, op)| op.chain() == "KUBE-SERVICES").count();
        assert_eq!((in_shared(&gone), gone.len()), (1, 3), "{gone}");
        let no_endpoint = ledger.plan(&[change(700, 0..0)]).0;
        assert_eq!(in_shared(&no_endpoint), 2, "from nat to filter: {no_endpoint}");
        let come = ledger.plan(&[change(7000, 0..1)]).0;
        assert_eq!((in_shared(&come), come.len()), (1, 3), "{come}");
    }

    #[test]
    fn many_changes_write_the_shared_chain_once() {
        let ledger = ledger(200, 1);
        let changes: Vec<Change> = (100..150).map(|n| (service(n, 0..0).0, None)).collect();
        let plan = ledger.plan(&changes).0;
        let shared: Vec<&Op> =
            plan.ops().map(|(_, _, op)| op).filter(|op| op.chain() == "KUBE-SERVICES").collect();
        assert!(matches!(shared[..], [Op::Write { rules, .. }] if rules.len() == 150), "{shared:?}");
    }

    #[test]
    fn every_line_of_a_plan_leads_back_to_its_service() {
        let ledger = ledger(100, 2);
        let changes = [
            change(5, 0..3),
            change(6, 1..2),
            (service(7, 0..0).0, None),
            change(8, 0..0),
            change(500, 0..2),
        ];
        let (plan, _) = ledger.plan(&changes);
        let mut found = std::collections::BTreeSet::new();
        for line in plan.restore_input(Family::V4).lines() {
            if !["*nat", "*filter", "COMMIT"].contains(&line) {
                found
                    .extend(Some(ledger.owner(&changes, line).unwrap_or_else(|| panic!("nobody's: {line}"))));
            }
        }
        assert_eq!(found.len(), changes.len());
        assert_eq!(ledger.owner(&changes, "-A KUBE-SERVICES -j ACCEPT"), None);
    }

    /// A Service has more rules where everything is masqueraded.
    #[test]
    fn rules_are_counted_again_when_the_node_changes() {
        let mut ledger = ledger(10, 1);
        let node = NodeIntent { masquerade_all: true, ..NodeIntent::default() };
        ledger.settle_node(node, Parameters::default());
        let state = ledger.state();
        let nat = state.table(Family::V4, TableName::Nat).unwrap();
        let rules: usize = nat.chains.values().map(|rules| rules.len()).sum();
        assert_eq!(ledger.rule_count(Family::V4, TableName::Nat), rules as u64);
    }

    /// With 1,000 endpoints there are comments, with 1,001 there are none; in both directions.
    #[test]
    fn a_cluster_that_becomes_large_loses_its_comments() {
        let mut ledger = ledger(100, 10);
        let mut kernel = Kernel::new();
        kernel.carry_out(&ledger.plan_program()).unwrap();
        kernel.carry_out(&ferroxy_iptables::diff(&kernel.state(), &ledger.state())).unwrap();
        for (endpoints, commented) in [(0..11, false), (0..12, false), (0..10, true)] {
            let (plan, settlement) = ledger.plan(&[change(5, endpoints)]);
            kernel.carry_out(&plan).unwrap();
            ledger.settle(settlement);
            let services = ledger
                .acknowledged()
                .services()
                .map(|(name, service)| (name.clone(), service.clone()))
                .collect();
            let fresh = render(
                &Intent { node: ledger.node().clone(), services },
                Parameters::default(),
                &[Family::V4],
            );
            assert_eq!(kernel.state(), fresh);
            assert_eq!(fresh.to_string().contains("default/s7:http -> "), commented);
        }
    }
}
