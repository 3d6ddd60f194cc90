//! Userspace mode with real packets: other rules, no translation, no privileges, restarts, hand-over, and what only a proxy can do.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::support::{
    self, Agent, Cluster, DEADLINE, FERROXY, Iptables, Service, ask_from, ferroxy, ferroxy_with, nft,
    pod_from, run_arguments, wait_until, web_service,
};
use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::{Answer, Load, Namespace, Network, Protocol};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use serde_json::json;

fn cluster() -> Cluster {
    let cluster = Cluster::in_mode("userspace");
    cluster.write_service(&web_service());
    cluster
}

fn shown(node: &Namespace, program: &str, arguments: &[&str]) -> String {
    let output = node.run(|| Command::new(program).args(arguments).output()).unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

const WAYS: [(&str, Protocol, &str); 6] = [
    ("a1", Protocol::Tcp, "10.96.0.80:80"),
    ("a2", Protocol::Tcp, "[fd00:10:96::80]:80"),
    ("ka", Protocol::Udp, "10.96.0.80:53"),
    ("ka", Protocol::Tcp, "[fd00:10:96::80]:80"),
    ("ext", Protocol::Tcp, "172.18.0.2:30080"),
    ("ext", Protocol::Udp, "[fd00:10:96::80]:53"),
];

fn serves_every_way(network: &Network) {
    for (from, protocol, target) in WAYS {
        pod_from(network, from, protocol, target);
    }
}

#[test]
fn node_ports_are_listened_on_and_answer_on_loopback_addresses() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let agent = Agent::start(ka, &cluster);
    let listening = shown(ka, "ss", &["-Hltn"]);
    assert!(listening.contains("0.0.0.0:30080") && listening.contains("[::]:30080"), "{listening}");
    for target in ["127.0.0.1:30080", "[::1]:30080", "172.18.0.2:30080", "10.244.1.1:30080"] {
        pod_from(&network, "ka", Protocol::Tcp, target);
    }
    agent.terminate();
}

#[test]
fn the_chains_of_the_original_lead_to_the_proxy() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    cluster.configure("mode: userspace", "mode: userspace\nuserspace: {rules: iptables}");
    let tools = Iptables::nft();
    let before = tools.rules(ka);
    let arguments = run_arguments(&cluster.manifests(), &cluster.config());
    let agent = Agent::start_using(ka, &tools, arguments);
    let rules = tools.rules(ka);
    let has = |words: &str| rules.iter().any(|rule| rule.contains(words));
    assert!(has("-A KUBE-PORTALS-CONTAINER -d 10.96.0.80/32 -p tcp"), "{rules:#?}");
    assert!(has("--dport 80 -j DNAT --to-destination 172.18.0.2:"), "{rules:#?}");
    serves_every_way(&network);
    agent.terminate();
    assert_eq!(ferroxy_with(ka, &tools, &["cleanup"]).code, 0);
    assert_eq!(tools.rules(ka), before);
}

/// kube-proxy up to 1.25 has chains of these names, so they stay until kube-proxy is known to serve by other rules. Later versions
/// never remove these chains, which would lead to ports without a listener.
#[test]
fn the_chains_of_the_original_go_when_kube_proxy_serves_by_others() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    cluster.configure("mode: userspace", "mode: userspace\nuserspace: {rules: iptables}");
    let tools = Iptables::nft();
    Agent::start_using(ka, &tools, run_arguments(&cluster.manifests(), &cluster.config())).terminate();
    let portals = || tools.rules(ka).iter().filter(|rule| rule.contains("KUBE-PORTALS")).count();
    let left = portals();
    assert!(left > 0);
    assert_eq!(ferroxy_with(ka, &tools, &["cleanup", "--only-ours"]).code, 0);
    assert_eq!(portals(), left, "they may be kube-proxy's");
    for tool in ["iptables-nft", "ip6tables-nft"] {
        for rule in ["-N KUBE-SERVICES", "-A KUBE-SERVICES -j RETURN", "-A PREROUTING -j KUBE-SERVICES"] {
            let arguments = ["-w", "10", "-t", "nat"].into_iter().chain(rule.split(' '));
            let status = ka.run(|| Command::new(tool).args(arguments).status()).unwrap().unwrap();
            assert!(status.success(), "{tool} {rule}");
        }
    }
    let done = ferroxy_with(ka, &tools, &["cleanup", "--when-replaced"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.contains("removed: chain KUBE-PORTALS-CONTAINER of nat (IPv6)"), "{}", done.stdout);
    assert_eq!(portals(), 0);
    assert!(tools.rules(ka).iter().any(|rule| rule.contains("-A KUBE-SERVICES")), "kube-proxy's went too");
}

/// By every frontend, from a pod, the node itself and an outside client, over both protocols; with and without a bind address.
#[test]
fn the_chains_of_the_original_serve_ipv6() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode("userspace");
    let dns = Service::new("dns", &["10.96.0.10", "fd00:10:96::10"])
        .node_port(Protocol::Udp, 53, 53, 30053)
        .endpoints(&["a1", "b1"]);
    cluster.write_service(&web_service());
    cluster.write_service(&dns);
    cluster.configure("mode: userspace", "mode: userspace\nuserspace: {rules: iptables}");
    let tools = Iptables::nft();
    for (bind_address, others) in [
        ("0.0.0.0", "-j REDIRECT --to-ports"),
        ("fd00:172:18::2", "-j DNAT --to-destination [fd00:172:18::2]:"),
    ] {
        cluster.configure("bindAddress: 0.0.0.0", &format!("bindAddress: {bind_address}"));
        let arguments = run_arguments(&cluster.manifests(), &cluster.config());
        let agent = Agent::start_using(ka, &tools, arguments.clone());
        let rules = tools.rules(ka);
        let leads = |chain: &str, to: &str| {
            let start = format!("-A {chain} -d fd00:10:96::80/128 ");
            let is_it = |it: &&String| [&start, "--dport 80 ", to].iter().all(|words| it.contains(*words));
            assert_eq!(rules.iter().filter(is_it).count(), 1, "{chain} {to}: {rules:#?}");
        };
        leads("KUBE-PORTALS-CONTAINER", others);
        leads("KUBE-PORTALS-HOST", "-j DNAT --to-destination [fd00:172:18::2]:");
        for from in ["a2", "ka", "ext"] {
            for (web, dns) in [
                ("[fd00:10:96::80]:80", "[fd00:10:96::10]:53"),
                ("[fd00:172:18::2]:30080", "[fd00:172:18::2]:30053"),
            ] {
                pod_from(&network, from, Protocol::Tcp, web);
                pod_from(&network, from, Protocol::Udp, dns);
            }
        }
        pod_from(&network, "ka", Protocol::Tcp, "[::1]:30080");
        // The next process listens where the rules lead to.
        agent.kill();
        let agent = Agent::start_using(ka, &tools, arguments);
        assert_eq!(tools.rules(ka), rules);
        pod_from(&network, "a2", Protocol::Tcp, "[fd00:10:96::80]:80");
        agent.terminate();
    }
}

/// No client is accepted and left without an answer, and none waits in the queue of a socket that nothing serves.
#[test]
fn without_endpoints_clients_are_refused_and_the_node_port_is_closed() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let tools = Iptables::nft();
    for settings in ["{}", "{rules: iptables}", "{clusterIPs: bind}"] {
        let cluster = cluster();
        cluster.configure("mode: userspace", &format!("mode: userspace\nuserspace: {settings}"));
        let agent = Agent::start_using(ka, &tools, run_arguments(&cluster.manifests(), &cluster.config()));
        serves_every_way(&network);
        cluster.write_service(&web_service().endpoints(&[]));
        for (from, protocol, target) in WAYS {
            // The rules refuse the node's own datagrams at once, with an error that the lab cannot distinguish from a drop.
            if (from, protocol, settings) == ("ka", Protocol::Udp, "{}") {
                continue;
            }
            let what = format!("{target} refuses {from} with {settings}");
            wait_until(&what, DEADLINE, || ask_from(&network, from, protocol, target) == Answer::Refused);
        }
        assert_eq!(ask_from(&network, "ka", Protocol::Tcp, "127.0.0.1:30080"), Answer::Refused, "{settings}");
        // The rules of the original lead from ::1 to an address of the node. There, the kernel sends no reset to ::1.
        if settings != "{rules: iptables}" {
            assert_eq!(ask_from(&network, "ka", Protocol::Tcp, "[::1]:30080"), Answer::Refused, "{settings}");
        }
        assert_eq!(shown(ka, "ss", &["-Hltn", "sport", "=", ":30080"]), "", "{settings}");
        cluster.write_service(&web_service());
        for (from, protocol, target) in WAYS {
            let is_served = || matches!(ask_from(&network, from, protocol, target), Answer::Reply(_));
            wait_until(&format!("{target} serves {from} again with {settings}"), DEADLINE, is_served);
        }
        agent.terminate();
        assert_eq!(ferroxy_with(ka, &tools, &["cleanup"]).code, 0);
    }
}

#[test]
fn cluster_ips_work_without_any_translation() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    cluster.configure("mode: userspace", "mode: userspace\nuserspace: {clusterIPs: bind}");
    let agent = Agent::start(ka, &cluster);
    let elements = nft(ka, &["list", "map", "ip", "ferroxy", "sole-endpoints"]);
    assert!(!elements.contains("10.96.0.80"), "{elements}");
    assert!(shown(ka, "ip", &["route", "show", "table", "local"]).contains("10.96.0.80"));
    serves_every_way(&network);
    assert_eq!(ask_from(&network, "a1", Protocol::Tcp, "10.96.0.80:81"), Answer::Refused);
    cluster.remove("web.yaml");
    wait_until("the route is gone", DEADLINE, || {
        !shown(ka, "ip", &["route", "show", "table", "local"]).contains("10.96.0.80")
    });
    agent.terminate();
    assert_eq!(ferroxy(ka, &["cleanup"]).code, 0);
}

/// The rules of the killed process stay, and the next one listens where they lead to.
#[test]
fn after_a_kill_the_next_process_serves_at_the_same_ports() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let agent = Agent::start(ka, &cluster);
    let rules = support::listing(ka);
    agent.kill();
    let agent = Agent::start(ka, &cluster);
    serves_every_way(&network);
    assert_eq!(support::listing(ka), rules);
    agent.terminate();
}

#[test]
fn a_successor_takes_over_without_a_refused_connection() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let first = Agent::start(ka, &cluster);
    let second = Agent::spawn(ka, run_arguments(&cluster.manifests(), &cluster.config()));
    second.wait_for("another Ferroxy agent runs in this network namespace");
    let loads: Vec<Load> = WAYS
        .iter()
        .filter(|(_, protocol, _)| *protocol == Protocol::Tcp)
        .map(|(from, protocol, target)| {
            let plan = LoadPlan::back_to_back(*protocol, target.parse().unwrap());
            let interval = Duration::from_millis(10);
            let plan = LoadPlan { interval, max_time: Duration::from_secs(7200), ..plan };
            Load::start(network.namespace(from).unwrap(), plan).unwrap()
        })
        .collect();
    let enough = |more: usize| {
        let before: Vec<usize> = loads.iter().map(Load::done).collect();
        wait_until("there is traffic", DEADLINE, || {
            loads.iter().zip(&before).all(|(load, before)| load.done() >= before + more)
        });
    };
    enough(20);
    let log = first.terminate();
    assert!(log.contains("another process took over"), "{log}");
    enough(20);
    for load in loads {
        assert_eq!(load.stop().unwrap().failures, []);
    }
    let log = second.terminate();
    assert!(log.contains("took over"), "{log}");
}

#[test]
fn without_privileges_node_ports_are_served_and_a_warning_says_so() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let mut command = Command::new(FERROXY);
    command.arg("run");
    let arguments = run_arguments(&cluster.manifests(), &cluster.config());
    let agent = Agent::spawn_prepared(ka, command, arguments, || {
        let bounding = [CapabilitySet::NET_ADMIN, CapabilitySet::NET_RAW];
        bounding.iter().for_each(|it| rustix::thread::remove_capability_from_bounding_set(*it).unwrap());
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .unwrap();
    });
    agent.wait_for("in sync");
    assert_eq!(agent.warned("not permitted to program the kernel"), 1, "{}", agent.log());
    pod_from(&network, "ext", Protocol::Tcp, "172.18.0.2:30080");
    assert_eq!(nft(ka, &["list", "ruleset"]), "");
    agent.terminate();
}

/// Writes a Service with annotations, for which `Service` has no field.
fn write_annotated(cluster: &Cluster, service: &Service, annotations: serde_json::Value) {
    let mut objects = service.objects();
    objects[0]["metadata"]["annotations"] = annotations;
    cluster.write(&format!("{}.yaml", service.name), &objects);
}

#[test]
fn a_connection_is_held_until_a_pod_is_ready() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode("userspace");
    let held = Service::new("idle", &["10.96.0.90"]).port(Protocol::Tcp, 80, 80);
    write_annotated(&cluster, &held, json!({ "ferroxy.io/hold-until-ready": "30s" }));
    let agent = Agent::start(ka, &cluster);
    let answer = thread::scope(|scope| {
        let asked = scope.spawn(|| pod_from(&network, "a1", Protocol::Tcp, "10.96.0.90:80"));
        wait_until("it is held", DEADLINE, || {
            shown(network.namespace("a1").unwrap(), "ss", &["-Htn", "dst", "10.96.0.90"]).contains("ESTAB")
        });
        let ready = held.clone().endpoints(&["b1"]);
        write_annotated(&cluster, &ready, json!({ "ferroxy.io/hold-until-ready": "30s" }));
        asked.join().unwrap()
    });
    assert_eq!(answer, "b1");
    agent.terminate();
}

/// If an endpoint refuses a connection, the client only waits for a retry.
#[test]
fn a_failed_dial_goes_to_the_next_endpoint() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode("userspace");
    // Nothing listens on the node's own port 80.
    let service =
        Service::new("half", &["10.96.0.91"]).port(Protocol::Tcp, 80, 80).endpoints(&["b1", "10.244.1.1"]);
    write_annotated(
        &cluster,
        &service,
        json!({ "ferroxy.io/eject-after": "off", "ferroxy.io/policy": "bogus" }),
    );
    let agent = Agent::start(ka, &cluster);
    for _ in 0..10 {
        assert_eq!(pod_from(&network, "a1", Protocol::Tcp, "10.96.0.91:80"), "b1");
    }
    agent.wait_for("`bogus` is none of round-robin, random, least-connections, latency");
    agent.terminate();
}

/// Plays systemd's part: keeps the descriptors that a service stores, and passes them to its next process.
struct Systemd {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
    kept: Vec<(String, OwnedFd)>,
}

impl Systemd {
    fn new() -> Systemd {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Systemd { folder, socket, kept: Vec::new() }
    }

    /// Descriptors begin with 3, in the order of their names.
    fn start(&self, node: &Namespace, cluster: &Cluster) -> Agent {
        let high: Vec<OwnedFd> =
            self.kept.iter().map(|(_, it)| rustix::io::fcntl_dupfd_cloexec(it, 200).unwrap()).collect();
        high.iter().for_each(|it| rustix::io::fcntl_setfd(it, rustix::io::FdFlags::empty()).unwrap());
        let moves = high.iter().enumerate().map(|(place, it)| {
            let from = it.as_raw_fd();
            format!("exec {}<&{from} {from}<&-; ", place + 3)
        });
        let moves: String = moves.collect();
        let names: Vec<&str> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{moves} export LISTEN_PID=$$; exec \"$0\" run \"$@\""), FERROXY]);
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify")).env("FDSTORE", "64");
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        Agent::spawn_as(node, command, run_arguments(&cluster.manifests(), &cluster.config()))
    }

    /// Handles the messages received so far.
    fn listen(&mut self) {
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let Ok(message) = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) else {
                return;
            };
            let length = message.bytes;
            let descriptors: Vec<OwnedFd> = control
                .drain()
                .filter_map(|it| if let RecvAncillaryMessage::ScmRights(it) = it { Some(it) } else { None })
                .flatten()
                .collect();
            let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
            let Some((_, name)) = text.split_once("FDNAME=") else { continue };
            if text.starts_with("FDSTOREREMOVE=1") {
                self.kept.retain(|(kept, _)| kept != name);
            } else {
                self.kept.extend(descriptors.into_iter().map(|it| (name.to_owned(), it)));
            }
        }
    }

    fn wait_for(&mut self, what: &str, is_so: impl Fn(&[(String, OwnedFd)]) -> bool) {
        let kept = std::cell::RefCell::new(self);
        wait_until(what, DEADLINE, || {
            kept.borrow_mut().listen();
            is_so(&kept.borrow().kept)
        });
    }
}

/// Clients that connect while no process runs wait, and the next process serves them.
#[test]
fn systemd_keeps_the_listening_sockets_through_a_kill() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let mut systemd = Systemd::new();
    let first = systemd.start(ka, &cluster);
    let node_port = |kept: &[(String, OwnedFd)]| kept.iter().any(|(name, _)| name.ends_with("0.0.0.0_30080"));
    // The fake systemd reads all the time, because only few messages fit into its queue.
    systemd.wait_for("the sockets are stored", |kept| first.said("in sync") > 0 && node_port(kept));
    first.kill();
    thread::scope(|scope| {
        let clients: Vec<_> = WAYS
            .iter()
            .filter(|(_, protocol, _)| *protocol == Protocol::Tcp)
            .map(|(from, protocol, target)| {
                let network = &network;
                scope.spawn(move || pod_from(network, from, *protocol, target))
            })
            .collect();
        let second = systemd.start(ka, &cluster);
        systemd.wait_for("it starts", |_| second.said("in sync") > 0 && second.said("systemd kept") > 0);
        clients.into_iter().for_each(|it| drop(it.join().unwrap()));
        serves_every_way(&network);
        // Closed sockets are not kept: a client would wait there without an answer.
        cluster.remove("web.yaml");
        systemd.wait_for("the node port is forgotten", |kept| !node_port(kept));
        let closed = || ask_from(&network, "ext", Protocol::Tcp, "172.18.0.2:30080") == Answer::Refused;
        wait_until("nothing listens on it", DEADLINE, closed);
        second.terminate();
    });
}
