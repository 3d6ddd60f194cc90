//! What the proxy has counted and measured since it started: what only grows, and what was last. Pages of it are written
//! in `metrics.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use ferroxy_core::Family;

use ferroxy_dataplane::Receipt;

use super::exposition::Histogram;
use super::health::Step;
use super::moment::Moment;
use super::requests::Requests;

#[derive(Debug)]
pub struct Counts {
    pub sync: Histogram,
    pub full_sync: Histogram,
    pub partial_sync: Histogram,
    pub last_sync: Option<Moment>,
    pub last_queued: Option<Moment>,
    pub service_changes: Changes,
    pub endpoint_changes: Changes,
    pub full_sync_failures: u64,
    pub partial_sync_failures: u64,
    pub cleanup_failures: u64,
    pub drift_repairs: u64,
    pub kernel_messages: u64,
    pub kernel_bytes: u64,
    /// By path and answer.
    pub health_answers: BTreeMap<(&'static str, u16), u64>,
    pub of_family: [FamilyCounts; 2],
    /// By family and group, where Services are rules.
    pub rules: BTreeMap<(Family, &'static str), Rules>,
    /// Packets that the dataplane counts, by key.
    pub packets: BTreeMap<&'static str, u64>,
    pub requests: Requests,
}

/// What can differ between the IP families.
#[derive(Debug)]
pub struct FamilyCounts {
    /// From the change of an endpoint in the API to its being in force here.
    pub network_programming: Histogram,
    pub conntrack_sweep: Histogram,
    pub conntrack_deleted: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    pub total: u64,
    /// Written by the last sync.
    pub last: u64,
}

#[derive(Debug, Default)]
pub struct Changes {
    pub total: u64,
    pub pending: u64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            sync: Histogram::of_durations(),
            full_sync: Histogram::of_durations(),
            partial_sync: Histogram::of_durations(),
            last_sync: None,
            last_queued: None,
            service_changes: Changes::default(),
            endpoint_changes: Changes::default(),
            full_sync_failures: 0,
            partial_sync_failures: 0,
            cleanup_failures: 0,
            drift_repairs: 0,
            kernel_messages: 0,
            kernel_bytes: 0,
            health_answers: BTreeMap::new(),
            of_family: Default::default(),
            rules: BTreeMap::new(),
            packets: BTreeMap::new(),
            requests: Requests::default(),
        }
    }
}

impl Default for FamilyCounts {
    fn default() -> FamilyCounts {
        FamilyCounts {
            network_programming: Histogram::of_network_programming(),
            conntrack_sweep: Histogram::of_durations(),
            conntrack_deleted: 0,
        }
    }
}

impl Changes {
    pub fn heard(&mut self, number: u64) {
        self.total += number;
        self.pending += number;
    }
}

impl Counts {
    pub fn synced(&mut self, step: Step, took: Duration, now: Moment) {
        let kind = if step.is_full_sync() { &mut self.full_sync } else { &mut self.partial_sync };
        kind.observe(took.as_secs_f64());
        self.sync.observe(took.as_secs_f64());
        self.last_sync = Some(now);
        self.service_changes.pending = 0;
        self.endpoint_changes.pending = 0;
    }

    pub fn failed(&mut self, step: Step) {
        match step {
            Step::Tidy => self.cleanup_failures += 1,
            step if step.is_full_sync() => self.full_sync_failures += 1,
            _ => self.partial_sync_failures += 1,
        }
    }

    pub fn sync_failures(&self) -> u64 {
        self.full_sync_failures + self.partial_sync_failures
    }

    pub fn sent(&mut self, receipt: &Receipt) {
        self.kernel_messages += receipt.messages as u64;
        self.kernel_bytes += receipt.bytes as u64;
    }
}
