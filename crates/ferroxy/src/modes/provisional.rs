//! Stand-ins for the `MODE` of each dataplane crate: names, fields, periods and gates are real, opening and rendering are not.

use std::fmt;

use ferroxy_core::{Family, Packet, Policy, Verdict};
use ferroxy_dataplane::{
    Dataplane, Failure, Lifetime, Mode, Opening, Pace, PeriodFields, Platform, Privilege, Privileges,
    Rendering, Ruleset, Settings, Trace,
};
use ferroxy_iptables::settings as iptables;
use ferroxy_iptables::tool::Tools;
use ferroxy_ipvs::settings as ipvs;
use ferroxy_nftables::settings as nftables;

const BOTH: &[Privilege] = &[Privilege::NetAdmin, Privilege::NetRaw];

pub static IPTABLES: Mode = Mode {
    name: "iptables",
    help: "rules of iptables",
    pace: Pace::Whole,
    fields: iptables::FIELDS,
    periods: PeriodFields { sync: &iptables::SYNC_PERIOD, min_sync: &iptables::MIN_SYNC_PERIOD },
    needs: "the iptables programs",
    shares_names: true,
    shape: |settings, policy| {
        iptables::shape(settings, policy);
        masquerade_bit(settings.number(&iptables::MASQUERADE_BIT), policy);
    },
    ..USUAL
};

pub static IPVS: Mode = Mode {
    name: "ipvs",
    help: "virtual servers of IPVS",
    fields: ipvs::FIELDS,
    periods: PeriodFields { sync: &ipvs::SYNC_PERIOD, min_sync: &ipvs::MIN_SYNC_PERIOD },
    gate: Some("KubeProxyIPVS"),
    needs: "Linux with ip_vs and ip_set, and the iptables programs",
    devices: &["kube-ipvs0"],
    shares_names: true,
    shape: |settings, policy| {
        ipvs::shape(settings, policy);
        masquerade_bit(settings.number(&iptables::MASQUERADE_BIT), policy);
    },
    ..USUAL
};

pub static NFTABLES: Mode = Mode {
    name: "nftables",
    help: "a table of nftables",
    fields: nftables::FIELDS,
    periods: PeriodFields { sync: &nftables::SYNC_PERIOD, min_sync: &nftables::MIN_SYNC_PERIOD },
    privileges: Privileges { own: &[Privilege::NetAdmin], programs: &[] },
    needs: "Linux 5.13 with nf_tables",
    counts_traffic: true,
    shape: |settings, policy| {
        nftables::shape(settings, policy);
        masquerade_bit(settings.number(&nftables::MASQUERADE_BIT), policy);
    },
    available: || Ok(()),
    ..USUAL
};

const USUAL: Mode = Mode {
    name: "",
    help: "",
    platforms: &[Platform::Linux],
    families: &Family::ALL,
    lifetime: Lifetime::OutlivesProcess,
    pace: Pace::EachService,
    fields: &[],
    periods: PeriodFields { sync: &iptables::SYNC_PERIOD, min_sync: &iptables::MIN_SYNC_PERIOD },
    gate: None,
    privileges: Privileges { own: BOTH, programs: BOTH },
    needs: "",
    devices: &[],
    shares_names: false,
    counts_traffic: false,
    metrics: &[],
    shape: |_: &Settings, _: &mut Policy| {},
    available: iptables_tools,
    open,
    render,
};

/// The policy has this field until the dataplanes take the mark from their settings.
fn masquerade_bit(bit: i64, policy: &mut Policy) {
    policy.masquerade_bit = u8::try_from(bit).unwrap_or_default();
}

fn iptables_tools() -> Result<(), String> {
    if Tools::are_installed(Family::V4) { Ok(()) } else { Err("this host has no iptables tools".to_owned()) }
}

fn open(_: &Opening<'_>) -> Result<Box<dyn Dataplane>, Failure> {
    Err(Failure::unsupported("this mode cannot be opened through its descriptor yet"))
}

fn render(_: &Rendering<'_>) -> Box<dyn Ruleset> {
    Box::new(Empty)
}

#[derive(Debug)]
struct Empty;

impl fmt::Display for Empty {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl Ruleset for Empty {
    fn trace(&self, _: &Packet) -> Trace {
        Trace { verdict: Verdict::Pass, steps: Vec::new() }
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}
