//! Scenarios: clusters that change step by step, through the real agent, on every dataplane.
//!
//! A scenario is `cases/NAME.yaml`: lines `# packet: FROM -> TO:PORT/PROTOCOL` and `# policy: SETTING`, then steps. A step is a
//! line `# step: words`, lines `# delete: KIND NAME` and `# host: ADDRESS…`, and the manifests that it adds or changes. `NAME.expected` beside it has the Intent, the
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

use std::io::Write;

use ferroxy_dataplane::testing::{Kernel, MEMORY, Memory};
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

#[test]
fn every_scenario_through_the_agent_in_memory() {
    let faults = (0..).zip(scenarios()).map(|(seed, scenario)| {
        let kernel = Kernel::default();
        let open = || -> Box<dyn ferroxy_dataplane::Dataplane> { Box::new(Memory::new(&kernel)) };
        let tamper = || kernel.intent().services.keys().take(1).for_each(|name| kernel.tamper(name));
        Stage { mode: &MEMORY, open: &open, tamper: &tamper, seed }.play(&scenario)
    });
    assert!(faults.sum::<usize>() > 0, "no fault was injected");
}

#[test]
fn every_scenario_through_the_agent_in_nftables_mode() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
        return;
    }
    let tamper = || agent::run("nft", &["delete", "table", "ip", "ferroxy"]);
    play(&ferroxy_nftables::MODE, &tamper, scenarios());
}

#[test]
fn every_scenario_through_the_agent_in_iptables_mode() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let tamper = || agent::run("iptables", &["-t", "nat", "-F", "KUBE-SERVICES"]);
    play(&ferroxy_iptables::MODE, &tamper, scenarios());
}

#[test]
fn every_scenario_through_the_agent_in_userspace_mode() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
        return;
    }
    let tamper = || agent::run("nft", &["delete", "table", "ip", "ferroxy"]);
    play(&ferroxy_userspace::MODE, &tamper, scenarios());
}

/// On a service in memory that answers as HNS does: no Windows is needed.
#[test]
fn every_scenario_through_the_agent_in_kernelspace_mode() {
    let faults = (0..).zip(scenarios()).map(|(seed, scenario)| {
        let host = windows::Host::of(&scenario);
        let mode = &ferroxy_kernelspace::MODE;
        Stage { mode, open: &|| host.open(), tamper: &|| host.tamper(), seed }.play(&scenario)
    });
    assert!(faults.sum::<usize>() > 0, "no fault was injected");
}

/// Maps and programs besides the rules; the programs run in cgroups of the test.
#[test]
fn every_scenario_through_the_agent_with_accelerated_sockets() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::SocketPrograms]) {
        return;
    }
    let mode = &ferroxy_nftables::MODE;
    let faults = (0..).zip(scenarios()).map(|(seed, scenario)| {
        progress("accelerated sockets", &scenario);
        let sockets = sockets::Place::new();
        let mut namespace = Namespace::new("scenario").unwrap();
        namespace.set_cgroup(sockets.host());
        let stage = || {
            let open = || sockets.open(mode);
            Stage { mode, open: &open, tamper: &|| sockets.tamper(), seed }.play(&scenario)
        };
        namespace.run(stage).unwrap()
    });
    assert!(faults.sum::<usize>() > 0, "no fault was injected");
}

/// Every third one: a scenario takes a quarter of a minute in the virtual machine. `FERROXY_ALL_SCENARIOS=1` plays all of them.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn scenarios_through_the_agent_in_ipvs_mode() {
    let tamper = || agent::run("ip", &["address", "flush", "dev", "kube-ipvs0"]);
    let step = if std::env::var_os("FERROXY_ALL_SCENARIOS").is_some() { 1 } else { 3 };
    play(&ferroxy_ipvs::MODE, &tamper, scenarios().into_iter().step_by(step));
}

/// A sign of progress in the virtual machine. Not eprintln!, whose output the test harness captures.
fn progress(place: &str, scenario: &Scenario) {
    std::io::stderr().write_all(format!("{place}: {}\n", scenario.name()).as_bytes()).unwrap();
}

/// Each scenario in a network namespace of its own.
fn play(
    mode: &'static ferroxy_dataplane::Mode,
    tamper: &(dyn Fn() + Sync),
    scenarios: impl IntoIterator<Item = Scenario>,
) {
    let faults = (0..).zip(scenarios).map(|(seed, scenario)| {
        progress(&format!("{} mode", mode.name), &scenario);
        let namespace = Namespace::new("scenario").unwrap();
        namespace.run(|| Stage { mode, open: &|| agent::open(mode), tamper, seed }.play(&scenario)).unwrap()
    });
    assert!(faults.sum::<usize>() > 0, "no fault was injected");
}
