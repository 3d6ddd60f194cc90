//! The mode as the agent and the commands see it: its name, its settings, its metrics, how to open it and how to render.

use ferroxy_core::Family;
use ferroxy_dataplane::{
    Dataplane, Failure, Lifetime, Mode, Opening, Pace, PeriodFields, Platform, Privileges,
};
use ferroxy_pools::metrics::METRICS;

use crate::ruleset;
use crate::settings::{self, FIELDS, MIN_SYNC_PERIOD, SYNC_PERIOD};

pub static MODE: Mode = Mode {
    name: "winuserspace",
    help: "Windows: a proxy in this process, on addresses that it puts on an interface",
    platforms: &[Platform::Windows],
    families: &Family::ALL,
    lifetime: Lifetime::EndsWithProcess,
    pace: Pace::EachService,
    fields: FIELDS,
    periods: PeriodFields { sync: &SYNC_PERIOD, min_sync: &MIN_SYNC_PERIOD },
    gate: None,
    privileges: Privileges { own: &[], programs: &[] },
    needs: "Windows Server 2016 or newer",
    devices: &[],
    shares_names: false,
    counts_traffic: true,
    metrics: &METRICS,
    shape: settings::shape,
    available,
    open,
    render: ruleset::rendered,
};

/// A proxy is never chosen where no mode is configured.
fn available() -> Result<(), String> {
    Err("winuserspace mode is used only where it is configured".into())
}

#[cfg(windows)]
fn open(opening: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    use crate::settings::{INTERFACE_VARIABLE, Settings};

    let name = Settings::read(opening.settings).interface(std::env::var(INTERFACE_VARIABLE).ok());
    let interface = Box::new(ferroxy_platform::interface::Interface::named(&name));
    let path = ferroxy_platform::host::data_directory().join("winuserspace-addresses");
    Ok(Box::new(crate::Winuserspace::open(opening.families, opening.settings, interface, &path)?))
}

#[cfg(not(windows))]
fn open(_: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Err(Failure::unsupported("winuserspace mode needs Windows"))
}
