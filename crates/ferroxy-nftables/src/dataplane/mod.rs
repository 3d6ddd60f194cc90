//! The running dataplane, on Linux: keeps nf_tables at what it was last given.
//!
//! The [`Ledger`] has what the kernel acknowledged. A failed change is not entered, so the next attempt plans it again from what
//! is in force. `first.rs` and `attempt.rs` carry Plans out, `capability.rs` has the capabilities.

pub mod apply;
mod attempt;
mod capability;
mod early;
mod first;
mod generation;
mod localhost;
pub mod observe;
pub mod traffic;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceName};
use ferroxy_dataplane::{
    Acknowledged, Change, ChoiceOfEndpoints, CountsTraffic, Dataplane, Failure, FailureKind, Outcome,
    Persists, Preview, Settings as Values, SweepsConnections, TakesOver, Tidies, Verifies, Watches,
};
use ferroxy_netfilter::connections::Conntrack;
use ferroxy_netfilter::failure::{self, PERMISSION_HINT};
use ferroxy_netfilter::tables;
use ferroxy_netfilter::watch::Watch;
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::{Connection, Subscription};
use tracing::warn;

use crate::diff::{Unknown, diff};
use crate::ledger::Ledger;
use crate::mode::MODE;
use crate::plan::{Plan, remove_kube_proxy_tables};
use crate::render::render;
use crate::settings::Settings;
use crate::state::State;
use apply::{ApplyError, apply, check};
use attempt::placed;
use early::EarlyLook;
use generation::Generation;
use localhost::Localhost;
use observe::observe;

/// A change of so many Services is committed without notifications: see [`Subscription`].
const MANY: usize = 100;

#[derive(Debug)]
pub struct Nftables {
    connection: Connection,
    families: Vec<Family>,
    /// For the next `start` or `change_node`. The ledger has those in force.
    settings: Settings,
    ledger: Ledger,
    /// Kept while not all of the cluster can be read.
    unknown: Unknown,
    generation: Generation,
    watch: Option<Watch>,
    early: Option<EarlyLook>,
    /// The families whose table of kube-proxy `start` replaced, until they are reported.
    replaced: Vec<Family>,
    localhost: Localhost,
}

impl Nftables {
    pub fn open(families: &[Family], settings: Settings) -> Result<Nftables, Failure> {
        Ok(Nftables {
            connection: Connection::open().map_err(failure::of)?,
            families: families.to_vec(),
            settings,
            ledger: Ledger::default(),
            unknown: Unknown::Remove,
            generation: Generation::default(),
            watch: None,
            early: None,
            replaced: Vec::new(),
            localhost: Localhost::new(families),
        })
    }

    /// Settings for the next `start` or `change_node`, for a mode that builds on this one.
    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// What the kernel has.
    pub fn observe(&mut self) -> Result<State, Failure> {
        observe(&mut self.connection).map_err(failure::of)
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The kernel's count of transactions.
    pub fn generation(&mut self) -> Result<u32, Failure> {
        self.connection.generation().map_err(failure::of)
    }

    /// What `start` would do now.
    pub fn plan(&mut self, intent: &Intent) -> Result<Plan, Failure> {
        let seen = observe(&mut self.connection).map_err(failure::of)?;
        let mut plan = diff(&seen, &render(&placed(&seen, intent), &self.settings, &self.families));
        let kube_proxys = tables::of_kube_proxy(&mut self.connection).map_err(failure::of)?;
        plan.changes.extend(remove_kube_proxy_tables(&kube_proxys));
        Ok(plan)
    }

    /// Enters our own transactions into the expected generation.
    fn committed(&mut self, outcome: Result<Outcome, ApplyError>) -> Result<Outcome, Failure> {
        let outcome = outcome?;
        self.generation.committed(outcome.receipt.commits);
        Ok(outcome)
    }

    /// Commits something large without notifications. What others do meanwhile is not known: any commit of theirs counts as drift.
    fn without_notifications(
        &mut self,
        commit: impl FnOnce(&mut Nftables) -> Result<Outcome, ApplyError>,
    ) -> Result<Outcome, Failure> {
        let (elsewhere, before) = (self.generation.elsewhere(), self.generation()?);
        self.listen(Subscription::pause);
        let outcome = commit(self);
        self.listen(Subscription::resume);
        let mut outcome = outcome?;
        let now = self.generation()?;
        outcome.drift |= now != before.wrapping_add(outcome.receipt.commits as u32);
        self.generation.expect(now, elsewhere);
        Ok(outcome)
    }

    fn listen(&self, switch: impl FnOnce(&Subscription) -> Result<(), Error>) {
        if let Some(Err(error)) = self.watch.as_ref().map(|watch| switch(&watch.subscription)) {
            // The generation is still compared every period.
            warn!("changes by other programs are detected only every syncPeriod: {error}");
        }
    }
}

impl Dataplane for Nftables {
    /// The kernel checks the program and discards it.
    fn probe(&mut self, node: &NodeIntent) -> Result<(), Failure> {
        const PROBE_TABLE: &str = "ferroxy-probe";
        let ledger = Ledger::new(&self.families, node.clone(), self.settings);
        check(&mut self.connection, &ledger.plan_program(), PROBE_TABLE).map_err(explain_missing)
    }

    fn configure(&mut self, settings: &Values) {
        self.settings = Settings::read(settings);
    }

    fn start(&mut self, intent: &Intent) -> Result<Outcome, Failure> {
        let outcome = self.without_notifications(|it| it.start_with(intent))?;
        self.localhost.follow_all(self.ledger.acknowledged());
        Ok(outcome)
    }

    fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, Failure> {
        let names: Vec<ServiceName> = changes.iter().map(|(name, _)| name.clone()).collect();
        let outcome = if changes.len() >= MANY {
            self.without_notifications(|it| it.change_services(changes))?
        } else {
            let outcome = self.change_services(changes);
            self.committed(outcome)?
        };
        self.localhost.follow(&names, self.ledger.acknowledged());
        Ok(outcome)
    }

    fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, Failure> {
        let plan = self.ledger.plan_node(&node, &self.settings);
        let receipt = apply(&mut self.connection, &plan)?;
        self.ledger.settle_node(node, self.settings);
        self.localhost.follow_all(self.ledger.acknowledged());
        self.committed(Ok(Outcome { receipt, operations: plan.len(), ..Outcome::default() }))
    }

    fn has_node(&mut self, node: &NodeIntent) -> Result<bool, Failure> {
        Ok(self.ledger.has_node(node, &self.settings))
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.ledger.acknowledged()
    }

    fn preview(&mut self, intent: &Intent) -> Result<Preview, Failure> {
        let plan = self.plan(intent)?;
        Ok(Preview { text: plan.to_string(), operations: plan.ops().map(ToString::to_string).collect() })
    }

    fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        let seen = observe(&mut self.connection).map_err(failure::of)?;
        let receipt = apply(&mut self.connection, &diff(&seen, &State::default()))?;
        self.generation.committed(receipt.commits);
        self.ledger = Ledger::default();
        self.localhost.close();
        Ok(seen.tables.keys().map(|family| tables::describe(*family, crate::TABLE)).collect())
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

    fn watches(&mut self) -> Option<&mut dyn Watches> {
        Some(self)
    }

    fn tidies(&mut self) -> Option<&mut dyn Tidies> {
        Some(self)
    }

    fn takes_over(&mut self) -> Option<&mut dyn TakesOver> {
        Some(self)
    }

    fn counts_traffic(&self) -> Option<Box<dyn CountsTraffic>> {
        Some(Box::new(traffic::Reader::default()))
    }

    fn sweeps_connections(&self) -> Option<Box<dyn SweepsConnections>> {
        Some(Box::new(Conntrack))
    }
}

/// Why the kernel refuses the program, in words that a person can act on.
fn explain_missing(error: ApplyError) -> Failure {
    if error.is_not_permitted() {
        let words = format!("not permitted to program the kernel: {PERMISSION_HINT}");
        return Failure::new(FailureKind::NotPermitted, words);
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let refused: Vec<String> = error.refused.iter().map(|(op, error)| format!("`{op}`: {error}")).collect();
    let what = if refused.is_empty() { error.to_string() } else { refused.join("; ") };
    let needs = MODE.needs;
    Failure::unsupported(format!("this kernel ({release}) lacks what nftables mode needs ({needs}): {what}"))
}
