//! Applying changes after the first sync: Services, the node's own settings, tidying and draining.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ferroxy_core::{ServiceName, resolve};
use ferroxy_dataplane::{Failure, Outcome, Receipt};
use tracing::{debug, info, warn};

use super::notes::{Notes, Took};
use super::queue::backoff;
use super::round::{Round, Tried};
use super::sweep::Sweeper;
use super::{Agent, MANY, nanoseconds_since_1970};
use crate::journal::{Entry, What};
use crate::memory::give_memory_back;
use crate::serve::health::Step;

impl Agent {
    /// One round: small changes, then some work on large ones. Services that do not fit stay due.
    pub(super) fn change_services(&mut self, now: Instant) {
        let due = self.queue.due(now);
        if due.is_empty() {
            return;
        }
        let (later, at_once): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|name| self.courtesy.is_unresolved(name));
        self.resolve(&at_once, now);
        let small = self.waiting.small(&at_once, self.dataplane.acknowledged());
        if !small.changes.is_empty() {
            self.courtesy.small_changed(now);
        }
        self.change(small, now);
        self.change_large(&at_once, &later, now);
    }

    /// Resolves one large Service, and programs a portion of one. Then these Services rest.
    fn change_large(&mut self, resolved: &[ServiceName], unresolved: &[ServiceName], now: Instant) {
        let began = Instant::now();
        let next = self.courtesy.take_next(unresolved);
        let next = next.as_slice();
        self.resolve(next, now);
        // Most changes of large Services are small: those are programmed whole.
        let whole = self.waiting.small(next, self.dataplane.acknowledged());
        self.change(whole, now);
        let mut due = [resolved, next].concat();
        due.sort();
        let portion = self.waiting.portion(&due, self.dataplane.acknowledged());
        let worked: BTreeSet<ServiceName> = portion.tried.all().chain(next).cloned().collect();
        self.change(portion, now);
        let took = began.elapsed();
        for name in worked {
            if let Some(until) = self.courtesy.worked(&name, took, now + took) {
                self.queue.postpone(&name, until);
            }
        }
    }

    fn resolve(&mut self, due: &[ServiceName], now: Instant) {
        let is_cut = self.queue.is_cut();
        for name in due {
            if self.waiting.has(name) {
                continue;
            }
            let resolution = resolve::service(&self.facts, name);
            let mut diagnostics = resolution.diagnostics;
            diagnostics.extend(resolution.intent.iter().flat_map(|it| self.dataplane.shortcomings(it)));
            self.reports.service(name, diagnostics, now);
            self.follow_probes(name, resolution.probing);
            let desired = resolution.intent.map(Into::into);
            self.waiting.add(name.clone(), desired, self.dataplane.acknowledged(), is_cut);
        }
    }

    fn change(&mut self, round: Round, now: Instant) {
        let Round { changes, tried } = round;
        if changes.is_empty() {
            return;
        }
        self.pause_sweeper(true);
        let mut notes = self.take_notes(&changes);
        let began = Instant::now();
        let changed = self.dataplane.change(changes);
        let in_kernel = began.elapsed();
        match changed {
            Ok(outcome) => {
                if outcome.operations > 0 {
                    // Logged from -v=2: a busy cluster has many of them each second, on every node.
                    debug!("{} changed: {} in {:.1?}", names(&tried), describe(&outcome), now.elapsed());
                }
                let many = tried.whole.len() > MANY;
                self.finished(&outcome, &tried, &mut notes, now);
                let took = Took { whole: now.elapsed(), in_kernel };
                self.write_notes(notes, &tried, &outcome, took);
                if many {
                    give_memory_back();
                }
                self.status.done(Step::Services, now, &outcome.receipt);
            }
            Err(error) => {
                self.status.failed(Step::Services, &error);
                let waits = tried.all().map(|name| self.failed(name, now)).collect::<Vec<_>>();
                let wait = waits.into_iter().min().unwrap_or_default();
                warn!("cannot program {}: {error}; retrying in {wait:?}", names(&tried));
                // Part of the change may be in force.
                self.plan_to_tidy(now);
                if error.is_drift() {
                    self.verify_due = Some(now);
                }
            }
        }
        self.pause_sweeper(false);
    }

    /// The Service is resolved again when it is retried. Returns the delay before the retry.
    fn failed(&mut self, name: &ServiceName, now: Instant) -> Duration {
        self.waiting.forget(name);
        self.queue.failed(name.clone(), now)
    }

    /// While rules are being programmed, no connection is judged: it may belong to an endpoint that the sweeper does not know
    /// yet.
    fn pause_sweeper(&self, pause: bool) {
        if let Some(sweeper) = &self.sweeper {
            sweeper.pause(pause);
        }
    }

    /// Removes Services that succeeded from the queue, delays refused ones, and schedules tidying.
    pub(super) fn finished(&mut self, outcome: &Outcome, tried: &Tried, notes: &mut Notes, now: Instant) {
        // A refused Service keeps its count of failures, which makes its retries slow down.
        for refusal in &outcome.refused {
            let wait = self.failed(&refusal.service, now);
            warn!("cannot program Service {}: {}; retrying in {wait:?}", refusal.service, refusal.reason);
        }
        let refused: BTreeSet<&ServiceName> = outcome.refused.iter().map(|it| &it.service).collect();
        let clock = nanoseconds_since_1970();
        for name in tried.whole.iter().filter(|name| !refused.contains(name)) {
            self.queue.done(name, now);
            for (family, seconds) in self.latency.programmed(name, clock) {
                self.status.programmed(family, seconds);
                notes.waited(name, seconds);
            }
        }
        if let Some(sweeper) = &mut self.sweeper {
            let in_force = tried.all().filter(|name| !refused.contains(name));
            sweeper.touched(&self.facts, self.dataplane.acknowledged(), in_force);
        }
        if outcome.drift {
            self.verify_due = Some(now);
        }
        self.status.partly(&tried.parts, self.dataplane.acknowledged());
        self.note_refusals(&outcome.refused);
        self.status.services(&tried.whole, &outcome.refused, self.dataplane.acknowledged());
        self.count_rules();
        self.plan_to_tidy(now);
        self.look_at_drains_soon(now);
    }

    pub(super) fn change_node(&mut self, failures: u32) {
        self.node_due = None;
        let began = Instant::now();
        let (node, diagnostics) = resolve::node(&self.facts);
        self.reports.node(diagnostics, began);
        let changed = match self.dataplane.has_node(&node) {
            Ok(true) => {
                self.status.done(Step::Node, began, &Receipt::default());
                return;
            }
            Ok(false) => self.dataplane.change_node(node),
            Err(error) => Err(error),
        };
        match changed {
            Ok(outcome) => {
                let words = format!("the node's own settings changed: {}", describe(&outcome));
                info!("{words}");
                self.note(|| Entry {
                    took: Some(began.elapsed().as_secs_f64()),
                    operations: outcome.operations,
                    ..Entry::new(What::Node, &words)
                });
                // Node ports of UDP Services may answer on other addresses now.
                let udp: Vec<_> = self.sweeper.iter().flat_map(Sweeper::services).cloned().collect();
                udp.into_iter().for_each(|name| self.enqueue(name, Instant::now()));
                self.status.node(self.dataplane.acknowledged());
                self.count_rules();
                self.status.done(Step::Node, began, &outcome.receipt);
            }
            Err(error) => {
                let wait = backoff(failures);
                self.status.failed(Step::Node, &error);
                warn!("cannot program the node's settings: {error}; retrying in {wait:?}");
                self.node_due = Some((Instant::now() + wait, failures + 1));
                if error.is_drift() {
                    self.verify_due = Some(Instant::now());
                }
            }
        }
    }

    fn plan_to_tidy(&mut self, now: Instant) {
        if self.dataplane.tidies().is_some() {
            self.tidy_due.get_or_insert(now + self.periods.tidy);
        }
    }

    /// Checks draining endpoints soon: one without connections need not wait for the periodic check.
    fn look_at_drains_soon(&mut self, now: Instant) {
        if self.dataplane.drains().is_some_and(|drains| drains.next_look().is_some()) {
            let soon = now + self.periods.tidy;
            self.drain_due = Some(self.drain_due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Schedules the next check of draining endpoints.
    pub(super) fn plan_to_drain(&mut self, now: Instant) {
        if let Some(wait) = self.dataplane.drains().and_then(|drains| drains.next_look()) {
            self.drain_due.get_or_insert(now + wait);
        }
    }

    pub(super) fn tidy(&mut self) {
        self.tidy_due = None;
        let began = Instant::now();
        if let Some(tidied) = self.dataplane.tidies().map(|it| it.tidy())
            && let Err(error) = self.tidied(began, tidied)
        {
            debug!("cannot remove unused state: {error}");
            self.tidy_due = Some(Instant::now() + self.periods.tidy);
        }
    }

    pub(super) fn drain(&mut self) {
        self.drain_due = None;
        let began = Instant::now();
        if let Some(drained) = self.dataplane.drains().map(|it| it.drain())
            && let Err(error) = self.tidied(began, drained)
        {
            debug!("cannot remove drained endpoints: {error}");
        }
    }

    /// Traffic does not depend on tidying or draining; but a failure may show drift.
    fn tidied(&mut self, began: Instant, result: Result<Outcome, Failure>) -> Result<(), Failure> {
        match result {
            Ok(outcome) => {
                self.status.done(Step::Tidy, began, &outcome.receipt);
                if outcome.operations > 0 {
                    debug!("removed unused state: {} operations", outcome.operations);
                }
                Ok(())
            }
            Err(error) => {
                self.status.failed(Step::Tidy, &error);
                if error.is_drift() {
                    self.verify_due = Some(Instant::now());
                }
                Err(error)
            }
        }
    }

    pub(super) fn count_rules(&self) {
        if let Some(counts) = self.dataplane.counts_rules() {
            self.status.rules(&counts.rule_counts());
        }
        if let Some(counts) = self.dataplane.counts_refusals() {
            self.status.refusals(counts.refusals());
        }
    }
}

fn names(tried: &Tried) -> String {
    match (&*tried.whole, &*tried.parts) {
        ([name], []) => name.to_string(),
        ([], [name]) => format!("part of {name}"),
        _ => format!("{} Services", tried.all().count()),
    }
}

pub(super) fn describe(outcome: &Outcome) -> String {
    let Receipt { messages, bytes, .. } = outcome.receipt;
    match (outcome.operations, bytes) {
        (0, _) => "nothing to send".into(),
        (number, 0) => format!("{}, {messages} messages", operations(number)),
        (number, _) => format!("{}, {bytes} bytes", operations(number)),
    }
}

/// `1 operation`, `2 operations`
pub(super) fn operations(number: usize) -> String {
    if number == 1 { "1 operation".into() } else { format!("{number} operations") }
}
