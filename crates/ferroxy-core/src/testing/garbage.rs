//! Events that no API server would let through: the store must take every one of them without a panic.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::event::{self, Event};

/// Objects with something absurd in any field.
pub fn garbage() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => services().prop_map(Event::Service),
        4 => slices().prop_map(Event::Slice),
        1 => (texts(), texts()).prop_map(|(namespace, name)| Event::ServiceGone { namespace, name }),
        1 => (texts(), texts()).prop_map(|(namespace, name)| Event::SliceGone { namespace, name }),
        1 => nodes().prop_map(Event::Node),
        1 => (texts(), vec(texts(), 0..4)).prop_map(|(name, cidrs)| Event::ServiceCidr(event::ServiceCidr { name, cidrs })),
        1 => vec(any::<std::net::IpAddr>(), 0..4).prop_map(Event::HostAddresses),
    ]
}

/// Noise, and words that mean something in some field, so that garbage sometimes gets past the first check.
fn texts() -> impl Strategy<Value = String> {
    const WORDS: [&str; 40] = [
        "",
        "default",
        "web",
        "ka",
        "http",
        "None",
        "ClusterIP",
        "NodePort",
        "LoadBalancer",
        "ExternalName",
        "IPv4",
        "IPv6",
        "FQDN",
        "TCP",
        "udp",
        "SCTP",
        "ICMP",
        "Local",
        "Cluster",
        "ClientIP",
        "VIP",
        "Proxy",
        "10.96.0.1",
        "010.96.0.1",
        "10.96.0.1/0",
        "10.96.0.1/33",
        "0.0.0.0/0",
        "::/0",
        "::1",
        "::ffff:10.0.0.1",
        "fe80::1%eth0",
        "fd00::1",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "a/b",
        "\n",
        "\0",
        "é\u{202e}",
        "\"; flush ruleset",
    ];
    prop_oneof![8 => select(&WORDS[..]).prop_map(str::to_owned), 1 => ".{0,300}"]
}

fn numbers() -> impl Strategy<Value = i64> {
    prop_oneof![select(vec![0, 1, 80, 30080, 65535, 65536, -1, i64::MAX, i64::MIN]), any::<i64>()]
}

fn services() -> impl Strategy<Value = event::Service> {
    let port = (texts(), texts(), numbers(), numbers(), texts()).prop_map(
        |(name, protocol, port, node_port, target_port)| event::ServicePort {
            name,
            protocol,
            port,
            node_port,
            target_port,
        },
    );
    let ingress = (texts(), texts()).prop_map(|(ip, ip_mode)| event::Ingress { ip, ip_mode });
    let list = || vec(texts(), 0..4);
    (
        (texts(), texts(), option::of(numbers()), option::weighted(0.1, texts()), texts(), texts()),
        (list(), list(), vec(port, 0..5), list(), list(), vec(ingress, 0..4)),
        (texts(), option::of(numbers()), texts(), texts(), numbers(), option::weighted(0.1, texts())),
    )
        .prop_map(|(head, lists, words)| event::Service {
            namespace: head.0,
            name: head.1,
            created: head.2,
            proxy_name: head.3,
            kind: head.4,
            cluster_ip: head.5,
            cluster_ips: lists.0,
            ip_families: lists.1,
            ports: lists.2,
            external_ips: lists.3,
            load_balancer_source_ranges: lists.4,
            ingress: lists.5,
            session_affinity: words.0,
            affinity_timeout_seconds: words.1,
            internal_traffic_policy: words.2,
            external_traffic_policy: words.3,
            health_check_node_port: words.4,
            annotations: words.5.map(|it| ("ferroxy.io/scheduler".to_owned(), it)).into_iter().collect(),
        })
}

fn slices() -> impl Strategy<Value = event::EndpointSlice> {
    let port = (option::of(texts()), texts(), option::of(numbers()))
        .prop_map(|(name, protocol, port)| event::SlicePort { name, protocol, port });
    let conditions = (any::<Option<bool>>(), any::<Option<bool>>(), any::<Option<bool>>());
    let list = || vec(texts(), 0..3);
    let endpoint =
        (list(), conditions, option::of(texts()), option::of(texts()), list(), list(), option::of(texts()))
            .prop_map(|(addresses, conditions, node_name, zone, hint_zones, hint_nodes, target)| {
                event::SliceEndpoint {
                    addresses,
                    ready: conditions.0,
                    serving: conditions.1,
                    terminating: conditions.2,
                    node_name,
                    zone,
                    hint_zones,
                    hint_nodes,
                    target,
                }
            });
    (texts(), texts(), option::of(texts()), texts(), vec(port, 0..4), vec(endpoint, 0..40)).prop_map(
        |(namespace, name, service, address_type, ports, endpoints)| event::EndpointSlice {
            namespace,
            name,
            service,
            address_type,
            ports,
            endpoints,
            last_change: None,
        },
    )
}

fn nodes() -> impl Strategy<Value = event::Node> {
    let addresses = vec((prop_oneof![Just("InternalIP".to_owned()), texts()], texts()), 0..4);
    (texts(), option::of(texts()), addresses, vec(texts(), 0..4), any::<bool>(), vec(texts(), 0..2)).prop_map(
        |(name, zone, addresses, pod_cidrs, deleting, taints)| event::Node {
            name,
            zone,
            addresses,
            pod_cidrs,
            deleting,
            taints,
        },
    )
}
