//! Rule: the addresses and ports that a Service claims.

use std::net::IpAddr;

use super::cluster_ips;
use super::conflicts::diagnostic;
use crate::diagnostic::Diagnostic;
use crate::facts::{Claim, Facts, Rank, Service};
use crate::intent::FrontendKind;
use crate::name::Family;
use crate::policy::Policy;

/// A frontend that the Service claims; `conflicts` decides whether it gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) kind: FrontendKind,
    /// `None` for a node port.
    pub(crate) address: Option<IpAddr>,
    /// The port that clients use.
    pub(crate) number: u16,
    pub(crate) family: Family,
    /// Index into the Service's ports.
    pub(crate) port: usize,
    /// The field of the object.
    pub(crate) field: Field,
}

/// The field of the object that claims a frontend; formatted only on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    ClusterIp(usize),
    ExternalIp(usize),
    Ingress(usize),
    NodePort(usize),
}

impl Field {
    pub(crate) fn path(self) -> String {
        match self {
            Field::ClusterIp(i) => format!("spec.clusterIPs[{i}]"),
            Field::ExternalIp(i) => format!("spec.externalIPs[{i}]"),
            Field::Ingress(i) => format!("status.loadBalancer.ingress[{i}].ip"),
            Field::NodePort(i) => format!("spec.ports[{i}].nodePort"),
        }
    }
}

impl Wanted {
    pub(crate) fn rank(&self) -> Rank {
        match self.kind {
            FrontendKind::ClusterIp | FrontendKind::NodePort => Rank::Allocated,
            FrontendKind::LoadBalancer => Rank::LoadBalancerIp,
            FrontendKind::ExternalIp => Rank::ExternalIp,
        }
    }

    pub(crate) fn claim(&self, service: &Service) -> Claim {
        let protocol = service.ports[self.port].protocol;
        match self.address {
            Some(address) => Claim::Address { address, port: self.number, protocol },
            None => Claim::NodePort { family: self.family, port: self.number, protocol },
        }
    }
}

/// The frontends that the Service claims, the strongest first. No more than `most` are enumerated. If a Service claims
/// a frontend twice, the first claim is used: a load-balancer IP keeps its source ranges if it is also an external IP.
pub(crate) fn wanted(service: &Service, policy: &Policy, most: usize) -> Vec<Wanted> {
    let ports = || service.ports.iter().enumerate();
    let at_cluster_ip = ports().flat_map(|(port, spec)| {
        families(service).filter_map(move |(family, index)| {
            let address = Some(cluster_ips::of(service, family)?);
            let (kind, field) = (FrontendKind::ClusterIp, Field::ClusterIp(index));
            Some(Wanted { kind, address, number: spec.port, family, port, field })
        })
    });
    let node_ports = ports().filter_map(|(port, spec)| Some((port, spec.index, spec.node_port?)));
    let at_node_port = node_ports.flat_map(|(port, index, number)| {
        families(service).map(move |(family, _)| {
            let (kind, field) = (FrontendKind::NodePort, Field::NodePort(index));
            Wanted { kind, address: None, number, family, port, field }
        })
    });
    let outside: Vec<(FrontendKind, Field, IpAddr)> = outside(service, policy).collect();
    let at_addresses = outside.chunk_by(|(one, ..), (other, ..)| one == other).flat_map(|of_a_kind| {
        ports().flat_map(move |(port, spec)| {
            of_a_kind.iter().map(move |&(kind, field, ip)| {
                let (address, number, family) = (Some(ip), spec.port, Family::of(ip));
                Wanted { kind, address, number, family, port, field }
            })
        })
    });
    let all = at_cluster_ip.chain(at_node_port).chain(at_addresses);
    all.take(most).collect()
}

/// How many frontends there are without a limit.
pub(crate) fn count(service: &Service, policy: &Policy) -> usize {
    let families = families(service).count();
    let node_ports = service.ports.iter().filter(|port| port.node_port.is_some()).count();
    let addresses = families + outside(service, policy).count();
    service.ports.len().saturating_mul(addresses).saturating_add(node_ports * families)
}

/// The families of the Service, with the index of the cluster IP.
fn families(service: &Service) -> impl Iterator<Item = (Family, usize)> {
    Family::ALL.into_iter().filter_map(|family| Some((family, cluster_ips::index_of(service, family)?)))
}

/// Load-balancer IPs, and then external IPs, of the Service's families.
fn outside(service: &Service, policy: &Policy) -> impl Iterator<Item = (FrontendKind, Field, IpAddr)> {
    let balanced = balanced(service).map(|(i, ip)| (FrontendKind::LoadBalancer, Field::Ingress(i), ip));
    let external =
        external(service, policy).map(|(i, ip)| (FrontendKind::ExternalIp, Field::ExternalIp(i), ip));
    let is_served = |ip: IpAddr| families(service).any(|(family, _)| family == Family::of(ip));
    balanced.chain(external).filter(move |(_, _, ip)| is_served(*ip))
}

/// Addresses of a family in which the Service has no cluster IP: they are not used.
pub(crate) fn stranded(service: &Service, policy: &Policy) -> impl Iterator<Item = Diagnostic> {
    let external = external(service, policy).map(|(i, ip)| (Field::ExternalIp(i), ip));
    let balanced = balanced(service).map(|(i, ip)| (Field::Ingress(i), ip));
    let without_cluster_ip =
        move |(_, ip): &(Field, IpAddr)| cluster_ips::of(service, Family::of(*ip)).is_none();
    let words = move |(field, ip): (Field, IpAddr)| {
        let reason =
            format!("{ip} is {family}, but the Service has no {family} cluster IP", family = Family::of(ip));
        diagnostic(service, field.path(), reason, "the address is not served".to_owned())
    };
    external.chain(balanced).filter(without_cluster_ip).map(words)
}

/// Load-balancer and external IPs that a Service may get as its cluster IP at any time. They are served until then.
pub(crate) fn provisional(facts: &Facts, service: &Service) -> impl Iterator<Item = Diagnostic> {
    let words = move |(kind, field, ip): (FrontendKind, Field, IpAddr)| {
        let cidr = facts.service_cidrs().flat_map(|object| &object.cidrs).find(|cidr| cidr.contains(&ip))?;
        let is_free = facts.claims().owner(&Claim::WholeAddress { address: ip }).is_none();
        let reason = format!("the {} {ip} is inside the ServiceCIDR {cidr}", kind.words());
        let effect = "the address is served until a Service gets it as its cluster IP".to_owned();
        is_free.then(|| diagnostic(service, field.path(), reason, effect))
    };
    outside(service, facts.policy()).filter(|_| !service.ports.is_empty()).filter_map(words)
}

/// External IPs with their index, unless the feature gate disables them.
fn external(service: &Service, policy: &Policy) -> impl Iterator<Item = (usize, IpAddr)> {
    service.external_ips.iter().filter(|_| policy.external_ips).map(|listed| (listed.index, listed.value))
}

/// Load-balancer IPs that the node handles (`ipMode: VIP`), with their index.
fn balanced(service: &Service) -> impl Iterator<Item = (usize, IpAddr)> {
    let ours = service.load_balancer_ips.iter().filter(|listed| !listed.value.via_proxy);
    ours.map(|listed| (listed.index, listed.value.ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::resolve::tests::read;

    fn dual_stack() -> event::Service {
        event::Service {
            cluster_ips: vec!["10.96.0.80".into(), "fd00::80".into()],
            ip_families: vec!["IPv4".into(), "IPv6".into()],
            ports: vec![event::ServicePort { port: 80, node_port: 30080, ..Default::default() }],
            external_ips: vec!["198.51.100.1".into(), "fd00:e::1".into()],
            ingress: vec![
                event::Ingress { ip: "203.0.113.1".into(), ip_mode: String::new() },
                event::Ingress { ip: "203.0.113.2".into(), ip_mode: "Proxy".into() },
            ],
            ..Default::default()
        }
    }

    fn list(service: &Service, policy: &Policy) -> Vec<String> {
        let text = |w: &Wanted| match w.address {
            Some(address) => format!("{address}:{}", w.number),
            None => format!("{} *:{}", w.family, w.number),
        };
        wanted(service, policy, usize::MAX).iter().map(text).collect()
    }

    #[test]
    fn every_kind_in_every_family() {
        let expected = [
            "10.96.0.80:80",
            "fd00::80:80",
            "IPv4 *:30080",
            "IPv6 *:30080",
            "203.0.113.1:80",
            "198.51.100.1:80",
            "fd00:e::1:80",
        ];
        assert_eq!(list(&read(dual_stack()), &Policy::default()), expected);
    }

    #[test]
    fn the_gate_turns_external_ips_off() {
        let policy = Policy { external_ips: false, ..Policy::default() };
        let list = list(&read(dual_stack()), &policy);
        assert!(!list.iter().any(|text| text.starts_with("198.51.100.1") || text.starts_with("fd00:e::1")));
    }

    #[test]
    fn addresses_without_a_cluster_ip_of_their_family_are_stranded() {
        let mut object = dual_stack();
        object.cluster_ips.pop();
        object.ip_families.pop();
        let service = read(object);
        assert!(!list(&service, &Policy::default()).iter().any(|text| text.contains("IPv6")));
        let diagnostics: Vec<Diagnostic> = stranded(&service, &Policy::default()).collect();
        assert_eq!(diagnostics.len(), 1);
        assert_eq!(diagnostics[0].field, "spec.externalIPs[1]");
        assert_eq!(diagnostics[0].reason, "fd00:e::1 is IPv6, but the Service has no IPv6 cluster IP");
    }
}
