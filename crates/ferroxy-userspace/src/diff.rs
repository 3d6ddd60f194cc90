//! Computes the Plan that turns one State into another.

use std::collections::BTreeMap;

use ferroxy_proxy::Key;

use crate::plan::{Op, Plan};
use crate::state::State;

/// The Plan that turns `seen` into `wanted`; empty if they are equal.
pub fn diff(seen: &State, wanted: &State) -> Plan {
    let mut plan = Plan::default();
    plan.before_rules.extend(wanted.routes.difference(&seen.routes).map(|address| Op::AddRoute(*address)));
    set(&seen.redirects, &wanted.redirects, Op::SetRedirect, &mut plan.before_rules);
    compare(
        Listening { pools: &seen.pools, frontends: &seen.frontends },
        Listening { pools: &wanted.pools, frontends: &wanted.frontends },
        &mut plan,
    );
    remove(&seen.redirects, &wanted.redirects, Op::RemoveRedirect, &mut plan.after_rules);
    plan.after_rules.extend(seen.routes.difference(&wanted.routes).map(|address| Op::RemoveRoute(*address)));
    let nftables = ferroxy_nftables::diff(&seen.rules.nftables, &wanted.rules.nftables);
    if !nftables.is_empty() {
        plan.rules.push(Op::Nftables(Box::new(nftables)));
    }
    let iptables = ferroxy_iptables::diff(&seen.rules.iptables, &wanted.rules.iptables);
    if !iptables.is_empty() {
        plan.rules.push(Op::Iptables(Box::new(iptables), Box::new(wanted.rules.iptables.clone())));
    }
    plan
}

/// Pools and frontends of the engine, all or some of them.
#[derive(Debug, Clone, Copy)]
pub struct Listening<'a> {
    pub pools: &'a BTreeMap<Key, ferroxy_proxy::Pool>,
    pub frontends: &'a BTreeMap<Key, ferroxy_proxy::Frontend>,
}

/// Adds the operations on pools and listeners.
pub fn compare(seen: Listening<'_>, wanted: Listening<'_>, plan: &mut Plan) {
    set(seen.pools, wanted.pools, Op::SetPool, &mut plan.before_rules);
    set(seen.frontends, wanted.frontends, Op::SetFrontend, &mut plan.before_rules);
    remove(seen.frontends, wanted.frontends, Op::RemoveFrontend, &mut plan.after_rules);
    remove(seen.pools, wanted.pools, Op::RemovePool, &mut plan.after_rules);
}

fn set<T: Clone + PartialEq>(
    seen: &BTreeMap<Key, T>,
    wanted: &BTreeMap<Key, T>,
    op: fn(Key, T) -> Op,
    ops: &mut Vec<Op>,
) {
    let differs = wanted.iter().filter(|(key, value)| seen.get(*key) != Some(*value));
    ops.extend(differs.map(|(key, value)| op(key.clone(), value.clone())));
}

fn remove<T>(seen: &BTreeMap<Key, T>, wanted: &BTreeMap<Key, T>, op: fn(Key) -> Op, ops: &mut Vec<Op>) {
    ops.extend(seen.keys().filter(|key| !wanted.contains_key(*key)).cloned().map(op));
}
