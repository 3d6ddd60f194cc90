//! Decodes messages of the kernel to virtual servers and destinations. Never panics, whatever the bytes are.

use std::net::{IpAddr, SocketAddr};

use super::wire::{HEADER, control, destination, service, top};
use super::{Address, Destination, Forwarding, Found, Timeouts, VirtualServer};
use crate::codec::{Attribute, Fields, Malformed, Message};
use crate::ipvs::encode::family;
use crate::numbers::{AF_INET, AF_INET6};

type Top<'a> = Fields<'a, { top::COUNT }>;

/// The number and the name of a generic netlink family.
pub(super) fn read_family<'a>(message: &Message<'a>) -> Result<(u16, &'a str), Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields: Fields<'_, { control::COUNT }> = Fields::new(attributes)?;
    let name = fields.need(control::NAME, "name of a netlink family")?.str()?;
    Ok((fields.need(control::ID, "number of a netlink family")?.u16()?, name))
}

/// `None` for a virtual server that matches a firewall mark and therefore has no address.
pub(super) fn read_server(message: &Message<'_>) -> Result<Option<VirtualServer>, Malformed> {
    let fields: Fields<'_, { service::COUNT }> =
        Fields::new(read_top(message)?.need(top::SERVICE, "virtual server")?.nested())?;
    let number = |kind, what| fields.need(kind, what).and_then(|it| it.u32());
    if fields.get(service::MARK).is_some() {
        return Ok(None);
    }
    let family = fields.need(service::FAMILY, "family of a virtual server")?.u16()?;
    let ip = read_ip(family, &fields.need(service::ADDRESS, "address of a virtual server")?)?;
    let protocol = fields.need(service::PROTOCOL, "protocol of a virtual server")?.u16()?;
    let flags = fields.need(service::FLAGS, "flags of a virtual server")?.array::<8>()?;
    let [f0, f1, f2, f3, ..] = flags;
    let client_prefix = match ip {
        IpAddr::V4(_) => fields.need(service::NETMASK, "netmask")?.u32_be()?.leading_ones(),
        IpAddr::V6(_) => number(service::NETMASK, "netmask")?,
    };
    Ok(Some(VirtualServer {
        address: Address {
            ip,
            protocol: protocol as u8, // IP has no more than 256 protocols.
            port: fields.need(service::PORT, "port of a virtual server")?.u16_be()?,
        },
        scheduler: fields.need(service::SCHEDULER, "scheduler")?.str()?.to_owned(),
        flags: u32::from_ne_bytes([f0, f1, f2, f3]) & !service::HASHED,
        timeout: number(service::TIMEOUT, "timeout of a virtual server")?,
        client_prefix: u8::try_from(client_prefix).unwrap_or(u8::MAX),
    }))
}

/// Kernels before 3.18 do not send the family of a destination: it has the family of its server.
pub(super) fn read_destination(message: &Message<'_>, server: IpAddr) -> Result<Found, Malformed> {
    let fields: Fields<'_, { destination::COUNT }> =
        Fields::new(read_top(message)?.need(top::DESTINATION, "destination")?.nested())?;
    let number = |kind, what| fields.need(kind, what).and_then(|it| it.u32());
    let family = fields.get(destination::FAMILY).map_or(Ok(family(server)), |it| it.u16())?;
    let ip = read_ip(family, &fields.need(destination::ADDRESS, "address of a destination")?)?;
    let port = fields.need(destination::PORT, "port of a destination")?.u16_be()?;
    let method = number(destination::METHOD, "forwarding method")? & destination::METHOD_MASK;
    Ok(Found {
        destination: Destination {
            address: SocketAddr::new(ip, port),
            forwarding: if method == 0 { Forwarding::Masquerade } else { Forwarding::Other(method as u8) },
            weight: number(destination::WEIGHT, "weight")?,
        },
        active: number(destination::ACTIVE, "active connections")?,
        inactive: number(destination::INACTIVE, "inactive connections")?,
        persistent: number(destination::PERSISTENT, "persistent connections")?,
    })
}

/// A kernel without a protocol has no timeout for it.
pub(super) fn read_timeouts(message: &Message<'_>) -> Result<Timeouts, Malformed> {
    let fields = read_top(message)?;
    let seconds = |kind| fields.get(kind).map_or(Ok(0), |it: Attribute<'_>| it.u32());
    Ok(Timeouts {
        tcp: seconds(top::TIMEOUT_TCP)?,
        tcp_fin: seconds(top::TIMEOUT_TCP_FIN)?,
        udp: seconds(top::TIMEOUT_UDP)?,
    })
}

fn read_top<'a>(message: &Message<'a>) -> Result<Top<'a>, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    Fields::new(attributes)
}

/// The attribute has 16 bytes for any family; an IPv4 address is in the first four.
fn read_ip(family: u16, attribute: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    let bytes = attribute.array::<16>()?;
    match u8::try_from(family) {
        Ok(AF_INET) => {
            let [a, b, c, d, ..] = bytes;
            Ok([a, b, c, d].into())
        }
        Ok(AF_INET6) => Ok(bytes.into()),
        _ => Err(Malformed::Missing { what: "family that has addresses" }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{VERSION, command};
    use super::super::{Change, PERSISTENT};
    use super::*;
    use crate::codec::Encoder;
    use crate::ipvs::encode::{header, put_change, put_timeouts};
    use crate::numbers::IPPROTO_TCP as TCP;

    fn message(payload: &[u8]) -> Message<'_> {
        Message { kind: 30, flags: 0, sequence: 1, port_id: 0, payload }
    }

    fn encoded(change: &Change) -> Vec<u8> {
        let mut out = Encoder::new();
        put_change(&mut out, change);
        out.bytes().to_vec()
    }

    fn address(ip: &str) -> Address {
        Address { ip: ip.parse().unwrap(), protocol: TCP, port: 80 }
    }

    fn server(ip: &str, client_prefix: u8) -> VirtualServer {
        let (scheduler, flags) = ("mh".to_owned(), PERSISTENT | 0x10);
        VirtualServer { address: address(ip), scheduler, flags, timeout: 10800, client_prefix }
    }

    #[test]
    fn a_server_reads_as_it_was_written() {
        for wanted in [server("10.96.0.80", 32), server("10.96.0.80", 24), server("fd00::80", 128)] {
            let bytes = encoded(&Change::AddServer(wanted.clone()));
            assert_eq!(bytes[..2], [command::NEW_SERVICE, VERSION]);
            assert_eq!(read_server(&message(&bytes)), Ok(Some(wanted)));
        }
    }

    #[test]
    fn the_kernels_own_flag_is_removed() {
        let mut wanted = server("10.96.0.80", 32);
        wanted.flags |= service::HASHED;
        let bytes = encoded(&Change::SetServer(wanted));
        assert_eq!(read_server(&message(&bytes)), Ok(Some(server("10.96.0.80", 32))));
    }

    #[test]
    fn a_server_by_mark_is_skipped() {
        let mut out = Encoder::new();
        out.put_raw(&header(command::NEW_SERVICE, VERSION));
        let nest = out.begin_nested(top::SERVICE);
        out.put_u16(service::FAMILY, AF_INET.into());
        out.put_u32(service::MARK, 7);
        out.end_nested(nest);
        assert_eq!(read_server(&message(out.bytes())), Ok(None));
    }

    /// A destination as the kernel sends it, with counts of connections.
    fn sent(address: SocketAddr, method: u32, with_family: bool) -> Vec<u8> {
        let mut out = Encoder::new();
        let wanted = Destination { address, forwarding: Forwarding::Masquerade, weight: 3 };
        put_change(&mut out, &Change::AddDestination(self::address("10.96.0.80"), wanted));
        let whole = out.bytes().to_vec();
        let top = read_top(&message(&whole)).unwrap();
        let inside = top.need(top::DESTINATION, "").unwrap();
        let mut out = Encoder::new();
        out.put_raw(&header(command::NEW_DESTINATION, VERSION));
        let nest = out.begin_nested(top::DESTINATION);
        for attribute in inside.nested() {
            let attribute = attribute.unwrap();
            match attribute.kind {
                destination::METHOD => out.put_u32(destination::METHOD, method),
                destination::FAMILY if !with_family => {}
                kind => out.put_bytes(kind, attribute.payload),
            }
        }
        out.put_u32(destination::ACTIVE, 4);
        out.put_u32(destination::INACTIVE, 5);
        out.put_u32(destination::PERSISTENT, 6);
        out.end_nested(nest);
        out.bytes().to_vec()
    }

    #[test]
    fn a_destination_reads_as_it_was_written() {
        for (text, with_family) in
            [("10.244.1.5:8080", true), ("10.244.1.5:8080", false), ("[fd00::5]:8080", true)]
        {
            let address = text.parse().unwrap();
            let bytes = sent(address, 0, with_family);
            let found = read_destination(&message(&bytes), [10, 96, 0, 80].into()).unwrap();
            let destination = Destination { address, forwarding: Forwarding::Masquerade, weight: 3 };
            assert_eq!(found, Found { destination, active: 4, inactive: 5, persistent: 6 });
        }
    }

    #[test]
    fn the_forwarding_method_is_read_without_its_flags() {
        // IP_VS_CONN_F_NOOUTPUT and direct routing.
        let bytes = sent("10.244.1.5:80".parse().unwrap(), 0x203, true);
        let found = read_destination(&message(&bytes), [10, 96, 0, 80].into()).unwrap();
        assert_eq!(found.destination.forwarding, Forwarding::Other(3));
    }

    #[test]
    fn timeouts_read_as_they_were_written() {
        let mut out = Encoder::new();
        out.put_raw(&header(command::SET_CONFIG, VERSION));
        let timeouts = Timeouts { tcp: 900, tcp_fin: 120, udp: 300 };
        put_timeouts(&mut out, &timeouts);
        assert_eq!(read_timeouts(&message(out.bytes())), Ok(timeouts));
        assert_eq!(read_timeouts(&message(&header(command::SET_CONFIG, VERSION))), Ok(Timeouts::default()));
    }

    #[test]
    fn what_is_cut_short_is_an_error() {
        let whole = encoded(&Change::AddServer(server("10.96.0.80", 32)));
        for length in 0..whole.len() {
            assert!(read_server(&message(&whole[..length])).is_err(), "{length} bytes");
        }
    }
}
