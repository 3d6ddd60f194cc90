//! The kernel's balancer, against the real kernel and the real `ipvsadm`, in a network namespace of each test's own. Few
//! kernels of test machines have it: `make test-vm` runs these in a virtual machine that does.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test should stop at once"
)]

mod namespace;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock};

use ferroxy_netlink::ipvs::{
    Address, Change, Connection, Destination, Forwarding, PERSISTENT, Timeouts, VirtualServer, is_missing,
};
use ferroxy_netlink::route;
use rustix::io::Errno;

const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
const SCTP: u8 = libc::IPPROTO_SCTP as u8;

/// A long listing is only complete while no servers change in any namespace: a test with a long listing takes the write lock.
static SERVERS_CHANGE: RwLock<()> = RwLock::new(());

/// Runs the test in a thread that has moved to a fresh network namespace; it ends with the thread.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let _beside_others = SERVERS_CHANGE.read().unwrap_or_else(PoisonError::into_inner);
    in_namespace_alone(test);
}

fn in_namespace_alone(test: impl FnOnce() + Send + 'static) {
    namespace::in_namespace(move || {
        let mut links = route::Connection::open().unwrap();
        let loopback = links.link("lo").unwrap().index;
        links.set_up(loopback).unwrap();
        test();
    });
}

fn ipvsadm(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("ipvsadm")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test needs ipvsadm");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ipvsadm {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// All servers and destinations, as the tool prints them.
fn saved() -> Vec<String> {
    let mut lines: Vec<String> = ipvsadm(&["-Sn"], "").lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

fn address(text: &str, protocol: u8) -> Address {
    let at: SocketAddr = text.parse().unwrap();
    Address { ip: at.ip(), protocol, port: at.port() }
}

fn server(text: &str, protocol: u8, scheduler: &str) -> VirtualServer {
    let address = address(text, protocol);
    let client_prefix = if address.ip.is_ipv4() { 32 } else { 128 };
    VirtualServer { address, scheduler: scheduler.into(), flags: 0, timeout: 0, client_prefix }
}

fn destination(text: &str, weight: u32) -> Destination {
    Destination { address: text.parse().unwrap(), forwarding: Forwarding::Masquerade, weight }
}

/// Servers of all kinds with destinations, and the lines that the tool has for them.
fn everything() -> Vec<(VirtualServer, Vec<Destination>, Vec<&'static str>)> {
    let sticky = |server: VirtualServer, timeout| VirtualServer { flags: PERSISTENT, timeout, ..server };
    vec![
        (
            server("10.96.0.80:80", TCP, "rr"),
            vec![destination("10.244.1.5:8080", 1), destination("10.244.2.5:8080", 0)],
            vec![
                "-A -t 10.96.0.80:80 -s rr",
                "-a -t 10.96.0.80:80 -r 10.244.1.5:8080 -m -w 1",
                "-a -t 10.96.0.80:80 -r 10.244.2.5:8080 -m -w 0",
            ],
        ),
        (
            sticky(server("10.96.0.81:53", UDP, "wlc"), 10800),
            vec![destination("10.244.1.5:53", 7)],
            vec!["-A -u 10.96.0.81:53 -s wlc -p 10800", "-a -u 10.96.0.81:53 -r 10.244.1.5:53 -m -w 7"],
        ),
        (server("10.96.0.82:7777", SCTP, "rr"), vec![], vec!["-A --sctp-service 10.96.0.82:7777 -s rr"]),
        (
            VirtualServer { flags: 0x10, ..server("10.96.0.83:80", TCP, "mh") },
            vec![],
            vec!["-A -t 10.96.0.83:80 -s mh -b mh-port"],
        ),
        (
            sticky(server("[fd00:10:96::80]:80", TCP, "rr"), 360),
            vec![destination("[fd00:10:244:1::5]:80", 1)],
            vec![
                "-A -t [fd00:10:96::80]:80 -s rr -p 360",
                "-a -t [fd00:10:96::80]:80 -r [fd00:10:244:1::5]:80 -m -w 1",
            ],
        ),
    ]
}

fn added(server: &VirtualServer, destinations: &[Destination]) -> Vec<Change> {
    let all = destinations.iter().map(|it| Change::AddDestination(server.address, *it));
    std::iter::once(Change::AddServer(server.clone())).chain(all).collect()
}

fn lines() -> Vec<String> {
    let mut lines: Vec<String> =
        everything().into_iter().flat_map(|(.., lines)| lines).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn what_we_make_the_tool_lists() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let changes: Vec<Change> =
            everything().iter().flat_map(|(server, destinations, _)| added(server, destinations)).collect();
        assert_eq!(connection.change(&changes).unwrap(), []);
        assert_eq!(saved(), lines());
    });
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn what_the_tool_makes_we_list() {
    in_namespace(|| {
        ipvsadm(&["-R"], &(lines().join("\n") + "\n-A -f 7 -s rr\n"));
        let mut connection = Connection::open().unwrap();
        let mut servers = connection.servers().unwrap();
        servers.sort_by_key(|server| server.address);
        let mut expected = everything();
        expected.sort_by_key(|(server, ..)| server.address);
        assert_eq!(servers.len(), expected.len(), "that of a firewall mark has no address: {servers:?}");
        for (found, (mut wanted, destinations, _)) in servers.into_iter().zip(expected) {
            // The kernel also has a default timeout for servers that are not persistent, and does not use it.
            if wanted.flags & PERSISTENT == 0 {
                wanted.timeout = found.timeout;
            }
            assert_eq!(found, wanted);
            let mut found = connection.destinations(&wanted.address).unwrap();
            found.sort_by_key(|it| it.destination.address);
            assert!(found.iter().all(|it| (it.active, it.inactive, it.persistent) == (0, 0, 0)));
            let found: Vec<Destination> = found.into_iter().map(|it| it.destination).collect();
            assert_eq!(found, destinations);
        }
        assert_eq!(connection.destinations(&address("192.0.2.1:1", TCP)).unwrap(), []);
    });
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn servers_and_destinations_change_and_refusals_are_reported() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let one = server("10.96.0.80:80", TCP, "rr");
        let at = one.address;
        let (near, far) = (destination("10.244.1.5:80", 1), destination("10.244.2.5:80", 1));
        assert_eq!(connection.change(&added(&one, &[near, far])).unwrap(), []);
        let nosuch = address("192.0.2.1:1", TCP);
        let changes = [
            Change::AddServer(one.clone()),
            Change::SetServer(VirtualServer {
                scheduler: "wlc".into(),
                flags: PERSISTENT,
                timeout: 60,
                ..one.clone()
            }),
            Change::AddDestination(at, near),
            Change::SetDestination(at, Destination { weight: 0, ..near }),
            Change::RemoveDestination(at, far.address),
            Change::RemoveDestination(at, far.address),
            Change::AddDestination(nosuch, near),
            Change::RemoveServer(nosuch),
            Change::AddServer(server("10.96.0.81:80", TCP, "nosuch")),
        ];
        let refused = connection.change(&changes).unwrap();
        let shown: Vec<_> = refused.iter().map(|it| (it.index, it.error.errno)).collect();
        assert_eq!(
            shown,
            [
                (0, Errno::EXIST),
                (2, Errno::EXIST),
                (5, Errno::NOENT),
                (6, Errno::SRCH),
                (7, Errno::SRCH),
                (8, Errno::NOENT),
            ]
        );
        let words = refused[1].error.to_string();
        assert_eq!(words, "cannot add destination 10.96.0.80:80/tcp to 10.244.1.5:80: File exists");
        assert_eq!(
            saved(),
            ["-A -t 10.96.0.80:80 -s wlc -p 60", "-a -t 10.96.0.80:80 -r 10.244.1.5:80 -m -w 0"]
        );
        assert_eq!(connection.change(&[Change::RemoveServer(at)]).unwrap(), []);
        assert_eq!(saved(), [""; 0]);
    });
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn a_thousand_servers_at_once() {
    let _alone = SERVERS_CHANGE.write().unwrap_or_else(PoisonError::into_inner);
    in_namespace_alone(|| {
        let mut connection = Connection::open().unwrap();
        let servers: Vec<VirtualServer> = (0..1000u16)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                server(&format!("10.96.{high}.{low}:80"), TCP, "rr")
            })
            .collect();
        let changes: Vec<Change> =
            servers.iter().flat_map(|it| added(it, &[destination("10.244.1.5:80", 1)])).collect();
        assert_eq!(connection.change(&changes).unwrap(), []);
        assert_eq!(connection.servers().unwrap().len(), 1000);
        let removed: Vec<Change> = servers.iter().map(|it| Change::RemoveServer(it.address)).collect();
        assert_eq!(connection.change(&removed).unwrap(), []);
        assert_eq!(connection.servers().unwrap(), []);
    });
}

#[test]
#[ignore = "needs IPVS: make test-vm"]
fn timeouts_are_set_and_nought_leaves_them() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        connection.set_timeouts(Timeouts { tcp: 901, tcp_fin: 121, udp: 301 }).unwrap();
        connection.set_timeouts(Timeouts { udp: 302, ..Timeouts::default() }).unwrap();
        assert_eq!(connection.timeouts().unwrap(), Timeouts { tcp: 901, tcp_fin: 121, udp: 302 });
        let shown = ipvsadm(&["-L", "--timeout"], "");
        assert!(shown.contains("901 121 302"), "{shown}");
    });
}

/// Real packets: an address of a dummy device, balanced by turns, and connections that are counted.
#[test]
#[ignore = "needs IPVS and dummy devices: make test-vm"]
fn connections_are_balanced_and_counted() {
    in_namespace(|| {
        let mut links = route::Connection::open().unwrap();
        links.create_dummy("kube-ipvs0").unwrap();
        let link = links.link("kube-ipvs0").unwrap();
        assert_eq!((link.kind.as_deref(), link.up), (Some("dummy"), false));
        let ip = IpAddr::from([10, 96, 0, 80]);
        // The addresses of a device belong to the host even if the device is down.
        let bound = route::Address { link: link.index, ip, prefix_length: 32 };
        assert_eq!(links.add_addresses(&[bound]).unwrap(), []);
        assert_eq!(links.addresses_of(link.index).unwrap(), [bound]);

        let listeners = ["127.0.0.2:8080", "127.0.0.3:8080"].map(|at| TcpListener::bind(at).unwrap());
        let one = server("10.96.0.80:80", TCP, "rr");
        let mut connection = Connection::open().unwrap();
        let both = [destination("127.0.0.2:8080", 1), destination("127.0.0.3:8080", 1)];
        assert_eq!(connection.change(&added(&one, &both)).unwrap(), []);
        let mut clients: Vec<TcpStream> =
            (0..4).map(|_| TcpStream::connect("10.96.0.80:80").unwrap()).collect();
        for listener in &listeners {
            for _ in 0..2 {
                listener.accept().unwrap().0.write_all(b"x").unwrap();
            }
        }
        for client in &mut clients {
            client.read_exact(&mut [0]).unwrap();
        }
        let mut found = connection.destinations(&one.address).unwrap();
        found.sort_by_key(|it| it.destination.address);
        assert_eq!(found.iter().map(|it| it.active + it.inactive).collect::<Vec<_>>(), [2, 2]);

        links.delete_link_named("kube-ipvs0").unwrap();
        assert!(UdpSocket::bind("10.96.0.80:0").is_err(), "the address went with its device");
    });
}

/// The only test here that does not need the virtual machine, so no other test loads the module meanwhile.
#[test]
fn asking_whether_it_is_there_loads_nothing_and_a_kernel_without_it_says_so() {
    in_namespace(|| {
        let is_loaded = || std::path::Path::new("/proc/thread-self/net/ip_vs").exists();
        let loaded = is_loaded();
        assert_eq!(Connection::open_if_loaded().unwrap().is_some(), loaded);
        assert_eq!(is_loaded(), loaded);
        match Connection::open() {
            Ok(_) => assert!(is_loaded()),
            Err(error) => {
                assert!(is_missing(&error), "{error:?}");
                assert_eq!(error.to_string(), "cannot find netlink family IPVS: No such file or directory");
            }
        }
    });
}
