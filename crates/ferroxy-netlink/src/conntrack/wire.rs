//! The numbers of ctnetlink (`nfnetlink_conntrack.h`), which `libc` does not have. No behaviour.

/// `nfgenmsg`: family u8, version u8, resource id u16.
pub(super) const HEADER: usize = 4;

/// Message types: the subsystem and what to do.
pub(super) mod message {
    const CTNETLINK: u16 = crate::numbers::subsystem::CTNETLINK << 8;
    pub(crate) const NEW: u16 = CTNETLINK;
    pub(crate) const GET: u16 = CTNETLINK | 1;
    pub(crate) const DELETE: u16 = CTNETLINK | 2;
}

/// `CTA_*`: an entry, or a request about one.
pub(super) mod entry {
    pub(crate) const ORIGINAL: u16 = 1;
    pub(crate) const REPLY: u16 = 2;
    pub(crate) const STATUS: u16 = 3;
    pub(crate) const TIMEOUT: u16 = 7;
    pub(crate) const ID: u16 = 12;
    pub(crate) const ZONE: u16 = 18;
    pub(crate) const FILTER: u16 = 25;
    pub(crate) const STATUS_MASK: u16 = 26;
    pub(crate) const COUNT: usize = 27;
}

/// `CTA_TUPLE_*`.
pub(super) mod tuple {
    pub(crate) const IP: u16 = 1;
    pub(crate) const PROTO: u16 = 2;
    pub(crate) const ZONE: u16 = 3;
    pub(crate) const COUNT: usize = 4;
}

/// `CTA_IP_*`.
pub(super) mod ip {
    pub(crate) const V4_SOURCE: u16 = 1;
    pub(crate) const V4_DESTINATION: u16 = 2;
    pub(crate) const V6_SOURCE: u16 = 3;
    pub(crate) const V6_DESTINATION: u16 = 4;
    pub(crate) const COUNT: usize = 5;
}

/// `CTA_PROTO_*`.
pub(super) mod proto {
    pub(crate) const NUMBER: u16 = 1;
    pub(crate) const SOURCE_PORT: u16 = 2;
    pub(crate) const DESTINATION_PORT: u16 = 3;
    pub(crate) const COUNT: usize = 4;
}

/// `CTA_FILTER_*`: which fields of the original tuple to compare. The bits are in a private header of the kernel, but
/// libnetfilter_conntrack has them too, so they cannot change.
pub(super) mod filter {
    pub(crate) const ORIGINAL_FLAGS: u16 = 1;
    pub(crate) const DESTINATION: u32 = 1 << 1;
    pub(crate) const PROTOCOL: u32 = 1 << 3;
    pub(crate) const DESTINATION_PORT: u32 = 1 << 5;
}
