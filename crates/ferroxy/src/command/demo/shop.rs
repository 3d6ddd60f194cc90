//! The manifests of the demo: `shop.yaml`, and the nodes and endpoints, which come from the same list of pods as the
//! network.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use super::network::{NODES, PODS, Pod};

const SERVICES: &str = include_str!("shop.yaml");

/// A separate file, because the demo changes it.
const API_ENDPOINTS: &str = "api-endpoints.json";

/// Writes the whole shop into a folder, which is made if it is not there.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    replace(folder, "services.yaml", SERVICES)?;
    replace(folder, "nodes.json", &list(NODES.iter().map(node_object).collect()))?;
    let http = |port| Port { name: "http", protocol: "TCP", number: port };
    let dns = [Port { name: "dns", protocol: "UDP", number: 53 }];
    let endpoints = vec![
        slice_v4("front", &["web-1", "web-2"], &[http(8080)]),
        slice_v4("cart", &["cart-1", "cart-2"], &[http(8080)]),
        slice_v4("dns", &["dns-1"], &dns),
        slice_v6("dns", &["dns-1"], &dns),
        slice_v4("partner", &["api-1", "api-2"], &[http(8080)]),
        slice_v4("admin", &["api-1"], &[http(80)]),
        // The mistake: the Service calls its port `http`.
        slice_v4("reviews", &["reviews-1"], &[Port { name: "web", ..http(8080) }]),
    ];
    replace(folder, "endpoints.json", &list(endpoints))?;
    write_api_endpoints(folder, &["api-1", "api-2", "api-3"])
}

/// Replaces the endpoints of `shop/api` by these pods.
pub fn write_api_endpoints(folder: &Path, pods: &[&str]) -> anyhow::Result<()> {
    let ports = [
        Port { name: "http", protocol: "TCP", number: 9090 },
        Port { name: "stream", protocol: "TCP", number: ferroxy_lab::pod::ECHO_PORT },
    ];
    replace(folder, API_ENDPOINTS, &list(vec![slice_v4("api", pods, &ports)]))
}

/// A reader sees the old file or the new one. Hidden files are no manifests.
fn replace(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let (new, path) = (folder.join(format!(".{name}.new")), folder.join(name));
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

struct Port {
    name: &'static str,
    protocol: &'static str,
    number: u16,
}

fn slice_v4(service: &str, pods: &[&str], ports: &[Port]) -> Value {
    slice(service, "IPv4", pods, ports, |pod| pod.ipv4().to_string())
}

fn slice_v6(service: &str, pods: &[&str], ports: &[Port]) -> Value {
    slice(service, "IPv6", pods, ports, |pod| pod.ipv6().to_string())
}

fn slice(service: &str, family: &str, pods: &[&str], ports: &[Port], address: fn(&Pod) -> String) -> Value {
    let endpoint = |pod: &Pod| {
        json!({
            "addresses": [address(pod)],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "nodeName": pod.node.name,
            "targetRef": { "kind": "Pod", "namespace": "shop", "name": pod.name },
        })
    };
    let port = |port: &Port| json!({ "name": port.name, "protocol": port.protocol, "port": port.number });
    json!({
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": format!("{service}-{}", family.to_lowercase()),
            "namespace": "shop",
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": family,
        "endpoints": PODS.iter().filter(|pod| pods.contains(&pod.name)).map(endpoint).collect::<Vec<_>>(),
        "ports": ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn node_object(node: &super::network::Node) -> Value {
    let [v4, v6] = node.pod_ranges();
    json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": { "name": node.name },
        "spec": { "podCIDR": v4, "podCIDRs": [v4, v6] },
        "status": { "addresses": [
            { "type": "InternalIP", "address": node.ipv4() },
            { "type": "InternalIP", "address": node.ipv6() },
        ] },
    })
}

fn list(items: Vec<Value>) -> String {
    format!("{:#}\n", json!({ "kind": "List", "apiVersion": "v1", "items": items }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroxy_source::manifest::ManifestSource;

    #[test]
    fn the_shop_has_no_mistake_but_the_one_on_purpose() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let mut events = Vec::new();
        let (_, diagnostics) = ManifestSource::open(folder.path(), |event| events.push(event)).unwrap();
        assert_eq!(diagnostics, []);
        // Services, slices, nodes, and that the source is complete.
        assert!(events.len() >= 7 + 8 + 2, "{events:?}");
    }

    #[test]
    fn every_endpoint_is_a_pod_of_the_network() {
        let pods = ["api-1", "api-3"];
        let slice = slice_v4("api", &pods, &[]);
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), pods.len());
        assert_eq!(slice["endpoints"][1]["addresses"][0], "10.244.2.33");
    }
}
