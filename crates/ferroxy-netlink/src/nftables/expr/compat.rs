//! Expressions of iptables-nft, borrowed: encoded into a rule and decoded from a rule without allocation. They are some native
//! expressions, and the wrappers of xt matches and targets, whose contents the caller encodes and decodes.

use crate::codec::{Attribute, Attributes, Encoder, Fields, Malformed};
use crate::nftables::encode::{put_value, put_verdict};
use crate::nftables::types::VerdictRef;
use crate::nftables::wire::{LIST_ELEM, data};

use super::numbers::*;
use super::{Base, CmpOp};

/// One instruction. All of them use register 1: iptables needs no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expression<'a> {
    /// Loads metadata of the packet, by its key (`NFT_META_*` in `linux/netfilter/nf_tables.h`).
    Meta(u32),
    Payload {
        base: Base,
        offset: u32,
        len: u32,
    },
    Mask(&'a [u8]),
    Cmp {
        op: CmpOp,
        data: &'a [u8],
    },
    Counter,
    Verdict(VerdictRef<'a>),
    Match(Extension<'a>),
    Target(Extension<'a>),
    /// Only decoded: an instruction, or a variant of an instruction, that is not listed here.
    Other,
}

/// An xt match or target: `info` is its struct in the kernel, in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<'a> {
    pub name: &'a str,
    pub revision: u32,
    pub info: &'a [u8],
}

/// Keys of [`Expression::Meta`].
pub mod meta_key {
    pub const MARK: u32 = 3;
    pub const IIFNAME: u32 = 6;
    pub const L4PROTO: u32 = 16;
}

/// Encodes the expressions of one rule, in order.
#[derive(Debug)]
pub struct Expressions<'e>(pub(in crate::nftables) &'e mut Encoder);

/// Name, revision and contents of a match or target.
mod extension {
    pub(super) const NAME: u16 = 1;
    pub(super) const REVISION: u16 = 2;
    pub(super) const INFO: u16 = 3;
}

const REGISTER: u32 = 1;

/// The list of a rule's expressions, as bytes: for tests, and for the fuzzer.
#[doc(hidden)]
pub fn encode_expressions(fill: impl FnOnce(&mut Expressions<'_>)) -> Vec<u8> {
    let mut encoder = Encoder::new();
    fill(&mut Expressions(&mut encoder));
    encoder.bytes().to_vec()
}

/// The expressions in such a list.
#[doc(hidden)]
pub fn decode_expressions(bytes: &[u8]) -> impl Iterator<Item = Result<Expression<'_>, Malformed>> {
    Attributes::new(bytes).map(|attribute| Expression::decode(&attribute?))
}

impl Expressions<'_> {
    pub fn push(&mut self, expression: Expression<'_>) {
        let out = &mut *self.0;
        let element = out.begin_nested(LIST_ELEM);
        out.put_str(NAME, name(&expression));
        let parameters = out.begin_nested(DATA);
        put_parameters(out, &expression);
        out.end_nested(parameters);
        out.end_nested(element);
    }
}

fn name(expression: &Expression<'_>) -> &'static str {
    match expression {
        Expression::Meta(_) => "meta",
        Expression::Payload { .. } => "payload",
        Expression::Mask(_) => "bitwise",
        Expression::Cmp { .. } => "cmp",
        // This variant is only decoded. The kernel refuses an empty name.
        Expression::Other => "",
        Expression::Counter => "counter",
        Expression::Verdict(_) => "immediate",
        Expression::Match(_) => "match",
        Expression::Target(_) => "target",
    }
}

fn put_parameters(out: &mut Encoder, expression: &Expression<'_>) {
    match *expression {
        Expression::Meta(key) => {
            out.put_u32_be(meta::KEY, key);
            out.put_u32_be(meta::DREG, REGISTER);
        }
        Expression::Payload { base, offset, len } => {
            out.put_u32_be(payload::DREG, REGISTER);
            out.put_u32_be(payload::BASE, number(&BASES, base));
            out.put_u32_be(payload::OFFSET, offset);
            out.put_u32_be(payload::LEN, len);
        }
        Expression::Mask(mask) => {
            const ZEROS: [u8; 16] = [0; 16];
            out.put_u32_be(bitwise::SREG, REGISTER);
            out.put_u32_be(bitwise::DREG, REGISTER);
            out.put_u32_be(bitwise::LEN, mask.len() as u32);
            put_value(out, bitwise::MASK, mask);
            put_value(out, bitwise::XOR, ZEROS.get(..mask.len()).unwrap_or(&ZEROS));
        }
        Expression::Cmp { op, data } => {
            out.put_u32_be(cmp::SREG, REGISTER);
            out.put_u32_be(cmp::OP, number(&CMP_OPS, op));
            put_value(out, cmp::DATA, data);
        }
        Expression::Counter => {
            out.put_u64_be(counter::BYTES, 0);
            out.put_u64_be(counter::PACKETS, 0);
        }
        Expression::Verdict(verdict) => {
            out.put_u32_be(immediate::DREG, 0);
            put_verdict(out, immediate::DATA, verdict);
        }
        Expression::Match(Extension { name, revision, info })
        | Expression::Target(Extension { name, revision, info }) => {
            out.put_str(extension::NAME, name);
            out.put_u32_be(extension::REVISION, revision);
            out.put_bytes(extension::INFO, info);
        }
        Expression::Other => {}
    }
}

impl<'a> Expression<'a> {
    /// Reads one element of a rule's list.
    pub(in crate::nftables) fn decode(attribute: &Attribute<'a>) -> Result<Expression<'a>, Malformed> {
        let fields = Fields::<3>::new(attribute.nested())?;
        let parameters = fields.get(DATA).unwrap_or(Attribute { kind: DATA, payload: &[] });
        let parameters = Parameters(Fields::new(parameters.nested())?);
        let known = match fields.need(NAME, "expression name")?.str()? {
            "meta" => parameters.meta()?,
            "payload" => parameters.payload()?,
            "bitwise" => parameters.mask()?,
            "cmp" => parameters.cmp()?,
            "counter" => Some(Expression::Counter),
            "immediate" => parameters.verdict()?,
            "match" => Some(Expression::Match(parameters.extension()?)),
            "target" => Some(Expression::Target(parameters.extension()?)),
            _ => None,
        };
        Ok(known.unwrap_or(Expression::Other))
    }
}

/// The parameters of one expression. Methods return `None` for a variant that iptables does not use.
struct Parameters<'a>(Fields<'a, 9>);

type Known<'a> = Result<Option<Expression<'a>>, Malformed>;

impl<'a> Parameters<'a> {
    fn number(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        self.0.get(kind).map(|value| value.u32_be()).transpose()
    }

    fn value(&self, kind: u16) -> Result<&'a [u8], Malformed> {
        let value = self.0.need(kind, "value")?;
        Ok(Fields::<3>::new(value.nested())?.need(data::VALUE, "value")?.payload)
    }

    fn uses_register(&self, kinds: &[u16]) -> Result<bool, Malformed> {
        for kind in kinds {
            if self.number(*kind)? != Some(REGISTER) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn meta(&self) -> Known<'a> {
        let key = self.number(meta::KEY)?.filter(|_| self.0.get(meta::SREG).is_none());
        Ok(key.filter(|_| self.uses_register(&[meta::DREG]) == Ok(true)).map(Expression::Meta))
    }

    fn payload(&self) -> Known<'a> {
        let base = self.number(payload::BASE)?.and_then(|base| variant(&BASES, base));
        let (offset, len) = (self.number(payload::OFFSET)?, self.number(payload::LEN)?);
        let (Some(base), Some(offset), Some(len), true) =
            (base, offset, len, self.uses_register(&[payload::DREG])?)
        else {
            return Ok(None);
        };
        Ok(Some(Expression::Payload { base, offset, len }))
    }

    fn mask(&self) -> Known<'a> {
        let is_mask = self.uses_register(&[bitwise::SREG, bitwise::DREG])?
            && self.number(bitwise::OP)?.unwrap_or(0) == 0
            && self.value(bitwise::XOR)?.iter().all(|byte| *byte == 0);
        if !is_mask {
            return Ok(None);
        }
        Ok(Some(Expression::Mask(self.value(bitwise::MASK)?)))
    }

    fn cmp(&self) -> Known<'a> {
        let op = self.number(cmp::OP)?.and_then(|op| variant(&CMP_OPS, op));
        let Some(op) = op.filter(|_| self.uses_register(&[cmp::SREG]) == Ok(true)) else { return Ok(None) };
        Ok(Some(Expression::Cmp { op, data: self.value(cmp::DATA)? }))
    }

    fn verdict(&self) -> Known<'a> {
        let Some(verdict) =
            self.0.get(immediate::DATA).filter(|_| self.number(immediate::DREG) == Ok(Some(0)))
        else {
            return Ok(None);
        };
        let Some(verdict) = Fields::<3>::new(verdict.nested())?.get(data::VERDICT) else { return Ok(None) };
        let fields = Fields::<3>::new(verdict.nested())?;
        let code = i32::from_be_bytes(fields.need(data::VERDICT_CODE, "verdict code")?.array()?);
        let chain = || fields.need(data::VERDICT_CHAIN, "verdict chain")?.str();
        Ok(match code {
            data::ACCEPT => Some(VerdictRef::Accept),
            data::DROP => Some(VerdictRef::Drop),
            data::RETURN => Some(VerdictRef::Return),
            data::JUMP => Some(VerdictRef::Jump(chain()?)),
            data::GOTO => Some(VerdictRef::Goto(chain()?)),
            _ => None,
        }
        .map(Expression::Verdict))
    }

    fn extension(&self) -> Result<Extension<'a>, Malformed> {
        Ok(Extension {
            name: self.0.need(extension::NAME, "name of the extension")?.str()?,
            revision: self.0.need(extension::REVISION, "revision of the extension")?.u32_be()?,
            info: self.0.need(extension::INFO, "contents of the extension")?.payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let extension = Extension { name: "comment", revision: 3, info: &[1, 2, 3, 4, 5, 6, 7, 8] };
        let all = [
            Expression::Meta(meta_key::L4PROTO),
            Expression::Payload { base: Base::Network, offset: 12, len: 4 },
            Expression::Payload { base: Base::Transport, offset: 2, len: 2 },
            Expression::Mask(&[255, 240]),
            Expression::Cmp { op: CmpOp::Eq, data: &[6] },
            Expression::Cmp { op: CmpOp::Neq, data: b"eth0\0" },
            Expression::Counter,
            Expression::Verdict(VerdictRef::Accept),
            Expression::Verdict(VerdictRef::Drop),
            Expression::Verdict(VerdictRef::Return),
            Expression::Verdict(VerdictRef::Jump("A")),
            Expression::Verdict(VerdictRef::Goto("B")),
            Expression::Match(extension),
            Expression::Target(extension),
        ];
        let bytes = encode_expressions(|out| all.into_iter().for_each(|expression| out.push(expression)));
        let read: Vec<_> = decode_expressions(&bytes).map(Result::unwrap).collect();
        assert_eq!(read, all);
    }

    #[test]
    fn another_register_or_operation_is_something_else() {
        let changed = |expression: Expression<'_>, kind: u16, value: u32| {
            let mut parameters = Encoder::new();
            put_parameters(&mut parameters, &expression);
            parameters.put_u32_be(kind, value);
            let mut encoder = Encoder::new();
            let element = encoder.begin_nested(LIST_ELEM);
            encoder.put_str(NAME, name(&expression));
            encoder.put_bytes(DATA, parameters.bytes());
            encoder.end_nested(element);
            Expression::decode(&Attributes::new(encoder.bytes()).next().unwrap().unwrap()).unwrap()
                == Expression::Other
        };
        assert!(changed(Expression::Meta(3), meta::DREG, 2));
        assert!(changed(Expression::Meta(3), meta::SREG, 1));
        assert!(changed(Expression::Payload { base: Base::Network, offset: 0, len: 1 }, payload::BASE, 0));
        assert!(changed(Expression::Mask(&[1]), bitwise::OP, 1));
        assert!(changed(Expression::Mask(&[1]), bitwise::SREG, 9));
        assert!(changed(Expression::Cmp { op: CmpOp::Eq, data: &[1] }, cmp::OP, 3));
        assert!(changed(Expression::Verdict(VerdictRef::Drop), immediate::DREG, 1));
    }
}
