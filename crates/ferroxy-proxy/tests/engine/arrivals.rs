//! Ways to arrive: redirected connections, addresses that the host does not have, several sockets.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use ferroxy_lab::{Capability, Namespace, require};
use ferroxy_proxy::{Arrival, Change, Class, Engine, Frontend, Pool, Protocol, Redirect, Route, Sockets};

use crate::peers::{
    POOL, Proxy, Server, UdpServer, ask, expect_reset, localhost, name_of, patient, settings,
};

fn run(program: &str, arguments: &[&str], input: &str) {
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program} {arguments:?}");
}

fn connect(address: &str) -> TcpStream {
    patient(TcpStream::connect(address).unwrap())
}

#[test]
fn redirected_connections_find_their_frontend_and_class() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables, Capability::NftTool]) {
        return;
    }
    // Only this thread and the threads that it starts enter the namespace, not the whole process.
    let namespace = Namespace::new("redirect").unwrap();
    let test = || {
        run("ip", &["route", "add", "local", "10.96.0.0/16", "dev", "lo"], "");
        run(
            "nft",
            &["-f", "-"],
            "
            table ip test {
                chain output {
                    type nat hook output priority -100;
                    meta mark 7 accept
                    ip saddr 127.0.0.2 ip daddr 10.96.0.0/16 tcp dport 80-90 redirect to :7002
                    ip daddr 10.96.0.0/16 tcp dport 80-90 redirect to :7001
                }
            }",
        );
        let (one, two) = (Server::named("one"), Server::named("two"));
        let engine = Engine::start(ferroxy_proxy::Settings { mark: Some(7), ..settings() }).unwrap();
        let mut change = Change::default();
        change.set_pool("one", Pool::of([one.address])).set_pool("two", Pool::of([two.address]));
        let outside = Route { classes: vec![Class(2)], sources: vec![], pool: Some("two".into()) };
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        change.set_frontend("first", Frontend::redirected(address("10.96.0.1:80")).route(outside).to("one"));
        change.set_frontend("second", Frontend::redirected(address("10.96.0.2:80")).to("two"));
        change.set_frontend("any", Frontend::redirected(address("0.0.0.0:81")).to("one"));
        change.set_redirect("inside", Redirect { address: address("0.0.0.0:7001"), class: Class(1) });
        change.set_redirect("outside", Redirect { address: address("0.0.0.0:7002"), class: Class(2) });
        let applied = engine.apply(change);
        assert!(applied.failures.is_empty(), "{:?}", applied.failures);
        assert_eq!(name_of(&mut connect("10.96.0.1:80")), "one");
        assert_eq!(name_of(&mut connect("10.96.0.2:80")), "two");
        assert_eq!(name_of(&mut connect("10.96.7.7:81")), "one", "all addresses on this port");
        let other_class = crate::peers::connect_from("127.0.0.2", address("10.96.0.1:80"));
        assert_eq!(name_of(&mut { other_class }), "two");
        expect_reset(&mut connect("10.96.0.3:80"));
        // A connection straight to the listener has no original destination that is a frontend.
        expect_reset(&mut connect("127.0.0.1:7001"));
        assert_eq!(engine.counters().engine.unrouted, 2);
        let mut change = Change::default();
        change.remove_frontend("second").remove_redirect("outside");
        engine.apply(change);
        expect_reset(&mut connect("10.96.0.2:80"));
        assert!(TcpStream::connect("127.0.0.1:7002").is_err());
    };
    namespace.run(test).unwrap();
}

#[test]
fn an_address_of_a_local_route_can_be_bound() {
    if !require(&[Capability::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new("freebind").unwrap();
    let test = || {
        run("ip", &["route", "add", "local", "10.96.0.0/16", "dev", "lo"], "");
        run("ip", &["-6", "route", "add", "local", "fd00:96::/64", "dev", "lo"], "");
        let (server, udp_server) = (Server::echo(), UdpServer::echo());
        let engine = Engine::start(settings()).unwrap();
        let mut change = Change::default();
        change.set_pool("tcp", Pool::of([server.address])).set_pool("udp", Pool::of([udp_server.address]));
        for address in ["10.96.0.1:80", "[fd00:96::1]:80"] {
            let address: SocketAddr = address.parse().unwrap();
            change.set_frontend(format!("{address}/tcp"), Frontend::tcp(address).to("tcp").with_freebind());
            change.set_frontend(format!("{address}/udp"), Frontend::udp(address).to("udp").with_freebind());
        }
        // A node port on all addresses beside them.
        change.set_frontend("node port", Frontend::tcp("0.0.0.0:80".parse().unwrap()).to("tcp"));
        let applied = engine.apply(change);
        assert!(applied.failures.is_empty(), "{:?}", applied.failures);
        for address in ["10.96.0.1:80", "[fd00:96::1]:80", "127.0.0.1:80"] {
            assert_eq!(ask(&mut connect(address), b"hello").unwrap(), b"hello");
        }
    };
    namespace.run(test).unwrap();
}

#[test]
fn one_socket_serves_with_all_threads_and_many_sockets_do_too() {
    let server = Server::echo();
    for sockets in [Sockets::One, Sockets::PerThread] {
        let frontend = Frontend::tcp(localhost()).to(POOL).with_sockets(sockets);
        let proxy = Proxy::start(settings(), frontend, Pool::of([server.address]));
        let mut clients: Vec<_> = (0..50).map(|_| proxy.connect()).collect();
        for client in &mut clients {
            assert_eq!(ask(client, b"hello").unwrap(), b"hello");
        }
    }
}

#[test]
fn a_port_that_is_taken_is_a_failure_of_that_frontend_only() {
    let (server, taken) = (Server::echo(), TcpListener::bind(localhost()).unwrap());
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut change = Change::default();
    change.set_frontend("taken", Frontend::tcp(taken.local_addr().unwrap()).to(POOL));
    change.set_frontend("free", Frontend::tcp(localhost()).to(POOL));
    let applied = proxy.engine.apply(change.clone());
    assert_eq!(applied.failures.len(), 1);
    assert_eq!(&*applied.failures[0].key, "taken");
    assert_eq!(ask(&mut connect(&applied.bound[0].1.to_string()), b"hello").unwrap(), b"hello");
    let address = taken.local_addr().unwrap();
    drop(taken);
    let mut change = Change::default();
    change.set_frontend("taken", Frontend::tcp(address).to(POOL));
    assert!(proxy.engine.apply(change).failures.is_empty(), "it is free now");
    assert_eq!(ask(&mut connect(&address.to_string()), b"hello").unwrap(), b"hello");
}

#[test]
fn a_frontend_can_move_and_addresses_can_be_exchanged() {
    let (one, two) = (Server::named("one"), Server::named("two"));
    let engine = Engine::start(settings()).unwrap();
    let mut change = Change::default();
    change.set_pool("one", Pool::of([one.address])).set_pool("two", Pool::of([two.address]));
    change.set_frontend("a", Frontend::tcp(localhost()).to("one"));
    change.set_frontend("b", Frontend::tcp(localhost()).to("two"));
    let bound = engine.apply(change).bound;
    let at = |place: usize| Frontend {
        arrival: Arrival::Socket {
            protocol: Protocol::Tcp,
            address: bound[place].1,
            freebind: false,
            sockets: Sockets::One,
            class: Class(0),
        },
        routes: vec![],
    };
    let mut change = Change::default();
    change.set_frontend("a", at(1).to("one")).set_frontend("b", at(0).to("two"));
    let applied = engine.apply(change);
    assert!(applied.failures.is_empty(), "{:?}", applied.failures);
    assert_eq!(name_of(&mut connect(&bound[1].1.to_string())), "one");
    assert_eq!(name_of(&mut connect(&bound[0].1.to_string())), "two");
}
