//! Rule: a frontend belongs to one Service; others lose only that frontend. A cluster IP is stronger than a load-balancer IP,
//! and that is stronger than an external IP; among equals the oldest Service owns it.
//!
//! A cluster IP owns all ports of its address, and a node port owns its number on the addresses of this node: so
//! external IPs cannot be used to take over traffic to other Services.

use std::collections::HashSet;

use super::frontends::{self, Wanted};
use super::limits::{self, Sizes};
use super::node_port_addresses;
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::{Claim, Facts, Service};
use crate::intent::FrontendKind;
use crate::name::{Family, Protocol, ServiceName};

/// The frontends that a Service claims: those it gets and those it loses.
#[derive(Debug, Default)]
pub(crate) struct Settled<'f> {
    /// The strongest first.
    pub(crate) kept: Vec<Wanted>,
    pub(crate) lost: Vec<Lost>,
    /// Kept node ports that are also the health-check node port of another Service.
    shadowing: Vec<Lost>,
    /// How many frontends would be kept if there were room for them: see `limits.rs`.
    pub(crate) without_room: usize,
    pub(crate) sizes: Sizes<'f>,
}

/// A lost frontend and the Service that owns it (possibly the same Service, by another field).
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) wanted: Wanted,
    pub(crate) owner: ServiceName,
    pub(crate) owned_as: OwnedAs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnedAs {
    /// The owner claims the same frontend, and its claim is stronger or older.
    Same,
    /// The address is the owner's cluster IP.
    ClusterIp,
    /// The address is one of this node, and the port is the owner's node port.
    NodePort,
}

pub(crate) fn settle<'f>(facts: &'f Facts, service: &'f Service) -> Settled<'f> {
    let mut settled = Settled { sizes: Sizes::of(facts, service), ..Settled::default() };
    let mut taken = HashSet::new();
    for wanted in frontends::wanted(service, facts.policy(), facts.most_frontends(service)) {
        if let Some((owner, owned_as)) = owned_by_another(facts, service, &wanted) {
            settled.lost.push(Lost { wanted, owner: owner.clone(), owned_as });
        } else if taken.insert(wanted.claim(service)) {
            settled.shadowing.extend(health_check_behind(facts, service, &wanted));
            settled.kept.push(wanted);
        } else if wanted.kind != FrontendKind::ExternalIp || is_own_cluster_ip(&settled.kept, &wanted) {
            // A load-balancer IP that is also an external IP works as intended: nothing is lost.
            settled.lost.push(Lost { wanted, owner: service.name.clone(), owned_as: OwnedAs::Same });
        }
    }
    limits::fit(&facts.policy().limits, service, &mut settled);
    settled
}

fn owned_by_another<'f>(
    facts: &'f Facts,
    service: &Service,
    wanted: &Wanted,
) -> Option<(&'f ServiceName, OwnedAs)> {
    let other = |claim| facts.claims().owner(&claim).filter(|owner| **owner != service.name);
    if let Some(address) = wanted.address
        && wanted.kind != FrontendKind::ClusterIp
    {
        if let Some(owner) = other(Claim::WholeAddress { address }) {
            return Some((owner, OwnedAs::ClusterIp));
        }
        let protocol = service.ports[wanted.port].protocol;
        let node_port = Claim::NodePort { family: wanted.family, port: wanted.number, protocol };
        if let Some(owner) = other(node_port)
            && node_port_addresses::answer_at(facts, address)
        {
            return Some((owner, OwnedAs::NodePort));
        }
    }
    other(wanted.claim(service)).map(|owner| (owner, OwnedAs::Same))
}

fn is_own_cluster_ip(kept: &[Wanted], wanted: &Wanted) -> bool {
    kept.iter().any(|other| other.kind == FrontendKind::ClusterIp && other.address == wanted.address)
}

/// The node port is translated before the health-check server can receive the packet.
fn health_check_behind(facts: &Facts, service: &Service, wanted: &Wanted) -> Option<Lost> {
    let is_tcp_node_port =
        wanted.kind == FrontendKind::NodePort && service.ports[wanted.port].protocol == Protocol::Tcp;
    let owner = facts.claims().owner(&Claim::HealthCheck { port: wanted.number })?;
    is_tcp_node_port.then(|| Lost { wanted: wanted.clone(), owner: owner.clone(), owned_as: OwnedAs::Same })
}

impl Settled<'_> {
    pub(crate) fn diagnostics(&self, service: &Service) -> impl Iterator<Item = Diagnostic> {
        let lost = self.lost_diagnostics(service);
        let shadowing = self.shadowing.iter().map(move |lost| {
            let Lost { wanted, owner, .. } = lost;
            let reason =
                format!("node port {}/tcp is also the health-check node port of {owner}", wanted.number);
            let effect = format!("health checks of {owner} reach the endpoints of this Service");
            conflict(service, wanted.field.path(), reason, effect)
        });
        lost.chain(shadowing)
    }

    /// The Diagnostics about frontends that belong to other Services.
    pub(crate) fn lost_diagnostics(&self, service: &Service) -> impl Iterator<Item = Diagnostic> {
        self.lost.iter().map(move |lost| {
            conflict(service, lost.wanted.field.path(), lost.reason(service), lost.effect(service))
        })
    }
}

impl Lost {
    /// `node port 30080/tcp already belongs to default/api`.
    pub(crate) fn reason(&self, service: &Service) -> String {
        let Lost { wanted, owner, owned_as } = self;
        let protocol = service.ports[wanted.port].protocol;
        let what = match wanted.address {
            None => format!("node port {}/{protocol}", wanted.number),
            Some(address) if Family::of(address) == Family::V6 => {
                format!("[{address}]:{}/{protocol}", wanted.number)
            }
            Some(address) => format!("{address}:{}/{protocol}", wanted.number),
        };
        match (owned_as, wanted.address) {
            _ if *owner == service.name => {
                format!("{what} is already used by another field of this Service")
            }
            (OwnedAs::ClusterIp, Some(address)) => format!("{address} is the cluster IP of {owner}"),
            (OwnedAs::NodePort, _) => {
                format!("{}/{protocol} is a node port of {owner} on this node", wanted.number)
            }
            _ => format!("{what} already belongs to {owner}"),
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

    /// The frontends that a Service gets, and its Diagnostics.
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

    fn external(mut service: event::Service, address: &str) -> event::Service {
        service.external_ips = vec![address.into()];
        service
    }

    fn balanced(mut service: event::Service, address: &str) -> event::Service {
        service.ingress = vec![event::Ingress { ip: address.into(), ip_mode: String::new() }];
        service
    }

    fn on_port(mut service: event::Service, port: i64) -> event::Service {
        service.ports[0].port = port;
        service
    }

    fn host(address: &str) -> Event {
        Event::HostAddresses(vec![address.parse().unwrap()])
    }

    #[test]
    fn an_older_external_ip_cannot_take_over_a_cluster_ip() {
        let thief = || service("thief", Some(1), "10.96.0.2", 0);
        let victim = service("dns", Some(2), "10.96.0.1", 0);
        for thief in [external(thief(), "10.96.0.1"), balanced(thief(), "10.96.0.1")] {
            for order in [[thief.clone(), victim.clone()], [victim.clone(), thief.clone()]] {
                let facts = facts(&order);
                assert_eq!(outcome(&facts, "dns"), (vec!["10.96.0.1:80".into()], vec![]));
                let (frontends, says) = outcome(&facts, "thief");
                assert_eq!(frontends, ["10.96.0.2:80"]);
                assert!(
                    says[0].starts_with("10.96.0.1 is the cluster IP of default/dns; port 80 is not"),
                    "{says:?}"
                );
            }
        }
    }

    #[test]
    fn a_cluster_ip_owns_the_ports_that_its_service_does_not_use() {
        let thief = on_port(external(service("thief", Some(1), "10.96.0.2", 0), "10.96.0.1"), 81);
        let mut both = facts(&[thief, service("dns", Some(2), "10.96.0.1", 0)]);
        assert_eq!(outcome(&both, "thief").0, ["10.96.0.2:81"]);
        both.apply(Event::ServiceGone { namespace: "default".into(), name: "dns".into() });
        assert_eq!(outcome(&both, "thief").0, ["10.96.0.2:81", "10.96.0.1:81"]);
    }

    #[test]
    fn the_own_cluster_ip_may_be_an_external_ip_too() {
        let odd = external(service("web", Some(1), "10.96.0.1", 0), "10.96.0.1");
        let (frontends, says) = outcome(&facts(&[odd]), "web");
        assert_eq!((frontends.len(), says.len()), (1, 1));
        assert!(says[0].contains("already used by another field of this Service"), "{says:?}");
    }

    #[test]
    fn a_load_balancer_ip_is_stronger_than_an_external_ip() {
        let early = external(service("early", Some(1), "10.96.0.1", 0), "203.0.113.1");
        let late = balanced(service("late", Some(2), "10.96.0.2", 0), "203.0.113.1");
        let both = facts(&[early.clone(), late.clone()]);
        assert_eq!(outcome(&both, "late").0, ["10.96.0.2:80", "203.0.113.1:80"]);
        assert!(
            outcome(&both, "early").1[0].starts_with("203.0.113.1:80/tcp already belongs to default/late")
        );
        // Load balancers may share an address.
        let apart = facts(&[early, on_port(late, 81)]);
        assert_eq!(outcome(&apart, "early").0.len() + outcome(&apart, "late").0.len(), 4);
    }

    #[test]
    fn an_external_ip_cannot_take_over_a_node_port() {
        let thief = || on_port(service("thief", Some(1), "10.96.0.2", 0), 30080);
        for thief in [external(thief(), "172.18.0.2"), balanced(thief(), "172.18.0.2")] {
            let mut facts = facts(&[thief, service("web", Some(2), "10.96.0.1", 30080)]);
            // Until it is known as an address of this host, it is an address like any other.
            assert_eq!(outcome(&facts, "thief").0, ["10.96.0.2:30080", "172.18.0.2:30080"]);
            facts.apply(host("172.18.0.2"));
            let (frontends, says) = outcome(&facts, "thief");
            assert_eq!(frontends, ["10.96.0.2:30080"]);
            assert!(
                says[0].starts_with("30080/tcp is a node port of default/web on this node; port"),
                "{says:?}"
            );
            assert_eq!(outcome(&facts, "web"), (vec!["10.96.0.1:80".into(), "*:30080".into()], vec![]));
        }
    }

    #[test]
    fn an_external_ip_in_a_service_cidr_works_and_is_reported() {
        for early in [
            external(service("early", Some(1), "10.96.0.1", 0), "10.96.7.7"),
            balanced(service("early", Some(1), "10.96.0.1", 0), "10.96.7.7"),
        ] {
            let mut facts = facts(&[early]);
            assert_eq!(outcome(&facts, "early").1, [""; 0]);
            let cidr = event::ServiceCidr { name: "kubernetes".into(), cidrs: vec!["10.96.0.0/16".into()] };
            let touched = facts.apply(Event::ServiceCidr(cidr));
            assert!(touched.services.contains(&ServiceName::new("default", "early")));
            let (frontends, says) = outcome(&facts, "early");
            assert_eq!(frontends, ["10.96.0.1:80", "10.96.7.7:80"]);
            assert!(
                says[0].ends_with("10.96.7.7 is inside the ServiceCIDR 10.96.0.0/16; the address is served until a Service gets it as its cluster IP"),
                "{says:?}"
            );
            facts.apply(Event::Service(service("owner", Some(9), "10.96.7.7", 0)));
            assert_eq!(outcome(&facts, "early").0, ["10.96.0.1:80"]);
            assert_eq!(outcome(&facts, "owner"), (vec!["10.96.7.7:80".into()], vec![]));
        }
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
    fn a_node_port_in_front_of_a_health_check_is_reported() {
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
