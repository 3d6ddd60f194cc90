//! Makes a configuration from a complete file: parses every text, checks every range, and reports all problems at once.

mod fields;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::Mode;
use ipnet::IpNet;

use super::file::{self, File};
use super::{
    Client, Config, Conntrack, DetectLocalMode, FeatureGates, LogFormat, LogStream, Logging, PageConfig,
    duration, own, quantity,
};
use crate::modes::Modes;
use crate::otlp::Endpoint;

/// The minor version of Kubernetes that this stands in for.
const MINOR: u32 = 37;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Problem {
    /// In the file's spelling: `nodePortAddresses[0]`.
    pub(super) field: String,
    pub(super) reason: String,
    /// The value cannot be parsed. Such a problem counts in every mode.
    is_unreadable: bool,
}

/// Expects a file that the defaults have filled.
pub(super) fn check(file: File, modes: Modes) -> Result<Config, Vec<Problem>> {
    let mut check = Check { problems: Vec::new() };
    let config = check.config(file, modes);
    if check.problems.is_empty() { Ok(config) } else { Err(check.problems) }
}

/// Collects problems. A field with a problem gets a placeholder value and checking goes on: the configuration is used
/// only if all problems are in fields that the mode does not read.
struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn config(&mut self, file: File, modes: Modes) -> Config {
        let feature_gates = self.gates(file.feature_gates.unwrap_or_default());
        let mode_name = file.mode.unwrap_or_default();
        let accelerated = modes.accelerated(&mode_name);
        let mode = self.mode(accelerated.map_or(&mode_name, |mode| mode.name), modes, &feature_gates);
        let detect_local_mode = self.detect_local_mode(&file.detect_local_mode.unwrap_or_default());
        let bridge_interface = file.detect_local.bridge_interface.unwrap_or_default();
        let interface_name_prefix = file.detect_local.interface_name_prefix.unwrap_or_default();
        self.detect_local(detect_local_mode, &bridge_interface, &interface_name_prefix);
        let values = self.fields(&file.modes, modes, mode);
        Config {
            client: self.client(file.client_connection),
            logging: self.logging(file.logging, &feature_gates),
            hostname_override: self.hostname(&file.hostname_override.unwrap_or_default()),
            bind_address: self.bind_address(&file.bind_address.unwrap_or_default()),
            bind_address_hard_fail: file.bind_address_hard_fail.unwrap_or_default(),
            healthz: self.healthz(&file.healthz_bind_address.unwrap_or_default()),
            metrics: self.metrics(&file.metrics_bind_address.unwrap_or_default()),
            profiling: file.enable_profiling.unwrap_or_default(),
            show_hidden_metrics_for_version: self
                .hidden(file.show_hidden_metrics_for_version.unwrap_or_default()),
            cluster_cidrs: self.cluster_cidrs(&file.cluster_cidr.unwrap_or_default(), detect_local_mode),
            node_port_addresses: self.node_port_addresses(&file.node_port_addresses.unwrap_or_default()),
            oom_score_adj: self.number("oomScoreAdj", file.oom_score_adj, -1000, 1000) as i32,
            conntrack: self.conntrack(file.conntrack),
            config_sync_period: self.positive("configSyncPeriod", file.config_sync_period),
            windows_run_as_service: file.windows_run_as_service.unwrap_or_default(),
            page: self
                .page(&file.page_address.unwrap_or_default(), &file.page_token_file.unwrap_or_default()),
            traffic_metrics: values.truth(&own::TRAFFIC_METRICS),
            traffic_metrics_max_series: values.number(&own::MAX_SERIES) as u32,
            limits: own::limits(&values),
            otlp: self.otlp(&values.text(&own::OTLP_ENDPOINT)),
            sockets: own::sockets(&values),
            values,
            mode_accelerates: accelerated.is_some(),
            feature_gates,
            mode,
            modes,
            detect_local_mode,
            bridge_interface,
            interface_name_prefix,
        }
    }

    fn problem(&mut self, field: impl Into<String>, reason: impl Into<String>) {
        self.problems.push(Problem { field: field.into(), reason: reason.into(), is_unreadable: false });
    }

    /// Drops the problems of settings that are not used, as the original does, except values that cannot be parsed.
    fn only_if<T>(&mut self, matters: bool, check: impl FnOnce(&mut Check) -> T) -> T {
        let before = self.problems.len();
        let checked = check(self);
        if !matters {
            let found = self.problems.split_off(before);
            self.problems.extend(found.into_iter().filter(|problem| problem.is_unreadable));
        }
        checked
    }

    fn number(&mut self, field: &str, value: Option<i64>, least: i64, most: i64) -> i64 {
        let value = value.unwrap_or(least);
        if !(least..=most).contains(&value) {
            self.problem(field, format!("{value} is not between {least} and {most}"));
        }
        value.clamp(least, most)
    }

    fn count(&mut self, field: &str, value: Option<i64>) -> u32 {
        self.number(field, value, 0, i32::MAX.into()) as u32
    }

    fn duration(&mut self, field: &str, text: Option<String>) -> Duration {
        let text = text.unwrap_or_default();
        match duration::parse(&text).map(u64::try_from) {
            Ok(Ok(nanoseconds)) => return Duration::from_nanos(nanoseconds),
            Ok(Err(_)) => self.problem(field, format!("{text} is negative")),
            Err(reason) => {
                self.problems.push(Problem { field: field.to_owned(), reason, is_unreadable: true });
            }
        }
        Duration::ZERO
    }

    fn positive(&mut self, field: &str, text: Option<String>) -> Duration {
        let before = self.problems.len();
        let duration = self.duration(field, text);
        if duration.is_zero() && self.problems.len() == before {
            self.problem(field, "must be longer than zero");
        }
        duration
    }

    fn cidr(&mut self, field: &str, text: &str) -> Option<IpNet> {
        let cidr = text.parse().ok();
        if cidr.is_none() {
            self.problem(field, format!("{text:?} is not a CIDR such as 10.0.0.0/8 or fd00::/8"));
        }
        cidr
    }

    fn socket(&mut self, field: &str, text: &str) -> SocketAddr {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => return address,
            Ok(_) => self.problem(field, format!("{text:?} needs a port between 1 and 65535")),
            Err(_) => {
                self.problem(field, format!("{text:?} is not IP:port such as 0.0.0.0:10256 or [::]:10256"))
            }
        }
        SocketAddr::from(([0, 0, 0, 0], 0))
    }

    fn gates(&mut self, set: std::collections::BTreeMap<String, bool>) -> FeatureGates {
        FeatureGates::new(set).unwrap_or_else(|problems| {
            for (gate, reason) in problems {
                self.problem(format!("featureGates[{gate}]"), format!("{gate} {reason}"));
            }
            FeatureGates::default()
        })
    }

    fn mode(&mut self, text: &str, modes: Modes, gates: &FeatureGates) -> Option<&'static Mode> {
        let mode = modes.find(text);
        let switched_off = mode.and_then(|mode| mode.gate).filter(|gate| !gates.enabled(gate));
        if let Some(gate) = switched_off {
            self.problem("mode", format!("{text} is switched off by the feature gate {gate}"));
        }
        if mode.is_none() && !text.is_empty() {
            self.problem("mode", format!("{text:?} is not one of {}", modes.sentence("and")));
        }
        mode
    }

    fn detect_local_mode(&mut self, text: &str) -> DetectLocalMode {
        use DetectLocalMode::{BridgeInterface, ClusterCidr, InterfaceNamePrefix, NodeCidr};
        let modes = [ClusterCidr, NodeCidr, BridgeInterface, InterfaceNamePrefix];
        modes.into_iter().find(|mode| mode.as_str() == text).unwrap_or_else(|| {
            let known = modes.map(DetectLocalMode::as_str).join(", ");
            self.problem("detectLocalMode", format!("{text:?} is not one of {known}"));
            ClusterCidr
        })
    }

    fn detect_local(&mut self, mode: DetectLocalMode, bridge: &str, prefix: &str) {
        if mode == DetectLocalMode::BridgeInterface && bridge.is_empty() {
            self.problem(
                "detectLocal.bridgeInterface",
                "is empty, but detectLocalMode BridgeInterface needs it",
            );
        }
        if mode == DetectLocalMode::InterfaceNamePrefix && prefix.is_empty() {
            self.problem(
                "detectLocal.interfaceNamePrefix",
                "is empty, but detectLocalMode InterfaceNamePrefix needs it",
            );
        }
    }

    fn hostname(&mut self, text: &str) -> String {
        let name = text.trim().to_lowercase();
        if name.is_empty() && !text.is_empty() {
            self.problem("hostnameOverride", "contains only whitespace");
        }
        name
    }

    fn bind_address(&mut self, text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|_| {
            self.problem("bindAddress", format!("{text:?} is not an IP address"));
            IpAddr::from([0, 0, 0, 0])
        })
    }

    /// Port 0 disables the metrics service. (The original cannot disable it: it refuses port 0.)
    fn metrics(&mut self, text: &str) -> SocketAddr {
        match text.parse::<SocketAddr>() {
            Ok(off) if off.port() == 0 => off,
            _ => self.socket("metricsBindAddress", text),
        }
    }

    /// Port 0 disables the health service, and so does an empty flag.
    fn healthz(&mut self, text: &str) -> Option<SocketAddr> {
        let is_off = text.is_empty() || text.parse::<SocketAddr>().is_ok_and(|it| it.port() == 0);
        (!is_off).then(|| self.socket("healthzBindAddress", text))
    }

    fn otlp(&mut self, text: &str) -> Option<Endpoint> {
        let endpoint = (!text.is_empty()).then(|| Endpoint::parse(text))?;
        endpoint.map_err(|reason| self.problem(own::OTLP_ENDPOINT.name, reason)).ok()
    }

    /// Beyond loopback, clients must send a token. Whether the file has one is checked when the server starts.
    fn page(&mut self, address: &str, token_file: &str) -> Option<PageConfig> {
        let token_file = (!token_file.is_empty()).then(|| token_file.into());
        let address = (!address.is_empty()).then(|| self.socket("pageAddress", address))?;
        let is_placeholder = address.port() == 0;
        if !is_placeholder && !address.ip().to_canonical().is_loopback() && token_file.is_none() {
            let reason = "is reachable from other hosts: set pageTokenFile (--page-token-file)";
            self.problem("pageAddress", format!("{address} {reason}"));
        }
        Some(PageConfig { address, token_file })
    }

    /// Metrics that were hidden in this version may be shown for one version more.
    fn hidden(&mut self, version: String) -> String {
        let previous = format!("1.{}", MINOR - 1);
        if !version.is_empty() && version != previous {
            self.problem("showHiddenMetricsForVersion", format!("{version:?} must be empty or {previous:?}"));
        }
        version
    }

    fn cluster_cidrs(&mut self, text: &str, mode: DetectLocalMode) -> Vec<IpNet> {
        self.only_if(mode == DetectLocalMode::ClusterCidr, |check| {
            let parts: Vec<&str> = text.split(',').map(str::trim).filter(|_| !text.is_empty()).collect();
            let cidrs: Vec<IpNet> = parts.iter().filter_map(|part| check.cidr("clusterCIDR", part)).collect();
            match (&parts[..], &cidrs[..]) {
                ([_, _, _, ..], _) => check.problem("clusterCIDR", "has more than two ranges"),
                (_, [IpNet::V4(_), IpNet::V4(_)] | [IpNet::V6(_), IpNet::V6(_)]) => {
                    check.problem("clusterCIDR", "has two ranges of one family");
                }
                _ => {}
            }
            cidrs.iter().map(IpNet::trunc).collect()
        })
    }

    fn node_port_addresses(&mut self, texts: &[String]) -> Vec<NodePortAddress> {
        let mut addresses = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let field = format!("nodePortAddresses[{i}]");
            let address = match text.as_str() {
                "primary" => NodePortAddress::Primary,
                "localhost" => NodePortAddress::Localhost,
                "all" => NodePortAddress::All,
                _ => match text.parse::<IpNet>() {
                    Ok(cidr) => NodePortAddress::Cidr(cidr.trunc()),
                    Err(_) => {
                        self.problem(field, format!("{text:?} is not a CIDR, nor primary, localhost or all"));
                        continue;
                    }
                },
            };
            if !matches!(address, NodePortAddress::Cidr(_)) && addresses.contains(&address) {
                self.problem(field, format!("{text} is listed twice"));
            }
            addresses.push(address);
        }
        addresses
    }

    fn client(&mut self, it: file::ClientConnection) -> Client {
        Client {
            kubeconfig: it.kubeconfig.unwrap_or_default(),
            accept_content_types: it.accept_content_types.unwrap_or_default(),
            content_type: it.content_type.unwrap_or_default(),
            qps: it.qps.unwrap_or_default(),
            burst: self.count("clientConnection.burst", it.burst),
        }
    }

    fn conntrack(&mut self, it: file::Conntrack) -> Conntrack {
        Conntrack {
            max_per_core: self.count("conntrack.maxPerCore", it.max_per_core),
            min: self.count("conntrack.min", it.min),
            tcp_established_timeout: self
                .duration("conntrack.tcpEstablishedTimeout", it.tcp_established_timeout),
            tcp_close_wait_timeout: self.duration("conntrack.tcpCloseWaitTimeout", it.tcp_close_wait_timeout),
            tcp_be_liberal: it.tcp_be_liberal.unwrap_or_default(),
            udp_timeout: self.duration("conntrack.udpTimeout", it.udp_timeout),
            udp_stream_timeout: self.duration("conntrack.udpStreamTimeout", it.udp_stream_timeout),
        }
    }

    fn logging(&mut self, it: file::Logging, gates: &FeatureGates) -> Logging {
        let format = self.log_format(&it.format.unwrap_or_default());
        let vmodule = it.vmodule.unwrap_or_default();
        if format == LogFormat::Json && !vmodule.is_empty() {
            self.problem("logging.vmodule", "works only with the format text");
        }
        Logging {
            format,
            flush_frequency: self.flush_frequency(it.flush_frequency),
            verbosity: self.count("logging.verbosity", it.verbosity),
            vmodule: vmodule.into_iter().enumerate().map(|(i, entry)| self.vmodule(i, entry)).collect(),
            text: self.log_stream("logging.options.text", it.options.text, gates),
            json: self.log_stream("logging.options.json", it.options.json, gates),
        }
    }

    fn log_format(&mut self, text: &str) -> LogFormat {
        match text {
            "text" => return LogFormat::Text,
            "json" => return LogFormat::Json,
            _ => self.problem("logging.format", format!("{text:?} is neither text nor json")),
        }
        LogFormat::Text
    }

    /// `5s`, or a bare number of nanoseconds.
    fn flush_frequency(&mut self, text: Option<String>) -> Duration {
        match text.as_deref().map(str::parse) {
            Some(Ok(nanoseconds)) => Duration::from_nanos(nanoseconds),
            _ => self.duration("logging.flushFrequency", text),
        }
    }

    fn vmodule(&mut self, i: usize, entry: file::VModule) -> (String, u32) {
        let field = format!("logging.vmodule[{i}]");
        if entry.file_pattern.is_empty() || entry.verbosity < 0 {
            self.problem(&*field, format!("{:?} is not a pattern with a verbosity", entry.file_pattern));
        }
        (entry.file_pattern, u32::try_from(entry.verbosity).unwrap_or_default())
    }

    fn log_stream(&mut self, field: &str, it: file::LogStream, gates: &FeatureGates) -> LogStream {
        let stream = LogStream {
            split_stream: it.split_stream.unwrap_or_default(),
            info_buffer_size: it.info_buffer_size.unwrap_or_default(),
        };
        let buffered = quantity::bytes(&stream.info_buffer_size).unwrap_or_else(|reason| {
            self.problem(format!("{field}.infoBufferSize"), reason);
            0
        });
        for (used, option) in [(stream.split_stream, "splitStream"), (buffered > 0, "infoBufferSize")] {
            if used && !gates.enabled("LoggingAlphaOptions") {
                self.problem(format!("{field}.{option}"), "needs the feature gate LoggingAlphaOptions");
            }
        }
        stream
    }
}
