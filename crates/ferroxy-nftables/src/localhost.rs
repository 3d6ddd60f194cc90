//! Node ports on loopback addresses. Packets to them cannot be translated to another host, so a proxy listens there. It
//! connects to the endpoints that this host gets on its other addresses. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ferroxy_core::intent::FrontendKind;
use ferroxy_core::{Endpoint, Family, Frontend, NodeIntent, PortIntent, Protocol, Route, ServiceIntent};
use ferroxy_proxy::{self as proxy, Affinity, Key, Pool};

/// A listener on a loopback address, and who answers. Both have the same key.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    pub frontend: proxy::Frontend,
    pub pool: Pool,
}

/// The listeners of a Service. SCTP has none: the proxy does not speak it.
pub fn listeners(service: &ServiceIntent, node: &NodeIntent) -> BTreeMap<Key, Listener> {
    let mut listeners = BTreeMap::new();
    for port in service.ports.iter().filter(|port| node.family(port.family).listen_on_loopback) {
        for frontend in port.frontends.iter().filter(|it| it.kind == FrontendKind::NodePort) {
            let endpoints = endpoints(port, frontend);
            if !endpoints.is_empty() {
                listeners.extend(listener(port, frontend.port, endpoints));
            }
        }
    }
    listeners
}

/// The only client is this host, which gets the endpoints of the whole cluster under `externalTrafficPolicy: Local`, too.
fn endpoints<'p>(port: &'p PortIntent, frontend: &Frontend) -> &'p [Endpoint] {
    match frontend.route {
        Route::Cluster | Route::ExternalCluster | Route::ExternalLocal => &port.cluster,
        Route::Local => &port.local,
        Route::Reject | Route::Drop => &[],
    }
}

fn listener(port: &PortIntent, number: u16, endpoints: &[Endpoint]) -> Option<(Key, Listener)> {
    let address = SocketAddr::new(loopback(port.family), number);
    let (frontend, protocol) = match port.protocol {
        Protocol::Tcp => (proxy::Frontend::tcp(address), "tcp"),
        Protocol::Udp => (proxy::Frontend::udp(address), "udp"),
        Protocol::Sctp => return None,
    };
    let key: Key = format!("{address}/{protocol}").into();
    let pool = Pool {
        affinity: port.affinity.map(|seconds| Affinity { timeout: Duration::from_secs(seconds.into()) }),
        ..Pool::of(endpoints.iter().map(|it| SocketAddr::new(it.ip, it.port)))
    };
    Some((key.clone(), Listener { frontend: frontend.to(key), pool }))
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use ferroxy_core::testing::service_over;

    use super::*;

    fn node(v4: bool) -> NodeIntent {
        let mut node = NodeIntent::default();
        node.v4.listen_on_loopback = v4;
        node
    }

    fn served(protocol: Protocol, route: Route, local: usize, node: &NodeIntent) -> Vec<(String, usize)> {
        let (_, service) = service_over(protocol, 1, 0..3);
        let mut service = ServiceIntent::clone(&service);
        let port = &mut service.ports[0];
        port.local = port.cluster[..local].to_vec();
        port.frontends[0] = Frontend {
            kind: FrontendKind::NodePort,
            address: None,
            port: 30_080,
            route,
            allowed_sources: None,
        };
        port.frontends.truncate(1);
        let listeners = listeners(&service, node);
        listeners.into_iter().map(|(key, it)| (key.to_string(), it.pool.endpoints.len())).collect()
    }

    fn at(key: &str, endpoints: usize) -> Vec<(String, usize)> {
        vec![(key.to_owned(), endpoints)]
    }

    #[test]
    fn node_ports_have_listeners_where_the_node_says_so() {
        let tcp = |node: &NodeIntent| served(Protocol::Tcp, Route::ExternalCluster, 0, node);
        assert_eq!(tcp(&node(true)), at("127.0.0.1:30080/tcp", 3));
        assert_eq!(tcp(&node(false)), []);
        assert_eq!(
            served(Protocol::Udp, Route::ExternalCluster, 0, &node(true)),
            at("127.0.0.1:30080/udp", 3)
        );
        assert_eq!(served(Protocol::Sctp, Route::ExternalCluster, 0, &node(true)), []);
    }

    #[test]
    fn policies_choose_the_endpoints_as_for_this_host_on_its_other_addresses() {
        let with = |route, local| served(Protocol::Tcp, route, local, &node(true));
        assert_eq!(with(Route::ExternalLocal, 0), at("127.0.0.1:30080/tcp", 3));
        assert_eq!(with(Route::ExternalLocal, 1), at("127.0.0.1:30080/tcp", 3));
        assert_eq!(with(Route::Local, 1), at("127.0.0.1:30080/tcp", 1));
        assert_eq!(with(Route::Local, 0), []);
        assert_eq!(with(Route::Reject, 0), []);
        assert_eq!(with(Route::Drop, 0), []);
    }

    #[test]
    fn cluster_ips_have_none() {
        let (_, service) = service_over(Protocol::Tcp, 1, 0..3);
        let mut service = ServiceIntent::clone(&service);
        service.ports[0].frontends.retain(|it| it.kind != FrontendKind::NodePort);
        assert!(!service.ports[0].frontends.is_empty());
        assert!(listeners(&service, &node(true)).is_empty());
    }
}
