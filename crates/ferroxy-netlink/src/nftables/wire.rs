//! The numbers of the nf_tables protocol that we use, from the kernel's `linux/netfilter/nf_tables.h` and `nfnetlink.h`.
//! Numbers in attributes are big endian throughout.

/// The size of `nfgenmsg`: family u8, version u8 (0), resource id u16 in big endian.
pub(super) const HEADER: usize = 4;
pub(super) const SUBSYSTEM: u16 = crate::numbers::subsystem::NFTABLES;
pub(super) const NOTIFICATION_GROUP: u32 = 7;
/// The maximum size of userdata of any object.
pub(super) const USERDATA_MAX: usize = 256;

pub(super) const NFPROTO_IPV4: u8 = 2;
pub(super) const NFPROTO_IPV6: u8 = 10;

/// Message types, with the subsystem in the upper byte except for the batch's brackets.
pub(super) mod message {
    const BASE: u16 = super::SUBSYSTEM << 8;
    pub(crate) const BATCH_BEGIN: u16 = 16;
    pub(crate) const BATCH_END: u16 = 17;
    pub(crate) const NEWTABLE: u16 = BASE;
    pub(crate) const GETTABLE: u16 = BASE | 1;
    pub(crate) const DELTABLE: u16 = BASE | 2;
    pub(crate) const NEWCHAIN: u16 = BASE | 3;
    pub(crate) const GETCHAIN: u16 = BASE | 4;
    pub(crate) const DELCHAIN: u16 = BASE | 5;
    pub(crate) const NEWRULE: u16 = BASE | 6;
    pub(crate) const GETRULE: u16 = BASE | 7;
    pub(crate) const DELRULE: u16 = BASE | 8;
    pub(crate) const NEWSET: u16 = BASE | 9;
    pub(crate) const GETSET: u16 = BASE | 10;
    pub(crate) const DELSET: u16 = BASE | 11;
    pub(crate) const NEWSETELEM: u16 = BASE | 12;
    pub(crate) const GETSETELEM: u16 = BASE | 13;
    pub(crate) const DELSETELEM: u16 = BASE | 14;
    pub(crate) const NEWGEN: u16 = BASE | 15;
    pub(crate) const GETGEN: u16 = BASE | 16;
    pub(crate) const NEWOBJ: u16 = BASE | 18;
    pub(crate) const DELOBJ: u16 = BASE | 20;
    pub(crate) const NEWFLOWTABLE: u16 = BASE | 22;
    pub(crate) const DELFLOWTABLE: u16 = BASE | 24;
}

/// The attribute kind of the entries of every list.
pub(super) const LIST_ELEM: u16 = 1;
/// The attribute kind of the table's name, which is the same in every message.
pub(super) const ANY_TABLE: u16 = 1;

pub(super) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const USERDATA: u16 = 6;
    pub(crate) const FLAG_DORMANT: u32 = 1;
}

pub(super) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const USERDATA: u16 = 12;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
    pub(crate) const POLICY_ACCEPT: u32 = 1;
}

pub(super) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const COMPAT: u16 = 5;
    pub(crate) const POSITION: u16 = 6;
    pub(crate) const USERDATA: u16 = 7;

    pub(crate) const COMPAT_PROTOCOL: u16 = 1;
    pub(crate) const COMPAT_FLAGS: u16 = 2;
    pub(crate) const COMPAT_INVERTED: u32 = 2;
}

pub(super) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESC: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const TIMEOUT: u16 = 11;
    pub(crate) const USERDATA: u16 = 13;

    pub(crate) const DESC_SIZE: u16 = 1;
    pub(crate) const DESC_CONCAT: u16 = 2;
    pub(crate) const FIELD_LEN: u16 = 1;

    pub(crate) const FLAG_ANONYMOUS: u32 = 0x1;
    pub(crate) const FLAG_INTERVAL: u32 = 0x4;
    pub(crate) const FLAG_MAP: u32 = 0x8;
    pub(crate) const FLAG_TIMEOUT: u32 = 0x10;
    pub(crate) const FLAG_EVAL: u32 = 0x20;
    pub(crate) const FLAG_CONCAT: u32 = 0x80;

    pub(crate) const TYPE_VERDICT: u32 = 0xffff_ff00;
}

pub(super) mod element {
    pub(crate) const LIST_TABLE: u16 = 1;
    pub(crate) const LIST_SET: u16 = 2;
    pub(crate) const LIST_ELEMENTS: u16 = 3;

    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const USERDATA: u16 = 6;
    pub(crate) const EXPR: u16 = 7;
    pub(crate) const KEY_END: u16 = 10;
    pub(crate) const FLAG_INTERVAL_END: u32 = 1;
}

pub(super) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;

    pub(crate) const DROP: i32 = 0;
    pub(crate) const ACCEPT: i32 = 1;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
    pub(crate) const RETURN: i32 = -5;
}

pub(super) const GENERATION_ID: u16 = 1;
