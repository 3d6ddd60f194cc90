//! Converts the objects of a State to HCN documents, and back.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::{Family, Protocol};
use ferroxy_hcn::{
    Endpoint as EndpointDocument, Guid, IpConfiguration, LoadBalancer, PortMapping, endpoint_flag,
    load_balancer_flag, mapping_flag,
};

use crate::state::{Balancer, Endpoint, Frontend, Mac, Role};
use crate::text;

/// Marks the objects that we create.
pub const OWNER: &str = "ferroxy";

/// Session affinity by source address.
const STICKY: u32 = 2;

/// An endpoint of HNS, as far as it matters here.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenEndpoint {
    pub name: String,
    pub ips: Vec<IpAddr>,
    pub endpoint: Endpoint,
    /// We made it.
    pub is_own: bool,
    /// It has no owner.
    pub is_unclaimed: bool,
}

/// A load balancer of HNS, as far as it matters here.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenBalancer {
    /// `None`: not of a form that we write.
    pub frontend: Option<Frontend>,
    /// Without endpoints: those are `ids`.
    pub balancer: Balancer,
    pub ids: Vec<Guid>,
    pub owner: String,
    pub is_own: bool,
    pub is_unclaimed: bool,
}

impl SeenBalancer {
    /// A load balancer of another program about which nothing else is known.
    pub fn unreadable() -> SeenBalancer {
        SeenBalancer {
            is_own: false,
            is_unclaimed: false,
            ..read_balancer(Guid::ZERO, &LoadBalancer::default())
        }
    }
}

impl SeenEndpoint {
    /// Compares everything except marks of the owner.
    pub fn has_content_of(&self, other: &SeenEndpoint) -> bool {
        let sorted = |seen: &SeenEndpoint| seen.ips.iter().copied().collect::<BTreeSet<_>>();
        self.endpoint == other.endpoint && sorted(self) == sorted(other)
    }
}

impl SeenBalancer {
    /// We made it, or it has no owner.
    pub fn is_ours(&self) -> bool {
        self.is_own || self.is_unclaimed
    }

    /// Compares everything except marks of the owner.
    pub fn has_content_of(&self, other: &SeenBalancer) -> bool {
        let sorted = |seen: &SeenBalancer| seen.ids.iter().copied().collect::<BTreeSet<_>>();
        self.frontend == other.frontend && self.balancer == other.balancer && sorted(self) == sorted(other)
    }
}

/// The same endpoint has the same id in every run.
pub fn endpoint_id(network: Guid, ip: IpAddr) -> Guid {
    Guid::derived(&format!("ferroxy endpoint {network} {ip}"))
}

pub fn balancer_id(at: &Frontend) -> Guid {
    Guid::derived(&format!("ferroxy loadbalancer {}", text::frontend(at)))
}

pub fn write_endpoint(network: Guid, ip: IpAddr, endpoint: &Endpoint) -> EndpointDocument {
    let is_invented = endpoint.mac == Mac::invented(ip);
    EndpointDocument {
        owner: OWNER.to_owned(),
        host_compute_network: Some(network),
        policies: endpoint.provider.map(EndpointDocument::provider_policy).into_iter().collect(),
        ip_configurations: vec![IpConfiguration { ip_address: ip.to_string(), prefix_length: 0 }],
        // As kube-proxy writes them.
        mac_address: if is_invented { endpoint.mac.to_string() } else { endpoint.mac.with_colons() },
        flags: if endpoint.is_remote { endpoint_flag::REMOTE } else { 0 },
        ..EndpointDocument::default()
    }
}

pub fn read_endpoint(network: Guid, id: Guid, document: &EndpointDocument) -> SeenEndpoint {
    let ips: Vec<IpAddr> = document.addresses().collect();
    SeenEndpoint {
        endpoint: Endpoint {
            mac: document.mac_address.parse().unwrap_or_default(),
            provider: document.provider(),
            is_remote: document.is_remote(),
        },
        is_own: document.owner == OWNER || ips.first().is_some_and(|ip| endpoint_id(network, *ip) == id),
        is_unclaimed: document.owner.is_empty(),
        name: document.name.clone(),
        ips,
    }
}

pub fn write_balancer(at: &Frontend, balancer: &Balancer, ids: Vec<Guid>) -> LoadBalancer {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    LoadBalancer {
        owner: OWNER.to_owned(),
        host_compute_endpoints: ids,
        source_vip: balancer.source_vip.map(|ip| ip.to_string()).unwrap_or_default(),
        frontend_vips: at.vip.iter().map(ToString::to_string).collect(),
        port_mappings: vec![PortMapping {
            protocol: at.protocol.number().into(),
            internal_port: balancer.target_port,
            external_port: at.port,
            distribution_type: flag(balancer.is_sticky, STICKY),
            flags: balancer.mapping_flags,
        }],
        flags: flag(balancer.dsr, load_balancer_flag::DIRECT_SERVER_RETURN)
            | flag(at.family == Family::V6, load_balancer_flag::IPV6),
        ..LoadBalancer::default()
    }
}

pub fn read_balancer(id: Guid, document: &LoadBalancer) -> SeenBalancer {
    let frontend = frontend_of(document);
    let mapping = document.port_mappings.first().copied().unwrap_or_default();
    SeenBalancer {
        balancer: Balancer {
            role: role(frontend.as_ref(), mapping.flags),
            endpoints: Default::default(),
            target_port: mapping.internal_port,
            source_vip: document.source_vip.parse().ok(),
            is_sticky: mapping.distribution_type == STICKY,
            dsr: document.flags & load_balancer_flag::DIRECT_SERVER_RETURN != 0,
            mapping_flags: mapping.flags,
        },
        ids: document.host_compute_endpoints.clone(),
        is_own: document.owner == OWNER || frontend.as_ref().is_some_and(|at| balancer_id(at) == id),
        is_unclaimed: document.owner.is_empty(),
        owner: document.owner.clone(),
        frontend,
    }
}

/// `None` if there is more than one address, or not exactly one port.
fn frontend_of(document: &LoadBalancer) -> Option<Frontend> {
    let [mapping] = document.port_mappings.as_slice() else { return None };
    let vip = match document.frontend_vips.as_slice() {
        [] => None,
        [vip] => Some(vip.parse::<IpAddr>().ok()?),
        _ => return None,
    };
    let is_ipv6 = document.flags & load_balancer_flag::IPV6 != 0;
    Some(Frontend {
        // kube-proxy's load balancers for health checks have an IPv6 address without the flag.
        family: vip.map_or(if is_ipv6 { Family::V6 } else { Family::V4 }, Family::of),
        vip,
        protocol: Protocol::from_number(u8::try_from(mapping.protocol).ok()?)?,
        port: mapping.external_port,
    })
}

/// The role, as far as the document shows it.
fn role(at: Option<&Frontend>, flags: u32) -> Role {
    match at {
        Some(Frontend { vip: None, .. }) => Role::NodePort,
        _ if flags & mapping_flag::EXTERNAL_VIP != 0 => Role::IngressIp,
        _ => Role::ClusterIp,
    }
}

/// Whether it has an undocumented flag that, besides us, only kube-proxy sets.
pub fn is_kube_proxys(seen: &SeenBalancer) -> bool {
    seen.balancer.mapping_flags & mapping_flag::EXTERNAL_VIP != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_balancer_is_read_as_it_was_written() {
        for (family, vip, protocol) in [
            (Family::V4, Some([10, 96, 0, 1].into()), Protocol::Tcp),
            (Family::V6, None, Protocol::Udp),
            (Family::V6, Some("fd00::1".parse().unwrap()), Protocol::Tcp),
        ] {
            let at = Frontend { family, vip, protocol, port: 53 };
            let balancer = Balancer {
                role: Role::IngressIp,
                endpoints: Default::default(),
                target_port: 5353,
                source_vip: Some([10, 244, 1, 9].into()),
                is_sticky: true,
                dsr: true,
                mapping_flags: 28,
            };
            let id = Guid::derived("another");
            let seen = read_balancer(id, &write_balancer(&at, &balancer, vec![id]));
            assert_eq!((seen.frontend, &seen.balancer, &seen.ids), (Some(at), &balancer, &vec![id]));
            assert!(seen.is_own && is_kube_proxys(&seen));
        }
    }

    #[test]
    fn an_id_of_ours_is_a_mark_where_owners_are_dropped() {
        let at = Frontend { family: Family::V4, vip: None, protocol: Protocol::Tcp, port: 30080 };
        let balancer =
            Balancer { role: Role::NodePort, ..read_balancer(Guid::ZERO, &LoadBalancer::default()).balancer };
        let document = LoadBalancer { owner: String::new(), ..write_balancer(&at, &balancer, Vec::new()) };
        assert!(read_balancer(balancer_id(&at), &document).is_own);
        let theirs = read_balancer(Guid::derived("theirs"), &document);
        assert!(!theirs.is_own && theirs.is_unclaimed);
        let (network, ip) = (Guid::derived("network"), IpAddr::from([10, 244, 2, 5]));
        let endpoint = Endpoint { mac: Mac::invented(ip), provider: None, is_remote: true };
        let document = EndpointDocument { owner: String::new(), ..write_endpoint(network, ip, &endpoint) };
        assert!(read_endpoint(network, endpoint_id(network, ip), &document).is_own);
    }

    #[test]
    fn a_load_balancer_of_another_form_has_no_frontend() {
        let two =
            LoadBalancer { frontend_vips: vec!["10.0.0.1".into(), "10.0.0.2".into()], ..Default::default() };
        assert_eq!(read_balancer(Guid::ZERO, &two).frontend, None);
        assert_eq!(read_balancer(Guid::ZERO, &LoadBalancer::default()).frontend, None);
    }
}
