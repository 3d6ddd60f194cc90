//! kube-proxy's command line: which flags there are and how they are spelled. What they mean is `config/`'s work.
//!
//! Every flag is an `Option`, so that "not given" is never mistaken for "given with the default".

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use clap::{Arg, Args, Command, FromArgMatches};
use serde::Serialize;
use serde_json::Value;

use crate::config::{self, duration};

const CONFIGURATION: &str = "Configuration";
const INSTEAD: &str = "Instead of running";
const API_SERVER: &str = "API server";
const SERVING: &str = "Addresses and node HTTP services";
const DATAPLANE: &str = "Dataplane";
const NETWORK: &str = "Cluster network";
const NODE: &str = "Node settings";
const LOGGING: &str = "Logging";
const OURS: &str = "Not in the original";

#[derive(Debug, Clone, Default, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
// The last of several counts, as in the original.
#[command(args_override_self = true)]
pub struct Flags {
    /// The configuration file; most other flags are ignored when it is given
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<String>,
    /// Write the configuration as it stands after flags, file and defaults, and exit
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub write_config_to: Option<String>,
    /// Switch features on or off
    #[arg(long, list("NAME=BOOL,…"), value_parser = gate, help_heading = CONFIGURATION)]
    pub feature_gates: Option<Vec<(String, bool)>>,
    /// Name of this node, instead of the host's name
    #[arg(long, value_name = "NAME", help_heading = CONFIGURATION)]
    pub hostname_override: Option<String>,
    /// Resend everything the API server told at least this often
    #[arg(long, duration(), help_heading = CONFIGURATION)]
    pub config_sync_period: Option<String>,
    /// Print the version and exit; `raw` prints all of it
    #[arg(long, optional("raw"), value_parser = version, help_heading = CONFIGURATION)]
    pub version: Option<String>,

    /// Remove everything that a proxy left on this node, and exit
    #[arg(long, truth(), help_heading = INSTEAD)]
    pub cleanup: Option<bool>,
    /// Do only what needs privileges, and exit
    #[arg(long, truth(), help_heading = INSTEAD)]
    pub init_only: Option<bool>,

    /// How to reach the API server
    #[arg(long, value_name = "FILE", help_heading = API_SERVER)]
    pub kubeconfig: Option<String>,
    /// Address of the API server, instead of the one in the kubeconfig
    #[arg(long, value_name = "URL", help_heading = API_SERVER)]
    pub master: Option<String>,
    /// Encoding asked of the API server
    #[arg(long, value_name = "TYPE", help_heading = API_SERVER)]
    pub kube_api_content_type: Option<String>,
    /// Requests per second
    #[arg(long, number("N"), help_heading = API_SERVER)]
    pub kube_api_qps: Option<f32>,
    /// Requests at once
    #[arg(long, number("N"), help_heading = API_SERVER)]
    pub kube_api_burst: Option<i32>,

    /// Primary address of this node, instead of the one its Node object tells
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
    /// Show metrics that this earlier version still showed
    #[arg(long, value_name = "VERSION", help_heading = SERVING)]
    pub show_hidden_metrics_for_version: Option<String>,

    /// iptables, ipvs or nftables
    #[arg(long, value_name = "MODE", help_heading = DATAPLANE)]
    pub proxy_mode: Option<String>,
    /// Masquerade everything sent to Services
    #[arg(long, truth(), help_heading = DATAPLANE)]
    pub masquerade_all: Option<bool>,
    /// Bit of the packet mark that asks for masquerading (iptables, ipvs)
    #[arg(long, number("BIT"), help_heading = DATAPLANE)]
    pub iptables_masquerade_bit: Option<i32>,
    /// Node ports on 127.0.0.1 (iptables, IPv4)
    #[arg(long, truth(), help_heading = DATAPLANE)]
    pub iptables_localhost_nodeports: Option<bool>,
    /// Verify at least this often (every mode but ipvs)
    #[arg(long, duration(), help_heading = DATAPLANE)]
    pub iptables_sync_period: Option<String>,
    /// Apply changes no more often than this (every mode but ipvs)
    #[arg(long, duration(), help_heading = DATAPLANE)]
    pub iptables_min_sync_period: Option<String>,
    /// Verify at least this often (ipvs)
    #[arg(long, duration(), help_heading = DATAPLANE)]
    pub ipvs_sync_period: Option<String>,
    /// Apply changes no more often than this (ipvs)
    #[arg(long, duration(), help_heading = DATAPLANE)]
    pub ipvs_min_sync_period: Option<String>,
    /// How the kernel picks an endpoint (ipvs)
    #[arg(long, value_name = "NAME", help_heading = DATAPLANE)]
    pub ipvs_scheduler: Option<String>,
    /// Virtual servers in these ranges are left alone (ipvs)
    #[arg(long, list("CIDR,…"), help_heading = DATAPLANE)]
    pub ipvs_exclude_cidrs: Option<Vec<String>>,
    /// Answer ARP only for addresses of the interface asked on (ipvs)
    #[arg(long, truth(), help_heading = DATAPLANE)]
    pub ipvs_strict_arp: Option<bool>,
    /// Idle TCP connections; 0 keeps the system's value (ipvs)
    #[arg(long, duration(), help_heading = DATAPLANE)]
    pub ipvs_tcp_timeout: Option<String>,
    /// TCP connections after a FIN; 0 keeps the system's value (ipvs)
    #[arg(long, duration(), help_heading = DATAPLANE)]
    pub ipvs_tcpfin_timeout: Option<String>,
    /// UDP flows; 0 keeps the system's value (ipvs)
    #[arg(long, duration(), help_heading = DATAPLANE)]
    pub ipvs_udp_timeout: Option<String>,

    /// How pod traffic is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long, value_name = "MODE", help_heading = NETWORK)]
    pub detect_local_mode: Option<String>,
    /// Bridge that pods are attached to (BridgeInterface)
    #[arg(long, value_name = "NAME", help_heading = NETWORK)]
    pub pod_bridge_interface: Option<String>,
    /// How names of pod interfaces begin (InterfaceNamePrefix)
    #[arg(long, value_name = "PREFIX", help_heading = NETWORK)]
    pub pod_interface_name_prefix: Option<String>,
    /// Range of pod addresses, or one range of each family
    #[arg(long, value_name = "CIDR[,CIDR]", help_heading = NETWORK)]
    pub cluster_cidr: Option<String>,
    /// Addresses of this node that node ports answer on: ranges, primary, localhost, all
    #[arg(long, list("CIDR,…"), help_heading = NETWORK)]
    pub nodeport_addresses: Option<Vec<String>>,

    /// How willing the kernel is to kill this process, -1000 to 1000
    #[arg(long, number("N"), help_heading = NODE)]
    pub oom_score_adj: Option<i32>,
    /// Tracked connections for each CPU; 0 leaves the limit alone
    #[arg(long, number("N"), help_heading = NODE)]
    pub conntrack_max_per_core: Option<i32>,
    /// Tracked connections at least
    #[arg(long, number("N"), help_heading = NODE)]
    pub conntrack_min: Option<i32>,
    /// Idle established TCP connections; 0 leaves it alone
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_tcp_timeout_established: Option<String>,
    /// TCP connections in CLOSE_WAIT; 0 leaves it alone
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_tcp_timeout_close_wait: Option<String>,
    /// Accept TCP packets outside the window
    #[arg(long, truth(), help_heading = NODE)]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// UDP flows without an answer; 0 leaves it alone
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_udp_timeout: Option<String>,
    /// UDP flows with an answer; 0 leaves it alone
    #[arg(long, duration(), help_heading = NODE)]
    pub conntrack_udp_timeout_stream: Option<String>,

    /// How much to log
    #[arg(short = 'v', long = "v", number("N"), help_heading = LOGGING)]
    pub v: Option<i32>,
    /// How much to log from each part
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

    /// Count connections, packets and bytes of every Service and endpoint
    #[arg(long, truth(), help_heading = OURS)]
    pub traffic_metrics: Option<bool>,
    /// Series of traffic metrics at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OURS)]
    pub traffic_metrics_max_series: Option<u32>,

    // Windows only: taken, so that one set of arguments serves every node, and reported as not applicable.
    #[arg(long, truth(), hide = true)]
    pub windows_service: Option<bool>,
    #[arg(long, hide = true)]
    pub source_vip: Option<String>,
    #[arg(long, hide = true)]
    pub network_name: Option<String>,
    #[arg(long, truth(), hide = true)]
    pub enable_dsr: Option<bool>,
    #[arg(long, hide = true)]
    pub root_hnsendpoint_name: Option<String>,
    #[arg(long, truth(), hide = true)]
    pub forward_healthcheck_vip: Option<bool>,
}

impl Flags {
    /// Reads a whole command line that has nothing but these flags, the program's name not included.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags, clap::Error> {
        let command = Command::new("kube-proxy").no_binary_name(true).disable_version_flag(true);
        let matches = Flags::augment_args(command).try_get_matches_from(normalise(args))?;
        Flags::from_arg_matches(&matches)
    }

    /// Names (without `--`) and values of the flags that were given, by name.
    pub fn given(&self) -> Vec<(String, Value)> {
        match serde_json::to_value(self) {
            Ok(Value::Object(all)) => all.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            // A struct of plain values always becomes an object.
            _ => Vec::new(),
        }
    }

    /// Every flag with the value it has, given or not, as text and by name.
    pub fn all(&self) -> Vec<(String, String)> {
        let given: BTreeMap<String, Value> = self.given().into_iter().collect();
        let defaults = config::flag_defaults();
        let value = |arg: &Arg| {
            let name = arg.get_long()?;
            let value = given.get(name).or_else(|| defaults.get(name));
            Some((name.to_owned(), value.map_or_else(|| empty(arg).to_owned(), as_flag)))
        };
        let command = Flags::augment_args(Command::new("kube-proxy"));
        let all: BTreeMap<String, String> = command.get_arguments().filter_map(value).collect();
        all.into_iter().collect()
    }
}

/// What a flag holds that nobody gave and that stands for no setting.
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

/// Stands for the value of a flag that is true or false.
const TRUTH: &str = "BOOL";

/// How Go's flag parser takes each kind of value; the `#[arg(…)]`s above are written in these.
trait GoStyle: Sized {
    /// `--flag` or `--flag=value`, never `--flag value`.
    fn optional(self, name: &'static str) -> Self;
    /// `--flag`, `--flag=true`, `--flag=false`
    fn truth(self) -> Self;
    /// May be negative.
    fn number(self, name: &'static str) -> Self;
    fn duration(self) -> Self;
    /// Commas, repetition, or both.
    fn list(self, name: &'static str) -> Self;
}

impl GoStyle for Arg {
    fn optional(self, name: &'static str) -> Arg {
        self.value_name(name).num_args(0..=1).require_equals(true).default_missing_value("true")
    }

    fn truth(self) -> Arg {
        self.optional(TRUTH).value_parser(boolean)
    }

    fn number(self, name: &'static str) -> Arg {
        self.value_name(name).allow_hyphen_values(true)
    }

    fn duration(self) -> Arg {
        self.number("DURATION").value_parser(go_duration)
    }

    fn list(self, name: &'static str) -> Arg {
        self.value_name(name).value_delimiter(',')
    }
}

/// The original takes `_` for `-` in flag names. Values stay as they are, and so does everything after a bare `--`.
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

/// What is wrong with a command line, in one line.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

/// What Go's flag parser takes for a truth value.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// The text of a duration, if it is one.
fn go_duration(text: &str) -> Result<String, String> {
    duration::parse(text).map(|_| text.to_owned())
}

/// `true`, `false`, `raw`, or `v1.37.0-ours`: the version to report as, which is taken and changes nothing here.
fn version(text: &str) -> Result<String, String> {
    match text {
        "raw" => Ok(text.to_owned()),
        _ if text.starts_with('v') => Ok(text.to_owned()),
        _ => boolean(text).map(|it| it.to_string()).map_err(|_| "must be true, false or raw".to_owned()),
    }
}

fn gate(text: &str) -> Result<(String, bool), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=true or NAME=false")?;
    Ok((name.trim().to_owned(), boolean(value.trim())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Flags {
        Flags::parse(args.iter().map(OsString::from)).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    fn refused(args: &[&str]) -> String {
        one_line(&Flags::parse(args.iter().map(OsString::from)).unwrap_err())
    }

    #[test]
    fn nothing_given_is_nothing_set() {
        assert_eq!(parse(&[]), Flags::default());
        assert_eq!(parse(&[]).given(), []);
    }

    #[test]
    fn truth_values() {
        for (arg, value) in [
            ("--cleanup", true),
            ("--cleanup=true", true),
            ("--cleanup=1", true),
            ("--cleanup=T", true),
            ("--cleanup=false", false),
            ("--cleanup=F", false),
        ] {
            assert_eq!(parse(&[arg]).cleanup, Some(value), "{arg}");
        }
        assert!(refused(&["--cleanup=maybe"]).contains("must be true or false"));
        // The value of a truth flag comes after `=` or not at all, so this is a stray argument.
        assert!(refused(&["--cleanup", "false"]).contains("'false'"));
    }

    #[test]
    fn values_after_a_space_or_an_equals_sign() {
        assert_eq!(parse(&["--cluster-cidr", "10.0.0.0/8"]).cluster_cidr.as_deref(), Some("10.0.0.0/8"));
        assert_eq!(parse(&["--cluster-cidr=10.0.0.0/8"]).cluster_cidr.as_deref(), Some("10.0.0.0/8"));
        assert_eq!(parse(&["--oom-score-adj", "-5"]).oom_score_adj, Some(-5));
        assert_eq!(parse(&["--healthz-bind-address="]).healthz_bind_address.as_deref(), Some(""));
        for args in [&["-v", "4"][..], &["-v=4"], &["-v4"], &["--v=4"], &["--v", "4"]] {
            assert_eq!(parse(args).v, Some(4), "{args:?}");
        }
    }

    #[test]
    fn underscores_in_names_but_not_in_values() {
        let flags = parse(&["--hostname_override=a_b", "--cluster_cidr", "x_y", "--init_only"]);
        assert_eq!(flags.hostname_override.as_deref(), Some("a_b"));
        assert_eq!(flags.cluster_cidr.as_deref(), Some("x_y"));
        assert_eq!(flags.init_only, Some(true));
    }

    #[test]
    fn the_last_of_several_counts_and_lists_grow() {
        let flags = parse(&["--proxy-mode=ipvs", "--proxy-mode=nftables", "--cleanup", "--cleanup=false"]);
        assert_eq!(flags.proxy_mode.as_deref(), Some("nftables"));
        assert_eq!(flags.cleanup, Some(false));
        let flags = parse(&["--nodeport-addresses=primary,10.0.0.0/8", "--nodeport-addresses", "localhost"]);
        assert_eq!(flags.nodeport_addresses.unwrap(), ["primary", "10.0.0.0/8", "localhost"]);
    }

    #[test]
    fn maps() {
        let flags = parse(&["--feature-gates=A=true,B=false", "--feature-gates", "C=1"]);
        let expected = [("A".to_owned(), true), ("B".to_owned(), false), ("C".to_owned(), true)];
        assert_eq!(flags.feature_gates.unwrap(), expected);
        assert!(refused(&["--feature-gates=A"]).contains("NAME=true"));
        assert_eq!(parse(&["--vmodule=a=1,b=2"]).vmodule.unwrap(), ["a=1", "b=2"]);
    }

    #[test]
    fn what_is_wrong_takes_one_line() {
        for (args, part) in [
            (&["--no-such-flag"][..], "--no-such-flag"),
            (&["stray"], "stray"),
            (&["--conntrack-min=many"], "--conntrack-min"),
            (&["--config-sync-period=soon"], "--config-sync-period"),
            (&["--config"], "--config"),
        ] {
            let line = refused(args);
            assert!(line.contains(part) && !line.contains('\n') && !line.starts_with("error"), "{line}");
        }
    }

    #[test]
    fn names_of_given_flags_are_the_names_on_the_command_line() {
        let command = Flags::augment_args(Command::new("test"));
        let mut on_command_line: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        let serde_json::Value::Object(all) = serde_json::to_value(Flags::default()).unwrap() else {
            panic!()
        };
        let mut told: Vec<_> = all.keys().map(String::as_str).collect();
        on_command_line.sort_unstable();
        told.sort_unstable();
        assert_eq!(on_command_line, told);
    }

    #[test]
    fn windows_flags_are_taken() {
        let flags = parse(&["--windows-service", "--source-vip=10.0.0.1", "--enable-dsr=true"]);
        assert_eq!(flags.given().len(), 3);
    }

    #[test]
    fn a_version_can_be_asked_for() {
        assert_eq!(parse(&["--version"]).version.as_deref(), Some("true"));
        assert_eq!(parse(&["--version=raw"]).version.as_deref(), Some("raw"));
        assert_eq!(parse(&["--version=0"]).version.as_deref(), Some("false"));
        assert_eq!(parse(&["--version=v1.37.0-ours"]).version.as_deref(), Some("v1.37.0-ours"));
        assert!(refused(&["--version=new"]).contains("must be true, false or raw"));
    }

    #[test]
    fn flags_of_our_own() {
        let flags = parse(&["--traffic_metrics", "--traffic-metrics-max-series=7"]);
        assert_eq!((flags.traffic_metrics, flags.traffic_metrics_max_series), (Some(true), Some(7)));
        assert!(refused(&["--traffic-metrics-max-series=0"]).contains("--traffic-metrics-max-series"));
    }

    #[test]
    fn every_flag_has_a_value() {
        let flags = parse(&[
            "--proxy-mode=ipvs",
            "--feature-gates=A=true,B=false",
            "--nodeport-addresses=primary,10.0.0.0/8",
            "-v2",
        ]);
        let all: BTreeMap<String, String> = flags.all().into_iter().collect();
        for (name, value) in [
            ("proxy-mode", "ipvs"),
            ("feature-gates", "A=true,B=false"),
            ("nodeport-addresses", "primary,10.0.0.0/8"),
            ("v", "2"),
            ("bind-address", "0.0.0.0"),
            ("cleanup", "false"),
            ("config", ""),
            ("config-sync-period", "15m0s"),
            ("conntrack-max-per-core", "32768"),
            ("healthz-bind-address", "0.0.0.0:10256"),
            ("healthz-port", "10256"),
            ("ipvs-min-sync-period", "1s"),
            ("iptables-localhost-nodeports", "true"),
            ("log-text-info-buffer-size", "0"),
            ("masquerade-all", "false"),
            ("metrics-port", "10249"),
            ("traffic-metrics-max-series", "20000"),
            ("version", "false"),
        ] {
            assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(all.len(), serde_json::to_value(Flags::default()).unwrap().as_object().unwrap().len());
    }
}
