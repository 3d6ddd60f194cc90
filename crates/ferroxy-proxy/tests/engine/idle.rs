//! 20,000 idle connections at a time: each costs little memory, works when it is used again, and is released at its end. The engine
//! and its peers run in processes of their own, as many as the limit of open files requires.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use ferroxy_lab::capability::skip;
use ferroxy_lab::{Capability, Namespace, require};
use ferroxy_proxy::Pool;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::peers::{Proxy, localhost, patient};

const CONNECTIONS: usize = 20_000;
/// Of the engine, without the kernel's sockets. The original took 10.7 KB.
const BYTES_OF_EACH: usize = 10_000;
/// More processes would show little about a single one.
const MOST_PROCESSES: usize = 8;
/// The number of connections that a child opens.
const IN_CHILD: &str = "FERROXY_PROXY_IDLE_CONNECTIONS";

/// Engine, clients and endpoint of one process: four descriptors for each connection.
fn connections_of_a_process() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: Some(100_000), maximum: Some(100_000) };
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // To raise the hard limit is a privilege of its own.
    setrlimit(Resource::Nofile, raised).or_else(|_| setrlimit(Resource::Nofile, most)).unwrap();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (limit.saturating_sub(1_000) / 4).min(CONNECTIONS as u64) as usize
}

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A client and the endpoint's side of its connection.
type Pair = (TcpStream, TcpStream);

/// Both ends of new connections. The clients send their places, by which the endpoint recognises them: all threads dial at once.
fn connect(proxy: &Proxy, endpoint: &TcpListener, count: usize) -> Vec<Pair> {
    let clients: Vec<TcpStream> = (0..count).map(|_| proxy.connect()).collect();
    for (client, place) in clients.iter().zip(0_u32..) {
        (&*client).write_all(&place.to_be_bytes()).unwrap();
    }
    let mut accepted: Vec<(u32, TcpStream)> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = patient(endpoint.accept().unwrap().0);
        let mut place = [0; 4];
        stream.read_exact(&mut place).unwrap();
        accepted.push((u32::from_be_bytes(place), stream));
    }
    accepted.sort_by_key(|(place, _)| *place);
    clients.into_iter().zip(accepted.into_iter().map(|(_, stream)| stream)).collect()
}

fn still_works((client, server): &mut Pair) {
    server.write_all(b"still here").unwrap();
    let mut received = [0; 10];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"still here");
}

/// Opens the connections, reports the memory of each, waits, and uses and ends them.
fn in_child(count: usize) {
    connections_of_a_process();
    let endpoint = TcpListener::bind(localhost()).unwrap();
    let proxy = Proxy::tcp(Pool::of([endpoint.local_addr().unwrap()]));
    let mut pairs = Vec::with_capacity(count);
    // Memory that a process needs once does not count as memory of a connection.
    pairs.extend(connect(&proxy, &endpoint, 64.min(count)));
    let before = resident_bytes();
    while pairs.len() < count {
        pairs.extend(connect(&proxy, &endpoint, 64.min(count - pairs.len())));
    }
    let bytes = resident_bytes().saturating_sub(before) / count;
    proxy.wait_until("all are connected", |it| it.active == count as u64);
    println!("\nbytes {bytes}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    pairs.iter_mut().step_by(100).for_each(still_works);
    drop(pairs);
    proxy.wait_until("all have ended", |it| it.active == 0);
    assert_eq!(proxy.counters().failed_dials, 0);
}

fn spawn(namespace: &Namespace, count: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "idle::twenty_thousand_idle_connections_take_little_memory", "--nocapture"])
        .env(IN_CHILD, count.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    namespace.run(|| command.spawn()).unwrap().unwrap()
}

fn reported(child: &mut Child) -> usize {
    let output = BufReader::new(child.stdout.as_mut().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    let found = lines.find_map(|line| line.strip_prefix("bytes ")?.parse().ok());
    found.expect("a child that opens its connections")
}

#[test]
fn twenty_thousand_idle_connections_take_little_memory() {
    if let Some(count) = std::env::var_os(IN_CHILD) {
        return in_child(count.to_str().unwrap().parse().unwrap());
    }
    let most = connections_of_a_process();
    if most * MOST_PROCESSES < CONNECTIONS {
        return skip("the limit of open files is too low for 20,000 connections");
    }
    if !require(&[Capability::NetworkNamespaces]) {
        return;
    }
    let namespace = Namespace::new("idle").unwrap();
    let processes = CONNECTIONS.div_ceil(most);
    let share = CONNECTIONS.div_ceil(processes);
    let mut children: Vec<Child> = (0..processes).map(|_| spawn(&namespace, share)).collect();
    // All of them hold their connections until the last one has opened its own.
    let bytes: Vec<usize> = children.iter_mut().map(reported).collect();
    for child in &mut children {
        drop(child.stdin.take());
    }
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert!(bytes.iter().all(|it| *it < BYTES_OF_EACH), "bytes of each connection, by process: {bytes:?}");
    assert!(bytes.iter().any(|it| *it > 0), "nothing was measured");
}
