//! Objects as the lists of the first version of the API have them (`/policylists/`, `/endpoints/`): in full, all with one call.
//!
//! They are read to notice what another program changed, and for nothing else. No real HNS has confirmed the names of their
//! fields: what is read here may lack something, and then differs from the object itself.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::Value;

use super::{
    Endpoint, IpConfiguration, LoadBalancer, PortMapping, endpoint_flag, lenient, load_balancer_flag,
};
use crate::guid::Guid;

/// One object of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    pub id: Guid,
    /// A digest of the list entry, without fields that change by themselves: it is the same as long as the object is.
    pub print: u64,
    /// As a document of the second version, with the fields that the list has.
    pub document: T,
}

/// Fields of requests and measurements, not of the object.
const VOLATILE: [&str; 3] = ["ActivityId", "Health", "Resources"];

impl Listed<LoadBalancer> {
    /// `None` for an entry without an id.
    pub fn balancer(value: Value) -> Option<Listed<LoadBalancer>> {
        let (id, print) = identity(&value)?;
        let list = serde_json::from_value(value).unwrap_or_default();
        Some(Listed { id, print, document: balancer(list) })
    }
}

impl Listed<Endpoint> {
    /// `None` for an entry without an id.
    pub fn endpoint(value: Value) -> Option<Listed<Endpoint>> {
        let (id, print) = identity(&value)?;
        let entry = serde_json::from_value(value).unwrap_or_default();
        Some(Listed { id, print, document: endpoint(entry) })
    }
}

fn identity(value: &Value) -> Option<(Guid, u64)> {
    let fields = value.as_object()?;
    let id = fields.get("ID")?.as_str()?.parse().ok()?;
    let mut hasher = DefaultHasher::new();
    for (name, value) in fields.iter().filter(|(name, _)| !VOLATILE.contains(&name.as_str())) {
        (name, value.to_string()).hash(&mut hasher);
    }
    Some((id, hasher.finish()))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PolicyList {
    #[serde(deserialize_with = "lenient::nullable")]
    references: Vec<String>,
    #[serde(deserialize_with = "lenient::nullable")]
    policies: Vec<Value>,
}

/// One policy of a list: a port mapping, and the addresses that have it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Balancing {
    #[serde(rename = "VIPs", deserialize_with = "lenient::nullable")]
    vips: Vec<String>,
    #[serde(rename = "SourceVIP", deserialize_with = "lenient::text")]
    source_vip: String,
    #[serde(rename = "DSR", deserialize_with = "lenient::nullable")]
    dsr: bool,
    #[serde(rename = "IPv6", deserialize_with = "lenient::nullable")]
    ipv6: bool,
    #[serde(flatten)]
    mapping: PortMapping,
}

fn balancer(list: PolicyList) -> LoadBalancer {
    let endpoint = |reference: &String| reference.rsplit('/').next()?.parse().ok();
    let policies = list.policies.into_iter().filter_map(|it| serde_json::from_value(it).ok());
    let policies: Vec<Balancing> = policies.collect();
    let flag = |is_set: fn(&Balancing) -> bool, flag: u32| if policies.iter().any(is_set) { flag } else { 0 };
    LoadBalancer {
        host_compute_endpoints: list.references.iter().filter_map(endpoint).collect(),
        flags: flag(|it| it.dsr, load_balancer_flag::DIRECT_SERVER_RETURN)
            | flag(|it| it.ipv6, load_balancer_flag::IPV6),
        source_vip: policies.first().map(|it| it.source_vip.clone()).unwrap_or_default(),
        frontend_vips: policies.first().map(|it| it.vips.clone()).unwrap_or_default(),
        port_mappings: policies.iter().map(|it| it.mapping).collect(),
        ..LoadBalancer::default()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Entry {
    #[serde(deserialize_with = "lenient::text")]
    name: String,
    #[serde(rename = "IPAddress", deserialize_with = "lenient::text")]
    ip_address: String,
    #[serde(rename = "IPv6Address", deserialize_with = "lenient::text")]
    ipv6_address: String,
    #[serde(deserialize_with = "lenient::text")]
    mac_address: String,
    #[serde(deserialize_with = "lenient::nullable")]
    is_remote_endpoint: bool,
    #[serde(deserialize_with = "lenient::nullable")]
    policies: Vec<Value>,
}

fn endpoint(entry: Entry) -> Endpoint {
    let addresses = [entry.ip_address, entry.ipv6_address].into_iter().filter(|ip| !ip.is_empty());
    let provider = |policy: &Value| policy.get("PA")?.as_str()?.parse().ok();
    Endpoint {
        name: entry.name,
        policies: entry.policies.iter().filter_map(provider).map(Endpoint::provider_policy).collect(),
        ip_configurations: addresses
            .map(|ip_address| IpConfiguration { ip_address, prefix_length: 0 })
            .collect(),
        mac_address: entry.mac_address,
        flags: if entry.is_remote_endpoint { endpoint_flag::REMOTE } else { 0 },
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_print_changes_with_the_object_and_with_nothing_else() {
        let id = Guid::derived("a");
        let print = |activity: &str, port: u16, extra: Value| {
            let policies = json!([{ "Type": "ELB", "ExternalPort": port, "VIPs": ["10.96.0.1"] }]);
            let value = json!({ "ID": id, "ActivityId": activity, "Policies": policies, "Unknown": extra });
            Listed::balancer(value).unwrap().print
        };
        let before = print("1", 80, json!(null));
        assert_eq!(print("2", 80, json!(null)), before);
        assert_ne!(print("1", 81, json!(null)), before);
        assert_ne!(print("1", 80, json!({ "Flags": 1 })), before, "whatever it means");
    }

    #[test]
    fn an_entry_that_makes_no_sense_has_an_id_or_is_left_out() {
        assert_eq!(Listed::endpoint(json!({ "ID": "?" })), None);
        assert_eq!(Listed::balancer(json!(7)), None);
        let odd = Listed::endpoint(json!({ "ID": Guid::ZERO, "IPAddress": 7, "Policies": { "PA": 1 } }));
        assert_eq!(odd.unwrap().document, Endpoint::default());
    }
}
