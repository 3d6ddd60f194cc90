//! Traffic of Services, counted by the kernel with real packets: traffic on every way through this node is counted once,
//! in both families.

use std::collections::BTreeMap;
use std::ffi::OsString;

use ferroxy_lab::{Answer, Namespace, Network, PodServer, Protocol};

use crate::support::web::metrics;
use crate::support::{self, Agent, Cluster, DEADLINE, Service, ask_from, run_arguments, wait_until};

/// How many requests each client sends.
const TIMES: u64 = 5;

/// This node's own addresses: an endpoint on the host's network.
const HOST: [&str; 2] = ["172.18.0.2", "fd00:172:18::2"];

/// A way through this node: the client, the frontend, and the endpoints that may answer.
struct Way {
    name: &'static str,
    from: &'static str,
    node_port: bool,
    endpoints: &'static [&'static str],
}

const WAYS: [Way; 9] = [
    way("near", "a1", false, &["a2"]),
    way("far", "a1", false, &["b1"]),
    way("hairpin", "a1", false, &["a1"]),
    way("host-to-near", "ka", false, &["a1"]),
    way("host-to-far", "ka", false, &["b1"]),
    way("host-to-itself", "ka", false, &HOST),
    way("outside-to-near", "ext", true, &["a1"]),
    way("outside-to-far", "ext", true, &["b1"]),
    way("outside-to-host", "ext", true, &HOST),
];

const fn way(
    name: &'static str,
    from: &'static str,
    node_port: bool,
    endpoints: &'static [&'static str],
) -> Way {
    Way { name, from, node_port, endpoints }
}

impl Way {
    fn number(&self) -> usize {
        WAYS.iter().position(|way| way.name == self.name).unwrap() + 1
    }

    fn service(&self) -> Service {
        let number = self.number();
        let addresses = [format!("10.96.0.{number}"), format!("fd00:10:96::{number}")];
        let (tcp, udp) = (30000 + number as u16, 31000 + number as u16);
        Service::new(self.name, &addresses.each_ref().map(String::as_str))
            .node_port(Protocol::Tcp, 80, 8080, tcp)
            .node_port(Protocol::Udp, 53, 9090, udp)
            .endpoints(self.endpoints)
    }

    /// Where to ask: IPv4, IPv6.
    fn targets(&self, protocol: Protocol) -> [String; 2] {
        let number = self.number();
        let (port, node_port) = match protocol {
            Protocol::Tcp => (80, 30000 + number),
            Protocol::Udp => (53, 31000 + number),
        };
        if self.node_port {
            [format!("172.18.0.2:{node_port}"), format!("[fd00:172:18::2]:{node_port}")]
        } else {
            [format!("10.96.0.{number}:{port}"), format!("[fd00:10:96::{number}]:{port}")]
        }
    }

    fn ask(&self, network: &Network, protocol: Protocol) {
        for target in self.targets(protocol) {
            for _ in 0..TIMES {
                let answer = ask_from(network, self.from, protocol, &target);
                assert!(matches!(answer, Answer::Reply(_)), "{}: {protocol} {target}: {answer}", self.name);
            }
        }
    }
}

type Metrics = BTreeMap<String, f64>;

fn arguments(cluster: &Cluster, more: &[&str]) -> Vec<OsString> {
    let more = more.iter().map(OsString::from);
    run_arguments(&cluster.manifests(), &cluster.config()).into_iter().chain(more).collect()
}

/// A counter of one Service port; `None` while nothing was counted.
fn of_service(metrics: &Metrics, name: &str, port: &str, what: &str, direction: &str) -> Option<f64> {
    let direction = if direction.is_empty() { String::new() } else { format!(",direction=\"{direction}\"") };
    let labels = format!("namespace=\"default\",service=\"{name}\",port=\"{port}\"{direction}");
    metrics.get(&format!("ferroxy_service_{what}_total{{{labels}}}")).copied()
}

fn counted(ka: &Namespace, name: &str, port: &str) -> Option<f64> {
    of_service(&metrics(ka), name, port, "connections", "")
}

#[test]
fn everything_is_counted_once_on_every_way() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let _host_server = PodServer::start(ka).unwrap();
    let cluster = Cluster::new();
    WAYS.iter().for_each(|way| cluster.write_service(&way.service()));
    let agent = Agent::start_with(ka, arguments(&cluster, &["--traffic-metrics"]));
    for way in &WAYS {
        way.ask(&network, Protocol::Udp);
        way.ask(&network, Protocol::Tcp);
    }
    // Both families.
    let times = 2.0 * TIMES as f64;
    for way in &WAYS {
        wait_until("the last of it is counted", DEADLINE, || counted(ka, way.name, "tcp-80") == Some(times));
        let metrics = metrics(ka);
        let of = |port: &str, what: &str, direction: &str| {
            let value = of_service(&metrics, way.name, port, what, direction);
            value.unwrap_or_else(|| panic!("{}: no {what} {direction} of {port}", way.name))
        };
        assert_eq!(of("udp-53", "connections", ""), times, "{}", way.name);
        for direction in ["received", "sent"] {
            // A request and its answer are a packet each.
            assert_eq!(of("udp-53", "packets", direction), times, "{}: {direction}", way.name);
            let bytes = of("udp-53", "bytes", direction) / times;
            assert!((39.0..200.0).contains(&bytes), "{}: {bytes} bytes {direction} each", way.name);
            // A connection takes at least three packets each way to open and close, and with the answer hardly more than
            // five. If they were counted twice, there would be too many.
            let packets = of("tcp-80", "packets", direction) / times;
            assert!((2.0..6.0).contains(&packets), "{}: {packets} packets {direction} each", way.name);
            let size = of("tcp-80", "bytes", direction) / of("tcp-80", "packets", direction);
            assert!((40.0..200.0).contains(&size), "{}: packets of {size} bytes {direction}", way.name);
        }
    }
    let endpoints = metrics(ka);
    for endpoint in ["10.244.2.5:9090", "[fd00:10:244:2::5]:9090"] {
        let labels = format!("namespace=\"default\",service=\"far\",port=\"udp-53\",endpoint=\"{endpoint}\"");
        assert_eq!(endpoints[&format!("ferroxy_endpoint_connections_total{{{labels}}}")], TIMES as f64);
        let sent = format!("ferroxy_endpoint_packets_total{{{labels},direction=\"sent\"}}");
        assert_eq!(endpoints[&sent], TIMES as f64);
    }
    assert_eq!(endpoints["ferroxy_traffic_left_out_series"], 0.0);
    assert_eq!(endpoints["ferroxy_traffic_read_failures_total"], 0.0);
    assert_eq!(agent.differences(ka), Vec::<String>::new(), "what was counted is no drift");
    assert_eq!(agent.said("drift"), 0, "{}", agent.log());
}

#[test]
fn the_number_of_series_is_bounded() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let used = &WAYS[..3];
    used.iter().for_each(|way| cluster.write_service(&way.service()));
    let few = ["--traffic-metrics", "--traffic-metrics-max-series=10"];
    let _agent = Agent::start_with(ka, arguments(&cluster, &few));
    used.iter().for_each(|way| way.ask(&network, Protocol::Udp));
    let shown = |metrics: &Metrics| {
        let of_traffic =
            |name: &&String| name.starts_with("ferroxy_service_") || name.starts_with("ferroxy_endpoint_");
        metrics.keys().filter(of_traffic).count()
    };
    // Three Services and six endpoints (one for each Service and family) have five series each; ten are shown.
    wait_until("all of it is counted", DEADLINE, || metrics(ka)["ferroxy_traffic_left_out_series"] == 35.0);
    assert_eq!(shown(&metrics(ka)), 10);
}

#[test]
fn counting_goes_on_after_a_restart_and_ends_when_it_is_not_wanted() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let way = &WAYS[1];
    cluster.write_service(&way.service());
    let times = 2.0 * TIMES as f64;
    let agent = Agent::start_with(ka, arguments(&cluster, &["--traffic-metrics"]));
    way.ask(&network, Protocol::Udp);
    wait_until("it is counted", DEADLINE, || counted(ka, way.name, "udp-53") == Some(times));
    agent.terminate();
    way.ask(&network, Protocol::Udp);

    let agent = Agent::start_with(ka, arguments(&cluster, &["--traffic-metrics"]));
    assert!(agent.log().contains("nothing to send"), "{}", agent.log());
    wait_until("nothing was lost", DEADLINE, || counted(ka, way.name, "udp-53") == Some(2.0 * times));
    agent.terminate();

    let agent = Agent::start_with(ka, arguments(&cluster, &[]));
    let rules = support::nft(ka, &["list", "ruleset"]);
    assert!(!rules.contains("chain traffic") && !rules.contains("set traffic"), "{rules}");
    assert!(!metrics(ka).keys().any(|name| name.contains("_service_") && name.starts_with("ferroxy_")));
    agent.settle(ka);
    way.ask(&network, Protocol::Udp);
}

/// Connections, sessions and datagrams as above. A proxy cannot see TCP packets, and counts only bytes of payload.
#[test]
fn a_proxy_counts_what_it_moves() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode("userspace");
    let used = &WAYS[..3];
    used.iter().for_each(|way| cluster.write_service(&way.service()));
    let agent = Agent::start_with(ka, arguments(&cluster, &["--traffic-metrics"]));
    let times = 2.0 * TIMES as f64;
    for way in used {
        way.ask(&network, Protocol::Udp);
        way.ask(&network, Protocol::Tcp);
        for port in ["udp-53", "tcp-80"] {
            wait_until("it is counted", DEADLINE, || counted(ka, way.name, port) == Some(times));
        }
        let metrics = metrics(ka);
        let of = |port, what, direction| of_service(&metrics, way.name, port, what, direction).unwrap();
        assert_eq!(of("udp-53", "packets", "received"), times, "{}", way.name);
        assert_eq!(of("udp-53", "packets", "sent"), times, "{}", way.name);
        assert_eq!(of("tcp-80", "packets", "sent"), 0.0);
        for (port, direction) in [("udp-53", "received"), ("udp-53", "sent"), ("tcp-80", "sent")] {
            assert!(of(port, "bytes", direction) > 0.0, "{}: {port} {direction}", way.name);
        }
    }
    agent.terminate();
}
