//! The conformance corpus as real packets: `ferroxy run` on each case's folder must give the traffic that the original gave
//! in the same mode, survive its own end, and leave nothing after `cleanup`. (ipvs mode, and an older kernel: `vm/conformance.rs`.)

use std::collections::BTreeSet;
use std::process::Command;

use ferroxy_lab::Network;
use ferroxy_lab::conformance::{Mode, Trial, cases};

use crate::support::corpus::command;
use crate::support::{self, Agent, Iptables, configured, ferroxy, ferroxy_with, nft, run_arguments};
use tempfile::TempDir;

/// One test for each folder and mode, so that a failure names its case.
macro_rules! cases {
    ($($case:ident)*) => {
        mod nftables {
            $(
                #[test]
                fn $case() {
                    super::play_nftables(&super::folder_name(stringify!($case)));
                }
            )*
        }
        mod userspace {
            $(
                #[test]
                fn $case() {
                    super::play_userspace(&super::folder_name(stringify!($case)));
                }
            )*
        }
        mod iptables {
            $(
                #[test]
                fn $case() {
                    super::play_iptables(&super::Iptables::nft(), &super::folder_name(stringify!($case)));
                }
            )*
        }
        mod iptables_legacy {
            $(
                #[test]
                fn $case() {
                    super::play_iptables(&super::Iptables::legacy(), &super::folder_name(stringify!($case)));
                }
            )*
        }
        const PLAYED: &[&str] = &[$(stringify!($case)),*];
    };
}

cases! {
    clusterip_affinity
    clusterip_all_not_ready
    clusterip_hairpin
    clusterip_many_endpoints
    clusterip_no_endpoints
    clusterip_not_ready
    clusterip_target_port
    clusterip_tcp
    clusterip_udp
    dual_stack
    external_ip
    external_name
    headless
    internal_local
    large_cluster
    lb_cluster
    lb_ipmode_proxy
    lb_local
    lb_local_none
    lb_source_ranges
    lb_source_ranges_allow
    local_bridge
    masquerade_all
    node_hints
    nodeport_addresses
    nodeport_cluster
    nodeport_local
    nodeport_local_none
    nodeport_no_endpoints
    nodeport_udp
    other_proxy_name
    sctp
    terminating_fallback
    terminating_some_ready
    zone_hints
    zone_hints_incomplete
}

#[test]
fn every_folder_is_played() {
    let folders: BTreeSet<String> = cases().unwrap().into_iter().map(|case| case.name).collect();
    let played: BTreeSet<String> = PLAYED.iter().map(|test| folder_name(test)).collect();
    assert_eq!(folders, played);
}

fn folder_name(test: &str) -> String {
    test.replace('_', "-")
}

/// Counts packets behind our chains in the same hooks. There, no packet may carry a treatment's number any more.
const LOOKS_BEHIND: &str = "table inet behind {
    counter seen {}
    counter numbered {}
    chain prerouting {
        type filter hook prerouting priority -99
        counter name seen
        meta priority >= 1:0 counter name numbered
    }
    chain output {
        type filter hook output priority -99
        counter name seen
        meta priority >= 1:0 counter name numbered
    }
}";

fn play_nftables(name: &str) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let (trial, folder) = configured_trial(name, Mode::Nftables, "nftables");
    let arguments = run_arguments(&trial.case.folder, &folder.path().join("config.yaml"));
    nft(ka, &[LOOKS_BEHIND]);

    let agent = Agent::start_with(ka, arguments.clone());
    // The recordings of health-check node ports (`case.health_checks`) are compared in serve.rs.
    compare_all(&trial, &network);
    let diff = ferroxy(ka, &command("diff", &arguments));
    assert_eq!((diff.code, diff.stdout.as_str()), (0, "the kernel has exactly this\n"), "{}", diff.stderr);

    let log = agent.terminate();
    assert!(log.contains("what is programmed stays in force"), "{log}");
    compare_first(&trial, &network);
    let seen = nft(ka, &["list", "table", "inet", "behind"]);
    let none = |name: &str| seen.contains(&format!("counter {name} {{\n\t\tpackets 0 bytes 0\n"));
    assert!(none("numbered"), "a treatment's number stayed in a packet:\n{seen}");
    // A case without probes sends nothing, unless the kernel looks for its neighbours just then.
    assert!(!none("seen") || trial.case.probes.is_empty(), "no packet was looked at:\n{seen}");
    nft(ka, &["delete", "table", "inet", "behind"]);

    let log = Agent::start_with(ka, arguments).terminate();
    assert!(log.contains("nothing to send"), "a restart sent something:\n{log}");
    let cleanup = ferroxy(ka, &["cleanup"]);
    assert_eq!(
        (cleanup.code, cleanup.stdout.as_str()),
        (0, "removed: table ip ferroxy (nftables mode)\nremoved: table ip6 ferroxy (nftables mode)\n")
    );
    assert_eq!(nft(ka, &["list", "ruleset"]), "");
}

/// Pods see the node's address; everything else is as in the other modes (`conformance/userspace-differences.json`).
fn play_userspace(name: &str) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let (trial, folder) = configured_trial(name, Mode::Userspace, "userspace");
    let arguments = run_arguments(&trial.case.folder, &folder.path().join("config.yaml"));

    let agent = Agent::start_with(ka, arguments.clone());
    compare_all(&trial, &network);
    let diff = ferroxy(ka, &command("diff", &arguments));
    assert_eq!((diff.code, diff.stdout.as_str()), (0, "the kernel has exactly this\n"), "{}", diff.stderr);
    let log = agent.terminate();
    assert!(log.contains("Services stop working on this node"), "{log}");

    // A restart finds its rules, and listens on the ports that they lead to.
    let agent = Agent::start_with(ka, arguments);
    compare_first(&trial, &network);
    agent.terminate();
    assert_eq!(ferroxy(ka, &["cleanup"]).code, 0);
    assert_eq!(nft(ka, &["list", "ruleset"]), "");
    for family in ["-4", "-6"] {
        let shown = ka.run(|| Command::new("ip").args([family, "route", "show", "table", "local"]).output());
        let shown = String::from_utf8(shown.unwrap().unwrap().stdout).unwrap();
        assert!(!shown.contains("192.0.0.8") && !shown.contains("fd66:"), "{shown}");
    }
}

/// `ferroxy-iptables/tests/corpus.rs` tests that the rules are exactly those of the original.
fn play_iptables(tools: &Iptables, name: &str) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let (trial, folder) = configured_trial(name, Mode::Iptables, "iptables");
    let arguments = run_arguments(&trial.case.folder, &folder.path().join("config.yaml"));
    let before = tools.rules(ka);

    let agent = Agent::start_using(ka, tools, arguments.clone());
    compare_all(&trial, &network);
    let diff = ferroxy_with(ka, tools, &command("diff", &arguments));
    assert_eq!((diff.code, diff.stdout.as_str()), (0, "the kernel has exactly this\n"), "{}", diff.stderr);

    let log = agent.terminate();
    assert!(log.contains("what is programmed stays in force") && !log.contains("drift"), "{log}");
    compare_first(&trial, &network);

    let log = Agent::start_using(ka, tools, arguments).terminate();
    assert!(log.contains("nothing to send"), "a restart sent something:\n{log}");
    let cleanup = ferroxy_with(ka, tools, &["cleanup"]);
    assert_eq!(cleanup.code, 0, "{cleanup:?}");
    assert_eq!(tools.rules(ka), before);
}

/// The case in a mode, and a folder with its configuration for that mode.
fn configured_trial(name: &str, mode: Mode, word: &str) -> (Trial, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.yaml"), configured(name, word)).unwrap();
    (Trial::named(name, mode).unwrap(), folder)
}

fn compare_all(trial: &Trial, network: &Network) {
    let differences = trial.differences(network).unwrap();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn compare_first(trial: &Trial, network: &Network) {
    if let Some(recorded) = trial.case.probes.first() {
        let seen = trial.ask(recorded, network).unwrap();
        assert_eq!(trial.judge(recorded, &seen), Ok(()), "{}", trial.case.name);
    }
}
