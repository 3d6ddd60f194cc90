//! Changes that a running agent applies without a restart: of its Node, and of its configuration. Packets prove each
//! change.

use std::fs;
use std::os::unix::fs::symlink;

use ferroxy_lab::api::Kind;
use ferroxy_lab::{Answer, Protocol};
use ferroxy_netlink::route::Address;
use serde_json::{Value, json};

use crate::support::web::{HEALTHZ, METRICS, code, get};
use crate::support::{
    Agent, DEADLINE, Service, Setting, Stage, Traffic, ask_from, configuration, node, pod_of, wait_until,
};

#[test]
fn the_node_s_address_zone_and_taints() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    let agent = stage.start();
    let traffic = Traffic::light(&stage.network);

    // Node ports are on the Node's address (and on no other that the host may have).
    add_address(&stage, "172.18.0.22");
    wait_for_node_port(&stage, "172.18.0.2:30080", true);
    wait_for_node_port(&stage, "172.18.0.22:30080", false);
    let mut moved = node("ka", 1);
    moved["status"]["addresses"][0]["address"] = json!("172.18.0.22");
    stage.put(&moved);
    wait_for_node_port(&stage, "172.18.0.22:30080", true);
    wait_for_node_port(&stage, "172.18.0.2:30080", false);
    agent.settle(stage.ka());

    // Zone hints lead to the endpoint of the Node's zone.
    hinted().iter().for_each(|object| stage.put(object));
    for (zone, pod) in [("z1", "a2"), ("z2", "b1"), ("z1", "a2")] {
        moved["metadata"]["labels"] = json!({ "topology.kubernetes.io/zone": zone });
        stage.put(&moved);
        wait_until(&format!("zone {zone} leads to {pod} only"), DEADLINE, || {
            (0..8).all(|_| answering_pod(&stage, "a1", "10.96.0.90:80").as_deref() == Some(pod))
        });
    }

    // The autoscaler's taint: load balancers must choose other nodes, while this node keeps serving.
    wait_for_health(&stage, 200);
    moved["spec"]["taints"] = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    stage.put(&moved);
    wait_for_health(&stage, 503);
    assert_eq!(code(stage.ka(), HEALTHZ, "/livez").unwrap(), 200);
    moved["spec"]["taints"] = json!([]);
    stage.put(&moved);
    wait_for_health(&stage, 200);

    // While the Node object is deleted, its last state stays in force. When it is recreated, its new state applies.
    moved["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    stage.put(&moved);
    wait_for_health(&stage, 503);
    stage.server.delete(Kind::Node, "", "ka").unwrap();
    stage.move_other();
    stage.wait_for_other();
    wait_for_node_port(&stage, "172.18.0.22:30080", true);
    assert_eq!(code(stage.ka(), HEALTHZ, "/healthz"), Some(503));
    stage.put(&node("ka", 1));
    wait_for_node_port(&stage, "172.18.0.2:30080", true);
    wait_for_node_port(&stage, "172.18.0.22:30080", false);
    wait_for_health(&stage, 200);

    ran_on(&stage, agent);
    traffic.was_undisturbed();
}

#[test]
fn the_node_s_pod_cidrs() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    stage.write_config(&configuration().replace("detectLocalMode: ClusterCIDR", "detectLocalMode: NodeCIDR"));
    let without = |mut node: Value| {
        node["spec"] = json!({});
        node
    };
    stage.put(&without(node("ka", 1)));
    stage.put_service(&remote());
    let agent = stage.spawn();
    agent.wait_for("waiting for the pod CIDRs of Node ka");
    assert_eq!(agent.said("in sync"), 0, "{}", agent.log());
    stage.put(&node("ka", 1));
    agent.wait_for("in sync");
    // Pods of this node are recognised by their addresses; all other clients are masqueraded.
    wait_for_source(&stage, "10.244.1.6");
    let mut renumbered = node("ka", 1);
    renumbered["spec"] = json!({ "podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"] });
    stage.put(&renumbered);
    wait_for_source(&stage, "172.18.0.2");
    stage.put(&node("ka", 1));
    wait_for_source(&stage, "10.244.1.6");
    ran_on(&stage, agent);
}

#[test]
fn the_configuration_file() {
    let Some(stage) = Stage::new(Setting::default()) else { return };
    stage.put_service(&remote());
    // As in a ConfigMap volume: the file is a symbolic link through `..data`, a link that is replaced with a rename.
    let folder = stage.folder().to_owned();
    let publish = |version: &str, text: &str| {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("config.yaml"), stage.with_client(text)).unwrap();
        let _ = fs::remove_file(folder.join("..data_tmp"));
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    publish("..1", &configuration());
    fs::remove_file(stage.config()).unwrap();
    symlink("..data/config.yaml", stage.config()).unwrap();
    let agent = stage.start();
    let traffic = Traffic::light(&stage.network);
    add_address(&stage, "172.18.0.22");
    wait_for_node_port(&stage, "172.18.0.22:30080", false);
    wait_for_source(&stage, "10.244.1.6");

    let everywhere =
        configuration().replace("nodePortAddresses: []", "nodePortAddresses: [0.0.0.0/0, '::/0']");
    publish("..2", &everywhere);
    agent.wait_for("the configuration changed: nodePortAddresses applied");
    wait_for_node_port(&stage, "172.18.0.22:30080", true);

    let elsewhere = everywhere.replace("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.9.0.0/16");
    publish("..3", &elsewhere);
    wait_for_source(&stage, "172.18.0.2");
    wait_until("the page shows what is in force", DEADLINE, || {
        let page = get(stage.ka(), METRICS, "/configz").unwrap().json();
        page["kubeproxy.config.k8s.io"]["clusterCIDR"].as_str().unwrap().contains("10.9.0.0/16")
    });

    publish(
        "..4",
        &elsewhere.replace("nodePortAddresses: [0.0.0.0/0, '::/0']", "nodePortAddresses: [nowhere]"),
    );
    agent.wait_for("the changed configuration is refused, the old one stays");
    wait_for_node_port(&stage, "172.18.0.22:30080", true);

    publish(
        "..5",
        &elsewhere.replace("metricsBindAddress: 127.0.0.1:10249", "metricsBindAddress: 127.0.0.1:9"),
    );
    agent.wait_for("metricsBindAddress needs a restart");

    publish("..6", &configuration());
    wait_for_source(&stage, "10.244.1.6");
    wait_for_node_port(&stage, "172.18.0.22:30080", false);
    ran_on(&stage, agent);
    traffic.was_undisturbed();
}

/// Checks that the agent is in sync, has not restarted, and had no drift to repair.
fn ran_on(stage: &Stage, agent: Agent) {
    agent.settle(stage.ka());
    let log = agent.terminate();
    assert_eq!(log.matches("in sync: ").count(), 1, "{log}");
    assert!(!log.contains("drift"), "{log}");
}

fn add_address(stage: &Stage, address: &str) {
    let mut connection = stage.ka().connection().unwrap();
    let link = connection.link("eth0").unwrap().index;
    let address = Address { link, ip: address.parse().unwrap(), prefix_length: 16 };
    connection.add_address(address).unwrap();
}

fn wait_for_node_port(stage: &Stage, target: &str, open: bool) {
    let what = format!("the node port {target} is {}", if open { "open" } else { "closed" });
    wait_until(&what, DEADLINE, || {
        let answer = ask_from(&stage.network, "ext", Protocol::Tcp, target);
        matches!(answer, Answer::Reply(_)) == open
    });
}

fn wait_for_health(stage: &Stage, expected: u16) {
    wait_until(&format!("/healthz says {expected}"), DEADLINE, || {
        code(stage.ka(), HEALTHZ, "/healthz") == Some(expected)
    });
}

fn answering_pod(stage: &Stage, from: &str, target: &str) -> Option<String> {
    match ask_from(&stage.network, from, Protocol::Tcp, target) {
        Answer::Reply(line) => Some(pod_of(&line).to_owned()),
        _ => None,
    }
}

/// A Service whose only endpoint is on the other node. The endpoint sees the client's address, or the node's if masqueraded.
fn remote() -> Service {
    Service::new("remote", &["10.96.0.91"]).port(Protocol::Tcp, 80, 80).endpoints(&["b1"])
}

/// Waits until the endpoint sees connections of pod a2 with this source address.
fn wait_for_source(stage: &Stage, source: &str) {
    let expected = format!("b1:80 {source}");
    wait_until(
        &format!("b1 is asked by {source}"),
        DEADLINE,
        || matches!(ask_from(&stage.network, "a2", Protocol::Tcp, "10.96.0.91:80"), Answer::Reply(line) if line == expected),
    );
}

/// One endpoint for each of two zones.
fn hinted() -> Vec<Value> {
    let service =
        Service::new("hinted", &["10.96.0.90"]).port(Protocol::Tcp, 80, 80).endpoints(&["a2", "b1"]);
    let mut objects = service.objects();
    objects[0]["metadata"]["annotations"] = json!({ "service.kubernetes.io/topology-mode": "Auto" });
    for (number, zone) in ["z1", "z2"].iter().enumerate() {
        objects[1]["endpoints"][number]["zone"] = json!(zone);
        objects[1]["endpoints"][number]["hints"] = json!({ "forZones": [{ "name": zone }] });
    }
    objects
}
