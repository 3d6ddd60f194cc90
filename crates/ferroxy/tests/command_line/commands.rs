//! The command line from outside: refused input, the output of the read-only commands, and exit codes. Traffic is tested
//! elsewhere.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use ferroxy_lab::{Namespace, Protocol};
use ferroxy_netlink::route::Address;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{self, Agent, Cluster, Done, Service, ferroxy, listing, nft};

pub(super) fn web() -> Service {
    Service::new("web", &["10.96.0.80", "fd00:10:96::80"])
        .node_port(Protocol::Tcp, 80, 8080, 30080)
        .endpoints(&["a1", "b1"])
}

pub(super) fn with_web() -> Cluster {
    let cluster = Cluster::new();
    cluster.write_service(&web());
    cluster
}

/// Runs a command that must be refused: code 1, one line that has these words, and no rule anywhere.
fn is_refused(node: &Namespace, arguments: &[OsString], words: &[&str]) {
    let done = ferroxy(node, arguments);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{arguments:?}: {done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{arguments:?}: {done:?}");
    assert!(done.stderr.starts_with("ferroxy: "), "{arguments:?}: {done:?}");
    for word in words {
        assert!(done.stderr.contains(word), "{arguments:?}: no {word:?} in {done:?}");
    }
    assert_eq!(nft(node, &["list", "ruleset"]), "", "{arguments:?}");
}

fn run(words: &[&str], cluster: &Cluster) -> Vec<OsString> {
    let words = ["run", "--hostname-override=ka"].iter().chain(words).map(OsString::from);
    words.chain(["--manifests".into(), cluster.manifests().into()]).collect()
}

/// As in `ferroxy … | head`: a closed pipe must not abort the program, on either stream.
#[test]
fn a_reader_that_is_gone_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("broken.yaml");
    std::fs::write(&manifest, "kind: Service\napiVersion: v1\nmetadata: { name: 7 }\n").unwrap();
    let manifests = format!("--manifests={}", manifest.display());
    for arguments in [
        &["--version"][..],
        &["--help"],
        &["--no-such-flag"],
        &["render", &manifests],
        &["explain", "web", &manifests],
        &["trace", "10.0.0.1", "10.0.0.2:80", &manifests],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferroxy"));
        command.args(arguments).stdout(writer.try_clone().unwrap()).stderr(writer);
        let status = command.status().unwrap();
        assert!(status.code().is_some(), "{arguments:?}: {status}");
    }
}

#[test]
fn wrong_flags_are_refused_in_one_line() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    for (flag, words) in [
        ("--proxy-mode=fast", &["--proxy-mode", "fast", "nftables"][..]),
        ("--nodeport-addresses=10.0.0.0/33", &["--nodeport-addresses", "10.0.0.0/33"]),
        ("--cluster-cidr=10.0.0.0", &["--cluster-cidr", "10.0.0.0"]),
        ("--iptables-sync-period=soon", &["--iptables-sync-period", "soon"]),
        ("--masquerade-all=perhaps", &["--masquerade-all", "perhaps"]),
        ("--no-such-flag", &["--no-such-flag"]),
    ] {
        is_refused(&node, &run(&[flag], &cluster), words);
    }
    is_refused(&node, &["no-such-command".into()], &["no-such-command"]);
}

#[test]
fn missing_and_broken_files_are_refused_in_one_line() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let mode = "--proxy-mode=nftables";
    is_refused(&node, &["run".into(), mode.into()], &["--kubeconfig", "--master", "--manifests"]);
    let nowhere = "--manifests=/no/such/directory";
    is_refused(&node, &["run".into(), mode.into(), nowhere.into()], &["--manifests", "/no/such/directory"]);

    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let config = cluster.config();
    for (text, words) in [
        ("mode: [".to_owned(), &["--config", "line 1"][..]),
        ("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Proxy".to_owned(), &["kind", "Proxy"]),
        ("apiVersion: v1\nkind: KubeProxyConfiguration".to_owned(), &["apiVersion", "v1"]),
        (format!("{head}nodePortAddresses: [10.0.0.0/33]"), &["nodePortAddresses", "10.0.0.0/33"]),
        (format!("{head}nftables: {{syncPeriod: soon}}"), &["nftables.syncPeriod", "soon"]),
    ] {
        std::fs::write(&config, text).unwrap();
        is_refused(&node, &cluster.command(&["run"]), words);
    }
    std::fs::remove_file(&config).unwrap();
    is_refused(&node, &cluster.command(&["run"]), &["config.yaml", "No such file"]);
}

#[test]
fn without_privileges_run_says_what_it_needs() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let arguments = cluster.command(&["run"]);
    let without = without_capabilities(&node, &arguments);
    assert_eq!((without.code, without.stdout.as_str()), (1, ""), "{without:?}");
    assert_eq!(without.stderr.lines().count(), 1, "{without:?}");
    assert!(without.stderr.contains("CAP_NET_ADMIN"), "{without:?}");
    assert_eq!(nft(&node, &["list", "ruleset"]), "");
}

#[test]
fn looking_at_manifests_needs_no_privileges() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let render = without_capabilities(&node, &cluster.command(&["render"]));
    assert_eq!(render.code, 0, "{render:?}");
    let trace = without_capabilities(&node, &cluster.command(&["trace", "10.244.1.6", "10.96.0.80:80"]));
    assert_eq!(trace.code, 0, "{trace:?}");
    let explain = without_capabilities(&node, &cluster.command(&["explain", "web"]));
    assert_eq!(explain.code, 0, "{explain:?}");
    assert!(explain.stdout.contains("not checked: needs the privileges of `ferroxy run`"), "{explain:?}");
    for command in ["diff", "cleanup"] {
        let arguments = if command == "diff" { cluster.command(&["diff"]) } else { vec!["cleanup".into()] };
        let done = without_capabilities(&node, &arguments);
        assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{done:?}");
        assert!(done.stderr.contains("not permitted"), "{done:?}");
    }
}

/// Runs the program as a process that can never gain a capability. The bounding set belongs to the thread, and the thread
/// in the namespace is created for this call.
fn without_capabilities(node: &Namespace, arguments: &[OsString]) -> Done {
    use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
    let all = CapabilitySet::all();
    let output = node.run(|| {
        for capability in all.iter() {
            // A kernel refuses to remove the newest capabilities if it does not know them.
            let _ = remove_capability_from_bounding_set(capability);
        }
        std::process::Command::new(support::FERROXY).args(arguments).output()
    });
    Done::of(output.unwrap().unwrap())
}

#[test]
fn interrupting_it_ends_it_well() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    for (signal, words) in [(Signal::INT, "interrupted"), (Signal::TERM, "asked to terminate")] {
        let agent = Agent::start(&node, &cluster);
        agent.signal(signal);
        let (status, log) = agent.wait();
        assert!(status.success(), "{status}:\n{log}");
        assert!(log.contains(&format!("{words}: what is programmed stays in force")), "{log}");
    }
    assert!(nft(&node, &["list", "ruleset"]).contains("10.96.0.80 . tcp . 80"));
}

#[test]
fn without_a_command_it_runs_and_flags_of_the_original_stand_alone() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let version = ferroxy(&node, &["--version"]);
    assert_eq!((version.code, version.stdout), (0, format!("ferroxy {}\n", env!("CARGO_PKG_VERSION"))));
    let help = ferroxy(&node, &["--help"]);
    assert_eq!(help.code, 0);
    for word in ["run", "cleanup", "render", "diff", "trace", "explain", "--proxy-mode", "Exit codes"] {
        assert!(help.stdout.contains(word), "{word}: {}", help.stdout);
    }
    let written = cluster.file("written.txt");
    let mut arguments = cluster.command(&[]);
    arguments.extend(["--write-config-to".into(), written.clone().into()]);
    let done = ferroxy(&node, &arguments);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    assert!(std::fs::read_to_string(written).unwrap().contains("mode: nftables"));
    let done = ferroxy(&node, &cluster.command(&["--init-only"]));
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(nft(&node, &["list", "ruleset"]), "", "so far everything only looked");

    drop(Agent::start(&node, &cluster).terminate());
    assert_eq!(
        ferroxy(&node, &["--cleanup"]).stdout,
        "removed: table ip ferroxy (nftables mode)\nremoved: table ip6 ferroxy (nftables mode)\n"
    );
    assert_eq!(ferroxy(&node, &["cleanup"]).stdout, "nothing to remove\n");
    assert_eq!(nft(&node, &["list", "ruleset"]), "");
}

#[test]
fn render_prints_what_nft_reads() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let done = ferroxy(&node, &cluster.command(&["render"]));
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert!(done.stdout.contains(r#"10.96.0.80 . tcp . 80 comment "default/web:tcp-80" : 1401:2"#));
    assert_eq!(nft(&node, &["list", "ruleset"]), "", "render only prints");

    cluster.write_text("rendered.nft", &done.stdout);
    nft(&node, &["-f".as_ref(), cluster.file("rendered.nft").as_os_str()]);
    let programmed = Namespace::new("ka").unwrap();
    // `run` lists the host's addresses for node ports, so this host gets the addresses of the Node object.
    let mut connection = programmed.connection().unwrap();
    let link = connection.link("lo").unwrap().index;
    for (ip, prefix_length) in [("172.18.0.2", 32), ("fd00:172:18::2", 128)] {
        connection.add_address(Address { link, ip: ip.parse().unwrap(), prefix_length }).unwrap();
    }
    drop(Agent::start(&programmed, &cluster).terminate());
    assert_eq!(listing(&node), listing(&programmed), "what nft reads is what run programs");

    let json = ferroxy(&node, &cluster.command(&["render", "--output=json"])).json();
    let tables = json["tables"].as_array().unwrap();
    assert_eq!(tables.iter().map(|table| &table["name"]).collect::<Vec<_>>(), ["ferroxy", "ferroxy"]);
    let cluster_ips = tables.iter().flat_map(|table| table["sets"].as_array().unwrap());
    let cluster_ips: Vec<&Value> = cluster_ips.filter(|set| set["name"] == "cluster-ips").collect();
    assert_eq!(cluster_ips[0]["elements"], json!(["10.96.0.80"]));
    assert_eq!(cluster_ips[1]["elements"], json!(["fd00:10:96::80"]));
}

#[test]
fn diff_tells_the_way_to_what_is_wanted() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let diff = |words: &[&str]| ferroxy(&node, &cluster.command(&[&["diff"], words].concat()));
    let before = diff(&[]);
    assert_eq!(before.code, 2, "{before:?}");
    assert!(before.stdout.contains("add table ip ferroxy"), "{}", before.stdout);
    assert_eq!(nft(&node, &["list", "ruleset"]), "", "diff only looks");

    drop(Agent::start(&node, &cluster).terminate());
    let same = diff(&[]);
    assert_eq!((same.code, same.stdout.as_str()), (0, "the kernel has exactly this\n"));
    assert_eq!(diff(&["--output=json"]).json()["operations"], json!([]));

    cluster.write_service(&web().endpoints(&["a1", "b2"]));
    let moved = diff(&["--output=json"]);
    assert_eq!(moved.code, 2);
    let operations: Vec<String> = serde_json::from_value(moved.json()["operations"].clone()).unwrap();
    // One endpoint that moved: two frontends in two families, and nothing else.
    assert_eq!(operations.len(), 4, "{operations:#?}");
    assert!(
        operations.iter().all(|it| it.contains("10.244.2.6") || it.contains("fd00:10:244:2::6")),
        "{operations:#?}"
    );
}

#[test]
fn trace_follows_one_packet() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    cluster.write_service(&Service::new("empty", &["10.96.0.81"]).port(Protocol::Tcp, 80, 80));
    let trace = |words: &[&str]| ferroxy(&node, &cluster.command(&[&["trace"], words].concat()));
    // From, to, exit code, verdict, endpoints with whether they see the node.
    let both = json!([
        { "endpoint": "10.244.1.5:8080", "masqueraded": false },
        { "endpoint": "10.244.2.5:8080", "masqueraded": false },
    ]);
    let mut both_masqueraded = both.clone();
    both_masqueraded.as_array_mut().unwrap().iter_mut().for_each(|it| it["masqueraded"] = json!(true));
    for (from, to, code, verdict, endpoints) in [
        ("10.244.1.6", "10.96.0.80:80", 0, "endpoints", &both),
        ("10.244.1.6", "default/web:80", 0, "endpoints", &both),
        ("10.244.1.6", "web:tcp-80", 0, "endpoints", &both),
        ("node", "10.96.0.80:80", 0, "endpoints", &both_masqueraded),
        ("172.18.0.100", "172.18.0.2:30080/tcp", 0, "endpoints", &both_masqueraded),
        ("10.244.1.6", "10.96.0.80:81", 2, "reject", &json!([])),
        ("10.244.1.6", "10.96.0.81:80", 2, "reject", &json!([])),
        ("10.244.1.6", "10.96.0.99:80", 2, "drop", &json!([])),
        ("10.244.1.6", "192.0.2.1:80/udp", 2, "pass", &json!([])),
    ] {
        let done = trace(&[from, to, "--output=json"]);
        let json = done.json();
        assert_eq!((done.code, json["verdict"].as_str().unwrap()), (code, verdict), "{from} {to}: {done:?}");
        assert_eq!(&json["endpoints"], endpoints, "{from} {to}");
        assert_eq!(trace(&[from, to]).code, code, "{from} {to}");
    }
    let text = trace(&["10.244.1.5", "[fd00:10:96::80]:80"]);
    assert_eq!(text.code, 1, "{text:?}");
    let text = trace(&["fd00:10:244:1::5", "[fd00:10:96::80]:80"]).stdout;
    for words in
        ["services", "goto pick-2-in-0", "one of 2 endpoints", "[fd00:10:244:1::5]:8080", "masqueraded"]
    {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    for (from, to, words) in [
        ("nobody", "10.96.0.80:80", "FROM"),
        ("10.244.1.6", "10.96.0.80", "TO"),
        ("10.244.1.6", "10.96.0.80:80/icmp", "TO"),
        ("10.244.1.6", "no/such:80", "no/such"),
        ("10.244.1.6", "web:81", "81"),
    ] {
        let done = trace(&[from, to]);
        assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{from} {to}: {done:?}");
        assert!(done.stderr.contains(words), "{from} {to}: {done:?}");
    }
}

/// Colours, a title, line breaks, C1 controls and right-to-left text, in every field that a tenant may write.
#[test]
fn what_tenants_write_does_not_reach_the_terminal_as_it_is() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let hostile = "x\u{1b}]0;owned\u{7}\r\n\u{9b}31m\u{202e}";
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "bad", "labels": {"kubernetes.io/service-name": "bad"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": hostile}},
        "ports": [{"name": "", "port": 80}, {"name": hostile, "port": 81}],
        "endpoints": [
            {"addresses": ["10.244.2.9"], "nodeName": hostile, "zone": hostile, "targetRef": {"name": hostile},
                "hints": {"forZones": [{"name": hostile}]}},
            {"addresses": [hostile]},
        ],
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "bad", "annotations": {"ferroxy.io/scheduler": hostile}},
        "spec": {"type": hostile, "clusterIP": "10.96.0.99", "externalIPs": [hostile],
            "ports": [{"port": 80, "targetPort": hostile}]},
    });
    for (file, object) in [("bad-slice.json", slice), ("bad.json", service)] {
        std::fs::write(cluster.manifests().join(file), object.to_string()).unwrap();
    }
    for words in [&["explain", "bad"][..], &["explain", "bad", "--output=json"], &["render"]] {
        let done = ferroxy(&node, &cluster.command(words));
        let text = format!("{}{}", done.stdout, done.stderr);
        assert!(text.contains("bad") && text.contains(r"\u{202e}"), "{words:?}: {text}");
        let is_hostile = |c: &char| (c.is_control() && !"\n\t".contains(*c)) || *c == '\u{202e}';
        assert_eq!(text.chars().find(is_hostile), None, "{words:?}: {text:?}");
    }
}

#[test]
fn a_closed_output_is_no_failure() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = with_web();
    let mut child = node
        .run(|| {
            let mut command = std::process::Command::new(Path::new(support::FERROXY));
            command.args(cluster.command(&["render"]));
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn()
        })
        .unwrap()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success(), "{}", output.status);
}
