//! Matches and targets as the kernel's structs. Numbers are in host byte order, except where the kernel wants network order.
//!
//! Sizes are those of 64-bit kernels, rounded up to 8 as the kernel wants it. A struct is only accepted if writing the decoded
//! value gives the same bytes: a struct with other contents is never misread.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Protocol};
use ferroxy_netlink::nftables::Extension;

use super::{COMMENT_SIZE, InSet, Match, Recent, RecentAction, SET_PARTS, Side, Target, Terms};

/// Room for the largest struct, that of `-m sctp`.
pub(super) type Room = [u8; 296];
pub(super) const ROOM: Room = [0; 296];

/// `-m recent`: what to do, as bits.
mod recent {
    pub(super) const CHECK: u8 = 1;
    pub(super) const SET: u8 = 1 << 1;
    pub(super) const REAP: u8 = 1 << 5;
    pub(super) const NAME: usize = 200;
}

/// `-m conntrack` looks at the state; it was written as `-m state`.
const LOOKS_AT_STATE: u16 = 1;
const AS_STATE: u16 = 1 << 13;
/// `-m ipvs` looks at whether there is a virtual server, its protocol, address and port.
const LOOKS_AT_SERVER: u8 = 0xf;
/// `-m set`: the lowest bit is "not", the next one is the first part of a member.
const NOT_IN_SET: u8 = 1;
/// `RTN_LOCAL` as a bit.
const LOCAL: u16 = 1 << 2;
/// `-m sctp` looks at the destination port.
const SCTP_DESTINATION: u32 = 2;
/// `-m physdev --physdev-is-in`
const PHYSDEV_IS_IN: u8 = 1 << 3;
/// `nf_nat_range`: an address and a port are given; only a port is; choose ports at random.
const MAPS_ADDRESS_AND_PORT: u32 = 3;
const MAPS_PORT: u32 = 2;
const FULLY_RANDOM: u32 = 1 << 4;
/// `-j REJECT`: the answers "port unreachable".
const PORT_UNREACHABLE_V4: u32 = 3;
const PORT_UNREACHABLE_V6: u32 = 4;

/// A struct under construction; bytes that are not written are zero.
struct Struct<'b>(&'b mut [u8]);

impl<'b> Struct<'b> {
    fn new(room: &'b mut Room, size: usize) -> Struct<'b> {
        let bytes = &mut room[..size];
        bytes.fill(0);
        Struct(bytes)
    }

    fn put(self, at: usize, bytes: &[u8]) -> Struct<'b> {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self
    }

    fn u16(self, at: usize, value: u16) -> Struct<'b> {
        self.put(at, &value.to_ne_bytes())
    }

    fn u32(self, at: usize, value: u32) -> Struct<'b> {
        self.put(at, &value.to_ne_bytes())
    }

    fn address(self, at: usize, address: IpAddr) -> Struct<'b> {
        match address {
            IpAddr::V4(address) => self.put(at, &address.octets()),
            IpAddr::V6(address) => self.put(at, &address.octets()),
        }
    }

    fn named(self, name: &'static str, revision: u32) -> Extension<'b> {
        Extension { name, revision, info: self.0 }
    }
}

pub(super) fn write_match<'b>(found: &Match<'_>, family: Family, room: &'b mut Room) -> Extension<'b> {
    match found {
        Match::Comment(text) => Struct::new(room, COMMENT_SIZE).put(0, text.as_bytes()).named("comment", 0),
        Match::Port { protocol: Protocol::Sctp, destination } => write_sctp(*destination, room),
        Match::Port { protocol, destination } => {
            // The range of source ports, then the range of destination ports.
            let (from, to) = destination.map_or((0, u16::MAX), |port| (port, port));
            let info = Struct::new(room, 16).u16(2, u16::MAX).u16(4, from).u16(6, to);
            info.named(if *protocol == Protocol::Tcp { "tcp" } else { "udp" }, 0)
        }
        // The tool fills in a field of another mode, too.
        Match::Probability(value) => {
            Struct::new(room, 24).u32(4, *value).u32(12, *value).named("statistic", 0)
        }
        Match::Recent(Recent { action, name }) => {
            let (bits, seconds) = match action {
                RecentAction::Set => (recent::SET, 0),
                RecentAction::Check { seconds } => (recent::CHECK | recent::REAP, *seconds),
            };
            let name = &name.as_bytes()[..name.len().min(recent::NAME - 1)];
            let mask = [0xff; 16];
            let mask = if family == Family::V4 { &mask[..4] } else { &mask };
            let info = Struct::new(room, 232).u32(0, seconds).put(8, &[bits]).put(10, name).put(212, mask);
            info.named("recent", 1)
        }
        Match::Mark { negated, value, mask } => {
            let info = Struct::new(room, 16).u32(0, *value).u32(4, *mask).put(8, &[u8::from(*negated)]);
            info.named("mark", 1)
        }
        Match::IsLocal { negated, side } => {
            let (at, inverted) = if *side == Side::Source { (0, 1) } else { (2, 2) };
            let info = Struct::new(room, 8).u16(at, LOCAL).u32(4, if *negated { inverted } else { 0 });
            info.named("addrtype", 1)
        }
        Match::Tracked { negated, states, as_state } => {
            let inverted = if *negated { LOOKS_AT_STATE } else { 0 };
            let looks = LOOKS_AT_STATE | if *as_state { AS_STATE } else { 0 };
            let info = Struct::new(room, 168).u16(146, looks).u16(148, inverted).u16(150, *states);
            info.named("conntrack", 3)
        }
        Match::InSet(InSet { negated, name: _, number, parts, sources }) => {
            let flags = (sources << 1) | if *negated { NOT_IN_SET } else { 0 };
            Struct::new(room, 48).u16(0, *number).put(2, &[*parts, flags]).named("set", 4)
        }
        Match::Balanced { protocol, server } => {
            let info = Struct::new(room, 40).address(0, server.ip()).put(16, &[0xff; 16]);
            let info = info.put(32, &server.port().to_be_bytes()).put(34, &[*protocol]);
            info.put(39, &[LOOKS_AT_SERVER]).named("ipvs", 0)
        }
        Match::CountedBy(name) => {
            Struct::new(room, 40).put(0, &name.as_bytes()[..name.len().min(31)]).named("nfacct", 1)
        }
        Match::CameOverBridge { negated } => {
            let inverted = if *negated { PHYSDEV_IS_IN } else { 0 };
            Struct::new(room, 72).put(64, &[inverted, PHYSDEV_IS_IN]).named("physdev", 0)
        }
    }
}

/// Ports, then the types of chunks, which the rule does not compare: the tool writes 0xff ("none") into all four of them.
fn write_sctp(destination: Option<u16>, room: &mut Room) -> Extension<'_> {
    let mut info = Struct::new(room, 296);
    for flags in 0..4 {
        info = info.put(268 + 3 * flags, &[0xff]);
    }
    if let Some(port) = destination {
        info = info.u16(0, port).u16(2, port).u32(284, SCTP_DESTINATION);
    }
    info.named("sctp", 0)
}

/// `None` for targets that are verdicts.
pub(super) fn write_target<'b>(
    target: &Target<'_>,
    family: Family,
    room: &'b mut Room,
) -> Option<Extension<'b>> {
    Some(match target {
        Target::Dnat(to) => {
            let port = to.port().to_be_bytes();
            let info = Struct::new(room, 48).u32(0, MAPS_ADDRESS_AND_PORT);
            let info = info.address(4, to.ip()).address(20, to.ip()).put(36, &port).put(38, &port);
            info.named("DNAT", 2)
        }
        Target::Redirect(port) => {
            let port = port.to_be_bytes();
            let info = match family {
                // A list of one range.
                Family::V4 => Struct::new(room, 24).u32(0, 1).u32(4, MAPS_PORT).put(16, &port).put(18, &port),
                Family::V6 => Struct::new(room, 40).u32(0, MAPS_PORT).put(36, &port).put(38, &port),
            };
            info.named("REDIRECT", 0)
        }
        Target::Mark { value, mask } => Struct::new(room, 8).u32(0, *value).u32(4, *mask).named("MARK", 2),
        Target::Masquerade { fully_random } => {
            let flags = if *fully_random { FULLY_RANDOM } else { 0 };
            let info = match family {
                // A list of one range.
                Family::V4 => Struct::new(room, 24).u32(0, 1).u32(4, flags),
                Family::V6 => Struct::new(room, 40).u32(0, flags),
            };
            info.named("MASQUERADE", 0)
        }
        Target::Reject => {
            let answer = if family == Family::V4 { PORT_UNREACHABLE_V4 } else { PORT_UNREACHABLE_V6 };
            Struct::new(room, 8).u32(0, answer).named("REJECT", 0)
        }
        _ => return None,
    })
}

pub(super) fn read_match<'a>(extension: Extension<'a>, terms: Terms<'a>) -> Option<Match<'a>> {
    let found = guess_match(extension, terms)?;
    (write_match(&found, terms.family, &mut { ROOM }) == extension).then_some(found)
}

pub(super) fn read_target(extension: Extension<'_>, family: Family) -> Option<Target<'static>> {
    let target = guess_target(extension, family)?;
    (write_target(&target, family, &mut { ROOM })? == extension).then_some(target)
}

/// Decodes a match on the assumption that we wrote it. The caller verifies that.
fn guess_match<'a>(extension: Extension<'a>, terms: Terms<'a>) -> Option<Match<'a>> {
    let info = extension.info;
    Some(match extension.name {
        "comment" => Match::Comment(Cow::Borrowed(text(info)?)),
        "tcp" => Match::Port { protocol: Protocol::Tcp, destination: read_port(info)? },
        "udp" => Match::Port { protocol: Protocol::Udp, destination: read_port(info)? },
        "sctp" => {
            let has_port = u32_at(info, 284)? == SCTP_DESTINATION;
            let destination = if has_port { Some(u16_at(info, 0)?) } else { None };
            Match::Port { protocol: Protocol::Sctp, destination }
        }
        "statistic" => Match::Probability(u32_at(info, 4)?),
        "recent" => {
            let action = match *info.get(8)? {
                recent::SET => RecentAction::Set,
                _ => RecentAction::Check { seconds: u32_at(info, 0)? },
            };
            Match::Recent(Recent { action, name: text(info.get(10..10 + recent::NAME)?)? })
        }
        "mark" => {
            let (value, mask) = (u32_at(info, 0)?, u32_at(info, 4)?);
            Match::Mark { negated: *info.get(8)? == 1, value, mask }
        }
        "addrtype" => {
            let side = if u16_at(info, 0)? == LOCAL { Side::Source } else { Side::Destination };
            Match::IsLocal { negated: u32_at(info, 4)? != 0, side }
        }
        "conntrack" => {
            let as_state = u16_at(info, 146)? & AS_STATE != 0;
            Match::Tracked { negated: u16_at(info, 148)? != 0, states: u16_at(info, 150)?, as_state }
        }
        "set" => {
            let (number, parts, flags) = (u16_at(info, 0)?, *info.get(2)?, *info.get(3)?);
            // Bits for parts that a member does not have would be lost in the text.
            let is_usable = (1..=SET_PARTS).contains(&parts) && u16::from(flags) < 1 << (parts + 1);
            let (negated, sources) = (flags & NOT_IN_SET != 0, flags >> 1);
            let set = InSet { negated, name: terms.sets.name(number)?, number, parts, sources };
            is_usable.then_some(Match::InSet(set))?
        }
        "ipvs" => {
            let port = u16::from_be_bytes(*info.get(32..)?.first_chunk()?);
            let server = SocketAddr::new(address_at(info, 0, terms.family)?, port);
            Match::Balanced { protocol: *info.get(34)?, server }
        }
        "nfacct" => Match::CountedBy(text(info.get(..32)?)?),
        "physdev" => Match::CameOverBridge { negated: *info.get(64)? != 0 },
        _ => return None,
    })
}

fn guess_target(extension: Extension<'_>, family: Family) -> Option<Target<'static>> {
    let info = extension.info;
    Some(match extension.name {
        "DNAT" => {
            let port = u16::from_be_bytes(*info.get(36..)?.first_chunk()?);
            Target::Dnat(SocketAddr::new(address_at(info, 4, family)?, port))
        }
        "REDIRECT" => {
            let at = if family == Family::V4 { 16 } else { 36 };
            Target::Redirect(u16::from_be_bytes(*info.get(at..)?.first_chunk()?))
        }
        "MARK" => Target::Mark { value: u32_at(info, 0)?, mask: u32_at(info, 4)? },
        "MASQUERADE" => {
            let flags = u32_at(info, if family == Family::V4 { 4 } else { 0 })?;
            Target::Masquerade { fully_random: flags != 0 }
        }
        "REJECT" => Target::Reject,
        _ => return None,
    })
}

fn read_port(info: &[u8]) -> Option<Option<u16>> {
    let (from, to) = (u16_at(info, 4)?, u16_at(info, 6)?);
    Some(if (from, to) == (0, u16::MAX) { None } else { Some(from) })
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn address_at(bytes: &[u8], at: usize, family: Family) -> Option<IpAddr> {
    let bytes = bytes.get(at..)?;
    Some(match family {
        Family::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(*bytes.first_chunk::<16>()?),
    })
}
