//! A Service with validated fields, as `facts` stores it. The rules that use them are in `resolve`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::field::{self, Notes, quoted};
use super::probe;
use crate::diagnostic::{Diagnostic, Object};
use crate::event;
use crate::foreign;
use crate::name::{Family, Protocol, ServiceName};
use crate::probe::Probe;

#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub name: ServiceName,
    pub created: Option<i64>,
    pub proxy_name: Option<Box<str>>,
    /// Keys and values of the annotations that the source keeps; values are not checked.
    pub annotations: Box<[(Box<str>, Box<str>)]>,
    pub kind: ServiceKind,
    pub headless: bool,
    /// In the object's order; `None` for an invalid entry, so that indexes still match `ip_families`.
    pub cluster_ips: Box<[Option<IpAddr>]>,
    pub ip_families: Box<[Option<Family>]>,
    pub ports: Box<[ServicePort]>,
    pub external_ips: Box<[Listed<IpAddr>]>,
    pub load_balancer_ips: Box<[Listed<LoadBalancerIp>]>,
    pub client_ip_affinity: bool,
    pub affinity_timeout: Option<u32>,
    pub internal_traffic_local: bool,
    pub external_traffic_local: bool,
    pub health_check_node_port: Option<u16>,
    /// `None`: not restricted. Empty: restricted, but no entry is valid.
    pub source_ranges: Option<Box<[IpNet]>>,
    /// How its endpoints are to be probed, if the Service requests it.
    pub probe: Option<Arc<Probe>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
    pub target_port: Box<str>,
    /// Its index in `spec.ports`, for Diagnostics.
    pub index: usize,
}

/// A valid entry of a list with its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed<T> {
    pub index: usize,
    pub value: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadBalancerIp {
    pub ip: IpAddr,
    /// `ipMode: Proxy`: the load balancer must see the traffic, so the node does not handle this address.
    pub via_proxy: bool,
}

/// Longest port name that the API accepts.
const LONGEST_PORT_NAME: usize = 63;

impl Service {
    /// Also returns what is wrong with its fields.
    pub(super) fn read(name: ServiceName, object: event::Service) -> (Service, Box<[Diagnostic]>) {
        let mut notes = Notes::about(Object::service(&name));
        let headless = object.cluster_ip == "None" || object.cluster_ips.iter().any(|ip| ip == "None");
        let kind = read_kind(&object.kind, &mut notes);
        let mut service = Service {
            name,
            created: object.created,
            proxy_name: object.proxy_name.as_deref().map(foreign::kept),
            annotations: read_annotations(&object.annotations),
            kind,
            headless,
            cluster_ips: Box::default(),
            ip_families: read_families(&object.ip_families, &mut notes),
            ports: Box::default(),
            external_ips: Box::default(),
            load_balancer_ips: Box::default(),
            client_ip_affinity: read_affinity(&object.session_affinity, &mut notes),
            affinity_timeout: read_timeout(object.affinity_timeout_seconds, &mut notes),
            internal_traffic_local: read_policy("internal", &object.internal_traffic_policy, &mut notes),
            external_traffic_local: read_policy("external", &object.external_traffic_policy, &mut notes),
            health_check_node_port: read_optional_port(
                object.health_check_node_port,
                "spec.healthCheckNodePort",
                "the Service has no health-check node port",
                &mut notes,
            ),
            source_ranges: read_source_ranges(&object.load_balancer_source_ranges, &mut notes),
            probe: None,
        };
        // The other fields are not used, so they need no validation.
        if !headless && kind != ServiceKind::ExternalName {
            service.cluster_ips = read_cluster_ips(&object, &mut notes);
            service.ports = read_ports(object.ports, &mut notes);
            service.external_ips = read_external_ips(&object.external_ips, &mut notes);
            service.load_balancer_ips = read_ingress(&object.ingress, &mut notes);
            service.probe = probe::read(&object.annotations, &service.ports, &mut notes);
        }
        (service, notes.finish())
    }
}

/// Values are not interpreted here: the mode defines their meaning.
fn read_annotations(written: &[(String, String)]) -> Box<[(Box<str>, Box<str>)]> {
    written.iter().map(|(key, value)| (foreign::kept(key), foreign::kept(value))).collect()
}

fn read_kind(text: &str, notes: &mut Notes) -> ServiceKind {
    match text {
        "" | "ClusterIP" => ServiceKind::ClusterIp,
        "NodePort" => ServiceKind::NodePort,
        "LoadBalancer" => ServiceKind::LoadBalancer,
        "ExternalName" => ServiceKind::ExternalName,
        other => {
            notes.add(
                "spec.type",
                format!("{} is not a Service type", quoted(other)),
                "the Service is treated as type ClusterIP",
            );
            ServiceKind::ClusterIp
        }
    }
}

fn read_families(texts: &[String], notes: &mut Notes) -> Box<[Option<Family>]> {
    let read = |(i, text): (usize, &String)| {
        notes.keep(field::family(text), format_args!("spec.ipFamilies[{i}]"), "the entry is ignored")
    };
    texts.iter().enumerate().map(read).collect()
}

fn read_cluster_ips(object: &event::Service, notes: &mut Notes) -> Box<[Option<IpAddr>]> {
    let only = std::slice::from_ref(&object.cluster_ip);
    let listed = match object.cluster_ips.is_empty() {
        true if object.cluster_ip.is_empty() => &[],
        true => only,
        false => object.cluster_ips.as_slice(),
    };
    let read = |(i, text): (usize, &String)| {
        let field = format_args!("spec.clusterIPs[{i}]");
        notes.keep(field::ordinary_address(text), field, "the Service has no cluster IP of that family")
    };
    listed.iter().enumerate().map(read).collect()
}

/// Two ports with the same name and protocol, or the same number and protocol, cannot be distinguished: the first one
/// is used.
fn read_ports(ports: Vec<event::ServicePort>, notes: &mut Notes) -> Box<[ServicePort]> {
    let mut names = HashSet::new();
    let mut numbers = HashSet::new();
    let mut kept = Vec::with_capacity(ports.len().min(usize::from(u16::MAX)));
    for (index, port) in ports.into_iter().enumerate() {
        let Some(port) = read_port(index, port, notes) else { continue };
        let (number, protocol) = (port.port, port.protocol);
        if numbers.contains(&(number, protocol)) {
            let reason = format!("port {number}/{protocol} is listed twice in this Service");
            notes.add(format_args!("spec.ports[{index}].port"), reason, "the port is skipped");
        } else if names.contains(&(port.name.clone(), protocol)) {
            let reason =
                format!("the name {} is already used by another {protocol} port", quoted(&port.name));
            notes.add(format_args!("spec.ports[{index}].name"), reason, "the port is skipped");
        } else {
            numbers.insert((number, protocol));
            names.insert((port.name.clone(), protocol));
            kept.push(port);
        }
    }
    kept.into()
}

fn read_port(index: usize, port: event::ServicePort, notes: &mut Notes) -> Option<ServicePort> {
    let at = |field: &str| format!("spec.ports[{index}].{field}");
    let skipped = "the port is skipped";
    let number = notes.keep(field::port(port.port), at("port"), skipped)?;
    let protocol = notes.keep(field::protocol(&port.protocol), at("protocol"), skipped)?;
    let name = notes.keep(field::name(&port.name, LONGEST_PORT_NAME), at("name"), skipped)?.into();
    let effect = format!("port {number} gets no node port");
    let node_port = read_optional_port(port.node_port, &at("nodePort"), &effect, notes);
    Some(ServicePort {
        name,
        protocol,
        port: number,
        node_port,
        target_port: foreign::kept(&port.target_port),
        index,
    })
}

/// Reads a port field in which zero means "none".
fn read_optional_port(number: i64, field: &str, effect: &str, notes: &mut Notes) -> Option<u16> {
    if number == 0 { None } else { notes.keep(field::port(number), field, effect) }
}

fn read_external_ips(texts: &[String], notes: &mut Notes) -> Box<[Listed<IpAddr>]> {
    let read = |(index, text): (usize, &String)| {
        let field = format_args!("spec.externalIPs[{index}]");
        let value = notes.keep(field::ordinary_address(text), field, "the address is not served")?;
        Some(Listed { index, value })
    };
    texts.iter().enumerate().filter_map(read).collect()
}

fn read_ingress(entries: &[event::Ingress], notes: &mut Notes) -> Box<[Listed<LoadBalancerIp>]> {
    let mut read = |index: usize, entry: &event::Ingress| {
        let at = |field| format!("status.loadBalancer.ingress[{index}].{field}");
        let ip = notes.keep(field::ordinary_address(&entry.ip), at("ip"), "the address is not served")?;
        let via_proxy = match entry.ip_mode.as_str() {
            "" | "VIP" => false,
            "Proxy" => true,
            other => {
                let reason = format!("{} is not a valid ipMode (VIP, Proxy)", quoted(other));
                notes.add(at("ipMode"), reason, "the address is not served");
                return None;
            }
        };
        Some(Listed { index, value: LoadBalancerIp { ip, via_proxy } })
    };
    // An entry without an address has a host name, which is for DNS only.
    let with_ip = entries.iter().enumerate().filter(|(_, entry)| !entry.ip.is_empty());
    with_ip.filter_map(|(index, entry)| read(index, entry)).collect()
}

fn read_affinity(text: &str, notes: &mut Notes) -> bool {
    match text {
        "" | "None" => false,
        "ClientIP" => true,
        other => {
            let reason = format!("{} is not a valid session affinity (None, ClientIP)", quoted(other));
            notes.add("spec.sessionAffinity", reason, "session affinity is off");
            false
        }
    }
}

fn read_timeout(seconds: Option<i64>, notes: &mut Notes) -> Option<u32> {
    const LONGEST: u32 = 86_400;
    let seconds = seconds?;
    let read = u32::try_from(seconds).ok().filter(|seconds| (1..=LONGEST).contains(seconds));
    notes.keep(
        read.ok_or_else(|| format!("{seconds} is not a valid timeout (1 to {LONGEST} seconds)")),
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        "the default timeout is used",
    )
}

/// True for `Local`.
fn read_policy(which: &str, text: &str, notes: &mut Notes) -> bool {
    match text {
        "" | "Cluster" => false,
        "Local" => true,
        other => {
            let reason = format!("{} is not a valid traffic policy (Cluster, Local)", quoted(other));
            notes.add(format_args!("spec.{which}TrafficPolicy"), reason, "the policy Cluster is used");
            false
        }
    }
}

fn read_source_ranges(texts: &[String], notes: &mut Notes) -> Option<Box<[IpNet]>> {
    let read = |(i, text): (usize, &String)| {
        let field = format_args!("spec.loadBalancerSourceRanges[{i}]");
        notes.keep(field::range(text.trim()), field, "the entry allows no source")
    };
    (!texts.is_empty()).then(|| texts.iter().enumerate().filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: event::Service) -> Service {
        read_with_faults(object).0
    }

    fn read_with_faults(object: event::Service) -> (Service, Box<[Diagnostic]>) {
        Service::read(ServiceName::new("default", "web"), object)
    }

    fn port(name: &str, protocol: &str, port: i64) -> event::ServicePort {
        event::ServicePort { name: name.into(), protocol: protocol.into(), port, ..Default::default() }
    }

    fn fields(faults: &[Diagnostic]) -> Vec<&str> {
        faults.iter().map(|d| d.field.as_str()).collect()
    }

    #[test]
    fn a_good_service_has_no_diagnostics() {
        let (service, faults) = read_with_faults(event::Service {
            cluster_ip: "10.96.0.80".into(),
            cluster_ips: vec!["10.96.0.80".into()],
            ip_families: vec!["IPv4".into()],
            ports: vec![port("", "", 80), port("dns", "UDP", 80)],
            ..Default::default()
        });
        assert_eq!(fields(&faults), [""; 0]);
        assert_eq!(service.ports.len(), 2);
        assert_eq!(service.ports[0].protocol, Protocol::Tcp);
    }

    #[test]
    fn each_bad_port_is_skipped_alone() {
        let mut node_port = port("e", "TCP", 85);
        node_port.node_port = 70_000;
        let (service, faults) = read_with_faults(event::Service {
            cluster_ip: "10.96.0.80".into(),
            ports: vec![
                port("a", "TCP", 80),
                port("b", "TCP", 0),
                port("c", "ICMP", 81),
                port("d", "TCP", 80),
                port("a", "TCP", 82),
                port("a", "UDP", 80),
                port("quote\"", "TCP", 83),
                node_port,
            ],
            ..Default::default()
        });
        let kept: Vec<_> = service.ports.iter().map(|p| (p.port, p.protocol, p.node_port)).collect();
        assert_eq!(kept, [(80, Protocol::Tcp, None), (80, Protocol::Udp, None), (85, Protocol::Tcp, None)]);
        assert_eq!(
            fields(&faults),
            [
                "spec.ports[1].port",
                "spec.ports[2].protocol",
                "spec.ports[3].port",
                "spec.ports[4].name",
                "spec.ports[6].name",
                "spec.ports[7].nodePort"
            ]
        );
    }

    #[test]
    fn each_bad_word_has_a_safe_meaning() {
        let (service, faults) = read_with_faults(event::Service {
            kind: "Magic".into(),
            session_affinity: "Cookie".into(),
            affinity_timeout_seconds: Some(-5),
            internal_traffic_policy: "Near".into(),
            external_traffic_policy: "Local".into(),
            health_check_node_port: -1,
            ..Default::default()
        });
        assert_eq!(service.kind, ServiceKind::ClusterIp);
        assert!(
            !service.client_ip_affinity && !service.internal_traffic_local && service.external_traffic_local
        );
        assert_eq!((service.affinity_timeout, service.health_check_node_port), (None, None));
        assert_eq!(faults.len(), 5);
    }

    #[test]
    fn unreadable_source_ranges_still_restrict() {
        let ranges = |texts: &[&str]| {
            let texts = texts.iter().map(|t| t.to_string()).collect();
            read(event::Service { load_balancer_source_ranges: texts, ..Default::default() }).source_ranges
        };
        assert_eq!(ranges(&[]), None);
        assert_eq!(ranges(&["office"]), Some(Box::default()));
        assert_eq!(ranges(&[" 10.0.0.0/8 ", "x"]), Some([("10.0.0.0/8").parse().unwrap()].into()));
    }

    #[test]
    fn ingress_keeps_its_mode_and_ignores_host_names() {
        let entry = |ip: &str, mode: &str| event::Ingress { ip: ip.into(), ip_mode: mode.into() };
        let (service, faults) = read_with_faults(event::Service {
            ingress: vec![
                entry("", ""),
                entry("203.0.113.1", ""),
                entry("203.0.113.2", "Proxy"),
                entry("::1", "VIP"),
            ],
            ..Default::default()
        });
        let kept: Vec<_> = service.load_balancer_ips.iter().map(|l| (l.index, l.value.via_proxy)).collect();
        assert_eq!(kept, [(1, false), (2, true)]);
        assert_eq!(fields(&faults), ["status.loadBalancer.ingress[3].ip"]);
    }
}
