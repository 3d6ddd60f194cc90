//! The Intents that a dataplane has in force: those that the kernel, or whatever it programs, has acknowledged.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ferroxy_core::intent::PackedIntent;
use ferroxy_core::{NodeIntent, ServiceIntent, ServiceName};

/// Part of every dataplane's ledger. A change is entered after it succeeded, never before.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    node: NodeIntent,
    services: BTreeMap<ServiceName, PackedIntent>,
}

impl Acknowledged {
    pub fn new(node: NodeIntent) -> Acknowledged {
        Acknowledged { node, services: BTreeMap::new() }
    }

    pub fn node(&self) -> &NodeIntent {
        &self.node
    }

    pub fn set_node(&mut self, node: NodeIntent) {
        self.node = node;
    }

    pub fn has_service(&self, name: &ServiceName) -> bool {
        self.services.contains_key(name)
    }

    pub fn service(&self, name: &ServiceName) -> Option<Arc<ServiceIntent>> {
        self.services.get(name).map(|packed| Arc::new(packed.unpack(name)))
    }

    /// In the order of their names.
    pub fn services(&self) -> impl DoubleEndedIterator<Item = (&ServiceName, Arc<ServiceIntent>)> {
        self.services.iter().map(|(name, packed)| (name, Arc::new(packed.unpack(name))))
    }

    /// The Services that follow this name, in the order of their names; all of them for `None`.
    pub fn services_after(
        &self,
        after: Option<&ServiceName>,
    ) -> impl Iterator<Item = (&ServiceName, Arc<ServiceIntent>)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let services = self.services.range::<ServiceName, _>((from, Bound::Unbounded));
        services.map(|(name, packed)| (name, Arc::new(packed.unpack(name))))
    }

    /// Sorted.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &ServiceName> {
        self.services.keys()
    }

    /// The names that follow this one; all of them for `None`.
    pub fn names_after(&self, after: Option<&ServiceName>) -> impl Iterator<Item = &ServiceName> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.services.range::<ServiceName, _>((from, Bound::Unbounded)).map(|(name, _)| name)
    }

    /// Frees unused memory. Meant for when many Services have been entered.
    pub fn shrink(&mut self) {
        // Keys that arrive in order leave the nodes of such a map half empty.
        self.services = std::mem::take(&mut self.services).into_iter().collect();
    }

    pub fn len(&self) -> usize {
        self.services.len()
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Enters a Service, or removes it.
    pub fn set_service(&mut self, name: &ServiceName, service: Option<Arc<ServiceIntent>>) {
        match service {
            Some(service) => drop(self.services.insert(name.clone(), PackedIntent::new(&service))),
            None => drop(self.services.remove(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_entered_replaced_and_removed() {
        let name = ServiceName::new("default", "web");
        let service = Arc::new(ServiceIntent {
            name: name.clone(),
            cluster_ips: Vec::new(),
            ports: Vec::new(),
            health_check: None,
            annotations: Vec::new(),
            left_out: Default::default(),
        });
        let mut acknowledged = Acknowledged::new(NodeIntent::default());
        acknowledged.set_service(&name, Some(service.clone()));
        acknowledged.set_service(&name, Some(service.clone()));
        assert_eq!(acknowledged.services().collect::<Vec<_>>(), [(&name, service.clone())]);
        assert_eq!((acknowledged.service(&name), acknowledged.len()), (Some(service), 1));
        let after = |after: Option<&ServiceName>| acknowledged.services_after(after).count();
        assert_eq!((after(None), after(Some(&name))), (1, 0));
        assert_eq!(acknowledged.names_after(None).collect::<Vec<_>>(), [&name]);
        assert_eq!(acknowledged.names_after(Some(&name)).count(), 0);
        assert_eq!(after(Some(&ServiceName::new("default", "a"))), 1);
        acknowledged.set_service(&name, None);
        assert!(acknowledged.is_empty() && acknowledged.service(&name).is_none());
    }
}
