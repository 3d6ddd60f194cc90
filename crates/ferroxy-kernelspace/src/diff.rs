//! The Plan from one State to another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::plan::{Op, Plan};
use crate::state::{Balancer, Frontend, State};

pub fn diff(seen: &State, wanted: &State) -> Plan {
    // HNS cannot change an endpoint, and refuses to delete one that a load balancer names.
    let replaced: BTreeSet<IpAddr> = seen
        .endpoints
        .iter()
        .filter(|(ip, endpoint)| wanted.endpoints.get(ip).is_some_and(|other| other != *endpoint))
        .map(|(ip, _)| *ip)
        .collect();
    let missing = wanted.endpoints.iter().filter(|(ip, _)| !seen.endpoints.contains_key(ip));
    let mut ops: Vec<Op> = missing.map(|(ip, endpoint)| Op::CreateEndpoint(*ip, *endpoint)).collect();
    for group in groups(seen, wanted, &replaced) {
        replace(&mut ops, wanted, &group, &replaced);
    }
    let is_hit = |balancer: &Balancer| !balancer.endpoints.is_disjoint(&replaced);
    for (at, balancer) in &wanted.balancers {
        match seen.balancers.get(at) {
            Some(before) if is_hit(before) || before == balancer => {}
            Some(_) => ops.push(Op::ChangeBalancer(*at, balancer.clone())),
            None => ops.push(Op::CreateBalancer(*at, balancer.clone())),
        }
    }
    let gone = seen.balancers.iter().filter(|(at, it)| !wanted.balancers.contains_key(at) && !is_hit(it));
    ops.extend(gone.map(|(at, _)| Op::DeleteBalancer(*at)));
    let gone = seen.endpoints.keys().filter(|ip| !wanted.endpoints.contains_key(ip));
    ops.extend(gone.map(|ip| Op::DeleteEndpoint(*ip)));
    ops.into_iter().collect()
}

/// Endpoints that must be recreated, and the load balancers that name them. Other groups do not wait for this one.
#[derive(Debug, Default)]
struct Group {
    ips: BTreeSet<IpAddr>,
    frontends: BTreeSet<Frontend>,
}

/// The endpoints that must be recreated, in groups: a load balancer that names several of them puts them into one group.
fn groups(seen: &State, wanted: &State, replaced: &BTreeSet<IpAddr>) -> Vec<Group> {
    let mut names: BTreeMap<Frontend, BTreeSet<IpAddr>> = BTreeMap::new();
    let mut named_by: BTreeMap<IpAddr, Vec<Frontend>> = BTreeMap::new();
    for (at, before) in &seen.balancers {
        let now: BTreeSet<IpAddr> = before.endpoints.intersection(replaced).copied().collect();
        if now.is_empty() {
            continue;
        }
        let later = wanted.balancers.get(at).into_iter().flat_map(|it| it.endpoints.intersection(replaced));
        let all: BTreeSet<IpAddr> = now.into_iter().chain(later.copied()).collect();
        all.iter().for_each(|ip| named_by.entry(*ip).or_default().push(*at));
        names.insert(*at, all);
    }
    let mut left = replaced.clone();
    let mut groups = Vec::new();
    while let Some(first) = left.pop_first() {
        let (mut group, mut open) = (Group::default(), vec![first]);
        while let Some(ip) = open.pop() {
            group.ips.insert(ip);
            for at in named_by.get(&ip).into_iter().flatten() {
                if group.frontends.insert(*at) {
                    let others = names.get(at).into_iter().flatten();
                    open.extend(others.filter(|other| left.remove(*other)));
                }
            }
        }
        groups.push(group);
    }
    groups
}

/// Recreates the endpoints of a group. Meanwhile its load balancers do without them, or are deleted if they have no others.
fn replace(ops: &mut Vec<Op>, wanted: &State, group: &Group, replaced: &BTreeSet<IpAddr>) {
    let mut after = Vec::new();
    for at in &group.frontends {
        let Some(balancer) = wanted.balancers.get(at) else {
            ops.push(Op::DeleteBalancer(*at));
            continue;
        };
        let rest: BTreeSet<IpAddr> = balancer.endpoints.difference(replaced).copied().collect();
        if rest.is_empty() {
            ops.push(Op::DeleteBalancer(*at));
            after.push(Op::CreateBalancer(*at, balancer.clone()));
        } else {
            if rest != balancer.endpoints {
                after.push(Op::ChangeBalancer(*at, balancer.clone()));
            }
            ops.push(Op::ChangeBalancer(*at, Balancer { endpoints: rest, ..balancer.clone() }));
        }
    }
    ops.extend(group.ips.iter().map(|ip| Op::DeleteEndpoint(*ip)));
    let made = group.ips.iter().filter_map(|ip| Some(Op::CreateEndpoint(*ip, *wanted.endpoints.get(ip)?)));
    ops.extend(made);
    ops.append(&mut after);
}
