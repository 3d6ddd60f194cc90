//! `kubectl ferroxy trace POD SERVICE[:PORT]`: the path of a packet, from the agent on the node of that pod.

use std::net::IpAddr;

use anyhow::{Context, bail};
use clap::Args;
use ferroxy_core::foreign::printable;
use ferroxy_source::kube::AgentPod;
use serde_json::Value;

use super::reach::{Agents, Reach, Reason};
use super::{object_name, service_name};
use crate::client::encoded;
use crate::command::Answer;
use crate::command::status::words;
use crate::output::{Paint, Table};

/// A Service with thousands of endpoints, or a packet's way to them, is below this.
const LARGEST: usize = 8 << 20;

#[derive(Debug, Args)]
pub struct Trace {
    /// The pod that sends the packet: NAME, or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pod: String,
    /// Where to: NAME or NAMESPACE/NAME of a Service, with the number or the name of a port unless it has only one
    #[arg(value_name = "SERVICE[:PORT]")]
    to: String,
}

impl Trace {
    pub fn run(self, reach: &Reach) -> anyhow::Result<Answer> {
        let agents = reach.open()?;
        let (service, port) = match self.to.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (self.to.as_str(), None),
        };
        let service = service_name(service, &agents.namespace)?;
        let (namespace, name) = object_name(&self.pod, &agents.namespace)?;
        let pod = agents.person.pod(namespace, name)?;
        let agent = agent_of(&agents, &pod, name)?;
        let ask = |path: &str| {
            let said = agents.ask_these(std::slice::from_ref(agent), path, LARGEST).pop();
            let said = said.context("the agent was not asked")?;
            let failed = |reason: Reason| anyhow::anyhow!("node {}: {}", said.node, reason.words);
            said.answer.map_err(failed)
        };
        let explained = ask(&format!("services/{service}"))?;
        let (from, to) = packet(&pod, &explained, port)?;
        let mut traced = ask(&format!("trace?from={}&to={}", encoded(&from), encoded(&to)))?;
        traced["node"] = pod.node.clone().into();
        traced["pod"] = format!("{namespace}/{name}").into();
        traced["service"] = service.as_str().into();
        let reaches = traced["verdict"] == "endpoints";
        reach.output.print(|| text(&traced, Paint::stdout()), || traced.clone())?;
        Ok(if reaches { Answer::Yes } else { Answer::No })
    }
}

fn agent_of<'a>(agents: &'a Agents, pod: &AgentPod, name: &str) -> anyhow::Result<&'a AgentPod> {
    if pod.node.is_empty() {
        bail!("the pod {name} is not scheduled to a node yet");
    }
    let on_node = || agents.pods.iter().filter(|agent| agent.node == pod.node);
    let running = on_node().find(|agent| agent.phase == "Running").or_else(|| on_node().next());
    running.with_context(|| {
        format!("there is no agent on node {}, where the pod {name} is", printable(&pod.node))
    })
}

/// Source and destination, of the same family. A pod in the host's network sends as the node.
fn packet(pod: &AgentPod, service: &Value, port: Option<&str>) -> anyhow::Result<(String, String)> {
    let ports: Vec<&Value> = service["ports"].as_array().into_iter().flatten().collect();
    let is_meant = |it: &&&Value| {
        port.is_none_or(|port| {
            it["name"] == port || it["port"].as_u64().is_some_and(|it| it.to_string() == port)
        })
    };
    let meant: Vec<&Value> = ports.iter().filter(is_meant).copied().collect();
    let known = || {
        let names =
            ports.iter().map(|it| format!("{}/{}", it["port"].as_u64().unwrap_or(0), words(&it["protocol"])));
        let mut names: Vec<String> = names.collect();
        names.dedup();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let numbers = |list: &[&Value]| {
        let mut all: Vec<String> = list.iter().map(|it| it["port"].to_string()).collect();
        all.sort();
        all.dedup();
        all.len()
    };
    match (numbers(&meant), port) {
        (0, Some(port)) => bail!("the Service has no port {port} on that node (it has: {})", known()),
        (0, None) => bail!("the Service has no port on that node; `kubectl ferroxy explain` says why"),
        (2.., None) => bail!("which port? Write SERVICE:PORT (it has: {})", known()),
        _ => {}
    }
    let pair = meant.iter().find_map(|it| {
        let to = cluster_address(it)?;
        let is_v4 = to.parse::<std::net::SocketAddr>().ok()?.is_ipv4();
        let own = |address: &&IpAddr| address.is_ipv4() == is_v4;
        let from = match pod.host_network {
            true => "node".to_owned(),
            false => pod.addresses.iter().find(own)?.to_string(),
        };
        Some((from, format!("{to}/{}", it["protocol"].as_str()?)))
    });
    pair.context("the pod and the Service have no address of the same family")
}

/// The first address of a port: its cluster IP.
fn cluster_address(port: &Value) -> Option<&str> {
    let frontends = port["frontends"].as_array()?;
    frontends
        .iter()
        .filter_map(|it| it["address"].as_str())
        .find(|it| it.parse::<std::net::SocketAddr>().is_ok())
}

fn text(trace: &Value, paint: Paint) -> String {
    let mut text = format!(
        "{} {} -> {}/{}, from pod {} on node {}\n\n",
        paint.strong("packet "),
        words(&trace["source"]),
        words(&trace["destination"]),
        words(&trace["protocol"]),
        words(&trace["pod"]),
        words(&trace["node"]),
    );
    let list = |name: &str| trace[name].as_array().cloned().unwrap_or_default();
    let mut steps = Table::indented(2);
    for step in list("steps") {
        steps.row([
            paint.strong(&words(&step["chain"])),
            words(&step["effect"]),
            paint.faint(&words(&step["rule"])),
        ]);
    }
    text.push_str(&format!("{steps}\n{} ", paint.strong("verdict")));
    let endpoints = list("endpoints");
    text.push_str(&match trace["verdict"].as_str().unwrap_or_default() {
        "endpoints" if endpoints.len() == 1 => paint.good("one endpoint\n"),
        "endpoints" => paint.good(&format!("one of {} endpoints\n", endpoints.len())),
        "reject" => paint.bad("rejected: the client gets an error at once (connection refused)\n"),
        "drop" => paint.bad("dropped: the client waits until its own timeout\n"),
        _ => paint.doubtful("not translated: no Service is served at this address and port on this node\n"),
    });
    let mut rows = Table::indented(2);
    for endpoint in endpoints {
        let seen = if endpoint["masqueraded"] == true {
            "sees the node's address"
        } else {
            "sees the pod's address"
        };
        rows.row([words(&endpoint["endpoint"]), seen.to_owned()]);
    }
    text.push_str(&rows.to_string());
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(addresses: &[&str], host_network: bool) -> AgentPod {
        AgentPod {
            name: "client".into(),
            node: "ka".into(),
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            host_network,
            phase: "Running".into(),
            page_port: None,
        }
    }

    fn port(number: u16, name: &str, address: &str) -> Value {
        let frontends = json!([{ "address": "30080" }, { "address": address }]);
        json!({ "port": number, "name": name, "protocol": "tcp", "frontends": frontends })
    }

    #[test]
    fn source_and_destination_are_of_one_family() {
        let both = json!({ "ports": [port(80, "http", "[fd00::80]:80"), port(80, "http", "10.96.0.80:80")] });
        let v4 = packet(&pod(&["10.244.1.5"], false), &both, None).unwrap();
        assert_eq!(v4, ("10.244.1.5".to_owned(), "10.96.0.80:80/tcp".to_owned()));
        let dual = packet(&pod(&["10.244.1.5", "fd00::5"], false), &both, Some("http")).unwrap();
        assert_eq!(dual.1, "[fd00::80]:80/tcp");
        assert_eq!(packet(&pod(&["172.18.0.2"], true), &both, Some("80")).unwrap().0, "node");
        let v6 = json!({ "ports": [port(80, "", "[fd00::80]:80")] });
        let error = packet(&pod(&["10.244.1.5"], false), &v6, None).unwrap_err().to_string();
        assert!(error.contains("no address of the same family"), "{error}");
    }

    #[test]
    fn a_port_must_be_clear() {
        let two =
            json!({ "ports": [port(80, "http", "10.96.0.80:80"), port(443, "https", "10.96.0.80:443")] });
        let pod = pod(&["10.244.1.5"], false);
        assert_eq!(packet(&pod, &two, Some("https")).unwrap().1, "10.96.0.80:443/tcp");
        let error = |service: &Value, port| packet(&pod, service, port).unwrap_err().to_string();
        assert_eq!(error(&two, None), "which port? Write SERVICE:PORT (it has: 80/tcp, 443/tcp)");
        assert_eq!(
            error(&two, Some("81")),
            "the Service has no port 81 on that node (it has: 80/tcp, 443/tcp)"
        );
        assert!(error(&json!({ "ports": [] }), None).contains("no port on that node"));
    }
}
