//! The agent: takes inputs, keeps the dataplane in line with them, and retries what failed.
//!
//! One thread owns everything; all other threads (`inputs.rs`, the source, the dataplane's watch) only send it [`Input`]s,
//! through a queue with a bound (`inbox.rs`).
//! `start.rs` leads to the first sync, `program.rs` applies changes from then on, `verify.rs` repairs drift, `takeover.rs`
//! removes what kube-proxy left, `sweep.rs` removes stale connections, `probes.rs` follows the health of endpoints. The agent knows a dataplane only by its contract:
//! it asks for capabilities and never looks at the mode's name.

mod courtesy;
mod inbox;
pub mod inputs;
mod latency;
mod notes;
mod portion;
mod probes;
mod program;
pub mod questions;
pub mod queue;
mod report;
mod round;
mod start;
mod sweep;
mod takeover;
mod verify;

use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ferroxy_core::facts::Touched;
use ferroxy_core::{Cause, Diagnostic, Event, Facts, Policy, ServiceName};
use tracing::{debug, info, warn};

use ferroxy_dataplane::{Dataplane, Mode, Settings};

use crate::host::notify::{Heart, Notifier};
use crate::journal::{Entry, What};
use crate::serve::Status;
use crate::serve::changes::{ChangeKind, Reported};
use crate::serve::health::Progress;
use courtesy::{Courtesy, LARGE};
pub use inbox::{Closed, Closing, Depth, Gauge, Receiver, Sender, inbox};
use latency::{Latency, Timing};
use probes::Probes;
pub use probes::prober;
use questions::Question;
use queue::Queue;
use report::Reports;
use round::Waiting;
use sweep::Sweeper;
use takeover::Takeover;

/// Everything the agent reacts to.
#[derive(Debug)]
pub enum Input {
    /// The cluster, or this host's addresses, changed.
    Events(Vec<Event>),
    /// The source has delivered its first complete list.
    Listed,
    /// The present problems of the source as a whole.
    SourceDiagnostics(Vec<Diagnostic>),
    /// The configuration changed.
    Reconfigured(Box<Reconfiguration>),
    /// Another program changed our state, or may have changed it.
    Drift(&'static str),
    /// The page, or a command, wants to know something.
    Ask(Question),
    Stop(&'static str),
}

/// A changed configuration, as far as the agent applies it while it runs.
#[derive(Debug)]
pub struct Reconfiguration {
    pub policy: Policy,
    pub settings: Settings,
    pub periods: Periods,
}

/// After a change of more Services than this, unused memory is returned to the system.
const MANY: usize = 1000;

/// Intervals and delays of the agent's periodic work.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// `syncPeriod`: how often to look for changes by other programs.
    pub verify: Duration,
    /// `minSyncPeriod`: the shortest time between two syncs of a Service that changes all the time, or of all Services.
    pub pace: Duration,
    /// The delay after a change before objects that it left unused are removed.
    pub tidy: Duration,
    /// How long to collect notifications of foreign changes before verifying.
    pub settle: Duration,
}

impl Default for Periods {
    fn default() -> Periods {
        Periods {
            verify: Duration::from_secs(30),
            pace: Duration::from_secs(1),
            tidy: Duration::from_secs(1),
            settle: Duration::from_millis(100),
        }
    }
}

#[derive(Debug)]
pub struct Agent {
    facts: Facts,
    dataplane: Box<dyn Dataplane>,
    periods: Periods,
    queue: Queue,
    /// Resolved Services of the queue: their desired Intents.
    waiting: Waiting,
    courtesy: Courtesy,
    /// When to program the node's own settings, and how often programming failed.
    node_due: Option<(Instant, u32)>,
    verify_due: Option<Instant>,
    tidy_due: Option<Instant>,
    drain_due: Option<Instant>,
    next_period: Instant,
    drift_repairs: u64,
    /// The difference that remained after the last repair, as last logged.
    unrepaired: Option<String>,
    reports: Reports,
    /// `None` where the dataplane has no stale connections.
    sweeper: Option<Sweeper>,
    latency: Latency,
    probes: Probes,
    takeover: Takeover,
    heart: Heart,
    /// The source has delivered its first complete list.
    listed: bool,
    /// Every object and manifest of the source could be read at least once.
    source_was_complete: bool,
    status: Arc<Status>,
}

impl Agent {
    pub fn new(
        mode: &Mode,
        facts: Facts,
        dataplane: Box<dyn Dataplane>,
        periods: Periods,
        status: Arc<Status>,
    ) -> Agent {
        let mut queue = Queue::new(mode.pace);
        queue.set_period(periods.pace);
        let sweeper = dataplane.sweeps_connections().map(|table| Sweeper::start(table, Arc::clone(&status)));
        Agent {
            facts,
            dataplane,
            periods,
            queue,
            waiting: Waiting::default(),
            courtesy: Courtesy::default(),
            node_due: None,
            verify_due: None,
            tidy_due: None,
            drain_due: None,
            next_period: Instant::now() + periods.verify,
            drift_repairs: 0,
            unrepaired: None,
            reports: Reports::default(),
            sweeper,
            latency: Latency::new(nanoseconds_since_1970()),
            probes: Probes::default(),
            takeover: Takeover::default(),
            heart: Notifier::default().heart(),
            listed: false,
            source_was_complete: true,
            status,
        }
    }

    /// For work on the dataplane after the agent has ended.
    pub fn dataplane(&mut self) -> &mut dyn Dataplane {
        &mut *self.dataplane
    }

    /// The heart beats as long as the agent, or a long call of the dataplane, makes progress.
    pub fn set_heart(&mut self, heart: Heart) {
        if let Some(signs) = self.dataplane.signs_of_life() {
            let heart = Mutex::new(heart.clone());
            signs.show_life(Box::new(move || {
                heart.lock().unwrap_or_else(PoisonError::into_inner).beat(Instant::now());
            }));
        }
        self.heart = heart;
    }

    /// Part of the source cannot be read: until it can, nothing is removed that may belong to that part. Call it before
    /// `start`.
    pub fn distrust_source(&mut self) {
        warn!("some objects or manifests cannot be read: keeping all existing rules until they can");
        self.source_was_complete = false;
        self.keep_unknown(true);
    }

    /// Runs until stopped; returns the reason.
    pub fn run(&mut self, inputs: &Receiver) -> &'static str {
        self.plan_to_drain(Instant::now());
        loop {
            self.heart.beat(Instant::now());
            let wait = self.next_deadline().saturating_duration_since(Instant::now());
            match inputs.recv_timeout(wait) {
                Ok(first) => {
                    // Inputs that arrive together are handled together.
                    if let Some(why) = self.handle(std::iter::once(first).chain(inputs.try_iter())) {
                        return why;
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.work(Instant::now()),
                Err(RecvTimeoutError::Disconnected) => return "all inputs have ended",
            }
        }
    }

    /// Takes inputs and does the work that is due. Returns the reason to stop, if an input asks for it.
    pub fn handle(&mut self, inputs: impl IntoIterator<Item = Input>) -> Option<&'static str> {
        for input in inputs {
            if let Some(why) = self.take(input) {
                return Some(why);
            }
        }
        self.work(Instant::now());
        None
    }

    fn take(&mut self, input: Input) -> Option<&'static str> {
        let now = Instant::now();
        match input {
            Input::Stop(why) => return Some(why),
            Input::SourceDiagnostics(found) => self.source_says(found),
            Input::Listed => self.listed = true,
            Input::Ask(question) => self.answer(question),
            Input::Drift(what) => {
                debug!("{what}: verifying");
                self.verify_due.get_or_insert(now + self.periods.settle);
            }
            Input::Events(events) => {
                let touched = self.apply(events);
                self.touch(touched, now);
            }
            Input::Reconfigured(new) => {
                let touched = self.reconfigure(*new);
                self.touch(touched, now);
            }
        }
        None
    }

    fn reconfigure(&mut self, new: Reconfiguration) -> Touched {
        let Reconfiguration { policy, settings, periods } = new;
        self.periods = periods;
        self.queue.set_period(periods.pace);
        self.next_period = self.next_period.min(Instant::now() + periods.verify);
        self.status.sync_period(periods.verify);
        self.note(|| Entry::new(What::Reconfigured, "a changed configuration is in force"));
        self.dataplane.configure(&settings);
        let mut touched = self.facts.set_policy(policy);
        // The dataplane compares its settings with those in force.
        touched.node = true;
        touched
    }

    /// The present problems of the source. When every object can be read for the first time, removing state becomes safe.
    fn source_says(&mut self, found: Vec<Diagnostic>) {
        if !self.source_was_complete && is_whole(&found) {
            info!("all objects can be read now: removing stale rules");
            self.source_was_complete = true;
            self.keep_unknown(false);
            self.verify_due = Some(Instant::now());
        }
        if let Some(words) = self.reports.source(found, Instant::now()) {
            self.note(|| Entry::new(What::Source, &words));
        }
    }

    fn keep_unknown(&mut self, keep: bool) {
        if let Some(persists) = self.dataplane.persists() {
            persists.keep_unknown(keep);
        }
    }

    fn apply(&mut self, events: Vec<Event>) -> Touched {
        let (mut touched, mut reported) = (Touched::default(), Reported::default());
        for event in events {
            let (kind, timing) = (ChangeKind::of(&event), Timing::of(&event));
            let is_list = matches!(event, Event::Listed { .. });
            let verdict = if let Event::Verdict(verdict) = &event { Some(verdict.clone()) } else { None };
            let by_this = self.facts.apply(event);
            self.latency.received(timing, &by_this.services);
            if let Some(verdict) = verdict.filter(|_| !by_this.is_empty()) {
                self.tell(&verdict, Instant::now());
            }
            // A repeated list is no change, unless it shows that an object is gone.
            if !is_list || !by_this.is_empty() {
                reported.add(kind, &by_this.services);
            }
            touched.merge(by_this);
        }
        self.status.reported(reported, self.facts.own_node());
        touched
    }

    fn touch(&mut self, touched: Touched, now: Instant) {
        let is_news = !touched.is_empty();
        if touched.node {
            self.node_due = Some((now, 0));
        }
        if touched.everything {
            let known: Vec<_> = self.facts.service_names().cloned().collect();
            let programmed: Vec<_> = self.dataplane.acknowledged().names().cloned().collect();
            known.into_iter().chain(programmed).for_each(|name| self.enqueue(name, now));
        }
        for name in touched.services {
            let can_wait = !touched.handed_over.contains(&name) && !touched.everything;
            self.enqueue(name.clone(), now);
            if can_wait {
                self.let_others_go_first(&name, now);
            }
        }
        if is_news && (self.node_due.is_some() || !self.queue.is_empty()) {
            self.status.queued();
        }
    }

    /// The Service changed: its earlier resolution is outdated.
    fn enqueue(&mut self, name: ServiceName, now: Instant) {
        self.waiting.forget(&name);
        self.courtesy.forget(&name);
        self.queue.add(name, now);
    }

    /// The change concerns no other Service. If the Service is large, it is resolved after the small ones.
    fn let_others_go_first(&mut self, name: &ServiceName, now: Instant) {
        if self.queue.is_cut()
            && self.facts.is_larger_than(name, LARGE)
            && let Some(until) = self.courtesy.changed(name, now)
        {
            self.queue.postpone(name, until);
        }
    }

    fn next_deadline(&self) -> Instant {
        let node = self.node_due.map(|(due, _)| due);
        [
            self.queue.next_due(),
            node,
            self.verify_due,
            self.tidy_due,
            self.drain_due,
            self.takeover.due(),
            self.heart.next_beat(),
        ]
        .into_iter()
        .flatten()
        .fold(self.next_period, Instant::min)
    }

    fn work(&mut self, now: Instant) {
        if now >= self.next_period {
            self.next_period = now + self.periods.verify;
            self.look_for_drift();
        }
        if self.verify_due.is_some_and(|due| due <= now) {
            self.verify();
        }
        if self.takeover.due().is_some_and(|due| due <= now) {
            self.take_over();
        }
        if let Some((_, failures)) = self.node_due.filter(|(due, _)| *due <= now) {
            self.change_node(failures);
        }
        // Before the changes: in-flight packets may still use what these changes leave unused.
        if self.tidy_due.is_some_and(|due| due <= now) {
            self.tidy();
        }
        if self.drain_due.is_some_and(|due| due <= now) {
            self.drain();
        }
        self.change_services(now);
        self.plan_to_drain(now);
        self.report_progress();
    }

    fn report_progress(&self) {
        self.status.progress(Progress {
            waiting: self.queue.len(),
            large: self.waiting.large() + self.courtesy.unresolved(),
            known: self.facts.service_count(),
            programmed: self.dataplane.acknowledged().len(),
        });
    }
}

/// The source can read everything it should: no object exists that it does not report.
pub fn is_whole(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|diagnostic| diagnostic.cause != Cause::SourceIncomplete)
}

/// Wall-clock time, only to compare with timestamps in API objects.
fn nanoseconds_since_1970() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "compared with timestamps in API objects")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
