//! The first sync on a node where nothing of ours is in force: the table is filled portion by portion, and the last transaction
//! adds its hooks.
//!
//! No packet meets any of it before. So it takes the memory of a portion and not of the whole, and the rules of kube-proxy are
//! replaced in one transaction, however large ours are. A start that is interrupted leaves a table without hooks, which the next
//! one replaces.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use ferroxy_core::{Family, Intent, PortIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Change, Outcome, Receipt};
use ferroxy_netlink::nftables::{Batch, CommitError, Connection};

use super::Nftables;
use super::apply::{ApplyError, ops_per_transaction};
use super::observe::observe;
use crate::TABLE;
use crate::encode::encode;
use crate::ledger::Ledger;
use crate::plan::remove_kube_proxy_tables;
use crate::state::State;

/// About how many elements are planned, encoded and sent at once. Each takes about 250 bytes meanwhile.
const PORTION: usize = 1 << 14;

impl Nftables {
    /// `replaced` is empty afterwards if kube-proxy's tables could not be removed.
    pub(super) fn start_from_nothing(
        &mut self,
        seen: &State,
        intent: &Intent,
        replaced: &mut Vec<Family>,
    ) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        self.commit(&self.ledger.plan_foundation(seen).changes, &mut outcome)?;
        let founded = outcome.operations;
        if self.fill(intent, &mut outcome).is_err() {
            // Whatever it was, here it shows, with the Service that it belongs to.
            outcome.operations = founded;
            self.ledger = Ledger::new(&self.families, intent.node.clone(), self.settings);
            let half = observe(&mut self.connection)?;
            self.commit(&self.ledger.plan_foundation(&half).changes, &mut outcome)?;
            for portion in portions(intent) {
                outcome.add(self.change_services(portion)?);
            }
        }
        let mut plan = self.ledger.plan_hooks();
        let hooks = plan.changes.len();
        plan.changes.extend(remove_kube_proxy_tables(replaced));
        match self.commit(&plan.changes, &mut outcome) {
            // Our rules must come into force even if kube-proxy's cannot be removed.
            Err(error) if error.is_about_kube_proxy() => {
                replaced.clear();
                plan.changes.truncate(hooks);
                self.commit(&plan.changes, &mut outcome)?;
            }
            result => result?,
        }
        Ok(outcome)
    }

    /// Plans and encodes a portion while the kernel takes the one before. After an error, the ledger has more than the kernel.
    fn fill(&mut self, intent: &Intent, outcome: &mut Outcome) -> Result<(), CommitError> {
        let Nftables { connection, ledger, .. } = self;
        let most = ops_per_transaction(connection);
        let (sender, batches) = sync_channel(1);
        let lost = || CommitError { failures: Vec::new(), cause: None };
        thread::scope(|scope| {
            let committing = thread::Builder::new()
                .name("committer".into())
                .spawn_scoped(scope, move || commit_all(connection, &batches))
                .map_err(|_| lost())?;
            for portion in portions(intent) {
                let Some(operations) = send(ledger, &portion, most, &sender) else { break };
                outcome.operations += operations;
            }
            drop(sender);
            let (receipt, result) = committing.join().unwrap_or_else(|_| (Receipt::default(), Err(lost())));
            outcome.receipt.add(receipt);
            result
        })
    }
}

/// Until there are no more, or the kernel refuses one.
fn commit_all(connection: &mut Connection, batches: &Receiver<Batch>) -> (Receipt, Result<(), CommitError>) {
    let mut receipt = Receipt::default();
    for batch in batches {
        match connection.commit(&batch) {
            Ok(sent) => receipt.add(Receipt { commits: 1, messages: sent.messages, bytes: sent.bytes }),
            Err(error) => return (receipt, Err(error)),
        }
    }
    (receipt, Ok(()))
}

/// How many operations were sent, and entered into the ledger; `None` after an error.
fn send(ledger: &mut Ledger, portion: &[Change], most: usize, batches: &SyncSender<Batch>) -> Option<usize> {
    let (plan, settlement) = ledger.plan(portion);
    let plan = plan.at_once();
    for part in plan.changes.chunks(most) {
        batches.send(encode(part, TABLE)).ok()?;
    }
    ledger.settle(settlement);
    Some(plan.changes.len())
}

/// The Services, in groups that have enough elements together.
fn portions(intent: &Intent) -> impl Iterator<Item = Vec<Change>> {
    let mut services = intent.services.iter();
    std::iter::from_fn(move || Some(take_portion(&mut services)).filter(|portion| !portion.is_empty()))
}

/// The next Services, until they have enough elements together.
fn take_portion<'s>(
    services: &mut impl Iterator<Item = (&'s ServiceName, &'s Arc<ServiceIntent>)>,
) -> Vec<Change> {
    let mut portion = Vec::new();
    let mut size = 0;
    while size < PORTION
        && let Some((name, service)) = services.next()
    {
        size += service.ports.iter().map(size_of_port).sum::<usize>() + 1;
        portion.push((name.clone(), Some(service.clone())));
    }
    portion
}

/// At most so many elements, roughly.
fn size_of_port(port: &PortIntent) -> usize {
    port.frontends.len() * (1 + port.cluster.len() + port.local.len())
}
