//! What the kernel has acknowledged, Service by Service, and the Plan for a change of some of them.
//!
//! Pure. The cost of a Plan is the size of the change: the Services named are rendered twice (as they were, as they
//! shall be) and compared; no other Service is looked at. A change is entered only after the kernel took it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use rustc_hash::FxHashMap;

use crate::chain::ChainId;
use crate::diff::diff;
use crate::element::{Element, Key, SetId, Value};
use crate::place;
use crate::plan::{Action, Op, Plan};
use crate::program;
use crate::render::{add_on_demand_chains, chains_of, elements, empty_table, render};
use crate::state::State;

/// A Service as it shall be; `None` removes it.
pub type Change = (ServiceName, Option<Arc<ServiceIntent>>);

#[derive(Debug, Default)]
pub struct Ledger {
    families: Vec<Family>,
    node: NodeIntent,
    /// In slot order: see `place.rs`.
    services: FxHashMap<ServiceName, Arc<ServiceIntent>>,
    /// How many Services' elements need a shared element, or lead to a chain.
    users: FxHashMap<Shared, i32>,
    /// What is in the kernel and has no user any more, until it is tidied away.
    idle: BTreeSet<Shared>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Shared {
    Element(Family, SetId, Key),
    Chain(Family, ChainId),
}

impl Shared {
    /// Whether it outlives its last user for a moment. Chains may be wanted again soon; and whether a pod reached itself is
    /// asked last of all, when the change that made it leave may have come after the packet was sent there.
    fn lingers(self) -> bool {
        matches!(self, Shared::Chain(..) | Shared::Element(_, SetId::Hairpins, _))
    }
}

/// What to enter once a Plan has been carried out.
#[derive(Debug, Default)]
pub struct Settlement {
    services: Vec<Change>,
    users: FxHashMap<Shared, i32>,
}

impl Ledger {
    pub fn new(families: &[Family], node: NodeIntent) -> Ledger {
        Ledger { families: families.to_vec(), node, ..Ledger::default() }
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn node(&self) -> &NodeIntent {
        &self.node
    }

    pub fn service(&self, name: &ServiceName) -> Option<&Arc<ServiceIntent>> {
        self.services.get(name)
    }

    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, &Arc<ServiceIntent>)> {
        self.services.iter()
    }

    /// The ruleset the kernel should have, what is idle included: that is ours until it is tidied away, and no drift.
    /// Walks everything: for starts, verification and people.
    pub fn state(&self) -> State {
        let services = self.services.iter().map(|(name, service)| (name.clone(), service.clone())).collect();
        let mut state = render(&Intent { node: self.node.clone(), services }, &self.families);
        for (family, table) in &mut state.tables {
            add_on_demand_chains(table, chains_among(&self.idle, *family), &self.node, *family);
            for shared in &self.idle {
                if let Shared::Element(of, set, key) = *shared
                    && of == *family
                {
                    table.insert(member(set, key));
                }
            }
        }
        state
    }

    /// The program, for a kernel that has nothing of ours.
    pub fn plan_program(&self) -> Plan {
        diff(&State::default(), &self.program(&self.node))
    }

    /// What a change of the node's own parameters asks for.
    pub fn plan_node(&self, node: &NodeIntent) -> Plan {
        diff(&self.program(&self.node), &self.program(node))
    }

    pub fn settle_node(&mut self, node: NodeIntent) {
        self.node = node;
    }

    /// The program with the chains in use, and no Service.
    fn program(&self, node: &NodeIntent) -> State {
        let table = |family: &Family| {
            let mut table = empty_table(node, *family);
            let used = chains_among(self.users.keys(), *family);
            let idle = chains_among(&self.idle, *family);
            add_on_demand_chains(&mut table, used.chain(idle), node, *family);
            (*family, table)
        };
        State { tables: self.families.iter().map(table).collect() }
    }

    /// What these changes ask for, together.
    pub fn plan(&self, changes: &[Change]) -> (Plan, Settlement) {
        let mut comparison = Comparison { families: &self.families, ..Comparison::default() };
        let mut settlement = Settlement::default();
        for (name, wanted) in changes {
            let previous = self.services.get(name);
            let placed = match (previous, wanted) {
                (Some(previous), Some(wanted)) => {
                    Some(Arc::new(place::onto_previous(previous, ServiceIntent::clone(wanted))))
                }
                (_, wanted) => wanted.clone(),
            };
            if let Some(previous) = previous {
                comparison.before(previous);
            }
            settlement.services.push((name.clone(), placed));
        }
        for (_, placed) in &settlement.services {
            if let Some(placed) = placed {
                comparison.after(placed);
            }
        }
        let mut plan = Plan { changes: comparison.ops, ..Plan::default() };
        // By key, for the map has no order that means anything.
        let mut leaving: Vec<_> = comparison.leaving.into_iter().collect();
        leaving.sort_unstable_by_key(|(key, _)| *key);
        for ((family, _, _), element) in leaving {
            plan.changes.push(Op { family, action: Action::Remove(element) });
        }
        settlement.users = comparison.users;
        self.shared_ops(&settlement.users, &mut plan);
        plan.sort();
        (plan, settlement)
    }

    /// Shared things come with their first user and go with their last.
    fn shared_ops(&self, users: &FxHashMap<Shared, i32>, plan: &mut Plan) {
        let mut users: Vec<_> = users.iter().collect();
        users.sort_unstable();
        for (shared, change) in users {
            let before = self.users.get(shared).copied().unwrap_or(0);
            let is_there = before > 0 || self.idle.contains(shared);
            let will_be = before + change > 0 || (is_there && shared.lingers());
            match *shared {
                Shared::Element(family, set, key) if is_there != will_be => {
                    let element = member(set, key);
                    let action = if will_be { Action::Add(element) } else { Action::Remove(element) };
                    plan.changes.push(Op { family, action });
                }
                Shared::Chain(family, chain) if is_there != will_be => {
                    plan.chains.extend(chain_ops(family, chain, &self.node));
                }
                _ => {}
            }
        }
    }

    /// Enters the Plan's chains, which are in the kernel now; the rest may still be refused.
    pub fn settle_chains(&mut self, settlement: &Settlement) {
        for (shared, change) in &settlement.users {
            if matches!(shared, Shared::Chain(..)) && *change > 0 && !self.users.contains_key(shared) {
                self.idle.insert(*shared);
            }
        }
    }

    pub fn settle(&mut self, settlement: Settlement) {
        for (name, service) in settlement.services {
            match service {
                Some(service) => self.services.insert(name, service),
                None => self.services.remove(&name),
            };
        }
        for (shared, change) in settlement.users {
            let before = self.users.get(&shared).copied().unwrap_or(0);
            let after = before + change;
            if after > 0 {
                self.users.insert(shared, after);
            } else {
                self.users.remove(&shared);
            }
            match (before > 0, after > 0) {
                (true, false) if shared.lingers() => drop(self.idle.insert(shared)),
                (false, true) => drop(self.idle.remove(&shared)),
                _ => {}
            }
        }
    }

    /// Removes what has no user any more.
    pub fn plan_tidy(&self) -> Plan {
        let mut plan = Plan::default();
        // Backwards: whoever leads to a chain comes after it in their order.
        for shared in self.idle.iter().rev() {
            match *shared {
                Shared::Element(family, set, key) => {
                    plan.changes.push(Op { family, action: Action::Remove(member(set, key)) });
                }
                Shared::Chain(family, chain) => {
                    let found_by = chain.element().map(Action::Remove);
                    plan.changes.extend(found_by.map(|action| Op { family, action }));
                    plan.tidy.push(Op { family, action: Action::RemoveChain(chain.to_string()) });
                }
            }
        }
        plan
    }

    pub fn settle_tidy(&mut self) {
        self.idle.clear();
    }
}

fn chains_among<'a>(
    shared: impl IntoIterator<Item = &'a Shared>,
    family: Family,
) -> impl Iterator<Item = ChainId> {
    shared.into_iter().filter_map(move |shared| match shared {
        Shared::Chain(of, chain) if *of == family => Some(*chain),
        _ => None,
    })
}

fn member(set: SetId, key: Key) -> Element {
    Element { set, key, value: Value::Member, comment: None }
}

fn chain_ops(family: Family, chain: ChainId, node: &NodeIntent) -> impl Iterator<Item = Op> + use<> {
    let name = chain.to_string();
    let add = Action::AddChain { name: name.clone(), hook: None };
    let rules = program::on_demand_chain(chain, node, family)
        .rules
        .into_iter()
        .map(move |rule| Action::AddRule { chain: name.clone(), rule: Box::new(rule) });
    let found_by = chain.element().map(Action::Add);
    std::iter::once(add).chain(rules).chain(found_by).map(move |action| Op { family, action })
}

/// The elements of some Services before and after: first everything goes, then what comes is held against it.
#[derive(Default)]
struct Comparison<'a> {
    families: &'a [Family],
    leaving: FxHashMap<(Family, SetId, Key), Element>,
    users: FxHashMap<Shared, i32>,
    ops: Vec<Op>,
}

impl Comparison<'_> {
    fn before(&mut self, service: &ServiceIntent) {
        elements(service, &mut |family, element| {
            if self.families.contains(&family) && !self.count(family, &element, -1) {
                self.leaving.insert((family, element.set, element.key), element);
            }
        });
    }

    fn after(&mut self, service: &ServiceIntent) {
        elements(service, &mut |family, element| {
            if !self.families.contains(&family) || self.count(family, &element, 1) {
                return;
            }
            let action = match self.leaving.remove(&(family, element.set, element.key)) {
                Some(old) if old == element => return,
                Some(old) => Action::Replace { old, new: element },
                None => Action::Add(element),
            };
            self.ops.push(Op { family, action });
        });
    }

    /// Counts the users of what is shared; says whether the element itself is.
    fn count(&mut self, family: Family, element: &Element, step: i32) -> bool {
        for chain in chains_of(element) {
            *self.users.entry(Shared::Chain(family, chain)).or_insert(0) += step;
        }
        let is_shared = element.set.is_shared();
        if is_shared {
            *self.users.entry(Shared::Element(family, element.set, element.key)).or_insert(0) += step;
        }
        is_shared
    }
}
