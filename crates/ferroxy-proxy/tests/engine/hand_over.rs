//! Hand-over: a successor takes the listening sockets under load, and no client is refused.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ferroxy_lab::PATIENCE;
use ferroxy_proxy::{Change, Engine, Frontend, Pool, Sockets};

use crate::peers::{POOL, Server, UdpServer, ask, patient, settings};

/// The same frontends for predecessor and successor.
fn change(frontends: &[SocketAddr], udp: SocketAddr, servers: (SocketAddr, SocketAddr)) -> Change {
    let mut change = Change::default();
    change.set_pool(POOL, Pool::of([servers.0])).set_pool("udp", Pool::of([servers.1]));
    for (index, address) in frontends.iter().enumerate() {
        let sockets = if index % 2 == 0 { Sockets::PerThread } else { Sockets::One };
        change.set_frontend(format!("tcp-{index}"), Frontend::tcp(*address).to(POOL).with_sockets(sockets));
    }
    change.set_frontend("udp", Frontend::udp(udp).to("udp").with_sockets(Sockets::PerThread));
    change
}

/// Ports that the kernel has just chosen, and that are free again.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let listeners: Vec<_> = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|it| it.local_addr().unwrap()).collect()
}

fn succeed(path: &Path, change: Change, expected: usize) -> Engine {
    let successor = Engine::start(settings()).unwrap();
    assert_eq!(successor.adopt(path).unwrap(), expected);
    let applied = successor.apply(change);
    assert!(applied.failures.is_empty(), "{:?}", applied.failures);
    successor.adopted();
    successor.hand_over(path).unwrap();
    successor
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn no_client_is_refused_while_processes_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sockets");
    let (tcp_server, udp_server) = (Server::echo(), UdpServer::echo());
    let servers = (tcp_server.address, udp_server.address);
    let frontends = free_addresses(4);
    let udp: SocketAddr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let first = Engine::start(settings()).unwrap();
    assert_eq!(first.adopt(&path).unwrap(), 0, "nobody was here before");
    let applied = first.apply(change(&frontends, udp, servers));
    assert!(applied.failures.is_empty(), "{:?}", applied.failures);
    first.hand_over(&path).unwrap();

    let mut lasting = patient(TcpStream::connect(frontends[0]).unwrap());
    assert_eq!(ask(&mut lasting, b"before").unwrap(), b"before");
    let (is_over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = frontends
        .iter()
        .map(|address| {
            let (address, is_over, served) = (*address, is_over.clone(), served.clone());
            thread::spawn(move || {
                while !is_over.load(Relaxed) {
                    let mut client = patient(TcpStream::connect(address).expect("not refused"));
                    assert_eq!(ask(&mut client, b"hello").expect("not reset"), b"hello");
                    served.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    let more = || served.load(Relaxed) + 200;
    let goal = more();
    wait_until("clients are served by the first", || served.load(Relaxed) >= goal);

    // Two sockets per thread for two frontends and UDP, one for the other two.
    let second = succeed(&path, change(&frontends, udp, servers), 8);
    wait_until("the first stops accepting", || first.is_superseded());
    let goal = more();
    wait_until("clients are served by the second", || served.load(Relaxed) >= goal);
    assert_eq!(ask(&mut lasting, b"after").unwrap(), b"after", "the first keeps its connections");
    drop(lasting);
    assert_eq!(first.stop(PATIENCE), 0);

    let third = succeed(&path, change(&frontends, udp, servers), 8);
    wait_until("the second stops accepting", || second.is_superseded());
    assert_eq!(second.stop(PATIENCE), 0);
    let goal = more();
    wait_until("clients are served by the third", || served.load(Relaxed) >= goal);
    is_over.store(true, Relaxed);
    clients.into_iter().for_each(|it| it.join().unwrap());
    assert!(third.counters().engine.accepted > 0);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    wait_until("datagrams are served by the third", || {
        let _ = socket.send_to(b"hello", udp);
        socket.recv(&mut [0; 16]).is_ok()
    });
}

#[test]
fn a_successor_that_goes_away_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sockets");
    let server = Server::echo();
    let address = free_addresses(1)[0];
    let mut change = Change::default();
    change.set_pool(POOL, Pool::of([server.address])).set_frontend("tcp", Frontend::tcp(address).to(POOL));
    let first = Engine::start(settings()).unwrap();
    first.apply(change);
    first.hand_over(&path).unwrap();
    let failed = Engine::start(settings()).unwrap();
    assert_eq!(failed.adopt(&path).unwrap(), 1);
    drop(failed);
    for _ in 0..20 {
        let mut client = patient(TcpStream::connect(address).unwrap());
        assert_eq!(ask(&mut client, b"hello").unwrap(), b"hello");
    }
    assert!(!first.is_superseded());
    let again = Engine::start(settings()).unwrap();
    assert_eq!(again.adopt(&path).unwrap(), 1, "and the offer stands");
}
