//! The settings of iptables mode: the fields of the configuration file that it reads. ipvs mode reads some of them too.

use ferroxy_core::Policy;
use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::{self as contract, Field, Flag, Kind};

/// The bit of the packet mark, as a mask (`0x4000` for bit 14), that carries "masquerade this" to postrouting.
pub fn masquerade_mark(values: &contract::Settings) -> u32 {
    1 << (values.number(&MASQUERADE_BIT) & 31)
}

/// Copies the settings that affect the Intent into the policy.
pub fn shape(values: &contract::Settings, policy: &mut Policy) {
    policy.masquerade_all = values.truth(&MASQUERADE_ALL);
    policy.node_ports_on_loopback = values.truth(&LOCALHOST_NODE_PORTS);
    if policy.node_port_addresses.is_empty() {
        policy.node_port_addresses = vec![NodePortAddress::All];
    }
}

pub static FIELDS: &[Field] =
    &[LOCALHOST_NODE_PORTS, MASQUERADE_ALL, MASQUERADE_BIT, PROGRAM, SYNC_PERIOD, MIN_SYNC_PERIOD];

pub static LOCALHOST_NODE_PORTS: Field = Field {
    name: "iptables.localhostNodePorts",
    kind: Kind::Truth { default: true },
    flag: Some(Flag {
        name: "iptables-localhost-nodeports",
        help: "Serve node ports on 127.0.0.1 (IPv4)",
        value_name: "BOOL",
    }),
    is_live: false,
    is_of_the_original: true,
};

pub static MASQUERADE_ALL: Field = Field {
    name: "iptables.masqueradeAll",
    kind: Kind::Truth { default: false },
    flag: Some(Flag {
        name: "masquerade-all",
        help: "Masquerade all traffic to cluster IPs",
        value_name: "BOOL",
    }),
    is_live: true,
    is_of_the_original: true,
};

pub static MASQUERADE_BIT: Field = Field {
    name: "iptables.masqueradeBit",
    kind: Kind::Number { default: 14, least: 0, most: 31 },
    flag: Some(Flag {
        name: "iptables-masquerade-bit",
        help: "Bit of the packet mark that requests masquerading",
        value_name: "BIT",
    }),
    is_live: true,
    is_of_the_original: true,
};

pub static PROGRAM: Field = Field {
    name: "iptables.program",
    kind: Kind::Text { default: "auto" },
    flag: Some(Flag {
        name: "iptables-program",
        help: "Which program writes the rules: auto, builtin (Ferroxy), tool (the host's iptables-restore), or a \
               directory with the tools",
        value_name: "WHO",
    }),
    is_live: false,
    is_of_the_original: false,
};

pub static SYNC_PERIOD: Field = Field::sync_period("iptables.syncPeriod", "iptables-sync-period");

pub static MIN_SYNC_PERIOD: Field =
    Field::min_sync_period("iptables.minSyncPeriod", "iptables-min-sync-period");
