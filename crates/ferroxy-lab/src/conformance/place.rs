//! The recorded network (`conformance/README.md`) without packets: the addresses, the packet of a probe as the node
//! sees it, and the answers of pods.

use std::net::{IpAddr, SocketAddr};

use ferroxy_core::{Family, Origin, Packet, Verdict};

use super::RecordedProbe;
use crate::probe::{Answer, Protocol, Seen};

/// The addresses of `ka`, where the proxy under test runs.
pub const HOST_ADDRESSES: [&str; 7] =
    ["127.0.0.1", "172.18.0.2", "10.244.1.1", "172.31.255.2", "::1", "fd00:172:18::2", "fd00:10:244:1::1"];

/// Namespaces and the bridge of `ka`, with their addresses.
const PLACES: [(&str, &str, &str); 7] = [
    ("ka", "172.18.0.2", "fd00:172:18::2"),
    ("cbr0", "10.244.1.1", "fd00:10:244:1::1"),
    ("a1", "10.244.1.5", "fd00:10:244:1::5"),
    ("a2", "10.244.1.6", "fd00:10:244:1::6"),
    ("b1", "10.244.2.5", "fd00:10:244:2::5"),
    ("b2", "10.244.2.6", "fd00:10:244:2::6"),
    ("ext", "172.18.0.100", "fd00:172:18::100"),
];

/// A probe's first packet, as the node sees it. `taken`: the dataplane has made the destination an address of the host.
pub(super) fn packet(recorded: &RecordedProbe, taken: bool) -> Packet {
    let destination = recorded.address;
    let origin = match recorded.from.as_str() {
        "ka" => Origin::Host,
        "a1" | "a2" => Origin::Interface("cbr0".into()),
        _ => Origin::Interface("eth0".into()),
    };
    let is_own = HOST_ADDRESSES.iter().any(|address| address.parse() == Ok(destination));
    // The host speaks to an address of its own from that address.
    let to_itself = recorded.from == "ka" && (is_own || taken);
    let family = Family::of(destination);
    let source = if to_itself { destination } else { address(&recorded.from, family).unwrap_or(destination) };
    Packet {
        source,
        origin,
        destination,
        port: recorded.port,
        protocol: match recorded.protocol {
            Protocol::Tcp => ferroxy_core::Protocol::Tcp,
            Protocol::Udp => ferroxy_core::Protocol::Udp,
        },
        to_this_host: is_own,
    }
}

/// The answers that the client gets: `a1:80 10.244.1.1`. A masqueraded packet has an address of `ka` on the way to the
/// pod.
pub(super) fn answers(packet: &Packet, verdict: &Verdict) -> Seen {
    let answer = |(endpoint, masqueraded): (&SocketAddr, &bool)| {
        let family = Family::of(endpoint.ip());
        let pod =
            ["a1", "a2", "b1", "b2"].into_iter().find(|pod| address(pod, family) == Some(endpoint.ip()));
        let leaves_by = if matches!(pod, Some("a1" | "a2")) { "cbr0" } else { "ka" };
        let source = address(leaves_by, family).filter(|_| *masqueraded).unwrap_or(packet.source);
        (format!("{}:{} {source}", pod.unwrap_or("?"), endpoint.port()), 1)
    };
    let word = |answer: Answer| Seen::from([(answer.to_string(), 1)]);
    match verdict {
        Verdict::Endpoints(endpoints) => endpoints.iter().map(answer).collect(),
        Verdict::Reject => word(Answer::Refused),
        Verdict::Drop => word(Answer::Timeout),
        // The network's own answer: ka has no listener; an unknown address ends at ext, which sends it back.
        Verdict::Pass if packet.to_this_host => word(Answer::Refused),
        Verdict::Pass => word(Answer::Timeout),
    }
}

fn address(name: &str, family: Family) -> Option<IpAddr> {
    let (_, v4, v6) = PLACES.into_iter().find(|(place, ..)| *place == name)?;
    (if family == Family::V4 { v4 } else { v6 }).parse().ok()
}
