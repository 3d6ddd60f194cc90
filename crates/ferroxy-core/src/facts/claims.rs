//! Which Services claim which frontend. Updated event by event, so that conflicts are detected and resolved without
//! iterating over all Services.
//!
//! Tenants choose the keys of these maps, as they do for nearly every map of this project. Trees have no collisions,
//! and here they take less memory than hash tables. Other maps are the standard library's, whose hash has a random key
//! in each process: no tenant can choose a hundred thousand addresses that collide.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Service;
use crate::dense::Dense;
use crate::few::{self, Few};
use crate::name::{Family, Protocol, ServiceName};

/// What only one Service can own: a frontend, a whole address, or a health-check node port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Claim {
    Address {
        address: IpAddr,
        port: u16,
        protocol: Protocol,
    },
    /// An address with all its ports. Every Service with a frontend on the address holds this claim, but only a Service
    /// that has it as its cluster IP can own it.
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

/// Why a Service has a claim, strongest first. A value that the API server allocates is stronger than one that a
/// controller reports, which is stronger than one that any user may write. So age decides only among equals, and
/// claiming an address early is worth nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A cluster IP, a node port, a health-check node port.
    Allocated,
    LoadBalancerIp,
    ExternalIp,
}

/// The claims of one Service, sorted. A claim that it has for two reasons has the stronger rank.
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
    /// The claims that `other` does not have with the same rank.
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
    /// Keyed by [`Claim::number`].
    numbered: Dense<u64, Holders>,
    /// The claims that are too long to have a number: those on IPv6 addresses.
    others: Dense<Claim, Holders>,
}

/// Sorted: the first holder has the strongest claim.
type Holders = Few<Holder>;

/// Sorts by rank, then oldest first, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    strength: Strength,
    name: ServiceName,
}

/// Rank and age, packed into one word because every claim of every Service stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Strength(u64);

impl Strength {
    /// Added to the creation time, so that times before 1970 sort correctly: half of the range that the rank leaves,
    /// more than seconds can reach.
    const EPOCH: i64 = 1 << 61;

    /// A Service of unknown age counts as oldest.
    fn new(rank: Rank, created: Option<i64>) -> Strength {
        let age = created.unwrap_or(i64::MIN).clamp(-Self::EPOCH, Self::EPOCH - 1) + Self::EPOCH;
        Strength((rank as u64) << 62 | age as u64)
    }

    fn is_allocated(self) -> bool {
        self.0 >> 62 == Rank::Allocated as u64
    }
}

impl Claim {
    /// Unique: two claims have the same number only if they are equal.
    fn number(&self) -> Option<u64> {
        let parts = |kind: u64, high: u64, port: u16, protocol: u8| {
            Some(kind << 56 | high << 24 | u64::from(port) << 8 | u64::from(protocol))
        };
        match *self {
            Claim::Address { address: IpAddr::V4(v4), port, protocol } => {
                parts(0, v4.to_bits().into(), port, protocol.number())
            }
            Claim::WholeAddress { address: IpAddr::V4(v4) } => parts(1, v4.to_bits().into(), 0, 0),
            Claim::NodePort { family, port, protocol } => parts(2, family as u64, port, protocol.number()),
            Claim::HealthCheck { port } => parts(3, 0, port, 0),
            Claim::Address { .. } | Claim::WholeAddress { .. } => None,
        }
    }
}

impl Claims {
    pub(crate) fn owner(&self, claim: &Claim) -> Option<&ServiceName> {
        let can_own =
            |holder: &&Holder| holder.strength.is_allocated() || !matches!(claim, Claim::WholeAddress { .. });
        self.get(claim).first().filter(can_own).map(|holder| &holder.name)
    }

    pub(crate) fn holders(&self, claim: Claim) -> impl Iterator<Item = &ServiceName> {
        self.get(&claim).iter().map(|holder| &holder.name)
    }

    fn get(&self, claim: &Claim) -> &[Holder] {
        let holders = match claim.number() {
            Some(number) => self.numbered.get(&number),
            None => self.others.get(claim),
        };
        holders.map_or(&[], Few::as_slice)
    }

    /// Frees unused memory. Meant for when many Services have arrived.
    pub(super) fn shrink(&mut self) {
        self.numbered.rebuild();
        self.others.rebuild();
    }

    /// Updates the claims after one Service was replaced. Adds to `touched` every Service that gains or loses a
    /// frontend because of it, or whose Diagnostics name a former owner. `node_addresses` are those where node ports
    /// may answer. Returns the Services that lost a frontend and those that got it.
    pub(super) fn replace(
        &mut self,
        old: Option<(&Service, Claimed)>,
        new: Option<(&Service, Claimed)>,
        node_addresses: impl Fn() -> BTreeSet<IpAddr>,
        touched: &mut BTreeSet<ServiceName>,
    ) -> BTreeSet<ServiceName> {
        // Unchanged claims are skipped, so a small change of a Service with thousands of addresses costs little.
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
        let mut handed_over = BTreeSet::new();
        for ((claim, before), after) in concerned.iter().zip(before).zip(owners(self)) {
            if before == after {
                continue;
            }
            touched.extend(self.holders(*claim).cloned());
            self.touch_neighbours(claim, &node_addresses, touched);
            // The other holders only get another Diagnostic, so they are not handed over.
            if let Some(before) = before {
                handed_over.extend(after);
                handed_over.extend(self.owners_at_the_node(claim, &node_addresses));
                touched.insert(before.clone());
                handed_over.insert(before);
            }
        }
        handed_over
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
            Claim::NodePort { .. } | Claim::Address { .. } | Claim::WholeAddress { .. } => {
                for other in at_the_node(claim, node_addresses) {
                    touched.extend(self.holders(other).cloned());
                }
            }
        }
    }

    fn owners_at_the_node(
        &self,
        claim: &Claim,
        node_addresses: impl Fn() -> BTreeSet<IpAddr>,
    ) -> impl Iterator<Item = ServiceName> {
        at_the_node(claim, node_addresses).into_iter().filter_map(|other| self.owner(&other).cloned())
    }

    fn enter(&mut self, service: &Service, claims: &Claimed) {
        for (claim, rank) in &claims.0 {
            let strength = Strength::new(*rank, service.created);
            let holder = Holder { strength, name: service.name.clone() };
            match claim.number() {
                Some(number) => enter(&mut self.numbered, number, holder),
                None => enter(&mut self.others, *claim, holder),
            }
        }
    }

    fn withdraw(&mut self, service: &Service, claims: &Claimed) {
        for (claim, _) in &claims.0 {
            match claim.number() {
                Some(number) => withdraw(&mut self.numbered, &number, &service.name),
                None => withdraw(&mut self.others, claim, &service.name),
            }
        }
    }
}

/// The claims that compete with a node port: external IPs that are addresses of this node. The node port is stronger.
fn at_the_node(claim: &Claim, node_addresses: impl Fn() -> BTreeSet<IpAddr>) -> Vec<Claim> {
    let Claim::NodePort { family, port, protocol } = *claim else { return Vec::new() };
    let of_family = node_addresses().into_iter().filter(|ip| Family::of(*ip) == family);
    of_family.map(|address| Claim::Address { address, port, protocol }).collect()
}

fn enter<K: Ord>(map: &mut Dense<K, Holders>, key: K, holder: Holder) {
    let Some(holders) = map.get_mut(&key) else {
        map.insert(key, Few::One(holder));
        return;
    };
    if let Err(place) = holders.as_slice().binary_search(&holder) {
        holders.insert(place, holder);
    }
}

fn withdraw<K: Ord>(map: &mut Dense<K, Holders>, key: &K, name: &ServiceName) {
    let holders = map.get(key).map_or(&[][..], Few::as_slice);
    if let Some(place) = holders.iter().position(|holder| holder.name == *name) {
        few::remove(map, key, place);
    }
}

/// The claims that one Service gives up, and those that it gets. If its age changes, it replaces all claims, because
/// the age is a part of each.
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

    use super::*;

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
    fn rank_comes_before_age_and_unknown_age_is_oldest() {
        let ranks = [Rank::Allocated, Rank::LoadBalancerIp, Rank::ExternalIp];
        let ages = [None, Some(-1), Some(0), Some(1_700_000_000), Some(i64::MAX)];
        let all = ranks.iter().flat_map(|rank| ages.map(|created| Strength::new(*rank, created)));
        assert!(all.clone().is_sorted() && all.collect::<HashSet<_>>().len() == 15);
        assert!(Strength::new(Rank::Allocated, None).is_allocated());
        assert!(!Strength::new(Rank::ExternalIp, Some(i64::MIN)).is_allocated());
    }

    #[test]
    fn different_claims_have_different_numbers() {
        let v4 = |last| IpAddr::from([10, 0, 0, last]);
        let address = |last, port, protocol| Claim::Address { address: v4(last), port, protocol };
        let node_port = |family, port, protocol| Claim::NodePort { family, port, protocol };
        let claims = [
            address(1, 80, Protocol::Tcp),
            address(2, 80, Protocol::Tcp),
            address(1, 81, Protocol::Tcp),
            address(1, 80, Protocol::Udp),
            Claim::WholeAddress { address: v4(1) },
            Claim::WholeAddress { address: v4(2) },
            node_port(Family::V4, 80, Protocol::Tcp),
            node_port(Family::V6, 80, Protocol::Tcp),
            node_port(Family::V4, 80, Protocol::Udp),
            node_port(Family::V4, 81, Protocol::Tcp),
            Claim::HealthCheck { port: 80 },
            Claim::HealthCheck { port: 81 },
        ];
        let numbers: HashSet<u64> = claims.iter().filter_map(Claim::number).collect();
        assert_eq!(numbers.len(), claims.len());
        let v6 = Claim::WholeAddress { address: "2001:db8::1".parse().unwrap() };
        assert_eq!(v6.number(), None);
    }

    /// The reason for [`Few`].
    #[test]
    fn one_holder_takes_no_more_memory_than_it_does_alone() {
        assert_eq!(size_of::<Holders>(), size_of::<Holder>());
    }
}
