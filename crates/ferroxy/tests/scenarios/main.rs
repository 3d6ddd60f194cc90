//! Scenarios: clusters that change step by step, through the real agent, on every dataplane.
//!
//! A scenario is `cases/NAME.yaml`: lines `# rule: NAME, …` (files of `ferroxy-core/src/resolve/`), `# packet: FROM -> TO:PORT/PROTOCOL`
//! and `# policy: SETTING`, then steps. A step is a line `# step: words`, lines `# delete: KIND NAME` and `# host: ADDRESS…`, and
//! the manifests that it adds or changes. `NAME.expected` beside it has the Intent, the
//! Diagnostics and the verdicts after every step: the same for every dataplane, or listed where a mode differs.
//! `UPDATE_SCENARIOS=1 cargo test --test scenarios` rewrites it; read the difference before you commit it.
//!
//! Ring 0 compares with that file. The other tests drive the agent, with faults injected: operations refused, calls that
//! fail or forget, notifications lost, another program that interferes, and a restart in the middle. After every step
//! the kernel must have exactly what the Intent says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the functions that tests share are tests too")]

mod agent;
mod file;
mod pure;
mod sockets;
mod windows;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use ferroxy_dataplane::testing::{Injected, Kernel, MEMORY, Memory};
use ferroxy_lab::{Capability, Namespace, require};

use agent::Stage;
use file::{Scenario, scenarios};

#[test]
fn every_scenario_comes_out_as_written() {
    let scenarios = scenarios();
    assert!(scenarios.len() >= 30, "only {} scenarios", scenarios.len());
    for scenario in &scenarios {
        pure::check(scenario);
    }
}

/// A new Kubernetes rule needs a scenario in which its answer changes.
#[test]
fn every_rule_has_a_scenario() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../ferroxy-core/src/resolve");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let rules: BTreeSet<String> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let played: BTreeSet<String> = scenarios().into_iter().flat_map(|it| it.rules).collect();
    assert_eq!(played, rules);
}

#[test]
fn every_scenario_through_the_agent_in_memory() {
    play("memory", &[], scenarios(), |seed, scenario| {
        let kernel = Kernel::default();
        let open = || -> Box<dyn ferroxy_dataplane::Dataplane> { Box::new(Memory::new(&kernel)) };
        let tamper = || kernel.intent().services.keys().take(1).for_each(|name| kernel.tamper(name));
        Stage { mode: &MEMORY, open: &open, tamper: &tamper, seed }.play(scenario)
    });
}

#[test]
fn every_scenario_through_the_agent_in_nftables_mode() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
        return;
    }
    let tamper = || agent::run("nft", &["delete", "table", "ip", "ferroxy"]);
    play_in_namespaces(&ferroxy_nftables::MODE, &[], &tamper, scenarios());
}

#[test]
fn every_scenario_through_the_agent_in_iptables_mode() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let tamper = || agent::run("iptables", &["-t", "nat", "-F", "KUBE-SERVICES"]);
    play_in_namespaces(&ferroxy_iptables::MODE, &[], &tamper, scenarios());
}

#[test]
fn every_scenario_through_the_agent_in_userspace_mode() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
        return;
    }
    let tamper = || agent::run("nft", &["delete", "table", "ip", "ferroxy"]);
    play_in_namespaces(&ferroxy_userspace::MODE, &[], &tamper, scenarios());
}

/// On an in-memory service that answers as HNS does: Windows is not needed.
#[test]
fn every_scenario_through_the_agent_in_kernelspace_mode() {
    play("kernelspace mode", UNNOTIFIED, scenarios(), |seed, scenario| {
        let host = windows::Host::of(scenario);
        let mode = &ferroxy_kernelspace::MODE;
        Stage { mode, open: &|| host.open(), tamper: &|| host.tamper(), seed }.play(scenario)
    });
}

/// Addresses are in memory; the proxy listens on them in a namespace that allows it.
#[test]
fn every_scenario_through_the_agent_in_winuserspace_mode() {
    if !require(&[Capability::NetworkNamespaces]) {
        return;
    }
    let mode = &ferroxy_winuserspace::MODE;
    play("winuserspace mode", UNNOTIFIED, scenarios(), |seed, scenario| {
        let namespace = Namespace::new("scenario").unwrap();
        for family in ["ipv4", "ipv6"] {
            namespace.set_sysctl(&format!("net/{family}/ip_nonlocal_bind"), "1").unwrap();
        }
        let host = windows::Addresses::default();
        let stage = || Stage { mode, open: &|| host.open(), tamper: &|| host.tamper(), seed }.play(scenario);
        namespace.run(stage).unwrap()
    });
}

/// Maps and programs besides the rules; the programs run in cgroups of the test.
#[test]
fn every_scenario_through_the_agent_with_accelerated_sockets() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::SocketPrograms]) {
        return;
    }
    let mode = &ferroxy_nftables::MODE;
    play("accelerated sockets", UNNOTIFIED, scenarios(), |seed, scenario| {
        let sockets = sockets::Place::new();
        let mut namespace = Namespace::new("scenario").unwrap();
        namespace.set_cgroup(sockets.host());
        let stage = || {
            let open = || sockets.open(mode);
            Stage { mode, open: &open, tamper: &|| sockets.tamper(), seed }.play(scenario)
        };
        namespace.run(stage).unwrap()
    });
}

/// Two of three: a scenario takes a quarter of a minute in the virtual machine. `FERROXY_ALL_SCENARIOS=1` plays all of them.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn scenarios_through_the_agent_in_ipvs_mode() {
    let tamper = || agent::run("ip", &["address", "flush", "dev", "kube-ipvs0"]);
    let all = std::env::var_os("FERROXY_ALL_SCENARIOS").is_some();
    let some =
        (0..).zip(scenarios()).filter(|(number, _)| all || number % 3 != 2).map(|(_, scenario)| scenario);
    play_in_namespaces(&ferroxy_ipvs::MODE, UNNOTIFIED, &tamper, some);
}

/// Faults that need not happen: the damage of [`Stage::tamper`] causes no notification there, or too late in an emulated machine.
const UNNOTIFIED: &[&str] = &["lose"];

/// Each scenario in a network namespace of its own.
fn play_in_namespaces(
    mode: &'static ferroxy_dataplane::Mode,
    impossible: &[&str],
    tamper: &(dyn Fn() + Sync),
    scenarios: impl IntoIterator<Item = Scenario>,
) {
    play(&format!("{} mode", mode.name), impossible, scenarios, |seed, scenario| {
        let namespace = Namespace::new("scenario").unwrap();
        let stage = || Stage { mode, open: &|| agent::open(mode), tamper, seed }.play(scenario);
        namespace.run(stage).unwrap()
    });
}

/// Plays at least thirty scenarios, in which every possible kind of fault must happen.
fn play(
    place: &str,
    impossible: &[&str],
    scenarios: impl IntoIterator<Item = Scenario>,
    one: impl Fn(u64, &Scenario) -> Arc<Injected>,
) {
    let (faults, mut count) = (Injected::default(), 0);
    for (seed, scenario) in (0..).zip(scenarios) {
        // A sign of progress in the virtual machine. Not eprintln!, whose output the test harness captures.
        std::io::stderr().write_all(format!("{place}: {}\n", scenario.name()).as_bytes()).unwrap();
        faults.add(&one(seed, &scenario));
        count += 1;
    }
    assert!(count >= 30, "only {count} scenarios");
    let missing: Vec<&str> = faults.missing().into_iter().filter(|kind| !impossible.contains(kind)).collect();
    assert_eq!(missing, [""; 0], "these faults never happened");
}
