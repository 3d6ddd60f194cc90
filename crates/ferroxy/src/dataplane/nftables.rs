//! nftables mode: adapts `ferroxy-nftables`, and follows the kernel's generation to notice the changes of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{Ear, Monitor, Notice};
use ferroxy_nftables::apply::ApplyError;
use ferroxy_nftables::dataplane::{self as crate_side, suggests_drift};
use ferroxy_nftables::ledger::Ledger;
use tracing::warn;

use super::{
    Acknowledged, Change, Changed, Dataplane, Failure, Outcome, Preview, Programmed, Receipt, Repair,
};
use crate::agent::Input;
use crate::host;

/// After an error of the watched socket, so that a broken one does not take a core.
const PAUSE: Duration = Duration::from_secs(1);

/// A change of so many Services is made with the watch's ear closed: see [`Ear`].
const MANY: usize = 100;

#[derive(Debug)]
pub struct Nftables {
    inner: crate_side::Dataplane,
    /// The generation of the kernel's rules if nobody has changed anything but us, and others elsewhere.
    generation: u32,
    /// How many commits of others, none of which touched our tables, the watch has heard of.
    elsewhere: Arc<AtomicU32>,
    /// How many of those are in `generation`.
    counted: u32,
    /// How many of those the agent has been told of.
    told: u32,
    /// Of the watch, once there is one.
    ear: Option<Ear>,
}

impl Nftables {
    pub fn open(families: &[Family]) -> Result<Nftables, Error> {
        let inner = crate_side::Dataplane::open(families)?;
        Ok(Nftables { inner, generation: 0, elsewhere: Arc::default(), counted: 0, told: 0, ear: None })
    }

    /// Each transaction of ours moves the generation by one.
    fn took(&mut self, outcome: crate_side::Outcome) -> Outcome {
        self.generation = self.generation.wrapping_add(outcome.receipt.transactions as u32);
        let crate_side::Outcome { receipt, operations, failed, drift, replaced } = outcome;
        Outcome { receipt: receipt.into(), operations, failed, drift, replaced }
    }

    /// Commits something large while nobody listens. What others did meanwhile is not known, so if they did anything at
    /// all it counts as drift.
    fn unheard(
        &mut self,
        commit: impl FnOnce(&mut crate_side::Dataplane) -> Result<crate_side::Outcome, ApplyError>,
    ) -> Result<Outcome, Failure> {
        let (counted, before) = (self.heard(), self.inner.generation()?);
        self.listen(Ear::close);
        let outcome = commit(&mut self.inner);
        self.listen(Ear::open);
        let mut outcome = self.took(outcome?);
        let now = self.inner.generation()?;
        outcome.drift |= now != before.wrapping_add(outcome.receipt.transactions as u32);
        self.expect(now, counted);
        Ok(outcome)
    }

    fn listen(&self, how: impl FnOnce(&Ear) -> Result<(), Error>) {
        if let Some(Err(error)) = self.ear.as_ref().map(how) {
            // The generation is still compared every period.
            warn!("changes of the kernel's rules may be noticed late: {error}");
        }
    }

    /// From here on, the kernel is thought to have had this generation when the watch had heard of so many commits.
    fn expect(&mut self, generation: u32, counted: u32) {
        (self.generation, self.counted) = (generation, counted);
    }

    fn heard(&self) -> u32 {
        self.elsewhere.load(Ordering::SeqCst)
    }
}

impl Dataplane for Nftables {
    fn probe(&mut self, node: &NodeIntent) -> anyhow::Result<()> {
        self.inner.probe(node).map_err(|error| host::explain_missing(&error))
    }

    fn watch(&mut self, inputs: Sender<Input>) -> anyhow::Result<()> {
        let mut monitor = Monitor::open()?;
        monitor.ignore(self.inner.port_id())?;
        self.ear = Some(monitor.ear()?);
        let elsewhere = Arc::clone(&self.elsewhere);
        thread::Builder::new()
            .name("rules".into())
            .spawn(move || follow(&mut monitor, &inputs, &elsewhere))?;
        Ok(())
    }

    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(!self.inner.is_installed()?)
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.inner.keep_unknown(keep);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.unheard(|inner| inner.start(intent))
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        if changes.len() >= MANY {
            return self.unheard(|inner| inner.change(changes));
        }
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

    /// Notifications can be lost; the generation counts every change anybody made. Those that the watch has heard of, and
    /// knows to be elsewhere, are no reason to look: on a node where others write rules all the time it would be done
    /// every period, and listing a large table is not cheap.
    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        let (generation, heard) = (self.inner.generation()?, self.heard());
        let elsewhere = heard.wrapping_sub(self.counted);
        let told = std::mem::replace(&mut self.told, heard);
        // A commit that is in the one and not yet in the other makes us look once for nothing.
        Ok(match generation == self.generation.wrapping_add(elsewhere) {
            false => Changed::Ours,
            true if heard != told => Changed::Elsewhere,
            true => Changed::Nothing,
        })
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        // Asked for before: what changes while we look, and is not known to be elsewhere, makes us look again.
        let counted = self.heard();
        let generation = self.inner.generation();
        let crate_side::Repair { receipt, plan } = self.inner.verify()?;
        self.expect(generation.unwrap_or_default().wrapping_add(receipt.transactions as u32), counted);
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

/// Says `Drift` when somebody who is not us changes our tables, and counts the commits that did not.
fn follow(monitor: &mut Monitor, inputs: &Sender<Input>, elsewhere: &AtomicU32) {
    let mut is_ours = false;
    loop {
        let input = match monitor.next(None) {
            Ok(Some(Notice::Changed { table, .. })) => {
                let changed = table == ferroxy_nftables::TABLE;
                is_ours |= changed;
                changed.then_some(Input::Drift("our table was changed by somebody else"))
            }
            Ok(Some(Notice::Lost)) => Some(Input::Drift("notifications of the kernel were lost")),
            // The last notice of a commit.
            Ok(Some(Notice::Generation { .. })) => {
                elsewhere.fetch_add(u32::from(!std::mem::take(&mut is_ours)), Ordering::SeqCst);
                None
            }
            Ok(None) => None,
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

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Instant;

    use ferroxy_lab::{Capability, Namespace, require};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn nft(namespace: &Namespace, script: &str) {
        let done = namespace.run(|| Command::new("nft").arg(script).output()).unwrap().unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
    }

    #[test]
    fn what_others_do_elsewhere_is_no_reason_to_list_our_tables() {
        if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
            return;
        }
        let namespace = Namespace::new("elsewhere").unwrap();
        let (sender, inputs) = mpsc::channel();
        let mut dataplane = namespace
            .run(|| {
                let mut dataplane = Nftables::open(&[Family::V4]).unwrap();
                dataplane.watch(sender).unwrap();
                dataplane.start(&Intent::default()).unwrap();
                dataplane
            })
            .unwrap();
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing);

        for script in ["add table ip other", "add chain ip other ferroxy", "delete table ip other"] {
            nft(&namespace, script);
        }
        let end = Instant::now() + DEADLINE;
        while dataplane.heard() < 3 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Elsewhere);
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing, "it has been told");
        assert!(inputs.try_recv().is_err(), "and nobody is told");

        nft(&namespace, "add chain ip ferroxy strange");
        assert!(matches!(inputs.recv_timeout(DEADLINE), Ok(Input::Drift(_))));
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Ours);
        assert!(dataplane.verify().unwrap().operations > 0);
        assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing);
    }
}
