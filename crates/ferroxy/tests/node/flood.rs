//! More connections than any client needs: idle and slow ones, and half-sent requests, from one address and from many.
//! Health, metrics and health-check node ports still answer every request.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ferroxy_lab::Namespace;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::support::web::{HEALTHZ, METRICS, code, metrics};
use crate::support::{self, Agent, Cluster, DEADLINE, FERROXY, balanced, run_arguments, wait_until};

const MANY: usize = 500;
const HEALTH_PORT: &str = "127.0.0.1:32000";
const OTHER_HEALTH_PORT: &str = "127.0.0.1:32001";

fn one_address(_: usize) -> Ipv4Addr {
    Ipv4Addr::LOCALHOST
}

fn many_addresses(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, (number / 250) as u8, (number % 250 + 1) as u8)
}

/// A connection from this address. `None` if the server is too busy to accept one more at the moment.
fn connect(from: Ipv4Addr, to: SocketAddr) -> Option<TcpStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0)).unwrap();
    rustix::net::connect(&socket, &to).ok()?;
    Some(socket.into())
}

/// Clients that hold connections open and send a byte now and then, until they are dropped.
struct Crowd {
    enough: Arc<AtomicBool>,
    slow: Option<JoinHandle<()>>,
}

impl Crowd {
    /// All are connected when this returns. A third sends nothing, a third sends half of a request's head, and a third
    /// gets one answer and stays connected.
    fn gather(node: &Namespace, to: &str, from: fn(usize) -> Ipv4Addr) -> Crowd {
        let to: SocketAddr = to.parse().unwrap();
        let words = ["", "GET /livez HTTP/1.1\r\nHost: n", "GET /livez HTTP/1.1\r\nHost: n\r\n\r\n"];
        let join = |number: usize| {
            let mut stream = connect(from(number), to)?;
            // The server may have closed it already.
            let _ = stream.write_all(words[number % 3].as_bytes());
            stream.set_nonblocking(true).unwrap();
            Some(stream)
        };
        let mut streams: Vec<TcpStream> = node.run(|| (0..MANY).filter_map(join).collect()).unwrap();
        let enough = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&enough);
        let slow = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for stream in streams.iter_mut().skip(1).step_by(3) {
                    let _ = stream.write(b"x");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Crowd { enough, slow: Some(slow) }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        self.slow.take().unwrap().join().unwrap();
    }
}

/// Clients that connect again and again, and send nothing, until this is dropped.
struct Stream {
    enough: Arc<AtomicBool>,
    work: Option<JoinHandle<ferroxy_lab::Result<usize>>>,
}

impl Stream {
    fn begin(node: &Namespace, to: &str, from: fn(usize) -> Ipv4Addr) -> Stream {
        let to: SocketAddr = to.parse().unwrap();
        let enough = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&enough);
        let work = move || {
            // A bound, in case the test waits for too long.
            let mut kept: Vec<TcpStream> = Vec::new();
            for number in 0..20_000 {
                if stop.load(Ordering::Relaxed) {
                    return number;
                }
                kept.extend(connect(from(number), to));
                if kept.len() > MANY {
                    kept.clear();
                }
            }
            20_000
        };
        Stream { enough, work: Some(node.spawn(work).unwrap()) }
    }

    fn end(mut self) -> usize {
        self.enough.store(true, Ordering::Relaxed);
        self.work.take().unwrap().join().unwrap().unwrap()
    }
}

/// A load balancer that keeps its connection and asks on it again and again.
struct Steady {
    enough: Arc<AtomicBool>,
    work: JoinHandle<()>,
}

impl Steady {
    fn begin(node: &Namespace, to: &'static str) -> Steady {
        let mut stream = node.run(|| TcpStream::connect(to).unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let enough = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&enough);
        let work = std::thread::spawn(move || {
            let mut said = [0; 1024];
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n").unwrap();
                let length = stream.read(&mut said).unwrap();
                assert!(said[..length].starts_with(b"HTTP/1.1 200"), "{:?}", &said[..length]);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Steady { enough, work }
    }

    /// Stops it. Panics if the connection was ever closed.
    fn end(self) {
        self.enough.store(true, Ordering::Relaxed);
        self.work.join().unwrap();
    }
}

/// This many Services with health-check node ports on every address.
fn cluster(services: u16) -> Cluster {
    let cluster = Cluster::new();
    cluster.answer_everywhere();
    for number in 0..services {
        let name = format!("web{number}");
        cluster.write(&format!("{name}.yaml"), &balanced(&name, number, 32000 + number, Some("ka")));
    }
    cluster
}

fn answers(node: &Namespace, address: &str, path: &str) {
    for number in 0..100 {
        assert_eq!(code(node, address, path), Some(200), "request {number} of {address}{path}");
    }
}

#[test]
fn health_and_metrics_answer_among_crowds_and_floods() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = cluster(0);
    let agent = Agent::start(&ka, &cluster);
    let crowds = [
        Crowd::gather(&ka, HEALTHZ, one_address),
        Crowd::gather(&ka, HEALTHZ, many_addresses),
        Crowd::gather(&ka, METRICS, one_address),
    ];
    answers(&ka, HEALTHZ, "/livez");
    answers(&ka, METRICS, "/healthz");
    for from in [one_address as fn(usize) -> Ipv4Addr, many_addresses] {
        let flood = Stream::begin(&ka, HEALTHZ, from);
        answers(&ka, HEALTHZ, "/livez");
        assert!(flood.end() > 0);
    }
    let seen = metrics(&ka);
    // The limits of served and of silent connections.
    for (server, most) in [("healthz", 128.0 + 1024.0), ("metrics", 64.0 + 256.0)] {
        let open = seen[&format!("ferroxy_http_connections{{server=\"{server}\"}}")];
        assert!(open <= most, "{open} connections of {server}");
        assert!(seen[&format!("ferroxy_http_connections_evicted_total{{server=\"{server}\"}}")] > 0.0);
    }
    agent.wait_for(
        "too many connections to healthz: closing the longest idle ones (limits: 32 per client address, 128 per listening socket",
    );
    drop(crowds);
    let gone = || metrics(&ka)["ferroxy_http_connections{server=\"healthz\"}"] == 0.0;
    wait_until("the connections are gone", DEADLINE, gone);
    agent.terminate();
}

#[test]
fn a_flooded_health_check_node_port_answers_and_does_not_cost_others_their_connections() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = cluster(2);
    let agent = Agent::start(&ka, &cluster);
    for port in [HEALTH_PORT, OTHER_HEALTH_PORT] {
        wait_until("the port is open", DEADLINE, || code(&ka, port, "/") == Some(200));
    }
    let steady = Steady::begin(&ka, OTHER_HEALTH_PORT);
    let crowds = [one_address as fn(usize) -> Ipv4Addr, many_addresses]
        .map(|from| Crowd::gather(&ka, HEALTH_PORT, from));
    answers(&ka, HEALTH_PORT, "/");
    answers(&ka, OTHER_HEALTH_PORT, "/");
    steady.end();
    drop(crowds);
    agent.terminate();
}

#[test]
fn few_descriptors_are_shared_so_that_health_answers() {
    let Some(ka) = support::lonely_node() else { return };
    let cluster = cluster(80);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 128 && exec \"$0\" run \"$@\"", FERROXY]);
    let agent = Agent::spawn_as(&ka, command, run_arguments(&cluster.manifests(), &cluster.config()));
    agent.wait_for("in sync");
    agent.wait_for("64 health-check node ports are open, half of this process's limit of open files");
    let crowds = [HEALTHZ, METRICS, HEALTH_PORT, OTHER_HEALTH_PORT]
        .map(|address| Crowd::gather(&ka, address, many_addresses));
    answers(&ka, HEALTHZ, "/livez");
    answers(&ka, HEALTH_PORT, "/");
    drop(crowds);
    agent.terminate();
}
