//! The dataplane with a host in memory and real sockets: traffic, restarts, failures, drift and cleanup. Runs on Linux and, under
//! wine, as a program for Windows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

mod support;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use ferroxy_core::intent::FrontendKind::{ExternalIp, NodePort};
use ferroxy_core::{Protocol, ServiceIntent};
use ferroxy_dataplane::{Change, Changed, Dataplane, HandsOver, Persists, Programmed, Verifies};
use support::{
    Host, PORT, address, ask_tcp, ask_udp, at, intent, is_refused, service, tcp_server, udp_server,
    with_cluster_ip,
};

fn change(service: &ServiceIntent) -> Vec<Change> {
    vec![(service.name.clone(), Some(Arc::new(service.clone())))]
}

fn removal(service: &ServiceIntent) -> Vec<Change> {
    vec![(service.name.clone(), None)]
}

/// A Service over TCP with one endpoint.
fn web(name: &str, ip: IpAddr) -> ServiceIntent {
    with_cluster_ip(name, ip, Protocol::Tcp, &[tcp_server("web")])
}

/// A port that is free at the moment.
fn free_port(ip: IpAddr) -> u16 {
    TcpListener::bind(SocketAddr::new(ip, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn clients_reach_endpoints_over_tcp_and_udp() {
    let (host, node, [tcp, udp]) = (Host::new(), address(), [address(), address()]);
    let node_port = free_port(node);
    let web = at(web("web", tcp), NodePort, None, node_port);
    let dns = with_cluster_ip("dns", udp, Protocol::Udp, &[udp_server("dns")]);
    let mut dataplane = host.open();
    let outcome = dataplane.start(&intent(&[web, dns], node)).unwrap();
    assert_eq!(outcome.refused, []);
    assert_eq!(host.present(), [tcp, udp]);
    assert_eq!(ask_tcp(tcp, PORT).unwrap(), "web");
    assert_eq!(ask_tcp(node, node_port).unwrap(), "web");
    let answer = ask_udp(udp, PORT);
    let counted = dataplane.counts_packets().unwrap().read().unwrap();
    assert_eq!(answer.ok().as_deref(), Some("dns"), "{counted:?}");
    assert!(ask_tcp(tcp, PORT + 1).is_err(), "no listener there");
    assert!(counted.contains(&("accepted", 2)), "{counted:?}");
}

#[test]
fn endpoints_come_and_go_and_without_them_clients_are_refused() {
    let (host, node, ip) = (Host::new(), address(), address());
    let empty = with_cluster_ip("web", ip, Protocol::Tcp, &[]);
    let mut dataplane = host.open();
    dataplane.start(&intent(std::slice::from_ref(&empty), node)).unwrap();
    assert_eq!(host.present(), [ip], "the host refuses ports without a listener");
    assert!(is_refused(ip, PORT));
    for name in ["one", "two"] {
        let changed = with_cluster_ip("web", ip, Protocol::Tcp, &[tcp_server(name)]);
        assert_eq!(dataplane.change(change(&changed)).unwrap().refused, []);
        assert_eq!(ask_tcp(ip, PORT).unwrap(), name);
    }
    dataplane.change(change(&empty)).unwrap();
    assert!(is_refused(ip, PORT));
    assert_eq!(host.calls(), [format!("add {ip} to Ethernet")], "the address stays all the time");
}

#[test]
fn an_address_stays_until_the_last_service_leaves_it() {
    let (host, node, shared) = (Host::new(), address(), address());
    let on = |name: &str, port| {
        at(service(name, Protocol::Tcp, &[tcp_server("it")]), ExternalIp, Some(shared), port)
    };
    let (one, two) = (on("one", PORT), on("two", PORT + 1));
    let mut dataplane = host.open();
    dataplane.start(&intent(&[one.clone(), two.clone()], node)).unwrap();
    dataplane.change(removal(&one)).unwrap();
    assert_eq!((host.present(), ask_tcp(shared, PORT + 1).unwrap().as_str()), (vec![shared], "it"));
    assert!(is_refused(shared, PORT));
    dataplane.change(removal(&two)).unwrap();
    assert!(host.present().is_empty());
    assert!(dataplane.in_force().is_empty() && dataplane.acknowledged().is_empty());
}

#[test]
fn a_restart_adopts_addresses_and_removes_those_of_services_that_left() {
    let (host, node, [stays, leaves]) = (Host::new(), address(), [address(), address()]);
    let (web, old) = (web("web", stays), web("old", leaves));
    host.open().start(&intent(&[web.clone(), old], node)).unwrap();
    host.calls();
    let now = intent(std::slice::from_ref(&web), node);
    let mut careful = host.open();
    assert!(!careful.is_cold().unwrap());
    let web = Arc::new(web);
    let parts = careful.programmed(&now, &web).unwrap();
    assert_eq!(parts, Programmed::Parts { right: 1, wanted: 1 });
    assert_eq!(careful.preview(&now).unwrap().operations, [format!("delete address {leaves}")]);
    careful.keep_unknown(true);
    careful.start(&now).unwrap();
    assert_eq!((host.calls(), ask_tcp(stays, PORT).unwrap()), (vec![], "web".to_owned()));
    careful.keep_unknown(false);
    careful.verify().unwrap();
    assert_eq!(host.calls(), [format!("remove {leaves}")]);
    drop(careful);
    assert!(is_refused(stays, PORT), "listeners end with the process");
    host.open().start(&now).unwrap();
    assert_eq!((host.calls(), host.present()), (vec![], vec![stays]));
}

#[test]
fn cleanup_removes_only_ours() {
    let (host, node, [ours, hosts, foreign]) = (Host::new(), address(), [address(), address(), address()]);
    host.lock().present.extend([hosts, foreign]);
    let both = at(web("web", ours), ExternalIp, Some(hosts), PORT);
    let mut dataplane = host.open();
    assert_eq!(dataplane.start(&intent(std::slice::from_ref(&both), node)).unwrap().refused, []);
    assert_eq!(ask_tcp(hosts, PORT).unwrap(), "web", "an address that the host had before");
    drop(dataplane);
    let mut dataplane = host.open();
    assert_eq!(dataplane.cleanup().unwrap(), [format!("address {ours}")]);
    assert_eq!(host.present(), [hosts, foreign]);
    assert!(!host.path().exists());
    assert_eq!(dataplane.cleanup().unwrap(), [""; 0]);
    // Without a restart in between, and when the Service leaves.
    dataplane.start(&intent(std::slice::from_ref(&both), node)).unwrap();
    dataplane.change(removal(&both)).unwrap();
    assert_eq!(host.present(), [hosts, foreign]);
}

/// A crash after the file was written and before the address was added; and a reboot, which removes all of them.
#[test]
fn addresses_that_are_remembered_but_missing_are_added_again() {
    let (host, node, ip) = (Host::new(), address(), address());
    let web = intent(&[web("web", ip)], node);
    host.open().start(&web).unwrap();
    host.lock().present.clear();
    host.calls();
    let mut dataplane = host.open();
    dataplane.start(&web).unwrap();
    assert_eq!((host.calls(), host.present()), (vec![format!("add {ip} to Ethernet")], vec![ip]));
    host.lock().present.clear();
    assert_eq!(dataplane.cleanup().unwrap(), [""; 0], "nothing was there");
}

#[test]
fn another_interface_gets_the_addresses() {
    let (host, node, ip) = (Host::new(), address(), address());
    let web = intent(&[web("web", ip)], node);
    host.open().start(&web).unwrap();
    host.calls();
    host.open_with("Loopback").start(&web).unwrap();
    assert_eq!(host.calls(), [format!("remove {ip}"), format!("add {ip} to Loopback")]);
    host.open_with("Loopback").start(&web).unwrap();
    assert_eq!(host.calls(), [""; 0]);
}

#[test]
fn a_service_whose_address_cannot_be_added_is_refused_and_the_others_are_served() {
    let (host, node, [good, bad]) = (Host::new(), address(), [address(), address()]);
    host.lock().refused.insert(bad);
    let (web, broken) = (web("web", good), web("broken", bad));
    let mut dataplane = host.open();
    let outcome = dataplane.start(&intent(&[web, broken.clone()], node)).unwrap();
    let [refusal] = &*outcome.refused else { panic!("{:?}", outcome.refused) };
    assert_eq!(refusal.reason, format!("cannot add the address {bad}: no"));
    assert_eq!((ask_tcp(good, PORT).unwrap(), dataplane.acknowledged().len()), ("web".to_owned(), 1));
    host.lock().refused.clear();
    assert_eq!(dataplane.change(change(&broken)).unwrap().refused, []);
    assert_eq!(ask_tcp(bad, PORT).unwrap(), "web");
    // An address that cannot be removed is tried again.
    host.lock().refused.insert(bad);
    assert!(dataplane.change(removal(&broken)).unwrap().drift);
    assert!(dataplane.verify().unwrap().unrepaired.is_some());
    host.lock().refused.clear();
    assert_eq!(dataplane.verify().unwrap().unrepaired, None);
    assert_eq!(host.present(), [good]);
}

#[test]
fn a_port_that_another_program_has_is_a_refusal_and_is_tried_again() {
    let (host, node, ip) = (Host::new(), address(), address());
    let taken = TcpListener::bind(SocketAddr::new(node, 0)).unwrap();
    let web = at(web("web", ip), NodePort, None, taken.local_addr().unwrap().port());
    let mut dataplane = host.open();
    let outcome = dataplane.start(&intent(std::slice::from_ref(&web), node)).unwrap();
    assert_eq!(outcome.refused.len(), 1);
    assert!(outcome.refused[0].reason.starts_with(&format!("listen on {node}:")), "{outcome:?}");
    assert_eq!(ask_tcp(ip, PORT).unwrap(), "web", "the rest of it is served");
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let outcome = dataplane.change(change(&web)).unwrap();
    assert_eq!((outcome.refused.len(), outcome.operations), (0, 1), "only what was missing");
    assert_eq!(ask_tcp(node, port).unwrap(), "web");
}

#[test]
fn an_address_that_another_program_removes_comes_back() {
    let (host, node, ip) = (Host::new(), address(), address());
    let mut dataplane = host.open();
    dataplane.start(&intent(&[web("web", ip)], node)).unwrap();
    assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Nothing);
    assert_eq!(dataplane.verify().unwrap().operations, 0);
    host.lock().present.clear();
    assert_eq!(dataplane.changed_by_others().unwrap(), Changed::Ours);
    let repair = dataplane.verify().unwrap();
    assert_eq!((repair.operations, repair.unrepaired), (2, None), "the address, and a new socket on it");
    assert_eq!((host.present(), ask_tcp(ip, PORT).unwrap()), (vec![ip], "web".to_owned()));
}

#[test]
fn addresses_of_an_interface_that_was_down_are_still_ours() {
    let (host, node, [first, second]) = (Host::new(), address(), [address(), address()]);
    let (one, two) = (web("one", first), web("two", second));
    let mut dataplane = host.open();
    dataplane.start(&intent(&[one.clone(), two.clone()], node)).unwrap();
    // While the interface is down it has no addresses, and accepts none.
    {
        let mut host = host.lock();
        host.present.clear();
        host.refused = [first, second].into();
    }
    assert!(dataplane.verify().unwrap().unrepaired.is_some());
    {
        let mut host = host.lock();
        host.refused.clear();
        host.present = [first].into();
        // The other address returns between the list and the attempt to add it.
        host.returns = [second].into();
    }
    assert_eq!(dataplane.verify().unwrap().unrepaired, None);
    assert_eq!(host.present(), [first, second]);
    dataplane.change(removal(&one)).unwrap();
    dataplane.change(removal(&two)).unwrap();
    assert!(host.present().is_empty(), "they were removed: {:?}", host.calls());
}

#[test]
fn a_stop_closes_listeners_and_leaves_addresses() {
    let (host, node, ip) = (Host::new(), address(), address());
    let mut dataplane = host.open();
    dataplane.start(&intent(&[web("web", ip)], node)).unwrap();
    assert_eq!(ask_tcp(ip, PORT).unwrap(), "web");
    dataplane.finish(Duration::ZERO);
    assert!(is_refused(ip, PORT));
    assert_eq!(host.present(), [ip]);
}

#[test]
fn sctp_is_not_served_and_reported() {
    let (host, ip) = (Host::new(), address());
    let mut sctp = with_cluster_ip("sctp", ip, Protocol::Sctp, &["127.0.0.1:9".parse().unwrap()]);
    let mut dataplane = host.open();
    assert_eq!(dataplane.start(&intent(&[sctp.clone()], address())).unwrap().refused, []);
    assert!(host.present().is_empty());
    assert_eq!(dataplane.shortcomings(&sctp)[0].effect, "the port is not served");
    sctp.ports[0].protocol = Protocol::Tcp;
    assert_eq!(dataplane.shortcomings(&sctp), []);
}
