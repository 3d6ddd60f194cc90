//! Ring 0 of conformance: for every recorded case the virtual servers, set members, addresses and rules are those of the
//! original, and every recorded probe follows from them, but for what `conformance/ipvs-differences.json` lists. No
//! privileges, no packets.
//!
//! The recordings have IPv4 only: they were made before the original had got round to IPv6.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use ferroxy_core::oracle::ipvs as oracle;
use ferroxy_core::policy::{DetectLocal, NodePortAddress};
use ferroxy_core::{Facts, Family, Intent, Origin, Packet, Policy, Protocol, Verdict, resolve};
use ferroxy_iptables::text::Reader;
use ferroxy_ipvs::program::owns;
use ferroxy_ipvs::{Parameters, State, interpret, render};
use ferroxy_lab::Seen;
use ferroxy_lab::conformance::{self, Case, Mode, RecordedProbe};
use ferroxy_source::manifest::ManifestSource;

/// Sets the original does not have.
const OURS: [&str; 1] = ["KUBE-NONE-LOCAL"];

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
    let masquerade_all = value("masqueradeAll") == "true";
    Policy { node_name: "ka".into(), detect_local, node_port_addresses, masquerade_all, ..Policy::default() }
}

fn parameters() -> Parameters {
    let own = [
        "127.0.0.1",
        "172.18.0.2",
        "10.244.1.1",
        "172.31.255.2",
        "::1",
        "fd00:172:18::2",
        "fd00:10:244:1::1",
    ];
    Parameters { host_addresses: own.iter().map(|ip| ip.parse().unwrap()).collect(), ..Parameters::default() }
}

fn intent(case: &Case) -> Intent {
    let mut facts = Facts::new(policy(case));
    facts.apply(ferroxy_core::Event::HostAddresses(parameters().host_addresses.into_iter().collect()));
    let (_, diagnostics) =
        ManifestSource::open(&case.folder, |event| drop(facts.apply(event))).expect("the case can be read");
    assert_eq!(diagnostics, [], "the case's objects are fine");
    resolve::all(&facts).0
}

fn cases() -> Vec<(Case, String)> {
    let cases = conformance::cases().expect("the corpus is there");
    let recorded = cases.into_iter().filter_map(|case| {
        let text = fs::read_to_string(case.folder.join("ipvs.rules")).ok()?;
        Some((case, text))
    });
    let recorded: Vec<_> = recorded.collect();
    assert!(recorded.len() >= 35, "only {} cases", recorded.len());
    recorded
}

fn lines(text: &str, wanted: impl Fn(&str) -> bool) -> BTreeSet<&str> {
    text.lines().filter(|line| wanted(line)).collect()
}

#[test]
fn servers_members_and_addresses_are_those_of_the_original() {
    for (case, recorded) in cases() {
        let rendered = render(&intent(&case), &parameters(), &[Family::V4]);
        let text = rendered.to_string();
        let is_server =
            |line: &str| ["-A -t", "-A -u", "-A --", "-a -"].iter().any(|command| line.starts_with(command));
        assert_eq!(lines(&text, is_server), lines(&recorded, is_server), "{}", case.name);
        let is_member = |line: &str| line.starts_with("add ") && !OURS.iter().any(|set| line.contains(set));
        let (ours, theirs) = (lines(&text, is_member), lines(&recorded, is_member));
        assert!(ours.is_subset(&theirs), "{}: {:?}", case.name, ours.difference(&theirs));
        // The original keeps pods of this node in KUBE-LOOP-BACK that are sent no connection.
        let idle = |member: &&&str| {
            member.starts_with("add KUBE-LOOP-BACK ") && case.name.starts_with("terminating")
        };
        let missing: Vec<_> = theirs.difference(&ours).filter(|member| !idle(member)).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", case.name);
        let device = recorded.lines().find(|line| line.starts_with("kube-ipvs0 ")).unwrap();
        let addresses: BTreeSet<String> = device.split_whitespace().skip(2).map(str::to_owned).collect();
        let ours = rendered.device.iter().flatten().map(|ip| format!("{ip}/32")).collect();
        assert_eq!(addresses, ours, "{}", case.name);
    }
}

#[test]
fn sets_are_of_the_types_of_the_original() {
    for (case, recorded) in cases() {
        let text = render(&intent(&case), &parameters(), &Family::ALL).to_string();
        // Ours have more room.
        let text = text.replace("maxelem 1048576", "maxelem 65536");
        let is_set = |line: &str| line.starts_with("create ");
        let (ours, theirs) = (lines(&text, is_set), lines(&recorded, is_set));
        assert!(theirs.is_subset(&ours), "{}: {:?}", case.name, theirs.difference(&ours));
    }
}

/// The original's rules are among ours, in its order; and what else we have cannot match, for its set is empty.
#[test]
fn rules_are_those_of_the_original_and_idle_ones() {
    for (case, recorded) in cases() {
        let state = render(&intent(&case), &parameters(), &[Family::V4]);
        let ours = state.all_rules();
        let (_, text) = recorded.split_once("# iptables-save").unwrap();
        let (text, _) = text.split_once("# ip6tables-save").unwrap();
        let mut reader = Reader::of(Family::V4, owns);
        text.lines().for_each(|line| reader.line(line));
        let theirs = reader.finish();
        assert_eq!(theirs.tables.len(), 2, "{}", case.name);
        for (place, table) in &theirs.tables {
            let our_table = &ours.tables[place];
            assert_eq!(table.jumps.len(), our_table.jumps.len(), "{}", case.name);
            for (builtin, jumps) in &table.jumps {
                assert_eq!(&our_table.jumps[builtin], jumps, "{} {builtin}", case.name);
            }
            assert_eq!(table.chains.keys().collect::<Vec<_>>(), our_table.chains.keys().collect::<Vec<_>>());
            for (chain, rules) in &table.chains {
                let mut theirs = rules.iter().peekable();
                for rule in our_table.chains[chain].iter() {
                    if theirs.next_if_eq(&rule).is_none() {
                        assert!(is_idle(&state, rule), "{} {chain}: {rule}", case.name);
                    }
                }
                assert_eq!(theirs.next(), None, "{} {chain}", case.name);
            }
        }
    }
}

fn is_idle(state: &State, rule: &str) -> bool {
    let mut words = rule.split(' ').skip_while(|word| *word != "--match-set");
    let Some(name) = words.nth(1) else { return false };
    let name = ferroxy_ipvs::SetName::parse(name).unwrap();
    OURS.contains(&&*name.to_string()) || state.sets[&name].members.is_empty()
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

fn packet(recorded: &RecordedProbe, state: &State) -> Packet {
    let destination = recorded.address;
    let family = Family::of(destination);
    let origin = match recorded.from.as_str() {
        "ka" => Origin::Host,
        "a1" | "a2" => Origin::Interface("cbr0".into()),
        _ => Origin::Interface("eth0".into()),
    };
    let is_own = parameters().host_addresses.contains(&destination);
    // The host speaks to an address of its own from that address; those on the device are its own.
    let on_device = state.device.as_ref().unwrap().contains(&destination);
    let to_itself = recorded.from == "ka" && (is_own || on_device);
    Packet {
        source: if to_itself { destination } else { address(&recorded.from, family) },
        origin,
        destination,
        port: recorded.port,
        protocol: match recorded.protocol {
            ferroxy_lab::Protocol::Tcp => Protocol::Tcp,
            ferroxy_lab::Protocol::Udp => Protocol::Udp,
        },
        to_this_host: is_own,
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
fn every_recorded_probe_follows_from_the_state() {
    let mut probes = 0;
    for case in conformance::ipvs_cases().expect("the corpus is there") {
        let intent = intent(&case);
        let state = render(&intent, &parameters(), &Family::ALL);
        for recorded in &case.probes {
            let packet = packet(recorded, &state);
            let verdict = interpret(&state, &packet);
            assert_eq!(verdict, oracle(&intent, &packet), "{}: oracle and state on {packet:?}", case.name);
            let Some(once) = recorded.recorded(Mode::Ipvs) else { continue };
            let found = answers(&packet, &verdict);
            probes += 1;
            if case.name.contains("affinity") {
                assert!(once.keys().all(|answer| found.contains_key(answer)), "{}: {once:?}", case.name);
            } else if let Err(mismatch) = recorded.compare(Mode::Ipvs, &found) {
                panic!("{}: {packet:?} {mismatch}", case.name);
            }
        }
    }
    assert!(probes > 100, "only {probes} probes: is the corpus complete?");
}
