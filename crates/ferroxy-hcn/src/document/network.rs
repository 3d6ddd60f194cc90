//! The document `HostComputeNetwork`: fields, flags, and how HNS spells them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{PolicyDocument, lenient};
use crate::guid::Guid;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Network {
    #[serde(rename = "ID", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    #[serde(default, deserialize_with = "lenient::text")]
    pub name: String,
    /// `L2Bridge`, `Overlay`, `L2Tunnel` …; absent for NAT.
    #[serde(rename = "Type", default, deserialize_with = "lenient::text")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient::nullable", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyDocument>,
    #[serde(default, deserialize_with = "lenient::nullable", skip_serializing_if = "Vec::is_empty")]
    pub ipams: Vec<Value>,
}

/// Which node has the pods of a range, on an overlay network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSubnetRoute {
    pub network: IpAddr,
    pub prefix_length: u8,
    pub provider: IpAddr,
}

impl RemoteSubnetRoute {
    /// `None` for a policy of another kind, and for one that cannot be read.
    fn of(policy: &PolicyDocument) -> Option<RemoteSubnetRoute> {
        if !policy.kind.eq_ignore_ascii_case("RemoteSubnetRoute") {
            return None;
        }
        let field = |name: &str| policy.settings.get(name).and_then(Value::as_str);
        let (network, prefix_length) = prefix(field("DestinationPrefix")?)?;
        Some(RemoteSubnetRoute { network, prefix_length, provider: field("ProviderAddress")?.parse().ok()? })
    }
}

/// An address and a length, as in `10.244.2.0/24`.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (network, length) = text.split_once('/')?;
    let network: IpAddr = network.parse().ok()?;
    let longest = if network.is_ipv4() { 32 } else { 128 };
    Some((network, length.parse().ok().filter(|length| *length <= longest)?))
}

impl Network {
    pub fn is_overlay(&self) -> bool {
        self.kind.eq_ignore_ascii_case("Overlay")
    }

    pub fn remote_subnets(&self) -> impl Iterator<Item = RemoteSubnetRoute> + '_ {
        self.policies.iter().filter_map(RemoteSubnetRoute::of)
    }

    /// The ranges from which pods of this node get addresses. On an overlay no route names them.
    pub fn own_subnets(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        let list = |value: &'_ Value, name: &str| value.get(name).and_then(Value::as_array).cloned();
        let subnets = self.ipams.iter().filter_map(move |it| list(it, "Subnets")).flatten();
        subnets.filter_map(|it| prefix(it.get("IpAddressPrefix")?.as_str()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_an_overlay_are_read_and_bad_ones_left_out() {
        let text = r#"{"ID": "00000001-0000-4000-8000-000000000000", "Name": "vxlan0", "Type": "overlay", "Policies": [
            {"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": "10.244.2.0/24", "IsolationId": 4096, "ProviderAddress": "172.18.0.3"}},
            {"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": "10.244.3.0/77", "ProviderAddress": "172.18.0.4"}},
            {"Type": "RemoteSubnetRoute", "Settings": null},
            {"Type": "HostRoute", "Settings": {}}]}"#;
        let network: Network = serde_json::from_str(text).unwrap();
        assert!(network.is_overlay());
        let expected = RemoteSubnetRoute {
            network: [10, 244, 2, 0].into(),
            prefix_length: 24,
            provider: [172, 18, 0, 3].into(),
        };
        assert_eq!(network.remote_subnets().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn own_subnets_are_read_and_bad_ones_left_out() {
        let text = r#"{"Ipams": [{"Type": "Static", "Subnets": [
            {"IpAddressPrefix": "10.244.1.0/24", "Routes": [{"NextHop": "10.244.1.1"}]},
            {"IpAddressPrefix": "10.244.1.0"}, {"IpAddressPrefix": null}, 7]}, {"Subnets": null}, null]}"#;
        let network: Network = serde_json::from_str(text).unwrap();
        assert_eq!(network.own_subnets().collect::<Vec<_>>(), [([10, 244, 1, 0].into(), 24)]);
        let none: Network = serde_json::from_str(r#"{"Ipams": null}"#).unwrap();
        assert_eq!(none.own_subnets().count(), 0);
    }

    #[test]
    fn a_network_without_a_type_is_no_overlay() {
        assert!(!serde_json::from_str::<Network>("{}").unwrap().is_overlay());
    }
}
