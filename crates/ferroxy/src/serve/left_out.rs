//! How much of all Services the limits leave out: a metric of ours.

use std::collections::HashMap;

use ferroxy_core::intent::LeftOut;
use ferroxy_core::{ServiceIntent, ServiceName};

/// Updated Service by Service; it stores only Services beyond a limit.
#[derive(Debug, Default)]
pub struct Excess {
    services: HashMap<ServiceName, LeftOut>,
    total: LeftOut,
}

impl Excess {
    pub fn replace(&mut self, name: &ServiceName, service: Option<&ServiceIntent>) {
        let new = service.map(|service| service.left_out).unwrap_or_default();
        let old = self.services.remove(name).unwrap_or_default();
        self.total.frontends = self.total.frontends + new.frontends - old.frontends;
        self.total.endpoints = self.total.endpoints + new.endpoints - old.endpoints;
        if new != LeftOut::default() {
            self.services.insert(name.clone(), new);
        }
    }

    pub fn total(&self) -> LeftOut {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(left_out: LeftOut) -> ServiceIntent {
        ServiceIntent {
            name: ServiceName::new("default", "web"),
            cluster_ips: Vec::new(),
            ports: Vec::new(),
            health_check: None,
            annotations: Vec::new(),
            left_out,
        }
    }

    #[test]
    fn what_is_left_out_is_counted_while_it_is() {
        let mut excess = Excess::default();
        let (plain, huge) = (service(LeftOut::default()), service(LeftOut { frontends: 7, endpoints: 9 }));
        let name = plain.name.clone();
        let other = ServiceName::new("default", "other");
        for _ in 0..2 {
            excess.replace(&name, Some(&huge));
            excess.replace(&other, Some(&huge));
        }
        assert_eq!(excess.total(), LeftOut { frontends: 14, endpoints: 18 });
        excess.replace(&name, Some(&plain));
        excess.replace(&other, None);
        assert_eq!((excess.total(), excess.services.len()), (LeftOut::default(), 0));
    }
}
