//! What a dataplane has in force: the Intents that the kernel, or whatever it programs, has acknowledged.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroxy_core::{NodeIntent, ServiceIntent, ServiceName};

/// Part of every dataplane's ledger. A change is entered after it succeeded, never before.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    node: NodeIntent,
    services: BTreeMap<ServiceName, Arc<ServiceIntent>>,
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

    pub fn service(&self, name: &ServiceName) -> Option<&Arc<ServiceIntent>> {
        self.services.get(name)
    }

    /// In the order of their names.
    pub fn services(&self) -> impl DoubleEndedIterator<Item = (&ServiceName, &Arc<ServiceIntent>)> {
        self.services.iter()
    }

    pub fn len(&self) -> usize {
        self.services.len()
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Enters a Service, or removes it; returns what was in force before.
    pub fn set_service(
        &mut self,
        name: &ServiceName,
        service: Option<Arc<ServiceIntent>>,
    ) -> Option<Arc<ServiceIntent>> {
        match service {
            Some(service) => self.services.insert(name.clone(), service),
            None => self.services.remove(name),
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
        assert_eq!(acknowledged.set_service(&name, Some(service.clone())), None);
        assert_eq!(acknowledged.set_service(&name, Some(service.clone())), Some(service.clone()));
        assert_eq!(acknowledged.services().collect::<Vec<_>>(), [(&name, &service)]);
        assert_eq!(acknowledged.set_service(&name, None), Some(service));
        assert!(acknowledged.is_empty() && acknowledged.service(&name).is_none());
    }
}
