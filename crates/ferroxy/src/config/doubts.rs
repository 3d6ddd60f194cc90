//! Warnings: settings that are ignored, and settings that are probably a mistake. Errors are in `validate.rs`.

use ferroxy_core::policy::NodePortAddress;
use ferroxy_dataplane::{Mode, Platform};
use ipnet::IpNet;
use serde_json::Value;

use super::defaults::Origin;
use super::file::File;
use super::{Config, fields, overlay};
use crate::flags::Flags;
use crate::modes::Modes;

/// All warnings about a configuration that is valid. `written` is the file (or the flags) before the defaults.
pub(super) fn warnings(flags: &Flags, written: &File, origin: Origin, config: &Config) -> Vec<String> {
    let mut warnings: Vec<String> = ignored(flags, written, origin, config).into_iter().collect();
    if origin == Origin::Flags {
        warnings.extend(deprecated(flags));
    }
    if let Some(version) = flags.version.as_deref().filter(|it| it.starts_with('v')) {
        warnings.push(format!("--version={version} has no effect: the real version is reported"));
    }
    warnings.extend(config.feature_gates.doubts());
    warnings.extend(config.mode.and_then(|mode| open_node_ports(config, mode)));
    warnings.extend(one_sided_node_ports(config));
    warnings
}

/// A warning about the mode: the configured one, or the one chosen for an unset mode.
pub(super) fn open_node_ports(config: &Config, mode: &Mode) -> Option<String> {
    let unset = config.node_port_addresses.is_empty();
    let all = || config.policy(mode, String::new()).node_port_addresses == [NodePortAddress::All];
    (unset && all()).then(|| {
        "nodePortAddresses is not set: node ports accept connections on all addresses of this node; \
         set it to `primary` to limit them"
            .to_owned()
    })
}

/// Whether this flag is ignored when `--config` is given.
pub(super) fn is_ignored_beside_a_file(flag: &str) -> bool {
    !BESIDE_A_FILE.contains(&flag) && !flag.starts_with("log-") && !is_unused(flag)
}

/// Whether nothing uses the flag on this platform.
fn is_unused(flag: &str) -> bool {
    flag == "windows-service" && Platform::HERE != Platform::Windows
}

/// The flags that are used together with `--config`, as in the original, and our own. So are all that begin with `log-`.
const BESIDE_A_FILE: [&str; 27] = [
    "accelerate-sockets",
    "config",
    "cleanup",
    "hostname-override",
    "init-only",
    "logging-format",
    "master",
    "namespace-max-frontends",
    "node-max-frontends",
    "otlp-endpoint",
    "page-address",
    "page-token-file",
    "service-max-endpoints",
    "service-max-entries",
    "service-max-frontends",
    "sockets-cgroup",
    "sockets-max-entries",
    "sockets-peer-names",
    "sockets-pins",
    "sockets-pods-cgroup",
    "traffic-metrics",
    "traffic-metrics-max-series",
    "v",
    "version",
    "vmodule",
    "windows-service",
    "write-config-to",
];

/// All flags and fields that are ignored, with the reasons, in one line.
fn ignored(flags: &Flags, written: &File, origin: Origin, config: &Config) -> Option<String> {
    let given: Vec<String> = flags.given().into_iter().map(|(name, _)| name).collect();
    let flags_that = |is_ignored: &dyn Fn(&str) -> bool| -> Vec<String> {
        given.iter().filter(|name| is_ignored(name)).map(|name| format!("--{name}")).collect()
    };
    let (mut beside_a_file, mut by_mode, mut not_here) = (Vec::new(), Vec::new(), Vec::new());
    match origin {
        Origin::File => {
            beside_a_file = flags_that(&|flag| is_ignored_beside_a_file(flag));
            let fields = fields_that_say_something(written, config.modes);
            by_mode.extend(fields.iter().filter(|field| !config.reads(field)).cloned());
            not_here.extend(fields.into_iter().filter(|field| has_no_effect(field)));
        }
        Origin::Flags => {
            by_mode = flags_that(&|flag| {
                let mut fields = overlay::fields_of(flag, config.modes).peekable();
                fields.peek().is_some() && fields.all(|field| !config.reads(field))
            });
        }
    }
    not_here.extend(flags_that(&|flag| is_unused(flag)));
    let reasons = [
        ("because --config is given", beside_a_file),
        ("in this mode", by_mode),
        ("in every mode", not_here),
    ];
    let reasons = reasons.into_iter().filter(|(_, names)| !names.is_empty());
    let reasons: Vec<_> = reasons.map(|(why, names)| format!("{why}: {}", names.join(" "))).collect();
    (!reasons.is_empty()).then(|| format!("ignored {}", reasons.join("; ")))
}

/// Fields that nothing reads on this platform.
pub(super) fn has_no_effect(field: &str) -> bool {
    field == "windowsRunAsService" && Platform::HERE != Platform::Windows
}

/// The fields of a file that have a value other than zero or empty, and another one than the default. kubeadm writes every field as
/// zero, and `--write-config-to` with its default.
fn fields_that_say_something(file: &File, modes: Modes) -> Vec<String> {
    let says_nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(list) => list.is_empty(),
        Value::Bool(true) | Value::Object(_) => false,
    };
    let is_default = |name: &str, value: &Value| {
        modes.field(name).is_some_and(|field| fields::to_json(field.kind.default()) == *value)
    };
    leaves(&file.to_json())
        .into_iter()
        .filter(|(name, value)| !says_nothing(value) && !is_default(name, value))
        .map(|(field, _)| field)
        .collect()
}

/// Every value that is not a mapping, with its path: `iptables.masqueradeBit`.
pub(super) fn leaves(value: &Value) -> Vec<(String, &Value)> {
    let Value::Object(fields) = value else { return vec![(String::new(), value)] };
    let below = |(name, value)| {
        leaves(value).into_iter().map(move |(path, leaf)| match path.as_str() {
            "" => (String::clone(name), leaf),
            path => (format!("{name}.{path}"), leaf),
        })
    };
    fields.iter().flat_map(below).collect()
}

fn deprecated(flags: &Flags) -> impl Iterator<Item = String> {
    let ports = [
        (flags.healthz_port, "--healthz-port is deprecated: use --healthz-bind-address"),
        (flags.metrics_port, "--metrics-port is deprecated: use --metrics-bind-address"),
    ];
    ports.into_iter().filter(|(port, _)| port.is_some()).map(|(_, warning)| warning.to_owned())
}

fn one_sided_node_ports(config: &Config) -> Option<String> {
    let family = |address: &NodePortAddress| match address {
        NodePortAddress::Cidr(IpNet::V4(_)) => Some("IPv4"),
        NodePortAddress::Cidr(IpNet::V6(_)) => Some("IPv6"),
        _ => None,
    };
    // Keywords apply to both families.
    let families: Vec<_> = config.node_port_addresses.iter().map(family).collect::<Option<_>>()?;
    let (first, rest) = families.split_first()?;
    let dual_stack = config.cluster_cidrs.len() == 2;
    (dual_stack && rest.iter().all(|other| other == first)).then(|| {
        format!(
            "nodePortAddresses has only {first} ranges in a dual-stack cluster: \
             node ports of the other family accept connections on all addresses"
        )
    })
}
