//! What the kernel has acknowledged, Service by Service, and the Plan for a change of some of them.
//!
//! Pure. The cost of a Plan is the size of the change: the Services named are rendered twice (as they were, as they
//! shall be) and compared; no other Service is looked at. Members and addresses can belong to several Services at once,
//! so they are counted. A change is entered only after the kernel took it.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::{Family, Intent, NodeIntent, ServiceIntent, ServiceName};
use rustc_hash::FxHashMap;

use crate::diff::diff;
use crate::plan::{Op, Plan};
use crate::render::{Fragment, Settings, Surroundings, add, empty, fragment, render};
use crate::set::{Member, SetName};
use crate::state::{Address, State};

/// A Service as it shall be; `None` removes it.
pub type Change = (ServiceName, Option<Arc<ServiceIntent>>);

#[derive(Debug, Default)]
pub struct Ledger {
    families: Vec<Family>,
    settings: Settings,
    node: NodeIntent,
    services: BTreeMap<ServiceName, Arc<ServiceIntent>>,
    uses: Uses,
}

/// What to enter once a Plan has been carried out.
#[derive(Debug, Default)]
pub struct Settlement {
    services: Vec<Change>,
    /// What the Services had and what they shall have.
    before: Vec<Fragment>,
    after: Vec<Fragment>,
}

impl Ledger {
    pub fn new(families: &[Family], settings: Settings, node: NodeIntent) -> Ledger {
        Ledger { families: families.to_vec(), settings, node, ..Ledger::default() }
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
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

    /// What the kernel should have. Walks everything: for starts, verification and people.
    pub fn state(&self) -> State {
        render(&self.intent(&self.node), &self.settings, &self.families)
    }

    /// What is there without Services, for a kernel that has nothing of ours.
    pub fn plan_program(&self) -> Plan {
        diff(&State::default(), &empty(self.surroundings()))
    }

    /// What a change of the node's own parameters or addresses asks for. They are in every Service's virtual servers:
    /// this walks everything, unless nothing that matters has changed.
    pub fn plan_node(&self, node: &NodeIntent, settings: &Settings) -> Plan {
        let same = |family: &Family| {
            let (old, new) = (self.node.family(*family), node.family(*family));
            old.local_detector == new.local_detector && old.node_port_addresses == new.node_port_addresses
        };
        let of_all = |node: &NodeIntent| (node.masquerade_all, node.masquerade_mark);
        if self.settings == *settings && of_all(&self.node) == of_all(node) && self.families.iter().all(same)
        {
            return Plan::default();
        }
        diff(&self.state(), &render(&self.intent(node), settings, &self.families))
    }

    /// Walks everything that [`plan_node`](Ledger::plan_node) did.
    pub fn settle_node(&mut self, node: NodeIntent, settings: Settings) {
        self.node = node;
        self.settings = settings;
        let mut uses = Uses::default();
        for service in self.services.values() {
            uses.add(&fragment(service, self.surroundings()));
        }
        self.uses = uses;
    }

    /// What these changes ask for, together. Of several changes of one Service the last counts.
    pub fn plan(&self, changes: &[Change]) -> (Plan, Settlement) {
        let settlement = self.settlement(changes);
        let mut outside = Outside::new(&self.uses);
        settlement.before.iter().for_each(|fragment| outside.take_away(fragment));
        let involved = || settlement.before.iter().chain(&settlement.after);
        if involved().any(|fragment| outside.shares_server(fragment)) {
            // Who wins an address that several Services want depends on all of them. Rare: everything is compared.
            return (diff(&self.state(), &self.state_after(changes)), settlement);
        }
        let partial = |fragments: &[Fragment]| {
            let mut state = State { device: Some(Default::default()), ..State::default() };
            // All sets that either side knows, or a set would seem to come or go.
            let names = involved().flat_map(|fragment| &fragment.members).map(|(name, _)| *name);
            state.sets.extend(names.map(|name| (name, Default::default())));
            add(&mut state, fragments.iter().map(|fragment| outside.without_shared(fragment)));
            state
        };
        (diff(&partial(&settlement.before), &partial(&settlement.after)), settlement)
    }

    /// What to enter when these changes are carried out, however they are planned.
    pub fn settlement(&self, changes: &[Change]) -> Settlement {
        let changes: BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>> =
            changes.iter().map(|(name, wanted)| (name, wanted.as_ref())).collect();
        let rendered = |service: &Arc<ServiceIntent>| fragment(service, self.surroundings());
        Settlement {
            before: changes.keys().filter_map(|name| self.service(name)).map(rendered).collect(),
            after: changes.values().flatten().map(|service| rendered(service)).collect(),
            services: changes.iter().map(|(name, wanted)| ((*name).clone(), wanted.cloned())).collect(),
        }
    }

    /// Everything, with these changes. Walks everything.
    pub fn state_after(&self, changes: &[Change]) -> State {
        let mut intent = self.intent(&self.node);
        for (name, service) in changes {
            match service {
                Some(service) => intent.services.insert(name.clone(), service.clone()),
                None => intent.services.remove(name),
            };
        }
        render(&intent, &self.settings, &self.families)
    }

    /// Everything, on a node that is otherwise.
    pub fn state_with(&self, node: &NodeIntent, settings: &Settings) -> State {
        render(&self.intent(node), settings, &self.families)
    }

    pub fn settle(&mut self, settlement: Settlement) {
        settlement.before.iter().for_each(|fragment| self.uses.remove(fragment));
        settlement.after.iter().for_each(|fragment| self.uses.add(fragment));
        for (name, service) in settlement.services {
            match service {
                Some(service) => self.services.insert(name, service),
                None => self.services.remove(&name),
            };
        }
    }

    /// Whose object an operation is about, among the Services that change. For when the kernel refuses it.
    pub fn owner<'c>(&self, changes: &'c [Change], op: &Op) -> Option<&'c ServiceName> {
        let owner = changes.iter().find(|(name, wanted)| {
            let involved = [wanted.as_ref(), self.service(name)];
            let mut fragments = involved.into_iter().flatten().map(|it| fragment(it, self.surroundings()));
            fragments.any(|fragment| is_about(op, &fragment))
        });
        owner.map(|(name, _)| name)
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings { node: &self.node, settings: &self.settings, families: &self.families }
    }

    fn intent(&self, node: &NodeIntent) -> Intent {
        Intent { node: node.clone(), services: self.services.clone() }
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

/// How many Services have something. What only one has is nearly everything; no count is zero.
#[derive(Debug, Default, Clone)]
struct Uses {
    servers: FxHashMap<Address, u32>,
    addresses: FxHashMap<IpAddr, u32>,
    members: FxHashMap<(SetName, Member), u32>,
    guarded: FxHashMap<Address, u32>,
}

impl Uses {
    fn add(&mut self, fragment: &Fragment) {
        fn count<K: Hash + Eq>(uses: &mut FxHashMap<K, u32>, key: K) {
            *uses.entry(key).or_default() += 1;
        }
        servers(fragment).for_each(|key| count(&mut self.servers, *key));
        fragment.addresses.iter().for_each(|key| count(&mut self.addresses, *key));
        fragment.members.iter().for_each(|key| count(&mut self.members, *key));
        fragment.guarded.iter().for_each(|key| count(&mut self.guarded, *key));
    }

    fn remove(&mut self, fragment: &Fragment) {
        fn discount<K: Hash + Eq>(uses: &mut FxHashMap<K, u32>, key: &K) {
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

/// What the Services that do not change have.
struct Outside<'a> {
    all: &'a Uses,
    /// What those that change have of it.
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

    /// Whatever happens to a Service, what others have too stays.
    fn without_shared(&self, fragment: &Fragment) -> Fragment {
        let (all, inside) = (self.all, &self.inside);
        let mut own = fragment.clone();
        own.addresses.retain(|key| !others_have(&all.addresses, &inside.addresses, key));
        own.members.retain(|key| !others_have(&all.members, &inside.members, key));
        own.guarded.retain(|key| !others_have(&all.guarded, &inside.guarded, key));
        own
    }
}

fn others_have<K: Hash + Eq>(all: &FxHashMap<K, u32>, inside: &FxHashMap<K, u32>, key: &K) -> bool {
    all.get(key).copied().unwrap_or(0) > inside.get(key).copied().unwrap_or(0)
}
