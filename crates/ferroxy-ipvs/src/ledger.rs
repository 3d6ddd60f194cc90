//! The Services that the kernel has acknowledged, and the Plan for a change of some of them.
//!
//! Pure. The cost of a Plan is the size of the change: only the changed Services are rendered, twice (before and after; of
//! large Services only the changed frontends, see `unchanged.rs`), and compared. Several Services can have the same member or
//! address, so uses are counted. A change is entered after the kernel has accepted it.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, Change};

use crate::diff::diff;
use crate::plan::{Op, Plan};
use crate::render::{Fragment, Parameters, Surroundings, add, empty, fragment, fragment_without, render};
use crate::set::{Member, SetName};
use crate::state::{Address, State};
use crate::unchanged::{FEW, Unchanged};

#[derive(Debug, Default)]
pub struct Ledger {
    families: Vec<Family>,
    parameters: Parameters,
    acknowledged: Acknowledged,
    uses: Uses,
    /// Services with more frontends than this are large.
    few: usize,
}

/// The changes to enter after a Plan was applied.
#[derive(Debug, Default)]
pub struct Settlement {
    services: Vec<Change>,
    /// The changed Services before and after.
    before: Vec<Fragment>,
    after: Vec<Fragment>,
}

impl Settlement {
    /// The cost of the Plan: how many virtual servers and endpoints were rendered for it, before and after.
    pub fn rendered(&self) -> usize {
        let servers = self.before.iter().chain(&self.after).flat_map(|fragment| fragment.servers.values());
        servers.map(|server| 1 + server.endpoints.len()).sum()
    }
}

impl Ledger {
    pub fn new(families: &[Family], parameters: Parameters, node: NodeIntent) -> Ledger {
        let acknowledged = Acknowledged::new(node);
        Ledger { families: families.to_vec(), parameters, acknowledged, few: FEW, ..Ledger::default() }
    }

    /// For tests: every Service with a frontend is large.
    pub fn treating_all_as_large(self) -> Ledger {
        Ledger { few: 0, ..self }
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn parameters(&self) -> &Parameters {
        &self.parameters
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

    /// The State that the kernel must have. Renders everything: for starts, verification and output.
    pub fn state(&self) -> State {
        render(&self.intent(self.node()), &self.parameters, &self.families)
    }

    /// Creates everything but Services, in a kernel that has nothing of ours.
    pub fn plan_program(&self) -> Plan {
        diff(&State::default(), &empty(self.surroundings()))
    }

    /// The Plan for another node and other parameters. Renders everything, because all virtual servers depend on them, unless
    /// the relevant fields are the same.
    pub fn plan_node(&self, node: &NodeIntent, parameters: &Parameters) -> Plan {
        let same = |family: &Family| {
            let (old, new) = (self.node().family(*family), node.family(*family));
            old.local_detector == new.local_detector && old.node_port_addresses == new.node_port_addresses
        };
        if self.parameters == *parameters
            && self.node().masquerade_all == node.masquerade_all
            && self.families.iter().all(same)
        {
            return Plan::default();
        }
        diff(&self.state(), &render(&self.intent(node), parameters, &self.families))
    }

    /// Renders everything.
    pub fn settle_node(&mut self, node: NodeIntent, parameters: Parameters) {
        self.acknowledged.set_node(node);
        self.parameters = parameters;
        let mut uses = Uses::default();
        for (_, service) in self.acknowledged.services() {
            uses.add(&fragment(&service, self.surroundings()));
        }
        self.uses = uses;
    }

    /// The Plan for these changes together. Of several changes of one Service the last counts.
    pub fn plan(&self, changes: &[Change]) -> (Plan, Settlement) {
        let settlement = self.settlement(changes);
        let mut outside = Outside::new(&self.uses);
        settlement.before.iter().for_each(|fragment| outside.take_away(fragment));
        let involved = || settlement.before.iter().chain(&settlement.after);
        if involved().any(|fragment| outside.shares_server(fragment)) {
            // All Services at a shared address decide which one wins. This is rare: compare everything.
            return (diff(&self.state(), &self.state_after(changes)), settlement);
        }
        let partial = |fragments: &[Fragment]| {
            let mut state = State { device: Some(Default::default()), ..State::default() };
            // Both States get all involved sets: otherwise the Plan would create or destroy a set.
            let names = involved().flat_map(|fragment| &fragment.members).map(|(name, _)| *name);
            state.sets.extend(names.map(|name| (name, Default::default())));
            add(&mut state, fragments.iter().map(|fragment| outside.without_shared(fragment)));
            state
        };
        (diff(&partial(&settlement.before), &partial(&settlement.after)), settlement)
    }

    /// The settlement to enter when these changes were applied, however they were planned.
    pub fn settlement(&self, changes: &[Change]) -> Settlement {
        let changes: BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>> =
            changes.iter().map(|(name, wanted)| (name, wanted.as_ref())).collect();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (name, wanted) in &changes {
            let previous = self.service(name);
            let unchanged = match (&previous, wanted) {
                (Some(previous), Some(wanted)) => {
                    Unchanged::between(previous, wanted, &self.parameters.host_addresses, self.few)
                }
                _ => Unchanged::default(),
            };
            let rendered =
                |service: &ServiceIntent| fragment_without(service, self.surroundings(), &unchanged);
            before.extend(previous.as_deref().map(rendered));
            after.extend(wanted.map(|wanted| rendered(wanted)));
        }
        Settlement {
            before,
            after,
            services: changes.iter().map(|(name, wanted)| ((*name).clone(), wanted.cloned())).collect(),
        }
    }

    /// The State with these changes. Renders everything.
    pub fn state_after(&self, changes: &[Change]) -> State {
        let mut intent = self.intent(self.node());
        for (name, service) in changes {
            match service {
                Some(service) => intent.services.insert(name.clone(), service.clone()),
                None => intent.services.remove(name),
            };
        }
        render(&intent, &self.parameters, &self.families)
    }

    /// The State on another node. Renders everything.
    pub fn state_with(&self, node: &NodeIntent, parameters: &Parameters) -> State {
        render(&self.intent(node), parameters, &self.families)
    }

    pub fn settle(&mut self, settlement: Settlement) {
        settlement.before.iter().for_each(|fragment| self.uses.remove(fragment));
        settlement.after.iter().for_each(|fragment| self.uses.add(fragment));
        for (name, service) in settlement.services {
            self.acknowledged.set_service(&name, service);
        }
    }

    /// Which of the changed Services owns the object of an operation. For an operation that the kernel refused.
    pub fn owner<'c>(&self, changes: &'c [Change], op: &Op) -> Option<&'c ServiceName> {
        let owner = changes.iter().find(|(name, wanted)| {
            let involved = [wanted.clone(), self.service(name)];
            let mut fragments = involved.iter().flatten().map(|it| fragment(it, self.surroundings()));
            fragments.any(|fragment| is_about(op, &fragment))
        });
        owner.map(|(name, _)| name)
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings { node: self.node(), parameters: &self.parameters, families: &self.families }
    }

    fn intent(&self, node: &NodeIntent) -> Intent {
        let services = self.acknowledged.services();
        let services = services.map(|(name, service)| (name.clone(), service)).collect();
        Intent { node: node.clone(), services }
    }
}

fn is_about(op: &Op, fragment: &Fragment) -> bool {
    match op {
        Op::AddMember(name, member) | Op::RemoveMember(name, member) => {
            fragment.members.contains(&(*name, *member))
        }
        Op::Guard(at) | Op::Unguard(at) => fragment.guarded.contains(at),
        Op::AddServer(at, _)
        | Op::ChangeServer(at, _)
        | Op::RemoveServer(at)
        | Op::AddEndpoint(at, _)
        | Op::Revive(at, _)
        | Op::Drain(at, _)
        | Op::RemoveEndpoint(at, _) => {
            fragment.servers.contains_key(at) || fragment.node_port_servers.contains_key(at)
        }
        Op::AddAddress(ip) | Op::RemoveAddress(ip) => fragment.addresses.contains(ip),
        Op::CreateSet(_)
        | Op::ReplaceSet(..)
        | Op::CreateDevice
        | Op::WriteRules(_)
        | Op::RemoveRules(_)
        | Op::RemoveDevice
        | Op::DestroySet(_) => false,
    }
}

/// How many Services have an object. Most objects have one Service; no count is zero.
#[derive(Debug, Default, Clone)]
struct Uses {
    servers: HashMap<Address, u32>,
    addresses: HashMap<IpAddr, u32>,
    members: HashMap<(SetName, Member), u32>,
    guarded: HashMap<Address, u32>,
}

impl Uses {
    fn add(&mut self, fragment: &Fragment) {
        fn count<K: Hash + Eq>(uses: &mut HashMap<K, u32>, key: K) {
            *uses.entry(key).or_default() += 1;
        }
        servers(fragment).for_each(|key| count(&mut self.servers, *key));
        fragment.addresses.iter().for_each(|key| count(&mut self.addresses, *key));
        fragment.members.iter().for_each(|key| count(&mut self.members, *key));
        fragment.guarded.iter().for_each(|key| count(&mut self.guarded, *key));
    }

    fn remove(&mut self, fragment: &Fragment) {
        fn discount<K: Hash + Eq>(uses: &mut HashMap<K, u32>, key: &K) {
            match uses.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(uses.remove(key)),
            }
        }
        servers(fragment).for_each(|key| discount(&mut self.servers, key));
        fragment.addresses.iter().for_each(|key| discount(&mut self.addresses, key));
        fragment.members.iter().for_each(|key| discount(&mut self.members, key));
        fragment.guarded.iter().for_each(|key| discount(&mut self.guarded, key));
    }
}

fn servers(fragment: &Fragment) -> impl Iterator<Item = &Address> {
    fragment.servers.keys().chain(fragment.node_port_servers.keys())
}

/// The objects of the unchanged Services.
struct Outside<'a> {
    all: &'a Uses,
    /// The objects that the changed Services had before.
    inside: Uses,
}

impl<'a> Outside<'a> {
    fn new(all: &'a Uses) -> Outside<'a> {
        Outside { all, inside: Uses::default() }
    }

    fn take_away(&mut self, fragment: &Fragment) {
        self.inside.add(fragment);
    }

    fn shares_server(&self, fragment: &Fragment) -> bool {
        servers(fragment).any(|key| others_have(&self.all.servers, &self.inside.servers, key))
    }

    /// The fragment without objects that unchanged Services have, too: these objects stay.
    fn without_shared(&self, fragment: &Fragment) -> Fragment {
        let (all, inside) = (self.all, &self.inside);
        let mut own = fragment.clone();
        own.addresses.retain(|key| !others_have(&all.addresses, &inside.addresses, key));
        own.members.retain(|key| !others_have(&all.members, &inside.members, key));
        own.guarded.retain(|key| !others_have(&all.guarded, &inside.guarded, key));
        own
    }
}

fn others_have<K: Hash + Eq>(all: &HashMap<K, u32>, inside: &HashMap<K, u32>, key: &K) -> bool {
    all.get(key).copied().unwrap_or(0) > inside.get(key).copied().unwrap_or(0)
}
