//! Links, addresses and routes on the real kernel, each test in network namespaces of its own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too; clippy only knows the functions")]

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use ferroxy_netlink::route::{Address, AddressMonitor, Connection, Moved, Notice, Route};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Runs a test on a thread in a namespace of its own. Where that is not possible it is skipped with a message, and fails in CI.
fn in_namespace(test: fn()) {
    let entered = thread::spawn(move || enter_new_namespace().map(|_| test()));
    if let Err(error) = entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
        assert!(std::env::var_os("CI").is_none(), "cannot make a network namespace: {error}");
        let line = format!("SKIPPED: cannot make a network namespace: {error} (try `unshare -Urnm`)\n");
        // Not eprintln!, whose output the test harness keeps to itself when a test passes.
        io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

fn enter_new_namespace() -> io::Result<OwnedFd> {
    // SAFETY: the descriptor table stays shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(link: u32, text: &str) -> Address {
    let (ip, prefix_length) = text.split_once('/').unwrap();
    Address { link, ip: ip.parse().unwrap(), prefix_length: prefix_length.parse().unwrap() }
}

fn route(destination: &str, gateway: Option<&str>, link: Option<u32>) -> Route {
    let Address { ip, prefix_length, .. } = address(0, destination);
    Route { destination: ip, prefix_length, gateway: gateway.map(self::ip), link }
}

/// The address the kernel would send from, which shows the route that it takes.
fn source_towards(target: &str) -> io::Result<IpAddr> {
    let target = ip(target);
    let any = if target.is_ipv4() { ip("0.0.0.0") } else { ip("::") };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((target, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// A link that is up and has a carrier: one end of a cable whose other end is up too.
fn cable(connection: &mut Connection, name: &str) -> u32 {
    let other_end = format!("{name}-end");
    connection.create_veth(name, &other_end, None).unwrap();
    for end in [name, &other_end] {
        let index = connection.link(end).unwrap().index;
        connection.set_up(index).unwrap();
    }
    connection.link(name).unwrap().index
}

fn link_names(connection: &mut Connection) -> Vec<String> {
    let mut names: Vec<_> = connection.links().unwrap().into_iter().map(|link| link.name).collect();
    names.sort();
    names
}

#[test]
fn a_bridge_with_a_hairpin_port() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        connection.create_bridge("cbr0").unwrap();
        connection.create_veth("vetha1", "eth0", None).unwrap();
        let bridge = connection.link("cbr0").unwrap();
        let port = connection.link("vetha1").unwrap();
        assert_eq!(bridge.kind.as_deref(), Some("bridge"));
        assert_eq!(
            (port.kind.as_deref(), port.master, port.hairpin, port.up),
            (Some("veth"), None, None, false)
        );

        connection.set_master(port.index, Some(bridge.index)).unwrap();
        connection.set_up(port.index).unwrap();
        let port = connection.link("vetha1").unwrap();
        assert_eq!((port.master, port.hairpin, port.up), (Some(bridge.index), Some(false), true));

        connection.set_hairpin(port.index, true).unwrap();
        assert_eq!(connection.link("vetha1").unwrap().hairpin, Some(true));
        connection.set_hairpin(port.index, false).unwrap();
        assert_eq!(connection.link("vetha1").unwrap().hairpin, Some(false));

        connection.set_master(port.index, None).unwrap();
        connection.set_down(port.index).unwrap();
        let port = connection.link("vetha1").unwrap();
        assert_eq!((port.master, port.hairpin, port.up), (None, None, false));
    });
}

#[test]
fn a_cable_is_operational_when_both_ends_are_up() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        connection.create_veth("near", "far", None).unwrap();
        let (near, far) = (connection.link("near").unwrap(), connection.link("far").unwrap());
        connection.set_up(near.index).unwrap();
        assert!(!connection.link("near").unwrap().operational);
        connection.set_up(far.index).unwrap();
        // The kernel's link watcher runs with a delay. If it never runs, the test hangs.
        while !connection.link("near").unwrap().operational {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_link_is_renamed_readdressed_and_deleted() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        connection.create_bridge("before").unwrap();
        let index = connection.link("before").unwrap().index;
        let mac = [0x02, 0, 0, 0, 0, 0x07];
        connection.rename(index, "after").unwrap();
        connection.set_mac(index, mac).unwrap();
        let link = connection.link("after").unwrap();
        assert_eq!((link.index, link.mac), (index, Some(mac)));
        assert_eq!(link_names(&mut connection), ["after", "lo"]);

        connection.delete_link(index).unwrap();
        assert_eq!(connection.link("after").unwrap_err().errno, Errno::NODEV);
        assert_eq!(link_names(&mut connection), ["lo"]);
    });
}

#[test]
fn a_peer_is_made_in_another_namespace_and_a_link_moves_there() {
    in_namespace(|| {
        let here = File::open("/proc/thread-self/ns/net").unwrap();
        let mut connection = Connection::open().unwrap();
        let there = enter_new_namespace().unwrap();
        let mut other = Connection::open().unwrap();
        move_into_link_name_space(here.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();

        connection.create_veth("near", "far", Some(there.as_fd())).unwrap();
        connection.create_veth("mover", "stayer", None).unwrap();
        let mover = connection.link("mover").unwrap().index;
        connection.move_to_namespace(mover, there.as_fd()).unwrap();
        assert_eq!(link_names(&mut connection), ["lo", "near", "stayer"]);
        assert_eq!(link_names(&mut other), ["far", "lo", "mover"]);
    });
}

#[test]
fn a_refusal_says_what_and_why() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        connection.create_bridge("twice").unwrap();
        let error = connection.create_bridge("twice").unwrap_err();
        assert_eq!(
            (error.operation, error.object.as_str(), error.errno),
            ("create link", "twice", Errno::EXIST)
        );
        let error = connection.create_bridge("a-name-longer-than-fifteen").unwrap_err();
        assert!(error.explanation.is_some(), "no words from the kernel in: {error}");
        let error = connection.add_route(route("10.9.0.0/16", Some("10.1.0.1"), None)).unwrap_err();
        assert_eq!((error.object.as_str(), error.errno), ("10.9.0.0/16 via 10.1.0.1", Errno::NETUNREACH));
    });
}

#[test]
fn addresses_come_and_go_and_are_usable_at_once() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let link = cable(&mut connection, "d0");
        let (four, six) = (address(link, "10.1.0.2/24"), address(link, "fd00:1::2/64"));
        connection.add_address(four).unwrap();
        connection.add_address(six).unwrap();
        let listed = connection.addresses().unwrap();
        assert!(listed.contains(&four) && listed.contains(&six), "{listed:?}");
        assert_eq!(connection.add_address(six).unwrap_err().errno, Errno::EXIST);
        // An address still in duplicate address detection cannot be bound.
        UdpSocket::bind((six.ip, 0)).unwrap();

        connection.remove_address(four).unwrap();
        connection.remove_address(six).unwrap();
        let listed = connection.addresses().unwrap();
        assert!(!listed.contains(&four) && !listed.contains(&six), "{listed:?}");
        assert_eq!(connection.remove_address(four).unwrap_err().errno, Errno::ADDRNOTAVAIL);
    });
}

#[test]
fn many_addresses_come_and_go_at_once() {
    in_namespace(|| {
        // No link-local addresses of the kernel's own making.
        std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap();
        let mut connection = Connection::open().unwrap();
        let link = cable(&mut connection, "d0");
        let other = cable(&mut connection, "d1");
        let ours = |count: u32| -> Vec<Address> {
            (1..=count)
                .flat_map(|number| {
                    let [_, _, high, low] = number.to_be_bytes();
                    let six = format!("fd00:1::{number:x}/128");
                    [address(link, &format!("10.96.{high}.{low}/32")), address(link, &six)]
                })
                .collect()
        };
        let foreign = address(other, "10.1.0.2/24");
        connection.add_address(foreign).unwrap();
        assert_eq!(connection.add_addresses(&ours(300)).unwrap(), []);
        let found: std::collections::BTreeSet<_> =
            connection.addresses_of(link).unwrap().into_iter().collect();
        assert_eq!(found, ours(300).into_iter().collect());

        // Those that exist are reported; the others are added.
        let refused = connection.add_addresses(&ours(301)).unwrap();
        assert_eq!(refused.iter().map(|it| it.index).collect::<Vec<_>>(), (0..600).collect::<Vec<_>>());
        assert!(refused.iter().all(|it| it.error.errno == Errno::EXIST));
        assert_eq!(refused[0].error.object, format!("10.96.0.1/32 on link {link}"));

        // One refusal does not affect its neighbours, across several datagrams.
        let every_second: Vec<_> = ours(301).into_iter().step_by(2).collect();
        assert_eq!(connection.remove_addresses(&every_second).unwrap(), []);
        let refused = connection.add_addresses(&ours(301)).unwrap();
        let expected: Vec<_> = (0..602).filter(|index| index % 2 == 1).collect();
        assert_eq!(refused.iter().map(|it| it.index).collect::<Vec<_>>(), expected);

        assert_eq!(connection.remove_addresses(&ours(301)).unwrap(), []);
        let refused = connection.remove_addresses(&ours(1)).unwrap();
        assert!(refused.iter().all(|it| it.error.errno == Errno::ADDRNOTAVAIL), "{refused:?}");
        assert_eq!(connection.addresses_of(link).unwrap(), []);
        assert_eq!(connection.addresses_of(other).unwrap(), [foreign]);
    });
}

#[test]
fn a_link_goes_by_its_name() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        connection.create_bridge("br0").unwrap();
        connection.delete_link_named("br0").unwrap();
        assert_eq!(link_names(&mut connection), ["lo"]);
        let error = connection.delete_link_named("br0").unwrap_err();
        assert_eq!((error.object.as_str(), error.errno), ("br0", Errno::NODEV));
    });
}

#[test]
fn routes_decide_where_packets_leave() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let (one, two) = (cable(&mut connection, "d1"), cable(&mut connection, "d2"));
        for added in [
            address(one, "10.1.0.2/24"),
            address(two, "10.2.0.2/24"),
            address(one, "fd00:1::2/64"),
            address(two, "fd00:2::2/64"),
        ] {
            connection.add_address(added).unwrap();
        }
        assert!(source_towards("192.0.2.1").is_err());
        assert!(source_towards("2001:db8::1").is_err());

        let default = route("0.0.0.0/0", Some("10.1.0.1"), None);
        connection.add_route(default).unwrap();
        connection.add_route(route("::/0", Some("fd00:1::1"), None)).unwrap();
        connection.add_route(route("192.0.2.0/24", Some("10.2.0.1"), Some(two))).unwrap();
        connection.add_route(route("2001:db8::/32", Some("fd00:2::1"), None)).unwrap();
        connection.add_route(route("198.51.100.0/24", None, Some(two))).unwrap();
        assert_eq!(source_towards("203.0.113.1").unwrap(), ip("10.1.0.2"));
        assert_eq!(source_towards("192.0.2.1").unwrap(), ip("10.2.0.2"));
        assert_eq!(source_towards("198.51.100.1").unwrap(), ip("10.2.0.2"));
        assert_eq!(source_towards("2001:dead::1").unwrap(), ip("fd00:1::2"));
        assert_eq!(source_towards("2001:db8::1").unwrap(), ip("fd00:2::2"));

        connection.remove_route(default).unwrap();
        assert!(source_towards("203.0.113.1").is_err());
    });
}

#[test]
fn the_monitor_reports_both_families_and_nothing_else() {
    in_namespace(|| {
        // No link-local addresses: the kernel would add them at any time.
        std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap();
        let mut connection = Connection::open().unwrap();
        let link = cable(&mut connection, "d0");
        let mut monitor = AddressMonitor::open().unwrap();
        connection.create_bridge("d1").unwrap();
        assert_eq!(monitor.next(Some(Duration::ZERO)).unwrap(), None, "a link is not an address");
        let mut expect = |address, came| match monitor.next(Some(Duration::from_secs(600))).unwrap() {
            Some(Notice::Changed(moved)) => assert_eq!(moved, [Moved { address, came }]),
            other => panic!("{other:?}"),
        };
        for text in ["10.1.0.2/24", "fd00:1::2/64"] {
            let address = address(link, text);
            connection.add_address(address).unwrap();
            expect(address, true);
            connection.remove_address(address).unwrap();
            expect(address, false);
        }
    });
}

#[test]
fn a_monitor_that_fell_behind_says_so() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let link = cable(&mut connection, "d0");
        let mut monitor = AddressMonitor::open().unwrap();
        // The smallest queue the kernel grants.
        rustix::net::sockopt::set_socket_recv_buffer_size(&monitor, 1).unwrap();
        for last in 1..=200 {
            connection.add_address(address(link, &format!("10.1.0.{last}/32"))).unwrap();
        }
        assert_eq!(monitor.next(Some(Duration::from_secs(600))).unwrap(), Some(Notice::Lost));
        assert_eq!(connection.addresses().unwrap().iter().filter(|found| found.ip.is_ipv4()).count(), 200);
    });
}
