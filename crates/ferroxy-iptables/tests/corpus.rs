//! Conformance of the rules. Ring 0: for every recorded case the rules are those of the original, and every recorded probe
//! follows from them. Ring 2: after a start, the real tools of both variants print the same rules. No packets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

#[allow(dead_code, reason = "the running dataplane is tested elsewhere")]
#[path = "support/host.rs"]
mod host;

use std::fs;

use ferroxy_core::{Family, Intent, Packet};
use ferroxy_dataplane::Dataplane;
use ferroxy_iptables::dataplane::observe::observe;
use ferroxy_iptables::door::Door;
use ferroxy_iptables::state::Rules;
use ferroxy_iptables::text::parse;
use ferroxy_iptables::tool::Limits;
use ferroxy_iptables::{Parameters, State, interpret, render};
use ferroxy_lab::conformance::{self, Case, Mode, Trial};
use ferroxy_lab::{Capability, Namespace, require};

use host::{WRITERS, door_of, tools_of};

/// The recordings were made where the kernel has nfacct counters.
const PARAMETERS: Parameters = Parameters { masquerade_mark: 0x4000, nfacct: true, tcp_be_liberal: false };

fn trials() -> Vec<Trial> {
    let trials = Trial::all(Mode::Iptables).expect("the corpus is there");
    assert!(trials.len() >= 36, "only {} cases", trials.len());
    trials
}

fn recorded(case: &Case) -> State {
    let text = fs::read_to_string(case.folder.join("iptables.rules")).unwrap();
    let (v4, v6) = text.split_once("# ip6tables-save").unwrap();
    let mut state = parse(Family::V4, v4);
    state.tables.extend(parse(Family::V6, v6).tables);
    let rules = state.tables.values().flat_map(|table| table.chains.values().chain(table.jumps.values()));
    let written = text.lines().filter(|line| line.starts_with("-A ")).count();
    assert_eq!(rules.map(Rules::len).sum::<usize>(), written, "{}: nothing was passed over", case.name);
    state
}

/// Sorts the rules by Service name, because the original puts Services in any order. The rules of a Service stay together;
/// rules of no Service stay at the end.
fn by_service(rules: &Rules) -> Rules {
    let service = |rule: &&str| {
        let comment = rule.split_once("--comment \"").map_or("~", |(_, comment)| comment);
        let name = comment.split([' ', '"']).next().unwrap();
        if name.contains('/') { name.to_owned() } else { "~".to_owned() }
    };
    let mut sorted: Vec<&str> = rules.iter().collect();
    sorted.sort_by_key(service);
    sorted.into_iter().collect()
}

fn in_one_order(mut state: State) -> State {
    for table in state.tables.values_mut() {
        for (chain, rules) in &mut table.chains {
            if ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"].contains(&&**chain) {
                *rules = by_service(rules);
            }
        }
    }
    state
}

#[test]
fn every_recorded_ruleset_is_rendered_exactly() {
    for trial in trials() {
        let rendered = in_one_order(render(&trial.intent, PARAMETERS, &Family::ALL));
        are_equal(&rendered, &trial.case, "rendered");
    }
}

/// With the real tools and without them, the written rules are those that the tools print, and those that the original wrote.
/// We read rules of the tools as the tools print them.
#[test]
fn every_recorded_ruleset_comes_back_from_the_kernel_exactly() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for writer in WRITERS {
        for trial in trials() {
            let started = || {
                writer.dataplane(Limits::default()).start(&trial.intent).unwrap();
                let doors = Family::ALL.map(|family| Door::tool(tools_of(family, writer.variant())));
                let printed = observe(&mut { doors }, &Limits::default()).unwrap();
                let doors = Family::ALL.map(|family| door_of(family, writer.variant()));
                let read = observe(&mut { doors }, &Limits::default()).unwrap();
                assert_eq!(read.to_string(), printed.to_string(), "{} {writer:?}", trial.case.name);
                printed
            };
            let seen = Namespace::new("recorded").unwrap().run(started).unwrap();
            are_equal(&in_one_order(seen), &trial.case, &format!("{writer:?}"));
        }
    }
}

fn are_equal(ours: &State, case: &Case, how: &str) {
    let (ours, theirs) = (ours.to_string(), in_one_order(recorded(case)).to_string());
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs, "{} {how}", case.name);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count(), "{} {how}", case.name);
}

#[test]
fn every_recorded_probe_follows_from_the_ruleset() {
    let rules = |intent: &Intent| {
        let state = render(intent, PARAMETERS, &Family::ALL);
        move |packet: &Packet| interpret(&state, packet)
    };
    let probes = conformance::play(&trials(), rules).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(probes > 100, "only {probes} probes: is the corpus complete?");
}
