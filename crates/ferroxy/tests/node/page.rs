//! The node's page and its API: every path of a real agent, asked by a client that reads the bytes itself.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use ferroxy_lab::{Namespace, Protocol};
use serde_json::{Value, json};

use crate::support::web::{Reply, request};
use crate::support::{self, Agent, Cluster, DEADLINE, Service, ferroxy, run_arguments, wait_until};

const PAGE: &str = "127.0.0.1:10261";
const STREAMS: usize = 16;

fn start(node: &Namespace, cluster: &Cluster, more: &[&str]) -> Agent {
    Agent::start_with(node, arguments(cluster, more))
}

fn arguments(cluster: &Cluster, more: &[&str]) -> Vec<OsString> {
    let all = run_arguments(&cluster.manifests(), &cluster.config()).into_iter();
    all.chain(["--page-address=127.0.0.1".into()]).chain(more.iter().map(OsString::from)).collect()
}

fn ask_with(node: &Namespace, path: &str, header: &str) -> Reply {
    let text = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
    request(node, PAGE, &text).unwrap_or_else(|| panic!("nobody answers {path}"))
}

fn ask(node: &Namespace, path: &str) -> Reply {
    ask_with(node, path, "")
}

/// The answer to a request that must succeed; it must be of this kind.
fn get(node: &Namespace, path: &str, kind: &str) -> Value {
    let reply = ask(node, path);
    assert_eq!(reply.code, 200, "{path}: {}", reply.body);
    let value = reply.json();
    assert_eq!((&value["apiVersion"], &value["kind"]), (&json!("ferroxy.io/v1"), &json!(kind)), "{path}");
    value
}

/// The message of a request that must fail with this code.
fn refused(node: &Namespace, path: &str, code: u16) -> String {
    let reply = ask(node, path);
    assert_eq!(reply.code, code, "{path}: {}", reply.body);
    let value = reply.json();
    assert_eq!((&value["kind"], &value["code"]), (&json!("Error"), &json!(code)), "{path}");
    value["message"].as_str().unwrap().to_owned()
}

fn web(endpoints: &[&str]) -> Service {
    Service::new("web", &["10.96.0.80"]).node_port(Protocol::Tcp, 80, 8080, 30080).endpoints(endpoints)
}

fn small_cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.write_service(&web(&["a1", "b1"]));
    cluster.write_service(&Service::new("dns", &["10.96.0.10"]).port(Protocol::Udp, 53, 53));
    cluster
}

/// A stream of events that is open.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(node: &Namespace, path: &str, header: &str) -> Events {
        let address: SocketAddr = PAGE.parse().unwrap();
        let text = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
        let stream = node.run(|| {
            let mut stream = TcpStream::connect_timeout(&address, DEADLINE).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream
        });
        Events(BufReader::new(stream.unwrap()))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the stream has ended");
        line.trim_end().to_owned()
    }

    /// The data of the next event of this name that is as it should be. Chunk sizes and the other lines are passed over.
    fn next(&mut self, name: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
        let mut current = String::new();
        loop {
            let line = self.line();
            if let Some(event) = line.strip_prefix("event: ") {
                current = event.to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ").filter(|_| current == name) {
                let value: Value = serde_json::from_str(data).unwrap();
                if is_meant(&value) {
                    return value;
                }
            }
        }
    }
}

#[test]
fn every_path_answers() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = small_cluster();
    let _agent = start(&node, &cluster, &[]);

    let status = get(&node, "/api/v1/status", "Status");
    assert_eq!((&status["node"], &status["mode"]), (&json!("ka"), &json!("nftables")), "{status}");
    assert_eq!(status["services"]["known"], 2, "{status}");
    assert_eq!(status["services"]["problems"], 1, "dns has no endpoints: {status}");
    assert_eq!((&status["inSync"], &status["healthy"]), (&json!(true), &json!(true)), "{status}");
    assert_eq!((&status["trafficCounted"], &status["sockets"]), (&json!(false), &Value::Null));

    let list = get(&node, "/api/v1/services", "ServiceList");
    let expected = json!({
        "name": "default/web", "type": "NodePort", "addresses": ["10.96.0.80"], "addressCount": 1,
        "ports": ["80/tcp"], "portCount": 1, "nodePorts": [30080], "endpoints": { "used": 2, "total": 2 },
        "probe": false, "problems": 0, "problem": null, "state": "ok", "notHandled": null,
    });
    assert_eq!(list["items"][1], expected);
    assert_eq!((&list["items"][0]["state"], &list["next"]), (&json!("problem"), &Value::Null));
    let page = get(&node, "/api/v1/services?limit=1", "ServiceList");
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next"]), (1, &json!("default/dns")));
    let page = get(&node, "/api/v1/services?limit=1&after=default%2Fdns", "ServiceList");
    assert_eq!((&page["items"][0], &page["next"]), (&expected, &Value::Null));
    let named = get(&node, "/api/v1/services?name=default/web&name=default/none", "ServiceList");
    assert_eq!(named["items"], json!([expected]));

    let traffic = get(&node, "/api/v1/traffic", "Traffic");
    assert_eq!((&traffic["counted"], &traffic["items"]), (&json!(false), &json!([])));
    let journal = get(&node, "/api/v1/journal", "Journal");
    assert_eq!(
        (&journal["items"][0]["kind"], &journal["first"]),
        (&json!("started"), &json!(1)),
        "{journal}"
    );
    assert_eq!(get(&node, "/api/v1/journal?after=1000000", "Journal")["items"], json!([]));

    assert!(refused(&node, "/api/v1/services/default/wep", 404).contains("Did you mean default/web?"));
    assert!(refused(&node, "/api/v1/nothing", 404).contains("/api/v1/nothing"));
    assert!(refused(&node, "/api/v2/status", 404).contains("/api/v2/status"));
    assert!(refused(&node, "/api/v1/services?limt=1", 400).contains("limt"));
    assert!(refused(&node, "/api/v1/services?after=a/b/c", 400).contains("NAMESPACE/NAME"));
    let many: String = (0..201).map(|i| format!("&name=s{i}")).collect();
    assert!(refused(&node, &format!("/api/v1/services?{many}"), 400).contains("more than 200"));
}

/// The command and the API share one implementation.
#[test]
fn explain_and_trace_answer_as_the_commands_do() {
    // The agent knows the addresses of its host, the commands those of the Node: here they are the same.
    let Some(network) = support::network() else { return };
    let node = network.namespace("ka").unwrap();
    for mode in ["nftables", "iptables"] {
        let cluster = Cluster::in_mode(mode);
        cluster.write_service(&web(&["a1", "b1"]));
        cluster.write_service(&Service::new("dns", &["10.96.0.10"]).port(Protocol::Udp, 53, 53));
        let agent = start(node, &cluster, &[]);
        let explained = ferroxy(node, &cluster.command(&["explain", "--output=json", "default/web"])).json();
        let mut asked = get(node, "/api/v1/services/default/web", "Service");
        assert_eq!(asked["programmed"], "yes, the kernel has acknowledged all of it");
        asked["programmed"] = explained["programmed"].clone();
        assert_eq!(asked, explained);

        for (from, to) in [
            ("10.244.1.5", "10.96.0.80:80"),
            ("10.244.1.5", "default/web:80"),
            ("192.0.2.1", "172.18.0.2:30080"),
            ("172.18.0.2", "10.96.0.80:80"),
            ("10.244.1.5", "10.96.0.80:81"),
            ("10.244.1.5", "10.96.0.10:53/udp"),
            ("10.244.1.5", "10.96.0.99:80"),
            ("10.244.1.5", "10.244.2.5:8080"),
        ] {
            let done = ferroxy(node, &cluster.command(&["trace", "--output=json", from, to]));
            let path = format!("/api/v1/trace?from={from}&to={to}");
            assert_eq!(get(node, &path, "Trace"), done.json(), "{mode}: {from} to {to}");
        }
        let done = ferroxy(node, &cluster.command(&["trace", "10.244.1.5", "10.96.0.80"]));
        let message = refused(node, "/api/v1/trace?from=10.244.1.5&to=10.96.0.80", 400);
        assert_eq!(done.stderr.lines().last(), Some(format!("ferroxy: {message}").as_str()));
        assert_eq!(refused(node, "/api/v1/trace?to=x", 400), "from: the parameter is missing");
        agent.terminate();
        ferroxy(node, &["cleanup"]);
    }
}

#[test]
fn a_change_is_seen_as_an_event() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = small_cluster();
    let _agent = start(&node, &cluster, &[]);
    let mut events = Events::open(&node, "/api/v1/events", "");
    assert_eq!(events.next("status", |_| true)["kind"], "Status");
    cluster.write_service(&web(&["a1", "a2", "b1"]));
    let is_web = |entry: &Value| entry["service"] == "default/web";
    let entry = events.next("journal", is_web);
    assert_eq!((&entry["kind"], &entry["text"]), (&json!("changed"), &json!("2 → 3 endpoints")), "{entry}");
    assert_eq!((&entry["endpoints"], &entry["frontends"]), (&json!([2, 3]), &json!([2, 2])), "{entry}");
    assert!(entry["operations"].as_u64().unwrap() > 0 && entry["tookSeconds"].is_number(), "{entry}");
    cluster.remove("web.yaml");
    let gone = events.next("journal", is_web);
    assert_eq!((&gone["kind"], &gone["endpoints"]), (&json!("removed"), &json!([3, 0])), "{gone}");
    events.next("status", |status| status["services"]["known"] == 1);

    // A client that reconnects gets the entries that it missed, or a message that entries are lost.
    let number = entry["number"].as_u64().unwrap();
    let mut again = Events::open(&node, "/api/v1/events", &format!("Last-Event-ID: {number}\r\n"));
    assert_eq!(again.next("journal", |_| true), gone);
    let mut stranger = Events::open(&node, "/api/v1/events?after=999999", "");
    assert_eq!(stranger.next("lost", |_| true), json!({ "first": 1 }));
    assert_eq!(stranger.next("journal", |_| true)["number"], 1);
}

#[test]
fn streams_are_limited_and_free_again() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = small_cluster();
    let _agent = start(&node, &cluster, &[]);
    let mut streams: Vec<Events> = (0..STREAMS).map(|_| Events::open(&node, "/api/v1/events", "")).collect();
    for stream in &mut streams {
        stream.next("status", |_| true);
    }
    assert!(refused(&node, "/api/v1/events", 503).contains("16 streams"));
    assert!(ask(&node, "/api/v1/events").headers.contains(&"Retry-After: 1".to_owned()));
    streams.pop();
    wait_until("a stream is free", DEADLINE, || {
        let head = "HEAD /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        request(&node, PAGE, head).unwrap().code == 200
    });
}

/// Pages of at most 1,000 Services, which together list every Service once.
#[test]
fn ten_thousand_services_come_in_pages() {
    const MANY: usize = 10_000;
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    let service = |number: usize| {
        let address = format!("10.96.{}.{}", 1 + number / 250, 1 + number % 250);
        let service = Service::new(&format!("s{number:05}"), &[&address]).port(Protocol::Tcp, 80, 8080);
        service.endpoints(if number.is_multiple_of(10) { &[] } else { &["a1"] }).objects()
    };
    cluster.write("many.yaml", &(0..MANY).flat_map(service).collect::<Vec<_>>());
    let _agent = start(&node, &cluster, &[]);
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = get(&node, &format!("/api/v1/services?limit=1000&after={after}"), "ServiceList");
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 1000);
        names.extend(items.iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    let expected: Vec<String> = (0..MANY).map(|number| format!("default/s{number:05}")).collect();
    assert_eq!(names, expected);
    let trace = get(&node, "/api/v1/trace?from=10.244.1.5&to=default/s09999:80", "Trace");
    assert_eq!(trace["verdict"], "endpoints");
    wait_until("all Services are looked at", DEADLINE, || {
        get(&node, "/api/v1/status", "Status")["services"]["problems"] == MANY / 10
    });
}

/// `--manifests` reads the objects that `record` stores: `explain` gives the same result offline.
#[test]
fn objects_are_manifests() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = small_cluster();
    cluster.write_service(
        &Service::new("dual", &["10.96.0.81", "fd00:10:96::81"])
            .port(Protocol::Tcp, 80, 8080)
            .endpoints(&["a1", "b2"])
            .affinity(600),
    );
    let _agent = start(&node, &cluster, &[]);
    let (mut objects, mut after) = (Vec::new(), String::new());
    loop {
        let page = get(&node, &format!("/api/v1/objects?limit=1&after={after}"), "ObjectList");
        objects.extend(page["items"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    let copy = Cluster::new();
    copy.remove("cluster.yaml");
    copy.write("objects.yaml", &objects);
    for name in ["default/web", "default/dns", "default/dual"] {
        let words = ["explain", "--output=json", name];
        let explained = |cluster: &Cluster| ferroxy(&node, &cluster.command(&words)).json();
        assert_eq!(explained(&copy), explained(&cluster), "{name}");
    }
    let rendered = |cluster: &Cluster| ferroxy(&node, &cluster.command(&["render"])).stdout;
    assert_eq!(rendered(&copy), rendered(&cluster));
}

#[test]
fn traffic_is_counted_for_services_and_endpoints() {
    let Some(network) = support::network() else { return };
    let node = network.namespace("ka").unwrap();
    let cluster = small_cluster();
    let _agent = start(node, &cluster, &["--traffic-metrics"]);
    support::pod_from(&network, "a2", Protocol::Tcp, "10.96.0.80:80");
    let count = |path: &str| get(node, path, "Traffic");
    wait_until("the connection is counted", DEADLINE, || {
        count("/api/v1/traffic")["items"][0]["connections"] == 1
    });
    let traffic = count("/api/v1/traffic?name=default/web");
    assert_eq!(traffic["items"][0]["service"], "default/web", "{traffic}");
    assert_eq!(traffic["endpoints"][0]["connections"], 1, "{traffic}");
    for number in ["packets", "bytes", "replyPackets", "replyBytes"] {
        assert!(traffic["items"][0][number].as_u64().unwrap() > 0, "{traffic}");
    }
    assert_eq!(count("/api/v1/traffic")["endpoints"], json!([]));
    assert_eq!(count("/api/v1/traffic?name=default/dns")["items"], json!([]));
    assert_eq!(get(node, "/api/v1/status", "Status")["trafficCounted"], true);
}

#[test]
fn files_and_answers_have_the_headers_of_a_careful_server() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = small_cluster();
    let _agent = start(&node, &cluster, &[]);
    for (path, caching) in
        [("/", "no-cache"), ("/page.js", "no-cache"), ("/api/v1/status", "no-store"), ("/x", "no-store")]
    {
        let reply = ask(&node, path);
        let has = |header: &str| reply.headers.iter().any(|it| it.starts_with(header));
        for header in [
            "Content-Security-Policy: default-src 'none'; script-src 'self';",
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
            &format!("Cache-Control: {caching}"),
        ] {
            assert!(has(header), "{path}: {header} in {reply:?}");
        }
    }
    let index = ask(&node, "/");
    assert!(index.body.contains("<title>Ferroxy"), "{index:?}");
    let tag = index.headers.iter().find_map(|it| it.strip_prefix("Etag: ")).unwrap().to_owned();
    let again = ask_with(&node, "/index.html", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!((again.code, again.body.as_str()), (304, ""));
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let text =
            format!("{method} /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert_eq!(request(&node, PAGE, &text).unwrap().code, 405, "{method}");
    }
    let rebound = "GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(request(&node, PAGE, rebound).unwrap().code, 403);
    assert_eq!(ask_with(&node, "/api/v1/status", "Origin: http://evil.example\r\n").code, 403);
}

#[test]
fn beyond_loopback_a_token_is_needed() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = small_cluster();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let token = format!("--page-token-file={}", file.display());
    let everywhere = "--page-address=0.0.0.0:10261";
    let one_line = |more: &[&str]| {
        let all: Vec<OsString> =
            [OsString::from("run")].into_iter().chain(arguments(&cluster, more)).collect();
        let done = ferroxy(&node, &all);
        assert_eq!(done.code, 1, "{done:?}");
        let lines: Vec<&str> = done.stderr.lines().filter(|it| it.starts_with("ferroxy: ")).collect();
        let [line] = lines[..] else { panic!("{done:?}") };
        line.to_owned()
    };
    let reason = "0.0.0.0:10261 is reachable from other hosts: set pageTokenFile (--page-token-file)";
    assert_eq!(one_line(&[everywhere]), format!("ferroxy: --page-address: {reason}"));
    assert!(one_line(&[everywhere, &token]).contains("pageTokenFile: cannot read"));
    fs::write(&file, "short").unwrap();
    assert!(one_line(&[everywhere, &token]).contains("must have 16 to 512"));

    fs::write(&file, "0123456789abcdef\n").unwrap();
    let _agent = start(&node, &cluster, &[everywhere, &token]);
    let code = |header: &str| ask_with(&node, "/api/v1/status", header).code;
    assert_eq!((code(""), ask(&node, "/").code), (401, 200), "the files tell nothing");
    assert_eq!(code("X-Ferroxy-Token: 0123456789abcdef\r\n"), 200);
    assert_eq!(code("Authorization: Bearer 0123456789abcdef\r\n"), 200);
    assert_eq!(code("X-Ferroxy-Token: 0123456789abcdeF\r\n"), 401);
    fs::write(&file, "fedcba9876543210").unwrap();
    wait_until("the new token is known", DEADLINE, || code("X-Ferroxy-Token: fedcba9876543210\r\n") == 200);
    assert_eq!(code("X-Ferroxy-Token: 0123456789abcdef\r\n"), 401);
}

#[test]
fn without_an_address_there_is_no_page() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = small_cluster();
    let _agent = Agent::start(&node, &cluster);
    assert_eq!(request(&node, PAGE, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), None);
}
