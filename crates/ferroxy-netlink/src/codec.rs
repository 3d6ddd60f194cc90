//! Netlink messages and attributes, to bytes and back. Knows the framing only: no protocol, no socket.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{Attribute, Attributes, Fields, Malformed, Message, Messages};
pub use encode::{Encoder, OpenMessage, OpenNest};
#[cfg(test)]
pub(crate) use tests::{host, payload};

/// `nlmsghdr`: length u32, type u16, flags u16, sequence u32, port u32; all in host byte order.
pub const MESSAGE_HEADER: usize = 16;
/// `nlattr`: length u16, type u16.
pub const ATTRIBUTE_HEADER: usize = 4;
/// The longest payload of an attribute: its length field has 16 bits and includes the header.
pub const ATTRIBUTE_MAX: usize = u16::MAX as usize - ATTRIBUTE_HEADER;

const NESTED: u16 = 1 << 15;
const NET_BYTEORDER: u16 = 1 << 14;

/// Message types every netlink protocol shares.
pub mod kind {
    pub const NOOP: u16 = 1;
    pub const ERROR: u16 = 2;
    pub const DONE: u16 = 3;
    pub const OVERRUN: u16 = 4;
}

/// Message flags (`NLM_F_*`). The same bits mean different things in requests, in answers and in acknowledgements.
pub mod flag {
    pub const REQUEST: u16 = 0x1;
    pub const MULTI: u16 = 0x2;
    pub const ACK: u16 = 0x4;
    pub const ECHO: u16 = 0x8;
    pub const DUMP_INTR: u16 = 0x10;

    pub const DUMP: u16 = 0x300;

    pub const REPLACE: u16 = 0x100;
    pub const EXCL: u16 = 0x200;
    pub const CREATE: u16 = 0x400;
    pub const APPEND: u16 = 0x800;

    pub const CAPPED: u16 = 0x100;
    pub const ACK_TLVS: u16 = 0x200;
}

/// Rounds up to the 4 bytes that messages and attributes are aligned to.
pub const fn align(len: usize) -> usize {
    len.wrapping_add(3) & !3
}
