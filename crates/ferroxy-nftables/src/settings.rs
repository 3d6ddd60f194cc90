//! The settings of nftables mode: the fields of the configuration file that it reads.

use std::time::Duration;

use ferroxy_core::Policy;
use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::{self as contract, Field, Flag, Kind, Zero};

/// What the rules depend on, besides the Intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The bit of the packet mark, as a mask (`0x4000` for bit 14), that carries "masquerade this" to postrouting.
    pub masquerade_mark: u32,
}

impl Settings {
    pub fn read(values: &contract::Settings) -> Settings {
        Settings { masquerade_mark: 1 << (values.number(&MASQUERADE_BIT) & 31) }
    }
}

/// The values where nothing is configured.
impl Default for Settings {
    fn default() -> Settings {
        Settings::read(&contract::Settings::default())
    }
}

/// Enters what concerns the Intent into the policy.
pub fn shape(values: &contract::Settings, policy: &mut Policy) {
    policy.masquerade_all = values.truth(&MASQUERADE_ALL);
    if policy.node_port_addresses.is_empty() {
        policy.node_port_addresses = vec![NodePortAddress::Primary];
    }
}

pub static FIELDS: &[Field] = &[MASQUERADE_ALL, MASQUERADE_BIT, SYNC_PERIOD, MIN_SYNC_PERIOD];

pub static MASQUERADE_ALL: Field = Field {
    name: "nftables.masqueradeAll",
    kind: Kind::Truth { default: false },
    flag: Some(Flag {
        name: "masquerade-all",
        help: "Masquerade all traffic to cluster IPs",
        value_name: "BOOL",
    }),
    is_live: true,
};

pub static MASQUERADE_BIT: Field = Field {
    name: "nftables.masqueradeBit",
    kind: Kind::Number { default: 14, least: 0, most: 31 },
    flag: None,
    is_live: true,
};

pub static SYNC_PERIOD: Field = Field {
    name: "nftables.syncPeriod",
    kind: Kind::Duration { default: Duration::from_secs(30), default_in_file: None, zero: Zero::Refused },
    flag: Some(Flag {
        name: "iptables-sync-period",
        help: "Verify the rules at least this often",
        value_name: "DURATION",
    }),
    is_live: true,
};

pub static MIN_SYNC_PERIOD: Field = Field {
    name: "nftables.minSyncPeriod",
    kind: Kind::Duration {
        default: Duration::from_secs(1),
        default_in_file: None,
        zero: Zero::DefaultInFile,
    },
    flag: Some(Flag {
        name: "iptables-min-sync-period",
        help: "Apply changes at most this often",
        value_name: "DURATION",
    }),
    is_live: true,
};
