//! Decodes messages of the kernel to sets and members. Never panics, whatever the bytes are.

use std::net::IpAddr;

use super::wire::{HEADER, address, command, data};
use super::{Address, Family, Found, Kind, Member};
use crate::codec::{Attribute, Attributes, Fields, Malformed, Message, flag};
use crate::numbers::{AF_INET, AF_INET6};

type Command<'a> = Fields<'a, { command::COUNT }>;
type Data<'a> = Fields<'a, { data::COUNT }>;

pub(super) fn read_command<'a>(message: &Message<'a>) -> Result<Command<'a>, Malformed> {
    let (_, attributes) = message.split::<HEADER>()?;
    Fields::new(attributes)
}

pub(super) fn read_name(message: &Message<'_>) -> Result<String, Malformed> {
    Ok(read_command(message)?.need(command::NAME, "name of a set")?.str()?.to_owned())
}

/// The number by which rules know the set.
pub(super) fn read_number(message: &Message<'_>) -> Result<u16, Malformed> {
    read_command(message)?
        .need(command::NUMBER, "number of a set (Linux before 4.20 does not tell it)")?
        .u16_be()
}

/// One message of a set's dump: the first has the description, each may have members.
pub(super) fn read_part(message: &Message<'_>, found: &mut Option<Found>) -> Result<(), Malformed> {
    let command = read_command(message)?;
    if found.is_none() {
        *found = Some(read_description(&command)?);
    }
    let Some(set) = found else { return Ok(()) };
    let (Some(kind), Some(list)) = (set.kind, command.get(command::MEMBERS)) else { return Ok(()) };
    for member in list.nested() {
        set.members.push(read_member(kind, member?.nested())?);
    }
    Ok(())
}

fn read_description(command: &Command<'_>) -> Result<Found, Malformed> {
    let type_name = command.need(command::TYPE_NAME, "type of a set")?.str()?;
    let family = match command.need(command::FAMILY, "family of a set")?.u8()? {
        AF_INET => Some(Family::V4),
        AF_INET6 => Some(Family::V6),
        _ => None,
    };
    let described: Data<'_> = Fields::new(command.need(command::DATA, "description of a set")?.nested())?;
    let number = |kind| described.get(kind).map(|it: Attribute<'_>| it.u32_be()).transpose();
    Ok(Found {
        kind: Kind::ALL.into_iter().find(|kind| kind.name() == type_name),
        family,
        capacity: number(data::MOST_MEMBERS)?,
        references: number(data::REFERENCES)?.unwrap_or(0),
        members: Vec::new(),
    })
}

fn read_member(kind: Kind, attributes: Attributes<'_>) -> Result<Member, Malformed> {
    let fields: Data<'_> = Fields::new(attributes)?;
    Ok(match kind {
        Kind::Ip => Member::Ip(read_ip(&fields, data::IP)?),
        Kind::Port => Member::Port(fields.need(data::PORT, "port of a member")?.u16_be()?),
        Kind::IpPort => Member::IpPort(read_address(&fields)?),
        Kind::IpPortIp => Member::IpPortIp(read_address(&fields)?, read_ip(&fields, data::SECOND_IP)?),
        Kind::IpPortNet => {
            let prefix = fields.need(data::SECOND_PREFIX, "prefix length of a member")?.u8()?;
            Member::IpPortNet(read_address(&fields)?, read_ip(&fields, data::SECOND_IP)?, prefix)
        }
    })
}

fn read_address(fields: &Data<'_>) -> Result<Address, Malformed> {
    Ok(Address {
        ip: read_ip(fields, data::IP)?,
        protocol: fields.need(data::PROTOCOL, "protocol of a member")?.u8()?,
        port: fields.need(data::PORT, "port of a member")?.u16_be()?,
    })
}

fn read_ip(fields: &Data<'_>, kind: u16) -> Result<IpAddr, Malformed> {
    let inside: Fields<'_, { address::COUNT }> =
        Fields::new(fields.need(kind, "address of a member")?.nested())?;
    match inside.get(address::V4) {
        Some(four) => Ok(four.array::<4>()?.into()),
        None => Ok(inside.need(address::V6, "address of a member")?.array::<16>()?.into()),
    }
}

/// The number of the refused member: the refusal echoes the whole request, into which the kernel has written that number.
pub(super) fn line_of_refusal(message: &Message<'_>) -> Option<usize> {
    /// An errno, and the header of the refused message.
    const BEFORE: usize = 4 + crate::codec::MESSAGE_HEADER;
    if message.flags & flag::CAPPED != 0 {
        return None;
    }
    let refused = Message { payload: message.payload.get(BEFORE..)?, ..*message };
    let line = read_command(&refused).ok()?.get(command::LINE)?.u32().ok()?;
    usize::try_from(line).ok()
}
