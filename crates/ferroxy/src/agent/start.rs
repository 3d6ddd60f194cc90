//! The first sync: wait for the whole cluster and our Node, then program the most important Services first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroxy_core::policy::DetectLocal;
use ferroxy_core::{Diagnostic, Intent, ServiceIntent, ServiceName, resolve};
use ferroxy_dataplane::{Failure, Outcome};
use tracing::{error, info, warn};

use super::notes::Notes;
use super::portion;
use super::program::describe;
use super::queue::backoff;
use super::round::{PORTION, Tried, rounds};
use super::{Agent, Input, Receiver};
use crate::memory::give_memory_back;
use crate::serve::health::Step;

/// The original waits as long for each.
const NODE_ADDRESS_WAIT: Duration = Duration::from_secs(30);
const POD_CIDR_WAIT: Duration = Duration::from_secs(5 * 60);

/// When waiting is first logged, and how often from then on.
const SILENCE: Duration = Duration::from_secs(3);
const REMINDER: Duration = Duration::from_secs(30);

/// How a wait ended.
#[derive(Debug, PartialEq, Eq)]
enum Waited {
    Reached,
    GaveUp,
    Stopped(&'static str),
}

impl Agent {
    /// Takes inputs until the whole cluster is known, and our Node with its addresses. Programs nothing: state of an earlier run
    /// stays in force. Returns the reason when it is asked to stop.
    pub fn gather(&mut self, inputs: &Receiver) -> Option<&'static str> {
        let name = self.facts.policy().node_name.clone();
        let listed = "the API server's first complete list of Services and EndpointSlices";
        if let Waited::Stopped(why) = self.wait(inputs, listed, None, |agent| agent.listed) {
            return Some(why);
        }
        let addresses = format!("Node {name} and its addresses");
        let has_address = |agent: &Agent| {
            agent
                .facts
                .own_node()
                .is_some_and(|node| !node.internal_ips.is_empty() || !node.external_ips.is_empty())
        };
        match self.wait(inputs, &addresses, Some(NODE_ADDRESS_WAIT), has_address) {
            Waited::Stopped(why) => return Some(why),
            Waited::GaveUp => warn!(
                "Node {name} does not exist or has no address: until it has one, `primary` in nodePortAddresses is ignored, \
                 unless bindAddress is set (check --hostname-override)"
            ),
            Waited::Reached => {}
        }
        if self.facts.policy().detect_local == DetectLocal::NodeCidr {
            let cidrs = format!("the pod CIDRs of Node {name} (detectLocalMode NodeCIDR)");
            let has_cidr =
                |agent: &Agent| agent.facts.own_node().is_some_and(|node| !node.pod_cidrs.is_empty());
            match self.wait(inputs, &cidrs, Some(POD_CIDR_WAIT), has_cidr) {
                Waited::Stopped(why) => return Some(why),
                Waited::GaveUp => warn!(
                    "Node {name} has no pod CIDR: until it has one, external traffic to cluster IPs is not masqueraded; check \
                     --allocate-node-cidrs of kube-controller-manager, or set another detectLocalMode"
                ),
                Waited::Reached => {}
            }
        }
        None
    }

    fn wait(
        &mut self,
        inputs: &Receiver,
        what: &str,
        patience: Option<Duration>,
        reached: impl Fn(&Agent) -> bool,
    ) -> Waited {
        let began = Instant::now();
        let mut say_at = began + SILENCE;
        while !reached(self) {
            let now = Instant::now();
            if patience.is_some_and(|patience| now >= began + patience) {
                return Waited::GaveUp;
            }
            if now >= say_at {
                info!("waiting for {what}; existing state stays in force");
                say_at = now + REMINDER;
            }
            let until = patience.map_or(say_at, |patience| say_at.min(began + patience));
            if let Some(why) = self.receive(inputs, until) {
                return Waited::Stopped(why);
            }
        }
        Waited::Reached
    }

    /// Takes one input, if one arrives before the deadline. Programs nothing.
    fn receive(&mut self, inputs: &Receiver, deadline: Instant) -> Option<&'static str> {
        match inputs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Input::Stop(why)) => return Some(why),
            Ok(Input::Events(events)) => drop(self.apply(events)),
            Ok(Input::Listed) => self.listed = true,
            Ok(Input::Ask(question)) => self.answer(question),
            Ok(Input::SourceDiagnostics(found)) => self.source_says(found),
            Ok(Input::Reconfigured(new)) => drop(self.reconfigure(*new)),
            Ok(Input::Drift(_)) | Err(_) => {}
        }
        None
    }

    /// The first sync, retried until it succeeds.
    pub fn start(&mut self, inputs: &Receiver) -> Option<&'static str> {
        let mut failures = 0;
        let known = self.facts.counts();
        self.status.starting(known.services as u64, known.slices as u64, self.facts.own_node());
        self.status.queued();
        loop {
            match self.try_start() {
                Ok(()) => return None,
                Err(error) => {
                    let wait = backoff(failures);
                    failures += 1;
                    self.status.failed(Step::Start, &error);
                    error!("first sync failed: {error}; retrying in {wait:?}");
                    let deadline = Instant::now() + wait;
                    while Instant::now() < deadline {
                        if let Some(why) = self.receive(inputs, deadline) {
                            return Some(why);
                        }
                    }
                }
            }
        }
    }

    fn shortcomings(&self, services: &[Arc<ServiceIntent>]) -> Vec<Diagnostic> {
        services.iter().flat_map(|it| self.dataplane.shortcomings(it)).collect()
    }

    fn try_start(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let large = self.sync_all(began)?;
        // All Intents are freed by now. Shrinking rebuilds the facts in their memory; the rest is returned to the system.
        self.queue.started();
        self.facts.shrink();
        give_memory_back();
        large.into_iter().for_each(|name| self.enqueue(name, began));
        Ok(())
    }

    /// Returns the large Services that have to wait.
    fn sync_all(&mut self, began: Instant) -> Result<Vec<ServiceName>, Failure> {
        let (intent, mut diagnostics) = resolve::all(&self.facts);
        diagnostics.extend(self.facts.orphans());
        let services: Vec<Arc<ServiceIntent>> = intent.services.values().cloned().collect();
        let assumed = self.shortcomings(&services);
        self.reports.all([&diagnostics[..], &assumed].concat(), began);
        let (intent, large) = self.set_large_aside(intent)?;
        let outcome = self.program_in_order(&intent)?;
        self.status.node(self.dataplane.acknowledged());
        // Programming made the dataplane query the host, so it may know more shortcomings now.
        let known = self.shortcomings(&services);
        if known != assumed {
            self.reports.all([diagnostics, known].concat(), began);
        }
        let tried = Tried { whole: intent.services.keys().cloned().collect(), parts: Vec::new() };
        self.finished(&outcome, &tried, &mut Notes::default(), began);
        self.status.done(Step::Start, began, &outcome.receipt);
        self.take_over();
        self.follow_all_probes();
        // Before the log line: its reader may query the page at once.
        self.report_progress();
        self.log_start(intent.services.len(), &outcome, began);
        if !large.is_empty() {
            info!("{} large Services are programmed next, in portions", large.len());
        }
        Ok(large)
    }

    fn log_start(&self, tried: usize, outcome: &Outcome, began: Instant) {
        let counts = self.facts.counts();
        let words = format!(
            "in sync: {} of {} Services programmed, {} endpoints",
            tried.saturating_sub(outcome.refused.len()),
            counts.services,
            counts.endpoints,
        );
        info!("{words}; {} in {:.1?}", describe(outcome), began.elapsed());
        self.note_start(&words, outcome, began);
    }

    /// On a node without state, large Services come after all others. On other nodes, most of their state is in force already.
    fn set_large_aside(&mut self, mut intent: Intent) -> Result<(Intent, Vec<ServiceName>), Failure> {
        let is_cold = self.dataplane.persists().map_or(Ok(true), |it| it.is_cold())?;
        let mut large = Vec::new();
        if is_cold && self.queue.is_cut() {
            intent.services.retain(|name, service| {
                let is_large = portion::size(None, Some(service), PORTION) > PORTION;
                let waits = is_large && !is_needed_first(name, service);
                if waits {
                    large.push(name.clone());
                }
                !waits
            });
        }
        Ok((intent, large))
    }

    /// On a node without state, Services that other workloads depend on come first: a pod that waits for DNS or for the API
    /// server does not wait for ten thousand other Services.
    fn program_in_order(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        let is_cold = self.dataplane.persists().map_or(Ok(true), |it| it.is_cold())?;
        if !is_cold {
            return self.dataplane.start(intent);
        }
        type Services = BTreeMap<ServiceName, std::sync::Arc<ServiceIntent>>;
        let (first, later): (Services, Services) =
            intent.services.clone().into_iter().partition(|(name, service)| is_needed_first(name, service));
        if first.is_empty() || later.is_empty() {
            return self.dataplane.start(intent);
        }
        let mut outcome = self.dataplane.start(&Intent { node: intent.node.clone(), services: first })?;
        let later = later.into_iter().map(|(name, service)| (name, Some(service)));
        let rounds = if self.queue.is_cut() { rounds(later) } else { vec![later.collect()] };
        for changes in rounds {
            outcome.add(self.dataplane.change(changes)?);
        }
        Ok(outcome)
    }
}

/// The API server's own Service, and the cluster's DNS.
fn is_needed_first(name: &ServiceName, service: &ServiceIntent) -> bool {
    let serves_dns =
        || service.ports.iter().flat_map(|port| &port.frontends).any(|frontend| frontend.port == 53);
    *name == ServiceName::new("default", "kubernetes") || (name.namespace() == "kube-system" && serves_dns())
}
