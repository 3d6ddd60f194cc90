//! ipvs mode as a whole: what the official tools list, the cost of changes and restarts, edits by other programs, other
//! modes before and after. All but the refusals need IPVS: `make test-vm`. Load balancing is in `traffic.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferroxy_lab::{Namespace, Network, Protocol};

use crate::support::web::{METRICS, get};
use crate::support::{
    self, Agent, Cluster, DEADLINE, Done, Service, Traffic, ferroxy, pod_from, restore, wait_until,
    web_service,
};

const ADDRESSES: [&str; 2] = ["10.96.0.80", "fd00:10:96::80"];

/// Objects of another program: a server of its own, one at an address of the host, a set and a device.
const FOREIGN_SERVERS: &str = "\
-A -t 192.0.2.1:80 -s rr
-a -t 192.0.2.1:80 -r 192.0.2.2:80 -m -w 1
-A -t 172.18.0.2:9999 -s wlc
-A -f 7 -s rr
";
const FOREIGN_SETS: &str = "create MINE hash:ip,port\nadd MINE 192.0.2.1,tcp:80\n";

fn web() -> Service {
    Service::new("web", &ADDRESSES).node_port(Protocol::Tcp, 80, 8080, 30080).endpoints(&["a1", "b1"])
}

fn cluster() -> Cluster {
    let cluster = Cluster::in_mode("ipvs");
    cluster.write_service(&web());
    cluster
}

fn try_run(node: &Namespace, command: &str) -> Done {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    Done::of(node.run(|| command.args(words).output()).unwrap().unwrap())
}

fn run(node: &Namespace, command: &str) -> String {
    let done = try_run(node, command);
    assert_eq!(done.code, 0, "{command}: {}", done.stderr);
    done.stdout
}

/// All objects of the kinds that ipvs mode creates, as the tools list them.
fn listing(node: &Namespace) -> Vec<String> {
    let mut lines = Vec::new();
    for command in ["ipvsadm -Sn", "ipset save", "ip -brief address"] {
        lines.extend(run(node, command).lines().map(|line| line.trim_end().to_owned()));
    }
    for command in ["iptables-save", "ip6tables-save"] {
        let text = run(node, command);
        let is_content = |line: &&str| line.starts_with("-A") || line.contains(" - [");
        lines.extend(text.lines().filter(is_content).map(|line| line.split(" [").next().unwrap().to_owned()));
    }
    lines.sort();
    lines
}

fn has(node: &Namespace, line: &str) -> bool {
    listing(node).iter().any(|it| it == line)
}

fn messages(node: &Namespace) -> u64 {
    let page = get(node, METRICS, "/metrics").unwrap().body;
    let line = page.lines().find_map(|line| line.strip_prefix("ferroxy_kernel_messages_total "));
    line.unwrap().parse::<f64>().unwrap() as u64
}

fn answers(network: &Network, ways: &[(&str, &str)]) {
    for (from, target) in ways {
        pod_from(network, from, Protocol::Tcp, target);
    }
}

const WAYS: [(&str, &str); 6] = [
    ("a1", "10.96.0.80:80"),
    ("a2", "[fd00:10:96::80]:80"),
    ("ka", "10.96.0.80:80"),
    ("ka", "[fd00:10:96::80]:80"),
    ("ext", "172.18.0.2:30080"),
    ("ext", "[fd00:172:18::2]:30080"),
];

/// Fails on any kernel: without IPVS, and with IPVS because the kernel does not know this scheduler.
#[test]
fn a_kernel_that_cannot_is_refused_in_one_line_and_nothing_is_changed() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    cluster.configure("ipvs: {}", "ipvs: {scheduler: nonsense}");
    let before = run(&node, "nft list ruleset");
    let done = ferroxy(&node, &cluster.command(&["run"]));
    assert_eq!(done.code, 1, "{done:?}");
    let errors: Vec<&str> = done.stderr.lines().filter(|line| line.contains("kernel has no")).collect();
    let has_ipvs = node.run(|| ferroxy_netlink::ipvs::Connection::open().is_ok()).unwrap();
    let words = match has_ipvs {
        true => "the kernel has no IPVS scheduler nonsense (module ip_vs_nonsense)",
        false => "the kernel has no IPVS (module ip_vs)",
    };
    assert!(errors.len() == 1 && errors[0].contains(words), "{done:?}");
    assert_eq!(run(&node, "nft list ruleset"), before);
    assert!(!run(&node, "ip -brief link").contains("kube-ipvs0"));
    assert_eq!(run(&node, "ipset list -n"), "");
    if has_ipvs {
        assert_eq!(run(&node, "ipvsadm -Sn"), "");
    }
}

/// The kernel has the settings of the configuration, and the host settings that the mode needs.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn settings_reach_the_kernel() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let sysctl = |key: &str| {
        let text = ka.run(|| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{key}"))).unwrap();
        text.unwrap().trim().to_owned()
    };
    assert_eq!((sysctl("conf/all/arp_ignore"), sysctl("conf/all/arp_announce")), ("0".into(), "0".into()));
    let cluster = cluster();
    cluster.configure(
        "ipvs: {}",
        "ipvs: {scheduler: wrr, strictARP: true, tcpTimeout: 901s, tcpFinTimeout: 121s, udpTimeout: 301s}",
    );
    let agent = Agent::start(ka, &cluster);
    assert!(has(ka, "-A -t 10.96.0.80:80 -s wrr"), "{:?}", listing(ka));
    let timeouts = run(ka, "ipvsadm -L --timeout");
    assert!(timeouts.contains("901 121 301"), "{timeouts}");
    for (key, value) in [
        ("vs/conntrack", "1"),
        ("vs/expire_nodest_conn", "1"),
        ("vs/expire_quiescent_template", "1"),
        ("ip_forward", "1"),
        ("conf/all/arp_ignore", "1"),
        ("conf/all/arp_announce", "2"),
    ] {
        assert_eq!(sysctl(key), value, "{key}");
    }
    let log = agent.terminate();
    assert!(!log.contains("the timeouts of connections stay as they are"), "{log}");
}

/// Every way in, in both families; what the tools list; what an endpoint costs; and a restart, which costs nothing.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn services_come_change_and_go() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let before = listing(ka);
    let cluster = cluster();
    let agent = Agent::start(ka, &cluster);
    answers(&network, &WAYS);
    for line in [
        "-A -t 10.96.0.80:80 -s rr",
        "-a -t 10.96.0.80:80 -r 10.244.1.5:8080 -m -w 1",
        "-a -t 172.18.0.2:30080 -r 10.244.2.5:8080 -m -w 1",
        "-A -t [fd00:172:18::2]:30080 -s rr",
        "add KUBE-CLUSTER-IP 10.96.0.80,tcp:80",
        "add KUBE-6-NODE-PORT-TCP 30080",
    ] {
        assert!(has(ka, line), "{line} in {:?}", listing(ka));
    }
    assert_eq!(agent.differences(ka), [""; 0]);
    assert_eq!(get(ka, METRICS, "/proxyMode").unwrap().body, "ipvs");

    // One endpoint more: at two cluster IPs, and node ports at three addresses of each family at most.
    let sent = messages(ka);
    cluster.write_service(&web().endpoints(&["a1", "b1", "b2"]));
    agent.settle(ka);
    wait_until("the metrics follow", DEADLINE, || messages(ka) > sent);
    let cost = messages(ka) - sent;
    assert!(cost <= 8, "{cost} messages");

    let everything = listing(ka);
    agent.terminate();
    assert_eq!(listing(ka), everything, "the agent ends and all stays");
    let agent = Agent::start(ka, &cluster);
    assert_eq!(agent.said("nothing to send"), 1, "{}", agent.log());
    assert_eq!(listing(ka), everything);

    cluster.remove("web.yaml");
    agent.settle(ka);
    assert!(!listing(ka).iter().any(|line| line.contains("10.96.0.80") || line.contains("30080")));
    agent.terminate();
    assert_eq!(ferroxy(ka, &["cleanup"]).code, 0);
    assert_eq!(listing(ka), before);
}

/// New connections, datagrams and connections that stay open, on every way in.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_restart_disturbs_nobody() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode("ipvs");
    cluster.write_service(&web_service());
    let agent = Agent::start(ka, &cluster);
    let traffic = Traffic::every_way(&network);
    agent.terminate();
    let agent = Agent::start(ka, &cluster);
    traffic.was_undisturbed();
    assert_eq!(agent.said("nothing to send"), 1, "{}", agent.log());
    assert_eq!(agent.said("stale UDP conntrack entr"), 0, "{}", agent.log());
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn foreign_hands_are_noticed_and_undone() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    cluster.configure("ipvs: {}", "ipvs: {syncPeriod: 2s}");
    let agent = Agent::start(&node, &cluster);
    let before = listing(&node);
    for (number, command) in [
        "ipvsadm -D -t 10.96.0.80:80",
        "ipvsadm -d -t 10.96.0.80:80 -r 10.244.1.5:8080",
        "ipvsadm -e -t [fd00:10:96::80]:80 -r [fd00:10:244:1::5]:8080 -m -w 7",
        "ipset del KUBE-CLUSTER-IP 10.96.0.80,tcp:80",
        "ipset add KUBE-6-CLUSTER-IP fd00:10:96::99,tcp:80",
        "ip address del 10.96.0.80/32 dev kube-ipvs0",
        "ip address add fd00:10:96::99/128 dev kube-ipvs0",
        "ip link del kube-ipvs0",
        "iptables -t nat -F KUBE-SERVICES",
    ]
    .into_iter()
    .enumerate()
    {
        run(&node, command);
        let undone = || agent.said("drift repaired") > number && listing(&node) == before;
        wait_until(&format!("undone: {command}"), DEADLINE, undone);
    }
    assert_eq!(agent.warned("cannot"), 0, "{}", agent.log());
}

/// Not by the period, which is long here: the kernel notifies about changed addresses and chains.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn changes_with_a_notification_are_reverted_at_once() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    cluster.configure("ipvs: {}", "ipvs: {syncPeriod: 1h}");
    let agent = Agent::start(&node, &cluster);
    // Our own changes of the device are no drift.
    cluster.write_service(&Service::new("more", &["10.96.0.81", "fd00:10:96::81"]).port(
        Protocol::Tcp,
        80,
        80,
    ));
    agent.settle(&node);
    cluster.remove("more.yaml");
    agent.settle(&node);
    let before = listing(&node);
    for (number, command) in
        ["ip address del fd00:10:96::80/128 dev kube-ipvs0", "ip6tables -t nat -F KUBE-SERVICES"]
            .into_iter()
            .enumerate()
    {
        run(&node, command);
        agent.wait_for(&format!("drift repaired ({} so far)", number + 1));
        assert_eq!(listing(&node), before);
    }
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn what_is_not_ours_stays() {
    let Some(node) = support::lonely_node() else { return };
    node.run(|| ferroxy_netlink::ipvs::Connection::open().map(drop)).unwrap().unwrap();
    restore(&node, "ipvsadm", FOREIGN_SERVERS);
    restore(&node, "ipset", FOREIGN_SETS);
    run(&node, "ip link add mine0 type dummy");
    run(&node, "ip address add 172.18.0.2/16 dev mine0");
    let before = listing(&node);
    let cluster = cluster();
    cluster.configure("ipvs: {}", "ipvs: {syncPeriod: 1s}");
    let agent = Agent::start(&node, &cluster);
    run(&node, "ipvsadm -D -t 10.96.0.80:80");
    agent.wait_for("drift repaired");
    cluster.remove("web.yaml");
    agent.settle(&node);
    let is_there = |lines: &[String]| before.iter().all(|line| lines.contains(line));
    assert!(is_there(&listing(&node)), "{:?}", listing(&node));
    cluster.write_service(&web());
    agent.settle(&node);
    agent.terminate();
    let cleanup = ferroxy(&node, &["cleanup"]);
    assert_eq!(cleanup.code, 0, "{cleanup:?}");
    assert_eq!(listing(&node), before);
    assert_eq!(ferroxy(&node, &["cleanup"]).stdout, "nothing to remove\n");
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn node_ports_answer_on_addresses_that_come_later() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let agent = Agent::start(ka, &cluster);
    let device = run(ka, "ip -brief address");
    let device = device.lines().find(|line| line.contains("172.18.0.2/")).unwrap();
    let device = device.split(['@', ' ']).next().unwrap();
    run(ka, &format!("ip address add 172.18.0.77/16 dev {device}"));
    wait_until("a node port is there", DEADLINE, || has(ka, "-A -t 172.18.0.77:30080 -s rr"));
    answers(&network, &[("ext", "172.18.0.77:30080"), ("ext", "172.18.0.2:30080")]);
    run(ka, &format!("ip address del 172.18.0.77/16 dev {device}"));
    wait_until("it has gone", DEADLINE, || !has(ka, "-A -t 172.18.0.77:30080 -s rr"));
    assert_eq!(agent.said("drift repaired"), 0, "nobody did anything wrong:\n{}", agent.log());
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_service_chooses_its_scheduler() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    cluster.configure("ipvs: {}", "ipvs: {scheduler: wrr}");
    cluster.write_service(&web().scheduler("lc"));
    let agent = Agent::start(&node, &cluster);
    assert!(has(&node, "-A -t 10.96.0.80:80 -s lc") && has(&node, "-A -t [fd00:10:96::80]:80 -s lc"));
    // In place: one message for each server, and none for its endpoints.
    let sent = messages(&node);
    cluster.write_service(&web().scheduler("mh"));
    agent.settle(&node);
    wait_until("the metrics follow", DEADLINE, || messages(&node) > sent);
    assert_eq!(messages(&node), sent + 2);
    assert!(has(&node, "-A -t 10.96.0.80:80 -s mh -b mh-port"), "{:?}", listing(&node));
    cluster.write_service(&web().scheduler("fastest"));
    agent.wait_for("`fastest` is not a scheduler (rr, wrr, lc");
    agent.settle(&node);
    assert!(has(&node, "-A -t 10.96.0.80:80 -s wrr"));
    cluster.write_service(&web());
    agent.settle(&node);
    assert!(has(&node, "-A -t 10.96.0.80:80 -s wrr"));
    assert_eq!(agent.warned("cannot"), 0, "{}", agent.log());
}

/// A module of the kernel that cannot be loaded for a while.
struct Hidden {
    setting: PathBuf,
}

impl Hidden {
    fn module(name: &str) -> Hidden {
        let node = Namespace::new("any").unwrap();
        fs::create_dir_all("/run/modprobe.d").unwrap();
        let setting = Path::new("/run/modprobe.d").join(format!("{name}.conf"));
        fs::write(&setting, format!("install {name} /bin/false\n")).unwrap();
        // The module may be loaded, and still in use by a namespace that is being removed.
        wait_until("the module is gone", DEADLINE, || {
            !Path::new("/sys/module").join(name).exists()
                || try_run(&node, &format!("rmmod {name}")).code == 0
        });
        Hidden { setting }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        fs::remove_file(&self.setting).unwrap();
    }
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_scheduler_that_is_missing_fails_its_service_only() {
    let Some(node) = support::lonely_node() else { return };
    let hidden = Hidden::module("ip_vs_ovf");
    let cluster = cluster();
    let other = Service::new("other", &["10.96.0.81"]).port(Protocol::Tcp, 80, 80).endpoints(&["a1"]);
    cluster.write_service(&other.clone().scheduler("ovf"));
    let agent = Agent::start(&node, &cluster);
    agent.wait_for("cannot program Service default/other");
    assert!(
        agent.log().contains("the kernel has no IPVS scheduler ovf (module ip_vs_ovf)"),
        "{}",
        agent.log()
    );
    assert!(has(&node, "-A -t 10.96.0.80:80 -s rr") && !has(&node, "-A -t 10.96.0.81:80 -s ovf"));
    drop(hidden);
    wait_until("it is tried again", DEADLINE, || has(&node, "-A -t 10.96.0.81:80 -s ovf"));
    agent.settle(&node);
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn people_can_ask_about_a_live_node() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = cluster();
    let diff = ferroxy(ka, &cluster.command(&["diff"]));
    assert_eq!(diff.code, 2, "{diff:?}");
    assert!(diff.stdout.contains("ipvsadm -a -t 10.96.0.80:80 -r 10.244.1.5:8080 -m -w 1\n"), "{diff:?}");
    let agent = Agent::start(ka, &cluster);
    let diff = ferroxy(ka, &cluster.command(&["diff"]));
    assert_eq!((diff.code, diff.stdout.as_str()), (0, "the kernel has exactly this\n"), "{diff:?}");
    let explain = ferroxy(ka, &cluster.command(&["explain", "default/web"]));
    assert!(explain.stdout.contains("programmed in this kernel: yes, all "), "{explain:?}");
    // The agent would repair this before a slow machine has explained it.
    agent.kill();
    run(ka, "ipset del KUBE-CLUSTER-IP 10.96.0.80,tcp:80");
    let explain = ferroxy(ka, &cluster.command(&["explain", "default/web"]));
    assert!(explain.stdout.contains("incomplete: "), "{explain:?}");
    for (from, to) in
        [("10.244.1.6", "default/web:80"), ("node", "10.96.0.80:80"), ("172.18.0.100", "172.18.0.2:30080")]
    {
        let trace = ferroxy(ka, &cluster.command(&["trace", from, to]));
        assert_eq!(trace.code, 0, "{trace:?}");
        for part in ["virtual server", "10.244.1.5:8080", "10.244.2.5:8080"] {
            assert!(trace.stdout.contains(part), "{part} in {trace:?}");
        }
    }
}

/// Requests are served all the time, whichever mode follows whichever.
#[test]
#[ignore = "needs IPVS: make test-vm"]
fn modes_follow_each_other() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::in_mode("iptables");
    cluster.write_service(&web_service());
    let chains = |word: &str| listing(ka).iter().filter(|line| line.contains(word)).count();
    let mut before = "iptables";
    let mut agent = Agent::start(ka, &cluster);
    for mode in ["ipvs", "nftables", "ipvs", "iptables"] {
        agent.terminate();
        cluster.configure(&format!("mode: {before}\n"), &format!("mode: {mode}\n"));
        // Connections through IPVS are the hard case, so test every kind of them. Emulation is too slow for more.
        let traffic = if before == "ipvs" { Traffic::every_way } else { Traffic::light }(&network);
        agent = Agent::start(ka, &cluster);
        traffic.was_undisturbed();
        answers(&network, &WAYS);
        assert_eq!(agent.differences(ka), [""; 0], "{mode} after {before}");
        let own = run(ka, "nft list tables").contains("table ip ferroxy");
        assert_eq!(own, mode == "nftables", "{mode} after {before}");
        assert_eq!(chains("KUBE-SVC-") > 0, mode == "iptables", "{mode} after {before}");
        assert_eq!(chains("KUBE-SERVICES") > 0, mode != "nftables", "{mode} after {before}");
        if mode == "ipvs" {
            // When another mode follows, open connections decide which objects of this mode stay, and how long: `takeover.rs`.
            assert!(chains("kube-ipvs0") > 0 && chains("KUBE-IPVS-FILTER") > 0 && chains("create KUBE-") > 0);
        }
        before = mode;
    }
}
