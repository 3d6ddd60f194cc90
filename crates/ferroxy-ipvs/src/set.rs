//! The sets: their names, their types and their members.

use std::fmt;
use std::net::IpAddr;

use ferroxy_core::Family;
use ipnet::IpNet;

use crate::state::Address;

/// The capacity of a set. The original's sets have 65,536, which large clusters exceed; unused capacity costs nothing.
pub const CAPACITY: u32 = 1 << 20;

/// The purpose of a set. One set exists for each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Set {
    /// Endpoints of this node that connect to themselves. They are masqueraded: otherwise the reply would bypass the node.
    LoopBack,
    ClusterIp,
    ExternalIp,
    ExternalIpLocal,
    LoadBalancer,
    /// Load-balancer IPs with source ranges. The next two sets have the sources that may use them.
    LoadBalancerFirewall,
    LoadBalancerSourceCidr,
    LoadBalancerSourceIp,
    LoadBalancerLocal,
    NodePortTcp,
    NodePortLocalTcp,
    NodePortUdp,
    NodePortLocalUdp,
    NodePortSctp,
    NodePortLocalSctp,
    HealthCheckNodePort,
    /// The addresses of the device.
    IpvsIps,
    /// `externalTrafficPolicy: Local` with endpoints on other nodes only: served for pods and the node itself. The original
    /// has no such set and sends traffic from outside to remote pods, whose replies are lost.
    NoneLocal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ip,
    IpPort,
    IpPortIp,
    IpPortNet,
    Port,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetName {
    pub family: Family,
    pub set: Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    Ip(IpAddr),
    IpPort(Address),
    IpPortIp(Address, IpAddr),
    IpPortNet(Address, IpNet),
    Port(u16),
}

impl Set {
    pub const ALL: [Set; 18] = [
        Set::LoopBack,
        Set::ClusterIp,
        Set::ExternalIp,
        Set::ExternalIpLocal,
        Set::LoadBalancer,
        Set::LoadBalancerFirewall,
        Set::LoadBalancerSourceCidr,
        Set::LoadBalancerSourceIp,
        Set::LoadBalancerLocal,
        Set::NodePortTcp,
        Set::NodePortLocalTcp,
        Set::NodePortUdp,
        Set::NodePortLocalUdp,
        Set::NodePortSctp,
        Set::NodePortLocalSctp,
        Set::HealthCheckNodePort,
        Set::IpvsIps,
        Set::NoneLocal,
    ];

    /// The part of the name after `KUBE-` or `KUBE-6-`.
    fn suffix(self) -> &'static str {
        match self {
            Set::LoopBack => "LOOP-BACK",
            Set::ClusterIp => "CLUSTER-IP",
            Set::ExternalIp => "EXTERNAL-IP",
            Set::ExternalIpLocal => "EXTERNAL-IP-LOCAL",
            Set::LoadBalancer => "LOAD-BALANCER",
            Set::LoadBalancerFirewall => "LOAD-BALANCER-FW",
            Set::LoadBalancerSourceCidr => "LOAD-BALANCER-SOURCE-CIDR",
            Set::LoadBalancerSourceIp => "LOAD-BALANCER-SOURCE-IP",
            Set::LoadBalancerLocal => "LOAD-BALANCER-LOCAL",
            Set::NodePortTcp => "NODE-PORT-TCP",
            Set::NodePortLocalTcp => "NODE-PORT-LOCAL-TCP",
            Set::NodePortUdp => "NODE-PORT-UDP",
            Set::NodePortLocalUdp => "NODE-PORT-LOCAL-UDP",
            Set::NodePortSctp => "NODE-PORT-SCTP-HASH",
            Set::NodePortLocalSctp => "NODE-PORT-LOCAL-SCTP-HASH",
            Set::HealthCheckNodePort => "HEALTH-CHECK-NODE-PORT",
            Set::IpvsIps => "IPVS-IPS",
            Set::NoneLocal => "NONE-LOCAL",
        }
    }

    pub fn kind(self) -> Kind {
        match self {
            Set::LoopBack | Set::LoadBalancerSourceIp => Kind::IpPortIp,
            Set::LoadBalancerSourceCidr => Kind::IpPortNet,
            Set::NodePortTcp
            | Set::NodePortLocalTcp
            | Set::NodePortUdp
            | Set::NodePortLocalUdp
            | Set::HealthCheckNodePort => Kind::Port,
            Set::IpvsIps => Kind::Ip,
            Set::ClusterIp
            | Set::ExternalIp
            | Set::ExternalIpLocal
            | Set::LoadBalancer
            | Set::LoadBalancerFirewall
            | Set::LoadBalancerLocal
            | Set::NodePortSctp
            | Set::NodePortLocalSctp
            | Set::NoneLocal => Kind::IpPort,
        }
    }

    pub fn of(self, family: Family) -> SetName {
        SetName { family, set: self }
    }
}

impl Kind {
    /// The name of the type in the kernel.
    pub fn type_name(self) -> &'static str {
        match self {
            Kind::Ip => "hash:ip",
            Kind::IpPort => "hash:ip,port",
            Kind::IpPortIp => "hash:ip,port,ip",
            Kind::IpPortNet => "hash:ip,port,net",
            Kind::Port => "bitmap:port",
        }
    }
}

impl SetName {
    pub fn all(family: Family) -> impl Iterator<Item = SetName> {
        Set::ALL.into_iter().map(move |set| set.of(family))
    }

    pub fn parse(text: &str) -> Option<SetName> {
        Family::ALL.into_iter().flat_map(SetName::all).find(|name| name.to_string() == text)
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The kernel has 32 bytes for a name, including the terminating zero.
        const LONGEST: usize = 31;
        let prefix = if self.family == Family::V4 { "KUBE-" } else { "KUBE-6-" };
        let suffix = self.set.suffix();
        let room = LONGEST - prefix.len();
        write!(f, "{prefix}{}", &suffix[..suffix.len().min(room)])
    }
}

/// As `ipset save` prints it.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Member::Ip(ip) => write!(f, "{ip}"),
            Member::IpPort(at) => write!(f, "{}", ByComma(at)),
            Member::IpPortIp(at, ip) => write!(f, "{},{ip}", ByComma(at)),
            Member::IpPortNet(at, net) if net.prefix_len() == net.max_prefix_len() => {
                write!(f, "{},{}", ByComma(at), net.addr())
            }
            Member::IpPortNet(at, net) => write!(f, "{},{net}", ByComma(at)),
            Member::Port(port) => write!(f, "{port}"),
        }
    }
}

struct ByComma<'a>(&'a Address);

impl fmt::Display for ByComma<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { ip, protocol, port } = self.0;
        write!(f, "{ip},{protocol}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_lead_back() {
        for name in Family::ALL.into_iter().flat_map(SetName::all) {
            assert!(name.to_string().len() <= 31, "{name}");
            assert_eq!(SetName::parse(&name.to_string()), Some(name));
        }
        let long = Set::LoadBalancerSourceCidr.of(Family::V6);
        assert_eq!(long.to_string(), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        assert_eq!(SetName::parse("KUBE-6-LOAD-BALANCER-SOURCE-CIDR"), None);
    }
}
