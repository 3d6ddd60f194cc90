//! Ferroxy's own settings that belong to no mode: their fields in a file, and what their values mean. The original ignores them, with a
//! warning; so a file has them only where they differ from the default.

use std::path::PathBuf;

use ferroxy_core::policy::Limits;
use ferroxy_dataplane::{Field, Flag, Kind, Settings, Value as Setting};
use serde_json::Value;

use crate::modes::ACCELERATED;
use crate::{log, wrapper};

pub(super) const TRAFFIC_METRICS: Field =
    field("trafficMetrics", "traffic-metrics", Kind::Truth { default: false });
pub(super) const MAX_SERIES: Field =
    field("trafficMetricsMaxSeries", "traffic-metrics-max-series", at_least_one(20_000));
const SERVICE_FRONTENDS: Field =
    field("serviceMaxFrontends", "service-max-frontends", at_least_one(Limits::DEFAULT.frontends));
const SERVICE_ENDPOINTS: Field = field(
    "serviceMaxEndpoints",
    "service-max-endpoints",
    Kind::Number { default: Limits::DEFAULT.endpoints as i64, least: 1, most: Limits::MOST_ENDPOINTS as i64 },
);
const SERVICE_ENTRIES: Field =
    field("serviceMaxEntries", "service-max-entries", at_least_one(Limits::DEFAULT.entries));
const NAMESPACE_FRONTENDS: Field = field(
    "namespaceMaxFrontends",
    "namespace-max-frontends",
    at_least_one(Limits::DEFAULT.namespace_frontends),
);
const NODE_FRONTENDS: Field =
    field("nodeMaxFrontends", "node-max-frontends", at_least_one(Limits::DEFAULT.node_frontends));
pub(super) const OTLP_ENDPOINT: Field = field("otlpEndpoint", "otlp-endpoint", TEXT);
const LOG_FILE: Field = field("logFile", "log-file", TEXT);
const LOG_FILE_SIZE: Field = field(
    "logFileMaxSize",
    "log-file-max-size",
    Kind::Number { default: log::USUAL_MEGABYTES as i64, least: 1, most: 1_000_000 },
);
/// The default is `all` where the name of the mode says so: see [`default`].
const ACCELERATE: Field = field(
    "accelerateSockets",
    "accelerate-sockets",
    Kind::Choice { default: wrapper::OFF, among: &wrapper::CLIENTS },
);
const PEER_NAMES: Field = field("socketsPeerNames", "sockets-peer-names", Kind::Truth { default: false });
const CGROUP: Field = field("socketsCgroup", "sockets-cgroup", TEXT);
const PODS_CGROUP: Field = field("socketsPodsCgroup", "sockets-pods-cgroup", TEXT);
const PINS: Field = field("socketsPins", "sockets-pins", Kind::Text { default: wrapper::PINS });
const SOCKETS_ENTRIES: Field =
    field("socketsMaxEntries", "sockets-max-entries", at_least_one(wrapper::MOST_ELEMENTS as usize));

/// All own fields, except those of the page, which are in `file.rs`.
pub(super) static FIELDS: [Field; 16] = [
    TRAFFIC_METRICS,
    MAX_SERIES,
    SERVICE_FRONTENDS,
    SERVICE_ENDPOINTS,
    SERVICE_ENTRIES,
    NAMESPACE_FRONTENDS,
    NODE_FRONTENDS,
    OTLP_ENDPOINT,
    LOG_FILE,
    LOG_FILE_SIZE,
    ACCELERATE,
    PEER_NAMES,
    CGROUP,
    PODS_CGROUP,
    PINS,
    SOCKETS_ENTRIES,
];

const TEXT: Kind = Kind::Text { default: "" };

const fn at_least_one(default: usize) -> Kind {
    Kind::Number { default: default as i64, least: 1, most: u32::MAX as i64 }
}

/// `flags/mod.rs` has the help of the flags.
const fn field(name: &'static str, flag: &'static str, kind: Kind) -> Field {
    let flag = Flag { name: flag, help: "", value_name: "" };
    Field { name, kind, flag: Some(flag), is_live: false, is_of_the_original: false }
}

/// The value of a field that is not set, in a mode by this name.
pub(super) fn default(field: &Field, mode: &str) -> Setting {
    if field.name == ACCELERATE.name && mode == ACCELERATED.0 {
        return Setting::Text(wrapper::ALL.to_owned());
    }
    field.kind.default()
}

/// `off` without quotes is a truth value in the YAML that the original reads. Here it is a word.
pub(super) fn read_off(file: &mut Value) {
    if let Some(value) = file.get_mut(ACCELERATE.name).filter(|value| **value == false) {
        *value = wrapper::OFF.into();
    }
}

pub(super) fn limits(values: &Settings) -> Limits {
    let number = |field: &Field| usize::try_from(values.number(field)).unwrap_or(usize::MAX);
    Limits {
        frontends: number(&SERVICE_FRONTENDS),
        endpoints: number(&SERVICE_ENDPOINTS),
        entries: number(&SERVICE_ENTRIES),
        namespace_frontends: number(&NAMESPACE_FRONTENDS),
        node_frontends: number(&NODE_FRONTENDS),
        ..Limits::DEFAULT
    }
}

pub(super) fn sockets(values: &Settings) -> wrapper::Options {
    let path = |field: &Field| Some(values.text(field)).filter(|path| !path.is_empty()).map(PathBuf::from);
    wrapper::Options {
        clients: wrapper::clients(&values.text(&ACCELERATE)),
        names_peers: values.truth(&PEER_NAMES),
        cgroup: path(&CGROUP),
        pods_cgroup: path(&PODS_CGROUP),
        pins: path(&PINS).unwrap_or(wrapper::PINS.into()),
        most_elements: values.number(&SOCKETS_ENTRIES) as u32,
    }
}

/// Where to log to, and how many megabytes; `None` for standard error.
pub(super) fn log_file(values: &Settings) -> Option<(PathBuf, u32)> {
    let path = Some(values.text(&LOG_FILE)).filter(|path| !path.is_empty())?;
    Some((path.into(), values.number(&LOG_FILE_SIZE) as u32))
}
