//! Numbers of IPVS' generic netlink family (`linux/ip_vs.h`) and of the family that looks up families. Nothing but numbers.

/// `genlmsghdr`: command u8, version u8, reserved u16.
pub(super) const HEADER: usize = 4;

/// The family that looks up other families (`nlctrl`). Its number is fixed.
pub(super) mod control {
    pub(crate) const FAMILY: u16 = 0x10;
    pub(crate) const VERSION: u8 = 1;
    pub(crate) const GET_FAMILY: u8 = 3;
    pub(crate) const ID: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const COUNT: usize = 3;
}

pub(super) const NAME: &str = "IPVS";
pub(super) const VERSION: u8 = 1;

/// `IPVS_CMD_*`.
pub(super) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DELETE_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DESTINATION: u8 = 5;
    pub(crate) const SET_DESTINATION: u8 = 6;
    pub(crate) const DELETE_DESTINATION: u8 = 7;
    pub(crate) const GET_DESTINATION: u8 = 8;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
}

/// Attributes of a command.
pub(super) mod top {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DESTINATION: u16 = 2;
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const TIMEOUT_UDP: u16 = 6;
    pub(crate) const COUNT: usize = 7;
}

/// Attributes of a virtual server.
pub(super) mod service {
    pub(crate) const FAMILY: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDRESS: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const MARK: u16 = 5;
    pub(crate) const SCHEDULER: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;
    pub(crate) const COUNT: usize = 10;

    /// A bit of FLAGS that the kernel keeps for itself: the server is in its hash table.
    pub(crate) const HASHED: u32 = 0x2;
}

/// Attributes of a destination.
pub(super) mod destination {
    pub(crate) const ADDRESS: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const METHOD: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const UPPER_THRESHOLD: u16 = 5;
    pub(crate) const LOWER_THRESHOLD: u16 = 6;
    pub(crate) const ACTIVE: u16 = 7;
    pub(crate) const INACTIVE: u16 = 8;
    pub(crate) const PERSISTENT: u16 = 9;
    pub(crate) const FAMILY: u16 = 11;
    pub(crate) const COUNT: usize = 12;

    /// The bits of METHOD that say how packets are forwarded.
    pub(crate) const METHOD_MASK: u32 = 0x7;
}
