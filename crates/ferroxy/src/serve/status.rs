//! What the agent says about its work, for those who ask over HTTP. The agent writes, the servers read; neither waits
//! for the other longer than it takes to copy a few numbers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_core::facts::Node;
use ferroxy_core::{Event, Family, NodeIntent, ServiceName};
use tokio::sync::Notify;

use crate::dataplane::{Acknowledged, Receipt};

use super::exposition::Histogram;
use super::health::{Health, Step};
use super::moment::Moment;
use super::ports::Ports;
use super::without_local::WithoutLocal;

/// The cluster autoscaler marks a node with this taint before it removes it.
const GOING_AWAY: &str = "ToBeDeletedByClusterAutoscaler";

#[derive(Debug)]
pub struct Status {
    now: Mutex<Now>,
    /// Told when health-check node ports are to be opened or closed.
    ports_changed: Notify,
}

/// All there is to tell.
#[derive(Debug)]
pub struct Now {
    pub families: Vec<Family>,
    pub health: Health,
    /// The Node object is known, and the node is to stay.
    pub node_eligible: bool,
    pub source: Source,
    /// Services that the kernel refused, with its words.
    pub refused: BTreeMap<ServiceName, String>,
    pub queue_length: usize,
    pub ports: Ports,
    pub without_local: WithoutLocal,
    pub counts: Counts,
}

/// Whoever tells us about the cluster.
#[derive(Debug, Default)]
pub struct Source {
    pub last_word: Option<Moment>,
    pub is_alive: bool,
}

/// What only grows, and what was last.
#[derive(Debug)]
pub struct Counts {
    pub sync: Histogram,
    pub full_sync: Histogram,
    pub partial_sync: Histogram,
    pub last_sync: Option<Moment>,
    pub last_queued: Option<Moment>,
    pub service_changes: Changes,
    pub endpoint_changes: Changes,
    pub sync_failures: u64,
    pub cleanup_failures: u64,
    pub drift_repairs: u64,
    pub kernel_messages: u64,
    pub kernel_bytes: u64,
    /// By path and answer.
    pub health_answers: BTreeMap<(&'static str, u16), u64>,
}

#[derive(Debug, Default)]
pub struct Changes {
    pub total: u64,
    pub pending: u64,
}

/// For the servers.
impl Status {
    pub fn new(families: &[Family], sync_period: Duration) -> Status {
        let now = Now {
            families: families.to_vec(),
            health: Health::new(sync_period, Moment::now()),
            node_eligible: false,
            source: Source::default(),
            refused: BTreeMap::new(),
            queue_length: 0,
            ports: Ports::default(),
            without_local: WithoutLocal::default(),
            counts: Counts::default(),
        };
        Status { now: Mutex::new(now), ports_changed: Notify::new() }
    }

    pub fn now(&self) -> MutexGuard<'_, Now> {
        // Whoever panicked while writing left numbers, not references: they are as good as before.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when other health-check node ports are wanted than at the last call.
    pub async fn ports_changed(&self) {
        self.ports_changed.notified().await;
    }
}

/// For whoever reads the source.
impl Status {
    pub fn source_spoke(&self) {
        self.now().source = Source { last_word: Some(Moment::now()), is_alive: true };
    }

    pub fn source_ended(&self) {
        self.now().source.is_alive = false;
    }
}

/// For the agent.
impl Status {
    /// The source or the host told these, and this is our Node now.
    pub fn heard(&self, services: u64, slices: u64, node: Option<&Node>) {
        let mut now = self.now();
        now.node_eligible = node.is_some_and(is_eligible);
        now.counts.service_changes.heard(services);
        now.counts.endpoint_changes.heard(slices);
    }

    /// Something waits to be sent to the kernel.
    pub fn queued(&self) {
        let (mut now, moment) = (self.now(), Moment::now());
        now.health.queued(moment);
        now.counts.last_queued = Some(moment);
    }

    pub fn done(&self, step: Step, began: Instant, receipt: &Receipt) {
        let (mut now, moment) = (self.now(), Moment::now());
        now.health.done(step, moment);
        now.counts.sent(receipt);
        if step != Step::Tidy {
            now.counts.synced(step, moment.instant.saturating_duration_since(began), moment);
        }
    }

    pub fn failed(&self, step: Step, reason: &dyn Display) {
        let mut now = self.now();
        now.health.failed(step, reason.to_string(), Moment::now());
        match step {
            Step::Tidy => now.counts.cleanup_failures += 1,
            _ => now.counts.sync_failures += 1,
        }
    }

    /// These Services were tried. What the kernel has of them it has acknowledged; some of them it refused.
    pub fn services(
        &self,
        tried: &[ServiceName],
        refused: &[(ServiceName, String)],
        kernel: &dyn Acknowledged,
    ) {
        let mut now = self.now();
        let mut other_ports = false;
        for name in tried {
            let service = kernel.service(name).map(AsRef::as_ref);
            now.refused.remove(name);
            now.without_local.replace(name, service);
            other_ports |= now.ports.replace(name, service);
        }
        now.refused.extend(refused.iter().cloned());
        now.counts.sync_failures += refused.len() as u64;
        drop(now);
        if other_ports {
            self.ports_changed.notify_one();
        }
    }

    /// The kernel has these settings of the node now.
    pub fn node(&self, node: &NodeIntent) {
        if self.now().ports.answer_on(node) {
            self.ports_changed.notify_one();
        }
    }

    pub fn sync_period(&self, period: Duration) {
        self.now().health.set_sync_period(period);
    }

    pub fn drift_repaired(&self) {
        self.now().counts.drift_repairs += 1;
    }

    pub fn queue_length(&self, length: usize) {
        self.now().queue_length = length;
    }
}

impl Now {
    /// The first sync is done, and whoever tells us about the cluster still does.
    pub fn is_ready(&self) -> bool {
        self.health.first_sync_done() && self.source.is_alive
    }
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
            sync_failures: 0,
            cleanup_failures: 0,
            drift_repairs: 0,
            kernel_messages: 0,
            kernel_bytes: 0,
            health_answers: BTreeMap::new(),
        }
    }
}

impl Changes {
    fn heard(&mut self, number: u64) {
        self.total += number;
        self.pending += number;
    }
}

impl Counts {
    fn synced(&mut self, step: Step, took: Duration, now: Moment) {
        let kind = if step.is_full_sync() { &mut self.full_sync } else { &mut self.partial_sync };
        kind.observe(took.as_secs_f64());
        self.sync.observe(took.as_secs_f64());
        self.last_sync = Some(now);
        self.service_changes.pending = 0;
        self.endpoint_changes.pending = 0;
    }

    fn sent(&mut self, receipt: &Receipt) {
        self.kernel_messages += receipt.messages as u64;
        self.kernel_bytes += receipt.bytes as u64;
    }
}

/// How many of these events are about Services, and how many about EndpointSlices.
pub fn changes_in(events: &[Event]) -> (u64, u64) {
    let mut counts = (0, 0);
    for event in events {
        match event {
            Event::Service(_) | Event::ServiceGone { .. } => counts.0 += 1,
            Event::Slice(_) | Event::SliceGone { .. } => counts.1 += 1,
            Event::Node(_) | Event::NodeGone { .. } => {}
            Event::ServiceCidr(_) | Event::ServiceCidrGone { .. } | Event::HostAddresses(_) => {}
        }
    }
    counts
}

fn is_eligible(node: &Node) -> bool {
    !node.gone && !node.deleting && node.taints.iter().all(|taint| taint != GOING_AWAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroxy_core::{Facts, event};
    use ferroxy_nftables::ledger::Ledger;

    fn status() -> Status {
        Status::new(&Family::ALL, Duration::from_secs(30))
    }

    /// Whether the node is eligible, once we have heard of it in this state.
    fn eligible(node: Option<event::Node>) -> bool {
        let policy = ferroxy_core::Policy { node_name: "ka".into(), ..Default::default() };
        let (mut facts, status) = (Facts::new(policy), status());
        if let Some(node) = node {
            facts.apply(Event::Node(node));
        }
        status.heard(0, 0, facts.own_node());
        status.now().node_eligible
    }

    #[test]
    fn a_node_is_eligible_while_it_is_known_and_stays() {
        let node = event::Node { name: "ka".into(), ..Default::default() };
        let tainted = |key: &str| event::Node { taints: vec![key.into()], ..node.clone() };
        assert!(!eligible(None));
        assert!(eligible(Some(node.clone())));
        assert!(eligible(Some(tainted("node.kubernetes.io/unschedulable"))));
        assert!(!eligible(Some(tainted(GOING_AWAY))));
        assert!(!eligible(Some(event::Node { deleting: true, ..node.clone() })));
        assert!(!eligible(Some(event::Node { name: "kb".into(), ..node })));
    }

    #[test]
    fn changes_are_pending_until_the_kernel_has_them() {
        let status = status();
        let gone = || (String::from("default"), String::from("web"));
        let ((namespace, name), (slice_namespace, slice)) = (gone(), gone());
        let events = [
            Event::ServiceGone { namespace, name },
            Event::SliceGone { namespace: slice_namespace, name: slice },
            Event::HostAddresses(Vec::new()),
        ];
        let (services, slices) = changes_in(&events);
        status.heard(services, slices, None);
        let pending = || {
            let counts = &status.now().counts;
            (counts.service_changes.pending, counts.endpoint_changes.pending)
        };
        assert_eq!(pending(), (1, 1));
        status.failed(Step::Services, &"no memory");
        assert_eq!(pending(), (1, 1));
        let receipt = Receipt { transactions: 1, messages: 3, bytes: 100 };
        status.done(Step::Services, Instant::now(), &receipt);
        assert_eq!(pending(), (0, 0));
        let now = status.now();
        assert_eq!((now.counts.service_changes.total, now.counts.sync_failures), (1, 1));
        assert_eq!((now.counts.kernel_messages, now.counts.kernel_bytes), (3, 100));
    }

    #[test]
    fn a_refused_service_is_remembered_until_it_is_not() {
        let (status, ledger) = (status(), Ledger::default());
        let name = ServiceName::new("default", "web");
        status.services(std::slice::from_ref(&name), &[(name.clone(), "too large".into())], &ledger);
        assert_eq!(status.now().refused[&name], "too large");
        assert!(status.now().health.is_healthy(Moment::now()));
        status.services(&[name], &[], &ledger);
        assert!(status.now().refused.is_empty());
        assert_eq!(status.now().counts.sync_failures, 1);
    }

    #[test]
    fn untidiness_is_no_failed_sync() {
        let status = status();
        status.failed(Step::Tidy, &"busy");
        status.done(Step::Tidy, Instant::now(), &Receipt::default());
        let now = status.now();
        assert_eq!((now.counts.sync_failures, now.counts.cleanup_failures), (0, 1));
        assert!(now.counts.last_sync.is_none());
    }
}
