//! A directory of manifests for the conformance network, edited as the tests go on. Writes files; starts nothing.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use ferroxy_lab::{Protocol, conformance};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::agent::arguments;

/// The configuration of a case of the corpus, with a mode.
pub fn configured(case: &str, mode: &str) -> String {
    let config = fs::read_to_string(conformance::case(case).unwrap().folder.join("config.yaml"));
    format!("{}\nmode: {mode}\n", config.unwrap())
}

/// Nodes ka and kb and the ServiceCIDRs to begin with; the configuration is that of the corpus, in nftables mode unless
/// specified otherwise.
#[derive(Debug)]
pub struct Cluster {
    directory: TempDir,
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster::in_mode("nftables")
    }

    pub fn in_mode(mode: &str) -> Cluster {
        let cluster = Cluster { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(cluster.manifests()).unwrap();
        fs::write(cluster.config(), configured("clusterip-tcp", mode)).unwrap();
        cluster.write("cluster.yaml", &[service_cidr(), node("ka", 1), node("kb", 2)]);
        cluster
    }

    pub fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    pub fn config(&self) -> PathBuf {
        self.directory.path().join("config.yaml")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.manifests().join(name)
    }

    /// Replaces text in the configuration and writes it again. A running agent does not notice the change.
    pub fn configure(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        assert!(text.contains(from), "{from:?} in {text}");
        fs::write(self.config(), text.replace(from, to)).unwrap();
    }

    /// Node ports, and health-check node ports with them, on every address.
    pub fn answer_everywhere(&self) {
        self.configure("nodePortAddresses: []", "nodePortAddresses: [0.0.0.0/0]");
    }

    /// A command with this cluster: `diff`, `explain` and so on.
    pub fn command(&self, words: &[&str]) -> Vec<OsString> {
        let words = words.iter().map(OsString::from);
        words.chain(arguments(&self.manifests(), &self.config())).collect()
    }

    /// Writes a manifest file atomically: to a temporary file, which is then renamed.
    pub fn write(&self, name: &str, objects: &[Value]) {
        let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
        self.write_text(name, &documents.join("\n---\n"));
    }

    pub fn write_text(&self, name: &str, text: &str) {
        let beside = self.directory.path().join("being-written");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.file(name)).unwrap();
    }

    pub fn write_service(&self, service: &Service) {
        self.write(&format!("{}.yaml", service.name), &service.objects());
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).unwrap();
    }
}

/// The configuration of the corpus, in nftables mode.
pub fn configuration() -> String {
    configured("clusterip-tcp", "nftables")
}

pub fn service_cidr() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": ["10.96.0.0/16", "fd00:10:96::/112"] },
    })
}

pub fn node(name: &str, number: u8) -> Value {
    let addresses = [format!("172.18.0.{}", number + 1), format!("fd00:172:18::{}", number + 1)];
    let pod_cidrs = [format!("10.244.{number}.0/24"), format!("fd00:10:244:{number}::/64")];
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": { "podCIDR": pod_cidrs[0], "podCIDRs": pod_cidrs },
        "status": { "addresses": addresses.map(|ip| json!({ "type": "InternalIP", "address": ip })) },
    })
}

/// A load balancer's Service with a health-check node port, and one slice.
pub fn balanced(name: &str, number: u16, health_port: u16, endpoint_node: Option<&str>) -> Vec<Value> {
    let (high, low) = (number / 250 + 1, number % 250 + 1);
    let endpoint =
        |node| json!({ "addresses": ["10.244.1.5"], "conditions": { "ready": true }, "nodeName": node });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "type": "LoadBalancer", "clusterIP": format!("10.96.{high}.{low}"), "ipFamilies": ["IPv4"],
            "externalTrafficPolicy": "Local", "healthCheckNodePort": health_port,
            "ports": [{ "protocol": "TCP", "port": 80, "targetPort": 80 }],
        },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{name}-1"), "namespace": "default",
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": "IPv4", "endpoints": endpoint_node.map(endpoint).as_slice(),
        "ports": [{ "name": "", "protocol": "TCP", "port": 80 }],
    });
    vec![service, slice]
}

/// A Service with its EndpointSlices, in the families of its cluster IPs.
#[derive(Debug, Clone)]
pub struct Service {
    pub name: String,
    pub cluster_ips: Vec<String>,
    pub ports: Vec<Port>,
    /// Pods of the network (`a1`), or addresses that belong to no pod.
    pub endpoints: Vec<String>,
    pub affinity_seconds: Option<u32>,
    pub external_local: bool,
    /// The annotation `ferroxy.io/scheduler`.
    pub scheduler: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Port {
    pub protocol: Protocol,
    pub port: u16,
    pub target: u16,
    pub node_port: Option<u16>,
}

impl Service {
    pub fn new(name: &str, cluster_ips: &[&str]) -> Service {
        Service {
            name: name.to_owned(),
            cluster_ips: cluster_ips.iter().map(ToString::to_string).collect(),
            ports: Vec::new(),
            endpoints: Vec::new(),
            affinity_seconds: None,
            external_local: false,
            scheduler: None,
        }
    }

    pub fn port(mut self, protocol: Protocol, port: u16, target: u16) -> Service {
        self.ports.push(Port { protocol, port, target, node_port: None });
        self
    }

    pub fn node_port(mut self, protocol: Protocol, port: u16, target: u16, node_port: u16) -> Service {
        self.ports.push(Port { protocol, port, target, node_port: Some(node_port) });
        self
    }

    pub fn endpoints(mut self, endpoints: &[&str]) -> Service {
        self.endpoints = endpoints.iter().map(ToString::to_string).collect();
        self
    }

    pub fn affinity(mut self, seconds: u32) -> Service {
        self.affinity_seconds = Some(seconds);
        self
    }

    pub fn external_local(mut self) -> Service {
        self.external_local = true;
        self
    }

    pub fn scheduler(mut self, name: &str) -> Service {
        self.scheduler = Some(name.to_owned());
        self
    }

    /// The Service, and a slice for each family.
    pub fn objects(&self) -> Vec<Value> {
        let families: Vec<&str> = self.cluster_ips.iter().map(|ip| family(ip)).collect();
        let mut objects = vec![self.service(&families)];
        objects.extend(families.iter().map(|family| self.slice(family)));
        objects
    }

    fn service(&self, families: &[&str]) -> Value {
        let has_node_ports = self.ports.iter().any(|port| port.node_port.is_some());
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|it| {
                json!({
                    "name": it.name(), "protocol": it.protocol_word(), "port": it.port,
                    "targetPort": it.target, "nodePort": it.node_port,
                })
            })
            .collect();
        let mut spec = json!({
            "type": if has_node_ports { "NodePort" } else { "ClusterIP" },
            "clusterIP": self.cluster_ips[0], "clusterIPs": self.cluster_ips,
            "ipFamilies": families, "ports": ports,
            "ipFamilyPolicy": if families.len() > 1 { "RequireDualStack" } else { "SingleStack" },
        });
        if self.external_local {
            spec["externalTrafficPolicy"] = json!("Local");
        }
        if let Some(seconds) = self.affinity_seconds {
            spec["sessionAffinity"] = json!("ClientIP");
            spec["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": seconds } });
        }
        let mut metadata = json!({ "name": self.name, "namespace": "default" });
        if let Some(name) = &self.scheduler {
            metadata["annotations"] = json!({ "ferroxy.io/scheduler": name });
        }
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })
    }

    fn slice(&self, of_family: &str) -> Value {
        let addresses = self.endpoints.iter().filter_map(|it| address(it, of_family));
        let endpoints: Vec<Value> = addresses
            .map(|(address, node)| {
                json!({ "addresses": [address], "conditions": { "ready": true }, "nodeName": node })
            })
            .collect();
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|it| json!({ "name": it.name(), "protocol": it.protocol_word(), "port": it.target }))
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", self.name, of_family.to_lowercase()), "namespace": "default",
                "labels": { "kubernetes.io/service-name": self.name },
            },
            "addressType": of_family, "endpoints": endpoints, "ports": ports,
        })
    }
}

impl Port {
    fn name(&self) -> String {
        format!("{}-{}", self.protocol, self.port)
    }

    fn protocol_word(&self) -> &'static str {
        match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        }
    }
}

fn family(address: &str) -> &'static str {
    if address.contains(':') { "IPv6" } else { "IPv4" }
}

/// An endpoint's address in a family, and its node.
fn address(endpoint: &str, of_family: &str) -> Option<(String, &'static str)> {
    let (number, host, node) = match endpoint {
        "a1" => (1, 5, "ka"),
        "a2" => (1, 6, "ka"),
        "b1" => (2, 5, "kb"),
        "b2" => (2, 6, "kb"),
        other => return (family(other) == of_family).then(|| (other.to_owned(), "kb")),
    };
    Some(match of_family {
        "IPv4" => (format!("10.244.{number}.{host}"), node),
        _ => (format!("fd00:10:244:{number}::{host}"), node),
    })
}
