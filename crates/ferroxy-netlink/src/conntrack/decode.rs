//! Decodes messages of ctnetlink to entries. Never panics, whatever the bytes are.

use std::net::{IpAddr, SocketAddr};

use super::wire::{HEADER, entry, ip, proto, tuple};
use super::{Entry, Tuple};
use crate::codec::{Attribute, Fields, Malformed, Message, Messages};

/// `None` for an entry of a protocol without ports, or of a family that is not IP.
pub(super) fn read_entry(message: &Message<'_>) -> Result<Option<Entry>, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    let fields = Fields::<{ entry::COUNT }>::new(attributes)?;
    let original = read_tuple(&fields.need(entry::ORIGINAL, "original tuple")?)?;
    let reply = read_tuple(&fields.need(entry::REPLY, "reply tuple")?)?;
    let (Some(original), Some(reply)) = (original, reply) else { return Ok(None) };
    let zone = fields.get(entry::ZONE).map(|zone| zone.u16_be()).transpose()?;
    Ok(Some(Entry {
        protocol: original.protocol,
        original: original.tuple,
        reply: reply.tuple,
        // A zone that applies to one direction only is in the tuple of that direction.
        zone: zone.or(original.zone).unwrap_or(0),
        id: fields.need(entry::ID, "id")?.u32_be()?,
        status: fields.need(entry::STATUS, "status")?.u32_be()?,
        timeout: fields.get(entry::TIMEOUT).map(|timeout| timeout.u32_be()).transpose()?,
    }))
}

/// Decodes bytes as every kind of message and discards the results. For the fuzzer.
pub fn read_everything(bytes: &[u8]) {
    for message in Messages::new(bytes).flatten() {
        let _ = read_entry(&message);
    }
}

struct ReadTuple {
    protocol: u8,
    tuple: Tuple,
    zone: Option<u16>,
}

fn read_tuple(attribute: &Attribute<'_>) -> Result<Option<ReadTuple>, Malformed> {
    let fields = Fields::<{ tuple::COUNT }>::new(attribute.nested())?;
    let addresses = read_addresses(&fields.need(tuple::IP, "addresses")?)?;
    let proto = Fields::<{ proto::COUNT }>::new(fields.need(tuple::PROTO, "protocol")?.nested())?;
    let protocol = proto.need(proto::NUMBER, "protocol number")?.u8()?;
    let ports = (proto.get(proto::SOURCE_PORT), proto.get(proto::DESTINATION_PORT));
    let (Some((source, destination)), (Some(source_port), Some(destination_port))) = (addresses, ports)
    else {
        return Ok(None);
    };
    Ok(Some(ReadTuple {
        protocol,
        tuple: Tuple {
            source: SocketAddr::new(source, source_port.u16_be()?),
            destination: SocketAddr::new(destination, destination_port.u16_be()?),
        },
        zone: fields.get(tuple::ZONE).map(|zone| zone.u16_be()).transpose()?,
    }))
}

fn read_addresses(attribute: &Attribute<'_>) -> Result<Option<(IpAddr, IpAddr)>, Malformed> {
    let fields = Fields::<{ ip::COUNT }>::new(attribute.nested())?;
    if let (Some(source), Some(destination)) = (fields.get(ip::V4_SOURCE), fields.get(ip::V4_DESTINATION)) {
        return Ok(Some((source.array::<4>()?.into(), destination.array::<4>()?.into())));
    }
    if let (Some(source), Some(destination)) = (fields.get(ip::V6_SOURCE), fields.get(ip::V6_DESTINATION)) {
        return Ok(Some((source.array::<16>()?.into(), destination.array::<16>()?.into())));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::encode::put_tuple;
    use super::super::wire::message;
    use super::*;
    use crate::codec::Encoder;
    use crate::numbers::{AF_INET, IPPROTO_UDP as UDP};

    fn tuple(source: &str, destination: &str) -> Tuple {
        Tuple { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    /// An entry as the kernel writes it, without the attribute of kind `leave_out`.
    fn bytes(original: Tuple, reply: Tuple, leave_out: u16) -> Vec<u8> {
        let mut encoder = Encoder::new();
        let open = encoder.begin_message(message::NEW, 0, 1);
        encoder.put_raw(&[AF_INET, 0, 0, 0]);
        let mut field = |kind: u16, put: &dyn Fn(&mut Encoder)| {
            if kind != leave_out {
                put(&mut encoder);
            }
        };
        field(entry::ORIGINAL, &|out| put_tuple(out, entry::ORIGINAL, UDP, &original));
        field(entry::REPLY, &|out| put_tuple(out, entry::REPLY, UDP, &reply));
        field(entry::STATUS, &|out| out.put_u32_be(entry::STATUS, 0x28));
        field(entry::TIMEOUT, &|out| out.put_u32_be(entry::TIMEOUT, 30));
        field(entry::ID, &|out| out.put_u32_be(entry::ID, 7));
        field(entry::ZONE, &|out| out.put_u16_be(entry::ZONE, 5));
        encoder.end_message(open);
        encoder.bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Result<Option<Entry>, Malformed> {
        read_entry(&Messages::new(bytes).next().unwrap().unwrap())
    }

    #[test]
    fn both_families_are_read() {
        for (original, reply) in [
            (tuple("10.0.0.1:999", "10.96.0.10:53"), tuple("10.244.1.5:53", "10.0.0.1:999")),
            (tuple("[fd00::1]:999", "[fd00::10]:53"), tuple("[fd00::5]:53", "[fd00::1]:999")),
        ] {
            let wanted =
                Entry { protocol: UDP, original, reply, zone: 5, id: 7, status: 0x28, timeout: Some(30) };
            assert_eq!(read(&bytes(original, reply, 0)), Ok(Some(wanted)));
            assert_eq!(
                read(&bytes(original, reply, entry::TIMEOUT)),
                Ok(Some(Entry { timeout: None, ..wanted }))
            );
            assert_eq!(read(&bytes(original, reply, entry::ZONE)), Ok(Some(Entry { zone: 0, ..wanted })));
            for needed in [entry::ORIGINAL, entry::REPLY, entry::STATUS, entry::ID] {
                assert!(matches!(read(&bytes(original, reply, needed)), Err(Malformed::Missing { .. })));
            }
        }
    }

    #[test]
    fn a_protocol_without_ports_is_passed_over() {
        let mut encoder = Encoder::new();
        let open = encoder.begin_message(message::NEW, 0, 1);
        encoder.put_raw(&[AF_INET, 0, 0, 0]);
        for direction in [entry::ORIGINAL, entry::REPLY] {
            let nest = encoder.begin_nested(direction);
            let addresses = encoder.begin_nested(super::tuple::IP);
            encoder.put_bytes(ip::V4_SOURCE, &[10, 0, 0, 1]);
            encoder.put_bytes(ip::V4_DESTINATION, &[10, 0, 0, 2]);
            encoder.end_nested(addresses);
            let protocol = encoder.begin_nested(super::tuple::PROTO);
            encoder.put_u8(proto::NUMBER, 1);
            encoder.end_nested(protocol);
            encoder.end_nested(nest);
        }
        encoder.end_message(open);
        assert_eq!(read(encoder.bytes()), Ok(None));
    }

    #[test]
    fn damaged_bytes_are_an_answer_or_an_error() {
        let whole = bytes(tuple("10.0.0.1:999", "10.96.0.10:53"), tuple("10.244.1.5:53", "10.0.0.1:999"), 0);
        for at in 0..whole.len() {
            read_everything(&whole[..at]);
            for value in [0, 1, 3, 4, 5, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                read_everything(&damaged);
            }
        }
    }
}
