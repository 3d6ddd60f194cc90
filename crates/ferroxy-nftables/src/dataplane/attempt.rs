//! Carries out Plans: leaves out the Services that the kernel refuses, and tries again without them.

use std::sync::Arc;

use ferroxy_core::{Family, Intent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Change, Outcome, Refusal};
use ferroxy_netfilter::tables;
use ferroxy_netlink::error::Error;

use super::Nftables;
use super::apply::{ApplyError, commit};
use super::observe::observe;
use crate::diff::Unknown;
use crate::ledger::{Ledger, Settlement};
use crate::place;
use crate::plan::{Op, Plan, remove_kube_proxy_tables};
use crate::render::elements;
use crate::state::State;

/// The Services of an Intent, in the slot order that the kernel has.
pub(super) fn placed(seen: &State, intent: &Intent) -> Intent {
    let place = |(name, service): (&ServiceName, &Arc<ServiceIntent>)| {
        (name.clone(), place::onto_kernel(seen, service))
    };
    Intent { node: intent.node.clone(), services: intent.services.iter().map(place).collect() }
}

impl Nftables {
    /// Sends the difference between the kernel and this Intent. The transaction that brings our elements into force replaces the
    /// tables of kube-proxy's nftables mode.
    pub(super) fn start_with(&mut self, intent: &Intent) -> Result<Outcome, ApplyError> {
        let early = self.early.take().and_then(|look| look.finish(&mut self.connection));
        let seen = early.map_or_else(|| observe(&mut self.connection), Ok)?;
        self.ledger = Ledger::new(&self.families, intent.node.clone(), self.settings);
        // Services that cannot be read may depend on kube-proxy's rules, and on everything of ours.
        let mut replaced = Vec::new();
        if self.unknown == Unknown::Remove {
            replaced = tables::of_kube_proxy(&mut self.connection)?;
        }
        let outcome = if seen.is_in_force() {
            self.start_over(seen, intent, &mut replaced)
        } else {
            self.start_from_nothing(&seen, intent, &mut replaced)
        }?;
        self.replaced.extend(replaced);
        Ok(outcome)
    }

    /// Where an earlier run left rules in force. `replaced` is empty afterwards if kube-proxy's tables could not be removed.
    fn start_over(
        &mut self,
        seen: State,
        intent: &Intent,
        replaced: &mut Vec<Family>,
    ) -> Result<Outcome, ApplyError> {
        if self.unknown == Unknown::Remove {
            self.ledger.adopt(&seen);
        }
        let services = placed(&seen, intent).services;
        let changes: Vec<Change> =
            services.into_iter().map(|(name, service)| (name, Some(service))).collect();
        match self.start_attempt(seen, changes.clone(), replaced) {
            // Our rules must come into force even if kube-proxy's cannot be removed.
            Err(error) if error.is_about_kube_proxy() => {
                replaced.clear();
                let seen = observe(&mut self.connection)?;
                self.start_attempt(seen, changes, replaced)
            }
            result => result,
        }
    }

    fn start_attempt(
        &mut self,
        mut seen: State,
        mut changes: Vec<Change>,
        replaced: &[Family],
    ) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        loop {
            let (mut plan, settlement) = self.ledger.plan_start(seen, &changes, self.unknown);
            plan.changes.extend(remove_kube_proxy_tables(replaced));
            let Err(error) = self.carry_out(&plan, settlement, &mut outcome) else { return Ok(outcome) };
            self.leave_out_refused(error, &mut changes, &mut outcome)?;
            // The new chains may be in force.
            seen = observe(&mut self.connection)?;
        }
    }

    pub(super) fn change_services(&mut self, changes: Vec<Change>) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        match self.attempt(changes.clone(), &mut outcome) {
            Err(error) if changes.len() > 1 && error.is_refusal() && !error.suggests_drift() => {
                outcome.refused.clear();
                self.one_by_one(changes, &mut outcome);
                Ok(outcome)
            }
            result => result.map(|()| outcome),
        }
    }

    /// The kernel refused something without saying what (before 5.16 it names no element). Separate attempts tell.
    fn one_by_one(&mut self, changes: Vec<Change>, outcome: &mut Outcome) {
        for change in changes {
            let service = change.0.clone();
            if let Err(error) = self.attempt(vec![change], outcome) {
                outcome.refused.push(Refusal { service, reason: error.to_string() });
            }
        }
    }

    /// Services whose elements the kernel refuses are reported, and the rest is tried again without them.
    fn attempt(&mut self, mut changes: Vec<Change>, outcome: &mut Outcome) -> Result<(), ApplyError> {
        loop {
            let (plan, settlement) = self.ledger.plan(&changes);
            let Err(error) = self.carry_out(&plan, settlement, outcome) else { return Ok(()) };
            self.leave_out_refused(error, &mut changes, outcome)?;
        }
    }

    /// Returns the error if it does not say which Services are refused.
    fn leave_out_refused(
        &self,
        error: ApplyError,
        changes: &mut Vec<Change>,
        outcome: &mut Outcome,
    ) -> Result<(), ApplyError> {
        let refused = refusals(&error, changes, &self.ledger);
        if refused.is_empty() {
            return Err(error);
        }
        changes.retain(|(name, _)| !refused.iter().any(|refusal| refusal.service == *name));
        outcome.drift |= error.suggests_drift();
        outcome.refused.extend(refused);
        Ok(())
    }

    /// What the kernel accepts before it refuses the rest is in `outcome`, too.
    fn carry_out(
        &mut self,
        plan: &Plan,
        settlement: Settlement,
        outcome: &mut Outcome,
    ) -> Result<(), ApplyError> {
        if !plan.chains.is_empty() {
            self.commit(&plan.chains, outcome)?;
            self.ledger.settle_chains(&settlement);
        }
        self.commit(&plan.changes, outcome)?;
        self.commit(&plan.tidy, outcome)?;
        self.ledger.settle(settlement);
        Ok(())
    }

    pub(super) fn commit(&mut self, ops: &[Op], outcome: &mut Outcome) -> Result<(), ApplyError> {
        outcome.receipt.add(commit(&mut self.connection, ops)?);
        outcome.operations += ops.len();
        Ok(())
    }
}

/// The Services whose elements the kernel refused. Searched for only after an error.
fn refusals(error: &ApplyError, changes: &[Change], ledger: &Ledger) -> Vec<Refusal> {
    let mut refusals: Vec<Refusal> = Vec::new();
    for (op, error) in &error.refused {
        let owner = changes.iter().find(|(name, wanted)| {
            let involved = [wanted.clone(), ledger.acknowledged().service(name)];
            involved.iter().flatten().any(|service| owns(service, op))
        });
        if let Some((name, _)) = owner
            && !refusals.iter().any(|known| known.service == *name)
        {
            refusals.push(Refusal { service: name.clone(), reason: reason(op, error) });
        }
    }
    refusals
}

/// The operation as `nft` writes it, and the kernel's reason.
fn reason(op: &Op, error: &Error) -> String {
    let op = op.to_string();
    let last_step = op.lines().last().unwrap_or_default();
    format!("the kernel refuses `{last_step}`: {}", error.reason())
}

fn owns(service: &ServiceIntent, op: &Op) -> bool {
    let Some(wanted) = op.action.element() else { return false };
    let mut found = false;
    elements(service, &mut |family, element| {
        found |= family == op.family && element.set == wanted.set && element.key == wanted.key;
    });
    found
}
