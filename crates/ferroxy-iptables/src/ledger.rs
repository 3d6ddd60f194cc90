//! What the kernel has acknowledged, Service by Service, and the Plan for a change of some of them.
//!
//! Pure. The cost of a Plan is the size of the change: the Services named are rendered twice (as they were, as they
//! shall be) and compared; no other Service is rendered. (When a rule comes into or leaves a chain that all Services
//! share, its place there is the sum of the others' numbers of rules.) A change is entered only after the kernel took it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use rustc_hash::FxHashMap;

use crate::diff::{Gap, MOST_EDITS, diff, fill};
use crate::plan::{Op, Plan};
use crate::program::{Dispatch, Settings, chains, dispatch_tail};
use crate::render::{ClusterSize, Fragment, Surroundings, fragment, render, render_telling};
use crate::state::{Rules, State, TableName};

/// A Service as it shall be; `None` removes it.
pub type Change = (ServiceName, Option<Arc<ServiceIntent>>);

#[derive(Debug, Default)]
pub struct Ledger {
    families: Vec<Family>,
    settings: Settings,
    node: NodeIntent,
    services: BTreeMap<ServiceName, Entry>,
    size: ClusterSize,
    /// How many rules the Services have in chains of their own, and in those they share. For metrics.
    own_rules: [u64; Family::ALL.len()],
    shared_rules: [[u64; Dispatch::ALL.len()]; Family::ALL.len()],
}

#[derive(Debug)]
struct Entry {
    service: Arc<ServiceIntent>,
    /// How many rules it has in the chains it shares with others.
    counts: Counts,
    /// How many it has in its own, by family.
    own_rules: [u32; Family::ALL.len()],
}

/// By family and kind of chain.
type Counts = [[u32; Dispatch::ALL.len()]; Family::ALL.len()];

/// What to enter once a Plan has been carried out.
#[derive(Debug, Default)]
pub struct Settlement {
    services: Vec<(ServiceName, Option<Entry>)>,
    size: ClusterSize,
}

impl Ledger {
    pub fn new(families: &[Family], settings: Settings, node: NodeIntent) -> Ledger {
        Ledger { families: families.to_vec(), settings, node, ..Ledger::default() }
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn settings(&self) -> Settings {
        self.settings
    }

    pub fn node(&self) -> &NodeIntent {
        &self.node
    }

    pub fn service(&self, name: &ServiceName) -> Option<&Arc<ServiceIntent>> {
        self.services.get(name).map(|entry| &entry.service)
    }

    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, &Arc<ServiceIntent>)> {
        self.services.iter().map(|(name, entry)| (name, &entry.service))
    }

    /// The ruleset the kernel should have. Walks everything: for starts, verification and people.
    pub fn state(&self) -> State {
        self.whole(&self.node, &[]).0
    }

    /// The ruleset the kernel should have with another node and some Services changed; for when the difference to what it
    /// has is not known. Walks everything.
    pub fn whole(&self, node: &NodeIntent, changes: &[Change]) -> (State, Settlement) {
        let mut services: BTreeMap<_, _> =
            self.services().map(|(name, service)| (name.clone(), service.clone())).collect();
        let mut settlement = Settlement::default();
        for (name, wanted) in changes {
            match wanted {
                Some(wanted) => drop(services.insert(name.clone(), wanted.clone())),
                None => {
                    services.remove(name);
                    settlement.services.push((name.clone(), None));
                }
            }
        }
        settlement.size = ClusterSize::of(services.values().map(AsRef::as_ref));
        let intent = Intent { node: node.clone(), services };
        let state = render_telling(&intent, self.settings, &self.families, |service, fragment| {
            settlement.services.push((service.name.clone(), Some(Entry::new(service, fragment))));
        });
        (state, settlement)
    }

    /// How many rules of ours a table should have, jumps to our chains aside.
    pub fn rule_count(&self, family: Family, table: TableName) -> u64 {
        let constant = chains(&self.node, self.settings, family);
        let constant: usize =
            constant.iter().filter(|(of, ..)| *of == table).map(|(_, _, rules)| rules.len()).sum();
        let shared = Dispatch::ALL.into_iter().filter(|dispatch| dispatch.table() == table);
        let shared: u64 = shared.map(|dispatch| self.shared_rules[family as usize][dispatch as usize]).sum();
        let own = if table == TableName::Nat { self.own_rules[family as usize] } else { 0 };
        constant as u64 + shared + own
    }

    /// The chains without Services, for a kernel that has nothing of ours.
    pub fn plan_program(&self) -> Plan {
        let program = Intent { node: self.node.clone(), ..Intent::default() };
        diff(&State::default(), &render(&program, self.settings, &self.families))
    }

    /// What a change of the node's own parameters asks for. They are in every Service's rules: this walks everything,
    /// unless nothing that rules depend on has changed.
    pub fn plan_node(&self, node: &NodeIntent) -> Plan {
        let same = |family: &Family| {
            let (old, new) = (self.node.family(*family), node.family(*family));
            old.local_detector == new.local_detector
                && old.node_port_addresses == new.node_port_addresses
                && old.localhost_node_ports == new.localhost_node_ports
        };
        let of_all = |node: &NodeIntent| (node.masquerade_all, node.masquerade_mark);
        if of_all(&self.node) == of_all(node) && self.families.iter().all(same) {
            return Plan::default();
        }
        diff(&self.state(), &self.whole(node, &[]).0)
    }

    pub fn settle_node(&mut self, node: NodeIntent) {
        self.node = node;
    }

    /// What these changes ask for, together. Of several changes of one Service the last counts.
    pub fn plan(&self, changes: &[Change]) -> (Plan, Settlement) {
        let changes: BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>> =
            changes.iter().map(|(name, wanted)| (name, wanted.as_ref())).collect();
        let size = self.size_after(&changes);
        let mut comparison = Comparison::default();
        let mut settlement = Settlement { size, ..Settlement::default() };
        for (name, wanted) in &changes {
            let before =
                self.service(name).map(|service| self.fragment(service, self.size)).unwrap_or_default();
            let after = wanted.map(|service| self.fragment(service, size)).unwrap_or_default();
            let entry = wanted.map(|service| Entry::new(service, &after));
            settlement.services.push(((*name).clone(), entry));
            comparison.add(name, before, after);
        }
        let same_form = |family: &Family| self.size.is_large(*family) == size.is_large(*family);
        if !self.families.iter().all(same_form) {
            // All rules for endpoints lose or get their comments.
            let (wanted, settlement) = self.whole(&self.node, &owned(&changes));
            return (diff(&self.state(), &wanted), settlement);
        }
        let mut plan = Plan::default();
        for (family, ops) in comparison.chains {
            plan.add(family, TableName::Nat, ops);
        }
        for ((family, dispatch), edits) in comparison.dispatch {
            plan.add(family, dispatch.table(), self.dispatch_ops(family, dispatch, &edits, &settlement));
        }
        (plan, settlement)
    }

    pub fn settle(&mut self, settlement: Settlement) {
        for (name, entry) in settlement.services {
            if let Some(entry) = &entry {
                self.count(entry, u64::wrapping_add);
            }
            let before = match entry {
                Some(entry) => self.services.insert(name, entry),
                None => self.services.remove(&name),
            };
            if let Some(before) = before {
                self.count(&before, u64::wrapping_sub);
            }
        }
        self.size = settlement.size;
    }

    /// Whose rule or chain a line of restore input is about, among the Services that change. For when the tool refuses it.
    pub fn owner<'c>(&self, changes: &'c [Change], line: &str) -> Option<&'c ServiceName> {
        // A declaration begins with the chain, everything else with a command.
        let about = line.strip_prefix(':').or_else(|| line.split_once(' ').map(|(_, rest)| rest))?;
        let chain = about.split(' ').next().unwrap_or_default();
        let is_about = |fragment: Fragment| {
            fragment.chains.keys().any(|(_, own)| **own == *chain)
                || fragment.dispatch.values().any(|rules| rules.iter().any(|rule| about.ends_with(rule)))
        };
        let owner = changes.iter().find(|(name, wanted)| {
            let involved = [wanted.as_ref(), self.service(name)];
            involved.into_iter().flatten().any(|service| is_about(self.fragment(service, self.size)))
        });
        owner.map(|(name, _)| name)
    }

    fn size_after(&self, changes: &BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>>) -> ClusterSize {
        let mut size = self.size;
        for (name, wanted) in changes {
            if let Some(previous) = self.service(name) {
                size.subtract(previous);
            }
            if let Some(wanted) = wanted {
                size.add(wanted);
            }
        }
        size
    }

    fn fragment(&self, service: &ServiceIntent, size: ClusterSize) -> Fragment {
        let surroundings = Surroundings { node: &self.node, settings: self.settings, size };
        fragment(service, surroundings, &self.families)
    }

    fn count(&mut self, entry: &Entry, change: fn(u64, u64) -> u64) {
        for family in 0..Family::ALL.len() {
            self.own_rules[family] = change(self.own_rules[family], u64::from(entry.own_rules[family]));
            for (total, rules) in self.shared_rules[family].iter_mut().zip(entry.counts[family]) {
                *total = change(*total, u64::from(rules));
            }
        }
    }

    /// What changes in a chain that all Services share: single rules, or all of it when they are many.
    fn dispatch_ops(
        &self,
        family: Family,
        dispatch: Dispatch,
        edits: &[Edit<'_>],
        settlement: &Settlement,
    ) -> Vec<Op> {
        let count: usize = edits.iter().map(|edit| edit.gone.len() + edit.come.len()).sum();
        if count > MOST_EDITS {
            return vec![self.whole_dispatch(family, dispatch, settlement)];
        }
        let chain = dispatch.chain();
        let count_of = |entry: &Entry| entry.counts[family as usize][dispatch as usize] as usize;
        let gone = edits.iter().flat_map(|edit| &edit.gone);
        let mut ops: Vec<Op> =
            gone.map(|rule| Op::Delete { chain: chain.into(), rule: rule.clone() }).collect();
        let mut gaps = Vec::new();
        let mut gone_above = 0;
        for edit in edits {
            let above: usize =
                self.services.range(..edit.service.clone()).map(|(_, entry)| count_of(entry)).sum();
            let place = 1 + above - gone_above + edit.place;
            gone_above += edit.gone.len();
            match gaps.last_mut().filter(|gap: &&mut Gap| gap.place == place) {
                Some(gap) => gap.rules.extend(edit.come.iter().cloned()),
                None => gaps.push(Gap { place, rules: edit.come.clone() }),
            }
        }
        let all: usize = self.services.values().map(count_of).sum();
        let end = 1 + all + dispatch_tail(dispatch, &self.node, family).len() - gone_above;
        ops.extend(fill(chain, gaps, end));
        ops
    }

    fn whole_dispatch(&self, family: Family, dispatch: Dispatch, settlement: &Settlement) -> Op {
        let changed: FxHashMap<&ServiceName, Option<&Entry>> =
            settlement.services.iter().map(|(name, entry)| (name, entry.as_ref())).collect();
        let names: BTreeSet<&ServiceName> = self.services.keys().chain(changed.keys().copied()).collect();
        let mut rules = Rules::new();
        for name in names {
            let entry = changed.get(name).copied().unwrap_or_else(|| self.services.get(name));
            let Some(entry) = entry.filter(|entry| entry.counts[family as usize][dispatch as usize] > 0)
            else {
                continue;
            };
            if let Some(own) =
                self.fragment(&entry.service, settlement.size).dispatch.get(&(family, dispatch))
            {
                rules.append(own);
            }
        }
        rules.append(&dispatch_tail(dispatch, &self.node, family));
        Op::Write { chain: dispatch.chain().into(), rules }
    }
}

impl Entry {
    fn new(service: &Arc<ServiceIntent>, fragment: &Fragment) -> Entry {
        let (mut counts, mut own_rules) = (Counts::default(), [0; Family::ALL.len()]);
        for ((family, dispatch), rules) in &fragment.dispatch {
            counts[*family as usize][*dispatch as usize] = rules.len() as u32;
        }
        for ((family, _), rules) in &fragment.chains {
            own_rules[*family as usize] += rules.len() as u32;
        }
        Entry { service: service.clone(), counts, own_rules }
    }
}

fn owned(changes: &BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>>) -> Vec<Change> {
    changes.iter().map(|(name, wanted)| ((*name).clone(), wanted.cloned())).collect()
}

/// Some Services before and after, in the order of their names.
#[derive(Default)]
struct Comparison<'a> {
    chains: BTreeMap<Family, Vec<Op>>,
    dispatch: BTreeMap<(Family, Dispatch), Vec<Edit<'a>>>,
}

/// What changes among the rules of one Service in a shared chain.
struct Edit<'a> {
    service: &'a ServiceName,
    /// How many of its rules stay above those that change.
    place: usize,
    gone: Vec<Box<str>>,
    come: Vec<Box<str>>,
}

impl<'a> Comparison<'a> {
    fn add(&mut self, service: &'a ServiceName, before: Fragment, after: Fragment) {
        for (place, rules) in &before.dispatch {
            let new = after.dispatch.get(place);
            self.edit(*place, service, rules, new.unwrap_or(&Rules::new()));
        }
        for (place, rules) in &after.dispatch {
            if !before.dispatch.contains_key(place) {
                self.edit(*place, service, &Rules::new(), rules);
            }
        }
        for (family, chain) in before.chains.keys().filter(|place| !after.chains.contains_key(place)) {
            self.chains.entry(*family).or_default().push(Op::Remove { chain: chain.clone() });
        }
        for (place, rules) in after.chains {
            if before.chains.get(&place) != Some(&rules) {
                let (family, chain) = place;
                self.chains.entry(family).or_default().push(Op::Write { chain, rules });
            }
        }
    }

    fn edit(&mut self, place: (Family, Dispatch), service: &'a ServiceName, before: &Rules, after: &Rules) {
        if before == after {
            return;
        }
        let (before, after): (Vec<&str>, Vec<&str>) = (before.iter().collect(), after.iter().collect());
        let above = before.iter().zip(&after).take_while(|(old, new)| old == new).count();
        let (gone, come) = (&before[above..], &after[above..]);
        let below = gone.iter().rev().zip(come.iter().rev()).take_while(|(old, new)| old == new).count();
        let boxed = |rules: &[&str]| rules[..rules.len() - below].iter().map(|rule| (*rule).into()).collect();
        let edit = Edit { service, place: above, gone: boxed(gone), come: boxed(come) };
        self.dispatch.entry(place).or_default().push(edit);
    }
}
