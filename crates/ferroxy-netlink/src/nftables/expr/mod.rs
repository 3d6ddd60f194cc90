//! Expressions: the instructions that rules are made of. Registers and offsets are raw numbers, as
//! `nft --debug=netlink` shows them. Callers decide what a sequence of expressions does.

mod compat;
mod decode;
mod encode;
mod numbers;

pub use compat::{Expression, Expressions, Extension, meta_key};
#[doc(hidden)]
pub use compat::{decode_expressions, encode_expressions};
pub(super) use decode::read_counter;

use super::types::{Family, Verdict};

/// Header that a payload expression counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    Network,
    Transport,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetaKey {
    L4proto,
    Priority,
    Mark,
    Iifname,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CtKey {
    State,
    /// The packet's direction: one byte, with the numbers of [`CtDirection`].
    Direction,
    Status,
    SrcIp,
    DstIp,
    SrcIp6,
    DstIp6,
    ProtoSrc,
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

/// One instruction. Registers: 0 is the verdict, 1 to 4 have 16 bytes, 8 to 23 are the same memory in 4-byte words. When
/// the kernel lists the first word of a 16-byte register, it uses the latter's number, as [`register`] does.
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
    /// Without `dreg` a match. With `dreg` it loads the element's data into that register; register 0 executes a verdict.
    Lookup {
        set: String,
        sreg: u32,
        dreg: Option<u32>,
        invert: bool,
    },
    Immediate(Verdict),
    ImmediateData {
        dreg: u32,
        data: Vec<u8>,
    },
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
        /// The element counts the packets that meet this instruction; see `Connection::counters`.
        counter: bool,
    },
    /// Packets and bytes are not decoded.
    Counter,
    /// Only decoded: an instruction, or a variant of an instruction, that this crate does not write. The kernel refuses it.
    Unknown(String),
}

/// The number of the 4-byte word `index` (0 to 15), as the kernel and `nft` print it.
pub const fn register(index: u32) -> u32 {
    if index.is_multiple_of(4) { 1 + index / 4 } else { 8 + index }
}

#[cfg(test)]
mod tests {
    use super::numbers::{DATA, NAME, bitwise, dynset, fib, masq, nat, numgen};
    use super::*;
    use crate::codec::{Attributes, Encoder};
    use crate::nftables::wire::LIST_ELEM;

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
        for key in [
            C::State,
            C::Direction,
            C::Status,
            C::SrcIp,
            C::DstIp,
            C::SrcIp6,
            C::DstIp6,
            C::ProtoSrc,
            C::ProtoDst,
        ] {
            for direction in [None, Some(CtDirection::Original), Some(CtDirection::Reply)] {
                let expr = Expr::Ct { key, direction, dreg: 1 };
                assert_eq!(round_trip(&expr), expr);
            }
        }
        for op in [DynsetOp::Add, DynsetOp::Update, DynsetOp::Delete] {
            for counter in [false, true] {
                let (set, sreg_data, timeout_ms) = ("s".into(), Some(2), Some(5));
                let expr = Expr::Dynset { set, op, sreg_key: 1, sreg_data, timeout_ms, counter };
                assert_eq!(round_trip(&expr), expr);
            }
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
            Expr::ImmediateData { dreg: 2, data: vec![0x1f, 0x90] },
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
        let (set, op) = ("s".into(), DynsetOp::Update);
        let counting =
            Expr::Dynset { set, op, sreg_key: 1, sreg_data: None, timeout_ms: None, counter: true };
        assert_eq!(changed(&counting, dynset::FLAGS, dynset::FLAG_INVERT), Expr::Unknown("dynset".into()));
        assert_eq!(changed(&counting, dynset::EXPRESSIONS, 0), Expr::Unknown("dynset".into()));
    }

    #[test]
    fn words_are_numbered_as_the_kernel_prints_them() {
        assert_eq!([0, 1, 2, 3, 4, 5, 8, 12, 15].map(register), [1, 9, 10, 11, 2, 13, 3, 4, 23]);
    }
}
