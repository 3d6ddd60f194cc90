//! What the kernel has acknowledged, and the Plan for a change of some Services.
//!
//! Pure. The cost of a Plan is the size of the change: it renders the changed Services twice (as they are, as they must be; of large
//! ones only what changes, `unchanged.rs`) and compares; it looks at no other Service. A change is entered after the kernel accepted it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent};
use ferroxy_dataplane::{Acknowledged, Change};

use crate::chain::ChainId;
use crate::diff::{Unknown, convertible, diff, difference};
use crate::element::{Element, Key, SetId};
use crate::place;
use crate::plan::{Action, Op, Plan};
use crate::program::Program;
use crate::render::{add_on_demand_chains, chains_of, elements, elements_without, empty_table, render};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::state::State;
use crate::unchanged::Unchanged;
use crate::users::Users;

/// After so many Services at once it is worth while to look at the memory that all of them take.
const MANY: usize = 1000;

#[derive(Debug, Default)]
pub struct Ledger {
    families: Vec<Family>,
    settings: Settings,
    /// The endpoints of Services in slot order: see `place.rs`.
    acknowledged: Acknowledged,
    /// How many elements of Services need a shared element or a chain.
    users: Users,
    /// What is in the kernel and has no user, until it is tidied away.
    idle: BTreeSet<Shared>,
}

/// What to enter once the kernel accepted a Plan.
#[derive(Debug, Default)]
pub struct Settlement {
    services: Vec<Change>,
    users: Users,
    rendered: usize,
}

impl Settlement {
    /// How many elements were rendered for the Plan, before and after: what the Plan cost.
    pub fn rendered(&self) -> usize {
        self.rendered
    }
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
        let services = services.map(|(name, service)| (name.clone(), service)).collect();
        self.with_idle(render(&Intent { node: node.clone(), services }, &self.settings, &self.families))
    }

    /// The State with what waits for tidying.
    fn with_idle(&self, mut state: State) -> State {
        for (family, table) in &mut state.tables {
            let program = Program::new(self.acknowledged.node(), &self.settings, *family);
            add_on_demand_chains(table, chains_among(self.idle.iter().copied(), *family), &program);
            for shared in &self.idle {
                if let Some((of, element)) = shared.element()
                    && of == *family
                {
                    table.insert(element);
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
            self.idle.extend(hairpins.filter_map(|key| Shared::of(SetId::Hairpins, key)));
        }
    }

    /// Turns what the kernel has in force into exactly these Services. What was [adopted](Ledger::adopt) waits for tidying.
    pub fn plan_start(&self, seen: State, changes: &[Change], unknown: Unknown) -> (Plan, Settlement) {
        let mut comparison = Comparison { families: &self.families, ..Comparison::default() };
        let services = || changes.iter().filter_map(|(_, service)| service.clone());
        services().for_each(|service| comparison.count_all(&service));
        let settlement =
            Settlement { services: changes.to_vec(), users: comparison.users, rendered: comparison.rendered };
        (self.plan_from(seen, services(), settlement.users.keys(), unknown), settlement)
    }

    /// Turns what the kernel has into what it must have. Unused objects that wait for tidying are no drift.
    pub fn plan_repair(&self, seen: State, unknown: Unknown) -> Plan {
        let services = self.acknowledged.services().map(|(_, service)| service);
        self.plan_from(seen, services, self.users.keys(), unknown)
    }

    /// Service by Service: what a Service has is taken out of `seen`, and what is left at the end is not wanted. A State of all that
    /// is wanted would take as much memory again.
    fn plan_from(
        &self,
        mut seen: State,
        services: impl Iterator<Item = Arc<ServiceIntent>>,
        users: impl Iterator<Item = Shared> + Clone,
        unknown: Unknown,
    ) -> Plan {
        let shared = || users.clone().chain(self.idle.iter().copied());
        let mut wanted = self.program_for(self.acknowledged.node(), &self.settings, shared());
        for (family, element) in shared().filter_map(|shared| shared.element()) {
            wanted.tables.entry(family).and_modify(|table| table.insert(element));
        }
        let stays = |family: &Family| {
            let tables = seen.tables.get(family).zip(wanted.tables.get(family));
            tables.is_some_and(|(seen, wanted)| convertible(seen, wanted))
        };
        let staying: Vec<Family> = self.families.iter().copied().filter(stays).collect();
        let mut ops = Vec::new();
        for service in services {
            elements(&service, &mut |family, element| {
                if !self.families.contains(&family) || Shared::of(element.set, &element.key).is_some() {
                    return;
                }
                let table = seen.tables.get_mut(&family).filter(|_| staying.contains(&family));
                let action = match table.and_then(|table| table.take(element.set, &element.key)) {
                    Some(entry) if entry.is_same(&element) => return,
                    Some(entry) => {
                        Action::Replace { old: entry.element(element.set, element.key), new: element }
                    }
                    None => Action::Add(element),
                };
                ops.push(Op { family, action });
            });
        }
        let mut plan = difference(&seen, wanted, unknown);
        plan.changes.append(&mut ops);
        plan.sort();
        plan
    }

    /// Creates the program in a kernel that has nothing of ours.
    pub fn plan_program(&self) -> Plan {
        diff(&State::default(), &self.program(self.acknowledged.node(), &self.settings))
    }

    /// Creates the program without its hooks, in place of what was [not in force](State::is_in_force). No packet meets it, so
    /// Services can be added one after the other.
    pub fn plan_foundation(&self, seen: &State) -> Plan {
        let mut plan = diff(&State::default(), &self.foundation());
        let leftovers = seen.tables.keys().map(|family| Op { family: *family, action: Action::RemoveTable });
        plan.changes.extend(leftovers);
        plan.at_once()
    }

    /// Adds the hooks: brings the foundation into force, with all Services that it has by now.
    pub fn plan_hooks(&self) -> Plan {
        diff(&self.foundation(), &self.program(self.acknowledged.node(), &self.settings))
    }

    fn foundation(&self) -> State {
        let mut state = self.program(self.acknowledged.node(), &self.settings);
        for table in state.tables.values_mut() {
            table.chains.retain(|_, chain| chain.hook.is_none());
        }
        state
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
        self.program_for(node, settings, self.users.keys().chain(self.idle.iter().copied()))
    }

    fn program_for(
        &self,
        node: &NodeIntent,
        settings: &Settings,
        users: impl Iterator<Item = Shared> + Clone,
    ) -> State {
        let table = |family: &Family| {
            let program = Program::new(node, settings, *family);
            let mut table = empty_table(&program);
            add_on_demand_chains(&mut table, chains_among(users.clone(), *family), &program);
            (*family, table)
        };
        State { tables: self.families.iter().map(table).collect() }
    }

    /// The Plan for these changes, together.
    pub fn plan(&self, changes: &[Change]) -> (Plan, Settlement) {
        let mut comparison = Comparison { families: &self.families, ..Comparison::default() };
        let mut settlement = Settlement::default();
        let mut unchanged = Vec::with_capacity(changes.len());
        for (name, wanted) in changes {
            let previous = self.acknowledged.service(name);
            let placed = match (&previous, wanted) {
                (Some(previous), Some(wanted)) => {
                    Some(Arc::new(place::onto_previous(previous, ServiceIntent::clone(wanted))))
                }
                (_, wanted) => wanted.clone(),
            };
            let same = match (&previous, &placed) {
                (Some(previous), Some(placed)) => Unchanged::between(previous, placed),
                _ => Unchanged::default(),
            };
            if let Some(previous) = previous {
                comparison.before(&previous, &same);
            }
            unchanged.push(same);
            settlement.services.push((name.clone(), placed));
        }
        for ((_, placed), same) in settlement.services.iter().zip(&unchanged) {
            if let Some(placed) = placed {
                comparison.after(placed, same);
            }
        }
        let mut plan = Plan { changes: comparison.ops, ..Plan::default() };
        for ((family, _, _), element) in comparison.leaving {
            plan.changes.push(Op { family, action: Action::Remove(element) });
        }
        settlement.users = comparison.users;
        settlement.rendered = comparison.rendered;
        self.shared_ops(&settlement.users, &mut plan);
        plan.sort();
        (plan, settlement)
    }

    /// Adds shared objects with their first user and removes them with their last.
    fn shared_ops(&self, users: &Users, plan: &mut Plan) {
        for (shared, change) in users.iter() {
            let before = self.users.get(shared);
            let is_there = before > 0 || self.idle.contains(&shared);
            let will_be = before + change > 0 || (is_there && shared.lingers());
            if is_there == will_be {
                continue;
            }
            if let Shared::Chain(family, chain) = shared {
                let program = Program::new(self.acknowledged.node(), &self.settings, family);
                plan.chains.extend(chain_ops(family, chain, &program));
            } else if let Some((family, element)) = shared.element() {
                let action = if will_be { Action::Add(element) } else { Action::Remove(element) };
                plan.changes.push(Op { family, action });
            }
        }
    }

    /// Enters the chains of a Plan, which are committed first. The kernel may still refuse the rest.
    pub fn settle_chains(&mut self, settlement: &Settlement) {
        for (shared, change) in settlement.users.iter() {
            if matches!(shared, Shared::Chain(..)) && change > 0 && self.users.get(shared) == 0 {
                self.idle.insert(shared);
            }
        }
    }

    pub fn settle(&mut self, settlement: Settlement) {
        let many = settlement.services.len() > MANY;
        for (name, service) in settlement.services {
            self.acknowledged.set_service(&name, service);
        }
        for (shared, change) in settlement.users.iter() {
            let before = self.users.get(shared);
            let after = before + change;
            if after > 0 {
                self.users.add(shared, change);
            } else {
                self.users.remove(shared);
            }
            match (before > 0, after > 0) {
                (true, false) if shared.lingers() => drop(self.idle.insert(shared)),
                (false, true) => drop(self.idle.remove(&shared)),
                _ => {}
            }
        }
        if many {
            self.acknowledged.shrink();
            self.users.shrink();
        }
    }

    /// Removes what has no user.
    pub fn plan_tidy(&self) -> Plan {
        let mut plan = Plan::default();
        // Backwards: in the order of chains, those that refer to a chain come after it.
        for shared in self.idle.iter().rev() {
            if let Shared::Chain(family, chain) = *shared {
                let found_by = chain.element().map(Action::Remove);
                plan.changes.extend(found_by.map(|action| Op { family, action }));
                plan.tidy.push(Op { family, action: Action::RemoveChain(chain.to_string()) });
            } else if let Some((family, element)) = shared.element() {
                plan.changes.push(Op { family, action: Action::Remove(element) });
            }
        }
        plan
    }

    pub fn settle_tidy(&mut self) {
        self.idle.clear();
    }
}

fn chains_among(shared: impl Iterator<Item = Shared>, family: Family) -> impl Iterator<Item = ChainId> {
    shared.filter_map(move |shared| match shared {
        Shared::Chain(of, chain) if of == family => Some(chain),
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
    users: Users,
    ops: Vec<Op>,
    /// How many elements were rendered.
    rendered: usize,
}

impl Comparison<'_> {
    fn before(&mut self, service: &ServiceIntent, unchanged: &Unchanged) {
        elements_without(unchanged, service, &mut |family, element| {
            self.rendered += 1;
            if self.families.contains(&family) && !self.count(family, &element, -1) {
                self.leaving.insert((family, element.set, element.key), element);
            }
        });
    }

    fn after(&mut self, service: &ServiceIntent, unchanged: &Unchanged) {
        elements_without(unchanged, service, &mut |family, element| {
            self.rendered += 1;
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

    /// Counts a Service that the kernel may or may not have.
    fn count_all(&mut self, service: &ServiceIntent) {
        elements(service, &mut |family, element| {
            if self.families.contains(&family) {
                self.count(family, &element, 1);
            }
        });
    }

    /// Counts the users of shared objects. Says whether the element itself is shared.
    fn count(&mut self, family: Family, element: &Element, step: i32) -> bool {
        for chain in chains_of(element) {
            self.users.add(Shared::Chain(family, chain), step);
        }
        let shared = Shared::of(element.set, &element.key);
        if let Some(shared) = shared {
            self.users.add(shared, step);
        }
        shared.is_some()
    }
}
