//! What is counted as long as it lasts: a connection, a session, a dial. Dropping it ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Pool;
use super::endpoint::Endpoint;
use super::totals::Totals;
use crate::clock::{self, Nanos};

/// One more in a gauge of the pool.
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

/// A connection to an endpoint, from the moment it is dialled: choices by load count those that are on their way.
#[derive(Debug)]
pub struct Use(pub Arc<Endpoint>);

impl Use {
    pub fn begin(endpoint: Arc<Endpoint>) -> Use {
        endpoint.tally.active.fetch_add(1, Relaxed);
        Use(endpoint)
    }

    /// The endpoint has answered. With the time when the dial began, its latency is measured.
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
