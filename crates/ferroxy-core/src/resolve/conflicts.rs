//! Rule: a frontend belongs to one Service. The oldest that wants it has it; the others lose just that frontend.

use rustc_hash::FxHashSet;

use super::frontends::{self, Wanted};
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::{Claim, Facts, Service};
use crate::intent::FrontendKind;
use crate::name::{Family, Protocol, ServiceName};

/// What a Service asked for, divided into what it gets and what it does not.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) kept: Vec<Wanted>,
    pub(crate) lost: Vec<Lost>,
    /// Kept node ports that are another's health-check port as well.
    shadowing: Vec<Lost>,
}

/// A frontend and the Service that has it instead (it may be the same Service, by another field).
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) wanted: Wanted,
    pub(crate) owner: ServiceName,
}

pub(crate) fn settle(facts: &Facts, service: &Service) -> Settled {
    let mut settled = Settled::default();
    let mut taken = FxHashSet::default();
    for wanted in frontends::wanted(service, facts.policy()) {
        let claim = wanted.claim(service);
        match facts.claims().owner(&claim) {
            Some(owner) if *owner != service.name => settled.lost.push(Lost { wanted, owner: owner.clone() }),
            _ if taken.insert(claim) => {
                settled.shadowing.extend(health_check_behind(facts, service, &wanted));
                settled.kept.push(wanted);
            }
            // A load balancer's address that is also an external IP works as the user wants: nothing is lost.
            _ if wanted.kind == FrontendKind::ExternalIp && !is_own_cluster_ip(&settled.kept, &wanted) => {}
            _ => settled.lost.push(Lost { wanted, owner: service.name.clone() }),
        }
    }
    settled
}

fn is_own_cluster_ip(kept: &[Wanted], wanted: &Wanted) -> bool {
    kept.iter().any(|other| other.kind == FrontendKind::ClusterIp && other.address == wanted.address)
}

/// The node port sits in front of the health-check server, which then is never asked.
fn health_check_behind(facts: &Facts, service: &Service, wanted: &Wanted) -> Option<Lost> {
    let is_tcp_node_port =
        wanted.kind == FrontendKind::NodePort && service.ports[wanted.port].protocol == Protocol::Tcp;
    let owner = facts.claims().owner(&Claim::HealthCheck { port: wanted.number })?;
    is_tcp_node_port.then(|| Lost { wanted: wanted.clone(), owner: owner.clone() })
}

impl Settled {
    pub(crate) fn diagnostics(&self, service: &Service) -> Vec<Diagnostic> {
        let lost = self.lost.iter().map(|lost| {
            conflict(service, lost.wanted.field.path(), lost.reason(service), lost.effect(service))
        });
        let shadowing = self.shadowing.iter().map(|lost| {
            let Lost { wanted, owner } = lost;
            let reason =
                format!("node port {}/tcp is also the health-check node port of {owner}", wanted.number);
            let effect = format!("health checks of {owner} are answered by this Service's endpoints");
            conflict(service, wanted.field.path(), reason, effect)
        });
        lost.chain(shadowing).collect()
    }
}

impl Lost {
    /// `node port 30080/tcp already belongs to default/api`.
    pub(crate) fn reason(&self, service: &Service) -> String {
        let Lost { wanted, owner } = self;
        let protocol = service.ports[wanted.port].protocol;
        let what = match wanted.address {
            None => format!("node port {}/{protocol}", wanted.number),
            Some(address) if Family::of(address) == Family::V6 => {
                format!("[{address}]:{}/{protocol}", wanted.number)
            }
            Some(address) => format!("{address}:{}/{protocol}", wanted.number),
        };
        match *owner == service.name {
            true => format!("{what} is already used by another field of this Service"),
            false => format!("{what} already belongs to {owner}"),
        }
    }

    /// `port 80 gets no IPv4 node port`.
    pub(crate) fn effect(&self, service: &Service) -> String {
        let Lost { wanted, .. } = self;
        let port = service.ports[wanted.port].port;
        match wanted.address {
            None => format!("port {port} gets no {} node port", wanted.family),
            Some(address) => format!("port {port} is not reachable at the {} {address}", wanted.kind.words()),
        }
    }
}

fn conflict(service: &Service, field: String, reason: String, effect: String) -> Diagnostic {
    Diagnostic { cause: Cause::Conflict, ..diagnostic(service, field, reason, effect) }
}

pub(crate) fn diagnostic(service: &Service, field: String, reason: String, effect: String) -> Diagnostic {
    Diagnostic { object: Object::service(&service.name), field, reason, effect, cause: Cause::Field }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};
    use crate::policy::Policy;
    use crate::resolve;

    fn service(name: &str, created: Option<i64>, cluster_ip: &str, node_port: i64) -> event::Service {
        event::Service {
            namespace: "default".into(),
            name: name.into(),
            created,
            cluster_ip: cluster_ip.into(),
            ports: vec![event::ServicePort { port: 80, node_port, ..Default::default() }],
            ..Default::default()
        }
    }

    fn facts(services: &[event::Service]) -> Facts {
        let mut facts = Facts::new(Policy::default());
        for service in services {
            facts.apply(Event::Service(service.clone()));
        }
        facts
    }

    /// The frontends a Service ends up with, and what is said about it.
    fn outcome(facts: &Facts, name: &str) -> (Vec<String>, Vec<String>) {
        let resolution = resolve::service(facts, &ServiceName::new("default", name));
        let ports = resolution.intent.map(|intent| intent.ports).unwrap_or_default();
        let frontend = |f: &crate::intent::Frontend| match f.address {
            Some(address) => format!("{address}:{}", f.port),
            None => format!("*:{}", f.port),
        };
        let frontends = ports.iter().flat_map(|port| &port.frontends).map(frontend).collect();
        (frontends, resolution.diagnostics.iter().map(|d| format!("{}; {}", d.reason, d.effect)).collect())
    }

    #[test]
    fn the_older_service_keeps_the_node_port() {
        let facts = facts(&[
            service("api", Some(1), "10.96.0.1", 30080),
            service("web", Some(2), "10.96.0.2", 30080),
        ]);
        assert_eq!(outcome(&facts, "api"), (vec!["10.96.0.1:80".into(), "*:30080".into()], vec![]));
        let says = "node port 30080/tcp already belongs to default/api; port 80 gets no IPv4 node port";
        assert_eq!(outcome(&facts, "web"), (vec!["10.96.0.2:80".into()], vec![says.into()]));
    }

    #[test]
    fn unknown_age_is_oldest_and_names_break_ties() {
        let both =
            facts(&[service("a", Some(0), "10.96.0.1", 30080), service("b", None, "10.96.0.2", 30080)]);
        assert_eq!(outcome(&both, "b").0.len(), 2);
        let tie =
            facts(&[service("b", Some(5), "10.96.0.1", 30080), service("a", Some(5), "10.96.0.2", 30080)]);
        assert_eq!(outcome(&tie, "a").0.len(), 2);
        assert_eq!(outcome(&tie, "b").0.len(), 1);
    }

    #[test]
    fn an_external_ip_cannot_take_over_a_cluster_ip() {
        let mut thief = service("thief", Some(2), "10.96.0.2", 0);
        thief.external_ips = vec!["10.96.0.1".into()];
        let facts = facts(&[service("dns", Some(1), "10.96.0.1", 0), thief]);
        let says = "10.96.0.1:80/tcp already belongs to default/dns; port 80 is not reachable at the external IP 10.96.0.1";
        assert_eq!(outcome(&facts, "thief"), (vec!["10.96.0.2:80".into()], vec![says.into()]));
    }

    #[test]
    fn a_service_that_loses_everything_is_not_there() {
        let facts = facts(&[service("a", Some(1), "10.96.0.1", 0), service("b", Some(2), "10.96.0.1", 0)]);
        assert_eq!(outcome(&facts, "b").0, [""; 0]);
    }

    #[test]
    fn one_service_cannot_use_a_node_port_twice() {
        let mut both = service("a", None, "10.96.0.1", 30080);
        both.ports.push(event::ServicePort {
            name: "b".into(),
            port: 81,
            node_port: 30080,
            ..Default::default()
        });
        let (frontends, says) = outcome(&facts(&[both]), "a");
        assert_eq!(frontends, ["10.96.0.1:80", "*:30080", "10.96.0.1:81"]);
        assert_eq!(says.len(), 1);
        assert!(says[0].starts_with("node port 30080/tcp is already used by another field"));
    }

    #[test]
    fn the_same_address_as_load_balancer_and_external_ip_is_one_frontend() {
        let mut twice = service("a", None, "10.96.0.1", 0);
        twice.external_ips = vec!["203.0.113.1".into(), "203.0.113.1".into()];
        twice.ingress = vec![event::Ingress { ip: "203.0.113.1".into(), ip_mode: String::new() }];
        assert_eq!(
            outcome(&facts(&[twice]), "a"),
            (vec!["10.96.0.1:80".into(), "203.0.113.1:80".into()], vec![])
        );
    }

    #[test]
    fn a_node_port_in_front_of_a_health_check_is_told() {
        let mut balanced = service("lb", Some(9), "10.96.0.1", 0);
        balanced.kind = "LoadBalancer".into();
        balanced.external_traffic_policy = "Local".into();
        balanced.health_check_node_port = 32000;
        let facts = facts(&[service("web", Some(1), "10.96.0.2", 32000), balanced]);
        let (frontends, says) = outcome(&facts, "web");
        assert_eq!(frontends.len(), 2);
        assert!(says[0].contains("also the health-check node port of default/lb"), "{says:?}");
    }
}
