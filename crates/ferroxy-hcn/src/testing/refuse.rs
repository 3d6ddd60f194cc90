//! Finds documents that HNS refuses, as far as this is documented or was reported.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::service::Service;
use crate::api::Kind;
use crate::document::{Endpoint, LoadBalancer, load_balancer_flag};
use crate::error::Code;
use crate::guid::Guid;
use crate::version::Features;

type Refusal = Option<(Code, String)>;

/// More endpoints are refused.
const MOST_ENDPOINTS: usize = 1024;

pub(super) fn creation(service: &Service, kind: Kind, id: Guid, document: &Value) -> Refusal {
    if id != Guid::ZERO && service.document(kind, id).is_some() {
        return refused(Code::ALREADY_EXISTS, format!("{kind} {id}"));
    }
    match kind {
        Kind::Network => None,
        Kind::Endpoint => endpoint(service, document),
        Kind::LoadBalancer => balancer(service, None, document),
    }
}

/// A local and a remote endpoint may have the same address, two of a kind may not.
fn endpoint(service: &Service, document: &Value) -> Refusal {
    let Ok(endpoint) = serde_json::from_value::<Endpoint>(document.clone()) else {
        return refused(Code::INVALID_JSON, "endpoint".into());
    };
    let addresses: BTreeSet<IpAddr> = endpoint.addresses().collect();
    if addresses.is_empty() || addresses.len() != endpoint.ip_configurations.len() {
        return refused(Code::INVALID_IP, "no address".into());
    }
    let taken =
        claims(Kind::Endpoint, document).into_iter().any(|it| service.claimants(&it).next().is_some());
    if taken { refused(Code::ALREADY_EXISTS, format!("an endpoint with {addresses:?}")) } else { None }
}

/// `own`: the load balancer that is changed.
pub(super) fn balancer(service: &Service, own: Option<Guid>, document: &Value) -> Refusal {
    let Ok(balancer) = serde_json::from_value::<LoadBalancer>(document.clone()) else {
        return refused(Code::INVALID_JSON, "load balancer".into());
    };
    let features = Features::from(service.setup.version);
    let endpoints = &balancer.host_compute_endpoints;
    if let Some(unknown) = endpoints.iter().find(|id| service.document(Kind::Endpoint, **id).is_none()) {
        return refused(Code::ENDPOINT_NOT_FOUND, unknown.to_string());
    }
    if endpoints.is_empty() || endpoints.len() > MOST_ENDPOINTS {
        return refused(Code::INVALID_POLICY, format!("{} endpoints", endpoints.len()));
    }
    if endpoints.iter().collect::<BTreeSet<_>>().len() != endpoints.len() {
        return refused(Code::INVALID_POLICY, "an endpoint is named twice".into());
    }
    if balancer.flags & load_balancer_flag::DIRECT_SERVER_RETURN != 0 && !features.dsr {
        return refused(Code::INVALID_POLICY, format!("flags {}", balancer.flags));
    }
    if balancer.port_mappings.is_empty() {
        return refused(Code::INVALID_POLICY, "no port".into());
    }
    for mapping in &balancer.port_mappings {
        if mapping.internal_port == 0 {
            return refused(Code::INVALID_INTERNAL_PORT, "0".into());
        }
        if !matches!(mapping.protocol, 6 | 17) {
            return refused(Code::INVALID_POLICY, format!("protocol {}", mapping.protocol));
        }
    }
    let is_taken = |it: &Claim| service.claimants(it).any(|other| Some(other) != own);
    let taken = claims(Kind::LoadBalancer, document).into_iter().find(is_taken);
    taken.and_then(|taken| refused(Code::PORT_EXISTS, format!("{taken:?}")))
}

fn refused(code: Code, words: String) -> Refusal {
    Some((code, words))
}

/// Something that only one object of a kind can have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Claim {
    Address {
        network: Option<Guid>,
        is_remote: bool,
        ip: IpAddr,
    },
    /// A node port has no address.
    Frontend {
        vip: String,
        is_ipv6: bool,
        protocol: u32,
        port: u16,
    },
}

pub(super) fn claims(kind: Kind, document: &Value) -> Vec<Claim> {
    match kind {
        Kind::Network => Vec::new(),
        Kind::Endpoint => {
            let endpoint: Endpoint = serde_json::from_value(document.clone()).unwrap_or_default();
            let (network, is_remote) = (endpoint.host_compute_network, endpoint.is_remote());
            endpoint.addresses().map(|ip| Claim::Address { network, is_remote, ip }).collect()
        }
        Kind::LoadBalancer => frontends(&read(document)),
    }
}

fn frontends(balancer: &LoadBalancer) -> Vec<Claim> {
    let is_ipv6 = balancer.flags & load_balancer_flag::IPV6 != 0;
    let vips = match balancer.frontend_vips.is_empty() {
        true => vec![String::new()],
        false => balancer.frontend_vips.clone(),
    };
    let at = |vip: &String| {
        let frontend = |it: &crate::PortMapping| Claim::Frontend {
            vip: vip.clone(),
            is_ipv6,
            protocol: it.protocol,
            port: it.external_port,
        };
        balancer.port_mappings.iter().map(frontend).collect::<Vec<_>>()
    };
    vips.iter().flat_map(at).collect()
}

/// The endpoints that a document names.
pub(super) fn endpoints_of(kind: Kind, document: &Value) -> Vec<Guid> {
    if kind == Kind::LoadBalancer { read(document).host_compute_endpoints } else { Vec::new() }
}

fn read(document: &Value) -> LoadBalancer {
    serde_json::from_value(document.clone()).unwrap_or_default()
}
