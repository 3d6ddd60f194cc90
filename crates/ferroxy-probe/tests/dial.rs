//! Probes of real sockets on the loopback interface: the outcome for each kind of peer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the functions that tests share are tests too")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ferroxy_core::Protocol;
use ferroxy_core::probe::{Check, Fault, Probe, Target};
use ferroxy_probe::Outcome;
use ferroxy_probe::dial::dial;
use tokio::net::TcpSocket;

/// Long enough for every event that must happen, on any machine.
const PATIENT: Duration = Duration::from_secs(1800);
/// For events that never happen.
const BRIEF: Duration = Duration::from_millis(200);

fn probe(address: SocketAddr, protocol: Protocol, check: Check, timeout: Duration) -> Outcome {
    let interval = timeout;
    let probe = Probe { check, port: None, interval, timeout, failures: 3, successes: 2 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(dial(Target { address, protocol }, &probe))
}

fn tcp(address: SocketAddr) -> Outcome {
    probe(address, Protocol::Tcp, Check::Tcp, PATIENT)
}

fn http(address: SocketAddr, timeout: Duration) -> Outcome {
    probe(address, Protocol::Tcp, Check::Http { path: "/healthz".into() }, timeout)
}

/// Serves one connection.
fn serve<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (address, thread::spawn(move || serve(listener.accept().unwrap().0)))
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
    String::from_utf8(request).unwrap()
}

/// The outcome of an HTTP probe that gets this answer.
fn answered(answer: &'static [u8]) -> Outcome {
    let (address, server) = serve(move |mut stream| {
        read_request(&mut stream);
        stream.write_all(answer).unwrap();
    });
    let outcome = http(address, PATIENT);
    server.join().unwrap();
    outcome
}

/// A port without a listener, as long as the socket lives.
fn unused() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn a_connection_is_enough_and_ends_with_a_reset() {
    let (address, server) = serve(|mut stream| stream.read(&mut [0; 1]).map_err(|error| error.kind()));
    assert_eq!(tcp(address), Outcome::Passed);
    assert_eq!(server.join().unwrap(), Err(std::io::ErrorKind::ConnectionReset));
    let (_unused, address) = unused();
    assert_eq!(tcp(address), Outcome::Failed(Fault::Refused));
}

#[test]
fn a_status_decides_and_redirects_are_not_followed() {
    assert_eq!(answered(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), Outcome::Passed);
    assert_eq!(answered(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"), Outcome::Passed);
    assert_eq!(answered(b"HTTP/1.0 503 Busy\r\n\r\n"), Outcome::Failed(Fault::Status(503)));
    assert_eq!(answered(b"SSH-2.0-OpenSSH_9.6\r\n"), Outcome::Failed(Fault::NotHttp));
    assert_eq!(answered(b""), Outcome::Failed(Fault::Closed));
    assert_eq!(answered(b"HTTP/1.1 "), Outcome::Failed(Fault::Closed));
    let (_unused, address) = unused();
    assert_eq!(http(address, PATIENT), Outcome::Failed(Fault::Refused));
}

#[test]
fn the_request_says_who_asks_whom() {
    let (address, server) = serve(|mut stream| {
        let request = read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        request
    });
    assert_eq!(http(address, PATIENT), Outcome::Passed);
    let request = server.join().unwrap();
    assert!(request.starts_with(&format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n")), "{request}");
    assert!(request.contains("\r\nUser-Agent: ferroxy-health/"), "{request}");
}

#[test]
fn an_endless_answer_is_not_read_to_its_end() {
    let (address, server) = serve(|mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut sent = 0_u64;
        while stream.write_all(&[b'x'; 65_536]).is_ok() {
            sent += 65_536;
        }
        sent
    });
    assert_eq!(http(address, PATIENT), Outcome::Passed);
    // The server ends because the probe has closed the connection. Until then, the kernel buffers a part of the answer.
    server.join().unwrap();
}

#[test]
fn a_body_that_never_comes_does_not_matter_but_a_status_does() {
    let (address, server) = serve(|mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").unwrap();
        // Until the probe gives up.
        let _ = stream.read(&mut [0; 1]);
    });
    assert_eq!(http(address, BRIEF), Outcome::Passed);
    server.join().unwrap();
    let (address, server) = serve(|mut stream| {
        read_request(&mut stream);
        let _ = stream.read(&mut [0; 1]);
    });
    assert_eq!(http(address, BRIEF), Outcome::Failed(Fault::TimedOut));
    server.join().unwrap();
}

#[test]
fn a_head_without_an_end_is_not_read_forever() {
    let (address, server) = serve(|mut stream| {
        read_request(&mut stream);
        while stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n").is_ok() {}
    });
    assert_eq!(http(address, PATIENT), Outcome::Failed(Fault::NotHttp));
    server.join().unwrap();
}

#[test]
fn udp_knows_who_answers_and_who_does_not_listen() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let udp = |timeout| probe(address, Protocol::Udp, Check::Tcp, timeout);
    assert_eq!(udp(BRIEF), Outcome::Silent);
    let echo = thread::spawn(move || {
        let (mut length, mut from) = socket.recv_from(&mut [0; 16]).unwrap();
        // The datagram of the silent probe is still there; its sender is gone.
        socket.send_to(b"x", from).unwrap();
        (length, from) = socket.recv_from(&mut [0; 16]).unwrap_or((length, from));
        socket.send_to(b"x", from).unwrap();
        length
    });
    assert_eq!(udp(PATIENT), Outcome::Passed);
    assert_eq!(echo.join().unwrap(), 0, "the datagram is empty");
    assert_eq!(udp(PATIENT), Outcome::Failed(Fault::Refused));
}
