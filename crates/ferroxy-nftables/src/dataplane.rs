//! The running dataplane: keeps the kernel at what the Intent asks for, a change at a time.
//!
//! What the kernel has taken is in the [`Ledger`]; a change that fails is not entered, so the next attempt plans it
//! again from what is really there. It has no queue and no clock: when to try again is the agent's business.

use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_netlink::error::{Error, Kind};
use ferroxy_netlink::nftables::Connection;
use rustix::io::Errno;

use crate::TABLE;
use crate::apply::{ApplyError, Receipt, apply, check, commit};
use crate::diff::{diff, keeping_the_unknown};
use crate::ledger::{Change, Ledger, Settlement};
use crate::observe::observe;
use crate::place;
use crate::plan::{Action, Op, Plan};
use crate::predecessor;
use crate::render::{elements, render};
use crate::rule::kernel_family;
use crate::state::State;

#[derive(Debug)]
pub struct Dataplane {
    connection: Connection,
    families: Vec<Family>,
    ledger: Ledger,
    /// Not all of the cluster can be seen: what is there and not asked for may be asked for by what is unseen.
    keep_unknown: bool,
}

/// What came of an attempt.
#[derive(Debug, Default)]
pub struct Outcome {
    pub receipt: Receipt,
    /// How many operations the kernel took.
    pub operations: usize,
    /// The Services it did not take, with its words. All others are in force.
    pub failed: Vec<(ServiceName, String)>,
    /// What it said means that it no longer has what we think it has: verify.
    pub drift: bool,
    /// The families whose table of kube-proxy's went as ours came.
    pub replaced: Vec<Family>,
}

/// How much of a Service the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programmed {
    /// There is no table of ours at all.
    Nothing,
    Elements {
        right: usize,
        wanted: usize,
    },
}

/// What verification found.
#[derive(Debug, Default)]
pub struct Repair {
    pub receipt: Receipt,
    /// What had to be done; empty when all was as it should be.
    pub plan: Plan,
}

impl Dataplane {
    pub fn open(families: &[Family]) -> Result<Dataplane, Error> {
        Ok(Dataplane {
            connection: Connection::open()?,
            families: families.to_vec(),
            ledger: Ledger::default(),
            keep_unknown: false,
        })
    }

    /// While this is on, `start` and `verify` remove nothing that they do not know.
    pub fn keep_unknown(&mut self, keep: bool) {
        self.keep_unknown = keep;
    }

    /// The netlink port our own changes carry, to tell them from others' in notifications.
    pub fn port_id(&self) -> u32 {
        self.connection.port_id()
    }

    pub fn generation(&mut self) -> Result<u32, Error> {
        self.connection.generation()
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether there is any table of ours, or one that ours replaces.
    pub fn is_installed(&mut self) -> Result<bool, Error> {
        for family in self.families.clone() {
            if self.connection.table(kernel_family(family), TABLE)?.is_some() {
                return Ok(true);
            }
        }
        Ok(!predecessor::tables(&mut self.connection)?.is_empty())
    }

    /// Whether this kernel can do what the program needs: the kernel reads the program and forgets it.
    pub fn probe(&mut self, node: &NodeIntent) -> Result<(), ApplyError> {
        const PROBE_TABLE: &str = "ferroxy-probe";
        check(&mut self.connection, &Ledger::new(&self.families, node.clone()).plan_program(), PROBE_TABLE)
    }

    /// Brings the kernel from whatever it has of ours to this Intent, sending the difference only. What kube-proxy's own
    /// nftables mode has left is replaced at the same moment.
    pub fn start(&mut self, intent: &Intent) -> Result<Outcome, ApplyError> {
        let seen = observe(&mut self.connection).map_err(not_an_operation)?;
        let wanted = |(name, service): (&ServiceName, &Arc<ServiceIntent>)| {
            (name.clone(), Some(place::onto_kernel(&seen, service)))
        };
        let changes: Vec<Change> = intent.services.iter().map(wanted).collect();
        self.ledger = Ledger::new(&self.families, intent.node.clone());
        // What we cannot see may be what kube-proxy's rules are there for.
        let mut replaced = if self.keep_unknown {
            Vec::new()
        } else {
            predecessor::tables(&mut self.connection).map_err(not_an_operation)?
        };
        let outcome = match self.first_attempt(intent, &seen, changes.clone(), &replaced) {
            // Whatever becomes of theirs, ours must come.
            Err(error) if is_about_predecessor(&error) => {
                replaced.clear();
                self.first_attempt(intent, &seen, changes, &replaced)
            }
            result => result,
        };
        Ok(Outcome { replaced, ..outcome? })
    }

    fn first_attempt(
        &mut self,
        intent: &Intent,
        seen: &State,
        changes: Vec<Change>,
        replaced: &[Family],
    ) -> Result<Outcome, ApplyError> {
        let keep_unknown = self.keep_unknown;
        let mut outcome = Outcome::default();
        let plan = |ledger: &Ledger, changes: &[Change]| {
            let (mut plan, settlement) = ledger.plan(changes);
            if seen.is_empty() {
                // The usual first start: what is planned for the Services is all there is to do.
                plan.changes.extend(ledger.plan_program().changes);
            } else {
                let services =
                    changes.iter().filter_map(|(name, service)| Some((name.clone(), service.clone()?)));
                let wanted = Intent { node: intent.node.clone(), services: services.collect() };
                plan = difference(seen, render(&wanted, ledger.families()), keep_unknown);
            }
            plan.changes.extend(predecessor::removal(replaced));
            (plan.at_once(), settlement)
        };
        self.attempt(changes, plan, &mut outcome)?;
        Ok(outcome)
    }

    /// Changes some Services. Those the kernel refuses are named; the others are in force.
    pub fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        match self.attempt(changes.clone(), Ledger::plan, &mut outcome) {
            Err(error) if changes.len() > 1 && is_refusal(&error) && !suggests_drift(&error) => {
                outcome.failed.clear();
                self.one_by_one(changes, &mut outcome);
                Ok(outcome)
            }
            result => result.map(|()| outcome),
        }
    }

    /// The kernel refused something and did not say what (before 5.16 it names no element): find out by trying.
    fn one_by_one(&mut self, changes: Vec<Change>, outcome: &mut Outcome) {
        for change in changes {
            let name = change.0.clone();
            if let Err(error) = self.attempt(vec![change], Ledger::plan, outcome) {
                outcome.failed.push((name, error.to_string()));
            }
        }
    }

    /// Carries out what `plan` says for these changes. Services whose elements the kernel refuses are left out and
    /// named, and the rest is tried again without them.
    fn attempt(
        &mut self,
        mut changes: Vec<Change>,
        plan: impl Fn(&Ledger, &[Change]) -> (Plan, Settlement),
        outcome: &mut Outcome,
    ) -> Result<(), ApplyError> {
        loop {
            let (plan, settlement) = plan(&self.ledger, &changes);
            let error = match self.carry_out(&plan, &settlement, outcome) {
                Ok(()) => {
                    self.ledger.settle(settlement);
                    return Ok(());
                }
                Err(error) => error,
            };
            let guilty = guilty(&error, &changes, &self.ledger);
            if guilty.is_empty() {
                return Err(error);
            }
            changes.retain(|(name, _)| !guilty.iter().any(|(g, _)| g == name));
            outcome.drift |= suggests_drift(&error);
            outcome.failed.extend(guilty);
        }
    }

    /// What the kernel has taken when it refuses the rest is in `outcome`, too.
    fn carry_out(
        &mut self,
        plan: &Plan,
        settlement: &Settlement,
        outcome: &mut Outcome,
    ) -> Result<(), ApplyError> {
        // A start has none: its chains are among its changes.
        if !plan.chains.is_empty() {
            self.commit(&plan.chains, outcome)?;
            self.ledger.settle_chains(settlement);
        }
        self.commit(&plan.changes, outcome)?;
        self.commit(&plan.tidy, outcome)
    }

    fn commit(&mut self, ops: &[Op], outcome: &mut Outcome) -> Result<(), ApplyError> {
        outcome.receipt += commit(&mut self.connection, ops)?;
        outcome.operations += ops.len();
        Ok(())
    }

    /// Changes the parameters of the program.
    pub fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, ApplyError> {
        let plan = self.ledger.plan_node(&node);
        let receipt = apply(&mut self.connection, &plan)?;
        self.ledger.settle_node(node);
        Ok(Outcome { receipt, operations: plan.len(), ..Outcome::default() })
    }

    /// Removes what changes have left unused. Not while there may be Services we do not know of: they may use it.
    pub fn tidy(&mut self) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        if self.keep_unknown {
            return Ok(outcome);
        }
        let plan = self.ledger.plan_tidy();
        self.commit(&plan.changes, &mut outcome)?;
        // Nothing leads to the chains any more: whatever becomes of them, none can be used again as it is.
        self.ledger.settle_tidy();
        self.commit(&plan.tidy, &mut outcome)?;
        Ok(outcome)
    }

    /// Compares the kernel with what it should have, and mends what differs.
    pub fn verify(&mut self) -> Result<Repair, ApplyError> {
        let seen = observe(&mut self.connection).map_err(not_an_operation)?;
        let plan = difference(&seen, self.ledger.state(), self.keep_unknown);
        let receipt = apply(&mut self.connection, &plan)?;
        Ok(Repair { receipt, plan })
    }

    /// What `start` would do to this kernel now.
    pub fn preview(&mut self, intent: &Intent) -> Result<Plan, Error> {
        let seen = observe(&mut self.connection)?;
        let placed = |(name, service): (&ServiceName, &Arc<ServiceIntent>)| {
            (name.clone(), place::onto_kernel(&seen, service))
        };
        let services = intent.services.iter().map(placed).collect();
        let placed = Intent { node: intent.node.clone(), services };
        let mut plan = diff(&seen, &render(&placed, &self.families));
        plan.changes.extend(predecessor::removal(&predecessor::tables(&mut self.connection)?));
        Ok(plan)
    }

    /// Whether the kernel has a Service as it should be.
    pub fn programmed(&mut self, service: &Arc<ServiceIntent>) -> Result<Programmed, Error> {
        let seen = observe(&mut self.connection)?;
        if seen.is_empty() {
            return Ok(Programmed::Nothing);
        }
        let (mut right, mut wanted) = (0, 0);
        elements(&place::onto_kernel(&seen, service), &mut |family, element| {
            if let Some(table) = seen.tables.get(&family) {
                wanted += 1;
                right +=
                    usize::from(table.get(element.set, &element.key).is_some_and(|e| e.is_same(&element)));
            }
        });
        Ok(Programmed::Elements { right, wanted })
    }

    /// Removes everything of ours: a diff to nothing. Says whether there was anything.
    pub fn cleanup(&mut self) -> Result<bool, ApplyError> {
        let plan = diff(&observe(&mut self.connection).map_err(not_an_operation)?, &State::default());
        apply(&mut self.connection, &plan)?;
        self.ledger = Ledger::default();
        Ok(!plan.is_empty())
    }
}

/// True when an error means that the kernel no longer has what we think it has: verify, then try again.
pub fn suggests_drift(error: &ApplyError) -> bool {
    let drifted = |error: &Error| matches!(error.errno, Errno::NOENT | Errno::EXIST | Errno::BUSY);
    error.refused.iter().map(|(_, error)| error).chain(&error.other).any(drifted)
}

fn difference(seen: &State, wanted: State, keep_unknown: bool) -> Plan {
    let wanted = if keep_unknown { keeping_the_unknown(seen, wanted) } else { wanted };
    diff(seen, &wanted)
}

/// The kernel said no, as opposed to: we could not ask.
fn is_refusal(error: &ApplyError) -> bool {
    !error.refused.is_empty() || error.other.as_ref().is_some_and(|error| error.kind == Kind::Refused)
}

fn is_about_predecessor(error: &ApplyError) -> bool {
    error.refused.iter().any(|(op, _)| op.action == Action::RemovePredecessor)
}

fn not_an_operation(error: Error) -> ApplyError {
    ApplyError { refused: Vec::new(), other: Some(error) }
}

/// The Services whose elements the kernel refused. Looked up only when something failed.
fn guilty(error: &ApplyError, changes: &[Change], ledger: &Ledger) -> Vec<(ServiceName, String)> {
    let mut guilty: Vec<(ServiceName, String)> = Vec::new();
    for (op, error) in &error.refused {
        let owner = changes.iter().find(|(name, wanted)| {
            let involved = [wanted.as_ref(), ledger.service(name)];
            involved.into_iter().flatten().any(|service| owns(service, op))
        });
        if let Some((name, _)) = owner
            && !guilty.iter().any(|(known, _)| known == name)
        {
            guilty.push((name.clone(), refusal(op, error)));
        }
    }
    guilty
}

/// The operation in nft's words, and what the kernel said to it.
fn refusal(op: &Op, error: &Error) -> String {
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
