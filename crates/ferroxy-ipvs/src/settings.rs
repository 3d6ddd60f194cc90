//! The settings of ipvs mode: the fields of the configuration file that it reads.

use std::time::Duration;

use ferroxy_core::Policy;
use ferroxy_core::policy::{Annotation, NodePortAddress};
use ferroxy_dataplane::{self as contract, Field, Flag, Kind, Zero};
use ferroxy_iptables::settings::{MASQUERADE_ALL, MASQUERADE_BIT, PROGRAM};

use crate::scheduler::Scheduler;

/// Copies the settings that affect the Intent into the policy.
pub fn shape(values: &contract::Settings, policy: &mut Policy) {
    policy.masquerade_all = values.truth(&MASQUERADE_ALL);
    policy.annotations = &ANNOTATIONS;
    if policy.node_port_addresses.is_empty() {
        policy.node_port_addresses = vec![NodePortAddress::All];
    }
}

/// `ferroxy.io/scheduler`: how the kernel picks an endpoint of this Service.
static ANNOTATIONS: [Annotation; 1] = [Annotation {
    key: Scheduler::ANNOTATION,
    check: |value| match Scheduler::parse(value) {
        Some(_) => Ok(()),
        None => Err(format!("is not a scheduler ({})", Scheduler::ALL.map(Scheduler::as_str).join(", "))),
    },
    otherwise: "the node's scheduler is used",
}];

pub static FIELDS: &[Field] = &[
    MASQUERADE_ALL,
    MASQUERADE_BIT,
    PROGRAM,
    SCHEDULER,
    EXCLUDE_CIDRS,
    STRICT_ARP,
    TCP_TIMEOUT,
    TCP_FIN_TIMEOUT,
    UDP_TIMEOUT,
    SYNC_PERIOD,
    MIN_SYNC_PERIOD,
];

/// Empty means round robin.
pub static SCHEDULER: Field = Field {
    name: "ipvs.scheduler",
    kind: Kind::Text { default: "" },
    flag: Some(Flag { name: "ipvs-scheduler", help: "Scheduler that picks an endpoint", value_name: "NAME" }),
    is_live: false,
    is_of_the_original: true,
};

pub static EXCLUDE_CIDRS: Field = Field {
    name: "ipvs.excludeCIDRs",
    kind: Kind::Cidrs,
    flag: Some(Flag {
        name: "ipvs-exclude-cidrs",
        help: "Leave virtual servers in these ranges alone",
        value_name: "CIDR,…",
    }),
    is_live: false,
    is_of_the_original: true,
};

pub static STRICT_ARP: Field = Field {
    name: "ipvs.strictARP",
    kind: Kind::Truth { default: false },
    flag: Some(Flag {
        name: "ipvs-strict-arp",
        help: "Answer ARP only for addresses of the interface that was asked",
        value_name: "BOOL",
    }),
    is_live: false,
    is_of_the_original: true,
};

/// A timeout of the kernel; zero leaves the kernel's value.
const fn timeout(name: &'static str, flag: &'static str, help: &'static str) -> Field {
    Field {
        name,
        kind: Kind::Duration { default: Duration::ZERO, default_in_file: None, zero: Zero::Allowed },
        flag: Some(Flag { name: flag, help, value_name: "DURATION" }),
        is_live: false,
        is_of_the_original: true,
    }
}

pub static TCP_TIMEOUT: Field =
    timeout("ipvs.tcpTimeout", "ipvs-tcp-timeout", "Timeout of idle TCP connections; 0 keeps the kernel's");

pub static TCP_FIN_TIMEOUT: Field = timeout(
    "ipvs.tcpFinTimeout",
    "ipvs-tcpfin-timeout",
    "Timeout of TCP connections after a FIN; 0 keeps the kernel's",
);

pub static UDP_TIMEOUT: Field =
    timeout("ipvs.udpTimeout", "ipvs-udp-timeout", "Timeout of UDP flows; 0 keeps the kernel's");

pub static SYNC_PERIOD: Field = Field::sync_period("ipvs.syncPeriod", "ipvs-sync-period");

/// The original's file and flags have different defaults for this setting.
pub static MIN_SYNC_PERIOD: Field = Field {
    name: "ipvs.minSyncPeriod",
    kind: Kind::Duration {
        default: Duration::from_secs(1),
        default_in_file: Some(Duration::ZERO),
        zero: Zero::Allowed,
    },
    flag: Some(Flag {
        name: "ipvs-min-sync-period",
        help: "Apply changes at most this often",
        value_name: "DURATION",
    }),
    is_live: true,
    is_of_the_original: true,
};
