//! The running dataplane: keeps the kernel at what the Intent asks for, a change at a time, through the host's tools.
//!
//! What the kernel has taken is in the [`Ledger`]. A restore can fail half-way, with one table or one family in force and
//! the next not. So after a failure the ledger is not relied upon: the next attempt, of whatever it is, reads the
//! kernel and sends the difference. It has no queue and no clock: when to try again is the agent's business.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_netlink::nftables::Ignorer;

use crate::apply::{Receipt, apply, rules_written};
use crate::counters;
use crate::diff::{diff, keeping_the_unknown};
use crate::ledger::{Change, Ledger, Settlement};
use crate::observe::observe;
use crate::plan::Plan;
use crate::program::Settings;
use crate::render::{ClusterSize, Surroundings, fragment, render};
use crate::state::{Rules, State, TableName};
use crate::tool::{Bystander, Error, Fingerprint, Limits, Tools, Variant, fingerprint, save, sysctl};

#[derive(Debug)]
pub struct Dataplane {
    /// One for each family.
    tools: Vec<Tools>,
    limits: Limits,
    bystander: Bystander,
    ledger: Ledger,
    /// The kernel has what the ledger says, unless somebody else changed it.
    is_certain: bool,
    /// Not all of the cluster can be seen: what is there and not asked for may be asked for by what is unseen.
    keep_unknown: bool,
    /// What a look before the start has seen, for the start: reading a large table takes seconds.
    seen: Option<State>,
    /// Of legacy tables, when we last wrote or read them.
    fingerprints: Vec<Fingerprint>,
    /// By the last sync.
    rules_written: BTreeMap<(Family, TableName), u64>,
}

/// What came of an attempt.
#[derive(Debug, Default)]
pub struct Outcome {
    pub receipt: Receipt,
    /// How many operations the kernel took.
    pub operations: usize,
    /// The Services it did not take, with the tool's words. All others are in force.
    pub failed: Vec<(ServiceName, String)>,
}

/// What verification found.
#[derive(Debug, Default)]
pub struct Repair {
    pub receipt: Receipt,
    /// What had to be done; empty when all was as it should be.
    pub plan: Plan,
    /// What is still not as it should be after that. Empty, unless somebody else writes at the same time, or the tool prints
    /// a rule otherwise than it reads it.
    pub unmended: Plan,
}

/// How much of a Service the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programmed {
    /// There is nothing of ours at all.
    Nothing,
    /// Chains of its own, and rules in the chains that all share.
    Parts { right: usize, wanted: usize },
}

/// How many rules of ours a table has, and how many of them the last sync wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleCount {
    pub family: Family,
    pub table: TableName,
    pub total: u64,
    pub last: u64,
}

impl Dataplane {
    /// With the host's own choice of tools.
    pub fn open(families: &[Family]) -> Result<Dataplane, Error> {
        let tools = families.iter().map(|family| Tools::find(*family)).collect::<Result<_, _>>()?;
        Ok(Dataplane::with_tools(tools, Limits::default()))
    }

    /// With these tools, one for each family.
    pub fn with_tools(tools: Vec<Tools>, limits: Limits) -> Dataplane {
        Dataplane {
            tools,
            limits,
            bystander: Bystander::default(),
            ledger: Ledger::default(),
            is_certain: false,
            keep_unknown: false,
            seen: None,
            fingerprints: Vec::new(),
            rules_written: BTreeMap::new(),
        }
    }

    /// While this is on, nothing is removed that is not known.
    pub fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn tools(&self) -> &[Tools] {
        &self.tools
    }

    /// From now on a listener to the kernel's notifications hears of others' changes only.
    pub fn hide_from(&mut self, listener: Ignorer) {
        self.bystander.listener = Some(listener);
    }

    /// From now on this is called about once a second while a tool is at work, which can take minutes.
    pub fn live_by(&mut self, sign_of_life: Box<dyn Fn() + Send>) {
        self.bystander.sign_of_life = Some(sign_of_life);
    }

    /// What rules there should be, by table. For metrics.
    pub fn rule_counts(&self) -> impl Iterator<Item = RuleCount> {
        let tables = |family: &Family| TableName::ALL.map(|table| (*family, table));
        self.ledger.families().iter().flat_map(tables).map(|(family, table)| RuleCount {
            family,
            table,
            total: self.ledger.rule_count(family, table),
            last: self.rules_written.get(&(family, table)).copied().unwrap_or_default(),
        })
    }

    /// Whether the tools can be run and may do what they do. Reads the smallest of our tables.
    pub fn probe(&self) -> Result<(), Error> {
        let enough = &mut |_: &str| std::ops::ControlFlow::Continue(());
        self.tools.iter().try_for_each(|tools| save(tools, Some("mangle"), &self.limits, enough))
    }

    /// Whether there is any chain of ours.
    pub fn is_installed(&mut self) -> Result<bool, Error> {
        let seen = self.observe()?;
        let installed = !seen.is_empty();
        self.seen = Some(seen);
        Ok(installed)
    }

    /// Brings the kernel from whatever it has of ours to this Intent, sending the difference only.
    pub fn start(&mut self, intent: &Intent) -> Result<Outcome, Error> {
        let settings = Settings { nfacct: counters::make()?, tcp_be_liberal: is_liberal()? };
        match self.start_with(intent, settings) {
            // The kernel has the counters, but rules cannot count into them: without, then, as on kernels that have none.
            Err(Error::Refused(refusal)) if settings.nfacct && refusal.is_about("-m nfacct") => {
                tracing::warn!("{refusal}: packets are not counted");
                self.start_with(intent, Settings { nfacct: false, ..settings })
            }
            result => result,
        }
    }

    fn start_with(&mut self, intent: &Intent, settings: Settings) -> Result<Outcome, Error> {
        let families: Vec<Family> = self.tools.iter().map(|tools| tools.family).collect();
        self.ledger = Ledger::new(&families, settings, intent.node.clone());
        self.is_certain = false;
        let wanted =
            |(name, service): (&ServiceName, &Arc<ServiceIntent>)| (name.clone(), Some(service.clone()));
        self.change(intent.services.iter().map(wanted).collect())
    }

    /// Changes some Services. Those the tool or the kernel refuses are named; the others are in force.
    pub fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Error> {
        match self.attempt(changes.clone()) {
            Err(Error::Refused(refusal)) if refusal.line.is_none() && changes.len() > 1 => {
                // If the rest is refused without any of these, it is no Service's fault.
                self.attempt(Vec::new())?;
                self.in_halves(changes)
            }
            result => result,
        }
    }

    /// Something was refused, and it was not said what (the kernel refuses a legacy table as a whole): found by trying.
    fn in_halves(&mut self, mut changes: Vec<Change>) -> Result<Outcome, Error> {
        let second = changes.split_off(changes.len() / 2);
        let mut total = Outcome::default();
        for half in [changes, second] {
            let outcome = match self.attempt(half.clone()) {
                Err(Error::Refused(_)) if half.len() > 1 => self.in_halves(half)?,
                Err(Error::Refused(refusal)) => {
                    let failed = half.into_iter().map(|(name, _)| (name, refusal.to_string())).collect();
                    Outcome { failed, ..Outcome::default() }
                }
                result => result?,
            };
            total.receipt = total.receipt.and(outcome.receipt);
            total.operations += outcome.operations;
            total.failed.extend(outcome.failed);
        }
        Ok(total)
    }

    /// Services that are refused are left out and named, and the rest is tried again without them.
    fn attempt(&mut self, mut changes: Vec<Change>) -> Result<Outcome, Error> {
        let mut failed = Vec::new();
        loop {
            let relied_on_ledger = self.knows_the_kernel()?;
            let (plan, settlement) =
                if relied_on_ledger { self.ledger.plan(&changes) } else { self.plan_from_kernel(&changes)? };
            let error = match self.carry_out(&plan) {
                Ok(receipt) => {
                    self.ledger.settle(settlement);
                    return Ok(Outcome { receipt, operations: plan.len(), failed });
                }
                Err(error) => error,
            };
            let Error::Refused(refusal) = &error else { return Err(error) };
            if relied_on_ledger {
                // Perhaps it is no Service's fault, and the kernel has no longer what we think it has: look, and try again.
                continue;
            }
            let owner = refusal.line.as_deref().and_then(|line| self.ledger.owner(&changes, line));
            let Some(guilty) = owner.cloned() else { return Err(error) };
            changes.retain(|(name, _)| *name != guilty);
            failed.push((guilty, refusal.to_string()));
        }
    }

    fn plan_from_kernel(&mut self, changes: &[Change]) -> Result<(Plan, Settlement), Error> {
        let seen = self.observe()?;
        let (wanted, settlement) = self.ledger.whole(self.ledger.node(), changes);
        Ok((self.difference(&seen, wanted), settlement))
    }

    /// Changes what concerns the node as a whole.
    pub fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Error> {
        let plan = if self.knows_the_kernel()? {
            self.ledger.plan_node(&node)
        } else {
            let seen = self.observe()?;
            self.difference(&seen, self.ledger.whole(&node, &[]).0)
        };
        let receipt = self.carry_out(&plan)?;
        self.ledger.settle_node(node);
        Ok(Outcome { receipt, operations: plan.len(), failed: Vec::new() })
    }

    /// Compares the kernel with what it should have, and mends what differs.
    pub fn verify(&mut self) -> Result<Repair, Error> {
        let look = |dataplane: &mut Dataplane| -> Result<Plan, Error> {
            let seen = dataplane.observe()?;
            Ok(dataplane.difference(&seen, dataplane.ledger.state()))
        };
        let plan = look(self)?;
        let receipt = self.carry_out(&plan)?;
        let unmended = if plan.is_empty() { Plan::default() } else { look(self)? };
        Ok(Repair { receipt, plan, unmended })
    }

    /// A cheap look at legacy tables: are they as we left them? Nothing can be said of others, which is what
    /// notifications are for.
    pub fn may_have_drifted(&self) -> Result<bool, Error> {
        Ok(self.fingerprints()? != self.fingerprints)
    }

    /// Whether that look sees every change. Not where tables are very large.
    pub fn sees_every_drift(&self) -> bool {
        self.fingerprints.iter().all(|fingerprint| fingerprint.is_exact())
    }

    /// What `start` would do to this kernel now.
    pub fn preview(&mut self, intent: &Intent) -> Result<Plan, Error> {
        let seen = self.observe()?;
        Ok(self.difference(&seen, self.rendered(intent)?))
    }

    /// Whether the kernel has a Service as it should be.
    pub fn programmed(&mut self, intent: &Intent, service: &ServiceIntent) -> Result<Programmed, Error> {
        let seen = self.observe()?;
        if seen.is_empty() {
            return Ok(Programmed::Nothing);
        }
        let size = ClusterSize::of(intent.services.values().map(AsRef::as_ref));
        let surroundings = Surroundings { node: &intent.node, settings: settings_seen()?, size };
        let families: Vec<Family> = self.tools.iter().map(|tools| tools.family).collect();
        let wanted = fragment(service, surroundings, &families);
        let chain = |family, table, chain: &str| seen.table(family, table)?.chains.get(chain);
        let (mut right, mut all) = (0, 0);
        for ((family, name), rules) in &wanted.chains {
            all += 1;
            right += usize::from(chain(*family, TableName::Nat, name) == Some(rules));
        }
        for ((family, dispatch), rules) in &wanted.dispatch {
            let present = chain(*family, dispatch.table(), dispatch.chain());
            all += rules.len();
            right += rules.iter().filter(|rule| present.is_some_and(|it| contains(it, rule))).count();
        }
        Ok(Programmed::Parts { right, wanted: all })
    }

    /// Removes everything of ours: a diff to nothing. Says whether there was anything.
    pub fn cleanup(&mut self) -> Result<bool, Error> {
        let plan = diff(&self.observe()?, &State::default());
        self.carry_out(&plan)?;
        self.ledger = Ledger::default();
        self.is_certain = false;
        counters::remove()?;
        Ok(!plan.is_empty())
    }

    fn rendered(&self, intent: &Intent) -> Result<State, Error> {
        let families: Vec<Family> = self.tools.iter().map(|tools| tools.family).collect();
        Ok(render(intent, settings_seen()?, &families))
    }

    fn observe(&mut self) -> Result<State, Error> {
        if let Some(seen) = self.seen.take() {
            return Ok(seen);
        }
        // Taken before: what changes while we look makes us look again.
        self.fingerprints = self.fingerprints()?;
        observe(&self.tools, &self.limits)
    }

    fn difference(&self, seen: &State, wanted: State) -> Plan {
        let wanted = if self.keep_unknown { keeping_the_unknown(seen, wanted) } else { wanted };
        diff(seen, &wanted)
    }

    /// Whether a change can be planned from the ledger alone. With unknown rules among ours it cannot: they are in no ledger.
    fn knows_the_kernel(&self) -> Result<bool, Error> {
        Ok(self.is_certain && !self.keep_unknown && !self.may_have_drifted()?)
    }

    fn carry_out(&mut self, plan: &Plan) -> Result<Receipt, Error> {
        self.is_certain = false;
        let receipt = apply(&self.tools, &self.limits, plan, &self.bystander)?;
        if !plan.is_empty() {
            self.rules_written = rules_written(plan);
            self.fingerprints = self.fingerprints()?;
        }
        self.is_certain = true;
        Ok(receipt)
    }

    fn fingerprints(&self) -> Result<Vec<Fingerprint>, Error> {
        let legacy = self.tools.iter().filter(|tools| tools.variant == Variant::Legacy);
        let places = legacy.flat_map(|tools| TableName::ALL.map(|table| (tools.family, table)));
        places.map(|(family, table)| fingerprint(family, Variant::Legacy, table.as_str())).collect()
    }
}

fn contains(rules: &Rules, wanted: &str) -> bool {
    rules.iter().any(|rule| rule == wanted)
}

fn is_liberal() -> Result<bool, Error> {
    Ok(sysctl::tcp_be_liberal()?.unwrap_or(false))
}

/// What `start` would find out, without making anything.
fn settings_seen() -> Result<Settings, Error> {
    Ok(Settings { nfacct: counters::can_be_made()?, tcp_be_liberal: is_liberal()? })
}
