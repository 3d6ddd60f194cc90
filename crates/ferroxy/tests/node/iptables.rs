//! iptables mode as a whole: the agent and the commands with the host's real tools. Traffic of the recorded corpus is in
//! conformance.rs, going from mode to mode in takeover.rs, the dataplane by itself in `ferroxy-iptables/tests/`.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::web::{METRICS, get};
use crate::support::{
    self, Agent, Cluster, DEADLINE, Iptables, Service, ferroxy, ferroxy_with, nft, pod_from, run_arguments,
    wait_until,
};
use ferroxy_lab::{Namespace, Protocol};

/// Unless a test needs other settings. Where there are no notifications, the agent looks for drift once in each period.
const SYNC_PERIOD: &str = "iptables:\n  syncPeriod: 1s\n  minSyncPeriod: 100ms\n";

fn cluster() -> Cluster {
    let cluster = Cluster::in_mode("iptables");
    let config = fs::read_to_string(cluster.config()).unwrap();
    assert!(config.contains("iptables:\n"));
    fs::write(cluster.config(), config.replace("iptables:\n", SYNC_PERIOD)).unwrap();
    let web = Service::new("web", &["10.96.0.80", "fd00:10:96::80"]);
    cluster.write_service(&web.node_port(Protocol::Tcp, 80, 8080, 30080).endpoints(&["a1", "b1"]));
    let sticky = Service::new("sticky", &["10.96.0.81"]).port(Protocol::Tcp, 80, 80).affinity(600);
    cluster.write_service(&sticky.endpoints(&["a1", "b1"]));
    cluster
}

fn arguments(cluster: &Cluster) -> [std::ffi::OsString; 6] {
    run_arguments(&cluster.manifests(), &cluster.config())
}

fn both() -> [Iptables; 2] {
    [Iptables::nft(), Iptables::legacy()]
}

#[test]
fn whatever_others_do_to_our_chains_is_repaired_and_counted() {
    for tools in both() {
        let Some(node) = support::lonely_node() else { return };
        let cluster = cluster();
        let agent = Agent::start_using(&node, &tools, arguments(&cluster));
        let mut before = tools.save(&node);
        before.sort();
        let edits = [
            "-t nat -F",
            "-t filter -F",
            "-t nat -F KUBE-SERVICES",
            "-t nat -D PREROUTING 1",
            "-t nat -D KUBE-MARK-MASQ 1",
            "-t nat -I KUBE-SERVICES -p icmp -j ACCEPT",
            "-t mangle -X KUBE-PROXY-CANARY",
            "-t nat -N KUBE-SEP-AAAAAAAAAAAAAAAA",
        ];
        for (number, edit) in (1..).zip(edits) {
            tools.command(&node, edit);
            agent.wait_for(&format!("drift repaired ({number} so far)"));
            let mut after = tools.save(&node);
            after.sort();
            assert_eq!(after, before, "{edit}");
        }
        assert_eq!(agent.warned("cannot"), 0, "{}", agent.log());

        // Our own changes are no drift, nor are changes of other programs to their own chains.
        tools.command(&node, "-t nat -N MINE");
        tools.command(&node, "-t nat -A MINE -j RETURN");
        tools.command(&node, "-t nat -I PREROUTING -j MINE");
        for endpoints in [&["a1"][..], &["a1", "a2"], &[]] {
            cluster.write_service(
                &Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 8080).endpoints(endpoints),
            );
            agent.settle(&node);
        }
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(agent.said("drift repaired"), edits.len(), "{}", agent.log());
        let saved = tools.save(&node);
        let place = |words: &str| saved.iter().position(|line| line.contains(words)).unwrap();
        assert!(
            place("-A PREROUTING -j MINE") < place("-A PREROUTING -m comment"),
            "it stays where it was put"
        );
    }
}

#[test]
fn traffic_flows_again_after_a_flush() {
    for tools in both() {
        let Some(network) = support::network() else { return };
        let ka = network.namespace("ka").unwrap();
        let agent = Agent::start_using(ka, &tools, arguments(&cluster()));
        for (number, edit) in (1..).zip(["-t nat -F", "-t filter -F"]) {
            tools.command(ka, edit);
            agent.wait_for(&format!("drift repaired ({number} so far)"));
            for target in ["10.96.0.80:80", "[fd00:10:96::80]:80"] {
                let pod = pod_from(&network, "a2", Protocol::Tcp, target);
                assert!(["a1", "b1"].contains(&pod.as_str()), "{pod}");
            }
            pod_from(&network, "ext", Protocol::Tcp, "172.18.0.2:30080");
            pod_from(&network, "ka", Protocol::Tcp, "127.0.0.1:30080");
        }
    }
}

#[test]
fn a_restart_writes_nothing() {
    let Some(node) = support::lonely_node() else { return };
    let (tools, cluster) = (Iptables::nft(), cluster());
    drop(Agent::start_using(&node, &tools, arguments(&cluster)).terminate());
    // Rules that are written again get other handles.
    let before = nft(&node, &["--handle", "list", "ruleset"]);
    let log = Agent::start_using(&node, &tools, arguments(&cluster)).terminate();
    assert!(log.contains("nothing to send"), "{log}");
    assert_eq!(nft(&node, &["--handle", "list", "ruleset"]), before);
}

/// A run of the tool costs the same for one Service and for many.
#[test]
fn changes_in_a_burst_go_together() {
    let Some(node) = support::lonely_node() else { return };
    let (tools, cluster) = (Iptables::nft(), cluster());
    let config = fs::read_to_string(cluster.config())
        .unwrap()
        .replace("syncPeriod: 1s\n  minSyncPeriod: 100ms", "minSyncPeriod: 2s");
    fs::write(cluster.config(), config).unwrap();
    let said = [std::ffi::OsString::from("-v=2")];
    let agent = Agent::start_using(&node, &tools, arguments(&cluster).into_iter().chain(said));
    let start = Instant::now();
    for number in 0..40 {
        let address = format!("10.96.1.{number}");
        let service = Service::new(&format!("s{number}"), &[&address]).port(Protocol::Tcp, 80, 80);
        cluster.write_service(&service.endpoints(&["a1"]));
        std::thread::sleep(Duration::from_millis(10));
    }
    agent.settle(&node);
    let syncs = agent.said(" changed: ");
    // One at once, then one each two seconds: on a busy machine the burst itself takes longer.
    let most = 2 + start.elapsed().as_secs() as usize / 2;
    assert!((1..=most).contains(&syncs), "{syncs} syncs, at most {most} expected:\n{}", agent.log());
}

#[test]
fn commands_speak_of_iptables() {
    for tools in both() {
        let Some(node) = support::lonely_node() else { return };
        let cluster = cluster();
        let rendered = ferroxy_with(&node, &tools, &cluster.command(&["render"]));
        assert_eq!(rendered.code, 0, "{rendered:?}");
        assert!(
            rendered.stdout.starts_with("# iptables-save\n*mangle\n:KUBE-PROXY-CANARY -\n"),
            "{rendered:?}"
        );
        let json = ferroxy_with(&node, &tools, &cluster.command(&["render", "--output=json"])).json();
        assert_eq!(json["tables"].as_array().unwrap().len(), 6);

        let diff = ferroxy_with(&node, &tools, &cluster.command(&["diff"]));
        assert_eq!(diff.code, 2, "{diff:?}");
        assert!(diff.stdout.contains("# ip6tables-restore --noflush\n*mangle\n"), "{diff:?}");
        assert!(tools.rules(&node).is_empty(), "so far everything only looked");
        let explained = ferroxy_with(&node, &tools, &cluster.command(&["explain", "web"]));
        assert!(explained.stdout.contains("programmed in this kernel: no"), "{explained:?}");

        let agent = Agent::start_using(&node, &tools, arguments(&cluster));
        assert!(agent.log().contains("iptables mode"), "{}", agent.log());
        let explained = ferroxy_with(&node, &tools, &cluster.command(&["explain", "web"]));
        assert!(explained.stdout.contains("programmed in this kernel: yes"), "{explained:?}");
        // `render` prints exactly the rules that the agent programs.
        let lines = |text: &[String]| -> Vec<String> {
            let mut lines: Vec<String> = text.iter().filter(|line| line.starts_with("-A")).cloned().collect();
            lines.sort();
            lines
        };
        let printed: Vec<String> = rendered.stdout.lines().map(str::to_owned).collect();
        let (saved, printed) = (lines(&tools.save(&node)), lines(&printed));
        for (saved, printed) in saved.iter().zip(&printed) {
            assert_eq!(saved, printed);
        }
        assert_eq!(saved.len(), printed.len());

        let traced = ferroxy_with(&node, &tools, &cluster.command(&["trace", "10.244.1.6", "10.96.0.80:80"]));
        assert_eq!(traced.code, 0, "{traced:?}");
        for words in ["KUBE-SERVICES", "KUBE-SVC-", "KUBE-SEP-", "one of 2 endpoints"] {
            assert!(traced.stdout.contains(words), "{words}: {traced:?}");
        }
        let traced = ferroxy_with(&node, &tools, &cluster.command(&["trace", "10.244.1.6", "10.96.0.81:80"]));
        assert!(traced.stdout.contains("session affinity"), "{traced:?}");
        drop(agent.terminate());
        let cleanup = ferroxy_with(&node, &tools, &["cleanup"]);
        assert!(cleanup.stdout.contains("chains of ip nat (iptables mode)"), "{cleanup:?}");
        assert!(tools.rules(&node).is_empty());
    }
}

/// A line of `/proc/<pid>/status` as a number.
fn capabilities(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn the_tools_have_what_they_need_and_nobody_has_more() {
    const NET_ADMIN_AND_RAW: u64 = 1 << 12 | 1 << 13;
    for tools in both() {
        let Some(node) = support::lonely_node() else { return };
        let cluster = cluster();
        let agent = Agent::start_using(&node, &tools, arguments(&cluster));
        for field in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
            assert_eq!(capabilities(agent.pid(), field), NET_ADMIN_AND_RAW, "{field}");
        }
        tools.command(&node, "-t nat -F");
        agent.wait_for("drift repaired (1 so far)");
        cluster.remove("sticky.yaml");
        agent.settle(&node);
        assert_eq!(agent.said("privileges"), 0, "{}", agent.log());
    }
}

fn setting(node: &Namespace, key: &str) -> String {
    node.run(|| fs::read_to_string(format!("/proc/sys/{key}"))).unwrap().unwrap().trim().to_owned()
}

#[test]
fn metrics_count_rules_and_loopback_is_let_out() {
    let Some(node) = support::lonely_node() else { return };
    node.run(|| fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "0")).unwrap().unwrap();
    let (tools, cluster) = (Iptables::nft(), cluster());
    let agent = Agent::start_using(&node, &tools, arguments(&cluster));
    assert_eq!(setting(&node, "net/ipv4/conf/all/route_localnet"), "1");
    let value = |name: &str| {
        let page = get(&node, METRICS, "/metrics").unwrap().body;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name} in {page}"));
        line.trim().parse::<u64>().unwrap()
    };
    let nat = |end: &str| {
        value(&format!("kubeproxy_sync_proxy_rules_iptables_{end}{{ip_family=\"IPv4\",table=\"nat\"}}"))
    };
    let in_kernel = || {
        let all = nft(&node, &["list", "table", "ip", "nat"]);
        let own = all
            .split("chain KUBE-")
            .skip(1)
            .flat_map(|chain| chain.lines().skip(1).take_while(|line| line.trim() != "}"));
        own.count() as u64
    };
    assert_eq!((nat("total"), nat("last")), (in_kernel(), in_kernel()), "all of it was written");
    cluster.remove("sticky.yaml");
    agent.settle(&node);
    wait_until("the metrics follow", DEADLINE, || nat("total") == in_kernel());
    assert!(nat("last") < 3, "{}", nat("last"));
    assert_eq!(value("kubeproxy_iptables_ct_state_invalid_dropped_packets_total"), 0);
    assert_eq!(value("kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}"), 0);
}

#[test]
fn rules_of_the_other_variant_are_warned_of() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = cluster();
    drop(Agent::start_using(&node, &Iptables::legacy(), arguments(&cluster)).terminate());
    let log = Agent::start_using(&node, &Iptables::nft(), arguments(&cluster)).terminate();
    assert!(log.contains("the legacy variant of iptables, which is not used here, has KUBE-"), "{log}");
    assert!(log.contains("variant=\"nf_tables\""), "{log}");
}

#[test]
fn without_a_mode_the_hosts_tools_decide() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::in_mode("\"\"");
    let done = ferroxy(&node, &cluster.command(&["render"]));
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.stderr.matches("no proxy mode is set: using iptables").count(), 1, "{done:?}");
    assert_eq!(done.stderr.matches("nodePortAddresses is not set").count(), 1, "{done:?}");
    assert!(done.stdout.contains("KUBE-SERVICES"));
}
