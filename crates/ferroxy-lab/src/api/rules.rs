//! Checks that reject objects: the rules of Kubernetes' validation that tests have broken, for the few kinds served
//! here. Not a complete validation: a rule is added when the real API server ([`super::ControlPlane`]) is seen to
//! reject an object.

use std::net::IpAddr;

use serde_json::Value;

use super::kind::Kind;
use super::status::Status;

/// The longest `reportingInstance`, `action` and `reason` of an Event, and the longest `note`.
const EVENT_WORD: usize = 128;
const EVENT_NOTE: usize = 1024;
/// The longest DNS name.
const DNS_NAME: usize = 253;

/// A field, and what is wrong with it.
type Cause = (&'static str, String);

/// Rules for every way of writing an object.
pub(super) fn check(kind: Kind, object: &Value) -> Result<(), Status> {
    let causes = match kind {
        Kind::Service => check_service(&object["spec"]),
        Kind::Event => check_event(object),
        Kind::Node => check_node(&object["status"]),
        Kind::EndpointSlice | Kind::ServiceCidr | Kind::Pod | Kind::Secret => Vec::new(),
    };
    if causes.is_empty() {
        return Ok(());
    }
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or_default();
    Err(Status::invalid(kind, name, &causes))
}

/// Server-side apply merges lists by a key. The key of a node's addresses is their type, so that two addresses of one
/// type are rejected. A node with an address in each family has two: its `status` must be written in another way.
pub(super) fn check_apply(kind: Kind, object: &Value) -> Result<(), Status> {
    let addresses = object["status"]["addresses"].as_array().filter(|_| kind == Kind::Node);
    let mut types: Vec<&str> = addresses.into_iter().flatten().filter_map(|it| it["type"].as_str()).collect();
    types.sort_unstable();
    match types.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Status::internal(format!(
            "failed to create typed patch object: .status.addresses: duplicate entries for key [type={:?}]",
            pair[0]
        ))),
        None => Ok(()),
    }
}

/// Two addresses of one type are fine, the same address twice is not.
fn check_node(status: &Value) -> Vec<Cause> {
    let addresses = status["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    let repeated = addresses.iter().enumerate().filter(|(index, it)| addresses[..*index].contains(it));
    repeated.map(|(_, it)| ("status.addresses", format!("{it} is a duplicate"))).collect()
}

fn check_service(spec: &Value) -> Vec<Cause> {
    let texts = |field: &str| -> Vec<&str> {
        spec[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (addresses, families) = (texts("clusterIPs"), texts("ipFamilies"));
    let policy = spec["ipFamilyPolicy"].as_str().unwrap_or_default();
    let mut causes = Vec::new();
    if (addresses.len() > 1 || families.len() > 1)
        && !["PreferDualStack", "RequireDualStack"].contains(&policy)
    {
        let why = format!("{policy:?}: two cluster IPs or families need PreferDualStack or RequireDualStack");
        causes.push(("spec.ipFamilyPolicy", why));
    }
    if let (Some(first), Some(address)) = (addresses.first(), spec["clusterIP"].as_str())
        && *first != address
    {
        causes.push(("spec.clusterIPs[0]", format!("{first:?} must be the same as clusterIP {address:?}")));
    }
    let parsed: Vec<IpAddr> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
    if let [one, other] = parsed[..]
        && one.is_ipv4() == other.is_ipv4()
    {
        causes.push(("spec.clusterIPs", format!("{addresses:?} must be of different families")));
    }
    causes
}

/// The rules of `events.k8s.io/v1`.
fn check_event(event: &Value) -> Vec<Cause> {
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let mut causes = Vec::new();
    let metadata = &event["metadata"];
    for (field, value) in
        [("metadata.name", &metadata["name"]), ("metadata.generateName", &metadata["generateName"])]
    {
        // A prefix may end in a dash, because more follows.
        let value = value.as_str().unwrap_or("ok");
        let name = if field == "metadata.name" { value } else { value.strip_suffix('-').unwrap_or(value) };
        if !is_dns_name(name) {
            causes.push((field, format!("{value:?} is not a DNS name")));
        }
    }
    for field in ["reportingController", "reportingInstance", "action", "reason", "eventTime"] {
        if text(field).is_empty() {
            causes.push((field, "required".to_owned()));
        }
    }
    for (field, longest) in [
        ("reportingInstance", EVENT_WORD),
        ("action", EVENT_WORD),
        ("reason", EVENT_WORD),
        ("note", EVENT_NOTE),
    ] {
        if text(field).len() > longest {
            causes.push((field, format!("may be {longest} bytes long")));
        }
    }
    if !["Normal", "Warning"].contains(&text("type")) {
        causes.push(("type", format!("{:?} is neither Normal nor Warning", text("type"))));
    }
    // An Event about an object without a namespace, a Node for example, is in `default`.
    let (namespace, regarding) = (&metadata["namespace"], &event["regarding"]["namespace"]);
    let regarding = regarding.as_str().unwrap_or_default();
    if regarding.is_empty() && !["default", "kube-system"].contains(&namespace.as_str().unwrap_or_default()) {
        causes.push(("regarding.namespace", format!("does not match the Event's namespace {namespace}")));
    }
    for field in
        ["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount", "deprecatedSource"]
    {
        if event.get(field).is_some() {
            causes.push((field, "must not be set".to_owned()));
        }
    }
    causes
}

/// RFC 1123: labels of lower-case letters, digits and inner dashes, separated by dots.
fn is_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= DNS_NAME && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(kind: Kind, object: &Value) -> Option<String> {
        check(kind, object).err().map(|status| status.message().to_owned())
    }

    #[test]
    fn two_cluster_ips_need_a_dual_stack_policy() {
        let service = |policy: &str| {
            json!({"metadata": {"name": "web"}, "spec": {
                "clusterIP": "10.96.0.80", "clusterIPs": ["10.96.0.80", "fd00:10:96::80"],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": policy,
            }})
        };
        assert_eq!(refused(Kind::Service, &service("PreferDualStack")), None);
        assert_eq!(refused(Kind::Service, &service("RequireDualStack")), None);
        for policy in ["", "SingleStack"] {
            let message = refused(Kind::Service, &service(policy)).unwrap();
            assert!(message.starts_with("Service \"web\" is invalid: spec.ipFamilyPolicy: "), "{message}");
        }
        let mut single = service("");
        (single["spec"]["clusterIPs"], single["spec"]["ipFamilies"]) =
            (json!(["10.96.0.80"]), json!(["IPv4"]));
        assert_eq!(refused(Kind::Service, &single), None);
        single["spec"]["clusterIP"] = json!("10.96.0.81");
        assert!(refused(Kind::Service, &single).unwrap().contains("spec.clusterIPs[0]"));
    }

    #[test]
    fn a_node_with_two_internal_addresses_cannot_be_applied() {
        let address = |address: &str| json!({"type": "InternalIP", "address": address});
        let node = |addresses: Vec<Value>| json!({"kind": "Node", "status": {"addresses": addresses}});
        check_apply(Kind::Node, &node(vec![address("172.18.0.2")])).unwrap();
        let status =
            check_apply(Kind::Node, &node(vec![address("172.18.0.2"), address("fd00::2")])).unwrap_err();
        assert_eq!(status.code, 500);
        assert!(status.message().ends_with(r#"duplicate entries for key [type="InternalIP"]"#));
    }

    #[test]
    fn a_node_has_an_address_once() {
        let node = |second: Value| {
            let first = json!({"type": "InternalIP", "address": "172.18.0.2"});
            json!({"metadata": {"name": "ka"}, "status": {"addresses": [first, second]}})
        };
        for (kind, address) in [("InternalIP", "fd00::2"), ("ExternalIP", "172.18.0.2")] {
            assert_eq!(refused(Kind::Node, &node(json!({"type": kind, "address": address}))), None);
        }
        let message =
            refused(Kind::Node, &node(json!({"type": "InternalIP", "address": "172.18.0.2"}))).unwrap();
        assert!(message.starts_with("Node \"ka\" is invalid: status.addresses: "), "{message}");
    }

    fn event() -> Value {
        json!({
            "metadata": {"name": "ka.1", "namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000000Z",
            "type": "Normal", "reason": "Starting", "action": "StartKubeProxy", "note": "",
            "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-ka",
            "regarding": {"kind": "Node", "name": "ka"},
        })
    }

    #[test]
    fn events_must_be_complete() {
        assert_eq!(refused(Kind::Event, &event()), None);
        for field in ["reportingController", "reportingInstance", "action", "reason", "eventTime", "type"] {
            let mut event = event();
            event.as_object_mut().unwrap().remove(field);
            assert!(refused(Kind::Event, &event).is_some_and(|it| it.contains(field)), "{field}");
        }
        for (field, value) in [
            ("note", json!("n".repeat(1025))),
            ("reportingInstance", json!("i".repeat(129))),
            ("type", json!("Notice")),
            ("deprecatedCount", json!(1)),
        ] {
            let mut event = event();
            event[field] = value;
            assert!(refused(Kind::Event, &event).is_some_and(|it| it.contains(field)), "{field}");
        }
    }

    #[test]
    fn the_namespace_of_an_event_is_that_of_its_object_or_the_default_one() {
        let mut wrong = event();
        wrong["metadata"]["namespace"] = json!("shop");
        assert!(refused(Kind::Event, &wrong).unwrap().contains("regarding.namespace"));
        wrong["regarding"]["namespace"] = json!("shop");
        assert_eq!(refused(Kind::Event, &wrong), None);
    }

    #[test]
    fn names_and_prefixes_of_names_are_dns_names() {
        for (prefix, fine) in [("ka-", true), ("ka.b-", true), ("ka.", false), ("Ka-", false), ("", false)] {
            let mut event = event();
            event["metadata"]["generateName"] = json!(prefix);
            assert_eq!(refused(Kind::Event, &event).is_none(), fine, "{prefix:?}");
        }
        let mut long = event();
        long["metadata"]["name"] = json!(format!("{}.1", "n".repeat(252)));
        assert!(refused(Kind::Event, &long).unwrap().contains("metadata.name"));
    }
}
