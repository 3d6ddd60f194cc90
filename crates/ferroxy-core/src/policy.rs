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
    /// IPv4 node ports answer on 127.0.0.0/8 too, if `node_port_addresses` includes it.
    pub node_ports_on_loopback: bool,
    /// A proxy serves node ports on loopback addresses, if `node_port_addresses` names them.
    pub listen_on_loopback: bool,
    pub masquerade_all: bool,
    /// Feature gate `AllowServiceExternalIPs`.
    pub external_ips: bool,
    /// EndpointSlices may prefer endpoints of the same zone or node.
    pub topology_hints: bool,
    /// Count what Services and endpoints receive and send, where the dataplane can.
    pub count_traffic: bool,
    /// The dataplane must know the addresses of the host.
    pub know_host_addresses: bool,
    /// Services may ask for probes of their endpoints.
    pub probes: bool,
    pub limits: Limits,
    /// The annotations of Services that the mode reads.
    pub annotations: &'static [Annotation],
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            node_name: String::new(),
            bind_address: None,
            detect_local: DetectLocal::ClusterCidr(Vec::new()),
            node_port_addresses: vec![NodePortAddress::Primary],
            node_ports_on_loopback: false,
            listen_on_loopback: false,
            masquerade_all: false,
            external_ips: true,
            topology_hints: true,
            count_traffic: false,
            know_host_addresses: false,
            probes: true,
            limits: Limits::default(),
            annotations: &[],
        }
    }
}

/// Limits for one Service, for one namespace, and for the node. The defaults are far above what real Services have, and
/// far below what harms a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Frontends of a Service: its ports times its addresses.
    pub frontends: usize,
    /// Endpoints of a port of a Service.
    pub endpoints: usize,
    /// The sum over all frontends of a Service. Each frontend counts as one, plus its endpoints and its source ranges.
    pub entries: usize,
    /// This many frontends of each Service are served, however many its namespace and the node have. They do not count
    /// towards the limits below.
    pub always: usize,
    /// Frontends of a namespace.
    pub namespace_frontends: usize,
    /// Frontends of all namespaces.
    pub node_frontends: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

impl Limits {
    // The largest clusters have 15,000 nodes, and some Services an endpoint on each.
    pub const DEFAULT: Limits = Limits {
        frontends: 10_000,
        endpoints: 20_000,
        entries: 250_000,
        // Four ports of both families, at a cluster IP and as node ports.
        always: 16,
        namespace_frontends: 200_000,
        node_frontends: 1_000_000,
    };

    /// Dataplanes count the endpoints of a port in sixteen bits.
    pub const MOST_ENDPOINTS: usize = u16::MAX as usize;

    pub(crate) fn endpoints_of_port(&self) -> usize {
        self.endpoints.min(Limits::MOST_ENDPOINTS)
    }
}

/// An annotation of Services that a mode reads. Core only checks its value, with the mode's own function.
#[derive(Debug, Clone, Copy)]
pub struct Annotation {
    /// [`is_kept_annotation`] must be true for it.
    pub key: &'static str,
    /// Returns the reason why a value is not valid.
    pub check: fn(&str) -> Result<(), String>,
    /// The effect of a value that is not valid.
    pub otherwise: &'static str,
}

/// Whether the source keeps an annotation: those of ours, and those that kube-proxy reads.
pub fn is_kept_annotation(key: &str) -> bool {
    key.starts_with("ferroxy.io/") || key == PRESERVE_DESTINATION
}

/// An annotation that kube-proxy reads on Windows: packets to a load-balancer IP keep this IP as their destination.
pub const PRESERVE_DESTINATION: &str = "preserve-destination";

/// The key alone identifies an annotation.
impl PartialEq for Annotation {
    fn eq(&self, other: &Annotation) -> bool {
        self.key == other.key
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
