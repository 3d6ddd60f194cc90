//! Rule: what happens to a new connection to a frontend, by traffic policy and available endpoints.

use super::selection::Selection;
use crate::facts::{Service, ServiceKind};
use crate::intent::{FrontendKind, Route};

pub(crate) fn route(kind: FrontendKind, service: &Service, selection: &Selection) -> Route {
    if !selection.somewhere {
        return Route::Reject;
    }
    match kind {
        FrontendKind::ClusterIp if !service.internal_traffic_local => Route::Cluster,
        FrontendKind::ClusterIp if selection.local.is_empty() => Route::Drop,
        FrontendKind::ClusterIp => Route::Local,
        _ if external_local(service) => Route::ExternalLocal,
        _ => Route::ExternalCluster,
    }
}

/// `externalTrafficPolicy: Local`, for frontends to which the API applies it.
pub(crate) fn external_local(service: &Service) -> bool {
    let can_be_external = match service.kind {
        ServiceKind::NodePort | ServiceKind::LoadBalancer => true,
        ServiceKind::ClusterIp => !service.external_ips.is_empty(),
        ServiceKind::ExternalName => false,
    };
    service.external_traffic_local && can_be_external
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use crate::resolve::selection::{Uses, select};
    use crate::resolve::tests::{Pod, read, with_candidates};

    fn check(service: &event::Service, pods: &[Pod], internal: Route, external: Route) {
        let service = read(service.clone());
        with_candidates(pods, |candidates| {
            let selection = select(candidates, Uses { cluster: true, local: true, hints: true }, "ka", None);
            assert_eq!(route(FrontendKind::ClusterIp, &service, &selection), internal);
            for kind in [FrontendKind::ExternalIp, FrontendKind::LoadBalancer, FrontendKind::NodePort] {
                assert_eq!(route(kind, &service, &selection), external);
            }
        });
    }

    const LOCAL: Pod = Pod { node: "ka", ..Pod::READY };
    const REMOTE: Pod = Pod::READY;

    #[test]
    fn policies_choose_the_route() {
        let plain = event::Service { kind: "NodePort".into(), ..Default::default() };
        let internal = event::Service { internal_traffic_policy: "Local".into(), ..plain.clone() };
        let external = event::Service { external_traffic_policy: "Local".into(), ..plain.clone() };
        check(&plain, &[LOCAL, REMOTE], Route::Cluster, Route::ExternalCluster);
        check(&plain, &[REMOTE], Route::Cluster, Route::ExternalCluster);
        check(&internal, &[LOCAL, REMOTE], Route::Local, Route::ExternalCluster);
        check(&internal, &[REMOTE], Route::Drop, Route::ExternalCluster);
        check(&external, &[LOCAL, REMOTE], Route::Cluster, Route::ExternalLocal);
        check(&external, &[REMOTE], Route::Cluster, Route::ExternalLocal);
        for service in [&plain, &internal, &external] {
            check(service, &[], Route::Reject, Route::Reject);
        }
    }

    #[test]
    fn the_external_policy_of_an_internal_service_means_nothing() {
        let internal = event::Service { external_traffic_policy: "Local".into(), ..Default::default() };
        check(&internal, &[REMOTE], Route::Cluster, Route::ExternalCluster);
        let exposed = event::Service { external_ips: vec!["198.51.100.1".into()], ..internal };
        check(&exposed, &[REMOTE], Route::Cluster, Route::ExternalLocal);
    }
}
