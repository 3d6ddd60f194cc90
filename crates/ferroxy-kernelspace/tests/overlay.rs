//! An overlay: routes that arrive late, and the range of this node, which no route names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use ferroxy_core::intent::LocalDetector;
use ferroxy_core::testing::service;
use ferroxy_core::{Family, Intent, NodeIntent};
use ferroxy_dataplane::{Dataplane, Persists, Rendering, Settings, Verifies};
use ferroxy_hcn::{Kind, Version};
use ferroxy_kernelspace::MODE;
use serde_json::json;
use support::{Host, NODE_IP};

fn intent() -> Intent {
    let mut node = NodeIntent { primary_family: Some(Family::V4), ..NodeIntent::default() };
    node.v4.node_ip = Some(NODE_IP.parse().unwrap());
    node.v4.local_detector = Some(LocalDetector::SourceIn("10.244.0.0/16".parse().unwrap()));
    // The pods of the second Service are all on a node without a route.
    let services = [service(1, [2 * 256 + 7, 3 * 256 + 7]), service(2, [3 * 256 + 8])];
    Intent { node, services: services.into_iter().collect() }
}

fn balancers(host: &Host) -> Vec<String> {
    host.lines().into_iter().filter(|line| line.starts_with("balancer")).collect()
}

/// The network plugin learns of another node.
fn add_route(host: &Host, prefix: &str, provider: &str) {
    let mut network = host.fake.service().document(Kind::Network, host.network).unwrap().clone();
    network["Policies"].as_array_mut().unwrap().push(json!({ "Type": "RemoteSubnetRoute", "Settings": {
        "DestinationPrefix": prefix, "ProviderAddress": provider, "IsolationId": 4096 } }));
    host.fake.service().replace(Kind::Network, host.network, network);
}

/// With this node's own address as the provider of another node's pod, every connection to the pod would fail.
#[test]
fn a_pod_without_a_route_waits_for_it() {
    let host = Host::new(true, Version::NEWEST);
    let mut dataplane = host.open();
    let refused = dataplane.start(&intent()).unwrap().refused;
    assert!(
        refused.len() == 2 && refused[0].reason.contains("no route to the pod 10.244.3.7"),
        "{refused:?}"
    );
    let lines = host.lines();
    assert!(!lines.iter().any(|line| line.contains("10.244.3.")), "{lines:?}");
    assert_eq!(balancers(&host).len(), 1, "{lines:?}");
    assert!(balancers(&host)[0].ends_with("source [10.244.1.9] endpoints [10.244.2.7]"), "{lines:?}");
    for service in intent().services.values() {
        let said = dataplane.shortcomings(service);
        assert!(said.iter().any(|it| it.reason.contains("no route to 10.244.3.")), "{said:?}");
    }
    // The route arrives.
    add_route(&host, "10.244.3.0/24", "172.18.0.4");
    assert_eq!(dataplane.verify().unwrap().unrepaired, None);
    let lines = host.lines();
    let behind = lines.iter().filter(|line| line.contains("10.244.3.") && line.contains("172.18.0.4"));
    assert_eq!(behind.count(), 2, "{lines:?}");
    assert_eq!(balancers(&host).len(), 2, "{lines:?}");
}

/// A user's own controller may write EndpointSlices without node names.
#[test]
fn a_pod_of_this_node_needs_no_route_even_if_its_node_is_not_known() {
    let host = Host::new(true, Version::NEWEST);
    let mut dataplane = host.open();
    let here = service(1, [256 + 5, 2 * 256 + 7]);
    let intent = Intent { services: [here].into_iter().collect(), ..intent() };
    assert_eq!(dataplane.start(&intent).unwrap().refused, []);
    let lines = host.lines();
    let expected = "source [10.244.1.9] endpoints [10.244.1.5 10.244.2.7]";
    assert!(balancers(&host)[0].ends_with(expected), "{lines:?}");
    assert!(
        !lines.iter().any(|line| line.starts_with("endpoint 10.244.1.5 ")),
        "HNS has it already: {lines:?}"
    );
    assert_eq!(dataplane.shortcomings(&intent.services.values().next().unwrap().clone()), []);
    assert_eq!(dataplane.verify().unwrap().operations, 0);
}

/// The first pods of a new node: the route is there, and no verification has seen it.
#[test]
fn a_change_looks_for_the_route_to_a_new_node_and_is_tried_again_until_it_is_there() {
    let host = Host::new(true, Version::NEWEST);
    let mut dataplane = host.open();
    let intent = Intent { services: [service(1, [2 * 256 + 7])].into_iter().collect(), ..intent() };
    assert_eq!(dataplane.start(&intent).unwrap().refused, []);
    let (name, changed) = service(1, [2 * 256 + 7, 3 * 256 + 7]);
    let change = vec![(name.clone(), Some(changed.clone()))];
    let reads = |dataplane: &ferroxy_kernelspace::Kernelspace| dataplane.calls().reads;
    let before = reads(&dataplane);
    let refused = dataplane.change(change.clone()).unwrap().refused;
    assert_eq!(refused.len(), 1);
    assert!(refused[0].reason.contains("no route to the pod 10.244.3.7"), "{refused:?}");
    assert!(reads(&dataplane) - before <= 3, "the network alone is read again");
    assert!(balancers(&host)[0].ends_with("endpoints [10.244.2.7]"), "the rest serves");
    add_route(&host, "10.244.3.0/24", "172.18.0.4");
    assert_eq!(dataplane.change(change).unwrap().refused, []);
    assert!(balancers(&host)[0].ends_with("endpoints [10.244.2.7 10.244.3.7]"), "{:?}", host.lines());
    assert_eq!(dataplane.shortcomings(&changed), []);
    assert_eq!(dataplane.acknowledged().service(&name), Some(changed));
    // A route that exists already needs one attempt.
    add_route(&host, "10.244.4.0/24", "172.18.0.5");
    let (name, another) = service(2, [4 * 256 + 7]);
    assert_eq!(dataplane.change(vec![(name, Some(another))]).unwrap().refused, []);
    let lines = host.lines();
    assert!(lines.iter().any(|line| line.contains("10.244.4.7") && line.contains("172.18.0.5")), "{lines:?}");
    assert_eq!(dataplane.verify().unwrap().operations, 0);
}

/// As `explain` does on a node: a dataplane that only looks, and a ruleset that can only assume.
#[test]
fn what_is_said_of_a_service_is_about_the_hns_that_was_asked() {
    let host = Host::new(true, Version::new(9, 2));
    let mut intent = intent();
    let service = intent.services.values_mut().next().unwrap();
    std::sync::Arc::make_mut(service).ports[0].affinity = Some(60);
    let service = std::sync::Arc::clone(service);
    let mut dataplane = host.open();
    dataplane.programmed(&intent, &service).unwrap();
    let rendering = Rendering { intent: &intent, settings: &Settings::default(), host_addresses: &[] };
    let ruleset = (MODE.render)(&rendering);
    let limits = |traits: Vec<(&'static str, String)>| traits.into_iter().next().unwrap().1;
    let assumed = limits(ruleset.traits_of(&service, None));
    assert!(assumed.contains("no timeout for session affinity"), "{assumed}");
    let known = limits(ruleset.traits_of(&service, Some(&dataplane.shortcomings(&service))));
    assert!(known.contains("this HNS has no session affinity"), "{known}");
    assert!(known.contains("no route to 10.244.3.7"), "the node is known, too: {known}");
    assert!(!known.contains("no timeout"), "{known}");
}
