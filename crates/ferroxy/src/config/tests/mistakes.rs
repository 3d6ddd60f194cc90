//! Refused configurations, and the error messages.

use super::*;

/// `{MODES}` stands for the names of all modes.
fn with_modes(text: &str) -> String {
    text.replace("{MODES}", &MODES.sentence("and"))
}

#[test]
fn what_is_wrong_with_the_address_of_the_page_names_the_field() {
    for (lines, expected) in [
        ("pageAddress: here", "pageAddress: \"here\" is not IP:port such as 0.0.0.0:10256 or [::]:10256"),
        (
            "pageAddress: 0.0.0.0:10261",
            "pageAddress: 0.0.0.0:10261 is reachable from other hosts: set pageTokenFile (--page-token-file)",
        ),
        (
            "pageAddress: 'fd00::1'",
            "pageAddress: [fd00::1]:10261 is reachable from other hosts: set pageTokenFile (--page-token-file)",
        ),
    ] {
        assert_eq!(from_file(lines).unwrap_err(), [expected], "{lines}");
    }
}

#[test]
fn what_is_wrong_in_a_file_names_the_field() {
    for (lines, expected) in [
        ("bindAddress: here", "bindAddress: \"here\" is not an IP address"),
        (
            "healthzBindAddress: ':80'",
            "healthzBindAddress: \":80\" is not IP:port such as 0.0.0.0:10256 or [::]:10256",
        ),
        (
            "healthzBindAddress: 1.2.3.4:70000",
            "healthzBindAddress: \"1.2.3.4:70000\" is not IP:port such as 0.0.0.0:10256 or [::]:10256",
        ),
        (
            "metricsBindAddress: here",
            "metricsBindAddress: \"here\" is not IP:port such as 0.0.0.0:10256 or [::]:10256",
        ),
        ("mode: slow", "mode: \"slow\" is not one of {MODES}"),
        ("mode: Nftables", "mode: \"Nftables\" is not one of {MODES}"),
        (
            "mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}",
            "mode: ipvs is switched off by the feature gate KubeProxyIPVS",
        ),
        (
            "featureGates: {NFTablesProxyMode: false}",
            "featureGates[NFTablesProxyMode]: NFTablesProxyMode can no longer be switched off",
        ),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: 32 is not between 0 and 31"),
        ("mode: ipvs\niptables: {masqueradeBit: -1}", "iptables.masqueradeBit: -1 is not between 0 and 31"),
        (
            "mode: nftables\nnftables: {masqueradeBit: 99}",
            "nftables.masqueradeBit: 99 is not between 0 and 31",
        ),
        (
            "iptables: {syncPeriod: 5s, minSyncPeriod: 1m}",
            "iptables.minSyncPeriod: 1m0s is longer than syncPeriod, 5s",
        ),
        ("mode: ipvs\nipvs: {syncPeriod: -5s}", "ipvs.syncPeriod: -5s is negative"),
        ("mode: ipvs\nipvs: {udpTimeout: -1s}", "ipvs.udpTimeout: -1s is negative"),
        (
            "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, nowhere]}",
            "ipvs.excludeCIDRs[1]: \"nowhere\" is not a CIDR such as 10.0.0.0/8 or fd00::/8",
        ),
        (
            "detectLocalMode: Guess",
            "detectLocalMode: \"Guess\" is not one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix",
        ),
        (
            "detectLocalMode: BridgeInterface",
            "detectLocal.bridgeInterface: is empty, but detectLocalMode BridgeInterface needs it",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix",
            "detectLocal.interfaceNamePrefix: is empty, but detectLocalMode InterfaceNamePrefix needs it",
        ),
        ("clusterCIDR: 10.0.0.0", "clusterCIDR: \"10.0.0.0\" is not a CIDR such as 10.0.0.0/8 or fd00::/8"),
        ("clusterCIDR: 10.0.0.0/8,10.1.0.0/16", "clusterCIDR: has two ranges of one family"),
        ("clusterCIDR: 'fd00::/8,fd01::/16'", "clusterCIDR: has two ranges of one family"),
        ("clusterCIDR: '10.0.0.0/8,fd00::/8,fd01::/16'", "clusterCIDR: has more than two ranges"),
        (
            "nodePortAddresses: [10.0.0.0/33]",
            "nodePortAddresses[0]: \"10.0.0.0/33\" is not a CIDR, nor primary, localhost or all",
        ),
        (
            "nodePortAddresses: [primary, 10.0.0.0/8, primary]",
            "nodePortAddresses[2]: primary is listed twice",
        ),
        ("oomScoreAdj: -1001", "oomScoreAdj: -1001 is not between -1000 and 1000"),
        ("conntrack: {maxPerCore: -1}", "conntrack.maxPerCore: -1 is not between 0 and 2147483647"),
        ("conntrack: {min: -1}", "conntrack.min: -1 is not between 0 and 2147483647"),
        ("conntrack: {udpStreamTimeout: -1s}", "conntrack.udpStreamTimeout: -1s is negative"),
        (
            "conntrack: {tcpCloseWaitTimeout: 1 hour}",
            "conntrack.tcpCloseWaitTimeout: \"1 hour\" is not a duration such as 30s or 1h30m",
        ),
        ("configSyncPeriod: -1s", "configSyncPeriod: -1s is negative"),
        ("clientConnection: {burst: -1}", "clientConnection.burst: -1 is not between 0 and 2147483647"),
        (
            "showHiddenMetricsForVersion: '1.20'",
            "showHiddenMetricsForVersion: \"1.20\" must be empty or \"1.36\"",
        ),
        ("hostnameOverride: '  '", "hostnameOverride: contains only whitespace"),
        ("logging: {format: xml}", "logging.format: \"xml\" is neither text nor json"),
        (
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
            "logging.vmodule: works only with the format text",
        ),
        (
            "logging: {options: {text: {splitStream: true}}}",
            "logging.options.text.splitStream: needs the feature gate LoggingAlphaOptions",
        ),
        (
            "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {json: {infoBufferSize: big}}}",
            "logging.options.json.infoBufferSize: \"big\" is not a size such as 0, 512k or 1Mi",
        ),
    ] {
        assert_eq!(from_file(lines).unwrap_err(), [with_modes(expected)], "{lines}");
    }
}

#[test]
fn what_is_wrong_with_flags_names_the_flag() {
    for (args, expected) in [
        (
            &["--nodeport-addresses=10.0.0.0/33"][..],
            "--nodeport-addresses: \"10.0.0.0/33\" is not a CIDR, nor primary, localhost or all",
        ),
        (&["--proxy-mode=fast"], "--proxy-mode: \"fast\" is not one of {MODES}"),
        (&["--iptables-masquerade-bit=32"], "--iptables-masquerade-bit: 32 is not between 0 and 31"),
        (
            &["--proxy-mode=nftables", "--iptables-sync-period=0"],
            "--iptables-sync-period: must be longer than zero",
        ),
        (&["--config-sync-period=0"], "--config-sync-period: must be longer than zero"),
        (&["--feature-gates=WinDSR=false"], "--feature-gates: WinDSR can no longer be switched off"),
        (
            &["--log-text-info-buffer-size=1Mi"],
            "--log-text-info-buffer-size: needs the feature gate LoggingAlphaOptions",
        ),
        (&["--hostname-override= "], "--hostname-override: contains only whitespace"),
        (
            &["--detect-local-mode=BridgeInterface"],
            "--pod-bridge-interface: is empty, but detectLocalMode BridgeInterface needs it",
        ),
        (&["--vmodule=a=x"], "--vmodule: \"a\" is not a pattern with a verbosity"),
    ] {
        assert_eq!(from_flags(args).unwrap_err(), [with_modes(expected)], "{args:?}");
    }
    let errors = from_file_and("bindAddress: x", &["--hostname-override= "]).unwrap_err();
    assert_eq!(
        errors,
        ["--hostname-override: contains only whitespace", "bindAddress: \"x\" is not an IP address"]
    );
}

#[test]
fn all_problems_are_reported_at_once() {
    let lines =
        "bindAddress: x\nmode: other\noomScoreAdj: 5000\nnodePortAddresses: [a, b]\nconntrack: {min: -1}";
    assert_eq!(from_file(lines).unwrap_err().len(), 6);
}

#[test]
fn settings_of_other_modes_do_not_matter() {
    for lines in [
        "mode: iptables\nnftables: {masqueradeBit: 99}",
        "mode: nftables\niptables: {syncPeriod: 1s, minSyncPeriod: 1h}",
        "mode: nftables\nipvs: {excludeCIDRs: [nowhere], udpTimeout: -1s}",
        "detectLocalMode: NodeCIDR\nclusterCIDR: nonsense",
    ] {
        assert!(from_file(lines).is_ok(), "{lines}");
    }
}

#[test]
fn what_cannot_be_read_matters_in_every_mode() {
    let lines = "mode: nftables\niptables: {syncPeriod: 1x}\nipvs: {udpTimeout: soon, tcpTimeout: -1s}";
    assert_eq!(
        from_file(lines).unwrap_err(),
        [
            "iptables.syncPeriod: \"1x\" is not a duration such as 30s or 1h30m",
            "ipvs.udpTimeout: \"soon\" is not a duration such as 30s or 1h30m"
        ]
    );
}

#[test]
fn a_file_that_cannot_be_read() {
    let errors = from_flags(&["--config=/nonexistent/config.yaml"]).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("--config: cannot read /nonexistent/config.yaml: "), "{errors:?}");
    assert!(from_file("mode: [").is_err());
}

#[test]
fn a_page_that_others_can_reach_needs_a_token() {
    for (lines, expected) in [
        ("pageAddress: here", "pageAddress: \"here\" is not IP:port such as 0.0.0.0:10256 or [::]:10256"),
        (
            "pageAddress: 0.0.0.0:10261",
            "pageAddress: 0.0.0.0:10261 is reachable from other hosts: set pageTokenFile (--page-token-file)",
        ),
        (
            "pageAddress: 'fd00::1'",
            "pageAddress: [fd00::1]:10261 is reachable from other hosts: set pageTokenFile (--page-token-file)",
        ),
    ] {
        assert_eq!(from_file(lines).unwrap_err(), [expected], "{lines}");
    }
    let flags = from_flags(&["--page-address=0.0.0.0:10261"]).unwrap_err();
    assert!(flags[0].starts_with("--page-address: 0.0.0.0:10261 is reachable"), "{flags:?}");
}
