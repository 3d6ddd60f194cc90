//! What is done to the kernel after the first sync: changed Services, the node's own settings, drift, what is unused.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ferroxy_core::{Family, ServiceName, resolve};
use tracing::{debug, info, warn};

use super::queue::backoff;
use super::{Agent, MANY, nanoseconds_since_1970};
use crate::dataplane::{Changed, Outcome, Receipt};
use crate::memory::give_memory_back;
use crate::serve::health::Step;

impl Agent {
    pub(super) fn change_services(&mut self, now: Instant) {
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
                let names =
                    if due.len() == 1 { due[0].to_string() } else { format!("{} Services", due.len()) };
                if outcome.operations > 0 {
                    // From -v=2: in a busy cluster there are many a second, on every node.
                    debug!("{names} changed: {} in {:.1?}", describe(&outcome), now.elapsed());
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
                if error.drift {
                    self.verify_due = Some(now);
                }
            }
        }
        self.sweeper.resume();
    }

    /// Takes what succeeded off the queue, puts what failed off, and remembers to tidy up.
    pub(super) fn finished(&mut self, outcome: &Outcome, tried: Vec<ServiceName>, now: Instant) {
        for name in &tried {
            self.queue.done(name, now);
        }
        for (name, words) in &outcome.failed {
            let wait = self.queue.failed(name.clone(), now);
            warn!("cannot program Service {name}: {words}; trying again in {wait:?}");
        }
        let failed: BTreeSet<&ServiceName> = outcome.failed.iter().map(|(name, _)| name).collect();
        let programmed = tried.iter().filter(|name| !failed.contains(name));
        let clock = nanoseconds_since_1970();
        for name in programmed.clone() {
            let waited = self.latency.programmed(name, clock);
            waited.for_each(|(family, seconds)| self.status.programmed(family, seconds));
        }
        self.sweeper.touched(&self.facts, self.dataplane.acknowledged(), programmed);
        if outcome.drift {
            self.verify_due = Some(now);
        }
        self.status.services(&tried, &outcome.failed, self.dataplane.acknowledged());
        self.status.rules(&self.dataplane.rule_counts());
        if outcome.operations > 0 {
            self.tidy_due.get_or_insert(now + self.periods.tidy);
        }
    }

    pub(super) fn change_node(&mut self, failures: u32) {
        self.node_due = None;
        let began = Instant::now();
        let (node, diagnostics) = resolve::node(&self.facts);
        self.reports.node(diagnostics);
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
                info!("the node's own settings changed: {}", describe(&outcome));
                // Their node ports answer on other addresses now.
                self.sweeper.services().for_each(|name| self.queue.add(name.clone(), Instant::now()));
                self.status.node(self.dataplane.acknowledged());
                self.status.rules(&self.dataplane.rule_counts());
                self.status.done(Step::Node, began, &outcome.receipt);
            }
            Err(error) => {
                let wait = backoff(failures);
                self.status.failed(Step::Node, &error);
                warn!("cannot program the node's settings: {error}; trying again in {wait:?}");
                self.node_due = Some((Instant::now() + wait, failures + 1));
                if error.drift {
                    self.verify_due = Some(Instant::now());
                }
            }
        }
    }

    pub(super) fn look_for_drift(&mut self) {
        match self.dataplane.changed_by_others() {
            Ok(Changed::Nothing) => {}
            Ok(Changed::Elsewhere) => self.take_over(&[]),
            Ok(Changed::Ours) => self.verify_due = Some(Instant::now()),
            Err(error) => warn!("cannot ask the kernel whether rules were changed: {error}"),
        }
    }

    pub(super) fn verify(&mut self) {
        self.verify_due = None;
        let began = Instant::now();
        self.take_over(&[]);
        let verified = self.dataplane.verify();
        // It reads the kernel's whole ruleset into memory.
        if self.facts.counts().services > MANY {
            give_memory_back();
        }
        match verified {
            Ok(repair) if repair.unmended.is_some() => self.not_mended(repair.unmended),
            Ok(repair) => {
                self.unmended = None;
                self.status.done(Step::Verify, began, &repair.receipt);
                if repair.operations > 0 {
                    self.drift_repairs += 1;
                    self.sweeper.rules_were_missing();
                    self.status.drift_repaired();
                    self.status.rules(&self.dataplane.rule_counts());
                    warn!(
                        "drift repaired ({} so far): {} operations, such as: {}",
                        self.drift_repairs,
                        repair.operations,
                        repair.examples.join("; "),
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

    /// Somebody works against us, or a tool does not do what it is told. Told once; tried again every period.
    fn not_mended(&mut self, what: Option<String>) {
        if self.unmended != what {
            let what = what.as_deref().unwrap_or_default();
            self.status.failed(Step::Verify, &format!("still different after a repair: {what}"));
            warn!(
                "rules are still not as they should be after a repair, such as: {what}; trying again every {:?}",
                self.periods.verify
            );
        }
        self.unmended = what;
    }

    /// What kube-proxy left may belong to what we cannot see yet.
    pub(super) fn take_over(&mut self, replaced: &[Family]) {
        if self.source_was_whole {
            self.takeover.look(replaced, Instant::now());
        }
    }

    /// What is on its way out is looked at again and again, until it is gone.
    pub(super) fn plan_to_tidy(&mut self, now: Instant) {
        if let Some(wait) = self.dataplane.tidies_again() {
            self.tidy_due.get_or_insert(now + wait);
        }
    }

    pub(super) fn tidy(&mut self) {
        self.tidy_due = None;
        let began = Instant::now();
        match self.dataplane.tidy() {
            Ok(outcome) => {
                self.status.done(Step::Tidy, began, &outcome.receipt);
                if outcome.operations > 0 {
                    debug!("removed what was left unused: {} operations", outcome.operations);
                }
            }
            Err(error) => {
                self.status.failed(Step::Tidy, &error);
                debug!("what is unused is still there: {error}");
                let now = Instant::now();
                self.tidy_due = Some(now + self.periods.tidy);
                if error.drift {
                    self.verify_due = Some(now);
                }
            }
        }
    }
}

pub(super) fn describe(outcome: &Outcome) -> String {
    let Receipt { messages, bytes, .. } = outcome.receipt;
    let operations = match outcome.operations {
        0 => return "nothing to send".into(),
        1 => "1 operation".into(),
        n => format!("{n} operations"),
    };
    match bytes {
        0 => format!("{operations}, {messages} messages"),
        _ => format!("{operations}, {bytes} bytes"),
    }
}
