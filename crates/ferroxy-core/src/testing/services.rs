//! A plain Service by its number, for tests that need many or know exactly what is in one.

use std::sync::Arc;

use crate::intent::{Endpoint, Frontend, FrontendKind, PortIntent, Route, ServiceIntent};
use crate::name::{Family, Protocol, ServiceName};

/// `default/s<number>`: port 80 of a cluster IP (`10.96.<number>`), over TCP. Its endpoints are port 80 of `10.244.<endpoint>`, on other nodes;
/// without any, packets are rejected.
pub fn service(number: u16, endpoints: impl IntoIterator<Item = u16>) -> (ServiceName, Arc<ServiceIntent>) {
    service_over(Protocol::Tcp, number, endpoints)
}

/// The same over another protocol.
pub fn service_over(
    protocol: Protocol,
    number: u16,
    endpoints: impl IntoIterator<Item = u16>,
) -> (ServiceName, Arc<ServiceIntent>) {
    let name = ServiceName::new("default", &format!("s{number}"));
    let [high, low] = number.to_be_bytes();
    let address = [10, 96, high, low].into();
    let cluster: Vec<Endpoint> = endpoints.into_iter().map(endpoint).collect();
    let frontend = Frontend {
        kind: FrontendKind::ClusterIp,
        address: Some(address),
        port: 80,
        route: if cluster.is_empty() { Route::Reject } else { Route::Cluster },
        allowed_sources: None,
    };
    let port = PortIntent {
        name: "http".into(),
        family: Family::V4,
        protocol,
        affinity: None,
        size: cluster.len() as u32,
        frontends: vec![frontend],
        cluster,
        local: Vec::new(),
    };
    let intent = ServiceIntent {
        name: name.clone(),
        cluster_ips: vec![address],
        ports: vec![port],
        health_check: None,
        annotations: Vec::new(),
        left_out: Default::default(),
    };
    (name, Arc::new(intent))
}

fn endpoint(number: u16) -> Endpoint {
    let [high, low] = number.to_be_bytes();
    Endpoint { ip: [10, 244, high, low].into(), port: 80, is_local: false }
}
