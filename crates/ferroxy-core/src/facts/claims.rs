//! Which Services claim which frontend. Updated event by event, so that conflicts are detected and resolved without
//! iterating over all Services.
//!
//! Tenants choose the keys of this map, as of nearly every map of this project. So all are the standard library's, whose hash has
//! a random key in each process: nobody can choose a hundred thousand addresses that collide. Nothing may depend on the
//! order of such a map; where the order shows, it is a `BTreeMap` or it is sorted.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use smallvec::SmallVec;

use super::Service;
use crate::name::{Family, Protocol, ServiceName};

/// What only one Service can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    Address {
        address: IpAddr,
        port: u16,
        protocol: Protocol,
    },
    /// An address with all its ports. Every Service with a frontend on it holds this claim, and only a Service that has it
    /// as its cluster IP can own it.
    WholeAddress {
        address: IpAddr,
    },
    NodePort {
        family: Family,
        port: u16,
        protocol: Protocol,
    },
    HealthCheck {
        port: u16,
    },
}

/// Why a Service has a claim; the first in this order is the strongest. What the API server allocates is stronger than
/// what a controller reports, and that is stronger than what anybody may write. So age decides only among equals, and claiming an
/// address early is worth nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A cluster IP, a node port, a health-check node port.
    Allocated,
    LoadBalancerIp,
    ExternalIp,
}

/// The claims of one Service, sorted. One that it has for two reasons has the stronger rank.
#[derive(Debug, Default)]
pub(crate) struct Claimed(Vec<(Claim, Rank)>);

impl FromIterator<(Claim, Rank)> for Claimed {
    fn from_iter<T: IntoIterator<Item = (Claim, Rank)>>(claims: T) -> Claimed {
        let mut claims: Vec<_> = claims.into_iter().collect();
        claims.sort_unstable();
        claims.dedup_by_key(|(claim, _)| *claim);
        Claimed(claims)
    }
}

impl Claimed {
    /// Those that the other one does not have with the same rank.
    fn without(&self, other: &Claimed) -> Claimed {
        let mut others = other.0.iter().peekable();
        let is_new = |claim: &&(Claim, Rank)| {
            while others.next_if(|it| it < claim).is_some() {}
            others.peek() != Some(claim)
        };
        Claimed(self.0.iter().filter(is_new).copied().collect())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Sorted: the first holder has the strongest claim.
    holders: HashMap<Claim, SmallVec<[Holder; 1]>>,
}

/// Sorts by rank, then oldest first, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    rank: Rank,
    /// A Service of unknown age counts as oldest.
    created: i64,
    name: ServiceName,
}

impl Claims {
    pub(crate) fn owner(&self, claim: &Claim) -> Option<&ServiceName> {
        let can_own =
            |holder: &&Holder| holder.rank == Rank::Allocated || !matches!(claim, Claim::WholeAddress { .. });
        self.holders.get(claim)?.first().filter(can_own).map(|holder| &holder.name)
    }

    pub(crate) fn holders(&self, claim: Claim) -> impl Iterator<Item = &ServiceName> {
        self.holders.get(&claim).into_iter().flatten().map(|holder| &holder.name)
    }

    /// One Service was replaced. Adds every Service that gains or loses a frontend because of it, or whose Diagnostics name a
    /// former owner. `node_addresses` are those where node ports may answer. Returns whether any frontend lost its owner.
    pub(super) fn replace(
        &mut self,
        old: Option<(&Service, Claimed)>,
        new: Option<(&Service, Claimed)>,
        node_addresses: impl Fn() -> BTreeSet<IpAddr>,
        touched: &mut BTreeSet<ServiceName>,
    ) -> bool {
        // What stays is left alone: one small change of a Service with thousands of addresses costs little.
        let (gone, come) = difference(old.as_ref(), new.as_ref());
        let mut concerned: Vec<Claim> = gone.0.iter().chain(&come.0).map(|(claim, _)| *claim).collect();
        concerned.sort_unstable();
        concerned.dedup();
        let owners = |claims: &Claims| -> Vec<_> {
            concerned.iter().map(|claim| claims.owner(claim).cloned()).collect()
        };
        let before = owners(self);
        if let Some((service, _)) = old {
            self.withdraw(service, &gone);
        }
        if let Some((service, _)) = new {
            self.enter(service, &come);
        }
        let mut is_handed_over = false;
        for ((claim, before), after) in concerned.iter().zip(before).zip(owners(self)) {
            if before != after {
                is_handed_over |= before.is_some();
                touched.extend(before);
                touched.extend(self.holders(*claim).cloned());
                self.touch_neighbours(claim, &node_addresses, touched);
            }
        }
        is_handed_over
    }

    fn touch_neighbours(
        &self,
        claim: &Claim,
        node_addresses: impl Fn() -> BTreeSet<IpAddr>,
        touched: &mut BTreeSet<ServiceName>,
    ) {
        match *claim {
            // A node port and a health-check node port with the same number both stay, with a Diagnostic for each.
            Claim::HealthCheck { port } => {
                for family in Family::ALL {
                    let claim = Claim::NodePort { family, port, protocol: Protocol::Tcp };
                    touched.extend(self.holders(claim).cloned());
                }
            }
            // A node port is stronger than an external IP that is an address of this node.
            Claim::NodePort { family, port, protocol } => {
                for address in node_addresses().into_iter().filter(|ip| Family::of(*ip) == family) {
                    touched.extend(self.holders(Claim::Address { address, port, protocol }).cloned());
                }
            }
            Claim::Address { .. } | Claim::WholeAddress { .. } => {}
        }
    }

    fn enter(&mut self, service: &Service, claims: &Claimed) {
        for (claim, rank) in &claims.0 {
            let holder = Holder {
                rank: *rank,
                created: service.created.unwrap_or(i64::MIN),
                name: service.name.clone(),
            };
            let holders = self.holders.entry(*claim).or_default();
            if let Err(place) = holders.binary_search(&holder) {
                holders.insert(place, holder);
            }
        }
    }

    fn withdraw(&mut self, service: &Service, claims: &Claimed) {
        for (claim, _) in &claims.0 {
            let Some(holders) = self.holders.get_mut(claim) else { continue };
            holders.retain(|holder| holder.name != service.name);
            if holders.is_empty() {
                self.holders.remove(claim);
            }
        }
        // A map keeps its room. One Service may have used most of it.
        if self.holders.len() < self.holders.capacity() / 4 {
            self.holders.shrink_to(self.holders.len() * 2);
        }
    }
}

/// The claims that one Service gives up, and those that it gets. Its age is a part of every claim.
fn difference(old: Option<&(&Service, Claimed)>, new: Option<&(&Service, Claimed)>) -> (Claimed, Claimed) {
    let none = Claimed::default();
    let of = |side: Option<&(&Service, Claimed)>| side.map(|(service, _)| service.created);
    let (before, after) = (old.map_or(&none, |(_, it)| it), new.map_or(&none, |(_, it)| it));
    if of(old) == of(new) {
        (before.without(after), after.without(before))
    } else {
        (before.without(&none), after.without(&none))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;
    use std::net::Ipv6Addr;

    use super::*;

    /// Under FxHash, all addresses with these first eight bytes collide: they cancel its seed, and zero times
    /// anything is zero.
    fn colliding(number: u16) -> Claim {
        let address = Ipv6Addr::new(0xd308, 0xa385, 0x886a, 0x3f24, 0, 0, 0, number).into();
        Claim::Address { address, port: 80, protocol: Protocol::Tcp }
    }

    fn port(number: u16, rank: Rank) -> (Claim, Rank) {
        (Claim::NodePort { family: Family::V4, port: number, protocol: Protocol::Tcp }, rank)
    }

    #[test]
    fn a_claim_for_two_reasons_has_the_stronger_one() {
        let claimed: Claimed = [
            port(2, Rank::ExternalIp),
            port(1, Rank::ExternalIp),
            port(2, Rank::Allocated),
            port(2, Rank::LoadBalancerIp),
        ]
        .into_iter()
        .collect();
        assert_eq!(claimed.0, [port(1, Rank::ExternalIp), port(2, Rank::Allocated)]);
    }

    #[test]
    fn the_difference_has_what_only_one_side_has() {
        let of = |claims: &[(Claim, Rank)]| claims.iter().copied().collect::<Claimed>();
        let [one, two, three] = [1, 2, 3].map(|number| port(number, Rank::ExternalIp));
        let stronger = port(2, Rank::Allocated);
        assert_eq!(of(&[one, two, three]).without(&of(&[one, three])).0, [two]);
        assert_eq!(of(&[one, two]).without(&of(&[one, stronger])).0, [two]);
        assert_eq!(of(&[one, stronger]).without(&of(&[one, two])).0, [stronger]);
        assert_eq!(of(&[one, two]).without(&of(&[one, two, three])).0, []);
        assert_eq!(of(&[one]).without(&Claimed::default()).0, [one]);
    }

    #[test]
    fn chosen_addresses_do_not_collide() {
        let claims = Claims::default();
        let hashes: Vec<u64> =
            (0..30_000).map(|number| claims.holders.hasher().hash_one(colliding(number))).collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
        // As a map of this size does: the low bits choose the place. Six or seven at one place are normal.
        let mut places = vec![0_u32; 1 << 16];
        for hash in &hashes {
            places[(hash & 0xffff) as usize] += 1;
        }
        assert!(places.iter().all(|keys| *keys < 20), "{:?} keys at one place", places.iter().max());
        let other_key = Claims::default();
        let again = other_key.holders.hasher().hash_one(colliding(0));
        assert_ne!(again, hashes[0], "the hash has no random key");
    }
}
