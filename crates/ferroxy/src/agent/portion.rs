//! Splits a change that is too large for one step into portions. Pure.
//!
//! A portion is an Intent between what is in force and what is desired, so that every dataplane programs it like any other.
//! In every portion a frontend is as it was or as it will be, with all of its endpoints. The order:
//!
//! 1. ports get their new endpoints, together with the frontends that stay; a frontend that moves to another port does so
//!    in one portion;
//! 2. new frontends are added;
//! 3. frontends that are gone are removed.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ferroxy_core::{Endpoint, Family, Frontend, PortIntent, Protocol, Route, ServiceIntent};

/// Identifies a frontend on a node.
pub(super) type Key = (Family, Protocol, Option<IpAddr>, u16);

/// The size of a change: about the number of elements, rules or virtual servers with their endpoints. If both versions
/// together are not larger than `small`, they are not compared, and the result is only an upper bound.
pub(super) fn size(before: Option<&ServiceIntent>, desired: Option<&ServiceIntent>, small: usize) -> usize {
    let whole = |service: Option<&ServiceIntent>| ports(service).iter().map(weight_of_all).sum::<usize>();
    let most = whole(before) + whole(desired);
    if most <= small {
        return most;
    }
    let mut cut = Cut::new(ports(before), ports(desired), usize::MAX);
    cut.run();
    cut.spent
}

/// The next portion: about `budget` of the change. `None` if the rest fits: then the desired Intent itself is next.
pub(super) fn next(
    before: Option<&ServiceIntent>,
    desired: Option<&ServiceIntent>,
    budget: usize,
) -> Option<ServiceIntent> {
    let is_ambiguous = |service| has_ports_of_one_name(ports(service));
    if is_ambiguous(before) || is_ambiguous(desired) {
        return None;
    }
    let mut cut = Cut::new(ports(before), ports(desired), budget);
    if cut.run() {
        return None;
    }
    between(before, desired, cut.ports())
}

/// The Service as it is in force, without these frontends.
pub(super) fn without(
    before: &ServiceIntent,
    desired: Option<&ServiceIntent>,
    keys: &HashSet<Key>,
) -> Option<ServiceIntent> {
    let left = |port: &PortIntent| {
        let left = port.frontends.iter().filter(|frontend| !keys.contains(&key(port, frontend)));
        with_frontends(port, left.cloned().collect())
    };
    let mut ports: Vec<PortIntent> = before.ports.iter().map(left).collect();
    ports.retain(|port| !port.frontends.is_empty());
    between(Some(before), desired, ports)
}

/// The frontends of a Service.
pub(super) fn keys(service: Option<&ServiceIntent>) -> impl Iterator<Item = Key> {
    ports(service).iter().flat_map(|port| port.frontends.iter().map(move |frontend| key(port, frontend)))
}

/// An Intent between both. It rejects unused ports only of cluster IPs that both have: on a new cluster IP, frontends that
/// are not added yet would look like unused ports.
fn between(
    before: Option<&ServiceIntent>,
    desired: Option<&ServiceIntent>,
    ports: Vec<PortIntent>,
) -> Option<ServiceIntent> {
    let stays = |address: &&IpAddr| desired.is_some_and(|desired| desired.cluster_ips.contains(address));
    let cluster_ips = before.map(|before| before.cluster_ips.iter().filter(stays).copied().collect());
    let model = desired.or(before)?;
    Some(ServiceIntent {
        name: model.name.clone(),
        cluster_ips: cluster_ips.unwrap_or_default(),
        ports,
        health_check: before.and_then(|before| before.health_check),
        annotations: model.annotations.clone(),
        left_out: model.left_out,
    })
}

fn ports(service: Option<&ServiceIntent>) -> &[PortIntent] {
    service.map_or(&[], |service| &service.ports)
}

fn key(port: &PortIntent, frontend: &Frontend) -> Key {
    (port.family, port.protocol, frontend.address, frontend.port)
}

/// False for valid Services, whose port names are unique.
fn has_ports_of_one_name(ports: &[PortIntent]) -> bool {
    let names: HashSet<_> = ports.iter().map(|port| (&port.name, port.family, port.protocol)).collect();
    names.len() < ports.len()
}

fn weight_of_all(port: &PortIntent) -> usize {
    port.frontends.iter().map(|frontend| weight(port, frontend)).sum()
}

/// The number of elements of a frontend: itself and its endpoints.
fn weight(port: &PortIntent, frontend: &Frontend) -> usize {
    1 + match frontend.route {
        Route::Reject | Route::Drop => 0,
        Route::Cluster | Route::ExternalCluster => port.cluster.len(),
        Route::Local => port.local.len(),
        Route::ExternalLocal => port.cluster.len() + port.local.len(),
    }
}

/// Compares everything but the frontends.
fn same_settings(one: &PortIntent, other: &PortIntent) -> bool {
    let settings = |port: &PortIntent| (port.family, port.protocol, port.affinity, port.size);
    one.name == other.name
        && settings(one) == settings(other)
        && sorted(&one.cluster) == sorted(&other.cluster)
        && sorted(&one.local) == sorted(&other.local)
}

/// Desired endpoints are sorted. Endpoints in force need not be: a dataplane may keep an endpoint at its position.
fn sorted(endpoints: &[Endpoint]) -> Cow<'_, [Endpoint]> {
    if endpoints.is_sorted() {
        return Cow::Borrowed(endpoints);
    }
    let mut sorted = endpoints.to_vec();
    sorted.sort();
    Cow::Owned(sorted)
}

/// How many endpoints are in only one of both lists.
fn difference(one: &[Endpoint], other: &[Endpoint]) -> usize {
    let only = |these: &[Endpoint], those: &[Endpoint]| {
        these.iter().filter(|endpoint| those.binary_search(endpoint).is_err()).count()
    };
    let (one, other) = (sorted(one), sorted(other));
    only(&one, &other) + only(&other, &one)
}

/// A partial change: as much as the budget allows.
struct Cut<'a> {
    before: &'a [PortIntent],
    desired: &'a [PortIntent],
    /// Where each frontend is: the index of its port, and its index in that port.
    was_at: HashMap<Key, (usize, usize)>,
    will_be_at: HashMap<Key, (usize, usize)>,
    /// For each desired port: the earlier port with the same name, family and protocol.
    continues: Vec<Option<usize>>,
    /// For each desired port: whether it differs from the earlier port only in frontends.
    keeps_settings: Vec<bool>,
    /// Earlier ports whose settings change: frontends that no desired port has are removed together with the old settings.
    is_replaced: HashSet<usize>,
    /// Which desired ports have their new endpoints, and which of their frontends are in place.
    is_switched: Vec<bool>,
    is_there: Vec<Vec<bool>>,
    /// Frontends of earlier ports that are removed.
    is_removed: HashSet<(usize, usize)>,
    budget: usize,
    spent: usize,
}

fn places(ports: &[PortIntent]) -> HashMap<Key, (usize, usize)> {
    let of_port = |(p, port): (usize, &'_ PortIntent)| -> Vec<(Key, (usize, usize))> {
        port.frontends.iter().enumerate().map(|(f, frontend)| (key(port, frontend), (p, f))).collect()
    };
    ports.iter().enumerate().flat_map(of_port).collect()
}

impl<'a> Cut<'a> {
    fn new(before: &'a [PortIntent], desired: &'a [PortIntent], budget: usize) -> Cut<'a> {
        let name = |port: &'a PortIntent| (&port.name, port.family, port.protocol);
        let names: HashMap<_, usize> = before.iter().enumerate().map(|(p, port)| (name(port), p)).collect();
        let continues: Vec<Option<usize>> =
            desired.iter().map(|port| names.get(&name(port)).copied()).collect();
        let keeps = |(p, port): (usize, &Option<usize>)| {
            port.is_some_and(|it| same_settings(&before[it], &desired[p]))
        };
        let keeps_settings: Vec<bool> = continues.iter().enumerate().map(keeps).collect();
        let replaced = continues.iter().zip(&keeps_settings).filter(|(_, keeps)| !**keeps);
        let is_replaced = replaced.filter_map(|(before, _)| *before).collect();
        let mut cut = Cut {
            was_at: places(before),
            will_be_at: places(desired),
            is_switched: keeps_settings.clone(),
            is_there: desired.iter().map(|port| vec![false; port.frontends.len()]).collect(),
            is_removed: HashSet::new(),
            before,
            desired,
            continues,
            keeps_settings,
            is_replaced,
            budget,
            spent: 0,
        };
        for (p, port) in desired.iter().enumerate() {
            cut.is_there[p] = (0..port.frontends.len()).map(|f| cut.is_in_place(p, f)).collect();
        }
        cut
    }

    /// Returns whether all of the change is done.
    fn run(&mut self) -> bool {
        (0..self.desired.len()).all(|p| self.switch(p))
            && (0..self.desired.len()).all(|p| self.add(p))
            && (0..self.before.len()).all(|p| self.remove(p))
    }

    /// The frontend is in force as desired.
    fn is_in_place(&self, p: usize, f: usize) -> bool {
        let (port, frontend) = (&self.desired[p], &self.desired[p].frontends[f]);
        self.was_at.get(&key(port, frontend)).is_some_and(|(before, place)| {
            self.continues[p] == Some(*before)
                && self.is_switched[p]
                && self.before[*before].frontends[*place] == *frontend
        })
    }

    /// Where a frontend of a desired port is in force, if it is.
    fn origin(&self, p: usize, f: usize) -> Option<(usize, usize)> {
        self.was_at.get(&key(&self.desired[p], &self.desired[p].frontends[f])).copied()
    }

    /// Gives a port its new endpoints, and those of its frontends that are in force. Ports that take over its other frontends
    /// are switched in the same step, so that no frontend is missing in between.
    fn switch(&mut self, p: usize) -> bool {
        let (mut group, mut more, mut seen) = (Vec::new(), vec![p], HashSet::from([p]));
        while let Some(p) = more.pop() {
            if self.is_up_to_date(p) {
                continue;
            }
            group.push(p);
            let replaced = self.continues[p].filter(|before| self.is_replaced.contains(before));
            if let Some(before) = replaced.map(|before| &self.before[before]) {
                let goes_to = before.frontends.iter().filter_map(|it| self.will_be_at.get(&key(before, it)));
                more.extend(goes_to.map(|(p, _)| *p).filter(|p| seen.insert(*p)));
            }
        }
        let cost = group.iter().map(|p| self.cost_of_switching(*p)).sum();
        if group.is_empty() {
            return true;
        }
        if !self.afford(cost) {
            return false;
        }
        for p in group {
            self.is_switched[p] = true;
            for f in 0..self.desired[p].frontends.len() {
                self.is_there[p][f] = self.origin(p, f).is_some();
            }
        }
        true
    }

    fn is_up_to_date(&self, p: usize) -> bool {
        let must_wait = self.continues[p].is_some() && !self.is_switched[p];
        let frontends = 0..self.desired[p].frontends.len();
        !must_wait && frontends.into_iter().all(|f| self.is_there[p][f] || self.origin(p, f).is_none())
    }

    fn cost_of_switching(&self, p: usize) -> usize {
        let after = &self.desired[p];
        let changed = |before: &PortIntent| {
            (difference(&before.cluster, &after.cluster), difference(&before.local, &after.local))
        };
        let changed = self.continues[p].map(|before| changed(&self.before[before]));
        let stay = (0..after.frontends.len()).filter(|f| !self.is_there[p][*f]).filter_map(|f| {
            let (port, place) = self.origin(p, f)?;
            let (before, frontend) = (&self.before[port], &after.frontends[f]);
            let is_alike = self.continues[p] == Some(port)
                && before.affinity == after.affinity
                && before.frontends[place].route == frontend.route;
            Some(match changed.filter(|_| is_alike) {
                Some((cluster, local)) => 1 + cluster + local,
                None => weight(before, &before.frontends[place]) + weight(after, frontend),
            })
        });
        stay.sum::<usize>() + self.weight_of_dropped(p)
    }

    /// Frontends that are removed with the old endpoints of their port, because no desired port has them.
    fn weight_of_dropped(&self, p: usize) -> usize {
        let Some(before) = self.continues[p].filter(|_| !self.keeps_settings[p]) else { return 0 };
        let port = &self.before[before];
        let gone = port.frontends.iter().filter(|it| !self.will_be_at.contains_key(&key(port, it)));
        gone.map(|frontend| weight(port, frontend)).sum()
    }

    fn add(&mut self, p: usize) -> bool {
        let port = &self.desired[p];
        for (f, frontend) in port.frontends.iter().enumerate() {
            if !self.is_there[p][f] {
                if !self.afford(weight(port, frontend)) {
                    return false;
                }
                self.is_switched[p] = true;
                self.is_there[p][f] = true;
            }
        }
        true
    }

    fn remove(&mut self, p: usize) -> bool {
        let port = &self.before[p];
        if self.is_replaced.contains(&p) {
            return true;
        }
        for (f, frontend) in port.frontends.iter().enumerate() {
            if !self.will_be_at.contains_key(&key(port, frontend)) {
                if !self.afford(weight(port, frontend)) {
                    return false;
                }
                self.is_removed.insert((p, f));
            }
        }
        true
    }

    /// The first step is always done, even beyond the budget.
    fn afford(&mut self, cost: usize) -> bool {
        let can = self.spent == 0 || self.spent.saturating_add(cost) <= self.budget;
        if can {
            self.spent += cost;
        }
        can
    }

    /// The ports after this portion.
    fn ports(&self) -> Vec<PortIntent> {
        let mut continued = vec![None; self.before.len()];
        for (p, before) in self.continues.iter().enumerate() {
            if let Some(before) = before.filter(|_| self.is_switched[p]) {
                continued[before] = Some(p);
            }
        }
        let mut ports = Vec::new();
        for (p, port) in self.desired.iter().enumerate().filter(|(p, _)| self.is_switched[*p]) {
            let there = port.frontends.iter().zip(&self.is_there[p]).filter(|(_, there)| **there);
            let mut frontends: Vec<Frontend> = there.map(|(frontend, _)| frontend.clone()).collect();
            if let Some(before) = self.continues[p].filter(|_| self.keeps_settings[p]) {
                frontends.extend(self.left(before));
            }
            ports.push(with_frontends(port, frontends));
        }
        for (p, port) in self.before.iter().enumerate().filter(|(p, _)| continued[*p].is_none()) {
            ports.push(with_frontends(port, self.left(p).collect()));
        }
        ports.retain(|port| !port.frontends.is_empty());
        ports
    }

    /// The frontends of an earlier port that are still as they were.
    fn left(&self, p: usize) -> impl Iterator<Item = Frontend> {
        let port = &self.before[p];
        let is_left = move |(f, frontend): &(usize, &Frontend)| {
            let is_elsewhere =
                self.will_be_at.get(&key(port, frontend)).is_some_and(|(p, f)| self.is_there[*p][*f]);
            !is_elsewhere && !self.is_removed.contains(&(p, *f))
        };
        port.frontends.iter().enumerate().filter(is_left).map(|(_, frontend)| frontend.clone())
    }
}

fn with_frontends(port: &PortIntent, frontends: Vec<Frontend>) -> PortIntent {
    PortIntent {
        name: port.name.clone(),
        family: port.family,
        protocol: port.protocol,
        affinity: port.affinity,
        cluster: sorted(&port.cluster).into_owned(),
        local: sorted(&port.local).into_owned(),
        size: port.size,
        frontends,
    }
}

#[cfg(test)]
mod tests;
