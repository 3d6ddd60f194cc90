//! Which tracked UDP connections are stale: plain data in, yes or no out. It finds and deletes nothing.
//!
//! The kernel goes on translating a connection as it began, whatever the rules say since. TCP notices that nobody answers;
//! a UDP client may send to an endpoint that is gone for as long as it lives.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use ferroxy_core::{Protocol, ServiceName};
use ferroxy_netlink::conntrack::{Entry, Family, Filter, status};

/// Sorted, each once.
pub(super) type Endpoints = Arc<[SocketAddr]>;

/// What connections to each frontend have to be like.
pub(super) type Frontends = HashMap<SocketAddr, Expectation>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expectation {
    pub(super) service: ServiceName,
    pub(super) rule: Rule,
    /// Grows with everything that may have made a connection stale.
    pub(super) version: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rule {
    /// Only these may hold connections. Where the frontend has `appeared` (it is new, or had no endpoint), clients may
    /// have sent to it before: the kernel translates none of their packets as long as they go on.
    HeldBy { endpoints: Endpoints, appeared: bool },
    /// The frontend is no more; these held its connections.
    Gone { endpoints: Endpoints },
}

/// Up to so many frontends are asked for by name. For more of them all of UDP is listed once: the kernel walks its whole
/// table for every question.
const FEW: usize = 8;

/// The Service whose frontend the connection uses, if it is stale.
pub(super) fn stale<'f>(frontends: &'f Frontends, entry: &Entry) -> Option<&'f ServiceName> {
    let udp = entry.protocol == Protocol::Udp.number();
    let expectation = frontends.get(&entry.original.destination).filter(|_| udp)?;
    breaks(&expectation.rule, entry).then_some(&expectation.service)
}

fn breaks(rule: &Rule, entry: &Entry) -> bool {
    let is_among = |endpoints: &Endpoints| endpoints.binary_search(&entry.reply.source).is_ok();
    match (rule, entry.is_destination_translated()) {
        (Rule::HeldBy { endpoints, .. }, true) => !is_among(endpoints),
        // Without endpoints its packets are refused: there is nothing to unblock.
        (Rule::HeldBy { endpoints, appeared }, false) => *appeared && !endpoints.is_empty(),
        (Rule::Gone { endpoints }, true) => is_among(endpoints),
        (Rule::Gone { .. }, false) => false,
    }
}

/// What to list so that no stale connection is missed.
pub(super) fn filters(frontends: &Frontends) -> Vec<Filter> {
    let of = |family: Family| {
        let is_of = |(at, _): &(&SocketAddr, &Expectation)| at.is_ipv4() == (family == Family::V4);
        let all: Vec<_> = frontends.iter().filter(is_of).collect();
        let udp = Filter { protocol: Some(Protocol::Udp.number()), ..Filter::all(family) };
        let at_frontend = |(at, expectation): &(&SocketAddr, &Expectation)| Filter {
            destination: Some(at.ip()),
            destination_port: Some(at.port()),
            status: needed_status([*expectation]),
            ..udp
        };
        match all.len() {
            0 => Vec::new(),
            1..=FEW => all.iter().map(at_frontend).collect(),
            _ => vec![Filter { status: needed_status(all.iter().map(|(_, it)| *it)), ..udp }],
        }
    };
    [of(Family::V4), of(Family::V6)].concat()
}

/// Only translated connections can be stale, but where a frontend appeared. (IPVS sets no status; it ends its own connections to
/// an endpoint that is gone itself: `net.ipv4.vs.expire_nodest_conn`.)
fn needed_status<'f>(expectations: impl IntoIterator<Item = &'f Expectation>) -> u32 {
    let unblocks = |it: &Expectation| matches!(&it.rule, Rule::HeldBy { appeared: true, endpoints } if !endpoints.is_empty());
    if expectations.into_iter().any(unblocks) { 0 } else { status::DST_NAT }
}

#[cfg(test)]
mod tests {
    use ferroxy_netlink::conntrack::Tuple;

    use super::*;

    const FRONTEND: &str = "10.96.0.10:53";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn endpoints(texts: &[&str]) -> Endpoints {
        texts.iter().map(|text| at(text)).collect()
    }

    fn held_by(texts: &[&str], appeared: bool) -> Rule {
        Rule::HeldBy { endpoints: endpoints(texts), appeared }
    }

    fn expecting(frontends: &[(&str, Rule)]) -> Frontends {
        let expectation = |rule: &Rule| Expectation {
            service: ServiceName::new("default", "dns"),
            rule: rule.clone(),
            version: 0,
        };
        frontends.iter().map(|(frontend, rule)| (at(frontend), expectation(rule))).collect()
    }

    /// A connection from a client to `to`, held by `by`.
    fn entry(protocol: Protocol, to: &str, by: &str) -> Entry {
        let client = at("10.244.1.9:40000");
        Entry {
            protocol: protocol.number(),
            original: Tuple { source: client, destination: at(to) },
            reply: Tuple { source: at(by), destination: client },
            zone: 0,
            id: 1,
            status: if to == by { 0 } else { status::DST_NAT },
            timeout: Some(30),
        }
    }

    fn is_stale(rule: &Rule, by: &str) -> bool {
        stale(&expecting(&[(FRONTEND, rule.clone())]), &entry(Protocol::Udp, FRONTEND, by)).is_some()
    }

    #[test]
    fn whoever_may_hold_a_connection_keeps_it() {
        for appeared in [false, true] {
            let rule = held_by(&["10.244.1.5:53", "10.244.1.6:53"], appeared);
            assert!(!is_stale(&rule, "10.244.1.5:53") && !is_stale(&rule, "10.244.1.6:53"));
            assert!(is_stale(&rule, "10.244.1.7:53"), "gone");
            assert!(is_stale(&rule, "10.244.1.5:54"), "another port of the same pod");
        }
        assert!(is_stale(&held_by(&[], false), "10.244.1.5:53"), "scaled to nothing");
    }

    /// They carry no sign of translation but their answer's address. (Those of an endpoint that is gone end by themselves.)
    #[test]
    fn connections_that_ipvs_balances_are_translated() {
        let rule = held_by(&["10.244.1.5:53"], true);
        let balanced = Entry { status: 0, ..entry(Protocol::Udp, FRONTEND, "10.244.1.5:53") };
        assert_eq!(stale(&expecting(&[(FRONTEND, rule)]), &balanced), None);
    }

    #[test]
    fn what_was_never_translated_is_stale_once_it_could_be() {
        assert!(is_stale(&held_by(&["10.244.1.5:53"], true), FRONTEND));
        assert!(!is_stale(&held_by(&["10.244.1.5:53"], false), FRONTEND), "nothing changed for it");
        assert!(!is_stale(&held_by(&[], true), FRONTEND), "there is still nobody");
    }

    #[test]
    fn of_a_frontend_that_is_gone_only_its_own_connections_go() {
        let gone = Rule::Gone { endpoints: endpoints(&["10.244.1.5:53"]) };
        assert!(is_stale(&gone, "10.244.1.5:53"));
        assert!(!is_stale(&gone, "192.0.2.1:53"), "somebody else translated this one");
        assert!(!is_stale(&gone, FRONTEND), "not translated at all");
    }

    #[test]
    fn other_protocols_and_other_frontends_are_left_alone() {
        let frontends = expecting(&[(FRONTEND, held_by(&[], true))]);
        for protocol in [Protocol::Tcp, Protocol::Sctp] {
            assert_eq!(stale(&frontends, &entry(protocol, FRONTEND, "10.244.1.5:53")), None);
        }
        for other in ["10.96.0.11:53", "10.96.0.10:54", "[fd00::10]:53"] {
            let by = if other.starts_with('[') { "[fd00::5]:53" } else { "10.244.1.5:53" };
            assert_eq!(stale(&frontends, &entry(Protocol::Udp, other, by)), None);
        }
        assert!(stale(&frontends, &entry(Protocol::Udp, FRONTEND, "10.244.1.5:53")).is_some());
    }

    #[test]
    fn a_few_frontends_are_listed_by_name_and_many_at_once() {
        let few = expecting(&[
            (FRONTEND, held_by(&["10.244.1.5:53"], false)),
            ("[fd00::10]:53", held_by(&["[fd00::5]:53"], true)),
        ]);
        let [v4, v6] = filters(&few)[..] else { panic!("one for each: {:?}", filters(&few)) };
        assert_eq!((v4.destination, v4.destination_port), (Some(at(FRONTEND).ip()), Some(53)));
        assert_eq!((v4.protocol, v4.status), (Some(17), status::DST_NAT));
        assert_eq!((v6.family, v6.status), (Family::V6, 0), "what was never translated is looked for too");

        let many: Vec<String> = (0..=FEW).map(|number| format!("10.96.0.{number}:53")).collect();
        let held = |text: &'_ String| (at(text), held_by(&["10.244.1.5:53"], false));
        let mut frontends = Frontends::new();
        for (frontend, rule) in many.iter().map(held) {
            let service = ServiceName::new("default", "dns");
            frontends.insert(frontend, Expectation { service, rule, version: 0 });
        }
        let udp = Filter { protocol: Some(17), status: status::DST_NAT, ..Filter::all(Family::V4) };
        assert_eq!(filters(&frontends), [udp]);
        let first = frontends.values_mut().next().unwrap();
        first.rule = held_by(&["10.244.1.5:53"], true);
        assert_eq!(filters(&frontends), [Filter { status: 0, ..udp }]);
        assert_eq!(filters(&Frontends::new()), []);
    }

    #[test]
    fn whatever_is_stale_is_listed() {
        let rules = [
            held_by(&["10.244.1.5:53"], false),
            held_by(&["10.244.1.5:53"], true),
            held_by(&[], false),
            held_by(&[], true),
            Rule::Gone { endpoints: endpoints(&["10.244.1.5:53"]) },
        ];
        for rule in rules {
            let frontends = expecting(&[(FRONTEND, rule)]);
            for by in ["10.244.1.5:53", "10.244.1.6:53", FRONTEND] {
                let entry = entry(Protocol::Udp, FRONTEND, by);
                let listed = filters(&frontends).iter().any(|filter| filter.matches(&entry));
                assert!(listed || stale(&frontends, &entry).is_none(), "{entry:?} of {frontends:?}");
            }
        }
    }
}
