//! Manifests, and the host's addresses, that change while the agent runs; and invalid objects among good ones.

use std::fs;
use std::os::unix::fs::symlink;

use ferroxy_lab::{Namespace, Protocol};
use ferroxy_netlink::route::Address;
use serde_json::{Value, json};

use crate::support::{
    self, Agent, Cluster, DEADLINE, OwnedTable, Service, ask_from, nft, pod_from, run_arguments, wait_until,
};

fn service(name: &str, cluster_ip: &str, endpoint: &str) -> Service {
    Service::new(name, &[cluster_ip]).port(Protocol::Tcp, 80, 8080).endpoints(&[endpoint])
}

/// Where the map leads a cluster IP with one endpoint.
fn endpoint_of(node: &Namespace, cluster_ip: &str) -> Option<String> {
    let map = nft(node, &["list", "map", "ip", "ferroxy", "sole-endpoints"]);
    let (_, rest) = map.split_once(&format!("{cluster_ip} . tcp . 80 "))?;
    let (_, rest) = rest.split_once(" : ")?;
    Some(rest.split([' ', ',']).next().unwrap().to_owned())
}

fn becomes(node: &Namespace, cluster_ip: &str, endpoint: Option<&str>) {
    let what = format!("{cluster_ip} leads to {endpoint:?}");
    wait_until(&what, DEADLINE, || endpoint_of(node, cluster_ip).as_deref() == endpoint);
}

const A1: Option<&str> = Some("10.244.1.5");
const A2: Option<&str> = Some("10.244.1.6");
const B1: Option<&str> = Some("10.244.2.5");

#[test]
fn files_come_change_by_rename_and_go() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let agent = Agent::start(&node, &cluster);
    becomes(&node, "10.96.0.80", None);
    cluster.write_service(&service("web", "10.96.0.80", "a1"));
    becomes(&node, "10.96.0.80", A1);
    cluster.write_service(&service("web", "10.96.0.80", "a2"));
    becomes(&node, "10.96.0.80", A2);
    // Written in place too, as an editor might.
    let objects =
        service("web", "10.96.0.80", "b1").objects().iter().map(Value::to_string).collect::<Vec<_>>();
    fs::write(cluster.file("web.yaml"), objects.join("\n---\n")).unwrap();
    becomes(&node, "10.96.0.80", B1);
    cluster.remove("web.yaml");
    becomes(&node, "10.96.0.80", None);
    assert_eq!(agent.warned("cannot"), 0, "{}", agent.log());
}

#[test]
fn a_mounted_config_map_is_followed() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let directory = cluster.manifests();
    // As the kubelet does it: a directory for each version, a link to the current one that is swapped by rename, and
    // links to the files through that.
    let publish = |version: &str, endpoint: &str| {
        fs::create_dir(directory.join(version)).unwrap();
        cluster.write(&format!("{version}/web.yaml"), &service("web", "10.96.0.80", endpoint).objects());
        symlink(version, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    };
    publish("..2026_01", "a1");
    symlink("..data/web.yaml", directory.join("web.yaml")).unwrap();
    let agent = Agent::start(&node, &cluster);
    becomes(&node, "10.96.0.80", A1);
    publish("..2026_02", "a2");
    fs::remove_dir_all(directory.join("..2026_01")).unwrap();
    becomes(&node, "10.96.0.80", A2);
    publish("..2026_03", "b1");
    becomes(&node, "10.96.0.80", B1);
    assert_eq!(agent.said("is already taken"), 0, "each file is read once:\n{}", agent.log());
}

#[test]
fn a_broken_file_keeps_what_it_last_said() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&service("web", "10.96.0.80", "a1"));
    cluster.write_service(&service("other", "10.96.0.81", "a1"));
    let agent = Agent::start(&node, &cluster);
    cluster.write_text("web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web");
    agent.wait_for("stay in force until it can be read again");
    // Other files are still watched, and the Service of the broken file stays.
    cluster.write_service(&service("other", "10.96.0.81", "b1"));
    becomes(&node, "10.96.0.81", B1);
    assert_eq!(endpoint_of(&node, "10.96.0.80").as_deref(), A1);
    assert!(agent.log().contains("web.yaml"), "{}", agent.log());
    // Emptied, as if being written.
    cluster.write_text("other.yaml", "");
    agent.wait_for("the file is empty");
    assert_eq!(endpoint_of(&node, "10.96.0.81").as_deref(), B1);
    // Mended.
    cluster.write_service(&service("web", "10.96.0.80", "a2"));
    becomes(&node, "10.96.0.80", A2);
    // Gone for good.
    cluster.remove("other.yaml");
    becomes(&node, "10.96.0.81", None);
}

#[test]
fn a_restart_over_a_broken_file_removes_nothing_until_it_reads_well() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&service("web", "10.96.0.80", "a1"));
    cluster.write_service(&service("api", "10.96.0.81", "a1"));
    let agent = Agent::start(&node, &cluster);
    drop(agent.terminate());

    std::fs::write(cluster.manifests().join("web.yaml"), "kind: Service\nmetadata: [").unwrap();
    cluster.remove("api.yaml");
    let agent = Agent::start(&node, &cluster);
    agent.wait_for("keeping all existing rules until they can");
    for cluster_ip in ["10.96.0.80", "10.96.0.81"] {
        assert_eq!(endpoint_of(&node, cluster_ip).as_deref(), Some("10.244.1.5"), "{cluster_ip}");
    }

    cluster.write_service(&service("web", "10.96.0.80", "a2"));
    becomes(&node, "10.96.0.80", Some("10.244.1.6"));
    becomes(&node, "10.96.0.81", None);
    agent.settle(&node);
}

#[test]
fn a_file_that_is_mended_before_the_first_sync_counts_as_read() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_text("web.yaml", "kind: [");
    let owned = OwnedTable::of_ferroxy(&node);
    let agent = Agent::spawn(&node, run_arguments(&cluster.manifests(), &cluster.config()));
    agent.wait_for("first sync failed");
    cluster.write_service(&service("web", "10.96.0.80", "a1"));
    agent.wait_for("all objects can be read now");
    assert_eq!(agent.said("in sync"), 0, "{}", agent.log());

    drop(owned);
    agent.wait_for("in sync");
    becomes(&node, "10.96.0.80", A1);
    agent.settle(&node);
}

#[test]
fn the_whole_directory_may_vanish_and_return() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&service("web", "10.96.0.80", "a1"));
    let agent = Agent::start(&node, &cluster);
    let elsewhere = cluster.manifests().with_extension("old");
    fs::rename(cluster.manifests(), &elsewhere).unwrap();
    agent.wait_for("stay in force");
    assert_eq!(endpoint_of(&node, "10.96.0.80").as_deref(), A1);
    fs::rename(&elsewhere, cluster.manifests()).unwrap();
    cluster.write_service(&service("web", "10.96.0.80", "a2"));
    becomes(&node, "10.96.0.80", A2);
}

#[test]
fn objects_with_mistakes_stop_no_others() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let good = Service::new("a-good", &["10.96.0.80"]).node_port(Protocol::Tcp, 80, 8080, 30080);
    cluster.write_service(&good.endpoints(&["a2"]));
    for (name, objects, _) in mistakes() {
        cluster.write(&format!("{name}.yaml"), &objects);
    }
    let agent = Agent::start(ka, &cluster);
    assert_eq!(pod_from(&network, "a1", Protocol::Tcp, "10.96.0.80:80"), "a2");
    assert_eq!(pod_from(&network, "ext", Protocol::Tcp, "172.18.0.2:30080"), "a2");
    // The valid parts of a Service with a mistake work as well.
    assert_eq!(pod_from(&network, "a1", Protocol::Tcp, "10.96.0.81:80"), "b1");
    assert_eq!(pod_from(&network, "a1", Protocol::Tcp, "10.96.0.82:80"), "b1");
    for (name, _, words) in mistakes() {
        let warned = |line: &str| line.starts_with('W') && words.iter().all(|word| line.contains(word));
        assert!(agent.log().lines().any(warned), "{name}: no warning with {words:?} in\n{}", agent.log());
    }
    // The mistakes do not block later changes.
    cluster.write_service(&service("late", "10.96.0.99", "b2"));
    agent.settle(ka);
    assert_eq!(pod_from(&network, "a1", Protocol::Tcp, "10.96.0.99:80"), "b2");
}

/// A file, its objects, and words of the warning.
fn mistakes() -> Vec<(&'static str, Vec<Value>, &'static [&'static str])> {
    let with = |name: &str, cluster_ip: &str, spoil: fn(&mut Vec<Value>)| {
        let mut objects = service(name, cluster_ip, "b1").objects();
        spoil(&mut objects);
        objects
    };
    vec![
        (
            "node-port-clash",
            Service::new("node-port-clash", &["10.96.0.81"])
                .node_port(Protocol::Tcp, 80, 8080, 30080)
                .endpoints(&["b1"])
                .objects(),
            &["default/node-port-clash", "30080", "default/a-good"],
        ),
        (
            "bad-endpoint",
            with("bad-endpoint", "10.96.0.82", |objects| {
                let endpoints = objects[1]["endpoints"].as_array_mut().unwrap();
                endpoints.push(json!({ "addresses": ["10.244.1.300"], "conditions": { "ready": true } }));
            }),
            &["default/bad-endpoint-ipv4", "10.244.1.300"],
        ),
        (
            "bad-cluster-ip",
            with("bad-cluster-ip", "10.96.0.300", |_| ()),
            &["default/bad-cluster-ip", "10.96.0.300"],
        ),
        (
            "bad-port",
            with("bad-port", "10.96.0.84", |objects| objects[0]["spec"]["ports"][0]["port"] = json!(70000)),
            &["default/bad-port", "70000"],
        ),
        (
            "bad-target-port",
            with("bad-target-port", "10.96.0.85", |objects| objects[1]["ports"][0]["port"] = json!(70000)),
            &["default/bad-target-port-ipv4", "70000"],
        ),
        ("same-address", with("same-address", "10.96.0.80", |_| ()), &["default/same-address", "10.96.0.80"]),
        (
            "twice",
            with("bad-port", "10.96.0.86", |_| ()),
            &["default/bad-port", "already taken", "bad-port.yaml"],
        ),
        (
            "nameless",
            with("nameless", "10.96.0.87", |objects| objects[0]["metadata"] = json!({})),
            &["nameless.yaml"],
        ),
    ]
}

#[test]
fn node_ports_follow_the_addresses_of_the_host() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let ips = ["10.96.0.80", "fd00:10:96::80"];
    let web = Service::new("web", &ips).node_port(Protocol::Tcp, 80, 8080, 30080);
    cluster.write_service(&web.endpoints(&["b1"]));
    let manifests = format!("--manifests={}", cluster.manifests().display());
    let agent = Agent::start_with(
        ka,
        [
            "--hostname-override=ka",
            "--proxy-mode=nftables",
            "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
            "--nodeport-addresses=172.18.0.0/16",
            &manifests,
        ],
    );
    let answers = |target: &str| ask_from(&network, "ext", Protocol::Tcp, target).to_string();
    assert_eq!(answers("172.18.0.2:30080"), "b1:8080 172.18.0.2");
    // The configuration has no range of the other family: there, all addresses count, as in the original.
    assert_eq!(answers("[fd00:172:18::2]:30080"), "b1:8080 fd00:172:18::2");

    let mut connection = ka.connection().unwrap();
    let link = connection.link("eth0").unwrap().index;
    let new = Address { link, ip: "172.18.0.77".parse().unwrap(), prefix_length: 16 };
    for round in 0..2 {
        connection.add_address(new).unwrap();
        wait_until("the new address answers", DEADLINE, || answers("172.18.0.77:30080") != "refused");
        assert_eq!(answers("172.18.0.77:30080"), "b1:8080 172.18.0.2");
        assert_eq!(answers("172.18.0.2:30080"), "b1:8080 172.18.0.2", "the old one goes on");

        connection.remove_address(new).unwrap();
        let ips = || nft(ka, &["list", "set", "ip", "ferroxy", "nodeport-ips"]);
        wait_until("the address is forgotten", DEADLINE, || !ips().contains("172.18.0.77"));
        assert!(ips().contains("172.18.0.2"), "{}", ips());
        // A packet that still arrives for this address matches no node port. The node forwards it, and no host answers.
        assert!(["timeout", "unreachable"].contains(&answers("172.18.0.77:30080").as_str()), "round {round}");
    }
    // Node ports do not answer at an address outside the range.
    let outside = Address { link, ip: "192.0.2.9".parse().unwrap(), prefix_length: 24 };
    connection.add_address(outside).unwrap();
    agent.settle(ka);
    assert!(!nft(ka, &["list", "set", "ip", "ferroxy", "nodeport-ips"]).contains("192.0.2.9"));
    assert_eq!(agent.said("drift"), 0, "{}", agent.log());
}

/// 30 ports at a cluster IP and 40 external ones, with these endpoints: 12,300 elements with nine of them.
fn huge(endpoints: std::ops::RangeInclusive<u8>) -> Vec<Value> {
    let addresses: Vec<String> = endpoints.map(|last| format!("10.244.9.{last}")).collect();
    let endpoints: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let service = (1..=30).fold(Service::new("huge", &["10.96.0.99"]), |service, port| {
        service.port(Protocol::Tcp, port, 8000 + port)
    });
    let mut objects = service.endpoints(&endpoints).objects();
    objects[0]["spec"]["externalIPs"] = (1..=40).map(|last| format!("198.18.7.{last}")).collect();
    objects
}

/// The real dataplane applies the portions of a large Service one by one. The result is the same as that of the whole change.
#[test]
fn a_huge_service_arrives_changes_and_goes_in_portions() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let mut arguments = run_arguments(&cluster.manifests(), &cluster.config()).to_vec();
    arguments.push("-v=2".into());
    let agent = Agent::start_with(&node, arguments);
    let mut portions = 0;
    for (number, objects) in [Some(huge(1..=9)), Some(huge(3..=12)), None].into_iter().enumerate() {
        match objects {
            Some(objects) => cluster.write("huge.yaml", &objects),
            None => cluster.remove("huge.yaml"),
        }
        agent.wait_for_more_than("part of default/huge changed", portions);
        let endpoint = ["a1", "a2", "b1"][number];
        cluster.write_service(&service("web", "10.96.0.80", endpoint));
        becomes(&node, "10.96.0.80", [A1, A2, B1][number]);
        agent.settle(&node);
        portions = agent.said("part of default/huge changed");
    }
    assert_eq!(agent.warned("cannot"), 0, "{}", agent.log());
    assert_eq!(agent.warned("drift"), 0, "{}", agent.log());
}
