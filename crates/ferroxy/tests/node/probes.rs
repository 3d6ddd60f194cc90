//! Probes with real pods: an endpoint that stops answering gets no new connections in any mode, and returns when it answers again.
//! Endpoints that flap, that are unready, and that fail all at once. UDP clients leave a failed endpoint. Without a Service that asks
//! for probes, nothing runs.
//!
//! Pods always answer on the ports of the Service. The probes use another port, which the tests open and close.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferroxy_lab::{Answer, Namespace, Network, Protocol};
use serde_json::{Value, json};

use crate::support::health::{Well, serve, well};
use crate::support::web::{METRICS, get};
use crate::support::{
    self, Agent, Cluster, DEADLINE, Service, ask_from, ferroxy, nft, pod_of, run_arguments, wait_until,
};

const WEB: &str = "10.96.0.80:80";

/// Enough connections to reach every endpoint of a Service.
const MANY: usize = 40;

fn web() -> Service {
    Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 8080).port(Protocol::Udp, 53, 9090)
}

/// A Service that asks for probes, as often as possible.
fn write(cluster: &Cluster, service: &Service, probe: &str, unready: &[&str]) {
    let mut objects = service.objects();
    objects[0]["metadata"]["annotations"] = json!({
        "ferroxy.io/probe": probe,
        "ferroxy.io/probe-interval": "1s",
        "ferroxy.io/probe-timeout": "1s",
        "ferroxy.io/probe-failure-threshold": "2",
    });
    for slice in &mut objects[1..] {
        for (endpoint, pod) in slice["endpoints"].as_array_mut().unwrap().iter_mut().zip(&service.endpoints) {
            endpoint["targetRef"] = json!({ "kind": "Pod", "name": pod });
            if unready.contains(&pod.as_str()) {
                endpoint["conditions"] = json!({ "ready": false, "serving": false, "terminating": false });
            }
        }
    }
    cluster.write("web.yaml", &objects);
}

/// The pods that answer many connections; `-` stands for connections without an answer.
fn answering(network: &Network) -> BTreeSet<String> {
    let ask = |_| match ask_from(network, "a1", Protocol::Tcp, WEB) {
        Answer::Reply(line) => pod_of(&line).to_owned(),
        _ => "-".to_owned(),
    };
    (0..MANY).map(ask).collect()
}

fn wait_for_answers(network: &Network, pods: &[&str]) {
    let expected: BTreeSet<String> = pods.iter().map(ToString::to_string).collect();
    wait_until(&format!("{expected:?} answer"), DEADLINE, || answering(network) == expected);
}

fn metric(node: &Namespace, series: &str) -> f64 {
    let page = get(node, METRICS, "/metrics").unwrap().body;
    let line = page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {series} in {page}")).rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until this many more probes have ended.
fn wait_for_probes(node: &Namespace, more: f64) {
    let sent = || {
        let results = ["passed", "failed", "unknown"];
        results
            .map(|it| metric(node, &format!("ferroxy_probes_total{{result=\"{it}\"}}")))
            .iter()
            .sum::<f64>()
    };
    let before = sent();
    wait_until("more probes", DEADLINE, || sent() >= before + more);
}

fn explain(cluster: &Cluster, node: &Namespace) -> Value {
    ferroxy(node, &cluster.command(&["explain", "--output=json", "default/web"])).json()
}

fn who_stops_answering_is_out_and_comes_back(mode: &str) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode(mode);
    let _well = [well(&network, "a2"), well(&network, "b2")];
    let b1 = well(&network, "b1");
    write(&cluster, &web().endpoints(&["a2", "b1", "b2"]), "tcp:9000", &[]);
    let agent = Agent::start(ka, &cluster);
    wait_for_answers(&network, &["a2", "b1", "b2"]);
    wait_for_probes(ka, 6.0);
    assert_eq!(metric(ka, "ferroxy_probed_endpoints{verdict=\"up\"}"), 3.0);
    assert_eq!(explain(&cluster, ka)["findings"], json!([]));

    drop(b1);
    wait_for_answers(&network, &["a2", "b2"]);
    agent.wait_for("default/web: endpoint 10.244.2.5:9000/tcp (b1) fails its probe: connection refused");
    agent.settle(ka);
    assert_eq!(metric(ka, "ferroxy_probed_endpoints{verdict=\"down\"}"), 1.0);
    let explained = explain(&cluster, ka);
    let endpoints = explained["ports"][0]["endpoints"].as_array().unwrap();
    let row = endpoints.iter().find(|it| it["pod"] == "b1").unwrap();
    assert_eq!(row["reason"], "fails its probe: connection refused");
    assert_eq!(row["down"]["fault"], "connection refused");
    assert!(row["down"]["since"].as_str().unwrap().ends_with('Z'), "{row}");
    assert_eq!(explained["programmed"].as_str().map(|it| &it[..8]), Some("yes, all"), "{explained}");
    let text = ferroxy(ka, &cluster.command(&["explain", "web"])).stdout;
    assert!(text.contains("fails its probe: connection refused, since 2"), "{text}");
    let statusz = get(ka, METRICS, "/statusz").unwrap().body;
    assert!(statusz.contains("Probed endpoints: 3 (1 down)"), "{statusz}");

    let _b1 = well(&network, "b1");
    wait_for_answers(&network, &["a2", "b1", "b2"]);
    agent.wait_for("default/web: endpoint 10.244.2.5:9000/tcp (b1) passes its probe again");
}

#[test]
fn who_stops_answering_is_out_and_comes_back_in_nftables_mode() {
    who_stops_answering_is_out_and_comes_back("nftables");
}

#[test]
fn who_stops_answering_is_out_and_comes_back_in_userspace_mode() {
    who_stops_answering_is_out_and_comes_back("userspace");
}

#[test]
fn who_stops_answering_is_out_and_comes_back_in_iptables_mode() {
    who_stops_answering_is_out_and_comes_back("iptables");
}

/// On another machine, `explain` also leaves the failed endpoint out, and `diff` finds no difference.
#[test]
fn a_bundle_has_the_verdicts() {
    let Some(network) = support::network() else { return };
    let Some(elsewhere) = support::lonely_node() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let _well = [well(&network, "a2"), well(&network, "b2")];
    write(&cluster, &web().endpoints(&["a2", "b1", "b2"]), "tcp:9000", &[]);
    let arguments = run_arguments(&cluster.manifests(), &cluster.config()).into_iter();
    let page = ["--page-address=127.0.0.1".into()];
    let agent = Agent::start_with(ka, arguments.chain(page).collect::<Vec<_>>());
    wait_for_answers(&network, &["a2", "b2"]);
    agent.settle(ka);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bundle.json");
    let bundle = path.to_str().unwrap();
    assert_eq!(ferroxy(ka, &["record", "--file", bundle]).code, 0);
    // An unused chain is removed later. `diff` may report it, live and with the bundle, but no endpoint.
    let live = ferroxy(ka, &cluster.command(&["diff"]));
    let diff = ferroxy(&elsewhere, &["diff", "--bundle", bundle]);
    assert_eq!((diff.code, &diff.stdout), (live.code, &live.stdout), "{}", diff.stderr);
    assert!(!diff.stdout.contains("10.244."), "{}", diff.stdout);
    let done = ferroxy(&elsewhere, &["explain", "--bundle", bundle, "--output=json", "default/web"]);
    let explained = done.json();
    let endpoints = explained["ports"][0]["endpoints"].as_array().unwrap();
    let row = endpoints.iter().find(|it| it["pod"] == "b1").unwrap();
    assert_eq!(row["reason"], "fails its probe: connection refused", "{}", done.stderr);
}

#[test]
fn one_that_vanishes_without_a_word_is_out() {
    let Some(network) = support::network() else { return };
    let cluster = Cluster::new();
    write(&cluster, &web().endpoints(&["a2", "b1", "b2"]), "tcp", &[]);
    let agent = Agent::start(network.namespace("ka").unwrap(), &cluster);
    wait_for_answers(&network, &["a2", "b1", "b2"]);
    let b1 = network.namespace("b1").unwrap();
    nft(b1, &["add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }"]);
    agent.wait_for("endpoint 10.244.2.5:8080/tcp (b1) fails its probe: no answer in time");
    wait_for_answers(&network, &["a2", "b2"]);
    // A UDP probe without an answer is neither passed nor failed.
    assert_eq!(agent.said("10.244.2.5:9090/udp"), 0, "{}", agent.log());
    nft(b1, &["delete table inet t"]);
    wait_for_answers(&network, &["a2", "b1", "b2"]);
}

/// Answers every other request with a status that does not pass.
fn flapping(network: &Network, pod: &str) -> (Well, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let answer = move |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 1024]);
        let status =
            if count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { "503 Busy" } else { "200 OK" };
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    };
    (serve(network, pod, answer), requests)
}

#[test]
fn one_that_flaps_stays_and_costs_nothing() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let (_b1, requests) = flapping(&network, "b1");
    write(&cluster, &web().endpoints(&["b1", "b2"]), "http:/healthz:9000", &[]);
    let _b2 = flapping(&network, "b2");
    let agent = Agent::start(ka, &cluster);
    wait_until("ten requests", DEADLINE, || requests.load(Ordering::Relaxed) >= 10);
    wait_for_answers(&network, &["b1", "b2"]);
    assert!(metric(ka, "ferroxy_probes_total{result=\"failed\"}") >= 5.0);
    assert_eq!(metric(ka, "ferroxy_probe_verdicts_total{verdict=\"down\"}"), 0.0);
    assert_eq!(agent.said("fails its probe"), 0, "{}", agent.log());
}

#[test]
fn all_down_means_all_stay() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    write(&cluster, &web().endpoints(&["a2", "b1", "b2"]), "tcp:9000", &[]);
    let agent = Agent::start(ka, &cluster);
    agent.wait_for(
        "more than half of the IPv4 endpoints of port 80 fail their probe; their probes are ignored",
    );
    wait_until("all are down", DEADLINE, || metric(ka, "ferroxy_probed_endpoints{verdict=\"down\"}") == 3.0);
    wait_for_answers(&network, &["a2", "b1", "b2"]);
    assert_eq!(metric(ka, "ferroxy_probe_ignored_ports"), 2.0, "TCP and UDP");
    let problems = explain(&cluster, ka)["findings"].to_string();
    assert!(problems.contains("more than half, so they stay in use"), "{problems}");
    // With two of three well again, the third one is out.
    let _well = [well(&network, "a2"), well(&network, "b2")];
    wait_for_answers(&network, &["a2", "b2"]);
    assert_eq!(metric(ka, "ferroxy_probe_ignored_ports"), 0.0);
}

#[test]
fn an_unready_pod_is_not_used_however_well_it_is() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let _well = [well(&network, "b1"), well(&network, "b2")];
    write(&cluster, &web().endpoints(&["b1", "b2"]), "tcp:9000", &["b2"]);
    let agent = Agent::start(ka, &cluster);
    wait_for_probes(ka, 4.0);
    assert_eq!(answering(&network), ["b1".to_owned()].into());
    assert_eq!(metric(ka, "ferroxy_probed_endpoints{verdict=\"up\"}"), 1.0, "it is not even probed");
    write(&cluster, &web().endpoints(&["b1", "b2"]), "tcp:9000", &[]);
    wait_for_answers(&network, &["b1", "b2"]);
    assert_eq!(agent.said("fails its probe"), 0, "{}", agent.log());
}

/// Sends a datagram from a socket that is kept; the pod that answered, if one did.
fn ask_udp(socket: &UdpSocket) -> Option<String> {
    let _ = socket.send(b"who\n");
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).ok()?;
    Some(pod_of(std::str::from_utf8(&answer[..length]).unwrap()).to_owned())
}

#[test]
fn a_udp_client_leaves_an_endpoint_that_is_down() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let (mut b1, mut b2) = (Some(well(&network, "b1")), Some(well(&network, "b2")));
    write(&cluster, &web().endpoints(&["b1", "b2"]), "tcp:9000", &[]);
    let agent = Agent::start(ka, &cluster);
    let open = || {
        let socket = UdpSocket::bind((IpAddr::from([0; 4]), 0)).unwrap();
        socket.connect("10.96.0.80:53".parse::<SocketAddr>().unwrap()).unwrap();
        socket
    };
    let client = network.namespace("a1").unwrap().run(open).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut first = None;
    wait_until("a pod answers", DEADLINE, || {
        first = ask_udp(&client);
        first.is_some()
    });
    let (first, other) = if first.as_deref() == Some("b1") { (&mut b1, "b2") } else { (&mut b2, "b1") };
    drop(first.take());
    wait_until("the client has moved", DEADLINE, || ask_udp(&client).as_deref() == Some(other));
    agent.wait_for("removed 1 stale UDP conntrack entry of default/web");
}

/// The agent has a thread that probes.
fn probes(agent: &Agent) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).any(|name| name == "prober\n")
}

#[test]
fn nothing_runs_while_no_service_asks() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let service = web().endpoints(&["b1", "b2"]);
    cluster.write("web.yaml", &service.objects());
    let agent = Agent::start(ka, &cluster);
    wait_for_answers(&network, &["b1", "b2"]);
    assert!(!probes(&agent));
    write(&cluster, &service, "tcp", &[]);
    wait_until("it probes", DEADLINE, || probes(&agent));
    wait_for_probes(ka, 2.0);
    cluster.write("web.yaml", &service.objects());
    wait_until("it does not probe any more", DEADLINE, || !probes(&agent));
    // An invalid value starts no probes, and is logged.
    write(&cluster, &service, "icmp", &[]);
    agent.wait_for("metadata.annotations[ferroxy.io/probe]: `icmp` is not a probe");
    assert!(!probes(&agent));
}
