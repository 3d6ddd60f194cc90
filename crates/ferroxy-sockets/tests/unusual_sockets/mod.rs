//! Sockets that connect in another way than most: MPTCP, TCP Fast Open, bound sockets.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use ferroxy_lab::Namespace;
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, ipproto};
use rustix::net::{bind, connect, getpeername, sendto, socket};

use super::node::{Node, intent, report, service};
use super::{FRONTEND, address};

/// Not in the list of flags that rustix knows.
const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);

fn peer_of(namespace: &Namespace, protocol: Protocol, join: impl FnOnce(&OwnedFd) + Send) -> SocketAddr {
    let peer = namespace.run(|| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, Some(protocol)).unwrap();
        join(&socket);
        SocketAddr::try_from(getpeername(&socket).unwrap().unwrap()).unwrap()
    });
    peer.unwrap()
}

#[test]
pub fn every_way_to_connect_is_translated_but_for_bound_sockets() {
    let Some(node) = Node::new() else { return };
    let dataplane = node.start(&intent([service(1, [1])]), node.options());
    let (frontend, endpoint) = (address(FRONTEND), address("10.244.0.1:8080"));
    let translated = || report(&dataplane).clients.iter().map(|it| it.connections).sum::<u64>();
    for client in [&node.host, &node.pod] {
        let plainly = |socket: &OwnedFd| connect(socket, &frontend).unwrap();
        assert_eq!(peer_of(client, ipproto::TCP, plainly), endpoint);
        assert_eq!(peer_of(client, ipproto::MPTCP, plainly), endpoint, "MPTCP");
        // The answer may be a reset, after which the socket has no peer: check the counter instead.
        let before = translated();
        let at_once = || {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sendto(&socket, b"hello", FAST_OPEN, &frontend).unwrap();
        };
        client.run(at_once).unwrap();
        assert_eq!(translated(), before + 1, "TCP Fast Open");
        let bound = |socket: &OwnedFd| {
            bind(socket, &address("10.9.9.9:0")).unwrap();
            connect(socket, &frontend).unwrap();
        };
        assert_eq!(peer_of(client, ipproto::TCP, bound), frontend, "a bound address");
        let port_only = |socket: &OwnedFd| {
            bind(socket, &address("0.0.0.0:0")).unwrap();
            connect(socket, &frontend).unwrap();
        };
        assert_eq!(peer_of(client, ipproto::TCP, port_only), endpoint, "only a port of its own");
    }
}
