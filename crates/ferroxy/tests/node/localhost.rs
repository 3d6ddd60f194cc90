//! Node ports on 127.0.0.1 and ::1 in nftables mode, where a proxy serves them: with real packets, policies, restarts and cleanup.

use std::process::Command;

use crate::support::{
    self, Agent, Cluster, DEADLINE, Service, ask_from, ferroxy, pod_from, wait_until, web_service,
};
use ferroxy_lab::{Answer, Namespace, Network, Protocol};

const PLACES: [&str; 2] = ["127.0.0.1:30080", "[::1]:30080"];

/// Node ports answer on the node's address and on loopback addresses.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.configure("nodePortAddresses: []", "nodePortAddresses: [primary, localhost]");
    cluster.write_service(&web_service());
    cluster
}

fn listening(node: &Namespace) -> String {
    let ss = || Command::new("ss").args(["-Hlntu", "sport", "=", ":30080"]).output();
    String::from_utf8(node.run(ss).unwrap().unwrap().stdout).unwrap()
}

fn refused(network: &Network, target: &str) -> bool {
    ask_from(network, "ka", Protocol::Tcp, target) == Answer::Refused
}

#[test]
fn they_answer_follow_their_endpoints_and_end_with_the_service() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let agent = Agent::start(ka, &cluster);
    for target in PLACES.into_iter().chain(["172.18.0.2:30080"]) {
        pod_from(&network, "ka", Protocol::Tcp, target);
    }
    assert_eq!(listening(ka).lines().count(), 2, "nobody else reaches them:\n{}", listening(ka));

    cluster.write_service(&web_service().endpoints(&["b1"]));
    wait_until("the endpoints are others", DEADLINE, || {
        PLACES.iter().all(|it| (0..6).all(|_| pod_from(&network, "ka", Protocol::Tcp, it) == "b1"))
    });
    cluster.write_service(&web_service().endpoints(&[]));
    wait_until("no endpoint is left", DEADLINE, || PLACES.iter().all(|it| refused(&network, it)));
    cluster.write_service(&web_service());
    wait_until("they are back", DEADLINE, || PLACES.iter().all(|it| !refused(&network, it)));
    cluster.remove("web.yaml");
    wait_until("the Service is gone", DEADLINE, || listening(ka).is_empty());
    agent.terminate();
}

#[test]
fn datagrams_are_answered_too() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let dns = Service::new("dns", &["10.96.0.10", "fd00:10:96::10"])
        .node_port(Protocol::Udp, 53, 53, 30053)
        .endpoints(&["a1", "b1"]);
    cluster.write_service(&dns);
    let agent = Agent::start(ka, &cluster);
    for target in ["127.0.0.1:30053", "[::1]:30053"] {
        pod_from(&network, "ka", Protocol::Udp, target);
    }
    agent.terminate();
}

/// As on its other addresses, the host gets the endpoints of all nodes.
#[test]
fn under_the_policy_local_this_host_is_served_as_on_its_other_addresses() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let elsewhere = Service { external_local: true, ..web_service().endpoints(&["b1"]) };
    cluster.write_service(&elsewhere);
    let agent = Agent::start(ka, &cluster);
    for target in PLACES.into_iter().chain(["172.18.0.2:30080"]) {
        assert_eq!(pod_from(&network, "ka", Protocol::Tcp, target), "b1");
    }
    agent.terminate();
}

#[test]
fn they_are_not_served_where_no_address_or_switch_says_so() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let everywhere = cluster();
    everywhere.configure("[primary, localhost]", "[0.0.0.0/0, '::/0']");
    let switched_off = cluster();
    switched_off.configure("mode: nftables", "mode: nftables\nnftables: {localhostNodePorts: false}");
    for cluster in [everywhere, switched_off] {
        let agent = Agent::start(ka, &cluster);
        pod_from(&network, "ka", Protocol::Tcp, "172.18.0.2:30080");
        assert_eq!(listening(ka), "");
        assert!(refused(&network, PLACES[0]));
        agent.terminate();
    }
}

#[test]
fn a_restart_serves_again_and_cleanup_leaves_nothing() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    Agent::start(ka, &cluster).kill();
    assert_eq!(listening(ka), "", "listeners are the process's own");
    let agent = Agent::start(ka, &cluster);
    PLACES.iter().for_each(|it| drop(pod_from(&network, "ka", Protocol::Tcp, it)));
    agent.terminate();
    assert_eq!(ferroxy(ka, &["cleanup"]).code, 0);
    assert_eq!(listening(ka), "");
}

#[test]
fn a_port_that_another_program_has_is_taken_once_it_is_free() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    cluster.configure("mode: nftables", "mode: nftables\nnftables: {syncPeriod: 1s}");
    let other = ka.run(|| std::net::TcpListener::bind(PLACES[0]).unwrap()).unwrap();
    let agent = Agent::start(ka, &cluster);
    agent.wait_for("node port 127.0.0.1:30080/tcp is not served on the loopback address");
    pod_from(&network, "ka", Protocol::Tcp, PLACES[1]);
    pod_from(&network, "ka", Protocol::Tcp, "172.18.0.2:30080");
    drop(other);
    agent.wait_for("node port 127.0.0.1:30080/tcp is served on the loopback address now");
    pod_from(&network, "ka", Protocol::Tcp, PLACES[0]);
    assert_eq!(agent.said("is not served on the loopback address"), 1);
    agent.terminate();
}
