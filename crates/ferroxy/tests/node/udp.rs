//! UDP clients that keep their socket, with real packets: they leave a removed endpoint, keep an endpoint that still serves,
//! and find a Service that was created after their first datagram. No other connection is touched.
//!
//! Without the sweep of `agent/sweep.rs`, the kernel would treat a connection as it began, for as long as its client sends.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ferroxy_lab::pod::ECHO_PORT;
use ferroxy_lab::{ANSWER, LongConnection, Namespace, Network, Protocol};
use ferroxy_netlink::conntrack::{Connection, Entry, Family, Filter, status};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{self, Agent, Cluster, DEADLINE, Service, nft, pod_of, wait_until};

const LOAD_BALANCER_IP: &str = "203.0.113.80";

/// Every way into the Service `dns`.
const WAYS: [(&str, &str); 9] = [
    ("a1", "10.96.0.80:53"),
    ("a1", "[fd00:10:96::80]:53"),
    ("ka", "10.96.0.80:53"),
    ("ka", "[fd00:10:96::80]:53"),
    ("ext", "10.96.0.80:53"),
    ("ext", "172.18.0.2:30053"),
    ("ext", "[fd00:172:18::2]:30053"),
    ("ext", "203.0.113.80:53"),
    ("a1", "203.0.113.80:53"),
];

fn dns() -> Service {
    Service::new("dns", &["10.96.0.80", "fd00:10:96::80"]).node_port(Protocol::Udp, 53, 9090, 30053).port(
        Protocol::Tcp,
        ECHO_PORT,
        ECHO_PORT,
    )
}

/// The same port and the same endpoint as `dns`, on addresses of its own.
fn other() -> Service {
    Service::new("other", &["10.96.0.81", "fd00:10:96::81"])
        .node_port(Protocol::Udp, 53, 9090, 30054)
        .endpoints(&["b1"])
}

/// Writes `dns`, whatever its name is now, with a load balancer's address, and other conditions for some endpoints.
fn write(cluster: &Cluster, service: &Service, conditions: &[(&str, Value)]) {
    let mut objects = service.objects();
    objects[0]["spec"]["type"] = json!("LoadBalancer");
    objects[0]["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": LOAD_BALANCER_IP }] } });
    for slice in &mut objects[1..] {
        for (endpoint, name) in slice["endpoints"].as_array_mut().unwrap().iter_mut().zip(&service.endpoints)
        {
            if let Some((_, conditions)) = conditions.iter().find(|(pod, _)| pod == name) {
                endpoint["conditions"] = conditions.clone();
            }
        }
    }
    cluster.write("dns.yaml", &objects);
}

/// A client that keeps its socket.
struct Client {
    way: String,
    socket: UdpSocket,
}

impl Client {
    fn new(network: &Network, from: &str, target: &str) -> Client {
        let target: SocketAddr = target.parse().unwrap();
        let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let open = || {
            let socket = UdpSocket::bind((any, 0)).unwrap();
            socket.connect(target).unwrap();
            socket
        };
        let socket = network.namespace(from).unwrap().run(open).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Client { way: format!("{from} -> {target}"), socket }
    }

    /// Sends a datagram; the pod that answered, if one did.
    fn ask(&self) -> Option<String> {
        // This send reports the refusal of the previous datagram.
        let _ = self.socket.send(b"who\n");
        let mut answer = [0; 512];
        let length = self.socket.recv(&mut answer).ok()?;
        Some(pod_of(std::str::from_utf8(&answer[..length]).unwrap()).to_owned())
    }

    /// Goes on sending until this pod answers.
    fn reaches(&self, pod: &str) {
        wait_until(&format!("{} reaches {pod}", self.way), DEADLINE, || self.ask().as_deref() == Some(pod));
    }

    /// Goes on sending until no pod answers.
    fn reaches_nobody(&self) {
        wait_until(&format!("{} reaches nobody", self.way), DEADLINE, || self.ask().is_none());
    }

    /// The client's connection in a node's table. (Masquerading never changes the original tuple, so the tuple has the
    /// client's own port.)
    fn connection(&self, node: &Namespace) -> Option<Entry> {
        let (port, target) = (self.socket.local_addr().unwrap().port(), self.socket.peer_addr().unwrap());
        let is_its =
            |entry: &Entry| entry.original.source.port() == port && entry.original.destination == target;
        connections(node, target).into_iter().find(is_its)
    }

    fn connection_id(&self, node: &Namespace) -> u32 {
        self.connection(node).unwrap_or_else(|| panic!("{} has no connection", self.way)).id
    }
}

/// All connections to this address and port, of every protocol.
fn connections(node: &Namespace, target: SocketAddr) -> Vec<Entry> {
    let family = if target.is_ipv4() { Family::V4 } else { Family::V6 };
    let (destination, destination_port) = (Some(target.ip()), Some(target.port()));
    let filter = Filter { destination, destination_port, ..Filter::all(family) };
    let mut all = Vec::new();
    let mut connection = node.run(Connection::open).unwrap().unwrap();
    connection.entries(filter, &mut |entry| all.push(entry)).unwrap();
    all
}

fn clients(network: &Network) -> Vec<Client> {
    WAYS.map(|(from, target)| Client::new(network, from, target)).into()
}

#[test]
fn clients_leave_an_endpoint_that_is_gone_and_nobody_else_moves() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    cluster.write_service(&other());
    let agent = Agent::start(ka, &cluster);

    let clients = clients(&network);
    clients.iter().for_each(|client| client.reaches("b1"));
    let bystanders = [("a1", "10.96.0.81:53"), ("ext", "172.18.0.2:30054"), ("ka", "[fd00:10:96::81]:53")]
        .map(|(from, target)| Client::new(&network, from, target));
    bystanders.iter().for_each(|client| client.reaches("b1"));
    let before = bystanders.each_ref().map(|client| client.connection_id(ka));
    // TCP connections to the same Service also stay with their endpoint: a pod that is removed finishes its connections.
    let echo: SocketAddr = "10.96.0.80:7".parse().unwrap();
    let (pause, timeout) = (Duration::from_millis(10), ANSWER);
    let tcp = LongConnection::open(network.namespace("a1").unwrap(), echo, pause, timeout).unwrap();
    let tcp_before: Vec<u32> = connections(ka, echo).iter().map(|entry| entry.id).collect();
    assert_eq!(tcp_before.len(), 1);

    for pod in ["b2", "a2", "b1"] {
        write(&cluster, &dns().endpoints(&[pod]), &[]);
        clients.iter().for_each(|client| client.reaches(pod));
    }
    agent.wait_for(&format!("removed {} stale UDP conntrack entries of default/dns", WAYS.len()));
    assert_eq!(bystanders.each_ref().map(|client| client.connection_id(ka)), before);
    bystanders.iter().for_each(|client| client.reaches("b1"));
    assert_eq!(connections(ka, echo).iter().map(|entry| entry.id).collect::<Vec<_>>(), tcp_before);
    assert_eq!(tcp.close().unwrap().broken, None);
    assert_eq!(agent.said("of default/other"), 0, "{}", agent.log());
}

#[test]
fn an_endpoint_that_still_serves_keeps_its_clients() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let frontend = "10.96.0.80:53";
    let (unready, leaving) = (
        json!({ "ready": false, "serving": true, "terminating": false }),
        json!({ "ready": false, "serving": true, "terminating": true }),
    );
    // Ready for new clients although its pod is not ready: `publishNotReadyAddresses`.
    let published = json!({ "ready": true, "serving": false, "terminating": false });
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    let agent = Agent::start(ka, &cluster);
    let stays = Client::new(&network, "a1", frontend);
    stays.reaches("b1");
    let id = stays.connection_id(ka);

    let (mut current, mut next) = ("a2", "b2");
    for conditions in [unready, leaving, published, json!({ "ready": true })] {
        // Another endpoint is removed at the same time: once its client has moved, the sweep has run.
        let both = |pod| dns().endpoints(&["b1", pod]);
        write(&cluster, &both(current), &[]);
        agent.settle(ka);
        let moves = meet(&network, frontend, current);
        write(&cluster, &both(next), &[("b1", conditions.clone())]);
        wait_until("the other client has moved", DEADLINE, || moves.ask().as_deref() != Some(current));
        stays.reaches("b1");
        assert_eq!(stays.connection_id(ka), id, "b1 is {conditions}");
        (current, next) = (next, current);
    }
    // Now it serves no more.
    let down = json!({ "ready": false, "serving": false, "terminating": true });
    write(&cluster, &dns().endpoints(&["b1", "b2"]), &[("b1", down)]);
    stays.reaches("b2");
}

/// A client that this pod answers, which is one of two endpoints.
fn meet(network: &Network, target: &str, pod: &str) -> Client {
    for _ in 0..200 {
        let client = Client::new(network, "a1", target);
        if client.ask().as_deref() == Some(pod) {
            return client;
        }
    }
    panic!("no client met {pod}");
}

#[test]
fn to_nobody_and_back() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    let _agent = Agent::start(ka, &cluster);
    let clients = clients(&network);
    for pod in ["b1", "b2"] {
        write(&cluster, &dns().endpoints(&[pod]), &[]);
        clients.iter().for_each(|client| client.reaches(pod));
        write(&cluster, &dns(), &[]);
        clients.iter().for_each(Client::reaches_nobody);
    }
}

#[test]
fn a_restart_of_the_agent_cuts_nobody() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let leaving = json!({ "ready": false, "serving": true, "terminating": true });
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    cluster.write_service(&other());
    let agent = Agent::start(ka, &cluster);
    let clients = clients(&network);
    clients.iter().for_each(|client| client.reaches("b1"));
    write(&cluster, &dns().endpoints(&["b1", "b2"]), &[("b1", leaving.clone())]);
    agent.settle(ka);
    let ids: Vec<u32> = clients.iter().map(|client| client.connection_id(ka)).collect();
    drop(agent.terminate());

    // The endpoint of this client is removed while no agent runs. Once the client has moved, the first sweep has run.
    let moves = Client::new(&network, "a1", "10.96.0.81:53");
    moves.reaches("b1");
    cluster.write_service(&other().endpoints(&["b2"]));
    let agent = Agent::start(ka, &cluster);
    moves.reaches("b2");
    for (client, id) in clients.iter().zip(ids) {
        client.reaches("b1");
        assert_eq!(client.connection_id(ka), id, "{}", client.way);
    }
    assert_eq!(
        agent.said("removed 1 stale UDP conntrack entry of default/other (1 so far)"),
        1,
        "{}",
        agent.log()
    );
}

/// Ways on which the node tracks a datagram although there is no Service. (Datagrams to unused addresses of the Service
/// range are dropped before.)
const OPEN_WAYS: [(&str, &str); 4] = [
    ("a1", "203.0.113.80:53"),
    ("ext", "172.18.0.2:30053"),
    ("ext", "[fd00:172:18::2]:30053"),
    ("a1", "172.18.0.2:30053"),
];

fn send_unanswered(clients: &[Client], node: &Namespace) {
    for client in clients {
        assert_eq!(client.ask(), None, "{}", client.way);
        let connection = client.connection(node).unwrap_or_else(|| panic!("{}: not tracked", client.way));
        assert!(!connection.is_destination_translated());
    }
}

#[test]
fn a_client_that_sent_before_the_service_was_there_finds_it() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    let agent = Agent::start(ka, &cluster);
    let clients = OPEN_WAYS.map(|(from, target)| Client::new(&network, from, target));
    send_unanswered(&clients, ka);
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    clients.iter().for_each(|client| client.reaches("b1"));

    // The Service returns, at first without endpoints.
    cluster.remove("dns.yaml");
    clients.iter().for_each(Client::reaches_nobody);
    agent.settle(ka);
    send_unanswered(&clients, ka);
    write(&cluster, &dns(), &[]);
    agent.settle(ka);
    clients.iter().for_each(Client::reaches_nobody);
    write(&cluster, &dns().endpoints(&["b2"]), &[]);
    clients.iter().for_each(|client| client.reaches("b2"));
}

/// Adds a rule of another program that makes the kernel track connections without any rule of ours.
fn track_connections(node: &Namespace) {
    nft(node, &["add table inet t; add chain inet t c { type filter hook prerouting priority 0; }"]);
    nft(node, &["add rule inet t c ct state invalid drop"]);
}

#[test]
fn a_client_that_sent_before_the_agent_ran_finds_the_service() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    track_connections(ka);
    let clients = OPEN_WAYS.map(|(from, target)| Client::new(&network, from, target));
    send_unanswered(&clients, ka);
    let _agent = Agent::start(ka, &cluster);
    clients.iter().for_each(|client| client.reaches("b1"));
}

#[test]
fn a_client_that_sent_while_the_rules_were_missing_finds_the_service() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    track_connections(ka);
    let agent = Agent::start(ka, &cluster);
    // As if the node were too busy for the agent to repair the tables at once.
    agent.signal(Signal::STOP);
    nft(ka, &["delete table ip ferroxy; delete table ip6 ferroxy"]);
    let clients = OPEN_WAYS.map(|(from, target)| Client::new(&network, from, target));
    send_unanswered(&clients, ka);
    agent.signal(Signal::CONT);
    clients.iter().for_each(|client| client.reaches("b1"));
}

#[test]
fn a_service_that_goes_takes_its_connections_and_one_that_is_renamed_keeps_them() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    write(&cluster, &dns().endpoints(&["b1"]), &[]);
    let agent = Agent::start(ka, &cluster);
    let clients = clients(&network);
    clients.iter().for_each(|client| client.reaches("b1"));
    let ids: Vec<u32> = clients.iter().map(|client| client.connection_id(ka)).collect();

    // In one file, so that the new name appears when the old one disappears.
    let renamed = Service { name: "names".into(), ..dns().endpoints(&["b1", "b2"]) };
    write(&cluster, &renamed, &[]);
    agent.settle(ka);
    for (client, id) in clients.iter().zip(ids) {
        client.reaches("b1");
        assert_eq!(client.connection_id(ka), id, "{}", client.way);
    }

    cluster.remove("dns.yaml");
    wait_until("no connection is translated any more", DEADLINE, || {
        clients.iter().all(|client| {
            client.connection(ka).is_none_or(|connection| connection.status & status::DST_NAT == 0)
        })
    });
}
