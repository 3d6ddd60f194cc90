//! The lab against its own reference: the original's recorded nftables rules, loaded into the lab's network, must give
//! the recorded traffic. This tests the lab and the comparison, not Ferroxy.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too; clippy only knows the functions")]

use std::process::Command;
use std::thread;

use ferroxy_lab::conformance::{Mode, Trial};
use ferroxy_lab::{Capability, Network, require};

#[test]
fn recorded_rules_give_the_recorded_traffic() {
    if !require(&[
        Capability::Bridges,
        Capability::BridgeNetfilter,
        Capability::NfTables,
        Capability::NftTool,
    ]) {
        return;
    }
    // A few at a time: most of a case's time is waiting for answers that must not come.
    for some in Trial::all(Mode::Nftables).unwrap().chunks(4) {
        thread::scope(|scope| {
            for trial in some {
                scope.spawn(|| play(trial));
            }
        });
    }
}

fn play(trial: &Trial) {
    let case = &trial.case;
    let network = Network::conformance().unwrap();
    let rules = case.folder.join("nftables.rules");
    let load = || Command::new("nft").arg("-f").arg(&rules).output();
    let output = network.namespace("ka").unwrap().run(load).unwrap().unwrap();
    assert!(output.status.success(), "{}: {}", case.name, String::from_utf8_lossy(&output.stderr));

    let differences = trial.differences(&network).unwrap();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
