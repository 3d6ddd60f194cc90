//! Configurations that are accepted with a warning.

use super::*;

#[test]
fn with_a_file_only_a_few_flags_count() {
    let args = [
        "--proxy-mode=nftables",
        "--feature-gates=Nonsense=true",
        "--bind-address=1.2.3.4",
        "--hostname-override= Node-A ",
        "--v=4",
        "--logging-format=json",
        "--master=https://example",
        "--log-flush-frequency=1s",
    ];
    let lines = "mode: iptables\nhostnameOverride: other\nlogging: {verbosity: 1, flushFrequency: 2s}";
    let (config, warnings) = from_file_and(lines, &args).unwrap();
    assert_eq!(config.mode, MODES.find("iptables"));
    assert_eq!(config.hostname_override, "node-a");
    assert_eq!((config.logging.verbosity, config.logging.format), (4, LogFormat::Json));
    assert_eq!(config.logging.flush_frequency, seconds(1));
    let expected = [
        "ignored because --config is given: --bind-address --feature-gates --proxy-mode",
        UNSET_NODE_PORT_ADDRESSES,
    ];
    assert_eq!(warnings, expected);
}

const UNSET_NODE_PORT_ADDRESSES: &str = "nodePortAddresses is not set: node ports accept connections on all \
                                         addresses of this node; set it to `primary` to limit them";

#[test]
fn open_node_ports_are_reported_for_the_mode_that_is_used() {
    let doubts = |lines: &str, mode| {
        let (config, warnings) = from_file(lines).unwrap();
        assert_eq!((config.mode, warnings), (None, vec![]), "the mode is not chosen yet");
        config.doubts_about_default(MODES.find(mode).unwrap())
    };
    assert_eq!(doubts("", "iptables").as_deref(), Some(UNSET_NODE_PORT_ADDRESSES));
    assert_eq!(doubts("", "nftables"), None, "its default is `primary`");
    assert_eq!(doubts("nodePortAddresses: [primary]", "iptables"), None);
}

#[test]
fn flags_of_our_own_count_beside_a_file() {
    let args = ["--traffic-metrics", "--traffic-metrics-max-series=5"];
    for (config, warnings) in [from_file_and("", &args).unwrap(), from_flags(&args).unwrap()] {
        assert!(config.traffic_metrics);
        assert_eq!((config.traffic_metrics_max_series, warnings), (5, vec![]));
    }
}

#[test]
fn limits_have_flags() {
    let args = [
        "--service-max-frontends=5",
        "--service_max_endpoints=6",
        "--service-max-entries=70",
        "--namespace-max-frontends=80",
        "--node-max-frontends=90",
    ];
    let expected = Limits {
        frontends: 5,
        endpoints: 6,
        entries: 70,
        namespace_frontends: 80,
        node_frontends: 90,
        ..Limits::default()
    };
    for (config, warnings) in [from_file_and("", &args).unwrap(), from_flags(&args).unwrap()] {
        assert_eq!((config.limits, warnings), (expected, vec![]));
        let mode = MODES.find("nftables").unwrap();
        assert_eq!(config.policy(mode, "ka".into()).limits, config.limits);
    }
}

#[test]
fn what_the_mode_ignores_is_said_in_one_line() {
    let args = [
        "--proxy-mode=nftables",
        "--ipvs-scheduler=sh",
        "--iptables-localhost-nodeports=false",
        "--iptables-sync-period=1m",
        "--masquerade-all",
        "--windows-service",
    ];
    let (_, warnings) = from_flags(&args).unwrap();
    let expected = "ignored in this mode: --iptables-localhost-nodeports --ipvs-scheduler; in every mode: --windows-service";
    assert_eq!(warnings, [expected]);
    let (_, warnings) = from_flags(&["--proxy-mode=ipvs", "--iptables-sync-period=1m"]).unwrap();
    assert_eq!(warnings, ["ignored in this mode: --iptables-sync-period", UNSET_NODE_PORT_ADDRESSES]);
    let (_, warnings) = from_flags(&["--ipvs-strict-arp", "--iptables-masquerade-bit=3"]).unwrap();
    assert_eq!(warnings, ["ignored in this mode: --ipvs-strict-arp"]);

    let lines = "mode: nftables\nipvs: {scheduler: rr, minSyncPeriod: 0s, excludeCIDRs: null}\n\
                 iptables: {masqueradeAll: true, masqueradeBit: null}\nnftables: {masqueradeAll: true}\nportRange: 1-2";
    let (_, warnings) = from_file_and(lines, &["--proxy-mode=ipvs"]).unwrap();
    let expected = "ignored because --config is given: --proxy-mode; \
                    in this mode: iptables.masqueradeAll ipvs.scheduler portRange";
    assert_eq!(warnings, [expected]);
}

#[test]
fn gates_of_other_components_do_not_stop_it() {
    let (_, warnings) = from_file("featureGates: {Nonsense: true}").unwrap();
    assert_eq!(warnings, ["featureGates: Nonsense has no effect: unknown feature gate"]);
    let (_, warnings) = from_flags(&["--version=v1.37.0-ours"]).unwrap();
    assert_eq!(warnings, ["--version=v1.37.0-ours has no effect: the real version is reported"]);
}

#[test]
fn settings_for_a_family_that_the_host_lacks() {
    let v4 = [Family::V4];
    let both = "clusterCIDR: '10.0.0.0/8,fd00::/8'\nnodePortAddresses: ['fd00::/8', primary]\n\
                healthzBindAddress: '[::]:1'";
    let (config, _) = from_file(both).unwrap();
    assert_eq!(config.check_families(&Family::ALL), Ok(vec![]));
    let expected = [
        "nodePortAddresses: fd00::/8 is of the other IP family, and this host has only IPv4",
        "clusterCIDR: fd00::/8 is of the other IP family, and this host has only IPv4",
        "healthzBindAddress: [::]:1 is of the other IP family, and this host has only IPv4",
    ];
    assert_eq!(config.check_families(&v4).unwrap(), expected);
    let (config, _) = from_file("clusterCIDR: 'fd00::/8'\nbindAddress: 'fd00::1'").unwrap();
    let expected = [
        "bindAddress: fd00::1 is of the other IP family, and this host has only IPv4",
        "clusterCIDR: fd00::/8 is of the other IP family, and this host has only IPv4",
    ];
    assert_eq!(config.check_families(&v4).unwrap_err(), expected);
    let (config, _) = from_file("clusterCIDR: 'fd00::/8'\ndetectLocalMode: NodeCIDR").unwrap();
    assert_eq!(config.check_families(&v4), Ok(vec![]));
}

#[test]
fn warnings_for_what_has_no_effect() {
    let (_, warnings) = from_flags(&["--source-vip=1.2.3.4", "--healthz-port=1"]).unwrap();
    let expected =
        ["ignored in this mode: --source-vip", "--healthz-port is deprecated: use --healthz-bind-address"];
    assert_eq!(warnings, expected);
    let (_, warnings) = from_file("mode: nftables\nportRange: 1-2\nnonsense: 1").unwrap();
    let expected = [
        "--config: parts of the file are ignored: unknown field nonsense",
        "ignored in this mode: portRange",
    ];
    assert_eq!(warnings, expected);
    let lines = "clusterCIDR: '10.0.0.0/8,fd00::/8'\nnodePortAddresses: [10.0.0.0/8]";
    let (_, warnings) = from_file(lines).unwrap();
    assert!(warnings[0].starts_with("nodePortAddresses has only IPv4 ranges"), "{warnings:?}");
    let (_, warnings) = from_file(&lines.replace("[10.0.0.0/8]", "[10.0.0.0/8, primary]")).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
}
