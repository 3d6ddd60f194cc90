//! Starts on hosts that are not ready, have an old HNS, or have another kind of network.

use std::net::IpAddr;

use ferroxy_hcn::Version;

use crate::node::{NEWEST, Node, node, own_address, service};

#[test]
#[ignore = "needs wine: make test-windows"]
fn an_hns_that_does_not_run_and_a_network_that_is_missing_are_waited_for() {
    let mut node = Node::without_network(NEWEST);
    node.put(&service(1, &[1, 2]));
    node.fake.stop();
    node.start();
    node.wait_for("it asks HNS", |node| node.calls() > 2);
    node.wait_for("it says so", |node| node.logged().contains("does not run"));
    node.fake.resume();
    node.wait_for("it misses the network", |node| node.logged().contains("HNS has no network CBR0"));
    assert!(node.has(&[]));
    node.add_network();
    node.wait_for("the network is there", |node| node.has(&[("10.96.0.1", 2)]));
}

#[test]
#[ignore = "needs wine: make test-windows"]
fn an_old_hns_is_served_without_what_it_lacks() {
    let mut node = Node::new(Version::new(9, 2));
    node.put(&service(1, &[1, 2]));
    node.start();
    node.wait_for("the first sync", |node| node.has(&[("10.96.0.1", 2)]));
    node.put(&service(1, &[3]));
    node.wait_for("a change", |node| node.has(&[("10.96.0.1", 1)]));
    let modified = node.fake.service().counted.get("HcnModifyLoadBalancer").copied();
    assert_eq!(modified, None, "it cannot");
}

#[test]
#[ignore = "needs wine: make test-windows"]
fn an_hns_that_is_too_old_ends_the_agent_with_a_reason() {
    let mut node = Node::new(Version::new(9, 1));
    node.start();
    let status = node.wait_for_end();
    assert!(!status.success() && node.logged().contains("HNS 9.1 is too old"), "{status}: {}", node.logged());
    assert_eq!(node.fake.service().changes(), 0);
}

/// An overlay needs the hardware address of the node's interface, so the node has an address of this machine.
#[test]
#[ignore = "needs wine: make test-windows"]
fn an_overlay_gets_its_source_vip_and_providers() {
    let Some(ip) = own_address() else {
        return ferroxy_lab::capability::skip("an interface with an IPv4 address and a hardware address");
    };
    let mut host = Node::without_network(NEWEST);
    host.api.put(&node("ka", ip)).unwrap();
    host.fake.add_overlay("vxlan0", &[("10.200.0.0/16", "172.18.0.3")]);
    host.flags = vec!["--network-name=vxlan0".into(), "--source-vip=10.244.1.9".into()];
    host.put(&service(1, &[1, 2]));
    host.start();
    host.wait_for("the first sync", |host| host.has(&[("10.96.0.1", 2)]));
    assert!(host.has_endpoint("10.244.1.9") && host.has_endpoint("10.96.0.1"));
    let service = host.fake.service();
    let providers: Vec<IpAddr> = service.endpoints().values().filter_map(|it| it.provider()).collect();
    let there: IpAddr = [172, 18, 0, 3].into();
    assert_eq!(providers.iter().filter(|it| **it == there).count(), 2, "{providers:?}");
}
