//! Encodes expressions as attributes.

use crate::codec::Encoder;
use crate::nftables::encode::{put_value, put_verdict};
use crate::nftables::wire::LIST_ELEM;

use super::Expr;
use super::numbers::*;

impl Expr {
    /// Appends the expression as one element of a rule's list.
    pub(in crate::nftables) fn encode(&self, out: &mut Encoder) {
        self.encode_as(LIST_ELEM, out);
    }

    fn encode_as(&self, kind: u16, out: &mut Encoder) {
        let element = out.begin_nested(kind);
        out.put_str(NAME, self.name());
        let data = out.begin_nested(DATA);
        self.encode_data(out);
        out.end_nested(data);
        out.end_nested(element);
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Payload { .. } | Self::PayloadSet { .. } => "payload",
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Ct { .. } => "ct",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } => "lookup",
            Self::Immediate(_) | Self::ImmediateData { .. } => "immediate",
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

    pub(super) fn encode_data(&self, out: &mut Encoder) {
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
            Self::ImmediateData { dreg, data } => {
                out.put_u32_be(immediate::DREG, *dreg);
                put_value(out, immediate::DATA, data);
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
            // If the end of a range is missing, the kernel uses its beginning.
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
            Self::Dynset { set, op, sreg_key, sreg_data, timeout_ms, counter } => {
                out.put_str(dynset::SET, set);
                out.put_u32_be(dynset::OP, number(&DYNSET_OPS, *op));
                out.put_u32_be(dynset::SREG_KEY, *sreg_key);
                if let Some(sreg_data) = sreg_data {
                    out.put_u32_be(dynset::SREG_DATA, *sreg_data);
                }
                if let Some(timeout_ms) = timeout_ms {
                    out.put_u64_be(dynset::TIMEOUT, *timeout_ms);
                }
                if *counter {
                    out.put_u32_be(dynset::FLAGS, dynset::FLAG_EXPR);
                    Self::Counter.encode_as(dynset::EXPR, out);
                }
            }
            Self::Masquerade { fully_random: false } | Self::Counter | Self::Unknown(_) => {}
        }
    }
}
