//! Requests of ctnetlink: filters of a dump, and deletions. Knows no socket.

use std::net::IpAddr;

use super::wire::{HEADER, entry, filter, ip, message, proto, tuple};
use super::{Entry, Family, Filter, Tuple};
use crate::codec::{Encoder, flag};
use crate::numbers::{AF_INET, AF_INET6};

pub(super) fn put_deletion(out: &mut Encoder, sequence: u32, entry: &Entry) {
    let message = out.begin_message(message::DELETE, flag::REQUEST | flag::ACK, sequence);
    let family = if entry.original.destination.is_ipv4() { Family::V4 } else { Family::V6 };
    out.put_raw(&header(family));
    put_tuple(out, entry::ORIGINAL, entry.protocol, &entry.original);
    if entry.zone != 0 {
        out.put_u16_be(entry::ZONE, entry.zone);
    }
    out.put_u32_be(entry::ID, entry.id);
    out.end_message(message);
}

pub(super) fn put_tuple(out: &mut Encoder, kind: u16, protocol: u8, value: &Tuple) {
    let nest = out.begin_nested(kind);
    let addresses = out.begin_nested(tuple::IP);
    put_address(out, [ip::V4_SOURCE, ip::V6_SOURCE], value.source.ip());
    put_address(out, [ip::V4_DESTINATION, ip::V6_DESTINATION], value.destination.ip());
    out.end_nested(addresses);
    let ports = out.begin_nested(tuple::PROTO);
    out.put_u8(proto::NUMBER, protocol);
    out.put_u16_be(proto::SOURCE_PORT, value.source.port());
    out.put_u16_be(proto::DESTINATION_PORT, value.destination.port());
    out.end_nested(ports);
    out.end_nested(nest);
}

/// Encodes the wanted fields of the original tuple, the flags that say which fields are set, and the status.
pub(super) fn put_filter(out: &mut Encoder, wanted: &Filter) {
    let mut flags = 0;
    let nest = out.begin_nested(entry::ORIGINAL);
    // Linux 6.18 omits matching entries if the filter has an IPv6 address (tests/conntrack.rs fails without `is_ipv4` here).
    // For IPv6, the kernel therefore filters by port only, and `Connection::entries` filters by address.
    if let Some(destination) = wanted.destination.filter(IpAddr::is_ipv4) {
        flags |= filter::DESTINATION;
        let addresses = out.begin_nested(tuple::IP);
        put_address(out, [ip::V4_DESTINATION, ip::V6_DESTINATION], destination);
        out.end_nested(addresses);
    }
    // The kernel cannot filter by port without a protocol.
    if let Some(protocol) = wanted.protocol {
        flags |= filter::PROTOCOL;
        let ports = out.begin_nested(tuple::PROTO);
        out.put_u8(proto::NUMBER, protocol);
        if let Some(port) = wanted.destination_port {
            flags |= filter::DESTINATION_PORT;
            out.put_u16_be(proto::DESTINATION_PORT, port);
        }
        out.end_nested(ports);
    }
    out.end_nested(nest);
    let nest = out.begin_nested(entry::FILTER);
    out.put_u32(filter::ORIGINAL_FLAGS, flags);
    out.end_nested(nest);
    if wanted.status != 0 {
        out.put_u32_be(entry::STATUS, wanted.status);
        out.put_u32_be(entry::STATUS_MASK, wanted.status);
    }
}

fn put_address(out: &mut Encoder, [v4, v6]: [u16; 2], address: IpAddr) {
    match address {
        IpAddr::V4(address) => out.put_bytes(v4, &address.octets()),
        IpAddr::V6(address) => out.put_bytes(v6, &address.octets()),
    }
}

pub(super) fn header(family: Family) -> [u8; HEADER] {
    let family = match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    };
    [family, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{MESSAGE_HEADER, host, payload};

    #[test]
    fn numbers_are_in_network_order_but_the_flags_of_a_filter_are_not() {
        let filter = Filter {
            protocol: Some(17),
            destination: Some([10, 96, 0, 10].into()),
            destination_port: Some(0x1f90),
            status: 0x0102_0304,
            ..Filter::all(Family::V4)
        };
        let mut out = Encoder::new();
        put_filter(&mut out, &filter);
        let flags = filter::DESTINATION | filter::PROTOCOL | filter::DESTINATION_PORT;
        assert_eq!(
            payload(out.bytes(), &[entry::FILTER, filter::ORIGINAL_FLAGS]),
            host([0, 0, 0, flags as u8])
        );
        assert_eq!(payload(out.bytes(), &[entry::STATUS]), [1, 2, 3, 4]);
        assert_eq!(payload(out.bytes(), &[entry::STATUS_MASK]), [1, 2, 3, 4]);
        assert_eq!(payload(out.bytes(), &[entry::ORIGINAL, tuple::IP, ip::V4_DESTINATION]), [10, 96, 0, 10]);
        assert_eq!(
            payload(out.bytes(), &[entry::ORIGINAL, tuple::PROTO, proto::DESTINATION_PORT]),
            [0x1f, 0x90]
        );
    }

    #[test]
    fn a_deletion_names_tuple_zone_and_id() {
        let original =
            Tuple { source: "[fd00::1]:999".parse().unwrap(), destination: "[fd00::10]:53".parse().unwrap() };
        let reply = Tuple { source: original.destination, destination: original.source };
        let deleted =
            Entry { protocol: 17, original, reply, zone: 0x0506, id: 0x0102_0304, status: 0, timeout: None };
        let mut out = Encoder::new();
        put_deletion(&mut out, 1, &deleted);
        assert_eq!(out.bytes()[MESSAGE_HEADER..][..HEADER], [10, 0, 0, 0]);
        let attributes = &out.bytes()[MESSAGE_HEADER + HEADER..];
        assert_eq!(payload(attributes, &[entry::ID]), [1, 2, 3, 4]);
        assert_eq!(payload(attributes, &[entry::ZONE]), [5, 6]);
        assert_eq!(payload(attributes, &[entry::ORIGINAL, tuple::PROTO, proto::NUMBER]), [17]);
        assert_eq!(payload(attributes, &[entry::ORIGINAL, tuple::PROTO, proto::SOURCE_PORT]), [0x03, 0xe7]);
    }
}
