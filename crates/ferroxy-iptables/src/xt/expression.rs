//! A Spec as expressions of nf_tables, in the order and the form that the nft variant of iptables 1.8.9 writes: native ones
//! for addresses, interfaces, protocols, ports of TCP and UDP, and marks; wrapped structs for the rest. Versions before 1.8.8
//! wrap ports and marks too, and 1.8.11 has addresses first and another place for the protocol of IPv4: all forms are read.

use std::net::IpAddr;

use ferroxy_core::{Family, Protocol};
use ferroxy_netlink::codec::Malformed;
use ferroxy_netlink::nftables::{Base, CmpOp, Expression, Expressions, VerdictRef, meta_key};

use super::extension::{ROOM, read_match, read_target, write_match, write_target};
use super::{Interface, Match, OfProtocol, Range, Spec, Target, Terms};

/// Where addresses are in the header of a packet: source, destination.
const V4_ADDRESSES: (u32, u32) = (12, 16);
const V6_ADDRESSES: (u32, u32) = (8, 24);
/// Where the protocol is in the header of IPv4: iptables 1.8.11 looks there.
const V4_PROTOCOL: u32 = 9;
/// Where the destination port is in the header of TCP and UDP.
const DESTINATION_PORT: u32 = 2;

pub fn write(spec: &Spec<'_>, family: Family, out: &mut Expressions<'_>) {
    if let Some(interface) = &spec.input {
        write_interface(interface, out);
    }
    if let Some(OfProtocol { negated, protocol }) = spec.protocol {
        out.push(Expression::Meta(meta_key::L4PROTO));
        out.push(compare(negated, &[protocol.number()]));
    }
    let (source, destination) = addresses(family);
    if let Some(range) = &spec.source {
        write_range(range, source, out);
    }
    if let Some(range) = &spec.destination {
        write_range(range, destination, out);
    }
    spec.matches.iter().for_each(|found| write_one(found, family, out));
    out.push(Expression::Counter);
    write_verdict(&spec.target, family, out);
}

fn write_interface(interface: &Interface<'_>, out: &mut Expressions<'_>) {
    // With the terminating zero, only the whole name matches.
    let mut name = [0; 16];
    let bytes = interface.name.as_bytes();
    let length = bytes.len().min(15);
    name[..length].copy_from_slice(&bytes[..length]);
    let length = if interface.is_prefix { length } else { length + 1 };
    out.push(Expression::Meta(meta_key::IIFNAME));
    out.push(compare(interface.negated, &name[..length]));
}

/// Whole bytes are compared as they are; other prefixes are masked first.
fn write_range(range: &Range, offset: u32, out: &mut Expressions<'_>) {
    let (octets, size) = octets(range.address);
    let (prefix, base) = (usize::from(range.prefix), Base::Network);
    if prefix.is_multiple_of(8) {
        let length = (prefix / 8).min(size);
        out.push(Expression::Payload { base, offset, len: length as u32 });
        out.push(compare(range.negated, &octets[..length]));
    } else {
        out.push(Expression::Payload { base, offset, len: size as u32 });
        out.push(Expression::Mask(&mask_of(prefix)[..size]));
        out.push(compare(range.negated, &octets[..size]));
    }
}

fn write_one(found: &Match<'_>, family: Family, out: &mut Expressions<'_>) {
    match found {
        Match::Port { protocol: Protocol::Tcp | Protocol::Udp, destination: Some(port) } => {
            out.push(Expression::Payload { base: Base::Transport, offset: DESTINATION_PORT, len: 2 });
            out.push(compare(false, &port.to_be_bytes()));
        }
        Match::Mark { negated, value, mask } => {
            out.push(Expression::Meta(meta_key::MARK));
            if *mask != u32::MAX {
                out.push(Expression::Mask(&mask.to_ne_bytes()));
            }
            out.push(compare(*negated, &value.to_ne_bytes()));
        }
        _ => out.push(Expression::Match(write_match(found, family, &mut { ROOM }))),
    }
}

fn write_verdict(target: &Target<'_>, family: Family, out: &mut Expressions<'_>) {
    let verdict = match target {
        Target::None => return,
        Target::Accept => VerdictRef::Accept,
        Target::Drop => VerdictRef::Drop,
        Target::Return => VerdictRef::Return,
        Target::Jump(chain) => VerdictRef::Jump(chain),
        Target::Goto(chain) => VerdictRef::Goto(chain),
        Target::Dnat(_)
        | Target::Redirect(_)
        | Target::Mark { .. }
        | Target::Masquerade { .. }
        | Target::Reject => {
            if let Some(extension) = write_target(target, family, &mut { ROOM }) {
                out.push(Expression::Target(extension));
            }
            return;
        }
    };
    out.push(Expression::Verdict(verdict));
}

/// What is known about a rule in the kernel.
#[derive(Debug, PartialEq)]
pub enum Found<'a> {
    Known(Spec<'a>),
    /// A rule that we do not write, and the chain that it leads to.
    Unknown(Option<&'a str>),
}

/// Reads the expressions of one rule.
pub fn read<'a>(
    terms: Terms<'a>,
    expressions: impl Iterator<Item = Result<Expression<'a>, Malformed>>,
) -> Result<Found<'a>, Malformed> {
    let mut reader = Reader { terms, spec: nothing(), loaded: Loaded::Nothing, mask: None };
    let mut is_known = true;
    let mut leads_to = None;
    for expression in expressions {
        let expression = expression?;
        if let Expression::Verdict(VerdictRef::Jump(chain) | VerdictRef::Goto(chain)) = expression {
            leads_to = Some(chain);
        }
        is_known = is_known && reader.take(expression).is_some();
    }
    is_known = is_known && matches!(reader.loaded, Loaded::Nothing);
    Ok(if is_known { Found::Known(reader.spec) } else { Found::Unknown(leads_to) })
}

fn nothing() -> Spec<'static> {
    let (source, destination, input, protocol) = (None, None, None, None);
    Spec { source, destination, input, protocol, matches: Vec::new(), target: Target::None }
}

/// What is in the register.
enum Loaded {
    Nothing,
    Meta(u32),
    Payload { base: Base, offset: u32, len: u32 },
}

struct Reader<'a> {
    terms: Terms<'a>,
    spec: Spec<'a>,
    loaded: Loaded,
    mask: Option<&'a [u8]>,
}

impl<'a> Reader<'a> {
    /// `None` for an expression that we do not write.
    fn take(&mut self, expression: Expression<'a>) -> Option<()> {
        let is_compared = matches!(expression, Expression::Mask(_) | Expression::Cmp { .. });
        // A loaded value must be masked or compared next, and nothing may follow the target.
        if is_compared == matches!(self.loaded, Loaded::Nothing) || self.spec.target != Target::None {
            return None;
        }
        match expression {
            Expression::Meta(key) => self.loaded = Loaded::Meta(key),
            Expression::Payload { base, offset, len } => self.loaded = Loaded::Payload { base, offset, len },
            Expression::Mask(mask) => self.mask = Some(mask),
            Expression::Cmp { op, data } => {
                let (loaded, mask) = (std::mem::replace(&mut self.loaded, Loaded::Nothing), self.mask.take());
                self.compared(&loaded, mask, op == CmpOp::Neq, data)?;
            }
            Expression::Counter => {}
            Expression::Verdict(verdict) => {
                self.spec.target = match verdict {
                    VerdictRef::Accept => Target::Accept,
                    VerdictRef::Drop => Target::Drop,
                    VerdictRef::Return => Target::Return,
                    VerdictRef::Jump(chain) => Target::Jump(chain),
                    VerdictRef::Goto(chain) => Target::Goto(chain),
                }
            }
            Expression::Match(extension) => {
                self.spec.matches.push(read_match(extension, self.terms)?);
            }
            Expression::Target(extension) => self.spec.target = read_target(extension, self.terms.family)?,
            Expression::Other => return None,
        }
        Some(())
    }

    fn protocol(&mut self, negated: bool, data: &[u8]) -> Option<()> {
        let [number] = *data else { return None };
        let protocol = Protocol::from_number(number)?;
        put_once(&mut self.spec.protocol, OfProtocol { negated, protocol })
    }

    fn compared(
        &mut self,
        loaded: &Loaded,
        mask: Option<&[u8]>,
        negated: bool,
        data: &'a [u8],
    ) -> Option<()> {
        match *loaded {
            Loaded::Meta(meta_key::L4PROTO) if mask.is_none() => self.protocol(negated, data),
            Loaded::Payload { base: Base::Network, offset: V4_PROTOCOL, len: 1 }
                if mask.is_none() && self.terms.family == Family::V4 =>
            {
                self.protocol(negated, data)
            }
            Loaded::Meta(meta_key::IIFNAME) if mask.is_none() => {
                let name = data.strip_suffix(&[0]).unwrap_or(data);
                let is_prefix = name.len() == data.len();
                let name =
                    std::str::from_utf8(name).ok().filter(|it| !it.contains('\0') && !it.is_empty())?;
                put_once(&mut self.spec.input, Interface { negated, name, is_prefix })
            }
            Loaded::Meta(meta_key::MARK) => {
                let value = u32::from_ne_bytes(data.try_into().ok()?);
                let mask =
                    mask.map_or(Some(u32::MAX), |mask| Some(u32::from_ne_bytes(mask.try_into().ok()?)))?;
                self.spec.matches.push(Match::Mark { negated, value, mask });
                Some(())
            }
            Loaded::Payload { base: Base::Network, offset, len } => {
                let (source, destination) = addresses(self.terms.family);
                let range = read_range(self.terms.family, len, mask, negated, data)?;
                if offset == source {
                    put_once(&mut self.spec.source, range)
                } else if offset == destination {
                    put_once(&mut self.spec.destination, range)
                } else {
                    None
                }
            }
            Loaded::Payload { base: Base::Transport, offset: DESTINATION_PORT, len: 2 }
                if mask.is_none() && !negated =>
            {
                let port = u16::from_be_bytes(data.try_into().ok()?);
                let OfProtocol { negated: false, protocol } = self.spec.protocol? else { return None };
                let is_native = matches!(protocol, Protocol::Tcp | Protocol::Udp);
                self.spec.matches.push(Match::Port { protocol, destination: Some(port) });
                is_native.then_some(())
            }
            _ => None,
        }
    }
}

/// `None` if the field has a value already: we never write two conditions on the same field.
fn put_once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

fn read_range(family: Family, len: u32, mask: Option<&[u8]>, negated: bool, data: &[u8]) -> Option<Range> {
    let size = if family == Family::V4 { 4 } else { 16 };
    if data.len() != len as usize || data.is_empty() || data.len() > size {
        return None;
    }
    let prefix = match mask {
        None => data.len() * 8,
        Some(found) => {
            let prefix = found.iter().map(|byte| byte.leading_ones() as usize).sum::<usize>();
            // The bits must be in one piece, and the mask as long as the address.
            (found.len() == size && found == &mask_of(prefix)[..size])
                .then_some(prefix)
                .filter(|it| *it > 0)?
        }
    };
    let mut octets = [0; 16];
    octets[..data.len()].copy_from_slice(data);
    let address = match family {
        Family::V4 => IpAddr::from(*octets.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(octets),
    };
    let range = Range { negated, address, prefix: prefix as u8 };
    ipnet::IpNet::new(address, range.prefix).is_ok_and(|net| net.trunc() == net).then_some(range)
}

fn compare(negated: bool, data: &[u8]) -> Expression<'_> {
    Expression::Cmp { op: if negated { CmpOp::Neq } else { CmpOp::Eq }, data }
}

fn addresses(family: Family) -> (u32, u32) {
    if family == Family::V4 { V4_ADDRESSES } else { V6_ADDRESSES }
}

fn octets(address: IpAddr) -> ([u8; 16], usize) {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            (octets, 4)
        }
        IpAddr::V6(address) => (address.octets(), 16),
    }
}

/// Ones, as many as the prefix has bits.
fn mask_of(prefix: usize) -> [u8; 16] {
    u128::MAX.checked_shl(128_u32.saturating_sub(prefix as u32)).unwrap_or(0).to_be_bytes()
}
