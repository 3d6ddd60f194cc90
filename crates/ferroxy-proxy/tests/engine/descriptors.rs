//! Descriptors run out: accepting pauses, is counted, and recovers by itself. In a process of its own, with a low limit.

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use ferroxy_lab::PATIENCE;
use ferroxy_proxy::{Frontend, Pool, Settings};
use rustix::process::{Resource, Rlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::peers::{POOL, Proxy, Server, ask, expect_reset, localhost, patient, settings};

const IN_CHILD: &str = "FERROXY_PROXY_FEW_DESCRIPTORS";

fn run_in_child(test: &str) -> bool {
    if std::env::var_os(IN_CHILD).is_some() {
        let limit = Rlimit { current: Some(96), maximum: Some(96) };
        setrlimit(Resource::Nofile, limit).unwrap();
        return false;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(IN_CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    true
}

/// Sockets that can still be connected when there are no descriptors left.
fn clients(count: usize) -> Vec<Socket> {
    (0..count).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect()
}

fn all_that_are_left() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn recovers(proxy: &Proxy) {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "{:?}", proxy.engine.counters());
        let client = TcpStream::connect(proxy.address);
        if client.is_ok_and(|it| ask(&mut patient(it), b"hello").is_ok_and(|answer| answer == b"hello")) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn accepting_pauses_and_recovers_when_the_process_has_no_descriptor_left() {
    if run_in_child("descriptors::accepting_pauses_and_recovers_when_the_process_has_no_descriptor_left") {
        return;
    }
    // The engine's own budget does not limit it, only the kernel does.
    let unlimited = Settings { connections: Some(100_000), ..settings() };
    let server = Server::start(|mut stream| {
        let mut buffer = [0; 64];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            let _ = std::io::Write::write_all(&mut stream, &buffer[..length]);
        }
    });
    let proxy = Proxy::start(unlimited, Frontend::tcp(localhost()).to(POOL), Pool::of([server.address]));
    assert_eq!(ask(&mut proxy.connect(), b"hello").unwrap(), b"hello");
    proxy.wait_until("it is closed", |it| it.active == 0);
    let clients = clients(10);
    let taken = all_that_are_left();
    clients.iter().for_each(|it| it.connect(&proxy.address.into()).unwrap());
    proxy.wait_until_all("accepting has paused", |it| it.engine.pauses > 0);
    proxy.wait_until_all("clients do not hang", |it| it.engine.shed == 10);
    for client in clients {
        expect_reset(&mut patient(client.into()));
    }
    drop(taken);
    recovers(&proxy);
    assert_eq!(proxy.counters().ejections, 0, "no endpoint is to blame");
}

#[test]
fn the_engines_own_budget_leaves_descriptors_to_others() {
    if run_in_child("descriptors::the_engines_own_budget_leaves_descriptors_to_others") {
        return;
    }
    let server = Server::echo();
    let few = Settings { connections: Some(5), ..settings() };
    let proxy = Proxy::start(few, Frontend::tcp(localhost()).to(POOL), Pool::of([server.address]));
    let mut waiting: Vec<_> = (0..12).map(|_| proxy.connect()).collect();
    proxy.wait_until_all("it is full", |it| it.engine.full > 0);
    assert!(proxy.engine.counters().engine.active <= 6, "one more than asked for at each of two threads");
    // Waiting clients are served in their turn when others leave.
    while let Some(mut first) = waiting.first().map(|it| it.try_clone().unwrap()) {
        assert_eq!(ask(&mut first, b"hello").unwrap(), b"hello");
        waiting.remove(0);
    }
    assert_eq!(proxy.engine.counters().engine.accepted, 12);
}
