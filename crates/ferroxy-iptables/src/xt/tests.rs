//! Round trips: text is parsed and printed again, bytes are written and read again. Anything else is unknown.

use std::sync::LazyLock;

use ferroxy_core::Family;
use ferroxy_netlink::nftables::{
    Base, CmpOp, Expression, Extension, VerdictRef, decode_expressions, encode_expressions,
};

use super::expression::{Found, read, write};
use super::*;

/// Every form of a rule that we write, and some more that the tool prints.
const RULES: [&str; 37] = [
    "! -s 10.244.0.0/16 -d 10.96.0.80/32 -p tcp -m comment --comment \"default/web cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
    "-s 10.244.0.0/20 -j KUBE-MARK-MASQ",
    "-s 0.0.0.0/1 -d 10.0.0.0/8 -g KUBE-MARK-MASQ",
    "-p tcp -m tcp -j DNAT --to-destination 10.1.2.3:8080",
    "-p udp -m udp --dport 53 -j KUBE-MARK-MASQ",
    "-p udp -m udp -j DNAT --to-destination 10.1.2.3:8080",
    "-p sctp -m sctp --dport 53 -j KUBE-MARK-MASQ",
    "-p sctp -m sctp -j DNAT --to-destination 10.1.2.3:8080",
    "-m statistic --mode random --probability 0.33333333349 -j KUBE-MARK-MASQ",
    "-m statistic --mode random --probability 1.00000000000 -j KUBE-MARK-MASQ",
    "-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-X --mask 255.255.255.255 --rsource -j KUBE-SEP-X",
    "-p tcp -m recent --set --name KUBE-SEP-X --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.1.2.3:80",
    "-m mark ! --mark 0x4000/0x4000 -j RETURN",
    "-m mark --mark 0x5 -j ACCEPT",
    "-j MARK --set-xmark 0x4000/0x4000",
    "-j MARK --set-xmark 0x4000/0x0",
    "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully",
    "-j MASQUERADE",
    "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
    "-m addrtype ! --src-type LOCAL -j KUBE-NODEPORTS",
    "-m conntrack --ctstate NEW -j KUBE-SERVICES",
    "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
    "-m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP",
    "-i cbr0 -m comment --comment only",
    "! -i cali+ -j KUBE-MARK-MASQ",
    "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT",
    "-j REJECT --reject-with icmp-port-unreachable",
    "-m comment --comment \"a\\'b\\\"c\\\\d x\" -j ACCEPT",
    "-m comment --comment \"\"",
    "! -p tcp -j RETURN",
    "-m comment --comment \"a set\" -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
    "-m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE",
    "-m set ! --match-set KUBE-CLUSTER-IP src,dst,src,dst,src,src -j DROP",
    "-m set --match-set KUBE-CLUSTER-IP dst -j RETURN",
    "-s 203.0.113.10/32 -m ipvs --vproto 6 --vaddr 203.0.113.10 --vport 258 -j DROP",
    "-p tcp -m comment --comment \"default/web\" -m tcp --dport 1000 -m state --state NEW -j ACCEPT",
    "-d 10.96.0.80/32 -p tcp -m comment --comment \"default/web\" -m tcp --dport 80 -j REDIRECT --to-ports 15001",
];

const RULES_V6: [&str; 9] = [
    "! -s fd00:1::/64 -d fd00:2::50/128 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ",
    "-s fd00:1::/52 -j KUBE-MARK-MASQ",
    "-p tcp -m tcp -j DNAT --to-destination [fd00::3]:8080",
    "-m recent --rcheck --seconds 5 --reap --name X --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j X",
    "-j MASQUERADE --random-fully",
    "-j REJECT --reject-with icmp6-port-unreachable",
    "-m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE",
    "-s fd00:b::10/128 -m ipvs --vproto 17 --vaddr fd00:b::10 --vport 53 -j DROP",
    "-p udp -m udp --dport 53 -j REDIRECT --to-ports 15001",
];

fn terms(family: Family) -> Terms<'static> {
    static SETS: LazyLock<Sets> = LazyLock::new(|| {
        [(3, "KUBE-CLUSTER-IP".to_owned()), (0x102, "KUBE-LOOP-BACK".to_owned())].into_iter().collect()
    });
    Terms { family, sets: &SETS }
}

fn all() -> impl Iterator<Item = (Family, &'static str)> {
    let v4 = RULES.into_iter().map(|rule| (Family::V4, rule));
    v4.chain(RULES_V6.into_iter().map(|rule| (Family::V6, rule)))
}

#[test]
fn what_is_parsed_prints_the_same() {
    for (family, rule) in all() {
        let spec = parse(terms(family), rule).unwrap_or_else(|| panic!("{rule}"));
        assert_eq!(spec.display(family).to_string(), rule);
    }
}

#[test]
fn what_is_written_is_read() {
    for (family, rule) in all() {
        let spec = parse(terms(family), rule).unwrap();
        let bytes = encode_expressions(|out| write(&spec, family, out));
        assert_eq!(read(terms(family), decode_expressions(&bytes)).unwrap(), Found::Known(spec), "{rule}");
    }
}

#[test]
fn other_rules_are_not_parsed() {
    for rule in [
        "-m limit --limit 5/sec -j ACCEPT",
        "-p icmp -j ACCEPT",
        "-p tcp -m tcp --sport 80 -j ACCEPT",
        "-p tcp -m tcp ! --dport 80 -j ACCEPT",
        "-s 10.0.0.1/8 -j ACCEPT",
        "! -s 0.0.0.0/0 -j ACCEPT",
        "-s fd00::/8 -j ACCEPT",
        "-i + -j ACCEPT",
        "-m statistic --mode nth --every 2 -j ACCEPT",
        "-m conntrack --ctstate STRANGE -j ACCEPT",
        "-j MASQUERADE --to-ports 1-2",
        "-j DNAT --to-destination [fd00::1]:80",
        "-j REJECT --reject-with icmp-host-unreachable",
        "-m addrtype --dst-type UNICAST -j ACCEPT",
        "-j ACCEPT !",
        "! -m comment --comment x -j ACCEPT",
        "-m set --match-set NO-SUCH-SET dst -j ACCEPT",
        "-m set --match-set KUBE-CLUSTER-IP dst,up -j ACCEPT",
        "-m set --match-set KUBE-CLUSTER-IP dst,dst,dst,dst,dst,dst,dst -j ACCEPT",
        "-m set --match-set KUBE-CLUSTER-IP dst --return-nomatch -j ACCEPT",
        "-m ipvs --vproto 6 --vaddr fd00::1 --vport 80 -j DROP",
        "-m ipvs --ipvs -j DROP",
        "-m state --ctstate NEW -j ACCEPT",
        "-p tcp -j REDIRECT --to-ports 1-2",
        "-m",
    ] {
        assert_eq!(parse(terms(Family::V4), rule), None, "{rule}");
    }
}

#[test]
fn wrapped_ports_and_marks_of_older_versions_are_read() {
    let mut tcp = [0; 16];
    tcp[2..4].fill(0xff);
    tcp[4..6].copy_from_slice(&80_u16.to_ne_bytes());
    tcp[6..8].copy_from_slice(&80_u16.to_ne_bytes());
    let bytes = encode_expressions(|out| {
        out.push(Expression::Match(Extension { name: "tcp", revision: 0, info: &tcp }));
    });
    let Found::Known(spec) = read(terms(Family::V4), decode_expressions(&bytes)).unwrap() else { panic!() };
    assert_eq!(spec.display(Family::V4).to_string(), "-m tcp --dport 80");
    let mut mark = [0; 16];
    mark[..4].copy_from_slice(&1_u32.to_ne_bytes());
    mark[4..8].copy_from_slice(&3_u32.to_ne_bytes());
    let bytes = encode_expressions(|out| {
        out.push(Expression::Match(Extension { name: "mark", revision: 1, info: &mark }));
    });
    let Found::Known(spec) = read(terms(Family::V4), decode_expressions(&bytes)).unwrap() else { panic!() };
    assert_eq!(spec.display(Family::V4).to_string(), "-m mark --mark 0x1/0x3");
}

/// iptables 1.8.11 and 1.8.13: addresses first, and the protocol from the header of IPv4.
#[test]
fn the_order_and_the_protocol_of_newer_versions_are_read() {
    let written = |offset: u32| {
        encode_expressions(|out| {
            out.push(Expression::Payload { base: Base::Network, offset: 16, len: 4 });
            out.push(Expression::Cmp { op: CmpOp::Eq, data: &[10, 96, 0, 80] });
            out.push(Expression::Payload { base: Base::Network, offset, len: 1 });
            out.push(Expression::Cmp { op: CmpOp::Eq, data: &[6] });
            out.push(Expression::Payload { base: Base::Transport, offset: 2, len: 2 });
            out.push(Expression::Cmp { op: CmpOp::Eq, data: &[0, 80] });
            out.push(Expression::Verdict(VerdictRef::Accept));
        })
    };
    let bytes = written(9);
    let Found::Known(spec) = read(terms(Family::V4), decode_expressions(&bytes)).unwrap() else { panic!() };
    assert_eq!(spec.display(Family::V4).to_string(), "-d 10.96.0.80/32 -p tcp -m tcp --dport 80 -j ACCEPT");
    // Offset 9 is the protocol in IPv4 only, and no other offset is.
    let bytes = written(8);
    assert_eq!(read(terms(Family::V4), decode_expressions(&bytes)).unwrap(), Found::Unknown(None));
    let bytes = written(9);
    assert_eq!(read(terms(Family::V6), decode_expressions(&bytes)).unwrap(), Found::Unknown(None));
}

#[test]
fn any_other_bit_of_a_struct_makes_the_rule_unknown() {
    for (family, rule) in all() {
        let spec = parse(terms(family), rule).unwrap();
        let bytes = encode_expressions(|out| write(&spec, family, out));
        for expression in decode_expressions(&bytes) {
            let Expression::Match(extension) = expression.unwrap() else { continue };
            for at in 0..extension.info.len() {
                let mut info = extension.info.to_vec();
                info[at] ^= 0x41;
                let bytes = encode_expressions(|out| {
                    out.push(Expression::Match(Extension { info: &info, ..extension }));
                });
                if let Found::Known(other) = read(terms(family), decode_expressions(&bytes)).unwrap() {
                    // Then the changed bytes are another rule that we could have written.
                    let text = other.display(family).to_string();
                    assert!(!rule.contains(&text), "{rule}: byte {at} of {}", extension.name);
                }
            }
        }
    }
}

#[test]
fn a_rule_that_is_not_known_keeps_its_target() {
    let bytes = encode_expressions(|out| {
        out.push(Expression::Match(Extension { name: "limit", revision: 0, info: &[0; 40] }));
        out.push(Expression::Counter);
        out.push(Expression::Verdict(VerdictRef::Jump("KUBE-SERVICES")));
    });
    let found = read(terms(Family::V4), decode_expressions(&bytes)).unwrap();
    assert_eq!(found, Found::Unknown(Some("KUBE-SERVICES")));
    assert_eq!(crate::rule::target(&unknown(7, Some("KUBE-SERVICES"))), Some("KUBE-SERVICES"));
    // A value that nothing compares, and an expression after the target.
    let bytes = encode_expressions(|out| out.push(Expression::Meta(3)));
    assert_eq!(read(terms(Family::V4), decode_expressions(&bytes)).unwrap(), Found::Unknown(None));
    let bytes = encode_expressions(|out| {
        out.push(Expression::Verdict(VerdictRef::Accept));
        out.push(Expression::Verdict(VerdictRef::Drop));
    });
    assert_eq!(read(terms(Family::V4), decode_expressions(&bytes)).unwrap(), Found::Unknown(None));
}

#[test]
fn numbers_are_in_the_order_that_the_kernel_wants() {
    let info = |rule: &str| {
        let spec = parse(terms(Family::V4), rule).unwrap();
        let bytes = encode_expressions(|out| write(&spec, Family::V4, out));
        let expressions: Vec<_> = decode_expressions(&bytes).map(Result::unwrap).collect();
        let info = expressions.iter().find_map(|it| match it {
            Expression::Match(extension) | Expression::Target(extension) => Some(extension.info.to_vec()),
            _ => None,
        });
        info.unwrap()
    };
    // Ports of sctp are in host order, those of a translation in network order.
    assert_eq!(info("-p sctp -m sctp --dport 258 -j ACCEPT")[..2], 258_u16.to_ne_bytes());
    assert_eq!(info("-j DNAT --to-destination 10.1.2.3:258")[36..38], [1, 2]);
    assert_eq!(info("-j MARK --set-xmark 0x1020304/0xff")[..4], 0x1020304_u32.to_ne_bytes());
    assert_eq!(info("-m conntrack --ctstate NEW")[150..152], 8_u16.to_ne_bytes());
    assert_eq!(info("-m set --match-set KUBE-LOOP-BACK dst")[..2], 0x102_u16.to_ne_bytes());
    assert_eq!(info("-m ipvs --vproto 6 --vaddr 1.2.3.4 --vport 258")[32..34], [1, 2]);
    assert_eq!(info("-p tcp -j REDIRECT --to-ports 258")[16..18], [1, 2]);
}
