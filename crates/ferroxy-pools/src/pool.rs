//! The pool of a Service port: its endpoints under the policy `Cluster`, or those on this node; and the keys of pools
//! and sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ferroxy_core::{Family, PortIntent, Protocol, ServiceIntent};
use ferroxy_proxy::{self as proxy, Affinity, Class, Key, Pool};

use crate::balancing;

/// Clients that go to the endpoints for policy `Cluster`, and those that go to endpoints of this node.
pub const CLUSTER: Class = Class(0);
pub const LOCAL: Class = Class(1);

pub fn pool_key(service: &ServiceIntent, port: &PortIntent, class: Class) -> Key {
    let (name, protocol) = (service.name.port(&port.name), port.protocol);
    let number = port.frontends.first().map_or(0, |frontend| frontend.port);
    let local = if class == LOCAL { "/local" } else { "" };
    // Ports of a Service may have no name: number and protocol distinguish them.
    format!("{name}#{number}/{protocol}/{}{local}", port.family).into()
}

/// `udp_idle`: the idle time that ends UDP sessions; `None` leaves it to the engine.
pub fn pool(service: &ServiceIntent, port: &PortIntent, class: Class, udp_idle: Option<Duration>) -> Pool {
    let endpoints = if class == LOCAL { &port.local } else { &port.cluster };
    let mut pool = balancing::pool(service);
    pool.endpoints = endpoints.iter().map(|it| SocketAddr::new(it.ip, it.port)).collect();
    let timeout = |seconds: u32| Duration::from_secs(seconds.into());
    pool.affinity = port.affinity.map(|seconds| Affinity { timeout: timeout(seconds) });
    if let Some(idle) = udp_idle {
        pool.timeouts.udp_unanswered = idle;
        pool.timeouts.udp_answered = idle;
    }
    pool
}

pub fn socket_key(protocol: proxy::Protocol, address: SocketAddr) -> Key {
    let protocol = if protocol == proxy::Protocol::Tcp { "tcp" } else { "udp" };
    format!("at/{address}/{protocol}").into()
}

pub fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// `None`: the proxy does not support the protocol.
pub fn proxied(protocol: Protocol) -> Option<proxy::Protocol> {
    match protocol {
        Protocol::Tcp => Some(proxy::Protocol::Tcp),
        Protocol::Udp => Some(proxy::Protocol::Udp),
        Protocol::Sctp => None,
    }
}
