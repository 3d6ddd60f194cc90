//! The part of the configuration that decides what happens to packets. Parsed and validated before it gets here.

use std::net::IpAddr;

use ipnet::IpNet;

#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub node_name: String,
    /// `bindAddress`, unless it is the unspecified address: overrides the node's address of that family.
    pub bind_address: Option<IpAddr>,
    pub detect_local: DetectLocal,
    /// Never empty: an unset list has become `Primary` (nftables) or `All` (the other modes) by now.
    pub node_port_addresses: Vec<NodePortAddress>,
    /// IPv4 node ports answer on 127.0.0.0/8 too, if `node_port_addresses` has it in. Only iptables mode can do that.
    pub localhost_node_ports: bool,
    pub masquerade_all: bool,
    /// 0 to 31.
    pub masquerade_bit: u8,
    /// Feature gate `AllowServiceExternalIPs`.
    pub external_ips: bool,
    /// Count what Services and endpoints receive and send, where the dataplane can.
    pub count_traffic: bool,
    /// Services may choose how the kernel balances them. Only ipvs mode can do that.
    pub schedulers: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            node_name: String::new(),
            bind_address: None,
            detect_local: DetectLocal::ClusterCidr(Vec::new()),
            node_port_addresses: vec![NodePortAddress::Primary],
            localhost_node_ports: false,
            masquerade_all: false,
            masquerade_bit: 14,
            external_ips: true,
            count_traffic: false,
            schedulers: false,
        }
    }
}

/// How a packet is known to come from a pod of this cluster (`detectLocalMode`).
#[derive(Debug, Clone, PartialEq)]
pub enum DetectLocal {
    ClusterCidr(Vec<IpNet>),
    /// The pod CIDRs of this node's Node object.
    NodeCidr,
    BridgeInterface(String),
    InterfaceNamePrefix(String),
}

/// One entry of `nodePortAddresses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePortAddress {
    Primary,
    Localhost,
    All,
    Cidr(IpNet),
}
