//! kube-proxy's configuration: flags or a file, with defaults, validated.
//!
//! ```text
//! Flags ──overlay──┐
//!                  ├─▶ File (every field optional, text) ──defaults──▶ validate ──▶ Config (parsed, checked)
//! file ───decode───┘
//! ```

mod defaults;
mod doubts;
mod families;
mod fields;
mod file;
mod gates;
mod overlay;
mod own;
mod quantity;
pub mod reload;
mod validate;
mod write;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ferroxy_core::policy::{DetectLocal, Limits, NodePortAddress};
use ferroxy_core::{Intent, Policy, duration};
use ferroxy_dataplane::{Mode, Periods, Rendering, Ruleset, Settings};
use ferroxy_platform::sandbox;
use ipnet::IpNet;
use serde_json::Value;

use crate::flags::Flags;
use crate::modes::Modes;
use crate::otlp::Endpoint;
use crate::wrapper;
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
    /// `None` when unset: see [`Modes::default`].
    pub mode: Option<&'static Mode>,
    /// Every mode that could be configured.
    modes: Modes,
    /// The fields of all modes and our own ones, so that they can be written back. See [`Config::settings`].
    values: Settings,
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
    pub windows_run_as_service: bool,
    /// The node's page and its API; `None` when it is switched off.
    pub page: Option<PageConfig>,
    pub traffic_metrics: bool,
    pub traffic_metrics_max_series: u32,
    pub limits: Limits,
    /// Where traces of changes are sent; `None` when they are switched off.
    pub otlp: Option<Endpoint>,
    /// Clients whose sockets are connected to endpoints directly.
    pub sockets: wrapper::Options,
    /// The mode was configured by a name that implies accelerated sockets.
    pub(crate) mode_accelerates: bool,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageConfig {
    pub address: SocketAddr,
    /// Always set if other hosts can reach the address.
    pub token_file: Option<PathBuf>,
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
    /// The configuration with warnings, or all errors, a line each.
    pub fn load(flags: &Flags, modes: Modes) -> Result<(Config, Vec<String>), Vec<String>> {
        match flags.config.as_deref().filter(|path| !path.is_empty()) {
            Some(path) => {
                let text = std::fs::read_to_string(sandbox::locate(path.as_ref()))
                    .map_err(|error| vec![format!("--config: cannot read {path}: {error}")])?;
                Config::from_text(&text, flags, modes)
            }
            None => Config::resolve(overlay::from_flags(flags, modes), Origin::Flags, flags, modes),
        }
    }

    /// The same, from the content of the file that `--config` names.
    pub fn from_text(text: &str, flags: &Flags, modes: Modes) -> Result<(Config, Vec<String>), Vec<String>> {
        let (mut file, overlooked) = file::decode(text, modes)?;
        overlay::with_file(&mut file, flags);
        let (config, warnings) = Config::resolve(file, Origin::File, flags, modes)?;
        Ok((config, overlooked.into_iter().chain(warnings).collect()))
    }

    /// The configuration as a file, as the original writes it: only the block of the chosen mode has periods. Loaded,
    /// it gives the same configuration in all fields that the mode reads. (A period of zero, which means the default in a file,
    /// becomes a nanosecond.) Where the cluster is (`--master`, `--manifests`) is no part of it.
    pub fn to_yaml(&self) -> Result<String, String> {
        write::to_file(self).to_yaml()
    }

    /// The same as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        write::to_file(self).to_json()
    }

    /// Where to log to, and the most megabytes of it; `None` for standard error.
    pub fn log_file(&self) -> Option<(PathBuf, u32)> {
        own::log_file(&self.values)
    }

    /// Where to serve metrics. The original cannot switch that off; here port 0 does, in the file and in the flags.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        (self.metrics.port() != 0).then_some(self.metrics)
    }

    /// The name of this node: the configured name, or the host's name.
    pub fn node_name(&self) -> Result<String, String> {
        if !self.hostname_override.is_empty() {
            return Ok(self.hostname_override.clone());
        }
        let name = ferroxy_platform::host::name().ok_or("the host has no name; set hostnameOverride")?;
        Ok(name.to_lowercase())
    }

    /// A probable mistake with the mode that is chosen because none is configured. [`Config::load`] warns about all others.
    pub fn doubts_about_default(&self, mode: &Mode) -> Option<String> {
        doubts::open_node_ports(self, mode)
    }

    /// The part that decides what happens to packets, in a mode: the configured one, or the one chosen for an unset mode.
    pub fn policy(&self, mode: &Mode, node_name: String) -> Policy {
        let mut policy = Policy {
            node_name,
            bind_address: Some(self.bind_address).filter(|address| !address.is_unspecified()),
            detect_local: self.detect_local(),
            node_port_addresses: self.node_port_addresses.clone(),
            external_ips: self.feature_gates.enabled("AllowServiceExternalIPs"),
            count_traffic: self.traffic_metrics,
            probes: self.feature_gates.enabled("FerroxyProbes"),
            limits: self.limits,
            know_host_addresses: wrapper::is_on(&self.sockets),
            ..Policy::default()
        };
        (mode.shape)(&self.settings(mode), &mut policy);
        policy
    }

    /// The values of the fields that a mode reads.
    pub fn settings(&self, mode: &Mode) -> Settings {
        mode.fields.iter().map(|field| (field.name, self.values.get(field))).collect()
    }

    /// The rules for an Intent, without a kernel.
    pub fn ruleset(&self, mode: &Mode, intent: &Intent, host_addresses: &[IpAddr]) -> Box<dyn Ruleset> {
        let settings = self.settings(mode);
        let packets = (mode.render)(&Rendering { intent, settings: &settings, host_addresses });
        wrapper::wrap_ruleset(packets, intent, &self.sockets)
    }

    pub fn periods(&self, mode: &Mode) -> Periods {
        mode.periods(&self.values)
    }

    /// Whether the configured mode reads a field; see [`reads`].
    fn reads(&self, field: &str) -> bool {
        reads(self.modes, self.mode, field)
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
        modes: Modes,
    ) -> Result<(Config, Vec<String>), Vec<String>> {
        let mut file = written.clone();
        defaults::fill(&mut file, modes, origin);
        let config = validate::check(file, modes).map_err(|problems| {
            let shown = |it: validate::Problem| match overlay::flag_of(&it.field, modes) {
                Some(flag) if origin == Origin::Flags || counts_beside_a_file(flag, flags) => {
                    format!("--{flag}: {}", it.reason)
                }
                _ => format!("{}: {}", it.field, it.reason),
            };
            problems.into_iter().map(shown).collect::<Vec<_>>()
        })?;
        let warnings = doubts::warnings(flags, &written, origin, &config);
        Ok((config, warnings))
    }
}

impl LogStream {
    /// The maximum size of the buffer. The text is valid: it was checked when it was read.
    pub fn buffer_bytes(&self) -> usize {
        let bytes = quantity::bytes(&self.info_buffer_size).unwrap_or_default();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// Whether a mode reads a field. Every mode reads the fields that are in no mode's table. An unset mode stands for all
/// modes that may be chosen then.
fn reads(modes: Modes, mode: Option<&Mode>, field: &str) -> bool {
    let read = |mode: &Mode| mode.reads(field);
    modes.field(field).is_none() || mode.map_or_else(|| modes.candidates().into_iter().any(read), read)
}

/// Whether a flag is given and used together with a file: then a problem is in the flag.
fn counts_beside_a_file(flag: &str, flags: &Flags) -> bool {
    let given = flags.given().iter().any(|(given, _)| given == flag);
    given && !doubts::is_ignored_beside_a_file(flag)
}

/// The default values of the flags that set fields, by name.
pub fn flag_defaults(modes: Modes) -> BTreeMap<&'static str, Value> {
    let ports = [("healthz-port", defaults::HEALTHZ_PORT), ("metrics-port", defaults::METRICS_PORT)];
    let mut values: BTreeMap<_, Value> = ports.map(|(flag, port)| (flag, port.into())).into();
    // Without flags nothing can be wrong.
    let Ok((config, _)) = Config::load(&Flags::default(), modes) else { return values };
    let file = write::complete(&config).to_json();
    for (flag, field) in overlay::flags_and_fields(modes) {
        if let Some(value) = file.pointer(&format!("/{}", field.replace('.', "/"))) {
            values.entry(flag).or_insert_with(|| value.clone());
        }
    }
    values
}

#[cfg(test)]
mod tests;
