//! The agent's knowledge of the cluster, as Kubernetes objects that `--manifests` reads, and what is in force: kind `ObjectList`.
//!
//! Objects have only fields that a proxy reads, and only valid values: fields that could not be read are not known.

use std::net::IpAddr;
use std::sync::Arc;

use ferroxy_core::facts::{Facts, Node, Place, Service, ServiceKind, Slice};
use ferroxy_core::{Family, NodeIntent, ServiceIntent, ServiceName};
use serde_json::{Map, Value, json};

use super::{document, ledger};
use crate::serve::probes::rfc3339;

/// An object that is known, or a part of the ledger.
#[derive(Debug)]
pub enum Known {
    Object(Value),
    /// The node in the dataplane's ledger.
    Node(Box<NodeIntent>),
    /// A Service in the dataplane's ledger.
    Service(Arc<ServiceIntent>),
}

/// `next`: the Service after which the list goes on. `host`: the addresses of the node's host, in the first part.
pub fn list(known: Vec<Known>, next: Option<&ServiceName>, host: Option<Vec<IpAddr>>) -> Value {
    let (mut items, mut services, mut node) = (Vec::new(), Vec::new(), Value::Null);
    for known in known {
        match known {
            Known::Object(object) => items.push(object),
            Known::Node(settings) => node = ledger::node(&settings),
            Known::Service(service) => services.push(ledger::service(&service)),
        }
    }
    let next = next.map(ToString::to_string);
    let ledger = json!({ "node": node, "services": services });
    document("ObjectList", json!({ "items": items, "next": next, "hostAddresses": host, "ledger": ledger }))
}

/// The known Nodes, which is only our own, and the ServiceCIDRs.
pub fn of_cluster(facts: &Facts) -> Vec<Value> {
    let nodes = facts.nodes().filter(|(_, node)| !node.gone).map(|(name, it)| node(name, it));
    let cidrs = facts.named_service_cidrs().map(|(name, cidr)| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": name },
            "spec": { "cidrs": texts(&cidr.cidrs) },
        })
    });
    nodes.chain(cidrs).collect()
}

/// A Service and its EndpointSlices.
pub fn of_service(facts: &Facts, name: &ServiceName) -> Vec<Value> {
    let slices = facts.slices_of(name).map(|it| slice(facts, &it, name));
    facts.service(name).as_ref().map(service).into_iter().chain(slices).collect()
}

fn node(name: &str, node: &Node) -> Value {
    let address = |kind: &'static str| move |ip: &_| json!({ "type": kind, "address": ip });
    let internal = node.internal_ips.iter().map(address("InternalIP"));
    let addresses: Vec<Value> = internal.chain(node.external_ips.iter().map(address("ExternalIP"))).collect();
    let zone = node.zone.as_deref().map(|zone| json!({ "topology.kubernetes.io/zone": zone }));
    let taints: Vec<Value> =
        node.taints.iter().map(|key| json!({ "key": key, "effect": "NoSchedule" })).collect();
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": zone },
        "spec": { "podCIDRs": texts(&node.pod_cidrs), "taints": taints },
        "status": { "addresses": addresses },
    })
}

fn service(service: &Service) -> Value {
    let label = service.proxy_name.as_deref();
    let label = label.map(|name| json!({ "service.kubernetes.io/service-proxy-name": name }));
    let annotations: Map<String, Value> =
        service.annotations.iter().map(|(key, value)| (key.to_string(), (&**value).into())).collect();
    let ingress: Vec<Value> = service
        .load_balancer_ips
        .iter()
        .map(|it| json!({ "ip": it.value.ip, "ipMode": if it.value.via_proxy { "Proxy" } else { "VIP" } }))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": service.name.namespace(),
            "name": service.name.name(),
            "creationTimestamp": service.created.map(rfc3339),
            "labels": label,
            "annotations": annotations,
        },
        "spec": spec(service),
        "status": { "loadBalancer": { "ingress": ingress } },
    })
}

fn spec(service: &Service) -> Value {
    let mut cluster_ips: Vec<String> =
        service.cluster_ips.iter().flatten().map(ToString::to_string).collect();
    if service.headless {
        cluster_ips = vec!["None".to_owned()];
    }
    let policy = |is_local: bool| if is_local { "Local" } else { "Cluster" };
    let ports: Vec<Value> = service
        .ports
        .iter()
        .map(|port| {
            json!({
                "name": &*port.name,
                "protocol": port.protocol.lowercase().to_uppercase(),
                "port": port.port,
                "nodePort": port.node_port,
                "targetPort": target_port(&port.target_port),
            })
        })
        .collect();
    let affinity = if service.client_ip_affinity { "ClientIP" } else { "None" };
    let timeout =
        service.affinity_timeout.map(|seconds| json!({ "clientIP": { "timeoutSeconds": seconds } }));
    json!({
        "type": match service.kind {
            ServiceKind::ClusterIp => "ClusterIP",
            ServiceKind::NodePort => "NodePort",
            ServiceKind::LoadBalancer => "LoadBalancer",
            ServiceKind::ExternalName => "ExternalName",
        },
        "clusterIP": cluster_ips.first(),
        "clusterIPs": cluster_ips,
        "ipFamilies": service.ip_families.iter().flatten().map(ToString::to_string).collect::<Vec<_>>(),
        "ports": ports,
        "externalIPs": service.external_ips.iter().map(|it| it.value).collect::<Vec<_>>(),
        "sessionAffinity": affinity,
        "sessionAffinityConfig": timeout,
        "internalTrafficPolicy": policy(service.internal_traffic_local),
        "externalTrafficPolicy": policy(service.external_traffic_local),
        "healthCheckNodePort": service.health_check_node_port,
        "loadBalancerSourceRanges": service.source_ranges.as_deref().map(texts),
    })
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// A number or a name, as it was written; absent if it was not.
fn target_port(text: &str) -> Value {
    match text.parse::<u16>() {
        Ok(number) => number.into(),
        Err(_) if text.is_empty() => Value::Null,
        Err(_) => text.into(),
    }
}

fn slice(facts: &Facts, slice: &Slice<'_>, service: &ServiceName) -> Value {
    let name = slice.name();
    let (namespace, name) = name.split_once('/').unwrap_or(("", &name));
    let ports: Vec<Value> = slice
        .ports()
        .iter()
        .map(|port| {
            let protocol = port.protocol.lowercase().to_uppercase();
            json!({ "name": &*port.name, "protocol": protocol, "port": port.port })
        })
        .collect();
    let endpoints: Vec<Value> = slice
        .targets()
        .enumerate()
        .take(slice.len())
        .map(|(index, target)| endpoint(slice, index, &target, facts.place(slice, index)))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace, "name": name,
            "labels": { "kubernetes.io/service-name": service.name() },
        },
        "addressType": if slice.family() == Family::V4 { "IPv4" } else { "IPv6" },
        "ports": ports,
        "endpoints": endpoints,
    })
}

fn endpoint(slice: &Slice<'_>, index: usize, target: &str, place: Option<&Place>) -> Value {
    let conditions = slice
        .conditions(index)
        .map(|it| json!({ "ready": it.ready(), "serving": it.serving(), "terminating": it.terminating() }));
    let names = |list: &[Box<str>]| list.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
    let hints = place
        .filter(|it| !(it.hint_zones.is_empty() && it.hint_nodes.is_empty()))
        .map(|it| json!({ "forZones": names(&it.hint_zones), "forNodes": names(&it.hint_nodes) }));
    json!({
        "addresses": slice.address(index).into_iter().collect::<Vec<_>>(),
        "conditions": conditions,
        "nodeName": place.and_then(|it| it.node.as_deref()),
        "zone": place.and_then(|it| it.zone.as_deref()),
        "hints": hints,
        "targetRef": (!target.is_empty()).then(|| json!({ "kind": "Pod", "name": target })),
    })
}
