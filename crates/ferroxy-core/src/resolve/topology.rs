//! Rule: topology hints. If every ready endpoint has hints for nodes (or zones), and at least one has a hint for this node
//! (or zone), only those are used. One endpoint without a hint disables the rule.

use super::ResolvedPort;
use super::candidates::Candidate;
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::{Facts, Place, Service};

/// Which endpoints are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preference {
    Anywhere,
    SameNode,
    SameZone,
}

/// Node hints take precedence over zone hints. Only ready endpoints are considered.
pub(crate) fn preference(candidates: &[Candidate<'_>], node: &str, zone: Option<&str>) -> Preference {
    let everybody_hints_and_one_names = |hints: for<'a> fn(&'a Place) -> &'a [Box<str>], own: &str| {
        let ready = || candidates.iter().filter(|candidate| candidate.conditions.ready());
        ready().all(|candidate| !hints(candidate.place).is_empty())
            && ready().any(|candidate| names(hints(candidate.place), own))
    };
    if everybody_hints_and_one_names(|place| &place.hint_nodes, node) {
        Preference::SameNode
    } else if zone.is_some_and(|zone| everybody_hints_and_one_names(|place| &place.hint_zones, zone)) {
        Preference::SameZone
    } else {
        Preference::Anywhere
    }
}

pub(crate) fn allows(
    preference: Preference,
    candidate: &Candidate<'_>,
    node: &str,
    zone: Option<&str>,
) -> bool {
    match preference {
        Preference::Anywhere => true,
        Preference::SameNode => names(&candidate.place.hint_nodes, node),
        Preference::SameZone => zone.is_some_and(|zone| names(&candidate.place.hint_zones, zone)),
    }
}

/// The effect on traffic in a mode that does not use hints.
pub const HINTS_WITHOUT_EFFECT: &str = "traffic goes to endpoints of all nodes and zones";

/// A Diagnostic about hints that would choose endpoints, in a mode that does not use them.
pub(crate) fn without_effect(
    facts: &Facts,
    service: &Service,
    ports: &[ResolvedPort<'_>],
) -> Option<Diagnostic> {
    let policy = facts.policy();
    let would_choose = |port: &ResolvedPort<'_>| {
        !port.intent.cluster.is_empty()
            && preference(&port.candidates.usable, &policy.node_name, facts.zone()) != Preference::Anywhere
    };
    let is_asked_for = !policy.topology_hints && ports.iter().any(would_choose);
    is_asked_for.then(|| Diagnostic {
        object: Object::service(&service.name),
        field: "spec.trafficDistribution".to_owned(),
        reason: "its EndpointSlices have topology hints, which this mode does not use".to_owned(),
        effect: HINTS_WITHOUT_EFFECT.to_owned(),
        cause: Cause::Field,
    })
}

fn names(hints: &[Box<str>], own: &str) -> bool {
    hints.iter().any(|hint| **hint == *own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::tests::{Pod, with_candidates};

    fn check(pods: &[Pod], zone: Option<&str>, expected: Preference) {
        with_candidates(pods, |candidates| assert_eq!(preference(candidates, "ka", zone), expected));
    }

    const HERE: Pod = Pod { zones: &["z1"], ..Pod::READY };
    const THERE: Pod = Pod { zones: &["z2"], ..Pod::READY };

    #[test]
    fn a_mode_without_hints_says_so_where_they_would_choose() {
        use crate::event::{EndpointSlice, Event, Node, Service, ServicePort, SliceEndpoint, SlicePort};
        for (topology_hints, zone, expected) in [(false, "z1", 1), (false, "z2", 0), (true, "z1", 0)] {
            let policy = crate::Policy { node_name: "ka".into(), topology_hints, ..Default::default() };
            let mut facts = Facts::new(policy);
            facts.apply(Event::Node(Node {
                name: "ka".into(),
                zone: Some("z1".into()),
                ..Default::default()
            }));
            facts.apply(Event::Service(Service {
                namespace: "default".into(),
                name: "web".into(),
                cluster_ips: vec!["10.96.0.1".into()],
                ports: vec![ServicePort { port: 80, ..Default::default() }],
                ..Default::default()
            }));
            facts.apply(Event::Slice(EndpointSlice {
                namespace: "default".into(),
                name: "web-1".into(),
                service: Some("web".into()),
                address_type: "IPv4".into(),
                ports: vec![SlicePort { name: Some(String::new()), protocol: "TCP".into(), port: Some(80) }],
                endpoints: vec![SliceEndpoint {
                    addresses: vec!["10.0.0.1".into()],
                    hint_zones: vec![zone.into()],
                    ..Default::default()
                }],
                ..Default::default()
            }));
            let found = crate::resolve::all(&facts).1;
            let of_hints = found.iter().filter(|it| it.effect == HINTS_WITHOUT_EFFECT).count();
            assert_eq!(of_hints, expected, "{topology_hints} {zone}: {found:?}");
        }
    }

    #[test]
    fn zone_hints_need_every_ready_endpoint() {
        check(&[HERE, THERE], Some("z1"), Preference::SameZone);
        check(&[HERE, Pod::READY], Some("z1"), Preference::Anywhere);
        check(&[HERE, Pod { ready: false, ..Pod::READY }], Some("z1"), Preference::SameZone);
        check(&[], Some("z1"), Preference::Anywhere);
    }

    #[test]
    fn hints_for_others_only_are_ignored() {
        check(&[THERE, THERE], Some("z1"), Preference::Anywhere);
        check(&[Pod { ready: false, ..HERE }, THERE], Some("z1"), Preference::Anywhere);
        check(&[HERE, THERE], None, Preference::Anywhere);
        check(&[Pod { zones: &["z2", "z1"], ..Pod::READY }], Some("z1"), Preference::SameZone);
    }

    #[test]
    fn node_hints_come_first_and_fall_back_to_zones() {
        let near = Pod { nodes: &["ka"], ..HERE };
        let far = Pod { nodes: &["kb"], ..THERE };
        check(&[near, far], Some("z1"), Preference::SameNode);
        check(&[near, THERE], Some("z1"), Preference::SameZone);
        check(&[far, Pod { nodes: &["kc"], ..HERE }], Some("z1"), Preference::SameZone);
        check(&[far], Some("z1"), Preference::Anywhere);
    }
}
