//! The table of docs/sockets.md, cell by cell: at every kind of address, exactly the sockets in the table are translated.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ferroxy_core::event::{self, Event};
use ferroxy_core::policy::{DetectLocal, NodePortAddress, Policy};
use ferroxy_core::{Facts, Family, Intent, Protocol, resolve};
use ferroxy_dataplane::ChoiceOfEndpoints::{self, ByClient, ByFrontend};
use ferroxy_sockets::interpret::{Choice, Owner, Programs, Socket};
use ferroxy_sockets::{Clients, Salt, Terms, render};

const CLUSTER_IP: [&str; 1] = ["10.96.0.80:80"];
/// External IP, load-balancer IP, node port on an address that is listed.
const EXTERNAL: [&str; 3] = ["198.51.100.1:80", "203.0.113.10:80", "172.18.0.2:30080"];
const LOCALHOST: [&str; 1] = ["127.0.0.1:30080"];

/// The columns of `ROWS`: the client, the targets, and `externalTrafficPolicy`.
const COLUMNS: [(Owner, &[&str], &str); 8] = [
    (Owner::Pod, &CLUSTER_IP, "Cluster"),
    (Owner::Pod, &EXTERNAL, "Cluster"),
    (Owner::Pod, &EXTERNAL, "Local"),
    (Owner::Host, &CLUSTER_IP, "Cluster"),
    (Owner::Host, &EXTERNAL, "Cluster"),
    (Owner::Host, &EXTERNAL, "Local"),
    (Owner::Host, &LOCALHOST, "Cluster"),
    (Owner::Host, &LOCALHOST, "Local"),
];

/// Pods are recognised; `masqueradeAll`; the choice of the dataplane below; whether the connection of each column is translated.
const ROWS: [(bool, bool, ChoiceOfEndpoints, [u8; 8]); 8] = [
    (true, false, ByClient, [1, 0, 1, 1, 1, 1, 1, 1]),
    (true, true, ByClient, [0, 0, 0, 1, 1, 1, 1, 1]),
    (false, false, ByClient, [1, 0, 0, 0, 1, 1, 1, 1]),
    (false, true, ByClient, [0, 0, 0, 1, 1, 1, 1, 1]),
    (true, false, ByFrontend, [1, 0, 0, 1, 1, 0, 1, 0]),
    (true, true, ByFrontend, [0, 0, 0, 1, 1, 0, 1, 0]),
    (false, false, ByFrontend, [1, 0, 0, 0, 1, 0, 1, 0]),
    (false, true, ByFrontend, [0, 0, 0, 1, 1, 0, 1, 0]),
];

/// A Service with every kind of address, an endpoint on this node and one elsewhere.
fn intent(detects: bool, masquerade_all: bool, policy: &str) -> Intent {
    let ranges = if detects { vec!["10.244.0.0/16".parse().unwrap()] } else { vec![] };
    let mut facts = Facts::new(Policy {
        node_name: "ka".into(),
        detect_local: DetectLocal::ClusterCidr(ranges),
        node_port_addresses: vec![NodePortAddress::Primary],
        masquerade_all,
        ..Policy::default()
    });
    facts.apply(Event::Node(event::Node {
        name: "ka".into(),
        addresses: vec![("InternalIP".into(), "172.18.0.2".into())],
        ..Default::default()
    }));
    facts.apply(Event::Service(event::Service {
        namespace: "default".into(),
        name: "web".into(),
        kind: "LoadBalancer".into(),
        cluster_ip: "10.96.0.80".into(),
        ports: vec![event::ServicePort { port: 80, node_port: 30080, ..Default::default() }],
        external_ips: vec!["198.51.100.1".into()],
        ingress: vec![event::Ingress { ip: "203.0.113.10".into(), ip_mode: String::new() }],
        external_traffic_policy: policy.into(),
        ..Default::default()
    }));
    let endpoint = |(address, node): (&str, &str)| event::SliceEndpoint {
        addresses: vec![address.to_owned()],
        node_name: Some(node.to_owned()),
        ..Default::default()
    };
    facts.apply(Event::Slice(event::EndpointSlice {
        namespace: "default".into(),
        name: "web-1".into(),
        service: Some("web".into()),
        address_type: "IPv4".into(),
        ports: vec![event::SlicePort { name: Some(String::new()), port: Some(80), ..Default::default() }],
        endpoints: [("10.244.1.6", "ka"), ("10.244.2.5", "kb")].map(endpoint).to_vec(),
        last_change: None,
    }));
    resolve::all(&facts).0
}

#[test]
fn the_table_of_the_document_is_what_happens() {
    let both: BTreeSet<Choice> =
        ["10.244.1.6:80", "10.244.2.5:80"].map(|it| Choice::Endpoint(it.parse().unwrap())).into();
    let unchanged = BTreeSet::from([Choice::Unchanged]);
    let programs = Programs::new(Clients::ALL, false).unwrap();
    for (detects, masquerade_all, choice, cells) in ROWS {
        for ((owner, targets, policy), is_translated) in COLUMNS.into_iter().zip(cells) {
            let intent = intent(detects, masquerade_all, policy);
            let state = render(&intent, &Terms::new(&intent.node, Clients::ALL, choice, Salt(1)));
            for target in targets {
                let destination: SocketAddr = target.parse().unwrap();
                let socket = Socket {
                    owner,
                    family: Family::V4,
                    protocol: Protocol::Tcp.number(),
                    source: None,
                    bound_device: 0,
                    destination,
                };
                let expected = if is_translated == 1 { &both } else { &unchanged };
                assert_eq!(
                    programs.choices(&state, &socket).unwrap(),
                    *expected,
                    "{owner:?} to {target}, {policy}; pods recognised: {detects}, masqueradeAll: {masquerade_all}, {choice:?}"
                );
            }
        }
    }
}
