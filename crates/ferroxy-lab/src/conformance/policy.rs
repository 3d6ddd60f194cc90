//! The part of a case's `config.yaml` that decides what happens to packets. (Reading all of a configuration is the binary's part:
//! its tests play the corpus with what it read.)

use std::fs;

use ferroxy_core::policy::{DetectLocal, NodePortAddress, Policy};
use serde_json::Value;

use super::{Case, Mode};
use crate::error::{LabError, Result};

pub(super) fn read(case: &Case, mode: Mode) -> Result<Policy> {
    let path = case.folder.join("config.yaml");
    let text = fs::read_to_string(&path).map_err(|e| LabError::file(&path, e))?;
    let wrong = |why: String| LabError::Case { case: case.name.clone(), why };
    let config: Value = serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let detect_local = match text(&config["detectLocalMode"]).as_str() {
        "ClusterCIDR" => {
            let cidrs = text(&config["clusterCIDR"]);
            let parsed: std::result::Result<_, _> = cidrs.split(',').map(str::parse).collect();
            DetectLocal::ClusterCidr(parsed.map_err(|error| wrong(format!("{cidrs}: {error}")))?)
        }
        "BridgeInterface" => DetectLocal::BridgeInterface(text(&config["detectLocal"]["bridgeInterface"])),
        other => return Err(wrong(format!("detectLocalMode {other}"))),
    };
    // ipvs and userspace mode take the setting of iptables mode.
    let section = if mode == Mode::Nftables { "nftables" } else { "iptables" };
    Ok(Policy {
        node_name: "ka".into(),
        detect_local,
        node_port_addresses: node_port_addresses(&config["nodePortAddresses"], mode).map_err(wrong)?,
        node_ports_on_loopback: matches!(mode, Mode::Iptables | Mode::Userspace),
        masquerade_all: config[section]["masqueradeAll"] == true,
        ..Policy::default()
    })
}

fn node_port_addresses(listed: &Value, mode: Mode) -> std::result::Result<Vec<NodePortAddress>, String> {
    let ranges = listed.as_array().into_iter().flatten().filter_map(Value::as_str);
    let parsed: std::result::Result<Vec<_>, _> =
        ranges.map(|range| range.parse().map(NodePortAddress::Cidr).map_err(|_| range.to_owned())).collect();
    match parsed?.as_slice() {
        [] if mode == Mode::Nftables => Ok(vec![NodePortAddress::Primary]),
        [] => Ok(vec![NodePortAddress::All]),
        listed => Ok(listed.to_vec()),
    }
}
