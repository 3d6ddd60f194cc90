//! kernelspace mode as a value: how it is configured, what it needs, and how to open it.

use ferroxy_core::Family;
use ferroxy_dataplane::{
    Counted, Dataplane, Failure, Lifetime, Metric, Mode, Opening, Pace, PeriodFields, Platform, Privileges,
};

use crate::dataplane::failures::Call;
use crate::{ruleset, settings};

pub static MODE: Mode = Mode {
    name: "kernelspace",
    help: "Windows: load balancers of the Host Networking Service",
    platforms: &[Platform::Windows],
    families: &Family::ALL,
    lifetime: Lifetime::OutlivesProcess,
    pace: Pace::EachService,
    fields: settings::FIELDS,
    periods: PeriodFields { sync: &settings::SYNC_PERIOD, min_sync: &settings::MIN_SYNC_PERIOD },
    gate: None,
    privileges: Privileges { own: &[], programs: &[] },
    needs: "Windows Server 2019 or newer, with a network plugin (L2Bridge or Overlay)",
    devices: &[],
    shares_names: false,
    counts_traffic: false,
    metrics: METRICS,
    shape: settings::shape,
    available,
    open,
    render: ruleset::rendered,
};

const METRICS: &[Metric] = &[
    refused(
        "kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total",
        "Load balancers that HNS did not create.",
        Call::Create,
    ),
    refused(
        "kubeproxy_sync_proxy_rules_winkernel_lb_update_failures_total",
        "Changes of load balancers that HNS refused.",
        Call::Update,
    ),
    refused(
        "kubeproxy_sync_proxy_rules_winkernel_lb_delete_failures_total",
        "Load balancers that HNS did not delete.",
        Call::Delete,
    ),
];

const fn refused(name: &'static str, help: &'static str, call: Call) -> Metric {
    Metric { name, help, counts: Counted::Refusals(call.as_str()) }
}

#[cfg(windows)]
fn available() -> Result<(), String> {
    ferroxy_hcn::Library::load().map(drop).map_err(|error| error.to_string())
}

#[cfg(windows)]
fn open(opening: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    use crate::dataplane::{Error, Kernelspace, MacOf};
    use crate::options::Options;
    use crate::state::Mac;

    let library = ferroxy_hcn::Library::load().map_err(Error::from)?;
    let options = Options::new(opening.settings, std::env::var("KUBE_NETWORK").ok());
    let mac_of = |ip| ferroxy_platform::addresses::hardware_address(ip).ok().flatten().map(Mac);
    let patience = ferroxy_hcn::Patience::with(Box::new(library), ferroxy_hcn::patience::USUAL);
    let patience = patience.map_err(|error| Failure::other(format!("cannot start a thread: {error}")))?;
    let hcn = ferroxy_hcn::Hcn::new(Box::new(patience));
    Ok(Box::new(Kernelspace::new(hcn, options, MacOf(Box::new(mac_of)))))
}

#[cfg(not(windows))]
const NEEDS_WINDOWS: &str = "kernelspace mode needs Windows";

#[cfg(not(windows))]
fn available() -> Result<(), String> {
    Err(NEEDS_WINDOWS.into())
}

#[cfg(not(windows))]
fn open(_: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Err(Failure::unsupported(NEEDS_WINDOWS))
}
