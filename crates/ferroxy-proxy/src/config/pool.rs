//! A set of endpoints, how one of them is chosen, and how its connections are treated.

use std::net::SocketAddr;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Each address counts once. The order does not matter: endpoints that stay keep their state (connections, latency,
    /// ejection, affinity) through a change.
    pub endpoints: Vec<SocketAddr>,
    pub policy: Policy,
    /// Clients stay with their endpoint.
    pub affinity: Option<Affinity>,
    pub slow_start: Option<SlowStart>,
    /// Endpoints that fail dials are left out for a while.
    pub ejection: Option<Ejection>,
    pub timeouts: Timeouts,
    pub limits: Limits,
    /// Endpoints get a PROXY protocol v2 header with the client's address before the first byte (TCP only).
    pub proxy_protocol: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    #[default]
    RoundRobin,
    Random,
    /// The endpoint with the fewest connections. Endpoints with equal counts take turns.
    LeastConnections,
    /// The better one of two random endpoints, by latency (peak EWMA) times connections.
    Latency,
}

/// Session affinity by the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity {
    /// How long a client stays with its endpoint after its last connection or datagram.
    pub timeout: Duration,
}

/// A new endpoint of a pool that has others starts with a tenth of its share, which grows to all of it over `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowStart {
    pub window: Duration,
}

/// After `failures` failed dials in a row, an endpoint gets no new connection for `base`. The n-th ejection in a row
/// takes n times as long, up to `most`. If fewer than half of the endpoints would remain, all of them are used (the
/// panic rule).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    pub failures: u32,
    pub base: Duration,
    pub most: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For one dial. After a failed dial, the engine dials another endpoint.
    pub connect: Duration,
    /// For all dials of one connection together. The time during which the connection was held does not count.
    pub connect_budget: Duration,
    /// How many endpoints to try at most.
    pub attempts: u32,
    /// How long a connection waits for an endpoint while the pool has none. `None` resets it at once.
    pub hold: Option<Duration>,
    /// A connection without a byte in either direction for this long is reset.
    pub idle: Option<Duration>,
    /// The same limit, once one direction is closed.
    pub half_close: Duration,
    /// How long a UDP session may be idle that no endpoint has answered yet.
    pub udp_unanswered: Duration,
    /// How long a UDP session with datagrams in both directions may be idle.
    pub udp_answered: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// TCP connections at a time; more are reset. `None`: no limit but the engine's.
    pub connections: Option<u32>,
    /// Connections that are being dialled at a time; more are reset.
    pub dials: u32,
    /// Connections that are held at a time; more are reset.
    pub held: u32,
    /// UDP sessions at a time; datagrams of more clients are dropped. `None`: only the engine's limits
    /// ([`crate::UdpLimits`]), which evict the session that has been idle for the longest time.
    pub sessions: Option<u32>,
    /// Clients whose endpoint is remembered. Beyond this number, the least recently used client is forgotten.
    pub sticky_clients: u32,
}

impl Pool {
    pub fn of(endpoints: impl IntoIterator<Item = SocketAddr>) -> Pool {
        Pool { endpoints: endpoints.into_iter().collect(), ..Pool::default() }
    }
}

impl Default for Pool {
    fn default() -> Pool {
        Pool {
            endpoints: Vec::new(),
            policy: Policy::default(),
            affinity: None,
            slow_start: None,
            ejection: Some(Ejection::default()),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            proxy_protocol: false,
        }
    }
}

impl Default for Affinity {
    fn default() -> Affinity {
        Affinity { timeout: Duration::from_secs(10_800) }
    }
}

impl Default for SlowStart {
    fn default() -> SlowStart {
        SlowStart { window: Duration::from_secs(30) }
    }
}

impl Default for Ejection {
    fn default() -> Ejection {
        Ejection { failures: 5, base: Duration::from_secs(30), most: Duration::from_secs(300) }
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(1),
            connect_budget: Duration::from_secs(10),
            attempts: 4,
            hold: None,
            // As with packet rules, silent connections are not ended. Keepalive finds dead peers.
            idle: None,
            half_close: Duration::from_secs(300),
            udp_unanswered: Duration::from_secs(30),
            udp_answered: Duration::from_secs(120),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: None, dials: 4096, held: 1024, sessions: None, sticky_clients: 65_536 }
    }
}
