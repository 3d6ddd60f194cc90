//! Taking over from kube-proxy: the rules it made for a cluster (as recorded in the corpus) are in the kernel and carry
//! traffic when Ferroxy starts. No connection may break, no rule of kube-proxy may be left, and no other rule may go.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferroxy_dataplane::capability::leftovers::{Established, Leftovers};
use ferroxy_lab::load::LoadPlan;
use ferroxy_lab::pod::ECHO_PORT;
use ferroxy_lab::{ANSWER, Load, LongConnection, Namespace, Network, Protocol, conformance};
use ferroxy_netfilter::leftovers::{Own, remove};
use tempfile::TempDir;

use crate::support::{
    self, Agent, DEADLINE, Done, Iptables, OwnedTable, RecordedIpvs, ferroxy, nft, restore, run_arguments,
    wait_until,
};

/// The variants of iptables: where their rules are, in which family, and the name of their tools.
const NFT_VARIANT: [&str; 2] = ["iptables-nft", "ip6tables-nft"];
const LEGACY_VARIANT: [&str; 2] = ["iptables-legacy", "ip6tables-legacy"];

/// Rules of another program in the same tables. (No packet meets the rules with counters.)
const FOREIGN: &str = "\
*nat
:MINE - [0:0]
-A PREROUTING -j MINE
[7:700] -A MINE -s 192.0.2.1/32 -j RETURN
-A POSTROUTING -s 192.0.2.2/32 -j ACCEPT
COMMIT
*filter
:MINE - [0:0]
-A FORWARD -j MINE
[8:800] -A MINE -s 192.0.2.1/32 -p tcp -m tcp --dport 81 -j DROP
-A MINE -m comment --comment \"a rule that decides nothing\"
COMMIT
*mangle
:MINE - [0:0]
-A MINE -j MARK --set-xmark 0x1/0xffffffff
COMMIT
";

/// A case of the corpus with its Service on the port where pods echo: connections to it can stay open.
struct Cluster {
    folder: TempDir,
}

impl Cluster {
    fn new() -> Cluster {
        let case = conformance::case("dual-stack").unwrap();
        let folder = tempfile::tempdir().unwrap();
        for file in ["objects.yaml", "config.yaml", "nftables.rules", "iptables.rules", "ipvs.rules"] {
            let text = fs::read_to_string(case.folder.join(file)).unwrap();
            fs::write(folder.path().join(file), on_echo_port(&text)).unwrap();
        }
        let cluster = Cluster { folder };
        cluster.run_in("nftables");
        cluster
    }

    /// Selects the mode from the next start on.
    fn run_in(&self, mode: &str) {
        let config = on_echo_port(&support::configured("dual-stack", mode));
        fs::write(self.path("config.yaml"), config).unwrap();
    }

    /// Selects `iptables.program` from the next start on.
    fn written_by(&self, program: &str) {
        let config = fs::read_to_string(self.path("config.yaml")).unwrap();
        let (before, after) = config.split_once("iptables:\n").unwrap();
        let after = after.trim_start_matches("  program: builtin\n").trim_start_matches("  program: tool\n");
        fs::write(self.path("config.yaml"), format!("{before}iptables:\n  program: {program}\n{after}"))
            .unwrap();
    }

    fn arguments(&self) -> [std::ffi::OsString; 6] {
        let path = self.folder.path();
        run_arguments(&path.join("objects.yaml"), &path.join("config.yaml"))
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.folder.path().join(file)
    }

    /// Installs the rules of the original's nftables mode.
    fn install_nftables(&self, node: &Namespace) {
        nft(node, &[Path::new("-f"), &self.path("nftables.rules")]);
    }

    /// Adds the rules of the original's iptables mode to the existing ones.
    fn install_iptables(&self, node: &Namespace, variant: [&str; 2]) {
        let text = fs::read_to_string(self.path("iptables.rules")).unwrap();
        let (v4, v6) = text.split_once("# ip6tables-save\n").unwrap();
        restore(node, variant[0], v4);
        restore(node, variant[1], v6);
    }
}

fn on_echo_port(text: &str) -> String {
    let mut text = text.to_owned();
    for (recorded, echo) in [
        (" . 80", " . 7"),
        ("--dport 80 ", "--dport 7 "),
        (":80\n", ":7\n"),
        ("port: 80,", "port: 7,"),
        ("port: 80}", "port: 7}"),
        ("targetPort: 80,", "targetPort: 7,"),
        // Counters that the rules name are separate objects. Restoring the rules does not create them.
        (" -m nfacct --nfacct-name  localhost_nps_accepted_pkts", ""),
        (" -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts", ""),
    ] {
        text = text.replace(recorded, echo);
    }
    // Often enough for a test to see if a removed rule comes back.
    for mode in ["nftables:\n", "iptables:\n"] {
        text = text.replace(mode, &format!("{mode}  syncPeriod: 1s\n  minSyncPeriod: 0s\n"));
    }
    text
}

/// The user's chains and all rules in the tables of one variant, in both families.
fn saved(node: &Namespace, variant: [&str; 2]) -> Vec<String> {
    let save = |tool: &str| {
        let output = node.run(|| Command::new(format!("{tool}-save")).output()).unwrap().unwrap();
        Done::of(output).stdout
    };
    let text = variant.map(save).concat();
    let is_content = |line: &&str| line.starts_with("-A") || line.contains(" - [");
    text.lines().filter(is_content).map(|line| line.split(" [").next().unwrap().to_owned()).collect()
}

/// The counters of the foreign rules that no packet meets.
fn counted(node: &Namespace, variant: [&str; 2]) -> Vec<String> {
    let save = |tool: &str| {
        let mut command = Command::new(format!("{tool}-save"));
        let text = Done::of(node.run(|| command.arg("-c").output()).unwrap().unwrap()).stdout;
        let rules = text.lines().filter(|line| line.contains(" -A MINE -s "));
        let mut counted: Vec<String> = rules.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        counted.sort();
        counted
    };
    variant.map(save).concat()
}

/// The same without the chains and rules of the kubelet, which are left.
fn without_kubelets(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|line| !line.contains("KUBE-FIREWALL")).collect()
}

fn install_foreign(node: &Namespace, variant: [&str; 2]) {
    restore(node, variant[0], FOREIGN);
    let v6 = FOREIGN.replace("192.0.2.", "2001:db8::").replace("/32", "/128");
    restore(node, variant[1], &v6);
}

/// Every way into the Service under load at once, and connections that stay open.
struct Traffic {
    loads: Vec<(&'static str, Load)>,
    connections: Vec<LongConnection>,
}

impl Traffic {
    fn start(network: &Network) -> Traffic {
        let interval = Duration::from_millis(5);
        let ways = [
            ("a1", "10.96.0.80:7"),
            ("a2", "[fd00:10:96::80]:7"),
            ("ka", "10.96.0.80:7"),
            ("ext", "172.18.0.2:30080"),
        ];
        assert_eq!(ECHO_PORT, 7);
        let load = |(from, target): (&str, &'static str)| {
            let plan = LoadPlan::back_to_back(Protocol::Tcp, target.parse().unwrap());
            let plan = LoadPlan { interval, max_time: Duration::from_secs(7200), ..plan };
            (target, Load::start(network.namespace(from).unwrap(), plan).unwrap())
        };
        let connection = |(from, target): (&str, &str)| {
            let from = network.namespace(from).unwrap();
            LongConnection::open(from, target.parse().unwrap(), interval, ANSWER).unwrap()
        };
        let traffic = Traffic { loads: ways.map(load).into(), connections: ways.map(connection).into() };
        // Some traffic must flow before anything happens.
        traffic.wait_for_more(10);
        traffic
    }

    /// Waits until every way has made `count` more requests.
    fn wait_for_more(&self, count: usize) {
        let done = || {
            let loads = self.loads.iter().map(|(_, load)| load.done());
            loads.chain(self.connections.iter().map(LongConnection::done)).collect::<Vec<_>>()
        };
        let before = done();
        wait_until("there was more traffic", DEADLINE, || {
            done().iter().zip(&before).all(|(now, before)| *now >= before + count)
        });
    }

    fn was_undisturbed(self) {
        self.was_undisturbed_but_for(&[]);
    }

    /// New connections to these targets may have failed; those that were open may not.
    fn was_undisturbed_but_for(self, targets: &[&str]) {
        self.wait_for_more(15);
        for (target, load) in self.loads {
            let report = load.stop().unwrap();
            if !targets.contains(&target) {
                assert_eq!(report.failures, [], "of {} requests", report.successes());
            }
            assert!(report.successes() > 20, "only {} requests", report.successes());
        }
        for connection in self.connections {
            let report = connection.close().unwrap();
            assert_eq!(report.broken, None, "after {} echoes", report.echoes);
            assert!(report.echoes > 20, "only {} echoes", report.echoes);
        }
    }
}

/// Starts twice: the first takes over, the second finds nothing.
fn take_over(node: &Namespace, cluster: &Cluster) -> String {
    let log = Agent::start_with(node, cluster.arguments()).terminate();
    assert_eq!(log.matches("taken over from kube-proxy").count(), 1, "{log}");
    let again = Agent::start_with(node, cluster.arguments()).terminate();
    assert!(!again.contains("kube-proxy:"), "{again}");
    assert!(again.contains("nothing to send"), "{again}");
    log
}

#[test]
fn from_nftables_mode() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.install_nftables(ka);
    nft(ka, &["add table ip mine; add chain ip mine c; add rule ip mine c counter"]);
    let foreign = nft(ka, &["list table ip mine"]);
    let traffic = Traffic::start(&network);
    let log = take_over(ka, &cluster);
    assert!(log.contains("removed table ip kube-proxy, table ip6 kube-proxy"), "{log}");
    assert!(!nft(ka, &["list tables"]).contains("kube-proxy"));
    assert_eq!(nft(ka, &["list table ip mine"]), foreign);
    traffic.was_undisturbed();
}

fn from_iptables_mode(variant: [&str; 2]) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    install_foreign(ka, variant);
    let before = saved(ka, variant);
    assert!(before.iter().any(|line| line.contains("decides nothing")), "{before:?}");
    cluster.install_iptables(ka, variant);
    assert!(saved(ka, variant).len() > before.len() + 50);
    let traffic = Traffic::start(&network);
    take_over(ka, &cluster);
    let after = saved(ka, variant);
    assert!(after.iter().any(|line| line.contains("KUBE-FIREWALL")), "the kubelet's went too: {after:?}");
    assert_eq!(without_kubelets(after), before);
    traffic.was_undisturbed();
}

#[test]
fn from_iptables_mode_with_the_nft_variant() {
    from_iptables_mode(NFT_VARIANT);
}

#[test]
fn from_iptables_mode_with_the_legacy_variant() {
    from_iptables_mode(LEGACY_VARIANT);
}

/// `ferroxy cleanup` with these arguments, as a process that may take long.
fn clean_up(node: &Namespace, arguments: &[&str]) -> Agent {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroxy"));
    command.arg("cleanup");
    Agent::spawn_as(node, command, arguments)
}

/// Rollback to kube-proxy: our rules serve until kube-proxy's rules do. Then ours are removed and kube-proxy's stay.
fn back(install: impl FnOnce(&Cluster, &Namespace)) {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    Agent::start_with(ka, cluster.arguments()).terminate();
    let traffic = Traffic::start(&network);
    let cleanup = clean_up(ka, &["--when-replaced"]);
    cleanup
        .wait_for("waiting for the rules of kube-proxy for IPv4 and IPv6; Ferroxy's rules stay until then");
    traffic.wait_for_more(10);
    assert!(nft(ka, &["list tables"]).contains("table ip6 ferroxy"));
    install(&cluster, ka);
    let everything = || {
        let listed = nft(ka, &["--stateless", "list ruleset"]);
        listed.split("table ").filter(|it| !it.contains(" ferroxy {")).collect::<String>()
    };
    let (status, log) = cleanup.wait();
    assert!(status.success(), "{log}");
    assert!(!nft(ka, &["list tables"]).contains("ferroxy"));
    let (nft_variant, legacy) = (saved(ka, NFT_VARIANT), saved(ka, LEGACY_VARIANT));
    let rules = [everything(), nft_variant.join("\n"), legacy.join("\n")].concat();
    assert!(rules.contains("10.96.0.80"), "kube-proxy's went too: {rules}");
    traffic.was_undisturbed();
}

#[test]
fn back_to_nftables_mode() {
    back(Cluster::install_nftables);
}

#[test]
fn back_to_iptables_mode_with_the_nft_variant() {
    back(|cluster, ka| cluster.install_iptables(ka, NFT_VARIANT));
}

#[test]
fn back_to_iptables_mode_with_the_legacy_variant() {
    back(|cluster, ka| cluster.install_iptables(ka, LEGACY_VARIANT));
}

/// kube-proxy first creates chains and sets without rules, which serve no traffic.
#[test]
fn nothing_goes_before_kube_proxy_serves() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    Agent::start_with(&node, cluster.arguments()).terminate();
    nft(&node, &["add table ip kube-proxy { comment \"rules for kube-proxy\"; }"]);
    nft(&node, &["add set ip kube-proxy cluster-ips { type ipv4_addr; }"]);
    restore(&node, NFT_VARIANT[0], "*nat\n:KUBE-SERVICES -\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n");
    let cleanup = clean_up(&node, &["--when-replaced"]);
    cleanup.wait_for("IPv4 and IPv6");
    let recorded = fs::read_to_string(cluster.path("iptables.rules")).unwrap();
    restore(&node, NFT_VARIANT[0], recorded.split_once("# ip6tables-save\n").unwrap().0);
    cleanup.wait_for("waiting for the rules of kube-proxy for IPv6;");
    assert!(nft(&node, &["list tables"]).contains("table ip ferroxy"));
    cleanup.signal(rustix::process::Signal::TERM);
    let (status, log) = cleanup.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("Ferroxy's rules stay in force"), "{log}");
    assert!(nft(&node, &["list tables"]).contains("table ip ferroxy"));
}

/// kube-proxy itself changes the rules that have the same names.
#[test]
fn rules_that_have_the_same_names_in_both_stay() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.run_in("iptables");
    Agent::start_with(&node, cluster.arguments()).terminate();
    let before = saved(&node, NFT_VARIANT);
    assert!(before.iter().any(|line| line.contains("KUBE-SVC-")), "{before:?}");
    let cleanup = clean_up(&node, &["--when-replaced", "--stay"]);
    cleanup.wait_for("waiting for SIGTERM");
    assert_eq!(saved(&node, NFT_VARIANT), before);
    cleanup.terminate();
}

/// In the same mode the rules are the same: only the difference is sent, and no connection breaks. Nor does one break when the host's
/// tools continue with rules that Ferroxy wrote, or Ferroxy with rules that the tools wrote.
#[test]
fn from_iptables_mode_to_iptables_mode_with_either_writer() {
    for (tools, variant) in [(Iptables::nft(), NFT_VARIANT), (Iptables::legacy(), LEGACY_VARIANT)] {
        let Some(network) = support::network() else { return };
        let ka = network.namespace("ka").unwrap();
        let cluster = Cluster::new();
        install_foreign(ka, variant);
        let (foreign, counters) = (saved(ka, variant), counted(ka, variant));
        // The nft variant of 1.8.9 restores no counters for IPv6.
        assert_eq!(counters[..2], ["[7:700]", "[8:800]"]);
        cluster.install_iptables(ka, variant);
        let traffic = Traffic::start(&network);
        for (number, program) in ["builtin", "tool", "builtin", "tool"].into_iter().enumerate() {
            cluster.run_in("iptables");
            cluster.written_by(program);
            let log = Agent::start_using(ka, &tools, cluster.arguments()).terminate();
            assert!(!log.contains("taken over"), "ours go by the same names: {log}");
            let found_all = log.contains("nothing to send");
            assert_eq!(found_all, number > 0, "{program} reads what the other wrote: {log}");
            let left = saved(ka, variant);
            assert!(foreign.iter().all(|line| left.contains(line)), "{left:?}");
            assert_eq!(counted(ka, variant), counters, "{program}");
        }
        // Each writer continues with the rules of the other one: a node port changes, and changes back.
        let objects = fs::read_to_string(cluster.path("objects.yaml")).unwrap();
        for (program, port) in [("builtin", "30081"), ("tool", "30082"), ("builtin", "30080")] {
            fs::write(cluster.path("objects.yaml"), objects.replace("30080", port)).unwrap();
            cluster.written_by(program);
            let log = Agent::start_using(ka, &tools, cluster.arguments()).terminate();
            assert!(!log.contains("nothing to send"), "{log}");
            let rules = saved(ka, variant).join("\n");
            assert!(rules.contains(&format!("--dport {port} ")), "{rules}");
            assert_eq!(rules.contains("--dport 30081 "), port == "30081", "{rules}");
        }
        let left = saved(ka, variant);
        assert!(foreign.iter().all(|line| left.contains(line)), "{left:?}");
        traffic.was_undisturbed_but_for(&["172.18.0.2:30080"]);
    }
}

#[test]
fn from_nftables_mode_to_iptables_mode() {
    let Some(network) = support::network() else { return };
    let ka = network.namespace("ka").unwrap();
    let cluster = Cluster::new();
    cluster.run_in("iptables");
    cluster.install_nftables(ka);
    let traffic = Traffic::start(&network);
    take_over(ka, &cluster);
    assert!(!nft(ka, &["list tables"]).contains("kube-proxy"));
    assert!(saved(ka, NFT_VARIANT).iter().any(|line| line.contains("KUBE-SVC")));
    traffic.was_undisturbed();
}

/// Ferroxy also takes over from Ferroxy in another mode, there and back.
#[test]
fn from_one_mode_of_ours_to_another() {
    for (tools, variant) in [(Iptables::nft(), NFT_VARIANT), (Iptables::legacy(), LEGACY_VARIANT)] {
        let Some(network) = support::network() else { return };
        let ka = network.namespace("ka").unwrap();
        let cluster = Cluster::new();
        drop(Agent::start_using(ka, &tools, cluster.arguments()).terminate());
        let traffic = Traffic::start(&network);
        for _ in 0..2 {
            cluster.run_in("iptables");
            let log = Agent::start_using(ka, &tools, cluster.arguments()).terminate();
            assert!(
                log.contains("removed rules of another Ferroxy mode: table ip ferroxy, table ip6 ferroxy"),
                "{log}"
            );
            assert!(!nft(ka, &["list tables"]).contains("ferroxy"));
            assert!(saved(ka, variant).iter().any(|line| line.contains("KUBE-SVC")));

            cluster.run_in("nftables");
            let log = Agent::start_using(ka, &tools, cluster.arguments()).terminate();
            assert!(log.contains("chains of"), "{log}");
            assert_eq!(without_kubelets(saved(ka, variant)), [""; 0]);
        }
        traffic.was_undisturbed();
    }
}

/// All cases of the corpus, without traffic: all rules of kube-proxy are removed, all other rules stay.
#[test]
fn every_recorded_ruleset_goes() {
    let Some(node) = support::lonely_node() else { return };
    for variant in [NFT_VARIANT, LEGACY_VARIANT] {
        install_foreign(&node, variant);
        let before = saved(&node, variant);
        for case in conformance::cases().unwrap() {
            let rules = on_echo_port(&fs::read_to_string(case.folder.join("iptables.rules")).unwrap());
            let (v4, v6) = rules.split_once("# ip6tables-save\n").unwrap();
            // The jumps to KUBE-FIREWALL are also the kubelet's and would stay, so they must not be restored.
            let kube_firewall_jumps = |text: &str| -> String {
                let kept = text.lines().filter(|line| !line.contains("-j KUBE-FIREWALL"));
                kept.map(|line| format!("{line}\n")).collect()
            };
            restore(&node, variant[0], &kube_firewall_jumps(v4));
            restore(&node, variant[1], &kube_firewall_jumps(v6));
            let cleanup = ferroxy(&node, &["cleanup"]);
            assert_eq!(cleanup.code, 0, "{}: {cleanup:?}", case.name);
            assert!(cleanup.stdout.contains(" chains of "), "{cleanup:?}");
            assert_eq!(without_kubelets(saved(&node, variant)), before, "{} {variant:?}", case.name);
        }
    }
}

/// kube-proxy's ipvs mode has chains of its own, whose rules refer to sets. (Its other objects need IPVS, which few
/// kernels of test machines have: `vm/takeover.rs`.)
#[test]
fn every_recorded_chain_and_set_of_ipvs_mode_goes() {
    for variant in [NFT_VARIANT, LEGACY_VARIANT] {
        let Some(node) = support::lonely_node() else { return };
        install_foreign(&node, variant);
        // Sets, and a device, that only have a name like those of kube-proxy.
        restore(&node, "ipset", "create MINE hash:ip\ncreate KUBE-MINE bitmap:port range 1-9\n");
        node.connection().unwrap().create_bridge("kube-ipvs0").unwrap();
        let (before, sets_before) = (saved(&node, variant), sets(&node));
        for case in conformance::cases().unwrap() {
            // Not every case was recorded in every mode.
            let Ok(recorded) = RecordedIpvs::read(&case.folder) else { continue };
            restore(&node, "ipset", &recorded.sets);
            // Rules with the `ipvs` match need IPVS, which not every kernel has.
            let without_ipvs = |rules: &str| -> String {
                let lines = rules.lines().filter(|line| !line.contains("-m ipvs "));
                lines.map(|line| format!("{line}\n")).collect()
            };
            restore(&node, variant[0], &without_ipvs(&recorded.iptables));
            restore(&node, variant[1], &without_ipvs(&recorded.ip6tables));
            assert!(saved(&node, variant).len() > before.len() + 20, "{}", case.name);
            assert!(sets(&node).len() > sets_before.len() + 10, "{}", case.name);
            let cleanup = ferroxy(&node, &["cleanup"]);
            assert_eq!(cleanup.code, 0, "{}: {cleanup:?}", case.name);
            assert!(!cleanup.stdout.contains("kept"), "{}: {cleanup:?}", case.name);
            assert_eq!(saved(&node, variant), before, "{} {variant:?}", case.name);
            assert_eq!(sets(&node), sets_before, "{} {variant:?}", case.name);
        }
        node.connection().unwrap().link("kube-ipvs0").unwrap();
    }
}

#[test]
fn a_set_that_another_program_uses_stays() {
    for variant in [NFT_VARIANT, LEGACY_VARIANT] {
        let Some(node) = support::lonely_node() else { return };
        restore(
            &node,
            "ipset",
            "create KUBE-CLUSTER-IP hash:ip,port\ncreate KUBE-6-IPVS-IPS hash:ip family inet6\n",
        );
        let rule = "-A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT";
        restore(&node, variant[0], &format!("*filter\n{rule}\nCOMMIT\n"));
        let cleanup = ferroxy(&node, &["cleanup"]);
        assert_eq!(cleanup.code, 0, "{cleanup:?}");
        assert!(cleanup.stdout.contains("removed rules of kube-proxy: 1 sets"), "{cleanup:?}");
        let words = "kept, because another program uses it: set KUBE-CLUSTER-IP (a rule uses it)";
        assert!(cleanup.stdout.contains(words), "{cleanup:?}");
        assert_eq!(sets(&node), ["KUBE-CLUSTER-IP"]);
    }
}

#[test]
fn sets_of_ipvs_mode_stay_while_it_is_in_force() {
    let Some(node) = support::lonely_node() else { return };
    restore(&node, "ipset", "create KUBE-CLUSTER-IP hash:ip,port\ncreate KUBE-DROPPED hash:ip,port\n");
    let report = node.run(|| remove(Some(Own::Ipvs), Established::End)).unwrap();
    assert_eq!(report, Leftovers::default());
    assert_eq!(sets(&node).len(), 2);
    let report = node.run(|| remove(Some(Own::Nftables), Established::End)).unwrap();
    assert_eq!(report.removed, ["2 sets"]);
    assert_eq!(sets(&node), [""; 0]);
    assert_eq!(node.run(|| remove(None, Established::End)).unwrap(), Leftovers::default());
}

/// The names of all sets.
fn sets(node: &Namespace) -> Vec<String> {
    let done =
        Done::of(node.run(|| Command::new("ipset").args(["list", "-name"]).output()).unwrap().unwrap());
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn counters_of_foreign_rules_stay() {
    let Some(node) = support::lonely_node() else { return };
    for variant in [NFT_VARIANT, LEGACY_VARIANT] {
        install_foreign(&node, variant);
        let counted = || {
            let mut lines = Vec::new();
            for tool in variant {
                let mut command = Command::new(format!("{tool}-save"));
                let output = node.run(|| command.arg("--counters").output()).unwrap().unwrap();
                let text = Done::of(output).stdout;
                lines.extend(text.lines().filter(|line| line.contains("-A MINE")).map(str::to_owned));
            }
            lines
        };
        let before = counted();
        assert!(before.iter().any(|line| line.starts_with("[7:700]")), "{before:?}");
        Cluster::new().install_iptables(&node, variant);
        assert_eq!(ferroxy(&node, &["cleanup"]).code, 0);
        assert_eq!(counted(), before);
    }
}

#[test]
fn a_chain_that_another_program_uses_stays() {
    for variant in [NFT_VARIANT, LEGACY_VARIANT] {
        let Some(node) = support::lonely_node() else { return };
        Cluster::new().install_iptables(&node, variant);
        restore(&node, variant[0], "*nat\n:CNI-DN - [0:0]\n-A CNI-DN -j KUBE-MARK-MASQ\nCOMMIT\n");
        let cleanup = ferroxy(&node, &["cleanup"]);
        assert_eq!(cleanup.code, 0, "{cleanup:?}");
        let words = "kept, because another program uses it: chain KUBE-MARK-MASQ of";
        assert_eq!(cleanup.stdout.matches(words).count(), 1, "{cleanup:?}");
        let expected = [
            ":CNI-DN -",
            ":KUBE-MARK-MASQ -",
            "-A CNI-DN -j KUBE-MARK-MASQ",
            "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
        ];
        let mut left = without_kubelets(saved(&node, variant));
        left.sort();
        let mut expected = expected.map(str::to_owned);
        expected.sort();
        assert_eq!(left, expected, "{variant:?}");
    }
}

#[test]
fn tables_that_only_have_the_name_stay() {
    let Some(node) = support::lonely_node() else { return };
    nft(&node, &["add table ip kube-proxy; add chain ip kube-proxy mine"]);
    let cluster = Cluster::new();
    let log = Agent::start_with(&node, cluster.arguments()).terminate();
    assert!(!log.contains("taken over"), "{log}");
    assert!(nft(&node, &["list tables"]).contains("table ip kube-proxy"));
}

#[test]
fn a_kube_proxy_that_still_runs_is_logged_once() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let agent = Agent::start_with(&node, cluster.arguments());
    for _ in 0..3 {
        cluster.install_nftables(&node);
        wait_until("the tables went again", DEADLINE, || {
            !nft(&node, &["list tables"]).contains("kube-proxy")
        });
    }
    agent.wait_for("kube-proxy still runs on this node");
    assert_eq!(agent.said("kube-proxy still runs on this node"), 1, "{}", agent.log());
    assert_eq!(agent.said("drift"), 0, "{}", agent.log());
}

/// kube-proxy's rules may serve Services of a manifest that cannot be read.
#[test]
fn nothing_goes_while_manifests_are_broken() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.install_nftables(&node);
    cluster.install_iptables(&node, NFT_VARIANT);
    let manifests = cluster.path("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::copy(cluster.path("objects.yaml"), manifests.join("objects.yaml")).unwrap();
    let broken = manifests.join("broken.yaml");
    fs::write(&broken, "kind: [").unwrap();
    let agent = Agent::start_with(&node, run_arguments(&manifests, &cluster.path("config.yaml")));
    assert!(nft(&node, &["list tables"]).contains("table ip6 kube-proxy"));
    assert!(saved(&node, NFT_VARIANT).iter().any(|line| line.contains("KUBE-SERVICES")));
    fs::remove_file(&broken).unwrap();
    agent.wait_for("taken over from kube-proxy");
    assert!(!nft(&node, &["list tables"]).contains("kube-proxy"));
    assert!(!saved(&node, NFT_VARIANT).iter().any(|line| line.contains("KUBE-SERVICES")));
    assert_eq!(agent.said("still runs"), 0, "{}", agent.log());
}

/// A table that only its owner may delete.
#[test]
fn what_cannot_be_removed_is_logged_and_stops_nothing_else() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.install_iptables(&node, NFT_VARIANT);
    let _owned = OwnedTable::of_kube_proxy(&node);

    let log = Agent::start_with(&node, cluster.arguments()).terminate();
    assert!(
        log.contains("cannot remove all rules of kube-proxy: cannot delete table ip kube-proxy"),
        "{log}"
    );
    assert!(log.contains("taken over from kube-proxy"), "{log}");
    let cleanup = ferroxy(&node, &["cleanup"]);
    assert_eq!(cleanup.code, 1, "{cleanup:?}");
    assert!(cleanup.stdout.contains("removed: table ip ferroxy (nftables mode)"), "{cleanup:?}");
    assert!(cleanup.stderr.contains("cannot delete table ip kube-proxy"), "{cleanup:?}");
}

#[test]
fn cleanup_says_what_it_removed() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.install_nftables(&node);
    cluster.install_iptables(&node, NFT_VARIANT);
    let cleanup = ferroxy(&node, &["cleanup"]);
    assert_eq!(cleanup.code, 0, "{cleanup:?}");
    for words in [
        "removed rules of kube-proxy: table ip kube-proxy",
        "removed rules of kube-proxy: table ip6 kube-proxy",
        "chains of ip nat",
        "chains of ip6 filter",
        "chain of ip mangle",
    ] {
        assert!(cleanup.stdout.contains(words), "no {words:?} in {cleanup:?}");
    }
    let again = ferroxy(&node, &["cleanup"]);
    assert_eq!((again.code, again.stdout.as_str()), (0, "nothing to remove\n"));
}
