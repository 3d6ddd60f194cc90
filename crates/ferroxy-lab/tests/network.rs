//! The conformance network itself, with no proxy in it: which hosts reach each other, seen from which address, and how
//! failures show. One network for each test.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too; clippy only knows the functions")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::pod::{ANSWERING_PORTS, ECHO_PORT};
use ferroxy_lab::{
    ANSWER, Answer, Capability, Effort, Load, LongConnection, Network, Probe, Protocol, Seen, ask, prefixes,
    require,
};

const NEEDS: [Capability; 3] =
    [Capability::NetworkNamespaces, Capability::Bridges, Capability::BridgeNetfilter];

fn probe(from: &str, protocol: Protocol, address: &str, port: u16) -> Probe {
    Probe { from: from.to_owned(), protocol, address: address.parse().unwrap(), port }
}

/// The one answer that every attempt got.
fn answer(network: &Network, from: &str, protocol: Protocol, address: &str, port: u16) -> String {
    let probe = probe(from, protocol, address, port);
    let effort = Effort { timeout: ANSWER, ..Effort::default() };
    let seen = probe.run(network, &effort).unwrap();
    assert_eq!(seen.len(), 1, "{probe}: {seen:?}");
    seen.into_keys().next().unwrap()
}

#[test]
fn pods_reach_each_other_on_every_port_in_both_families() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    let mut probes = Vec::new();
    let mut expected = Vec::new();
    for (address, source) in [("10.244.2.5", "10.244.1.5"), ("fd00:10:244:2::5", "fd00:10:244:1::5")] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for port in ANSWERING_PORTS {
                probes.push(probe("a1", protocol, address, port));
                expected.push(Seen::from([(format!("b1:{port} {source}"), 24)]));
            }
        }
    }
    let effort = Effort { timeout: ANSWER, ..Effort::default() };
    let seen = Probe::run_all(&probes, &network, &effort).unwrap();
    assert_eq!(seen, expected);
}

#[test]
fn the_source_address_is_that_of_the_link_left_by() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    for (from, address, expected) in [
        ("a1", "10.244.1.6", "a2:80 10.244.1.5"),
        ("a1", "fd00:10:244:1::6", "a2:80 fd00:10:244:1::5"),
        ("ka", "10.244.1.5", "a1:80 10.244.1.1"),
        ("ka", "fd00:10:244:1::5", "a1:80 fd00:10:244:1::1"),
        ("ka", "10.244.2.6", "b2:80 172.18.0.2"),
        ("ka", "fd00:10:244:2::6", "b2:80 fd00:172:18::2"),
        ("b2", "10.244.1.6", "a2:80 10.244.2.6"),
    ] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            assert_eq!(answer(&network, from, protocol, address, 80), expected, "{from} -> {address}");
        }
    }
}

#[test]
fn failures_are_distinguished() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    let cases = [
        // A port without a listener, of a pod and (from outside) of a node.
        ("a1", "10.244.2.5", 81, "refused"),
        ("a1", "fd00:10:244:2::5", 81, "refused"),
        ("ext", "172.18.0.2", 30080, "refused"),
        ("ext", "fd00:172:18::2", 30080, "refused"),
        // A service address without a proxy: the node sends it to ext, which does not forward.
        ("a1", "10.96.0.80", 80, "timeout"),
        ("a1", "fd00:10:96::80", 80, "timeout"),
        // The outside client has no route to pod ranges and no default route.
        ("ext", "10.244.1.5", 80, "unreachable"),
        ("ext", "fd00:10:244:1::5", 80, "unreachable"),
    ];
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let probes = cases.map(|(from, address, port, _)| probe(from, protocol, address, port));
        let seen = Probe::run_all(&probes, &network, &Effort::default()).unwrap();
        for ((probe, seen), (_, _, _, expected)) in probes.iter().zip(seen).zip(cases) {
            assert_eq!(seen, Seen::from([(expected.to_owned(), 2)]), "{probe}");
        }
    }
}

#[test]
fn the_client_outside_reaches_the_node_and_is_seen_as_itself() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    // Through the node to a pod: only the route is missing.
    network.add_routes_via("ext", "ka", &prefixes(["10.244.1.0/24", "fd00:10:244:1::/64"]).unwrap()).unwrap();
    assert_eq!(answer(&network, "ext", Protocol::Tcp, "10.244.1.5", 80), "a1:80 172.18.0.100");
    assert_eq!(answer(&network, "ext", Protocol::Udp, "fd00:10:244:1::5", 53), "a1:53 fd00:172:18::100");
}

#[test]
fn the_node_has_the_links_the_corpus_names() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    let names: Vec<&str> = network.names().collect();
    assert_eq!(names, ["a1", "a2", "api", "b1", "b2", "ext", "ka", "kb"]);
    let ka = network.namespace("ka").unwrap();
    let mut connection = ka.connection().unwrap();
    for port in ["vetha1", "vetha2"] {
        let link = connection.link(port).unwrap();
        assert_eq!(link.hairpin, Some(true));
        assert_eq!(link.master, Some(connection.link("cbr0").unwrap().index));
    }
    let api: IpAddr = "172.31.255.2".parse().unwrap();
    let link = connection.link("api1").unwrap().index;
    let found = connection.addresses().unwrap().into_iter().find(|address| address.ip == api).unwrap();
    assert_eq!((found.link, found.prefix_length), (link, 30));
    let setting = |key: &'static str| {
        ka.run(move || std::fs::read_to_string(format!("/proc/sys/{key}")))
            .unwrap()
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(setting("net/ipv4/ip_forward"), "1");
    assert_eq!(setting("net/ipv6/conf/all/forwarding"), "1");
    assert_eq!(setting("net/ipv4/conf/eth0/rp_filter"), "0");
    assert_eq!(setting("net/bridge/bridge-nf-call-iptables"), "1");
}

#[test]
fn a_network_grows_and_shrinks_under_load() {
    if !require(&NEEDS) {
        return;
    }
    let mut network = Network::conformance().unwrap();
    let target: SocketAddr = "10.244.1.6:80".parse().unwrap();
    let plan = LoadPlan::back_to_back(Protocol::Tcp, target);
    let load = Load::start(network.namespace("b1").unwrap(), plan).unwrap();
    for _ in 0..3 {
        network.add_pod("a3", "ka", &prefixes(["10.244.1.7/24", "fd00:10:244:1::7/64"]).unwrap()).unwrap();
        assert_eq!(answer(&network, "b2", Protocol::Tcp, "10.244.1.7", 8080), "a3:8080 10.244.2.6");
        network.remove_pod("a3").unwrap();
    }
    let report = load.stop().unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(report.replies.keys().collect::<Vec<_>>(), ["a2:80 10.244.2.5"]);
    assert!(report.successes() > 100, "{}", report.successes());
    assert!(network.add_pod("a1", "ka", &[]).is_err(), "the name is taken");
    assert!(network.add_pod("a3", "ext", &[]).is_err(), "ext is no node");
    assert!(network.remove_pod("ka").is_err(), "ka is no pod");
}

#[test]
fn load_counts_every_failure_and_a_long_connection_its_end() {
    if !require(&NEEDS) {
        return;
    }
    let mut network = Network::conformance().unwrap();
    let b1 = network.namespace("b1").unwrap();
    let (interval, patience) = (Duration::from_millis(5), ANSWER);
    let target = |port| SocketAddr::new("10.244.1.5".parse().unwrap(), port);
    let open = || LongConnection::open(b1, target(ECHO_PORT), interval, patience).unwrap();
    let (whole, cut) = (open(), open());
    assert_eq!(whole.greeting(), "a1:7 10.244.2.5");
    let report = whole.close().unwrap();
    assert_eq!(report.broken, None);
    assert!(report.echoes >= 1);

    network.stop_servers("a1").unwrap();
    let report = cut.close().unwrap();
    assert!(report.broken.is_some(), "{report:?}");

    let plan = LoadPlan { max_requests: 5, ..LoadPlan::back_to_back(Protocol::Tcp, target(80)) };
    let report = Load::start(network.namespace("b1").unwrap(), plan).unwrap().finish().unwrap();
    assert_eq!(report.successes(), 0);
    let answers: Vec<Answer> = report.failures.into_iter().map(|failure| failure.answer).collect();
    assert_eq!(answers, [const { Answer::Refused }; 5]);
}

#[test]
fn a_pod_answers_hundreds_of_clients_at_once() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    let probes: Vec<Probe> = (0..24).map(|_| probe("b1", Protocol::Tcp, "10.244.1.5", 80)).collect();
    let effort = Effort { timeout: ANSWER, ..Effort::default() };
    for seen in Probe::run_all(&probes, &network, &effort).unwrap() {
        assert_eq!(seen, Seen::from([("a1:80 10.244.2.5".to_owned(), 24)]));
    }
}

#[test]
fn every_icmp_error_is_received() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    let b1 = network.namespace("b1").unwrap();
    for address in ["10.244.1.5", "fd00:10:244:1::5"] {
        let target = SocketAddr::new(address.parse().unwrap(), 9);
        // The port has no listener: each answer is one ICMP error, of which the kernel would send six at once. Each question is sent
        // once, so every packet must have its answer.
        for _ in 0..20 {
            let answer = b1.run(|| ask(Protocol::Udp, target, ANSWER)).unwrap().unwrap();
            assert_eq!(answer, Answer::Refused, "{address}");
        }
    }
}

#[test]
fn asking_needs_no_network_object() {
    if !require(&NEEDS) {
        return;
    }
    let network = Network::conformance().unwrap();
    let target: SocketAddr = "10.244.1.6:53".parse().unwrap();
    let answer = network.namespace("a1").unwrap().run(|| ask(Protocol::Udp, target, ANSWER)).unwrap();
    assert_eq!(answer.unwrap(), Answer::Reply("a2:53 10.244.1.5".to_owned()));
    assert!(network.to_string().contains("nsenter --net=/proc/"));
}
