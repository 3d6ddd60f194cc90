//! A configuration back to the file it could have come from.

use std::time::Duration;

use ferroxy_core::policy::NodePortAddress;

use super::file::{self, File};
use super::{Config, DetectLocalMode, LogFormat, LogStream, Mode, duration};

/// As the original writes it: it keeps periods and `masqueradeAll` once, for the mode that runs, so the blocks of the
/// other modes come out without. (Where no mode is chosen, both that it may become keep theirs.)
pub(super) fn to_file(config: &Config) -> File {
    let mut file = complete(config);
    let none = || Some("0s".to_owned());
    let is = |mode: Mode| config.mode == mode;
    if is(Mode::Nftables) || is(Mode::Ipvs) {
        (file.iptables.sync_period, file.iptables.min_sync_period) = (none(), none());
    }
    if is(Mode::Nftables) {
        file.iptables.masquerade_all = Some(false);
    }
    if is(Mode::Iptables) || is(Mode::Ipvs) {
        (file.nftables.sync_period, file.nftables.min_sync_period) = (none(), none());
        file.nftables.masquerade_all = Some(false);
    }
    if !is(Mode::Ipvs) {
        (file.ipvs.sync_period, file.ipvs.min_sync_period) = (none(), none());
    }
    file.node_port_addresses = file.node_port_addresses.filter(|list| !list.is_empty());
    file.ipvs.exclude_cidrs = file.ipvs.exclude_cidrs.filter(|list| !list.is_empty());
    file.feature_gates = file.feature_gates.filter(|gates| !gates.is_empty());
    file.logging.vmodule = file.logging.vmodule.filter(|list| !list.is_empty());
    file
}

/// Every field as it is, also those that the mode does not look at.
pub(super) fn complete(config: &Config) -> File {
    let healthz = config.healthz.map(|address| address.to_string());
    let cluster_cidrs: Vec<String> = config.cluster_cidrs.iter().map(ToString::to_string).collect();
    File {
        api_version: text(file::API_VERSION),
        kind: text(file::KIND),
        bind_address: Some(config.bind_address.to_string()),
        bind_address_hard_fail: Some(config.bind_address_hard_fail),
        client_connection: client_connection(config),
        cluster_cidr: Some(cluster_cidrs.join(",")),
        config_sync_period: period(config.config_sync_period),
        conntrack: conntrack(config),
        detect_local: file::DetectLocal {
            bridge_interface: text(&config.bridge_interface),
            interface_name_prefix: text(&config.interface_name_prefix),
        },
        detect_local_mode: text(config.detect_local_mode.as_str()),
        enable_profiling: Some(config.profiling),
        feature_gates: Some(config.feature_gates.given().clone()),
        healthz_bind_address: Some(healthz.unwrap_or_default()),
        hostname_override: text(&config.hostname_override),
        iptables: iptables(config),
        ipvs: ipvs(config),
        logging: logging(config),
        metrics_bind_address: Some(config.metrics.to_string()),
        mode: text(config.mode.as_str()),
        nftables: nftables(config),
        node_port_addresses: Some(config.node_port_addresses.iter().map(node_port_address).collect()),
        oom_score_adj: Some(config.oom_score_adj.into()),
        port_range: text(&config.port_range),
        show_hidden_metrics_for_version: text(&config.show_hidden_metrics_for_version),
        windows_run_as_service: Some(config.windows_run_as_service),
        winkernel: winkernel(config),
    }
}

impl Mode {
    /// The file's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Unset => "",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
            Mode::Nftables => "nftables",
        }
    }
}

impl DetectLocalMode {
    /// The file's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            DetectLocalMode::ClusterCidr => "ClusterCIDR",
            DetectLocalMode::NodeCidr => "NodeCIDR",
            DetectLocalMode::BridgeInterface => "BridgeInterface",
            DetectLocalMode::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn period(period: Duration) -> Option<String> {
    Some(duration::format(period))
}

fn node_port_address(address: &NodePortAddress) -> String {
    match address {
        NodePortAddress::Primary => "primary".to_owned(),
        NodePortAddress::Localhost => "localhost".to_owned(),
        NodePortAddress::All => "all".to_owned(),
        NodePortAddress::Cidr(cidr) => cidr.to_string(),
    }
}

fn client_connection(config: &Config) -> file::ClientConnection {
    let it = &config.client;
    file::ClientConnection {
        accept_content_types: text(&it.accept_content_types),
        burst: Some(it.burst.into()),
        content_type: text(&it.content_type),
        kubeconfig: text(&it.kubeconfig),
        qps: Some(it.qps),
    }
}

fn conntrack(config: &Config) -> file::Conntrack {
    let it = &config.conntrack;
    file::Conntrack {
        max_per_core: Some(it.max_per_core.into()),
        min: Some(it.min.into()),
        tcp_be_liberal: Some(it.tcp_be_liberal),
        tcp_close_wait_timeout: period(it.tcp_close_wait_timeout),
        tcp_established_timeout: period(it.tcp_established_timeout),
        udp_stream_timeout: period(it.udp_stream_timeout),
        udp_timeout: period(it.udp_timeout),
    }
}

fn iptables(config: &Config) -> file::Iptables {
    let it = &config.iptables;
    file::Iptables {
        localhost_node_ports: Some(it.localhost_node_ports),
        masquerade_all: Some(it.masquerade_all),
        masquerade_bit: Some(it.masquerade_bit.into()),
        min_sync_period: period(it.periods.min_sync),
        sync_period: period(it.periods.sync),
    }
}

fn ipvs(config: &Config) -> file::Ipvs {
    let it = &config.ipvs;
    file::Ipvs {
        exclude_cidrs: Some(it.exclude_cidrs.iter().map(ToString::to_string).collect()),
        min_sync_period: period(it.periods.min_sync),
        scheduler: text(&it.scheduler),
        strict_arp: Some(it.strict_arp),
        sync_period: period(it.periods.sync),
        tcp_fin_timeout: period(it.tcp_fin_timeout),
        tcp_timeout: period(it.tcp_timeout),
        udp_timeout: period(it.udp_timeout),
    }
}

fn nftables(config: &Config) -> file::Nftables {
    let it = &config.nftables;
    file::Nftables {
        masquerade_all: Some(it.masquerade_all),
        masquerade_bit: Some(it.masquerade_bit.into()),
        min_sync_period: period(it.periods.min_sync),
        sync_period: period(it.periods.sync),
    }
}

fn logging(config: &Config) -> file::Logging {
    let it = &config.logging;
    let vmodule = it.vmodule.iter().map(|(pattern, verbosity)| file::VModule {
        file_pattern: pattern.clone(),
        verbosity: i64::from(*verbosity),
    });
    let stream = |it: &LogStream| file::LogStream {
        info_buffer_size: text(&it.info_buffer_size),
        split_stream: Some(it.split_stream),
    };
    file::Logging {
        flush_frequency: period(it.flush_frequency),
        format: text(match it.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }),
        options: file::LoggingOptions { json: stream(&it.json), text: stream(&it.text) },
        verbosity: Some(it.verbosity.into()),
        vmodule: Some(vmodule.collect()),
    }
}

fn winkernel(config: &Config) -> file::Winkernel {
    let it = &config.winkernel;
    file::Winkernel {
        enable_dsr: Some(it.enable_dsr),
        forward_health_check_vip: Some(it.forward_health_check_vip),
        network_name: text(&it.network_name),
        root_hns_endpoint_name: text(&it.root_hns_endpoint_name),
        source_vip: text(&it.source_vip),
    }
}
