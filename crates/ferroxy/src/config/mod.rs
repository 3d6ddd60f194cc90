//! kube-proxy's configuration: what every setting means, after flags or file, defaults and validation.
//!
//! ```text
//! Flags ──overlay──┐
//!                  ├─▶ File (every field optional, text) ──defaults──▶ validate ──▶ Config (parsed, checked)
//! file ───decode───┘
//! ```

mod defaults;
pub mod duration;
mod file;
mod gates;
mod overlay;
mod validate;
mod write;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferroxy_core::Policy;
use ferroxy_core::policy::{DetectLocal, NodePortAddress};
use ipnet::IpNet;

use crate::flags::Flags;
use defaults::Origin;
pub use gates::FeatureGates;

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
        let path = flags.config.as_deref().filter(|path| !path.is_empty());
        let (file, origin, mut warnings) = match path {
            Some(path) => {
                let (mut file, mut warnings) = read(path)?;
                overlay::with_file(&mut file, flags);
                warnings.extend(ignored(flags));
                (file, Origin::File, warnings)
            }
            None => (overlay::from_flags(flags), Origin::Flags, deprecated(flags)),
        };
        let not_applicable = overlay::not_applicable(flags);
        warnings.extend(not_applicable.iter().map(|name| format!("--{name} has no effect on Linux")));
        let config = Config::from_file(file, origin, flags)?;
        warnings.extend(config.doubts());
        Ok((config, warnings))
    }

    /// The configuration as a file that gives the same configuration when loaded. (Except for what the file format
    /// cannot say: a health service that is switched off, and a minimum sync period of zero.)
    pub fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(&write::to_file(self)).map_err(|error| error.to_string())
    }

    /// The same as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        // A struct of plain values always becomes JSON.
        serde_json::to_value(write::to_file(self)).unwrap_or_default()
    }

    /// The name this node goes by: what was asked for, or the host's name.
    pub fn node_name(&self) -> Result<String, String> {
        if !self.hostname_override.is_empty() {
            return Ok(self.hostname_override.clone());
        }
        let system = rustix::system::uname();
        let name = system.nodename().to_string_lossy().trim().to_lowercase();
        if name.is_empty() { Err("the host has no name; set hostnameOverride".to_owned()) } else { Ok(name) }
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
            masquerade_all,
            masquerade_bit,
            external_ips: self.feature_gates.enabled("AllowServiceExternalIPs"),
            count_traffic: false,
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

    fn from_file(mut file: file::File, origin: Origin, flags: &Flags) -> Result<Config, Vec<String>> {
        defaults::fill(&mut file, origin);
        validate::check(file).map_err(|problems| {
            let shown = |it: validate::Problem| match overlay::flag_of(&it.field) {
                Some(flag) if origin == Origin::Flags || counts_beside_a_file(flag, flags) => {
                    format!("{flag}: {}", it.reason)
                }
                _ => format!("{}: {}", it.field, it.reason),
            };
            problems.into_iter().map(shown).collect()
        })
    }

    /// Legal, but perhaps not what was meant.
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let dual_stack = self.cluster_cidrs.len() == 2;
        let family = |address: &NodePortAddress| match address {
            NodePortAddress::Cidr(IpNet::V4(_)) => Some("IPv4"),
            NodePortAddress::Cidr(IpNet::V6(_)) => Some("IPv6"),
            _ => None,
        };
        let families: Option<Vec<_>> = self.node_port_addresses.iter().map(family).collect();
        if let Some([first, rest @ ..]) = families.as_deref()
            && dual_stack
            && rest.iter().all(|other| other == first)
        {
            doubts.push(format!(
                "nodePortAddresses has only {first} ranges in a cluster of two families: \
                 for the other, node ports answer on every address"
            ));
        }
        if !self.port_range.is_empty() {
            doubts.push("portRange has no effect".to_owned());
        }
        doubts
    }
}

fn read(path: &str) -> Result<(file::File, Vec<String>), Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| vec![format!("{path}: {error}")])?;
    file::decode(&text)
}

/// A field can be wrong because of a flag even when there is a file.
fn counts_beside_a_file(flag: &str, flags: &Flags) -> bool {
    let name = flag.trim_start_matches("--");
    let given = flags.given().iter().any(|(given, _)| given == name);
    given && !overlay::ignored_beside_a_file(flags).iter().any(|ignored| ignored == name)
}

fn ignored(flags: &Flags) -> Option<String> {
    let names: Vec<String> =
        overlay::ignored_beside_a_file(flags).iter().map(|name| format!("--{name}")).collect();
    (!names.is_empty()).then(|| format!("ignored, because --config is given: {}", names.join(" ")))
}

fn deprecated(flags: &Flags) -> Vec<String> {
    let ports = [
        (flags.healthz_port, "--healthz-port is deprecated: use --healthz-bind-address"),
        (flags.metrics_port, "--metrics-port is deprecated: use --metrics-bind-address"),
    ];
    ports.iter().filter(|(port, _)| port.is_some()).map(|(_, warning)| warning.to_string()).collect()
}

#[cfg(test)]
mod tests;
