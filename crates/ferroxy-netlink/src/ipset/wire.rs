//! Numbers of the ipset protocol (`linux/netfilter/ipset/ip_set.h`). Nothing but numbers.

/// `nfgenmsg`: family u8, version u8, resource id u16. Sets are found by name; the kernel ignores it.
pub(super) const HEADER: usize = 4;

/// Supported protocol versions. Of what this crate uses, 7 only adds the numbers of sets. Kernels before 4.20 only have 6.
pub(super) const NEWEST_PROTOCOL: u8 = 7;
pub(super) const OLDEST_PROTOCOL: u8 = 6;

/// Marks a number as big endian. The kernel refuses numbers without this mark.
pub(super) const NET_ORDER: u16 = 1 << 14;

/// Message types: the subsystem and what to do.
pub(super) mod message {
    const IPSET: u16 = crate::numbers::subsystem::IPSET << 8;
    pub(crate) const PROTOCOL: u16 = IPSET | 1;
    pub(crate) const CREATE: u16 = IPSET | 2;
    pub(crate) const DESTROY: u16 = IPSET | 3;
    pub(crate) const SWAP: u16 = IPSET | 6;
    pub(crate) const LIST: u16 = IPSET | 7;
    pub(crate) const ADD: u16 = IPSET | 9;
    pub(crate) const DELETE: u16 = IPSET | 10;
    pub(crate) const TYPE: u16 = IPSET | 13;
}

/// Attributes of a command.
pub(super) mod command {
    pub(crate) const PROTOCOL: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const TYPE_NAME: u16 = 3;
    pub(crate) const OTHER_NAME: u16 = 3;
    pub(crate) const REVISION: u16 = 4;
    pub(crate) const FAMILY: u16 = 5;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const DATA: u16 = 7;
    /// A list of DATA.
    pub(crate) const MEMBERS: u16 = 8;
    pub(crate) const LINE: u16 = 9;
    pub(crate) const OLDEST: u16 = 10;
    /// Only in protocol 7.
    pub(crate) const NUMBER: u16 = 11;
    pub(crate) const COUNT: usize = 12;

    /// Bits of FLAGS in a request to list sets.
    pub(crate) const ONLY_NAMES: u32 = 1 << 1;
    /// Without the members.
    pub(crate) const ONLY_DESCRIPTIONS: u32 = 1 << 2;
}

/// Attributes inside DATA: of a member, and of a set's description.
pub(super) mod data {
    pub(crate) const IP: u16 = 1;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const LAST_PORT: u16 = 5;
    pub(crate) const PROTOCOL: u16 = 7;
    pub(crate) const LINE: u16 = 9;
    /// These two have other meanings in a description.
    pub(crate) const SECOND_IP: u16 = 20;
    pub(crate) const SECOND_PREFIX: u16 = 21;

    pub(crate) const HASH_SIZE: u16 = 18;
    pub(crate) const MOST_MEMBERS: u16 = 19;
    pub(crate) const REFERENCES: u16 = 25;
    pub(crate) const COUNT: usize = 26;
}

/// Attributes inside an address.
pub(super) mod address {
    pub(crate) const V4: u16 = 1;
    pub(crate) const V6: u16 = 2;
    pub(crate) const COUNT: usize = 3;
}

/// The protocol's own error numbers, which are larger than any errno.
pub(super) mod refusal {
    pub(crate) const PROTOCOL: u32 = 4097;
    pub(crate) const NO_SUCH_TYPE: u32 = 4098;
    pub(crate) const TOO_MANY_SETS: u32 = 4099;
    pub(crate) const BUSY: u32 = 4100;
    pub(crate) const OTHER_EXISTS: u32 = 4101;
    pub(crate) const OTHER_TYPE: u32 = 4102;
    pub(crate) const MEMBER_EXISTS: u32 = 4103;
    pub(crate) const PREFIX: u32 = 4104;
    pub(crate) const FAMILY: u32 = 4106;
    pub(crate) const REFERENCED: u32 = 4108;
    /// From here on the meaning depends on the type of the set: this one is "full" for a hash, "out of range" for a bitmap.
    pub(crate) const OF_THE_TYPE: u32 = 4352;
}
