//! ipvs mode as a value: how it is configured, what it needs, and how to open it.

use ferroxy_core::Family;
use ferroxy_dataplane::{
    Counted, Dataplane, Failure, Lifetime, Metric, Mode, Opening, Pace, PeriodFields, Platform, Privilege,
    Privileges,
};
use ferroxy_netfilter::metrics;

use crate::state::DEVICE;
use crate::{ruleset, settings};

pub static MODE: Mode = Mode {
    name: "ipvs",
    help: "Virtual servers of IPVS, with sets and a few rules of iptables",
    platforms: &[Platform::Linux],
    families: &Family::ALL,
    lifetime: Lifetime::OutlivesProcess,
    pace: Pace::EachService,
    fields: settings::FIELDS,
    periods: PeriodFields { sync: &settings::SYNC_PERIOD, min_sync: &settings::MIN_SYNC_PERIOD },
    gate: Some("KubeProxyIPVS"),
    // The legacy iptables tools open a raw socket.
    privileges: Privileges {
        own: &[Privilege::NetAdmin, Privilege::NetRaw],
        programs: &[Privilege::NetAdmin, Privilege::NetRaw],
    },
    needs: "Linux with ip_vs, ip_set, dummy devices, and nf_tables or legacy iptables",
    devices: &[DEVICE],
    shares_names: true,
    counts_traffic: false,
    metrics: METRICS,
    shape: settings::shape,
    available,
    open,
    render: ruleset::rendered,
};

const METRICS: &[Metric] = &[
    Metric {
        name: "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        help: "Failed syncs.",
        counts: Counted::SyncFailures,
    },
    metrics::SWEEP_SECONDS,
    metrics::SWEPT_CONNECTIONS,
];

/// Always available: checking for IPVS loads modules, so only opening the mode checks.
#[cfg(target_os = "linux")]
fn available() -> Result<(), String> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn open(opening: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Ok(Box::new(crate::dataplane::Ipvs::open(opening.families, opening.settings)?))
}

#[cfg(not(target_os = "linux"))]
const NEEDS_LINUX: &str = "ipvs mode needs Linux";

#[cfg(not(target_os = "linux"))]
fn available() -> Result<(), String> {
    Err(NEEDS_LINUX.into())
}

#[cfg(not(target_os = "linux"))]
fn open(_: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Err(Failure::unsupported(NEEDS_LINUX))
}
