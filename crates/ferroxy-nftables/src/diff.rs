//! Compares two States: the Plan that turns one into the other.

use ferroxy_core::Family;

use crate::element::SetId;
use crate::plan::{Action, Op, Plan};
use crate::state::{Chain, State, Table};

/// The Plan that turns `seen` into `wanted`. Empty if they are equal.
pub fn diff(seen: &State, wanted: &State) -> Plan {
    let mut plan = Plan::default();
    for family in Family::ALL {
        let mut steps = Steps { family, in_advance: true, plan: &mut plan };
        match (seen.tables.get(&family), wanted.tables.get(&family)) {
            (None, None) => {}
            (Some(_), None) => steps.change(Action::RemoveTable),
            (None, Some(wanted)) => steps.create(wanted),
            (Some(seen), Some(wanted)) if !convertible(seen, wanted) => {
                steps.change(Action::RemoveTable);
                steps.create(wanted);
            }
            (Some(seen), Some(wanted)) => steps.convert(seen, wanted),
        }
    }
    plan.sort();
    plan
}

/// What to do with objects that are not wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    Remove,
    /// They may belong to a Service that cannot be read.
    Keep,
}

/// The same, with a choice.
pub fn difference(seen: &State, wanted: State, unknown: Unknown) -> Plan {
    match unknown {
        Unknown::Remove => diff(seen, &wanted),
        Unknown::Keep => diff(seen, &keeping_the_unknown(seen, wanted)),
    }
}

/// The wanted State with everything else that `seen` has: turning `seen` into it removes nothing.
fn keeping_the_unknown(seen: &State, mut wanted: State) -> State {
    for (family, table) in &mut wanted.tables {
        let Some(seen) = seen.tables.get(family) else { continue };
        for (name, chain) in &seen.chains {
            table.chains.entry(name.clone()).or_insert_with(|| chain.clone());
        }
        for (name, set) in &seen.sets {
            table.sets.entry(name.clone()).or_insert_with(|| set.clone());
        }
        for element in seen.elements() {
            if table.get(element.set, &element.key).is_none() {
                table.insert(element);
            }
        }
    }
    wanted
}

/// The declaration of a set and the hook of a chain cannot be changed in place: if they differ, the table is replaced, in one
/// transaction. That happens when a new version declares something differently, or when another program changed the table or made it
/// dormant.
pub(crate) fn convertible(seen: &Table, wanted: &Table) -> bool {
    let same_sets =
        wanted.sets.iter().all(|(name, set)| seen.sets.get(name).is_none_or(|other| other == set));
    let same_hook = |(name, chain): (&String, &Chain)| {
        seen.chains.get(name).is_none_or(|other| other.hook == chain.hook && other.comment == chain.comment)
    };
    !seen.dormant && same_sets && wanted.chains.iter().all(same_hook)
}

struct Steps<'a> {
    family: Family,
    /// The table is in force: new chains are committed before the elements that lead packets to them (see [`Plan::chains`]).
    in_advance: bool,
    plan: &'a mut Plan,
}

impl Steps<'_> {
    /// A new table is one transaction: no packet is in it yet.
    fn create(&mut self, wanted: &Table) {
        self.in_advance = false;
        self.change(Action::AddTable);
        self.convert(&Table::default(), wanted);
    }

    /// Adds objects before references to them, and removes them after.
    fn convert(&mut self, seen: &Table, wanted: &Table) {
        for (name, set) in &wanted.sets {
            if !seen.sets.contains_key(name) {
                self.prepare(Action::AddSet(Box::new(set.clone())));
            }
        }
        for (name, chain) in &wanted.chains {
            if !seen.chains.contains_key(name) {
                let action = Action::AddChain { name: name.clone(), hook: chain.hook };
                if chain.hook.is_none() { self.prepare(action) } else { self.change(action) }
            }
        }
        for (name, chain) in &wanted.chains {
            self.rules(name, seen.chains.get(name), chain);
        }
        for (name, chain) in &seen.chains {
            if !wanted.chains.contains_key(name) && !chain.rules.is_empty() {
                self.change(Action::RetireChain(name.clone()));
            }
        }
        self.elements(seen, wanted);
        // No rule uses a foreign set at this point, but a foreign map may still refer to a foreign chain: sets go first.
        for name in seen.sets.keys().filter(|name| !wanted.sets.contains_key(*name)) {
            self.tidy(Action::RemoveSet(name.clone()));
        }
        for name in seen.chains.keys().filter(|name| !wanted.chains.contains_key(*name)) {
            self.tidy(Action::RemoveChain(name.clone()));
        }
    }

    /// A chain whose rules differ is flushed and rewritten, within the transaction.
    fn rules(&mut self, name: &str, seen: Option<&Chain>, wanted: &Chain) {
        let seen_rules = seen.map(|chain| chain.rules.as_slice()).unwrap_or_default();
        if seen_rules == wanted.rules {
            return;
        }
        if !seen_rules.is_empty() {
            self.change(Action::FlushChain(name.into()));
        }
        let is_in_use = seen.is_some() || wanted.hook.is_some();
        for rule in &wanted.rules {
            let action = Action::AddRule { chain: name.into(), rule: Box::new(rule.clone()) };
            if is_in_use { self.change(action) } else { self.prepare(action) }
        }
    }

    fn elements(&mut self, seen: &Table, wanted: &Table) {
        for new in wanted.elements().filter(|element| !element.set.is_runtime()) {
            match seen.get(new.set, &new.key) {
                // Leads only to a chain, and no frontend to it yet.
                None if matches!(new.set, SetId::Treatments(_)) => self.prepare(Action::Add(new)),
                None => self.change(Action::Add(new)),
                Some(entry) if entry.is_same(&new) => {}
                Some(entry) => self.change(Action::Replace { old: entry.element(new.set, new.key), new }),
            }
        }
        for old in seen.elements().filter(|element| !element.set.is_runtime()) {
            if wanted.get(old.set, &old.key).is_none() {
                self.change(Action::Remove(old));
            }
        }
    }

    /// What no packet meets before `changes` are committed.
    fn prepare(&mut self, action: Action) {
        let ops = if self.in_advance { &mut self.plan.chains } else { &mut self.plan.changes };
        ops.push(Op { family: self.family, action });
    }

    fn change(&mut self, action: Action) {
        self.plan.changes.push(Op { family: self.family, action });
    }

    fn tidy(&mut self, action: Action) {
        self.plan.tidy.push(Op { family: self.family, action });
    }
}
