//! The running dataplane: keeps the kernel at what the Intent asks for, a change at a time.
//!
//! What the kernel has taken is in the [`Ledger`]; a change that fails is not entered, so the next attempt plans it
//! again from what is really there. It has no queue and no clock: when to try again is the agent's business.

use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_netlink::error::Error;
use ferroxy_netlink::nftables::Connection;
use rustix::io::Errno;

use crate::apply::{ApplyError, Receipt, apply, check};
use crate::diff::diff;
use crate::ledger::{Change, Ledger};
use crate::observe::observe;
use crate::place;
use crate::plan::{Op, Plan};
use crate::render::elements;
use crate::state::State;

#[derive(Debug)]
pub struct Dataplane {
    connection: Connection,
    families: Vec<Family>,
    ledger: Ledger,
}

/// What came of an attempt.
#[derive(Debug, Default)]
pub struct Outcome {
    pub receipt: Receipt,
    /// How many operations the kernel took.
    pub operations: usize,
    /// The Services it did not take, with its words. All others are in force.
    pub failed: Vec<(ServiceName, String)>,
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
        })
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

    /// Whether this kernel can do what the program needs: the kernel reads the program and forgets it.
    pub fn probe(&mut self, node: &NodeIntent) -> Result<(), ApplyError> {
        const PROBE_TABLE: &str = "ferroxy-probe";
        check(&mut self.connection, &Ledger::new(&self.families, node.clone()).plan_program(), PROBE_TABLE)
    }

    /// Brings the kernel from whatever it has of ours to this Intent, sending the difference only.
    pub fn start(&mut self, intent: &Intent) -> Result<Outcome, ApplyError> {
        let seen = observe(&mut self.connection).map_err(not_an_operation)?;
        self.ledger = Ledger::new(&self.families, intent.node.clone());
        if seen.is_empty() {
            let program = self.ledger.plan_program();
            let changes = intent.services.iter().map(|(name, s)| (name.clone(), Some(s.clone()))).collect();
            return self.try_changes(changes, program);
        }
        self.adopt(&seen, intent)
    }

    /// Takes over rules that are there already: of an earlier run, or of an earlier version.
    fn adopt(&mut self, seen: &State, intent: &Intent) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        let mut changes: Vec<Change> = intent
            .services
            .iter()
            .map(|(name, service)| (name.clone(), Some(place::onto_kernel(seen, service))))
            .collect();
        loop {
            let mut ledger = Ledger::new(&self.families, intent.node.clone());
            let (_, settlement) = ledger.plan(&changes);
            ledger.settle(settlement);
            let plan = diff(seen, &ledger.state());
            match apply(&mut self.connection, &plan) {
                Ok(receipt) => {
                    self.ledger = ledger;
                    return Ok(Outcome { receipt, operations: plan.len(), ..outcome });
                }
                Err(error) => {
                    let guilty = guilty(&error, &changes, &Ledger::default());
                    if guilty.is_empty() {
                        return Err(error);
                    }
                    changes.retain(|(name, _)| !guilty.iter().any(|(g, _)| g == name));
                    outcome.failed.extend(guilty);
                }
            }
        }
    }

    /// Changes some Services. Those the kernel refuses are named; the others are in force.
    pub fn change(&mut self, changes: Vec<Change>) -> Result<Outcome, ApplyError> {
        self.try_changes(changes, Plan::default())
    }

    fn try_changes(&mut self, mut changes: Vec<Change>, program: Plan) -> Result<Outcome, ApplyError> {
        let mut outcome = Outcome::default();
        loop {
            let (mut plan, settlement) = self.ledger.plan(&changes);
            if !program.is_empty() {
                plan.changes.splice(0..0, program.changes.iter().cloned());
                plan.sort();
            }
            match apply(&mut self.connection, &plan) {
                Ok(receipt) => {
                    self.ledger.settle(settlement);
                    return Ok(Outcome { receipt, operations: plan.len(), ..outcome });
                }
                Err(error) => {
                    let guilty = guilty(&error, &changes, &self.ledger);
                    if guilty.is_empty() {
                        return Err(error);
                    }
                    changes.retain(|(name, _)| !guilty.iter().any(|(g, _)| g == name));
                    outcome.failed.extend(guilty);
                }
            }
        }
    }

    /// Changes the parameters of the program.
    pub fn change_node(&mut self, node: NodeIntent) -> Result<Outcome, ApplyError> {
        let plan = self.ledger.plan_node(&node);
        let receipt = apply(&mut self.connection, &plan)?;
        self.ledger.settle_node(node);
        Ok(Outcome { receipt, operations: plan.len(), ..Outcome::default() })
    }

    /// Removes what changes have left unused.
    pub fn tidy(&mut self) -> Result<Outcome, ApplyError> {
        let plan = self.ledger.plan_tidy();
        let receipt = apply(&mut self.connection, &plan)?;
        self.ledger.settle_tidy();
        Ok(Outcome { receipt, operations: plan.len(), ..Outcome::default() })
    }

    /// Compares the kernel with what it should have, and mends what differs.
    pub fn verify(&mut self) -> Result<Repair, ApplyError> {
        let seen = observe(&mut self.connection).map_err(not_an_operation)?;
        let plan = diff(&seen, &self.ledger.state());
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
        Ok(diff(&seen, &crate::render(&placed, &self.families)))
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
            guilty.push((name.clone(), error.to_string()));
        }
    }
    guilty
}

fn owns(service: &ServiceIntent, op: &Op) -> bool {
    let Some(wanted) = op.action.element() else { return false };
    let mut found = false;
    elements(service, &mut |family, element| {
        found |= family == op.family && element.set == wanted.set && element.key == wanted.key;
    });
    found
}
