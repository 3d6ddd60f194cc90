//! Answers in protobuf, if a client accepts it. The bytes are tested beside `protobuf`, against those of a real API
//! server.

use ferroxy_lab::api::{Fault, Injection, Kind, protobuf};
use serde_json::{Value, json};

use crate::client::Client;
use crate::{SERVICES, STREAM, four_services, service};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const BOTH: &str = "application/vnd.kubernetes.protobuf, application/json";

fn versioned(name: &str, version: u32) -> Value {
    let mut service = service(name);
    service["metadata"]["resourceVersion"] = version.to_string().into();
    service
}

fn body(object: &Value) -> Vec<u8> {
    protobuf::body("v1", "Service", &protobuf::object(Kind::Service, object))
}

#[test]
fn lists_objects_and_errors() {
    let (server, client) = four_services();
    assert_eq!(client.get(SERVICES).content_type, "application/json", "who accepts anything");
    let client = Client::of(&server).accepting(BOTH);
    let list = client.get("/api/v1/services?limit=2");
    assert_eq!((list.code, list.content_type.as_str()), (200, PROTOBUF));
    let json: Value = Client::of(&server).json("/api/v1/services?limit=2");
    let items = [versioned("a", 2), versioned("b", 3)].map(|it| protobuf::object(Kind::Service, &it));
    let message = protobuf::list(&json["metadata"], items.iter().map(Vec::as_slice));
    assert_eq!(list.bytes().unwrap(), protobuf::body("v1", "ServiceList", &message));
    let one = client.get("/api/v1/namespaces/default/services/a");
    assert_eq!(one.bytes().unwrap(), body(&versioned("a", 2)));
    let none = client.get("/api/v1/namespaces/default/services/x");
    assert_eq!((none.code, none.content_type.as_str()), (404, PROTOBUF));
    let status = Client::of(&server).get("/api/v1/namespaces/default/services/x").json();
    assert_eq!(none.bytes().unwrap(), protobuf::body("v1", "Status", &protobuf::status(&status)));
}

#[test]
fn watches_with_their_bookmarks_deletions_and_errors() {
    let (server, _) = four_services();
    let client = Client::of(&server).accepting(PROTOBUF);
    let mut watch = client.get(STREAM);
    assert_eq!(watch.content_type, "application/vnd.kubernetes.protobuf;stream=watch");
    let mut expect = |frame: Vec<u8>| assert_eq!(watch.take(frame.len()), frame);
    for (name, version) in [("a", 2), ("b", 3), ("c", 4), ("d", 5)] {
        expect(protobuf::frame("ADDED", &body(&versioned(name, version))));
    }
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    expect(protobuf::frame(
        "BOOKMARK",
        &body(&json!({"metadata": {"resourceVersion": "5", "annotations": annotations}})),
    ));
    server.delete(Kind::Service, "default", "a").unwrap();
    expect(protobuf::frame("DELETED", &body(&versioned("a", 6))));
    server.wait_for_watches(Kind::Service, 1).unwrap();
    server.inject(Kind::Service, Injection::AbsurdLength);
    expect(vec![0xff; 4]);
    server.inject(Kind::Service, Injection::Error(410));
    let gone = json!({
        "status": "Failure", "code": 410, "reason": "Expired",
        "message": "The resourceVersion for the provided watch is too old.",
    });
    expect(protobuf::frame("ERROR", &protobuf::body("v1", "Status", &protobuf::status(&gone))));
}

#[test]
fn a_server_without_protobuf() {
    let (server, _) = four_services();
    server.fault(Fault::NoProtobuf).unwrap();
    let json = Client::of(&server).accepting(BOTH).get(SERVICES);
    assert_eq!((json.code, json.content_type.as_str()), (200, "application/json"));
    let refused = Client::of(&server).accepting(PROTOBUF).get(SERVICES);
    assert_eq!((refused.code, refused.content_type.as_str()), (406, "application/json"));
    assert_eq!(refused.json()["reason"], "NotAcceptable");
    assert_eq!(Client::of(&server).accepting("application/yaml").get(SERVICES).code, 406);
    assert_eq!(server.requests().last().unwrap().accept, "application/yaml");
}
