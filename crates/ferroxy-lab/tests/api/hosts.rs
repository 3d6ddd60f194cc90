//! Tests that our API server and the real one must both pass, so that ours does not deviate from it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use ferroxy_lab::api::{Access, ApiHost, Assets, ControlPlane, Kind, Login, Options, Server};
use ferroxy_lab::conformance;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::{SERVICES, STREAM};

#[test]
fn ours() {
    let options = Options { tls: true, access: Access::Token, ..Options::default() };
    let server = Server::start(options).unwrap();
    holds_of(&server, server.address());
}

#[test]
fn the_real_one() {
    let Some(assets) = Assets::require() else { return };
    let folder = tempfile::tempdir().unwrap();
    let real = ControlPlane::start(&assets, folder.path(), Ipv4Addr::LOCALHOST).unwrap();
    holds_of(&real, real.address());
}

fn holds_of(host: &dyn ApiHost, address: SocketAddr) {
    let folder = tempfile::tempdir().unwrap();
    host.kubeconfig(folder.path(), Login::TokenFile).unwrap();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let nobody = Client::at(address).with_tls(&read("ca.crt"), None).with_token("nonsense");
    assert_eq!(nobody.get(SERVICES).code, 401);
    let client = Client::at(address).with_tls(&read("ca.crt"), None).with_token(&read("token"));

    let case = conformance::case("clusterip-affinity").unwrap();
    host.load(&fs::read_to_string(case.folder.join("objects.yaml")).unwrap()).unwrap();
    objects_that_are_refused(host);
    pages_and_objects(&client);
    streaming_lists_and_watches(host, &client);
    refusals(&client);
    events(&client);
}

fn objects_that_are_refused(host: &dyn ApiHost) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "refused", "namespace": "default"},
        "spec": {
            "clusterIP": "10.96.0.98", "clusterIPs": ["10.96.0.98", "fd00:10:96::98"],
            "ports": [{"port": 80, "protocol": "TCP"}],
        },
    });
    let error = host.put(&service).unwrap_err().to_string();
    assert!(error.contains("422 ") && error.contains("spec.ipFamilyPolicy"), "{error}");

    let address = json!({"type": "InternalIP", "address": "172.18.0.9"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "refused"},
        "status": {"addresses": [address, address]},
    });
    // The real server creates the Node and refuses its status.
    let error = host.put(&node).unwrap_err().to_string();
    assert!(error.contains("422 ") && error.contains("status.addresses"), "{error}");
}

fn pages_and_objects(client: &Client) {
    let first = client.json("/api/v1/services?limit=1");
    assert_eq!(
        (&first["kind"], &first["items"][0]["metadata"]["name"]),
        (&json!("ServiceList"), &json!("kubernetes"))
    );
    assert_eq!(first["items"][0].get("kind"), None);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = client.json(&format!("/api/v1/services?limit=1&continue={token}"));
    assert_eq!(second["items"][0]["metadata"]["name"], "web");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let node = client.json("/api/v1/nodes/ka");
    assert_eq!(
        (&node["kind"], &node["status"]["addresses"][0]["address"]),
        (&json!("Node"), &json!("172.18.0.2"))
    );
    let none = client.get("/api/v1/nodes/none").expect(404);
    assert_eq!(none["message"], "nodes \"none\" not found");
}

/// Events up to the bookmark that ends the initial events, and that bookmark.
fn initial_events(stream: &mut Answer) -> (Vec<Value>, Value) {
    let mut events = Vec::new();
    loop {
        let event = stream.event();
        if event["type"] == "BOOKMARK" {
            return (events, event);
        }
        events.push(event);
    }
}

fn streaming_lists_and_watches(host: &dyn ApiHost, client: &Client) {
    let selectors = "labelSelector=%21a%2Fb&fieldSelector=spec.clusterIP%21%3DNone";
    let mut stream = client.get(&format!("{STREAM}&{selectors}"));
    let (initial, end) = initial_events(&mut stream);
    assert_eq!(initial.len(), 2);
    assert!(initial.iter().all(|event| event["type"] == "ADDED" && event["object"]["kind"] == "Service"));
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let version = end["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();

    let service = |labels: Value| {
        json!({"apiVersion": "v1", "kind": "Service",
               "metadata": {"name": "new", "namespace": "default", "labels": labels},
               "spec": {"clusterIP": "10.96.0.99", "ports": [{"port": 80, "protocol": "TCP"}]}})
    };
    let steps = |watch: &mut Answer| -> Vec<String> {
        let short = |event: Value| {
            format!(
                "{} {}",
                event["type"].as_str().unwrap(),
                event["object"]["metadata"]["name"].as_str().unwrap()
            )
        };
        (0..4).map(|_| short(watch.event())).collect()
    };
    host.put(&service(json!({}))).unwrap();
    host.put(&service(json!({"a/b": "c"}))).unwrap();
    host.put(&service(json!({}))).unwrap();
    host.delete(Kind::Service, "default", "new").unwrap();
    host.delete(Kind::Service, "default", "new").unwrap_err();
    let expected = ["ADDED new", "DELETED new", "ADDED new", "DELETED new"];
    assert_eq!(steps(&mut stream), expected);
    let again = format!("/api/v1/services?watch=1&resourceVersion={version}&{selectors}");
    assert_eq!(steps(&mut client.get(&again)), expected, "the same from the version of the bookmark");
}

fn refusals(client: &Client) {
    for (query, code) in [
        ("watch=1&sendInitialEvents=true", 422),
        ("watch=1&resourceVersionMatch=NotOlderThan", 422),
        ("resourceVersionMatch=Exact", 422),
        ("continue=nonsense", 400),
    ] {
        let status = client.get(&format!("{SERVICES}?{query}")).expect(code);
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)), "{query}");
    }
}

fn events(client: &Client) {
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "ka-"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Starting", "action": "StartKubeProxy",
        "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-ka",
        "regarding": {"kind": "Node", "name": "ka"},
    });
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    client.post(path, "application/json", &event.to_string()).expect(201);
    for (field, wrong) in [
        ("metadata", json!({"generateName": "ka."})),
        ("action", json!("")),
        ("type", json!("Notice")),
        ("reportingInstance", json!("i".repeat(129))),
        ("note", json!("n".repeat(1025))),
    ] {
        let mut refused = event.clone();
        refused[field] = wrong;
        client.post(path, "application/json", &refused.to_string()).expect(422);
    }
}
