//! The Services that are wanted, and those that are in force in HNS.
//!
//! Pure. A change is recorded as wanted before the attempt: objects that a failed attempt leaves are found by it. It is
//! recorded as in force when HNS has all of it. The cost of a change is the size of the changed Services.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::{NodeIntent, ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, Change};

use crate::render::{add, base, fragment};
use crate::state::{Frontend, State};
use crate::surroundings::Surroundings;

#[derive(Debug, Default)]
pub struct Ledger {
    acknowledged: Acknowledged,
    wanted: BTreeMap<ServiceName, Arc<ServiceIntent>>,
    /// The Service that has a frontend.
    owners: HashMap<Frontend, ServiceName>,
    /// How many Services need an endpoint. No count is zero.
    uses: HashMap<IpAddr, u32>,
}

/// The objects that a change affects, and their wanted State. Objects that other Services need, too, are not removed.
#[derive(Debug, Default, PartialEq)]
pub struct Touched {
    pub frontends: BTreeSet<Frontend>,
    pub endpoints: BTreeSet<IpAddr>,
    pub wanted: State,
}

impl Ledger {
    pub fn new(node: NodeIntent) -> Ledger {
        Ledger { acknowledged: Acknowledged::new(node), ..Ledger::default() }
    }

    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    pub fn node(&self) -> &NodeIntent {
        self.acknowledged.node()
    }

    /// Everything that is wanted. Renders all Services: for starts, verification and people.
    pub fn state(&self, surroundings: &Surroundings) -> State {
        let mut state = base(self.node(), surroundings);
        for service in self.wanted.values() {
            add(&mut state, fragment(service, self.node(), surroundings));
        }
        state
    }

    /// Records changes as wanted. Of several changes of one Service the last counts.
    pub fn want(&mut self, changes: &[Change], surroundings: &Surroundings) -> Touched {
        let changes: BTreeMap<&ServiceName, Option<&Arc<ServiceIntent>>> =
            changes.iter().map(|(name, wanted)| (name, wanted.as_ref())).collect();
        let mut touched = Touched::default();
        for name in changes.keys() {
            let Some(before) = self.wanted.remove(*name) else { continue };
            let before = fragment(&before, self.node(), surroundings);
            self.withdraw(name, &before);
            touched.frontends.extend(before.balancers.into_keys());
            touched.endpoints.extend(before.endpoints.into_keys());
        }
        for (name, service) in changes {
            let Some(service) = service else { continue };
            let after = fragment(service, self.node(), surroundings);
            self.wanted.insert(name.clone(), Arc::clone(service));
            self.enter(name, after, &mut touched);
        }
        self.leave_to_others(&mut touched);
        touched
    }

    fn withdraw(&mut self, name: &ServiceName, fragment: &State) {
        for at in fragment.balancers.keys() {
            if self.owners.get(at) == Some(name) {
                self.owners.remove(at);
            }
        }
        for ip in fragment.endpoints.keys() {
            match self.uses.get_mut(ip) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.uses.remove(ip)),
            }
        }
    }

    fn enter(&mut self, name: &ServiceName, fragment: State, touched: &mut Touched) {
        for (at, balancer) in fragment.balancers {
            if self.owners.entry(at).or_insert_with(|| name.clone()) == name {
                touched.frontends.insert(at);
                touched.wanted.balancers.insert(at, balancer);
            }
        }
        for (ip, endpoint) in fragment.endpoints {
            *self.uses.entry(ip).or_default() += 1;
            touched.endpoints.insert(ip);
            touched.wanted.endpoints.insert(ip, endpoint);
        }
    }

    /// Leaves out objects that the changed Services gave up and other Services still have.
    fn leave_to_others(&self, touched: &mut Touched) {
        let Touched { frontends, endpoints, wanted } = touched;
        frontends.retain(|at| wanted.balancers.contains_key(at) || !self.owners.contains_key(at));
        endpoints.retain(|ip| wanted.endpoints.contains_key(ip) || !self.uses.contains_key(ip));
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

    /// Counts again, because owners and uses depend on the node and on the surroundings.
    pub fn set_node(&mut self, node: NodeIntent, surroundings: &Surroundings) {
        self.acknowledged.set_node(node);
        let all: Vec<Change> =
            self.wanted.iter().map(|(name, service)| (name.clone(), Some(Arc::clone(service)))).collect();
        self.wanted.clear();
        self.owners.clear();
        self.uses.clear();
        self.want(&all, surroundings);
    }

    pub fn owner(&self, at: &Frontend) -> Option<&ServiceName> {
        self.owners.get(at)
    }
}
