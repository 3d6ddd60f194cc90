//! The objects of HNS as a value: by address, without ids. Compared, printed and interpreted on every platform.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ferroxy_core::{Family, Protocol};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// The endpoints that we create: for pods of other nodes, and on an overlay for the cluster IPs and the source VIP. Endpoints
    /// of pods of this node belong to the network plugin.
    pub endpoints: BTreeMap<IpAddr, Endpoint>,
    pub balancers: BTreeMap<Frontend, Balancer>,
}

impl State {
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.balancers.is_empty()
    }

    /// The part of this State that can be in force while HNS has only these endpoints of other programs: load balancers name only
    /// endpoints that exist, and we create no endpoint with an address of theirs.
    pub fn bound_to(mut self, of_others: &BTreeSet<IpAddr>) -> State {
        self.endpoints.retain(|ip, _| !of_others.contains(ip));
        for balancer in self.balancers.values_mut() {
            balancer.endpoints.retain(|ip| of_others.contains(ip) || self.endpoints.contains_key(ip));
        }
        self.balancers.retain(|_, balancer| !balancer.endpoints.is_empty());
        self
    }
}

/// Where clients connect to. Two load balancers with the same frontend cannot exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    pub family: Family,
    /// `None` for a node port.
    pub vip: Option<IpAddr>,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Debug, Clone)]
pub struct Balancer {
    pub role: Role,
    pub endpoints: BTreeSet<IpAddr>,
    /// The port of every endpoint.
    pub target_port: u16,
    /// The source address that clients' packets get, on an overlay.
    pub source_vip: Option<IpAddr>,
    /// A client stays with its endpoint.
    pub is_sticky: bool,
    /// Direct server return: endpoints see the client's address and answer it directly.
    pub dsr: bool,
    pub mapping_flags: u32,
}

/// Ignores the role, which HNS does not store: it is for metrics and for users.
impl PartialEq for Balancer {
    fn eq(&self, other: &Balancer) -> bool {
        self.endpoints == other.endpoints && self.differs_only_in_endpoints(other)
    }
}

impl Balancer {
    /// HNS can change only the endpoints in place.
    pub fn differs_only_in_endpoints(&self, other: &Balancer) -> bool {
        self.target_port == other.target_port
            && self.source_vip == other.source_vip
            && self.is_sticky == other.is_sticky
            && self.dsr == other.dsr
            && self.mapping_flags == other.mapping_flags
    }
}

/// What a load balancer is for, as the original's metrics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    ClusterIp,
    NodePort,
    ExternalIp,
    IngressIp,
    HealthCheck,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::ClusterIp => "clusterip",
            Role::NodePort => "nodeport",
            Role::ExternalIp => "externalip",
            Role::IngressIp => "ingressip",
            Role::HealthCheck => "healthcheck",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub mac: Mac,
    /// The address of the node that the endpoint is behind, on an overlay.
    pub provider: Option<IpAddr>,
    /// It stands for something on another node.
    pub is_remote: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address that kube-proxy invents for a pod of another node.
    pub fn invented(ip: IpAddr) -> Mac {
        let last = match ip {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(ip) => {
                let [.., a, b, c, d] = ip.octets();
                [d, c, b, a]
            }
        };
        Mac([0x02, 0x11, last[0], last[1], last[2], last[3]])
    }

    /// The form in which kube-proxy writes the host's own address.
    pub fn with_colons(self) -> String {
        self.to_string().replace('-', ":")
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}-{b:02x}-{c:02x}-{d:02x}-{e:02x}-{g:02x}")
    }
}

/// With dashes or colons, in either case.
impl FromStr for Mac {
    type Err = ();

    fn from_str(text: &str) -> Result<Mac, ()> {
        let parts: Vec<&str> = text.split(['-', ':']).collect();
        let mut mac = Mac::default();
        if parts.len() != mac.0.len() {
            return Err(());
        }
        for (byte, part) in mac.0.iter_mut().zip(parts) {
            *byte = u8::from_str_radix(part, 16).map_err(drop)?;
        }
        Ok(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_invented_from_the_last_bytes_of_the_address() {
        let invented = |ip: &str| Mac::invented(ip.parse().unwrap()).to_string();
        assert_eq!(invented("10.244.2.5"), "02-11-0a-f4-02-05");
        assert_eq!(invented("fd00:10:244:2::5"), "02-11-05-00-00-00");
    }

    #[test]
    fn a_mac_is_read_in_every_spelling() {
        let mac = Mac([0, 0x15, 0x5d, 0, 0, 2]);
        assert_eq!("00-15-5D-00-00-02".parse(), Ok(mac));
        assert_eq!(mac.with_colons(), "00:15:5d:00:00:02");
        assert_eq!(mac.with_colons().parse(), Ok(mac));
        assert_eq!("00-15-5D-00-00".parse::<Mac>(), Err(()));
    }
}
