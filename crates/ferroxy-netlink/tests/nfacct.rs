//! Named packet counters against the real kernel and the real `iptables`, in a network namespace of each test's own. Needs root
//! (or `unshare -Urn` around it).

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test should stop at once"
)]

mod namespace;

use std::net::UdpSocket;
use std::process::Command;

use ferroxy_netlink::nfacct::{Connection, Counter, is_missing};
use ferroxy_netlink::route;
use rustix::io::Errno;

/// Runs the test with a connection in a fresh network namespace, if this kernel can.
fn in_namespace(test: impl FnOnce(Connection) + Send + 'static) {
    namespace::in_namespace(move || {
        let mut connection = Connection::open().unwrap();
        match connection.read("probe") {
            Err(error) if is_missing(&error) && std::env::var_os("CI").is_none() => {
                eprintln!("SKIPPED: this kernel has no nfacct: {error}");
            }
            probed => {
                assert_eq!(probed, Ok(None));
                test(connection);
            }
        }
    });
}

#[test]
fn a_counter_is_made_once_and_goes() {
    in_namespace(|mut connection| {
        connection.ensure("ct_state_invalid_dropped_pkts").unwrap();
        connection.ensure("ct_state_invalid_dropped_pkts").unwrap();
        let nought = Counter { packets: 0, bytes: 0 };
        assert_eq!(connection.read("ct_state_invalid_dropped_pkts"), Ok(Some(nought)));
        assert_eq!(
            connection.read("localhost_nps_accepted_pkts"),
            Ok(None),
            "another name is another counter"
        );
        connection.remove("ct_state_invalid_dropped_pkts").unwrap();
        connection.remove("ct_state_invalid_dropped_pkts").unwrap();
        assert_eq!(connection.read("ct_state_invalid_dropped_pkts"), Ok(None));
    });
}

#[test]
fn rules_count_into_it_and_making_it_again_keeps_the_count() {
    in_namespace(|mut connection| {
        let mut links = route::Connection::open().unwrap();
        let loopback = links.link("lo").unwrap().index;
        links.set_up(loopback).unwrap();
        connection.ensure("sent").unwrap();
        let rule = ["-A", "OUTPUT", "-p", "udp", "-m", "nfacct", "--nfacct-name", "sent"];
        let status = Command::new("iptables").args(rule).status().expect("this test needs iptables");
        assert!(status.success());

        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        (0..3)
            .for_each(|_| assert_eq!(socket.send_to(b"12345678", socket.local_addr().unwrap()).unwrap(), 8));
        // An IPv4 header, a UDP header, the payload.
        let expected = Ok(Some(Counter { packets: 3, bytes: 3 * (20 + 8 + 8) }));
        assert_eq!(connection.read("sent"), expected);
        connection.ensure("sent").unwrap();
        assert_eq!(connection.read("sent"), expected);
        assert_eq!(connection.remove("sent").unwrap_err().errno, Errno::BUSY);
    });
}

#[test]
fn a_name_the_kernel_does_not_take_is_an_error_that_names_it() {
    in_namespace(|mut connection| {
        let error = connection.ensure(&"x".repeat(40)).unwrap_err();
        assert!(error.to_string().contains("make packet counter xxxx"), "{error}");
    });
}
