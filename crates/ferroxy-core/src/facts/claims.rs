//! Which Services claim which frontend. Updated event by event, so that conflicts are detected and resolved without
//! iterating over all Services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Service;
use crate::name::{Family, Protocol, ServiceName};

/// What only one Service can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    Address { address: IpAddr, port: u16, protocol: Protocol },
    NodePort { family: Family, port: u16, protocol: Protocol },
    HealthCheck { port: u16 },
}

#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Sorted: the first holder is the owner.
    holders: FxHashMap<Claim, SmallVec<[Holder; 1]>>,
}

/// Sorts oldest first; a Service of unknown age counts as oldest (`None` sorts first), then the name decides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    created: Option<i64>,
    name: ServiceName,
}

impl Claims {
    pub(crate) fn owner(&self, claim: &Claim) -> Option<&ServiceName> {
        self.holders.get(claim)?.first().map(|holder| &holder.name)
    }

    pub(crate) fn holders(&self, claim: &Claim) -> impl Iterator<Item = &ServiceName> {
        self.holders.get(claim).into_iter().flatten().map(|holder| &holder.name)
    }

    /// One Service was replaced. Adds every Service that gains or loses a frontend because of it, or whose Diagnostics name a
    /// former owner.
    pub(super) fn replace(
        &mut self,
        old: Option<(&Service, Vec<Claim>)>,
        new: Option<(&Service, Vec<Claim>)>,
        touched: &mut BTreeSet<ServiceName>,
    ) {
        let concerned: BTreeSet<Claim> =
            [&old, &new].into_iter().flatten().flat_map(|(_, claims)| claims).copied().collect();
        let owners = |claims: &Claims| -> Vec<_> {
            concerned.iter().map(|claim| claims.owner(claim).cloned()).collect()
        };
        let before = owners(self);
        if let Some((service, claims)) = old {
            self.withdraw(service, &claims);
        }
        if let Some((service, claims)) = new {
            self.enter(service, &claims);
        }
        for ((claim, before), after) in concerned.iter().zip(before).zip(owners(self)) {
            if before != after {
                touched.extend(before);
                touched.extend(self.holders(claim).cloned());
                self.touch_neighbours(claim, touched);
            }
        }
    }

    /// A node port and a health-check node port with the same number both stay, with a Diagnostic for each.
    fn touch_neighbours(&self, claim: &Claim, touched: &mut BTreeSet<ServiceName>) {
        if let Claim::HealthCheck { port } = *claim {
            for family in Family::ALL {
                touched.extend(
                    self.holders(&Claim::NodePort { family, port, protocol: Protocol::Tcp }).cloned(),
                );
            }
        }
    }

    fn enter(&mut self, service: &Service, claims: &[Claim]) {
        let holder = Holder { created: service.created, name: service.name.clone() };
        for claim in claims {
            let holders = self.holders.entry(*claim).or_default();
            if let Err(place) = holders.binary_search(&holder) {
                holders.insert(place, holder.clone());
            }
        }
    }

    fn withdraw(&mut self, service: &Service, claims: &[Claim]) {
        let holder = Holder { created: service.created, name: service.name.clone() };
        for claim in claims {
            let Some(holders) = self.holders.get_mut(claim) else { continue };
            holders.retain(|other| *other != holder);
            if holders.is_empty() {
                self.holders.remove(claim);
            }
        }
    }
}
