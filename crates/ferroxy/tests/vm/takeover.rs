//! Taking over from kube-proxy's ipvs mode: its virtual servers, device, sets and rules (as recorded in the corpus) are in
//! the kernel and carry traffic when Ferroxy starts. Needs IPVS: `make test-vm`.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use ferroxy_dataplane::capability::leftovers::Established;
use ferroxy_lab::conformance::{self, Case};
use ferroxy_lab::{ANSWER, Answer, LongConnection, Namespace, Network, Protocol};
use ferroxy_netfilter::leftovers::{Own, remove};

use crate::support::{
    self, Agent, Cluster, DEADLINE, Done, RecordedIpvs, Service, ask_from, configured, ferroxy, pod_from,
    restore, run_arguments, wait_until,
};

/// Objects of other programs, which must stay: servers by address and by mark, one of them on a port of this host that is
/// not a node port; sets and a device with names of their own.
const FOREIGN_SERVERS: &str = "\
-A -t 192.0.2.1:80 -s rr
-a -t 192.0.2.1:80 -r 192.0.2.2:80 -m -w 1
-A -t 172.18.0.2:9999 -s rr
-A -f 7 -s rr
";
const FOREIGN_SETS: &str =
    "create MINE hash:ip,port\nadd MINE 192.0.2.1,tcp:80\ncreate KUBE-MINE bitmap:port range 1-9\n";

/// The recording was made before the original had handled IPv6. These are the objects that it adds then for the case `dual-stack`.
const IPV6_SERVERS: &str = "\
-A -t [fd00:10:96::80]:80 -s rr
-a -t [fd00:10:96::80]:80 -r [fd00:10:244:1::5]:80 -m -w 1
-A -t [fd00:172:18::2]:30080 -s rr
-a -t [fd00:172:18::2]:30080 -r [fd00:10:244:1::5]:80 -m -w 1
";
const IPV6_SETS: &str = "\
create KUBE-6-NODE-PORT-TCP bitmap:port range 0-65535
create KUBE-6-IPVS-IPS hash:ip family inet6
create KUBE-6-CLUSTER-IP hash:ip,port family inet6
add KUBE-6-NODE-PORT-TCP 30080
add KUBE-6-IPVS-IPS fd00:10:96::80
add KUBE-6-CLUSTER-IP fd00:10:96::80,tcp:80
";
const IPV6_RULES: &str = "\
*filter
-A KUBE-IPVS-FILTER -m set --match-set KUBE-6-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-6-IPVS-IPS dst -j REJECT
COMMIT
*nat
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-6-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
";
const IPV6_ADDRESS: &str = "fd00:10:96::80/128";

fn run(node: &Namespace, command: &str) -> String {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let done = Done::of(node.run(|| command.args(words).output()).unwrap().unwrap());
    assert_eq!(done.code, 0, "{command:?}: {}", done.stderr);
    done.stdout
}

fn install(node: &Namespace, recorded: &RecordedIpvs) {
    // As the original does, so that replies of balanced connections are translated back.
    node.set_sysctl("net/ipv4/vs/conntrack", "1").unwrap();
    restore(node, "ipset", &recorded.sets);
    restore(node, "ipvsadm", &recorded.ipvsadm);
    run(node, "ip link add kube-ipvs0 type dummy");
    for address in &recorded.addresses {
        run(node, &format!("ip address add {address} dev kube-ipvs0"));
    }
    restore(node, "iptables-nft", &recorded.iptables);
    restore(node, "ip6tables-nft", &recorded.ip6tables);
}

fn install_foreign(node: &Namespace) {
    restore(node, "ipvsadm", FOREIGN_SERVERS);
    restore(node, "ipset", FOREIGN_SETS);
    run(node, "ip link add mine0 type dummy");
    run(node, "ip address add 192.0.2.1/32 dev mine0");
}

/// All objects of the kinds that kube-proxy's ipvs mode creates, as the tools list them.
fn listing(node: &Namespace) -> Vec<String> {
    let mut lines = Vec::new();
    for command in ["ipvsadm -Sn", "ipset save", "ip -brief address"] {
        let text = run(node, command);
        lines.extend(text.lines().map(|line| line.trim_end().to_owned()));
    }
    for command in ["iptables-nft-save", "ip6tables-nft-save"] {
        let text = run(node, command);
        // Chains that the kubelet shares with kube-proxy stay, and so do built-in chains.
        let is_content = |line: &&str| line.starts_with("-A") || line.contains(" - [");
        lines.extend(text.lines().filter(is_content).map(|line| line.split(" [").next().unwrap().to_owned()));
    }
    lines.sort();
    lines
}

/// Ways into the Service of the case, in both families.
const IPV4_WAYS: [(&str, &str); 3] =
    [("a1", "10.96.0.80:80"), ("ka", "10.96.0.80:80"), ("ext", "172.18.0.2:30080")];
const IPV6_WAYS: [(&str, &str); 2] = [("a2", "[fd00:10:96::80]:80"), ("ka", "[fd00:10:96::80]:80")];

/// Checks that a pod answers on these ways, whichever rules are in force.
fn expect_traffic(network: &Network, ways: &[(&str, &str)]) {
    for (from, target) in ways {
        for _ in 0..4 {
            pod_from(network, from, Protocol::Tcp, target);
        }
    }
}

fn load_ipvs(node: &Namespace) {
    // Opening the generic netlink family loads the module, which creates the settings under net/ipv4/vs.
    node.run(|| ferroxy_netlink::ipvs::Connection::open().map(drop)).unwrap().unwrap();
}

fn recorded_in_both_families(case: &Case) -> RecordedIpvs {
    let mut recorded = RecordedIpvs::read(&case.folder).unwrap();
    recorded.ipvsadm.push_str(IPV6_SERVERS);
    recorded.sets.push_str(IPV6_SETS);
    recorded.ip6tables.push_str(IPV6_RULES);
    recorded.addresses.push(IPV6_ADDRESS.into());
    recorded
}

/// Runs the agent in nftables mode until it is in sync. Returns its log.
fn run_agent(node: &Namespace, case: &Case) -> String {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    fs::write(&config, configured(&case.name, "nftables")).unwrap();
    Agent::start_with(node, run_arguments(&case.folder.join("objects.yaml"), &config)).terminate()
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn from_ipvs_mode() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let case = conformance::case("dual-stack").unwrap();
    let recorded = recorded_in_both_families(&case);
    load_ipvs(ka);
    install_foreign(ka);
    let before = listing(ka);
    install(ka, &recorded);
    assert!(listing(ka).len() > before.len() + 80);

    let log = run_agent(ka, &case);
    assert_eq!(log.matches("taken over from kube-proxy").count(), 1, "{log}");
    let servers = recorded.ipvsadm.lines().filter(|line| line.starts_with("-A")).count();
    assert!(log.contains(&format!("{servers} virtual servers, device kube-ipvs0, ")), "{log}");
    assert!(
        !log.contains("cannot remove all rules of kube-proxy") && !log.contains("kept objects of kube-proxy"),
        "{log}"
    );
    assert_eq!(listing(ka), before);
    expect_traffic(&network, &IPV4_WAYS);
    expect_traffic(&network, &IPV6_WAYS);

    let again = run_agent(ka, &case);
    assert!(!again.contains("kube-proxy:"), "{again}");
    assert!(again.contains("nothing to send"), "{again}");
}

/// All cases of the corpus, without traffic: all objects of kube-proxy's ipvs mode are removed, all others stay.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn everything_recorded_in_ipvs_mode_goes() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    load_ipvs(ka);
    install_foreign(ka);
    let before = listing(ka);
    let mut seen = 0;
    for case in conformance::cases().unwrap() {
        // Not every case was recorded in every mode; and the largest would take very long in an emulated machine.
        let Ok(recorded) = RecordedIpvs::read(&case.folder) else { continue };
        if recorded.ipvsadm.lines().count() > 1000 {
            continue;
        }
        install(ka, &recorded);
        let cleanup = ferroxy(ka, &["cleanup"]);
        assert_eq!(cleanup.code, 0, "{}: {cleanup:?}", case.name);
        assert!(!cleanup.stdout.contains("kept"), "{}: {cleanup:?}", case.name);
        assert_eq!(listing(ka), before, "{}", case.name);
        seen += 1;
    }
    assert!(seen > 20, "only {seen} cases");
}

/// The Service of the case, as kube-proxy had it: at an echo port, with one endpoint on the other node.
fn echoing(mut recorded: RecordedIpvs) -> RecordedIpvs {
    let is_its = |line: &&str| line.starts_with("-A") || line.contains("10.244.2.5:") || line.contains('[');
    recorded.ipvsadm.push_str(&format!("-A -t {GONE} -s rr\n-a -t {GONE} -r 10.244.2.5:80 -m -w 1\n"));
    recorded.ipvsadm.push_str(&format!("-A -u {DNS} -s rr\n-a -u {DNS} -r 10.244.2.5:53 -m -w 1\n"));
    recorded.sets.push_str(
        "add KUBE-CLUSTER-IP 10.96.0.90,tcp:80\nadd KUBE-IPVS-IPS 10.96.0.90\n\
         add KUBE-CLUSTER-IP 10.96.0.53,udp:53\nadd KUBE-IPVS-IPS 10.96.0.53\n",
    );
    recorded.addresses.extend(["10.96.0.90/32".into(), "10.96.0.53/32".into()]);
    let servers = recorded.ipvsadm.lines().filter(is_its).map(|line| format!("{line}\n"));
    recorded.ipvsadm = servers
        .collect::<String>()
        .replace("10.244.2.5:80", "10.244.2.5:7")
        .replace("[fd00:10:244:1::5]:80", "[fd00:10:244:2::5]:7");
    recorded
}

/// The same Service in its new state: its only endpoint has changed.
fn moved(case: &Case, mode: &str) -> Cluster {
    let mut objects = fs::read_to_string(case.folder.join("objects.yaml")).unwrap();
    for gone in ["10.244.2.5", "'fd00:10:244:2::5'"] {
        let endpoint = format!(
            "- addresses: [{gone}]\n  conditions: {{ready: true, serving: true, terminating: false}}\n  nodeName: kb\n  zone: z2\n"
        );
        assert!(objects.contains(&endpoint), "{objects}");
        objects = objects.replace(&endpoint, "");
    }
    let objects = objects
        .replace("protocol: TCP, port: 80}", "protocol: TCP, port: 7}")
        .replace("[10.244.1.5]", "[10.244.1.6]")
        .replace("['fd00:10:244:1::5']", "['fd00:10:244:1::6']");
    let dns = Service::new("dns", &["10.96.0.53"]).port(Protocol::Udp, 53, 53).endpoints(&["b1"]);
    let cluster = Cluster::in_mode(mode);
    cluster.write_service(&dns);
    fs::write(cluster.config(), configured(&case.name, mode)).unwrap();
    cluster.write_text("cluster.yaml", &objects);
    cluster
}

/// A Service to which a client sends from one socket, all the time.
const DNS: &str = "10.96.0.53:53";

/// The pod that answers a datagram from this socket, if one does.
fn ask_again(socket: &UdpSocket) -> Option<String> {
    let mut answer = [0; 512];
    socket.send(b"who\n").ok()?;
    let length = socket.recv(&mut answer).ok()?;
    Some(support::pod_of(std::str::from_utf8(&answer[..length]).unwrap()).to_owned())
}

/// kube-proxy's servers that are left, as `ipvsadm` lists them.
fn its_servers(node: &Namespace, foreign: &str) -> Vec<String> {
    let all = run(node, "ipvsadm -Sn");
    let is_its = |line: &&str| !foreign.lines().any(|it| it.trim_end() == line.trim_end());
    all.lines().filter(is_its).map(|line| line.trim_end().to_owned()).collect()
}

fn addresses(node: &Namespace) -> String {
    run(node, "ip -brief address show kube-ipvs0")
}

/// A Service that Ferroxy does not know: it was deleted when kube-proxy stopped.
const GONE: &str = "10.96.0.90:80";

/// Connections that are open before Ferroxy starts: from a pod, this host and an external client, in both families.
const HELD: [(&str, &str); 6] = [
    ("a1", GONE),
    ("a1", "10.96.0.80:80"),
    ("a1", "[fd00:10:96::80]:80"),
    ("ka", "10.96.0.80:80"),
    ("ext", "172.18.0.2:30080"),
    ("ext", "[fd00:172:18::2]:30080"),
];

/// The state that Ferroxy finds.
struct Found {
    case: Case,
    /// All objects from before kube-proxy.
    before: Vec<String>,
    /// The virtual servers among them.
    foreign: String,
}

/// kube-proxy's ipvs mode, on a host where IPVS has other users.
fn install_among_others(node: &Namespace) -> Found {
    let case = conformance::case("dual-stack").unwrap();
    load_ipvs(node);
    install_foreign(node);
    let (before, foreign) = (listing(node), run(node, "ipvsadm -Sn"));
    install(node, &echoing(recorded_in_both_families(&case)));
    Found { case, before, foreign }
}

fn connect(network: &Network, from: &str, target: &str) -> LongConnection {
    let from = network.namespace(from).unwrap();
    LongConnection::open(from, target.parse().unwrap(), Duration::from_millis(100), ANSWER).unwrap()
}

/// Data keeps flowing on connections that IPVS carries, across the takeover and a restart. New connections use our rules. When
/// the old connections end, the objects that they needed are removed.
fn connections_go_on(mode: &str) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let Found { case, before, foreign } = install_among_others(ka);
    let mut held: Vec<LongConnection> =
        HELD.iter().map(|(from, target)| connect(&network, from, target)).collect();
    assert!(held.iter().all(|it| it.greeting().starts_with("b1:7 ")), "{held:?}");
    let datagrams = network.namespace("a1").unwrap().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    datagrams.connect(DNS).unwrap();
    datagrams.set_read_timeout(Some(ANSWER)).unwrap();
    assert_eq!(ask_again(&datagrams).as_deref(), Some("b1"));

    let cluster = moved(&case, mode);
    let agent = Agent::start(ka, &cluster);
    agent.wait_for("6 connections still go through kube-proxy");
    let carried = [
        "-A -t 10.96.0.90:80 -s rr",
        "-a -t 10.96.0.90:80 -r 10.244.2.5:7 -m -w 0",
        "-A -t 172.18.0.2:30080 -s rr",
        "-a -t 172.18.0.2:30080 -r 10.244.2.5:7 -m -w 0",
        "-A -t 10.96.0.80:80 -s rr",
        "-a -t 10.96.0.80:80 -r 10.244.2.5:7 -m -w 0",
        "-A -t [fd00:172:18::2]:30080 -s rr",
        "-a -t [fd00:172:18::2]:30080 -r [fd00:10:244:2::5]:7 -m -w 0",
        "-A -t [fd00:10:96::80]:80 -s rr",
        "-a -t [fd00:10:96::80]:80 -r [fd00:10:244:2::5]:7 -m -w 0",
    ];
    let expect_carried = |carried: &[&str]| {
        let mut found = its_servers(ka, &foreign);
        let mut carried: Vec<String> = carried.iter().map(ToString::to_string).collect();
        found.sort();
        carried.sort();
        assert_eq!(found, carried);
    };
    expect_carried(&carried);
    let kept = addresses(ka);
    assert!(kept.contains("10.96.0.80/32") && kept.contains("fd00:10:96::80/128"), "{kept}");
    assert!(!kept.contains("10.96.0.1/32"), "{kept}");
    for (from, target) in HELD.into_iter().filter(|(_, target)| *target != GONE) {
        assert_eq!(pod_from(&network, from, Protocol::Tcp, target), "a2", "{from} -> {target}");
    }
    // UDP flows are not waited for: their virtual server is removed at once, and our rules serve the same socket.
    wait_until("the socket is served", DEADLINE, || ask_again(&datagrams).as_deref() == Some("b1"));
    // An address that only IPVS needs must not expose a port of this host (the agent's own).
    for target in ["10.96.0.80:10256", "[fd00:10:96::80]:10256"] {
        assert_eq!(ask_from(&network, "a1", Protocol::Tcp, target), Answer::Refused, "{target}");
    }
    // New connections to a deleted Service must not reach its former endpoints.
    assert_eq!(ask_from(&network, "a1", Protocol::Tcp, GONE), Answer::Refused);

    let log = agent.terminate();
    assert_eq!(log.matches("still go through kube-proxy").count(), 1, "{log}");
    let agent = Agent::start(ka, &cluster);
    agent.wait_for("6 connections still go through kube-proxy");
    expect_carried(&carried);

    // End the connections one by one, the last first. Objects that only an ended connection needed are removed.
    let mut end_one = || {
        let report = held.pop().unwrap().reset().unwrap();
        assert!(report.broken.is_none() && report.echoes > 5, "{report:?}");
    };
    end_one();
    end_one();
    wait_until("the node ports' servers are gone", DEADLINE, || its_servers(ka, &foreign).len() == 6);
    expect_carried(&[&carried[..2], &carried[4..6], &carried[8..]].concat());
    for _ in 0..4 {
        end_one();
    }
    agent.wait_for("all connections through kube-proxy's virtual servers have ended: removed ");
    let is_ours = |line: &String| mode == "iptables" && (line.starts_with("-A") || line.starts_with(':'));
    let after: Vec<String> = listing(ka).into_iter().filter(|line| !is_ours(line)).collect();
    assert_eq!(after, before.into_iter().filter(|line| !is_ours(line)).collect::<Vec<_>>());
    let log = agent.terminate();
    assert!(!log.contains("cannot remove all rules of kube-proxy") && !log.contains("still runs"), "{log}");
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn connections_go_on_in_nftables_mode() {
    connections_go_on("nftables");
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn connections_go_on_in_iptables_mode() {
    connections_go_on("iptables");
}

/// Our own ipvs mode adopts the objects that exist: same names, same device. Only the difference is sent.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn connections_go_on_in_ipvs_mode() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let Found { case, before, foreign } = install_among_others(ka);
    let ways: Vec<(&str, &str)> = HELD.into_iter().filter(|(_, target)| *target != GONE).collect();
    let held: Vec<LongConnection> =
        ways.iter().map(|(from, target)| connect(&network, from, target)).collect();

    let cluster = moved(&case, "ipvs");
    let agent = Agent::start(ka, &cluster);
    for (from, target) in &ways {
        assert_eq!(pod_from(&network, from, Protocol::Tcp, target), "a2", "{from} -> {target}");
    }
    assert!(!its_servers(ka, &foreign).iter().any(|line| line.contains(GONE)), "a Service that is no more");
    let old = |line: &String| line.contains("10.244.2.5:7") || line.contains("[fd00:10:244:2::5]:7");
    let leaving = || its_servers(ka, &foreign).into_iter().filter(old).collect::<Vec<String>>();
    wait_until("endpoints without connections are gone", DEADLINE, || leaving().len() <= 4);
    let leaving = leaving();
    assert_eq!(leaving.len(), 4, "an endpoint that left keeps its connections: {leaving:?}");
    assert!(leaving.iter().all(|line| line.ends_with("-w 0")), "{leaving:?}");

    for connection in held {
        let report = connection.reset().unwrap();
        assert!(report.broken.is_none() && report.echoes > 5, "{report:?}");
    }
    wait_until("the old endpoints are gone", DEADLINE, || !its_servers(ka, &foreign).iter().any(old));
    let log = agent.terminate();
    assert!(!log.contains("drift") && !log.contains("cannot"), "{log}");
    let cleanup = ferroxy(ka, &["cleanup"]);
    assert_eq!(cleanup.code, 0, "{cleanup:?}");
    assert_eq!(listing(ka), before);
}

/// Connections that are not waited for end with a reset: their packets are not dropped silently.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn connections_that_must_end_are_reset() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let case = conformance::case("dual-stack").unwrap();
    load_ipvs(ka);
    install(ka, &echoing(recorded_in_both_families(&case)));
    let held = ["10.96.0.80:80", "[fd00:10:96::80]:80"].map(|target| connect(&network, "a1", target));
    let cluster = moved(&case, "nftables");
    let agent = Agent::start(ka, &cluster);
    agent.wait_for("2 connections still go through kube-proxy");
    let report = ka.run(|| remove(Some(Own::Nftables), Established::End)).unwrap();
    assert!(
        report.removed.contains(&"device kube-ipvs0".to_owned()) && report.failed.is_empty(),
        "{report:?}"
    );
    for connection in held {
        let report = connection.close().unwrap();
        let broken = report.broken.as_deref().unwrap_or_default();
        assert!(broken.contains("reset"), "{report:?}");
    }
}
