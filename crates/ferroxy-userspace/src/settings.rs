//! The settings of userspace mode: the fields of the configuration file that it reads.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ferroxy_core::Policy;
use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::{self as contract, Field, Flag, Kind};
use ferroxy_iptables::settings::{
    LOCALHOST_NODE_PORTS, MASQUERADE_ALL, MASQUERADE_BIT, MIN_SYNC_PERIOD, PROGRAM, SYNC_PERIOD,
    masquerade_mark,
};
use ferroxy_nftables::settings::Proxy;
use ferroxy_pools::balancing::ANNOTATIONS;
use ferroxy_pools::settings::udp_idle;
pub use ferroxy_pools::settings::{PORT_RANGE, UDP_IDLE_TIMEOUT};

/// The address at which translated connections arrive. IANA reserves it for hosts that need an address and have none
/// (RFC 7600): no router forwards to it. The host gets it by a local route.
pub const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// The same for IPv6: a unique local address.
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x6572, 0x726f, 0x7879, 0, 0, 0, 1);

/// The proxy's ports where `portRange` is not set: below node ports and the ports of clients.
const PORTS: RangeInclusive<u16> = 15_000..=29_999;

/// What rules and listeners depend on, besides the Intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub rules: Rules,
    pub cluster_ips: ClusterIps,
    pub ports: RangeInclusive<u16>,
    /// The idle time that ends UDP sessions; `None` leaves it to the engine.
    pub udp_idle: Option<Duration>,
    /// The bit of the packet mark, as a mask, that the proxy's own connections carry.
    pub mark: u32,
    pub masquerade_mark: u32,
}

/// The rules that lead to the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// The program of nftables mode, with the proxy's listeners for endpoints.
    Nftables,
    /// The chains of kube-proxy's own userspace mode.
    Iptables,
    /// None: this process may not program the kernel. Only node ports are served.
    None,
}

/// How clients of cluster IPs reach the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterIps {
    /// Rules translate the address.
    Redirect,
    /// A local route makes the address one of the host's, and the proxy listens on it: no translation.
    Bind,
}

impl Settings {
    pub fn read(values: &contract::Settings) -> Settings {
        let ports = contract::ports(&values.text(&PORT_RANGE)).ok().flatten();
        let rules = if values.text(&RULES) == IPTABLES { Rules::Iptables } else { Rules::Nftables };
        let binds = values.text(&CLUSTER_IPS) == BIND && rules == Rules::Nftables;
        Settings {
            rules,
            cluster_ips: if binds { ClusterIps::Bind } else { ClusterIps::Redirect },
            ports: ports.unwrap_or(PORTS),
            udp_idle: udp_idle(values),
            mark: 1 << (values.number(&MARK_BIT) & 31),
            masquerade_mark: masquerade_mark(values),
        }
    }

    /// The proxy, as the rules of nftables mode know it.
    pub fn proxy(&self) -> Proxy {
        let binds = self.cluster_ips == ClusterIps::Bind;
        Proxy { mark: self.mark, v4: ADDRESS_V4, v6: ADDRESS_V6, binds }
    }

    pub fn of_nftables(&self) -> ferroxy_nftables::Settings {
        ferroxy_nftables::Settings { masquerade_mark: self.masquerade_mark, proxy: Some(self.proxy()) }
    }
}

/// The values where nothing is configured.
impl Default for Settings {
    fn default() -> Settings {
        Settings::read(&contract::Settings::default())
    }
}

/// Copies the settings that affect the Intent into the policy.
pub fn shape(values: &contract::Settings, policy: &mut Policy) {
    policy.masquerade_all = values.truth(&MASQUERADE_ALL);
    policy.node_ports_on_loopback = values.truth(&LOCALHOST_NODE_PORTS);
    policy.annotations = &ANNOTATIONS;
    if values.text(&RULES) == IPTABLES {
        // The original's rules have one address of the node, and its node ports answer on all of them.
        policy.node_port_addresses = vec![NodePortAddress::Primary];
    } else if policy.node_port_addresses.is_empty() {
        policy.node_port_addresses = vec![NodePortAddress::All];
    }
}

pub static FIELDS: &[Field] = &[
    LOCALHOST_NODE_PORTS,
    MASQUERADE_ALL,
    MASQUERADE_BIT,
    PROGRAM,
    SYNC_PERIOD,
    MIN_SYNC_PERIOD,
    PORT_RANGE,
    UDP_IDLE_TIMEOUT,
    RULES,
    CLUSTER_IPS,
    MARK_BIT,
];

const IPTABLES: &str = "iptables";
const NFTABLES: &str = "nftables";

pub static RULES: Field = Field {
    name: "userspace.rules",
    kind: Kind::Choice { default: NFTABLES, among: &[NFTABLES, IPTABLES] },
    flag: Some(Flag {
        name: "userspace-rules",
        help: "Rules that redirect connections to the proxy: nftables, or iptables for the chains of kube-proxy 1.25",
        value_name: "KIND",
    }),
    is_live: false,
    is_of_the_original: false,
};

const BIND: &str = "bind";
const REDIRECT: &str = "redirect";

pub static CLUSTER_IPS: Field = Field {
    name: "userspace.clusterIPs",
    kind: Kind::Choice { default: REDIRECT, among: &[REDIRECT, BIND] },
    flag: Some(Flag {
        name: "userspace-cluster-ips",
        help: "How clients of cluster IPs reach the proxy: redirect, or bind (a local route, no NAT)",
        value_name: "WAY",
    }),
    is_live: false,
    is_of_the_original: false,
};

pub static MARK_BIT: Field = Field {
    name: "userspace.markBit",
    kind: Kind::Number { default: 13, least: 0, most: 31 },
    flag: None,
    is_live: false,
    is_of_the_original: false,
};
