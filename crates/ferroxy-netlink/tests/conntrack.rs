//! Connection tracking against the real kernel and the real `conntrack`, each test in a network namespace of its own:
//! what the tool lists, we list; what we delete, it no longer lists. Needs root (or `unshare -Urn` around it).

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test should stop at once"
)]

mod namespace;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use ferroxy_netlink::codec::{Encoder, flag};
use ferroxy_netlink::conntrack::{Connection, Entry, Family, Filter, status};
use ferroxy_netlink::route::{self, Address};
use ferroxy_netlink::socket::{Protocol, Socket};
use namespace::in_namespace;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// What the tool prints; it must succeed.
fn conntrack(arguments: &[&str]) -> String {
    let output = Command::new("conntrack").args(arguments).output();
    let output = output.expect("this test needs the conntrack tool");
    assert!(output.status.success(), "conntrack {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The tool's listing, reduced to the fields that we compare. One line:
/// `udp 17 29 src=10.0.0.9 dst=10.96.0.1 sport=4 dport=53 [UNREPLIED] src=… dst=… sport=… dport=… mark=0 zone=5 use=1 id=7`
fn listed_by_the_tool(family: &str) -> BTreeSet<String> {
    let listing = conntrack(&["-L", "-f", family, "-o", "id"]);
    let read = |line: &str| {
        let protocol = line.split_whitespace().nth(1).unwrap();
        let value = |key: &str, nth: usize| {
            let found = line.split_whitespace().filter_map(|word| word.strip_prefix(key)).nth(nth);
            found.unwrap_or("0").to_owned()
        };
        let tuple = |nth| {
            let at = |ip, port| {
                SocketAddr::new(value(ip, nth).parse().unwrap(), value(port, nth).parse().unwrap())
            };
            format!("{} -> {}", at("src=", "sport="), at("dst=", "dport="))
        };
        let replied = !line.contains("[UNREPLIED]");
        let (zone, id) = (value("zone=", 0), value("id=", 0));
        format!("{protocol} {} / {} replied={replied} zone={zone} id={id}", tuple(0), tuple(1))
    };
    listing.lines().map(read).collect()
}

fn in_words(entry: &Entry) -> String {
    let tuple =
        |tuple: ferroxy_netlink::conntrack::Tuple| format!("{} -> {}", tuple.source, tuple.destination);
    let replied = entry.status & status::SEEN_REPLY != 0;
    let (original, reply) = (tuple(entry.original), tuple(entry.reply));
    format!("{} {original} / {reply} replied={replied} zone={} id={}", entry.protocol, entry.zone, entry.id)
}

fn list(filter: Filter) -> Vec<Entry> {
    let mut found = Vec::new();
    Connection::open().unwrap().entries(filter, &mut |entry| found.push(entry)).unwrap();
    found
}

fn udp(family: Family) -> Filter {
    Filter { protocol: Some(UDP), ..Filter::all(family) }
}

const CLIENTS: [&str; 2] = ["10.0.0.9", "fd00::9"];
const SERVERS: [&str; 2] = ["10.244.0.5", "fd00:244::5"];
const FRONTENDS: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

/// A loopback device with a client's, a server's and a Service's addresses, and rules that translate the Service's port 53
/// to the server's port 5353.
fn set_up_translation() {
    let mut connection = route::Connection::open().unwrap();
    let link = connection.link("lo").unwrap().index;
    connection.set_up(link).unwrap();
    for text in CLIENTS.iter().chain(&SERVERS).chain(&FRONTENDS) {
        let ip: IpAddr = text.parse().unwrap();
        let prefix_length = if ip.is_ipv4() { 32 } else { 128 };
        connection.add_address(Address { link, ip, prefix_length }).unwrap();
    }
    let rules = "table inet t { chain c { type nat hook output priority -100;
        ip daddr 10.96.0.1 udp dport 53 dnat ip to 10.244.0.5:5353
        ip6 daddr fd00:96::1 udp dport 53 dnat ip6 to [fd00:244::5]:5353
        }
    }";
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "nft refused: {rules}");
}

/// A client's socket after a datagram to this address.
fn send_to(client: &str, target: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((client.parse::<IpAddr>().unwrap(), 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
    socket.connect(target).unwrap();
    socket.send(b"who").unwrap();
    socket
}

#[test]
fn real_connections_are_listed_as_the_tool_lists_them() {
    in_namespace(|| {
        set_up_translation();
        for (number, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let at = |text: &str, port| SocketAddr::new(text.parse().unwrap(), port);
            let frontend = at(FRONTENDS[number], 53);
            let server = UdpSocket::bind(at(SERVERS[number], 5353)).unwrap();
            server.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
            let translated = send_to(CLIENTS[number], frontend);
            let (_, asker) = server.recv_from(&mut [0; 16]).unwrap();
            server.send_to(b"me", asker).unwrap();
            translated.recv(&mut [0; 16]).unwrap();
            let silent = send_to(CLIENTS[number], frontend);
            let plain = send_to(CLIENTS[number], at(SERVERS[number], 5353));

            let entries = list(Filter::all(family));
            let words: BTreeSet<String> = entries.iter().map(in_words).collect();
            assert_eq!(words, listed_by_the_tool(["ipv4", "ipv6"][number]));
            let entry_of = |socket: &UdpSocket| {
                let source = socket.local_addr().unwrap();
                *entries.iter().find(|entry| entry.original.source == source).unwrap()
            };
            let entry = entry_of(&translated);
            assert_eq!(
                (entry.original.destination, entry.reply.source),
                (frontend, at(SERVERS[number], 5353))
            );
            assert!(entry.is_destination_translated() && entry.timeout.is_some());
            assert!(entry.status & status::CONFIRMED != 0);
            assert_eq!(entry_of(&silent).status & status::SEEN_REPLY, 0);
            assert!(!entry_of(&plain).is_destination_translated());

            let only =
                |filter| list(filter).iter().map(|entry| entry.original.source).collect::<BTreeSet<_>>();
            let sources = |sockets: &[&UdpSocket]| -> BTreeSet<_> {
                sockets.iter().map(|socket| socket.local_addr().unwrap()).collect()
            };
            let at_frontend =
                Filter { destination: Some(frontend.ip()), destination_port: Some(53), ..udp(family) };
            assert_eq!(only(at_frontend), sources(&[&translated, &silent]));
            let translated_only = Filter { status: status::DST_NAT, ..udp(family) };
            assert_eq!(only(translated_only), sources(&[&translated, &silent]));
            assert_eq!(only(Filter { destination_port: Some(5353), ..udp(family) }), sources(&[&plain]));
        }
    });
}

#[test]
fn one_is_deleted_and_only_one() {
    in_namespace(|| {
        set_up_translation();
        let _server = UdpSocket::bind("10.244.0.5:5353").unwrap();
        let frontend: SocketAddr = "10.96.0.1:53".parse().unwrap();
        let sockets: Vec<UdpSocket> = (0..5).map(|_| send_to(CLIENTS[0], frontend)).collect();
        let before = list(udp(Family::V4));
        assert_eq!(before.len(), 5);

        let mut connection = Connection::open().unwrap();
        // An entry with the same tuple but another id stays.
        let newer = Entry { id: before[2].id ^ 1, ..before[2] };
        assert_eq!(connection.delete(&[newer]).unwrap(), 0);
        // The same tuple in a zone that does not contain it.
        assert_eq!(connection.delete(&[Entry { zone: 9, ..before[2] }]).unwrap(), 0);
        assert_eq!(list(udp(Family::V4)).len(), 5);

        assert_eq!(connection.delete(&[before[2]]).unwrap(), 1);
        let left: BTreeSet<u32> = list(udp(Family::V4)).iter().map(|entry| entry.id).collect();
        let wanted = before.iter().map(|entry| entry.id).filter(|id| *id != before[2].id);
        assert_eq!(left, wanted.collect());
        // An entry that is already deleted is no error, and the rest of the batch is deleted.
        assert_eq!(connection.delete(&before[1..4]).unwrap(), 2);
        assert_eq!(list(udp(Family::V4)).len(), 2);
        drop(sockets);
    });
}

#[test]
fn zones_are_distinguished() {
    in_namespace(|| {
        let tuple =
            ["-p", "udp", "-s", "10.0.0.1", "-d", "10.96.0.1", "--sport", "4", "--dport", "53", "-t", "99"];
        for zone in ["0", "5", "7"] {
            conntrack(&[&["-I", "-w", zone][..], &tuple].concat());
        }
        // A zone of one direction. In the other direction the tuple has no zone and must be unique, so it has another source port.
        let tuple = tuple.map(|word| if word == "4" { "5" } else { word });
        conntrack(&[&["-I", "--orig-zone", "11"][..], &tuple].concat());
        let entries = list(udp(Family::V4));
        let zones: BTreeSet<u16> = entries.iter().map(|entry| entry.zone).collect();
        assert_eq!(zones, BTreeSet::from([0, 5, 7, 11]));
        for zone in [5, 11] {
            let chosen: Vec<Entry> = entries.iter().filter(|entry| entry.zone == zone).copied().collect();
            assert_eq!(Connection::open().unwrap().delete(&chosen).unwrap(), 1);
        }
        let zones: BTreeSet<u16> = list(udp(Family::V4)).iter().map(|entry| entry.zone).collect();
        assert_eq!(zones, BTreeSet::from([0, 7]));
    });
}

#[test]
fn the_kernels_filter_is_ours() {
    in_namespace(|| {
        let mut number = 0;
        for protocol in [TCP, UDP] {
            for destination in [[10, 96, 0, 1], [10, 96, 0, 2]] {
                for port in [53, 54] {
                    number += 1;
                    insert(&[(protocol, number, Ipv4Addr::from(destination), port)]);
                }
            }
        }
        let everything = list(Filter::all(Family::V4));
        assert_eq!(everything.len(), 8);
        let mut asked = 0;
        for protocol in [None, Some(TCP), Some(UDP)] {
            for destination in [None, Some(IpAddr::from([10, 96, 0, 1])), Some(IpAddr::from([10, 96, 0, 3]))]
            {
                for destination_port in [None, Some(53), Some(55)] {
                    for status in [0, status::ASSURED, status::DST_NAT] {
                        let family = Family::V4;
                        let filter = Filter { family, protocol, destination, destination_port, status };
                        let mut wanted = everything.clone();
                        wanted.retain(|entry| filter.matches(entry));
                        let ids =
                            |entries: &[Entry]| entries.iter().map(|entry| entry.id).collect::<BTreeSet<_>>();
                        assert_eq!(ids(&list(filter)), ids(&wanted), "{filter:?}");
                        asked += wanted.len();
                    }
                }
            }
        }
        assert!(asked > 50, "filters that match nothing show nothing: {asked}");
        assert_eq!(list(Filter::all(Family::V6)), []);
    });
}

#[test]
fn a_large_table_passes_through_without_being_kept() {
    const MANY: u32 = 50_000;
    in_namespace(|| {
        for batch in (0..MANY).collect::<Vec<_>>().chunks(500) {
            let entries: Vec<_> =
                batch.iter().map(|number| (UDP, *number, Ipv4Addr::new(10, 96, 0, 1), 53)).collect();
            insert(&entries);
        }
        let mut connection = Connection::open().unwrap();
        let mut sources = BTreeSet::new();
        connection
            .entries(udp(Family::V4), &mut |entry| {
                sources.insert(entry.original.source);
            })
            .unwrap();
        assert_eq!(sources.len(), MANY as usize);

        let (mut count, before) = (0, HELD.get());
        MOST_HELD.set(before);
        connection.entries(udp(Family::V4), &mut |_| count += 1).unwrap();
        let most = MOST_HELD.get() - before;
        assert!(count >= MANY, "{count}");
        assert!(most < 256 * 1024, "{most} bytes held for {count} entries");

        // The kernel looks through all of them and sends one.
        let one = Filter { destination_port: Some(54), ..udp(Family::V4) };
        insert(&[(UDP, MANY, Ipv4Addr::new(10, 96, 0, 1), 54)]);
        assert_eq!(list(one).len(), 1);
        let all = list(udp(Family::V4));
        assert_eq!(connection.delete(&all).unwrap(), MANY as usize + 1);
        assert_eq!(list(udp(Family::V4)), []);
    });
}

/// Makes entries: protocol, a number that makes the source, destination.
fn insert(entries: &[(u8, u32, Ipv4Addr, u16)]) {
    const CT_NEW: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8;
    let mut out = Encoder::new();
    for (protocol, number, destination, port) in entries {
        let source = (Ipv4Addr::from_bits(0x0a00_0000 + number / 60_000), (1024 + number % 60_000) as u16);
        let message = out.begin_message(CT_NEW, flag::REQUEST | flag::CREATE | flag::EXCL, 1);
        out.put_raw(&[libc::AF_INET as u8, 0, 0, 0]);
        for (kind, from, to) in [(1, source, (*destination, *port)), (2, (*destination, *port), source)] {
            let tuple = out.begin_nested(kind);
            let addresses = out.begin_nested(1);
            out.put_bytes(1, &from.0.octets());
            out.put_bytes(2, &to.0.octets());
            out.end_nested(addresses);
            let ports = out.begin_nested(2);
            out.put_u8(1, *protocol);
            out.put_u16_be(2, from.1);
            out.put_u16_be(3, to.1);
            out.end_nested(ports);
            out.end_nested(tuple);
        }
        out.put_u32_be(
            3,
            status::CONFIRMED | status::SEEN_REPLY | if *port == 53 { status::ASSURED } else { 0 },
        );
        out.put_u32_be(7, 600);
        out.end_message(message);
    }
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    socket.send(&[IoSlice::new(out.bytes())]).unwrap();
    assert_eq!(socket.receive().unwrap(), None, "nothing is said unless something is refused");
}

/// Counts the bytes that each thread holds, to distinguish a stream from a collection.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST_HELD: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // Threads that are ending have no counters any more, and need none.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = MOST_HELD.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: passes everything on to the system's allocator, and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}
