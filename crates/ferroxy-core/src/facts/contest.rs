//! Updates claims and shares when Services are added, changed and removed. `claims.rs` and `shares.rs` decide which
//! Service gets a frontend.

use std::collections::BTreeSet;

use super::shares::{Moved, Wish};
use super::{Claimed, Claims, Facts, Service, Shares, Touched};
use crate::name::ServiceName;
use crate::resolve;

impl Facts {
    /// How many frontends a Service may have: its own limit, or less if its namespace or the node has no more room.
    pub(crate) fn most_frontends(&self, service: &Service) -> usize {
        self.shares.of(&self.policy.limits, &service.name, Wish::of(service, &self.policy))
    }

    /// Updates claims and shares after one Service was replaced.
    pub(super) fn contest(
        &mut self,
        name: &ServiceName,
        old: Option<&Service>,
        new: Option<&Service>,
    ) -> Touched {
        let mut touched = Touched { services: [name.clone()].into(), ..Touched::default() };
        let before = old.map(|service| (service, self.claims_of(service, self.most_frontends(service))));
        let wish = |service: &Service| Wish::of(service, &self.policy);
        let moved = self.shares.replace(&self.policy.limits, name, old.map(wish), new.map(wish));
        let after = new.map(|service| (service, self.claims_of(service, self.most_frontends(service))));
        self.replace_claims(before, after, &mut touched);
        for Moved { name, before, after } in moved {
            let Some(service) = self.service(&name) else { continue };
            let before = (&service, self.claims_of(&service, before));
            let after = (&service, self.claims_of(&service, after));
            self.replace_claims(Some(before), Some(after), &mut touched);
            touched.services.insert(name);
        }
        touched
    }

    /// Computes all claims and shares again, because of a new policy.
    pub(super) fn contest_again(&mut self) {
        (self.claims, self.shares) = (Claims::default(), Shares::default());
        for (name, service) in self.services.iter() {
            let wish = Wish::of(&service.unpack(name), &self.policy);
            self.shares.replace(&self.policy.limits, name, None, Some(wish));
        }
        for (name, service) in self.services.iter() {
            let service = service.unpack(name);
            let claims = self.claims_of(&service, self.most_frontends(&service));
            self.claims.replace(None, Some((&service, claims)), BTreeSet::new, &mut BTreeSet::new());
        }
    }

    fn claims_of(&self, service: &Service, most: usize) -> Claimed {
        resolve::claims(service, &self.policy, most)
    }

    fn replace_claims(
        &mut self,
        old: Option<(&Service, Claimed)>,
        new: Option<(&Service, Claimed)>,
        touched: &mut Touched,
    ) {
        // Moved out, because `node_addresses` borrows `self` during the call.
        let mut claims = std::mem::take(&mut self.claims);
        let node_addresses = || resolve::known_addresses(self);
        touched.handed_over.extend(claims.replace(old, new, node_addresses, &mut touched.services));
        self.claims = claims;
    }
}
