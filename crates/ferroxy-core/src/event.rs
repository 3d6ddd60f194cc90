//! Events from a source: API objects reduced to the fields a proxy reads, with values as the API spells them.
//!
//! Addresses, protocols and ports are text or wide numbers here on purpose: `facts` validates them, so every source
//! gets the same Diagnostics for the same mistake.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::diagnostic::ObjectKind;
use crate::name::ServiceName;
use crate::probe::{Down, Life, Target};

/// One change of the cluster or of this host, from any source.
#[derive(Debug, Clone, PartialEq, Hash)]
// Events are processed one at a time and never stored: their size does not matter, an extra allocation for each would.
#[allow(clippy::large_enum_variant)]
pub enum Event {
    Service(Service),
    ServiceGone {
        namespace: String,
        name: String,
    },
    Slice(EndpointSlice),
    SliceGone {
        namespace: String,
        name: String,
    },
    Node(Node),
    NodeGone {
        name: String,
    },
    ServiceCidr(ServiceCidr),
    ServiceCidrGone {
        name: String,
    },
    /// All current addresses of this host, including loopback.
    HostAddresses(Vec<IpAddr>),
    /// The source has listed all objects of this kind. `names` has their `namespace/name`, or the bare name of a
    /// cluster-wide kind. Objects of the kind that are not in `names` no longer exist.
    Listed {
        kind: ObjectKind,
        names: BTreeSet<Box<str>>,
    },
    /// Probes of this node say that an endpoint is down, or up again.
    Verdict(Verdict),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The Service that requests the probes.
    pub service: ServiceName,
    pub target: Target,
    /// The life of the endpoint that the verdict is about; `None`: its current life.
    pub life: Option<Life>,
    /// `None`: it is up.
    pub down: Option<Down>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    /// Seconds since 1970; `None` if unknown, which counts as oldest.
    pub created: Option<i64>,
    /// The value of the label `service.kubernetes.io/service-proxy-name`, if present.
    pub proxy_name: Option<String>,
    /// The annotations for which [`is_kept_annotation`](crate::policy::is_kept_annotation) is true, a few at most.
    pub annotations: Vec<(String, String)>,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`; empty means `ClusterIP`.
    pub kind: String,
    pub cluster_ip: String,
    pub cluster_ips: Vec<String>,
    pub ip_families: Vec<String>,
    pub ports: Vec<ServicePort>,
    pub external_ips: Vec<String>,
    pub session_affinity: String,
    pub affinity_timeout_seconds: Option<i64>,
    pub internal_traffic_policy: String,
    pub external_traffic_policy: String,
    pub health_check_node_port: i64,
    pub load_balancer_source_ranges: Vec<String>,
    pub ingress: Vec<Ingress>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct ServicePort {
    pub name: String,
    /// Empty means TCP.
    pub protocol: String,
    pub port: i64,
    pub node_port: i64,
    /// As written, number or name. Not used for routing (slices carry the real port); `explain` shows it.
    pub target_port: String,
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct Ingress {
    pub ip: String,
    /// `VIP`, `Proxy`, or empty (which means VIP).
    pub ip_mode: String,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct EndpointSlice {
    pub namespace: String,
    pub name: String,
    /// The value of the label `kubernetes.io/service-name`, if present.
    pub service: Option<String>,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<SliceEndpoint>,
    /// When the change in the cluster happened that caused this version of the slice, in nanoseconds since 1970. Latency
    /// metrics start here. `facts` does not store it: a slice that differs only in this field is unchanged.
    pub last_change: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct SlicePort {
    /// `None` if the field is absent, which makes the port unusable; an empty string is a valid name.
    pub name: Option<String>,
    pub protocol: String,
    pub port: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct SliceEndpoint {
    pub addresses: Vec<String>,
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
    pub node_name: Option<String>,
    pub zone: Option<String>,
    pub hint_zones: Vec<String>,
    pub hint_nodes: Vec<String>,
    /// `targetRef.name`, the pod; for people only.
    pub target: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct Node {
    pub name: String,
    pub zone: Option<String>,
    /// (type, address) in the object's order: `("InternalIP", "172.18.0.2")`.
    pub addresses: Vec<(String, String)>,
    pub pod_cidrs: Vec<String>,
    pub deleting: bool,
    pub taints: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct ServiceCidr {
    pub name: String,
    pub cidrs: Vec<String>,
}
