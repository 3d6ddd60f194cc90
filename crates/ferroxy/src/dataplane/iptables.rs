//! iptables mode: adapts `ferroxy-iptables`, and notices the changes of others.
//!
//! Rules of the nft variant are nf_tables', whose notifications name the chain: a change of a chain of ours, or of one that
//! our jumps are in, is looked into at once. Legacy tables have none: they are looked at every `syncPeriod`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_iptables::dataplane as crate_side;
use ferroxy_iptables::ledger::Ledger;
use ferroxy_iptables::program::owns;
use ferroxy_iptables::text::tool;
use ferroxy_iptables::tool::{Error, Fingerprint, Limits, Variant, fingerprint, sysctl};
use ferroxy_iptables::{Op, Plan, TableName, apply};
use tracing::{info, warn};

use super::{
    Acknowledged, Change, Changed, Dataplane, Failure, Outcome, Pace, Preview, Programmed, Receipt, Repair,
    RuleCount, chains,
};
use crate::agent::Input;
use crate::host::notify::Heart;

/// A look at a very large legacy table does not see a rule that was replaced by one of the same size: so often all is compared.
const LOOKS_BEFORE_COMPARISON: u32 = 20;

#[derive(Debug)]
pub struct Iptables {
    inner: crate_side::Dataplane,
    /// nft variant: the generation of the kernel's rules if every change is ours or was noticed.
    generation: Arc<AtomicU32>,
    /// Since everything was last compared.
    looks: u32,
    /// The last repair did not help.
    is_unmended: bool,
    /// The variant that is not used has been looked at.
    has_looked_beside: bool,
}

impl Iptables {
    pub fn open(families: &[Family]) -> Result<Iptables, Error> {
        let inner = crate_side::Dataplane::open(families)?;
        Ok(Iptables {
            inner,
            generation: Arc::default(),
            looks: 0,
            is_unmended: false,
            has_looked_beside: false,
        })
    }

    /// Node ports on 127.0.0.1 need it; all others work without.
    fn let_loopback_out(node: &NodeIntent) {
        if node.v4.localhost_node_ports
            && let Err(error) = sysctl::set_route_localnet()
        {
            warn!(
                "{error}: node ports do not answer on 127.0.0.1 (set it on the host, or \
                 iptables.localhostNodePorts to false)"
            );
        }
    }

    /// The host may have changed its variant: what an earlier run wrote with the other one still works on packets.
    fn look_beside(&mut self) {
        if !std::mem::replace(&mut self.has_looked_beside, true) {
            for tools in self.inner.tools() {
                // It warns by itself of what it finds.
                if let Err(error) = tools.leftover(&Limits::default()) {
                    warn!("cannot look for rules of the other variant of iptables: {error}");
                }
            }
        }
    }

    fn variant_is(&self, variant: Variant) -> bool {
        self.inner.tools().iter().any(|tools| tools.variant == variant)
    }

    fn kernels_generation(&self) -> Result<u32, Error> {
        match fingerprint(Family::V4, Variant::NfTables, "nat")? {
            Fingerprint::Generation(generation) => Ok(generation),
            Fingerprint::Absent | Fingerprint::Entries { .. } => Ok(0),
        }
    }

    /// Each commit of ours moves the generation by one.
    fn took(&self, receipt: &apply::Receipt) -> Receipt {
        let commits = receipt.commits as u32;
        if self.variant_is(Variant::NfTables) {
            self.generation.fetch_add(commits, Ordering::Relaxed);
        }
        if !receipt.waited.is_zero() {
            let apply::Receipt { runs, waited, .. } = receipt;
            info!("another program held the xtables lock: waited {waited:.1?}, in {runs} runs of the tool");
        }
        Receipt { transactions: receipt.commits, messages: receipt.lines, bytes: receipt.bytes }
    }

    fn came_of(&self, outcome: crate_side::Outcome) -> Outcome {
        let crate_side::Outcome { receipt, operations, failed } = outcome;
        Outcome { receipt: self.took(&receipt), operations, failed, ..Outcome::default() }
    }
}

impl Dataplane for Iptables {
    fn probe(&mut self, node: &NodeIntent) -> anyhow::Result<()> {
        self.inner.probe().map_err(|error| match error.is_not_permitted() {
            true => anyhow::anyhow!(
                "not permitted to program the kernel: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW"
            ),
            false => error.into(),
        })?;
        Self::let_loopback_out(node);
        if node.count_traffic {
            warn!("traffic of Services is counted in nftables mode only");
        }
        Ok(())
    }

    fn watch(&mut self, inputs: Sender<Input>) -> anyhow::Result<()> {
        if self.variant_is(Variant::NfTables) {
            let generation = Arc::clone(&self.generation);
            // Commits come in order, and ours are not told of: up to this one, all were noticed.
            let noticed = move |id| {
                generation.fetch_max(id, Ordering::Relaxed);
            };
            self.inner.hide_from(chains::watch(owns, noticed, inputs)?);
        }
        Ok(())
    }

    fn live_by(&mut self, heart: Heart) {
        let heart = Mutex::new(heart);
        self.inner.live_by(Box::new(move || {
            heart.lock().unwrap_or_else(PoisonError::into_inner).beat(Instant::now());
        }));
    }

    fn pace(&self) -> Pace {
        Pace::Whole
    }

    fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(!self.inner.is_installed()?)
    }

    fn keep_unknown(&mut self, keep: bool) {
        self.inner.keep_unknown(keep);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.look_beside();
        Self::let_loopback_out(&intent.node);
        let outcome = self.inner.start(intent)?;
        let outcome = self.came_of(outcome);
        if self.variant_is(Variant::NfTables) {
            // What others changed before this moment is no drift.
            self.generation.store(self.kernels_generation()?, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        let outcome = self.inner.change(changes)?;
        Ok(self.came_of(outcome))
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        Self::let_loopback_out(&node);
        let outcome = self.inner.change_node(node)?;
        Ok(self.came_of(outcome))
    }

    /// A chain that nothing leads to goes in the restore that took its last user.
    fn tidy(&mut self) -> Result<Outcome, Failure> {
        Ok(Outcome::default())
    }

    fn changed_by_others(&mut self) -> Result<Changed, Failure> {
        self.looks += 1;
        let is_time = self.looks >= LOOKS_BEFORE_COMPARISON && !self.inner.sees_every_drift();
        let legacy = self.variant_is(Variant::Legacy) && (is_time || self.inner.may_have_drifted()?);
        // A notification can be lost; the generation counts every change anybody made.
        let missed = self.variant_is(Variant::NfTables)
            && self.kernels_generation()? != self.generation.load(Ordering::Relaxed);
        let ours = legacy || missed || self.is_unmended;
        Ok(if ours { Changed::Ours } else { Changed::Nothing })
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        self.looks = 0;
        // Asked for before: what changes while we look makes us look again at the next period.
        let generation = self.kernels_generation();
        let crate_side::Repair { receipt, plan, unmended } = self.inner.verify()?;
        self.generation.store(generation.unwrap_or_default(), Ordering::Relaxed);
        self.is_unmended = !unmended.is_empty();
        Ok(Repair {
            receipt: self.took(&receipt),
            operations: plan.len(),
            examples: some(&plan),
            unmended: self.is_unmended.then(|| some(&unmended).join("; ")),
        })
    }

    fn acknowledged(&self) -> &dyn Acknowledged {
        self.inner.ledger()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let plan = self.inner.preview(intent)?;
        Ok(Preview { text: plan.to_string(), operations: plan.ops().map(words).collect() })
    }

    fn programmed(&mut self, intent: &Intent, service: &Arc<ServiceIntent>) -> Result<Programmed, Failure> {
        Ok(match self.inner.programmed(intent, service)? {
            crate_side::Programmed::Nothing => Programmed::Nothing,
            crate_side::Programmed::Parts { right, wanted } => Programmed::Parts { right, wanted },
        })
    }

    fn rule_counts(&self) -> Vec<RuleCount> {
        let count = |it: crate_side::RuleCount| RuleCount {
            family: it.family,
            table: it.table.as_str(),
            total: it.total,
            last: it.last,
        };
        self.inner.rule_counts().map(count).collect()
    }

    fn cleanup(&mut self) -> Result<bool, Failure> {
        Ok(self.inner.cleanup()?)
    }
}

/// The first operations, for people.
fn some(plan: &Plan) -> Vec<String> {
    plan.ops().take(3).map(words).collect()
}

/// `iptables nat: -D PREROUTING -j …`
fn words((family, table, op): (Family, TableName, &Op)) -> String {
    let text = match op {
        Op::Write { chain, rules } => format!("{chain} with {} rules", rules.len()),
        op => op.to_string().trim_end().to_owned(),
    };
    format!("{} {table}: {text}", tool(family))
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

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        // The next attempt looks at the kernel by itself.
        Failure { cause: error.into(), drift: false }
    }
}
