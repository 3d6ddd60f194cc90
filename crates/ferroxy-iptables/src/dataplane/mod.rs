//! The running dataplane: keeps the kernel at what the Intent asks for.
//!
//! The [`Ledger`] holds what the kernel has acknowledged. A restore can fail half-way, with one table or one family in force
//! and the next not. After a failure the ledger is therefore not trusted: the next attempt, whatever it is, reads the kernel
//! and sends the difference. `change.rs` applies changes, `capability.rs` has the capabilities.

pub mod apply;
mod capability;
mod change;
pub mod observe;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ferroxy_core::{Family, Intent, NodeIntent};
use ferroxy_dataplane::{
    Acknowledged, Change, ChoiceOfEndpoints, CountsPackets, CountsRules, Dataplane, Failure, Outcome,
    Persists, Preview, Receipt, Settings, SignsOfLife, SweepsConnections, TakesOver, Verifies, Watches,
};
use ferroxy_netfilter::connections::Conntrack;
use tracing::{info, warn};

use self::apply::{apply, rules_written};
use self::observe::observe;
use crate::counters::{self, Counters};
use crate::diff::{diff, keeping_the_unknown};
use crate::door::Door;
use crate::ledger::Ledger;
use crate::plan::{Op, Plan};
use crate::program::Parameters;
use crate::render::render;
use crate::settings::masquerade_mark;
use crate::state::{State, TableName};
use crate::text::tool;
use crate::tool::{Bystander, Error, Fingerprint, Limits, Tools, Variant, fingerprint, sysctl};

#[derive(Debug)]
pub struct Iptables {
    /// One for each family.
    doors: Vec<Door>,
    limits: Limits,
    bystander: Bystander,
    ledger: Ledger,
    /// As configured; the ledger has the one in force.
    masquerade_mark: u32,
    /// The kernel has what the ledger says, unless another program changed it.
    is_certain: bool,
    keep_unknown: bool,
    /// The State that `is_cold` read, for the start: reading a large table takes seconds.
    observed: Option<State>,
    /// Fingerprints of legacy tables when we last wrote or read them.
    fingerprints: Vec<Fingerprint>,
    /// By the last sync, for each table.
    rules_written: BTreeMap<(Family, TableName), u64>,
    /// nft variant: the generation that nf_tables has if every change was ours, or was noticed.
    generation: Arc<AtomicU32>,
    /// nft variant: the watch saw a change of our chains since the last verification.
    is_touched: Arc<AtomicBool>,
    /// How often `changed_by_others` ran since everything was last compared.
    looks: u32,
    /// Differences remained after the last repair.
    is_unrepaired: bool,
    has_checked_other_variant: bool,
}

impl Iptables {
    /// Opens the variant that the host uses.
    pub fn open(families: &[Family], settings: &Settings) -> Result<Iptables, Failure> {
        let doors: Result<_, Error> = families.iter().map(|family| Door::open(*family, settings)).collect();
        let mut dataplane = Iptables::through(doors?, Limits::default());
        dataplane.configure(settings);
        Ok(dataplane)
    }

    /// With these tools, one for each family, and default settings.
    pub fn with_tools(tools: Vec<Tools>, limits: Limits) -> Iptables {
        Iptables::through(tools.into_iter().map(Door::tool).collect(), limits)
    }

    /// Through these doors, one for each family, and with default settings.
    pub fn through(doors: Vec<Door>, limits: Limits) -> Iptables {
        Iptables {
            doors,
            limits,
            bystander: Bystander::default(),
            ledger: Ledger::default(),
            masquerade_mark: Parameters::default().masquerade_mark,
            is_certain: false,
            keep_unknown: false,
            observed: None,
            fingerprints: Vec::new(),
            rules_written: BTreeMap::new(),
            generation: Arc::default(),
            is_touched: Arc::default(),
            looks: 0,
            is_unrepaired: false,
            has_checked_other_variant: false,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn families(&self) -> Vec<Family> {
        self.doors.iter().map(|door| door.family).collect()
    }

    fn uses(&self, variant: Variant) -> bool {
        self.doors.iter().any(|door| door.variant == variant)
    }

    /// The parameters that a start would use. Creates nothing.
    fn parameters(&self) -> Result<Parameters, Error> {
        let masquerade_mark = self.masquerade_mark;
        Ok(Parameters { masquerade_mark, nfacct: counters::can_be_created()?, tcp_be_liberal: is_liberal()? })
    }

    fn observe(&mut self) -> Result<State, Error> {
        if let Some(observed) = self.observed.take() {
            return Ok(observed);
        }
        // Fingerprints first: a change during the listing then causes another listing.
        self.fingerprints = self.fingerprints()?;
        observe(&mut self.doors, &self.limits)
    }

    fn difference(&self, observed: &State, wanted: State) -> Plan {
        let wanted = if self.keep_unknown { keeping_the_unknown(observed, wanted) } else { wanted };
        diff(observed, &wanted)
    }

    /// Whether a change can be planned from the ledger alone. The ledger lacks the rules that `keep_unknown` keeps.
    fn knows_the_kernel(&self) -> Result<bool, Error> {
        Ok(self.is_certain && !self.keep_unknown && !self.have_fingerprints_changed()?)
    }

    fn carry_out(&mut self, plan: &Plan) -> Result<Receipt, Error> {
        self.is_certain = false;
        let apply::Receipt { runs, commits, lines, bytes, waited, .. } =
            apply(&mut self.doors, &self.limits, plan, &self.bystander)?;
        if !plan.is_empty() {
            self.rules_written = rules_written(plan);
            self.fingerprints = self.fingerprints()?;
        }
        if self.uses(Variant::NfTables) {
            // Each commit of ours increases the generation by one.
            self.generation.fetch_add(commits as u32, Ordering::Relaxed);
        }
        if !waited.is_zero() {
            info!("another program held the xtables lock: waited {waited:.1?}, in {runs} runs of the tool");
        }
        self.is_certain = true;
        Ok(Receipt { commits, messages: lines, bytes })
    }

    fn fingerprints(&self) -> Result<Vec<Fingerprint>, Error> {
        let legacy = self.doors.iter().filter(|door| door.variant == Variant::Legacy);
        let places = legacy.flat_map(|door| TableName::ALL.map(|table| (door.family, table)));
        places.map(|(family, table)| fingerprint(family, Variant::Legacy, table.as_str())).collect()
    }

    /// A cheap check of legacy tables. The nft variant has notifications and the generation instead.
    fn have_fingerprints_changed(&self) -> Result<bool, Error> {
        Ok(self.fingerprints()? != self.fingerprints)
    }

    /// The host may have changed its variant: rules that an earlier run wrote with the other one still see packets.
    fn check_other_variant(&mut self) {
        if std::mem::replace(&mut self.has_checked_other_variant, true) {
            return;
        }
        for door in &self.doors {
            if let Err(error) = door.warn_of_leftovers(&Limits::default()) {
                warn!("cannot look for rules of the other variant of iptables: {error}");
            }
        }
    }
}

impl Dataplane for Iptables {
    fn probe(&mut self, node: &NodeIntent) -> Result<(), Failure> {
        for door in &mut self.doors {
            door.probe(&self.limits)?;
        }
        route_loopback(node);
        Ok(())
    }

    fn configure(&mut self, settings: &Settings) {
        self.masquerade_mark = masquerade_mark(settings);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        self.check_other_variant();
        route_loopback(&intent.node);
        let outcome = self.start_all(intent)?;
        if self.uses(Variant::NfTables) {
            // Changes of others before this moment are not drift.
            self.generation.store(kernel_generation()?, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        Ok(self.change_services(changes)?)
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        route_loopback(&node);
        Ok(self.replace_node(node)?)
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        let has_mark = self.ledger.parameters().masquerade_mark == self.masquerade_mark;
        Ok(has_mark && self.ledger.node() == node)
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.ledger.acknowledged()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let (observed, parameters) = (self.observe()?, self.parameters()?);
        let plan = self.difference(&observed, render(intent, parameters, &self.families()));
        Ok(Preview { text: plan.to_string(), operations: plan.ops().map(describe).collect() })
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        self.observed = None;
        let observed = self.observe()?;
        let plan = diff(&observed, &State::default());
        self.carry_out(&plan)?;
        self.ledger = Ledger::default();
        self.is_certain = false;
        let counters = counters::remove().map_err(Error::from)?;
        let mut removed = plan.removals();
        removed.extend(counters.into_iter().map(|name| format!("counter {name}")));
        Ok(removed)
    }

    fn choice_of_endpoints(&self) -> Option<ChoiceOfEndpoints> {
        Some(ChoiceOfEndpoints::ByClient)
    }

    fn persists(&mut self) -> Option<&mut dyn Persists> {
        Some(self)
    }

    fn verifies(&mut self) -> Option<&mut dyn Verifies> {
        Some(self)
    }

    /// Legacy tables send no notifications.
    fn watches(&mut self) -> Option<&mut dyn Watches> {
        if self.uses(Variant::NfTables) { Some(self) } else { None }
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        Some(self)
    }

    fn counts_rules(&self) -> Option<&dyn CountsRules> {
        Some(self)
    }

    fn signs_of_life(&mut self) -> Option<&mut dyn SignsOfLife> {
        Some(self)
    }

    fn counts_packets(&self) -> Option<Box<dyn CountsPackets>> {
        Some(Box::new(Counters))
    }

    fn sweeps_connections(&self) -> Option<Box<dyn SweepsConnections>> {
        Some(Box::new(Conntrack))
    }
}

/// Sets `route_localnet`. Only node ports on 127.0.0.1 need it: a failure is not fatal.
fn route_loopback(node: &NodeIntent) {
    if node.v4.node_ports_on_loopback
        && let Err(error) = sysctl::set_route_localnet()
    {
        warn!(
            "{error}: node ports do not answer on 127.0.0.1 (set it on the host, or \
             iptables.localhostNodePorts to false)"
        );
    }
}

fn is_liberal() -> Result<bool, Error> {
    Ok(sysctl::tcp_be_liberal()?.unwrap_or(false))
}

fn kernel_generation() -> Result<u32, Error> {
    match fingerprint(Family::V4, Variant::NfTables, "nat")? {
        Fingerprint::Generation(generation) => Ok(generation),
        Fingerprint::Absent | Fingerprint::Entries { .. } => Ok(0),
    }
}

/// The first operations, for people.
fn examples(plan: &Plan) -> Vec<String> {
    plan.ops().take(3).map(describe).collect()
}

/// `iptables nat: -D PREROUTING -j …`
fn describe((family, table, op): (Family, TableName, &Op)) -> String {
    let text = match op {
        Op::Write { chain, rules } => format!("{chain} with {} rules", rules.len()),
        op => op.to_string().trim_end().to_owned(),
    };
    format!("{} {table}: {text}", tool(family))
}
