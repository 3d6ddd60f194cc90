//! Ring 2: the dataplane in the recorded network, with real packets: every recorded probe, a restart, and nothing left after cleanup.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]
#![cfg(target_os = "linux")]

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_core::intent::NodePortAddresses;
use ferroxy_core::{Family, Intent};
use ferroxy_dataplane::{Dataplane, Settings, Value};
use ferroxy_lab::conformance::{Mode, Trial};
use ferroxy_lab::{Capability, Network, PATIENCE, require};
use ferroxy_userspace::Userspace;
use ferroxy_userspace::settings::{CLUSTER_IPS, RULES};

fn network() -> Option<Network> {
    let needs = [Capability::Bridges, Capability::BridgeNetfilter, Capability::NfTables, Capability::NftTool];
    require(&needs).then(|| Network::conformance().unwrap())
}

fn started(network: &Network, settings: &Settings, intent: &Intent) -> Userspace {
    let ka = network.namespace("ka").unwrap();
    ka.run(|| {
        let mut dataplane = Userspace::open(&Family::ALL, settings).unwrap();
        dataplane.probe(&intent.node).unwrap();
        let outcome = dataplane.start(intent).unwrap();
        assert!(outcome.refused.is_empty(), "{:?}", outcome.refused);
        dataplane
    })
    .unwrap()
}

/// All cases in one network: each is a change from the one before.
fn play(settings: &Settings, cases: &[&str]) {
    let Some(network) = network() else { return };
    let mut trials = Trial::all(Mode::Userspace).unwrap();
    if settings.text(&RULES) == "iptables" {
        // As the mode's settings shape the policy: the original's rules have one address of the node.
        for node in trials.iter_mut().map(|trial| &mut trial.intent.node) {
            node.v4.node_port_addresses = NodePortAddresses::These(["172.18.0.2".parse().unwrap()].into());
            node.v6.node_port_addresses =
                NodePortAddresses::These(["fd00:172:18::2".parse().unwrap()].into());
        }
    }
    let mut dataplane = started(&network, settings, &Intent::default());
    let mut faults = Vec::new();
    for trial in trials.iter().filter(|trial| cases.is_empty() || cases.contains(&trial.case.name.as_str())) {
        let ka = network.namespace("ka").unwrap();
        let outcome = ka.run(|| dataplane.start(&trial.intent).unwrap()).unwrap();
        assert!(outcome.refused.is_empty(), "{}: {:?}", trial.case.name, outcome.refused);
        ka.run(|| dataplane.tidies().unwrap().tidy().unwrap()).unwrap();
        let preview = ka.run(|| Userspace::open(&Family::ALL, settings).unwrap().preview(&trial.intent));
        assert_eq!(preview.unwrap().unwrap().text, "", "{}", trial.case.name);
        faults.extend(trial.differences(&network).unwrap());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    network.namespace("ka").unwrap().run(|| dataplane.cleanup().unwrap()).unwrap();
}

#[test]
fn every_recorded_probe_is_answered() {
    play(&Settings::default(), &[]);
}

#[test]
fn without_translation_too() {
    let mut settings = Settings::default();
    settings.set(&CLUSTER_IPS, Value::Text("bind".into()));
    play(&settings, &["clusterip-tcp", "clusterip-udp", "dual-stack", "clusterip-affinity", "lb-local"]);
}

/// All cases that need no policy.
#[test]
fn behind_the_chains_of_the_original_too() {
    let mut settings = Settings::default();
    settings.set(&RULES, Value::Text("iptables".into()));
    let cases =
        ["clusterip-tcp", "clusterip-udp", "clusterip-target-port", "dual-stack", "lb-cluster", "zone-hints"];
    play(&settings, &cases);
}

fn rules(network: &Network) -> String {
    let list = || Command::new("nft").args(["--stateless", "list", "ruleset"]).output();
    String::from_utf8(network.namespace("ka").unwrap().run(list).unwrap().unwrap().stdout).unwrap()
}

/// The rules of a process that ended stay, and the next one listens where they lead to.
#[test]
fn a_restart_changes_no_rule() {
    let Some(network) = network() else { return };
    for case in ["clusterip-udp", "lb-local"] {
        let trial = Trial::named(case, Mode::Userspace).unwrap();
        let first = started(&network, &Settings::default(), &trial.intent);
        let before = rules(&network);
        drop(first);
        let mut second = started(&network, &Settings::default(), &trial.intent);
        assert_eq!(rules(&network), before);
        assert_eq!(trial.differences(&network).unwrap(), [] as [String; 0]);
        network.namespace("ka").unwrap().run(|| second.cleanup().unwrap()).unwrap();
        assert_eq!(rules(&network), "");
    }
}

/// Both listen on the same sockets until the second one serves.
#[test]
fn a_successor_takes_over_the_listeners() {
    let Some(network) = network() else { return };
    let trial = Trial::named("nodeport-cluster", Mode::Userspace).unwrap();
    let mut first = started(&network, &Settings::default(), &trial.intent);
    assert!(!first.hands_over().unwrap().is_superseded());
    let _second = started(&network, &Settings::default(), &trial.intent);
    let began = Instant::now();
    while !first.hands_over().unwrap().is_superseded() {
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
    first.hands_over().unwrap().finish(Duration::ZERO);
    assert_eq!(trial.differences(&network).unwrap(), [] as [String; 0]);
}
