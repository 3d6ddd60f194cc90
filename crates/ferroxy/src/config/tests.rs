//! Defaults, validation, precedence, and the way back to a file.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use ferroxy_core::Family;

use super::*;

fn flags(args: &[&str]) -> Flags {
    Flags::parse(args.iter().map(OsString::from)).unwrap()
}

fn from_flags(args: &[&str]) -> Result<(Config, Vec<String>), Vec<String>> {
    Config::load(&flags(args))
}

/// Loads a file with these lines after its head, together with flags.
fn from_file_and(lines: &str, args: &[&str]) -> Result<(Config, Vec<String>), Vec<String>> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "apiVersion: {}\nkind: {}\n{lines}\n", file::API_VERSION, file::KIND).unwrap();
    let mut flags = flags(args);
    flags.config = Some(file.path().display().to_string());
    Config::load(&flags)
}

fn from_file(lines: &str) -> Result<(Config, Vec<String>), Vec<String>> {
    from_file_and(lines, &[])
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_defaults() {
    let (config, warnings) = from_file("").unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let expected = Config {
        feature_gates: FeatureGates::default(),
        client: Client {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: "application/vnd.kubernetes.protobuf".into(),
            qps: 5.0,
            burst: 10,
        },
        logging: Logging {
            format: LogFormat::Text,
            flush_frequency: seconds(5),
            verbosity: 0,
            vmodule: vec![],
            text: LogStream { split_stream: false, info_buffer_size: "0".into() },
            json: LogStream { split_stream: false, info_buffer_size: "0".into() },
        },
        hostname_override: String::new(),
        bind_address: "0.0.0.0".parse().unwrap(),
        bind_address_hard_fail: false,
        healthz: Some("0.0.0.0:10256".parse().unwrap()),
        metrics: "127.0.0.1:10249".parse().unwrap(),
        profiling: false,
        show_hidden_metrics_for_version: String::new(),
        mode: Mode::Unset,
        iptables: Iptables {
            masquerade_bit: 14,
            masquerade_all: false,
            localhost_node_ports: true,
            periods: Periods { sync: seconds(30), min_sync: seconds(1) },
        },
        ipvs: Ipvs {
            scheduler: String::new(),
            exclude_cidrs: vec![],
            strict_arp: false,
            tcp_timeout: Duration::ZERO,
            tcp_fin_timeout: Duration::ZERO,
            udp_timeout: Duration::ZERO,
            periods: Periods { sync: seconds(30), min_sync: Duration::ZERO },
        },
        nftables: Nftables {
            masquerade_bit: 14,
            masquerade_all: false,
            periods: Periods { sync: seconds(30), min_sync: seconds(1) },
        },
        winkernel: Winkernel {
            network_name: String::new(),
            source_vip: String::new(),
            root_hns_endpoint_name: String::new(),
            enable_dsr: false,
            forward_health_check_vip: false,
        },
        detect_local_mode: DetectLocalMode::ClusterCidr,
        bridge_interface: String::new(),
        interface_name_prefix: String::new(),
        cluster_cidrs: vec![],
        node_port_addresses: vec![],
        oom_score_adj: -999,
        conntrack: Conntrack {
            max_per_core: 32768,
            min: 131_072,
            tcp_established_timeout: seconds(24 * 3600),
            tcp_close_wait_timeout: seconds(3600),
            tcp_be_liberal: false,
            udp_timeout: Duration::ZERO,
            udp_stream_timeout: Duration::ZERO,
        },
        config_sync_period: seconds(900),
        port_range: String::new(),
        windows_run_as_service: false,
        traffic_metrics: false,
        traffic_metrics_max_series: 20_000,
    };
    assert_eq!(config, expected);

    let (from_flags, warnings) = from_flags(&[]).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let mut expected = expected;
    expected.ipvs.periods.min_sync = seconds(1);
    assert_eq!(from_flags, expected);
}

#[test]
fn empty_and_zero_in_a_file_are_not_written() {
    let lines = "
bindAddress: ''
healthzBindAddress: ''
metricsBindAddress: ''
configSyncPeriod: 0s
clientConnection: {qps: 0, burst: 0, contentType: '', kubeconfig: '', acceptContentTypes: ''}
iptables: {syncPeriod: 0s, minSyncPeriod: 0s, masqueradeBit: null, localhostNodePorts: null}
nftables: {syncPeriod: 0s, minSyncPeriod: 0s, masqueradeAll: false, masqueradeBit: null}
ipvs: {syncPeriod: 0s, minSyncPeriod: 0s, excludeCIDRs: null, tcpTimeout: 0s, scheduler: ''}
conntrack: {maxPerCore: null, min: null, tcpEstablishedTimeout: null, tcpCloseWaitTimeout: null}
logging: {flushFrequency: 0, verbosity: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}}
detectLocalMode: ''
nodePortAddresses: null
oomScoreAdj: null
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: '', rootHnsEndpointName: '', sourceVip: ''}
";
    assert_eq!(from_file(lines).unwrap(), from_file("").unwrap());
    // But not where zero has a meaning.
    let (config, _) = from_file("conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s}").unwrap();
    assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (0, 0));
    assert_eq!(config.conntrack.tcp_established_timeout, Duration::ZERO);
    assert_eq!(config.conntrack.tcp_close_wait_timeout, seconds(3600));
    let (config, _) = from_flags(&["--iptables-min-sync-period=0"]).unwrap();
    assert_eq!(config.iptables.periods.min_sync, Duration::ZERO);
}

#[test]
fn addresses_get_ports_and_the_family_of_the_bind_address() {
    let healthz = |config: &Config| config.healthz.map(|it| it.to_string()).unwrap_or_default();
    for (lines, expected) in [
        ("bindAddress: '::'", ("[::]:10256", "[::1]:10249")),
        ("bindAddress: 10.0.0.1", ("0.0.0.0:10256", "127.0.0.1:10249")),
        (
            "healthzBindAddress: 10.0.0.1\nmetricsBindAddress: 'fd00::1'",
            ("10.0.0.1:10256", "[fd00::1]:10249"),
        ),
        ("healthzBindAddress: 10.0.0.1:80\nmetricsBindAddress: '[::]:81'", ("10.0.0.1:80", "[::]:81")),
    ] {
        let (config, _) = from_file(lines).unwrap();
        assert_eq!((healthz(&config).as_str(), config.metrics.to_string().as_str()), expected, "{lines}");
    }
    for (args, expected) in [
        (&["--bind-address=::"][..], ("[::]:10256", "[::1]:10249")),
        (
            &["--healthz-bind-address=10.0.0.1", "--metrics-bind-address="],
            ("10.0.0.1:10256", "127.0.0.1:10249"),
        ),
        (&["--healthz-bind-address="], ("", "127.0.0.1:10249")),
        (&["--healthz-port=0"], ("", "127.0.0.1:10249")),
        (&["--healthz-port=1", "--metrics-port=2"], ("0.0.0.0:1", "127.0.0.1:2")),
        (&["--healthz-bind-address=::1", "--healthz-port=1"], ("[::1]:1", "127.0.0.1:10249")),
    ] {
        let (config, _) = from_flags(args).unwrap();
        assert_eq!((healthz(&config).as_str(), config.metrics.to_string().as_str()), expected, "{args:?}");
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
            "healthzBindAddress: 1.2.3.4:0",
            "healthzBindAddress: \"1.2.3.4:0\" needs a port between 1 and 65535",
        ),
        (
            "metricsBindAddress: here",
            "metricsBindAddress: \"here\" is not IP:port such as 0.0.0.0:10256 or [::]:10256",
        ),
        ("mode: userspace", "mode: \"userspace\" is not one of iptables, ipvs and nftables"),
        ("mode: Nftables", "mode: \"Nftables\" is not one of iptables, ipvs and nftables"),
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
        ("hostnameOverride: '  '", "hostnameOverride: is nothing but space"),
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
        assert_eq!(from_file(lines).unwrap_err(), [expected], "{lines}");
    }
}

#[test]
fn what_is_wrong_with_flags_names_the_flag() {
    for (args, expected) in [
        (
            &["--nodeport-addresses=10.0.0.0/33"][..],
            "--nodeport-addresses: \"10.0.0.0/33\" is not a CIDR, nor primary, localhost or all",
        ),
        (&["--proxy-mode=ebpf"], "--proxy-mode: \"ebpf\" is not one of iptables, ipvs and nftables"),
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
        (&["--hostname-override= "], "--hostname-override: is nothing but space"),
        (
            &["--detect-local-mode=BridgeInterface"],
            "--pod-bridge-interface: is empty, but detectLocalMode BridgeInterface needs it",
        ),
        (&["--vmodule=a=x"], "--vmodule: \"a\" is not a pattern with a verbosity"),
    ] {
        assert_eq!(from_flags(args).unwrap_err(), [expected], "{args:?}");
    }
    let errors = from_file_and("bindAddress: x", &["--hostname-override= "]).unwrap_err();
    assert_eq!(
        errors,
        ["--hostname-override: is nothing but space", "bindAddress: \"x\" is not an IP address"]
    );
}

#[test]
fn everything_wrong_is_told_at_once() {
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
    assert_eq!(config.mode, Mode::Iptables);
    assert_eq!(config.hostname_override, "node-a");
    assert_eq!((config.logging.verbosity, config.logging.format), (4, LogFormat::Json));
    assert_eq!(config.logging.flush_frequency, seconds(1));
    let expected = [
        "ignored because --config is given: --bind-address --feature-gates --proxy-mode",
        UNSET_NODE_PORT_ADDRESSES,
    ];
    assert_eq!(warnings, expected);
}

const UNSET_NODE_PORT_ADDRESSES: &str = "nodePortAddresses is not set: node ports answer on every address of this \
                                         node; `primary` keeps them to its own";

#[test]
fn flags_of_our_own_count_beside_a_file() {
    let args = ["--traffic-metrics", "--traffic-metrics-max-series=5"];
    for (config, warnings) in [from_file_and("", &args).unwrap(), from_flags(&args).unwrap()] {
        assert!(config.traffic_metrics);
        assert_eq!((config.traffic_metrics_max_series, warnings), (5, vec![]));
    }
}

#[test]
fn metrics_can_be_switched_off() {
    for args in [&["--metrics-port=0"][..], &["--metrics-bind-address=10.0.0.1:0"]] {
        assert_eq!(from_flags(args).unwrap().0.metrics_address(), None, "{args:?}");
    }
    let (config, _) = from_file("metricsBindAddress: '[::1]:0'").unwrap();
    assert_eq!(config.metrics_address(), None);
    assert!(config.to_yaml().unwrap().contains("[::1]:0"));
    let (config, _) = from_file("").unwrap();
    assert_eq!(config.metrics_address(), Some("127.0.0.1:10249".parse().unwrap()));
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
    let expected =
        "ignored in this mode: --iptables-localhost-nodeports --ipvs-scheduler; on Linux: --windows-service";
    assert_eq!(warnings, [expected]);
    let (_, warnings) = from_flags(&["--proxy-mode=ipvs", "--iptables-sync-period=1m"]).unwrap();
    assert_eq!(warnings, ["ignored in this mode: --iptables-sync-period", UNSET_NODE_PORT_ADDRESSES]);
    let (_, warnings) = from_flags(&["--ipvs-strict-arp", "--iptables-masquerade-bit=3"]).unwrap();
    assert_eq!(warnings, ["ignored in this mode: --ipvs-strict-arp"]);

    let lines = "mode: nftables\nipvs: {scheduler: rr, minSyncPeriod: 0s, excludeCIDRs: null}\n\
                 iptables: {masqueradeAll: true, masqueradeBit: null}\nnftables: {masqueradeAll: true}\nportRange: 1-2";
    let (_, warnings) = from_file_and(lines, &["--proxy-mode=ipvs"]).unwrap();
    let expected = "ignored because --config is given: --proxy-mode; \
                    in this mode: iptables.masqueradeAll ipvs.scheduler; on Linux: portRange";
    assert_eq!(warnings, [expected]);
}

#[test]
fn gates_of_other_components_do_not_stop_it() {
    let (_, warnings) = from_file("featureGates: {Nonsense: true}").unwrap();
    assert_eq!(warnings, ["featureGates: Nonsense changes nothing here: no such gate is known"]);
    let (_, warnings) = from_flags(&["--version=v1.37.0-ours"]).unwrap();
    assert_eq!(warnings, ["--version=v1.37.0-ours changes nothing: the version is told as it is"]);
}

#[test]
fn settings_for_a_family_that_the_host_lacks() {
    let v4 = [Family::V4];
    let both = "clusterCIDR: '10.0.0.0/8,fd00::/8'\nnodePortAddresses: ['fd00::/8', primary]\n\
                healthzBindAddress: '[::]:1'";
    let (config, _) = from_file(both).unwrap();
    assert_eq!(config.check_families(&Family::ALL), Ok(vec![]));
    let expected = [
        "nodePortAddresses: fd00::/8 is of the other family, and this host has only IPv4",
        "clusterCIDR: fd00::/8 is of the other family, and this host has only IPv4",
        "healthzBindAddress: [::]:1 is of the other family, and this host has only IPv4",
    ];
    assert_eq!(config.check_families(&v4).unwrap(), expected);
    let (config, _) = from_file("clusterCIDR: 'fd00::/8'\nbindAddress: 'fd00::1'").unwrap();
    let expected = [
        "bindAddress: fd00::1 is of the other family, and this host has only IPv4",
        "clusterCIDR: fd00::/8 is of the other family, and this host has only IPv4",
    ];
    assert_eq!(config.check_families(&v4).unwrap_err(), expected);
    let (config, _) = from_file("clusterCIDR: 'fd00::/8'\ndetectLocalMode: NodeCIDR").unwrap();
    assert_eq!(config.check_families(&v4), Ok(vec![]));
}

#[test]
fn every_flag_reaches_its_setting() {
    let args = [
        "--kubeconfig=/k",
        "--kube-api-content-type=application/json",
        "--kube-api-qps=1.5",
        "--kube-api-burst=3",
        "--bind-address-hard-fail",
        "--profiling",
        "--show-hidden-metrics-for-version=1.36",
        "--proxy-mode=ipvs",
        "--iptables-masquerade-bit=3",
        "--masquerade-all",
        "--iptables-localhost-nodeports=false",
        "--iptables-sync-period=40s",
        "--iptables-min-sync-period=4s",
        "--ipvs-sync-period=50s",
        "--ipvs-min-sync-period=5s",
        "--ipvs-scheduler=sh",
        "--ipvs-exclude-cidrs=10.0.0.0/8",
        "--ipvs-strict-arp",
        "--ipvs-tcp-timeout=1s",
        "--ipvs-tcpfin-timeout=2s",
        "--ipvs-udp-timeout=3s",
        "--cluster-cidr=10.1.2.3/16",
        "--pod-bridge-interface=br",
        "--pod-interface-name-prefix=veth",
        "--nodeport-addresses=localhost,10.0.0.0/8",
        "--oom-score-adj=1",
        "--conntrack-max-per-core=2",
        "--conntrack-min=3",
        "--conntrack-tcp-timeout-established=4s",
        "--conntrack-tcp-timeout-close-wait=5s",
        "--conntrack-tcp-be-liberal",
        "--conntrack-udp-timeout=6s",
        "--conntrack-udp-timeout-stream=7s",
        "--config-sync-period=8s",
        "--vmodule=a=1",
        "--feature-gates=AllowServiceExternalIPs=false",
    ];
    let (config, _) = from_flags(&args).unwrap();
    let client = Client {
        kubeconfig: "/k".into(),
        accept_content_types: String::new(),
        content_type: "application/json".into(),
        qps: 1.5,
        burst: 3,
    };
    assert_eq!(config.client, client);
    assert!(config.bind_address_hard_fail && config.profiling);
    assert_eq!((config.mode, config.show_hidden_metrics_for_version.as_str()), (Mode::Ipvs, "1.36"));
    let periods = Periods { sync: seconds(40), min_sync: seconds(4) };
    let iptables = Iptables { masquerade_bit: 3, masquerade_all: true, localhost_node_ports: false, periods };
    assert_eq!(config.iptables, iptables);
    assert_eq!(config.nftables, Nftables { masquerade_bit: 14, masquerade_all: true, periods });
    let ipvs = Ipvs {
        scheduler: "sh".into(),
        exclude_cidrs: vec!["10.0.0.0/8".parse().unwrap()],
        strict_arp: true,
        tcp_timeout: seconds(1),
        tcp_fin_timeout: seconds(2),
        udp_timeout: seconds(3),
        periods: Periods { sync: seconds(50), min_sync: seconds(5) },
    };
    assert_eq!(config.ipvs, ipvs);
    assert_eq!(config.cluster_cidrs, ["10.1.0.0/16".parse::<IpNet>().unwrap()]);
    assert_eq!((config.bridge_interface.as_str(), config.interface_name_prefix.as_str()), ("br", "veth"));
    let cidr = NodePortAddress::Cidr("10.0.0.0/8".parse().unwrap());
    assert_eq!(config.node_port_addresses, [NodePortAddress::Localhost, cidr]);
    let conntrack = Conntrack {
        max_per_core: 2,
        min: 3,
        tcp_established_timeout: seconds(4),
        tcp_close_wait_timeout: seconds(5),
        tcp_be_liberal: true,
        udp_timeout: seconds(6),
        udp_stream_timeout: seconds(7),
    };
    assert_eq!(config.conntrack, conntrack);
    assert_eq!((config.oom_score_adj, config.config_sync_period), (1, seconds(8)));
    assert_eq!(config.logging.vmodule, [("a".to_owned(), 1)]);
    assert!(!config.policy(Mode::Ipvs, String::new()).external_ips);
}

#[test]
fn warnings_for_what_has_no_effect() {
    let (_, warnings) = from_flags(&["--source-vip=1.2.3.4", "--healthz-port=1"]).unwrap();
    let expected =
        ["ignored on Linux: --source-vip", "--healthz-port is deprecated: use --healthz-bind-address"];
    assert_eq!(warnings, expected);
    let (_, warnings) = from_file("portRange: 1-2\nnonsense: 1").unwrap();
    let expected = [
        "--config: not all of it can be used: nonsense: there is no such field",
        "ignored on Linux: portRange",
    ];
    assert_eq!(warnings, expected);
    let lines = "clusterCIDR: '10.0.0.0/8,fd00::/8'\nnodePortAddresses: [10.0.0.0/8]";
    let (_, warnings) = from_file(lines).unwrap();
    assert!(warnings[0].starts_with("nodePortAddresses has only IPv4 ranges"), "{warnings:?}");
    let (_, warnings) = from_file(&lines.replace("[10.0.0.0/8]", "[10.0.0.0/8, primary]")).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn a_file_that_cannot_be_read() {
    let errors = from_flags(&["--config=/nonexistent/config.yaml"]).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("--config: cannot read /nonexistent/config.yaml: "), "{errors:?}");
    assert!(from_file("mode: [").is_err());
}

#[test]
fn what_is_written_loads_as_the_same() {
    for (lines, args) in [
        ("", &[][..]),
        (
            "mode: nftables\nnftables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 1m, minSyncPeriod: 1.5s}",
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
        let again = Config::from_text(&yaml, &Flags::default());
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

#[test]
fn the_policy_of_a_mode() {
    let lines = "iptables: {masqueradeAll: true, masqueradeBit: 5}\nnftables: {masqueradeBit: 6}\n\
                 clusterCIDR: 10.244.0.0/16\nbindAddress: 172.18.0.2";
    let (config, _) = from_file(lines).unwrap();
    let nftables = config.policy(Mode::Nftables, "ka".into());
    let expected = Policy {
        node_name: "ka".into(),
        bind_address: Some("172.18.0.2".parse().unwrap()),
        detect_local: DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]),
        node_port_addresses: vec![NodePortAddress::Primary],
        localhost_node_ports: false,
        masquerade_all: false,
        masquerade_bit: 6,
        external_ips: true,
        count_traffic: false,
        schedulers: false,
    };
    assert_eq!(nftables, expected);
    for mode in [Mode::Iptables, Mode::Ipvs] {
        let policy = config.policy(mode, "ka".into());
        assert_eq!(policy.node_port_addresses, [NodePortAddress::All]);
        assert_eq!((policy.masquerade_all, policy.masquerade_bit), (true, 5));
        assert_eq!(policy.localhost_node_ports, mode == Mode::Iptables);
        assert_eq!(policy.schedulers, mode == Mode::Ipvs);
    }
    let (config, _) = from_file("nodePortAddresses: [localhost]\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}").unwrap();
    let policy = config.policy(Mode::Nftables, "ka".into());
    assert_eq!(policy.node_port_addresses, [NodePortAddress::Localhost]);
    assert_eq!(policy.detect_local, DetectLocal::BridgeInterface("cbr0".into()));
    assert_eq!(policy.bind_address, None);
}

#[test]
fn the_node_is_named_by_the_flag_the_file_or_the_host() {
    let (config, _) = from_file_and("hostnameOverride: File", &["--hostname-override=FLAG"]).unwrap();
    assert_eq!(config.node_name().as_deref(), Ok("flag"));
    let (config, _) = from_file("hostnameOverride: File").unwrap();
    assert_eq!(config.node_name().as_deref(), Ok("file"));
    let (config, _) = from_file("").unwrap();
    let host = ferroxy_platform::host::name().unwrap().to_lowercase();
    assert_eq!(config.node_name(), Ok(host));
}

#[test]
fn every_case_of_the_corpus_loads() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/cases");
    let mut count = 0;
    for case in std::fs::read_dir(cases).unwrap() {
        let path = case.unwrap().path().join("config.yaml");
        let flags = Flags { config: Some(path.display().to_string()), ..Flags::default() };
        let (config, _) =
            Config::load(&flags).unwrap_or_else(|errors| panic!("{}: {errors:?}", path.display()));
        assert_eq!(config.mode, Mode::Unset);
        assert_eq!(config.cluster_cidrs.len(), 2);
        count += 1;
    }
    assert!(count >= 30, "only {count} cases");
}
