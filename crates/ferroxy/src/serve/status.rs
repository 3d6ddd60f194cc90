//! What the agent says about its work, for those who ask over HTTP. The agent writes, the servers read; neither waits
//! for the other longer than it takes to copy a few numbers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_core::facts::Node;
use ferroxy_core::{Event, Family, ServiceName};
use ferroxy_source::kube::{Occurrence, Recorder};
use tokio::sync::Notify;

use crate::config::Config;
use ferroxy_dataplane::capability::RuleCount;
use ferroxy_dataplane::{Acknowledged, Receipt, Refusal};

use super::counts::{Counts, Rules};
use super::frontends::Frontends;
use super::health::{Health, Step};
use super::moment::Moment;
use super::ports::Ports;
use super::requests::Request;
use super::without_local::WithoutLocal;

/// The cluster autoscaler marks a node with this taint before it removes it.
const GOING_AWAY: &str = "ToBeDeletedByClusterAutoscaler";

/// Unless told otherwise.
const MOST_TRAFFIC_SERIES: usize = 20_000;

#[derive(Debug)]
pub struct Status {
    now: Mutex<Now>,
    /// Told when health-check node ports are to be opened or closed.
    ports_changed: Notify,
    /// Who tells people by events of the API, where there is an API.
    recorder: OnceLock<Recorder>,
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
    /// Whose traffic is counted; `None` while none is.
    pub frontends: Option<Frontends>,
    /// How many series of traffic are told at most.
    pub most_traffic_series: usize,
    /// The configuration in force, if it is not the one we started with.
    pub changed_config: Option<Box<Config>>,
    /// The version of Kubernetes that the cluster has, as its API server tells it: `v1.37.0`.
    pub cluster_version: Option<String>,
}

/// Whoever tells us about the cluster.
#[derive(Debug, Default)]
pub struct Source {
    pub last_word: Option<Moment>,
    pub is_alive: bool,
    /// One for each kind of object, where they come one by one.
    pub watches: Vec<Watch>,
}

/// How one kind of object is heard of.
#[derive(Debug, Clone)]
pub struct Watch {
    /// As the API's paths have it: `services`.
    pub resource: &'static str,
    /// Listed in whole at least once, and changes are being listened for.
    pub alive: bool,
    /// A change, or a sign that there was none.
    pub last_heard: Option<Moment>,
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
            frontends: None,
            most_traffic_series: MOST_TRAFFIC_SERIES,
            changed_config: None,
            cluster_version: None,
        };
        Status { now: Mutex::new(now), ports_changed: Notify::new(), recorder: OnceLock::new() }
    }

    pub fn now(&self) -> MutexGuard<'_, Now> {
        // Whoever panicked while writing left numbers, not references: they are as good as before.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when other health-check node ports are wanted than at the last call.
    pub async fn ports_changed(&self) {
        self.ports_changed.notified().await;
    }

    /// How many series of traffic may be told; `None` when none is counted.
    pub fn traffic_limit(&self) -> Option<usize> {
        let now = self.now();
        now.frontends.as_ref().map(|_| now.most_traffic_series)
    }

    pub fn has_frontends(&self, name: &ServiceName) -> bool {
        self.now().frontends.as_ref().is_some_and(|frontends| frontends.has(name))
    }
}

/// For whoever reads the source.
impl Status {
    /// From here on events are sent. The first call counts.
    pub fn tell_people_by(&self, recorder: Recorder) {
        let _ = self.recorder.set(recorder);
    }

    /// An event of the API; nothing where there is no API.
    pub fn tell_people(&self, occurrence: Occurrence) {
        if let Some(recorder) = self.recorder.get() {
            recorder.emit(occurrence);
        }
    }

    pub fn source_spoke(&self) {
        let mut now = self.now();
        now.source.last_word = Some(Moment::now());
        now.source.is_alive = true;
    }

    pub fn source_ended(&self) {
        self.now().source.is_alive = false;
    }

    /// What is heard of each kind of object: all of them must be alive for the source to be.
    pub fn source(&self, watches: Vec<Watch>) {
        let newest = watches.iter().filter_map(|watch| watch.last_heard).max_by_key(|heard| heard.instant);
        let is_alive = !watches.is_empty() && watches.iter().all(|watch| watch.alive);
        self.now().source = Source { last_word: newest, is_alive, watches };
    }

    pub fn requested(&self, request: Request<'_>) {
        self.now().counts.requests.count(request);
    }

    /// What the API server says it is: `v1.37.0`.
    pub fn cluster_version(&self, version: &str) {
        self.now().cluster_version = Some(version.to_owned());
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
        now.counts.failed(step);
    }

    /// These Services were tried. What the kernel has of them it has acknowledged; some of them it refused.
    pub fn services(
        &self,
        tried: &[ServiceName],
        refused: &[Refusal],
        in_force: &Acknowledged,
    ) {
        let mut now = self.now();
        let mut other_ports = false;
        for name in tried {
            let service = in_force.service(name).map(AsRef::as_ref);
            now.refused.remove(name);
            now.without_local.replace(name, service);
            if let Some(frontends) = &mut now.frontends {
                frontends.replace(name, service);
            }
            other_ports |= now.ports.replace(name, service);
        }
        now.refused.extend(refused.iter().map(|it| (it.service.clone(), it.reason.clone())));
        now.counts.partial_sync_failures += refused.len() as u64;
        drop(now);
        if other_ports {
            self.ports_changed.notify_one();
        }
    }

    /// The kernel has these settings of the node now.
    pub fn node(&self, in_force: &Acknowledged) {
        let mut now = self.now();
        match (in_force.node().count_traffic, &now.frontends) {
            (true, None) => now.frontends = Some(Frontends::of(in_force)),
            (false, Some(_)) => now.frontends = None,
            _ => {}
        }
        let other_ports = now.ports.answer_on(in_force.node());
        drop(now);
        if other_ports {
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

    /// A change of endpoints is in force, so long after it was made in the API.
    pub fn programmed(&self, family: Family, seconds: f64) {
        self.now().counts.of_family[family as usize].network_programming.observe(seconds);
    }

    /// Stale connections were looked for.
    pub fn swept(&self, family: Family, took: Duration, deleted: u64) {
        let mut now = self.now();
        let counts = &mut now.counts.of_family[family as usize];
        counts.conntrack_sweep.observe(took.as_secs_f64());
        counts.conntrack_deleted += deleted;
    }

    /// How many rules there are, where Services are rules.
    pub fn rules(&self, counts: &[RuleCount]) {
        let count = |it: &RuleCount| ((it.family, it.group), Rules { total: it.total, last: it.last });
        self.now().counts.rules.extend(counts.iter().map(count));
    }

    /// Packets that the dataplane has counted so far, by key.
    pub fn packets(&self, counted: &[(&'static str, u64)]) {
        self.now().counts.packets.extend(counted.iter().copied());
    }

    /// Another configuration is in force.
    pub fn reconfigured(&self, config: Box<Config>) {
        let mut now = self.now();
        now.most_traffic_series = config.traffic_metrics_max_series as usize;
        now.changed_config = Some(config);
    }

    /// How many series of traffic are told at most.
    pub fn limit_traffic_series(&self, most: usize) {
        self.now().most_traffic_series = most;
    }
}

impl Now {
    /// The first sync is done, and whoever tells us about the cluster still does.
    pub fn is_ready(&self) -> bool {
        self.health.first_sync_done() && self.source.is_alive
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
        assert_eq!((now.counts.service_changes.total, now.counts.sync_failures()), (1, 1));
        assert_eq!((now.counts.kernel_messages, now.counts.kernel_bytes), (3, 100));
    }

    #[test]
    fn a_refused_service_is_remembered_until_it_is_not() {
        let (status, in_force) = (status(), Acknowledged::default());
        let name = ServiceName::new("default", "web");
        let refusal = Refusal { service: name.clone(), reason: "too large".into() };
        status.services(std::slice::from_ref(&name), &[refusal], &in_force);
        assert_eq!(status.now().refused[&name], "too large");
        assert!(status.now().health.is_healthy(Moment::now()));
        status.services(&[name], &[], &in_force);
        assert!(status.now().refused.is_empty());
        assert_eq!(status.now().counts.sync_failures(), 1);
    }

    #[test]
    fn untidiness_is_no_failed_sync() {
        let status = status();
        status.failed(Step::Tidy, &"busy");
        status.done(Step::Tidy, Instant::now(), &Receipt::default());
        let now = status.now();
        assert_eq!((now.counts.sync_failures(), now.counts.cleanup_failures), (0, 1));
        assert!(now.counts.last_sync.is_none());
    }
    #[test]
    fn the_source_is_alive_while_every_watch_is() {
        let status = status();
        let watch = |resource, alive, last_heard| Watch { resource, alive, last_heard };
        let (early, late) = (Moment::now(), Moment::now());
        status.source(vec![watch("services", true, Some(late)), watch("endpointslices", false, Some(early))]);
        assert!(!status.now().source.is_alive);
        assert_eq!(status.now().source.last_word.map(|word| word.instant), Some(late.instant));
        status.source(vec![watch("services", true, Some(late)), watch("endpointslices", true, None)]);
        assert!(status.now().source.is_alive);
        status.source(Vec::new());
        assert!(!status.now().source.is_alive, "nobody listens");
    }

    #[test]
    fn frontends_are_known_while_traffic_is_counted() {
        use super::super::frontends::tests::{flow, service};
        use ferroxy_core::NodeIntent;
        let status = status();
        let web = service("web", "10.96.0.1", 30080);
        let known = |status: &Status| {
            let now = status.now();
            now.frontends.as_ref().is_some_and(|it| it.owner(&flow("10.96.0.1:80", "10.0.0.1:80")).is_some())
        };
        let in_force = |count_traffic| {
            let mut in_force = Acknowledged::new(NodeIntent { count_traffic, ..NodeIntent::default() });
            in_force.set_service(&web.name, Some(web.clone().into()));
            in_force
        };
        status.node(&in_force(false));
        status.services(std::slice::from_ref(&web.name), &[], &in_force(false));
        assert!(status.traffic_limit().is_none() && !known(&status));
        status.node(&in_force(true));
        assert!(
            status.traffic_limit() == Some(MOST_TRAFFIC_SERIES) && known(&status),
            "Services of before, too"
        );
        status.services(std::slice::from_ref(&web.name), &[], &Acknowledged::default());
        assert!(!known(&status), "it is gone");
        status.limit_traffic_series(50);
        assert_eq!(status.traffic_limit(), Some(50));
        status.node(&in_force(false));
        assert_eq!(status.traffic_limit(), None);
    }
}
