//! The known objects of HNS, as they were read or written: objects by id, and the ids of addresses and frontends.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ferroxy_hcn::Guid;

use super::document::{self, SeenBalancer, SeenEndpoint};
use crate::ledger::Touched;
use crate::state::{Balancer, Endpoint, Frontend, Mac, State};

#[derive(Debug, Default)]
pub struct Mirror {
    pub endpoints: HashMap<Guid, SeenEndpoint>,
    pub balancers: HashMap<Guid, SeenBalancer>,
    /// Rarely more than one: a pod of this node, and the endpoint that stood for the pod while it was on another node.
    by_ip: HashMap<IpAddr, Vec<Guid>>,
    /// Rarely more than one: HNS may accept a second load balancer at a frontend, or still report one that it replaces.
    by_frontend: HashMap<Frontend, Vec<Guid>>,
    /// How many load balancers name an endpoint. No entry is all zero.
    named: HashMap<Guid, Named>,
    /// Load balancers of others whose documents cannot be read.
    unreadable: HashSet<Guid>,
    /// Endpoints that HNS did not delete because something names them, which can only be an unreadable load balancer.
    held: HashSet<Guid>,
    /// The prints of list entries when the content of the objects was known. Objects that we wrote since have none.
    prints: HashMap<Guid, u64>,
    /// kube-proxy gave this hardware address to endpoints for cluster IPs.
    host_mac: Option<Mac>,
}

/// Load balancers that name an endpoint: ours, and those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Named {
    by_us: usize,
    by_others: usize,
}

/// Stands for an endpoint that a load balancer names, and that is gone or is not the endpoint to use for its address.
const GONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Mirror {
    pub fn new(host_mac: Option<Mac>) -> Mirror {
        Mirror { host_mac, ..Mirror::default() }
    }

    pub fn set_host_mac(&mut self, host_mac: Option<Mac>) {
        self.host_mac = host_mac;
    }

    pub fn enter_endpoint(&mut self, id: Guid, seen: SeenEndpoint) {
        if self.endpoints.get(&id) == Some(&seen) {
            return;
        }
        self.forget_endpoint(id);
        for ip in &seen.ips {
            self.by_ip.entry(*ip).or_default().push(id);
        }
        self.endpoints.insert(id, seen);
    }

    pub fn forget_endpoint(&mut self, id: Guid) {
        self.held.remove(&id);
        self.prints.remove(&id);
        let Some(seen) = self.endpoints.remove(&id) else { return };
        for ip in seen.ips {
            if let Some(ids) = self.by_ip.get_mut(&ip) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_ip.remove(&ip);
                }
            }
        }
    }

    /// An adopted load balancer stays ours while no other program claims it.
    pub fn enter_balancer(&mut self, id: Guid, mut seen: SeenBalancer) {
        let before = self.balancers.get(&id);
        let is_adopted = before.is_some_and(|it| it.is_own && it.frontend == seen.frontend);
        seen.is_own |= is_adopted && seen.is_unclaimed;
        if before == Some(&seen) {
            return;
        }
        self.forget_balancer(id);
        self.count(&seen, |count| *count += 1);
        if let Some(at) = seen.frontend {
            self.by_frontend.entry(at).or_default().push(id);
        }
        self.balancers.insert(id, seen);
    }

    pub fn forget_balancer(&mut self, id: Guid) {
        self.prints.remove(&id);
        let Some(seen) = self.balancers.remove(&id) else { return };
        if self.unreadable.remove(&id) {
            // This load balancer may have been the one that held an endpoint.
            self.held.clear();
        }
        self.count(&seen, |count| *count = count.saturating_sub(1));
        if let Some(at) = seen.frontend
            && let Some(ids) = self.by_frontend.get_mut(&at)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_frontend.remove(&at);
            }
        }
    }

    /// A load balancer that we cannot read counts as another program's. The endpoints that it names are unknown.
    pub fn enter_unreadable_balancer(&mut self, id: Guid) {
        if let Entry::Vacant(place) = self.balancers.entry(id) {
            place.insert(SeenBalancer::unreadable());
            self.unreadable.insert(id);
        }
    }

    /// `false`: it must be read.
    pub fn is_balancer_known(&self, id: Guid) -> bool {
        self.balancers.contains_key(&id) && !self.unreadable.contains(&id)
    }

    /// Adopts load balancers without an owner (kube-proxy's) at these frontends: from now on they are kept, changed and deleted
    /// like ours.
    pub fn adopt<'a>(&mut self, wanted: impl IntoIterator<Item = &'a Frontend>) {
        for at in wanted {
            let Some((id, seen)) = self.balancer_at(at) else { continue };
            if seen.is_unclaimed && !seen.is_own {
                let seen = SeenBalancer { is_own: true, ..seen.clone() };
                self.enter_balancer(id, seen);
            }
        }
    }

    fn count(&mut self, seen: &SeenBalancer, change: impl Fn(&mut usize)) {
        for id in &seen.ids {
            let named = self.named.entry(*id).or_default();
            change(if seen.is_own { &mut named.by_us } else { &mut named.by_others });
            if *named == Named::default() {
                self.named.remove(id);
            }
        }
    }

    /// HNS does not delete this endpoint, because a load balancer that is not ours names it.
    pub fn is_held(&self, id: Guid) -> bool {
        self.held.contains(&id) || self.named.get(&id).is_some_and(|named| named.by_others > 0)
    }

    /// HNS refused to delete this endpoint. Returns `false` if, as far as we can see, other programs are not the reason.
    pub fn hold(&mut self, id: Guid) -> bool {
        let is_ours = self.named.get(&id).is_some_and(|named| named.by_us > 0);
        if !is_ours && !self.unreadable.is_empty() {
            self.held.insert(id);
        }
        self.is_held(id)
    }

    /// Unreadable load balancers may name other endpoints by now: HNS is asked again.
    pub fn release_held(&mut self) {
        self.held.clear();
    }

    /// Whether a list entry agrees with the known object: by its print, or by `agrees` if the print is unknown. `false`: another
    /// program may have changed the object.
    pub fn is_as_listed(&self, id: Guid, print: u64, agrees: impl FnOnce(&Mirror) -> bool) -> bool {
        match self.prints.get(&id) {
            Some(known) => *known == print,
            None => agrees(self),
        }
    }

    /// Records the prints of objects whose content is known.
    pub fn set_prints(&mut self, prints: impl IntoIterator<Item = (Guid, u64)>) {
        let known = |id: &Guid| self.endpoints.contains_key(id) || self.balancers.contains_key(id);
        let known: Vec<_> = prints.into_iter().filter(|(id, _)| known(id)).collect();
        self.prints.extend(known);
    }

    /// The load balancer at this frontend; of several, preferably ours.
    pub fn balancer_at(&self, at: &Frontend) -> Option<(Guid, &SeenBalancer)> {
        let all = self.by_frontend.get(at)?.iter().filter_map(|id| Some((*id, self.balancers.get(id)?)));
        all.min_by_key(|(id, seen)| (!seen.is_own, !seen.is_unclaimed, *id))
    }

    /// Our load balancers at this frontend, except for the one that we keep.
    pub fn surplus_at(&self, at: &Frontend) -> Vec<Guid> {
        let kept = self.balancer_at(at).map(|(id, _)| id);
        let is_own = |id: &&Guid| self.balancers.get(id).is_some_and(|seen| seen.is_own);
        let own = self.by_frontend.get(at).into_iter().flatten().filter(is_own).copied();
        own.filter(|id| Some(*id) != kept).collect()
    }

    /// The load balancer that we may change or replace at this frontend. `None` if another program got the frontend since the Plan
    /// was made.
    pub fn ours_at(&self, at: &Frontend) -> Option<(Guid, &SeenBalancer)> {
        self.balancer_at(at).filter(|(_, seen)| seen.is_ours())
    }

    /// The id that a load balancer must name for an address: that of a pod of this node comes before a remote one.
    pub fn id_of(&self, ip: IpAddr) -> Option<Guid> {
        let is_local = |id: &Guid| self.endpoints.get(id).is_some_and(|seen| !seen.endpoint.is_remote);
        let ids = self.by_ip.get(&ip)?;
        ids.iter().copied().find(is_local).or_else(|| ids.iter().copied().min())
    }

    /// The endpoint of ours with this address.
    pub fn own_id_of(&self, ip: IpAddr) -> Option<Guid> {
        let is_own = |id: &Guid| self.endpoints.get(id).is_some_and(|seen| self.is_own(seen));
        self.by_ip.get(&ip)?.iter().copied().find(is_own)
    }

    fn is_own(&self, seen: &SeenEndpoint) -> bool {
        seen.is_own
            || (seen.is_unclaimed
                && seen.endpoint.is_remote
                && (seen.ips.iter().any(|ip| Mac::invented(*ip) == seen.endpoint.mac)
                    || Some(seen.endpoint.mac) == self.host_mac))
    }

    /// The addresses of endpoints that others made: pods of this node, mostly.
    pub fn of_others(&self) -> BTreeSet<IpAddr> {
        let others = self.endpoints.values().filter(|seen| !self.is_own(seen));
        others.flat_map(|seen| seen.ips.iter().copied()).collect()
    }

    pub fn is_of_others(&self, ip: IpAddr) -> bool {
        self.of_others_at(ip).next().is_some()
    }

    /// The endpoints of others that have this address.
    pub fn of_others_at(&self, ip: IpAddr) -> impl Iterator<Item = &SeenEndpoint> {
        let ids = self.by_ip.get(&ip).into_iter().flatten();
        ids.filter_map(|id| self.endpoints.get(id)).filter(|seen| !self.is_own(seen))
    }

    /// Endpoints that we made, with words for people.
    pub fn own_endpoints(&self) -> Vec<(Guid, String)> {
        let own = self.endpoints.iter().filter(|(_, seen)| self.is_own(seen));
        let words = |seen: &SeenEndpoint| {
            let ips: Vec<String> = seen.ips.iter().map(ToString::to_string).collect();
            format!("endpoint {}", ips.join(", "))
        };
        let mut own: Vec<_> = own.map(|(id, seen)| (*id, words(seen))).collect();
        own.sort_by(|a, b| (&a.1, a.0).cmp(&(&b.1, b.0)));
        own
    }

    /// Load balancers that we made.
    pub fn own_balancers(&self) -> Vec<(Guid, Frontend)> {
        let own = self.balancers.iter().filter(|(_, seen)| seen.is_own);
        let mut own: Vec<_> = own.filter_map(|(id, seen)| Some((*id, seen.frontend?))).collect();
        own.sort_by_key(|(id, at)| (*at, *id));
        own
    }

    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.by_frontend.keys()
    }

    /// An endpoint by the name that others gave it.
    pub fn named(&self, name: &str) -> Option<&SeenEndpoint> {
        self.endpoints.values().find(|seen| seen.name.eq_ignore_ascii_case(name))
    }

    /// Everything that is ours, and load balancers without an owner at frontends that we want.
    pub fn state(&self, wanted: &State) -> State {
        let mut state = State::default();
        for (id, seen) in self.endpoints.iter().filter(|(_, seen)| self.is_own(seen)) {
            for ip in &seen.ips {
                state.endpoints.extend(self.as_far_as_ours(*id, *ip, wanted));
            }
        }
        for at in self.by_frontend.keys() {
            let Some((_, seen)) = self.balancer_at(at) else { continue };
            if seen.is_own || (seen.is_unclaimed && wanted.balancers.contains_key(at)) {
                state.balancers.insert(*at, self.balancer(at, seen));
            }
        }
        state
    }

    /// The part of the State that a change affects.
    pub fn part(&self, touched: &Touched) -> State {
        let mut state = State::default();
        for ip in &touched.endpoints {
            let own = self.own_id_of(*ip);
            state.endpoints.extend(own.and_then(|id| self.as_far_as_ours(id, *ip, &touched.wanted)));
        }
        for at in &touched.frontends {
            let Some((_, seen)) = self.balancer_at(at) else { continue };
            if seen.is_own || (seen.is_unclaimed && touched.wanted.balancers.contains_key(at)) {
                state.balancers.insert(*at, self.balancer(at, seen));
            }
        }
        state
    }

    /// An endpoint of ours that load balancers of others name can neither be deleted nor recreated. If it is wanted, it counts as
    /// being as wanted; otherwise it does not count.
    fn as_far_as_ours(&self, id: Guid, ip: IpAddr, wanted: &State) -> Option<(IpAddr, Endpoint)> {
        let seen = self.endpoints.get(&id)?;
        match self.is_held(id) {
            true => wanted.endpoints.get(&ip).map(|endpoint| (ip, *endpoint)),
            false => Some((ip, seen.endpoint)),
        }
    }

    /// Endpoints that should be recreated, and cannot be, because load balancers of others name them.
    pub fn stuck(&self, wanted: &State) -> Vec<IpAddr> {
        let is_stuck = |(ip, endpoint): &(&IpAddr, &Endpoint)| {
            let own = self.own_id_of(**ip).filter(|id| self.is_held(*id));
            own.and_then(|id| self.endpoints.get(&id)).is_some_and(|seen| seen.endpoint != **endpoint)
        };
        wanted.endpoints.iter().filter(is_stuck).map(|(ip, _)| *ip).collect()
    }

    fn balancer(&self, at: &Frontend, seen: &SeenBalancer) -> Balancer {
        let of_family = |ip: &&IpAddr| ferroxy_core::Family::of(**ip) == at.family;
        let address = |id: &Guid| {
            let ip = self.endpoints.get(id).and_then(|seen| seen.ips.iter().find(of_family));
            ip.copied().filter(|ip| self.id_of(*ip) == Some(*id)).unwrap_or(GONE)
        };
        // A surplus load balancer of ours makes this one count as different, whatever it names.
        let surplus = if self.surplus_at(at).is_empty() { None } else { Some(GONE) };
        let endpoints = seen.ids.iter().map(address).chain(surplus).collect();
        Balancer { endpoints, ..seen.balancer.clone() }
    }

    /// Load balancers that are certainly kube-proxy's and not at a frontend of ours.
    pub fn leftovers(&self, wanted: impl Fn(&Frontend) -> bool) -> Vec<(Guid, Frontend)> {
        let is_left = |seen: &SeenBalancer| {
            seen.is_unclaimed
                && seen.frontend.as_ref().is_some_and(|at| !wanted(at))
                && (document::is_kube_proxys(seen) || self.names_kube_proxys(seen))
        };
        let left = self.balancers.iter().filter(|(_, seen)| is_left(seen));
        let mut left: Vec<_> = left.filter_map(|(id, seen)| Some((*id, seen.frontend?))).collect();
        left.sort();
        left
    }

    /// Whether it names an endpoint that only kube-proxy makes: a remote one with a hardware address that kube-proxy invented. On
    /// an overlay, the address of the load balancer itself has such an endpoint.
    fn names_kube_proxys(&self, seen: &SeenBalancer) -> bool {
        let is_theirs = |id: &Guid| {
            let is_theirs = |seen: &SeenEndpoint| !seen.is_own && seen.is_unclaimed && self.is_own(seen);
            self.endpoints.get(id).is_some_and(is_theirs)
        };
        let vip = seen.frontend.and_then(|at| at.vip);
        seen.ids.iter().any(is_theirs)
            || vip.and_then(|ip| self.own_id_of(ip)).as_ref().is_some_and(is_theirs)
    }
}
