//! Pools as clients see them: turns, affinity, limits, draining, routes.

use std::collections::HashMap;
use std::io::Read;
use std::net::SocketAddr;

use ferroxy_proxy::{Affinity, Change, Frontend, Limits, Policy, Pool, Route};

use crate::peers::{POOL, Proxy, Server, ask, connect_from, expect_reset, localhost, name_of, settings};

fn three() -> [Server; 3] {
    [Server::named("one"), Server::named("two"), Server::named("three")]
}

fn addresses(servers: &[Server]) -> impl Iterator<Item = SocketAddr> {
    servers.iter().map(|it| it.address)
}

#[test]
fn clients_take_turns() {
    let servers = three();
    let proxy = Proxy::tcp(Pool::of(addresses(&servers)));
    let mut times: HashMap<String, usize> = HashMap::new();
    for _ in 0..30 {
        *times.entry(name_of(&mut proxy.connect())).or_default() += 1;
    }
    assert_eq!(times.len(), 3);
    assert!(times.values().all(|it| *it == 10), "{times:?}");
}

#[test]
fn the_least_loaded_endpoint_gets_the_next_client() {
    let servers = three();
    let proxy = Proxy::tcp(Pool { policy: Policy::LeastConnections, ..Pool::of(addresses(&servers)) });
    let mut clients: Vec<_> = (0..9).map(|_| proxy.connect()).collect();
    let names: Vec<String> = clients.iter_mut().map(name_of).collect();
    let two = names.iter().position(|it| it == "two").unwrap();
    drop(clients.remove(two));
    proxy.wait_until("it is gone", |it| it.active == 8);
    assert_eq!(name_of(&mut proxy.connect()), "two");
}

#[test]
fn latency_is_measured_and_every_client_is_served() {
    let servers = three();
    let proxy = Proxy::tcp(Pool { policy: Policy::Latency, ..Pool::of(addresses(&servers)) });
    for _ in 0..50 {
        let mut client = proxy.connect();
        name_of(&mut client);
        assert_eq!(ask(&mut client, b"hello").unwrap(), b"hello");
    }
    let measured = proxy.counters().endpoints.values().filter(|it| it.latency_micros > 0).count();
    assert!(measured >= 1, "{:?}", proxy.counters());
}

#[test]
fn a_client_keeps_its_endpoint_until_it_leaves() {
    let servers = three();
    let sticky =
        |servers: &[Server]| Pool { affinity: Some(Affinity::default()), ..Pool::of(addresses(servers)) };
    let proxy = Proxy::tcp(sticky(&servers));
    let first = name_of(&mut connect_from("127.0.0.10", proxy.address));
    let others = ["127.0.0.11", "127.0.0.12"].map(|it| name_of(&mut connect_from(it, proxy.address)));
    assert!(!others.contains(&first), "the others take turns");
    for _ in 0..10 {
        assert_eq!(name_of(&mut connect_from("127.0.0.10", proxy.address)), first);
    }
    let rest: Vec<Server> = servers.into_iter().collect();
    let gone = ["one", "two", "three"].iter().position(|it| *it == first).unwrap();
    let staying = rest.iter().enumerate().filter(|(place, _)| *place != gone).map(|(_, it)| it.address);
    proxy.set_pool(Pool { affinity: Some(Affinity::default()), ..Pool::of(staying) });
    let second = name_of(&mut connect_from("127.0.0.10", proxy.address));
    assert_ne!(second, first);
    proxy.set_pool(sticky(&rest));
    assert_eq!(name_of(&mut connect_from("127.0.0.10", proxy.address)), second, "it stays where it is now");
}

#[test]
fn an_endpoint_that_leaves_lets_connections_finish() {
    let servers = three();
    let proxy = Proxy::tcp(Pool::of([servers[0].address]));
    let mut client = proxy.connect();
    assert_eq!(name_of(&mut client), "one");
    proxy.set_pool(Pool::of([servers[1].address]));
    assert_eq!(ask(&mut client, b"still there?").unwrap(), b"still there?");
    assert_eq!(name_of(&mut proxy.connect()), "two");
    assert_eq!(proxy.counters().connections, 2);
    let mut change = Change::default();
    change.remove_frontend("frontend").remove_pool(POOL);
    proxy.engine.apply(change);
    assert_eq!(ask(&mut client, b"and now?").unwrap(), b"and now?");
    assert!(std::net::TcpStream::connect(proxy.address).is_err(), "there is no listener any more");
}

#[test]
fn more_connections_than_the_limit_are_reset() {
    let server = Server::echo();
    let limits = Limits { connections: Some(2), ..Limits::default() };
    let proxy = Proxy::tcp(Pool { limits, ..Pool::of([server.address]) });
    let (mut one, mut two) = (proxy.connect(), proxy.connect());
    ask(&mut one, b"1").unwrap();
    ask(&mut two, b"2").unwrap();
    expect_reset(&mut proxy.connect());
    proxy.wait_until("it is counted", |it| it.refused_limit == 1);
    drop(one);
    proxy.wait_until("there is room", |it| it.active == 1);
    assert_eq!(ask(&mut proxy.connect(), b"3").unwrap(), b"3");
}

#[test]
fn clients_go_where_their_route_leads() {
    let servers = three();
    let route = |sources: &[&str], pool: Option<&str>| Route {
        classes: vec![],
        sources: sources.iter().map(|it| it.parse().unwrap()).collect(),
        pool: pool.map(Into::into),
    };
    let frontend = Frontend::tcp(localhost())
        .route(route(&["127.0.0.66/32"], None))
        .route(route(&["127.0.0.0/28"], Some(POOL)))
        .route(route(&["127.0.0.0/24"], Some("external")));
    let proxy = Proxy::start(settings(), frontend, Pool::of([servers[0].address]));
    expect_reset(&mut connect_from("127.0.0.20", proxy.address));
    let mut change = Change::default();
    change.set_pool("external", Pool::of([servers[1].address]));
    proxy.engine.apply(change);
    assert_eq!(name_of(&mut connect_from("127.0.0.1", proxy.address)), "one");
    assert_eq!(name_of(&mut connect_from("127.0.0.20", proxy.address)), "two", "its pool exists now");
    expect_reset(&mut connect_from("127.0.0.66", proxy.address));
    expect_reset(&mut connect_from("127.1.0.1", proxy.address));
    proxy.wait_until_all("both are counted", |it| it.engine.unrouted == 2);
}

#[test]
fn stopping_lets_connections_finish_and_cuts_the_rest() {
    let server = Server::echo();
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut client = proxy.connect();
    ask(&mut client, b"hello").unwrap();
    assert_eq!(proxy.engine.stop(std::time::Duration::ZERO), 1);
    assert!(matches!(client.read(&mut [0; 8]), Ok(0) | Err(_)), "it is cut");
}

#[test]
fn two_frontends_cannot_have_one_address() {
    let server = Server::echo();
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut change = Change::default();
    let address = "127.0.0.1:39917".parse().unwrap();
    change.set_frontend("first", Frontend::tcp(address).to(POOL));
    change.set_frontend("second", Frontend::tcp(address).to(POOL));
    let applied = proxy.engine.apply(change);
    let failures: Vec<String> = applied.failures.iter().map(|it| it.error.to_string()).collect();
    assert_eq!(failures, ["listen on 127.0.0.1:39917: it belongs to frontend first"]);
}
