//! Ring 0 of conformance: for every recorded case the virtual servers, set members, addresses and rules are those of the
//! original, and every recorded probe follows from them, except for the differences in
//! `conformance/ipvs-differences.json`. No privileges, no packets.
//!
//! The recordings have IPv4 only: they were made before the original had written anything for IPv6.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use ferroxy_core::{Family, Intent, Origin, Packet, Protocol, Route, Verdict, oracle};
use ferroxy_iptables::text::Reader;
use ferroxy_ipvs::program::owns;
use ferroxy_ipvs::{Parameters, State, interpret, render};
use ferroxy_lab::conformance::{self, HOST_ADDRESSES, Mode, Trial};

/// Sets the original does not have.
const OURS: [&str; 1] = ["KUBE-NONE-LOCAL"];

fn parameters() -> Parameters {
    let own = HOST_ADDRESSES.iter().map(|ip| ip.parse().unwrap());
    Parameters { host_addresses: own.collect(), ..Parameters::default() }
}

fn trials() -> Vec<Trial> {
    Trial::all(Mode::Ipvs).expect("the corpus is there")
}

/// The cases whose rules were recorded in this mode, with the recorded text.
fn recorded() -> Vec<(Trial, String)> {
    let recorded = trials().into_iter().filter_map(|trial| {
        let text = fs::read_to_string(trial.case.folder.join("ipvs.rules")).ok()?;
        Some((trial, text))
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
    for (Trial { case, intent, .. }, recorded) in recorded() {
        let rendered = render(&intent, &parameters(), &[Family::V4]);
        let text = rendered.to_string();
        let is_server =
            |line: &str| ["-A -t", "-A -u", "-A --", "-a -"].iter().any(|command| line.starts_with(command));
        assert_eq!(lines(&text, is_server), lines(&recorded, is_server), "{}", case.name);
        let is_member = |line: &str| line.starts_with("add ") && !OURS.iter().any(|set| line.contains(set));
        let (ours, theirs) = (lines(&text, is_member), lines(&recorded, is_member));
        assert!(ours.is_subset(&theirs), "{}: {:?}", case.name, ours.difference(&theirs));
        // The original's KUBE-LOOP-BACK also contains pods of this node that get no connections.
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
    for (Trial { case, intent, .. }, recorded) in recorded() {
        let text = render(&intent, &parameters(), &Family::ALL).to_string();
        // Our sets have more capacity.
        let text = text.replace("maxelem 1048576", "maxelem 65536");
        let is_set = |line: &str| line.starts_with("create ");
        let (ours, theirs) = (lines(&text, is_set), lines(&recorded, is_set));
        assert!(theirs.is_subset(&ours), "{}: {:?}", case.name, theirs.difference(&ours));
    }
}

/// We have all rules of the original, in its order. Our additional rules cannot match, because their sets are empty or ours only.
#[test]
fn rules_are_those_of_the_original_and_idle_ones() {
    for (Trial { case, intent, .. }, recorded) in recorded() {
        let state = render(&intent, &parameters(), &[Family::V4]);
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

#[test]
fn every_recorded_probe_follows_from_the_state() {
    let state = |intent: &Intent| {
        let state = render(intent, &parameters(), &Family::ALL);
        move |packet: &Packet| interpret(&state, packet)
    };
    let probes = conformance::play(&trials(), state).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(probes > 100, "only {probes} probes: is the corpus complete?");
}

/// The recorded case with internal policy Local, after its endpoint on this node has left: the original's virtual server is
/// empty, and refuses pods, the node and external clients alike.
#[test]
fn without_an_endpoint_here_everybody_is_refused() {
    let mut trial = Trial::named("internal-local", Mode::Ipvs).unwrap();
    let web = trial.intent.services.values_mut().find(|service| service.name.name() == "web").unwrap();
    for port in &mut Arc::make_mut(web).ports {
        port.local.clear();
        port.frontends.iter_mut().for_each(|frontend| frontend.route = Route::Drop);
    }
    let state = render(&trial.intent, &parameters(), &[Family::V4]);
    let printed = state.to_string();
    assert!(printed.contains("-A -t 10.96.0.80:80 -s rr\n"), "{printed}");
    assert!(!printed.contains("-a -t 10.96.0.80:80 "), "{printed}");
    let pod = ("10.244.1.5", Origin::Interface("cbr0".into()));
    let stranger = ("172.18.0.100", Origin::Interface("eth0".into()));
    // The node connects to an address of its own from that address.
    for (source, origin) in [pod, stranger, ("10.96.0.80", Origin::Host)] {
        let packet = Packet {
            source: source.parse().unwrap(),
            origin,
            destination: "10.96.0.80".parse().unwrap(),
            port: 80,
            protocol: Protocol::Tcp,
            to_this_host: false,
        };
        assert_eq!(interpret(&state, &packet), Verdict::Reject, "{packet:?}");
        assert_eq!(oracle::ipvs(&trial.intent, &packet), Verdict::Reject, "{packet:?}");
    }
}
