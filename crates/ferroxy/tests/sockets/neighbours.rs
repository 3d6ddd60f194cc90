//! Programs on the node for which a translated socket would be wrong: service meshes inside of pods, guests of virtual
//! machines, and readers of the traffic counters.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;

use ferroxy_lab::{Answer, Namespace, Protocol, ask};
use rustix::net::sockopt::ip_original_dst;

use super::Stage;
use super::support::{Agent, Cluster, DEADLINE, ask_from, nft, run_arguments, wait_until, web, web_service};

fn start(stage: &Stage, cluster: &Cluster, clients: &str, more: &[&str]) -> Agent {
    let mut arguments: Vec<OsString> = run_arguments(&cluster.manifests(), &cluster.config()).into();
    arguments.extend(stage.flags(clients));
    arguments.extend(more.iter().map(OsString::from));
    Agent::start_with(stage.ka(), arguments)
}

/// Connections of pods that were translated so far.
fn of_pods(stage: &Stage) -> f64 {
    let metrics = web::metrics(stage.ka());
    metrics.get("ferroxy_sockets_connections_total{clients=\"pods\"}").copied().unwrap_or_default()
}

/// The destination that a sidecar sees: it redirects all connections that leave its pod to itself.
fn original_destination(pod: &Namespace) -> SocketAddr {
    let rules = "add table ip mesh; add chain ip mesh output { type nat hook output priority -100; }; \
                 add rule ip mesh output tcp dport { 80, 8080 } redirect to :15001";
    nft(pod, &[rules]);
    let seen = pod.run(|| {
        let sidecar = TcpListener::bind("0.0.0.0:15001").unwrap();
        let _client = TcpStream::connect("10.96.0.80:80").unwrap();
        let (stream, _) = sidecar.accept().unwrap();
        ip_original_dst(&stream).unwrap().into()
    });
    nft(pod, &["delete table ip mesh"]);
    seen.unwrap()
}

/// The mesh must see the address of the Service, otherwise it cannot recognise the Service. With `all` it sees an endpoint: that is
/// why `host` exists.
#[test]
fn a_service_mesh_sees_the_service_where_only_the_host_is_translated() {
    let Some(stage) = Stage::new() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web_service());
    let pod = stage.network.namespace("a1").unwrap();
    let agent = start(&stage, &cluster, "host", &[]);
    assert_eq!(original_destination(pod), "10.96.0.80:80".parse().unwrap());
    agent.terminate();
    let agent = start(&stage, &cluster, "all", &[]);
    assert_eq!(original_destination(pod).port(), 8080, "an endpoint");
    agent.terminate();
}

/// A guest of Kata, gVisor or KubeVirt has a network stack of its own: its traffic leaves the pod as packets, not from a socket of
/// this host. Here, the guest is a namespace behind the pod's, with the pod's address.
#[test]
fn guests_in_pods_are_served_by_packets() {
    let Some(stage) = Stage::new() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web_service());
    let agent = start(&stage, &cluster, "all", &[]);
    let (pod, guest) = (stage.network.namespace("a1").unwrap(), Namespace::new("guest").unwrap());
    let ip = |namespace: &Namespace, words: &str| {
        let done = namespace.run(|| Command::new("ip").args(words.split(' ')).output().unwrap()).unwrap();
        assert!(done.status.success(), "ip {words}: {done:?}");
    };
    pod.set_sysctl("net/ipv4/ip_forward", "1").unwrap();
    pod.connection().unwrap().create_veth("guest0", "eth0", Some(guest.as_fd())).unwrap();
    for (namespace, words) in [
        (pod, "addr add 10.99.0.1/24 dev guest0"),
        (pod, "link set guest0 up"),
        (&guest, "addr add 10.99.0.2/24 dev eth0"),
        (&guest, "link set eth0 up"),
        (&guest, "route add default via 10.99.0.1"),
    ] {
        ip(namespace, words);
    }
    let address = "add table ip guest; add chain ip guest post { type nat hook postrouting priority 100; }; \
                   add rule ip guest post ip saddr 10.99.0.2 masquerade";
    nft(pod, &[address]);
    let before = of_pods(&stage);
    wait_until("the guest is answered", DEADLINE, || {
        let answer = guest.run(|| ask(Protocol::Tcp, "10.96.0.80:80".parse().unwrap(), ferroxy_lab::ANSWER));
        matches!(answer.unwrap().unwrap(), Answer::Reply(_))
    });
    assert_eq!(of_pods(&stage), before, "not by a socket");
    ask_from(&stage.network, "a1", Protocol::Tcp, "10.96.0.80:80");
    assert_eq!(of_pods(&stage), before + 1.0, "but the pod itself is");
    agent.terminate();
}

/// Every connection is counted once, at sockets or by rules. Packets are counted only where rules translate them.
#[test]
fn traffic_metrics_count_connections_at_sockets_too() {
    let Some(stage) = Stage::new() else { return };
    let cluster = Cluster::new();
    cluster.write_service(&web_service());
    let agent = start(&stage, &cluster, "all", &["--traffic-metrics"]);
    let before = of_pods(&stage);
    for _ in 0..5 {
        for (from, to) in [("a1", "10.96.0.80:80"), ("ka", "10.96.0.80:80"), ("ka", "127.0.0.1:30080")] {
            assert!(
                matches!(ask_from(&stage.network, from, Protocol::Tcp, to), Answer::Reply(_)),
                "{from} {to}"
            );
        }
        ask_from(&stage.network, "ext", Protocol::Tcp, "172.18.0.2:30080");
    }
    assert_eq!(of_pods(&stage), before + 5.0);
    let port = "namespace=\"default\",service=\"web\",port=\"tcp-80\"";
    let connections = format!("ferroxy_service_connections_total{{{port}}}");
    wait_until("all of it is counted", DEADLINE, || {
        web::metrics(stage.ka()).get(&connections).copied() == Some(20.0)
    });
    let metrics = web::metrics(stage.ka());
    let of_endpoints = |it: &(&String, &f64)| it.0.starts_with("ferroxy_endpoint_connections_total{");
    assert_eq!(metrics.iter().filter(of_endpoints).map(|(_, count)| count).sum::<f64>(), 20.0);
    // Five connections from outside: a handful of packets each, and none of the other fifteen.
    let packets = metrics[&format!("ferroxy_service_packets_total{{{port},direction=\"received\"}}")];
    assert!((15.0..=40.0).contains(&packets), "{packets}");
    agent.terminate();
}
