//! `v1` Node: its zone, addresses, pod CIDRs, and whether it is being removed.

use ferroxy_core::event;
use serde::Deserialize;

use super::field::{Field, Notes, mappings};
use super::metadata::{Identity, Metadata};
use super::{Decoded, Wire};
use crate::object::Object;

pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    metadata: Field<Metadata>,
    spec: Field<Spec>,
    status: Field<Status>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Field<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Field<Vec<Field<String>>>,
    taints: Field<Vec<Field<Taint>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: Field<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Field<Vec<Field<Address>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    r#type: Field<String>,
    address: Field<String>,
}

mappings!(Spec, Taint, Status, Address);

impl Wire for Node {
    fn metadata(&mut self) -> &mut Field<Metadata> {
        &mut self.metadata
    }

    fn read(self, notes: &mut Notes) -> Decoded {
        let Some(mut identity) = Identity::read(self.metadata, notes) else { return Decoded::Nameless };
        let spec = self.spec.take(format_args!("spec"), notes).unwrap_or_default();
        let status = self.status.take(format_args!("status"), notes).unwrap_or_default();
        Decoded::Object(Object::node(event::Node {
            zone: identity.label(ZONE, notes),
            addresses: addresses(status, notes),
            pod_cidrs: pod_cidrs(spec.pod_cidrs, spec.pod_cidr, notes),
            deleting: identity.deleting,
            taints: taints(spec.taints, notes),
            name: identity.name,
        }))
    }
}

/// The list; a hand-written manifest may have only the older single field, which the API server copies into it.
fn pod_cidrs(list: Field<Vec<Field<String>>>, single: Field<String>, notes: &mut Notes) -> Vec<String> {
    let list = list.texts(format_args!("spec.podCIDRs"), notes);
    let single = single.take(format_args!("spec.podCIDR"), notes);
    if list.is_empty() { single.into_iter().filter(|it| !it.is_empty()).collect() } else { list }
}

fn addresses(status: Status, notes: &mut Notes) -> Vec<(String, String)> {
    let entries = status.addresses.entries(format_args!("status.addresses"), notes);
    let read = |(i, entry): (usize, Address)| {
        let at = format_args!("status.addresses[{i}]");
        (
            entry.r#type.take(format_args!("{at}.type"), notes).unwrap_or_default(),
            entry.address.take(format_args!("{at}.address"), notes).unwrap_or_default(),
        )
    };
    entries.into_iter().map(read).collect()
}

fn taints(taints: Field<Vec<Field<Taint>>>, notes: &mut Notes) -> Vec<String> {
    let entries = taints.entries(format_args!("spec.taints"), notes);
    let key = |(i, taint): (usize, Taint)| taint.key.take(format_args!("spec.taints[{i}].key"), notes);
    entries.into_iter().filter_map(key).collect()
}

#[cfg(test)]
mod tests {
    use ferroxy_core::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::object::Kind;

    fn read(value: Value) -> (event::Node, Vec<String>) {
        let mut notes = Notes::default();
        match super::super::decode(Kind::Node, value, &mut notes).unwrap() {
            Decoded::Object(object) => {
                let Event::Node(node) = object.into() else { panic!() };
                (node, notes.0.into_iter().map(|note| note.field).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_field() {
        let (node, notes) = read(json!({
            "metadata": {"name": "ka", "labels": {ZONE: "z1"}, "deletionTimestamp": "2024-01-01T00:00:00Z"},
            "spec": {
                "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"],
                "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}],
            },
            "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]},
        }));
        assert!(notes.is_empty(), "{notes:?}");
        let expected = event::Node {
            name: "ka".into(),
            zone: Some("z1".into()),
            addresses: vec![("InternalIP".into(), "172.18.0.2".into())],
            pod_cidrs: vec!["10.244.1.0/24".into(), "fd00::/64".into()],
            deleting: true,
            taints: vec!["ToBeDeletedByClusterAutoscaler".into()],
        };
        assert_eq!(node, expected);
    }

    #[test]
    fn a_single_pod_cidr_counts_where_the_list_is_missing() {
        let (node, _) = read(json!({"metadata": {"name": "ka"}, "spec": {"podCIDR": "10.244.1.0/24"}}));
        assert_eq!(node.pod_cidrs, ["10.244.1.0/24"]);
        assert!(!node.deleting);
    }

    #[test]
    fn a_wrong_field_leaves_the_rest() {
        let (node, notes) = read(json!({
            "metadata": {"name": "ka"}, "spec": [], "status": {"addresses": [{"type": 1, "address": "10.0.0.1"}]},
        }));
        assert_eq!(node.addresses, [(String::new(), "10.0.0.1".into())]);
        assert_eq!(notes, ["spec", "status.addresses[0].type"]);
    }
}
