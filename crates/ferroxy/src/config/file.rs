//! The configuration file as it is written: `kubeproxy.config.k8s.io/v1alpha1`, field by field, not yet validated.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::defaults;
use super::fields::{self, Written};
use super::own;
use crate::modes::Modes;

pub(super) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
pub(super) const KIND: &str = "KubeProxyConfiguration";

/// `None` is "unset". Durations and addresses are still text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct File {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) bind_address: Option<String>,
    pub(super) bind_address_hard_fail: Option<bool>,
    pub(super) client_connection: ClientConnection,
    #[serde(rename = "clusterCIDR")]
    pub(super) cluster_cidr: Option<String>,
    pub(super) config_sync_period: Option<String>,
    pub(super) conntrack: Conntrack,
    pub(super) detect_local: DetectLocal,
    pub(super) detect_local_mode: Option<String>,
    pub(super) enable_profiling: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) feature_gates: Option<BTreeMap<String, bool>>,
    pub(super) healthz_bind_address: Option<String>,
    pub(super) hostname_override: Option<String>,
    pub(super) logging: Logging,
    pub(super) metrics_bind_address: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) node_port_addresses: Option<Vec<String>>,
    pub(super) oom_score_adj: Option<i64>,
    /// Not in the original, like the fields of `own.rs`: these are written only if they are set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_token_file: Option<String>,
    pub(super) show_hidden_metrics_for_version: Option<String>,
    pub(super) windows_run_as_service: Option<bool>,
    /// The fields that tables describe: those of modes, in blocks of their own, and ours.
    #[serde(skip)]
    pub(super) modes: Written,
}

impl File {
    pub(super) fn from_json(mut value: Value, modes: Modes) -> Result<File, serde_json::Error> {
        let written = fields::take(modes, &mut value);
        Ok(File { modes: written, ..serde_json::from_value(value)? })
    }

    pub(super) fn to_json(&self) -> Value {
        // A struct of plain values always becomes JSON.
        let mut value = serde_json::to_value(self).unwrap_or_default();
        fields::put(&self.modes, &mut value);
        value
    }

    /// As YAML: the version and the kind first, everything else by name.
    pub(super) fn to_yaml(&self) -> Result<String, String> {
        serde_saphyr::to_string(&Document(&self.to_json())).map_err(|error| error.to_string())
    }
}

struct Document<'a>(&'a Value);

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let head = ["apiVersion", "kind"];
        let fields = self.0.as_object().into_iter().flatten();
        let (first, rest): (Vec<_>, Vec<_>) = fields.partition(|(name, _)| head.contains(&name.as_str()));
        to.collect_map(first.into_iter().chain(rest))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClientConnection {
    pub(super) accept_content_types: Option<String>,
    pub(super) burst: Option<i64>,
    pub(super) content_type: Option<String>,
    pub(super) kubeconfig: Option<String>,
    pub(super) qps: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Conntrack {
    pub(super) max_per_core: Option<i64>,
    pub(super) min: Option<i64>,
    pub(super) tcp_be_liberal: Option<bool>,
    pub(super) tcp_close_wait_timeout: Option<String>,
    pub(super) tcp_established_timeout: Option<String>,
    pub(super) udp_stream_timeout: Option<String>,
    pub(super) udp_timeout: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DetectLocal {
    pub(super) bridge_interface: Option<String>,
    pub(super) interface_name_prefix: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Logging {
    #[serde(deserialize_with = "number_or_text")]
    pub(super) flush_frequency: Option<String>,
    pub(super) format: Option<String>,
    pub(super) options: LoggingOptions,
    pub(super) verbosity: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vmodule: Option<Vec<VModule>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LoggingOptions {
    pub(super) json: LogStream,
    pub(super) text: LogStream,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LogStream {
    #[serde(deserialize_with = "number_or_text")]
    pub(super) info_buffer_size: Option<String>,
    pub(super) split_stream: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VModule {
    pub(super) file_pattern: String,
    pub(super) verbosity: i64,
}

/// `flushFrequency` is `5s` or nanoseconds, a buffer size `"1Mi"` or bytes. kubeadm writes numbers.
fn number_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    })
}

/// The fields that [`number_or_text`] reads.
const NUMBER_OR_TEXT: [&str; 3] =
    ["logging.flushFrequency", "logging.options.json.infoBufferSize", "logging.options.text.infoBufferSize"];

/// Reads a file. Unknown fields and duplicate fields are one warning; everything else that is wrong is an error, and all
/// errors are returned.
pub(super) fn decode(text: &str, modes: Modes) -> Result<(File, Vec<String>), Vec<String>> {
    let mut found = Found::default();
    let mut given = parse(text, &mut found.overlooked).map_err(|error| vec![format!("--config: {error}")])?;
    remove_nulls(&mut given);
    own::read_off(&mut given);
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match given.get(field).and_then(Value::as_str) {
            Some(value) if value == expected => {}
            Some(value) => found.wrong.push(format!("{field}: is {value:?}, must be {expected:?}")),
            None => found.wrong.push(format!("{field}: is missing, must be {expected:?}")),
        }
    }
    found.compare(&given, &defaults::shape(modes).to_json(), "");
    if !found.wrong.is_empty() {
        return Err(found.wrong);
    }
    let file = File::from_json(given, modes).map_err(|error| vec![error.to_string()])?;
    let overlooked = found.overlooked.join("; ");
    let warning = format!("--config: parts of the file are ignored: {overlooked}");
    Ok((file, if overlooked.is_empty() { Vec::new() } else { vec![warning] }))
}

/// The first document, as in the original; there should be one only.
fn parse(text: &str, overlooked: &mut Vec<String>) -> Result<Value, String> {
    let read = |duplicate_keys| {
        let options = serde_saphyr::options! { with_snippet: false, duplicate_keys: duplicate_keys };
        serde_saphyr::from_multiple_with_options::<Value>(text, options)
    };
    let documents = match read(DuplicateKeyPolicy::Error) {
        Err(serde_saphyr::Error::DuplicateMappingKey { key, location }) => {
            let key = key.unwrap_or_else(|| "a key".to_owned());
            overlooked
                .push(format!("duplicate field {key}, the last value is used (line {})", location.line()));
            read(DuplicateKeyPolicy::LastWins)
        }
        read => read,
    };
    let documents = documents.map_err(|error| error.to_string())?;
    if documents.len() > 1 {
        overlooked.push(format!("{} documents, only the first is used", documents.len()));
    }
    Ok(documents.into_iter().next().unwrap_or_default())
}

/// A field that is `null` is unset, at every level.
fn remove_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(remove_nulls);
    }
}

#[derive(Default)]
struct Found {
    /// Warnings: the original accepts such a file too.
    overlooked: Vec<String>,
    wrong: Vec<String>,
}

impl Found {
    /// Compares the file with a complete one: names that the complete file does not have are unknown, and types must be the same.
    fn compare(&mut self, given: &Value, shape: &Value, path: &str) {
        let expected = match (given, shape) {
            (Value::Object(given), Value::Object(shape)) => return self.compare_fields(given, shape, path),
            (Value::Array(given), Value::Array(shape)) => {
                return self.compare_entries(given, shape.first(), path);
            }
            (Value::String(_), Value::String(_)) | (Value::Bool(_), Value::Bool(_)) => return,
            (Value::Number(given), Value::Number(shape)) if given.is_i64() || shape.is_f64() => return,
            (Value::Number(_), Value::String(_)) if NUMBER_OR_TEXT.contains(&path) => return,
            (_, Value::Object(_)) => "a mapping",
            (_, Value::Array(_)) => "a list",
            (_, Value::String(_)) => "text",
            (_, Value::Bool(_)) => "true or false",
            (_, Value::Number(shape)) if shape.is_f64() => "a number",
            (_, Value::Number(_)) => "a whole number",
            (_, Value::Null) => return,
        };
        let name = if path.is_empty() { "the file" } else { path };
        self.wrong.push(format!("{name}: is {given}, must be {expected}"));
    }

    fn compare_fields(&mut self, given: &Fields, shape: &Fields, path: &str) {
        for (name, value) in given {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            // The example of a mapping with arbitrary names has one entry, with an empty name.
            match shape.get(name).or_else(|| shape.get("")) {
                Some(shape) => self.compare(value, shape, &path),
                None => self.overlooked.push(format!("unknown field {path}")),
            }
        }
    }

    fn compare_entries(&mut self, given: &[Value], shape: Option<&Value>, path: &str) {
        for (i, value) in given.iter().enumerate() {
            self.compare(value, shape.unwrap_or(&Value::Null), &format!("{path}[{i}]"));
        }
    }
}

type Fields = serde_json::Map<String, Value>;

#[cfg(test)]
mod tests;
