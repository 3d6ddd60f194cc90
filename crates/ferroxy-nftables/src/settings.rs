//! The settings of nftables mode: the fields of the configuration file that it reads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferroxy_core::policy::NodePortAddress;
use ferroxy_core::{Family, Policy};
use ferroxy_dataplane::{self as contract, Field, Flag, Kind};

/// What the rules depend on, besides the Intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The bit of the packet mark, as a mask (`0x4000` for bit 14), that carries "masquerade this" to postrouting.
    pub masquerade_mark: u32,
    /// Endpoints are the listeners of a proxy on this host (userspace mode).
    pub proxy: Option<Proxy>,
}

/// A proxy on this host, whose listeners the rules lead to. SCTP is translated as without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proxy {
    /// A bit of the packet mark, as a mask: the proxy's own connections carry it, and no rule translates them.
    pub mark: u32,
    /// Where it listens for translated connections. Nobody else may use these addresses.
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    /// It listens on cluster IPs themselves, which local routes make addresses of the host.
    pub binds: bool,
}

impl Proxy {
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

impl Settings {
    pub fn read(values: &contract::Settings) -> Settings {
        Settings { masquerade_mark: 1 << (values.number(&MASQUERADE_BIT) & 31), proxy: None }
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
    policy.listen_on_loopback = values.truth(&LOCALHOST_NODE_PORTS);
    if policy.node_port_addresses.is_empty() {
        policy.node_port_addresses = vec![NodePortAddress::Primary];
    }
}

pub static FIELDS: &[Field] =
    &[LOCALHOST_NODE_PORTS, MASQUERADE_ALL, MASQUERADE_BIT, SYNC_PERIOD, MIN_SYNC_PERIOD];

pub static LOCALHOST_NODE_PORTS: Field = Field {
    name: "nftables.localhostNodePorts",
    kind: Kind::Truth { default: true },
    flag: Some(Flag {
        name: "nftables-localhost-nodeports",
        help: "Serve node ports on 127.0.0.1 and ::1 by a proxy, if nodePortAddresses names them",
        value_name: "BOOL",
    }),
    is_live: true,
    is_of_the_original: false,
};

pub static MASQUERADE_ALL: Field = Field {
    name: "nftables.masqueradeAll",
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
    name: "nftables.masqueradeBit",
    kind: Kind::Number { default: 14, least: 0, most: 31 },
    flag: None,
    is_live: true,
    is_of_the_original: true,
};

pub static SYNC_PERIOD: Field = Field::sync_period("nftables.syncPeriod", "iptables-sync-period");

pub static MIN_SYNC_PERIOD: Field =
    Field::min_sync_period("nftables.minSyncPeriod", "iptables-min-sync-period");
