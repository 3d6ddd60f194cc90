//! Reads our part of the kernel's state into a State.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferroxy_core::{Family, Protocol};
use ferroxy_netlink::{ipset, ipvs};
use ipnet::IpNet;

use crate::doors::{Doors, Error};
use crate::ownership::is_ours;
use crate::program::owns;
use crate::set::{CAPACITY, Kind, Member, SetName};
use crate::state::{Address, SetState, State, Treatment, VirtualServer};

/// All objects that are ours or the original's.
pub fn observe(doors: &mut Doors) -> Result<State, Error> {
    let mut state = State { device: device(doors)?, ..State::default() };
    let families = doors.families();
    for name in families.iter().flat_map(|family| SetName::all(*family)) {
        if let Some(set) = doors.sets.set(&name.to_string())? {
            state.sets.insert(name, read_set(name, set));
        }
    }
    servers(doors, &families, &mut state)?;
    state.set_rules(rules(doors)?);
    Ok(state)
}

fn device(doors: &mut Doors) -> Result<Option<BTreeSet<IpAddr>>, Error> {
    let Some(index) = doors.device()? else { return Ok(None) };
    let addresses = doors.links.addresses_of(index)?.into_iter().map(|address| address.ip);
    // The kernel adds a link-local address to a device that is up.
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(Some(addresses.filter(|ip| !is_link_local(ip)).collect()))
}

/// A set of another type cannot hold our members: capacity 0 makes the diff replace it.
fn read_set(name: SetName, found: ipset::Found) -> SetState {
    let kind = name.set.kind();
    if found.kind != Some(kind_of(kind)) {
        return SetState { capacity: 0, members: BTreeSet::new() };
    }
    let capacity = if kind == Kind::Port { CAPACITY } else { found.capacity.unwrap_or(0) };
    SetState { capacity, members: found.members.iter().filter_map(read_member).collect() }
}

/// `None` for a member that is never ours.
fn read_member(found: &ipset::Member) -> Option<Member> {
    let place = |address: &ipset::Address| {
        let protocol = Protocol::from_number(address.protocol)?;
        Some(Address { ip: address.ip, protocol, port: address.port })
    };
    Some(match found {
        ipset::Member::Ip(ip) => Member::Ip(*ip),
        ipset::Member::IpPort(at) => Member::IpPort(place(at)?),
        ipset::Member::IpPortIp(at, ip) => Member::IpPortIp(place(at)?, *ip),
        ipset::Member::IpPortNet(at, ip, prefix) => {
            Member::IpPortNet(place(at)?, IpNet::new(*ip, *prefix).ok()?.trunc())
        }
        ipset::Member::Port(port) => Member::Port(*port),
    })
}

/// The kernel's name for a kind of set.
pub(crate) fn kind_of(kind: Kind) -> ipset::Kind {
    match kind {
        Kind::Ip => ipset::Kind::Ip,
        Kind::IpPort => ipset::Kind::IpPort,
        Kind::IpPortIp => ipset::Kind::IpPortIp,
        Kind::IpPortNet => ipset::Kind::IpPortNet,
        Kind::Port => ipset::Kind::Port,
    }
}

fn servers(doors: &mut Doors, families: &[Family], state: &mut State) -> Result<(), Error> {
    let host_addresses = doors.host_addresses()?;
    for server in doors.balancer.servers()? {
        let Some(protocol) = Protocol::from_number(server.address.protocol) else { continue };
        let address = Address { ip: server.address.ip, protocol, port: server.address.port };
        let is_excluded = doors.excluded.iter().any(|range| range.contains(&address.ip));
        if is_excluded || !families.contains(&address.family()) || !is_ours(&address, state, &host_addresses)
        {
            continue;
        }
        let found = doors.balancer.destinations(&server.address)?;
        let endpoints = found.iter().map(|it| (it.destination.address, it.destination.weight)).collect();
        state.servers.insert(address, VirtualServer { treatment: read_treatment(&server), endpoints });
    }
    Ok(())
}

fn read_treatment(server: &ipvs::VirtualServer) -> Treatment {
    let is_persistent = server.flags & ipvs::PERSISTENT != 0;
    Treatment {
        scheduler: server.scheduler.as_str().into(),
        flags: server.flags & !ipvs::PERSISTENT,
        persistence: is_persistent.then_some(server.timeout),
    }
}

fn rules(doors: &mut Doors) -> Result<ferroxy_iptables::State, Error> {
    doors.look_up_sets()?;
    let mut state = ferroxy_iptables::State::default();
    for door in &mut doors.rules {
        state.tables.extend(door.observe(owns, &doors.limits)?.tables);
    }
    Ok(state)
}
