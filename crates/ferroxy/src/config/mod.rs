//! kube-proxy's configuration: what every setting means, after flags or file, defaults and validation.
//!
//! ```text
//! Flags ──overlay──┐
//!                  ├─▶ File (every field optional, text) ──defaults──▶ validate ──▶ Config (parsed, checked)
//! file ───decode───┘
//! ```

mod defaults;
mod doubts;
pub mod duration;
mod families;
mod file;
mod gates;
mod overlay;
mod quantity;
pub mod reload;
mod validate;
mod write;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferroxy_core::Policy;
use ferroxy_core::policy::{DetectLocal, NodePortAddress};
use ipnet::IpNet;
use serde_json::Value;

use crate::flags::Flags;
use defaults::Origin;
pub use gates::FeatureGates;

/// The Kubernetes that this stands in for.
pub const KUBERNETES_VERSION: &str = "v1.37.0";

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub feature_gates: FeatureGates,
    pub client: Client,
    pub logging: Logging,
    /// Trimmed and lowercased; empty when the host's name is to be used. See [`Config::node_name`].
    pub hostname_override: String,
    pub bind_address: IpAddr,
    pub bind_address_hard_fail: bool,
    /// `None` when the health service is switched off.
    pub healthz: Option<SocketAddr>,
    /// Port 0 when the metrics service is switched off: ask [`Config::metrics_address`].
    pub metrics: SocketAddr,
    pub profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: Mode,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub winkernel: Winkernel,
    pub detect_local_mode: DetectLocalMode,
    pub bridge_interface: String,
    pub interface_name_prefix: String,
    /// None, one, or one of each family.
    pub cluster_cidrs: Vec<IpNet>,
    /// Empty when unset: what that means differs by mode, see [`Config::policy`].
    pub node_port_addresses: Vec<NodePortAddress>,
    pub oom_score_adj: i32,
    pub conntrack: Conntrack,
    pub config_sync_period: Duration,
    /// Without effect, as in the original; kept so that it can be written back.
    pub port_range: String,
    pub windows_run_as_service: bool,
    /// Of our own, and only flags: the file stays one that the original can read.
    pub traffic_metrics: bool,
    pub traffic_metrics_max_series: u32,
}

/// The dataplane asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The original takes iptables then; the caller decides.
    Unset,
    Iptables,
    Ipvs,
    Nftables,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetectLocalMode {
    ClusterCidr,
    NodeCidr,
    BridgeInterface,
    InterfaceNamePrefix,
}

/// How to talk to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Client {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f64,
    pub burst: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Logging {
    pub format: LogFormat,
    pub flush_frequency: Duration,
    pub verbosity: u32,
    /// (file pattern, verbosity)
    pub vmodule: Vec<(String, u32)>,
    pub text: LogStream,
    pub json: LogStream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LogStream {
    pub split_stream: bool,
    /// A Kubernetes quantity, as written.
    pub info_buffer_size: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Iptables {
    pub masquerade_bit: u8,
    pub masquerade_all: bool,
    pub localhost_node_ports: bool,
    pub periods: Periods,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Ipvs {
    /// Empty means round robin.
    pub scheduler: String,
    pub exclude_cidrs: Vec<IpNet>,
    pub strict_arp: bool,
    /// Zero keeps the kernel's value, in all three.
    pub tcp_timeout: Duration,
    pub tcp_fin_timeout: Duration,
    pub udp_timeout: Duration,
    pub periods: Periods,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Nftables {
    pub masquerade_bit: u8,
    pub masquerade_all: bool,
    pub periods: Periods,
}

/// How often to verify at least, and how often to apply changes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    pub sync: Duration,
    pub min_sync: Duration,
}

/// Without effect on Linux; kept so that it can be written back.
#[derive(Debug, Clone, PartialEq)]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    pub root_hns_endpoint_name: String,
    pub enable_dsr: bool,
    pub forward_health_check_vip: bool,
}

/// Zero leaves the kernel's value alone, everywhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Conntrack {
    pub max_per_core: u32,
    pub min: u32,
    pub tcp_established_timeout: Duration,
    pub tcp_close_wait_timeout: Duration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Duration,
    pub udp_stream_timeout: Duration,
}

impl Config {
    /// The configuration and what to warn about, or everything that is wrong, a line each.
    pub fn load(flags: &Flags) -> Result<(Config, Vec<String>), Vec<String>> {
        match flags.config.as_deref().filter(|path| !path.is_empty()) {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| vec![format!("--config: cannot read {path}: {error}")])?;
                Config::from_text(&text, flags)
            }
            None => Config::resolve(overlay::from_flags(flags), Origin::Flags, flags),
        }
    }

    /// The same, from what is in the file that `--config` names.
    pub fn from_text(text: &str, flags: &Flags) -> Result<(Config, Vec<String>), Vec<String>> {
        let (mut file, overlooked) = file::decode(text)?;
        overlay::with_file(&mut file, flags);
        let (config, warnings) = Config::resolve(file, Origin::File, flags)?;
        Ok((config, overlooked.into_iter().chain(warnings).collect()))
    }

    /// The configuration as a file, as the original writes it: only the block of the chosen mode has periods. Loaded,
    /// it gives the same configuration, as far as the mode looks at it. (Except for what the file format cannot say: a
    /// health service that is switched off, and a minimum sync period of zero.)
    pub fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(&write::to_file(self)).map_err(|error| error.to_string())
    }

    /// The same as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        // A struct of plain values always becomes JSON.
        serde_json::to_value(write::to_file(self)).unwrap_or_default()
    }

    /// Where to serve metrics. The original cannot switch that off; here port 0 does, in the file and in the flags.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        (self.metrics.port() != 0).then_some(self.metrics)
    }

    /// The name this node goes by: what was asked for, or the host's name.
    pub fn node_name(&self) -> Result<String, String> {
        if !self.hostname_override.is_empty() {
            return Ok(self.hostname_override.clone());
        }
        let name = ferroxy_platform::host::name().ok_or("the host has no name; set hostnameOverride")?;
        Ok(name.to_lowercase())
    }

    /// The part that decides what happens to packets, for the mode that was chosen in the end.
    pub fn policy(&self, mode: Mode, node_name: String) -> Policy {
        let (masquerade_all, masquerade_bit) = match mode {
            Mode::Nftables => (self.nftables.masquerade_all, self.nftables.masquerade_bit),
            Mode::Iptables | Mode::Ipvs | Mode::Unset => {
                (self.iptables.masquerade_all, self.iptables.masquerade_bit)
            }
        };
        let unset = if mode == Mode::Nftables { NodePortAddress::Primary } else { NodePortAddress::All };
        let listed = &self.node_port_addresses;
        Policy {
            node_name,
            bind_address: Some(self.bind_address).filter(|address| !address.is_unspecified()),
            detect_local: self.detect_local(),
            node_port_addresses: if listed.is_empty() { vec![unset] } else { listed.clone() },
            localhost_node_ports: mode == Mode::Iptables && self.iptables.localhost_node_ports,
            masquerade_all,
            masquerade_bit,
            external_ips: self.feature_gates.enabled("AllowServiceExternalIPs"),
            count_traffic: self.traffic_metrics,
            schedulers: mode == Mode::Ipvs,
        }
    }

    /// The periods of the mode that was chosen in the end.
    pub fn periods(&self, mode: Mode) -> Periods {
        match mode {
            Mode::Nftables => self.nftables.periods,
            Mode::Ipvs => self.ipvs.periods,
            Mode::Iptables | Mode::Unset => self.iptables.periods,
        }
    }

    fn detect_local(&self) -> DetectLocal {
        match self.detect_local_mode {
            DetectLocalMode::ClusterCidr => DetectLocal::ClusterCidr(self.cluster_cidrs.clone()),
            DetectLocalMode::NodeCidr => DetectLocal::NodeCidr,
            DetectLocalMode::BridgeInterface => DetectLocal::BridgeInterface(self.bridge_interface.clone()),
            DetectLocalMode::InterfaceNamePrefix => {
                DetectLocal::InterfaceNamePrefix(self.interface_name_prefix.clone())
            }
        }
    }

    fn resolve(
        written: file::File,
        origin: Origin,
        flags: &Flags,
    ) -> Result<(Config, Vec<String>), Vec<String>> {
        let mut file = written.clone();
        defaults::fill(&mut file, origin);
        let mut config = validate::check(file).map_err(|problems| {
            let shown = |it: validate::Problem| match overlay::flag_of(&it.field) {
                Some(flag) if origin == Origin::Flags || counts_beside_a_file(flag, flags) => {
                    format!("{flag}: {}", it.reason)
                }
                _ => format!("{}: {}", it.field, it.reason),
            };
            problems.into_iter().map(shown).collect::<Vec<_>>()
        })?;
        config.traffic_metrics = flags.traffic_metrics.unwrap_or(config.traffic_metrics);
        let max_series = flags.traffic_metrics_max_series;
        config.traffic_metrics_max_series = max_series.unwrap_or(config.traffic_metrics_max_series);
        let warnings = doubts::warnings(flags, &written, origin, &config);
        Ok((config, warnings))
    }
}

impl Mode {
    /// Whether a setting matters: most do in every mode, and those in the blocks of other modes do not. Where no mode
    /// is chosen, it may become iptables or nftables.
    fn reads(self, field: &str) -> bool {
        match field.split_once('.') {
            Some(("ipvs", _)) => self == Mode::Ipvs,
            Some(("nftables", _)) => matches!(self, Mode::Nftables | Mode::Unset),
            Some(("iptables", "masqueradeAll" | "masqueradeBit")) => self != Mode::Nftables,
            Some(("iptables", _)) => matches!(self, Mode::Iptables | Mode::Unset),
            _ => true,
        }
    }
}

impl LogStream {
    /// How much of the stream is kept back at most; checked when it was read.
    pub fn buffer_bytes(&self) -> usize {
        let bytes = quantity::bytes(&self.info_buffer_size).unwrap_or_default();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// A field can be wrong because of a flag even when there is a file.
fn counts_beside_a_file(flag: &str, flags: &Flags) -> bool {
    let name = flag.trim_start_matches("--");
    let given = flags.given().iter().any(|(given, _)| given == name);
    given && !doubts::is_ignored_beside_a_file(name)
}

/// What the flags hold that nobody gave, by name: of those that stand for a setting.
pub fn flag_defaults() -> BTreeMap<&'static str, Value> {
    let ports = [("healthz-port", defaults::HEALTHZ_PORT), ("metrics-port", defaults::METRICS_PORT)];
    let mut values: BTreeMap<_, Value> = ports.map(|(flag, port)| (flag, port.into())).into();
    values.insert("traffic-metrics-max-series", defaults::TRAFFIC_METRICS_MAX_SERIES.into());
    // Without flags nothing can be wrong.
    let Ok((config, _)) = Config::load(&Flags::default()) else { return values };
    let file = serde_json::to_value(write::complete(&config)).unwrap_or_default();
    for (flag, field) in overlay::flags_and_fields() {
        if let Some(value) = file.pointer(&format!("/{}", field.replace('.', "/"))) {
            values.entry(flag).or_insert_with(|| value.clone());
        }
    }
    values
}

#[cfg(test)]
mod tests;
