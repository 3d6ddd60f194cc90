//! The document `HostComputeEndpoint`: fields, flags, and how HNS spells them.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{PolicyDocument, SchemaVersion, is_zero, lenient};
use crate::guid::Guid;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Endpoint {
    #[serde(rename = "ID", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    #[serde(default, deserialize_with = "lenient::text", skip_serializing_if = "String::is_empty")]
    pub owner: String,
    #[serde(default, deserialize_with = "lenient::text", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_compute_network: Option<Guid>,
    #[serde(default, deserialize_with = "lenient::nullable", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyDocument>,
    #[serde(default, deserialize_with = "lenient::nullable", skip_serializing_if = "Vec::is_empty")]
    pub ip_configurations: Vec<IpConfiguration>,
    #[serde(default, deserialize_with = "lenient::text", skip_serializing_if = "String::is_empty")]
    pub mac_address: String,
    #[serde(default, deserialize_with = "flags", skip_serializing_if = "is_zero")]
    pub flags: u32,
    #[serde(default, deserialize_with = "lenient::nullable")]
    pub schema_version: SchemaVersion,
}

/// Bits of [`Endpoint::flags`].
pub mod endpoint_flag {
    /// It stands for a pod on another node.
    pub const REMOTE: u32 = 1;
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfiguration {
    #[serde(default, deserialize_with = "lenient::text")]
    pub ip_address: String,
    #[serde(default, deserialize_with = "lenient::nullable", skip_serializing_if = "is_zero")]
    pub prefix_length: u32,
}

impl Endpoint {
    pub fn is_remote(&self) -> bool {
        self.flags & endpoint_flag::REMOTE != 0
    }

    /// Its addresses, one for each family. Texts that are not addresses are left out.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.ip_configurations.iter().filter_map(|it| it.ip_address.parse().ok())
    }

    /// The address of the node that has the pod, on an overlay network.
    pub fn provider(&self) -> Option<IpAddr> {
        let mut policies = self.policies.iter();
        let policy = policies.find(|it| it.kind.eq_ignore_ascii_case(PROVIDER))?;
        policy.settings.get(PROVIDER)?.as_str()?.parse().ok()
    }

    pub fn provider_policy(provider: IpAddr) -> PolicyDocument {
        let settings: Value = json!({ PROVIDER: provider.to_string() });
        PolicyDocument { kind: PROVIDER.to_owned(), settings }
    }
}

/// The policy and its one setting have the same name.
const PROVIDER: &str = "ProviderAddress";

fn flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    lenient::number(deserializer, &[("RemoteEndpoint", endpoint_flag::REMOTE)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_of_a_network_plugin_is_read() {
        let text = r#"{"ID": "00000002-0000-4000-8000-000000000001", "Name": "a1", "Flags": 0, "Dns": {},
            "IpConfigurations": [{"IpAddress": "10.244.1.5", "PrefixLength": 24}, {"IpAddress": "fd00::5"}, {"IpAddress": "?"}],
            "Policies": [{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.96.0.0/16"]}}, {"Type": "ACL"}]}"#;
        let endpoint: Endpoint = serde_json::from_str(text).unwrap();
        assert!(!endpoint.is_remote() && endpoint.provider().is_none());
        let addresses: Vec<String> = endpoint.addresses().map(|ip| ip.to_string()).collect();
        assert_eq!(addresses, ["10.244.1.5", "fd00::5"]);
    }

    #[test]
    fn a_provider_is_written_and_read() {
        let provider = "172.18.0.3".parse().unwrap();
        let endpoint = Endpoint {
            flags: endpoint_flag::REMOTE,
            policies: vec![Endpoint::provider_policy(provider)],
            ..Endpoint::default()
        };
        let text = serde_json::to_string(&endpoint).unwrap();
        let again: Endpoint = serde_json::from_str(&text).unwrap();
        assert_eq!((again.provider(), again.is_remote()), (Some(provider), true));
    }
}
