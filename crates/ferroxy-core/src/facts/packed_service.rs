//! A Service in as little memory as possible: all Services are stored, and each is read only when something about it
//! changes.

use std::sync::Arc;

use super::service::{Listed, LoadBalancerIp, Service, ServiceKind, ServicePort};
use crate::diagnostic::Diagnostic;
use crate::name::{Family, Protocol, ServiceName};
use crate::packed::{Packer, Unpacker};
use crate::probe::Probe;

/// Does not contain the name of the Service: [`PackedService::unpack`] takes it from the caller.
#[derive(Debug, PartialEq)]
pub(super) struct PackedService {
    bytes: Box<[u8]>,
    rare: Option<Box<Rare>>,
}

/// Fields that hardly any Service has.
#[derive(Debug, PartialEq)]
struct Rare {
    probe: Option<Arc<Probe>>,
    /// What is wrong with its fields.
    faults: Box<[Diagnostic]>,
}

const KINDS: [ServiceKind; 4] =
    [ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer, ServiceKind::ExternalName];

impl PackedService {
    pub(super) fn new(service: &Service, faults: Box<[Diagnostic]>) -> PackedService {
        let rare = Rare { probe: service.probe.clone(), faults };
        let has_some = rare.probe.is_some() || !rare.faults.is_empty();
        PackedService { bytes: pack(service), rare: has_some.then(|| Box::new(rare)) }
    }

    pub(super) fn unpack(&self, name: &ServiceName) -> Service {
        let probe = self.rare.as_ref().and_then(|rare| rare.probe.clone());
        Service { probe, ..unpack(&self.bytes, name) }
    }

    pub(super) fn probe(&self) -> Option<&Probe> {
        self.rare.as_ref()?.probe.as_deref()
    }

    pub(super) fn diagnostics(&self) -> &[Diagnostic] {
        self.rare.as_ref().map_or(&[], |rare| &rare.faults)
    }
}

fn pack(service: &Service) -> Box<[u8]> {
    let mut out = Packer::default();
    out.option(service.created, |out, time| out.number(time as u64));
    out.option(service.proxy_name.as_deref(), Packer::text);
    out.list(&service.annotations, |out, (key, value)| {
        out.text(key);
        out.text(value);
    });
    let flags = [
        service.headless,
        service.client_ip_affinity,
        service.internal_traffic_local,
        service.external_traffic_local,
    ];
    let kind_and_flags = flags.iter().fold(service.kind as u8, |bits, flag| bits << 1 | u8::from(*flag));
    out.byte(kind_and_flags);
    out.list(&service.cluster_ips, |out, address| out.option(*address, Packer::address));
    out.list(&service.ip_families, |out, family| out.option(*family, |out, it| out.byte(it as u8)));
    out.list(&service.ports, pack_port);
    out.list(&service.external_ips, |out, Listed { index, value }| {
        out.length(*index);
        out.address(*value);
    });
    out.list(&service.load_balancer_ips, |out, Listed { index, value }| {
        out.length(*index);
        out.address(value.ip);
        out.byte(value.via_proxy.into());
    });
    out.option(service.affinity_timeout, |out, seconds| out.number(seconds.into()));
    out.option(service.health_check_node_port, Packer::port);
    out.option(service.source_ranges.as_deref(), |out, ranges| {
        out.list(ranges, |out, range| out.network(*range));
    });
    out.finish()
}

fn unpack(bytes: &[u8], name: &ServiceName) -> Service {
    let mut from = Unpacker::new(bytes);
    let created = from.option(|from| from.number() as i64);
    let proxy_name = from.option(|from| from.text().into());
    let annotations = from.list(|from| (from.text().into(), from.text().into()));
    let kind_and_flags = from.byte();
    let flag = |bit: u8| kind_and_flags >> bit & 1 != 0;
    Service {
        name: name.clone(),
        created,
        proxy_name,
        annotations,
        kind: KINDS.get(usize::from(kind_and_flags >> 4)).copied().unwrap_or(ServiceKind::ClusterIp),
        headless: flag(3),
        client_ip_affinity: flag(2),
        internal_traffic_local: flag(1),
        external_traffic_local: flag(0),
        cluster_ips: from.list(|from| from.option(Unpacker::address)),
        ip_families: from.list(|from| from.option(unpack_family)),
        ports: from.list(unpack_port),
        external_ips: from.list(|from| Listed { index: from.length(), value: from.address() }),
        load_balancer_ips: from.list(|from| Listed {
            index: from.length(),
            value: LoadBalancerIp { ip: from.address(), via_proxy: from.flag() },
        }),
        affinity_timeout: from.option(|from| from.number() as u32),
        health_check_node_port: from.option(Unpacker::port),
        source_ranges: from.option(|from| from.list(Unpacker::network)),
        probe: None,
    }
}

fn unpack_family(from: &mut Unpacker<'_>) -> Family {
    if from.byte() == Family::V4 as u8 { Family::V4 } else { Family::V6 }
}

fn pack_port(out: &mut Packer, port: &ServicePort) {
    let ServicePort { name, protocol, port, node_port, target_port, index } = port;
    out.text(name);
    out.byte(protocol.number());
    out.port(*port);
    out.option(*node_port, Packer::port);
    out.text(target_port);
    out.length(*index);
}

fn unpack_port(from: &mut Unpacker<'_>) -> ServicePort {
    ServicePort {
        name: from.text().into(),
        protocol: Protocol::from_number(from.byte()).unwrap_or(Protocol::Tcp),
        port: from.port(),
        node_port: from.option(Unpacker::port),
        target_port: from.text().into(),
        index: from.length(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;
    use crate::probe::Check;

    fn with_flags(bits: u8, service: &Service) -> Service {
        let flag = |bit: u8| bits >> bit & 1 != 0;
        Service {
            headless: flag(0),
            client_ip_affinity: flag(1),
            internal_traffic_local: flag(2),
            external_traffic_local: flag(3),
            kind: KINDS[usize::from(bits % 4)],
            ..service.clone()
        }
    }

    #[test]
    fn nothing_of_a_service_is_lost() {
        let addresses = ["10.96.0.1", "2001:db8::96"].map(|text| text.parse::<IpAddr>().unwrap());
        let port = |name: &str, protocol, node_port, index| ServicePort {
            name: name.into(),
            protocol,
            port: 80,
            node_port,
            target_port: "8080".into(),
            index,
        };
        let probe = Probe {
            check: Check::Tcp,
            port: Some(81),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            failures: 3,
            successes: 2,
        };
        let full = Service {
            name: ServiceName::new("default", "web"),
            created: Some(-1_700_000_000),
            proxy_name: Some("other".into()),
            annotations: [("key".into(), "value".into())].into(),
            kind: ServiceKind::LoadBalancer,
            headless: true,
            client_ip_affinity: true,
            internal_traffic_local: true,
            external_traffic_local: true,
            cluster_ips: [Some(addresses[0]), None, Some(addresses[1])].into(),
            ip_families: [Some(Family::V4), None, Some(Family::V6)].into(),
            ports: [port("", Protocol::Sctp, None, 0), port("http", Protocol::Udp, Some(30_000), 7)].into(),
            external_ips: [Listed { index: 3, value: addresses[1] }].into(),
            load_balancer_ips: [Listed {
                index: 300,
                value: LoadBalancerIp { ip: addresses[0], via_proxy: true },
            }]
            .into(),
            affinity_timeout: Some(86_400),
            health_check_node_port: Some(31_000),
            source_ranges: Some(["10.0.0.0/8".parse().unwrap()].into()),
            probe: Some(Arc::new(probe)),
        };
        let plain = Service {
            created: None,
            proxy_name: None,
            affinity_timeout: None,
            health_check_node_port: None,
            source_ranges: None,
            probe: None,
            ..full.clone()
        };
        for service in (0..16).map(|bits| with_flags(bits, &plain)).chain([full, plain.clone()]) {
            assert_eq!(PackedService::new(&service, Box::default()).unpack(&service.name), service);
        }
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }
}
