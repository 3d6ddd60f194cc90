//! Applies changes: together where that works, and without the Services that the tool or the kernel refuses.

use std::sync::Arc;

use ferroxy_core::{Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Change, Outcome, Refusal};

use super::{Iptables, is_liberal};
use crate::counters;
use crate::ledger::{Ledger, Settlement};
use crate::plan::Plan;
use crate::program::Parameters;
use crate::tool::Error;

impl Iptables {
    pub(super) fn start_all(&mut self, intent: &Intent) -> Result<Outcome, Error> {
        let masquerade_mark = self.masquerade_mark;
        let nfacct = counters::create()?;
        let parameters = Parameters { masquerade_mark, nfacct, tcp_be_liberal: is_liberal()? };
        match self.start_with(intent, parameters) {
            // The kernel has the counters, but not the match: write the rules without counters.
            Err(Error::Refused(refusal)) if parameters.nfacct && refusal.is_about("-m nfacct") => {
                tracing::warn!("{refusal}: packets are not counted");
                self.start_with(intent, Parameters { nfacct: false, ..parameters })
            }
            result => result,
        }
    }

    fn start_with(&mut self, intent: &Intent, parameters: Parameters) -> Result<Outcome, Error> {
        self.ledger = Ledger::new(&self.families(), parameters, intent.node.clone());
        self.is_certain = false;
        let wanted =
            |(name, service): (&ServiceName, &Arc<ServiceIntent>)| (name.clone(), Some(service.clone()));
        self.change_services(intent.services.iter().map(wanted).collect())
    }

    pub(super) fn change_services(&mut self, changes: Vec<Change>) -> Result<Outcome, Error> {
        match self.attempt(changes.clone()) {
            Err(Error::Refused(refusal)) if refusal.line.is_none() && changes.len() > 1 => {
                // If the kernel or tool refuses even an empty change, no Service is the cause.
                self.attempt(Vec::new())?;
                self.in_halves(changes)
            }
            result => result,
        }
    }

    /// Finds the refused Service by trying: the tool did not name the line (the kernel refuses a legacy table as a whole).
    fn in_halves(&mut self, mut changes: Vec<Change>) -> Result<Outcome, Error> {
        let second = changes.split_off(changes.len() / 2);
        let mut total = Outcome::default();
        for half in [changes, second] {
            let outcome = match self.attempt(half.clone()) {
                Err(Error::Refused(_)) if half.len() > 1 => self.in_halves(half)?,
                Err(Error::Refused(refusal)) => {
                    let refuse = |(service, _)| Refusal { service, reason: refusal.to_string() };
                    Outcome { refused: half.into_iter().map(refuse).collect(), ..Outcome::default() }
                }
                result => result?,
            };
            total.add(outcome);
        }
        Ok(total)
    }

    /// Leaves out refused Services, and tries again without them.
    fn attempt(&mut self, mut changes: Vec<Change>) -> Result<Outcome, Error> {
        let mut refused = Vec::new();
        loop {
            let relied_on_ledger = self.knows_the_kernel()?;
            let (plan, settlement) =
                if relied_on_ledger { self.ledger.plan(&changes) } else { self.plan_from_kernel(&changes)? };
            let error = match self.carry_out(&plan) {
                Ok(receipt) => {
                    self.ledger.settle(settlement);
                    return Ok(Outcome { receipt, operations: plan.len(), refused, drift: false });
                }
                Err(error) => error,
            };
            let Error::Refused(refusal) = &error else { return Err(error) };
            if relied_on_ledger {
                // Perhaps no Service is the cause, and the kernel differs from the ledger: read the kernel, and try again.
                continue;
            }
            let owner = refusal.line.as_deref().and_then(|line| self.ledger.owner(&changes, line));
            let Some(service) = owner.cloned() else { return Err(error) };
            changes.retain(|(name, _)| *name != service);
            refused.push(Refusal { service, reason: refusal.to_string() });
        }
    }

    fn plan_from_kernel(&mut self, changes: &[Change]) -> Result<(Plan, Settlement), Error> {
        let observed = self.observe()?;
        let (wanted, settlement) = self.ledger.whole(self.ledger.node(), self.ledger.parameters(), changes);
        Ok((self.difference(&observed, wanted), settlement))
    }

    /// Uses the mark that is configured now.
    pub(super) fn replace_node(&mut self, node: NodeIntent) -> Result<Outcome, Error> {
        let parameters = Parameters { masquerade_mark: self.masquerade_mark, ..self.ledger.parameters() };
        let plan = if self.knows_the_kernel()? {
            self.ledger.plan_node(&node, parameters)
        } else {
            let observed = self.observe()?;
            self.difference(&observed, self.ledger.whole(&node, parameters, &[]).0)
        };
        let receipt = self.carry_out(&plan)?;
        self.ledger.settle_node(node, parameters);
        Ok(Outcome { receipt, operations: plan.len(), ..Outcome::default() })
    }
}
