//! Expressions: the instructions that rules are made of, to attributes and back. Registers and offsets are raw numbers,
//! as `nft --debug=netlink` shows them; what a sequence of them means is the caller's business.

use crate::codec::{Attribute, Encoder, Fields, Malformed};

use super::decode::{read_value, read_verdict};
use super::encode::{put_value, put_verdict};
use super::types::{Family, Verdict};
use super::wire::{LIST_ELEM, NFPROTO_IPV4, NFPROTO_IPV6};

/// Header that a payload expression counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    Network,
    Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetaKey {
    L4proto,
    Mark,
    Iifname,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CtKey {
    State,
    Status,
    SrcIp,
    DstIp,
    SrcIp6,
    DstIp6,
    ProtoDst,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CtDirection {
    Original,
    Reply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CmpOp {
    Eq,
    Neq,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DynsetOp {
    Add,
    Update,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FibAddress {
    Source,
    Destination,
}

/// One instruction. Registers: 0 is the verdict, 1 to 4 have 16 bytes, 8 to 23 are the same memory in 4-byte words. The
/// kernel reads a word that starts a 16-byte register back by the latter's number: use [`register`] to name words.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Expr {
    Payload {
        base: Base,
        offset: u32,
        len: u32,
        dreg: u32,
    },
    PayloadSet {
        base: Base,
        offset: u32,
        len: u32,
        sreg: u32,
        csum_type: u32,
        csum_offset: u32,
        csum_flags: u32,
    },
    Meta {
        key: MetaKey,
        dreg: u32,
    },
    MetaSet {
        key: MetaKey,
        sreg: u32,
    },
    Ct {
        key: CtKey,
        direction: Option<CtDirection>,
        dreg: u32,
    },
    Cmp {
        sreg: u32,
        op: CmpOp,
        data: Vec<u8>,
    },
    /// `dreg = (sreg & mask) ^ xor`, over the length of the mask.
    Bitwise {
        sreg: u32,
        dreg: u32,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Without `dreg` a test; with it the element's data go there, and 0 obeys them as a verdict.
    Lookup {
        set: String,
        sreg: u32,
        dreg: Option<u32>,
        invert: bool,
    },
    Immediate(Verdict),
    /// A random number from `offset` to `offset + modulus - 1`.
    Numgen {
        dreg: u32,
        modulus: u32,
        offset: u32,
    },
    /// The type of a packet's address (RTN_LOCAL is 2) by the routing tables.
    Fib {
        dreg: u32,
        address: FibAddress,
    },
    Dnat {
        family: Family,
        address_reg: u32,
        port_reg: u32,
    },
    Masquerade {
        fully_random: bool,
    },
    Reject {
        kind: u32,
        code: u8,
    },
    Dynset {
        set: String,
        op: DynsetOp,
        sreg_key: u32,
        sreg_data: Option<u32>,
        timeout_ms: Option<u64>,
    },
    /// What it has counted is not read.
    Counter,
    /// Only ever read: an instruction, or a variant of one, that this crate does not write. The kernel refuses it.
    Unknown(String),
}

/// The number of the 4-byte word `index` (0 to 15), as the kernel and `nft` print it.
pub const fn register(index: u32) -> u32 {
    if index.is_multiple_of(4) { 1 + index / 4 } else { 8 + index }
}

const NAME: u16 = 1;
const DATA: u16 = 2;

mod payload {
    pub(super) const DREG: u16 = 1;
    pub(super) const BASE: u16 = 2;
    pub(super) const OFFSET: u16 = 3;
    pub(super) const LEN: u16 = 4;
    pub(super) const SREG: u16 = 5;
    pub(super) const CSUM_TYPE: u16 = 6;
    pub(super) const CSUM_OFFSET: u16 = 7;
    pub(super) const CSUM_FLAGS: u16 = 8;
}

mod meta {
    pub(super) const DREG: u16 = 1;
    pub(super) const KEY: u16 = 2;
    pub(super) const SREG: u16 = 3;
}

mod ct {
    pub(super) const DREG: u16 = 1;
    pub(super) const KEY: u16 = 2;
    pub(super) const DIRECTION: u16 = 3;
}

mod cmp {
    pub(super) const SREG: u16 = 1;
    pub(super) const OP: u16 = 2;
    pub(super) const DATA: u16 = 3;
}

mod bitwise {
    pub(super) const SREG: u16 = 1;
    pub(super) const DREG: u16 = 2;
    pub(super) const LEN: u16 = 3;
    pub(super) const MASK: u16 = 4;
    pub(super) const XOR: u16 = 5;
    pub(super) const OP: u16 = 6;
}

mod lookup {
    pub(super) const SET: u16 = 1;
    pub(super) const SREG: u16 = 2;
    pub(super) const DREG: u16 = 3;
    pub(super) const FLAGS: u16 = 5;
    pub(super) const FLAG_INVERT: u32 = 1;
}

mod immediate {
    pub(super) const DREG: u16 = 1;
    pub(super) const DATA: u16 = 2;
}

mod numgen {
    pub(super) const DREG: u16 = 1;
    pub(super) const MODULUS: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    pub(super) const OFFSET: u16 = 4;
    pub(super) const RANDOM: u32 = 1;
}

mod fib {
    pub(super) const DREG: u16 = 1;
    pub(super) const RESULT: u16 = 2;
    pub(super) const FLAGS: u16 = 3;
    pub(super) const ADDRESS_TYPE: u32 = 3;
}

mod nat {
    pub(super) const TYPE: u16 = 1;
    pub(super) const FAMILY: u16 = 2;
    pub(super) const ADDR_MIN: u16 = 3;
    pub(super) const ADDR_MAX: u16 = 4;
    pub(super) const PROTO_MIN: u16 = 5;
    pub(super) const PROTO_MAX: u16 = 6;
    pub(super) const FLAGS: u16 = 7;
    pub(super) const DNAT: u32 = 1;
    /// An address and a port are given. The kernel sets these itself.
    pub(super) const MAPS_ADDRESS_AND_PORT: u32 = 0x3;
}

mod masq {
    pub(super) const FLAGS: u16 = 1;
    pub(super) const PROTO_MIN: u16 = 2;
    pub(super) const FULLY_RANDOM: u32 = 0x10;
}

mod reject {
    pub(super) const TYPE: u16 = 1;
    pub(super) const CODE: u16 = 2;
}

mod dynset {
    pub(super) const SET: u16 = 1;
    pub(super) const OP: u16 = 3;
    pub(super) const SREG_KEY: u16 = 4;
    pub(super) const SREG_DATA: u16 = 5;
    pub(super) const TIMEOUT: u16 = 6;
    pub(super) const FLAGS: u16 = 9;
}

/// Enums and the kernel's numbers for them, each written down once for both directions.
const BASES: [(Base, u32); 2] = [(Base::Network, 1), (Base::Transport, 2)];
const META_KEYS: [(MetaKey, u32); 3] = [(MetaKey::L4proto, 16), (MetaKey::Mark, 3), (MetaKey::Iifname, 6)];
const CT_KEYS: [(CtKey, u32); 7] = [
    (CtKey::State, 0),
    (CtKey::Status, 2),
    (CtKey::SrcIp, 19),
    (CtKey::DstIp, 20),
    (CtKey::SrcIp6, 21),
    (CtKey::DstIp6, 22),
    (CtKey::ProtoDst, 12),
];
const CT_DIRECTIONS: [(CtDirection, u32); 2] = [(CtDirection::Original, 0), (CtDirection::Reply, 1)];
const CMP_OPS: [(CmpOp, u32); 2] = [(CmpOp::Eq, 0), (CmpOp::Neq, 1)];
const DYNSET_OPS: [(DynsetOp, u32); 3] = [(DynsetOp::Add, 0), (DynsetOp::Update, 1), (DynsetOp::Delete, 2)];
const FIB_ADDRESSES: [(FibAddress, u32); 2] = [(FibAddress::Source, 1), (FibAddress::Destination, 2)];
const FAMILIES: [(Family, u32); 2] = [(Family::Ip, NFPROTO_IPV4 as u32), (Family::Ip6, NFPROTO_IPV6 as u32)];

/// Every table above names every variant, which the test `every_variant_has_a_number` holds them to.
fn number<T: Copy + PartialEq>(table: &[(T, u32)], wanted: T) -> u32 {
    table.iter().find(|(variant, _)| *variant == wanted).map_or(u32::MAX, |(_, number)| *number)
}

fn variant<T: Copy>(table: &[(T, u32)], wanted: u32) -> Option<T> {
    table.iter().find(|(_, number)| *number == wanted).map(|(variant, _)| *variant)
}

impl Expr {
    /// Appends the expression as one element of a rule's list.
    pub(super) fn encode(&self, out: &mut Encoder) {
        let element = out.begin_nested(LIST_ELEM);
        out.put_str(NAME, self.name());
        let data = out.begin_nested(DATA);
        self.encode_data(out);
        out.end_nested(data);
        out.end_nested(element);
    }

    /// Reads one element of a rule's list.
    pub(super) fn decode(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let fields = Fields::<3>::new(attribute.nested())?;
        let name = fields.need(NAME, "expression name")?.str()?;
        // Expressions without any parameter may lack the attribute for them.
        let data = fields.get(DATA).map_or_else(|| Attribute { kind: DATA, payload: &[] }, |data| data);
        let known = Self::decode_data(name, &Read(Fields::new(data.nested())?))?;
        Ok(known.unwrap_or_else(|| Self::Unknown(name.to_owned())))
    }

    fn name(&self) -> &str {
        match self {
            Self::Payload { .. } | Self::PayloadSet { .. } => "payload",
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Ct { .. } => "ct",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Immediate(_) => "immediate",
            Self::Numgen { .. } => "numgen",
            Self::Fib { .. } => "fib",
            Self::Dnat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Reject { .. } => "reject",
            Self::Dynset { .. } => "dynset",
            Self::Counter => "counter",
            Self::Unknown(name) => name,
        }
    }

    fn encode_data(&self, out: &mut Encoder) {
        match self {
            Self::Payload { base, offset, len, dreg } => {
                out.put_u32_be(payload::DREG, *dreg);
                out.put_u32_be(payload::BASE, number(&BASES, *base));
                out.put_u32_be(payload::OFFSET, *offset);
                out.put_u32_be(payload::LEN, *len);
            }
            Self::PayloadSet { base, offset, len, sreg, csum_type, csum_offset, csum_flags } => {
                out.put_u32_be(payload::SREG, *sreg);
                out.put_u32_be(payload::BASE, number(&BASES, *base));
                out.put_u32_be(payload::OFFSET, *offset);
                out.put_u32_be(payload::LEN, *len);
                out.put_u32_be(payload::CSUM_TYPE, *csum_type);
                out.put_u32_be(payload::CSUM_OFFSET, *csum_offset);
                out.put_u32_be(payload::CSUM_FLAGS, *csum_flags);
            }
            Self::Meta { key, dreg } => {
                out.put_u32_be(meta::KEY, number(&META_KEYS, *key));
                out.put_u32_be(meta::DREG, *dreg);
            }
            Self::MetaSet { key, sreg } => {
                out.put_u32_be(meta::KEY, number(&META_KEYS, *key));
                out.put_u32_be(meta::SREG, *sreg);
            }
            Self::Ct { key, direction, dreg } => {
                out.put_u32_be(ct::KEY, number(&CT_KEYS, *key));
                out.put_u32_be(ct::DREG, *dreg);
                if let Some(direction) = direction {
                    // One byte: the tables hold 0 and 1.
                    out.put_u8(ct::DIRECTION, number(&CT_DIRECTIONS, *direction) as u8);
                }
            }
            Self::Cmp { sreg, op, data } => {
                out.put_u32_be(cmp::SREG, *sreg);
                out.put_u32_be(cmp::OP, number(&CMP_OPS, *op));
                put_value(out, cmp::DATA, data);
            }
            Self::Bitwise { sreg, dreg, mask, xor } => {
                out.put_u32_be(bitwise::SREG, *sreg);
                out.put_u32_be(bitwise::DREG, *dreg);
                out.put_u32_be(bitwise::LEN, u32::try_from(mask.len()).unwrap_or(u32::MAX));
                put_value(out, bitwise::MASK, mask);
                put_value(out, bitwise::XOR, xor);
            }
            Self::Lookup { set, sreg, dreg, invert } => {
                out.put_str(lookup::SET, set);
                out.put_u32_be(lookup::SREG, *sreg);
                if let Some(dreg) = dreg {
                    out.put_u32_be(lookup::DREG, *dreg);
                }
                if *invert {
                    out.put_u32_be(lookup::FLAGS, lookup::FLAG_INVERT);
                }
            }
            Self::Immediate(verdict) => {
                out.put_u32_be(immediate::DREG, 0);
                put_verdict(out, immediate::DATA, verdict.into());
            }
            Self::Numgen { dreg, modulus, offset } => {
                out.put_u32_be(numgen::DREG, *dreg);
                out.put_u32_be(numgen::MODULUS, *modulus);
                out.put_u32_be(numgen::TYPE, numgen::RANDOM);
                out.put_u32_be(numgen::OFFSET, *offset);
            }
            Self::Fib { dreg, address } => {
                out.put_u32_be(fib::FLAGS, number(&FIB_ADDRESSES, *address));
                out.put_u32_be(fib::RESULT, fib::ADDRESS_TYPE);
                out.put_u32_be(fib::DREG, *dreg);
            }
            // The kernel takes a missing end of a range for its beginning.
            Self::Dnat { family, address_reg, port_reg } => {
                out.put_u32_be(nat::TYPE, nat::DNAT);
                out.put_u32_be(nat::FAMILY, number(&FAMILIES, *family));
                out.put_u32_be(nat::ADDR_MIN, *address_reg);
                out.put_u32_be(nat::PROTO_MIN, *port_reg);
            }
            Self::Masquerade { fully_random: true } => out.put_u32_be(masq::FLAGS, masq::FULLY_RANDOM),
            Self::Reject { kind, code } => {
                out.put_u32_be(reject::TYPE, *kind);
                out.put_u8(reject::CODE, *code);
            }
            Self::Dynset { set, op, sreg_key, sreg_data, timeout_ms } => {
                out.put_str(dynset::SET, set);
                out.put_u32_be(dynset::OP, number(&DYNSET_OPS, *op));
                out.put_u32_be(dynset::SREG_KEY, *sreg_key);
                if let Some(sreg_data) = sreg_data {
                    out.put_u32_be(dynset::SREG_DATA, *sreg_data);
                }
                if let Some(timeout_ms) = timeout_ms {
                    out.put_u64_be(dynset::TIMEOUT, *timeout_ms);
                }
            }
            Self::Masquerade { fully_random: false } | Self::Counter | Self::Unknown(_) => {}
        }
    }

    /// `None` for what this crate does not write: it must not be taken for something that it does.
    fn decode_data(name: &str, read: &Read<'_>) -> Result<Option<Self>, Malformed> {
        match name {
            "payload" => read.payload(),
            "meta" => read.meta(),
            "ct" => read.ct(),
            "cmp" => read.cmp(),
            "bitwise" => read.bitwise(),
            "lookup" => read.lookup().map(Some),
            "immediate" => read.immediate(),
            "numgen" => read.numgen(),
            "fib" => read.fib(),
            "nat" => read.nat(),
            "masq" => read.masq(),
            "reject" => read.reject().map(Some),
            "dynset" => read.dynset(),
            "counter" => Ok(Some(Self::Counter)),
            _ => Ok(None),
        }
    }
}

/// The parameters of one expression.
struct Read<'a>(Fields<'a, 12>);

impl<'a> Read<'a> {
    fn number(&self, kind: u16) -> Result<u32, Malformed> {
        self.need(kind)?.u32_be()
    }

    fn optional(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        self.0.get(kind).map(|attribute| attribute.u32_be()).transpose()
    }

    fn need(&self, kind: u16) -> Result<Attribute<'a>, Malformed> {
        self.0.need(kind, "expression parameter")
    }

    fn payload(&self) -> Result<Option<Expr>, Malformed> {
        let Some(base) = variant(&BASES, self.number(payload::BASE)?) else { return Ok(None) };
        let (offset, len) = (self.number(payload::OFFSET)?, self.number(payload::LEN)?);
        Ok(Some(match self.optional(payload::SREG)? {
            Some(sreg) => Expr::PayloadSet {
                base,
                offset,
                len,
                sreg,
                csum_type: self.optional(payload::CSUM_TYPE)?.unwrap_or(0),
                csum_offset: self.optional(payload::CSUM_OFFSET)?.unwrap_or(0),
                csum_flags: self.optional(payload::CSUM_FLAGS)?.unwrap_or(0),
            },
            None => Expr::Payload { base, offset, len, dreg: self.number(payload::DREG)? },
        }))
    }

    fn meta(&self) -> Result<Option<Expr>, Malformed> {
        let Some(key) = variant(&META_KEYS, self.number(meta::KEY)?) else { return Ok(None) };
        Ok(Some(match self.optional(meta::SREG)? {
            Some(sreg) => Expr::MetaSet { key, sreg },
            None => Expr::Meta { key, dreg: self.number(meta::DREG)? },
        }))
    }

    fn ct(&self) -> Result<Option<Expr>, Malformed> {
        let Some(key) = variant(&CT_KEYS, self.number(ct::KEY)?) else { return Ok(None) };
        let Some(dreg) = self.optional(ct::DREG)? else { return Ok(None) };
        let direction = match self.0.get(ct::DIRECTION) {
            None => None,
            Some(attribute) => match variant(&CT_DIRECTIONS, attribute.u8()?.into()) {
                Some(direction) => Some(direction),
                None => return Ok(None),
            },
        };
        Ok(Some(Expr::Ct { key, direction, dreg }))
    }

    fn cmp(&self) -> Result<Option<Expr>, Malformed> {
        let Some(op) = variant(&CMP_OPS, self.number(cmp::OP)?) else { return Ok(None) };
        let data = read_value(&self.need(cmp::DATA)?)?;
        Ok(Some(Expr::Cmp { sreg: self.number(cmp::SREG)?, op, data }))
    }

    fn bitwise(&self) -> Result<Option<Expr>, Malformed> {
        // Other operations are shifts (5.6) and the like.
        if self.optional(bitwise::OP)?.unwrap_or(0) != 0 {
            return Ok(None);
        }
        Ok(Some(Expr::Bitwise {
            sreg: self.number(bitwise::SREG)?,
            dreg: self.number(bitwise::DREG)?,
            mask: read_value(&self.need(bitwise::MASK)?)?,
            xor: read_value(&self.need(bitwise::XOR)?)?,
        }))
    }

    fn lookup(&self) -> Result<Expr, Malformed> {
        Ok(Expr::Lookup {
            set: self.need(lookup::SET)?.str()?.to_owned(),
            sreg: self.number(lookup::SREG)?,
            dreg: self.optional(lookup::DREG)?,
            invert: self.optional(lookup::FLAGS)?.unwrap_or(0) & lookup::FLAG_INVERT != 0,
        })
    }

    fn immediate(&self) -> Result<Option<Expr>, Malformed> {
        if self.number(immediate::DREG)? != 0 {
            return Ok(None);
        }
        Ok(read_verdict(&self.need(immediate::DATA)?)?.map(Expr::Immediate))
    }

    fn numgen(&self) -> Result<Option<Expr>, Malformed> {
        if self.number(numgen::TYPE)? != numgen::RANDOM {
            return Ok(None);
        }
        Ok(Some(Expr::Numgen {
            dreg: self.number(numgen::DREG)?,
            modulus: self.number(numgen::MODULUS)?,
            offset: self.optional(numgen::OFFSET)?.unwrap_or(0),
        }))
    }

    fn fib(&self) -> Result<Option<Expr>, Malformed> {
        // Further flags narrow the question to a mark or an interface.
        let Some(address) = variant(&FIB_ADDRESSES, self.number(fib::FLAGS)?) else { return Ok(None) };
        if self.number(fib::RESULT)? != fib::ADDRESS_TYPE {
            return Ok(None);
        }
        Ok(Some(Expr::Fib { dreg: self.number(fib::DREG)?, address }))
    }

    fn nat(&self) -> Result<Option<Expr>, Malformed> {
        let Some(family) = variant(&FAMILIES, self.number(nat::FAMILY)?) else { return Ok(None) };
        let (Some(address_reg), Some(port_reg)) =
            (self.optional(nat::ADDR_MIN)?, self.optional(nat::PROTO_MIN)?)
        else {
            return Ok(None);
        };
        let plain = self.number(nat::TYPE)? == nat::DNAT
            && self.optional(nat::ADDR_MAX)?.is_none_or(|max| max == address_reg)
            && self.optional(nat::PROTO_MAX)?.is_none_or(|max| max == port_reg)
            && self.optional(nat::FLAGS)?.is_none_or(|flags| flags == nat::MAPS_ADDRESS_AND_PORT);
        Ok(plain.then_some(Expr::Dnat { family, address_reg, port_reg }))
    }

    fn masq(&self) -> Result<Option<Expr>, Malformed> {
        let flags = self.optional(masq::FLAGS)?.unwrap_or(0);
        let plain = flags & !masq::FULLY_RANDOM == 0 && self.0.get(masq::PROTO_MIN).is_none();
        Ok(plain.then_some(Expr::Masquerade { fully_random: flags != 0 }))
    }

    fn reject(&self) -> Result<Expr, Malformed> {
        let code = self.0.get(reject::CODE).map(|attribute| attribute.u8()).transpose()?;
        Ok(Expr::Reject { kind: self.number(reject::TYPE)?, code: code.unwrap_or(0) })
    }

    fn dynset(&self) -> Result<Option<Expr>, Malformed> {
        let Some(op) = variant(&DYNSET_OPS, self.number(dynset::OP)?) else { return Ok(None) };
        // Flags: inverted, or with expressions for the new element.
        if self.optional(dynset::FLAGS)?.unwrap_or(0) != 0 {
            return Ok(None);
        }
        let timeout = self.0.get(dynset::TIMEOUT).map(|attribute| attribute.u64_be()).transpose()?;
        Ok(Some(Expr::Dynset {
            set: self.need(dynset::SET)?.str()?.to_owned(),
            op,
            sreg_key: self.number(dynset::SREG_KEY)?,
            sreg_data: self.optional(dynset::SREG_DATA)?,
            // The kernel always writes it: 0 stands for none.
            timeout_ms: timeout.filter(|timeout| *timeout != 0),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Attributes;

    fn round_trip(expr: &Expr) -> Expr {
        let mut encoder = Encoder::new();
        expr.encode(&mut encoder);
        let attribute = Attributes::new(encoder.bytes()).next().unwrap().unwrap();
        Expr::decode(&attribute).unwrap()
    }

    #[test]
    fn every_variant_has_a_number() {
        use {CtKey as C, MetaKey as M};
        for key in [M::L4proto, M::Mark, M::Iifname] {
            assert_eq!(round_trip(&Expr::Meta { key, dreg: 1 }), Expr::Meta { key, dreg: 1 });
            assert_eq!(round_trip(&Expr::MetaSet { key, sreg: 9 }), Expr::MetaSet { key, sreg: 9 });
        }
        for key in [C::State, C::Status, C::SrcIp, C::DstIp, C::SrcIp6, C::DstIp6, C::ProtoDst] {
            for direction in [None, Some(CtDirection::Original), Some(CtDirection::Reply)] {
                let expr = Expr::Ct { key, direction, dreg: 1 };
                assert_eq!(round_trip(&expr), expr);
            }
        }
        for op in [DynsetOp::Add, DynsetOp::Update, DynsetOp::Delete] {
            let expr =
                Expr::Dynset { set: "s".into(), op, sreg_key: 1, sreg_data: Some(2), timeout_ms: Some(5) };
            assert_eq!(round_trip(&expr), expr);
        }
        for base in [Base::Network, Base::Transport] {
            let expr = Expr::Payload { base, offset: 16, len: 4, dreg: 9 };
            assert_eq!(round_trip(&expr), expr);
        }
        for op in [CmpOp::Eq, CmpOp::Neq] {
            let expr = Expr::Cmp { sreg: 1, op, data: vec![1, 2, 3] };
            assert_eq!(round_trip(&expr), expr);
        }
        for address in [FibAddress::Source, FibAddress::Destination] {
            assert_eq!(round_trip(&Expr::Fib { dreg: 1, address }), Expr::Fib { dreg: 1, address });
        }
        for family in [Family::Ip, Family::Ip6] {
            let expr = Expr::Dnat { family, address_reg: 1, port_reg: 9 };
            assert_eq!(round_trip(&expr), expr);
        }
    }

    #[test]
    fn every_other_expression_round_trips() {
        let exprs = [
            Expr::PayloadSet {
                base: Base::Network,
                offset: 16,
                len: 4,
                sreg: 1,
                csum_type: 1,
                csum_offset: 10,
                csum_flags: 1,
            },
            Expr::Bitwise { sreg: 1, dreg: 1, mask: vec![8, 0, 0, 0], xor: vec![0; 4] },
            Expr::Lookup { set: "s".into(), sreg: 1, dreg: Some(0), invert: false },
            Expr::Lookup { set: "s".into(), sreg: 1, dreg: None, invert: true },
            Expr::Immediate(Verdict::Accept),
            Expr::Immediate(Verdict::Drop),
            Expr::Immediate(Verdict::Return),
            Expr::Immediate(Verdict::Jump("c".into())),
            Expr::Immediate(Verdict::Goto("c".into())),
            Expr::Numgen { dreg: 1, modulus: 3, offset: 7 },
            Expr::Masquerade { fully_random: true },
            Expr::Masquerade { fully_random: false },
            Expr::Reject { kind: 0, code: 3 },
            Expr::Counter,
            Expr::Unknown("quota".into()),
        ];
        for expr in exprs {
            assert_eq!(round_trip(&expr), expr);
        }
    }

    #[test]
    fn a_variant_we_do_not_write_is_unknown() {
        // The same attributes as ours with one number changed.
        let changed = |expr: &Expr, kind: u16, value: u32| {
            let mut data = Encoder::new();
            expr.encode_data(&mut data);
            data.put_u32_be(kind, value);
            let mut encoder = Encoder::new();
            let element = encoder.begin_nested(LIST_ELEM);
            encoder.put_str(NAME, expr.name());
            encoder.put_bytes(DATA, data.bytes());
            encoder.end_nested(element);
            Expr::decode(&Attributes::new(encoder.bytes()).next().unwrap().unwrap()).unwrap()
        };
        let numgen = Expr::Numgen { dreg: 1, modulus: 2, offset: 0 };
        assert_eq!(changed(&numgen, numgen::TYPE, 0), Expr::Unknown("numgen".into()));
        let dnat = Expr::Dnat { family: Family::Ip, address_reg: 1, port_reg: 9 };
        assert_eq!(changed(&dnat, nat::TYPE, 0), Expr::Unknown("nat".into()));
        assert_eq!(changed(&dnat, nat::FLAGS, 0x13), Expr::Unknown("nat".into()));
        let fib = Expr::Fib { dreg: 1, address: FibAddress::Destination };
        assert_eq!(changed(&fib, fib::FLAGS, 2 | 8), Expr::Unknown("fib".into()));
        let masquerade = Expr::Masquerade { fully_random: false };
        assert_eq!(changed(&masquerade, masq::FLAGS, 4), Expr::Unknown("masq".into()));
        let bitwise = Expr::Bitwise { sreg: 1, dreg: 1, mask: vec![1], xor: vec![0] };
        assert_eq!(changed(&bitwise, bitwise::OP, 1), Expr::Unknown("bitwise".into()));
    }

    #[test]
    fn words_are_numbered_as_the_kernel_prints_them() {
        assert_eq!([0, 1, 2, 3, 4, 5, 8, 12, 15].map(register), [1, 9, 10, 11, 2, 13, 3, 4, 23]);
    }
}
