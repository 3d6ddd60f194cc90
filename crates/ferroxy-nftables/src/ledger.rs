//! What the kernel has acknowledged, and the Plan for a change of some Services.
//!
//! Pure. The cost of a Plan is the size of the change: it renders the changed Services twice (as they are, as they must be) and
//! compares; it looks at no other Service. A change is entered after the kernel accepted it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent};
use ferroxy_dataplane::{Acknowledged, Change};

use crate::chain::ChainId;
use crate::diff::{Unknown, diff, difference};
use crate::element::{Element, Key, SetId, member};
use crate::place;
use crate::plan::{Action, Op, Plan};
use crate::program::Program;
use crate::render::{add_on_demand_chains, chains_of, elements, empty_table, render};
use crate::settings::Settings;
use crate::state::State;

#[derive(Debug, Default)]
pub struct Ledger {
    families: Vec<Family>,
    settings: Settings,
    /// The endpoints of Services in slot order: see `place.rs`.
    acknowledged: Acknowledged,
    /// How many elements of Services need a shared element or a chain.
    users: HashMap<Shared, i32>,
    /// What is in the kernel and has no user, until it is tidied away.
    idle: BTreeSet<Shared>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Shared {
    Element(Family, SetId, Key),
    Chain(Family, ChainId),
}

impl Shared {
    /// Whether it stays in the kernel, unused, until the next tidying. A chain may be needed again soon. Hairpins are matched last
    /// of all, when a commit may already have removed the endpoint to which the packet is on its way.
    fn lingers(self) -> bool {
        matches!(self, Shared::Chain(..) | Shared::Element(_, SetId::Hairpins, _))
    }
}

/// What to enter once the kernel accepted a Plan.
#[derive(Debug, Default)]
pub struct Settlement {
    services: Vec<Change>,
    users: HashMap<Shared, i32>,
}

impl Ledger {
    pub fn new(families: &[Family], node: NodeIntent, settings: Settings) -> Ledger {
        let acknowledged = Acknowledged::new(node);
        Ledger { families: families.to_vec(), settings, acknowledged, ..Ledger::default() }
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    /// Whether node and settings are in force.
    pub fn has_node(&self, node: &NodeIntent, settings: &Settings) -> bool {
        self.acknowledged.node() == node && self.settings == *settings
    }

    /// The ruleset that the kernel must have. Unused objects that wait for tidying are part of it: they are no drift. Walks
    /// everything: for verification and tests.
    pub fn state(&self) -> State {
        let node = self.acknowledged.node();
        let services = self.acknowledged.services();
        let services = services.map(|(name, service)| (name.clone(), service.clone())).collect();
        self.with_idle(render(&Intent { node: node.clone(), services }, &self.settings, &self.families))
    }

    /// The State with what waits for tidying.
    fn with_idle(&self, mut state: State) -> State {
        for (family, table) in &mut state.tables {
            let program = Program::new(self.acknowledged.node(), &self.settings, *family);
            add_on_demand_chains(table, chains_among(&self.idle, *family), &program);
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

    /// Enters what an earlier run left in the kernel and packets may be on their way to, as unused: what turns out to stay unused
    /// is removed by the next tidying, and not while its last packets pass.
    pub fn adopt(&mut self, seen: &State) {
        for family in self.families.clone() {
            let Some(table) = seen.tables.get(&family) else { continue };
            let chains = table.chains.keys().filter_map(|name| ChainId::parse(name));
            let chains = chains.flat_map(ChainId::with_needs).map(|chain| Shared::Chain(family, chain));
            self.idle.extend(chains);
            let hairpins = table.elements.get(&SetId::Hairpins).into_iter().flat_map(|all| all.keys());
            self.idle.extend(hairpins.map(|key| Shared::Element(family, SetId::Hairpins, *key)));
        }
    }

    /// Turns what the kernel has into exactly these Services. What was [adopted](Ledger::adopt) waits for tidying.
    pub fn plan_start(&self, seen: &State, changes: &[Change], unknown: Unknown) -> (Plan, Settlement) {
        let (mut plan, settlement) = self.plan(changes);
        if seen.is_empty() {
            // The usual first start: the elements of the Services and the program are all there is to add. One transaction, so that
            // it can replace the rules of others atomically.
            plan.changes.extend(self.plan_program().changes);
            return (plan.at_once(), settlement);
        }
        let node = self.acknowledged.node().clone();
        let services = changes.iter().filter_map(|(name, service)| Some((name.clone(), service.clone()?)));
        let wanted = render(&Intent { node, services: services.collect() }, &self.settings, &self.families);
        (difference(seen, self.with_idle(wanted), unknown), settlement)
    }

    /// Creates the program in a kernel that has nothing of ours.
    pub fn plan_program(&self) -> Plan {
        diff(&State::default(), &self.program(self.acknowledged.node(), &self.settings))
    }

    /// Changes the parameters of the program.
    pub fn plan_node(&self, node: &NodeIntent, settings: &Settings) -> Plan {
        let now = self.program(self.acknowledged.node(), &self.settings);
        diff(&now, &self.program(node, settings))
    }

    pub fn settle_node(&mut self, node: NodeIntent, settings: Settings) {
        self.acknowledged.set_node(node);
        self.settings = settings;
    }

    /// The program with the chains in use, without any Service.
    fn program(&self, node: &NodeIntent, settings: &Settings) -> State {
        let table = |family: &Family| {
            let program = Program::new(node, settings, *family);
            let mut table = empty_table(&program);
            let used = chains_among(self.users.keys(), *family);
            let idle = chains_among(&self.idle, *family);
            add_on_demand_chains(&mut table, used.chain(idle), &program);
            (*family, table)
        };
        State { tables: self.families.iter().map(table).collect() }
    }

    /// The Plan for these changes, together.
    pub fn plan(&self, changes: &[Change]) -> (Plan, Settlement) {
        let mut comparison = Comparison { families: &self.families, ..Comparison::default() };
        let mut settlement = Settlement::default();
        for (name, wanted) in changes {
            let previous = self.acknowledged.service(name);
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
        for ((family, _, _), element) in comparison.leaving {
            plan.changes.push(Op { family, action: Action::Remove(element) });
        }
        settlement.users = comparison.users;
        self.shared_ops(&settlement.users, &mut plan);
        plan.sort();
        (plan, settlement)
    }

    /// Adds shared objects with their first user and removes them with their last.
    fn shared_ops(&self, users: &HashMap<Shared, i32>, plan: &mut Plan) {
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
                    let program = Program::new(self.acknowledged.node(), &self.settings, family);
                    plan.chains.extend(chain_ops(family, chain, &program));
                }
                _ => {}
            }
        }
    }

    /// Enters the chains of a Plan, which are committed first. The kernel may still refuse the rest.
    pub fn settle_chains(&mut self, settlement: &Settlement) {
        for (shared, change) in &settlement.users {
            if matches!(shared, Shared::Chain(..)) && *change > 0 && !self.users.contains_key(shared) {
                self.idle.insert(*shared);
            }
        }
    }

    pub fn settle(&mut self, settlement: Settlement) {
        for (name, service) in settlement.services {
            self.acknowledged.set_service(&name, service);
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

    /// Removes what has no user.
    pub fn plan_tidy(&self) -> Plan {
        let mut plan = Plan::default();
        // Backwards: in the order of chains, those that refer to a chain come after it.
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

fn chain_ops(family: Family, chain: ChainId, program: &Program<'_>) -> impl Iterator<Item = Op> + use<> {
    let name = chain.to_string();
    let add = Action::AddChain { name: name.clone(), hook: None };
    let rules = program
        .on_demand_chain(chain)
        .rules
        .into_iter()
        .map(move |rule| Action::AddRule { chain: name.clone(), rule: Box::new(rule) });
    let found_by = chain.element().map(Action::Add);
    std::iter::once(add).chain(rules).chain(found_by).map(move |action| Op { family, action })
}

/// Compares the elements of some Services before and after a change.
#[derive(Default)]
struct Comparison<'a> {
    families: &'a [Family],
    /// Sorted, so that the Plan is deterministic.
    leaving: BTreeMap<(Family, SetId, Key), Element>,
    users: HashMap<Shared, i32>,
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

    /// Counts the users of shared objects. Says whether the element itself is shared.
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
