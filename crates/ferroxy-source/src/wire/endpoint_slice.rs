//! `discovery.k8s.io/v1` EndpointSlice: the fields that a proxy reads.

use ferroxy_core::event;
use serde::Deserialize;

use super::field::{Field, Notes, mappings};
use super::metadata::{Identity, Metadata};
use super::{Decoded, Wire};
use crate::object::{Key, Kind, Object};

pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// kube-proxy does not watch slices with this label, whatever its value.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EndpointSlice {
    metadata: Field<Metadata>,
    address_type: Field<String>,
    ports: Field<Vec<Field<Port>>>,
    endpoints: Field<Vec<Field<Endpoint>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Field<String>,
    protocol: Field<String>,
    port: Field<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    addresses: Field<Vec<Field<String>>>,
    conditions: Field<Conditions>,
    node_name: Field<String>,
    zone: Field<String>,
    hints: Field<Hints>,
    target_ref: Field<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Field<bool>,
    serving: Field<bool>,
    terminating: Field<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    for_zones: Field<Vec<Field<Named>>>,
    for_nodes: Field<Vec<Field<Named>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Field<String>,
}

mappings!(Port, Endpoint, Conditions, Hints, Named);

impl Wire for EndpointSlice {
    fn metadata(&mut self) -> &mut Field<Metadata> {
        &mut self.metadata
    }

    fn read(self, notes: &mut Notes) -> Decoded {
        let Some(mut identity) = Identity::read(self.metadata, notes) else { return Decoded::Nameless };
        if identity.label(HEADLESS, notes).is_some() {
            let Identity { namespace, name, .. } = identity;
            return Decoded::LeftOut(Key { kind: Kind::Slice, namespace, name });
        }
        let ports = self.ports.entries(format_args!("ports"), notes);
        let endpoints = self.endpoints.entries(format_args!("endpoints"), notes);
        Decoded::Object(Object::slice(event::EndpointSlice {
            service: identity.label(SERVICE_NAME, notes),
            last_change: identity.last_change(notes),
            address_type: self.address_type.take(format_args!("addressType"), notes).unwrap_or_default(),
            ports: ports.into_iter().map(|(i, port)| port.read(i, notes)).collect(),
            endpoints: endpoints.into_iter().map(|(i, endpoint)| endpoint.read(i, notes)).collect(),
            namespace: identity.namespace,
            name: identity.name,
        }))
    }
}

impl Port {
    fn read(self, i: usize, notes: &mut Notes) -> event::SlicePort {
        let at = format_args!("ports[{i}]");
        event::SlicePort {
            name: self.name.take(format_args!("{at}.name"), notes),
            protocol: self.protocol.take(format_args!("{at}.protocol"), notes).unwrap_or_default(),
            port: self.port.take(format_args!("{at}.port"), notes),
        }
    }
}

impl Endpoint {
    fn read(self, i: usize, notes: &mut Notes) -> event::SliceEndpoint {
        let at = format_args!("endpoints[{i}]");
        let conditions = self.conditions.take(format_args!("{at}.conditions"), notes).unwrap_or_default();
        let hints = self.hints.take(format_args!("{at}.hints"), notes).unwrap_or_default();
        let target = self.target_ref.take(format_args!("{at}.targetRef"), notes).unwrap_or_default();
        event::SliceEndpoint {
            addresses: self.addresses.texts(format_args!("{at}.addresses"), notes),
            ready: conditions.ready.take(format_args!("{at}.conditions.ready"), notes),
            serving: conditions.serving.take(format_args!("{at}.conditions.serving"), notes),
            terminating: conditions.terminating.take(format_args!("{at}.conditions.terminating"), notes),
            node_name: self.node_name.take(format_args!("{at}.nodeName"), notes),
            zone: self.zone.take(format_args!("{at}.zone"), notes),
            hint_zones: names(hints.for_zones, format_args!("{at}.hints.forZones"), notes),
            hint_nodes: names(hints.for_nodes, format_args!("{at}.hints.forNodes"), notes),
            target: target.name.take(format_args!("{at}.targetRef.name"), notes),
        }
    }
}

fn names(list: Field<Vec<Field<Named>>>, path: std::fmt::Arguments<'_>, notes: &mut Notes) -> Vec<String> {
    let entries = list.entries(path, notes);
    let name = |(i, entry): (usize, Named)| entry.name.take(format_args!("{path}[{i}].name"), notes);
    entries.into_iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Event;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> (Decoded, Vec<String>) {
        let mut notes = Notes::default();
        let decoded = super::super::decode(Kind::Slice, value, &mut notes).unwrap();
        (decoded, notes.0.into_iter().map(|note| note.field).collect())
    }

    fn slice(value: Value) -> (event::EndpointSlice, Vec<String>) {
        match read(value) {
            (Decoded::Object(object), notes) => {
                let Event::Slice(slice) = object.into() else { panic!() };
                (slice, notes)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field() {
        let (slice, notes) = slice(json!({
            "metadata": {"name": "web-abc", "namespace": "shop", "labels": {SERVICE_NAME: "web"},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "1970-01-01T00:00:02.5Z", "a": "b"}},
            "addressType": "IPv4",
            "ports": [{"name": "", "protocol": "UDP", "port": 53}, {"port": 1}],
            "endpoints": [{
                "addresses": ["10.244.1.5"], "nodeName": "ka", "zone": "z1", "targetRef": {"kind": "Pod", "name": "p"},
                "conditions": {"ready": false, "serving": true, "terminating": true},
                "hints": {"forZones": [{"name": "z1"}], "forNodes": [{"name": "ka"}, {"name": "kb"}]},
            }, {"addresses": ["10.244.1.6"]}],
        }));
        assert!(notes.is_empty(), "{notes:?}");
        let expected = event::EndpointSlice {
            namespace: "shop".into(),
            name: "web-abc".into(),
            service: Some("web".into()),
            address_type: "IPv4".into(),
            ports: vec![
                event::SlicePort { name: Some(String::new()), protocol: "UDP".into(), port: Some(53) },
                event::SlicePort { name: None, protocol: String::new(), port: Some(1) },
            ],
            endpoints: vec![
                event::SliceEndpoint {
                    addresses: vec!["10.244.1.5".into()],
                    ready: Some(false),
                    serving: Some(true),
                    terminating: Some(true),
                    node_name: Some("ka".into()),
                    zone: Some("z1".into()),
                    hint_zones: vec!["z1".into()],
                    hint_nodes: vec!["ka".into(), "kb".into()],
                    target: Some("p".into()),
                },
                event::SliceEndpoint { addresses: vec!["10.244.1.6".into()], ..Default::default() },
            ],
            last_change: Some(2_500_000_000),
        };
        assert_eq!(slice, expected);
    }

    #[test]
    fn slices_of_headless_services_are_left_out() {
        let (decoded, _) = read(json!({"metadata": {"name": "db", "labels": {HEADLESS: ""}}}));
        assert!(matches!(decoded, Decoded::LeftOut(key) if key.name == "db"));
    }

    #[test]
    fn a_wrong_field_leaves_the_rest() {
        let (slice, notes) = slice(json!({
            "metadata": {"name": "web-abc"},
            "endpoints": [{"addresses": ["10.0.0.1", 2], "conditions": {"ready": "yes"}, "hints": []}],
        }));
        assert_eq!(slice.endpoints[0].addresses, ["10.0.0.1"]);
        assert_eq!(slice.endpoints[0].ready, None);
        let expected = ["endpoints[0].hints", "endpoints[0].addresses[1]", "endpoints[0].conditions.ready"];
        assert_eq!(notes, expected);
    }
}
