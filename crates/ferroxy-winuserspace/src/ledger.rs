//! The Services that are wanted, and those that are in force.
//!
//! Pure. A change is recorded as wanted before the attempt, and as in force when all of it is. The cost of a change is the size
//! of the changed Services. Several Services may share an address, with different ports: it stays as long as one needs it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::{Family, NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, Change};
use ferroxy_proxy::Key;

use crate::render::fragment;
use crate::settings::Settings;
use crate::state::State;

#[derive(Debug)]
pub struct Ledger {
    families: Vec<Family>,
    settings: Settings,
    acknowledged: Acknowledged,
    wanted: BTreeMap<ServiceName, Arc<ServiceIntent>>,
    /// The Service that has a frontend.
    owners: HashMap<Key, ServiceName>,
    /// How many Services need an address. No count is zero.
    uses: HashMap<IpAddr, u32>,
}

/// The objects that a change affects, and their wanted State. Objects that other Services need, too, are not removed.
#[derive(Debug, Default, PartialEq)]
pub struct Touched {
    pub addresses: BTreeSet<IpAddr>,
    pub pools: BTreeSet<Key>,
    pub frontends: BTreeSet<Key>,
    pub wanted: State,
}

impl Ledger {
    pub fn new(families: &[Family], node: NodeIntent, settings: Settings) -> Ledger {
        Ledger {
            families: families.to_vec(),
            settings,
            acknowledged: Acknowledged::new(node),
            wanted: BTreeMap::new(),
            owners: HashMap::new(),
            uses: HashMap::new(),
        }
    }

    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn families(&self) -> &[Family] {
        &self.families
    }

    pub fn wanted_names(&self) -> impl Iterator<Item = &ServiceName> {
        self.wanted.keys()
    }

    /// Whether node and settings are in force.
    pub fn has_node(&self, node: &NodeIntent, settings: &Settings) -> bool {
        self.acknowledged.node() == node && self.settings == *settings
    }

    pub fn fragment(&self, service: &ServiceIntent) -> State {
        fragment(service, self.acknowledged.node(), &self.settings, &self.families)
    }

    /// Everything that is wanted. Renders all Services: for starts, verification and people.
    pub fn state(&self) -> State {
        let mut state = State::default();
        for (name, service) in &self.wanted {
            let mut part = self.fragment(service);
            part.frontends.retain(|key, _| self.owners.get(key) == Some(name));
            state.extend(part);
        }
        state
    }

    /// Records changes as wanted. Of several changes of one Service the last counts.
    pub fn want(&mut self, changes: &[Change]) -> Touched {
        let changes: BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>> =
            changes.iter().map(|(name, wanted)| (name, wanted.as_ref())).collect();
        let mut touched = Touched::default();
        for name in changes.keys() {
            let Some(before) = self.wanted.remove(*name) else { continue };
            let before = self.fragment(&before);
            self.withdraw(name, &before);
            touched.enter(before);
        }
        for (name, service) in changes {
            let Some(service) = service else { continue };
            let mut after = self.fragment(service);
            self.wanted.insert(name.clone(), Arc::clone(service));
            after.addresses.iter().for_each(|ip| *self.uses.entry(*ip).or_default() += 1);
            after
                .frontends
                .retain(|key, _| self.owners.entry(key.clone()).or_insert_with(|| name.clone()) == name);
            touched.enter(after.clone());
            touched.wanted.extend(after);
        }
        // Leaves out objects that the changed Services gave up and other Services still have.
        let Touched { addresses, frontends, wanted, .. } = &mut touched;
        addresses.retain(|ip| wanted.addresses.contains(ip) || !self.uses.contains_key(ip));
        frontends.retain(|key| wanted.frontends.contains_key(key) || !self.owners.contains_key(key));
        touched
    }

    fn withdraw(&mut self, name: &ServiceName, fragment: &State) {
        for key in fragment.frontends.keys() {
            if self.owners.get(key) == Some(name) {
                self.owners.remove(key);
            }
        }
        for ip in &fragment.addresses {
            match self.uses.get_mut(ip) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.uses.remove(ip)),
            }
        }
    }

    /// Records that these Services are in force as wanted, except for those that were refused.
    pub fn settle<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n ServiceName>,
        refused: &BTreeSet<ServiceName>,
    ) {
        for name in names.into_iter().filter(|name| !refused.contains(*name)) {
            self.acknowledged.set_service(name, self.wanted.get(name).cloned());
        }
    }

    /// Counts again, because the needs of Services depend on the node and on the settings.
    pub fn set_node(&mut self, node: NodeIntent, settings: Settings) {
        self.acknowledged.set_node(node);
        self.settings = settings;
        let all: Vec<Change> =
            self.wanted.iter().map(|(name, service)| (name.clone(), Some(Arc::clone(service)))).collect();
        self.wanted.clear();
        self.owners.clear();
        self.uses.clear();
        self.want(&all);
    }
}

impl Touched {
    fn enter(&mut self, part: State) {
        self.addresses.extend(part.addresses);
        self.pools.extend(part.pools.into_keys());
        self.frontends.extend(part.frontends.into_keys());
    }

    /// The same part of another State.
    pub fn part_of(&self, state: &State) -> State {
        let pools = self.pools.iter().filter_map(|key| state.pools.get_key_value(key));
        let frontends = self.frontends.iter().filter_map(|key| state.frontends.get_key_value(key));
        State {
            addresses: self.addresses.intersection(&state.addresses).copied().collect(),
            pools: pools.map(|(key, it)| (key.clone(), it.clone())).collect(),
            frontends: frontends.map(|(key, it)| (key.clone(), it.clone())).collect(),
        }
    }
}
