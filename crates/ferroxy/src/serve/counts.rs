//! Counters, histograms and timestamps since the start of the process. `metrics.rs` writes them as pages.

use std::collections::BTreeMap;
use std::time::Duration;

use ferroxy_core::Family;

use ferroxy_dataplane::Receipt;
use ferroxy_dataplane::capability::RefusalCount;

use super::changes::Changes;
use super::exposition::Histogram;
use super::health::Step;
use super::moment::Moment;
use super::requests::Requests;

#[derive(Debug)]
pub struct Counts {
    /// Syncs only: the first one, changed Services, changed settings of the node.
    pub sync: Histogram,
    pub full_sync: Histogram,
    pub partial_sync: Histogram,
    pub verification: Histogram,
    /// Removal of unused rules and objects.
    pub cleanup: Histogram,
    pub last_sync: Option<Moment>,
    pub last_queued: Option<Moment>,
    pub changes: Changes,
    pub full_sync_failures: u64,
    pub partial_sync_failures: u64,
    pub cleanup_failures: u64,
    pub drift_repairs: u64,
    pub kernel_messages: u64,
    pub kernel_bytes: u64,
    /// By path and status code.
    pub health_answers: BTreeMap<(&'static str, u16), u64>,
    pub of_family: [FamilyCounts; 2],
    /// By family and group, if the mode programs Services as rules.
    pub rules: BTreeMap<(Family, &'static str), Rules>,
    /// Packets that the dataplane counts, by key.
    pub packets: BTreeMap<&'static str, u64>,
    /// Failures to program an object, by object.
    pub refusals: Vec<RefusalCount>,
    pub requests: Requests,
    /// Connections of our HTTP servers, by name.
    pub connections: BTreeMap<&'static str, Connections>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Connections {
    pub open: usize,
    /// Closed to make room for new connections.
    pub evicted: u64,
    /// Not accepted, for example for lack of file descriptors.
    pub accept_errors: u64,
}

/// Figures that can differ between the IP families.
#[derive(Debug)]
pub struct FamilyCounts {
    /// From the change of an endpoint in the API until the kernel has it.
    pub network_programming: Histogram,
    pub conntrack_sweep: Histogram,
    pub conntrack_deleted: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    pub total: u64,
    /// Rules that the last sync wrote.
    pub last: u64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            sync: Histogram::of_durations(),
            full_sync: Histogram::of_durations(),
            partial_sync: Histogram::of_durations(),
            verification: Histogram::of_durations(),
            cleanup: Histogram::of_durations(),
            last_sync: None,
            last_queued: None,
            changes: Changes::default(),
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
            refusals: Vec::new(),
            requests: Requests::default(),
            connections: BTreeMap::new(),
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

impl Counts {
    /// A step has succeeded. A verification that finds everything in place confirms the last sync, but is not one.
    pub fn done(&mut self, step: Step, took: Duration, now: Moment) {
        let seconds = took.as_secs_f64();
        match step {
            Step::Start => self.full_sync.observe(seconds),
            Step::Services | Step::Node => self.partial_sync.observe(seconds),
            Step::Verify => self.verification.observe(seconds),
            Step::Tidy => return self.cleanup.observe(seconds),
        }
        if step.is_sync() {
            self.sync.observe(seconds);
        }
        self.last_sync = Some(now);
    }

    /// A verification compares and repairs everything, so it fails like a full sync.
    pub fn failed(&mut self, step: Step) {
        match step {
            Step::Start | Step::Verify => self.full_sync_failures += 1,
            Step::Services | Step::Node => self.partial_sync_failures += 1,
            Step::Tidy => self.cleanup_failures += 1,
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
