//! The part of a pool that the data path reads: immutable, replaced as a whole.

use std::net::SocketAddr;
use std::sync::Arc;

use super::endpoint::Endpoint;
use crate::clock::{NEVER, Nanos, nanos};
use crate::config::Pool;
use crate::pick::ejection::{self, Record, Usable};
use crate::pick::{Members, slow_start};

#[derive(Debug)]
pub struct Snapshot {
    pub config: Arc<Pool>,
    /// Sorted by address.
    pub endpoints: Arc<[Arc<Endpoint>]>,
    /// In the order of `endpoints`.
    records: Vec<Record>,
    pub usable: Usable,
    /// Until then, some endpoint may be in slow start.
    slow_until: Nanos,
}

impl Snapshot {
    /// The snapshot of a changed pool: endpoints that stay keep their state.
    pub fn next(before: &Snapshot, config: Arc<Pool>, now: Nanos) -> Snapshot {
        let mut addresses = config.endpoints.clone();
        addresses.sort_unstable();
        addresses.dedup();
        let joined = if before.endpoints.is_empty() { 0 } else { now };
        let mut endpoints = Vec::with_capacity(addresses.len());
        let mut records = Vec::with_capacity(addresses.len());
        for address in addresses {
            match before.find(address) {
                Some(place) => {
                    endpoints.push(before.endpoints[place].clone());
                    records.push(before.records[place]);
                }
                None => {
                    endpoints.push(Arc::new(Endpoint::new(address, joined)));
                    records.push(Record::default());
                }
            }
        }
        let slow_until = slow_until(&config, &endpoints);
        let usable = ejection::usable(&records, now);
        Snapshot { config, endpoints: endpoints.into(), records, usable, slow_until }
    }

    pub fn empty() -> Snapshot {
        Snapshot {
            config: Arc::new(Pool::default()),
            endpoints: Arc::new([]),
            records: Vec::new(),
            usable: Usable { until: NEVER, ..Usable::default() },
            slow_until: 0,
        }
    }

    pub fn find(&self, address: SocketAddr) -> Option<usize> {
        self.endpoints.binary_search_by(|it| it.address.cmp(&address)).ok()
    }

    pub fn is_usable(&self, place: usize) -> bool {
        u32::try_from(place).is_ok_and(|place| self.usable.members.binary_search(&place).is_ok())
    }

    pub fn is_ejected(&self, place: usize, now: Nanos) -> bool {
        self.records[place].is_ejected(now)
    }

    /// A copy with one record replaced. In any case, ejections that have ended are taken back.
    pub fn with_record(&self, replaced: Option<(usize, Record)>, now: Nanos) -> Snapshot {
        let mut records = self.records.clone();
        if let Some((place, record)) = replaced {
            records[place] = record;
        }
        Snapshot {
            config: self.config.clone(),
            endpoints: self.endpoints.clone(),
            usable: ejection::usable(&records, now),
            records,
            slow_until: self.slow_until,
        }
    }

    pub fn record(&self, place: usize) -> Record {
        self.records[place]
    }

    pub fn candidates<'a>(&'a self, tried: &'a [SocketAddr], now: Nanos) -> Candidates<'a> {
        let slow_start = self.config.slow_start.filter(|_| now < self.slow_until);
        Candidates { snapshot: self, tried, now, window: slow_start.map(|it| nanos(it.window)) }
    }
}

fn slow_until(config: &Pool, endpoints: &[Arc<Endpoint>]) -> Nanos {
    let Some(slow_start) = config.slow_start else { return 0 };
    let last = endpoints.iter().map(|it| it.joined).max().unwrap_or(0);
    if last == 0 { 0 } else { last.saturating_add(nanos(slow_start.window)) }
}

/// The usable endpoints as members of a choice.
#[derive(Debug)]
pub struct Candidates<'a> {
    snapshot: &'a Snapshot,
    tried: &'a [SocketAddr],
    now: Nanos,
    /// The window of slow start, while an endpoint may be in it.
    window: Option<Nanos>,
}

impl Candidates<'_> {
    pub fn endpoint(&self, member: usize) -> &Arc<Endpoint> {
        &self.snapshot.endpoints[self.snapshot.usable.members[member] as usize]
    }
}

impl Members for Candidates<'_> {
    fn count(&self) -> usize {
        self.snapshot.usable.members.len()
    }

    fn is_tried(&self, member: usize) -> bool {
        !self.tried.is_empty() && self.tried.contains(&self.endpoint(member).address)
    }

    fn active(&self, member: usize) -> u64 {
        let tally = &self.endpoint(member).tally;
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        tally.active.load(relaxed) + tally.active_sessions.load(relaxed)
    }

    fn latency(&self, member: usize) -> Option<u64> {
        self.endpoint(member).latency(self.now)
    }

    fn share(&self, member: usize) -> f32 {
        let Some(window) = self.window else { return 1.0 };
        let joined = self.endpoint(member).joined;
        if joined == 0 { 1.0 } else { slow_start::share(self.now.saturating_sub(joined), window) }
    }
}
