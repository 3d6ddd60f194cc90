//! Converts a configuration back to a file.

use std::net::SocketAddr;
use std::time::Duration;

use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::{Field, Flag, Kind, PeriodFields};
use serde_json::Value;

use super::file::{self, File};
use super::{Config, DetectLocalMode, LogFormat, LogStream, duration, fields, overlay, own};
use crate::modes::{ACCELERATED, Modes};

/// As the original writes it: periods, and fields that one flag sets for several modes, are written only for the mode that
/// runs; the other modes' blocks have no values for them. (If no mode is configured, the blocks of all modes that may be
/// chosen keep theirs.)
pub(super) fn to_file(config: &Config) -> File {
    let mut file = complete(config);
    let mode = file.mode.clone().unwrap_or_default();
    for field in fields::table(config.modes) {
        let value = config.values.get(field);
        if !field.is_of_the_original && value == own::default(field, &mode) {
            file.modes.remove(field.name);
        } else if is_kept_once(field, config.modes) && !config.reads(field.name) {
            file.modes.insert(field.name, without_value(field.kind));
        } else {
            file.modes.insert(field.name, fields::for_file(field, value));
        }
    }
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    file.modes.values_mut().filter(|value| is_empty(value)).for_each(|value| *value = Value::Null);
    file.node_port_addresses = file.node_port_addresses.filter(|list| !list.is_empty());
    let says_something = |text: &String| !text.is_empty();
    file.page_address = file.page_address.filter(says_something);
    file.page_token_file = file.page_token_file.filter(says_something);
    file.feature_gates = file.feature_gates.filter(|gates| !gates.is_empty());
    if config.logging.flush_frequency.is_zero() {
        file.logging.flush_frequency = period(fields::SHORTEST);
    }
    if config.healthz.is_none() {
        // Port 0: in a file, empty text stands for the default.
        file.healthz_bind_address = Some(SocketAddr::new(config.bind_address, 0).to_string());
    }
    file.logging.vmodule = file.logging.vmodule.filter(|list| !list.is_empty());
    file
}

fn is_kept_once(field: &Field, modes: Modes) -> bool {
    let is_period = |it: PeriodFields| field.name == it.sync.name || field.name == it.min_sync.name;
    let sets_several = |flag: Flag| overlay::fields_of(flag.name, modes).count() > 1;
    modes.periods().into_iter().any(is_period) || field.flag.is_some_and(sets_several)
}

fn without_value(kind: Kind) -> Value {
    match kind {
        Kind::Duration { .. } => Value::String(duration::format(Duration::ZERO)),
        kind => fields::to_json(kind.default()),
    }
}

/// Every field with its value, also those that the mode does not read.
pub(super) fn complete(config: &Config) -> File {
    let healthz = config.healthz.map(|address| address.to_string());
    let page = config.page.as_ref();
    let token_file = page.and_then(|it| it.token_file.as_ref());
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
        logging: logging(config),
        metrics_bind_address: Some(config.metrics.to_string()),
        mode: text(match config.mode {
            Some(_) if config.mode_accelerates => ACCELERATED.0,
            mode => mode.map_or("", |mode| mode.name),
        }),
        modes: fields::all(config.modes, &config.values),
        node_port_addresses: Some(config.node_port_addresses.iter().map(node_port_address).collect()),
        oom_score_adj: Some(config.oom_score_adj.into()),
        page_address: Some(page.map(|it| it.address.to_string()).unwrap_or_default()),
        page_token_file: Some(token_file.map(|it| it.to_string_lossy().into_owned()).unwrap_or_default()),
        show_hidden_metrics_for_version: text(&config.show_hidden_metrics_for_version),
        windows_run_as_service: Some(config.windows_run_as_service),
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
