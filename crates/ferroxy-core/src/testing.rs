//! Random clusters and packets for the laws of this crate and of every dataplane, and plain Services (feature `testing`).
//!
//! Everything is drawn from small pools on one network, so that frontends collide, endpoints are shared and hints
//! match often enough to matter. A pod's address decides its node, as in life.

mod garbage;
mod packets;
mod services;

use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::FileFailurePersistence;

pub use garbage::garbage;
pub use packets::{interesting_packets, packets_for};
pub use services::{service, service_over};

use crate::event::{self, Event};
use crate::facts::Facts;
use crate::intent::Intent;
use crate::name::{Protocol, ServiceName};
use crate::policy::{Annotation, DetectLocal, Limits, NodePortAddress, Policy};
use crate::probe::{self, Down, Fault, Target};
use crate::resolve;

/// For the laws of a test file: how many random cases, and the file in the repository that keeps the seeds of
/// counterexamples. Every run tries these seeds first.
pub fn config(cases: u32, counterexamples: &'static str) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct(counterexamples);
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..ProptestConfig::default() }
}

/// This node.
pub const NODE: &str = "ka";

/// The addresses in `Event::HostAddresses`, if a cluster has this event.
pub const HOST_ADDRESSES: [&str; 8] = [
    "127.0.0.1",
    "::1",
    "172.18.0.2",
    "fd00:172:18::2",
    "10.244.1.1",
    "fd00:10:244:1::1",
    "192.168.7.2",
    "fe80::1",
];

/// A configuration and a history. Later events may change or remove what earlier ones said.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub policy: Policy,
    pub events: Vec<Event>,
}

impl Cluster {
    pub fn facts(&self) -> Facts {
        let mut facts = Facts::new(self.policy.clone());
        for event in &self.events {
            facts.apply(event.clone());
        }
        facts
    }

    pub fn intent(&self) -> Intent {
        resolve::all(&self.facts()).0
    }
}

/// Clusters of a few Services with their slices, as this node sees them, often with something wrong or contested.
pub fn clusters() -> impl Strategy<Value = Cluster> {
    let aims = option::weighted(0.8, any::<Index>());
    let event = prop_oneof![4 => events().prop_map(|event| vec![event]), 2 => served()];
    let history = vec((event, aims), 1..16);
    (policies(), history).prop_map(|(policy, history)| Cluster { events: aimed(&policy, history), policy })
}

/// A Service together with a slice that has all of its ports, and perhaps verdicts. Separate draws seldom fit together.
fn served() -> impl Strategy<Value = Vec<Event>> {
    let verdicts = vec(verdicts().prop_map(Event::Verdict), 0..4);
    (services(), slices(), verdicts).prop_map(|(service, slice, verdicts)| {
        let port = |port: &event::ServicePort| event::SlicePort {
            name: Some(port.name.clone()),
            protocol: port.protocol.clone(),
            port: Some(8080),
        };
        let slice = event::EndpointSlice {
            namespace: service.namespace.clone(),
            service: Some(service.name.clone()),
            ports: service.ports.iter().map(port).collect(),
            ..slice
        };
        [Event::Service(service), Event::Slice(slice)].into_iter().chain(verdicts).collect()
    })
}

/// Redirects most verdicts to an endpoint that is probed by then: two random draws hardly ever name the same one.
fn aimed(policy: &Policy, history: Vec<(Vec<Event>, Option<Index>)>) -> Vec<Event> {
    let mut facts = Facts::new(policy.clone());
    let mut events = Vec::new();
    for (mut event, aim) in
        history.into_iter().flat_map(|(some, aim)| some.into_iter().map(move |it| (it, aim)))
    {
        if let (Event::Verdict(verdict), Some(aim)) = (&mut event, aim) {
            let probed: Vec<_> = targets(&facts).collect();
            if !probed.is_empty() {
                // Consecutive verdicts get different endpoints.
                let place = (aim.index(probed.len()) + events.len()) % probed.len();
                (verdict.service, verdict.target) = probed[place].clone();
            }
        }
        facts.apply(event.clone());
        events.push(event);
    }
    events
}

/// The endpoints that are probed.
fn targets(facts: &Facts) -> impl Iterator<Item = (ServiceName, Target)> {
    facts.probed_services().flat_map(|name| {
        let probing = resolve::service(facts, name).probing.into_iter();
        probing.flat_map(|it| it.targets.into_keys()).map(|target| (name.clone(), target))
    })
}

/// Single events on the same small cluster.
pub fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => services().prop_map(Event::Service),
        8 => slices().prop_map(Event::Slice),
        1 => (namespaces(), names()).prop_map(|(namespace, name)| Event::ServiceGone { namespace, name }),
        1 => (namespaces(), slice_names()).prop_map(|(namespace, name)| Event::SliceGone { namespace, name }),
        2 => nodes().prop_map(Event::Node),
        1 => Just(Event::NodeGone { name: NODE.into() }),
        1 => service_cidrs().prop_map(Event::ServiceCidr),
        6 => verdicts().prop_map(Event::Verdict),
        1 => Just(Event::HostAddresses(HOST_ADDRESSES.iter().filter_map(|text| text.parse().ok()).collect())),
    ]
}

/// Configurations as they are after validation.
pub fn policies() -> impl Strategy<Value = Policy> {
    let cidr = |text: &str| text.parse().ok();
    let cluster_cidrs: Vec<_> = ["10.244.0.0/16", "fd00:10:244::/56"].into_iter().filter_map(cidr).collect();
    let detect_local = prop_oneof![
        4 => subsequence(cluster_cidrs, 0..=2).prop_map(DetectLocal::ClusterCidr),
        1 => Just(DetectLocal::NodeCidr),
        1 => Just(DetectLocal::BridgeInterface("cbr0".into())),
        1 => Just(DetectLocal::InterfaceNamePrefix("cb".into())),
    ];
    let some_range = ["172.18.0.0/16", "fd00:172:18::/64", "10.0.0.0/8"].into_iter().filter_map(cidr);
    let mut entries = vec![NodePortAddress::Primary, NodePortAddress::Localhost, NodePortAddress::All];
    entries.extend(some_range.map(NodePortAddress::Cidr));
    let bind_address = option::weighted(0.2, select(vec![[172, 18, 0, 2], [192, 168, 7, 2]]));
    let switches = (any::<bool>(), weighted(0.9), weighted(0.3), any::<bool>(), weighted(0.1), weighted(0.9));
    (detect_local, vec(select(entries), 1..3), bind_address, switches).prop_map(
        |(detect_local, node_port_addresses, bind_address, switches)| Policy {
            node_name: NODE.into(),
            bind_address: bind_address.map(Into::into),
            detect_local,
            node_port_addresses,
            node_ports_on_loopback: false,
            listen_on_loopback: false,
            masquerade_all: switches.0,
            external_ips: switches.1,
            topology_hints: true,
            count_traffic: switches.2,
            know_host_addresses: false,
            probes: switches.5,
            annotations: if switches.3 { &ANNOTATIONS } else { &[] },
            limits: if switches.4 { FEW } else { Limits::default() },
        },
    )
}

/// Limits so low that clusters exceed them.
const FEW: Limits =
    Limits { frontends: 3, endpoints: 2, entries: 8, always: 1, namespace_frontends: 3, node_frontends: 4 };

/// An annotation that some modes read: the scheduler of ipvs mode.
static ANNOTATIONS: [Annotation; 1] = [Annotation {
    key: "ferroxy.io/scheduler",
    check: |value| if value.contains(' ') { Err("is not a scheduler".to_owned()) } else { Ok(()) },
    otherwise: "the node's scheduler is used",
}];

fn services() -> impl Strategy<Value = event::Service> {
    let scheduler = option::weighted(0.3, text(&["lc", "mh", "none such"]));
    let probe = option::weighted(0.4, text(&["tcp", "tcp", "http:/", "tcp:9999", "none such"]));
    let annotations = (scheduler, probe).prop_map(|(scheduler, probe)| {
        let scheduler = scheduler.map(|it| (ANNOTATIONS[0].key.to_owned(), it));
        scheduler.into_iter().chain(probe.map(|it| (probe::ANNOTATION.to_owned(), it))).collect()
    });
    let proxy_name = option::weighted(0.05, text(&["other"]));
    let identity = (namespaces(), names(), option::of(0..4_i64), proxy_name, annotations);
    let addresses = (
        subsequence(vec!["IPv4", "IPv6"], 1..=2),
        text(&["10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "None"]),
        text(&["fd00:10:96::1", "fd00:10:96::2", "fd00:10:96::3"]),
        few(&["198.51.100.1", "198.51.100.2", "10.96.0.2", "fd00:e::1", "203.0.113.1"]),
        vec(ingress(), 0..3),
        few(&["172.18.0.0/16", "10.244.0.0/16", "0.0.0.0/0", "fd00:172:18::/64"]),
    );
    let traffic = (
        text(&["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"]),
        text(&["Cluster", "Local"]),
        text(&["Cluster", "Local"]),
        text(&["None", "ClientIP"]),
        option::of(select(vec![1, 600, 86_400])),
        select(vec![0, 32_000, 32_001, 30_081]),
    );
    (identity, addresses, traffic, vec(service_ports(), 1..4)).prop_map(
        |(identity, addresses, traffic, ports)| {
            let (namespace, name, created, proxy_name, annotations) = identity;
            let (families, v4, v6, external_ips, ingress, load_balancer_source_ranges) = addresses;
            let (kind, internal_traffic_policy, external_traffic_policy, session_affinity, timeout, health) =
                traffic;
            let address = |family: &&str| if *family == "IPv4" { v4.clone() } else { v6.clone() };
            let cluster_ips: Vec<String> = families.iter().map(address).collect();
            event::Service {
                namespace,
                name,
                created,
                proxy_name,
                annotations,
                kind,
                cluster_ip: cluster_ips.first().cloned().unwrap_or_default(),
                cluster_ips,
                ip_families: families.into_iter().map(Into::into).collect(),
                ports,
                external_ips,
                session_affinity,
                affinity_timeout_seconds: timeout,
                internal_traffic_policy,
                external_traffic_policy,
                health_check_node_port: health,
                load_balancer_source_ranges,
                ingress,
            }
        },
    )
}

fn service_ports() -> impl Strategy<Value = event::ServicePort> {
    (port_names(), protocols(), select(vec![80, 81, 53]), select(vec![0, 0, 30_080, 30_081, 32_000]))
        .prop_map(|(name, protocol, port, node_port)| event::ServicePort {
            name,
            protocol,
            port,
            node_port,
            target_port: "8080".into(),
        })
}

fn ingress() -> impl Strategy<Value = event::Ingress> {
    (text(&["203.0.113.1", "203.0.113.2", "fd00:b::1", "10.96.0.3", ""]), text(&["", "VIP", "VIP", "Proxy"]))
        .prop_map(|(ip, ip_mode)| event::Ingress { ip, ip_mode })
}

fn slices() -> impl Strategy<Value = event::EndpointSlice> {
    let port = (port_names(), protocols(), select(vec![80, 8080]))
        .prop_map(|(name, protocol, port)| event::SlicePort { name: Some(name), protocol, port: Some(port) });
    let family = prop_oneof![2 => Just(4_u8), 1 => Just(6_u8)];
    (namespaces(), slice_names(), names(), vec(port, 1..4), family).prop_flat_map(
        |(namespace, name, service, ports, family)| {
            vec(endpoints(family), 0..6).prop_map(move |endpoints| event::EndpointSlice {
                namespace: namespace.clone(),
                name: name.clone(),
                service: Some(service.clone()),
                address_type: format!("IPv{family}"),
                ports: ports.clone(),
                endpoints,
                last_change: None,
            })
        },
    )
}

/// Addresses that pods and host-network pods can have, and their nodes.
const PODS: [(&str, &str, &str); 6] = [
    ("10.244.1.5", "fd00:10:244:1::5", NODE),
    ("10.244.1.6", "fd00:10:244:1::6", NODE),
    ("172.18.0.2", "fd00:172:18::2", NODE),
    ("10.244.2.5", "fd00:10:244:2::5", "kb"),
    ("10.244.2.6", "fd00:10:244:2::6", "kb"),
    ("172.18.0.3", "fd00:172:18::3", "kb"),
];

fn endpoints(family: u8) -> impl Strategy<Value = event::SliceEndpoint> {
    let hints = || prop_oneof![Just(vec![]), Just(vec!["z1".to_owned()]), Just(vec!["z2".to_owned()])];
    let node_hints =
        prop_oneof![6 => Just(vec![]), 1 => Just(vec![NODE.to_owned()]), 1 => Just(vec!["kb".to_owned()])];
    (
        select(PODS.to_vec()),
        option::of(weighted(0.7)),
        option::of(weighted(0.8)),
        weighted(0.2),
        hints(),
        node_hints,
    )
        .prop_map(move |((v4, v6, node), ready, serving, terminating, hint_zones, hint_nodes)| {
            event::SliceEndpoint {
                addresses: vec![if family == 4 { v4.into() } else { v6.into() }],
                ready,
                serving,
                terminating: Some(terminating),
                node_name: Some(node.into()),
                zone: Some(if node == NODE { "z1".into() } else { "z2".into() }),
                hint_zones,
                hint_nodes,
                target: Some(format!("pod-{v4}")),
            }
        })
}

/// Verdicts about any pod. [`clusters`] redirects most of them to endpoints that are probed.
fn verdicts() -> impl Strategy<Value = event::Verdict> {
    let pod = (select(PODS.to_vec()), weighted(0.6), select(vec![80, 8080, 9999]), weighted(0.8));
    let down = option::weighted(0.7, select(vec![Fault::Refused, Fault::Status(503)]));
    (namespaces(), names(), pod, down).prop_map(|(namespace, name, (pod, is_v4, port, is_tcp), fault)| {
        let ip: Option<IpAddr> = if is_v4 { pod.0 } else { pod.1 }.parse().ok();
        let address = SocketAddr::new(ip.unwrap_or([0; 4].into()), port);
        event::Verdict {
            service: ServiceName::new(&namespace, &name),
            target: Target { address, protocol: if is_tcp { Protocol::Tcp } else { Protocol::Udp } },
            life: None,
            down: fault.map(|fault| Down { since: 1_700_000_000, fault }),
        }
    })
}

fn nodes() -> impl Strategy<Value = event::Node> {
    let pair = |ip: &str| ("InternalIP".to_owned(), ip.to_owned());
    let addresses = subsequence(vec![pair("172.18.0.2"), pair("fd00:172:18::2")], 0..=2);
    let pod_cidrs = subsequence(vec!["10.244.1.0/24".to_owned(), "fd00:10:244:1::/64".to_owned()], 0..=2);
    (option::of(text(&["z1", "z2"])), addresses, pod_cidrs, any::<bool>()).prop_map(
        |(zone, addresses, pod_cidrs, deleting)| event::Node {
            name: NODE.into(),
            zone,
            addresses,
            pod_cidrs,
            deleting,
            taints: vec![],
        },
    )
}

fn service_cidrs() -> impl Strategy<Value = event::ServiceCidr> {
    (
        text(&["kubernetes", "more"]),
        few(&["10.96.0.0/16", "10.97.0.0/16", "fd00:10:96::/112", "10.96.4.0/22"]),
    )
        .prop_map(|(name, cidrs)| event::ServiceCidr { name, cidrs })
}

fn text(pool: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    select(pool.to_vec()).prop_map(str::to_owned)
}

/// None, one or two of the pool; none as often as the others together.
fn few(pool: &[&'static str]) -> impl Strategy<Value = Vec<String>> + use<> {
    prop_oneof![Just(vec![]), vec(text(pool), 1..3)]
}

fn weighted(probability: f64) -> impl Strategy<Value = bool> {
    proptest::bool::weighted(probability)
}

fn namespaces() -> impl Strategy<Value = String> {
    text(&["default", "default", "prod"])
}

fn names() -> impl Strategy<Value = String> {
    text(&["web", "api", "dns"])
}

fn slice_names() -> impl Strategy<Value = String> {
    text(&["s1", "s2", "s3", "s4"])
}

fn port_names() -> impl Strategy<Value = String> {
    text(&["", "", "http"])
}

fn protocols() -> impl Strategy<Value = String> {
    text(&["TCP", "TCP", "UDP", "SCTP"])
}
