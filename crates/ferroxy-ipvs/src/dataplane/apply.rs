//! Applies a Plan in its order, and sends operations of the same kind together.
//!
//! Every operation can be repeated: an existing object is changed to what is wanted, a missing one is already removed. A
//! refused operation does not stop the others, and is returned; the caller finds out which Service owns it.

use std::time::{Duration, Instant};

use ferroxy_core::Family;
use ferroxy_iptables::{Op as RuleOp, Plan as RulePlan, TableName};
use ferroxy_netlink::requests::Refused;
use ferroxy_netlink::route::Address as LinkAddress;
use ferroxy_netlink::{ipset, ipvs};
use rustix::io::Errno;

use super::observe::kind_of;
use crate::doors::{Doors, Error};
use crate::plan::{Op, Plan};
use crate::program::{OUT_FILTER, guard};
use crate::set::{CAPACITY, Member, SetName};
use crate::state::{Address, DEVICE, Treatment, WEIGHT};

/// How long a set may stay in use after the rules that used it are removed.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many messages were sent, and which operations were refused and why.
#[derive(Debug, Default)]
pub struct Applied {
    /// Netlink requests and commits of rules.
    pub messages: usize,
    pub refused: Vec<(Op, String)>,
}

/// After an error, a part of the Plan may be in force.
pub fn apply(doors: &mut Doors, plan: &Plan) -> Result<Applied, Error> {
    let mut applied = Applied::default();
    let mut ops = plan.ops();
    // If no rule is removed, waiting does not help.
    let removes_rules = ops.iter().any(|op| matches!(op, Op::RemoveRules(_)));
    let until = Instant::now() + if removes_rules { PATIENCE } else { Duration::ZERO };
    while let Some(first) = ops.first() {
        let door = Door::of(first);
        let alike = ops.iter().take_while(|op| Door::of(op) == door).count();
        let (these, rest) = ops.split_at(alike);
        carry_out(doors, door, these, until, &mut applied)?;
        ops = rest;
    }
    Ok(applied)
}

/// The kind of an operation: operations of one kind are sent together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Balancer,
    Add(SetName),
    Remove(SetName),
    AddAddresses,
    RemoveAddresses,
    Guards,
    Alone,
}

impl Door {
    fn of(op: &Op) -> Door {
        match op {
            Op::AddServer(..)
            | Op::ChangeServer(..)
            | Op::RemoveServer(_)
            | Op::AddEndpoint(..)
            | Op::Revive(..)
            | Op::Drain(..)
            | Op::RemoveEndpoint(..) => Door::Balancer,
            Op::AddMember(name, _) => Door::Add(*name),
            Op::RemoveMember(name, _) => Door::Remove(*name),
            Op::AddAddress(_) => Door::AddAddresses,
            Op::RemoveAddress(_) => Door::RemoveAddresses,
            Op::Guard(_) | Op::Unguard(_) => Door::Guards,
            Op::CreateSet(_)
            | Op::ReplaceSet(..)
            | Op::DestroySet(_)
            | Op::CreateDevice
            | Op::RemoveDevice
            | Op::WriteRules(_)
            | Op::RemoveRules(_) => Door::Alone,
        }
    }
}

fn carry_out(
    doors: &mut Doors,
    door: Door,
    ops: &[Op],
    until: Instant,
    applied: &mut Applied,
) -> Result<(), Error> {
    applied.messages += ops.len();
    let refused = match door {
        Door::Balancer => balance(doors, ops)?,
        Door::Add(name) => doors.sets.add(&name.to_string(), &members(ops))?,
        Door::Remove(name) => doors.sets.remove(&name.to_string(), &members(ops))?,
        Door::AddAddresses => {
            let addresses = addresses(doors, ops)?;
            without(Errno::EXIST, doors.links.add_addresses(&addresses)?)
        }
        Door::RemoveAddresses => {
            let addresses = addresses(doors, ops)?;
            without(Errno::ADDRNOTAVAIL, doors.links.remove_addresses(&addresses)?)
        }
        Door::Guards => {
            write_rules(doors, &guards(ops))?;
            Vec::new()
        }
        Door::Alone => {
            ops.iter().try_for_each(|op| alone(doors, op, until))?;
            Vec::new()
        }
    };
    for Refused { index, error } in refused {
        applied.refused.extend(ops.get(index).map(|op| (op.clone(), error.to_string())));
    }
    Ok(())
}

fn without(harmless: Errno, refused: Vec<Refused>) -> Vec<Refused> {
    refused.into_iter().filter(|refusal| refusal.error.errno != harmless).collect()
}

/// Sends changes of virtual servers. If an object to add already exists, changes it instead.
fn balance(doors: &mut Doors, ops: &[Op]) -> Result<Vec<Refused>, Error> {
    let changes: Vec<ipvs::Change> = ops.iter().filter_map(change).collect();
    let mut refused = Vec::new();
    let (mut again, mut whose) = (Vec::new(), Vec::new());
    for refusal in doors.balancer.change(&changes)? {
        let instead = match changes.get(refusal.index) {
            Some(ipvs::Change::AddServer(it)) => Some(ipvs::Change::SetServer(it.clone())),
            Some(ipvs::Change::AddDestination(at, it)) => Some(ipvs::Change::SetDestination(*at, *it)),
            _ => None,
        };
        match (instead, refusal.error.errno) {
            (Some(instead), Errno::EXIST) => {
                again.push(instead);
                whose.push(refusal.index);
            }
            (None, Errno::NOENT | Errno::SRCH) if is_removal(ops.get(refusal.index)) => {}
            _ => refused.push(named(refusal, &changes)),
        }
    }
    let still = doors.balancer.change(&again)?.into_iter();
    refused.extend(still.map(|refusal| Refused { index: whose[refusal.index], ..refusal }));
    Ok(refused)
}

fn is_removal(op: Option<&Op>) -> bool {
    matches!(op, Some(Op::RemoveServer(_) | Op::RemoveEndpoint(..) | Op::Drain(..)))
}

/// ENOENT is the kernel's error for a scheduler that it cannot load.
fn named(mut refusal: Refused, changes: &[ipvs::Change]) -> Refused {
    if let Some(ipvs::Change::AddServer(server) | ipvs::Change::SetServer(server)) =
        changes.get(refusal.index)
        && refusal.error.errno == Errno::NOENT
    {
        let words = Error::NoScheduler(server.scheduler.clone()).to_string();
        refusal.error = refusal.error.explained(Some(words));
    }
    refusal
}

fn change(op: &Op) -> Option<ipvs::Change> {
    let to = |endpoint: &std::net::SocketAddr, weight| ipvs::Destination {
        address: *endpoint,
        forwarding: ipvs::Forwarding::Masquerade,
        weight,
    };
    Some(match op {
        Op::AddServer(at, how) => ipvs::Change::AddServer(server(at, how)),
        Op::ChangeServer(at, how) => ipvs::Change::SetServer(server(at, how)),
        Op::RemoveServer(at) => ipvs::Change::RemoveServer(place(at)),
        Op::AddEndpoint(at, endpoint) => ipvs::Change::AddDestination(place(at), to(endpoint, WEIGHT)),
        Op::Revive(at, endpoint) => ipvs::Change::SetDestination(place(at), to(endpoint, WEIGHT)),
        Op::Drain(at, endpoint) => ipvs::Change::SetDestination(place(at), to(endpoint, 0)),
        Op::RemoveEndpoint(at, endpoint) => ipvs::Change::RemoveDestination(place(at), *endpoint),
        _ => return None,
    })
}

pub(crate) fn server(at: &Address, how: &Treatment) -> ipvs::VirtualServer {
    let persistent = if how.persistence.is_some() { ipvs::PERSISTENT } else { 0 };
    ipvs::VirtualServer {
        address: place(at),
        scheduler: how.scheduler.to_string(),
        flags: how.flags | persistent,
        timeout: how.persistence.unwrap_or(0),
        client_prefix: if at.ip.is_ipv4() { 32 } else { 128 },
    }
}

pub(crate) fn place(at: &Address) -> ipvs::Address {
    ipvs::Address { ip: at.ip, protocol: at.protocol.number(), port: at.port }
}

fn members(ops: &[Op]) -> Vec<ipset::Member> {
    let member = |op: &Op| match op {
        Op::AddMember(_, member) | Op::RemoveMember(_, member) => Some(write_member(member)),
        _ => None,
    };
    ops.iter().filter_map(member).collect()
}

fn write_member(member: &Member) -> ipset::Member {
    let place = |at: &Address| ipset::Address { ip: at.ip, protocol: at.protocol.number(), port: at.port };
    match member {
        Member::Ip(ip) => ipset::Member::Ip(*ip),
        Member::IpPort(at) => ipset::Member::IpPort(place(at)),
        Member::IpPortIp(at, ip) => ipset::Member::IpPortIp(place(at), *ip),
        Member::IpPortNet(at, net) => ipset::Member::IpPortNet(place(at), net.addr(), net.prefix_len()),
        Member::Port(port) => ipset::Member::Port(*port),
    }
}

fn addresses(doors: &mut Doors, ops: &[Op]) -> Result<Vec<LinkAddress>, Error> {
    let link = doors.links.link(DEVICE)?.index;
    let address = |op: &Op| match op {
        Op::AddAddress(ip) | Op::RemoveAddress(ip) => {
            Some(LinkAddress { link, ip: *ip, prefix_length: if ip.is_ipv4() { 32 } else { 128 } })
        }
        _ => None,
    };
    Ok(ops.iter().filter_map(address).collect())
}

fn guards(ops: &[Op]) -> RulePlan {
    let mut plan = RulePlan::default();
    for op in ops {
        let (at, op) = match op {
            Op::Guard(at) => (at, RuleOp::Append { chain: OUT_FILTER.into(), rule: guard(at).into() }),
            Op::Unguard(at) => (at, RuleOp::Delete { chain: OUT_FILTER.into(), rule: guard(at).into() }),
            _ => continue,
        };
        plan.add(at.family(), TableName::Filter, [op]);
    }
    plan
}

fn write_rules(doors: &mut Doors, plan: &RulePlan) -> Result<(), Error> {
    doors.look_up_sets()?;
    ferroxy_iptables::dataplane::apply::apply(&mut doors.rules, &doors.limits, plan, &doors.bystander)?;
    Ok(())
}

fn alone(doors: &mut Doors, op: &Op, until: Instant) -> Result<(), Error> {
    match op {
        Op::CreateSet(name) => doors.sets.create(&set(*name, name.to_string()))?,
        Op::ReplaceSet(name, members) => replace(doors, *name, members.iter().map(write_member).collect())?,
        Op::DestroySet(name) => doors.sets.destroy_when_free(&name.to_string(), until)?,
        Op::CreateDevice => match doors.links.create_dummy(DEVICE) {
            Err(error) if error.errno == Errno::OPNOTSUPP => return Err(Error::NoDummies(error)),
            Err(error) if error.errno != Errno::EXIST => return Err(error.into()),
            _ => {}
        },
        Op::RemoveDevice => match doors.links.delete_link_named(DEVICE) {
            Err(error) if error.errno != Errno::NODEV => return Err(error.into()),
            _ => {}
        },
        Op::WriteRules(plan) | Op::RemoveRules(plan) => write_rules(doors, plan)?,
        _ => {}
    }
    Ok(())
}

fn set(name: SetName, text: String) -> ipset::Set {
    const HASH_SIZE: u32 = 1024;
    let family = match name.family {
        Family::V4 => ipset::Family::V4,
        Family::V6 => ipset::Family::V6,
    };
    ipset::Set {
        name: text,
        kind: kind_of(name.set.kind()),
        family,
        capacity: CAPACITY,
        hash_size: HASH_SIZE,
    }
}

/// Fills another set and swaps them: no packet sees a set without members.
fn replace(doors: &mut Doors, name: SetName, members: Vec<ipset::Member>) -> Result<(), Error> {
    const BESIDE: &str = "KUBE-REPLACEMENT";
    let sets = &mut doors.sets;
    sets.destroy(BESIDE)?;
    sets.create(&set(name, BESIDE.into()))?;
    if let Some(refused) = sets.add(BESIDE, &members)?.into_iter().next() {
        return Err(refused.error.into());
    }
    sets.swap(&name.to_string(), BESIDE)?;
    sets.destroy(BESIDE)?;
    Ok(())
}
