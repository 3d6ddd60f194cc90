//! Compares two States: the Plan that turns one into the other.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ferroxy_core::{Family, Protocol};
use ferroxy_iptables::TableName;

use crate::plan::{Before, Op, Plan};
use crate::program::OUT_FILTER;
use crate::set::SetName;
use crate::state::{Address, SetState, State, VirtualServer, WEIGHT};

/// The Plan that turns `seen` into `wanted`. A TCP endpoint that is no longer wanted stays with weight 0 to drain (see
/// [`crate::drain`]).
pub fn diff(seen: &State, wanted: &State) -> Plan {
    let mut ops = Vec::new();
    sets(seen, wanted, &mut ops);
    members(seen, wanted, &mut ops);
    rules(seen, wanted, &mut ops);
    guards(seen, wanted, &mut ops);
    servers(seen, wanted, &mut ops);
    device(seen, wanted, &mut ops);
    Plan::in_order(ops, who_serves(seen))
}

/// Rules in our chains without our device belong to iptables mode, of Ferroxy or of the original.
fn who_serves(seen: &State) -> Before {
    match seen.device.is_none() && !seen.rules.is_empty() {
        true => Before::OtherRules,
        false => Before::ThisMode,
    }
}

/// Adds all other objects of `seen` to `wanted`, so that turning `seen` into the result removes no Service.
pub fn keeping_the_unknown(seen: &State, mut wanted: State) -> State {
    for (address, server) in &seen.servers {
        wanted.servers.entry(*address).or_insert_with(|| server.clone());
    }
    if let (Some(seen), Some(wanted)) = (&seen.device, &mut wanted.device) {
        wanted.extend(seen);
    }
    for (name, set) in &mut wanted.sets {
        set.members.extend(seen.sets.get(name).into_iter().flat_map(|seen| &seen.members));
    }
    wanted.guarded.extend(&seen.guarded);
    wanted
}

fn sets(seen: &State, wanted: &State, ops: &mut Vec<Op>) {
    for (name, set) in &wanted.sets {
        match seen.sets.get(name) {
            None => ops.push(Op::CreateSet(*name)),
            Some(present) if present.capacity == set.capacity => {}
            Some(_) => ops.push(Op::ReplaceSet(*name, set.members.clone())),
        }
    }
    let gone = seen.sets.keys().filter(|name| !wanted.sets.contains_key(name));
    ops.extend(gone.map(|name| Op::DestroySet(*name)));
}

fn members(seen: &State, wanted: &State, ops: &mut Vec<Op>) {
    let nothing = SetState::default();
    for (name, set) in &wanted.sets {
        let present = seen.sets.get(name).unwrap_or(&nothing);
        if present.capacity == set.capacity {
            change_members(*name, present, set, ops);
        }
    }
}

fn change_members(name: SetName, seen: &SetState, wanted: &SetState, ops: &mut Vec<Op>) {
    ops.extend(wanted.members.difference(&seen.members).map(|it| Op::AddMember(name, *it)));
    ops.extend(seen.members.difference(&wanted.members).map(|it| Op::RemoveMember(name, *it)));
}

fn rules(seen: &State, wanted: &State, ops: &mut Vec<Op>) {
    let plan = ferroxy_iptables::diff(&seen.rules, &wanted.rules);
    if !plan.is_empty() {
        let removes = wanted.rules.is_empty();
        ops.push(if removes { Op::RemoveRules(plan) } else { Op::WriteRules(plan) });
    }
}

fn guards(seen: &State, wanted: &State, ops: &mut Vec<Op>) {
    let lost = |guard: &&Address| guards_are_lost(guard.family(), seen, wanted);
    let present: BTreeSet<Address> = seen.guarded.iter().filter(|guard| !lost(guard)).copied().collect();
    ops.extend(wanted.guarded.difference(&present).map(|guard| Op::Guard(*guard)));
    ops.extend(present.difference(&wanted.guarded).map(|guard| Op::Unguard(*guard)));
}

/// True if the chain of the guards is rewritten or removed, which removes the guards.
fn guards_are_lost(family: Family, seen: &State, wanted: &State) -> bool {
    let chain = |state: &State| state.rules.table(family, TableName::Filter)?.chains.get(OUT_FILTER).cloned();
    chain(seen) != chain(wanted)
}

fn servers(seen: &State, wanted: &State, ops: &mut Vec<Op>) {
    for (address, server) in &wanted.servers {
        match seen.servers.get(address) {
            Some(present) => change_server(*address, present, server, ops),
            None => {
                ops.push(Op::AddServer(*address, server.treatment.clone()));
                ops.extend(server.endpoints.keys().map(|endpoint| Op::AddEndpoint(*address, *endpoint)));
            }
        }
    }
    let gone = seen.servers.keys().filter(|address| !wanted.servers.contains_key(address));
    ops.extend(gone.map(|address| Op::RemoveServer(*address)));
}

fn change_server(address: Address, seen: &VirtualServer, wanted: &VirtualServer, ops: &mut Vec<Op>) {
    if seen.treatment != wanted.treatment {
        ops.push(Op::ChangeServer(address, wanted.treatment.clone()));
    }
    for endpoint in wanted.endpoints.keys() {
        match seen.endpoints.get(endpoint) {
            None => ops.push(Op::AddEndpoint(address, *endpoint)),
            Some(&WEIGHT) => {}
            Some(_) => ops.push(Op::Revive(address, *endpoint)),
        }
    }
    let gone = seen.endpoints.iter().filter(|(endpoint, _)| !wanted.endpoints.contains_key(endpoint));
    ops.extend(gone.filter_map(|(endpoint, weight)| leave(address, *endpoint, *weight)));
}

/// Drains TCP endpoints only: UDP has no end of a connection, so a client would stay at a pod that no longer exists.
fn leave(address: Address, endpoint: SocketAddr, weight: u32) -> Option<Op> {
    match address.protocol {
        Protocol::Tcp if weight == 0 => None,
        Protocol::Tcp => Some(Op::Drain(address, endpoint)),
        Protocol::Udp | Protocol::Sctp => Some(Op::RemoveEndpoint(address, endpoint)),
    }
}

fn device(seen: &State, wanted: &State, ops: &mut Vec<Op>) {
    let nothing = BTreeSet::new();
    let Some(addresses) = &wanted.device else {
        // Removing the device removes its addresses.
        ops.extend(seen.device.iter().map(|_| Op::RemoveDevice));
        return;
    };
    if seen.device.is_none() {
        ops.push(Op::CreateDevice);
    }
    let present = seen.device.as_ref().unwrap_or(&nothing);
    ops.extend(addresses.difference(present).map(|ip| Op::AddAddress(*ip)));
    ops.extend(present.difference(addresses).map(|ip| Op::RemoveAddress(*ip)));
}
