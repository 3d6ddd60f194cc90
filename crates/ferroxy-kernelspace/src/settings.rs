//! The settings of kernelspace mode: the fields of the configuration file that it reads.

use ferroxy_core::Policy;
use ferroxy_core::policy::{Annotation, NodePortAddress, PRESERVE_DESTINATION};
use ferroxy_dataplane::{self as contract, Field, Flag, Kind};

/// Adapts the policy: the original reads no topology hints on Windows, and node ports answer on every address.
pub fn shape(_: &contract::Settings, policy: &mut Policy) {
    policy.topology_hints = false;
    policy.annotations = &ANNOTATIONS;
    policy.node_port_addresses = vec![NodePortAddress::All];
}

static ANNOTATIONS: [Annotation; 1] = [Annotation {
    key: PRESERVE_DESTINATION,
    check: |value| match value {
        "true" | "false" => Ok(()),
        _ => Err("is neither true nor false".to_owned()),
    },
    otherwise: "packets to its load-balancer IPs do not keep their destination",
}];

pub static FIELDS: &[Field] = &[
    NETWORK_NAME,
    SOURCE_VIP,
    ENABLE_DSR,
    ROOT_HNS_ENDPOINT_NAME,
    FORWARD_HEALTH_CHECK_VIP,
    SYNC_PERIOD,
    MIN_SYNC_PERIOD,
];

/// Empty: the environment variable `KUBE_NETWORK` names the network.
pub static NETWORK_NAME: Field = Field {
    name: "winkernel.networkName",
    kind: Kind::Text { default: "" },
    flag: Some(Flag {
        name: "network-name",
        help: "HNS network of the pods (default: KUBE_NETWORK of the environment)",
        value_name: "NAME",
    }),
    is_live: false,
    is_of_the_original: true,
};

pub static SOURCE_VIP: Field = Field {
    name: "winkernel.sourceVip",
    kind: Kind::Text { default: "" },
    flag: Some(Flag {
        name: "source-vip",
        help: "Source address of balanced packets on an overlay network",
        value_name: "IP",
    }),
    is_live: false,
    is_of_the_original: true,
};

pub static ENABLE_DSR: Field = Field {
    name: "winkernel.enableDSR",
    kind: Kind::Truth { default: false },
    flag: Some(Flag {
        name: "enable-dsr",
        help: "Endpoints of cluster IPs answer clients directly",
        value_name: "BOOL",
    }),
    is_live: false,
    is_of_the_original: true,
};

pub static ROOT_HNS_ENDPOINT_NAME: Field = Field {
    name: "winkernel.rootHnsEndpointName",
    kind: Kind::Text { default: "" },
    flag: Some(Flag {
        name: "root-hnsendpoint-name",
        help: "HNS endpoint of the host itself (default: cbr0)",
        value_name: "NAME",
    }),
    is_live: false,
    is_of_the_original: true,
};

pub static FORWARD_HEALTH_CHECK_VIP: Field = Field {
    name: "winkernel.forwardHealthCheckVip",
    kind: Kind::Truth { default: false },
    flag: Some(Flag {
        name: "forward-healthcheck-vip",
        help: "Forward health checks at load-balancer IPs to the host",
        value_name: "BOOL",
    }),
    is_live: false,
    is_of_the_original: true,
};

/// The original has no fields for the periods of this mode: it reads those of iptables mode.
pub static SYNC_PERIOD: Field = Field::sync_period("iptables.syncPeriod", "iptables-sync-period");

pub static MIN_SYNC_PERIOD: Field =
    Field::min_sync_period("iptables.minSyncPeriod", "iptables-min-sync-period");
