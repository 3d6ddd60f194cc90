//! Computes the Plan that turns one State into another.

use std::collections::BTreeMap;

use ferroxy_proxy::Key;

use crate::plan::{Op, Plan};
use crate::state::State;

/// The Plan that turns `seen` into `wanted`; empty if they are equal.
pub fn diff(seen: &State, wanted: &State) -> Plan {
    let mut ops = Vec::new();
    ops.extend(wanted.addresses.difference(&seen.addresses).map(|ip| Op::AddAddress(*ip)));
    set(&seen.pools, &wanted.pools, Op::SetPool, &mut ops);
    set(&seen.frontends, &wanted.frontends, Op::SetFrontend, &mut ops);
    remove(&seen.frontends, &wanted.frontends, Op::RemoveFrontend, &mut ops);
    remove(&seen.pools, &wanted.pools, Op::RemovePool, &mut ops);
    ops.extend(seen.addresses.difference(&wanted.addresses).map(|ip| Op::RemoveAddress(*ip)));
    Plan::new(ops)
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
