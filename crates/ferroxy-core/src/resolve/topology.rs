//! Rule: topology hints. If every ready endpoint has hints for nodes (or zones), and at least one has a hint for this node
//! (or zone), only those are used. One endpoint without a hint disables the rule.

use super::candidates::Candidate;
use crate::facts::Place;

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
