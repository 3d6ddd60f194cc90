//! Writing a configuration back to a file.

use ferroxy_dataplane::Field;

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

/// Flags that are not settings: actions, the address of the API server, and ports that complete the address of another flag.
const NO_SETTINGS: [&str; 9] = [
    "cleanup",
    "config",
    "healthz-port",
    "init-only",
    "master",
    "metrics-port",
    "version",
    "write-config-to",
    "help",
];

#[test]
fn every_setting_that_has_a_flag_has_a_field() {
    let command = Flags::add_to(clap::Command::new("kube-proxy"), MODES);
    for flag in command.get_arguments().filter_map(|arg| arg.get_long()) {
        let has_field = overlay::fields_of(flag, MODES).next().is_some();
        assert_eq!(has_field, !NO_SETTINGS.contains(&flag), "--{flag}");
    }
}

#[test]
fn our_own_settings_are_written_and_load_as_the_same() {
    for (args, fields) in [
        (&[][..], &[][..]),
        (
            &[
                "--traffic-metrics",
                "--traffic-metrics-max-series=5",
                "--service-max-frontends=6",
                "--service-max-endpoints=7",
                "--service-max-entries=8",
                "--namespace-max-frontends=9",
                "--node-max-frontends=10",
                "--otlp-endpoint=http://127.0.0.1:4318/x",
                "--log-file=/l",
                "--log-file-max-size=3",
                "--accelerate-sockets=pods",
                "--sockets-peer-names",
                "--sockets-cgroup=/c",
                "--sockets-pods-cgroup=/p",
                "--sockets-pins=/b",
                "--sockets-max-entries=4",
            ],
            &[
                ("trafficMetrics", Value::Bool(true)),
                ("serviceMaxEndpoints", 7.into()),
                ("otlpEndpoint", "http://127.0.0.1:4318/x".into()),
                ("accelerateSockets", "pods".into()),
                ("socketsPins", "/b".into()),
            ],
        ),
        (&["--proxy-mode=nftables"], &[("mode", "nftables".into())]),
        (&["--proxy-mode=ipvs"], &[("mode", "ipvs".into())]),
        (&["--proxy-mode=ebpf"], &[("mode", "ebpf".into())]),
        (&["--proxy-mode=ebpf", "--accelerate-sockets=off"], &[("accelerateSockets", "off".into())]),
        (&["--healthz-port=0"], &[("healthzBindAddress", "0.0.0.0:0".into())]),
        (&["--metrics-port=0"], &[("metricsBindAddress", "127.0.0.1:0".into())]),
    ] {
        let (config, _) = from_flags(args).unwrap();
        let written = config.to_json();
        for (field, value) in fields {
            assert_eq!(&written[field], value, "{args:?}");
        }
        let own = |field: &&Field| !written[field.name].is_null();
        if args.is_empty() {
            assert_eq!(own::FIELDS.iter().find(own), None, "the original need not warn about them");
        }
        let yaml = config.to_yaml().unwrap();
        let (again, warnings) = Config::from_text(&yaml, &Flags::default(), MODES).unwrap();
        assert_eq!((again.to_json(), again.sockets.clone()), (written, config.sockets.clone()), "{yaml}");
        assert_eq!(again, Config { values: again.values.clone(), ..config }, "{yaml}");
        let is_about_fields = |it: &&String| it.contains("--config") || it.contains("ignored");
        assert_eq!(warnings.iter().find(is_about_fields), None, "{yaml}");
    }
}

#[test]
fn a_period_of_zero_stays_short() {
    let args = ["--proxy-mode=nftables", "--iptables-min-sync-period=0", "--log-flush-frequency=0"];
    let (config, _) = from_flags(&args).unwrap();
    let yaml = config.to_yaml().unwrap();
    let (again, _) = Config::from_text(&yaml, &Flags::default(), MODES).unwrap();
    let short = Duration::from_nanos(1);
    assert_eq!(again.periods(mode("nftables")).min_sync, short, "{yaml}");
    assert_eq!(again.logging.flush_frequency, short, "{yaml}");
    assert_eq!(again.to_yaml().unwrap(), yaml);
}

#[test]
fn our_own_fields_are_checked_as_the_flags_are() {
    let (config, _) = from_file("accelerateSockets: off\ntrafficMetrics: yes").unwrap();
    assert_eq!((config.sockets == wrapper::Options::default(), config.traffic_metrics), (true, true));
    let (config, _) = from_file_and("trafficMetrics: true", &["--traffic-metrics=false"]).unwrap();
    assert!(!config.traffic_metrics, "the flag wins");
    for (lines, expected) in [
        ("accelerateSockets: some", "accelerateSockets: `some` is none of off, host, pods, all"),
        ("serviceMaxEndpoints: 65536", "serviceMaxEndpoints: 65536 is not between 1 and 65535"),
        ("nodeMaxFrontends: 0", "nodeMaxFrontends: 0 is not between 1 and 4294967295"),
        (
            "otlpEndpoint: 'collector:4318'",
            "otlpEndpoint: \"collector:4318\" is not http://HOST[:PORT][/PATH] (there is no TLS: use a collector on the node)",
        ),
        ("trafficMetrics: 1", "trafficMetrics: is 1, must be true or false"),
    ] {
        assert_eq!(from_file(lines).unwrap_err(), [expected], "{lines}");
    }
}

#[test]
fn our_own_fields_are_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate.md");
    let text = std::fs::read_to_string(page).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    for field in &own::FIELDS {
        let names = [format!("`{}`", field.name), format!("`--{}`", field.flag.unwrap().name)];
        let row = rows.iter().find(|row| names.iter().all(|name| row.contains(name)));
        let row = row.unwrap_or_else(|| panic!("{names:?} in docs/operate.md"));
        if let Setting::Number(default) = field.kind.default() {
            assert!(row.contains(&format!("| {default}")), "{default} in {row}");
        }
    }
}
