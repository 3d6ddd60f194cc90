//! Session affinity with real packets: a client stays with its endpoint as long as it may, leaves it the moment it must,
//! and is free again after the timeout. IPv4 and IPv6, TCP and UDP, cluster IPs and node ports.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::{Load, Network, Protocol, prefixes};

use crate::support::{self, Agent, Cluster, DEADLINE, Service, pod_from, pod_of, wait_until};

const PODS: [&str; 4] = ["a1", "a2", "b1", "b2"];

/// Every way into the Service: client, protocol, target. Only the packets of `ext` come from outside.
const WAYS: [(&str, Protocol, &str); 10] = [
    ("a1", Protocol::Tcp, "10.96.0.80:80"),
    ("a1", Protocol::Udp, "10.96.0.80:53"),
    ("a1", Protocol::Tcp, "[fd00:10:96::80]:80"),
    ("a1", Protocol::Udp, "[fd00:10:96::80]:53"),
    ("ka", Protocol::Tcp, "10.96.0.80:80"),
    ("ka", Protocol::Udp, "[fd00:10:96::80]:53"),
    ("ext", Protocol::Tcp, "172.18.0.2:30080"),
    ("ext", Protocol::Udp, "172.18.0.2:30053"),
    ("ext", Protocol::Tcp, "[fd00:172:18::2]:30080"),
    ("ext", Protocol::Udp, "[fd00:172:18::2]:30053"),
];

/// Longer than any test.
const LONG: u32 = 10_800;

fn sticky(seconds: u32) -> Service {
    Service::new("web", &["10.96.0.80", "fd00:10:96::80"])
        .node_port(Protocol::Tcp, 80, 8080, 30080)
        .node_port(Protocol::Udp, 53, 9090, 30053)
        .affinity(seconds)
}

fn without(pod: &str) -> Vec<&'static str> {
    PODS.into_iter().filter(|other| *other != pod).collect()
}

#[test]
fn a_client_keeps_its_endpoint_while_others_come_and_go() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.write_service(&sticky(LONG).endpoints(&PODS));
    let agent = Agent::start(ka, &cluster);
    for (from, protocol, target) in WAYS {
        let first = pod_from(&network, from, protocol, target);
        let others = without(&first);
        let first = first.as_str();
        // All there, the first two gone, only the client's own left, some back in another order.
        for endpoints in [&PODS[..], &[others[2], first], &[first], &[others[1], first, others[0]]] {
            cluster.write_service(&sticky(LONG).endpoints(endpoints));
            agent.settle(ka);
            for _ in 0..20 {
                assert_eq!(
                    pod_from(&network, from, protocol, target),
                    first,
                    "{from} -> {protocol} {target}"
                );
            }
        }
    }
    assert_eq!(agent.said("drift"), 0, "{}", agent.log());
}

/// As in kube-proxy, affinity belongs to the Service port: whichever of its frontends a client uses, it gets the same endpoint.
#[test]
fn a_client_has_one_endpoint_at_every_frontend_of_a_port() {
    const FRONTENDS: [(Protocol, [&str; 3]); 3] = [
        (Protocol::Tcp, ["10.96.0.80:80", "172.18.0.2:30080", "198.51.100.10:80"]),
        (Protocol::Udp, ["172.18.0.2:30053", "198.51.100.10:53", "10.96.0.80:53"]),
        (Protocol::Tcp, ["[fd00:172:18::2]:30080", "[fd00:10:96::80]:80", "[fd00:172:18::2]:30080"]),
    ];
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let write = |endpoints: &[&str]| {
        let mut objects = sticky(LONG).endpoints(endpoints).objects();
        objects[0]["spec"]["externalIPs"] = serde_json::json!(["198.51.100.10"]);
        cluster.write("web.yaml", &objects);
    };
    write(&PODS);
    let agent = Agent::start(ka, &cluster);
    for (protocol, frontends) in FRONTENDS {
        let ask = |target: &str| pod_from(&network, "ext", protocol, target);
        let first = ask(frontends[0]);
        for _ in 0..10 {
            assert_eq!(frontends.map(ask), [(); 3].map(|()| first.clone()), "{protocol} {frontends:?}");
        }
        // The endpoint is removed: from the next connection on, the client has another endpoint, the same at every frontend.
        write(&without(&first));
        agent.settle(ka);
        let second = ask(frontends[1]);
        assert_ne!(second, first, "{protocol} {frontends:?}");
        for _ in 0..10 {
            assert_eq!(frontends.map(ask), [(); 3].map(|()| second.clone()), "{protocol} {frontends:?}");
        }
        write(&PODS);
        agent.settle(ka);
    }
}

#[test]
fn a_client_leaves_with_its_endpoint_at_once_and_sticks_again() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    for (from, protocol, target) in WAYS {
        cluster.write_service(&sticky(LONG).endpoints(&PODS));
        let agent = Agent::start(ka, &cluster);
        let first = pod_from(&network, from, protocol, target);
        // Connections all through the change: none may fail, whatever the kernel is doing.
        let plan = plan(protocol, target);
        let load = Load::start(network.namespace(from).unwrap(), plan).unwrap();
        cluster.write_service(&sticky(LONG).endpoints(&without(&first)));
        agent.settle(ka);
        let second = pod_from(&network, from, protocol, target);
        // One connection may be under way; the next ones begin after the change.
        let made = load.done();
        wait_until("the load makes connections after the change", DEADLINE, || load.done() >= made + 2);
        let report = load.stop().unwrap();
        assert_eq!(report.failures, [], "{from} -> {protocol} {target}");

        assert_ne!(second, first, "{from} -> {protocol} {target}");
        let met: BTreeSet<&str> = report.replies.keys().map(|line| pod_of(line)).collect();
        // On a busy machine, the load may begin after the change and never reach the first endpoint.
        let allowed = BTreeSet::from([first.as_str(), &second]);
        assert!(met.is_subset(&allowed) && met.contains(second.as_str()), "{from} -> {target}: {met:?}");
        // The first endpoint returns; that changes nothing for the client.
        cluster.write_service(&sticky(LONG).endpoints(&PODS));
        agent.settle(ka);
        for _ in 0..20 {
            assert_eq!(pod_from(&network, from, protocol, target), second, "{from} -> {protocol} {target}");
        }
    }
}

fn plan(protocol: Protocol, target: &str) -> LoadPlan {
    let interval = Duration::from_millis(1);
    LoadPlan { interval, ..LoadPlan::back_to_back(protocol, target.parse().unwrap()) }
}

#[test]
fn the_next_connection_after_the_change_goes_elsewhere() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.write_service(&sticky(LONG).endpoints(&PODS));
    let agent = Agent::start(ka, &cluster);
    // The clients make no connection during the change, so the next connection finds the affinity entry as it was.
    let before = WAYS.map(|(from, protocol, target)| pod_from(&network, from, protocol, target));
    for gone in PODS {
        cluster.write_service(&sticky(LONG).endpoints(&without(gone)));
        agent.settle(ka);
        for ((from, protocol, target), first) in WAYS.iter().zip(&before) {
            let next = pod_from(&network, from, *protocol, target);
            assert_ne!(next, gone, "{from} -> {protocol} {target}");
            for _ in 0..3 {
                assert_eq!(
                    pod_from(&network, from, *protocol, target),
                    next,
                    "{from} -> {protocol} {target}: was {first}"
                );
            }
        }
        cluster.write_service(&sticky(LONG).endpoints(&PODS));
        agent.settle(ka);
    }
}

#[test]
fn a_restart_forgets_no_client() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.write_service(&sticky(LONG).endpoints(&PODS));
    let agent = Agent::start(ka, &cluster);
    let before = WAYS.map(|(from, protocol, target)| pod_from(&network, from, protocol, target));
    drop(agent.terminate());
    let agent = Agent::start(ka, &cluster);
    assert_eq!(agent.said("nothing to send"), 1, "{}", agent.log());
    let after = WAYS.map(|(from, protocol, target)| pod_from(&network, from, protocol, target));
    assert_eq!(after, before);
}

#[test]
fn clients_stick_although_another_table_decides_on_their_source() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    // As some pod networks do: masquerade on their own, earlier than we would.
    for family in ["ip", "ip6"] {
        support::nft(ka, &[format!("add table {family} other")]);
        let chain = "{ type nat hook postrouting priority srcnat - 1; }";
        support::nft(ka, &[format!("add chain {family} other early {chain}")]);
        support::nft(ka, &[format!("add rule {family} other early masquerade fully-random")]);
    }
    let cluster = Cluster::new();
    cluster.write_service(&sticky(LONG).endpoints(&PODS));
    let _agent = Agent::start(ka, &cluster);
    for (from, protocol, target) in WAYS {
        let met: BTreeSet<String> = (0..12).map(|_| pod_from(&network, from, protocol, target)).collect();
        assert_eq!(met.len(), 1, "from {from} to {target}: {met:?}");
    }
}

#[test]
fn clients_are_independent() {
    let Some(mut network) = support::network() else { return };
    let clients: Vec<String> = (1..=12).map(|number| format!("ext{number}")).collect();
    for (number, client) in (1..).zip(&clients) {
        add_client(&mut network, client, number);
    }
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.write_service(&sticky(LONG).endpoints(&PODS));
    let agent = Agent::start(ka, &cluster);
    for (protocol, target) in [(Protocol::Tcp, "10.96.0.80:80"), (Protocol::Udp, "[fd00:172:18::2]:30053")] {
        let pods_of_all = || -> Vec<String> {
            clients.iter().map(|from| pod_from(&network, from, protocol, target)).collect()
        };
        let first = pods_of_all();
        // Twelve clients on one of four endpoints by chance: 1 in 4 million.
        assert!(first.iter().collect::<BTreeSet<_>>().len() > 1, "all of {target} on {first:?}");
        for _ in 0..5 {
            assert_eq!(pods_of_all(), first, "{target}");
        }
        // The endpoint of one client is removed: clients of other endpoints keep theirs.
        let gone = first[0].as_str();
        cluster.write_service(&sticky(LONG).endpoints(&without(gone)));
        agent.settle(ka);
        for (was, is) in first.iter().zip(pods_of_all()) {
            match was == gone {
                true => assert_ne!(is, gone),
                false => assert_eq!(&is, was),
            }
        }
        cluster.write_service(&sticky(LONG).endpoints(&PODS));
        agent.settle(ka);
    }
}

fn add_client(network: &mut Network, name: &str, number: u8) {
    let (v4, v6) = (format!("172.18.1.{number}/16"), format!("fd00:172:18::1:{number}/64"));
    network.add_client(name, &prefixes([&v4, &v6]).unwrap()).unwrap();
    let services = prefixes(["10.96.0.0/16", "fd00:10:96::/112"]).unwrap();
    network.add_routes_via(name, "ka", &services).unwrap();
}

#[test]
fn after_the_timeout_a_client_is_free_again() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.write_service(&sticky(2).endpoints(&PODS));
    let _agent = Agent::start(ka, &cluster);
    let pods_of_all = || WAYS.map(|(from, protocol, target)| pod_from(&network, from, protocol, target));
    let mut met = WAYS.map(|_| BTreeSet::new());
    // Each time one of four: to see only one in twelve tries has a chance of 1 in 4 million.
    for _ in 0..12 {
        for (met, pod) in met.iter_mut().zip(pods_of_all()) {
            met.insert(pod);
        }
        if met.iter().all(|met| met.len() > 1) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2_500));
    }
    panic!("some never moved: {:?}", WAYS.iter().zip(met).collect::<Vec<_>>());
}

#[test]
fn every_connection_renews_the_timeout() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.write_service(&sticky(3).endpoints(&PODS));
    let agent = Agent::start(ka, &cluster);
    // If the machine is so busy that a pause exceeds the timeout, the attempt proves nothing. Try again with a longer timeout.
    for seconds in [3, 6, 20, 60].into_iter().chain(std::iter::repeat(200)) {
        cluster.write_service(&sticky(seconds).endpoints(&PODS));
        agent.settle(ka);
        let timeout = Duration::from_secs(seconds.into());
        if let Some(met) = meet_for(&network, timeout * 3, timeout) {
            for ((from, protocol, target), met) in WAYS.iter().zip(met) {
                assert_eq!(met.len(), 1, "{from} -> {protocol} {target}: {met:?}");
            }
            return;
        }
    }
}

/// The pods that answered on each way within `time`; `None` if a pause was longer than `longest_pause`.
fn meet_for(network: &Network, time: Duration, longest_pause: Duration) -> Option<Vec<BTreeSet<String>>> {
    let start = Instant::now();
    let mut met = vec![BTreeSet::new(); WAYS.len()];
    let mut round = start;
    while start.elapsed() < time {
        for (met, (from, protocol, target)) in met.iter_mut().zip(WAYS) {
            met.insert(pod_from(network, from, protocol, target));
        }
        std::thread::sleep(Duration::from_millis(700));
        // The pause of a way can last for its round and the requests of the next round. Keep a round well below the limit.
        if round.elapsed() > longest_pause * 2 / 3 {
            return None;
        }
        round = Instant::now();
    }
    Some(met)
}

#[test]
fn policy_local_and_affinity_lead_outside_clients_to_the_pod_here() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.write_service(&sticky(LONG).external_local().endpoints(&["b1", "a2", "b2"]));
    let agent = Agent::start(ka, &cluster);
    let from_outside = WAYS.iter().filter(|(from, ..)| *from == "ext");
    for (from, protocol, target) in from_outside.clone() {
        for _ in 0..10 {
            assert_eq!(pod_from(&network, from, *protocol, target), "a2", "{from} -> {protocol} {target}");
        }
    }
    // The local endpoint moves to another pod of this node; endpoints on other nodes are still not used.
    cluster.write_service(&sticky(LONG).external_local().endpoints(&["b1", "b2", "a1"]));
    agent.settle(ka);
    for (from, protocol, target) in from_outside {
        for _ in 0..10 {
            assert_eq!(pod_from(&network, from, *protocol, target), "a1", "{from} -> {protocol} {target}");
        }
    }
    // Clients inside the cluster may get any endpoint, and stay with it.
    let met: BTreeSet<String> =
        (0..20).map(|_| pod_from(&network, "ka", Protocol::Tcp, "172.18.0.2:30080")).collect();
    assert_eq!(met.len(), 1, "{met:?}");
}
