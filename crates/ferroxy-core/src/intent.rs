//! What must happen to packets on this node: the one thing every dataplane renders.

mod packed;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

pub use packed::PackedIntent;

use crate::name::{Family, Protocol, ServiceName};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Intent {
    pub node: NodeIntent,
    /// Every Service with at least one frontend on this node.
    pub services: BTreeMap<ServiceName, Arc<ServiceIntent>>,
}

/// The part of the Intent that applies to all Services: the parameters of the constant program.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeIntent {
    /// All traffic to cluster IPs is masqueraded, whatever its source.
    pub masquerade_all: bool,
    /// Connections, packets and bytes are counted for each Service and endpoint.
    pub count_traffic: bool,
    /// The family of the node's first address, for dataplanes that have only one.
    pub primary_family: Option<Family>,
    /// The addresses that the host has on interfaces, except for loopback and link-local ones. Empty unless the policy
    /// has `know_host_addresses`.
    pub host_addresses: BTreeSet<IpAddr>,
    pub v4: FamilyIntent,
    pub v6: FamilyIntent,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct FamilyIntent {
    /// The address of the node.
    pub node_ip: Option<IpAddr>,
    /// `None`: nothing is known about sources, so no off-cluster masquerade and no short cut for pods.
    pub local_detector: Option<LocalDetector>,
    pub node_port_addresses: NodePortAddresses,
    /// Node ports answer on loopback addresses, too.
    pub node_ports_on_loopback: bool,
    /// A proxy serves node ports on the loopback address (127.0.0.1 or ::1). No packet rule concerns it.
    pub listen_on_loopback: bool,
    /// Packets to addresses in these CIDRs that no Service has are dropped. Sorted, without overlaps.
    pub service_cidrs: Vec<IpNet>,
    /// The one address that a proxy's own listeners use, if `bindAddress` names one of this family.
    pub bind_address: Option<IpAddr>,
}

impl NodeIntent {
    pub fn family(&self, family: Family) -> &FamilyIntent {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

/// How to tell that a packet comes from a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalDetector {
    SourceIn(IpNet),
    Interface(String),
    InterfacePrefix(String),
}

/// On which of this host's addresses node ports answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// On every address of the host; on loopback ones only with `node_ports_on_loopback`.
    AllLocal,
    /// On these and no others. Loopback addresses are among them only with `node_ports_on_loopback`.
    These(BTreeSet<IpAddr>),
}

impl Default for NodePortAddresses {
    fn default() -> Self {
        NodePortAddresses::These(BTreeSet::new())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ServiceIntent {
    pub name: ServiceName,
    /// The cluster IPs on which the Service has a frontend. Packets to their unused ports are rejected.
    pub cluster_ips: Vec<IpAddr>,
    /// One for each (port, family), in the order of the Service's ports, IPv4 first.
    pub ports: Vec<PortIntent>,
    pub health_check: Option<HealthCheck>,
    /// The annotations for the dataplane: those that the mode reads, with valid values.
    pub annotations: Vec<(&'static str, Arc<str>)>,
    pub left_out: LeftOut,
}

/// How many frontends and endpoints of a Service are not served because of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    pub frontends: u64,
    /// The sum over all ports. An EndpointSlice that is not read because of a limit counts as one.
    pub endpoints: u64,
}

impl ServiceIntent {
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.iter().find(|(known, _)| *known == key).map(|(_, value)| &**value)
    }
}

/// The health-check node port of a LoadBalancer Service with `externalTrafficPolicy: Local`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// Distinct addresses of ready endpoints on this node.
    pub local_endpoints: u32,
}

/// One Service port in one family.
#[derive(Debug, Clone, PartialEq)]
pub struct PortIntent {
    /// The port's name; often empty.
    pub name: Arc<str>,
    pub family: Family,
    pub protocol: Protocol,
    /// ClientIP affinity: seconds after a client's last new connection until it may be sent elsewhere.
    pub affinity: Option<u32>,
    /// The endpoints that serve traffic under the policy `Cluster` (topology hints applied). Sorted, no duplicates.
    pub cluster: Vec<Endpoint>,
    /// The endpoints that serve traffic under the policy `Local`. Empty when no policy of the Service is `Local`.
    /// Sorted.
    pub local: Vec<Endpoint>,
    /// The number of distinct endpoints in its slices, able to serve or not, up to the limit.
    pub size: u32,
    /// Sorted by kind; frontends of one kind are in the order of the object.
    pub frontends: Vec<Frontend>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    pub ip: IpAddr,
    pub port: u16,
    /// Runs on this node.
    pub is_local: bool,
}

/// An address and port that clients use. The protocol is that of the [`PortIntent`].
#[derive(Debug, Clone, PartialEq)]
pub struct Frontend {
    pub kind: FrontendKind,
    /// `None` for a node port: it answers on all [`NodePortAddresses`].
    pub address: Option<IpAddr>,
    pub port: u16,
    pub route: Route,
    /// `loadBalancerSourceRanges`: when set, packets from other sources are dropped, even without endpoints. In the
    /// order of the object; the Service's own addresses, where they are allowed in, come last.
    pub allowed_sources: Option<Vec<IpNet>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKind {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

impl FrontendKind {
    pub fn words(self) -> &'static str {
        match self {
            FrontendKind::ClusterIp => "cluster IP",
            FrontendKind::ExternalIp => "external IP",
            FrontendKind::LoadBalancer => "load-balancer IP",
            FrontendKind::NodePort => "node port",
        }
    }
}

/// What happens to a new connection to a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// No endpoint anywhere: refused at once.
    Reject,
    /// Policy `Local`, with endpoints on other nodes only: dropped silently, so that the client's load balancer
    /// notices.
    Drop,
    /// A cluster IP: to `cluster`. Masqueraded if `masquerade_all`, or if a detector says "not from a pod".
    Cluster,
    /// A cluster IP with `internalTrafficPolicy: Local`: as `Cluster`, but to `local`, which is not empty.
    Local,
    /// An external frontend: to `cluster`, always masqueraded.
    ExternalCluster,
    /// An external frontend with `externalTrafficPolicy: Local`. Packets from pods (if a detector recognises them): to
    /// `cluster`, not masqueraded. From this node itself: to `cluster`, masqueraded. From all others: to `local` with
    /// their source address kept, or dropped while `local` is empty. `cluster` is never empty here.
    ExternalLocal,
}
