//! Conformance of the rules. Ring 0: for every recorded case the rules are those of the original, and every recorded probe
//! follows from them. Ring 2: the real tools of both variants print them back so after a start. No packets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use std::fs;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::oracle::iptables as oracle;
use ferroxy_core::policy::{DetectLocal, NodePortAddress};
use ferroxy_core::{Facts, Family, Intent, Origin, Packet, Policy, Protocol, Verdict, resolve};
use ferroxy_dataplane::Dataplane;
use ferroxy_iptables::observe::observe;
use ferroxy_iptables::state::Rules;
use ferroxy_iptables::text::parse;
use ferroxy_iptables::tool::{Limits, Tools, Variant};
use ferroxy_iptables::{Iptables, Parameters, State, interpret, render};
use ferroxy_lab::conformance::{self, Case, RecordedProbe};
use ferroxy_lab::{Capability, Namespace, Seen, require};
use ferroxy_source::manifest::ManifestSource;

/// The recordings were made where the kernel has nfacct counters.
const PARAMETERS: Parameters = Parameters { masquerade_mark: 0x4000, nfacct: true, tcp_be_liberal: false };

/// The part of a case's configuration that differs between cases. (Reading configuration is the binary's business.)
fn policy(case: &Case) -> Policy {
    let text = fs::read_to_string(case.folder.join("config.yaml")).unwrap();
    let value = |key: &str| {
        let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.map(|value| value.trim().trim_matches('\'').to_owned()).unwrap()
    };
    let detect_local = match value("detectLocalMode").as_str() {
        "ClusterCIDR" => {
            DetectLocal::ClusterCidr(value("clusterCIDR").split(',').map(|it| it.parse().unwrap()).collect())
        }
        "BridgeInterface" => DetectLocal::BridgeInterface(value("bridgeInterface")),
        other => panic!("{}: detectLocalMode {other}", case.name),
    };
    let listed = text.lines().skip_while(|line| !line.starts_with("nodePortAddresses")).skip(1);
    let ranges = listed.map_while(|line| line.strip_prefix("- "));
    let mut node_port_addresses: Vec<NodePortAddress> =
        ranges.map(|range| NodePortAddress::Cidr(range.parse().unwrap())).collect();
    if node_port_addresses.is_empty() {
        node_port_addresses.push(NodePortAddress::All);
    }
    Policy {
        node_name: "ka".into(),
        detect_local,
        node_port_addresses,
        localhost_node_ports: true,
        masquerade_all: value("masqueradeAll") == "true",
        ..Policy::default()
    }
}

fn intent(case: &Case) -> Intent {
    let mut facts = Facts::new(policy(case));
    let (_, diagnostics) =
        ManifestSource::open(&case.folder, |event| drop(facts.apply(event))).expect("the case can be read");
    assert_eq!(diagnostics, [], "the case's objects are fine");
    resolve::all(&facts).0
}

fn recorded(case: &Case) -> State {
    let text = fs::read_to_string(case.folder.join("iptables.rules")).unwrap();
    let (v4, v6) = text.split_once("# ip6tables-save").unwrap();
    let mut state = parse(Family::V4, v4);
    state.tables.extend(parse(Family::V6, v6).tables);
    let rules = state.tables.values().flat_map(|table| table.chains.values().chain(table.jumps.values()));
    let written = text.lines().filter(|line| line.starts_with("-A ")).count();
    assert_eq!(rules.map(Rules::len).sum::<usize>(), written, "{}: nothing was passed over", case.name);
    state
}

/// The original puts Services in any order: the rules of each together, Services by name. What belongs to no Service
/// stays where it is, at the end.
fn by_service(rules: &Rules) -> Rules {
    let service = |rule: &&str| {
        let comment = rule.split_once("--comment \"").map_or("~", |(_, comment)| comment);
        let name = comment.split([' ', '"']).next().unwrap();
        if name.contains('/') { name.to_owned() } else { "~".to_owned() }
    };
    let mut sorted: Vec<&str> = rules.iter().collect();
    sorted.sort_by_key(service);
    sorted.into_iter().collect()
}

fn in_one_order(mut state: State) -> State {
    for table in state.tables.values_mut() {
        for (chain, rules) in &mut table.chains {
            if ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"].contains(&&**chain) {
                *rules = by_service(rules);
            }
        }
    }
    state
}

#[test]
fn every_recorded_ruleset_is_rendered_exactly() {
    let cases = conformance::cases().expect("the corpus is there");
    assert!(cases.len() >= 36, "only {} cases", cases.len());
    for case in cases {
        let rendered = in_one_order(render(&intent(&case), PARAMETERS, &Family::ALL)).to_string();
        let recorded = in_one_order(recorded(&case)).to_string();
        for (ours, theirs) in rendered.lines().zip(recorded.lines()) {
            assert_eq!(ours, theirs, "{}", case.name);
        }
        assert_eq!(rendered.lines().count(), recorded.lines().count(), "{}", case.name);
    }
}

/// What is written with the real tools is what they print, and that is what the original wrote.
#[test]
fn every_recorded_ruleset_comes_back_from_the_kernel_exactly() {
    if !require(&[Capability::NetworkNamespaces, Capability::NfTables]) {
        return;
    }
    for variant in [Variant::NfTables, Variant::Legacy] {
        let tools: Vec<Tools> =
            Family::ALL.map(|family| Tools::find_variant(family, variant).expect("it is installed")).into();
        for case in conformance::cases().expect("the corpus is there") {
            let started = || {
                Iptables::with_tools(tools.clone(), Limits::default()).start(&intent(&case)).unwrap();
                observe(&tools, &Limits::default()).unwrap()
            };
            let seen = Namespace::new("recorded").unwrap().run(started).unwrap();
            let (seen, recorded) =
                (in_one_order(seen).to_string(), in_one_order(recorded(&case)).to_string());
            for (ours, theirs) in seen.lines().zip(recorded.lines()) {
                assert_eq!(ours, theirs, "{} {variant}", case.name);
            }
            assert_eq!(seen.lines().count(), recorded.lines().count(), "{} {variant}", case.name);
        }
    }
}

/// The addresses of the recorded network.
fn address(name: &str, family: Family) -> IpAddr {
    let (v4, v6) = match name {
        "ka" => ("172.18.0.2", "fd00:172:18::2"),
        "cbr0" => ("10.244.1.1", "fd00:10:244:1::1"),
        "a1" => ("10.244.1.5", "fd00:10:244:1::5"),
        "a2" => ("10.244.1.6", "fd00:10:244:1::6"),
        "b1" => ("10.244.2.5", "fd00:10:244:2::5"),
        "b2" => ("10.244.2.6", "fd00:10:244:2::6"),
        "ext" => ("172.18.0.100", "fd00:172:18::100"),
        other => panic!("the network has no {other}"),
    };
    (if family == Family::V4 { v4 } else { v6 }).parse().unwrap()
}

fn packet(recorded: &RecordedProbe) -> Packet {
    let destination = recorded.address;
    let family = Family::of(destination);
    let origin = match recorded.from.as_str() {
        "ka" => Origin::Host,
        "a1" | "a2" => Origin::Interface("cbr0".into()),
        _ => Origin::Interface("eth0".into()),
    };
    // The host speaks to itself from the address it speaks to.
    let source = if destination.is_loopback() { destination } else { address(&recorded.from, family) };
    Packet {
        source,
        origin,
        destination,
        port: recorded.port,
        protocol: match recorded.protocol {
            ferroxy_lab::Protocol::Tcp => Protocol::Tcp,
            ferroxy_lab::Protocol::Udp => Protocol::Udp,
        },
        to_this_host: destination.is_loopback()
            || ["ka", "cbr0"].iter().any(|name| address(name, family) == destination),
    }
}

/// What the pods would answer: `a1:80 10.244.1.1`. A masqueraded packet has ka's address on the way to the pod.
fn answers(packet: &Packet, verdict: &Verdict) -> Seen {
    let answer = |(endpoint, masqueraded): (&SocketAddr, &bool)| {
        let family = Family::of(endpoint.ip());
        let pod = ["a1", "a2", "b1", "b2"].into_iter().find(|pod| address(pod, family) == endpoint.ip());
        let leaves_by = if matches!(pod, Some("a1" | "a2")) { "cbr0" } else { "ka" };
        let source = if *masqueraded { address(leaves_by, family) } else { packet.source };
        (format!("{}:{} {source}", pod.unwrap_or("?"), endpoint.port()), 1)
    };
    let word = |word: &str| Seen::from([(word.to_owned(), 1)]);
    match verdict {
        Verdict::Endpoints(endpoints) => endpoints.iter().map(answer).collect(),
        Verdict::Reject => word("refused"),
        Verdict::Drop => word("timeout"),
        // The network's own answer: nobody listens on ka; an unknown address ends at ext, which sends it back.
        Verdict::Pass if packet.to_this_host => word("refused"),
        Verdict::Pass => word("timeout"),
    }
}

#[test]
fn every_recorded_probe_follows_from_the_ruleset() {
    let mut probes = 0;
    for case in conformance::cases().expect("the corpus is there") {
        let intent = intent(&case);
        let state = render(&intent, PARAMETERS, &Family::ALL);
        for recorded in &case.probes {
            let packet = packet(recorded);
            let verdict = interpret(&state, &packet);
            assert_eq!(
                verdict,
                oracle(&intent, &packet),
                "{}: oracle and rules differ on {packet:?}",
                case.name
            );
            let found = answers(&packet, &verdict);
            if case.name.contains("affinity") {
                // The recording shows the one the original picked: it must be among those we may pick.
                let once = recorded.recorded(conformance::Mode::Iptables).expect("recorded");
                assert!(once.keys().all(|answer| found.contains_key(answer)), "{}: {once:?}", case.name);
            } else if let Err(mismatch) = recorded.compare(conformance::Mode::Iptables, &found) {
                panic!("{}: {mismatch}", case.name);
            }
            probes += 1;
        }
    }
    assert!(probes > 100, "only {probes} probes: is the corpus complete?");
}
