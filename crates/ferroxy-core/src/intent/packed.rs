//! The Intent of a Service in as little memory as possible: the acknowledged Intent of every Service of the cluster is
//! stored, and read only when that Service changes.

use std::sync::Arc;

use super::{Endpoint, Frontend, FrontendKind, HealthCheck, LeftOut, PortIntent, Route, ServiceIntent};
use crate::name::{Family, Protocol, ServiceName};
use crate::packed::{Packer, Unpacker};

/// Does not contain the name of the Service: [`PackedIntent::unpack`] takes it from the caller.
#[derive(Debug, Clone)]
pub struct PackedIntent {
    bytes: Box<[u8]>,
    /// Hardly any Service has annotations.
    annotations: Option<Box<Annotations>>,
}

type Annotations = Vec<(&'static str, Arc<str>)>;

const KINDS: [FrontendKind; 4] =
    [FrontendKind::ClusterIp, FrontendKind::ExternalIp, FrontendKind::LoadBalancer, FrontendKind::NodePort];
const ROUTES: [Route; 6] =
    [Route::Reject, Route::Drop, Route::Cluster, Route::Local, Route::ExternalCluster, Route::ExternalLocal];

/// Flags of a packed endpoint.
const IS_V6: u8 = 1;
const IS_LOCAL: u8 = 2;

impl PackedIntent {
    pub fn new(service: &ServiceIntent) -> PackedIntent {
        let ServiceIntent { name: _, cluster_ips, ports, health_check, annotations, left_out } = service;
        let mut out = Packer::default();
        out.list(cluster_ips, |out, address| out.address(*address));
        out.list(ports, pack_port);
        out.option(*health_check, |out, HealthCheck { port, local_endpoints }| {
            out.port(port);
            out.number(local_endpoints.into());
        });
        out.number(left_out.frontends);
        out.number(left_out.endpoints);
        let annotations = (!annotations.is_empty()).then(|| Box::new(annotations.clone()));
        PackedIntent { bytes: out.finish(), annotations }
    }

    pub fn unpack(&self, name: &ServiceName) -> ServiceIntent {
        let mut from = Unpacker::new(&self.bytes);
        ServiceIntent {
            name: name.clone(),
            cluster_ips: from.list(Unpacker::address),
            ports: from.list(unpack_port),
            health_check: from
                .option(|from| HealthCheck { port: from.port(), local_endpoints: from.number() as u32 }),
            left_out: LeftOut { frontends: from.number(), endpoints: from.number() },
            annotations: self.annotations.as_deref().cloned().unwrap_or_default(),
        }
    }
}

fn pack_port(out: &mut Packer, port: &PortIntent) {
    let PortIntent { name, family, protocol, affinity, cluster, local, size, frontends } = port;
    out.text(name);
    out.byte(*family as u8);
    out.byte(*protocol as u8);
    out.option(*affinity, |out, seconds| out.number(seconds.into()));
    out.list(cluster, pack_endpoint);
    out.list(local, pack_endpoint);
    out.number((*size).into());
    out.list(frontends, pack_frontend);
}

fn unpack_port(from: &mut Unpacker<'_>) -> PortIntent {
    PortIntent {
        name: from.text().into(),
        family: pick(&Family::ALL, from.byte()),
        protocol: pick(&Protocol::ALL, from.byte()),
        affinity: from.option(|from| from.number() as u32),
        cluster: from.list(unpack_endpoint),
        local: from.list(unpack_endpoint),
        size: from.number() as u32,
        frontends: from.list(unpack_frontend),
    }
}

fn pack_endpoint(out: &mut Packer, endpoint: &Endpoint) {
    let Endpoint { ip, port, is_local } = *endpoint;
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    out.byte(bit(ip.is_ipv6(), IS_V6) | bit(is_local, IS_LOCAL));
    out.bare_address(ip);
    out.port(port);
}

fn unpack_endpoint(from: &mut Unpacker<'_>) -> Endpoint {
    let bits = from.byte();
    let ip = from.bare_address(bits & IS_V6 != 0);
    Endpoint { ip, port: from.port(), is_local: bits & IS_LOCAL != 0 }
}

fn pack_frontend(out: &mut Packer, frontend: &Frontend) {
    let Frontend { kind, address, port, route, allowed_sources } = frontend;
    out.byte(*kind as u8);
    out.byte(*route as u8);
    out.option(*address, Packer::address);
    out.port(*port);
    out.option(allowed_sources.as_deref(), |out, ranges| {
        out.list(ranges, |out, range| out.network(*range));
    });
}

fn unpack_frontend(from: &mut Unpacker<'_>) -> Frontend {
    Frontend {
        kind: pick(&KINDS, from.byte()),
        route: pick(&ROUTES, from.byte()),
        address: from.option(Unpacker::address),
        port: from.port(),
        allowed_sources: from.option(|from| from.list(Unpacker::network)),
    }
}

/// The value with this index. The index of a value is its discriminant.
fn pick<T: Copy>(values: &[T], index: u8) -> T {
    values.get(usize::from(index)).copied().unwrap_or(values[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str, is_local: bool) -> Endpoint {
        Endpoint { ip: text.parse().unwrap(), port: 8080, is_local }
    }

    #[test]
    fn every_kind_and_route_has_its_number() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        for (index, route) in ROUTES.into_iter().enumerate() {
            assert_eq!(route as usize, index);
        }
        for (index, family) in Family::ALL.into_iter().enumerate() {
            assert_eq!(family as usize, index);
        }
        for (index, protocol) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol as usize, index);
        }
    }

    #[test]
    fn nothing_of_a_service_is_lost() {
        let frontends = |address: Option<&str>| -> Vec<Frontend> {
            let frontend = |(kind, route)| Frontend {
                kind,
                address: address.map(|text| text.parse().unwrap()),
                port: 80,
                route,
                allowed_sources: (route == Route::Drop)
                    .then(|| vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()]),
            };
            KINDS.iter().flat_map(|kind| ROUTES.map(|route| (*kind, route))).map(frontend).collect()
        };
        let port = |family, protocol, affinity, address| PortIntent {
            name: "http".into(),
            family,
            protocol,
            affinity,
            cluster: vec![endpoint("10.0.0.1", false), endpoint("2001:db8::1", true)],
            local: vec![endpoint("10.0.0.1", true)],
            size: 70_000,
            frontends: frontends(address),
        };
        let service = ServiceIntent {
            name: ServiceName::new("default", "web"),
            cluster_ips: vec!["10.96.0.1".parse().unwrap(), "2001:db8::96".parse().unwrap()],
            ports: vec![
                port(Family::V4, Protocol::Tcp, None, Some("10.96.0.1")),
                port(Family::V6, Protocol::Sctp, Some(10_800), None),
            ],
            health_check: Some(HealthCheck { port: 30_000, local_endpoints: 3 }),
            annotations: vec![("scheduler", "lc".into())],
            left_out: LeftOut { frontends: 1 << 40, endpoints: 2 },
        };
        assert_eq!(PackedIntent::new(&service).unpack(&service.name), service);
    }
}
