//! `/flagz`: every flag with its value, given or not. What a flag means is `config/`'s work; what is in force is told by
//! `/configz`.

use serde_json::Value;

use crate::flags::Flags;

/// What flags are when they are not given, if that is more than nothing.
const DEFAULTS: [(&str, &str); 35] = [
    ("bind-address", "0.0.0.0"),
    ("bind-address-hard-fail", "false"),
    ("cleanup", "false"),
    ("config-sync-period", "15m0s"),
    ("conntrack-max-per-core", "32768"),
    ("conntrack-min", "131072"),
    ("conntrack-tcp-be-liberal", "false"),
    ("conntrack-tcp-timeout-close-wait", "1h0m0s"),
    ("conntrack-tcp-timeout-established", "24h0m0s"),
    ("conntrack-udp-timeout", "0s"),
    ("conntrack-udp-timeout-stream", "0s"),
    ("healthz-bind-address", "0.0.0.0:10256"),
    ("healthz-port", "10256"),
    ("init-only", "false"),
    ("iptables-localhost-nodeports", "true"),
    ("iptables-masquerade-bit", "14"),
    ("iptables-min-sync-period", "1s"),
    ("iptables-sync-period", "30s"),
    ("ipvs-min-sync-period", "1s"),
    ("ipvs-strict-arp", "false"),
    ("ipvs-sync-period", "30s"),
    ("ipvs-tcp-timeout", "0s"),
    ("ipvs-tcpfin-timeout", "0s"),
    ("ipvs-udp-timeout", "0s"),
    ("kube-api-burst", "10"),
    ("kube-api-content-type", "application/vnd.kubernetes.protobuf"),
    ("kube-api-qps", "5"),
    ("log-flush-frequency", "5s"),
    ("logging-format", "text"),
    ("masquerade-all", "false"),
    ("metrics-bind-address", "127.0.0.1:10249"),
    ("metrics-port", "10249"),
    ("oom-score-adj", "-999"),
    ("profiling", "false"),
    ("v", "0"),
];

/// Names (without `--`) and values, by name.
pub fn all(flags: &Flags) -> Vec<(String, String)> {
    let with_value = |(name, value): (String, Value)| {
        let value = if value.is_null() { default(&name).to_owned() } else { spell(&value) };
        (name, value)
    };
    match serde_json::to_value(flags) {
        Ok(Value::Object(all)) => all.into_iter().map(with_value).collect(),
        // A struct of plain values always becomes an object.
        _ => Vec::new(),
    }
}

fn default(name: &str) -> &'static str {
    DEFAULTS.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
}

/// As it is written on a command line.
fn spell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(spell_item).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// A feature gate is a pair.
fn spell_item(item: &Value) -> String {
    match item {
        Value::Array(pair) => pair.iter().map(spell).collect::<Vec<_>>().join("="),
        other => spell(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    fn told(args: &[&str]) -> BTreeMap<String, String> {
        all(&Flags::parse(args.iter().map(OsString::from)).unwrap()).into_iter().collect()
    }

    #[test]
    fn flags_that_were_not_given_have_their_defaults() {
        let told = told(&[]);
        assert_eq!((told["conntrack-min"].as_str(), told["v"].as_str()), ("131072", "0"));
        assert_eq!(told["config"], "");
        for (name, _) in DEFAULTS {
            assert!(told.contains_key(name), "there is no flag {name}");
        }
    }

    #[test]
    fn given_values_are_spelled_as_they_were_given() {
        let args =
            ["--conntrack-min=7", "--cleanup", "--feature-gates=A=true,B=false", "--proxy-mode=nftables"];
        let told = told(&[&args[..], &["--nodeport-addresses=primary,10.0.0.0/8"]].concat());
        for (name, value) in [
            ("conntrack-min", "7"),
            ("cleanup", "true"),
            ("feature-gates", "A=true,B=false"),
            ("proxy-mode", "nftables"),
            ("nodeport-addresses", "primary,10.0.0.0/8"),
        ] {
            assert_eq!(told[name], value, "{name}");
        }
    }
}
