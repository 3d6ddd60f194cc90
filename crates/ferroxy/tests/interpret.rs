//! Ring 0 of conformance: every recorded probe of every case, against the rendered ruleset. No privileges, no packets.
//!
//! The lab's network is known (`conformance/README.md`), so what a pod would see follows from the verdict.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the functions that tests share are tests too; clippy does not know"
)]

use std::net::{IpAddr, SocketAddr};

use ferroxy::config::Config;
use ferroxy::dataplane::{Mode, Ruleset};
use ferroxy::flags::Flags;
use ferroxy::modes::MODES;
use ferroxy_core::{Facts, Family, Intent, Origin, Packet, Protocol, Verdict, oracle, resolve};
use ferroxy_lab::Seen;
use ferroxy_lab::conformance::{self, Case, RecordedProbe};
use ferroxy_source::manifest::ManifestSource;

fn intent(case: &Case, mode: Mode) -> Intent {
    let flags = Flags {
        config: Some(case.folder.join("config.yaml").display().to_string()),
        hostname_override: Some("ka".into()),
        ..Flags::default()
    };
    let (config, _) = Config::load(&flags, MODES).expect("the case's configuration is valid");
    let mut facts = Facts::new(config.policy(MODES.find(mode.as_str()).unwrap(), "ka".into()));
    let (_, diagnostics) =
        ManifestSource::open(&case.folder, |event| drop(facts.apply(event))).expect("the case can be read");
    assert_eq!(diagnostics, [], "the case's objects are fine");
    resolve::all(&facts).0
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
fn every_recorded_probe_follows_from_the_nftables_ruleset() {
    follow(Mode::Nftables, conformance::Mode::Nftables, oracle::oracle);
}

#[test]
fn every_recorded_probe_follows_from_the_iptables_ruleset() {
    follow(Mode::Iptables, conformance::Mode::Iptables, oracle::iptables);
}

fn follow(mode: Mode, recorded_as: conformance::Mode, oracle: fn(&Intent, &Packet) -> Verdict) {
    let mut probes = 0;
    for case in conformance::cases().expect("the corpus is there") {
        let intent = intent(&case, mode);
        let ruleset = Ruleset::of(mode, &intent, &Default::default());
        for recorded in &case.probes {
            let packet = packet(recorded);
            let verdict = ruleset.trace(&packet).verdict;
            assert_eq!(
                verdict,
                oracle(&intent, &packet),
                "{}: oracle and rules differ on {packet:?}",
                case.name
            );
            let found = answers(&packet, &verdict);
            if case.name.contains("affinity") {
                // The recording shows the one the original picked: it must be among those we may pick.
                let once = recorded.recorded(recorded_as).expect("recorded");
                assert!(once.keys().all(|answer| found.contains_key(answer)), "{}: {once:?}", case.name);
            } else if let Err(mismatch) = recorded.compare(recorded_as, &found) {
                panic!("{}: {mismatch}", case.name);
            }
            probes += 1;
        }
    }
    assert!(probes > 100, "only {probes} probes: is the corpus complete?");
}
