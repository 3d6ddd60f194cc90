//! `kubectl ferroxy` asks the agents of several nodes through the pod proxy of an API server: healthy agents, agents that differ, run
//! another version or do not answer; and users without permission.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ferroxy_lab::api::{Access, Fault, Kind, Login, Options, Server, Verb};
use ferroxy_lab::{Network, Protocol};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Agent, Cluster, Done, FERROXY, Service, ask_from, network};

/// The name under which kubectl runs the plugin to complete a word.
const COMPLETION: &str = "kubectl_complete-ferroxy";
const TOKEN: &str = "0123456789abcdef-page";
/// The token above in base64, as in the data of a Secret.
const ENCODED: &str = "MDEyMzQ1Njc4OWFiY2RlZi1wYWdlCg==";

/// An API server, and agents on ka and kb. kb does not know the Service `dns`; kc has a fake agent of another version, kd none.
struct Fleet {
    network: Network,
    server: Server,
    folder: TempDir,
    kubeconfig: PathBuf,
    _agents: [Agent; 2],
    _clusters: [Cluster; 2],
}

fn fleet() -> Option<Fleet> {
    let network = network()?;
    let folder = tempfile::tempdir().unwrap();
    let ext = network.namespace("ext").unwrap();
    let options = Options {
        address: "172.18.0.100:0".parse().unwrap(),
        access: Access::Token,
        tls: true,
        ..Options::default()
    };
    let server = ext.run(|| Server::start(options)).unwrap().unwrap();
    let kubeconfig = server.kubeconfig(folder.path(), Login::Token).unwrap();
    std::fs::write(folder.path().join("page-token"), TOKEN).unwrap();
    for name in ["kubectl-ferroxy", COMPLETION] {
        symlink(FERROXY, folder.path().join(name)).unwrap();
    }
    let token = folder.path().join("page-token");
    let clusters = [Cluster::new(), Cluster::new()];
    for cluster in &clusters {
        let web = Service::new("web", &["10.96.0.80"]);
        cluster.write_service(&web.port(Protocol::Tcp, 80, 8080).endpoints(&["a1", "b1"]));
    }
    clusters[0]
        .write_service(&Service::new("dns", &["10.96.0.10"]).port(Protocol::Udp, 53, 53).endpoints(&["a1"]));
    let start = |node: &str, address: &str, cluster: &Cluster| {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let arguments = [
            format!("--manifests={}", text(cluster.manifests())),
            format!("--config={}", text(cluster.config())),
            format!("--hostname-override={node}"),
            format!("--page-address={address}"),
            format!("--page-token-file={}", text(token.clone())),
            "--traffic-metrics=true".to_owned(),
        ];
        Agent::start_with(network.namespace(node).unwrap(), arguments)
    };
    let agents = [start("ka", "172.18.0.2", &clusters[0]), start("kb", "172.18.0.3", &clusters[1])];
    let fake = ext.run(|| TcpListener::bind("172.18.0.100:10300")).unwrap().unwrap();
    std::thread::spawn(move || fake.incoming().for_each(|stream| answer(stream.unwrap())));
    for (name, ip) in
        [("ka", "172.18.0.2"), ("kb", "172.18.0.3"), ("kc", "172.18.0.100"), ("kd", "172.18.0.100")]
    {
        server.put(&agent_pod(name, ip)).unwrap();
    }
    server.put(&pod("default", "client", "ka", "10.244.1.5")).unwrap();
    server.put(&secret()).unwrap();
    Some(Fleet { network, server, folder, kubeconfig, _agents: agents, _clusters: clusters })
}

fn secret() -> Value {
    let metadata = json!({ "name": "ferroxy-page", "namespace": "kube-system" });
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": { "token": ENCODED } })
}

fn agent_pod(node: &str, ip: &str) -> Value {
    let mut pod = pod("kube-system", &format!("kube-proxy-{node}"), node, ip);
    pod["metadata"]["labels"] = json!({ "k8s-app": "kube-proxy" });
    pod["spec"]["hostNetwork"] = true.into();
    if node == "kc" {
        pod["spec"]["containers"] =
            json!([{ "name": "x", "ports": [{ "name": "page", "containerPort": 10300 }] }]);
    }
    pod
}

fn pod(namespace: &str, name: &str, node: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] },
    })
}

/// An agent of another version with hostile answers: one has an escape sequence for terminals, the others are too long.
fn answer(mut stream: TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        // The client may be gone.
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        request.extend(byte);
    }
    let is_status = request.starts_with(b"GET /api/v1/status ");
    let body = match is_status {
        true => json!({
            "apiVersion": "ferroxy.io/v1", "kind": "Status", "version": "0.0.9", "mode": "\u{1b}[2Jnftables",
            "ready": true, "healthy": true, "inSync": true, "source": { "alive": true, "ended": null },
            "queue": { "services": 0 }, "services": { "known": 2, "refused": 0, "problems": 0 },
        })
        .to_string(),
        false => format!("\"{}\"", "x".repeat(20 << 20)),
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    // The API server stops reading when the client does.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

impl Fleet {
    /// Runs the plugin on a host that is not a node.
    fn run(&self, arguments: &[&str]) -> Done {
        self.run_as("kubectl-ferroxy", arguments)
    }

    fn run_as(&self, name: &str, arguments: &[&str]) -> Done {
        let mut command = Command::new(self.folder.path().join(name));
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).stdin(Stdio::null());
        Done::of(self.network.namespace("ext").unwrap().run(|| command.output()).unwrap().unwrap())
    }

    fn lines(&self, arguments: &[&str]) -> (i32, Vec<String>) {
        let done = self.run(arguments);
        let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!done.stdout.contains('\x1b'), "{}", done.stdout);
        (done.code, done.stdout.lines().map(line).chain(done.stderr.lines().map(line)).collect())
    }
}

fn node(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })
}

#[track_caller]
fn has(lines: &[String], part: &str) {
    assert!(lines.iter().any(|line| line.contains(part)), "{part:?} in {lines:#?}");
}

/// As kubectl runs the plugin when the shell completes a word.
#[test]
fn commands_flags_and_names_are_completed() {
    let Some(fleet) = fleet() else { return };
    let completed = |words: &[&str]| {
        let done = fleet.run_as(COMPLETION, words);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        done.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["ex"]), ["explain\tShow where a Service works and where not, and why", ":4"]);
    assert_eq!(completed(&["status", "--token-s"])[1], ":4");
    assert_eq!(completed(&["status", "--token-file", ""]), [":0"], "files");
    assert_eq!(completed(&["explain", ""]), ["dns", "web", ":4"]);
    assert_eq!(completed(&["explain", "default/w"]), ["default/web", ":4"]);
    assert_eq!(completed(&["explain", "-n", "other", ""]), [":4"]);
    assert_eq!(completed(&["trace", "c"]), ["client", ":4"]);
    assert_eq!(completed(&["trace", "client", "d"]), ["dns", ":4"]);
    // A user without permission gets no names, and no error in the middle of a command line.
    fleet.server.fault_on((Kind::Pod, Verb::List), Fault::answer(403)).unwrap();
    assert_eq!(completed(&["trace", ""]), [":4"]);
}

#[test]
fn status_has_a_row_for_every_node() {
    let Some(fleet) = fleet() else { return };
    let own = env!("CARGO_PKG_VERSION");
    let (code, lines) = fleet.lines(&["status"]);
    assert_eq!(code, 2, "{lines:#?}");
    assert_eq!(lines[0], "NODE VERSION MODE STATE SERVICES NOT IN FORCE WITH PROBLEMS LAG");
    assert!(lines[1].starts_with(&format!("ka {own} nftables ok 2 0 ")), "{lines:#?}");
    assert!(lines[2].starts_with(&format!("kb {own} nftables differs 1 0 ")), "{lines:#?}");
    assert!(lines[3].starts_with(r"kc 0.0.9 \u{1b}[2Jnftables differs 2 0 0 "), "{lines:#?}");
    assert_eq!(lines[4], "kd - - no answer - - - -");
    has(&lines, "differs kb: it knows 1 Services; most nodes know 2");
    has(&lines, &format!("differs kc: it runs version 0.0.9; most nodes run {own}"));
    has(&lines, "no answer kd: error trying to reach service: ");
    has(&lines, "4 nodes: 1 is ok, 2 differ from most, 1 does not answer");
    let value = fleet.run(&["status", "-o", "json"]).json();
    assert_eq!(value["kind"], "FleetStatus");
    let states: Vec<&str> =
        value["nodes"].as_array().unwrap().iter().map(|node| node["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["ok", "differs", "differs", "no answer"]);
    assert_eq!(value["nodes"][0]["status"]["node"], "ka");
    assert!(fleet.run(&["status", "--output=yaml"]).stdout.contains("kind: FleetStatus"));
    let refused = fleet.run(&["status", "-n", "shop"]);
    assert_eq!((refused.code, refused.stdout.as_str(), refused.stderr.lines().count()), (1, "", 1));
    assert!(refused.stderr.contains("--namespace: `status` is about nodes"), "{}", refused.stderr);
}

#[test]
fn a_node_without_an_agent_is_a_row_too() {
    let Some(fleet) = fleet() else { return };
    for name in ["ka", "kb", "kc", "kd", "ab", "kw"] {
        fleet.server.put(&node(name)).unwrap();
    }
    // The agents of Windows nodes are pods of another DaemonSet.
    let mut windows = agent_pod("kw", "172.18.0.100");
    windows["metadata"]["labels"] = json!({ "k8s-app": "kube-proxy-windows" });
    fleet.server.put(&windows).unwrap();
    let (code, lines) = fleet.lines(&["status"]);
    assert_eq!(code, 2, "{lines:#?}");
    assert_eq!(lines[1], "ab - - no agent - - - -");
    assert!(lines[2].starts_with("ka "), "{lines:#?}");
    has(&lines, "no agent ab: no pod of namespace kube-system with the labels `k8s-app in (kube-proxy,");
    has(&lines, "6 nodes: 1 is ok, 2 differ from most, 2 do not answer, 1 has no agent");
    let value = fleet.run(&["status", "-o", "json"]).json();
    let row = &value["nodes"][0];
    assert_eq!((&row["node"], &row["state"]), (&json!("ab"), &json!("no agent")));
    assert_eq!((&row["pod"], &row["status"]), (&Value::Null, &Value::Null));
    let (_, lines) = fleet.lines(&["explain", "web"]);
    has(&lines, "service default/web on 6 nodes");
    has(&lines, "no agent on 1 node: ab");

    // Only one healthy agent is left, and the node without an agent: that node alone must make the command fail.
    for name in ["kb", "kc", "kd", "kw"] {
        fleet.server.delete(Kind::Pod, "kube-system", &format!("kube-proxy-{name}")).unwrap();
        fleet.server.delete(Kind::Node, "", name).unwrap();
    }
    let (code, lines) = fleet.lines(&["status"]);
    assert_eq!(code, 2, "{lines:#?}");
    has(&lines, "2 nodes: 1 is ok, 1 has no agent");
    fleet.server.fault_on((Kind::Node, Verb::List), Fault::answer(403)).unwrap();
    let done = fleet.run(&["status"]);
    assert_eq!((done.code, done.stderr.lines().count()), (0, 1), "{}{}", done.stdout, done.stderr);
    let words =
        "kubectl ferroxy: nodes without an agent are not listed: permission denied: `list nodes` is needed";
    assert!(done.stderr.starts_with(words), "{}", done.stderr);
    assert!(done.stdout.contains("1 node: 1 is ok"), "{}", done.stdout);
    let reason = fleet.run(&["status", "-o", "json"]).json()["notListed"].clone();
    assert!(reason.as_str().unwrap().contains("`list nodes` is needed"), "{reason}");
}

/// As in kubectl, files that do not exist are skipped.
#[test]
fn kubeconfigs_are_found_as_kubectl_finds_them() {
    let Some(fleet) = fleet() else { return };
    let run = |list: &[&std::path::Path]| {
        let mut command = Command::new(fleet.folder.path().join("kubectl-ferroxy"));
        command.arg("status").env("KUBECONFIG", std::env::join_paths(list).unwrap());
        command.env("HOME", fleet.folder.path()).env_remove("KUBERNETES_SERVICE_HOST").stdin(Stdio::null());
        Done::of(fleet.network.namespace("ext").unwrap().run(|| command.output()).unwrap().unwrap())
    };
    let missing = fleet.folder.path().join("missing");
    let done = run(&[&missing, &fleet.kubeconfig]);
    assert_eq!((done.code, done.stderr.as_str()), (2, ""), "{}", done.stdout);
    assert!(done.stdout.contains("4 nodes: "), "{}", done.stdout);
    let done = run(&[&missing]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.lines().count()), (1, "", 1), "{}", done.stderr);
    let words = format!("kubectl ferroxy: there is no kubeconfig at {}: set --kubeconfig", missing.display());
    assert!(done.stderr.starts_with(&words), "{}", done.stderr);
}

#[test]
fn a_service_is_explained_on_every_node() {
    let Some(fleet) = fleet() else { return };
    let (code, lines) = fleet.lines(&["explain", "web"]);
    assert_eq!(code, 2, "{lines:#?}");
    has(&lines, "service default/web on 4 nodes");
    has(&lines, "works on 2 nodes: ka, kb");
    has(&lines, "port 80/tcp IPv4: 2 of 2 endpoints used: 10.244.1.5:8080, 10.244.2.5:8080");
    has(&lines, "why the answer is longer than 8388608 bytes");
    let (_, lines) = fleet.lines(&["explain", "dns", "-n", "default"]);
    has(&lines, "works on 1 node: ka");
    has(&lines, "unknown on 1 node: kb");
    let groups = fleet.run(&["explain", "default/dns", "-o=json"]).json()["groups"].clone();
    assert_eq!(groups.as_array().unwrap().last().unwrap()["nodes"], json!(["ka"]));
    let wrong = fleet.run(&["explain", "../x"]);
    assert_eq!((wrong.code, wrong.stderr.lines().count()), (1, 1), "{}", wrong.stderr);
}

#[test]
fn a_packet_is_traced_on_the_node_of_its_pod() {
    let Some(fleet) = fleet() else { return };
    let (code, lines) = fleet.lines(&["trace", "client", "web"]);
    assert_eq!(code, 0, "{lines:#?}");
    has(&lines, "packet 10.244.1.5 -> 10.96.0.80:80/tcp, from pod default/client on node ka");
    has(&lines, "verdict one of 2 endpoints");
    has(&lines, "10.244.2.5:8080 sees the pod's address");
    let value = fleet.run(&["trace", "default/client", "default/web:80", "-o", "json"]).json();
    assert_eq!(
        (&value["kind"], &value["node"], &value["verdict"]),
        (&"Trace".into(), &"ka".into(), &"endpoints".into())
    );
    fleet.server.put(&pod("default", "elsewhere", "kz", "10.244.9.5")).unwrap();
    for (arguments, words) in [
        (["trace", "client", "web:81"], "the Service has no port 81 on that node (it has: 80/tcp)"),
        (["trace", "elsewhere", "web"], "there is no agent on node kz, where the pod elsewhere is"),
        (["trace", "none", "web"], "pods \"none\" not found"),
        (["trace", "client", "wbe"], "node ka: "),
    ] {
        let done = fleet.run(&arguments);
        assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{arguments:?}: {}", done.stderr);
        assert!(
            done.stderr.starts_with("kubectl ferroxy: ") && done.stderr.contains(words),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn traffic_is_summed_over_nodes() {
    let Some(fleet) = fleet() else { return };
    // A Service without any traffic has no counters. Whether the pod answers does not matter.
    ask_from(&fleet.network, "a1", Protocol::Tcp, "10.96.0.80:80");
    let (code, lines) = fleet.lines(&["top", "--interval=1", "--sort=name"]);
    assert_eq!(code, 2, "{lines:#?}");
    assert_eq!(lines[0], "SERVICE PORT CONN/S IN B/S OUT B/S NODES");
    has(&lines, "default/web");
    has(&lines, "no answer kd: ");
    let value = fleet.run(&["top", "--interval=1", "-o", "json"]).json();
    assert_eq!((&value["kind"], &value["counting"]), (&"FleetTraffic".into(), &2.into()));
    let (_, lines) = fleet.lines(&["top", "--interval=1", "-n", "default"]);
    has(&lines, "default/web");
    let (_, lines) = fleet.lines(&["top", "--interval=1", "-n", "shop"]);
    has(&lines, "no Service of namespace shop has had traffic on the 2 nodes that count it");
    assert!(!lines.iter().any(|line| line.contains("default/web")), "{lines:#?}");
}

#[test]
fn what_is_not_permitted_is_named() {
    let Some(fleet) = fleet() else { return };
    let forbid = |on: (Kind, Verb)| {
        fleet.server.clear_faults().unwrap();
        fleet.server.fault_on(on, Fault::answer(403)).unwrap();
    };
    forbid((Kind::Pod, Verb::List));
    let done = fleet.run(&["status"]);
    assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{}", done.stderr);
    assert!(done.stderr.contains("`list pods` in namespace kube-system is needed"), "{}", done.stderr);
    forbid((Kind::Pod, Verb::Proxy));
    let (code, lines) = fleet.lines(&["status"]);
    assert_eq!(code, 2);
    has(&lines, "no answer ka: permission denied: `get pods/proxy` in namespace kube-system is needed");
    forbid((Kind::Secret, Verb::Get));
    let (_, lines) = fleet.lines(&["status"]);
    has(&lines, "no token found: permission denied: `get secrets` in namespace kube-system is needed");
    let token = fleet.folder.path().join("page-token");
    let (_, lines) = fleet.lines(&["status", "--token-file", token.to_str().unwrap()]);
    has(&lines, "nftables ok");
    fleet.server.clear_faults().unwrap();
    fleet.server.delete(Kind::Secret, "kube-system", "ferroxy-page").unwrap();
    let (_, lines) = fleet.lines(&["status"]);
    has(&lines, "no token found: secrets \"ferroxy-page\" not found (or use --token-file)");
    let none = fleet.run(&["status", "--selector=k8s-app=other"]);
    assert!(none.code == 1 && none.stderr.contains("has the labels `k8s-app=other`"), "{}", none.stderr);
}

#[test]
fn a_node_that_does_not_answer_in_time_is_a_row() {
    let Some(fleet) = fleet() else { return };
    fleet.server.fault_on((Kind::Pod, Verb::Proxy), Fault::HangRequests).unwrap();
    let (code, lines) = fleet.lines(&["status", "--timeout=1"]);
    assert_eq!(code, 2);
    has(&lines, "no answer ka: no answer within 1s");
    has(&lines, "4 nodes: 4 do not answer");
    fleet.server.clear_faults().unwrap();
    fleet.server.fault(Fault::Refuse).unwrap();
    let done = fleet.run(&["status"]);
    assert_eq!((done.code, done.stderr.lines().count()), (1, 1), "{}", done.stderr);
    assert!(done.stderr.contains("does not answer"), "{}", done.stderr);
}
