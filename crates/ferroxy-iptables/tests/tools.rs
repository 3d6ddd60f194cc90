//! Ring 1 and 2: the real tools, nft and legacy alike, print back what we write. In namespaces of their own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::testing::{clusters, service};
use ferroxy_core::{Facts, Family, NodeIntent, resolve};
use ferroxy_iptables::ledger::Ledger;
use ferroxy_iptables::text::{parse, tool};
use ferroxy_iptables::{Parameters, Plan, State, diff, render};
use ferroxy_lab::{Capability, Namespace, require};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use support::{changes, turned_into};

const VARIANTS: [&str; 2] = ["nft", "legacy"];
const FOREIGN: &str = "-A INPUT -p icmp -j ACCEPT";

/// A host with a foreign rule in a chain that also gets our rules.
struct Host {
    namespace: Namespace,
    variant: &'static str,
}

impl Host {
    fn new(variant: &'static str) -> Host {
        let host = Host { namespace: Namespace::new(format!("iptables-{variant}")).unwrap(), variant };
        for family in Family::ALL {
            host.restore(family, &format!("*filter\n{FOREIGN}\nCOMMIT\n"));
        }
        host
    }

    fn carry_out(&self, plan: &Plan) {
        for family in Family::ALL {
            let input = plan.restore_input(family);
            if !input.is_empty() {
                self.restore(family, &input);
            }
        }
    }

    fn state(&self) -> State {
        let mut state = State::default();
        for family in Family::ALL {
            let text = self.save(family);
            assert!(text.contains(FOREIGN), "others' rules were touched:\n{text}");
            state.tables.extend(parse(family, &text).tables);
        }
        state
    }

    fn restore(&self, family: Family, input: &str) {
        let command = format!("{}-{}-restore", tool(family), self.variant);
        let output = self.namespace.run(|| {
            let mut child = Command::new(&command)
                .args(["-w", "5", "--noflush", "--counters"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the iptables tools are installed");
            // No pipe fills up here: inputs are small, and the tool says little.
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        });
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}\n{input}");
    }

    fn save(&self, family: Family) -> String {
        let command = format!("{}-{}-save", tool(family), self.variant);
        let output =
            self.namespace.run(|| Command::new(&command).output().expect("it is installed")).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn random_clusters_come_back_as_written_through_all_their_changes() {
    if !require(&[Capability::NetworkNamespaces]) {
        return;
    }
    let parameters = Parameters::default();
    let mut runner = TestRunner::deterministic();
    for round in 0..8 {
        let mut cluster = clusters().new_tree(&mut runner).unwrap().current();
        cluster.policy.node_ports_on_loopback = round % 2 == 0;
        for variant in VARIANTS {
            let host = Host::new(variant);
            let mut facts = Facts::new(cluster.policy.clone());
            let mut intent = resolve::all(&facts).0;
            let mut ledger = Ledger::new(&Family::ALL, parameters, intent.node.clone());
            host.carry_out(&ledger.plan_program());
            for events in cluster.events.chunks(6) {
                let (before, seen) = (intent.clone(), host.state());
                for event in events {
                    let touched = facts.apply(event.clone());
                    resolve::update(&facts, &touched, &mut intent);
                }
                host.carry_out(&ledger.plan_node(&intent.node, parameters));
                ledger.settle_node(intent.node.clone(), parameters);
                let (plan, settlement) = ledger.plan(&changes(&before, &intent));
                host.carry_out(&plan);
                ledger.settle(settlement);
                let wanted = render(&intent, parameters, &Family::ALL);
                assert_eq!(host.state().to_string(), turned_into(&seen, &wanted).to_string(), "{variant}");
            }
            host.carry_out(&diff(&host.state(), &State::default()));
            assert_eq!(host.state(), turned_into(&ledger.state(), &State::default()), "nothing is left");
        }
    }
}

/// Single rules that come and go in a long chain, at its ends and in its middle, several at once.
#[test]
fn edits_of_a_long_chain_land_where_they_should() {
    if !require(&[Capability::NetworkNamespaces]) {
        return;
    }
    for (variant, addresses) in
        VARIANTS.into_iter().zip([NodePortAddresses::AllLocal, NodePortAddresses::default()])
    {
        let host = Host::new(variant);
        let mut node = NodeIntent::default();
        node.v4.node_port_addresses = addresses;
        let mut ledger = Ledger::new(&[Family::V4], Parameters::default(), node);
        host.carry_out(&ledger.plan_program());
        let steps: [&[(u16, u16)]; 5] = [
            &[(100, 2), (110, 1), (120, 1), (130, 1), (140, 1), (150, 1), (160, 0), (170, 0), (180, 0)],
            &[(101, 1), (102, 1), (199, 1), (111, 1)],
            &[(100, 0), (160, 1), (120, 0), (199, 0), (200, 1)],
            &[(102, 3), (105, 1), (106, 1), (130, 0), (131, 1)],
            &[(160, 0), (161, 1), (162, 0), (205, 1), (206, 1)],
        ];
        for step in steps {
            let changes: Vec<_> = step
                .iter()
                .map(|(number, endpoints)| service(*number, 0..*endpoints))
                .map(|(name, service)| (name, Some(service)))
                .collect();
            let (plan, settlement) = ledger.plan(&changes);
            host.carry_out(&plan);
            ledger.settle(settlement);
            assert_eq!(host.state().to_string(), ledger.state().to_string(), "{variant}: {plan}");
        }
        let removed: Vec<_> = [100, 101, 150, 206].map(|number| (service(number, 0..0).0, None)).into();
        let (plan, settlement) = ledger.plan(&removed);
        host.carry_out(&plan);
        ledger.settle(settlement);
        assert_eq!(host.state(), ledger.state(), "{variant}: {plan}");
    }
}
