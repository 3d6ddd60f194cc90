//! Where each value comes from, and how it is interpreted.

use super::*;

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
    assert_eq!(config.mode, MODES.find("ipvs"));
    assert_eq!(config.show_hidden_metrics_for_version, "1.36");
    for (field, expected) in [
        ("iptables.masqueradeBit", Setting::Number(3)),
        ("iptables.masqueradeAll", Setting::Truth(true)),
        ("iptables.localhostNodePorts", Setting::Truth(false)),
        ("iptables.syncPeriod", Setting::Duration(seconds(40))),
        ("iptables.minSyncPeriod", Setting::Duration(seconds(4))),
        ("nftables.masqueradeBit", Setting::Number(14)),
        ("nftables.masqueradeAll", Setting::Truth(true)),
        ("nftables.syncPeriod", Setting::Duration(seconds(40))),
        ("nftables.minSyncPeriod", Setting::Duration(seconds(4))),
        ("ipvs.scheduler", Setting::Text("sh".into())),
        ("ipvs.excludeCIDRs", Setting::Cidrs(vec!["10.0.0.0/8".parse().unwrap()])),
        ("ipvs.strictARP", Setting::Truth(true)),
        ("ipvs.tcpTimeout", Setting::Duration(seconds(1))),
        ("ipvs.tcpFinTimeout", Setting::Duration(seconds(2))),
        ("ipvs.udpTimeout", Setting::Duration(seconds(3))),
        ("ipvs.syncPeriod", Setting::Duration(seconds(50))),
        ("ipvs.minSyncPeriod", Setting::Duration(seconds(5))),
    ] {
        assert_eq!(value(&config, field), expected, "{field}");
    }
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
    assert!(!config.policy(mode("ipvs"), String::new()).external_ips);
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
fn the_policy_of_a_mode() {
    let lines = "iptables: {masqueradeAll: true, masqueradeBit: 5}\nnftables: {masqueradeBit: 6}\n\
                 clusterCIDR: 10.244.0.0/16\nbindAddress: 172.18.0.2";
    let (config, _) = from_file(lines).unwrap();
    let nftables = config.policy(mode("nftables"), "ka".into());
    let expected = Policy {
        node_name: "ka".into(),
        bind_address: Some("172.18.0.2".parse().unwrap()),
        detect_local: DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]),
        node_port_addresses: vec![NodePortAddress::Primary],
        node_ports_on_loopback: false,
        listen_on_loopback: true,
        masquerade_all: false,
        external_ips: true,
        topology_hints: true,
        count_traffic: false,
        probes: true,
        know_host_addresses: false,
        limits: Limits::default(),
        annotations: &[],
    };
    assert_eq!(nftables, expected);
    for mode in [mode("iptables"), mode("ipvs")] {
        let policy = config.policy(mode, "ka".into());
        assert_eq!(policy.node_port_addresses, [NodePortAddress::All]);
        assert!(policy.masquerade_all);
        assert_eq!(policy.node_ports_on_loopback, mode.name == "iptables");
        assert_eq!(!policy.annotations.is_empty(), mode.name == "ipvs");
    }
    let (config, _) = from_file("nodePortAddresses: [localhost]\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}").unwrap();
    let policy = config.policy(mode("nftables"), "ka".into());
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
            Config::load(&flags, MODES).unwrap_or_else(|errors| panic!("{}: {errors:?}", path.display()));
        assert_eq!(config.mode, None);
        assert_eq!(config.cluster_cidrs.len(), 2);
        count += 1;
    }
    assert!(count >= 30, "only {count} cases");
}

#[test]
fn the_page_is_off_unless_it_has_an_address() {
    let page = |lines: &str, args: &[&str]| {
        let (config, warnings) = from_file_and(lines, args).unwrap();
        assert_eq!(warnings, Vec::<String>::new(), "{lines} {args:?}");
        config.page.map(|it| (it.address.to_string(), it.token_file.is_some()))
    };
    assert_eq!(page("mode: nftables", &[]), None);
    assert_eq!(page("mode: nftables\npageAddress: ''", &[]), None);
    assert_eq!(page("mode: nftables\npageAddress: 127.0.0.1", &[]), Some(("127.0.0.1:10261".into(), false)));
    assert_eq!(page("mode: nftables\npageAddress: '::1'", &[]), Some(("[::1]:10261".into(), false)));
    let file = "mode: nftables\npageAddress: 10.0.0.1:80\npageTokenFile: /token";
    assert_eq!(page(file, &[]), Some(("10.0.0.1:80".into(), true)));
    assert_eq!(page(file, &["--page-address="]), None, "flags override the file");
    assert_eq!(page("mode: nftables", &["--page-address=127.0.0.2:1"]), Some(("127.0.0.2:1".into(), false)));
    let written = from_file_and("mode: nftables", &[]).unwrap().0.to_json();
    assert_eq!(
        (written.get("pageAddress"), written.get("pageTokenFile")),
        (None, None),
        "as the original writes it"
    );
}
