//! Why a Service works or does not work, as JSON: kind `Service`.

use ferroxy_core::ServiceName;
use ferroxy_core::explain::{Explanation, Finding, PortExplanation, Standing};
use ferroxy_core::intent::{Frontend, FrontendKind};
use serde_json::{Value, json};

use super::document;
use crate::serve::probes::rfc3339;

/// How the mode handles the Service on this machine.
#[derive(Debug, Default)]
pub struct OnHost {
    /// How much of it is in force, in words.
    pub kernel: Option<String>,
    /// Details that only this mode has: the scheduler of virtual servers.
    pub traits: Vec<(&'static str, String)>,
    /// Why the verdicts of probes are not known, if they matter.
    pub verdicts: Option<String>,
}

/// How to go on with a Service that the kernel refused.
pub fn retried(service: &ServiceName) -> String {
    format!(
        "The agent retries it, and its previous rules stay in force. See the agent's log and \
         `ferroxy watch --service {service}`."
    )
}

pub fn frontend_address(frontend: &Frontend) -> String {
    match (frontend.kind, frontend.address) {
        (FrontendKind::NodePort, _) | (_, None) => frontend.port.to_string(),
        (_, Some(address)) => std::net::SocketAddr::new(address, frontend.port).to_string(),
    }
}

pub fn to_json(explanation: &Explanation, on_host: &OnHost) -> Value {
    let standing = match &explanation.standing {
        Standing::Ours => json!("handled"),
        Standing::NotOurs(why) => json!({ "not handled": why.words() }),
        Standing::Unknown { elsewhere, similar } => {
            let names = |list: &[ServiceName]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
            json!({ "unknown": { "elsewhere": names(elsewhere), "similar": names(similar) } })
        }
    };
    document(
        "Service",
        json!({
            "service": explanation.service.to_string(),
            "standing": standing,
            "programmed": on_host.kernel,
            "probe": explanation.probe.as_ref().map(ToString::to_string),
            "verdictsUnknown": on_host.verdicts,
            "traits": on_host.traits.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect::<Vec<_>>(),
            "ports": explanation.ports.iter().map(port_json).collect::<Vec<_>>(),
            "findings": findings(explanation),
            "diagnostics": explanation.diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
    )
}

/// Problems, then notes.
fn findings(explanation: &Explanation) -> Vec<Value> {
    let one = |severity: &'static str| move |it: &Finding| json!({ "severity": severity, "problem": it.problem, "fix": it.fix });
    let problems = explanation.findings.iter().map(one("problem"));
    problems.chain(explanation.notes.iter().map(one("note"))).collect()
}

/// Whether a finding of an answer is a note. Agents older than this field report only problems.
pub fn is_note(finding: &Value) -> bool {
    finding["severity"] == "note"
}

fn port_json(port: &PortExplanation) -> Value {
    let frontends: Vec<Value> = port
        .frontends
        .iter()
        .map(|it| {
            json!({
                "kind": it.frontend.kind.words(),
                "address": frontend_address(&it.frontend),
                "route": it.words,
            })
        })
        .collect();
    let endpoints: Vec<Value> = port
        .endpoints
        .iter()
        .map(|it| {
            json!({
                "address": it.address,
                "pod": it.target,
                "node": it.node,
                "zone": it.zone,
                "local": it.is_local,
                "slice": it.slice,
                "usedForCluster": it.used_for_cluster,
                "usedForLocal": it.used_for_local,
                "reason": it.reason,
                "down": it.down.map(|down| json!({ "since": rfc3339(down.since), "fault": down.fault.to_string() })),
            })
        })
        .collect();
    json!({
        "name": &*port.name,
        "family": port.family.to_string(),
        "protocol": port.protocol.lowercase(),
        "port": port.port,
        "targetPort": port.target_port,
        "affinitySeconds": port.affinity,
        "frontends": frontends,
        "endpoints": endpoints,
    })
}
