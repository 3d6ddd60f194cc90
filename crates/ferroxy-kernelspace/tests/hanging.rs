//! An HNS that hangs, does not run, or does not answer what it is asked: the dataplane returns, drops nothing, and goes on when HNS does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::time::{Duration, Instant};

use ferroxy_core::testing::service;
use ferroxy_core::{Family, Intent, NodeIntent};
use ferroxy_dataplane::{Dataplane, FailureKind, Verifies, Watches};
use ferroxy_hcn::{Code, Kind, Notification, Version};
use support::{Host, NODE_IP};

/// On a slow machine more calls are late: they are tried again, as the agent does.
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
    let end = Instant::now() + WAIT;
    while dataplane.verify().is_err() || dataplane.change(change.clone()).is_err() {
        assert!(Instant::now() < end, "it never goes on");
    }
    let after = host.lines();
    assert_eq!(before.difference(&after).count(), 2, "one endpoint, and who named it: {after:?}");
    assert!(after.iter().any(|line| line.contains("endpoints [10.244.1.144]")), "{after:?}");
}

/// What HNS announced so far.
fn announced(dataplane: &mut ferroxy_kernelspace::Kernelspace) -> std::sync::mpsc::Receiver<&'static str> {
    let (sender, receiver) = std::sync::mpsc::channel();
    dataplane.watch(Box::new(move |words| sender.send(words).is_ok())).unwrap();
    receiver
}

const WAIT: Duration = Duration::from_secs(1800);

#[test]
fn an_hns_that_starts_late_announces_what_happens_once_it_runs() {
    let mut host = Host::new(false, Version::NEWEST);
    host.fake.stop();
    let mut dataplane = host.open();
    let announced = announced(&mut dataplane);
    dataplane.start(&intent()).unwrap_err();
    host.fake.resume();
    dataplane.start(&intent()).unwrap();
    host.add_pod("late", &["10.244.1.77"]);
    assert_eq!(announced.recv_timeout(WAIT), Ok("a pod was attached"));
    assert!(announced.try_recv().is_err(), "once");
}

#[test]
fn an_hns_that_was_restarted_announces_what_happens() {
    let mut host = Host::new(false, Version::NEWEST);
    let mut dataplane = host.open();
    let announced = announced(&mut dataplane);
    dataplane.start(&intent()).unwrap();
    for round in 1..=3 {
        host.fake.stop();
        assert_eq!(announced.recv_timeout(WAIT), Ok("the Host Networking Service stopped"));
        dataplane.verify().unwrap_err();
        host.fake.resume();
        dataplane.verify().unwrap();
        dataplane.verify().unwrap();
        host.add_pod(&format!("p{round}"), &[&format!("10.244.1.{}", 70 + round)]);
        assert_eq!(announced.recv_timeout(WAIT), Ok("a pod was attached"));
        assert!(announced.try_recv().is_err(), "once");
    }
}

/// Without a network the agent waits for the one that the network plugin creates.
#[test]
fn a_network_that_is_created_late_is_announced_by_an_hns_that_started_late() {
    let host = Host::new(false, Version::NEWEST);
    host.fake.service().remove(Kind::Network, host.network);
    host.fake.stop();
    let mut dataplane = host.open();
    let announced = announced(&mut dataplane);
    host.fake.resume();
    dataplane.start(&intent()).unwrap_err();
    host.fake.notify(Notification::NetworkCreated);
    assert_eq!(announced.recv_timeout(WAIT), Ok("a network was created"));
}
