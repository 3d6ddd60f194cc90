//! Endpoints that refuse, do not answer, or are not there yet.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ferroxy_lab::PATIENCE;
use ferroxy_proxy::{Change, Frontend, Pool, Settings, Timeouts};
use socket2::Type;

use crate::peers::{BlackHole, Closed, Proxy, Server, ask, expect_reset, localhost, settings};

#[test]
fn a_refused_dial_goes_to_the_next_endpoint_and_ejects_the_first() {
    let (server, closed) = (Server::echo(), Closed::new(Type::STREAM));
    let proxy = Proxy::tcp(Pool::of([server.address, closed.address]));
    for _ in 0..40 {
        assert_eq!(ask(&mut proxy.connect(), b"hello").unwrap(), b"hello");
    }
    let counters = proxy.counters();
    assert_eq!((counters.failed_dials, counters.retries, counters.ejections), (5, 5, 1));
    assert!(counters.endpoints[&closed.address].ejected);
    assert_eq!(counters.connections, 40);
    proxy.engine.pardon(server.address.ip(), Some(server.address.port()));
    assert!(proxy.counters().endpoints[&closed.address].ejected, "another endpoint's probe does not help");
    proxy.engine.pardon(closed.address.ip(), Some(closed.address.port()));
    assert!(!proxy.counters().endpoints[&closed.address].ejected, "a passed probe ends it before its time");
}

#[test]
fn a_black_hole_delays_only_those_who_dial_it() {
    let (server, hole) = (Server::echo(), BlackHole::new());
    // A client whose dial goes to the black hole is not served during this test.
    let timeouts = Timeouts { connect: PATIENCE, connect_budget: PATIENCE, ..Timeouts::default() };
    let pool = Pool { timeouts, ..Pool::of([server.address, hole.address]) };
    // One thread: a call that blocks it would block all clients.
    let one_thread = Settings { threads: Some(1), ..settings() };
    let proxy = Proxy::start(one_thread, Frontend::tcp(localhost()).to(crate::peers::POOL), pool);
    let (told, answered) = mpsc::channel();
    for _ in 0..20 {
        let (mut client, told) = (proxy.connect(), told.clone());
        thread::spawn(move || {
            if ask(&mut client, b"hello").is_ok() {
                let _ = told.send(());
            }
        });
    }
    for _ in 0..10 {
        answered.recv_timeout(PATIENCE).unwrap();
    }
    let mut change = Change::default();
    change.set_pool("other", Pool::of([server.address]));
    change.set_frontend("other", Frontend::tcp(localhost()).to("other"));
    let applied = proxy.engine.apply(change);
    for _ in 0..100 {
        let mut client = TcpStream::connect(applied.bound[0].1).unwrap();
        assert_eq!(ask(&mut client, b"other").unwrap(), b"other");
    }
}

#[test]
fn a_dial_that_takes_too_long_goes_to_the_next_endpoint() {
    let (server, hole) = (Server::echo(), BlackHole::new());
    let timeouts =
        Timeouts { connect: Duration::from_millis(50), connect_budget: PATIENCE, ..Timeouts::default() };
    let proxy = Proxy::tcp(Pool { timeouts, ..Pool::of([server.address, hole.address]) });
    for _ in 0..20 {
        assert_eq!(ask(&mut proxy.connect(), b"hello").unwrap(), b"hello");
    }
    let counters = proxy.counters();
    assert!(counters.endpoints[&hole.address].ejected, "{counters:?}");
    assert!(counters.endpoints[&hole.address].failed_dials >= 5);
}

#[test]
fn if_all_dials_fail_the_client_is_reset() {
    let (one, other) = (Closed::new(Type::STREAM), Closed::new(Type::STREAM));
    let proxy = Proxy::tcp(Pool::of([one.address, other.address]));
    expect_reset(&mut proxy.connect());
    proxy.wait_until("it is counted", |it| it.refused_unreachable == 1 && it.active == 0);
    assert_eq!(proxy.counters().failed_dials, 2);
}

#[test]
fn without_an_endpoint_the_client_is_reset() {
    let proxy = Proxy::tcp(Pool::default());
    expect_reset(&mut proxy.connect());
    proxy.wait_until("it is counted", |it| it.refused_empty == 1 && it.active == 0);
}

#[test]
fn a_client_is_held_until_there_is_an_endpoint() {
    let timeouts = Timeouts { hold: Some(PATIENCE), ..Timeouts::default() };
    let proxy = Proxy::tcp(Pool { timeouts, ..Pool::default() });
    let mut clients: Vec<_> = (0..5).map(|_| proxy.connect()).collect();
    clients.iter_mut().for_each(|it| it.write_all(b"early").unwrap());
    proxy.wait_until("all are held", |it| it.holding == 5);
    let server = Server::echo();
    proxy.set_pool(Pool { timeouts, ..Pool::of([server.address]) });
    for client in &mut clients {
        let mut answer = [0; 5];
        std::io::Read::read_exact(client, &mut answer).unwrap();
        assert_eq!(&answer, b"early");
    }
    let counters = proxy.counters();
    assert_eq!((counters.held, counters.holding, counters.connections), (5, 0, 5));
}

#[test]
fn a_client_is_not_held_forever() {
    let timeouts = Timeouts { hold: Some(Duration::from_millis(100)), ..Timeouts::default() };
    let proxy = Proxy::tcp(Pool { timeouts, ..Pool::default() });
    expect_reset(&mut proxy.connect());
    proxy.wait_until("it is counted", |it| it.held == 1 && it.refused_empty == 1 && it.holding == 0);
}

#[test]
fn attempts_are_bounded() {
    let closed: Vec<Closed> = (0..6).map(|_| Closed::new(Type::STREAM)).collect();
    let proxy = Proxy::tcp(Pool::of(closed.iter().map(|it| it.address)));
    expect_reset(&mut proxy.connect());
    proxy.wait_until("it is counted", |it| it.refused_unreachable == 1);
    let counters = proxy.counters();
    assert_eq!((counters.failed_dials, counters.retries), (4, 3));
    let tried = counters.endpoints.iter().filter(|(_, it)| it.failed_dials == 1);
    assert_eq!(tried.map(|(address, _)| address).collect::<BTreeSet<_>>().len(), 4, "each once");
}
