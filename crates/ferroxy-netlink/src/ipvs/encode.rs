//! Encodes virtual servers and destinations as attributes. Knows no socket.

use std::net::{IpAddr, SocketAddr};

use super::wire::{HEADER, VERSION, command, destination, service, top};
use super::{Address, Change, Destination, Forwarding, Timeouts, VirtualServer};
use crate::codec::Encoder;
use crate::numbers::{AF_INET, AF_INET6};

pub(super) fn header(command: u8, version: u8) -> [u8; HEADER] {
    [command, version, 0, 0]
}

pub(super) fn put_change(out: &mut Encoder, change: &Change) {
    let command = match change {
        Change::AddServer(_) => command::NEW_SERVICE,
        Change::SetServer(_) => command::SET_SERVICE,
        Change::RemoveServer(_) => command::DELETE_SERVICE,
        Change::AddDestination(..) => command::NEW_DESTINATION,
        Change::SetDestination(..) => command::SET_DESTINATION,
        Change::RemoveDestination(..) => command::DELETE_DESTINATION,
    };
    out.put_raw(&header(command, VERSION));
    match change {
        Change::AddServer(server) | Change::SetServer(server) => put_server(out, server),
        Change::RemoveServer(server) => put_which(out, server),
        Change::AddDestination(server, wanted) | Change::SetDestination(server, wanted) => {
            put_which(out, server);
            put_destination(out, wanted);
        }
        Change::RemoveDestination(server, address) => {
            put_which(out, server);
            let nest = out.begin_nested(top::DESTINATION);
            put_destination_address(out, *address);
            out.end_nested(nest);
        }
    }
}

/// The part of a virtual server that identifies it.
pub(super) fn put_which(out: &mut Encoder, server: &Address) {
    let nest = out.begin_nested(top::SERVICE);
    put_server_address(out, server);
    out.end_nested(nest);
}

pub(super) fn put_timeouts(out: &mut Encoder, timeouts: &Timeouts) {
    out.put_u32(top::TIMEOUT_TCP, timeouts.tcp);
    out.put_u32(top::TIMEOUT_TCP_FIN, timeouts.tcp_fin);
    out.put_u32(top::TIMEOUT_UDP, timeouts.udp);
}

fn put_server(out: &mut Encoder, server: &VirtualServer) {
    let nest = out.begin_nested(top::SERVICE);
    put_server_address(out, &server.address);
    out.put_str(service::SCHEDULER, &server.scheduler);
    // The flags, and a mask of those to set or clear: all of them.
    let flags = [server.flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat();
    out.put_bytes(service::FLAGS, &flags);
    out.put_u32(service::TIMEOUT, server.timeout);
    match server.address.ip {
        IpAddr::V4(_) => out.put_u32_be(service::NETMASK, mask(server.client_prefix)),
        // The same attribute, but it contains the prefix length.
        IpAddr::V6(_) => out.put_u32(service::NETMASK, u32::from(server.client_prefix)),
    }
    out.end_nested(nest);
}

fn put_server_address(out: &mut Encoder, Address { ip, protocol, port }: &Address) {
    out.put_u16(service::FAMILY, family(*ip));
    out.put_u16(service::PROTOCOL, u16::from(*protocol));
    put_ip(out, service::ADDRESS, *ip);
    out.put_u16_be(service::PORT, *port);
}

fn put_destination(out: &mut Encoder, wanted: &Destination) {
    let nest = out.begin_nested(top::DESTINATION);
    put_destination_address(out, wanted.address);
    let method = match wanted.forwarding {
        Forwarding::Masquerade => 0,
        Forwarding::Other(number) => u32::from(number),
    };
    out.put_u32(destination::METHOD, method);
    out.put_u32(destination::WEIGHT, wanted.weight);
    // No limits to the number of connections: the kernel requires these attributes.
    out.put_u32(destination::UPPER_THRESHOLD, 0);
    out.put_u32(destination::LOWER_THRESHOLD, 0);
    out.end_nested(nest);
}

fn put_destination_address(out: &mut Encoder, address: SocketAddr) {
    put_ip(out, destination::ADDRESS, address.ip());
    out.put_u16_be(destination::PORT, address.port());
    out.put_u16(destination::FAMILY, family(address.ip()));
}

/// Every address takes 16 bytes.
fn put_ip(out: &mut Encoder, kind: u16, ip: IpAddr) {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes = ip.octets(),
    }
    out.put_bytes(kind, &bytes);
}

/// 16 bits, unlike in the headers of other protocols.
pub(super) fn family(ip: IpAddr) -> u16 {
    u16::from(if ip.is_ipv4() { AF_INET } else { AF_INET6 })
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::PERSISTENT;
    use super::*;
    use crate::codec::{host, payload};

    fn server(ip: &str, client_prefix: u8) -> Vec<u8> {
        let address = Address { ip: ip.parse().unwrap(), protocol: 6, port: 0x1f90 };
        let (scheduler, flags) = ("rr".to_owned(), PERSISTENT);
        let server = VirtualServer { address, scheduler, flags, timeout: 0x0102_0304, client_prefix };
        let mut out = Encoder::new();
        put_server(&mut out, &server);
        out.bytes().to_vec()
    }

    #[test]
    fn ports_and_masks_are_in_network_order_and_other_numbers_are_not() {
        let bytes = server("10.96.0.80", 24);
        let field = |kind| payload(&bytes, &[top::SERVICE, kind]);
        assert_eq!(field(service::FAMILY), host([0, 2]));
        assert_eq!(field(service::PROTOCOL), host([0, 6]));
        assert_eq!(field(service::ADDRESS)[..5], [10, 96, 0, 80, 0]);
        assert_eq!(field(service::PORT), [0x1f, 0x90]);
        assert_eq!(field(service::FLAGS), [host([0, 0, 0, 1]), [0xff; 4]].concat());
        assert_eq!(field(service::TIMEOUT), host([1, 2, 3, 4]));
        assert_eq!(field(service::NETMASK), [255, 255, 255, 0]);
        let bytes = server("fd00::80", 64);
        assert_eq!(payload(&bytes, &[top::SERVICE, service::NETMASK]), host([0, 0, 0, 64]));
        assert_eq!(payload(&bytes, &[top::SERVICE, service::FAMILY]), host([0, 10]));
    }

    #[test]
    fn a_destination_has_its_port_in_network_order() {
        let address = "10.244.1.5:8080".parse().unwrap();
        let mut out = Encoder::new();
        put_destination(&mut out, &Destination { address, forwarding: Forwarding::Masquerade, weight: 3 });
        let field = |kind| payload(out.bytes(), &[top::DESTINATION, kind]);
        assert_eq!(field(destination::PORT), [0x1f, 0x90]);
        assert_eq!(field(destination::WEIGHT), host([0, 0, 0, 3]));
        assert_eq!(field(destination::FAMILY), host([0, 2]));
    }

    #[test]
    fn a_prefix_of_any_length_is_a_mask() {
        assert_eq!([0, 1, 24, 32, 200].map(mask), [0, 0x8000_0000, 0xffff_ff00, u32::MAX, u32::MAX]);
    }
}
