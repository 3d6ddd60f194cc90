//! Defaults; the other tests are in the modules below.

mod another_mode;
mod mistakes;
mod values;
mod warnings;
mod written;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use ferroxy_core::Family;
use ferroxy_dataplane::Value as Setting;

use super::*;
use crate::modes::MODES;

fn flags(args: &[&str]) -> Flags {
    Flags::parse(args.iter().map(OsString::from), MODES).unwrap()
}

fn from_flags(args: &[&str]) -> Result<(Config, Vec<String>), Vec<String>> {
    Config::load(&flags(args), MODES)
}

/// Loads a file with these lines after its head, together with flags.
fn from_file_and(lines: &str, args: &[&str]) -> Result<(Config, Vec<String>), Vec<String>> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "apiVersion: {}\nkind: {}\n{lines}\n", file::API_VERSION, file::KIND).unwrap();
    let mut flags = flags(args);
    flags.config = Some(file.path().display().to_string());
    Config::load(&flags, MODES)
}

fn from_file(lines: &str) -> Result<(Config, Vec<String>), Vec<String>> {
    from_file_and(lines, &[])
}

fn mode(name: &str) -> &'static Mode {
    MODES.find(name).unwrap()
}

fn value(config: &Config, field: &str) -> Setting {
    config.values.get(MODES.field(field).unwrap())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The defaults of the settings that tables describe: those of modes, and our own.
fn default_values() -> Settings {
    Settings::from_iter([
        ("iptables.masqueradeBit", Setting::Number(14)),
        ("iptables.masqueradeAll", Setting::Truth(false)),
        ("iptables.localhostNodePorts", Setting::Truth(true)),
        ("iptables.syncPeriod", Setting::Duration(seconds(30))),
        ("iptables.minSyncPeriod", Setting::Duration(seconds(1))),
        ("ipvs.scheduler", Setting::Text(String::new())),
        ("ipvs.excludeCIDRs", Setting::Cidrs(vec![])),
        ("ipvs.strictARP", Setting::Truth(false)),
        ("ipvs.tcpTimeout", Setting::Duration(Duration::ZERO)),
        ("ipvs.tcpFinTimeout", Setting::Duration(Duration::ZERO)),
        ("ipvs.udpTimeout", Setting::Duration(Duration::ZERO)),
        ("ipvs.syncPeriod", Setting::Duration(seconds(30))),
        ("ipvs.minSyncPeriod", Setting::Duration(Duration::ZERO)),
        ("nftables.masqueradeBit", Setting::Number(14)),
        ("nftables.localhostNodePorts", Setting::Truth(true)),
        ("nftables.masqueradeAll", Setting::Truth(false)),
        ("nftables.syncPeriod", Setting::Duration(seconds(30))),
        ("nftables.minSyncPeriod", Setting::Duration(seconds(1))),
        ("iptables.program", Setting::Text("auto".into())),
        ("portRange", Setting::Text(String::new())),
        ("udpIdleTimeout", Setting::Duration(Duration::ZERO)),
        ("userspace.clusterIPs", Setting::Text("redirect".into())),
        ("userspace.markBit", Setting::Number(13)),
        ("userspace.rules", Setting::Text("nftables".into())),
        ("winkernel.enableDSR", Setting::Truth(false)),
        ("winkernel.forwardHealthCheckVip", Setting::Truth(false)),
        ("winkernel.networkName", Setting::Text(String::new())),
        ("winkernel.rootHnsEndpointName", Setting::Text(String::new())),
        ("winkernel.sourceVip", Setting::Text(String::new())),
        ("winuserspace.interfaceName", Setting::Text(String::new())),
        ("accelerateSockets", Setting::Text("off".into())),
        ("logFile", Setting::Text(String::new())),
        ("logFileMaxSize", Setting::Number(100)),
        ("namespaceMaxFrontends", Setting::Number(200_000)),
        ("nodeMaxFrontends", Setting::Number(1_000_000)),
        ("otlpEndpoint", Setting::Text(String::new())),
        ("serviceMaxEndpoints", Setting::Number(20_000)),
        ("serviceMaxEntries", Setting::Number(250_000)),
        ("serviceMaxFrontends", Setting::Number(10_000)),
        ("socketsCgroup", Setting::Text(String::new())),
        ("socketsMaxEntries", Setting::Number(4_194_304)),
        ("socketsPeerNames", Setting::Truth(false)),
        ("socketsPins", Setting::Text("/sys/fs/bpf/ferroxy".into())),
        ("socketsPodsCgroup", Setting::Text(String::new())),
        ("trafficMetrics", Setting::Truth(false)),
        ("trafficMetricsMaxSeries", Setting::Number(20_000)),
    ])
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
        mode: None,
        modes: MODES,
        values: default_values(),
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
        windows_run_as_service: false,
        page: None,
        traffic_metrics: false,
        otlp: None,
        traffic_metrics_max_series: 20_000,
        limits: Limits {
            frontends: 10_000,
            endpoints: 20_000,
            entries: 250_000,
            always: 16,
            namespace_frontends: 200_000,
            node_frontends: 1_000_000,
        },
        sockets: ferroxy_sockets::Options::default(),
        mode_accelerates: false,
    };
    assert_eq!(config, expected);

    let (from_flags, warnings) = from_flags(&[]).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let mut expected = expected;
    expected.values.set(MODES.field("ipvs.minSyncPeriod").unwrap(), Setting::Duration(seconds(1)));
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
    assert_eq!(config.periods(mode("iptables")).min_sync, Duration::ZERO);
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
        (&["--healthz-bind-address=1.2.3.4:0"], ("", "127.0.0.1:10249")),
        (&["--healthz-port=1", "--metrics-port=2"], ("0.0.0.0:1", "127.0.0.1:2")),
        (&["--healthz-bind-address=::1", "--healthz-port=1"], ("[::1]:1", "127.0.0.1:10249")),
    ] {
        let (config, _) = from_flags(args).unwrap();
        assert_eq!((healthz(&config).as_str(), config.metrics.to_string().as_str()), expected, "{args:?}");
    }
}
