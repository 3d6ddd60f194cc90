//! A Spec as an entry of a legacy table: `struct ipt_entry` or `ip6t_entry`, then the matches, then the target. All of it is in
//! host byte order except for addresses.

use std::net::IpAddr;

use ferroxy_core::{Family, Protocol};
use ferroxy_netlink::nftables::Extension;
use ferroxy_netlink::xtables::Leads;

use super::extension::{ROOM, read_match, read_target, write_match, write_target};
use super::{Interface, OfProtocol, Range, Spec, Target, Terms};

/// Offsets in the head of an entry.
struct Layout {
    /// The size of an address. Source and destination come first, then their masks.
    address: usize,
    /// Input, output, and their masks, 16 bytes each.
    interfaces: usize,
    protocol: usize,
    flags: usize,
    inverted: usize,
    target_offset: usize,
    next_offset: usize,
    /// Written by the kernel.
    came_from: usize,
    counters: usize,
    size: usize,
    /// The flags of `-g`, and of a protocol that is given.
    goto: u8,
    has_protocol: u8,
}

const V4: Layout = Layout {
    address: 4,
    interfaces: 16,
    protocol: 80,
    flags: 82,
    inverted: 83,
    target_offset: 88,
    next_offset: 90,
    came_from: 92,
    counters: 96,
    size: 112,
    goto: 2,
    has_protocol: 0,
};
const V6: Layout = Layout {
    address: 16,
    interfaces: 64,
    protocol: 128,
    flags: 131,
    inverted: 132,
    target_offset: 140,
    next_offset: 142,
    came_from: 144,
    counters: 152,
    size: 168,
    goto: 4,
    has_protocol: 1,
};

/// The bits of negated conditions.
mod not {
    pub(super) const INPUT: u8 = 0x01;
    pub(super) const SOURCE: u8 = 0x08;
    pub(super) const DESTINATION: u8 = 0x10;
    pub(super) const PROTOCOL: u8 = 0x40;
}

/// Verdicts of the standard target, which has no name.
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;
/// The size of the header of a match or target: size, name, revision. Its struct follows.
const HEADER: usize = 32;
const NAME: std::ops::Range<usize> = 2..31;
const REVISION: usize = 31;
const INTERFACE: usize = 16;

fn layout(family: Family) -> &'static Layout {
    if family == Family::V4 { &V4 } else { &V6 }
}

/// Where the rule leads.
pub fn leads<'a>(spec: &Spec<'a>) -> Leads<'a> {
    match spec.target {
        Target::Jump(name) | Target::Goto(name) => Leads::Chain(name),
        Target::None => Leads::On,
        _ => Leads::Nowhere,
    }
}

/// Appends the entry, with 0 as the number of the chain that it leads to.
pub fn write(spec: &Spec<'_>, family: Family, bytes: &mut Vec<u8>) {
    let layout = layout(family);
    let start = bytes.len();
    bytes.resize(start + layout.size, 0);
    write_head(spec, layout, &mut bytes[start..]);
    for found in &spec.matches {
        put_extension(bytes, write_match(found, family, &mut { ROOM }));
    }
    let target_offset = (bytes.len() - start) as u16;
    write_end(&spec.target, family, bytes);
    let next_offset = (bytes.len() - start) as u16;
    let head = &mut bytes[start..];
    if matches!(spec.target, Target::Goto(_)) {
        head[layout.flags] |= layout.goto;
    }
    head[layout.target_offset..][..2].copy_from_slice(&target_offset.to_ne_bytes());
    head[layout.next_offset..][..2].copy_from_slice(&next_offset.to_ne_bytes());
}

fn write_head(spec: &Spec<'_>, layout: &Layout, bytes: &mut [u8]) {
    let mut inverted = 0;
    let ranges = [(&spec.source, 0, not::SOURCE), (&spec.destination, 1, not::DESTINATION)];
    for (range, index, bit) in ranges {
        let Some(Range { negated, address, prefix }) = range else { continue };
        let (at, mask_at) = (index * layout.address, (index + 2) * layout.address);
        let mask = u128::MAX.checked_shl(128 - u32::from(*prefix)).unwrap_or(0).to_be_bytes();
        match address {
            IpAddr::V4(address) => bytes[at..at + 4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
        }
        bytes[mask_at..mask_at + layout.address].copy_from_slice(&mask[..layout.address]);
        inverted |= if *negated { bit } else { 0 };
    }
    if let Some(Interface { negated, name, is_prefix }) = &spec.input {
        let length = name.len().min(INTERFACE - 1);
        bytes[layout.interfaces..][..length].copy_from_slice(&name.as_bytes()[..length]);
        if *is_prefix {
            // The kernel does not compare this byte; the tool writes it, too.
            bytes[layout.interfaces + length] = b'+';
        }
        // With the terminating zero, only the whole name matches.
        let compared = if *is_prefix { length } else { length + 1 };
        bytes[layout.interfaces + 2 * INTERFACE..][..compared].fill(0xff);
        inverted |= if *negated { not::INPUT } else { 0 };
    }
    if let Some(OfProtocol { negated, protocol }) = spec.protocol {
        let number = u16::from(protocol.number());
        bytes[layout.protocol..][..2].copy_from_slice(&number.to_ne_bytes());
        bytes[layout.flags] |= layout.has_protocol;
        inverted |= if negated { not::PROTOCOL } else { 0 };
    }
    bytes[layout.inverted] = inverted;
}

fn write_end(target: &Target<'_>, family: Family, bytes: &mut Vec<u8>) {
    if let Some(extension) = write_target(target, family, &mut { ROOM }) {
        put_extension(bytes, extension);
        return;
    }
    let verdict = match target {
        Target::Accept => ACCEPT,
        Target::Drop => DROP,
        Target::Return => RETURN,
        _ => 0,
    };
    let mut info = [0; 8];
    info[..4].copy_from_slice(&verdict.to_ne_bytes());
    put_extension(bytes, Extension { name: "", revision: 0, info: &info });
}

fn put_extension(bytes: &mut Vec<u8>, extension: Extension<'_>) {
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&((HEADER + extension.info.len()) as u16).to_ne_bytes());
    header[NAME.start..NAME.start + extension.name.len()].copy_from_slice(extension.name.as_bytes());
    header[REVISION] = extension.revision as u8;
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(extension.info);
}

/// Reads an entry; `None` for one that we do not write.
pub fn read<'a>(terms: Terms<'a>, bytes: &'a [u8], leads: Leads<'a>) -> Option<Spec<'a>> {
    let spec = guess(terms, bytes, leads)?;
    let mut again = Vec::with_capacity(bytes.len());
    write(&spec, terms.family, &mut again);
    is_same(terms.family, &again, bytes, leads != Leads::Nowhere).then_some(spec)
}

/// Whether two entries are the same rule. Fields that the kernel writes, and the number of the chain that they lead to, may
/// differ.
pub fn is_same(family: Family, one: &[u8], other: &[u8], leads_somewhere: bool) -> bool {
    let layout = layout(family);
    // The number of the chain is at the beginning of the last eight bytes.
    let end = if leads_somewhere { one.len().saturating_sub(8) } else { one.len() };
    let counted = layout.counters + 16;
    one.len() == other.len()
        && one.get(..layout.came_from) == other.get(..layout.came_from)
        && one.get(layout.came_from + 4..layout.counters) == other.get(layout.came_from + 4..layout.counters)
        && one.get(counted..end) == other.get(counted..end)
        && (!leads_somewhere || one.get(end + 4..) == other.get(end + 4..))
}

/// Decodes an entry on the assumption that we wrote it. The caller verifies that.
fn guess<'a>(terms: Terms<'a>, bytes: &'a [u8], leads: Leads<'a>) -> Option<Spec<'a>> {
    let family = terms.family;
    let layout = layout(family);
    let target_offset = usize::from(u16_at(bytes, layout.target_offset)?);
    let inverted = *bytes.get(layout.inverted)?;
    let mut matches = Vec::new();
    let mut at = layout.size;
    while at < target_offset {
        let (extension, size) = extension_at(bytes, at)?;
        matches.push(read_match(extension, terms)?);
        at += size;
    }
    let (target, _) = extension_at(bytes, target_offset)?;
    let goes = bytes.get(layout.flags)? & layout.goto != 0;
    let target = match leads {
        Leads::Chain(name) if goes => Target::Goto(name),
        Leads::Chain(name) => Target::Jump(name),
        Leads::On => Target::None,
        Leads::Nowhere if target.name.is_empty() => match i32::from_ne_bytes(*target.info.first_chunk()?) {
            ACCEPT => Target::Accept,
            DROP => Target::Drop,
            RETURN => Target::Return,
            _ => return None,
        },
        Leads::Nowhere => read_target(target, family)?,
    };
    let protocol = match u16_at(bytes, layout.protocol)? {
        0 => None,
        number => {
            let protocol = Protocol::from_number(u8::try_from(number).ok()?)?;
            Some(OfProtocol { negated: inverted & not::PROTOCOL != 0, protocol })
        }
    };
    Some(Spec {
        source: read_range(family, bytes, 0, inverted & not::SOURCE != 0)?,
        destination: read_range(family, bytes, 1, inverted & not::DESTINATION != 0)?,
        input: read_interface(layout, bytes, inverted & not::INPUT != 0)?,
        protocol,
        matches,
        target,
    })
}

fn extension_at(bytes: &[u8], at: usize) -> Option<(Extension<'_>, usize)> {
    let rest = bytes.get(at..)?;
    let size = usize::from(u16_at(rest, 0)?);
    let name = rest.get(NAME)?.split(|byte| *byte == 0).next()?;
    let extension = Extension {
        name: std::str::from_utf8(name).ok()?,
        revision: u32::from(*rest.get(REVISION)?),
        info: rest.get(HEADER..size)?,
    };
    Some((extension, size))
}

/// `Some(None)` if any address matches.
fn read_range(family: Family, bytes: &[u8], index: usize, negated: bool) -> Option<Option<Range>> {
    let layout = layout(family);
    let (at, mask_at) = (index * layout.address, (index + 2) * layout.address);
    let prefix: u32 =
        bytes.get(mask_at..mask_at + layout.address)?.iter().map(|byte| byte.leading_ones()).sum();
    if prefix == 0 {
        return Some(None);
    }
    let octets = bytes.get(at..)?;
    let address = match family {
        Family::V4 => IpAddr::from(*octets.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(*octets.first_chunk::<16>()?),
    };
    Some(Some(Range { negated, address, prefix: prefix as u8 }))
}

fn read_interface<'a>(layout: &Layout, bytes: &'a [u8], negated: bool) -> Option<Option<Interface<'a>>> {
    let mask = bytes.get(layout.interfaces + 2 * INTERFACE..)?.get(..INTERFACE)?;
    let compared = mask.iter().take_while(|byte| **byte == 0xff).count();
    if compared == 0 {
        return Some(None);
    }
    let name = bytes.get(layout.interfaces..)?.get(..compared)?;
    let whole = name.strip_suffix(&[0]);
    let name = std::str::from_utf8(whole.unwrap_or(name)).ok()?;
    Some(Some(Interface { negated, name, is_prefix: whole.is_none() }))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
