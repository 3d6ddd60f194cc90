//! Which tracked UDP connections are stale. Pure: it lists and deletes nothing.
//!
//! The kernel keeps translating a connection as it began, regardless of later rules. A TCP client notices that no endpoint
//! answers; a UDP client may go on sending to a removed endpoint for ever.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use ferroxy_core::{Family, Protocol, ServiceName};
use ferroxy_dataplane::capability::connections::{Connection, Selection};

/// Sorted, without duplicates.
pub(super) type Endpoints = Arc<[SocketAddr]>;

/// The frontends to check, with the rule that their connections must meet.
pub(super) type Frontends = HashMap<SocketAddr, Expectation>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expectation {
    pub(super) service: ServiceName,
    pub(super) rule: Rule,
    /// Increases with every change that may make a connection stale.
    pub(super) version: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rule {
    /// Only these endpoints may hold connections. If the frontend has `appeared` (it is new, or had no endpoint), clients may
    /// have sent to it before: the kernel does not translate packets of those connections as long as they go on.
    HeldBy { endpoints: Endpoints, appeared: bool },
    /// The frontend is removed; these endpoints held its connections.
    Gone { endpoints: Endpoints },
}

/// Up to this many frontends are selected one by one. For more of them, all UDP connections are listed once, because
/// each selection may walk the whole table.
const FEW: usize = 8;

/// The Service whose frontend the connection uses, if the connection is stale.
pub(super) fn stale<'f>(frontends: &'f Frontends, connection: &Connection) -> Option<&'f ServiceName> {
    let is_udp = connection.protocol == Protocol::Udp;
    let expectation = frontends.get(&connection.frontend).filter(|_| is_udp)?;
    breaks(&expectation.rule, connection).then_some(&expectation.service)
}

fn breaks(rule: &Rule, connection: &Connection) -> bool {
    let is_among = |endpoints: &Endpoints| endpoints.binary_search(&connection.endpoint).is_ok();
    match (rule, connection.is_translated) {
        (Rule::HeldBy { endpoints, .. }, true) => !is_among(endpoints),
        // Without endpoints, packets are refused: there is nothing to unblock.
        (Rule::HeldBy { endpoints, appeared }, false) => *appeared && !endpoints.is_empty(),
        (Rule::Gone { endpoints }, true) => is_among(endpoints),
        (Rule::Gone { .. }, false) => false,
    }
}

/// The selections to list, so that no stale connection is missed.
pub(super) fn selection(frontends: &Frontends) -> Vec<Selection> {
    let of = |family: Family| {
        let is_of = |(at, _): &(&SocketAddr, &Expectation)| Family::of(at.ip()) == family;
        let all: Vec<_> = frontends.iter().filter(is_of).collect();
        let select = |frontend, translated_only| Selection {
            family,
            protocol: Protocol::Udp,
            frontend,
            translated_only,
        };
        match all.len() {
            0 => Vec::new(),
            1..=FEW => all
                .iter()
                .map(|(at, expectation)| select(Some(**at), only_translated([*expectation])))
                .collect(),
            _ => vec![select(None, only_translated(all.iter().map(|(_, it)| *it)))],
        }
    };
    [of(Family::V4), of(Family::V6)].concat()
}

/// Only translated connections can be stale, except at a frontend that appeared. (IPVS ends its own connections to an
/// endpoint that is gone: `net.ipv4.vs.expire_nodest_conn`.)
fn only_translated<'f>(expectations: impl IntoIterator<Item = &'f Expectation>) -> bool {
    let unblocks = |it: &Expectation| matches!(&it.rule, Rule::HeldBy { appeared: true, endpoints } if !endpoints.is_empty());
    !expectations.into_iter().any(unblocks)
}

#[cfg(test)]
mod tests {
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

    /// A connection to `to`, answered by `by`.
    fn connection(protocol: Protocol, to: &str, by: &str) -> Connection {
        Connection { protocol, frontend: at(to), endpoint: at(by), is_translated: to != by }
    }

    fn is_stale(rule: &Rule, by: &str) -> bool {
        stale(&expecting(&[(FRONTEND, rule.clone())]), &connection(Protocol::Udp, FRONTEND, by)).is_some()
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
        assert!(!is_stale(&gone, "192.0.2.1:53"), "another program translated this one");
        assert!(!is_stale(&gone, FRONTEND), "not translated at all");
    }

    #[test]
    fn other_protocols_and_other_frontends_are_left_alone() {
        let frontends = expecting(&[(FRONTEND, held_by(&[], true))]);
        for protocol in [Protocol::Tcp, Protocol::Sctp] {
            assert_eq!(stale(&frontends, &connection(protocol, FRONTEND, "10.244.1.5:53")), None);
        }
        for other in ["10.96.0.11:53", "10.96.0.10:54", "[fd00::10]:53"] {
            let by = if other.starts_with('[') { "[fd00::5]:53" } else { "10.244.1.5:53" };
            assert_eq!(stale(&frontends, &connection(Protocol::Udp, other, by)), None);
        }
        assert!(stale(&frontends, &connection(Protocol::Udp, FRONTEND, "10.244.1.5:53")).is_some());
    }

    #[test]
    fn a_few_frontends_are_listed_by_name_and_many_at_once() {
        let few = expecting(&[
            (FRONTEND, held_by(&["10.244.1.5:53"], false)),
            ("[fd00::10]:53", held_by(&["[fd00::5]:53"], true)),
        ]);
        let select = |family, frontend: Option<&str>, translated_only| Selection {
            family,
            protocol: Protocol::Udp,
            frontend: frontend.map(at),
            translated_only,
        };
        let expected = [
            select(Family::V4, Some(FRONTEND), true),
            // The frontend appeared: connections that were never translated are stale too.
            select(Family::V6, Some("[fd00::10]:53"), false),
        ];
        assert_eq!(selection(&few), expected);

        let many: Vec<String> = (0..=FEW).map(|number| format!("10.96.0.{number}:53")).collect();
        let held: Vec<(&str, Rule)> =
            many.iter().map(|text| (text.as_str(), held_by(&["10.244.1.5:53"], false))).collect();
        let mut frontends = expecting(&held);
        assert_eq!(selection(&frontends), [select(Family::V4, None, true)]);
        let first = frontends.values_mut().next().unwrap();
        first.rule = held_by(&["10.244.1.5:53"], true);
        assert_eq!(selection(&frontends), [select(Family::V4, None, false)]);
        assert_eq!(selection(&Frontends::new()), []);
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
                let connection = connection(Protocol::Udp, FRONTEND, by);
                let selects = |it: &Selection| {
                    it.frontend == Some(at(FRONTEND)) && (connection.is_translated || !it.translated_only)
                };
                let listed = selection(&frontends).iter().any(selects);
                assert!(
                    listed || stale(&frontends, &connection).is_none(),
                    "{connection:?} of {frontends:?}"
                );
            }
        }
    }
}
