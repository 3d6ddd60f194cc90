//! The mode as the agent and the commands see it: its name, its settings, its metrics, how to open it and how to render.

use ferroxy_core::Family;
use ferroxy_dataplane::{
    Counted, Dataplane, Failure, Lifetime, Metric, Mode, Opening, Pace, PeriodFields, Platform, Privilege,
    Privileges,
};
use ferroxy_netfilter::metrics::{FULL_SYNC_SECONDS, PARTIAL_SYNC_SECONDS, SWEEP_SECONDS, SWEPT_CONNECTIONS};

use crate::render::render;
use crate::settings::{self, FIELDS, MIN_SYNC_PERIOD, SYNC_PERIOD, Settings};

pub static MODE: Mode = Mode {
    name: "nftables",
    help: "Rules of nf_tables: Services are elements of sets, and only changed elements are sent",
    platforms: &[Platform::Linux],
    families: &Family::ALL,
    lifetime: Lifetime::OutlivesProcess,
    pace: Pace::EachService,
    fields: FIELDS,
    periods: PeriodFields { sync: &SYNC_PERIOD, min_sync: &MIN_SYNC_PERIOD },
    gate: None,
    privileges: Privileges { own: &[Privilege::NetAdmin], programs: &[] },
    needs: "Linux 5.13 with nf_tables, nft_nat, nft_masq, nft_fib and nft_reject",
    devices: &[],
    shares_names: false,
    counts_traffic: true,
    metrics: &[
        FULL_SYNC_SECONDS,
        PARTIAL_SYNC_SECONDS,
        Metric {
            name: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            help: "Syncs, or parts of one, that the kernel refused.",
            counts: Counted::SyncFailures,
        },
        Metric {
            name: "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
            help: "Attempts to remove unused objects that the kernel refused.",
            counts: Counted::TidyFailures,
        },
        SWEEP_SECONDS,
        SWEPT_CONNECTIONS,
    ],
    shape: settings::shape,
    available,
    open,
    render: |rendering| Box::new(render(rendering.intent, &Settings::read(rendering.settings), &Family::ALL)),
};

#[cfg(not(target_os = "linux"))]
const NEEDS_LINUX: &str = "nftables mode needs Linux";

/// Every supported kernel has nf_tables; `probe` finds out what else is missing.
#[cfg(target_os = "linux")]
fn available() -> Result<(), String> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn available() -> Result<(), String> {
    Err(NEEDS_LINUX.into())
}

#[cfg(target_os = "linux")]
fn open(opening: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    let dataplane = crate::Nftables::open(opening.families, Settings::read(opening.settings))?;
    Ok(Box::new(dataplane))
}

#[cfg(not(target_os = "linux"))]
fn open(_: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Err(Failure::unsupported(NEEDS_LINUX))
}
