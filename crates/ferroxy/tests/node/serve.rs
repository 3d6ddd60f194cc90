//! The HTTP servers of the node, tested by a client that reads the bytes itself: health, health-check node ports,
//! metrics.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferroxy_lab::Namespace;
use ferroxy_lab::conformance::case;
use serde_json::{Value, json};

use crate::support::web::{HEALTHZ, METRICS, Reply, code, get, metrics, request};
use crate::support::{self, Agent, Cluster, DEADLINE, OwnedTable, balanced, run_arguments, wait_until};

fn wait_for_code(from: &Namespace, address: &str, path: &str, expected: Option<u16>) {
    let what = format!("{address}{path} answers {expected:?}");
    wait_until(&what, DEADLINE, || code(from, address, path) == expected);
}

fn node(taints: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "ka" }, "spec": { "taints": taints },
        "status": { "addresses": [{ "type": "InternalIP", "address": "172.18.0.2" }] },
    })
}

fn answers_as_recorded(name: &str) {
    let Some(network) = support::network() else { return };
    let case = case(name).unwrap();
    assert!(!case.health_checks.is_empty());
    let ka = network.namespace("ka").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, support::configured(name, "nftables")).unwrap();
    let _agent = Agent::start_with(ka, run_arguments(&case.folder, &config));
    for (port, recorded) in &case.health_checks {
        let expected =
            Reply { code: recorded.code, headers: recorded.headers.clone(), body: recorded.body.clone() };
        let address = format!("172.18.0.2:{port}");
        // From another node, as a load balancer asks.
        let kb = network.namespace("kb").unwrap();
        wait_until("the port is open", DEADLINE, || get(kb, &address, "/").is_some());
        assert_eq!(get(kb, &address, "/").unwrap(), expected);
        assert_eq!(get(kb, &address, "/any/path?at=all").unwrap(), expected);
    }
}

#[test]
fn health_check_node_ports_answer_as_recorded_with_an_endpoint() {
    answers_as_recorded("lb-local");
}

#[test]
fn health_check_node_ports_answer_as_recorded_without_an_endpoint() {
    answers_as_recorded("lb-local-none");
}

#[test]
fn health_check_node_ports_follow_their_service() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let (port, other_port) = ("127.0.0.1:32000", "127.0.0.1:32001");
    cluster.write("web.yaml", &balanced("web", 0, 32000, Some("ka")));
    let manifests = format!("--manifests={}", cluster.manifests().display());
    let everywhere = "--nodeport-addresses=0.0.0.0/0";
    // Without the health server, health-check node ports must still answer load balancers.
    let without_healthz = "--healthz-bind-address=";
    let flags = ["--proxy-mode=nftables", "--hostname-override=ka", everywhere, without_healthz, &manifests];
    let _agent = Agent::start_with(&ka, flags);
    assert_eq!(code(&ka, HEALTHZ, "/healthz"), None);
    wait_for_code(&ka, port, "/", Some(200));

    cluster.write("web.yaml", &balanced("web", 0, 32000, Some("kb")));
    wait_for_code(&ka, port, "/", Some(503));
    assert_eq!(get(&ka, port, "/").unwrap().json()["localEndpoints"], 0);
    cluster.write("web.yaml", &balanced("web", 0, 32000, Some("ka")));
    wait_for_code(&ka, port, "/", Some(200));

    cluster.write("web.yaml", &balanced("web", 0, 32001, Some("ka")));
    wait_for_code(&ka, other_port, "/", Some(200));
    wait_for_code(&ka, port, "/", None);

    // The same port for another Service, in one step.
    cluster.write("web.yaml", &balanced("shop", 1, 32001, Some("kb")));
    // The first Service may answer 503 as well, if its endpoints leave before it does.
    wait_until("the other Service answers 503", DEADLINE, || {
        get(&ka, other_port, "/")
            .is_some_and(|reply| reply.code == 503 && reply.json()["service"]["name"] == "shop")
    });
    cluster.remove("web.yaml");
    wait_for_code(&ka, other_port, "/", None);
}

#[test]
fn a_health_check_node_port_that_is_taken_is_opened_later() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.answer_everywhere();
    cluster.write("web.yaml", &balanced("web", 0, 32000, Some("ka")));
    let squatter = ka.run(|| TcpListener::bind("0.0.0.0:32000").unwrap()).unwrap();
    let agent = Agent::start(&ka, &cluster);
    agent.wait_for("cannot open health-check node port 0.0.0.0:32000 of Service default/web");
    drop(squatter);
    wait_for_code(&ka, "127.0.0.1:32000", "/", Some(200));
    assert_eq!(agent.said("cannot open health-check node port"), 1, "it is said once");
}

#[test]
fn thousands_of_health_check_node_ports_are_cheap() {
    const MANY: u16 = 2000;
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.answer_everywhere();
    let agent = Agent::start(&ka, &cluster);
    let before = metrics(&ka);
    let all: Vec<Value> =
        (0..MANY).flat_map(|i| balanced(&format!("s{i}"), i, 31000 + i, Some("ka"))).collect();
    cluster.write("many.yaml", &all);
    for port in [31000 + MANY - 1, 31000, 31500, 31998] {
        wait_for_code(&ka, &format!("127.0.0.1:{port}"), "/", Some(200));
    }
    let after = metrics(&ka);
    let grew = |name: &str| after[name] - before[name];
    assert_eq!(grew("process_threads"), 0.0);
    assert_eq!(grew("process_open_fds"), f64::from(MANY), "one socket for each");
    let memory = grew("process_resident_memory_bytes");
    println!("{MANY} Services with their ports: {memory} bytes");
    assert!(memory < 48e6, "{memory} bytes");
    cluster.remove("many.yaml");
    wait_until("all are closed", DEADLINE, || metrics(&ka)["process_open_fds"] == before["process_open_fds"]);
    assert_eq!(agent.warned("cannot"), 0, "{}", agent.log());
}

#[test]
fn health_check_node_ports_answer_without_a_health_service() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write("here.yaml", &balanced("here", 0, 32000, Some("ka")));
    cluster.write("elsewhere.yaml", &balanced("elsewhere", 1, 32001, Some("kb")));
    let mut arguments: Vec<OsString> = vec!["--manifests".into(), cluster.manifests().into()];
    let flags = [
        "--hostname-override=ka",
        "--proxy-mode=nftables",
        "--healthz-port=0",
        "--nodeport-addresses=0.0.0.0/0",
    ];
    arguments.extend(flags.map(OsString::from));
    let _agent = Agent::start_with(&ka, arguments);
    wait_for_code(&ka, "127.0.0.1:32000", "/", Some(200));
    wait_for_code(&ka, "127.0.0.1:32001", "/", Some(503));
    assert_eq!(get(&ka, "127.0.0.1:32000", "/").unwrap().json()["serviceProxyHealthy"], true);
    assert_eq!(code(&ka, HEALTHZ, "/healthz"), None, "there is no health service");
}

#[test]
fn health_follows_the_node_and_the_first_sync() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write("cluster.yaml", &[]);
    let _agent = Agent::start(&ka, &cluster);
    let codes = || ["/healthz", "/livez", "/readyz"].map(|path| code(&ka, HEALTHZ, path).unwrap());
    // There is no Node object yet.
    wait_until("it is ready", DEADLINE, || codes() == [503, 200, 200]);

    cluster.write("node.yaml", &[node(json!([]))]);
    wait_for_code(&ka, HEALTHZ, "/healthz", Some(200));
    let reply = get(&ka, HEALTHZ, "/healthz").unwrap();
    let headers = ["Content-Type: application/json", "X-Content-Type-Options: nosniff"];
    assert!(headers.iter().all(|header| reply.headers.iter().any(|it| it == header)), "{reply:?}");
    let body = reply.json();
    assert_eq!(body["lastUpdated"], body["currentTime"]);
    assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(true), &json!(true)));
    assert_eq!(body["status"]["IPv4"]["healthy"], true);
    assert_eq!(body["ferroxy"]["ready"], true);
    assert_eq!(body["ferroxy"]["failing"], json!([]));
    assert!(body["ferroxy"]["lastApplyAgeSeconds"].is_f64() && body["ferroxy"]["sourceAgeSeconds"].is_f64());
    assert_eq!(get(&ka, HEALTHZ, "/livez").unwrap().json().get("nodeEligible"), None);

    let taint = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    cluster.write("node.yaml", &[node(taint)]);
    wait_until("the taint is seen", DEADLINE, || codes() == [503, 200, 200]);
    assert_eq!(get(&ka, HEALTHZ, "/healthz").unwrap().json()["nodeEligible"], false);
    cluster.write("node.yaml", &[node(json!([{ "key": "other", "effect": "NoSchedule" }]))]);
    wait_until("the taint is gone", DEADLINE, || codes() == [200, 200, 200]);
    assert_eq!(code(&ka, HEALTHZ, "/metrics"), Some(404));
}

#[test]
fn nothing_is_ready_before_the_first_sync() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let owned = OwnedTable::of_ferroxy(&ka);
    let agent = Agent::spawn(&ka, run_arguments(&cluster.manifests(), &cluster.config()));
    agent.wait_for("first sync failed");
    let codes = || ["/healthz", "/livez", "/readyz"].map(|path| code(&ka, HEALTHZ, path).unwrap());
    assert_eq!(codes(), [200, 200, 503]);
    let body = get(&ka, HEALTHZ, "/readyz").unwrap().json();
    assert_eq!(body["ferroxy"]["firstSyncDone"], false);
    assert_eq!(body["ferroxy"]["lastApplyAgeSeconds"], Value::Null);
    assert_eq!(body["ferroxy"]["failing"][0]["object"], "first sync");

    drop(owned);
    wait_until("it is ready", DEADLINE, || codes() == [200, 200, 200]);
    assert_eq!(get(&ka, HEALTHZ, "/readyz").unwrap().json()["ferroxy"]["failingCount"], 0);
}

#[test]
fn metrics_have_the_names_and_types_of_the_original() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write("web.yaml", &balanced("web", 0, 32000, Some("kb")));
    let _agent = Agent::start(&ka, &cluster);
    let page = get(&ka, METRICS, "/metrics").unwrap();
    assert!(page.headers.contains(&"Content-Type: text/plain; version=0.0.4; charset=utf-8".to_owned()));
    let types: [(&str, &str); 24] = [
        ("kubeproxy_conntrack_reconciler_deleted_entries_total", "counter"),
        ("kubeproxy_conntrack_reconciler_sync_duration_seconds", "histogram"),
        ("kubeproxy_network_programming_duration_seconds", "histogram"),
        ("kubernetes_feature_enabled", "gauge"),
        ("process_cpu_seconds_total", "counter"),
        ("process_open_fds", "gauge"),
        ("process_start_time_seconds", "gauge"),
        ("kubeproxy_proxy_healthz_total", "counter"),
        ("kubeproxy_proxy_livez_total", "counter"),
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", "histogram"),
        ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "histogram"),
        ("kubeproxy_sync_proxy_rules_duration_seconds", "histogram"),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "gauge"),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_total", "counter"),
        ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "gauge"),
        ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge"),
        ("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "counter"),
        ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "counter"),
        ("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "gauge"),
        ("kubeproxy_sync_proxy_rules_service_changes_pending", "gauge"),
        ("kubeproxy_sync_proxy_rules_service_changes_total", "counter"),
        ("ferroxy_drift_repairs_total", "counter"),
        ("ferroxy_kernel_bytes_total", "counter"),
        ("process_resident_memory_bytes", "gauge"),
    ];
    for (name, kind) in types {
        assert!(page.body.contains(&format!("\n# TYPE {name} {kind}\n")), "{name} in {}", page.body);
    }
    let before = metrics(&ka);
    assert_eq!(before["kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"], 1.0);
    let no_local =
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"external\"}";
    // The Service has no external address, so external traffic cannot lack a local endpoint.
    assert_eq!(before[no_local], 0.0);
    assert!(before["ferroxy_kernel_messages_total"] > 100.0 && before["ferroxy_ready"] == 1.0);

    cluster.write("web.yaml", &balanced("web", 0, 32000, Some("ka")));
    let partial = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    wait_until("the change is counted", DEADLINE, || metrics(&ka)[partial] > before[partial]);
    let after = metrics(&ka);
    // One at the start, one now.
    assert_eq!(after["kubeproxy_sync_proxy_rules_endpoint_changes_total"], 2.0);
    assert_eq!(after["kubeproxy_sync_proxy_rules_service_changes_total"], 1.0);
    assert_eq!(after["kubeproxy_sync_proxy_rules_endpoint_changes_pending"], 0.0);
    code(&ka, HEALTHZ, "/healthz");
    assert_eq!(metrics(&ka)["kubeproxy_proxy_healthz_total{code=\"200\"}"], 1.0);
    support::nft(&ka, &["flush table ip ferroxy"]);
    wait_until("the repair is counted", DEADLINE, || metrics(&ka)["ferroxy_drift_repairs_total"] == 1.0);
}

#[test]
fn the_metrics_address_has_the_pages_of_the_original() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let _agent = Agent::start(&ka, &cluster);
    let body = |path: &str| get(&ka, METRICS, path).unwrap().body;
    assert_eq!(body("/healthz"), "ok");
    assert_eq!(body("/proxyMode"), "nftables");
    let config = get(&ka, METRICS, "/configz").unwrap().json();
    assert_eq!(config["kubeproxy.config.k8s.io"]["mode"], "nftables");
    assert_eq!(config["kubeproxy.config.k8s.io"]["healthzBindAddress"], "0.0.0.0:10256");
    assert!(body("/flagz").contains("\nhostname-override=ka\n"), "{}", body("/flagz"));
    assert!(body("/flagz").contains("\nconntrack-min=131072\n"), "defaults, too: {}", body("/flagz"));
    assert!(body("/statusz").contains("Paths: /configz /flagz /healthz /metrics"), "{}", body("/statusz"));
    let accepting = |path: &str, types: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nHost: n\r\nAccept: {types}\r\nConnection: close\r\n\r\n");
        request(&ka, METRICS, &text).unwrap()
    };
    let status = accepting("/statusz", "application/json").json();
    assert_eq!((&status["mode"], &status["kind"]), (&json!("nftables"), &json!("Statusz")));
    let status = accepting("/statusz", "application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz");
    assert!(status.headers.contains(&"Content-Type: application/yaml".to_owned()), "{status:?}");
    assert!(
        status.body.contains("kind: Statusz\n") && status.body.contains("mode: nftables\n"),
        "{status:?}"
    );
    let flags = accepting("/flagz", "application/json").json();
    assert_eq!(flags["flags"]["hostname-override"], "ka");
    assert_eq!(accepting("/flagz", "image/png").code, 406);
    assert!(body("/metrics/slis").contains("kubernetes_healthcheck{name=\"proxy\",type=\"livez\"} 1\n"));
    for path in ["/", "/livez", "/debug/pprof/", "/debug/pprof/profile", "/debug/flags/v", "/metrics/"] {
        assert_eq!(code(&ka, METRICS, path), Some(404), "{path}");
    }
    let post = "POST /metrics HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let refused = request(&ka, METRICS, post).unwrap();
    assert_eq!(refused.code, 405);
    assert!(refused.headers.contains(&"Allow: GET, HEAD".to_owned()), "{refused:?}");
    let head = "HEAD /proxyMode HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n";
    assert_eq!(request(&ka, METRICS, head).unwrap().body, "");
}

#[test]
fn garbage_and_silence_hurt_nobody_else() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let agent = Agent::start(&ka, &cluster);
    // As many connections as one address may have, all silent.
    let address: SocketAddr = HEALTHZ.parse().unwrap();
    let silent: Vec<TcpStream> =
        ka.run(|| (0..32).map(|_| TcpStream::connect(address).unwrap()).collect()).unwrap();
    assert_eq!(request(&ka, HEALTHZ, "\x01\x02 this is not HTTP\r\n\r\n").unwrap().code, 400);
    let endless = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(100_000));
    assert_eq!(request(&ka, HEALTHZ, &endless).unwrap().code, 431);
    assert_eq!(code(&ka, HEALTHZ, "/healthz"), Some(200));
    // More connections than one address may have; `flood.rs` opens even more.
    let more: Vec<TcpStream> =
        ka.run(|| (0..64).map(|_| TcpStream::connect(address).unwrap()).collect()).unwrap();
    assert_eq!(code(&ka, HEALTHZ, "/healthz"), Some(200));
    // A connection that is idle after its answer is closed as well.
    let closed = ka.run(|| {
        let mut idle = TcpStream::connect(METRICS).unwrap();
        idle.set_read_timeout(Some(DEADLINE)).unwrap();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        let mut said = String::new();
        idle.read_to_string(&mut said).map(|_| said)
    });
    assert!(closed.unwrap().unwrap().ends_with("\r\n\r\nok"));
    drop((silent, more));
    assert_eq!(agent.warned("cannot"), 0, "{}", agent.log());
}

#[test]
fn an_address_that_is_taken_is_tried_again() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let squatter = ka.run(|| TcpListener::bind("0.0.0.0:10256").unwrap()).unwrap();
    let agent = Agent::start(&ka, &cluster);
    agent.wait_for("cannot serve healthz on 0.0.0.0:10256: Address already in use");
    assert_eq!(code(&ka, METRICS, "/healthz"), Some(200));
    drop(squatter);
    agent.wait_for("serving healthz on 0.0.0.0:10256");
    assert_eq!(code(&ka, HEALTHZ, "/healthz"), Some(200));
    assert_eq!(code(&ka, "[::1]:10256", "/healthz"), Some(200), "an unspecified address means both families");
}

#[test]
fn an_address_that_is_taken_is_fatal_when_asked_for() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let config = fs::read_to_string(cluster.config()).unwrap();
    fs::write(cluster.config(), format!("{config}bindAddressHardFail: true\n")).unwrap();
    let _squatter = ka.run(|| TcpListener::bind(METRICS).unwrap()).unwrap();
    let agent = Agent::spawn(&ka, run_arguments(&cluster.manifests(), &cluster.config()));
    let (status, log) = agent.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("cannot serve metrics on 127.0.0.1:10249: Address already in use"), "{log}");
}

#[test]
fn profiles_are_there_for_those_who_ask_for_them() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.answer_everywhere();
    let config = fs::read_to_string(cluster.config()).unwrap().replace("enableProfiling: false\n", "");
    fs::write(cluster.config(), format!("{config}enableProfiling: true\n")).unwrap();
    let agent = Agent::start(&ka, &cluster);
    let body = |path: &str| get(&ka, METRICS, path).unwrap().body;
    assert!(body("/debug/pprof/").contains("profile"));
    assert!(body("/debug/pprof/cmdline").contains("\0run\0"), "{:?}", body("/debug/pprof/cmdline"));
    assert!(body("/debug/pprof/heap").contains("bytes"));
    assert!(body("/debug/pprof/threads").contains(" serve "), "{}", body("/debug/pprof/threads"));
    assert!(body("/statusz").contains("/debug/pprof/profile"));
    assert_eq!(code(&ka, METRICS, "/debug/pprof/profile?seconds=x"), Some(400));
    // The agent must have work meanwhile.
    let enough = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&enough);
    let busy = ka
        .spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(METRICS).unwrap();
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").unwrap();
                stream.read_to_end(&mut Vec::new()).unwrap();
            }
        })
        .unwrap();
    let profile = || {
        let mut stream = TcpStream::connect(METRICS).unwrap();
        let ask = "GET /debug/pprof/profile?seconds=1 HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        said
    };
    // On a busy machine, the agent may hardly run while a profile is recorded.
    wait_until("the program is named in a profile", DEADLINE, || {
        let profile = ka.run(profile).unwrap();
        assert!(profile.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&profile));
        let has = |words: &[u8]| profile.windows(words.len()).any(|window| window == words);
        has(b"nanoseconds") && has(support::FERROXY.as_bytes())
    });
    enough.store(true, Ordering::Relaxed);
    busy.join().unwrap().unwrap();

    let put = |level: &str| {
        let length = level.len();
        let head = "PUT /debug/flags/v HTTP/1.1\r\nHost: n\r\nConnection: close\r\n";
        request(&ka, METRICS, &format!("{head}Content-Length: {length}\r\n\r\n{level}")).unwrap()
    };
    assert_eq!(put("loud").code, 400);
    assert_eq!((put("4").code, code(&ka, METRICS, "/debug/flags/v")), (200, Some(405)));
    // At that level, the agent logs the ports that it opens.
    cluster.write("web.yaml", &balanced("web", 0, 32000, Some("ka")));
    agent.wait_for("health-check node port 0.0.0.0:32000 of default/web is open");
    assert_eq!(code(&ka, METRICS, "/healthz"), Some(200), "the profiler's signals hurt nobody");
}
