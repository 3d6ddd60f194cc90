//! kube-proxy's command line: names, syntax and help of flags. `config/` interprets them.
//!
//! Every flag is an `Option`: "not given" differs from "given with the default value".

mod go;
mod modes;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use clap::{Arg, Args, Command, FromArgMatches};
use serde::Serialize;
use serde_json::Value;

use crate::config;
use crate::modes::Modes;
pub(crate) use go::boolean;
use go::{GoStyle, TRUTH, gate, version};
pub use modes::ModeFlags;

const CONFIGURATION: &str = "Configuration";
const INSTEAD: &str = "One-shot actions";
const API_SERVER: &str = "API server";
const SERVING: &str = "Addresses and node HTTP services";
const DATAPLANE: &str = "Dataplane";
const NETWORK: &str = "Cluster network";
const NODE: &str = "Node settings";
const LOGGING: &str = "Logging";
const OURS: &str = "Ferroxy only";

#[derive(Debug, Clone, Default, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
// The last occurrence is used, as in the original.
#[command(args_override_self = true)]
pub struct Flags {
    /// The configuration file; most other flags are ignored when it is given
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<String>,
    /// Write the resulting configuration to a file, and exit
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub write_config_to: Option<String>,
    /// Switch features on or off
    #[arg(long, list("NAME=BOOL,…"), value_parser = gate, help_heading = CONFIGURATION)]
    pub feature_gates: Option<Vec<(String, bool)>>,
    /// Name of this node, instead of the host's name
    #[arg(long, value_name = "NAME", help_heading = CONFIGURATION)]
    pub hostname_override: Option<String>,
    /// Process all objects of the API server again at least this often
    #[arg(long, duration(), help_heading = CONFIGURATION)]
    pub config_sync_period: Option<String>,
    /// Print the version and exit; `raw` prints all of it
    #[arg(long, optional("raw"), value_parser = version, help_heading = CONFIGURATION)]
    pub version: Option<String>,

    /// Remove all rules of kube-proxy and Ferroxy from this node, and exit
    #[arg(long, truth(), help_heading = INSTEAD)]
    pub cleanup: Option<bool>,
    /// Only do the setup that needs privileges, and exit
    #[arg(long, truth(), help_heading = INSTEAD)]
    pub init_only: Option<bool>,

    /// How to reach the API server
    #[arg(long, value_name = "FILE", help_heading = API_SERVER)]
    pub kubeconfig: Option<String>,
    /// Address of the API server, instead of the one in the kubeconfig
    #[arg(long, value_name = "URL", help_heading = API_SERVER)]
    pub master: Option<String>,
    /// Content type of requests to the API server
    #[arg(long, value_name = "TYPE", help_heading = API_SERVER)]
    pub kube_api_content_type: Option<String>,
    /// Requests to the API server per second
    #[arg(long, number("N"), help_heading = API_SERVER)]
    pub kube_api_qps: Option<f32>,
    /// Burst of requests to the API server
    #[arg(long, number("N"), help_heading = API_SERVER)]
    pub kube_api_burst: Option<i32>,

    /// Primary address of this node, instead of the one in its Node object
    #[arg(long, value_name = "IP", help_heading = SERVING)]
    pub bind_address: Option<String>,
    /// Exit when the health or metrics address cannot be bound
    #[arg(long, truth(), help_heading = SERVING)]
    pub bind_address_hard_fail: Option<bool>,
    /// Address of the health service; empty switches it off
    #[arg(long, value_name = "IP[:PORT]", help_heading = SERVING)]
    pub healthz_bind_address: Option<String>,
    /// Deprecated: port of the health service; 0 switches it off
    #[arg(
        long,
        value_name = "PORT",
        allow_hyphen_values = true,
        help_heading = SERVING
    )]
    pub healthz_port: Option<i32>,
    /// Address of the metrics service; port 0 switches it off
    #[arg(long, value_name = "IP[:PORT]", help_heading = SERVING)]
    pub metrics_bind_address: Option<String>,
    /// Deprecated: port of the metrics service; 0 switches it off
    #[arg(
        long,
        value_name = "PORT",
        allow_hyphen_values = true,
        help_heading = SERVING
    )]
    pub metrics_port: Option<i32>,
    /// Serve profiles beside the metrics
    #[arg(long, truth(), help_heading = SERVING)]
    pub profiling: Option<bool>,
    /// Show metrics that were hidden after this version
    #[arg(long, value_name = "VERSION", help_heading = SERVING)]
    pub show_hidden_metrics_for_version: Option<String>,

    // Its help lists the modes, see `ModeFlags`.
    #[arg(long, value_name = "MODE", help_heading = DATAPLANE)]
    pub proxy_mode: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub modes: ModeFlags,

    /// How to recognise pod traffic: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE", help_heading = NETWORK)]
    pub detect_local_mode: Option<String>,
    /// Bridge that pods are attached to (BridgeInterface)
    #[arg(long, value_name = "NAME", help_heading = NETWORK)]
    pub pod_bridge_interface: Option<String>,
    /// Prefix of the names of pod interfaces (InterfaceNamePrefix)
    #[arg(long, value_name = "PREFIX", help_heading = NETWORK)]
    pub pod_interface_name_prefix: Option<String>,
    /// Range of pod addresses, or one range of each family
    #[arg(long, value_name = "CIDR[,CIDR]", help_heading = NETWORK)]
    pub cluster_cidr: Option<String>,
    /// Addresses of this node that accept connections to node ports: ranges, primary, localhost, all
    #[arg(long, list("CIDR,…"), help_heading = NETWORK)]
    pub nodeport_addresses: Option<Vec<String>>,

    /// OOM score adjustment of this process, -1000 to 1000
    #[arg(long, number("N"), help_heading = NODE)]
    pub oom_score_adj: Option<i32>,
    /// Maximum of tracked connections per CPU; 0 keeps the kernel's limit
    #[arg(long, number("N"), help_heading = NODE)]
    pub conntrack_max_per_core: Option<i32>,
    /// Lower bound of the maximum of tracked connections
    #[arg(long, number("N"), help_heading = NODE)]
    pub conntrack_min: Option<i32>,
    /// Timeout of idle established TCP connections; 0 keeps the kernel's
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_tcp_timeout_established: Option<String>,
    /// Timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_tcp_timeout_close_wait: Option<String>,
    /// Accept TCP packets outside the window
    #[arg(long, truth(), help_heading = NODE)]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// Timeout of UDP flows without a reply; 0 keeps the kernel's
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_udp_timeout: Option<String>,
    /// Timeout of UDP flows with replies; 0 keeps the kernel's
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_udp_timeout_stream: Option<String>,

    /// Log verbosity
    #[arg(short = 'v', long = "v", number("N"), help_heading = LOGGING)]
    pub v: Option<i32>,
    /// Log verbosity of files that match a pattern
    #[arg(long, list("PATTERN=N,…"), help_heading = LOGGING)]
    pub vmodule: Option<Vec<String>>,
    /// text or json
    #[arg(long, value_name = "FORMAT", help_heading = LOGGING)]
    pub logging_format: Option<String>,
    /// Write buffered lines at least this often
    #[arg(long, duration(), help_heading = LOGGING)]
    pub log_flush_frequency: Option<String>,
    /// Errors to stderr, the rest to stdout (alpha)
    #[arg(long, truth(), help_heading = LOGGING)]
    pub log_text_split_stream: Option<bool>,
    /// Errors to stderr, the rest to stdout (alpha)
    #[arg(long, truth(), help_heading = LOGGING)]
    pub log_json_split_stream: Option<bool>,
    /// Buffer of the split stream (alpha)
    #[arg(long, value_name = "BYTES", help_heading = LOGGING)]
    pub log_text_info_buffer_size: Option<String>,
    /// Buffer of the split stream (alpha)
    #[arg(long, value_name = "BYTES", help_heading = LOGGING)]
    pub log_json_info_buffer_size: Option<String>,
    /// Write the log to this file instead of stderr
    #[arg(long, value_name = "PATH", help_heading = LOGGING)]
    pub log_file: Option<String>,
    /// Size in megabytes at which the log file is renamed to PATH.1 (default: 100)
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = LOGGING)]
    pub log_file_max_size: Option<u32>,

    /// Count connections, packets and bytes of every Service and endpoint
    #[arg(long, truth(), help_heading = OURS)]
    pub traffic_metrics: Option<bool>,
    /// Maximum number of series of traffic metrics
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OURS)]
    pub traffic_metrics_max_series: Option<u32>,
    /// Maximum number of frontends (ports times addresses) of a Service
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OURS)]
    pub service_max_frontends: Option<u32>,
    /// Maximum number of endpoints of a port of a Service
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535), help_heading = OURS)]
    pub service_max_endpoints: Option<u32>,
    /// Maximum number of entries of a Service: its frontends, each with its endpoints and source ranges
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OURS)]
    pub service_max_entries: Option<u32>,
    /// Maximum number of frontends of a namespace, beyond the first 16 of each Service
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OURS)]
    pub namespace_max_frontends: Option<u32>,
    /// Maximum number of frontends of all namespaces, beyond the first 16 of each Service
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OURS)]
    pub node_max_frontends: Option<u32>,

    /// Address of the node's page and its API; beyond loopback only with a token; empty switches it off
    #[arg(long, value_name = "IP[:PORT]", help_heading = OURS)]
    pub page_address: Option<String>,
    /// File with the token that the page's API requires, 16 to 512 characters
    #[arg(long, value_name = "FILE", help_heading = OURS)]
    pub page_token_file: Option<String>,

    /// Send traces of changes, from the API to the kernel, to this OpenTelemetry collector: http://HOST[:PORT][/PATH]
    #[arg(long, value_name = "URL", help_heading = OURS)]
    pub otlp_endpoint: Option<String>,

    /// Connect TCP sockets of these clients to endpoints directly, by BPF, without NAT: off, host, pods or all
    #[arg(long, value_name = "CLIENTS", value_parser = ["off", "host", "pods", "all"], help_heading = OURS)]
    pub accelerate_sockets: Option<String>,
    /// Report the Service as the peer of a connection that was made directly (getpeername)
    #[arg(long, truth(), help_heading = OURS)]
    pub sockets_peer_names: Option<bool>,
    /// Root of the cgroup v2 hierarchy (default: its mount point)
    #[arg(long, value_name = "DIRECTORY", help_heading = OURS)]
    pub sockets_cgroup: Option<String>,
    /// Cgroup of all pods (default: kubepods.slice or kubepods below --sockets-cgroup)
    #[arg(long, value_name = "DIRECTORY", help_heading = OURS)]
    pub sockets_pods_cgroup: Option<String>,
    /// Directory for pinned programs and maps, on a bpffs
    #[arg(long, value_name = "DIRECTORY", help_heading = OURS)]
    pub sockets_pins: Option<String>,
    /// Maximum number of elements in a BPF map; packet rules serve the Services beyond it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OURS)]
    pub sockets_max_entries: Option<u32>,

    /// Windows: register with the service manager, as kube-proxy
    #[arg(long, truth(), help_heading = NODE)]
    pub windows_service: Option<bool>,
}

impl Flags {
    /// Reads a whole command line that has nothing but these flags, the program's name not included.
    pub fn parse(args: impl IntoIterator<Item = OsString>, modes: Modes) -> Result<Flags, clap::Error> {
        let command = Command::new("kube-proxy").no_binary_name(true).disable_version_flag(true);
        let matches = Flags::add_to(command, modes).try_get_matches_from(normalise(args))?;
        Flags::from_arg_matches(&matches)
    }

    /// Adds the flags to a command, with those of these modes. (`augment_args`, which clap calls, knows the list of this
    /// binary only.)
    pub fn add_to(command: Command, modes: Modes) -> Command {
        ModeFlags::add_to(Flags::augment_args(command), modes)
    }

    /// Names (without `--`) and values of the flags that were given, by name.
    pub fn given(&self) -> Vec<(String, Value)> {
        match serde_json::to_value(self) {
            Ok(Value::Object(all)) => all.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            // A struct of plain values always becomes an object.
            _ => Vec::new(),
        }
    }

    /// Every flag with its value, given or default, as text and by name.
    pub fn all(&self, modes: Modes) -> Vec<(String, String)> {
        let given: BTreeMap<String, Value> = self.given().into_iter().collect();
        let defaults = config::flag_defaults(modes);
        let value = |arg: &Arg| {
            let name = arg.get_long()?;
            let value = given.get(name).or_else(|| defaults.get(name));
            Some((name.to_owned(), value.map_or_else(|| empty(arg).to_owned(), as_flag)))
        };
        let command = Flags::add_to(Command::new("kube-proxy"), modes);
        let all: BTreeMap<String, String> = command.get_arguments().filter_map(value).collect();
        all.into_iter().collect()
    }
}

/// The value of a flag that is not given and sets no field.
fn empty(arg: &Arg) -> &'static str {
    let is_truth = arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == TRUTH));
    if is_truth || arg.get_long() == Some("version") { "false" } else { "" }
}

/// A value as it is written after `=`.
fn as_flag(value: &Value) -> String {
    let pair = |pair: &[Value]| format!("{}={}", as_flag(&pair[0]), as_flag(&pair[1]));
    let list = |list: &[Value]| list.iter().map(as_flag).collect::<Vec<_>>().join(",");
    match value {
        Value::String(text) => text.clone(),
        Value::Array(it) if it.len() == 2 && it[1].is_boolean() => pair(it),
        Value::Array(it) => list(it),
        Value::Null => String::new(),
        Value::Object(it) => it.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// The original accepts `_` for `-` in flag names. Values stay as they are, and so does everything after a bare `--`.
pub fn normalise(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut flags_ended = false;
    let one = |arg: OsString| {
        flags_ended |= arg == OsStr::new("--");
        match arg.to_str() {
            Some(text) if !flags_ended && text.starts_with("--") => dashed(text).into(),
            _ => arg,
        }
    };
    args.into_iter().map(one).collect()
}

fn dashed(flag: &str) -> String {
    match flag.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")),
        None => flag.replace('_', "-"),
    }
}

/// The error of a command line, in one line: what is wrong, what is missing or possible, and what may be meant. Without the usage.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let is_over = |line: &str| line.starts_with("Usage:") || line.starts_with("For more information");
    let mut lines = text.lines().take_while(|line| !is_over(line)).map(str::trim);
    let first = lines.next().unwrap_or_default();
    let mut words = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    // How to pass such a word as a value is no help here: there are no such values.
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("tip: to pass")) {
        let between = if words.ends_with(':') || line.starts_with('[') { " " } else { "; " };
        words = format!("{words}{between}{}", line.strip_prefix("tip: ").unwrap_or(line));
    }
    words
}

#[cfg(test)]
mod tests;
