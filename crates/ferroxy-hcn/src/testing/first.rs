//! Describes objects as the lists of the first version of the API do.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::api::Kind;
use crate::document::{Endpoint, LoadBalancer, load_balancer_flag};
use crate::guid::Guid;

/// `activity` is different in every answer.
pub(super) fn describe(kind: Kind, id: Guid, document: &Value, activity: u64) -> Value {
    let mut described = match kind {
        Kind::Network => json!({ "Name": document["Name"] }),
        Kind::Endpoint => endpoint(&serde_json::from_value(document.clone()).unwrap_or_default()),
        Kind::LoadBalancer => balancer(&serde_json::from_value(document.clone()).unwrap_or_default()),
    };
    described["ID"] = json!(id);
    described["Owner"] = document["Owner"].clone();
    described["ActivityId"] = json!(activity);
    described
}

fn balancer(balancer: &LoadBalancer) -> Value {
    let references = balancer.host_compute_endpoints.iter().map(|id| format!("/endpoints/{id}"));
    let policies = balancer.port_mappings.iter().map(|mapping| {
        let mut policy = json!(mapping);
        policy["Type"] = json!("ELB");
        policy["VIPs"] = json!(balancer.frontend_vips);
        policy["SourceVIP"] = json!(balancer.source_vip);
        policy["DSR"] = json!(balancer.flags & load_balancer_flag::DIRECT_SERVER_RETURN != 0);
        policy["IPv6"] = json!(balancer.flags & load_balancer_flag::IPV6 != 0);
        policy
    });
    json!({ "References": references.collect::<Vec<_>>(), "Policies": policies.collect::<Vec<_>>() })
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let first = |is_v4: bool| endpoint.addresses().find(|ip: &IpAddr| ip.is_ipv4() == is_v4);
    json!({
        "Name": endpoint.name,
        "VirtualNetwork": endpoint.host_compute_network,
        "IPAddress": first(true).map(|ip| ip.to_string()),
        "IPv6Address": first(false).map(|ip| ip.to_string()),
        "MacAddress": endpoint.mac_address,
        "IsRemoteEndpoint": endpoint.is_remote(),
        "Policies": endpoint.provider().map(|ip| json!({ "Type": "PA", "PA": ip.to_string() }))
            .into_iter().collect::<Vec<_>>(),
    })
}
