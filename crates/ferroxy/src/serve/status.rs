//! The state of the agent, shared with the HTTP servers. The agent writes, the servers read; neither holds the lock for
//! longer than it takes to copy a few numbers.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferroxy_core::facts::Node;
use ferroxy_core::{Family, ServiceName};
use ferroxy_source::Occurrence;
use tokio::sync::Notify;

use crate::agent::{Depth, Gauge};
use crate::config::Config;
use crate::journal::{Entry, Journal, What};
use ferroxy_dataplane::capability::{RefusalCount, RuleCount};
use ferroxy_dataplane::{Acknowledged, Receipt, Refusal};

use super::changes::Reported;
use super::counts::{Connections, Counts, Rules};
use super::frontends::Frontends;
use super::health::{Health, Progress, Step};
use super::idle::Idle;
use super::left_out::Excess;
use super::moment::Moment;
use super::ports::Ports;
use super::probes::Probes;
use super::requests::Request;
use super::without_local::WithoutLocal;

/// The cluster autoscaler taints a node with this before it removes it.
const GOING_AWAY: &str = "ToBeDeletedByClusterAutoscaler";

/// The default of `trafficMetricsMaxSeries`.
const MOST_TRAFFIC_SERIES: usize = 20_000;

/// A source without a sign of life for this long is not ready. An API server is probed after 10 seconds of silence,
/// manifests are checked every 10 seconds.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Status {
    now: Mutex<Now>,
    /// Notified when health-check node ports must be opened or closed.
    ports_changed: Notify,
    /// Sends events to the API server, if there is one.
    recorder: OnceLock<Recorder>,
    probe: OnceLock<Probe>,
    inputs: OnceLock<Gauge>,
    pub probes: Probes,
    pub idle: Idle,
    /// Only if the page or traces read it.
    pub journal: Option<Journal>,
}

/// Sends an event to the API server.
struct Recorder(Box<dyn Fn(Occurrence) + Send + Sync>);

/// Queries the state of the source.
struct Probe(Box<dyn Fn() -> SourceState + Send + Sync>);

/// Everything the servers can report.
#[derive(Debug)]
pub struct Now {
    pub families: Vec<Family>,
    pub health: Health,
    /// Our Node object is known, and the node is not about to be removed.
    pub node_eligible: bool,
    pub source: Source,
    /// The proxy was ready at some time, as seen by `/readyz`.
    pub was_ready: bool,
    /// Services that the kernel refused, and why.
    pub refused: BTreeMap<ServiceName, String>,
    pub progress: Progress,
    /// The inputs that wait for the agent.
    pub inputs: Depth,
    pub ports: Ports,
    pub without_local: WithoutLocal,
    pub left_out: Excess,
    pub counts: Counts,
    /// The Services whose traffic is counted; `None` while traffic is not counted.
    pub frontends: Option<Frontends>,
    /// The limit for series of traffic.
    pub most_traffic_series: usize,
    /// The configuration in force, if it is not the one the process started with.
    pub changed_config: Option<Box<Config>>,
    /// The version that the API server reports: `v1.37.0`.
    pub cluster_version: Option<String>,
}

/// The source of Services and EndpointSlices: the API server, or manifests.
#[derive(Debug, Default)]
pub struct Source {
    pub is_stopping: bool,
    pub state: SourceState,
    /// Why no more changes will ever be reported, if the thread of the source has ended. Only a restart helps.
    pub ended: Option<&'static str>,
}

/// The state of the source, as it reports it.
#[derive(Debug, Clone, Default)]
pub struct SourceState {
    /// The last time the source worked: a change, an answer of the API server, a check of the files.
    pub last_sign: Option<Moment>,
    /// Changes are being reported, as far as the source knows.
    pub is_following: bool,
    /// One for each kind of object, if the source is an API server.
    pub watches: Vec<Watch>,
}

/// The state of the watch of one kind of object.
#[derive(Debug, Clone)]
pub struct Watch {
    /// The name in API paths: `services`.
    pub resource: &'static str,
    /// Listed completely at least once, and a watch is open.
    pub alive: bool,
    /// The last event or sign of life on this watch.
    pub last_activity: Option<Moment>,
}

/// For the servers.
impl Status {
    pub fn new(families: &[Family], sync_period: Duration) -> Status {
        let now = Now {
            families: families.to_vec(),
            health: Health::new(sync_period, Moment::now()),
            node_eligible: false,
            source: Source::default(),
            was_ready: false,
            refused: BTreeMap::new(),
            progress: Progress::default(),
            inputs: Depth::default(),
            ports: Ports::default(),
            without_local: WithoutLocal::default(),
            left_out: Excess::default(),
            counts: Counts::default(),
            frontends: None,
            most_traffic_series: MOST_TRAFFIC_SERIES,
            changed_config: None,
            cluster_version: None,
        };
        Status {
            now: Mutex::new(now),
            ports_changed: Notify::new(),
            recorder: OnceLock::new(),
            probe: OnceLock::new(),
            inputs: OnceLock::new(),
            probes: Probes::default(),
            idle: Idle::default(),
            journal: None,
        }
    }

    pub fn now(&self) -> MutexGuard<'_, Now> {
        // A panic while writing leaves numbers, not broken references: they can still be read.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, with the present state of the source.
    pub fn refreshed(&self) -> MutexGuard<'_, Now> {
        let state = self.probe.get().map(|probe| (probe.0)());
        let inputs = self.inputs.get().map(Gauge::depth).unwrap_or_default();
        let mut now = self.now();
        now.inputs = inputs;
        if let Some(mut state) = state {
            if inputs.is_full {
                state.is_busy(Moment::now());
            }
            now.source.state = state;
        }
        now
    }

    /// Returns when the set of health-check node ports has changed since the last call.
    pub async fn ports_changed(&self) {
        self.ports_changed.notified().await;
    }

    /// Counts connections of one of the servers.
    pub fn connections(&self, server: &'static str, count: impl FnOnce(&mut Connections)) {
        count(self.now().counts.connections.entry(server).or_default());
    }

    /// The limit for series of traffic; `None` while traffic is not counted.
    pub fn traffic_limit(&self) -> Option<usize> {
        let now = self.now();
        now.frontends.as_ref().map(|_| now.most_traffic_series)
    }

    pub fn has_frontends(&self, name: &ServiceName) -> bool {
        self.now().frontends.as_ref().is_some_and(|frontends| frontends.has(name))
    }
}

/// For the source.
impl Status {
    /// Sends events through this function from now on. The first call counts.
    pub fn record_events_with(&self, emit: impl Fn(Occurrence) + Send + Sync + 'static) {
        let _ = self.recorder.set(Recorder(Box::new(emit)));
    }

    /// Sends an event to the API server, if there is one.
    pub fn record_event(&self, occurrence: Occurrence) {
        if let Some(recorder) = self.recorder.get() {
            (recorder.0)(occurrence);
        }
    }

    /// Sets how to query the state of the source. It is queried for every answer, so that no answer is out of date. The first
    /// call counts.
    pub fn probe_source(&self, probe: impl Fn() -> SourceState + Send + Sync + 'static) {
        let _ = self.probe.set(Probe(Box::new(probe)));
    }

    /// The queue in front of the agent. The first call counts.
    pub fn show_inputs(&self, gauge: Gauge) {
        let _ = self.inputs.set(gauge);
    }

    /// The agent stops. From now on, the end of the source is expected and not written to the journal.
    pub fn stopping(&self) {
        self.now().source.is_stopping = true;
    }

    /// The thread of the source has ended: no change will be reported any more.
    pub fn source_ended(&self, why: &'static str) {
        self.now().source.ended = Some(why);
        let is_news = !self.now().source.is_stopping;
        self.journal.iter().filter(|_| is_news).for_each(|it| it.write(Entry::new(What::Source, why)));
    }

    pub fn requested(&self, request: Request<'_>) {
        self.now().counts.requests.count(request);
    }

    /// The version that the API server reports: `v1.37.0`.
    pub fn cluster_version(&self, version: &str) {
        self.now().cluster_version = Some(version.to_owned());
    }
}

/// For the agent.
impl Status {
    /// The source or the host reported these changes; this is our Node now.
    pub fn reported(&self, changes: Reported, node: Option<&Node>) {
        let mut now = self.now();
        now.node_eligible = node.is_some_and(is_eligible);
        now.counts.changes.reported(changes);
    }

    /// The first sync begins, with this many objects.
    pub fn starting(&self, services: u64, slices: u64, node: Option<&Node>) {
        let mut now = self.now();
        now.node_eligible = node.is_some_and(is_eligible);
        now.counts.changes.known(services, slices);
    }

    /// A change waits to be sent to the kernel.
    pub fn queued(&self) {
        let (mut now, moment) = (self.now(), Moment::now());
        now.health.queued(moment);
        now.counts.last_queued = Some(moment);
    }

    pub fn done(&self, step: Step, began: Instant, receipt: &Receipt) {
        let (mut now, moment) = (self.now(), Moment::now());
        now.health.done(step, moment);
        now.counts.sent(receipt);
        now.counts.done(step, moment.instant.saturating_duration_since(began), moment);
        if step == Step::Start {
            let Now { counts, refused, .. } = &mut *now;
            counts.changes.first_sync(refused.keys());
        }
    }

    pub fn failed(&self, step: Step, reason: &dyn Display) {
        let (mut now, reason) = (self.now(), reason.to_string());
        let is_known = now.health.failing().get(&step).is_some_and(|failing| failing.reason == reason);
        let news = self.journal.as_ref().filter(|_| !is_known);
        let news = news.map(|it| (it, Entry::new(What::Failed, &format!("{}: {reason}", step.words()))));
        now.health.failed(step, reason, Moment::now());
        now.counts.failed(step);
        drop(now);
        news.into_iter().for_each(|(journal, entry)| journal.write(entry));
    }

    /// These Services were sent to the kernel, which refused some of them.
    pub fn services(&self, tried: &[ServiceName], refused: &[Refusal], in_force: &Acknowledged) {
        self.partly(tried, in_force);
        let mut now = self.now();
        for name in tried {
            now.refused.remove(name);
        }
        now.refused.extend(refused.iter().map(|it| (it.service.clone(), it.reason.clone())));
        for name in tried {
            if !now.refused.contains_key(name) {
                now.counts.changes.programmed(name);
            }
        }
        now.counts.partial_sync_failures += refused.len() as u64;
    }

    /// At least a part of these Services is in force.
    pub fn partly(&self, names: &[ServiceName], in_force: &Acknowledged) {
        let mut now = self.now();
        let mut other_ports = false;
        for name in names {
            let service = in_force.service(name);
            let service = service.as_deref();
            now.without_local.replace(name, service);
            now.left_out.replace(name, service);
            if let Some(frontends) = &mut now.frontends {
                frontends.replace(name, service);
            }
            other_ports |= now.ports.replace(name, service);
        }
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

    pub fn progress(&self, progress: Progress) {
        self.now().progress = progress;
    }

    /// The kernel has a change of endpoints, `seconds` after it was made in the API.
    pub fn programmed(&self, family: Family, seconds: f64) {
        self.now().counts.of_family[family as usize].network_programming.observe(seconds);
    }

    /// A sweep for stale connections has ended.
    pub fn swept(&self, family: Family, took: Duration, deleted: u64) {
        let mut now = self.now();
        let counts = &mut now.counts.of_family[family as usize];
        counts.conntrack_sweep.observe(took.as_secs_f64());
        counts.conntrack_deleted += deleted;
    }

    /// The number of rules, if the mode programs Services as rules.
    pub fn rules(&self, counts: &[RuleCount]) {
        let count = |it: &RuleCount| ((it.family, it.group), Rules { total: it.total, last: it.last });
        self.now().counts.rules.extend(counts.iter().map(count));
    }

    /// Refusals so far, object by object.
    pub fn refusals(&self, counts: Vec<RefusalCount>) {
        self.now().counts.refusals = counts;
    }

    /// Packets that the dataplane has counted so far, by key.
    pub fn packets(&self, counted: &[(&'static str, u64)]) {
        self.now().counts.packets.extend(counted.iter().copied());
    }

    /// A changed configuration is in force.
    pub fn reconfigured(&self, config: Box<Config>) {
        let mut now = self.now();
        now.most_traffic_series = config.traffic_metrics_max_series as usize;
        now.changed_config = Some(config);
    }

    /// Sets the limit for series of traffic.
    pub fn limit_traffic_series(&self, most: usize) {
        self.now().most_traffic_series = most;
    }
}

impl Now {
    /// The first sync is done, and the source reports changes.
    pub fn is_ready(&self, now: Moment) -> bool {
        self.health.first_sync_done() && self.source.is_alive(now)
    }

    /// Changes that the source reports are programmed, now and later. If this is false, only a restart helps.
    ///
    /// A source that cannot reach its API server for a while does not count: the rules in the kernel stay right for as
    /// long as nothing changes, a restart does not help, and load balancers must not leave every node at once.
    pub fn is_healthy(&self, now: Moment) -> bool {
        self.health.is_healthy(now) && self.source.ended.is_none()
    }
}

impl Source {
    /// Changes are being reported, and the source gave a sign of life in the last minute.
    pub fn is_alive(&self, now: Moment) -> bool {
        let is_fresh = self.state.last_sign.is_some_and(|sign| sign.age(now) < LONGEST_SILENCE);
        self.ended.is_none() && self.state.is_following && is_fresh
    }
}

impl SourceState {
    /// An API server: all watches must be open, and one of them must show that the server is there.
    pub fn of_watches(watches: Vec<Watch>) -> SourceState {
        let last_sign =
            watches.iter().filter_map(|watch| watch.last_activity).max_by_key(|last| last.instant);
        let is_following = !watches.is_empty() && watches.iter().all(|watch| watch.alive);
        SourceState { last_sign, is_following, watches }
    }

    /// The agent is behind, and the source waits for it: that does not count as silence.
    fn is_busy(&mut self, now: Moment) {
        self.last_sign = self.last_sign.map(|_| now);
        for watch in &mut self.watches {
            watch.last_activity = watch.last_activity.map(|_| now);
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

fn is_eligible(node: &Node) -> bool {
    !node.gone && !node.deleting && node.taints.iter().all(|taint| taint != GOING_AWAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Input;
    use crate::serve::changes::ChangeKind;
    use ferroxy_core::{Event, Facts, event};

    fn status() -> Status {
        Status::new(&Family::ALL, Duration::from_secs(30))
    }

    /// Whether the node is eligible when its object has this state.
    fn eligible(node: Option<event::Node>) -> bool {
        let policy = ferroxy_core::Policy { node_name: "ka".into(), ..Default::default() };
        let (mut facts, status) = (Facts::new(policy), status());
        if let Some(node) = node {
            facts.apply(Event::Node(node));
        }
        status.starting(0, 0, facts.own_node());
        status.now().node_eligible
    }

    #[test]
    fn a_source_that_waits_for_the_agent_is_alive() {
        let status = status();
        status.done(Step::Start, Instant::now(), &Receipt::default());
        let long_ago = Moment::ago(2 * LONGEST_SILENCE).unwrap();
        let watch = Watch { resource: "services", alive: true, last_activity: Some(long_ago) };
        status.probe_source(move || SourceState::of_watches(vec![watch.clone()]));
        let (sender, inputs) = crate::agent::inbox();
        let gauge = sender.gauge();
        status.show_inputs(gauge.clone());
        let is_ready = || status.refreshed().is_ready(Moment::now());
        assert!(!is_ready(), "it is silent, and nothing explains why");
        let slice =
            event::EndpointSlice { endpoints: vec![Default::default(); 100_000], ..Default::default() };
        let flood = move || while sender.send(Input::Events(vec![Event::Slice(slice.clone())])).is_ok() {};
        let flooding = std::thread::spawn(flood);
        while !gauge.depth().is_full {
            std::thread::yield_now();
        }
        assert!(is_ready());
        drop(inputs);
        flooding.join().unwrap();
        assert!(!is_ready());
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
        let (status, in_force) = (status(), Acknowledged::default());
        let (web, api) = (ServiceName::new("default", "web"), ServiceName::new("default", "api"));
        let receipt = Receipt { commits: 1, messages: 3, bytes: 100 };
        status.done(Step::Start, Instant::now(), &receipt);
        let mut changes = Reported::default();
        changes.add(ChangeKind::Service, &[web.clone()].into());
        changes.add(ChangeKind::Slice, &[web.clone()].into());
        changes.add(ChangeKind::Slice, &[api.clone()].into());
        status.reported(changes, None);
        let pending = || {
            let changes = &status.now().counts.changes;
            (changes.services.pending, changes.slices.pending)
        };
        assert_eq!(pending(), (1, 2));
        status.failed(Step::Services, &"no memory");
        assert_eq!(pending(), (1, 2));
        for step in [Step::Verify, Step::Node, Step::Tidy] {
            status.done(step, Instant::now(), &Receipt::default());
            assert_eq!(pending(), (1, 2), "{step:?} does not program Services");
        }
        status.services(std::slice::from_ref(&api), &[], &in_force);
        status.done(Step::Services, Instant::now(), &receipt);
        assert_eq!(pending(), (1, 1), "the other Service is not programmed yet");
        let refused = [Refusal { service: web.clone(), reason: "too large".to_owned() }];
        status.services(std::slice::from_ref(&web), &refused, &in_force);
        assert_eq!(pending(), (1, 1), "the kernel refused it");
        status.services(&[web], &[], &in_force);
        assert_eq!(pending(), (0, 0));
        let now = status.now();
        assert_eq!((now.counts.changes.services.total, now.counts.sync_failures()), (1, 2));
        assert_eq!((now.counts.kernel_messages, now.counts.kernel_bytes), (6, 200));
    }

    #[test]
    fn only_syncs_are_in_the_histogram_of_syncs() {
        let status = status();
        for step in [Step::Start, Step::Services, Step::Node, Step::Verify, Step::Tidy] {
            status.done(step, Instant::now(), &Receipt::default());
        }
        let now = status.now();
        let counts = &now.counts;
        assert_eq!(counts.sync.count(), 3);
        assert_eq!((counts.full_sync.count(), counts.partial_sync.count()), (1, 2));
        assert_eq!((counts.verification.count(), counts.cleanup.count()), (1, 1));
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
    fn a_failed_cleanup_is_not_a_failed_sync() {
        let status = status();
        status.failed(Step::Tidy, &"busy");
        status.done(Step::Tidy, Instant::now(), &Receipt::default());
        let now = status.now();
        assert_eq!((now.counts.sync_failures(), now.counts.cleanup_failures), (0, 1));
        assert!(now.counts.last_sync.is_none());
    }

    #[test]
    fn the_source_is_alive_while_every_watch_is_and_one_had_a_recent_sign_of_life() {
        let watch = |resource, alive, last_activity| Watch { resource, alive, last_activity };
        let of = |watches| Source { state: SourceState::of_watches(watches), ..Source::default() };
        let (early, late) = (Moment::now(), Moment::now());
        let one = of(vec![watch("services", true, Some(late)), watch("endpointslices", false, Some(early))]);
        assert!(!one.is_alive(late));
        assert_eq!(one.state.last_sign.map(|sign| sign.instant), Some(late.instant));
        let all = of(vec![watch("services", true, Some(late)), watch("endpointslices", true, None)]);
        assert!(all.is_alive(late));
        let after = |seconds| Moment { instant: late.instant + Duration::from_secs(seconds), ..late };
        assert!(all.is_alive(after(59)));
        assert!(!all.is_alive(after(60)), "a thread that hangs leaves its watches open");
        assert!(!of(Vec::new()).is_alive(late), "nothing is watched");
        assert!(!Source { ended: Some("the thread ended"), ..all }.is_alive(late));
    }

    #[test]
    fn the_source_is_asked_for_every_answer() {
        let status = status();
        let asked = std::sync::atomic::AtomicU64::new(0);
        status.probe_source(move || {
            let is_following = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1;
            SourceState { is_following, ..SourceState::default() }
        });
        assert!(!status.refreshed().source.state.is_following);
        assert!(status.refreshed().source.state.is_following);
        assert!(!status.refreshed().source.state.is_following);
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
