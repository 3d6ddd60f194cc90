//! ipvs mode as packets see it: schedulers, draining endpoints, persistence, Services without an endpoint on this node, node ports on
//! new addresses, large sets. The rules and drift are in `agent.rs`. Needs IPVS: `make test-vm`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use ferroxy_lab::{ANSWER, Answer, LongConnection, Network, Protocol};
use ferroxy_netlink::ipvs::{self, Found};
use rustix::net::{self, AddressFamily, SocketType, sockopt::set_socket_linger};
use serde_json::{Value, json};

use crate::support::{
    self, Agent, Cluster, DEADLINE, Done, Service, ask_from, configured, pod_from, wait_until,
};

/// The conformance network, with an agent in ipvs mode on node ka.
struct Stage {
    network: Network,
    cluster: Cluster,
    agent: Agent,
}

impl Stage {
    /// `ipvs` is the value of that field of the configuration.
    fn start(ipvs: &str, services: &[Vec<Value>]) -> Option<Stage> {
        let network = support::network()?;
        let cluster = Cluster::in_mode("ipvs");
        let config = configured("clusterip-tcp", "ipvs").replace("ipvs: {}", &format!("ipvs: {ipvs}"));
        fs::write(cluster.config(), config).unwrap();
        let all: Vec<Value> = services.iter().flatten().cloned().collect();
        cluster.write("services.yaml", &all);
        let agent = Agent::start(network.namespace("ka").unwrap(), &cluster);
        Some(Stage { network, cluster, agent })
    }

    /// Rewrites the Services; the agent notices the change itself.
    fn change(&self, services: &[Service]) {
        let all: Vec<Value> = services.iter().flat_map(Service::objects).collect();
        self.cluster.write("services.yaml", &all);
    }

    fn on_node(&self, command: &str) -> String {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        let done = Done::of(self.network.namespace("ka").unwrap().run(|| command.output()).unwrap().unwrap());
        assert_eq!(done.code, 0, "{command:?}: {}", done.stderr);
        done.stdout
    }

    fn wait_for_server(&self, line: &str) {
        let has = || self.on_node("ipvsadm -Sn").lines().any(|it| it.trim_end() == line);
        wait_until(line, DEADLINE, has);
    }

    /// The destinations of a virtual server, by address, as the kernel counts their connections.
    fn destinations(&self, protocol: Protocol, at: &str) -> BTreeMap<SocketAddr, Found> {
        let at: SocketAddr = at.parse().unwrap();
        let protocol = match protocol {
            Protocol::Tcp => libc::IPPROTO_TCP as u8,
            Protocol::Udp => libc::IPPROTO_UDP as u8,
        };
        let server = ipvs::Address { ip: at.ip(), protocol, port: at.port() };
        let ask = || ipvs::Connection::open().unwrap().destinations(&server).unwrap();
        let found = self.network.namespace("ka").unwrap().run(ask).unwrap();
        found.into_iter().map(|it| (it.destination.address, it)).collect()
    }

    /// Holds a connection open, with a line now and then.
    fn hold(&self, from: &str, target: &str) -> LongConnection {
        let from = self.network.namespace(from).unwrap();
        let (interval, patience) = (Duration::from_millis(200), ANSWER);
        LongConnection::open(from, target.parse().unwrap(), interval, patience).unwrap()
    }

    /// The pod that answers a connection from this port. The connection ends with a reset, so that the kernel forgets it soon.
    fn ask_from_port(&self, from: &str, port: u16, target: &str) -> String {
        let to: SocketAddrV4 = target.parse().unwrap();
        let connect = || {
            let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)).unwrap();
            net::connect(&socket, &to).unwrap();
            set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
            TcpStream::from(socket)
        };
        let stream = self.network.namespace(from).unwrap().run(connect).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        support::pod_of(&line).to_owned()
    }

    /// The pods that answer `count` connections, one after the other. Each connection waits until only `held` connections are
    /// open, because the kernel sees the end of a connection a moment after its client.
    fn ask(&self, from: &str, target: &str, count: usize, held: u32) -> Vec<String> {
        let open = || self.destinations(Protocol::Tcp, target).values().map(|it| it.active).sum::<u32>();
        let one = |_| {
            wait_until("only what is held is open", DEADLINE, || open() == held);
            pod_from(&self.network, from, Protocol::Tcp, target)
        };
        (0..count).map(one).collect()
    }
}

/// The pod that sent the greeting.
fn pod(connection: &LongConnection) -> String {
    support::pod_of(connection.greeting()).to_owned()
}

fn distinct(pods: &[String]) -> BTreeSet<&str> {
    pods.iter().map(String::as_str).collect()
}

fn counts(pods: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        *counts.entry(pod.as_str()).or_default() += 1;
    }
    counts
}

/// A Service whose connections go to the echo port: a pod says its name there like on other ports, but the connection can
/// stay open.
fn echo_service(name: &str, ip: &str, endpoints: &[&str]) -> Service {
    Service::new(name, &[ip]).port(Protocol::Tcp, 80, 7).endpoints(endpoints)
}

fn with_scheduler(service: &Service, scheduler: &str) -> Vec<Value> {
    let mut objects = service.objects();
    objects[0]["metadata"]["annotations"] = json!({ "ferroxy.io/scheduler": scheduler });
    objects
}

const SCHEDULERS: [&str; 13] =
    ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf"];
const ENDPOINTS: [&str; 3] = ["a2", "b1", "b2"];
/// Each with an address of its own.
const CLIENTS: [&str; 2] = ["a1", "ext"];

fn address_of(scheduler: &str) -> String {
    let number = SCHEDULERS.iter().position(|it| *it == scheduler).unwrap();
    format!("10.96.1.{}:80", number + 1)
}

/// Every scheduler of the kernel, each chosen by its Service's annotation, with three endpoints of weight 1.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn every_scheduler_does_what_it_is_for() {
    let service = |scheduler: &str, endpoints: &[&str]| {
        let ip = address_of(scheduler);
        let service = echo_service(scheduler, ip.trim_end_matches(":80"), endpoints);
        with_scheduler(&service, scheduler)
    };
    let mut services = SCHEDULERS.map(|scheduler| service(scheduler, &ENDPOINTS)).to_vec();
    services.push(echo_service("plain", "10.96.1.99", &ENDPOINTS).objects());
    let Some(stage) = Stage::start("{scheduler: dh}", &services) else { return };
    for scheduler in SCHEDULERS {
        // As in kube-proxy: clients are also distinguished by their ports.
        let flags = if scheduler == "mh" { " -b mh-port" } else { "" };
        stage.wait_for_server(&format!("-A -t {} -s {scheduler}{flags}", address_of(scheduler)));
    }
    stage.wait_for_server("-A -t 10.96.1.99:80 -s dh");
    // Repeated at the end, when the kernel has forgotten these connections.
    let by_port = |port| stage.ask_from_port("a1", port, &address_of("mh"));
    let ports = 9001..9010;
    let of_ports: Vec<String> = ports.clone().map(by_port).collect();
    assert!(distinct(&of_ports).len() > 1, "mh: {of_ports:?}");
    for scheduler in ["rr", "wrr"] {
        let pods = stage.ask("a1", &address_of(scheduler), 9, 0);
        assert_eq!(counts(&pods), ENDPOINTS.map(|pod| (pod, 3)).into(), "{scheduler}");
    }
    for client in CLIENTS {
        let pods = stage.ask(client, &address_of("sh"), 5, 0);
        assert_eq!(distinct(&pods).len(), 1, "sh, {client}: {pods:?}");
    }
    // These schedulers choose by destination address, so all clients get the same endpoint.
    for scheduler in ["dh", "lblc", "lblcr"] {
        let ask = |client: &&str| stage.ask(client, &address_of(scheduler), 4, 0);
        let pods: Vec<String> = CLIENTS.iter().flat_map(ask).collect();
        assert_eq!(distinct(&pods).len(), 1, "{scheduler}: {pods:?}");
    }
    // An endpoint with an open connection gets no more as long as others are idle.
    for scheduler in ["lc", "wlc", "sed", "nq"] {
        let at = address_of(scheduler);
        let first = stage.hold("a1", &at);
        let busy = pod(&first);
        let pods = stage.ask("a1", &at, 5, 1);
        assert!(!pods.contains(&busy), "{scheduler}: {busy} is busy, {pods:?}");
        let second = stage.hold("a1", &at);
        assert_ne!(pod(&second), busy, "{scheduler}");
        let pods = stage.ask("a1", &at, 4, 2);
        let idle: Vec<&str> = ENDPOINTS.into_iter().filter(|it| *it != busy && *it != pod(&second)).collect();
        assert_eq!(distinct(&pods), idle.into_iter().collect(), "{scheduler}");
    }
    // One endpoint gets all connections, until they exceed its weight.
    let at = address_of("ovf");
    let held = [(); 3].map(|()| stage.hold("a1", &at));
    let [first, second, third] = held.each_ref().map(pod);
    assert_eq!(first, second, "ovf");
    assert_ne!(first, third, "ovf");
    // One endpoint gets all connections, until it is removed.
    let pods = stage.ask("a1", &address_of("fo"), 5, 0);
    let preferred = pods[0].clone();
    assert_eq!(counts(&pods), [(preferred.as_str(), 5)].into(), "fo");
    let rest: Vec<&str> = ENDPOINTS.into_iter().filter(|it| **it != preferred).collect();
    let others = services.iter().filter(|it| it[0]["metadata"]["name"] != "fo").flatten().cloned();
    stage.cluster.write("services.yaml", &others.chain(service("fo", &rest)).collect::<Vec<_>>());
    let left = || stage.destinations(Protocol::Tcp, &address_of("fo"));
    wait_until("it takes no more", DEADLINE, || {
        left().values().filter(|it| it.destination.weight > 0).count() == 2
    });
    let pods = stage.ask("a1", &address_of("fo"), 4, 0);
    assert!(distinct(&pods).len() == 1 && !pods.contains(&preferred), "fo: {preferred} is gone, {pods:?}");
    let known = || {
        stage.destinations(Protocol::Tcp, &address_of("mh")).values().any(|it| it.active + it.inactive > 0)
    };
    wait_until("the first connections are forgotten", DEADLINE, || !known());
    assert_eq!(ports.map(by_port).collect::<Vec<_>>(), of_ports, "mh");
}

/// Another scheduler changes the virtual server in place: its connections go on.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_scheduler_changes_under_connections() {
    let service = echo_service("web", "10.96.0.80", &ENDPOINTS);
    let Some(stage) = Stage::start("{}", &[service.objects()]) else { return };
    let at = "10.96.0.80:80";
    stage.wait_for_server("-A -t 10.96.0.80:80 -s rr");
    let held = stage.hold("a1", at);
    stage.cluster.write("services.yaml", &with_scheduler(&service, "sh"));
    stage.wait_for_server("-A -t 10.96.0.80:80 -s sh");
    assert_eq!(distinct(&stage.ask("ext", at, 4, 1)).len(), 1);
    stage.cluster.write("services.yaml", &with_scheduler(&service, "best"));
    stage.wait_for_server("-A -t 10.96.0.80:80 -s rr");
    stage.agent.wait_for("best");
    assert_eq!(distinct(&stage.ask("ext", at, 3, 1)).len(), 3);
    let report = held.close().unwrap();
    assert!(report.broken.is_none(), "{report:?}");
}

/// A removed endpoint keeps its connections and gets no new ones. It is deleted with its last connection, for UDP at once.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_removed_endpoint_drains() {
    let at = "10.96.0.80:80";
    let web = |endpoints: &[&str]| {
        let service = Service::new("web", &["10.96.0.80"]).endpoints(endpoints);
        service.port(Protocol::Tcp, 80, 7).port(Protocol::Udp, 53, 53)
    };
    let Some(stage) = Stage::start("{}", &[web(&["a2", "b1"]).objects()]) else { return };
    let held = [stage.hold("a1", at), stage.hold("a1", at)];
    let (leaving, staying) = if pod(&held[0]) == "b1" { (0, 1) } else { (1, 0) };
    assert_eq!((pod(&held[leaving]).as_str(), pod(&held[staying]).as_str()), ("b1", "a2"));
    for _ in 0..4 {
        pod_from(&stage.network, "a1", Protocol::Udp, "10.96.0.80:53");
    }

    stage.change(&[web(&["a2"])]);
    let b1: SocketAddr = "10.244.2.5:7".parse().unwrap();
    let weight =
        || stage.destinations(Protocol::Tcp, at).get(&b1).map(|it| (it.destination.weight, it.active));
    wait_until("it takes no more", DEADLINE, || weight() == Some((0, 1)));
    assert_eq!(distinct(&stage.ask("a1", at, 4, 2)), ["a2"].into());
    let datagrams = stage.destinations(Protocol::Udp, "10.96.0.80:53");
    assert_eq!(
        datagrams.keys().map(SocketAddr::ip).collect::<Vec<_>>(),
        ["10.244.1.6".parse::<IpAddr>().unwrap()]
    );
    assert_eq!(pod_from(&stage.network, "a1", Protocol::Udp, "10.96.0.80:53"), "a2");

    let [mut of_b1, mut of_a2] = [None, None];
    for (index, connection) in held.into_iter().enumerate() {
        if index == leaving {
            of_b1 = Some(connection)
        } else {
            of_a2 = Some(connection)
        };
    }
    let report = of_b1.unwrap().reset().unwrap();
    assert!(report.broken.is_none(), "{report:?}");
    wait_until("it is gone", DEADLINE, || weight().is_none());
    let report = of_a2.unwrap().close().unwrap();
    assert!(report.broken.is_none(), "{report:?}");
    assert_eq!(stage.agent.said("drift repaired"), 0, "{}", stage.agent.log());
}

/// A client keeps its endpoint as long as it returns within the timeout. The timeout can change while connections are open.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_client_stays_with_its_endpoint_for_a_while() {
    let web = |seconds: Option<u32>| {
        let service = Service::new("web", &["10.96.0.80"]).endpoints(&["a2", "b1"]);
        let service = service.port(Protocol::Udp, 53, 53).port(Protocol::Tcp, 80, 7);
        Service { affinity_seconds: seconds, ..service }
    };
    // The kernel remembers a client at least as long as its connections: a second for datagrams, two minutes for TCP.
    let Some(stage) = Stage::start("{udpTimeout: 1s}", &[web(Some(2)).objects()]) else { return };
    let at = "10.96.0.80:53";
    let ask = |client: &str| pod_from(&stage.network, client, Protocol::Udp, at);
    let first = ask("a1");
    let other = ask("ext");
    assert_ne!(first, other, "the next client is the next endpoint's");
    for _ in 0..4 {
        assert_eq!((ask("a1"), ask("ext")), (first.clone(), other.clone()));
    }
    let remembered = || stage.destinations(Protocol::Udp, at).values().map(|it| it.persistent).sum::<u32>();
    assert_eq!(remembered(), 2);
    wait_until("they are forgotten", DEADLINE, || remembered() == 0);
    let again = [ask("ext"), ask("a1")];
    assert_ne!(again[0], again[1], "they start over");

    let held = stage.hold("a1", "10.96.0.80:80");
    stage.change(&[web(Some(600))]);
    stage.wait_for_server("-A -u 10.96.0.80:53 -s rr -p 600");
    stage.wait_for_server("-A -t 10.96.0.80:80 -s rr -p 600");
    stage.change(&[web(None)]);
    stage.wait_for_server("-A -u 10.96.0.80:53 -s rr");
    stage.wait_for_server("-A -t 10.96.0.80:80 -s rr");
    let pods: Vec<String> = (0..6).map(|_| ask("a1")).collect();
    assert_eq!(counts(&pods), [("a2", 3), ("b1", 3)].into());
    let report = held.close().unwrap();
    assert!(report.broken.is_none(), "{report:?}");
}

/// Policy Local: without a local endpoint, external clients are dropped and pods are served; a local endpoint sees the address of
/// the client.
/// Node ports answer on addresses that the node gets later, and no longer on those that it loses.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn node_ports_follow_endpoints_and_addresses() {
    let local = |endpoints: &[&str]| {
        let service = Service::new("local", &["10.96.0.81"]).endpoints(endpoints);
        service.node_port(Protocol::Tcp, 80, 80, 30081).external_local()
    };
    let cluster = Service::new("cluster", &["10.96.0.80"]).endpoints(&["b1"]);
    let cluster = cluster.node_port(Protocol::Tcp, 80, 80, 30080);
    let services = [local(&["b1"]).objects(), cluster.objects()];
    let Some(stage) = Stage::start("{}", &services) else { return };
    let ask = |from: &str, target: &str| ask_from(&stage.network, from, Protocol::Tcp, target);
    assert_eq!(ask("ext", "172.18.0.2:30081"), Answer::Timeout);
    assert_eq!(pod_from(&stage.network, "a1", Protocol::Tcp, "172.18.0.2:30081"), "b1");
    assert_eq!(pod_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.81:80"), "b1");
    assert_eq!(pod_from(&stage.network, "ext", Protocol::Tcp, "172.18.0.2:30080"), "b1");

    stage.change(&[local(&["b1", "a2"]), cluster]);
    stage.wait_for_server("-a -t 172.18.0.2:30081 -r 10.244.1.6:80 -m -w 1");
    for _ in 0..3 {
        assert_eq!(ask("ext", "172.18.0.2:30081"), Answer::Reply("a2:80 172.18.0.100".into()));
    }

    let new = "172.18.0.22:30080";
    stage.on_node("ip address add 172.18.0.22/32 dev eth0");
    stage.wait_for_server("-a -t 172.18.0.22:30080 -r 10.244.2.5:80 -m -w 1");
    assert_eq!(pod_from(&stage.network, "ext", Protocol::Tcp, new), "b1");
    stage.on_node("ip address del 172.18.0.22/32 dev eth0");
    let is_gone = || !stage.on_node("ipvsadm -Sn").contains("172.18.0.22");
    wait_until("its servers are gone", DEADLINE, is_gone);
}

/// Internal policy Local without an endpoint on this node: pods, the node and external clients are refused, as by the original.
/// Also with affinity, and while the last local endpoint drains. The node port still works, because its policy is another.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn without_an_endpoint_here_everybody_is_refused() {
    let services = |endpoints: &[&str]| {
        let service = |name: &str, ips: &[&str], node_ports: [u16; 2]| {
            Service::new(name, ips)
                .node_port(Protocol::Tcp, 80, 80, node_ports[0])
                .node_port(Protocol::Udp, 53, 53, node_ports[1])
                .endpoints(endpoints)
        };
        let plain = service("plain", &["10.96.0.81", "fd00:10:96::81"], [30081, 30053]);
        let sticky = service("sticky", &["10.96.0.82", "fd00:10:96::82"], [30082, 30054]).affinity(60);
        let mut all = [plain.objects(), sticky.objects()];
        all.iter_mut().for_each(|objects| objects[0]["spec"]["internalTrafficPolicy"] = json!("Local"));
        all.concat()
    };
    let Some(stage) = Stage::start("{}", &[services(&["a2", "b1"])]) else { return };
    let ask = |from: &str, protocol, target: &str| ask_from(&stage.network, from, protocol, target);
    let hosts = ["10.96.0.81", "[fd00:10:96::81]", "10.96.0.82", "[fd00:10:96::82]"];
    for host in hosts {
        assert_eq!(pod_from(&stage.network, "a1", Protocol::Tcp, &format!("{host}:80")), "a2");
    }
    stage.cluster.write("services.yaml", &services(&["b1"]));
    let serves = |protocol, target: &str| {
        stage.destinations(protocol, target).values().any(|it| it.destination.weight > 0)
    };
    let frontends =
        hosts.map(|host| [(Protocol::Tcp, format!("{host}:80")), (Protocol::Udp, format!("{host}:53"))]);
    for (protocol, target) in frontends.as_flattened() {
        wait_until("nobody here serves", DEADLINE, || !serves(*protocol, target));
        for from in ["a1", "ext"] {
            assert_eq!(ask(from, *protocol, target), Answer::Refused, "{from} -> {protocol} {target}");
        }
    }
    for host in hosts {
        assert_eq!(ask("ka", Protocol::Tcp, &format!("{host}:80")), Answer::Refused, "ka -> {host}");
    }
    for from in ["a1", "ka", "ext"] {
        assert_eq!(pod_from(&stage.network, from, Protocol::Tcp, "172.18.0.2:30081"), "b1");
    }
}

/// On a node without rules, all clients wait for the API server, so its address is added before any other.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn the_api_server_comes_first() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode("ipvs");
    // Neither first nor last by name or address.
    let mut objects: Vec<Value> = (1..=30)
        .flat_map(|number| {
            let (name, ip) = (format!("{}{number}", if number % 2 == 0 { "a" } else { "z" }), number * 7);
            echo_service(&name, &format!("10.96.2.{ip}"), &["b1"]).objects()
        })
        .collect();
    objects.extend(
        Service::new("kubernetes", &["10.96.2.100"])
            .port(Protocol::Tcp, 443, 80)
            .endpoints(&["a2"])
            .objects(),
    );
    cluster.write("services.yaml", &objects);

    let mut command = Command::new("ip");
    command.args(["-oneline", "monitor", "address"]).stdout(Stdio::piped());
    let mut monitor = ka.run(|| command.spawn()).unwrap().unwrap();
    let lines = lines(monitor.stdout.take().unwrap());
    // The monitor listens once it reports this address.
    let mut links = ka.connection().unwrap();
    let link = links.link("lo").unwrap().index;
    let sign = ferroxy_netlink::route::Address { link, ip: [192, 0, 2, 200].into(), prefix_length: 32 };
    wait_until("it listens", DEADLINE, || {
        links.add_address(sign).unwrap();
        links.remove_address(sign).unwrap();
        lines.recv_timeout(Duration::from_millis(100)).is_ok()
    });
    let agent = Agent::start(ka, &cluster);
    let mut on_device = Vec::new();
    while on_device.len() < 31 {
        let line = lines.recv_timeout(DEADLINE).unwrap();
        if line.contains("kube-ipvs0") && line.contains(" inet ") {
            on_device.push(line);
        }
    }
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    assert!(on_device[0].contains(" 10.96.2.100/32 "), "{on_device:#?}");
    assert_eq!(pod_from(&network, "a1", Protocol::Tcp, "10.96.2.100:443"), "a2");
    agent.terminate();
}

fn lines(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The original's sets have at most 65,536 members. Here one Service has more source ranges, and the last of them must match.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_set_has_more_than_65536_members() {
    let address = "203.0.113.10";
    let objects = |ranges: &[String]| {
        let mut objects =
            Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 80).endpoints(&["b1"]).objects();
        objects[0]["spec"]["type"] = json!("LoadBalancer");
        objects[0]["spec"]["loadBalancerSourceRanges"] = json!(ranges);
        objects[0]["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": address }] } });
        objects
    };
    let mut ranges: Vec<String> =
        (0..65_600u32).map(|n| format!("20.{}.{}.{}/32", n >> 16, (n >> 8) & 255, n & 255)).collect();
    let Some(stage) = Stage::start("{}", &[objects(&ranges[..3])]) else { return };
    let target = format!("{address}:80");
    assert_eq!(ask_from(&stage.network, "ext", Protocol::Tcp, &target), Answer::Timeout);
    ranges.push("172.18.0.100/32".into());
    stage.cluster.write("services.yaml", &objects(&ranges));
    let size = || {
        let text = stage.on_node("ipset list -terse KUBE-LOAD-BALANCER-SOURCE-CIDR");
        let line = text.lines().find_map(|line| line.strip_prefix("Number of entries: ").map(str::to_owned));
        line.unwrap().parse::<usize>().unwrap()
    };
    wait_until("the set has them all", DEADLINE, || size() == ranges.len());
    assert_eq!(pod_from(&stage.network, "ext", Protocol::Tcp, &target), "b1");
}
