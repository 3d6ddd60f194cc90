//! Drift: changes of our state by other programs. Noticed by watching or by a periodic check, then repaired.

use std::time::{Duration, Instant};

use ferroxy_dataplane::{Changed, Repair};
use tracing::warn;

use super::program::operations;
use super::{Agent, MANY};
use crate::journal::{Entry, What};
use crate::memory::give_memory_back;
use crate::serve::health::Step;

/// The delay after a verification that failed.
const RETRY: Duration = Duration::from_millis(500);

impl Agent {
    pub(super) fn look_for_drift(&mut self) {
        let Some(verifies) = self.dataplane.verifies() else { return };
        match verifies.changed_by_others() {
            Ok(Changed::Nothing) => {}
            Ok(Changed::Elsewhere) => self.take_over(),
            Ok(Changed::Ours) => self.verify_due = Some(Instant::now()),
            Err(error) => warn!("cannot check whether other programs changed Ferroxy's rules: {error}"),
        }
    }

    pub(super) fn verify(&mut self) {
        self.verify_due = None;
        let began = Instant::now();
        self.take_over();
        let Some(verified) = self.dataplane.verifies().map(|it| it.verify()) else { return };
        // Verification read everything into memory.
        if self.facts.counts().services > MANY {
            give_memory_back();
        }
        match verified {
            Ok(Repair { unrepaired: Some(what), .. }) => self.not_repaired(what),
            Ok(repair) => self.repaired(repair, began),
            Err(error) => {
                self.status.failed(Step::Verify, &error);
                warn!("cannot compare the rules with the kernel: {error}; retrying in {RETRY:?}");
                self.verify_due = Some(Instant::now() + RETRY);
            }
        }
    }

    fn repaired(&mut self, repair: Repair, began: Instant) {
        self.unrepaired = None;
        self.status.done(Step::Verify, began, &repair.receipt);
        if repair.operations == 0 {
            return;
        }
        self.drift_repairs += 1;
        if let Some(sweeper) = &self.sweeper {
            sweeper.rules_were_missing();
        }
        self.status.drift_repaired();
        self.count_rules();
        let what = format!("{}, for example: {}", operations(repair.operations), repair.examples.join("; "));
        self.note(|| Entry {
            took: Some(began.elapsed().as_secs_f64()),
            operations: repair.operations,
            ..Entry::new(What::Drift, &what)
        });
        warn!("drift repaired ({} so far): {what}", self.drift_repairs);
    }

    /// Another program undoes our repairs, or a tool fails silently. Logged once, retried every period.
    fn not_repaired(&mut self, what: String) {
        if self.unrepaired.as_ref() != Some(&what) {
            self.status.failed(Step::Verify, &format!("the rules still differ after a repair: {what}"));
            warn!(
                "the rules still differ after a repair, for example: {what}; another program may change them; \
                 retrying every {:?}",
                self.periods.verify
            );
        }
        self.unrepaired = Some(what);
    }
}
