//! Tests of `decode.rs`: both encodings of the same answer decode alike, those of a real API server and random ones.

use std::fs;
use std::path::Path;

use ferroxy_lab::api::{self as lab, protobuf as encode};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::kube::framer::Framer;
use crate::wire::room::MOST_ENTRIES;

const KINDS: [(Kind, lab::Kind); 4] = [
    (Kind::Node, lab::Kind::Node),
    (Kind::ServiceCidr, lab::Kind::ServiceCidr),
    (Kind::Service, lab::Kind::Service),
    (Kind::Slice, lab::Kind::EndpointSlice),
];

/// A file of `conformance/protobuf`.
fn recorded(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/protobuf").join(name)).unwrap()
}

fn lines(encoding: Encoding, kind: Kind, stream: &[u8]) -> Vec<String> {
    let mut framer = Framer::new(encoding);
    framer.push(stream);
    let mut lines = Vec::new();
    while let Some(event) = framer.next_event().unwrap() {
        lines.push(format!("{:?}", line(encoding, kind, event).unwrap()));
    }
    assert!(!framer.is_amid_event());
    lines
}

fn listed(encoding: Encoding, kind: Kind, body: &[u8]) -> (Vec<String>, PageEnd) {
    let mut items = Vec::new();
    let end = page(encoding, kind, body, &mut |item| items.push(format!("{item:?}"))).unwrap();
    (items, end)
}

#[test]
fn recorded_lists_are_the_same_in_both_encodings() {
    for (kind, of) in KINDS {
        let resource = of.resource();
        let protobuf = listed(Encoding::Protobuf, kind, &recorded(&format!("{resource}.list.pb")));
        assert_eq!(protobuf, listed(Encoding::Json, kind, &recorded(&format!("{resource}.list.json"))));
        assert!(!protobuf.0.is_empty() && protobuf.0.iter().all(|item| item.contains("Object(")));
        assert!(!protobuf.1.resource_version.is_empty() && protobuf.1.r#continue.is_empty());
        let first = listed(Encoding::Protobuf, kind, &recorded(&format!("{resource}.page.pb")));
        assert_eq!(first.0, protobuf.0[..first.0.len()]);
        assert_eq!(first.1.r#continue.is_empty(), first.0.len() == protobuf.0.len(), "{resource}");
    }
}

#[test]
fn recorded_watches_are_the_same_in_both_encodings() {
    let watches = KINDS.map(|(kind, of)| (kind, of.resource()));
    for (kind, name) in watches.into_iter().chain([(Kind::Service, "history")]) {
        let protobuf = lines(Encoding::Protobuf, kind, &recorded(&format!("{name}.watch.pb")));
        assert_eq!(protobuf, lines(Encoding::Json, kind, &recorded(&format!("{name}.watch.json"))));
        assert!(protobuf.len() > 1, "{name}");
    }
    let services = lines(Encoding::Protobuf, Kind::Service, &recorded("services.watch.pb"));
    assert_eq!(services.iter().filter(|it| it.contains("ends_list: true")).count(), 1);
    assert!(services.iter().any(|it| it.starts_with("Deleted(")));
}

#[test]
fn recorded_errors_are_the_same_in_both_encodings() {
    for (name, code) in [("absent", 404), ("unauthorized", 401)] {
        let protobuf = status(code, &recorded(&format!("{name}.pb")));
        assert_eq!(
            format!("{protobuf:?}"),
            format!("{:?}", status(code, &recorded(&format!("{name}.json"))))
        );
        assert!(!protobuf.message.is_empty() && !protobuf.reason.is_empty());
    }
}

#[test]
fn errors_with_and_without_a_status() {
    assert_eq!(status(422, br#"{"kind":"Status","code":422,"message":"no"}"#).message, "no");
    let plain = status(503, b"upstream\n  down");
    assert_eq!((plain.code, plain.message.as_str()), (503, "upstream down"));
    assert_eq!(status(503, b"k8s\0\xff").code, 503);
}

/// An event of a watch, without its length.
fn frame(event: &str, kind: lab::Kind, message: &[u8]) -> Vec<u8> {
    encode::frame(event, &encode::body(kind.api_version(), kind.name(), message)).split_off(4)
}

fn read(frame: &[u8]) -> Result<Line, Unreadable> {
    line(Encoding::Protobuf, Kind::Service, frame)
}

#[test]
fn errors_and_unknown_events_in_a_watch() {
    let gone = encode::status(&json!({"code": 410, "reason": "Expired", "message": "too old"}));
    let error = encode::frame("ERROR", &encode::body("v1", "Status", &gone)).split_off(4);
    let Line::Error(status) = read(&error).unwrap() else { panic!() };
    assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (410, "Expired", "too old"));
    assert!(matches!(read(&frame("NEW", lab::Kind::Service, b"")), Ok(Line::Unknown)));
    let bookmark = encode::object(lab::Kind::Service, &json!({"metadata": {"resourceVersion": "9"}}));
    let Line::Bookmark(bookmark) = read(&frame("BOOKMARK", lab::Kind::Service, &bookmark)).unwrap() else {
        panic!()
    };
    assert_eq!((bookmark.version.as_deref(), bookmark.ends_list), (Some("9"), false));
}

#[test]
fn a_bad_object_is_not_an_error_but_a_bad_frame_is() {
    let changed = |body: &[u8]| match read(&encode::frame("ADDED", body)[4..]) {
        Ok(Line::Changed(Item { content: Content::Unusable(why), version: None })) => why,
        other => panic!("{other:?}"),
    };
    let service = encode::object(lab::Kind::Service, &json!({"metadata": {"name": "a"}}));
    assert_eq!(changed(&encode::body("v1", "Node", &service)), "it is of another kind");
    assert_eq!(changed(&encode::body("v1", "Service", b"\x0a\x7fx")), "it is not valid protobuf");
    assert_eq!(changed(&encode::body("v1", "Service", b"")), "it has no name");
    assert_eq!(changed(b"k9s\0"), "it is not valid protobuf");
    assert_eq!(changed(br#"{"metadata":{"name":"a"}}"#), "it is not valid protobuf");
    for wrong in [&b""[..], b"\x0a", b"\x0a\x05ADDED", b"\x12\x00", b"\x0a\x05ADDED\x12\x7f"] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
    for event in ["ERROR", "BOOKMARK"] {
        let other = frame(event, lab::Kind::Node, &service);
        assert!(matches!(read(&other), Err(Unreadable::Protobuf(Malformed::Kind))), "{event}");
    }
}

#[test]
fn a_list_of_another_kind_or_without_metadata_is_refused_and_a_bad_item_is_not() {
    let page = |body: &[u8]| {
        let mut items = 0;
        super::page(Encoding::Protobuf, Kind::Service, body, &mut |_| items += 1).map(|_| items)
    };
    let good = encode::object(lab::Kind::Service, &json!({"metadata": {"name": "a"}}));
    let list = encode::list(&json!({"resourceVersion": "5"}), [&good[..], b"\xff", &good]);
    assert_eq!(page(&encode::body("v1", "ServiceList", &list)).unwrap(), 3);
    assert!(page(&encode::body("v1", "NodeList", &list)).is_err());
    assert!(page(&encode::body("v1", "ServiceList", b"")).is_err());
    assert!(page(&list).is_err(), "no envelope");
    assert!(page(b"{}").is_err());
}

#[test]
fn tokens_versions_and_errors_of_the_server_are_kept_whole() {
    let long = "a".repeat(1000);
    let end = json!({"resourceVersion": long, "continue": long});
    let list = encode::body("v1", "ServiceList", &encode::list(&end, [&b""[..]; 0]));
    let protobuf = listed(Encoding::Protobuf, Kind::Service, &list).1;
    assert_eq!((protobuf.resource_version.as_str(), protobuf.r#continue.as_str()), (&*long, &*long));
    let json = json!({"metadata": end, "items": []}).to_string();
    assert_eq!(protobuf, listed(Encoding::Json, Kind::Service, json.as_bytes()).1);
    let bookmark = encode::object(lab::Kind::Service, &json!({"metadata": {"resourceVersion": long}}));
    let Line::Bookmark(bookmark) = read(&frame("BOOKMARK", lab::Kind::Service, &bookmark)).unwrap() else {
        panic!()
    };
    assert_eq!(bookmark.version.as_deref(), Some(&*long));
    // The end of a message may be significant, so that it is kept whole; Display cuts it.
    let error = status(500, &encode::body("v1", "Status", &encode::status(&json!({"message": long}))));
    assert_eq!(error.message, long);
    assert!(error.to_string().len() < 300);
}

#[test]
fn lists_in_an_object_are_bounded() {
    // Two bytes of a message for an empty endpoint.
    let mut message = encode::object(lab::Kind::EndpointSlice, &json!({"metadata": {"name": "a"}}));
    message.extend_from_slice(&b"\x12\x00".repeat(200_001));
    let frame = frame("ADDED", lab::Kind::EndpointSlice, &message);
    let Ok(Line::Changed(item)) = line(Encoding::Protobuf, Kind::Slice, &frame) else { panic!() };
    assert!(matches!(item.content, Content::TooLong(key) if key.name == "a"));
}

/// The bound includes lists of lists and labels. The next object has a bound of its own.
#[test]
fn lists_in_an_object_are_bounded_in_json() {
    let object = |metadata: String, endpoints: String| {
        let text =
            format!(r#"{{"type":"ADDED","object":{{"metadata":{metadata},"endpoints":{endpoints}}}}}"#);
        let Ok(Line::Changed(item)) = line(Encoding::Json, Kind::Slice, text.as_bytes()) else { panic!() };
        item.content
    };
    let list = |entry: &str, count: usize| format!("[{}]", vec![entry; count].join(","));
    let name = || r#"{"name":"a"}"#.to_owned();
    let labels: Vec<String> = (0..=MOST_ENTRIES).map(|number| format!(r#""l{number}":"""#)).collect();
    let many_labels = format!(r#"{{"name":"a","labels":{{{}}}}}"#, labels.join(","));
    let nested = |addresses| list(&format!(r#"{{"addresses":{}}}"#, list(r#""""#, addresses)), 1_000);
    for (metadata, endpoints) in
        [(name(), list("{}", MOST_ENTRIES + 1)), (name(), nested(200)), (many_labels, list("{}", 0))]
    {
        assert!(matches!(object(metadata, endpoints), Content::TooLong(key) if key.name == "a"));
        // 1,000 endpoints, and 199 entries in each.
        assert!(matches!(object(name(), nested(199)), Content::Object(_, _)), "as many as fit");
    }
}

/// Text as tenants write it.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![6 => "[a-z0-9.:/-]{0,12}", 2 => ".{0,6}", 2 => Just(String::new()), 1 => "[aé東]{80,300}"]
}

/// Where Go omits an empty value in JSON, which it writes in protobuf.
fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![0..=65_535_i32, any::<i32>()]
}

/// An object with the fields that are there.
fn present(fields: Vec<(&str, Option<Value>)>) -> Value {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect())
}

fn some<T: Into<Value>>(value: Option<T>) -> Option<Value> {
    value.map(Into::into)
}

fn label_key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("kubernetes.io/service-name".to_owned()),
        Just("service.kubernetes.io/service-proxy-name".to_owned()),
        Just("topology.kubernetes.io/zone".to_owned()),
        text(),
    ]
}

fn annotation() -> impl Strategy<Value = (String, String)> {
    let time = "endpoints.kubernetes.io/last-change-trigger-time".to_owned();
    prop_oneof![
        (Just(time.clone()), Just("2024-02-29T12:00:00.123456789Z".to_owned())),
        (Just(time), text()),
        ("ferroxy.io/[a-z]{1,3}", "[aé]{0,300}"),
        ("ferroxy.io/[a-z]{240,250}", text()),
        (text(), text()),
    ]
}

fn metadata() -> impl Strategy<Value = Value> {
    let headless = prop_oneof![9 => Just(None), 1 => Just(Some("service.kubernetes.io/headless"))];
    let labels = (btree_map(label_key(), text(), 0..4), headless);
    let annotations = vec(annotation(), 0..24);
    let time = || {
        of(prop_oneof![
            Just("1970-01-01T00:00:00Z"),
            Just("2026-11-16T13:39:46Z"),
            Just("0001-01-02T00:00:00Z")
        ])
    };
    let fields = (text(), text(), of("[0-9]{1,9}|[0-9]{250,300}"), labels, annotations, time(), time());
    fields.prop_map(|(name, namespace, version, (mut labels, headless), annotations, created, deleted)| {
        labels.extend(headless.map(|key| (key.to_owned(), String::new())));
        let annotations: serde_json::Map<String, Value> =
            annotations.into_iter().map(|(key, value)| (key, value.into())).collect();
        present(vec![
            ("name", Some(name.into())),
            ("namespace", Some(namespace.into())),
            ("resourceVersion", some(version)),
            ("labels", Some(json!(labels))),
            ("annotations", Some(annotations.into())),
            ("creationTimestamp", some(created)),
            ("deletionTimestamp", some(deleted)),
            ("managedFields", Some(json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}]))),
        ])
    })
}

fn service() -> impl Strategy<Value = Value> {
    let target = prop_oneof![number().prop_map(Value::from), text().prop_map(Value::from)];
    let port = (text(), text(), number(), of(number()), of(target)).prop_map(
        |(name, protocol, port, node, target)| {
            present(vec![
                ("name", Some(name.into())),
                ("protocol", Some(protocol.into())),
                ("port", Some(port.into())),
                ("nodePort", some(node)),
                ("targetPort", target),
            ])
        },
    );
    let ingress = (text(), of(text()))
        .prop_map(|(ip, mode)| present(vec![("ip", Some(ip.into())), ("ipMode", some(mode))]));
    let affinity = of(of(of(number()))).prop_map(|config| {
        config.map(|client| json!({"clientIP": client.map(|seconds| json!({"timeoutSeconds": seconds}))}))
    });
    let lists = (texts(), texts(), texts(), texts());
    let policies = (text(), text(), of(text()), text());
    let fields =
        (metadata(), vec(port, 0..4), vec(ingress, 0..3), affinity, lists, policies, text(), of(number()));
    fields.prop_map(|(metadata, ports, ingress, affinity, lists, policies, cluster_ip, health)| {
        let spec = present(vec![
            ("ports", Some(ports.into())),
            ("clusterIP", Some(cluster_ip.into())),
            ("clusterIPs", Some(lists.0.into())),
            ("ipFamilies", Some(lists.1.into())),
            ("externalIPs", Some(lists.2.into())),
            ("loadBalancerSourceRanges", Some(lists.3.into())),
            ("type", Some(policies.0.into())),
            ("sessionAffinity", Some(policies.1.into())),
            ("internalTrafficPolicy", some(policies.2)),
            ("externalTrafficPolicy", Some(policies.3.into())),
            ("healthCheckNodePort", some(health)),
            ("sessionAffinityConfig", affinity),
            ("selector", Some(json!({"app": "web"}))),
        ]);
        json!({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}})
    })
}

fn slice() -> impl Strategy<Value = Value> {
    let port = (of(text()), of(text()), of(number())).prop_map(|(name, protocol, port)| {
        present(vec![("name", some(name)), ("protocol", some(protocol)), ("port", some(port))])
    });
    let conditions = (of(any::<bool>()), of(any::<bool>()), of(any::<bool>())).prop_map(
        |(ready, serving, terminating)| {
            present(vec![
                ("ready", some(ready)),
                ("serving", some(serving)),
                ("terminating", some(terminating)),
            ])
        },
    );
    let named = |names: Vec<String>| Value::from_iter(names.into_iter().map(|name| json!({"name": name})));
    let hints = of((texts(), texts())).prop_map(move |hints| {
        hints.map(|(zones, nodes)| json!({"forZones": named(zones), "forNodes": named(nodes)}))
    });
    let endpoint = (texts(), conditions, of(text()), of(text()), hints, of(of("[a-z]{1,8}")));
    let endpoint = endpoint.prop_map(|(addresses, conditions, node, zone, hints, target)| {
        present(vec![
            ("addresses", Some(addresses.into())),
            ("conditions", Some(conditions)),
            ("nodeName", some(node)),
            ("zone", some(zone)),
            ("hints", hints),
            (
                "targetRef",
                target.map(|name| present(vec![("kind", Some("Pod".into())), ("name", some(name))])),
            ),
        ])
    });
    (metadata(), text(), vec(port, 0..4), vec(endpoint, 0..5)).prop_map(|(metadata, address_type, ports, endpoints)| {
        json!({"metadata": metadata, "addressType": address_type, "ports": ports, "endpoints": endpoints})
    })
}

fn node() -> impl Strategy<Value = Value> {
    let address = (text(), text()).prop_map(|(kind, address)| json!({"type": kind, "address": address}));
    let taint = text().prop_map(|key| json!({"key": key, "effect": "NoSchedule"}));
    (metadata(), text(), texts(), vec(taint, 0..3), vec(address, 0..4)).prop_map(
        |(metadata, cidr, cidrs, taints, addresses)| {
            let spec = json!({"podCIDR": cidr, "podCIDRs": cidrs, "taints": taints});
            json!({"metadata": metadata, "spec": spec, "status": {"addresses": addresses}})
        },
    )
}

fn service_cidr() -> impl Strategy<Value = Value> {
    (metadata(), texts())
        .prop_map(|(metadata, cidrs)| json!({"metadata": metadata, "spec": {"cidrs": cidrs}}))
}

fn object() -> impl Strategy<Value = (usize, Value)> {
    prop_oneof![
        node().prop_map(|it| (0, it)),
        service_cidr().prop_map(|it| (1, it)),
        service().prop_map(|it| (2, it)),
        slice().prop_map(|it| (3, it)),
    ]
}

proptest! {
    /// Also with unknown fields.
    #[test]
    fn random_objects_decode_alike(
        (index, object) in object(),
        event in prop_oneof![Just("ADDED"), Just("MODIFIED"), Just("DELETED")],
        unknown in prop_oneof![Just(&b""[..]), Just(&b"\xfa\x7f\x03abc"[..]), Just(&b"\xf8\x7f\x01\xfd\x7f1234"[..])],
    ) {
        let (kind, of) = KINDS[index];
        let json = json!({"type": event, "object": object}).to_string();
        let message = [&encode::object(of, &object), unknown].concat();
        let json = line(Encoding::Json, kind, json.as_bytes()).unwrap();
        let protobuf = line(Encoding::Protobuf, kind, &frame(event, of, &message)).unwrap();
        prop_assert_eq!(format!("{:?}", protobuf), format!("{:?}", json));
    }

    /// A truncated frame is refused. A frame with one changed byte is decoded to something, or refused.
    #[test]
    fn broken_frames_do_no_harm((index, object) in object(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let (kind, of) = KINDS[index];
        let mut frame = frame("ADDED", of, &encode::object(of, &object));
        let at = at.index(frame.len());
        prop_assert!(line(Encoding::Protobuf, kind, &frame[..at]).is_err(), "the frame says how long its parts are");
        frame[at] = byte;
        let _ = line(Encoding::Protobuf, kind, &frame);
    }
}
