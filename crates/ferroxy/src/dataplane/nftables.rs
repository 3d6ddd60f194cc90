//! nftables mode: adapts `ferroxy-nftables`, and follows the kernel's generation to notice the changes of others.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{Monitor, Notice};
use ferroxy_nftables::apply::ApplyError;
use ferroxy_nftables::dataplane::{self as crate_side, suggests_drift};
use ferroxy_nftables::ledger::Ledger;
use tracing::warn;

use super::{Acknowledged, Change, Dataplane, Failure, Outcome, Preview, Programmed, Receipt, Repair};
use crate::agent::Input;
use crate::host;

/// After an error of the watched socket, so that a broken one does not take a core.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Nftables {
    inner: crate_side::Dataplane,
    /// The generation of the kernel's rules if nobody but us has changed anything.
    generation: u32,
}

impl Nftables {
    pub fn open(families: &[Family]) -> Result<Nftables, Error> {
        Ok(Nftables { inner: crate_side::Dataplane::open(families)?, generation: 0 })
    }

    /// Each transaction of ours moves the generation by one.
    fn took(&mut self, outcome: crate_side::Outcome) -> Outcome {
        self.generation = self.generation.wrapping_add(outcome.receipt.transactions as u32);
        let crate_side::Outcome { receipt, operations, failed, drift, replaced } = outcome;
        Outcome { receipt: receipt.into(), operations, failed, drift, replaced }
    }
}

impl Dataplane for Nftables {
    fn probe(&mut self, node: &NodeIntent) -> anyhow::Result<()> {
        self.inner.probe(node).map_err(|error| host::explain_missing(&error))
    }

    fn watch(&mut self, inputs: Sender<Input>) -> anyhow::Result<()> {
        let mut monitor = Monitor::open()?;
        monitor.ignore(self.inner.port_id())?;
        thread::Builder::new().name("rules".into()).spawn(move || follow(&mut monitor, &inputs))?;
        Ok(())
    }

    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(!self.inner.is_installed()?)
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.inner.keep_unknown(keep);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        let outcome = self.inner.start(intent)?;
        let outcome = self.took(outcome);
        // What others changed before this moment is no drift.
        self.generation = self.inner.generation().unwrap_or_default();
        Ok(outcome)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        let outcome = self.inner.change(changes)?;
        Ok(self.took(outcome))
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        let outcome = self.inner.change_node(node)?;
        Ok(self.took(outcome))
    }

    fn tidy(&mut self) -> Result<Outcome, Failure> {
        let outcome = self.inner.tidy()?;
        Ok(self.took(outcome))
    }

    /// Notifications can be lost; the generation counts every change anybody made.
    fn may_have_drifted(&mut self) -> Result<bool, Failure> {
        Ok(self.inner.generation()? != self.generation)
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        // Asked for before: what changes while we look makes us look again at the next period.
        let generation = self.inner.generation();
        let crate_side::Repair { receipt, plan } = self.inner.verify()?;
        self.generation = generation.unwrap_or_default().wrapping_add(receipt.transactions as u32);
        let examples = plan.ops().take(3).map(ToString::to_string).collect();
        Ok(Repair { receipt: receipt.into(), operations: plan.len(), examples, unmended: None })
    }

    fn acknowledged(&self) -> &dyn Acknowledged {
        self.inner.ledger()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let plan = self.inner.preview(intent)?;
        Ok(Preview { text: plan.to_string(), operations: plan.ops().map(ToString::to_string).collect() })
    }

    fn programmed(&mut self, _: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        Ok(match self.inner.programmed(service)? {
            crate_side::Programmed::Nothing => Programmed::Nothing,
            crate_side::Programmed::Elements { right, wanted } => Programmed::Parts { right, wanted },
        })
    }

    fn cleanup(&mut self) -> Result<bool, Failure> {
        Ok(self.inner.cleanup()?)
    }
}

/// Says `Drift` when somebody who is not us changes our tables.
fn follow(monitor: &mut Monitor, inputs: &Sender<Input>) {
    loop {
        let input = match monitor.next(None) {
            Ok(Some(Notice::Changed { table, .. })) => (table == ferroxy_nftables::TABLE)
                .then_some(Input::Drift("our table was changed by somebody else")),
            Ok(Some(Notice::Lost)) => Some(Input::Drift("notifications of the kernel were lost")),
            Ok(Some(Notice::Generation { .. }) | None) => None,
            Err(error) => {
                warn!("cannot follow changes of the kernel's rules: {error}");
                thread::sleep(PAUSE);
                Some(Input::Drift("changes of the kernel's rules may have been missed"))
            }
        };
        if input.is_some_and(|input| inputs.send(input).is_err()) {
            return;
        }
    }
}

impl Acknowledged for Ledger {
    fn node(&self) -> &NodeIntent {
        Ledger::node(self)
    }

    fn service(&self, name: &ServiceName) -> Option<&Arc<ServiceIntent>> {
        Ledger::service(self, name)
    }

    fn services(&self) -> Box<dyn Iterator<Item = (&ServiceName, &Arc<ServiceIntent>)> + '_> {
        Box::new(Ledger::services(self))
    }
}

impl From<ferroxy_nftables::apply::Receipt> for Receipt {
    fn from(receipt: ferroxy_nftables::apply::Receipt) -> Receipt {
        let ferroxy_nftables::apply::Receipt { transactions, messages, bytes } = receipt;
        Receipt { transactions, messages, bytes }
    }
}

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Failure {
        let drift = suggests_drift(&error);
        Failure { cause: error.into(), drift }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { cause: error.into(), drift: false }
    }
}
