//! The way back to a file.

use super::*;

#[test]
fn what_is_written_loads_as_the_same() {
    for (lines, args) in [
        ("", &[][..]),
        (
            "pageAddress: 0.0.0.0\npageTokenFile: /etc/token\n\
             mode: nftables\nnftables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 1m, minSyncPeriod: 1.5s}",
            &[],
        ),
        (
            "mode: ipvs\nipvs: {scheduler: sh, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 15m}\n\
             featureGates: {AllowServiceExternalIPs: false, LoggingAlphaOptions: true}\n\
             clusterCIDR: '10.0.0.0/8,fd00::/8'\nnodePortAddresses: [primary, localhost, all, 'fd00::/8']\n\
             hostnameOverride: 'yes'\nbindAddress: '::1'\nportRange: '0'\noomScoreAdj: 5\nenableProfiling: true\n\
             detectLocal: {bridgeInterface: 'null', interfaceNamePrefix: '12'}\ndetectLocalMode: NodeCIDR\n\
             winkernel: {networkName: net, enableDSR: true}\nwindowsRunAsService: true\n\
             conntrack: {maxPerCore: 0, udpTimeout: 250ms, tcpBeLiberal: true}\nconfigSyncPeriod: 1h\n\
             clientConnection: {kubeconfig: /k, qps: 0.5, burst: 1, acceptContentTypes: a, contentType: b}\n\
             logging: {verbosity: 3, vmodule: [{filePattern: a*, verbosity: 2}], flushFrequency: 1s,\n\
               options: {text: {splitStream: true, infoBufferSize: 1Mi}}}",
            &["--hostname-override=Node"],
        ),
    ] {
        let (config, _) = from_file_and(lines, args).unwrap();
        let yaml = config.to_yaml().unwrap();
        let again = Config::from_text(&yaml, &Flags::default(), MODES);
        let (again, _) = again.unwrap_or_else(|errors| panic!("{errors:?}\n{yaml}"));
        assert_eq!(again, config, "{yaml}");
    }
}

#[test]
fn only_the_block_of_the_chosen_mode_is_written_out() {
    let written = |args: &[&str]| from_flags(args).unwrap().0.to_json();
    let nftables = written(&["--proxy-mode=nftables", "--masquerade-all", "--iptables-sync-period=1m"]);
    assert_eq!(nftables["nftables"]["syncPeriod"], "1m0s");
    assert_eq!(nftables["nftables"]["masqueradeAll"], true);
    assert_eq!(nftables["iptables"]["syncPeriod"], "0s");
    assert_eq!(nftables["iptables"]["masqueradeAll"], false);
    assert_eq!(
        (&nftables["ipvs"]["minSyncPeriod"], &nftables["ipvs"]["excludeCIDRs"]),
        (&"0s".into(), &Value::Null)
    );
    assert_eq!(nftables.get("featureGates"), None);
    let ipvs = written(&["--proxy-mode=ipvs", "--masquerade-all"]);
    assert_eq!((&ipvs["ipvs"]["syncPeriod"], &ipvs["ipvs"]["minSyncPeriod"]), (&"30s".into(), &"1s".into()));
    assert_eq!(
        (&ipvs["iptables"]["syncPeriod"], &ipvs["nftables"]["syncPeriod"]),
        (&"0s".into(), &"0s".into())
    );
    assert_eq!(
        (&ipvs["iptables"]["masqueradeAll"], &ipvs["nftables"]["masqueradeAll"]),
        (&true.into(), &false.into())
    );
    let iptables = written(&["--proxy-mode=iptables"]);
    assert_eq!(
        (&iptables["iptables"]["minSyncPeriod"], &iptables["nftables"]["minSyncPeriod"]),
        (&"1s".into(), &"0s".into())
    );
}
