//! The cluster of these tests: the Services of a small shop, some of them with problems. Makes objects and nothing else.

use serde_json::{Value, json};

use crate::support::{node, service_cidr};

/// Where endpoints are: the pods of the conformance network, and one that does not answer.
const A1: &str = "10.244.1.5";
const A2: &str = "10.244.1.6";
const B1: &str = "10.244.2.5";
const B2: &str = "10.244.2.6";

/// Namespace, name, the last numbers of the cluster IP, type, ports, and endpoints; `!` marks one that is not ready.
type Line = (&'static str, &'static str, u8, &'static str, &'static [&'static str], &'static [&'static str]);

const LINES: [Line; 24] = [
    ("auth", "oidc", 20, "ClusterIP", &["https:443"], &[A1, B1]),
    ("auth", "sessions", 21, "ClusterIP", &["redis:6379"], &[A2]),
    ("data", "kafka", 30, "ClusterIP", &["broker:9092"], &[A1, A2, B1]),
    ("data", "postgres", 31, "ClusterIP", &["sql:5432"], &[B1]),
    ("data", "redis", 32, "ClusterIP", &["redis:6379"], &[A2, B2]),
    ("default", "kubernetes", 1, "ClusterIP", &["https:443"], &["172.18.0.2"]),
    ("ingress", "nginx", 40, "LoadBalancer", &["http:80", "https:443"], &[A1, B1]),
    ("kube-system", "kube-dns", 10, "ClusterIP", &["dns:53/UDP", "dns-tcp:53", "metrics:9153"], &[A2, B2]),
    ("kube-system", "metrics-server", 11, "ClusterIP", &["https:443"], &[B2]),
    ("mail", "smtp", 50, "NodePort", &["smtp:25"], &[A2]),
    ("monitoring", "alertmanager", 60, "ClusterIP", &["web:9093"], &[B1]),
    ("monitoring", "grafana", 61, "NodePort", &["web:3000"], &[A1]),
    ("monitoring", "prometheus", 62, "ClusterIP", &["web:9090"], &[A2, B2]),
    ("payments", "fraud", 70, "ClusterIP", &["grpc:9000"], &[]),
    ("payments", "gateway", 71, "LoadBalancer", &["https:443"], &[A1, B1, B2]),
    ("payments", "ledger", 72, "ClusterIP", &["grpc:9000"], &[B1, B2]),
    ("shop", "cart", 80, "ClusterIP", &["http:80"], &[A1, A2, B1]),
    ("shop", "checkout", 81, "ClusterIP", &["http:80"], &["!10.244.1.7", "!10.244.2.7"]),
    ("shop", "images", 82, "ClusterIP", &["http:80"], &[A1, B2]),
    ("shop", "orders", 83, "ClusterIP", &["http:80"], &[A1, A2, B1, B2]),
    ("shop", "recommendations", 84, "ClusterIP", &["http:80"], &[B2, "!10.244.2.9"]),
    ("shop", "search", 85, "ClusterIP", &["http:80"], &[A2, B1]),
    ("shop", "users", 86, "ClusterIP", &["http:80"], &[A1, B1]),
    ("shop", "web", 87, "NodePort", &["http:80"], &[A1, B1, "!10.244.2.8"]),
];

pub const SERVICES: usize = LINES.len();

/// The nodes and the ranges.
pub fn frame() -> Vec<Value> {
    vec![service_cidr(), node("ka", 1), node("kb", 2)]
}

pub fn objects() -> Vec<Value> {
    LINES.iter().flat_map(|line| [service(line), slice(line, line.5)]).collect()
}

/// The slice of a Service with other endpoints.
pub fn moved(namespace: &str, name: &str, endpoints: &[&str]) -> Value {
    slice(LINES.iter().find(|line| line.0 == namespace && line.1 == name).unwrap(), endpoints)
}

/// Name, port and protocol.
fn port(text: &str) -> (&str, u16, &str) {
    let (name, rest) = text.split_once(':').unwrap();
    let (number, protocol) = rest.split_once('/').unwrap_or((rest, "TCP"));
    (name, number.parse().unwrap(), protocol)
}

fn service((namespace, name, number, kind, ports, _): &Line) -> Value {
    let mut node_port = 30000 + u16::from(*number) * 10;
    let ports: Vec<Value> = ports
        .iter()
        .map(|text| {
            let (name, port, protocol) = port(text);
            node_port += 1;
            let node_port = (*kind != "ClusterIP").then_some(node_port);
            json!({ "name": name, "port": port, "protocol": protocol, "targetPort": 8080, "nodePort": node_port })
        })
        .collect();
    let address = format!("10.96.0.{number}");
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": namespace, "name": name },
        "spec": { "type": kind, "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "ports": ports },
    });
    if *kind == "LoadBalancer" {
        service["spec"]["externalTrafficPolicy"] = json!("Local");
        service["spec"]["healthCheckNodePort"] = json!(node_port + 1);
        service["status"] =
            json!({ "loadBalancer": { "ingress": [{ "ip": format!("203.0.113.{number}") }] } });
    }
    match *name {
        "sessions" => service["spec"]["sessionAffinity"] = json!("ClientIP"),
        "gateway" => service["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]),
        "kafka" => service["spec"]["clusterIP"] = json!("None"),
        _ => {}
    }
    if *name == "kafka" {
        service["spec"]["clusterIPs"] = json!(["None"]);
    }
    service
}

fn slice((namespace, name, _, _, ports, _): &Line, endpoints: &[&str]) -> Value {
    let ports: Vec<Value> = ports
        .iter()
        .map(|text| {
            let (name, _, protocol) = port(text);
            json!({ "name": name, "port": 8080, "protocol": protocol })
        })
        .collect();
    let endpoints: Vec<Value> = endpoints
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let (address, ready) = text.strip_prefix('!').map_or((*text, true), |address| (address, false));
            let node = if address.starts_with("10.244.2.") { "kb" } else { "ka" };
            let pod = format!("{name}-5c9d7f-{}", ["x2k7p", "m4q9d", "t8w3z", "b6n5h"][index % 4]);
            json!({
                "addresses": [address], "conditions": { "ready": ready }, "nodeName": node,
                "targetRef": { "kind": "Pod", "namespace": namespace, "name": pod },
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace, "name": format!("{name}-1"),
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    })
}
