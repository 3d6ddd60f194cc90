//! What the kernel has acknowledged, Service by Service, and the Plan for a change of some of them.
//!
//! Pure. The cost of a Plan is the size of the change: the changed Services are rendered twice (before and after) and
//! compared; no other Service is rendered. (The position of a rule in a shared chain is the sum of the other Services'
//! numbers of rules.) A change is recorded after the kernel accepted it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, Change};

use crate::comparison::{Comparison, Edit};
use crate::diff::{Gap, MOST_EDITS, diff, fill};
use crate::plan::{Op, Plan};
use crate::program::{Dispatch, Parameters, chains, dispatch_tail};
use crate::render::{ClusterSize, Fragment, Surroundings, fragment, render, render_telling};
use crate::state::{Rules, State, TableName};

#[derive(Debug, Default)]
pub struct Ledger {
    families: Vec<Family>,
    parameters: Parameters,
    acknowledged: Acknowledged,
    /// How many rules each acknowledged Service has.
    extents: BTreeMap<ServiceName, Extent>,
    size: ClusterSize,
    /// The totals of all extents, for metrics.
    own_rules: [u64; Family::ALL.len()],
    shared_rules: [[u64; Dispatch::ALL.len()]; Family::ALL.len()],
}

/// How many rules a Service has.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    /// In shared chains, by family and kind of chain.
    shared: [[u32; Dispatch::ALL.len()]; Family::ALL.len()],
    /// In its own chains, by family.
    own: [u32; Family::ALL.len()],
}

/// A Service, and how many rules it has.
type Entry = (Arc<ServiceIntent>, Extent);

/// What to record after a Plan was applied.
#[derive(Debug, Default)]
pub struct Settlement {
    services: Vec<(ServiceName, Option<Entry>)>,
    size: ClusterSize,
}

impl Ledger {
    pub fn new(families: &[Family], parameters: Parameters, node: NodeIntent) -> Ledger {
        let acknowledged = Acknowledged::new(node);
        Ledger { families: families.to_vec(), parameters, acknowledged, ..Ledger::default() }
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn parameters(&self) -> Parameters {
        self.parameters
    }

    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    pub fn node(&self) -> &NodeIntent {
        self.acknowledged.node()
    }

    pub fn service(&self, name: &ServiceName) -> Option<Arc<ServiceIntent>> {
        self.acknowledged.service(name)
    }

    /// The ruleset that the kernel must have. Renders everything: for starts, verification and people.
    pub fn state(&self) -> State {
        self.whole(self.node(), self.parameters, &[]).0
    }

    /// The ruleset with another node, other parameters and some Services changed: for when the current ruleset is
    /// unknown. Renders everything.
    pub fn whole(
        &self,
        node: &NodeIntent,
        parameters: Parameters,
        changes: &[Change],
    ) -> (State, Settlement) {
        let known = self.acknowledged.services();
        let mut services: BTreeMap<_, _> = known.map(|(name, service)| (name.clone(), service)).collect();
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
        let state = render_telling(&intent, parameters, &self.families, |service, fragment| {
            let entry = (service.clone(), Extent::of(fragment));
            settlement.services.push((service.name.clone(), Some(entry)));
        });
        (state, settlement)
    }

    /// How many rules of ours a table must have, without the jumps in built-in chains.
    pub fn rule_count(&self, family: Family, table: TableName) -> u64 {
        let constant = chains(self.node(), self.parameters, family);
        let constant: usize =
            constant.iter().filter(|(of, ..)| *of == table).map(|(_, _, rules)| rules.len()).sum();
        let shared = Dispatch::ALL.into_iter().filter(|dispatch| dispatch.table() == table);
        let shared: u64 = shared.map(|dispatch| self.shared_rules[family as usize][dispatch as usize]).sum();
        let own = if table == TableName::Nat { self.own_rules[family as usize] } else { 0 };
        constant as u64 + shared + own
    }

    /// The Plan that creates the chains that always exist, in a kernel without chains of ours.
    pub fn plan_program(&self) -> Plan {
        let program = Intent { node: self.node().clone(), ..Intent::default() };
        diff(&State::default(), &render(&program, self.parameters, &self.families))
    }

    /// The Plan for another node and other parameters. All rules depend on them, so this renders everything, unless no value
    /// that rules depend on differs.
    pub fn plan_node(&self, node: &NodeIntent, parameters: Parameters) -> Plan {
        if self.has_same_rules(node, parameters) {
            return Plan::default();
        }
        diff(&self.state(), &self.whole(node, parameters, &[]).0)
    }

    pub fn settle_node(&mut self, node: NodeIntent, parameters: Parameters) {
        let is_same = self.has_same_rules(&node, parameters);
        self.acknowledged.set_node(node);
        self.parameters = parameters;
        if is_same {
            return;
        }
        // How many rules a Service has depends on the node: on masquerading, and on node ports on loopback addresses.
        let rendered = |(name, service): (&ServiceName, Arc<ServiceIntent>)| {
            let extent = Extent::of(&self.fragment(&service, self.size));
            (name.clone(), Some((service, extent)))
        };
        let services = self.acknowledged.services().map(rendered).collect();
        self.settle(Settlement { services, size: self.size });
    }

    fn has_same_rules(&self, node: &NodeIntent, parameters: Parameters) -> bool {
        let same = |family: &Family| {
            let (old, new) = (self.node().family(*family), node.family(*family));
            old.local_detector == new.local_detector
                && old.node_port_addresses == new.node_port_addresses
                && old.node_ports_on_loopback == new.node_ports_on_loopback
        };
        self.parameters == parameters
            && self.node().masquerade_all == node.masquerade_all
            && self.families.iter().all(same)
    }

    /// The Plan for these changes together. Of several changes of one Service the last counts.
    pub fn plan(&self, changes: &[Change]) -> (Plan, Settlement) {
        let changes: BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>> =
            changes.iter().map(|(name, wanted)| (name, wanted.as_ref())).collect();
        let size = self.size_after(&changes);
        let same_form = |family: &Family| self.size.is_large(*family) == size.is_large(*family);
        if !self.families.iter().all(same_form) {
            // A family crosses the limit for large clusters: all rules for its endpoints lose or get their comments.
            let changes: Vec<Change> =
                changes.iter().map(|(name, wanted)| ((*name).clone(), wanted.cloned())).collect();
            let (wanted, settlement) = self.whole(self.node(), self.parameters, &changes);
            return (diff(&self.state(), &wanted), settlement);
        }
        let mut comparison = Comparison::default();
        let mut settlement = Settlement { size, ..Settlement::default() };
        for (name, wanted) in &changes {
            let before =
                self.service(name).map(|service| self.fragment(&service, self.size)).unwrap_or_default();
            let after = wanted.map(|service| self.fragment(service, size)).unwrap_or_default();
            let entry = wanted.map(|service| (service.clone(), Extent::of(&after)));
            settlement.services.push(((*name).clone(), entry));
            comparison.add(name, before, after);
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
            let (service, extent) = entry.unzip();
            if let Some(extent) = &extent {
                self.count(extent, u64::wrapping_add);
            }
            self.acknowledged.set_service(&name, service);
            let before = match extent {
                Some(extent) => self.extents.insert(name, extent),
                None => self.extents.remove(&name),
            };
            if let Some(before) = before {
                self.count(&before, u64::wrapping_sub);
            }
        }
        self.size = settlement.size;
    }

    /// The changed Service that owns the rule or chain in a line of restore input that the tool refused.
    pub fn owner<'c>(&self, changes: &'c [Change], line: &str) -> Option<&'c ServiceName> {
        // A declaration begins with the chain, everything else with a command.
        let about = line.strip_prefix(':').or_else(|| line.split_once(' ').map(|(_, rest)| rest))?;
        let chain = about.split(' ').next().unwrap_or_default();
        let is_about = |fragment: Fragment| {
            fragment.chains.keys().any(|(_, own)| **own == *chain)
                || fragment.dispatch.values().any(|rules| rules.iter().any(|rule| about.ends_with(rule)))
        };
        let owner = changes.iter().find(|(name, wanted)| {
            let involved = [wanted.clone(), self.service(name)];
            involved.iter().flatten().any(|service| is_about(self.fragment(service, self.size)))
        });
        owner.map(|(name, _)| name)
    }

    fn size_after(&self, changes: &BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>>) -> ClusterSize {
        let mut size = self.size;
        for (name, wanted) in changes {
            if let Some(previous) = self.service(name) {
                size.subtract(&previous);
            }
            if let Some(wanted) = wanted {
                size.add(wanted);
            }
        }
        size
    }

    fn fragment(&self, service: &ServiceIntent, size: ClusterSize) -> Fragment {
        let surroundings = Surroundings { node: self.node(), parameters: self.parameters, size };
        fragment(service, surroundings, &self.families)
    }

    fn count(&mut self, extent: &Extent, change: fn(u64, u64) -> u64) {
        for family in 0..Family::ALL.len() {
            self.own_rules[family] = change(self.own_rules[family], u64::from(extent.own[family]));
            for (total, rules) in self.shared_rules[family].iter_mut().zip(extent.shared[family]) {
                *total = change(*total, u64::from(rules));
            }
        }
    }

    /// The operations on a shared chain: single rules, or the whole chain when many rules change.
    fn dispatch_ops(
        &self,
        family: Family,
        dispatch: Dispatch,
        edits: &[Edit<'_>],
        settlement: &Settlement,
    ) -> Vec<Op> {
        let count: usize = edits.iter().map(|edit| edit.removed.len() + edit.added.len()).sum();
        if count > MOST_EDITS {
            return vec![self.whole_dispatch(family, dispatch, settlement)];
        }
        let chain = dispatch.chain();
        let count_of = |extent: &Extent| extent.shared[family as usize][dispatch as usize] as usize;
        let removed = edits.iter().flat_map(|edit| &edit.removed);
        let mut ops: Vec<Op> =
            removed.map(|rule| Op::Delete { chain: chain.into(), rule: rule.clone() }).collect();
        let mut gaps = Vec::new();
        let mut removed_above = 0;
        for edit in edits {
            let above = self.extents.range(..edit.service.clone());
            let above: usize = above.map(|(_, extent)| count_of(extent)).sum();
            let place = 1 + above - removed_above + edit.place;
            removed_above += edit.removed.len();
            match gaps.last_mut().filter(|gap: &&mut Gap| gap.place == place) {
                Some(gap) => gap.rules.extend(edit.added.iter().cloned()),
                None => gaps.push(Gap { place, rules: edit.added.clone() }),
            }
        }
        let all: usize = self.extents.values().map(count_of).sum();
        let end = 1 + all + dispatch_tail(dispatch, self.node(), family).len() - removed_above;
        ops.extend(fill(chain, gaps, end));
        ops
    }

    fn whole_dispatch(&self, family: Family, dispatch: Dispatch, settlement: &Settlement) -> Op {
        let changed: HashMap<&ServiceName, _> =
            settlement.services.iter().map(|(name, entry)| (name, entry.as_ref())).collect();
        let names: BTreeSet<&ServiceName> = self.extents.keys().chain(changed.keys().copied()).collect();
        let mut rules = Rules::new();
        for name in names {
            let (service, extent) = match changed.get(name) {
                Some(entry) => (entry.map(|(service, _)| service.clone()), entry.map(|(_, extent)| extent)),
                None => (self.service(name), self.extents.get(name)),
            };
            let has_rules = extent.is_some_and(|it| it.shared[family as usize][dispatch as usize] > 0);
            let Some(service) = service.filter(|_| has_rules) else { continue };
            let fragment = self.fragment(&service, settlement.size);
            if let Some(own) = fragment.dispatch.get(&(family, dispatch)) {
                rules.append(own);
            }
        }
        rules.append(&dispatch_tail(dispatch, self.node(), family));
        Op::Write { chain: dispatch.chain().into(), rules }
    }
}

impl Extent {
    fn of(fragment: &Fragment) -> Extent {
        let mut extent = Extent::default();
        for ((family, dispatch), rules) in &fragment.dispatch {
            extent.shared[*family as usize][*dispatch as usize] = rules.len() as u32;
        }
        for ((family, _), rules) in &fragment.chains {
            extent.own[*family as usize] += rules.len() as u32;
        }
        extent
    }
}
