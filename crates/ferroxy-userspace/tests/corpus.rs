//! Ring 0: with `--userspace-rules=iptables` the rules are those that kube-proxy 1.25 wrote, for every recorded case.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]
#![cfg(target_os = "linux")]

#[path = "../../ferroxy-iptables/tests/support/bytes.rs"]
mod bytes;

use std::fs;

use ferroxy_core::Family;
use ferroxy_core::intent::NodePortAddresses;
use ferroxy_iptables::State as RuleState;
use ferroxy_iptables::state::Rules as Lines;
use ferroxy_iptables::text::Reader;
use ferroxy_iptables::xt::Sets;
use ferroxy_lab::conformance::{Mode, Trial};
use ferroxy_lab::{Capability, require};
use ferroxy_userspace::portals::owns;
use ferroxy_userspace::settings::Rules;
use ferroxy_userspace::{Settings, render};

/// The original served one family, that of its bind address. Ours serves both.
const RECORDED: Family = Family::V4;

/// Cases in which the original has other frontends than we do. The form of the rules is the same.
const OTHER_FRONTENDS: [(&str, &str); 1] =
    [("lb-ipmode-proxy", "the original's last userspace mode did not know ipMode: it captured the address")];

fn recorded(trial: &Trial) -> RuleState {
    let text = fs::read_to_string(trial.case.folder.join("userspace.rules")).unwrap();
    let (v4, _) = text.split_once("# ip6tables-save").unwrap();
    let mut reader = Reader::of(RECORDED, owns);
    v4.lines().for_each(|line| reader.line(line));
    reader.finish()
}

/// The rules as they are compared: without the proxy's ports, which differ from run to run, and without the API server's own
/// Service, which the recording has.
fn comparable(state: RuleState) -> Vec<String> {
    of_family(state, RECORDED)
}

fn of_family(state: RuleState, wanted: Family) -> Vec<String> {
    let mut lines = Vec::new();
    for ((family, table), rules) in state.tables.into_iter().filter(|((family, _), _)| *family == wanted) {
        for (chain, rules) in rules.chains.iter().chain(&rules.jumps) {
            let mut ours: Vec<String> = normalised(rules);
            ours.sort_by_key(|line| service(line).to_owned());
            lines.extend(ours.into_iter().map(|line| format!("{family} {table} {chain} {line}")));
        }
    }
    lines
}

fn service(line: &str) -> &str {
    line.split_once("--comment \"").and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default()
}

fn normalised(rules: &Lines) -> Vec<String> {
    let lines = rules.iter().filter(|line| !service(line).starts_with("default/kubernetes"));
    let without_ports = |line: &str| -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let port = |at: usize| match at.checked_sub(1).map(|before| words[before]) {
            Some("--to-ports") => true,
            Some("--dport") => line.ends_with("--state NEW -j ACCEPT"),
            _ => false,
        };
        let word = |(at, word): (usize, &&str)| match words.get(at.wrapping_sub(1)) {
            _ if port(at) => "PORT".to_owned(),
            Some(&"--to-destination") => {
                let (address, _) = word.rsplit_once(':').unwrap();
                format!("{address}:PORT")
            }
            _ => (*word).to_owned(),
        };
        words.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
    };
    lines.map(without_ports).collect()
}

/// Every recorded case, with the addresses of the recorded node.
fn trials() -> Vec<Trial> {
    let mut trials = Trial::all(Mode::Userspace).unwrap();
    assert!(trials.len() >= 36, "only {} cases", trials.len());
    for trial in &mut trials {
        let node = &mut trial.intent.node;
        node.v4.node_port_addresses = NodePortAddresses::These(["172.18.0.2".parse().unwrap()].into());
        node.v6.node_port_addresses = NodePortAddresses::These(["fd00:172:18::2".parse().unwrap()].into());
    }
    trials
}

fn iptables_rules() -> Settings {
    Settings { rules: Rules::Iptables, ..Settings::default() }
}

#[test]
fn every_recorded_ruleset_is_rendered_exactly() {
    let mut rules = 0;
    for trial in trials() {
        let rendered = render(&trial.intent, &iptables_rules(), &Family::ALL).rules.iptables;
        let (ours, theirs) = (comparable(rendered), comparable(recorded(&trial)));
        let differs = OTHER_FRONTENDS.iter().any(|(case, _)| *case == trial.case.name);
        if ours.is_empty() {
            // Only the API server's own Service has rules in the recording.
            assert!(theirs.iter().all(|line| !line.contains("default/")), "{}: {theirs:#?}", trial.case.name);
        } else {
            assert_eq!(ours == theirs, !differs, "{}: {ours:#?}\nrecorded: {theirs:#?}", trial.case.name);
        }
        rules += ours.len();
    }
    assert!(rules > 200, "only {rules} rules");
}

/// Rules of a dual-stack Service, with the port of the proxy left out.
fn of_dual_stack(bind_v6: bool) -> RuleState {
    let mut trial = trials().into_iter().find(|it| it.case.name == "dual-stack").unwrap();
    trial.intent.node.v6.bind_address = bind_v6.then(|| "fd00:172:18::2".parse().unwrap());
    render(&trial.intent, &iptables_rules(), &Family::ALL).rules.iptables
}

/// The original served IPv6 with the same rules, where its bind address was one of IPv6. The recorded cluster has no Service that it
/// served there, so its rules for IPv4 are compared with ours for IPv6.
#[test]
fn rules_for_ipv6_are_those_for_ipv4_with_other_addresses() {
    let trial = trials().into_iter().find(|it| it.case.name == "dual-stack").unwrap();
    let of_ipv4 = |line: String| {
        let line = line.replace("fd00:10:96::80/128", "10.96.0.80/32");
        line.replace("[fd00:172:18::2]", "172.18.0.2").replace("IPv6 ", "IPv4 ")
    };
    let ours: Vec<String> = of_family(of_dual_stack(false), Family::V6).into_iter().map(of_ipv4).collect();
    assert_eq!(ours, comparable(recorded(&trial)));
}

/// With a bind address of IPv6, nothing is redirected there: the proxy has one address. IPv4 is as before.
#[test]
fn a_bind_address_of_ipv6_is_where_its_rules_lead() {
    let (bound, unbound) = (of_dual_stack(true), of_dual_stack(false));
    assert_eq!(of_family(bound.clone(), Family::V4), of_family(unbound, Family::V4));
    let translated: Vec<String> =
        of_family(bound, Family::V6).into_iter().filter(|line| line.contains("default/web")).collect();
    let leads_there = |line: &&String| line.ends_with("-j DNAT --to-destination [fd00:172:18::2]:PORT");
    assert_eq!(translated.iter().filter(leads_there).count(), 4, "{translated:#?}");
    assert_eq!(translated.len(), 5, "four rules of nat and one of filter: {translated:#?}");
}

/// Ring 1, needs root: the tool and we write these rules alike.
#[test]
fn writers_agree_on_every_ruleset() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for trial in trials() {
        let rendered = render(&trial.intent, &iptables_rules(), &Family::ALL).rules.iptables;
        bytes::assert_writers_agree(&trial.case.name, &rendered, owns, Sets::default);
    }
}
