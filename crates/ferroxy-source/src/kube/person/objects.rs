//! The objects that a person's command reads: pods, names of nodes, and one Secret.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{AskError, LARGEST_LIST, Person, judged};

/// Objects in one part of a list, and the most parts.
const PART: usize = 500;
const MOST_PARTS: usize = 200;

const LARGEST_SECRET: usize = 4 << 20;

/// The fields of a pod that are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    pub name: String,
    /// Empty while it is not scheduled.
    pub node: String,
    pub addresses: Vec<IpAddr>,
    /// It uses the addresses of its node.
    pub host_network: bool,
    /// `Running`, `Pending` and so on.
    pub phase: String,
    /// The container port with the name `page`.
    pub page_port: Option<u16>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

/// An object of which only the name is read.
#[derive(Deserialize)]
struct Named {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
    host_network: bool,
    containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    ports: Vec<Port>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: String,
    container_port: u16,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    ip: String,
    #[serde(rename = "podIPs")]
    ips: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    ip: String,
}

#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    data: BTreeMap<String, ByteString>,
}

impl Person {
    /// All pods of a namespace with these labels, sorted by node.
    pub fn pods(&self, namespace: &str, selector: &str) -> Result<Vec<AgentPod>, AskError> {
        let selector = escaped(selector);
        let path = format!("/api/v1/namespaces/{namespace}/pods?limit={PART}&labelSelector={selector}");
        let pods: Vec<Pod> = self.list(&path, "list pods", namespace)?;
        let mut pods: Vec<AgentPod> = pods.into_iter().map(AgentPod::from).collect();
        pods.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
        Ok(pods)
    }

    /// The names of all nodes of the cluster.
    pub fn nodes(&self) -> Result<Vec<String>, AskError> {
        let nodes: Vec<Named> = self.list(&format!("/api/v1/nodes?limit={PART}"), "list nodes", "")?;
        let mut names: Vec<String> = nodes.into_iter().map(|node| node.metadata.name).collect();
        names.sort();
        Ok(names)
    }

    /// All parts of a list.
    fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        permission: &'static str,
        namespace: &str,
    ) -> Result<Vec<T>, AskError> {
        let (mut all, mut next) = (Vec::new(), String::new());
        for _ in 0..MOST_PARTS {
            let mut list = self.object(&format!("{path}{next}"), LARGEST_LIST, permission, namespace)?;
            let more = list["metadata"]["continue"].as_str().map(escaped).unwrap_or_default();
            all.extend(read::<Vec<T>>(list["items"].take())?);
            if more.is_empty() {
                break;
            }
            next = format!("&continue={more}");
        }
        Ok(all)
    }

    pub fn pod(&self, namespace: &str, name: &str) -> Result<AgentPod, AskError> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let pod: Pod = read(self.object(&path, LARGEST_LIST, "get pods", namespace)?)?;
        Ok(pod.into())
    }

    /// One value of a Secret, as text.
    pub fn secret(&self, namespace: &str, name: &str, key: &str) -> Result<String, AskError> {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let mut secret: Secret = read(self.object(&path, LARGEST_SECRET, "get secrets", namespace)?)?;
        let missing = || AskError::Other(format!("the Secret {namespace}/{name} has no key {key}"));
        let value = secret.data.remove(key).ok_or_else(missing)?;
        let no_text = |_| AskError::Other(format!("{key} of the Secret {namespace}/{name} is not text"));
        String::from_utf8(value.0).map_err(no_text)
    }

    fn object(
        &self,
        path: &str,
        largest: usize,
        permission: &'static str,
        namespace: &str,
    ) -> Result<Value, AskError> {
        let (code, value) = self.runtime.block_on(self.get(path, None, largest))?;
        judged(code, value, permission, namespace)
    }
}

impl From<Pod> for AgentPod {
    fn from(pod: Pod) -> AgentPod {
        let ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
        let page_port = ports.filter(|port| port.name == "page").map(|port| port.container_port).next();
        let listed = pod.status.ips.into_iter().map(|it| it.ip);
        let mut addresses: Vec<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(pod.status.ip.parse::<IpAddr>().ok());
        }
        AgentPod {
            name: pod.metadata.name,
            node: pod.spec.node_name,
            addresses,
            host_network: pod.spec.host_network,
            phase: pod.status.phase,
            page_port,
        }
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, AskError> {
    let foreign = |error| AskError::Other(format!("the API server's answer is not understood: {error}"));
    serde_json::from_value(value).map_err(foreign)
}

/// Percent-encodes a value of a query.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_read_as_far_as_they_go() {
        let pod = |value| AgentPod::from(read::<Pod>(value).unwrap());
        let whole = pod(json!({
            "metadata": { "name": "a" },
            "spec": { "nodeName": "ka", "hostNetwork": true, "containers": [
                { "ports": [{ "name": "healthz", "containerPort": 1 }, { "name": "page", "containerPort": 2 }] }] },
            "status": { "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] },
        }));
        assert_eq!((whole.node.as_str(), whole.page_port, whole.addresses.len()), ("ka", Some(2), 2));
        let pending = pod(json!({ "metadata": { "name": "b" }, "status": { "phase": "Pending" } }));
        assert_eq!((pending.node.as_str(), pending.addresses.len(), pending.page_port), ("", 0, None));
    }

    #[test]
    fn a_secret_is_decoded() {
        let secret: Secret = read(json!({ "data": { "token": "c2VjcmV0" } })).unwrap();
        assert_eq!(secret.data["token"].0, b"secret");
    }
}
