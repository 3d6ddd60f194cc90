//! iptables mode as a value: how it is configured, what it needs, and how to open it.

use ferroxy_core::Family;
use ferroxy_dataplane::{
    Counted, Dataplane, Failure, Lifetime, Metric, Mode, Opening, Pace, PeriodFields, Platform, Privilege,
    Privileges,
};
use ferroxy_netfilter::metrics;

use crate::program::{INVALID_DROPPED, LOCALHOST_ACCEPTED};
use crate::{ruleset, settings};

pub static MODE: Mode = Mode {
    name: "iptables",
    help: "Rules of iptables",
    platforms: &[Platform::Linux],
    families: &Family::ALL,
    lifetime: Lifetime::OutlivesProcess,
    // Each change has a fixed cost: the kernel validates all rules of the table, and replaces legacy tables as a whole.
    pace: Pace::Whole,
    fields: settings::FIELDS,
    periods: PeriodFields { sync: &settings::SYNC_PERIOD, min_sync: &settings::MIN_SYNC_PERIOD },
    gate: None,
    // The legacy tools open a raw socket.
    privileges: Privileges {
        own: &[Privilege::NetAdmin, Privilege::NetRaw],
        programs: &[Privilege::NetAdmin, Privilege::NetRaw],
    },
    needs: "Linux, with nf_tables or legacy iptables in the kernel",
    devices: &[],
    shares_names: true,
    counts_traffic: false,
    metrics: METRICS,
    shape: settings::shape,
    available,
    open,
    render: ruleset::rendered,
};

const METRICS: &[Metric] = &[
    metrics::FULL_SYNC_SECONDS,
    metrics::PARTIAL_SYNC_SECONDS,
    Metric {
        name: "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        help: "Failed full syncs of iptables rules.",
        counts: Counted::FullSyncFailures,
    },
    Metric {
        name: "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        help: "Failed partial syncs of iptables rules.",
        counts: Counted::PartialSyncFailures,
    },
    Metric {
        name: "kubeproxy_sync_proxy_rules_iptables_total",
        help: "iptables rules that Ferroxy owns.",
        counts: Counted::Rules { label: "table" },
    },
    Metric {
        name: "kubeproxy_sync_proxy_rules_iptables_last",
        help: "Rules that the last sync wrote.",
        counts: Counted::RulesWritten { label: "table" },
    },
    Metric {
        name: "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        help: "Packets dropped because connection tracking found them invalid.",
        counts: Counted::Packets(INVALID_DROPPED),
    },
    Metric {
        name: "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        help: "Packets to node ports on loopback addresses.",
        counts: Counted::Packets(LOCALHOST_ACCEPTED),
    },
    metrics::SWEEP_SECONDS,
    metrics::SWEPT_CONNECTIONS,
];

/// The mode works without tools, too. But a host without tools does not get this mode by default.
#[cfg(target_os = "linux")]
fn available() -> Result<(), String> {
    match crate::tool::Tools::are_installed(Family::V4) {
        true => Ok(()),
        false => Err("this host has no iptables tools".into()),
    }
}

#[cfg(target_os = "linux")]
fn open(opening: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Ok(Box::new(crate::dataplane::Iptables::open(opening.families, opening.settings)?))
}

#[cfg(not(target_os = "linux"))]
const NEEDS_LINUX: &str = "iptables mode needs Linux";

#[cfg(not(target_os = "linux"))]
fn available() -> Result<(), String> {
    Err(NEEDS_LINUX.into())
}

#[cfg(not(target_os = "linux"))]
fn open(_: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Err(Failure::unsupported(NEEDS_LINUX))
}
