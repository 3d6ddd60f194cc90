//! The agent: takes what happened, keeps the kernel at what it means, tries again what failed.
//!
//! One thread owns everything; the others (`inputs.rs`, the source, the dataplane's watch) only send it [`Input`]s.
//! Everything that can happen is a variant of that type. `start.rs` is the way to the first sync, `program.rs` what is
//! done to the kernel from then on.

pub mod inputs;
mod latency;
mod program;
pub mod queue;
mod report;
mod start;
mod sweep;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ferroxy_core::facts::Touched;
use ferroxy_core::{Diagnostic, Event, Facts, Policy};
use tracing::{debug, info, warn};

use crate::dataplane::{Dataplane, Mode};
use crate::host::notify::{Heart, Notifier};
use crate::serve::Status;
use crate::serve::status::changes_in;
use crate::takeover::Takeover;
use latency::Latency;
use queue::Queue;
use report::Reports;
use sweep::Sweeper;

/// Everything the agent reacts to.
#[derive(Debug)]
pub enum Input {
    /// The cluster, or this host's addresses, changed.
    Events(Vec<Event>),
    /// The source has shown all there is, for the first time.
    Listed,
    /// What is wrong with the source as a whole, as of now.
    SourceDiagnostics(Vec<Diagnostic>),
    /// The configuration changed.
    Settings(Box<Policy>, Periods),
    /// Somebody else changed our tables, or may have.
    Drift(&'static str),
    Stop(&'static str),
}

/// A change of more Services than this leaves enough memory behind to be worth giving back.
const MANY: usize = 1000;

/// How often things are done.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// `syncPeriod`: how often the kernel is asked whether anybody else changed rules.
    pub verify: Duration,
    /// `minSyncPeriod`: how often one Service, or all of them together, is programmed if it never rests.
    pub pace: Duration,
    /// How long after a change what it, and those after it, left unused is removed.
    pub tidy: Duration,
    /// How long notifications of foreign changes are gathered before they are looked into.
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
    /// When the node's own parameters are to be tried (again), and how often that failed.
    node_due: Option<(Instant, u32)>,
    verify_due: Option<Instant>,
    tidy_due: Option<Instant>,
    next_period: Instant,
    drift_repairs: u64,
    /// What a repair could not mend, as last told.
    unmended: Option<String>,
    reports: Reports,
    sweeper: Sweeper,
    latency: Latency,
    takeover: Takeover,
    heart: Heart,
    /// The source has shown all there is.
    listed: bool,
    /// Everything the source holds could be read at least once.
    source_was_whole: bool,
    status: Arc<Status>,
}

impl Agent {
    pub fn new(
        mode: Mode,
        facts: Facts,
        dataplane: Box<dyn Dataplane>,
        periods: Periods,
        status: Arc<Status>,
    ) -> Agent {
        let mut queue = Queue::new(dataplane.pace());
        queue.set_period(periods.pace);
        Agent {
            facts,
            dataplane,
            periods,
            queue,
            node_due: None,
            verify_due: None,
            tidy_due: None,
            next_period: Instant::now() + periods.verify,
            drift_repairs: 0,
            unmended: None,
            reports: Reports::default(),
            sweeper: Sweeper::start(Arc::clone(&status)),
            latency: Latency::new(nanoseconds_since_1970()),
            takeover: Takeover::new(mode),
            heart: Notifier::default().heart(),
            listed: false,
            source_was_whole: true,
            status,
        }
    }

    /// Beats as long as the agent gets round to its work.
    pub fn live_by(&mut self, heart: Heart) {
        self.dataplane.live_by(heart.clone());
        self.heart = heart;
    }

    /// The source could not be read in whole: until it can, nothing is removed from the kernel that may belong to what
    /// is unseen. Call it before `start`.
    pub fn distrust_source(&mut self) {
        warn!("not everything could be read: nothing that is in the kernel is removed until it can");
        self.source_was_whole = false;
        self.dataplane.keep_unknown(true);
    }

    /// Runs until told to stop; says why it was.
    pub fn run(&mut self, inputs: &Receiver<Input>) -> &'static str {
        self.plan_to_tidy(Instant::now());
        loop {
            self.heart.beat(Instant::now());
            let wait = self.next_deadline().saturating_duration_since(Instant::now());
            match inputs.recv_timeout(wait) {
                Ok(first) => {
                    // What has come together is done together.
                    for input in std::iter::once(first).chain(inputs.try_iter()) {
                        if let Some(why) = self.take(input) {
                            return why;
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return "nothing is left to listen to",
            }
            self.work(Instant::now());
        }
    }

    fn take(&mut self, input: Input) -> Option<&'static str> {
        let now = Instant::now();
        match input {
            Input::Stop(why) => return Some(why),
            Input::SourceDiagnostics(found) => self.source_says(found),
            Input::Listed => self.listed = true,
            Input::Drift(what) => {
                debug!("{what}: looking into it");
                self.verify_due.get_or_insert(now + self.periods.settle);
            }
            Input::Events(events) => {
                let touched = self.apply(events);
                self.touch(touched, now);
            }
            Input::Settings(policy, periods) => {
                let touched = self.change_settings(*policy, periods);
                self.touch(touched, now);
            }
        }
        None
    }

    fn change_settings(&mut self, policy: Policy, periods: Periods) -> Touched {
        self.periods = periods;
        self.queue.set_period(periods.pace);
        self.next_period = self.next_period.min(Instant::now() + periods.verify);
        self.status.sync_period(periods.verify);
        self.facts.set_policy(policy)
    }

    /// The source's troubles as of now. When there are none for the first time, removing is safe from here on.
    fn source_says(&mut self, found: Vec<Diagnostic>) {
        if !self.source_was_whole && is_whole(&found) {
            info!("everything could be read: what nobody asks for is removed from the kernel");
            self.source_was_whole = true;
            self.dataplane.keep_unknown(false);
            self.verify_due = Some(Instant::now());
        }
        self.reports.source(found);
    }

    fn apply(&mut self, events: Vec<Event>) -> Touched {
        let (services, slices) = changes_in(&events);
        let mut touched = Touched::default();
        events.iter().for_each(|event| self.latency.heard(event));
        events.into_iter().for_each(|event| touched.merge(self.facts.apply(event)));
        self.status.heard(services, slices, self.facts.own_node());
        touched
    }

    fn touch(&mut self, touched: Touched, now: Instant) {
        let is_news = !touched.is_empty();
        if touched.node {
            self.node_due = Some((now, 0));
        }
        if touched.everything {
            let known: Vec<_> = self.facts.service_names().cloned().collect();
            let programmed: Vec<_> =
                self.dataplane.acknowledged().services().map(|(name, _)| name.clone()).collect();
            known.into_iter().chain(programmed).for_each(|name| self.queue.add(name, now));
        }
        touched.services.into_iter().for_each(|name| self.queue.add(name, now));
        if is_news && (self.node_due.is_some() || !self.queue.is_empty()) {
            self.status.queued();
        }
    }

    fn next_deadline(&self) -> Instant {
        let node = self.node_due.map(|(due, _)| due);
        [
            self.queue.next_due(),
            node,
            self.verify_due,
            self.tidy_due,
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
            self.take_over(&[]);
        }
        if let Some((_, failures)) = self.node_due.filter(|(due, _)| *due <= now) {
            self.change_node(failures);
        }
        // Before the changes: what these leave unused is for the next time.
        if self.tidy_due.is_some_and(|due| due <= now) {
            self.tidy();
        }
        self.change_services(now);
        self.plan_to_tidy(now);
        self.status.queue_length(self.queue.len());
    }
}

/// No file is unreadable, in whole or in part.
pub fn is_whole(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|diagnostic| diagnostic.object.kind != "File")
}

/// By the clock on the wall: only to compare with times that others wrote down.
fn nanoseconds_since_1970() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "times that others wrote down")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
