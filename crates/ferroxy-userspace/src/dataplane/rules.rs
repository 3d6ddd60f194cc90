//! The rules that lead to the proxy, in the kernel: nftables mode's own dataplane, the chains of the original, or none.

use std::sync::Arc;

use ferroxy_core::{Family, Intent, ServiceIntent};
use ferroxy_dataplane::{
    Change, Dataplane, Failure, FailureKind, Outcome, Receipt, Repair, Settings as Values, Verifies,
};
use ferroxy_iptables::door::Door as RuleDoor;
use ferroxy_iptables::tool::{Bystander, Error, Limits};
use ferroxy_iptables::{Plan, State};
use ferroxy_nftables::Nftables;

use crate::ledger::Ledger;
use crate::portals;
use crate::settings::{Rules, Settings};

/// How many operations of a repair are shown.
const EXAMPLES: usize = 3;

#[derive(Debug)]
pub(super) enum Door {
    Nftables(Box<Nftables>),
    Iptables(Portals),
    None,
}

/// The chains of the original, and what is in them.
#[derive(Debug)]
pub(super) struct Portals {
    /// One for each family.
    rules: Vec<RuleDoor>,
    limits: Limits,
    pub(super) bystander: Bystander,
    /// `None` when it has to be read.
    in_force: Option<State>,
}

impl Door {
    pub(super) fn open(families: &[Family], settings: &Settings, values: &Values) -> Result<Door, Failure> {
        Ok(match settings.rules {
            Rules::Nftables => Door::Nftables(Box::new(Nftables::open(families, settings.of_nftables())?)),
            Rules::Iptables => {
                let doors = families.iter().map(|family| RuleDoor::open(*family, values));
                Door::Iptables(Portals::of(doors.collect::<Result<_, Error>>()?))
            }
            Rules::None => Door::None,
        })
    }

    /// `Ok(false)`: this process may not program the kernel.
    pub(super) fn probe(&mut self, ledger: &Ledger) -> Result<bool, Failure> {
        let tried = match self {
            Door::Nftables(nftables) => nftables.probe(&ledger.scene().node_for_rules()),
            Door::Iptables(portals) => portals.observe().map(drop),
            Door::None => return Ok(false),
        };
        match tried {
            Ok(()) => Ok(true),
            Err(failure) if failure.kind == FailureKind::NotPermitted => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Brings the kernel to what these Services need, whatever it has.
    pub(super) fn start(&mut self, intent: &Intent, ledger: &Ledger) -> Result<Outcome, Failure> {
        match self {
            Door::Nftables(nftables) => {
                let scene = ledger.scene();
                let seen = |it: &Arc<ServiceIntent>| Arc::new(scene.for_rules(&ledger.in_families(it)));
                let services = intent.services.iter().map(|(name, it)| (name.clone(), seen(it)));
                nftables.set(ledger.settings().of_nftables());
                nftables.start(&Intent { node: scene.node_for_rules(), services: services.collect() })
            }
            Door::Iptables(portals) => {
                portals.in_force = None;
                portals.write(&portals::render(intent, &ledger.scene(), ledger.families()))
            }
            Door::None => Ok(Outcome::default()),
        }
    }

    /// Changes the rules of some Services. `all` is called only if the rules are written as a whole.
    pub(super) fn change(
        &mut self,
        changes: Vec<Change>,
        ledger: &Ledger,
        all: impl FnOnce() -> Intent,
    ) -> Result<Outcome, Failure> {
        match self {
            _ if changes.is_empty() => Ok(Outcome::default()),
            Door::Nftables(nftables) => nftables.change(changes),
            Door::Iptables(portals) => {
                portals.write(&portals::render(&all(), &ledger.scene(), ledger.families()))
            }
            Door::None => Ok(Outcome::default()),
        }
    }

    pub(super) fn change_node(
        &mut self,
        ledger: &Ledger,
        all: impl FnOnce() -> Intent,
    ) -> Result<Outcome, Failure> {
        match self {
            Door::Nftables(nftables) => {
                nftables.set(ledger.settings().of_nftables());
                nftables.change_node(ledger.scene().node_for_rules())
            }
            Door::Iptables(portals) => {
                portals.write(&portals::render(&all(), &ledger.scene(), ledger.families()))
            }
            Door::None => Ok(Outcome::default()),
        }
    }

    pub(super) fn verify(&mut self) -> Result<Repair, Failure> {
        match self {
            Door::Nftables(nftables) => nftables.verify(),
            Door::Iptables(portals) => portals.verify(),
            Door::None => Ok(Repair::default()),
        }
    }

    pub(super) fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        match self {
            Door::Nftables(nftables) => nftables.cleanup(),
            Door::Iptables(portals) => portals.cleanup(),
            Door::None => Ok(Vec::new()),
        }
    }
}

impl Portals {
    pub(super) fn of(rules: Vec<RuleDoor>) -> Portals {
        Portals { rules, limits: Limits::default(), bystander: Bystander::default(), in_force: None }
    }

    pub(super) fn observe(&mut self) -> Result<State, Failure> {
        let mut state = State::default();
        for door in &mut self.rules {
            state.tables.extend(door.observe(portals::owns, &self.limits)?.tables);
        }
        Ok(state)
    }

    pub(super) fn is_cold(&mut self) -> Result<bool, Failure> {
        Ok(self.observe()?.is_empty())
    }

    fn write(&mut self, wanted: &State) -> Result<Outcome, Failure> {
        let seen = match self.in_force.take() {
            Some(seen) => seen,
            None => self.observe()?,
        };
        let plan = ferroxy_iptables::diff(&seen, wanted);
        let receipt = self.apply(&plan)?;
        self.in_force = Some(wanted.clone());
        Ok(Outcome { receipt, operations: plan.len(), ..Outcome::default() })
    }

    fn verify(&mut self) -> Result<Repair, Failure> {
        let Some(wanted) = self.in_force.clone() else { return Ok(Repair::default()) };
        let plan = ferroxy_iptables::diff(&self.observe()?, &wanted);
        let receipt = self.apply(&plan)?;
        let examples = plan.to_string().lines().take(EXAMPLES).map(str::to_owned).collect();
        Ok(Repair { receipt, operations: plan.len(), examples, unrepaired: None })
    }

    pub(super) fn cleanup(&mut self) -> Result<Vec<String>, Failure> {
        let seen = self.observe()?;
        self.apply(&ferroxy_iptables::diff(&seen, &State::default()))?;
        self.in_force = None;
        let chains = seen.tables.iter().flat_map(|((family, table), it)| {
            it.chains.keys().map(move |chain| format!("chain {chain} of {table} ({family})"))
        });
        Ok(chains.collect())
    }

    fn apply(&mut self, plan: &Plan) -> Result<Receipt, Failure> {
        if plan.is_empty() {
            return Ok(Receipt::default());
        }
        let done =
            ferroxy_iptables::dataplane::apply::apply(&mut self.rules, &self.limits, plan, &self.bystander)?;
        Ok(Receipt { commits: done.commits, messages: done.lines, bytes: done.bytes })
    }
}
