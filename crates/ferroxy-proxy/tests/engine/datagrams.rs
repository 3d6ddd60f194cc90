//! Datagrams: whole, from the right address, in bounded sessions.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use ferroxy_lab::PATIENCE;
use ferroxy_proxy::{Frontend, Pool, Settings, Timeouts, UdpLimits};
use socket2::Type;

use crate::peers::{Closed, POOL, Proxy, UdpServer, localhost, settings};

fn client(to: SocketAddr) -> UdpSocket {
    client_from(if to.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }, to)
}

fn client_from(source: &str, to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(source).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket
}

/// Asks until there is an answer: datagrams may get lost.
fn ask(socket: &UdpSocket, question: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE {
        // An error means that an earlier datagram was refused.
        let _ = socket.send(question);
        if let Ok(length) = socket.recv(&mut buffer) {
            return buffer[..length].to_vec();
        }
    }
    panic!("no answer");
}

#[test]
fn datagrams_of_every_size_pass_whole() {
    let server = UdpServer::echo();
    let proxy = Proxy::udp(Pool::of([server.address]));
    let socket = client(proxy.address);
    let sizes =
        [0, 1, 2, 511, 512, 1_399, 1_400, 1_401, 1_472, 1_473, 4_096, 4_097, 8_192, 30_000, 65_506, 65_507];
    for size in sizes {
        let question: Vec<u8> = (0..size).map(|it| (it * 7 + size) as u8).collect();
        assert!(ask(&socket, &question) == question, "{size} bytes");
    }
    let counters = proxy.counters();
    assert_eq!(counters.active_sessions, 1);
    assert!(counters.bytes_in >= sizes.iter().sum::<usize>() as u64);
}

#[test]
fn bursts_keep_the_borders_of_datagrams() {
    let server = UdpServer::echo();
    let proxy = Proxy::udp(Pool::of([server.address]));
    let socket = client(proxy.address);
    let mut buffer = vec![0; 65_536];
    for round in 0u8..50 {
        // Runs of equal size with a shorter end, and others in between: what is sent as one must come apart again.
        let sizes = [900, 900, 900, 900, 300, 900, 1_000, 1_000, 1, 1, 1, 5_000, 900, 900];
        let sent: Vec<Vec<u8>> = (0u8..)
            .zip(sizes)
            .map(|(index, size)| {
                let mut datagram = vec![round; size + 2];
                datagram[1] = index;
                datagram
            })
            .collect();
        sent.iter().for_each(|it| drop(socket.send(it)));
        let mut missing: HashSet<Vec<u8>> = sent.into_iter().collect();
        while !missing.is_empty() {
            let Ok(length) = socket.recv(&mut buffer) else {
                // A datagram was lost. The next round may still show a wrong one.
                break;
            };
            if buffer[0] == round {
                assert!(missing.remove(&buffer[..length]), "{length} bytes that were not sent");
            }
        }
    }
    let counters = proxy.counters();
    assert!(counters.datagrams_in >= 500 && counters.datagrams_out >= 500, "{counters:?}");
}

#[test]
fn answers_come_from_the_address_that_the_client_used() {
    let server = UdpServer::echo();
    let any = Frontend::udp("0.0.0.0:0".parse().unwrap()).to(POOL);
    let proxy = Proxy::start(settings(), any, Pool::of([server.address]));
    for address in ["127.0.0.1", "127.0.0.5", "127.3.2.1"] {
        // A connected socket takes datagrams from this address only.
        let to = SocketAddr::new(address.parse().unwrap(), proxy.address.port());
        assert_eq!(ask(&client(to), b"hello"), b"hello");
    }
}

#[test]
fn ipv6_works_alike() {
    let server = UdpServer::start(b"six:", "[::1]:0".parse().unwrap());
    for address in ["[::1]:0", "[::]:0"] {
        let frontend = Frontend::udp(address.parse().unwrap()).to(POOL);
        let proxy = Proxy::start(settings(), frontend, Pool::of([server.address]));
        let to = SocketAddr::new("::1".parse().unwrap(), proxy.address.port());
        assert_eq!(ask(&client(to), b"hello"), b"six:hello");
    }
}

#[test]
fn a_session_moves_when_its_endpoint_leaves() {
    let (one, two) = (UdpServer::start(b"one:", localhost()), UdpServer::start(b"two:", localhost()));
    let proxy = Proxy::udp(Pool::of([one.address]));
    let socket = client(proxy.address);
    assert_eq!(ask(&socket, b"1"), b"one:1");
    proxy.set_pool(Pool::of([two.address]));
    assert_eq!(ask(&socket, b"2"), b"two:2");
    proxy.wait_until("the old one is closed", |it| it.active_sessions == 1 && it.sessions == 2);
}

#[test]
fn a_refused_datagram_makes_the_next_one_go_elsewhere() {
    let (server, closed) = (UdpServer::echo(), Closed::new(Type::DGRAM));
    let proxy = Proxy::udp(Pool::of([server.address, closed.address]));
    for _ in 0..8 {
        assert_eq!(ask(&client(proxy.address), b"hello"), b"hello");
    }
    assert!(proxy.counters().failed_dials > 0);
}

#[test]
fn sessions_end_when_they_are_idle() {
    let server = UdpServer::echo();
    let short = Duration::from_millis(200);
    let timeouts = Timeouts { udp_unanswered: short, udp_answered: short, ..Timeouts::default() };
    let proxy = Proxy::udp(Pool { timeouts, ..Pool::of([server.address]) });
    let sockets: Vec<_> = (0..10).map(|_| client(proxy.address)).collect();
    sockets.iter().for_each(|it| drop(ask(it, b"hello")));
    proxy.wait_until_all("all are closed", |it| it.engine.sessions == 0);
    assert!(proxy.counters().sessions >= 10);
    assert_eq!(ask(&sockets[0], b"again"), b"again");
}

#[test]
fn a_hostile_source_pushes_out_only_its_own_sessions() {
    let server = UdpServer::echo();
    let udp = UdpLimits { sessions: 200, sessions_per_source: 50 };
    let frontend = Frontend::udp(localhost()).to(POOL);
    let proxy = Proxy::start(Settings { udp, ..settings() }, frontend, Pool::of([server.address]));
    let victim = client_from("127.0.0.2:0", proxy.address);
    assert_eq!(ask(&victim, b"hello"), b"hello");
    for round in 0..40 {
        let hostile: Vec<_> = (0..50).map(|_| client_from("127.0.0.66:0", proxy.address)).collect();
        hostile.iter().for_each(|it| drop(it.send(b"flood")));
        assert_eq!(ask(&victim, b"still there?"), b"still there?", "round {round}");
        assert!(proxy.engine.counters().engine.sessions <= 52, "{:?}", proxy.engine.counters().engine);
    }
    proxy.wait_until_all("some had to go", |it| it.engine.evicted_sessions > 500);
    let of_the_victim = 1;
    assert!(proxy.counters().sessions >= of_the_victim + 500);
}

#[test]
fn spoofed_sources_are_bounded_in_total() {
    let server = UdpServer::echo();
    let udp = UdpLimits { sessions: 64, sessions_per_source: 64 };
    let frontend = Frontend::udp(localhost()).to(POOL);
    let proxy = Proxy::start(Settings { udp, ..settings() }, frontend, Pool::of([server.address]));
    for source in 0..400 {
        let socket =
            client_from(&format!("127.0.{}.{}:0", 10 + source / 200, 1 + source % 200), proxy.address);
        drop(socket.send(b"spoofed"));
        // Evicted sessions are closed after the batch of datagrams that evicted them.
        assert!(proxy.engine.counters().engine.sessions <= 64 + 32);
    }
    assert_eq!(ask(&client(proxy.address), b"hello"), b"hello");
    assert!(proxy.engine.counters().engine.evicted_sessions > 100, "{:?}", proxy.engine.counters());
}

#[test]
fn without_an_endpoint_datagrams_are_dropped_and_counted() {
    let proxy = Proxy::udp(Pool::default());
    client(proxy.address).send(b"hello").unwrap();
    proxy.wait_until("it is counted", |it| it.dropped_datagrams == 1 && it.active_sessions == 0);
}
