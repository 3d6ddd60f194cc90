//! Traces of changes: a collector gets them from a real agent, and an agent without its collector keeps working.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use ferroxy_lab::{Namespace, Protocol};
use serde_json::Value;

use crate::support::web::metrics;
use crate::support::{self, Agent, Cluster, DEADLINE, Service, ferroxy, run_arguments, wait_until};

const COLLECTOR: &str = "127.0.0.1:4318";

fn start(node: &Namespace, cluster: &Cluster) -> Agent {
    let all = run_arguments(&cluster.manifests(), &cluster.config()).into_iter();
    Agent::start_with(node, all.chain(["--otlp-endpoint=http://127.0.0.1".into()]).collect::<Vec<_>>())
}

fn web(endpoints: &[&str]) -> Service {
    Service::new("web", &["10.96.0.80"]).port(Protocol::Tcp, 80, 8080).endpoints(endpoints)
}

/// Keeps the body of every request.
fn collect(node: &Namespace) -> Arc<Mutex<Vec<Value>>> {
    let listener = node.run(|| TcpListener::bind(COLLECTOR)).unwrap().unwrap();
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&bodies);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            assert!(head.starts_with("POST /v1/traces HTTP/1.0\r\n"), "{head}");
            assert!(head.contains("Content-Type: application/json"), "{head}");
            kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        }
    });
    bodies
}

/// Spans of all requests.
fn spans(bodies: &Mutex<Vec<Value>>) -> Vec<Value> {
    let bodies = bodies.lock().unwrap();
    let of = |body: &Value| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
    bodies.iter().flat_map(of).collect()
}

#[test]
fn a_change_is_a_trace() {
    let Some(node) = support::lonely_node() else { return };
    let (cluster, bodies) = (Cluster::new(), collect(&node));
    cluster.write_service(&web(&["a1"]));
    let _agent = start(&node, &cluster);
    let is_web = |span: &Value| span["attributes"].to_string().contains("\"k8s.service.name\"");
    let mut turn = 0;
    // The exporter may begin after any of these changes, so the test makes changes until a trace arrives.
    wait_until("a trace of a change", DEADLINE, || {
        turn += 1;
        cluster.write_service(&web(if turn % 2 == 0 { &["a1"] } else { &["a1", "b1"] }));
        spans(&bodies).iter().any(is_web)
    });
    let spans = spans(&bodies);
    let root = spans.iter().find(|span| is_web(span)).unwrap();
    assert_eq!((&root["name"], &root["parentSpanId"]), (&"change".into(), &"".into()));
    let parts: Vec<&str> = spans
        .iter()
        .filter(|span| span["traceId"] == root["traceId"] && span["parentSpanId"] == root["spanId"])
        .map(|span| span["name"].as_str().unwrap())
        .collect();
    assert_eq!(parts, ["resolved", "programmed"], "manifests do not say when a pod changed");
    let resource = bodies.lock().unwrap()[0]["resourceSpans"][0]["resource"].to_string();
    assert!(resource.contains("\"ferroxy\"") && resource.contains("\"ka\""), "{resource}");
    assert_eq!(metrics(&node)["ferroxy_otlp_changes_dropped_total"], 0.0);
}

#[test]
fn an_agent_without_its_collector_goes_on() {
    let Some(node) = support::lonely_node() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web(&["a1"]));
    let agent = start(&node, &cluster);
    agent.wait_for("cannot send traces to http://127.0.0.1:4318/v1/traces");
    cluster.write_service(&web(&["a1", "b1"]));
    agent.settle(&node);
    let bodies = collect(&node);
    agent.wait_for("the OpenTelemetry collector http://127.0.0.1:4318/v1/traces answers again");
    assert!(!spans(&bodies).is_empty(), "what waited in the journal is sent");
    assert_eq!(agent.said("cannot send traces"), 1, "{}", agent.log());

    let wrong = ferroxy(&node, &["run", "--otlp-endpoint=https://collector", "--manifests=x"]);
    assert_eq!((wrong.code, wrong.stderr.lines().count()), (1, 1), "{}", wrong.stderr);
    assert!(
        wrong.stderr.contains("--otlp-endpoint: ") && wrong.stderr.contains("there is no TLS"),
        "{}",
        wrong.stderr
    );
}
