//! Counters of a pool besides those of its endpoints, and the counts of endpoints that have left.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::Pool;
use super::endpoint::Endpoint;
use crate::clock;
use crate::counters::PoolCounters;

#[derive(Debug, Default)]
pub struct Totals {
    pub retries: AtomicU64,
    pub panics: AtomicU64,
    pub held: AtomicU64,
    pub holding: AtomicU64,
    pub dialing: AtomicU64,
    pub active: AtomicU64,
    pub active_sessions: AtomicU64,
    pub refused_empty: AtomicU64,
    pub refused_unreachable: AtomicU64,
    pub refused_limit: AtomicU64,
    pub timed_out: AtomicU64,
    pub dropped_datagrams: AtomicU64,
    departed: Mutex<Departed>,
}

/// Endpoints that have left. Changes and readers lock it; connections never do.
#[derive(Debug, Default)]
struct Departed {
    /// Endpoints with connections that are not finished.
    draining: Vec<Arc<Endpoint>>,
    /// The sum of the endpoints whose connections have finished.
    sum: PoolCounters,
}

impl Totals {
    /// Remembers what an endpoint has counted.
    pub fn departed(&self, endpoint: Arc<Endpoint>) {
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.draining.push(endpoint);
        departed.settle();
    }
}

impl Departed {
    /// Adds to the sum the endpoints that no connection or session refers to: their counts are final.
    fn settle(&mut self) {
        let draining = std::mem::take(&mut self.draining);
        for endpoint in draining {
            // A snapshot that is being read may hold the endpoint for a moment more; the next call then adds it.
            if Arc::strong_count(&endpoint) == 1 {
                add(&mut self.sum, &endpoint);
            } else {
                self.draining.push(endpoint);
            }
        }
    }
}

impl Pool {
    pub fn counters(&self) -> PoolCounters {
        let totals = &self.totals;
        let mut departed = totals.departed.lock().unwrap_or_else(PoisonError::into_inner);
        departed.settle();
        let mut sum = departed.sum.clone();
        departed.draining.iter().for_each(|endpoint| add(&mut sum, endpoint));
        drop(departed);
        let now = clock::now();
        let snapshot = self.snapshot();
        for (place, endpoint) in snapshot.endpoints.iter().enumerate() {
            add(&mut sum, endpoint);
            sum.endpoints.insert(endpoint.address, endpoint.counters(snapshot.is_ejected(place, now)));
        }
        PoolCounters {
            active: totals.active.load(Relaxed),
            active_sessions: totals.active_sessions.load(Relaxed),
            retries: totals.retries.load(Relaxed),
            panics: totals.panics.load(Relaxed),
            held: totals.held.load(Relaxed),
            holding: totals.holding.load(Relaxed),
            refused_empty: totals.refused_empty.load(Relaxed),
            refused_unreachable: totals.refused_unreachable.load(Relaxed),
            refused_limit: totals.refused_limit.load(Relaxed),
            timed_out: totals.timed_out.load(Relaxed),
            dropped_datagrams: totals.dropped_datagrams.load(Relaxed),
            ..sum
        }
    }
}

fn add(sum: &mut PoolCounters, endpoint: &Endpoint) {
    let tally = &endpoint.tally;
    sum.connections += tally.connections.load(Relaxed);
    sum.bytes_in += tally.bytes_in.load(Relaxed);
    sum.bytes_out += tally.bytes_out.load(Relaxed);
    sum.datagrams_in += tally.datagrams_in.load(Relaxed);
    sum.datagrams_out += tally.datagrams_out.load(Relaxed);
    sum.failed_dials += tally.failed_dials.load(Relaxed);
    sum.ejections += tally.ejections.load(Relaxed);
    sum.sessions += tally.sessions.load(Relaxed);
}
