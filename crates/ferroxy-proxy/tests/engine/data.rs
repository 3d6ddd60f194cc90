//! Bytes: all of them, in order, in both directions, whichever side closes first and however.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ferroxy_lab::PATIENCE;
use ferroxy_proxy::{Frontend, Pool, Settings, Timeouts};

use crate::peers::{POOL, Proxy, Server, ask, expect_reset, localhost, patient, reset, settings};

/// The same bytes for the same seed, in pieces of varying size.
fn pattern(seed: u64, position: usize) -> u8 {
    let block = (position as u64 / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed;
    block.rotate_left((position % 8) as u32 * 8).to_le_bytes()[3]
}

fn send(stream: &mut TcpStream, seed: u64, length: usize) {
    let mut sent = 0;
    let mut step = seed;
    while sent < length {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let piece = ((step >> 33) as usize % 200_000 + 1).min(length - sent);
        let bytes: Vec<u8> = (sent..sent + piece).map(|position| pattern(seed, position)).collect();
        stream.write_all(&bytes).unwrap();
        sent += piece;
        if step >> 62 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads to the end; returns how many bytes there were.
fn receive(stream: &mut TcpStream, seed: u64) -> usize {
    let mut buffer = vec![0; 100_000];
    let mut received = 0;
    loop {
        let length = stream.read(&mut buffer).unwrap();
        if length == 0 {
            return received;
        }
        for (index, byte) in buffer[..length].iter().enumerate() {
            assert_eq!(*byte, pattern(seed, received + index), "byte {}", received + index);
        }
        received += length;
    }
}

/// Sends on one thread and receives on another; each side ends its direction when it has sent everything.
fn exchange(mut stream: TcpStream, out: (u64, usize), back_seed: u64) -> usize {
    let mut reader = stream.try_clone().unwrap();
    let receiver = thread::spawn(move || receive(&mut reader, back_seed));
    send(&mut stream, out.0, out.1);
    stream.shutdown(Shutdown::Write).unwrap();
    receiver.join().unwrap()
}

fn bulk(splice: bool) {
    let sizes =
        [(0, 0), (1, 0), (0, 1), (70_000, 3), (5, 3_000_000), (9_000_000, 9_000_000), (2_000_000, 65_536)];
    let proxy_settings = Settings { splice, ..settings() };
    for (seed, (up, down)) in (1u64..).zip(sizes) {
        let (told, server_received) = mpsc::channel();
        let server = Server::start(move |stream| {
            told.send(exchange(stream, (seed + 100, down), seed)).unwrap();
        });
        let frontend = Frontend::tcp(localhost()).to(POOL);
        let proxy = Proxy::start(proxy_settings.clone(), frontend, Pool::of([server.address]));
        let clients: Vec<_> = (0..3)
            .map(|_| proxy.connect())
            .map(|client| thread::spawn(move || exchange(client, (seed, up), seed + 100)))
            .collect();
        for client in clients {
            assert_eq!(client.join().unwrap(), down, "of {up} and {down}");
            assert_eq!(server_received.recv_timeout(PATIENCE).unwrap(), up, "of {up} and {down}");
        }
        proxy.wait_until("all are closed", |it| it.active == 0);
        let counters = proxy.counters();
        assert_eq!((counters.bytes_in, counters.bytes_out), (3 * up as u64, 3 * down as u64));
    }
}

#[test]
fn every_byte_arrives_with_splice() {
    bulk(true);
}

#[test]
fn every_byte_arrives_without_splice() {
    bulk(false);
}

#[test]
fn a_client_that_ends_its_direction_gets_the_whole_answer() {
    let server = Server::start(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all.repeat(100_000)).unwrap();
    });
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut client = proxy.connect();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 800_000);
}

#[test]
fn a_server_that_ends_its_direction_still_receives() {
    let (told, received) = mpsc::channel();
    let server = Server::start(move |mut stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        told.send(all).unwrap();
    });
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut client = proxy.connect();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"bye");
    client.write_all(b"and one more thing").unwrap();
    drop(client);
    assert_eq!(received.recv_timeout(PATIENCE).unwrap(), b"and one more thing");
}

/// A read ends before the urgent byte although more has arrived, so that a short read does not mean an empty socket.
#[test]
fn urgent_data_does_not_hold_back_what_follows() {
    let server = Server::echo();
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut client = proxy.connect();
    for _ in 0..200 {
        let socket = socket2::SockRef::from(&client);
        socket.send(b"a").unwrap();
        socket.send_out_of_band(b"!").unwrap();
        socket.send(b"b").unwrap();
        let mut answer = [0; 2];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ab");
    }
}

#[test]
fn a_reset_is_passed_on_as_a_reset() {
    let (told, seen) = mpsc::channel();
    let server = Server::start(move |mut stream| {
        let mut buffer = [0; 16];
        match stream.read(&mut buffer) {
            Ok(_) if &buffer[..5] == b"reset" => reset(stream),
            Ok(_) => told.send(stream.read(&mut buffer).map_err(|error| error.kind())).unwrap(),
            Err(error) => told.send(Err(error.kind())).unwrap(),
        }
    });
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut client = proxy.connect();
    client.write_all(b"reset").unwrap();
    expect_reset(&mut client);
    let mut client = proxy.connect();
    client.write_all(b"hello").unwrap();
    proxy.wait_until("the bytes have passed", |it| it.bytes_in == 10);
    reset(client);
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset));
    proxy.wait_until("both are closed", |it| it.active == 0);
}

#[test]
fn a_slow_reader_gets_everything_and_memory_stays_bounded() {
    let server = Server::start(|mut stream| send(&mut stream, 7, 40_000_000));
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut client = proxy.connect();
    let mut buffer = vec![0; 1_000];
    let mut received = 0;
    for _ in 0..200 {
        received += client.read(&mut buffer).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    // Bytes that the engine has read and not passed on are in one pipe or buffer; the kernel's sockets hold the rest.
    assert!(proxy.counters().bytes_out < 39_000_000, "{:?}", proxy.counters());
    while received < 40_000_000 {
        received += client.read(&mut buffer).unwrap();
        buffer.resize(100_000, 0);
    }
    assert_eq!(client.read(&mut buffer).unwrap(), 0);
}

#[test]
fn half_closed_connections_end() {
    let server = Server::start(|mut stream| {
        // Reads to the end, and then neither answers nor closes.
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let _ = stream.read_to_end(&mut all);
        thread::sleep(PATIENCE);
    });
    let timeouts = Timeouts { half_close: Duration::from_millis(200), ..Timeouts::default() };
    let proxy = Proxy::tcp(Pool { timeouts, ..Pool::of([server.address]) });
    let mut client = proxy.connect();
    client.shutdown(Shutdown::Write).unwrap();
    expect_reset(&mut client);
    proxy.wait_until("the connection is gone", |it| it.active == 0 && it.timed_out == 1);
}

#[test]
fn idle_connections_end_and_busy_ones_do_not() {
    let server = Server::echo();
    // Longer than a busy machine keeps the talker waiting.
    let timeouts = Timeouts { idle: Some(Duration::from_secs(10)), ..Timeouts::default() };
    let proxy = Proxy::tcp(Pool { timeouts, ..Pool::of([server.address]) });
    let (mut idle, mut busy) = (proxy.connect(), proxy.connect());
    ask(&mut idle, b"once").unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    let talker = thread::spawn(move || {
        while stopped.try_recv().is_err() {
            ask(&mut busy, b"again").unwrap();
        }
        busy
    });
    expect_reset(&mut idle);
    proxy.wait_until("one has timed out", |it| it.timed_out == 1);
    stop.send(()).unwrap();
    let mut busy = talker.join().unwrap();
    assert_eq!(ask(&mut busy, b"still here").unwrap(), b"still here");
}

#[test]
fn a_vanished_server_is_noticed_at_the_next_byte() {
    let server = Server::start(drop);
    let proxy = Proxy::tcp(Pool::of([server.address]));
    let mut client = proxy.connect();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0, "its end is passed on");
    // The first write may still succeed; the server's host answers it with a reset.
    let failed = (0..10_000).find_map(|_| {
        thread::sleep(Duration::from_millis(1));
        client.write_all(b"anyone?").err()
    });
    assert!(failed.is_some());
    proxy.wait_until("it is gone", |it| it.active == 0);
}

#[test]
fn the_proxy_header_comes_before_the_first_byte() {
    let (told, seen) = mpsc::channel();
    let server = Server::start(move |mut stream| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        told.send(bytes).unwrap();
    });
    let proxy = Proxy::tcp(Pool { proxy_protocol: true, ..Pool::of([server.address]) });
    let mut client = patient(proxy.connect());
    let source = client.local_addr().unwrap();
    client.write_all(b"GET /").unwrap();
    drop(client);
    let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0C\x7F\0\0\x01\x7F\0\0\x01".to_vec();
    expected.extend(source.port().to_be_bytes());
    expected.extend(proxy.address.port().to_be_bytes());
    expected.extend(b"GET /");
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap(), expected);
}
