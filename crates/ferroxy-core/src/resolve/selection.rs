//! Rule: which endpoints get traffic: ready ones; if there are none, terminating ones that still serve. Separately for
//! the policies Cluster and Local.

use super::candidates::Candidate;
use super::frontends::Wanted;
use super::routes;
use super::topology::{self, Preference};
use crate::facts::Service;
use crate::intent::{Endpoint, FrontendKind};
use crate::policy::Policy;

/// Which selections the frontends of a port need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) cluster: bool,
    pub(crate) local: bool,
    /// Topology hints narrow the cluster-wide selection.
    pub(crate) hints: bool,
}

impl Uses {
    /// External frontends need the cluster-wide selection even with policy Local: for pods and for the node.
    pub(crate) fn of(service: &Service, frontends: &[&Wanted], policy: &Policy) -> Uses {
        let external = frontends.iter().any(|wanted| wanted.kind != FrontendKind::ClusterIp);
        Uses {
            cluster: !service.internal_traffic_local || external,
            local: service.internal_traffic_local || (external && routes::external_local(service)),
            hints: policy.topology_hints,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Selection {
    pub(crate) cluster: Vec<Endpoint>,
    pub(crate) local: Vec<Endpoint>,
    /// An endpoint on any node can serve.
    pub(crate) somewhere: bool,
    pub(crate) preference: Preference,
}

pub(crate) fn select(candidates: &[Candidate<'_>], uses: Uses, node: &str, zone: Option<&str>) -> Selection {
    let preference = match uses.cluster && uses.hints {
        true => topology::preference(candidates, node, zone),
        false => Preference::Anywhere,
    };
    let preferred = |candidate: &Candidate<'_>| topology::allows(preference, candidate, node, zone);
    let is_local = |candidate: &Candidate<'_>| candidate.endpoint.is_local;
    Selection {
        cluster: if uses.cluster { ready_or_leaving(candidates, preferred, |_| true) } else { Vec::new() },
        local: if uses.local { ready_or_leaving(candidates, is_local, is_local) } else { Vec::new() },
        somewhere: candidates.iter().any(|candidate| candidate.conditions.ready() || is_leaving(candidate)),
        preference,
    }
}

/// Terminating but still serving: a fallback.
pub(crate) fn is_leaving(candidate: &Candidate<'_>) -> bool {
    candidate.conditions.serving() && candidate.conditions.terminating()
}

fn ready_or_leaving(
    candidates: &[Candidate<'_>],
    among_ready: impl Fn(&Candidate<'_>) -> bool,
    among_leaving: impl Fn(&Candidate<'_>) -> bool,
) -> Vec<Endpoint> {
    let endpoints = |wanted: &dyn Fn(&Candidate<'_>) -> bool| -> Vec<Endpoint> {
        candidates.iter().filter(|candidate| wanted(candidate)).map(|candidate| candidate.endpoint).collect()
    };
    let ready = endpoints(&|candidate| candidate.conditions.ready() && among_ready(candidate));
    match ready.is_empty() {
        true => endpoints(&|candidate| is_leaving(candidate) && among_leaving(candidate)),
        false => ready,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::tests::{Pod, with_candidates};

    const BOTH: Uses = Uses { cluster: true, local: true, hints: true };
    const LOCAL: Pod = Pod { node: "ka", ..Pod::READY };
    const REMOTE: Pod = Pod::READY;
    const LEAVING: Pod = Pod { ready: false, terminating: true, ..Pod::READY };
    const DOWN: Pod = Pod { ready: false, serving: false, ..Pod::READY };

    /// Indexes of the pods in the cluster-wide and the local selection, and whether any endpoint serves.
    fn check(pods: &[Pod], uses: Uses, cluster: &[u8], local: &[u8], somewhere: bool) {
        let last_bytes = |endpoints: &[Endpoint]| -> Vec<u8> {
            endpoints.iter().map(|e| e.ip.to_string().rsplit('.').next().unwrap().parse().unwrap()).collect()
        };
        with_candidates(pods, |candidates| {
            let selection = select(candidates, uses, "ka", Some("z1"));
            assert_eq!(last_bytes(&selection.cluster), cluster, "cluster");
            assert_eq!(last_bytes(&selection.local), local, "local");
            assert_eq!(selection.somewhere, somewhere);
        });
    }

    #[test]
    fn ready_endpoints_serve() {
        check(&[LOCAL, REMOTE, DOWN], BOTH, &[0, 1], &[0], true);
        check(&[], BOTH, &[], &[], false);
        check(&[DOWN], BOTH, &[], &[], false);
    }

    #[test]
    fn serving_terminating_endpoints_are_the_last_resort() {
        check(&[REMOTE, LEAVING], BOTH, &[0], &[], true);
        check(&[DOWN, LEAVING], BOTH, &[1], &[], true);
        check(&[Pod { serving: false, ..LEAVING }], BOTH, &[], &[], false);
        check(&[REMOTE, Pod { node: "ka", ..LEAVING }], BOTH, &[0], &[1], true);
        check(&[LOCAL, Pod { node: "ka", ..LEAVING }], BOTH, &[0], &[0], true);
    }

    #[test]
    fn hints_narrow_the_cluster_but_not_the_local_choice() {
        let here = Pod { zones: &["z1"], ..REMOTE };
        let local_for_others = Pod { zones: &["z2"], ..LOCAL };
        check(&[here, local_for_others], BOTH, &[0], &[1], true);
    }

    #[test]
    fn hints_do_not_narrow_the_last_resort() {
        let leaving = Pod { zones: &["z2"], ..LEAVING };
        check(&[leaving, Pod { zones: &["z1"], ..leaving }], BOTH, &[0, 1], &[], true);
    }

    #[test]
    fn only_what_is_used_is_chosen() {
        check(&[LOCAL, REMOTE], Uses { cluster: true, local: false, hints: true }, &[0, 1], &[], true);
        check(&[LOCAL, REMOTE], Uses { cluster: false, local: true, hints: true }, &[], &[0], true);
    }
}
