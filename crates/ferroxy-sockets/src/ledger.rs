//! Keeps the content of the maps as Intents, so that the Plan for a change costs as much as the change.
//!
//! The packets' dataplane has the Intents in force. The ledger adds the order of endpoints in slots, where it differs, and the
//! Services that are left to packets because the kernel refused them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroxy_core::{ServiceIntent, ServiceName};
use ferroxy_dataplane::{Acknowledged, place};

use crate::diff::diff;
use crate::plan::Plan;
use crate::render::entries;
use crate::state::{Entry, State};
use crate::terms::Terms;

#[derive(Debug, Default)]
pub struct Ledger {
    terms: Terms,
    /// Services whose endpoints have another order here than in the packets' dataplane.
    placed: BTreeMap<ServiceName, Arc<ServiceIntent>>,
    /// Services that are left to packets, and why.
    left_out: BTreeMap<ServiceName, String>,
}

impl Ledger {
    pub fn new(terms: Terms) -> Ledger {
        Ledger { terms, ..Ledger::default() }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn left_out(&self) -> &BTreeMap<ServiceName, String> {
        &self.left_out
    }

    /// The elements of these Services in the maps, unless another program has changed them.
    pub fn fragment<'a>(
        &self,
        in_force: &Acknowledged,
        names: impl IntoIterator<Item = &'a ServiceName>,
    ) -> State {
        let mut state = State::default();
        for name in names {
            if let Some(service) = self.service(in_force, name) {
                entries(&service, &self.terms, &mut |entry| state.insert(entry));
            }
        }
        state
    }

    /// The elements of all Services. Walks everything: not for ordinary changes.
    pub fn state(&self, in_force: &Acknowledged) -> State {
        self.fragment(in_force, in_force.names())
    }

    fn service(&self, in_force: &Acknowledged, name: &ServiceName) -> Option<Arc<ServiceIntent>> {
        if self.left_out.contains_key(name) {
            return None;
        }
        self.in_slot_order(in_force, name)
    }

    fn in_slot_order(&self, in_force: &Acknowledged, name: &ServiceName) -> Option<Arc<ServiceIntent>> {
        self.placed.get(name).cloned().or_else(|| in_force.service(name))
    }

    /// Before a change: the slot order of these Services, to be passed to [`Ledger::enter`].
    pub fn before(&self, in_force: &Acknowledged, names: &[ServiceName]) -> Vec<Option<Arc<ServiceIntent>>> {
        names.iter().map(|name| self.in_slot_order(in_force, name)).collect()
    }

    /// After a change: endpoints that stay keep their slots. A Service that was left out gets another chance.
    pub fn enter(
        &mut self,
        in_force: &Acknowledged,
        names: &[ServiceName],
        before: &[Option<Arc<ServiceIntent>>],
    ) {
        for (name, before) in names.iter().zip(before) {
            self.placed.remove(name);
            self.left_out.remove(name);
            let (Some(before), Some(now)) = (before, in_force.service(name)) else { continue };
            self.place(name, &now, |now| place::onto_previous(before, now));
        }
    }

    /// At a start: adopts the slot order in the kernel.
    pub fn adopt(&mut self, in_force: &Acknowledged, seen: &State) {
        self.placed.clear();
        for (name, service) in in_force.services() {
            let terms = self.terms.clone();
            self.place(name, &service, |service| crate::adopt::onto_kernel(seen, &terms, service));
        }
    }

    fn place(
        &mut self,
        name: &ServiceName,
        service: &Arc<ServiceIntent>,
        order: impl FnOnce(ServiceIntent) -> ServiceIntent,
    ) {
        let placed = order(ServiceIntent::clone(service));
        if placed != **service {
            self.placed.insert(name.clone(), Arc::new(placed));
        }
    }

    /// Leaves a Service to packets: the Plan removes its elements.
    pub fn leave_out(&mut self, in_force: &Acknowledged, name: &ServiceName, why: String) -> Plan {
        let before = self.fragment(in_force, [name]);
        self.left_out.insert(name.clone(), why);
        diff(&before, &State::default())
    }

    /// Leaves out the Services for which there is no room, in the order of names, before anything is written.
    pub fn limit(&mut self, in_force: &Acknowledged, most: u32) {
        let (mut frontends, mut endpoints) = (0_usize, 0_usize);
        for (name, service) in in_force.services() {
            let (mut more_frontends, mut more_endpoints) = (0, 0);
            entries(&service, &self.terms, &mut |entry| match entry {
                Entry::Frontend(..) => more_frontends += 1,
                Entry::Slot(..) => more_endpoints += 1,
                // There are never more members than slots.
                Entry::Member(..) => {}
            });
            if (frontends + more_frontends).max(endpoints + more_endpoints) > most as usize {
                self.left_out.insert(name.clone(), format!("more than {most} elements are needed"));
            } else {
                frontends += more_frontends;
                endpoints += more_endpoints;
            }
        }
    }

    pub fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }
}
