//! An endpoint of one pool, with the counters and the latency of its connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::clock::Nanos;
use crate::counters::EndpointCounters;
use crate::pick::latency;

/// Shared by all threads. Connections keep it after the endpoint has left the pool.
#[derive(Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// When it joined a pool that had others; 0 if it was there from the beginning.
    pub joined: Nanos,
    has_left: AtomicBool,
    /// Failed dials since the last successful one.
    failures: AtomicU32,
    latency: AtomicU64,
    latency_at: AtomicU64,
    pub tally: Tally,
}

#[derive(Debug, Default)]
pub struct Tally {
    pub connections: AtomicU64,
    pub active: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub datagrams_in: AtomicU64,
    pub datagrams_out: AtomicU64,
    pub failed_dials: AtomicU64,
    pub ejections: AtomicU64,
    pub sessions: AtomicU64,
    pub active_sessions: AtomicU64,
}

impl Endpoint {
    pub fn new(address: SocketAddr, joined: Nanos) -> Endpoint {
        Endpoint {
            address,
            joined,
            has_left: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            latency: AtomicU64::new(0),
            latency_at: AtomicU64::new(0),
            tally: Tally::default(),
        }
    }

    pub fn leave(&self) {
        self.has_left.store(true, Relaxed);
    }

    pub fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    pub fn succeeded(&self) {
        // Usually nothing has to be written, and other cores keep their cache line.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// One more failed dial; returns how many in a row.
    pub fn failed(&self) -> u32 {
        self.tally.failed_dials.fetch_add(1, Relaxed);
        self.failures.fetch_add(1, Relaxed).saturating_add(1)
    }

    /// Of two samples at the same time, one may be lost.
    pub fn observe_latency(&self, sample: Nanos, now: Nanos) {
        let age = now.saturating_sub(self.latency_at.load(Relaxed));
        let average = self.average_latency();
        self.latency.store(latency::observe(average, age, sample).max(1), Relaxed);
        self.latency_at.store(now, Relaxed);
    }

    pub fn latency(&self, now: Nanos) -> Option<Nanos> {
        let age = now.saturating_sub(self.latency_at.load(Relaxed));
        self.average_latency().map(|average| latency::estimate(average, age))
    }

    pub fn counters(&self, ejected: bool) -> EndpointCounters {
        let tally = &self.tally;
        EndpointCounters {
            connections: tally.connections.load(Relaxed),
            active: tally.active.load(Relaxed),
            bytes_in: tally.bytes_in.load(Relaxed),
            bytes_out: tally.bytes_out.load(Relaxed),
            datagrams_in: tally.datagrams_in.load(Relaxed),
            datagrams_out: tally.datagrams_out.load(Relaxed),
            failed_dials: tally.failed_dials.load(Relaxed),
            ejections: tally.ejections.load(Relaxed),
            ejected,
            sessions: tally.active_sessions.load(Relaxed),
            all_sessions: tally.sessions.load(Relaxed),
            latency_micros: self.average_latency().unwrap_or(0) / 1000,
        }
    }

    fn average_latency(&self) -> Option<Nanos> {
        Some(self.latency.load(Relaxed)).filter(|it| *it != 0)
    }
}
