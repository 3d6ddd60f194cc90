//! Decodes attributes to expressions. An expression that this crate does not write decodes to [`Expr::Unknown`].

use crate::codec::{Attribute, Fields, Malformed};
use crate::nftables::decode::{read_value, read_verdict};
use crate::nftables::types::Counter;

use super::Expr;
use super::numbers::*;

impl Expr {
    /// Reads one element of a rule's list.
    pub(in crate::nftables) fn decode(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let fields = Fields::<3>::new(attribute.nested())?;
        let name = fields.need(NAME, "expression name")?.str()?;
        // Expressions without any parameter may lack the attribute for them.
        let data = fields.get(DATA).unwrap_or(Attribute { kind: DATA, payload: &[] });
        let known = Self::decode_data(name, &Read(Fields::new(data.nested())?))?;
        Ok(known.unwrap_or_else(|| Self::Unknown(name.to_owned())))
    }

    /// `None` for expressions that this crate does not write: they must not be mistaken for expressions that it writes.
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

/// Packets and bytes of a counter; `None` for other expressions.
pub(in crate::nftables) fn read_counter(attribute: &Attribute<'_>) -> Result<Option<Counter>, Malformed> {
    let fields = Fields::<3>::new(attribute.nested())?;
    if fields.need(NAME, "expression name")?.str()? != "counter" {
        return Ok(None);
    }
    // The counter in a request to create a rule or element has no data.
    let Some(data) = fields.get(DATA) else { return Ok(Some(Counter::default())) };
    let fields = Fields::<3>::new(data.nested())?;
    let number = |kind| fields.get(kind).map_or(Ok(0), |value: Attribute<'_>| value.u64_be());
    Ok(Some(Counter { packets: number(counter::PACKETS)?, bytes: number(counter::BYTES)? }))
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
        let data = read_value(&self.need(cmp::DATA)?)?.to_vec();
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
            mask: read_value(&self.need(bitwise::MASK)?)?.to_vec(),
            xor: read_value(&self.need(bitwise::XOR)?)?.to_vec(),
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
        let (dreg, data) = (self.number(immediate::DREG)?, self.need(immediate::DATA)?);
        if dreg != 0 {
            return Ok(Some(Expr::ImmediateData { dreg, data: read_value(&data)?.to_vec() }));
        }
        Ok(read_verdict(&data)?.map(|verdict| Expr::Immediate(verdict.into())))
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
        // Further flags restrict the lookup to a mark or an interface.
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
        // We never write an inverted `dynset`, or one with a list of expressions for the element.
        let inverted = self.optional(dynset::FLAGS)?.unwrap_or(0) & dynset::FLAG_INVERT != 0;
        if inverted || self.0.get(dynset::EXPRESSIONS).is_some() {
            return Ok(None);
        }
        let counter = match self.0.get(dynset::EXPR) {
            None => false,
            Some(expr) if read_counter(&expr)?.is_some() => true,
            Some(_) => return Ok(None),
        };
        let timeout = self.0.get(dynset::TIMEOUT).map(|attribute| attribute.u64_be()).transpose()?;
        Ok(Some(Expr::Dynset {
            set: self.need(dynset::SET)?.str()?.to_owned(),
            op,
            sreg_key: self.number(dynset::SREG_KEY)?,
            sreg_data: self.optional(dynset::SREG_DATA)?,
            // The kernel always sends this attribute: 0 means no timeout.
            timeout_ms: timeout.filter(|timeout| *timeout != 0),
            counter,
        }))
    }
}
