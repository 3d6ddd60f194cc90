//! The kernel's numbers for the parameters of expressions and for their values. Nothing but numbers.

use crate::nftables::types::Family;
use crate::nftables::wire::{NFPROTO_IPV4, NFPROTO_IPV6};

use super::{Base, CmpOp, CtDirection, CtKey, DynsetOp, FibAddress, MetaKey};

/// Every expression has a name and parameters.
pub(super) const NAME: u16 = 1;
pub(super) const DATA: u16 = 2;

pub(super) mod payload {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const BASE: u16 = 2;
    pub(crate) const OFFSET: u16 = 3;
    pub(crate) const LEN: u16 = 4;
    pub(crate) const SREG: u16 = 5;
    pub(crate) const CSUM_TYPE: u16 = 6;
    pub(crate) const CSUM_OFFSET: u16 = 7;
    pub(crate) const CSUM_FLAGS: u16 = 8;
}

pub(super) mod meta {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const KEY: u16 = 2;
    pub(crate) const SREG: u16 = 3;
}

pub(super) mod ct {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const KEY: u16 = 2;
    pub(crate) const DIRECTION: u16 = 3;
}

pub(super) mod cmp {
    pub(crate) const SREG: u16 = 1;
    pub(crate) const OP: u16 = 2;
    pub(crate) const DATA: u16 = 3;
}

pub(super) mod bitwise {
    pub(crate) const SREG: u16 = 1;
    pub(crate) const DREG: u16 = 2;
    pub(crate) const LEN: u16 = 3;
    pub(crate) const MASK: u16 = 4;
    pub(crate) const XOR: u16 = 5;
    pub(crate) const OP: u16 = 6;
}

pub(super) mod lookup {
    pub(crate) const SET: u16 = 1;
    pub(crate) const SREG: u16 = 2;
    pub(crate) const DREG: u16 = 3;
    pub(crate) const FLAGS: u16 = 5;
    pub(crate) const FLAG_INVERT: u32 = 1;
}

pub(super) mod immediate {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const DATA: u16 = 2;
}

pub(super) mod numgen {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const MODULUS: u16 = 2;
    pub(crate) const TYPE: u16 = 3;
    pub(crate) const OFFSET: u16 = 4;
    pub(crate) const RANDOM: u32 = 1;
}

pub(super) mod fib {
    pub(crate) const DREG: u16 = 1;
    pub(crate) const RESULT: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const ADDRESS_TYPE: u32 = 3;
}

pub(super) mod nat {
    pub(crate) const TYPE: u16 = 1;
    pub(crate) const FAMILY: u16 = 2;
    pub(crate) const ADDR_MIN: u16 = 3;
    pub(crate) const ADDR_MAX: u16 = 4;
    pub(crate) const PROTO_MIN: u16 = 5;
    pub(crate) const PROTO_MAX: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const DNAT: u32 = 1;
    /// The flags for "has an address" and "has a port". The kernel sets them itself.
    pub(crate) const MAPS_ADDRESS_AND_PORT: u32 = 0x3;
}

pub(super) mod masq {
    pub(crate) const FLAGS: u16 = 1;
    pub(crate) const PROTO_MIN: u16 = 2;
    pub(crate) const FULLY_RANDOM: u32 = 0x10;
}

pub(super) mod reject {
    pub(crate) const TYPE: u16 = 1;
    pub(crate) const CODE: u16 = 2;
}

pub(super) mod dynset {
    pub(crate) const SET: u16 = 1;
    pub(crate) const OP: u16 = 3;
    pub(crate) const SREG_KEY: u16 = 4;
    pub(crate) const SREG_DATA: u16 = 5;
    pub(crate) const TIMEOUT: u16 = 6;
    pub(crate) const EXPR: u16 = 7;
    pub(crate) const FLAGS: u16 = 9;
    pub(crate) const EXPRESSIONS: u16 = 10;
    pub(crate) const FLAG_INVERT: u32 = 1;
    pub(crate) const FLAG_EXPR: u32 = 2;
}

pub(super) mod counter {
    pub(crate) const BYTES: u16 = 1;
    pub(crate) const PACKETS: u16 = 2;
}

/// Enums and the kernel's numbers for them, each written down once for both directions.
pub(super) const BASES: [(Base, u32); 2] = [(Base::Network, 1), (Base::Transport, 2)];
pub(super) const META_KEYS: [(MetaKey, u32); 4] =
    [(MetaKey::L4proto, 16), (MetaKey::Priority, 2), (MetaKey::Mark, 3), (MetaKey::Iifname, 6)];
pub(super) const CT_KEYS: [(CtKey, u32); 9] = [
    (CtKey::State, 0),
    (CtKey::Direction, 1),
    (CtKey::Status, 2),
    (CtKey::SrcIp, 19),
    (CtKey::DstIp, 20),
    (CtKey::SrcIp6, 21),
    (CtKey::DstIp6, 22),
    (CtKey::ProtoSrc, 11),
    (CtKey::ProtoDst, 12),
];
pub(super) const CT_DIRECTIONS: [(CtDirection, u32); 2] =
    [(CtDirection::Original, 0), (CtDirection::Reply, 1)];
pub(super) const CMP_OPS: [(CmpOp, u32); 2] = [(CmpOp::Eq, 0), (CmpOp::Neq, 1)];
pub(super) const DYNSET_OPS: [(DynsetOp, u32); 3] =
    [(DynsetOp::Add, 0), (DynsetOp::Update, 1), (DynsetOp::Delete, 2)];
pub(super) const FIB_ADDRESSES: [(FibAddress, u32); 2] =
    [(FibAddress::Source, 1), (FibAddress::Destination, 2)];
pub(super) const FAMILIES: [(Family, u32); 2] =
    [(Family::Ip, NFPROTO_IPV4 as u32), (Family::Ip6, NFPROTO_IPV6 as u32)];

/// Every table above contains every variant: the test `every_variant_has_a_number` checks it.
pub(super) fn number<T: Copy + PartialEq>(table: &[(T, u32)], wanted: T) -> u32 {
    table.iter().find(|(variant, _)| *variant == wanted).map_or(u32::MAX, |(_, number)| *number)
}

pub(super) fn variant<T: Copy>(table: &[(T, u32)], wanted: u32) -> Option<T> {
    table.iter().find(|(_, number)| *number == wanted).map(|(variant, _)| *variant)
}
