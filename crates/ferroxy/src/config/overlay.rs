//! Converts flags to the fields of a file, and maps flags to fields.

use std::collections::BTreeMap;

use ferroxy_dataplane::{Field, Platform};
use serde_json::Value;

use super::defaults::{self, HEALTHZ_PORT, METRICS_PORT};
use super::fields::Written;
use super::file::{self, File};
use super::own;
use crate::flags::Flags;
use crate::modes::Modes;

/// The values of all flags. A flag can set several fields.
pub(super) fn from_flags(flags: &Flags, modes: Modes) -> File {
    let flags = flags.clone();
    let gates = flags.feature_gates.clone().map(|gates| gates.into_iter().collect());
    let mut file = File {
        healthz_bind_address: healthz(&flags),
        metrics_bind_address: metrics(&flags),
        bind_address: flags.bind_address.clone(),
        bind_address_hard_fail: flags.bind_address_hard_fail,
        cluster_cidr: flags.cluster_cidr.clone(),
        config_sync_period: flags.config_sync_period.clone(),
        detect_local_mode: flags.detect_local_mode.clone(),
        enable_profiling: flags.profiling,
        feature_gates: gates,
        mode: flags.proxy_mode.clone(),
        node_port_addresses: flags.nodeport_addresses.clone().map(without_empty),
        oom_score_adj: flags.oom_score_adj.map(i64::from),
        show_hidden_metrics_for_version: flags.show_hidden_metrics_for_version.clone(),
        detect_local: file::DetectLocal {
            bridge_interface: flags.pod_bridge_interface.clone(),
            interface_name_prefix: flags.pod_interface_name_prefix.clone(),
        },
        client_connection: file::ClientConnection {
            kubeconfig: flags.kubeconfig.clone(),
            accept_content_types: None,
            content_type: flags.kube_api_content_type.clone(),
            qps: flags.kube_api_qps.map(f64::from),
            burst: flags.kube_api_burst.map(i64::from),
        },
        modes: of_modes(&flags, modes),
        ..File::default()
    };
    conntrack(&mut file.conntrack, &flags);
    with_file(&mut file, &flags);
    file
}

/// The flags that are used together with a file. They override it.
pub(super) fn with_file(file: &mut File, flags: &Flags) {
    set(&mut file.hostname_override, &flags.hostname_override);
    set(&mut file.page_address, &flags.page_address);
    set(&mut file.page_token_file, &flags.page_token_file);
    if Platform::HERE == Platform::Windows {
        set(&mut file.windows_run_as_service, &flags.windows_service);
    }
    own(&mut file.modes, flags);
    let logging = &mut file.logging;
    set(&mut logging.format, &flags.logging_format);
    set(&mut logging.flush_frequency, &flags.log_flush_frequency);
    set(&mut logging.verbosity, &flags.v.map(i64::from));
    set(&mut logging.vmodule, &flags.vmodule.clone().map(vmodule));
    set(&mut logging.options.text.split_stream, &flags.log_text_split_stream);
    set(&mut logging.options.json.split_stream, &flags.log_json_split_stream);
    set(&mut logging.options.text.info_buffer_size, &flags.log_text_info_buffer_size);
    set(&mut logging.options.json.info_buffer_size, &flags.log_json_info_buffer_size);
}

/// The flag for a field of the file, without `--`, where there is one.
pub(super) fn flag_of(field: &str, modes: Modes) -> Option<&'static str> {
    let field = field.split('[').next().unwrap_or(field);
    flags_and_fields(modes).find(|(_, known)| *known == field).map(|(flag, _)| flag)
}

/// Flags without `--`, each with a field that it sets. A flag that sets several fields comes several times.
pub(super) fn flags_and_fields(modes: Modes) -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_modes = modes.fields().into_iter().filter_map(|field| Some((field.flag?.name, field.name)));
    let of_our_own = own::FIELDS.iter().filter_map(|field| Some((field.flag?.name, field.name)));
    FLAGS.iter().map(|(field, flag)| (*flag, *field)).chain(of_our_own).chain(of_modes)
}

/// The fields that a flag sets. Some flags set a field in the block of every mode that they concern.
pub(super) fn fields_of(flag: &str, modes: Modes) -> impl Iterator<Item = &'static str> {
    flags_and_fields(modes).filter(move |(known, _)| *known == flag).map(|(_, field)| field)
}

/// Fields that no table describes, with their flags.
const FLAGS: [(&str, &str); 38] = [
    ("bindAddress", "bind-address"),
    ("bindAddressHardFail", "bind-address-hard-fail"),
    ("clientConnection.burst", "kube-api-burst"),
    ("clientConnection.contentType", "kube-api-content-type"),
    ("clientConnection.kubeconfig", "kubeconfig"),
    ("clientConnection.qps", "kube-api-qps"),
    ("clusterCIDR", "cluster-cidr"),
    ("configSyncPeriod", "config-sync-period"),
    ("conntrack.maxPerCore", "conntrack-max-per-core"),
    ("conntrack.min", "conntrack-min"),
    ("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal"),
    ("conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait"),
    ("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established"),
    ("conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream"),
    ("conntrack.udpTimeout", "conntrack-udp-timeout"),
    ("detectLocal.bridgeInterface", "pod-bridge-interface"),
    ("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix"),
    ("detectLocalMode", "detect-local-mode"),
    ("enableProfiling", "profiling"),
    ("featureGates", "feature-gates"),
    ("healthzBindAddress", "healthz-bind-address"),
    ("hostnameOverride", "hostname-override"),
    ("logging.flushFrequency", "log-flush-frequency"),
    ("logging.format", "logging-format"),
    ("logging.options.json.infoBufferSize", "log-json-info-buffer-size"),
    ("logging.options.json.splitStream", "log-json-split-stream"),
    ("logging.options.text.infoBufferSize", "log-text-info-buffer-size"),
    ("logging.options.text.splitStream", "log-text-split-stream"),
    ("logging.verbosity", "v"),
    ("logging.vmodule", "vmodule"),
    ("metricsBindAddress", "metrics-bind-address"),
    ("mode", "proxy-mode"),
    ("nodePortAddresses", "nodeport-addresses"),
    ("oomScoreAdj", "oom-score-adj"),
    ("pageAddress", "page-address"),
    ("pageTokenFile", "page-token-file"),
    ("showHiddenMetricsForVersion", "show-hidden-metrics-for-version"),
    ("windowsRunAsService", "windows-service"),
];

fn of_modes(flags: &Flags, modes: Modes) -> Written {
    let fields = modes.fields().into_iter();
    fields.filter_map(|field| Some((field.name, flags.modes.get(field.flag?.name)?.clone()))).collect()
}

fn own(fields: &mut Written, flags: &Flags) {
    let mut given: BTreeMap<String, Value> = flags.given().into_iter().collect();
    let value = |field: &'static Field| Some((field.name, given.remove(field.flag?.name)?));
    fields.extend(own::FIELDS.iter().filter_map(value));
}

fn conntrack(conntrack: &mut file::Conntrack, flags: &Flags) {
    *conntrack = file::Conntrack {
        max_per_core: flags.conntrack_max_per_core.map(i64::from),
        min: flags.conntrack_min.map(i64::from),
        tcp_be_liberal: flags.conntrack_tcp_be_liberal,
        tcp_close_wait_timeout: flags.conntrack_tcp_timeout_close_wait.clone(),
        tcp_established_timeout: flags.conntrack_tcp_timeout_established.clone(),
        udp_stream_timeout: flags.conntrack_udp_timeout_stream.clone(),
        udp_timeout: flags.conntrack_udp_timeout.clone(),
    };
}

/// The address with the port of the deprecated flag, if it has none. Port 0 switches the service off.
fn healthz(flags: &Flags) -> Option<String> {
    let (host, _) = defaults::hosts(flags.bind_address.as_deref().unwrap_or_default());
    match flags.healthz_port {
        Some(0) => Some(String::new()),
        port => address(flags.healthz_bind_address.as_deref(), host, port, HEALTHZ_PORT),
    }
}

fn metrics(flags: &Flags) -> Option<String> {
    let (_, host) = defaults::hosts(flags.bind_address.as_deref().unwrap_or_default());
    let given = flags.metrics_bind_address.as_deref().filter(|address| !address.is_empty());
    address(given, host, flags.metrics_port, METRICS_PORT)
}

fn address(given: Option<&str>, host: &str, port: Option<i32>, default_port: u16) -> Option<String> {
    match (given, port) {
        (None, None) => None,
        (None, Some(port)) => Some(format!("{host}:{port}")),
        (Some(address), port) => {
            Some(defaults::with_port(address, port.map_or(default_port.into(), i64::from)))
        }
    }
}

/// `--flag=` with nothing after it is an empty list, not a list of one empty text.
fn without_empty(list: Vec<String>) -> Vec<String> {
    list.into_iter().filter(|entry| !entry.is_empty()).collect()
}

/// `pattern=N`; what is not of that form gets a verbosity that is refused later, with all other problems.
fn vmodule(entries: Vec<String>) -> Vec<file::VModule> {
    let one = |entry: String| match entry.rsplit_once('=') {
        Some((pattern, verbosity)) => {
            file::VModule { file_pattern: pattern.to_owned(), verbosity: verbosity.parse().unwrap_or(-1) }
        }
        None => file::VModule { file_pattern: entry, verbosity: -1 },
    };
    without_empty(entries).into_iter().map(one).collect()
}

fn set<T: Clone>(field: &mut Option<T>, given: &Option<T>) {
    if given.is_some() {
        field.clone_from(given);
    }
}
