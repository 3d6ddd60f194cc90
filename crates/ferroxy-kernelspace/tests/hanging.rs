//! An HNS that hangs, or does not answer what it is asked: the dataplane returns, drops nothing, and goes on when HNS does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::time::Duration;

use ferroxy_core::testing::service;
use ferroxy_core::{Family, Intent, NodeIntent};
use ferroxy_dataplane::{Dataplane, FailureKind, Verifies};
use ferroxy_hcn::{Code, Version};
use support::{Host, NODE_IP};

/// A machine that is slow makes more calls late: they are tried again, as an agent does.
const DEADLINE: Duration = Duration::from_millis(50);

fn intent() -> Intent {
    let mut node = NodeIntent { primary_family: Some(Family::V4), ..NodeIntent::default() };
    node.v4.node_ip = Some(NODE_IP.parse().unwrap());
    Intent { node, services: (1..=3).map(|number| service(number, [300 + number])).collect() }
}

/// An answer that is a failure says nothing about what HNS can do.
#[test]
fn a_version_that_is_not_told_is_waited_for() {
    for code in [None, Some(Code::MANAGER_STOPPING), Some(Code::NO_LISTENER)] {
        let host = Host::new(false, Version::NEWEST);
        let mut dataplane = host.open();
        host.fake.fail_first("/globals/version", code, 2);
        dataplane.probe(&intent().node).unwrap();
        assert_eq!(dataplane.start(&intent()).unwrap_err().kind, FailureKind::Other);
        assert_eq!(dataplane.start(&intent()).unwrap().refused, []);
    }
}

#[test]
fn a_hanging_hns_is_a_failure_that_passes_and_drops_nothing() {
    let host = Host::new(false, Version::NEWEST);
    let mut dataplane = host.open_within(DEADLINE);
    while dataplane.start(&intent()).is_err() {}
    let before = host.lines();
    host.fake.hang(true);
    let failure = dataplane.verify().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Other, "{failure}");
    assert!(failure.to_string().contains("no answer in time"), "{failure}");
    let (name, changed) = service(1, [400]);
    let change = vec![(name.clone(), Some(changed))];
    assert!(dataplane.change(change.clone()).is_err(), "it returns, and the Service stays queued");
    assert_eq!(dataplane.acknowledged().service(&name), Some(service(1, [301]).1));
    host.fake.hang(false);
    while dataplane.verify().is_err() {}
    while dataplane.change(change.clone()).is_err() {}
    let after = host.lines();
    assert_eq!(before.difference(&after).count(), 2, "one endpoint, and who named it: {after:?}");
    assert!(after.iter().any(|line| line.contains("endpoints [10.244.1.144]")), "{after:?}");
}
