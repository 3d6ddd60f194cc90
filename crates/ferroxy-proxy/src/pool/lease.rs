//! Guards for gauges: a connection, a session or a dial counts until its guard is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Pool;
use super::endpoint::Endpoint;
use super::totals::Totals;
use crate::clock::{self, Nanos};

/// Adds one to a gauge of the pool until it is dropped.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<Pool>,
    gauge: fn(&Totals) -> &AtomicU64,
}

impl Lease {
    /// `None` if there are `limit` already.
    pub fn take(pool: &Arc<Pool>, gauge: fn(&Totals) -> &AtomicU64, limit: Option<u32>) -> Option<Lease> {
        let before = gauge(&pool.totals).fetch_add(1, Relaxed);
        let lease = Lease { pool: pool.clone(), gauge };
        limit.is_none_or(|limit| before < u64::from(limit)).then_some(lease)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        (self.gauge)(&self.pool.totals).fetch_sub(1, Relaxed);
    }
}

/// A connection to an endpoint, from the moment it is dialled: choices by load include dials in progress.
#[derive(Debug)]
pub struct Use(pub Arc<Endpoint>);

impl Use {
    pub fn begin(endpoint: Arc<Endpoint>) -> Use {
        endpoint.tally.active.fetch_add(1, Relaxed);
        Use(endpoint)
    }

    /// The endpoint has answered. Its latency is measured if `begun` is given, the time when the dial began.
    pub fn established(&self, begun: Option<Nanos>) {
        self.0.tally.connections.fetch_add(1, Relaxed);
        self.0.succeeded();
        if let Some(begun) = begun {
            let now = clock::now();
            self.0.observe_latency(now.saturating_sub(begun), now);
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.tally.active.fetch_sub(1, Relaxed);
    }
}
