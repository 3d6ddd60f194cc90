//! Requests of users and probes on a node: commands that use its HNS, health and metrics.

use std::net::Ipv4Addr;

use ferroxy_hcn::Version;
use serde_json::Value;

use crate::node::{NEWEST, Node, Service, free_port_at, service};

#[test]
#[ignore = "needs wine: make test-windows"]
fn diff_explain_and_cleanup_ask_hns() {
    let mut node = Node::new(NEWEST);
    node.put(&service(1, &[1, 2]));
    let (_, planned) = node.run("diff", &[]);
    assert!(planned.contains("create loadbalancer 10.96.0.1:80/tcp"), "{planned}");
    node.start();
    node.wait_for("the first sync", |node| node.has(&[("10.96.0.1", 2)]));
    let (is_same, nothing) = node.run("diff", &[]);
    assert!(is_same && !nothing.contains("loadbalancer"), "{nothing}");
    let (_, explained) = node.run("explain", &["default/s1"]);
    assert!(explained.contains("10.200.0.1") && explained.contains("10.96.0.1"), "{explained}");
    let (is_done, refused) = node.run("cleanup", &[]);
    assert!(!is_done && refused.contains("agent runs"), "{refused}");
    node.stop();
    // `cleanup` gets no network name, but finds all of our objects.
    let (is_done, removed) = node.run("cleanup", &[]);
    assert!(is_done && removed.contains("removed: loadbalancer 10.96.0.1:80/tcp"), "{removed}");
    assert!(removed.contains("removed: endpoint 10.200.0.1"), "{removed}");
    assert!(node.has(&[]));
    assert_eq!(node.fake.service().endpoints().len(), 1, "the pod of this node stays");
}

/// Without HNS, `explain` assumes a version that can do everything. Here it knows the version of the node.
#[test]
#[ignore = "needs wine: make test-windows"]
fn explain_says_what_the_hns_of_this_node_cannot_do() {
    let node = Node::new(Version::new(9, 2));
    node.put(&Service { number: 1, endpoints: vec![1], health_check: Some(30100) });
    let (_, explained) = node.run("explain", &["default/s1"]);
    assert!(explained.contains("policy Local needs direct server return"), "{explained}");
}

#[test]
#[ignore = "needs wine: make test-windows"]
fn health_metrics_and_health_check_ports_answer() {
    let mut node = Node::new(NEWEST);
    let check = free_port_at(Ipv4Addr::LOCALHOST.into());
    node.put(&Service { number: 1, endpoints: vec![1], health_check: Some(check) });
    node.start();
    node.wait_for("the first sync", |node| node.has(&[("*", 1), ("10.96.0.1", 2), ("203.0.113.10", 1)]));
    node.wait_for("/healthz", |node| node.healthz().is_some_and(|(status, _)| status == 200));
    node.wait_for("the health-check port", |node| {
        node.get(check, "/").is_some_and(|(status, body)| status == 200 && local_endpoints(&body) == Some(1))
    });
    let metrics = node.metrics();
    for name in [
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
}

fn local_endpoints(body: &str) -> Option<u64> {
    serde_json::from_str::<Value>(body).ok()?["localEndpoints"].as_u64()
}
