//! Rule: a LoadBalancer Service with `externalTrafficPolicy: Local` has a node port where load balancers check whether
//! this node has endpoints.

use std::collections::BTreeSet;

use super::conflicts::diagnostic;
use super::{ResolvedPort, routes};
use crate::diagnostic::{Cause, Diagnostic};
use crate::facts::{Claim, Facts, Service, ServiceKind};
use crate::intent::HealthCheck;
use crate::name::Family;

const FIELD: &str = "spec.healthCheckNodePort";

pub(crate) fn port(service: &Service) -> Option<u16> {
    if needs_one(service) { service.health_check_node_port } else { None }
}

pub(crate) fn resolve(
    facts: &Facts,
    service: &Service,
    ports: &[ResolvedPort<'_>],
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<HealthCheck> {
    let mut say = |cause: Cause, reason: String| {
        let effect = "load balancers cannot check whether this node has endpoints".to_owned();
        diagnostics.push(Diagnostic { cause, ..diagnostic(service, FIELD.to_owned(), reason, effect) });
    };
    let Some(port) = port(service) else {
        if needs_one(service) {
            say(
                Cause::Field,
                "a load balancer with externalTrafficPolicy Local needs a port, and none is assigned"
                    .to_owned(),
            );
        }
        return None;
    };
    match facts.claims().owner(&Claim::HealthCheck { port }) {
        Some(owner) if *owner != service.name => {
            say(Cause::Conflict, format!("health-check node port {port} already belongs to {owner}"));
            None
        }
        _ => Some(HealthCheck { port, local_endpoints: local_endpoints(ports) }),
    }
}

fn needs_one(service: &Service) -> bool {
    service.kind == ServiceKind::LoadBalancer && routes::external_local(service)
}

/// A dual-stack pod has an address in each family and counts once: the family with more endpoints is counted.
fn local_endpoints(ports: &[ResolvedPort<'_>]) -> u32 {
    let of_family = |family| {
        let candidates =
            ports.iter().filter(|port| port.intent.family == family).flat_map(|p| &p.candidates.usable);
        let ready_here =
            candidates.filter(|candidate| candidate.endpoint.is_local && candidate.conditions.ready());
        ready_here.map(|candidate| candidate.endpoint.ip).collect::<BTreeSet<_>>().len()
    };
    Family::ALL.map(of_family).into_iter().max().map_or(0, |most| most as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::name::ServiceName;
    use crate::policy::Policy;
    use crate::resolve::{self, Resolution};

    fn balanced(name: &str, created: i64, health_check_node_port: i64) -> event::Service {
        event::Service {
            namespace: "default".into(),
            name: name.into(),
            created: Some(created),
            kind: "LoadBalancer".into(),
            cluster_ip: format!("10.96.0.{created}"),
            external_traffic_policy: "Local".into(),
            health_check_node_port,
            ports: vec![
                event::ServicePort { name: "a".into(), port: 80, ..Default::default() },
                event::ServicePort { name: "b".into(), port: 81, ..Default::default() },
            ],
            ..Default::default()
        }
    }

    fn slice(service: &str, pods: &[(&str, &str, bool)]) -> Event {
        let port = |name: &str, port| event::SlicePort {
            name: Some(name.into()),
            protocol: String::new(),
            port: Some(port),
        };
        let endpoint = |(address, node, ready): &(&str, &str, bool)| event::SliceEndpoint {
            addresses: vec![address.to_string()],
            node_name: Some(node.to_string()),
            ready: Some(*ready),
            terminating: Some(!ready),
            ..Default::default()
        };
        Event::Slice(event::EndpointSlice {
            namespace: "default".into(),
            name: format!("{service}-1"),
            service: Some(service.into()),
            address_type: "IPv4".into(),
            ports: vec![port("a", 80), port("b", 81)],
            endpoints: pods.iter().map(endpoint).collect(),
            last_change: None,
        })
    }

    fn resolve(events: Vec<Event>, name: &str) -> Resolution {
        let mut facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
        for event in events {
            facts.apply(event);
        }
        resolve::service(&facts, &ServiceName::new("default", name))
    }

    #[test]
    fn ready_pods_on_this_node_count_once() {
        let pods = [("10.0.0.1", "ka", true), ("10.0.0.2", "ka", false), ("10.0.0.3", "kb", true)];
        let resolution = resolve(vec![Event::Service(balanced("lb", 1, 32000)), slice("lb", &pods)], "lb");
        let health_check = resolution.intent.unwrap().health_check;
        assert_eq!(health_check, Some(HealthCheck { port: 32000, local_endpoints: 1 }));
    }

    #[test]
    fn other_services_have_none() {
        let mut cluster = balanced("lb", 1, 32000);
        cluster.external_traffic_policy = "Cluster".into();
        let mut node_port = balanced("lb", 1, 32000);
        node_port.kind = "NodePort".into();
        for object in [cluster, node_port] {
            let resolution = resolve(vec![Event::Service(object)], "lb");
            assert_eq!(resolution.intent.unwrap().health_check, None);
            assert_eq!(resolution.diagnostics, []);
        }
    }

    #[test]
    fn a_missing_or_lost_port_is_reported() {
        let missing = resolve(vec![Event::Service(balanced("lb", 1, 0))], "lb");
        assert_eq!(missing.diagnostics[0].field, FIELD);
        let both = vec![Event::Service(balanced("old", 1, 32000)), Event::Service(balanced("new", 2, 32000))];
        let stolen = resolve(both, "new");
        assert_eq!(stolen.intent.unwrap().health_check, None);
        assert_eq!(
            stolen.diagnostics[0].reason,
            "health-check node port 32000 already belongs to default/old"
        );
    }
}
