//! nf_tables against the real kernel and the real `nft`, each test in a network namespace of its own.
//! What we write, `nft` must print; what `nft` writes, we must read. Needs root (or `unshare -Urn` around it).

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing test should stop at once"
)]

mod namespace;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use ferroxy_netlink::nftables::{
    Base, Batch, Chain, ChainType, CmpOp, Connection, CtDirection, CtKey, Data, DataRef, Datatype, DynsetOp,
    Element, ElementRef, Expr, Family, FibAddress, Hook, HookPoint, MetaKey, Monitor, Notice, ObservedRule,
    Rule, Set, SetData, Table, Verdict, VerdictRef, register,
};
use namespace::in_namespace;
use rustix::io::Errno;

const TABLE: &str = "t";

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().expect("this test needs the nft tool");
    assert!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn nft_load(text: &str) {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("this test needs the nft tool");
    nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "nft refused: {text}");
}

/// Without the indentation, which differs between versions of `nft`.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

fn table(comment: Option<&str>) -> Table {
    Table { name: TABLE.into(), comment: comment.map(str::to_owned) }
}

fn chain(name: &str) -> Chain {
    Chain { name: name.into(), hook: None, comment: None }
}

fn base_chain(name: &str, kind: ChainType, point: HookPoint, priority: i32) -> Chain {
    Chain { name: name.into(), hook: Some(Hook { kind, point, priority }), comment: None }
}

fn set(name: &str, key: &[Datatype], data: Option<SetData>) -> Set {
    Set {
        name: name.into(),
        key: key.to_vec(),
        data,
        interval: false,
        dynamic: false,
        timeout_ms: None,
        size: None,
        comment: None,
    }
}

fn rule(exprs: Vec<Expr>) -> Rule {
    Rule { exprs, comment: None }
}

fn element(key: &[u8], data: Data) -> Element {
    Element { key: key.to_vec(), key_end: None, interval_end: false, data, comment: None }
}

fn key(key: &[u8]) -> ElementRef<'_> {
    ElementRef { key, key_end: None, interval_end: false, data: DataRef::None, comment: None }
}

fn elements(connection: &mut Connection, family: Family, set: &str) -> BTreeSet<Element> {
    let mut found = BTreeSet::new();
    connection
        .elements(family, TABLE, set, &mut |element| assert!(found.insert(element.into()), "listed twice"))
        .unwrap();
    found
}

fn network(offset: u32, len: u32, dreg: u32) -> Expr {
    Expr::Payload { base: Base::Network, offset, len, dreg }
}

fn destination_port(dreg: u32) -> Expr {
    Expr::Payload { base: Base::Transport, offset: 2, len: 2, dreg }
}

fn l4proto(dreg: u32) -> Expr {
    Expr::Meta { key: MetaKey::L4proto, dreg }
}

fn original(key: CtKey, dreg: u32) -> Expr {
    Expr::Ct { key, direction: Some(CtDirection::Original), dreg }
}

fn equal(data: &[u8]) -> Expr {
    Expr::Cmp { sreg: 1, op: CmpOp::Eq, data: data.to_vec() }
}

fn not_equal(data: &[u8]) -> Expr {
    Expr::Cmp { sreg: 1, op: CmpOp::Neq, data: data.to_vec() }
}

fn bits(mask: u32, xor: u32) -> Expr {
    Expr::Bitwise { sreg: 1, dreg: 1, mask: mask.to_ne_bytes().into(), xor: xor.to_ne_bytes().into() }
}

fn lookup(set: &str, dreg: Option<u32>) -> Expr {
    Expr::Lookup { set: set.into(), sreg: 1, dreg, invert: false }
}

fn jump(chain: &str) -> Expr {
    Expr::Immediate(Verdict::Jump(chain.into()))
}

fn goto(chain: &str) -> Data {
    Data::Verdict(Verdict::Goto(chain.into()))
}

/// Commits everything, which must succeed, and reads all of it back, which must be equal.
struct Ruleset {
    family: Family,
    table: Table,
    chains: Vec<Chain>,
    sets: Vec<(Set, Vec<Element>)>,
    rules: Vec<(&'static str, Rule)>,
}

impl Ruleset {
    fn write(&self, connection: &mut Connection) {
        let mut batch = Batch::new();
        let family = self.family;
        batch.add_table(0, family, &self.table);
        self.chains.iter().for_each(|chain| batch.add_chain(1, family, TABLE, chain));
        self.sets.iter().for_each(|(set, _)| batch.add_set(2, family, TABLE, set));
        for (set, elements) in &self.sets {
            elements
                .iter()
                .for_each(|element| batch.add_element(3, family, TABLE, &set.name, element.into()));
        }
        self.rules.iter().for_each(|(chain, rule)| batch.add_rule(4, family, TABLE, chain, rule));
        let receipt = connection.commit(&batch).unwrap();
        assert_eq!((receipt.messages, receipt.bytes), (batch.messages(), batch.bytes()));
    }

    fn assert_read_back(&self, connection: &mut Connection) {
        assert_eq!(connection.table(self.family, TABLE).unwrap().as_ref(), Some(&self.table));
        assert_eq!(connection.chains(self.family, TABLE).unwrap(), self.chains);
        let sets: Vec<&Set> = self.sets.iter().map(|(set, _)| set).collect();
        assert_eq!(connection.sets(self.family, TABLE).unwrap().iter().collect::<Vec<_>>(), sets);
        for (set, wanted) in &self.sets {
            let found = elements(connection, self.family, &set.name);
            assert_eq!(found, wanted.iter().cloned().collect(), "elements of {}", set.name);
        }
        // The kernel lists chain by chain.
        let listed = connection.rules(self.family, TABLE).unwrap();
        let listed: Vec<_> = listed.iter().map(|found| (found.chain.as_str(), &found.rule)).collect();
        let in_chain_order = self.chains.iter().flat_map(|chain| {
            self.rules.iter().filter(|(name, _)| *name == chain.name).map(|(name, rule)| (*name, rule))
        });
        assert_eq!(listed, in_chain_order.collect::<Vec<_>>());
    }
}

const FRONTEND: [Datatype; 3] = [Datatype::Ipv4Addr, Datatype::InetProto, Datatype::InetService];
const FRONTEND_KEY: [u8; 12] = [10, 96, 0, 80, 6, 0, 0, 0, 0, 80, 0, 0];

fn ipv4_sets() -> Vec<(Set, Vec<Element>)> {
    use Datatype::{InetProto, InetService, Integer32, Ipv4Addr};
    let endpoint = || Some(SetData::Value(vec![Ipv4Addr, InetService]));
    let endpoint_data = Data::Value(vec![10, 244, 1, 5, 0x1f, 0x90, 0, 0]);
    let commented = Element { comment: Some("default/web:http".into()), ..element(&FRONTEND_KEY, goto("c")) };
    let numbered = [&7u32.to_ne_bytes()[..], &FRONTEND_KEY].concat();
    let interval = |key: [u8; 4], interval_end| Element { interval_end, ..element(&key, Data::None) };
    let source = |last: [u8; 4]| [&FRONTEND_KEY[..], &last].concat();
    let range = Element {
        key_end: Some(source([192, 168, 255, 255])),
        ..element(&source([192, 168, 0, 0]), Data::None)
    };
    vec![
        (
            Set { comment: Some("live cluster IPs".into()), ..set("addresses", &[Ipv4Addr], None) },
            vec![element(&[10, 96, 0, 1], Data::None)],
        ),
        (set("ports", &[InetService], None), vec![element(&[0, 80], Data::None)]),
        (
            Set { interval: true, ..set("cidrs", &[Ipv4Addr], None) },
            vec![interval([0, 0, 0, 0], true), interval([10, 0, 0, 0], false), interval([11, 0, 0, 0], true)],
        ),
        (
            Set { interval: true, ..set("sources", &[Ipv4Addr, InetProto, InetService, Ipv4Addr], None) },
            vec![range],
        ),
        (set("verdicts", &FRONTEND, Some(SetData::Verdict)), vec![commented]),
        (
            Set {
                comment: Some("who answers".into()),
                ..set("endpoints", &[Integer32, Ipv4Addr, InetProto, InetService], endpoint())
            },
            vec![element(&numbered, endpoint_data.clone())],
        ),
        (
            set("nodeports", &[Integer32, InetProto, InetService], endpoint()),
            vec![element(&[&numbered[..4], &FRONTEND_KEY[4..]].concat(), endpoint_data.clone())],
        ),
        (
            set("sticky", &[Ipv4Addr, InetProto, InetService, Ipv4Addr], endpoint()),
            vec![element(&source([10, 244, 1, 5]), endpoint_data)],
        ),
        (
            Set {
                dynamic: true,
                timeout_ms: Some(10_800_000),
                size: Some(524_288),
                ..set(
                    "affinity",
                    &[Ipv4Addr, Ipv4Addr, InetProto, InetService],
                    Some(SetData::Value(vec![Ipv4Addr])),
                )
            },
            vec![],
        ),
    ]
}

fn ipv4_rules() -> Vec<(&'static str, Rule)> {
    let write_destination = Expr::PayloadSet {
        base: Base::Network,
        offset: 16,
        len: 4,
        sreg: 1,
        csum_type: 1,
        csum_offset: 10,
        csum_flags: 1,
    };
    let dnat = Expr::Dnat { family: Family::Ip, address_reg: 1, port_reg: 9 };
    let client_key = |rest: &[Expr]| {
        let key = vec![network(12, 4, 1), network(16, 4, 9), l4proto(10), destination_port(11)];
        rule([key, rest.to_vec()].concat())
    };
    let dynset = |op, timeout_ms| Expr::Dynset {
        set: "affinity".into(),
        op,
        sreg_key: 1,
        sreg_data: Some(2),
        timeout_ms,
        counter: false,
    };
    vec![
        (
            "pre",
            Rule {
                comment: Some("to the services".into()),
                ..rule(vec![network(16, 4, 1), l4proto(9), destination_port(10), lookup("verdicts", Some(0))])
            },
        ),
        (
            "pre",
            rule(vec![
                Expr::Fib { dreg: 1, address: FibAddress::Destination },
                equal(&2u32.to_ne_bytes()),
                jump("c"),
            ]),
        ),
        (
            "pre",
            rule(vec![
                Expr::Meta { key: MetaKey::Iifname, dreg: 1 },
                not_equal(b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
                jump("c"),
            ]),
        ),
        (
            "post",
            rule(vec![
                Expr::Meta { key: MetaKey::Mark, dreg: 1 },
                bits(0x4000, 0),
                equal(&[0; 4]),
                Expr::Immediate(Verdict::Return),
            ]),
        ),
        (
            "post",
            rule(vec![
                Expr::Meta { key: MetaKey::Mark, dreg: 1 },
                bits(!0x4000, 0x4000),
                Expr::MetaSet { key: MetaKey::Mark, sreg: 1 },
            ]),
        ),
        ("post", rule(vec![Expr::Masquerade { fully_random: true }])),
        (
            "filter",
            rule(vec![
                Expr::Ct { key: CtKey::State, direction: None, dreg: 1 },
                bits(8, 0),
                not_equal(&[0; 4]),
                Expr::Counter,
                jump("d"),
            ]),
        ),
        (
            "filter",
            rule(vec![
                Expr::Ct { key: CtKey::Status, direction: None, dreg: 1 },
                bits(0x20, 0),
                not_equal(&[0; 4]),
                Expr::Immediate(Verdict::Accept),
            ]),
        ),
        (
            "filter",
            rule(vec![
                network(16, 4, 1),
                Expr::Lookup { set: "addresses".into(), sreg: 1, dreg: None, invert: true },
                Expr::Immediate(Verdict::Drop),
            ]),
        ),
        (
            "filter",
            rule(vec![
                network(16, 4, 1),
                l4proto(9),
                destination_port(10),
                network(12, 4, 11),
                lookup("sources", None),
                Expr::Immediate(Verdict::Accept),
            ]),
        ),
        ("filter", rule(vec![Expr::Reject { kind: 0, code: 3 }])),
        (
            "c",
            rule(vec![
                Expr::Numgen { dreg: 1, modulus: 2, offset: 0 },
                network(16, 4, 9),
                l4proto(10),
                destination_port(11),
                lookup("endpoints", Some(1)),
                dnat.clone(),
            ]),
        ),
        ("c", client_key(&[lookup("affinity", Some(1)), write_destination.clone()])),
        (
            "c",
            rule(vec![
                original(CtKey::DstIp, 1),
                l4proto(9),
                destination_port(10),
                network(16, 4, 11),
                lookup("sticky", Some(1)),
                dnat,
            ]),
        ),
        ("c", rule(vec![original(CtKey::DstIp, 1), write_destination])),
        ("c", client_key(&[network(16, 4, 2), dynset(DynsetOp::Delete, None)])),
        (
            "c",
            rule(vec![
                l4proto(1),
                equal(&[6]),
                original(CtKey::SrcIp, 1),
                original(CtKey::DstIp, 9),
                l4proto(10),
                original(CtKey::ProtoDst, 11),
                network(16, 4, 2),
                dynset(DynsetOp::Update, Some(10_800_000)),
            ]),
        ),
    ]
}

fn ipv4_ruleset() -> Ruleset {
    Ruleset {
        family: Family::Ip,
        table: table(Some("all there is")),
        chains: vec![
            base_chain("pre", ChainType::Nat, HookPoint::Prerouting, -110),
            base_chain("post", ChainType::Nat, HookPoint::Postrouting, 100),
            base_chain("filter", ChainType::Filter, HookPoint::Forward, 0),
            Chain { comment: Some("a plain chain".into()), ..chain("c") },
            chain("d"),
        ],
        sets: ipv4_sets(),
        rules: ipv4_rules(),
    }
}

#[test]
fn what_we_write_reads_back_equal_and_nft_prints_it() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let ruleset = ipv4_ruleset();
        ruleset.write(&mut connection);
        ruleset.assert_read_back(&mut connection);
        let expected = r#"table ip t {
            comment "all there is"
            set addresses {
                type ipv4_addr
                comment "live cluster IPs"
                elements = { 10.96.0.1 }
            }
            set ports {
                type inet_service
                elements = { 80 }
            }
            set cidrs {
                type ipv4_addr
                flags interval
                elements = { 10.0.0.0/8 }
            }
            set sources {
                type ipv4_addr . inet_proto . inet_service . ipv4_addr
                flags interval
                elements = { 10.96.0.80 . tcp . 80 . 192.168.0.0/16 }
            }
            map verdicts {
                type ipv4_addr . inet_proto . inet_service : verdict
                elements = { 10.96.0.80 . tcp . 80 comment "default/web:http" : goto c }
            }
            map endpoints {
                typeof numgen random mod 65536 . ip daddr . meta l4proto . th dport : ip daddr . th dport
                comment "who answers"
                elements = { 7 . 10.96.0.80 . tcp . 80 : 10.244.1.5 . 8080 }
            }
            map nodeports {
                typeof numgen random mod 65536 . meta l4proto . th dport : ip daddr . th dport
                elements = { 7 . tcp . 80 : 10.244.1.5 . 8080 }
            }
            map sticky {
                type ipv4_addr . inet_proto . inet_service . ipv4_addr : ipv4_addr . inet_service
                elements = { 10.96.0.80 . tcp . 80 . 10.244.1.5 : 10.244.1.5 . 8080 }
            }
            map affinity {
                type ipv4_addr . ipv4_addr . inet_proto . inet_service : ipv4_addr
                size 524288
                flags dynamic,timeout
                timeout 3h
            }
            chain pre {
                type nat hook prerouting priority dstnat - 10; policy accept;
                ip daddr . meta l4proto . th dport vmap @verdicts comment "to the services"
                fib daddr type local jump c
                iifname != "lo" jump c
            }
            chain post {
                type nat hook postrouting priority srcnat; policy accept;
                meta mark & 0x00004000 == 0x00000000 return
                meta mark set meta mark | 0x00004000
                masquerade fully-random
            }
            chain filter {
                type filter hook forward priority filter; policy accept;
                ct state new counter packets 0 bytes 0 jump d
                ct status dnat accept
                ip daddr != @addresses drop
                ip daddr . meta l4proto . th dport . ip saddr @sources accept
                reject
            }
            chain c {
                comment "a plain chain"
                dnat ip to numgen random mod 2 . ip daddr . meta l4proto . th dport map @endpoints
                ip daddr set ip saddr . ip daddr . meta l4proto . th dport map @affinity
                dnat ip to ct original ip daddr . meta l4proto . th dport . ip daddr map @sticky
                ip daddr set ct original ip daddr
                delete @affinity { ip saddr . ip daddr . meta l4proto . th dport : ip daddr }
                meta l4proto tcp update @affinity { ct original ip saddr . ct original ip daddr . meta l4proto . ct original proto-dst timeout 3h : ip daddr }
            }
            chain d {
            }
        }"#;
        assert_eq!(lines(&nft(&["list", "table", "ip", TABLE])), lines(expected));
    });
}

fn ipv6_ruleset() -> Ruleset {
    use Datatype::{InetProto, InetService, Integer32, Ipv6Addr};
    let address = |last| [[0xfd; 1].as_slice(), &[0; 14], &[last]].concat();
    let port = [0, 80, 0, 0];
    let endpoint = Data::Value([address(2), vec![0x1f, 0x90, 0, 0]].concat());
    let numbered = [&1u32.to_ne_bytes()[..], &address(1), &[6, 0, 0, 0], &port].concat();
    let affinity_key = [Ipv6Addr, Ipv6Addr, InetProto, InetService];
    let update = Expr::Dynset {
        set: "affinity".into(),
        op: DynsetOp::Update,
        sreg_key: 1,
        sreg_data: Some(register(12)),
        timeout_ms: Some(60_000),
        counter: false,
    };
    Ruleset {
        family: Family::Ip6,
        table: table(None),
        chains: vec![base_chain("pre", ChainType::Nat, HookPoint::Output, -100), chain("c")],
        sets: vec![
            (
                set(
                    "endpoints",
                    &[Integer32, Ipv6Addr, InetProto, InetService],
                    Some(SetData::Value(vec![Ipv6Addr, InetService])),
                ),
                vec![element(&numbered, endpoint)],
            ),
            (
                Set {
                    dynamic: true,
                    timeout_ms: Some(60_000),
                    size: Some(1000),
                    ..set("affinity", &affinity_key, Some(SetData::Value(vec![Ipv6Addr])))
                },
                vec![],
            ),
        ],
        rules: vec![
            (
                "pre",
                rule(vec![
                    Expr::Numgen { dreg: 1, modulus: 3, offset: 0 },
                    network(24, 16, 9),
                    l4proto(13),
                    destination_port(14),
                    lookup("endpoints", Some(1)),
                    Expr::Dnat { family: Family::Ip6, address_reg: 1, port_reg: 2 },
                ]),
            ),
            (
                "c",
                rule(vec![
                    l4proto(1),
                    equal(&[6]),
                    original(CtKey::SrcIp6, 1),
                    original(CtKey::DstIp6, 2),
                    l4proto(register(8)),
                    original(CtKey::ProtoDst, register(9)),
                    network(24, 16, register(12)),
                    update,
                ]),
            ),
            ("c", rule(vec![Expr::Reject { kind: 0, code: 4 }])),
        ],
    }
}

#[test]
fn ipv6_reads_back_equal_and_nft_prints_it() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let ruleset = ipv6_ruleset();
        ruleset.write(&mut connection);
        ruleset.assert_read_back(&mut connection);
        let expected = r#"table ip6 t {
            map endpoints {
                typeof numgen random mod 65536 . ip6 daddr . meta l4proto . th dport : ip6 daddr . th dport
                elements = { 1 . fd00::1 . tcp . 80 : fd00::2 . 8080 }
            }
            map affinity {
                type ipv6_addr . ipv6_addr . inet_proto . inet_service : ipv6_addr
                size 1000
                flags dynamic,timeout
                timeout 1m
            }
            chain pre {
                type nat hook output priority -100; policy accept;
                dnat ip6 to numgen random mod 3 . ip6 daddr . meta l4proto . th dport map @endpoints
            }
            chain c {
                meta l4proto tcp update @affinity { ct original ip6 saddr . ct original ip6 daddr . meta l4proto . ct original proto-dst timeout 1m : ip6 daddr }
                reject
            }
        }"#;
        assert_eq!(lines(&nft(&["list", "table", "ip6", TABLE])), lines(expected));
        assert_eq!(connection.table(Family::Ip, TABLE).unwrap(), None, "the other family has no such table");
    });
}

#[test]
fn what_nft_writes_we_read_as_the_same() {
    in_namespace(|| {
        let written = {
            let mut connection = Connection::open().unwrap();
            ipv4_ruleset().write(&mut connection);
            nft(&["list", "table", "ip", TABLE])
        };
        nft(&["delete", "table", "ip", TABLE]);
        nft_load(&written);
        // nft adds one thing of its own: it swaps the bytes of a protocol number before it looks in concatenated intervals.
        let mut connection = Connection::open().unwrap();
        let mut ruleset = ipv4_ruleset();
        for (_, rule) in &mut ruleset.rules {
            let looks_in_sources = |expr: &Expr| matches!(expr, Expr::Lookup { set, .. } if set == "sources");
            if rule.exprs.iter().any(looks_in_sources) {
                rule.exprs.insert(2, Expr::Unknown("byteorder".into()));
            }
        }
        ruleset.assert_read_back(&mut connection);
    });
}

#[test]
fn what_we_never_write_is_read_as_something_else() {
    in_namespace(|| {
        nft_load(
            "table ip t {
                set marks { type mark; }
                chain c { quota 1 mbytes; numgen inc mod 2 0 continue; meta l4proto { tcp, udp } accept; }
                chain dropping { type filter hook input priority 0; policy drop; }
                chain routing { type route hook output priority 0; }
                map v { type mark : verdict; elements = { 1 : continue } }
            }
            table ip dormant { flags dormant; }",
        );
        let mut connection = Connection::open().unwrap();
        let rules = connection.rules(Family::Ip, TABLE).unwrap();
        let exprs: Vec<&[Expr]> = rules.iter().map(|found| found.rule.exprs.as_slice()).collect();
        assert_eq!(exprs[0], [Expr::Unknown("quota".into())]);
        assert!(exprs[1].contains(&Expr::Unknown("numgen".into())));
        assert!(exprs[1].contains(&Expr::Unknown("immediate".into())));
        let kinds: Vec<_> = connection
            .chains(Family::Ip, TABLE)
            .unwrap()
            .into_iter()
            .map(|chain| (chain.name, chain.hook.map(|hook| hook.kind)))
            .collect();
        let other = Some(ChainType::Other);
        assert_eq!(kinds, [("c".into(), None), ("dropping".into(), other), ("routing".into(), other)]);
        let sets = connection.sets(Family::Ip, TABLE).unwrap();
        let names: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
        assert_eq!(names, ["marks", "v"], "the anonymous set of the rule is left out");
        assert_eq!(sets[0].key, [Datatype::Unknown(19)]);
        let continues = Data::Value((-1i32).to_be_bytes().into());
        let found = elements(&mut connection, Family::Ip, "v");
        assert_eq!(found, BTreeSet::from([element(&1u32.to_ne_bytes(), continues)]));
        assert!(connection.is_dormant(Family::Ip, "dormant").unwrap());
        assert!(!connection.is_dormant(Family::Ip, TABLE).unwrap());
    });
}

#[test]
fn adding_a_table_again_wakes_it() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        nft_load("table ip t { flags dormant; }");
        let mut batch = Batch::new();
        batch.add_table(0, Family::Ip, &table(None));
        connection.commit(&batch).unwrap();
        assert!(!connection.is_dormant(Family::Ip, TABLE).unwrap());
    });
}

#[test]
fn other_tables_are_not_read_and_missing_ones_are_empty() {
    in_namespace(|| {
        nft_load(
            "table ip other { set s { type ipv4_addr; }; chain c { accept; }; }
             table ip6 t { set s { type ipv6_addr; }; chain c { accept; }; }
             table inet t { set s { type ipv6_addr; }; chain c { accept; }; }",
        );
        let mut connection = Connection::open().unwrap();
        assert_eq!(connection.table(Family::Ip, TABLE).unwrap(), None);
        assert_eq!(connection.chains(Family::Ip, TABLE).unwrap(), []);
        assert_eq!(connection.rules(Family::Ip, TABLE).unwrap(), []);
        assert_eq!(connection.sets(Family::Ip, TABLE).unwrap(), []);
        nft(&["add", "table", "ip", TABLE]);
        assert_eq!(connection.chains(Family::Ip, TABLE).unwrap(), []);
        assert_eq!(connection.rules(Family::Ip, TABLE).unwrap(), []);
        assert_eq!(connection.sets(Family::Ip, TABLE).unwrap(), []);
        let missing = connection.elements(Family::Ip, TABLE, "nosuch", &mut |_| {}).unwrap_err();
        assert_eq!(missing.errno, Errno::NOENT);
    });
}

#[test]
fn everything_can_be_removed_again() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let ruleset = ipv4_ruleset();
        ruleset.write(&mut connection);
        let rules = connection.rules(Family::Ip, TABLE).unwrap();
        let first: &ObservedRule = &rules[0];

        let mut batch = Batch::new();
        batch.delete_rule(0, Family::Ip, TABLE, &first.chain, first.handle);
        connection.commit(&batch).unwrap();
        assert_eq!(connection.rules(Family::Ip, TABLE).unwrap(), rules[1..]);

        batch.clear();
        for chain in &ruleset.chains {
            batch.flush_chain(0, Family::Ip, TABLE, &chain.name);
        }
        for (set, elements) in &ruleset.sets {
            match elements.as_slice() {
                [] => {}
                elements if set.interval => {
                    elements
                        .iter()
                        .for_each(|e| batch.delete_element(0, Family::Ip, TABLE, &set.name, e.into()));
                }
                [element, ..] => batch.delete_element(0, Family::Ip, TABLE, &set.name, element.into()),
            }
        }
        connection.commit(&batch).unwrap();
        assert_eq!(connection.rules(Family::Ip, TABLE).unwrap(), []);
        for (set, _) in &ruleset.sets {
            assert_eq!(elements(&mut connection, Family::Ip, &set.name), BTreeSet::new(), "{}", set.name);
        }

        batch.clear();
        ruleset.sets.iter().for_each(|(set, _)| batch.delete_set(0, Family::Ip, TABLE, &set.name));
        ruleset.chains.iter().for_each(|chain| batch.delete_chain(0, Family::Ip, TABLE, &chain.name));
        connection.commit(&batch).unwrap();
        assert_eq!(connection.sets(Family::Ip, TABLE).unwrap(), []);
        assert_eq!(connection.chains(Family::Ip, TABLE).unwrap(), []);

        batch.clear();
        batch.delete_table(0, Family::Ip, TABLE);
        connection.commit(&batch).unwrap();
        assert_eq!(nft(&["list", "ruleset"]), "");
    });
}

/// A table with one map of frontends and one chain to go to.
fn prepare(connection: &mut Connection) {
    let mut batch = Batch::new();
    batch.add_table(0, Family::Ip, &table(None));
    batch.add_chain(0, Family::Ip, TABLE, &chain("c"));
    batch.add_set(0, Family::Ip, TABLE, &set("m", &[Datatype::Ipv4Addr], Some(SetData::Verdict)));
    batch.add_set(0, Family::Ip, TABLE, &set("s", &[Datatype::Ipv4Addr], None));
    connection.commit(&batch).unwrap();
}

#[test]
fn a_batch_may_have_many_megabytes() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        prepare(&mut connection);
        let mut batch = Batch::new();
        let count = 150_000u32;
        for n in 0..count {
            let key = n.to_be_bytes();
            let data = DataRef::Verdict(VerdictRef::Goto("c"));
            let comment = Some("namespace/service-name:port");
            let element = ElementRef { key: &key, key_end: None, interval_end: false, data, comment };
            batch.add_element(n, Family::Ip, TABLE, "m", element);
        }
        assert!(batch.bytes() > 10_000_000, "only {} bytes", batch.bytes());
        if batch.bytes() > connection.max_batch_bytes() {
            // Root of a user namespace may not force a large send buffer.
            let missing = "a_batch_may_have_many_megabytes: no CAP_NET_ADMIN over the machine";
            assert!(std::env::var_os("CI").is_none(), "CI must run every test: {missing}");
            // Not eprintln!, whose output the test harness keeps to itself when a test passes.
            std::io::stderr().write_all(format!("SKIPPED: {missing}\n").as_bytes()).unwrap();
            return;
        }
        connection.commit(&batch).unwrap();
        let mut seen = vec![false; count as usize];
        connection
            .elements(Family::Ip, TABLE, "m", &mut |element| {
                let key = u32::from_be_bytes(element.key.try_into().unwrap());
                seen[key as usize] = true;
                assert_eq!(element.data, (&goto("c")).into());
            })
            .unwrap();
        assert!(seen.iter().all(|seen| *seen));
    });
}

#[test]
fn failures_name_their_tags_and_nothing_is_changed() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        prepare(&mut connection);
        let mut batch = Batch::new();
        for n in 0..5_000u32 {
            // Two elements go to a chain that does not exist, in different messages; one rule and one set are wrong as well.
            let chain = if n == 17 || n == 4_321 { "nosuch" } else { "c" };
            let data = DataRef::Verdict(VerdictRef::Goto(chain));
            batch.add_element(n, Family::Ip, TABLE, "m", ElementRef { data, ..key(&n.to_be_bytes()) });
        }
        batch.add_rule(70_000, Family::Ip, TABLE, "c", &rule(vec![lookup("nosuch", None)]));
        batch.delete_set(80_000, Family::Ip, TABLE, "gone");
        batch.delete_element(90_000, Family::Ip, TABLE, "s", key(&[9, 9, 9, 9]));
        batch.add_chain(90_001, Family::Ip, TABLE, &chain("never"));
        let error = connection.commit(&batch).unwrap_err();
        assert_eq!(error.cause, None);
        let tags: Vec<_> = error.failures.iter().map(|failure| failure.tag.unwrap()).collect();
        assert_eq!(tags, [17, 4_321, 70_000, 80_000, 90_000]);
        assert_eq!(
            error.failures[0].error.to_string(),
            "cannot add element to ip t/m { 00000011 }: No such file or directory"
        );
        assert_eq!(
            error.failures[3].error.to_string(),
            "cannot delete set ip t/gone: No such file or directory"
        );
        assert_eq!(elements(&mut connection, Family::Ip, "m"), BTreeSet::new());
        assert_eq!(connection.chains(Family::Ip, TABLE).unwrap(), [chain("c")]);
        // The connection goes on working.
        batch.clear();
        batch.add_element(0, Family::Ip, TABLE, "s", key(&[9, 9, 9, 9]));
        connection.commit(&batch).unwrap();
    });
}

#[test]
fn a_flood_of_failures_neither_hangs_nor_passes_for_success() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        prepare(&mut connection);
        let mut batch = Batch::new();
        for n in 0..50_000 {
            batch.delete_set(n, Family::Ip, TABLE, "gone");
        }
        let error = connection.commit(&batch).unwrap_err();
        assert!(!error.failures.is_empty());
        if error.failures.len() < 50_000 {
            assert!(error.cause.is_some(), "lost answers must be reported");
        }
        let mut batch = Batch::new();
        batch.add_element(0, Family::Ip, TABLE, "s", key(&[9, 9, 9, 9]));
        connection.commit(&batch).unwrap();
    });
}

#[test]
fn adding_twice_is_fine_and_contradicting_is_not() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        prepare(&mut connection);
        prepare(&mut connection);
        let mut batch = Batch::new();
        let accept = DataRef::Verdict(VerdictRef::Accept);
        batch.add_element(1, Family::Ip, TABLE, "m", ElementRef { data: accept, ..key(&[1, 1, 1, 1]) });
        connection.commit(&batch).unwrap();
        connection.commit(&batch).unwrap();
        batch.clear();
        let drop = DataRef::Verdict(VerdictRef::Drop);
        batch.add_element(2, Family::Ip, TABLE, "m", ElementRef { data: drop, ..key(&[1, 1, 1, 1]) });
        let error = connection.commit(&batch).unwrap_err();
        assert_eq!(error.failures[0].tag, Some(2));
        // Replacing is deleting and adding in one batch.
        batch.clear();
        batch.delete_element(2, Family::Ip, TABLE, "m", key(&[1, 1, 1, 1]));
        batch.add_element(2, Family::Ip, TABLE, "m", ElementRef { data: drop, ..key(&[1, 1, 1, 1]) });
        connection.commit(&batch).unwrap();
        let expected = element(&[1, 1, 1, 1], Data::Verdict(Verdict::Drop));
        assert_eq!(elements(&mut connection, Family::Ip, "m"), BTreeSet::from([expected]));
    });
}

#[test]
fn checking_changes_nothing() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        prepare(&mut connection);
        let generation = connection.generation().unwrap();
        let mut batch = Batch::new();
        batch.add_chain(0, Family::Ip, TABLE, &chain("new"));
        batch.add_element(1, Family::Ip, TABLE, "s", key(&[1, 1, 1, 1]));
        connection.check(&batch).unwrap();
        batch.delete_set(2, Family::Ip, TABLE, "gone");
        let error = connection.check(&batch).unwrap_err();
        assert_eq!(error.failures.iter().map(|failure| failure.tag).collect::<Vec<_>>(), [Some(2)]);
        assert_eq!(connection.chains(Family::Ip, TABLE).unwrap(), [chain("c")]);
        assert_eq!(elements(&mut connection, Family::Ip, "s"), BTreeSet::new());
        assert_eq!(connection.generation().unwrap(), generation);
        nft(&["add", "chain", "ip", TABLE, "foreign"]);
        assert_ne!(connection.generation().unwrap(), generation);
    });
}

/// All notices that are there, without waiting for more: notifications are delivered before a commit returns.
fn notices(monitor: &mut Monitor) -> Vec<Notice> {
    std::iter::from_fn(|| monitor.next(Some(Duration::ZERO)).unwrap()).collect()
}

#[test]
fn the_monitor_tells_our_changes_from_others() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let mut monitor = Monitor::open().unwrap();
        prepare(&mut connection);
        let ours = connection.port_id();
        let seen = notices(&mut monitor);
        let changed = |what, removed, port_id| Notice::Changed {
            family: Some(Family::Ip),
            table: TABLE.into(),
            what,
            chain: (what == "chain").then(|| "c".into()),
            removed,
            port_id,
        };
        assert_eq!(seen[..3], ["table", "chain", "set"].map(|what| changed(what, false, ours)));
        assert!(matches!(seen[3], Notice::Generation { port_id, .. } if port_id == ours));
        assert_eq!(seen.len(), 4);

        nft(&["add", "element", "ip", TABLE, "s", "{ 1.1.1.1, 2.2.2.2 }"]);
        nft(&["delete", "chain", "ip", TABLE, "c"]);
        let seen = notices(&mut monitor);
        let [Notice::Changed { port_id: theirs, .. }, ..] = seen[..] else { panic!("{seen:?}") };
        assert_ne!(theirs, ours);
        assert_eq!(seen[0], changed("element", false, theirs));
        let removed =
            |notice: &&Notice| matches!(notice, Notice::Changed { what: "chain", removed: true, .. });
        assert_eq!(seen.iter().filter(removed).count(), 1, "{seen:?}");
    });
}

#[test]
fn the_monitor_can_leave_out_our_own_changes() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let mut monitor = Monitor::open().unwrap();
        prepare(&mut connection);
        assert!(!notices(&mut monitor).is_empty());
        let ignorer = monitor.ignorer().unwrap();
        monitor.ignore(connection.port_id() + 1).unwrap();
        ignorer.ignore(connection.port_id()).unwrap();

        let mut batch = Batch::new();
        for n in 0..100_000u32 {
            batch.add_element(0, Family::Ip, TABLE, "s", key(&n.to_be_bytes()));
        }
        connection.commit(&batch).unwrap();
        assert_eq!(notices(&mut monitor), []);
        nft(&["delete", "element", "ip", TABLE, "s", "{ 0.0.0.7 }"]);
        assert!(matches!(notices(&mut monitor)[0], Notice::Changed { what: "element", removed: true, .. }));
        nft(&["add", "rule", "ip", TABLE, "c", "accept"]);
        let of_rule = |notice: &Notice| matches!(notice, Notice::Changed { what: "rule", chain: Some(c), .. } if c == "c");
        assert!(notices(&mut monitor).iter().any(of_rule));
    });
}

#[test]
fn the_monitor_says_when_it_has_missed_something() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        prepare(&mut connection);
        let mut monitor = Monitor::open().unwrap();
        let mut batch = Batch::new();
        for n in 0..200_000u32 {
            batch.add_element(0, Family::Ip, TABLE, "s", key(&n.to_be_bytes()));
        }
        connection.commit(&batch).unwrap();
        assert!(notices(&mut monitor).contains(&Notice::Lost));
    });
}

#[test]
fn intervals_read_back_as_nft_made_them() {
    in_namespace(|| {
        nft_load(
            "table ip t { set s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.168.1.1 }; }; }",
        );
        let mut connection = Connection::open().unwrap();
        let bound = |key: [u8; 4], interval_end| Element { interval_end, ..element(&key, Data::None) };
        let expected = [
            bound([0, 0, 0, 0], true),
            bound([10, 0, 0, 0], false),
            bound([11, 0, 0, 0], true),
            bound([192, 168, 1, 1], false),
            bound([192, 168, 1, 2], true),
        ];
        assert_eq!(elements(&mut connection, Family::Ip, "s"), BTreeSet::from(expected.clone()));
        // Taking out one interval takes both of its ends.
        let mut batch = Batch::new();
        for bound in &expected[1..3] {
            batch.delete_element(0, Family::Ip, TABLE, "s", bound.into());
        }
        connection.commit(&batch).unwrap();
        let listed = nft(&["list", "set", "ip", TABLE, "s"]);
        assert!(listed.contains("elements = { 192.168.1.1 }"), "{listed}");
    });
}

#[test]
fn counters_of_elements_are_read_as_nft_shows_them() {
    in_namespace(|| {
        let mut connection = Connection::open().unwrap();
        let mut read = |set: &str| {
            let mut found = BTreeMap::new();
            connection
                .counters(Family::Ip, TABLE, set, &mut |key, counter| {
                    found.insert(key.to_vec(), (counter.packets, counter.bytes));
                })
                .unwrap();
            found
        };
        assert!(read("s").is_empty(), "there is no such set");
        nft(&["add", "table", "ip", TABLE]);
        nft(&["add", "set", "ip", TABLE, "s", "{ type ipv4_addr; flags dynamic,timeout; size 10; }"]);
        assert!(read("s").is_empty());
        let elements =
            "{ 10.0.0.1 counter packets 5 bytes 300, 10.0.0.2 counter packets 0 bytes 0, 10.0.0.3 }";
        nft(&["add", "element", "ip", TABLE, "s", elements]);
        // The third element has no counter.
        let expected = BTreeMap::from([(vec![10, 0, 0, 1], (5, 300)), (vec![10, 0, 0, 2], (0, 0))]);
        assert_eq!(read("s"), expected);
    });
}
