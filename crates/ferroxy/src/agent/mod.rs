//! The agent: takes what happened, keeps the kernel at what it means, tries again what failed.
//!
//! One thread owns everything; the others (`inputs.rs`) only send it [`Input`]s. Everything that can happen is a
//! variant of that type.

pub mod inputs;
pub mod queue;
mod report;
mod sweep;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ferroxy_core::facts::Touched;
use ferroxy_core::{Diagnostic, Event, Facts, ServiceName, resolve};
use ferroxy_nftables::Dataplane;
use ferroxy_nftables::apply::{ApplyError, Receipt};
use ferroxy_nftables::dataplane::{Outcome, suggests_drift};
use tracing::{debug, error, info, warn};

use crate::memory::give_memory_back;
use crate::serve::Status;
use crate::serve::health::Step;
use crate::serve::status::changes_in;
use queue::{Queue, backoff};
use report::Reports;
use sweep::Sweeper;

/// Everything the agent reacts to.
#[derive(Debug)]
pub enum Input {
    /// The cluster, or this host's addresses, changed.
    Events(Vec<Event>),
    /// What is wrong with the source as a whole, as of now.
    SourceDiagnostics(Vec<Diagnostic>),
    /// Somebody else changed our tables, or may have.
    Drift(&'static str),
    Stop(&'static str),
}

/// A change of more Services than this leaves enough memory behind to be worth giving back.
const MANY: usize = 1000;

/// How often things that need no cause are done.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// `syncPeriod`: how often the kernel's generation is compared with ours.
    pub verify: Duration,
    /// How long after a change the chains it left unused are removed.
    pub tidy: Duration,
    /// How long notifications of foreign changes are gathered before they are looked into.
    pub settle: Duration,
}

impl Default for Periods {
    fn default() -> Periods {
        Periods {
            verify: Duration::from_secs(30),
            tidy: Duration::from_secs(1),
            settle: Duration::from_millis(100),
        }
    }
}

#[derive(Debug)]
pub struct Agent {
    facts: Facts,
    dataplane: Dataplane,
    periods: Periods,
    queue: Queue,
    /// When the node's own parameters are to be tried (again), and how often that failed.
    node_due: Option<(Instant, u32)>,
    verify_due: Option<Instant>,
    tidy_due: Option<Instant>,
    next_period: Instant,
    /// The generation of the kernel's rules if nobody but us has changed anything.
    generation: u32,
    drift_repairs: u64,
    reports: Reports,
    sweeper: Sweeper,
    /// Everything the source holds could be read at least once.
    source_was_whole: bool,
    status: Arc<Status>,
}

impl Agent {
    pub fn new(facts: Facts, dataplane: Dataplane, periods: Periods, status: Arc<Status>) -> Agent {
        Agent {
            facts,
            dataplane,
            periods,
            queue: Queue::default(),
            node_due: None,
            verify_due: None,
            tidy_due: None,
            next_period: Instant::now() + periods.verify,
            generation: 0,
            drift_repairs: 0,
            reports: Reports::default(),
            sweeper: Sweeper::start(),
            source_was_whole: true,
            status,
        }
    }

    /// The source could not be read in whole: until it can, nothing is removed from the kernel that may belong to what
    /// is unseen. Call it before `start`.
    pub fn distrust_source(&mut self) {
        warn!("not everything could be read: nothing that is in the kernel is removed until it can");
        self.source_was_whole = false;
        self.dataplane.keep_unknown(true);
    }

    /// Brings the kernel to the facts known so far. Until that succeeds nothing else is done.
    pub fn start(&mut self, inputs: &Receiver<Input>) -> Option<&'static str> {
        let mut failures = 0;
        let known = self.facts.counts();
        self.status.heard(known.services as u64, known.slices as u64, self.facts.own_node());
        self.status.queued();
        loop {
            match self.try_start() {
                Ok(()) => return None,
                Err(error) => {
                    let wait = backoff(failures);
                    failures += 1;
                    self.status.failed(Step::Start, &error);
                    error!("cannot program the kernel: {error}; trying again in {wait:?}");
                    let deadline = Instant::now() + wait;
                    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
                        match inputs.recv_timeout(left) {
                            Ok(Input::Stop(why)) => return Some(why),
                            Ok(Input::Events(events)) => drop(self.apply(events)),
                            Ok(Input::SourceDiagnostics(found)) => self.source_says(found),
                            Ok(Input::Drift(_)) | Err(_) => {}
                        }
                    }
                }
            }
        }
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

    fn try_start(&mut self) -> Result<(), ApplyError> {
        let began = Instant::now();
        let (intent, diagnostics) = resolve::all(&self.facts);
        self.reports.all(diagnostics.into_iter().chain(self.facts.orphans()).collect());
        let outcome = self.dataplane.start(&intent)?;
        self.status.node(self.dataplane.ledger());
        self.finished(&outcome, intent.services.keys().cloned().collect(), began);
        self.status.done(Step::Start, began, &outcome.receipt);
        self.generation = self.dataplane.generation().unwrap_or_default();
        let counts = self.facts.counts();
        info!(
            "in sync: {} of {} Services programmed, {} endpoints; {} in {:.1?}",
            intent.services.len() - outcome.failed.len(),
            counts.services,
            counts.endpoints,
            describe(&outcome),
            began.elapsed(),
        );
        // Starting builds large things once; give their memory back.
        give_memory_back();
        Ok(())
    }

    /// Runs until told to stop; says why it was.
    pub fn run(&mut self, inputs: &Receiver<Input>) -> &'static str {
        loop {
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
            Input::Drift(what) => {
                debug!("{what}: looking into it");
                self.verify_due.get_or_insert(now + self.periods.settle);
            }
            Input::Events(events) => {
                let touched = self.apply(events);
                self.touch(touched, now);
            }
        }
        None
    }

    fn apply(&mut self, events: Vec<Event>) -> Touched {
        let (services, slices) = changes_in(&events);
        let mut touched = Touched::default();
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
                self.dataplane.ledger().services().map(|(name, _)| name.clone()).collect();
            known.into_iter().chain(programmed).for_each(|name| self.queue.add(name, now));
        }
        touched.services.into_iter().for_each(|name| self.queue.add(name, now));
        if is_news && (self.node_due.is_some() || !self.queue.is_empty()) {
            self.status.queued();
        }
    }

    fn next_deadline(&self) -> Instant {
        let node = self.node_due.map(|(due, _)| due);
        [self.queue.next_due(), node, self.verify_due, self.tidy_due]
            .into_iter()
            .flatten()
            .fold(self.next_period, Instant::min)
    }

    fn work(&mut self, now: Instant) {
        if now >= self.next_period {
            self.next_period = now + self.periods.verify;
            self.compare_generation();
        }
        if self.verify_due.is_some_and(|due| due <= now) {
            self.verify();
        }
        if let Some((_, failures)) = self.node_due.filter(|(due, _)| *due <= now) {
            self.change_node(failures);
        }
        self.change_services(now);
        if self.tidy_due.is_some_and(|due| due <= now) {
            self.tidy();
        }
        self.status.queue_length(self.queue.len());
    }

    fn change_services(&mut self, now: Instant) {
        let due = self.queue.due(now);
        if due.is_empty() {
            return;
        }
        let mut changes = Vec::with_capacity(due.len());
        for name in &due {
            let resolution = resolve::service(&self.facts, name);
            self.reports.service(name, resolution.diagnostics);
            changes.push((name.clone(), resolution.intent.map(Into::into)));
        }
        self.sweeper.pause();
        match self.dataplane.change(changes) {
            Ok(outcome) => {
                self.generation = self.generation.wrapping_add(outcome.receipt.transactions as u32);
                let names =
                    if due.len() == 1 { due[0].to_string() } else { format!("{} Services", due.len()) };
                if outcome.operations > 0 {
                    info!("{names} changed: {} in {:.1?}", describe(&outcome), now.elapsed());
                }
                let many = due.len() > MANY;
                self.finished(&outcome, due, now);
                if many {
                    give_memory_back();
                }
                self.status.done(Step::Services, now, &outcome.receipt);
            }
            Err(error) => {
                self.status.failed(Step::Services, &error);
                let waits = due.into_iter().map(|name| self.queue.failed(name, now));
                let wait = waits.min().unwrap_or_default();
                warn!("cannot program the change: {error}; trying again in {wait:?}");
                if suggests_drift(&error) {
                    self.verify_due = Some(now);
                }
            }
        }
        self.sweeper.resume();
    }

    /// Takes what succeeded off the queue, puts what failed off, and remembers to tidy up.
    fn finished(&mut self, outcome: &Outcome, tried: Vec<ServiceName>, now: Instant) {
        for name in &tried {
            self.queue.done(name);
        }
        for (name, words) in &outcome.failed {
            let wait = self.queue.failed(name.clone(), now);
            warn!("cannot program Service {name}: {words}; trying again in {wait:?}");
        }
        let failed: BTreeSet<&ServiceName> = outcome.failed.iter().map(|(name, _)| name).collect();
        let programmed = tried.iter().filter(|name| !failed.contains(name));
        self.sweeper.touched(&self.facts, self.dataplane.ledger(), programmed);
        if outcome.drift {
            self.verify_due = Some(now);
        }
        self.status.services(&tried, &outcome.failed, self.dataplane.ledger());
        if outcome.operations > 0 {
            self.tidy_due.get_or_insert(now + self.periods.tidy);
        }
    }

    fn change_node(&mut self, failures: u32) {
        self.node_due = None;
        let began = Instant::now();
        let (node, diagnostics) = resolve::node(&self.facts);
        self.reports.node(diagnostics);
        if node == *self.dataplane.ledger().node() {
            self.status.done(Step::Node, began, &Receipt::default());
            return;
        }
        match self.dataplane.change_node(node) {
            Ok(outcome) => {
                self.generation = self.generation.wrapping_add(outcome.receipt.transactions as u32);
                info!("the node's own settings changed: {}", describe(&outcome));
                // Their node ports answer on other addresses now.
                self.sweeper.services().for_each(|name| self.queue.add(name.clone(), Instant::now()));
                self.status.node(self.dataplane.ledger());
                self.status.done(Step::Node, began, &outcome.receipt);
            }
            Err(error) => {
                let wait = backoff(failures);
                self.status.failed(Step::Node, &error);
                warn!("cannot program the node's settings: {error}; trying again in {wait:?}");
                self.node_due = Some((Instant::now() + wait, failures + 1));
                if suggests_drift(&error) {
                    self.verify_due = Some(Instant::now());
                }
            }
        }
    }

    /// Notifications can be lost; the generation counts every change anybody made.
    fn compare_generation(&mut self) {
        match self.dataplane.generation() {
            Ok(generation) if generation == self.generation => {}
            Ok(_) => self.verify_due = Some(Instant::now()),
            Err(error) => warn!("cannot ask the kernel for its generation: {error}"),
        }
    }

    fn verify(&mut self) {
        self.verify_due = None;
        let began = Instant::now();
        // Asked for before: what changes while we look makes us look again at the next period.
        let generation = self.dataplane.generation();
        match self.dataplane.verify() {
            Ok(repair) => {
                let Receipt { transactions, .. } = repair.receipt;
                self.status.done(Step::Verify, began, &repair.receipt);
                self.generation = generation.unwrap_or_default().wrapping_add(transactions as u32);
                if !repair.plan.is_empty() {
                    self.drift_repairs += 1;
                    self.sweeper.rules_were_missing();
                    self.status.drift_repaired();
                    let examples: Vec<String> = repair.plan.ops().take(3).map(ToString::to_string).collect();
                    warn!(
                        "drift repaired ({} so far): {} operations, such as: {}",
                        self.drift_repairs,
                        repair.plan.len(),
                        examples.join("; "),
                    );
                }
            }
            Err(error) => {
                self.status.failed(Step::Verify, &error);
                warn!("cannot verify the kernel's rules: {error}; trying again");
                self.verify_due = Some(Instant::now() + Duration::from_millis(500));
            }
        }
    }

    fn tidy(&mut self) {
        self.tidy_due = None;
        let began = Instant::now();
        match self.dataplane.tidy() {
            Ok(outcome) => {
                self.generation = self.generation.wrapping_add(outcome.receipt.transactions as u32);
                self.status.done(Step::Tidy, began, &outcome.receipt);
                if outcome.operations > 0 {
                    debug!("removed {} unused chains", outcome.operations);
                }
            }
            Err(error) => {
                self.status.failed(Step::Tidy, &error);
                debug!("unused chains are still there: {error}");
                self.tidy_due = Some(Instant::now() + self.periods.tidy);
            }
        }
    }
}

/// No file is unreadable, in whole or in part.
pub fn is_whole(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|diagnostic| diagnostic.object.kind != "File")
}

fn describe(outcome: &Outcome) -> String {
    match outcome.operations {
        0 => "nothing to send".into(),
        n => format!("{n} operations, {} bytes", outcome.receipt.bytes),
    }
}
