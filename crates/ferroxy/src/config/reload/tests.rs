//! The result of a changed file.

use std::ffi::OsString;

use ferroxy_dataplane::Value as Setting;

use super::*;
use crate::config::{DetectLocalMode, file};
use crate::modes::MODES;

fn text(lines: &str) -> String {
    format!("apiVersion: {}\nkind: {}\n{lines}\n", file::API_VERSION, file::KIND)
}

fn load(lines: &str) -> Config {
    Config::from_text(&text(lines), &Flags::default(), MODES).unwrap().0
}

fn value(config: &Config, field: &str) -> Setting {
    config.values.get(MODES.field(field).unwrap())
}

fn change(from: &str, to: &str) -> Option<Reload> {
    judge(&text(to), &Flags::default(), &load(from))
}

/// The new configuration, the fields that are applied, and the fields that need a restart.
fn changed(from: &str, to: &str) -> (Config, Vec<String>, Vec<String>) {
    match change(from, to) {
        Some(Reload::Changed { new, live, needs_restart, .. }) => (*new, live, needs_restart),
        other => panic!("{from} -> {to}: {other:?}"),
    }
}

#[test]
fn what_comes_to_the_same_is_nothing() {
    for (from, to) in [
        ("", ""),
        ("", "# a comment\nmode: ''"),
        ("", "featureGates: {NFTablesNetlink: true}\nnodePortAddresses: []\noomScoreAdj: -999"),
    ] {
        let reload = change(from, to);
        let said = |it: &Reload| {
            !matches!(it, Reload::Changed { live, needs_restart, .. }
            if live.is_empty() && needs_restart.is_empty())
        };
        assert!(!reload.as_ref().is_some_and(said), "{from} -> {to}: {reload:?}");
    }
    assert_eq!(change("mode: nftables", "# only a comment\nmode: nftables"), None);
}

#[test]
fn every_live_field_is_applied() {
    let lines = "mode: nftables
clusterCIDR: 10.0.0.0/8
configSyncPeriod: 1m
conntrack: {maxPerCore: 1, tcpBeLiberal: true, udpTimeout: 5s}
detectLocal: {bridgeInterface: br0}
detectLocalMode: BridgeInterface
featureGates: {AllowServiceExternalIPs: false}
logging: {verbosity: 3, vmodule: [{filePattern: a, verbosity: 1}]}
nftables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 1m, minSyncPeriod: 2s}
nodePortAddresses: [all]
oomScoreAdj: 5";
    let (new, live, needs_restart) = changed("mode: nftables", lines);
    assert_eq!(needs_restart, Vec::<String>::new());
    let expected = [
        "clusterCIDR",
        "configSyncPeriod",
        "conntrack.maxPerCore",
        "conntrack.tcpBeLiberal",
        "conntrack.udpTimeout",
        "detectLocal.bridgeInterface",
        "detectLocalMode",
        "featureGates.AllowServiceExternalIPs",
        "logging.verbosity",
        "logging.vmodule",
        "nftables.masqueradeAll",
        "nftables.masqueradeBit",
        "nftables.minSyncPeriod",
        "nftables.syncPeriod",
        "nodePortAddresses",
        "oomScoreAdj",
    ];
    assert_eq!(live, expected);
    assert_eq!(new, load(lines));
    assert_eq!(new.detect_local_mode, DetectLocalMode::BridgeInterface);
}

#[test]
fn what_needs_a_restart_keeps_its_old_value() {
    let lines = "mode: nftables
bindAddress: 10.0.0.1
bindAddressHardFail: true
clientConnection: {kubeconfig: /k, qps: 7}
enableProfiling: true
featureGates: {LoggingAlphaOptions: true, AllowServiceExternalIPs: false, AllBeta: false, Unheard: true}
healthzBindAddress: 10.0.0.1:1
hostnameOverride: other
logging: {format: json, flushFrequency: 1s}
metricsBindAddress: 10.0.0.1:2
oomScoreAdj: 5";
    let (new, live, needs_restart) = changed("mode: nftables", lines);
    assert_eq!(live, ["featureGates.AllowServiceExternalIPs", "oomScoreAdj"]);
    for field in [
        "bindAddress",
        "bindAddressHardFail",
        "clientConnection.kubeconfig",
        "clientConnection.qps",
        "enableProfiling",
        "featureGates.LoggingAlphaOptions",
        "featureGates.NFTablesNetlink",
        "healthzBindAddress",
        "hostnameOverride",
        "logging.format",
        "metricsBindAddress",
    ] {
        assert!(needs_restart.iter().any(|it| it == field), "{field}: {needs_restart:?}");
    }
    let mut expected = load("mode: nftables\noomScoreAdj: 5");
    expected.feature_gates = new.feature_gates.clone();
    assert_eq!(new, expected);
    let gates = &new.feature_gates;
    assert!(!gates.enabled("AllowServiceExternalIPs") && gates.enabled("NFTablesNetlink"));
    assert!(!gates.enabled("LoggingAlphaOptions"));
}

#[test]
fn a_change_that_needs_a_restart_is_reported_until_it_is_reverted() {
    let (new, _, needs_restart) = changed("", "hostnameOverride: b");
    assert_eq!(needs_restart, ["hostnameOverride"]);
    let Some(Reload::Changed { live, needs_restart, .. }) =
        judge(&text("hostnameOverride: b\noomScoreAdj: 1"), &Flags::default(), &new)
    else {
        panic!()
    };
    assert_eq!((live, needs_restart), (vec!["oomScoreAdj".to_owned()], vec!["hostnameOverride".to_owned()]));
    assert_eq!(judge(&text(""), &Flags::default(), &new), None);
}

#[test]
fn another_mode_waits_together_with_its_settings() {
    let from = "mode: nftables\nnftables: {masqueradeBit: 3}";
    let (new, live, needs_restart) =
        changed(from, "mode: iptables\niptables: {masqueradeBit: 4}\noomScoreAdj: 1");
    assert_eq!((live, needs_restart), (vec!["oomScoreAdj".to_owned()], vec!["mode".to_owned()]));
    assert_eq!(new.mode, MODES.find("nftables"));
    assert_eq!(value(&new, "nftables.masqueradeBit"), Setting::Number(3));
    assert_eq!(value(&new, "iptables.masqueradeBit"), Setting::Number(14));
}

#[test]
fn settings_that_the_mode_does_not_read_are_no_news() {
    let (new, live, needs_restart) =
        changed("mode: nftables", "mode: nftables\nipvs: {scheduler: sh}\nwinkernel: {enableDSR: true}");
    assert_eq!((live, needs_restart), (vec![], vec![]));
    assert_eq!(value(&new, "ipvs.scheduler"), Setting::Text("sh".into()));
}

#[test]
fn what_cannot_be_used_is_refused() {
    let refused = |to: &str| match change("mode: nftables", to) {
        Some(Reload::Refused(reasons)) => reasons,
        other => panic!("{to}: {other:?}"),
    };
    assert_eq!(refused("mode: fast"), [format!("mode: \"fast\" is not one of {}", MODES.sentence("and"))]);
    assert_eq!(refused("oomScoreAdj: x\nbindAddress: 5").len(), 2);
    assert!(refused("mode: [")[0].contains("line"));
    // Valid on its own, invalid together with a field that needs a restart.
    let from = load("logging: {format: json}");
    let to = text("logging: {format: text, vmodule: [{filePattern: a, verbosity: 1}]}");
    let reasons =
        ["logging.vmodule: works only with the format text (until a restart applies logging.format)"];
    let expected = Reload::Refused(reasons.map(str::to_owned).to_vec());
    assert_eq!(judge(&to, &Flags::default(), &from), Some(expected));
}

#[test]
fn flags_still_win_over_the_file() {
    let flags = Flags::parse(["--v=4", "--traffic-metrics"].map(OsString::from), MODES).unwrap();
    let (current, _) = Config::from_text(&text(""), &flags, MODES).unwrap();
    assert_eq!(judge(&text("logging: {verbosity: 1}"), &flags, &current), None);
    let Some(Reload::Changed { new, .. }) = judge(&text("oomScoreAdj: 1"), &flags, &current) else {
        panic!()
    };
    assert!(new.traffic_metrics);
    assert_eq!((new.logging.verbosity, new.oom_score_adj), (4, 1));
}

#[test]
fn the_names_of_live_fields_are_names_of_fields() {
    let fields = Fields::of(&load(""));
    let all = fields.all();
    for live in LIVE {
        assert!(all.keys().any(|field| is_live(field, MODES) && field.starts_with(live)), "{live}");
    }
}
