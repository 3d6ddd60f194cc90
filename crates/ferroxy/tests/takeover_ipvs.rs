//! Taking over from kube-proxy's ipvs mode: its virtual servers, device, sets and rules (as recorded in the corpus) are in
//! the kernel and carry traffic when Ferroxy starts. Needs IPVS: `make test-vm`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::fs;
use std::process::Command;

use ferroxy_lab::conformance::{self, Case};
use ferroxy_lab::{Namespace, Network, Protocol};

use support::{Agent, Done, RecordedIpvs, configured, ferroxy, pod_from, restore, run_arguments};

/// What is not kube-proxy's, and must stay: servers by address and by mark, one of them on a port of this host that is no
/// node port; sets and a device with names of their own.
const FOREIGN_SERVERS: &str = "\
-A -t 192.0.2.1:80 -s rr
-a -t 192.0.2.1:80 -r 192.0.2.2:80 -m -w 1
-A -t 172.18.0.2:9999 -s rr
-A -f 7 -s rr
";
const FOREIGN_SETS: &str =
    "create MINE hash:ip,port\nadd MINE 192.0.2.1,tcp:80\ncreate KUBE-MINE bitmap:port range 1-9\n";

/// The original was recorded before it had come to IPv6. This is what it then makes for the case `dual-stack`.
const IPV6_SERVERS: &str = "\
-A -t [fd00:10:96::80]:80 -s rr
-a -t [fd00:10:96::80]:80 -r [fd00:10:244:1::5]:80 -m -w 1
-A -t [fd00:172:18::2]:30080 -s rr
-a -t [fd00:172:18::2]:30080 -r [fd00:10:244:1::5]:80 -m -w 1
";
const IPV6_SETS: &str = "\
create KUBE-6-NODE-PORT-TCP bitmap:port range 0-65535
add KUBE-6-NODE-PORT-TCP 30080
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
    // As the original does, for connections that it has balanced to be translated back.
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

/// Everything that kube-proxy's ipvs mode makes things among, as the tools list it.
fn listing(node: &Namespace) -> Vec<String> {
    let mut lines = Vec::new();
    for command in ["ipvsadm -Sn", "ipset save", "ip -brief address"] {
        let text = run(node, command);
        lines.extend(text.lines().map(|line| line.trim_end().to_owned()));
    }
    for command in ["iptables-nft-save", "ip6tables-nft-save"] {
        let text = run(node, command);
        // What the kubelet shares with kube-proxy is left, and chains that iptables has by itself.
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

/// They answer, through whatever is in force.
fn expect_traffic(network: &Network, ways: &[(&str, &str)]) {
    for (from, target) in ways {
        for _ in 0..4 {
            pod_from(network, from, Protocol::Tcp, target);
        }
    }
}

fn load_ipvs(node: &Namespace) {
    // By asking for its family; the settings under net/ipv4/vs come with it.
    node.run(|| ferroxy_netlink::ipvs::Connection::open().map(drop)).unwrap().unwrap();
}

/// In nftables mode, until it is in sync; what it said.
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
    let mut recorded = RecordedIpvs::read(&case.folder).unwrap();
    recorded.ipvsadm.push_str(IPV6_SERVERS);
    recorded.sets.push_str(IPV6_SETS);
    recorded.addresses.push(IPV6_ADDRESS.into());
    load_ipvs(ka);
    install_foreign(ka);
    let before = listing(ka);
    install(ka, &recorded);
    assert!(listing(ka).len() > before.len() + 80);
    expect_traffic(&network, &IPV4_WAYS);

    let log = run_agent(ka, &case);
    assert_eq!(log.matches("taken over from kube-proxy").count(), 1, "{log}");
    let servers = recorded.ipvsadm.lines().filter(|line| line.starts_with("-A")).count();
    assert!(log.contains(&format!("{servers} virtual servers, device kube-ipvs0, ")), "{log}");
    assert!(!log.contains("may still be there") && !log.contains("and stays"), "{log}");
    assert_eq!(listing(ka), before);
    expect_traffic(&network, &IPV4_WAYS);
    expect_traffic(&network, &IPV6_WAYS);

    let again = run_agent(ka, &case);
    assert!(!again.contains("kube-proxy:"), "{again}");
    assert!(again.contains("nothing to send"), "{again}");
}

/// All cases of the corpus, without traffic: whatever its ipvs mode makes, nothing of it stays and the rest does.
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
        assert!(!cleanup.stdout.contains("stays"), "{}: {cleanup:?}", case.name);
        assert_eq!(listing(ka), before, "{}", case.name);
        seen += 1;
    }
    assert!(seen > 20, "only {seen} cases");
}
