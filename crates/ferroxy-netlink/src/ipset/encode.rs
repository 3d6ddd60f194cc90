//! Encodes sets and their members as attributes. Knows no socket.

use std::net::IpAddr;

use super::wire::{HEADER, NET_ORDER, address, command, data};
use super::{Address, Family, Kind, Member, Set};
use crate::codec::Encoder;
use crate::numbers::{AF_INET, AF_INET6, AF_UNSPEC};

/// The start of every command.
pub(super) fn put_start(out: &mut Encoder, protocol: u8) {
    out.put_raw(&[0; HEADER]);
    out.put_u8(command::PROTOCOL, protocol);
}

pub(super) fn put_type(out: &mut Encoder, kind: Kind, family: Family) {
    out.put_str(command::TYPE_NAME, kind.name());
    out.put_u8(command::FAMILY, family_number(kind, family));
}

pub(super) fn put_description(out: &mut Encoder, set: &Set) {
    let nest = out.begin_nested(command::DATA);
    match set.kind {
        Kind::Port => {
            out.put_u16_be(data::PORT | NET_ORDER, 0);
            out.put_u16_be(data::LAST_PORT | NET_ORDER, u16::MAX);
        }
        _ => {
            out.put_u32_be(data::HASH_SIZE | NET_ORDER, set.hash_size);
            out.put_u32_be(data::MOST_MEMBERS | NET_ORDER, set.capacity);
        }
    }
    out.end_nested(nest);
}

/// Encodes all members; the caller limits them to what fits into a message. They are numbered from 1, so that a refusal can
/// identify a member: the kernel overwrites the first LINE attribute with the number of the refused member.
pub(super) fn put_members(out: &mut Encoder, members: &[Member]) {
    out.put_u32(command::LINE, 0);
    let list = out.begin_nested(command::MEMBERS);
    for (line, member) in (1..).zip(members) {
        let nest = out.begin_nested(command::DATA);
        put_member(out, member);
        out.put_u32(data::LINE, line);
        out.end_nested(nest);
    }
    out.end_nested(list);
}

fn put_member(out: &mut Encoder, member: &Member) {
    match *member {
        Member::Ip(ip) => put_ip(out, data::IP, ip),
        Member::Port(port) => out.put_u16_be(data::PORT | NET_ORDER, port),
        Member::IpPort(address) => put_address(out, address),
        Member::IpPortIp(address, ip) => {
            put_address(out, address);
            put_ip(out, data::SECOND_IP, ip);
        }
        Member::IpPortNet(address, ip, prefix) => {
            put_address(out, address);
            put_ip(out, data::SECOND_IP, ip);
            out.put_u8(data::SECOND_PREFIX, prefix);
        }
    }
}

fn put_address(out: &mut Encoder, Address { ip, protocol, port }: Address) {
    put_ip(out, data::IP, ip);
    out.put_u16_be(data::PORT | NET_ORDER, port);
    out.put_u8(data::PROTOCOL, protocol);
}

fn put_ip(out: &mut Encoder, kind: u16, ip: IpAddr) {
    let nest = out.begin_nested(kind);
    match ip {
        IpAddr::V4(ip) => out.put_bytes(address::V4 | NET_ORDER, &ip.octets()),
        IpAddr::V6(ip) => out.put_bytes(address::V6 | NET_ORDER, &ip.octets()),
    }
    out.end_nested(nest);
}

fn family_number(kind: Kind, family: Family) -> u8 {
    match (kind, family) {
        (Kind::Port, _) => AF_UNSPEC,
        (_, Family::V4) => AF_INET,
        (_, Family::V6) => AF_INET6,
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::read_part;
    use super::*;
    use crate::codec::{Attributes, Message, host, payload};

    const ADDRESS: Address =
        Address { ip: IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 80)), protocol: 6, port: 8080 };

    fn set(kind: Kind) -> Set {
        Set { name: "s".into(), kind, family: Family::V4, capacity: 0x0102_0304, hash_size: 1024 }
    }

    /// A dump of a set, which has the same attributes as the requests that create and fill it.
    fn listed(set: &Set, members: &[Member]) -> Vec<u8> {
        let mut out = Encoder::new();
        put_start(&mut out, 7);
        out.put_str(command::NAME, &set.name);
        put_type(&mut out, set.kind, set.family);
        put_description(&mut out, set);
        put_members(&mut out, members);
        out.bytes().to_vec()
    }

    #[test]
    fn every_kind_of_member_is_read_as_it_was_written() {
        let six: IpAddr = "fd00::80".parse().unwrap();
        for (kind, members) in [
            (Kind::Ip, vec![Member::Ip(ADDRESS.ip), Member::Ip(six)]),
            (Kind::Port, vec![Member::Port(8080)]),
            (Kind::IpPort, vec![Member::IpPort(ADDRESS), Member::IpPort(Address { ip: six, ..ADDRESS })]),
            (Kind::IpPortIp, vec![Member::IpPortIp(ADDRESS, [10, 0, 0, 1].into())]),
            (Kind::IpPortNet, vec![Member::IpPortNet(ADDRESS, [10, 0, 0, 0].into(), 8)]),
        ] {
            let bytes = listed(&set(kind), &members);
            let mut found = None;
            let message = Message { kind: 0, flags: 0, sequence: 1, port_id: 0, payload: &bytes };
            read_part(&message, &mut found).unwrap();
            let found = found.unwrap();
            assert_eq!((found.kind, found.members), (Some(kind), members));
            assert_eq!(found.capacity, (kind != Kind::Port).then_some(0x0102_0304));
        }
    }

    #[test]
    fn numbers_are_in_network_order_and_marked_so_but_line_numbers_are_not() {
        let bytes = listed(&set(Kind::IpPort), &[Member::IpPort(ADDRESS)]);
        let attributes = &bytes[HEADER..];
        assert_eq!(payload(attributes, &[command::DATA, data::MOST_MEMBERS]), [1, 2, 3, 4]);
        let member = payload(attributes, &[command::MEMBERS, command::DATA]);
        assert_eq!(payload(member, &[data::PORT]), [0x1f, 0x90]);
        assert_eq!(payload(member, &[data::IP, address::V4]), [10, 96, 0, 80]);
        assert_eq!(payload(member, &[data::LINE]), host([0, 0, 0, 1]));

        let port = Attributes::new(member).flatten().find(|attribute| attribute.kind == data::PORT).unwrap();
        let header = &member[port.payload.as_ptr().addr() - member.as_ptr().addr() - 4..][..4];
        assert_eq!(header, [host([0, 6]), host([0x40, 4])].concat());
    }
}
