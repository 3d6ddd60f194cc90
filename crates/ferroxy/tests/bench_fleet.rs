//! Runs `make bench-fleet` at the smallest size, so that the benchmark keeps working. It only checks the figures that must
//! grow with the number of agents.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

#[path = "../benches/fleet/main.rs"]
mod fleet;

use ferroxy_lab::{Capability, require};
use fleet::{Options, bench};
use serde_json::Value;

#[test]
fn every_agent_costs_the_api_server_a_list_and_an_event_for_each_change() {
    if !require(&[Capability::Bridges, Capability::NfTables]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("files");
    let words = [
        "--agents=1,3",
        "--size=40x2",
        "--changes=2",
        "--patience=120",
        "--output=json",
        "--folder",
        files.to_str().unwrap(),
    ];
    let report: Value = serde_json::from_str(&bench(&Options::from_words(&words).unwrap()).unwrap()).unwrap();
    let fleets = report["fleets"].as_array().unwrap();
    assert_eq!(fleets.len(), 2);
    let figure = |fleet: usize, key: &str| fleets[fleet][key].as_f64().unwrap();
    for key in ["start_api_server_bytes", "changes_api_server_bytes"] {
        // Not exactly three times, because the agents do not exchange the same number of bytes. More than twice is not noise.
        assert!(figure(1, key) > 2.0 * figure(0, key), "{key}: {report}");
    }
    assert!(figure(1, "change_p99_milliseconds") > 0.0, "{report}");
    assert!(!files.exists(), "files of a run are removed");
}

#[test]
fn wrong_input_is_one_line() {
    for (words, says) in [
        (&["--agents=0"][..], "--agents=0: from 1 to 200"),
        (&["--agents=1,201"], "--agents=201: from 1 to 200"),
        (&["--size=many"], "such as 1000x10"),
        (&["--peer=/no/such/kube-proxy"], "/no/such/kube-proxy: no such program"),
        (&["--assets=/no/such/folder"], "/no/such/folder/etcd"),
        (&["--wat"], "--wat"),
    ] {
        let error = Options::from_words(words).unwrap_err().to_string();
        assert!(error.contains(says) && error.lines().count() == 1, "{words:?}: {error}");
    }
}
