//! Ring 1: the rules of ipvs mode are the same whether the iptables tools or we write them, in both variants. Needs root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]
#![cfg(target_os = "linux")]

#[path = "../../ferroxy-iptables/tests/support/bytes.rs"]
mod bytes;

use std::net::IpAddr;

use ferroxy_core::intent::{LocalDetector, NodeIntent};
use ferroxy_core::{Family, Protocol};
use ferroxy_iptables::state::Rules;
use ferroxy_iptables::xt::Sets;
use ferroxy_iptables::{State, TableName};
use ferroxy_ipvs::program::{OUT_FILTER, guard, owns, rules};
use ferroxy_ipvs::set::{Kind, SetName};
use ferroxy_ipvs::state::Address;
use ferroxy_lab::{Capability, require};
use ferroxy_netlink::ipset;

/// All sets, and one of another program before them.
fn create_sets() -> Sets {
    let mut connection = ipset::Connection::open().unwrap();
    let mut create = |name: &str, kind, family| {
        connection
            .create(&ipset::Set { name: name.into(), kind, family, capacity: 1024, hash_size: 64 })
            .unwrap();
    };
    create("foreign", ipset::Kind::Ip, ipset::Family::V4);
    for name in Family::ALL.into_iter().flat_map(SetName::all) {
        let kind = match name.set.kind() {
            Kind::Ip => ipset::Kind::Ip,
            Kind::IpPort => ipset::Kind::IpPort,
            Kind::IpPortIp => ipset::Kind::IpPortIp,
            Kind::IpPortNet => ipset::Kind::IpPortNet,
            Kind::Port => ipset::Kind::Port,
        };
        let family = if name.family == Family::V4 { ipset::Family::V4 } else { ipset::Family::V6 };
        create(&name.to_string(), kind, family);
    }
    connection.numbers().unwrap().into_iter().collect()
}

fn nodes() -> Vec<NodeIntent> {
    let pods = |range: &str| Some(LocalDetector::SourceIn(range.parse().unwrap()));
    let mut detecting = NodeIntent::default();
    detecting.v4.local_detector = pods("10.244.0.0/16");
    detecting.v6.local_detector = pods("fd00:10:244::/52");
    let mut by_device = NodeIntent::default();
    by_device.v4.local_detector = Some(LocalDetector::InterfacePrefix("cali".into()));
    let all = NodeIntent { masquerade_all: true, ..NodeIntent::default() };
    vec![NodeIntent::default(), detecting, by_device, all]
}

#[test]
fn writers_agree_on_rules_with_sets() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for node in nodes() {
        let state = rules(&node, 0x4000, &Family::ALL);
        bytes::assert_writers_agree(&format!("{node:?}"), &state, owns, create_sets);
    }
}

/// A guard for each address, in both families and with every protocol.
fn with_guards(mut state: State) -> State {
    for ip in ["203.0.113.10", "fd00:b::10"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
        let table = state.tables.get_mut(&(Family::of(ip), TableName::Filter)).unwrap();
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let guards = protocols.map(|protocol| guard(&Address { ip, protocol, port: 8080 }));
        table.chains.insert(OUT_FILTER.into(), guards.iter().map(String::as_str).collect::<Rules>());
    }
    state
}

#[test]
#[ignore = "needs a kernel with IPVS: make test-vm"]
fn writers_agree_on_guards() {
    let state = with_guards(rules(&NodeIntent::default(), 0x4000, &Family::ALL));
    bytes::assert_writers_agree("guards", &state, owns, create_sets);
}

#[test]
fn a_rule_whose_set_is_missing_is_refused_with_its_line() {
    use ferroxy_iptables::diff;
    use ferroxy_iptables::tool::{Error, Limits, Variant};
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    let plan = diff(&State::default(), &rules(&NodeIntent::default(), 0x4000, &[Family::V4]));
    for variant in [Variant::NfTables, Variant::Legacy] {
        let refused = || {
            let error =
                bytes::builtin(Family::V4, variant).apply(&plan, &Limits::default(), &()).unwrap_err();
            let Error::Refused(refusal) = error else { panic!("{error}") };
            assert!(refusal.line.as_ref().unwrap().contains("--match-set KUBE-"), "{refusal:?}");
            assert!(refusal.said.contains("set"), "{refusal:?}");
            bytes::nft_chains().len()
        };
        assert_eq!(
            ferroxy_lab::Namespace::new("sets").unwrap().run(refused).unwrap(),
            0,
            "nothing is written"
        );
    }
}
