//! The capabilities of winuserspace mode. Listeners end with the process; addresses stay, and others can remove them.

use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::{Intent, ServiceIntent};
use ferroxy_dataplane::{Changed, Failure, HandsOver, Persists, Programmed, Repair, Verifies};

use super::Winuserspace;
use crate::diff::diff;
use crate::plan::Plan;
use crate::render::fragment;

impl Persists for Winuserspace {
    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(self.journal.ours().is_empty())
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    /// Parts are addresses: listeners belong to the process that has them.
    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        let wanted = fragment(service, &intent.node, &self.settings, self.ledger.families()).addresses;
        let present = self.present()?;
        let right = wanted.intersection(&present).count();
        Ok(if right == 0 { Programmed::Nothing } else { Programmed::Parts { right, wanted: wanted.len() } })
    }
}

impl Verifies for Winuserspace {
    /// One list of addresses is cheap.
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        let present = self.present()?;
        let is_complete = self.in_force.addresses.is_subset(&present);
        Ok(if is_complete { Changed::Nothing } else { Changed::Ours })
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        let wanted = self.wanted();
        self.look(&wanted)?;
        let plan = diff(&self.in_force, &wanted);
        let applied = self.carry_out(&plan)?;
        let reasons = applied.addresses.into_values().chain(applied.frontends.into_values());
        Ok(Repair {
            operations: plan.len(),
            examples: examples(&plan),
            unrepaired: reasons.into_iter().next(),
            ..Repair::default()
        })
    }
}

/// The first operations, for people.
fn examples(plan: &Plan) -> Vec<String> {
    plan.ops().iter().take(3).map(ToString::to_string).collect()
}

/// On Windows no other process can take over a listening socket: this mode only ends in order.
impl HandsOver for Winuserspace {
    fn is_superseded(&self) -> bool {
        false
    }

    fn finish(&mut self, grace: Duration) -> usize {
        self.engine.take().map_or(0, |engine| ferroxy_pools::stop(engine, grace))
    }
}
