//! A soak: endpoints, frontends and policies change all the time, while clients of a steady frontend must notice nothing.
//! `FERROXY_SOAK_ROUNDS=100000 cargo test -p ferroxy-proxy --test engine churn` takes longer.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use ferroxy_proxy::{Affinity, Change, Engine, Frontend, Policy, Pool, Sockets};

use crate::peers::{Proxy, Server, UdpServer, ask, localhost, patient, settings};

const ROUNDS: usize = 300;
/// Frontends that come and go.
const OTHERS: usize = 8;
const POLICIES: [Policy; 4] = [Policy::RoundRobin, Policy::Random, Policy::LeastConnections, Policy::Latency];

fn rounds() -> usize {
    std::env::var("FERROXY_SOAK_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(ROUNDS)
}

/// What is different in each round: the same each time the test runs.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    /// At least one of them.
    fn some(&mut self, all: &[SocketAddr]) -> Vec<SocketAddr> {
        let count = 1 + self.roll(all.len());
        let first = self.roll(all.len());
        all.iter().cycle().skip(first).take(count).copied().collect()
    }

    fn pool(&mut self, all: &[SocketAddr]) -> Pool {
        let affinity = (self.roll(3) == 0).then(Affinity::default);
        Pool { policy: POLICIES[self.roll(POLICIES.len())], affinity, ..Pool::of(self.some(all)) }
    }
}

fn round(engine: &Engine, dice: &mut Dice, tcp: &[SocketAddr], udp: &[SocketAddr]) {
    let mut change = Change::default();
    match dice.roll(3) {
        0 => drop(change.set_pool("tcp", dice.pool(tcp))),
        1 => drop(change.set_pool("udp", dice.pool(udp))),
        _ => {
            let key = format!("other-{}", dice.roll(OTHERS));
            if dice.roll(2) == 0 {
                change.remove_frontend(key.clone()).remove_pool(key);
            } else {
                let sockets = if dice.roll(2) == 0 { Sockets::One } else { Sockets::PerThread };
                let frontend = Frontend::tcp(localhost()).to(key.clone()).with_sockets(sockets);
                change.set_pool(key.clone(), dice.pool(tcp)).set_frontend(key, frontend);
            }
        }
    }
    let applied = engine.apply(change);
    assert!(applied.failures.is_empty(), "{:?}", applied.failures);
    // A client connects, and may be cut.
    for (_, address) in applied.bound {
        drop(TcpStream::connect(address));
    }
}

/// Connects and exchanges data until `is_over` is set. Every connection must be served.
fn ask_tcp(address: SocketAddr, is_over: &AtomicBool, served: &AtomicUsize) {
    while !is_over.load(Relaxed) {
        let mut stream = patient(TcpStream::connect(address).unwrap());
        for _ in 0..3 {
            assert_eq!(ask(&mut stream, b"question").unwrap(), b"question");
            thread::sleep(Duration::from_millis(1));
        }
        served.fetch_add(1, Relaxed);
    }
}

/// A datagram may be lost when its endpoint leaves; then it is sent again.
fn ask_udp(address: SocketAddr, is_over: &AtomicBool, served: &AtomicUsize) {
    while !is_over.load(Relaxed) {
        let socket = UdpSocket::bind(localhost()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.connect(address).unwrap();
        let mut answer = [0; 16];
        socket.send(b"question").unwrap();
        if let Ok(length) = socket.recv(&mut answer) {
            assert_eq!(&answer[..length], b"question");
            served.fetch_add(1, Relaxed);
        }
    }
}

#[test]
fn churn_disturbs_nobody_and_leaves_nothing() {
    let servers = [Server::echo(), Server::echo(), Server::echo()];
    let udp_servers = [UdpServer::echo(), UdpServer::echo()];
    let tcp: Vec<SocketAddr> = servers.iter().map(|it| it.address).collect();
    let udp: Vec<SocketAddr> = udp_servers.iter().map(|it| it.address).collect();
    let steady = Frontend::tcp(localhost()).to("tcp").with_sockets(Sockets::PerThread);
    let proxy = Proxy::start(settings(), steady, Pool::default());
    let mut change = Change::default();
    change.set_pool("tcp", Pool::of(tcp.clone())).set_pool("udp", Pool::of(udp.clone()));
    change.set_frontend("udp", Frontend::udp(localhost()).to("udp"));
    let at_udp = proxy.engine.apply(change).bound[0].1;

    let (is_over, served) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| ask_tcp(proxy.address, &is_over, &served[0]));
        }
        scope.spawn(|| ask_udp(at_udp, &is_over, &served[1]));
        let mut dice = Dice(42);
        for number in 0..rounds() {
            round(&proxy.engine, &mut dice, &tcp, &udp);
            // Changes and clients take turns, however busy the machine is.
            let enough = number / 10;
            proxy.wait_until_all("clients are served", |_| {
                is_over.load(Relaxed) || served.iter().all(|it| it.load(Relaxed) >= enough.min(20))
            });
        }
        is_over.store(true, Relaxed);
    });

    proxy.wait_until_all("connections have ended", |it| it.engine.active == 0);
    let mut change = Change::default();
    for key in
        (0..OTHERS).map(|it| format!("other-{it}")).chain(["tcp".into(), "udp".into(), "frontend".into()])
    {
        change.remove_frontend(key.clone()).remove_pool(key);
    }
    change.remove_pool(crate::peers::POOL);
    proxy.engine.apply(change);
    proxy.wait_until_all("sessions have ended", |it| it.engine.sessions == 0 && it.pools.is_empty());
}
