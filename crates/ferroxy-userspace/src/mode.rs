//! The mode as the agent and the commands see it: its name, its settings, its metrics, how to open it and how to render.

use ferroxy_core::Family;
use ferroxy_dataplane::{
    Dataplane, Failure, Lifetime, Mode, Opening, Pace, PeriodFields, Platform, Privilege, Privileges,
};
use ferroxy_iptables::settings::{MIN_SYNC_PERIOD, SYNC_PERIOD};

use crate::metrics::METRICS;
use crate::ruleset;
use crate::settings::{self, FIELDS};

pub static MODE: Mode = Mode {
    name: "userspace",
    help: "A proxy in this process: it retries dials, holds connections, balances by load",
    platforms: &[Platform::Linux],
    families: &Family::ALL,
    lifetime: Lifetime::EndsWithProcess,
    pace: Pace::EachService,
    fields: FIELDS,
    periods: PeriodFields { sync: &SYNC_PERIOD, min_sync: &MIN_SYNC_PERIOD },
    gate: None,
    privileges: Privileges {
        // Cluster IPs and node ports below 1024 are listened on.
        own: &[Privilege::NetAdmin, Privilege::NetRaw, Privilege::NetBindService],
        programs: &[Privilege::NetAdmin, Privilege::NetRaw],
    },
    needs: "Linux 5.13 with nf_tables; without privileges it serves node ports only",
    devices: &[],
    shares_names: false,
    counts_traffic: true,
    metrics: METRICS,
    shape: settings::shape,
    available,
    open,
    render: ruleset::rendered,
};

/// A proxy is never chosen where no mode is configured.
fn available() -> Result<(), String> {
    Err("userspace mode is used only where it is configured".into())
}

#[cfg(target_os = "linux")]
fn open(opening: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Ok(Box::new(crate::Userspace::open(opening.families, opening.settings)?))
}

#[cfg(not(target_os = "linux"))]
fn open(_: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Err(Failure::unsupported("userspace mode needs Linux"))
}
