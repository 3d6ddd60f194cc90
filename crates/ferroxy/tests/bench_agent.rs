//! Runs `make bench-agent` at the smallest size, so that the benchmark keeps working: every figure is present, and its
//! files can be parsed. No figure is compared with a goal.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

#[path = "../benches/agent/main.rs"]
mod agent;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use agent::{Figure, Listener, Options, bench};
use ferroxy_lab::{Capability, Namespace, PATIENCE, require};
use serde_json::Value;

#[test]
fn every_figure_is_measured_of_both_binaries() {
    if !require(&[Capability::Bridges, Capability::NfTables, Capability::NftTool]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The benchmark needs only the flags of its peer, so our own binary under the name of kube-proxy can be the peer.
    let peer = folder.path().join("kube-proxy");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ferroxy"), &peer).unwrap();
    let words = [
        "--sizes=50x2",
        "--changes=2",
        "--churn-seconds=1",
        "--churn-rate=100",
        "--connections=100",
        "--patience=60",
        "--peer",
        peer.to_str().unwrap(),
        "--folder",
        folder.path().to_str().unwrap(),
    ];
    bench(&Options::from_words(&words).unwrap()).unwrap();

    let json: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("figures.json")).unwrap()).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "one Service, and the size that was asked for");
    for binary in ["ours", "peer"] {
        for figure in Figure::ALL {
            let value = runs[1][binary][figure.key()].as_f64();
            assert!(value.is_some_and(|value| value >= 0.0), "{binary}: {}: {value:?}", figure.key());
        }
        let arrived = runs[1][binary]["change_kernel_messages"].as_f64().unwrap();
        assert!(arrived >= 1.0, "a change that the kernel has is announced");
        assert!(runs[0][binary]["connect_ratio"].as_f64().is_some());
    }
    assert_well_formed(&folder.path().join("figures.svg"));
}

/// kube-proxy writes endpoints into rules and into the maps of rules, not into sets of its own as we do.
#[test]
fn an_address_is_noticed_wherever_it_is_written() {
    if !require(&[Capability::NfTables, Capability::NftTool]) {
        return;
    }
    let node = Namespace::new("node").unwrap();
    let nft = |command: &str| {
        let status = node.run(|| Command::new("nft").arg(command).status()).unwrap().unwrap();
        assert!(status.success(), "{command}");
    };
    nft("add table ip t; add chain ip t service; add set ip t s { type ipv4_addr; }");
    let listener = Listener::open(&node).unwrap();
    for (address, command) in [
        ("10.192.0.1", "add rule ip t service meta l4proto tcp dnat to 10.192.0.1:8080"),
        (
            "10.192.0.2",
            "add rule ip t service meta l4proto tcp \
             dnat ip addr . port to numgen random mod 2 map { 0 : 10.192.0.2 . 8080, 1 : 10.1.1.1 . 8080 }",
        ),
        ("10.192.0.3", "add element ip t s { 10.192.0.3 }"),
    ] {
        nft(command);
        let arrival = listener.wait_for(address.parse().unwrap(), PATIENCE);
        assert!(arrival.is_some(), "{command}");
    }
    assert_eq!(listener.arrival("10.192.0.4".parse().unwrap()), None);
    // The end of a transaction is announced after what is in it.
    let end = Instant::now() + PATIENCE;
    while listener.announced().transactions < 3 && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(listener.announced().transactions, 3);
}

#[test]
fn wrong_input_is_one_line() {
    for (words, says) in [
        (&["--sizes=many"][..], "such as 1000x10"),
        (&["--sizes=0x1"], "some of each"),
        (&["--sizes=101000x1"], "at most 100000 Services"),
        (&["--sizes=50000x50"], "at most 1000000 endpoints"),
        (&["--peer=/no/such/kube-proxy"], "/no/such/kube-proxy: no such program"),
        (&["--mode=userspace"], "userspace"),
        (&["--assets=/no/such/folder"], "/no/such/folder/etcd"),
        (&["--churn-rate=10000", "--churn-seconds=600"], "fewer seconds"),
        (&["--wat"], "--wat"),
    ] {
        let error = Options::from_words(words).unwrap_err().to_string();
        assert!(error.contains(says) && error.lines().count() == 1, "{words:?}: {error}");
    }
}

/// Every element that is opened is closed, in order, and nothing is left.
fn assert_well_formed(svg: &Path) {
    let text = fs::read_to_string(svg).unwrap();
    let mut open = Vec::new();
    for tag in text.split('<').skip(1) {
        let tag = tag.split_once('>').unwrap_or_else(|| panic!("an unfinished tag: {tag}")).0;
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "in {tag}"),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    assert!(text.starts_with("<svg ") && text.contains("Ferroxy") && !text.contains("NaN"), "{text}");
}
