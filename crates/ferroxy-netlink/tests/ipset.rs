//! Sets against the real kernel and the real `ipset`, in a network namespace of each test's own. Needs root (or
//! `unshare -Urn` around it).

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test should stop at once"
)]

mod namespace;

use std::net::IpAddr;
use std::process::Command;

use ferroxy_netlink::ipset::{Address, Connection, Family, Kind, Member, Set, is_missing};
use rustix::io::Errno;

const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
const SCTP: u8 = libc::IPPROTO_SCTP as u8;

/// Runs the test with a connection in a fresh network namespace, if this kernel can.
fn in_namespace(test: impl FnOnce(Connection) + Send + 'static) {
    namespace::in_namespace(move || match Connection::open() {
        Err(error) if is_missing(&error) && std::env::var_os("CI").is_none() => {
            eprintln!("SKIPPED: this kernel has no ipset: {error}");
        }
        connection => test(connection.unwrap()),
    });
}

/// What a tool printed; it must succeed.
fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().expect(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `ipset save`, without the parameters that the kernel chose (`bucketsize` and those after it).
fn saved() -> Vec<String> {
    let text = run("ipset save");
    let mut lines: Vec<String> =
        text.lines().map(|line| line.split(" bucketsize").next().unwrap().to_owned()).collect();
    lines.sort();
    lines
}

fn set(name: &str, kind: Kind, family: Family) -> Set {
    Set { name: name.into(), kind, family, capacity: 65536, hash_size: 1024 }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(ip: &str, protocol: u8, port: u16) -> Address {
    Address { ip: self::ip(ip), protocol, port }
}

fn sorted(mut members: Vec<Member>) -> Vec<Member> {
    members.sort();
    members
}

/// A set and its members, each with the words that the tool has for it.
type Example = (Set, &'static str, Vec<(Member, &'static str)>);

/// Every kind in every family.
fn everything() -> Vec<Example> {
    use Family::{V4, V6};
    let v4 = address("10.96.0.80", TCP, 80);
    let v6 = address("fd00:10:96::80", SCTP, 7777);
    vec![
        (
            set("ports", Kind::Port, V4),
            "bitmap:port range 0-65535",
            vec![(Member::Port(0), "0"), (Member::Port(30080), "30080"), (Member::Port(65535), "65535")],
        ),
        (
            set("ip4", Kind::Ip, V4),
            "hash:ip family inet hashsize 1024 maxelem 65536",
            vec![(Member::Ip(v4.ip), "10.96.0.80")],
        ),
        (
            set("ip6", Kind::Ip, V6),
            "hash:ip family inet6 hashsize 1024 maxelem 65536",
            vec![(Member::Ip(v6.ip), "fd00:10:96::80")],
        ),
        (
            set("ipport4", Kind::IpPort, V4),
            "hash:ip,port family inet hashsize 1024 maxelem 65536",
            vec![
                (Member::IpPort(v4), "10.96.0.80,tcp:80"),
                (Member::IpPort(Address { protocol: UDP, ..v4 }), "10.96.0.80,udp:80"),
            ],
        ),
        (
            set("ipport6", Kind::IpPort, V6),
            "hash:ip,port family inet6 hashsize 1024 maxelem 65536",
            vec![(Member::IpPort(v6), "fd00:10:96::80,sctp:7777")],
        ),
        (
            set("ipportip4", Kind::IpPortIp, V4),
            "hash:ip,port,ip family inet hashsize 1024 maxelem 65536",
            vec![(Member::IpPortIp(v4, ip("10.244.1.5")), "10.96.0.80,tcp:80,10.244.1.5")],
        ),
        (
            set("ipportip6", Kind::IpPortIp, V6),
            "hash:ip,port,ip family inet6 hashsize 1024 maxelem 65536",
            vec![(Member::IpPortIp(v6, ip("fd00::5")), "fd00:10:96::80,sctp:7777,fd00::5")],
        ),
        (
            set("ipportnet4", Kind::IpPortNet, V4),
            "hash:ip,port,net family inet hashsize 1024 maxelem 65536",
            vec![
                (Member::IpPortNet(v4, ip("10.244.0.0"), 16), "10.96.0.80,tcp:80,10.244.0.0/16"),
                (Member::IpPortNet(v4, ip("0.0.0.0"), 1), "10.96.0.80,tcp:80,0.0.0.0/1"),
            ],
        ),
        (
            set("ipportnet6", Kind::IpPortNet, V6),
            "hash:ip,port,net family inet6 hashsize 1024 maxelem 65536",
            vec![(Member::IpPortNet(v6, ip("fd00::"), 64), "fd00:10:96::80,sctp:7777,fd00::/64")],
        ),
    ]
}

#[test]
fn what_we_make_the_tool_lists() {
    in_namespace(|mut connection| {
        let mut expected = Vec::new();
        for (set, created, members) in everything() {
            connection.create(&set).unwrap();
            let only: Vec<Member> = members.iter().map(|(member, _)| *member).collect();
            assert_eq!(connection.add(&set.name, &only).unwrap(), []);
            expected.push(format!("create {} {created}", set.name));
            expected.extend(members.iter().map(|(_, text)| format!("add {} {text}", set.name)));
        }
        expected.sort();
        assert_eq!(saved(), expected);
    });
}

#[test]
fn what_the_tool_makes_we_list() {
    in_namespace(|mut connection| {
        let mut names = Vec::new();
        for (set, created, members) in everything() {
            run(&format!("ipset create {} {created}", set.name));
            members.iter().for_each(|(_, text)| drop(run(&format!("ipset add {} {text}", set.name))));
            let found = connection.set(&set.name).unwrap().unwrap();
            assert_eq!(found.kind, Some(set.kind));
            assert_eq!(found.references, 0);
            if set.kind != Kind::Port {
                assert_eq!((found.family, found.capacity), (Some(set.family), Some(65536)));
            }
            let expected = members.into_iter().map(|(member, _)| member).collect();
            assert_eq!(sorted(found.members), sorted(expected), "{}", set.name);
            // The set that exists has the same description, otherwise the kernel refuses to create it again.
            connection.create(&set).unwrap();
            names.push(set.name);
        }
        let mut listed = connection.names().unwrap();
        let mut numbered = connection.numbers().unwrap();
        numbered.sort();
        // The kernel numbers sets in the order of their creation.
        assert_eq!(numbered, (0..).zip(names.iter().cloned()).collect::<Vec<(u16, String)>>());
        listed.sort();
        names.sort();
        assert_eq!(listed, names);
    });
}

#[test]
fn a_kind_of_others_is_seen_and_not_read() {
    in_namespace(|mut connection| {
        run("ipset create nets hash:net");
        run("ipset add nets 192.0.2.0/24");
        let found = connection.set("nets").unwrap().unwrap();
        assert_eq!((found.kind, found.members), (None, vec![]));
        assert_eq!(connection.set("nosuch"), Ok(None));
    });
}

#[test]
fn many_members_come_and_go() {
    in_namespace(|mut connection| {
        let members: Vec<Member> = (0..3000u16)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                Member::IpPort(Address { ip: [10, 96, high, low].into(), protocol: TCP, port: 80 })
            })
            .collect();
        connection.create(&set("many", Kind::IpPort, Family::V4)).unwrap();
        for _ in 0..2 {
            assert_eq!(connection.add("many", &members).unwrap(), [], "a second time changes nothing");
            let found = connection.set("many").unwrap().unwrap();
            assert_eq!(sorted(found.members), members);
        }
        for _ in 0..2 {
            assert_eq!(connection.remove("many", &members[..2500]).unwrap(), []);
            let found = connection.set("many").unwrap().unwrap();
            assert_eq!(sorted(found.members), members[2500..]);
        }
    });
}

#[test]
fn a_member_that_is_refused_keeps_no_other() {
    in_namespace(|mut connection| {
        connection.create(&set("nets", Kind::IpPortNet, Family::V4)).unwrap();
        let mut members: Vec<Member> = (0..1000u16)
            .map(|port| Member::IpPortNet(address("10.96.0.1", TCP, port), ip("192.0.2.0"), 24))
            .collect();
        let everywhere = |port| Member::IpPortNet(address("10.96.0.1", TCP, port), ip("0.0.0.0"), 0);
        for index in [0, 1, 399, 400, 999] {
            members[index] = everywhere(index as u16);
        }
        let refused = connection.add("nets", &members).unwrap();
        let which: Vec<usize> = refused.iter().map(|it| it.index).collect();
        assert_eq!(which, [0, 1, 399, 400, 999]);
        assert_eq!(refused[2].error.errno, Errno::INVAL);
        let words = refused[2].error.to_string();
        assert!(words.starts_with("cannot add to set nets 10.96.0.1,tcp:399,0.0.0.0/0: "), "{words}");
        assert_eq!(connection.set("nets").unwrap().unwrap().members.len(), 995);
    });
}

#[test]
fn a_full_set_says_so() {
    in_namespace(|mut connection| {
        let small = Set { capacity: 4, ..set("small", Kind::Ip, Family::V4) };
        connection.create(&small).unwrap();
        let members: Vec<Member> = (1..=6).map(|last| Member::Ip([10, 0, 0, last].into())).collect();
        let refused = connection.add("small", &members).unwrap();
        assert!(!refused.is_empty());
        assert!(refused.iter().all(|it| it.error.errno == Errno::NOSPC), "{refused:?}");
    });
}

#[test]
fn a_set_in_use_stays_and_a_swap_reaches_its_rules() {
    in_namespace(|mut connection| {
        for name in ["one", "other"] {
            connection.create(&set(name, Kind::IpPort, Family::V4)).unwrap();
        }
        run("iptables-legacy -A INPUT -m set --match-set one dst,dst -j ACCEPT");
        let error = connection.destroy("one").unwrap_err();
        assert_eq!(error.errno, Errno::BUSY);
        assert_eq!(
            error.to_string(),
            "cannot destroy set one: Device or resource busy (kernel says: a rule uses it)"
        );
        assert_eq!(connection.set("one").unwrap().unwrap().references, 1);

        let member = Member::IpPort(address("10.96.0.80", TCP, 80));
        connection.add("other", &[member]).unwrap();
        connection.swap("one", "other").unwrap();
        let found = connection.set("one").unwrap().unwrap();
        assert_eq!((found.references, found.members), (1, vec![member]));
        connection.destroy("other").unwrap();

        run("iptables-legacy -D INPUT -m set --match-set one dst,dst -j ACCEPT");
        connection.destroy("one").unwrap();
        assert_eq!(connection.names().unwrap(), [""; 0]);
        connection.destroy("one").unwrap();
    });
}

#[test]
fn refusals_say_what_and_why() {
    in_namespace(|mut connection| {
        let one = set("one", Kind::IpPort, Family::V4);
        connection.create(&one).unwrap();
        connection.create(&one).unwrap();
        let error = connection.create(&Set { capacity: 7, ..one.clone() }).unwrap_err();
        assert_eq!((error.object.as_str(), error.errno), ("one", Errno::EXIST));
        let error = connection.create(&Set { kind: Kind::Ip, ..one }).unwrap_err();
        assert_eq!(error.errno, Errno::EXIST);
        let error = connection.add("nosuch", &[Member::Port(1)]).unwrap_err();
        assert_eq!((error.object.as_str(), error.errno), ("nosuch", Errno::NOENT));
        // An address of the other family.
        let six = Member::IpPort(address("fd00::1", TCP, 80));
        assert_eq!(connection.add("one", &[six]).unwrap().len(), 1);
        assert!(connection.create(&set(&"x".repeat(32), Kind::Ip, Family::V4)).is_err());
    });
}
