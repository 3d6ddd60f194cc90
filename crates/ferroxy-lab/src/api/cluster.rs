//! Deterministic clusters of any size as JSON, for benchmarks and soak tests. The objects also have the fields of real ones
//! that a proxy does not read, because decoding them is part of the measurement.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// Maximum number of endpoints in a slice, as in the EndpointSlice controller.
pub const SLICE: usize = 100;

/// The namespace of all objects.
pub const NAMESPACE: &str = "load";

/// Numbers of Services, endpoints per Service, and nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cluster {
    pub services: usize,
    pub endpoints: usize,
    pub nodes: usize,
}

impl Cluster {
    /// On a hundred nodes.
    pub fn new(services: usize, endpoints: usize) -> Cluster {
        Cluster { services, endpoints, nodes: 100 }
    }

    /// All objects: the ServiceCIDR, the nodes, and each Service followed by its slices.
    pub fn objects(self) -> impl Iterator<Item = String> {
        let nodes = (0..self.nodes).map(move |index| self.node(index));
        let services = (0..self.services)
            .flat_map(move |index| std::iter::once(self.service(index)).chain(self.slices(index)));
        std::iter::once(service_range()).chain(nodes).chain(services)
    }

    pub fn node(&self, index: usize) -> String {
        let (name, [high, low]) = (node_name(index), (index as u16).to_be_bytes());
        let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone(index)});
        json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {"addresses": [
                {"type": "InternalIP", "address": format!("172.18.{high}.{low}")},
                {"type": "Hostname", "address": name},
            ]},
        })
        .to_string()
    }

    pub fn service(&self, index: usize) -> String {
        let (name, address) = (service_name(index), cluster_ip(index));
        json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": uid(index, 0),
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": name},
                "managedFields": managed_fields("kubectl-client-side-apply"),
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "sessionAffinity": "None", "internalTrafficPolicy": "Cluster", "selector": {"app": name},
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            },
            "status": {"loadBalancer": {}},
        })
        .to_string()
    }

    /// One for each hundred of the Service's endpoints.
    pub fn slices(&self, index: usize) -> Vec<String> {
        (0..self.endpoints.div_ceil(SLICE)).map(|slice| self.slice(index, slice, None)).collect()
    }

    /// The slice of an endpoint after the endpoint moved, to another address in each round. One change, for churn.
    pub fn moved(&self, index: usize, endpoint: usize, round: usize) -> String {
        self.slice(index, endpoint / SLICE, Some((endpoint, round)))
    }

    fn slice(&self, index: usize, slice: usize, moved: Option<(usize, usize)>) -> String {
        let service = service_name(index);
        let within = slice * SLICE..((slice + 1) * SLICE).min(self.endpoints);
        let round = |endpoint| moved.filter(|(which, _)| *which == endpoint).map(|(_, round)| round);
        let endpoints: Vec<Value> =
            within.map(|endpoint| self.endpoint(index, endpoint, round(endpoint))).collect();
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {
                "name": format!("{service}-{slice}"), "namespace": NAMESPACE, "uid": uid(index, 1 + slice),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    "app": service, "kubernetes.io/service-name": service,
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Service", "name": service, "uid": uid(index, 0),
                    "controller": true, "blockOwnerDeletion": true,
                }],
                "managedFields": managed_fields("kube-controller-manager"),
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        })
        .to_string()
    }

    fn endpoint(&self, index: usize, endpoint: usize, round: Option<usize>) -> Value {
        let number = index * self.endpoints + endpoint;
        let address = match round {
            None => self.endpoint_address(index, endpoint),
            Some(round) => offset(SPARE, number + round),
        };
        let (node, pod) = (number % self.nodes.max(1), format!("{}-{endpoint}", service_name(index)));
        json!({
            "addresses": [address],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node_name(node),
            "targetRef": {"kind": "Pod", "name": pod, "namespace": NAMESPACE, "uid": uid(index, 1_000 + endpoint)},
            "zone": zone(node),
        })
    }

    /// Different for each endpoint.
    pub fn endpoint_address(&self, index: usize, endpoint: usize) -> Ipv4Addr {
        offset(PODS, index * self.endpoints + endpoint)
    }
}

const PODS: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);
/// Where endpoints move to.
const SPARE: Ipv4Addr = Ipv4Addr::new(10, 192, 0, 1);

/// Different for each Service, and not the address of default/kubernetes or of DNS.
pub fn cluster_ip(index: usize) -> Ipv4Addr {
    offset(Ipv4Addr::new(10, 96, 1, 0), index)
}

pub fn service_name(index: usize) -> String {
    format!("service-{index:05}")
}

pub fn node_name(index: usize) -> String {
    format!("node-{index:04}")
}

fn service_range() -> String {
    json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]},
    })
    .to_string()
}

fn zone(node: usize) -> &'static str {
    ["zone-a", "zone-b", "zone-c"][node % 3]
}

fn offset(address: Ipv4Addr, by: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(address).wrapping_add(by as u32))
}

fn uid(index: usize, part: usize) -> String {
    format!("00000000-0000-4000-{part:04x}-{index:012x}")
}

/// About as long as real ones; not used.
fn managed_fields(by: &str) -> Value {
    let port = json!({".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}});
    json!([{
        "manager": by, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:internalTrafficPolicy": {}, "f:selector": {}, "f:sessionAffinity": {}, "f:type": {},
                "f:ports": {".": {}, r#"k:{"port":80,"protocol":"TCP"}"#: port},
            },
        },
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn addresses(slice: &Value) -> Vec<String> {
        let endpoints = slice["endpoints"].as_array().unwrap();
        endpoints.iter().map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_cluster_has_what_was_asked_for() {
        let cluster = Cluster { services: 7, endpoints: 250, nodes: 5 };
        let objects: Vec<Value> =
            cluster.objects().map(|object| serde_json::from_str(&object).unwrap()).collect();
        let count = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!((count("Node"), count("Service"), count("EndpointSlice")), (5, 7, 21));
        assert!(cluster.objects().eq(cluster.objects()), "the same every time");
        let slices = objects.iter().filter(|object| object["kind"] == "EndpointSlice");
        let all: Vec<String> = slices.flat_map(addresses).collect();
        let distinct: BTreeSet<&String> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (7 * 250, 7 * 250));
        assert!(all.contains(&cluster.endpoint_address(6, 249).to_string()));
    }

    #[test]
    fn a_move_changes_one_address_each_round() {
        let cluster = Cluster::new(3, 120);
        let parse = |slice: String| -> Value { serde_json::from_str(&slice).unwrap() };
        let before = parse(cluster.slices(2).remove(1));
        let (first, second) = (parse(cluster.moved(2, 110, 0)), parse(cluster.moved(2, 110, 1)));
        assert_eq!(before["metadata"], first["metadata"]);
        for (one, other) in [(&before, &first), (&first, &second)] {
            let (one, other) = (addresses(one), addresses(other));
            assert_eq!(one.iter().zip(&other).filter(|(one, other)| one != other).count(), 1);
        }
    }

    #[test]
    fn a_service_without_endpoints_has_no_slice() {
        assert_eq!(Cluster::new(1, 0).slices(0), Vec::<String>::new());
    }
}
