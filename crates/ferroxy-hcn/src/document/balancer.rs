//! The document `HostComputeLoadBalancer`: fields, flags, and how HNS spells them.

use serde::{Deserialize, Deserializer, Serialize};

use super::{SchemaVersion, is_zero, lenient};
use crate::guid::Guid;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct LoadBalancer {
    #[serde(rename = "ID", default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    #[serde(default, deserialize_with = "lenient::text", skip_serializing_if = "String::is_empty")]
    pub owner: String,
    #[serde(default, deserialize_with = "lenient::nullable", skip_serializing_if = "Vec::is_empty")]
    pub host_compute_endpoints: Vec<Guid>,
    #[serde(
        rename = "SourceVIP",
        default,
        deserialize_with = "lenient::text",
        skip_serializing_if = "String::is_empty"
    )]
    pub source_vip: String,
    #[serde(
        rename = "FrontendVIPs",
        default,
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub frontend_vips: Vec<String>,
    #[serde(default, deserialize_with = "lenient::nullable", skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    #[serde(default, deserialize_with = "flags", skip_serializing_if = "is_zero")]
    pub flags: u32,
    #[serde(default, deserialize_with = "lenient::nullable")]
    pub schema_version: SchemaVersion,
}

/// Bits of [`LoadBalancer::flags`].
pub mod load_balancer_flag {
    pub const DIRECT_SERVER_RETURN: u32 = 1;
    pub const IPV6: u32 = 2;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PortMapping {
    /// The IP protocol number: 6 is TCP, 17 is UDP.
    #[serde(default, deserialize_with = "protocol", skip_serializing_if = "is_zero")]
    pub protocol: u32,
    #[serde(default, deserialize_with = "lenient::nullable")]
    pub internal_port: u16,
    #[serde(default, deserialize_with = "lenient::nullable")]
    pub external_port: u16,
    /// How clients stay with an endpoint: 0 not at all, 1 by address and protocol, 2 by address.
    #[serde(default, deserialize_with = "distribution", skip_serializing_if = "is_zero")]
    pub distribution_type: u32,
    #[serde(default, deserialize_with = "mapping_flags", skip_serializing_if = "is_zero")]
    pub flags: u32,
}

/// Bits of [`PortMapping::flags`].
pub mod mapping_flag {
    pub const LOCAL_ROUTED_VIP: u32 = 2;
    pub const USE_MUX: u32 = 4;
    pub const PRESERVE_DESTINATION: u32 = 8;
    /// Microsoft does not document it: only kube-proxy is known to set it.
    pub const EXTERNAL_VIP: u32 = 16;
}

fn flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    lenient::number(deserializer, &[("EnableDirectServerReturn", 1), ("EnableIPv6", 2), ("IPv6", 2)])
}

fn protocol<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    lenient::number(deserializer, &[("TCP", 6), ("UDP", 17)])
}

fn distribution<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    lenient::number(deserializer, &[("SourceIPProtocol", 1), ("SourceIP", 2)])
}

fn mapping_flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let names =
        [("EnableInternalLoadBalancer", 1), ("LocalRoutedVip", 2), ("NotUsed", 4), ("EnablePreserveDip", 8)];
    lenient::number(deserializer, &names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_written_without_zeros_and_read_back() {
        let balancer = LoadBalancer {
            owner: "ferroxy".into(),
            host_compute_endpoints: vec![Guid::derived("a")],
            frontend_vips: vec!["10.96.0.80".into()],
            port_mappings: vec![PortMapping {
                protocol: 6,
                internal_port: 8080,
                external_port: 80,
                ..PortMapping::default()
            }],
            flags: load_balancer_flag::DIRECT_SERVER_RETURN,
            ..LoadBalancer::default()
        };
        let text = serde_json::to_string(&balancer).unwrap();
        let expected = format!(
            "{{\"Owner\":\"ferroxy\",\"HostComputeEndpoints\":[\"{}\"],\"FrontendVIPs\":[\"10.96.0.80\"],\
             \"PortMappings\":[{{\"Protocol\":6,\"InternalPort\":8080,\"ExternalPort\":80}}],\"Flags\":1,\
             \"SchemaVersion\":{{\"Major\":2,\"Minor\":0}}}}",
            Guid::derived("a")
        );
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<LoadBalancer>(&text).unwrap(), balancer);
    }

    #[test]
    fn names_nulls_and_unknown_fields_are_read() {
        let text = r#"{"HostComputeEndpoints": null, "FrontendVIPs": null, "State": 7, "Health": {"Extra": {}},
            "Flags": "EnableDirectServerReturn, EnableIPv6", "SchemaVersion": null,
            "PortMappings": [{"Protocol": "UDP", "ExternalPort": 53, "DistributionType": "SourceIP", "Flags": "16"}]}"#;
        let balancer: LoadBalancer = serde_json::from_str(text).unwrap();
        assert_eq!((balancer.flags, balancer.frontend_vips.len()), (3, 0));
        let expected = PortMapping {
            protocol: 17,
            internal_port: 0,
            external_port: 53,
            distribution_type: 2,
            flags: 16,
        };
        assert_eq!(balancer.port_mappings, [expected]);
        assert!(serde_json::from_str::<LoadBalancer>(r#"{"Flags": -1}"#).is_err());
        assert!(serde_json::from_str::<LoadBalancer>(r#"{"HostComputeEndpoints": ["x"]}"#).is_err());
    }
}
