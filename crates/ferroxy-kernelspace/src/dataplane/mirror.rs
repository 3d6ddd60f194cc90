//! What HNS has, as far as it was seen or written: objects by id, and the ids of addresses and frontends.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use ferroxy_hcn::Guid;

use super::document::{self, SeenBalancer, SeenEndpoint};
use crate::ledger::Touched;
use crate::state::{Balancer, Frontend, Mac, State};

#[derive(Debug, Default)]
pub struct Mirror {
    pub endpoints: HashMap<Guid, SeenEndpoint>,
    pub balancers: HashMap<Guid, SeenBalancer>,
    /// Rarely more than one: a pod of this node, and what stood for it while it was elsewhere.
    by_ip: HashMap<IpAddr, Vec<Guid>>,
    by_frontend: HashMap<Frontend, Guid>,
    /// kube-proxy gave it to endpoints for cluster IPs.
    host_mac: Option<Mac>,
}

/// Stands for an endpoint that a load balancer names and that is gone, or is not the one that has the address.
const GONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Mirror {
    pub fn new(host_mac: Option<Mac>) -> Mirror {
        Mirror { host_mac, ..Mirror::default() }
    }

    pub fn set_host_mac(&mut self, host_mac: Option<Mac>) {
        self.host_mac = host_mac;
    }

    pub fn enter_endpoint(&mut self, id: Guid, seen: SeenEndpoint) {
        self.forget_endpoint(id);
        for ip in &seen.ips {
            self.by_ip.entry(*ip).or_default().push(id);
        }
        self.endpoints.insert(id, seen);
    }

    pub fn forget_endpoint(&mut self, id: Guid) {
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

    pub fn enter_balancer(&mut self, id: Guid, seen: SeenBalancer) {
        self.forget_balancer(id);
        if let Some(at) = seen.frontend {
            self.by_frontend.insert(at, id);
        }
        self.balancers.insert(id, seen);
    }

    pub fn forget_balancer(&mut self, id: Guid) {
        let seen = self.balancers.remove(&id);
        if let Some(at) = seen.and_then(|seen| seen.frontend)
            && self.by_frontend.get(&at) == Some(&id)
        {
            self.by_frontend.remove(&at);
        }
    }

    /// Who has this frontend.
    pub fn balancer_at(&self, at: &Frontend) -> Option<(Guid, &SeenBalancer)> {
        let id = *self.by_frontend.get(at)?;
        Some((id, self.balancers.get(&id)?))
    }

    /// The id that a load balancer must name for an address: a pod of this node comes before what stands for one elsewhere.
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

    /// Everything that is ours, and what a program without a name made at a frontend that we want.
    pub fn state(&self, wanted: &State) -> State {
        let mut state = State::default();
        for seen in self.endpoints.values().filter(|seen| self.is_own(seen)) {
            state.endpoints.extend(seen.ips.iter().map(|ip| (*ip, seen.endpoint)));
        }
        for (at, id) in &self.by_frontend {
            let Some(seen) = self.balancers.get(id) else { continue };
            if seen.is_own || (seen.is_unclaimed && wanted.balancers.contains_key(at)) {
                state.balancers.insert(*at, self.balancer(at, seen));
            }
        }
        state
    }

    /// The part that a change is about.
    pub fn part(&self, touched: &Touched) -> State {
        let mut state = State::default();
        for ip in &touched.endpoints {
            let own = self.own_id_of(*ip).and_then(|id| self.endpoints.get(&id));
            state.endpoints.extend(own.map(|seen| (*ip, seen.endpoint)));
        }
        for at in &touched.frontends {
            let Some((_, seen)) = self.balancer_at(at) else { continue };
            if seen.is_own || (seen.is_unclaimed && touched.wanted.balancers.contains_key(at)) {
                state.balancers.insert(*at, self.balancer(at, seen));
            }
        }
        state
    }

    fn balancer(&self, at: &Frontend, seen: &SeenBalancer) -> Balancer {
        let of_family = |ip: &&IpAddr| ferroxy_core::Family::of(**ip) == at.family;
        let address = |id: &Guid| {
            let ip = self.endpoints.get(id).and_then(|seen| seen.ips.iter().find(of_family));
            ip.copied().filter(|ip| self.id_of(*ip) == Some(*id)).unwrap_or(GONE)
        };
        Balancer { endpoints: seen.ids.iter().map(address).collect(), ..seen.balancer.clone() }
    }

    /// Leftovers of kube-proxy that are not at a frontend of ours: certain ones only.
    pub fn leftovers(&self, wanted: impl Fn(&Frontend) -> bool) -> Vec<(Guid, Frontend)> {
        let is_left = |seen: &SeenBalancer| {
            seen.is_unclaimed
                && seen.frontend.as_ref().is_some_and(|at| !wanted(at))
                && document::is_kube_proxys(seen)
        };
        let left = self.balancers.iter().filter(|(_, seen)| is_left(seen));
        let mut left: Vec<_> = left.filter_map(|(id, seen)| Some((*id, seen.frontend?))).collect();
        left.sort();
        left
    }
}
