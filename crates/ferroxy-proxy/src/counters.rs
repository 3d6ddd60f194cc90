//! The counters of the engine. The data path adds to relaxed atomics; readers get plain values.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::config::Key;

/// All counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    pub engine: EngineCounters,
    pub pools: BTreeMap<Key, PoolCounters>,
}

/// Counters that belong to no pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections that are open now.
    pub active: u64,
    /// Connections and datagrams that no route matched, or whose original destination is no frontend.
    pub unrouted: u64,
    /// How often accepting paused because descriptors or memory ran out (EMFILE, ENFILE, ENOBUFS, ENOMEM).
    pub pauses: u64,
    /// How often accepting paused because [`crate::Settings::connections`] was reached.
    pub full: u64,
    /// Waiting connections that were reset during a pause, so that clients do not hang.
    pub shed: u64,
    /// UDP sessions that are open now.
    pub sessions: u64,
    /// UDP sessions that were evicted because of a limit.
    pub evicted_sessions: u64,
}

/// Counted since the pool was added, including endpoints that have left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Connections that got an endpoint.
    pub connections: u64,
    /// Connections that are open now, including those to endpoints that have left.
    pub active: u64,
    /// Bytes from clients to endpoints.
    pub bytes_in: u64,
    /// Bytes from endpoints to clients.
    pub bytes_out: u64,
    pub datagrams_in: u64,
    pub datagrams_out: u64,
    pub failed_dials: u64,
    /// Dials to another endpoint after one had failed.
    pub retries: u64,
    pub ejections: u64,
    /// How often so many endpoints were ejected that all are used ([`crate::Ejection`]).
    pub panics: u64,
    /// Connections that waited for an endpoint, and those that wait now.
    pub held: u64,
    pub holding: u64,
    /// Connections that were reset: no endpoint, none reachable, or a limit.
    pub refused_empty: u64,
    pub refused_unreachable: u64,
    pub refused_limit: u64,
    /// Connections that ended by the idle or the half-close timeout.
    pub timed_out: u64,
    /// UDP sessions opened, and those open now.
    pub sessions: u64,
    pub active_sessions: u64,
    /// Datagrams that could not be forwarded: no endpoint, or a full socket.
    pub dropped_datagrams: u64,
    pub endpoints: BTreeMap<SocketAddr, EndpointCounters>,
}

/// An endpoint that the pool has now. The counters of one that leaves and comes back start at zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    pub connections: u64,
    pub active: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub datagrams_in: u64,
    pub datagrams_out: u64,
    pub failed_dials: u64,
    pub ejections: u64,
    /// Left out now because of failed dials.
    pub ejected: bool,
    /// UDP sessions that are open now, and all that were ever opened.
    pub sessions: u64,
    pub all_sessions: u64,
    /// The moving average of its latency, if it was measured.
    pub latency_micros: u64,
}
