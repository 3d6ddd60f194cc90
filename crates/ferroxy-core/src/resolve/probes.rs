//! Rule: an endpoint that fails its probes gets no new connections. Readiness decides which endpoints may be used;
//! probes only remove some of them.
//!
//! Probes never remove the last endpoint, nor more than half of a pool. If more than half fail at once, the probe
//! itself is wrong (its path, a NetworkPolicy, TLS), and the whole pool stays in use.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::ResolvedPort;
use super::selection::Selection;
use crate::diagnostic::{Cause, Diagnostic, Object};
use crate::facts::{Facts, MOST_PROBED, Probed, Service};
use crate::intent::{Endpoint, PortIntent};
use crate::name::{Protocol, ServiceName};
use crate::probe::{ANNOTATION, Down, Life, Probe, Target};

/// What to probe for a Service on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Probing {
    pub probe: Arc<Probe>,
    /// The ready endpoints that this node uses, or would use if they were up.
    pub targets: BTreeMap<Target, Life>,
    /// The number of ports, counted for each family, whose verdicts are ignored because too many endpoints fail.
    pub ignored: usize,
}

/// Looks up which endpoints of one Service port are down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judge<'f> {
    probe: &'f Probe,
    probed: &'f Probed,
    protocol: Protocol,
}

impl<'f> Judge<'f> {
    /// `None` if the Service requests no probes, or this node sends none.
    pub(crate) fn new(facts: &'f Facts, service: &'f Service, protocol: Protocol) -> Option<Judge<'f>> {
        let probe = service.probe.as_deref().filter(|_| facts.policy().probes)?;
        Some(Judge { probe, probed: facts.probed(&service.name)?, protocol })
    }

    fn target(&self, endpoint: &Endpoint) -> Option<(Target, Life)> {
        let target = self.probe.target(endpoint.ip, endpoint.port, self.protocol)?;
        Some((target, self.probed.life(&target)?))
    }

    pub(crate) fn down(&self, endpoint: &Endpoint) -> Option<&'f Down> {
        self.probed.down(&self.target(endpoint)?.0)
    }
}

/// The effect of verdicts on the pools of a port.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Judged {
    /// The endpoints to probe.
    pub(crate) targets: BTreeMap<Target, Life>,
    /// More than half of the pool fail their probes, so the whole pool stays in use.
    pub(crate) cluster_ignored: bool,
    pub(crate) local_ignored: bool,
}

/// Removes the endpoints that are down from the pools.
pub(crate) fn subtract(selection: &mut Selection, judge: Judge<'_>) -> Judged {
    let used = selection.cluster.iter().chain(&selection.local);
    Judged {
        targets: used.filter_map(|endpoint| judge.target(endpoint)).collect(),
        cluster_ignored: !take_out(&mut selection.cluster, judge),
        local_ignored: !take_out(&mut selection.local, judge),
    }
}

/// Removes the endpoints that are down. Returns false, and changes nothing, if these are more than half of the pool.
fn take_out(pool: &mut Vec<Endpoint>, judge: Judge<'_>) -> bool {
    let down = pool.iter().filter(|endpoint| judge.down(endpoint).is_some()).count();
    let is_sound = 2 * down <= pool.len();
    if is_sound && down > 0 {
        pool.retain(|endpoint| judge.down(endpoint).is_none());
    }
    is_sound
}

/// Whether an endpoint is down and in no pool of the port. It then keeps no connections whose clients cannot notice
/// that it is dead.
pub(crate) fn is_out(facts: &Facts, service: &ServiceName, port: &PortIntent, at: SocketAddr) -> bool {
    let has = |pool: &[Endpoint]| pool.iter().any(|it| (it.ip, it.port) == (at.ip(), at.port()));
    let service = facts.service(service);
    let judge = service.as_ref().and_then(|service| Judge::new(facts, service, port.protocol));
    let endpoint = Endpoint { ip: at.ip(), port: at.port(), is_local: false };
    let is_down = judge.is_some_and(|judge| judge.down(&endpoint).is_some());
    is_down && !has(&port.cluster) && !has(&port.local)
}

pub(crate) fn probing(facts: &Facts, service: &Service, ports: &[ResolvedPort<'_>]) -> Option<Probing> {
    let probe = service.probe.clone().filter(|_| facts.policy().probes)?;
    let targets = ports.iter().flat_map(|port| &port.judged.targets);
    let is_ignored = |port: &&ResolvedPort<'_>| port.judged.cluster_ignored || port.judged.local_ignored;
    Some(Probing {
        probe,
        targets: targets.map(|(target, life)| (*target, *life)).collect(),
        ignored: ports.iter().filter(is_ignored).count(),
    })
}

pub(crate) fn diagnostics<'p>(
    facts: &'p Facts,
    service: &'p Service,
    ports: &'p [ResolvedPort<'_>],
) -> impl Iterator<Item = Diagnostic> + 'p {
    let say = |cause, reason: String, effect: &str| Diagnostic {
        object: Object::service(&service.name),
        field: format!("metadata.annotations[{ANNOTATION}]"),
        reason,
        effect: effect.to_owned(),
        cause,
    };
    let ignored = ports.iter().flat_map(move |port| {
        let (family, number) = (port.intent.family, service.ports[port.port].port);
        let cluster = port.judged.cluster_ignored.then_some("");
        let local = port.judged.local_ignored.then_some(" on this node");
        let effect = "their probes are ignored, and all of them stay in use";
        [cluster, local].into_iter().flatten().map(move |place| {
            let reason =
                format!("more than half of the {family} endpoints of port {number}{place} fail their probe");
            say(Cause::Probes, reason, effect)
        })
    });
    let asks = service.probe.is_some();
    let off = (asks && !facts.policy().probes).then(|| {
        let reason = "the feature gate FerroxyProbes is off on this node".to_owned();
        say(Cause::Field, reason, "its endpoints are not probed")
    });
    let has_more = facts.probed(&service.name).is_some_and(|probed| probed.has_more && off.is_none());
    let more = has_more.then(|| {
        let reason = format!("the Service has more than {MOST_PROBED} endpoints to probe");
        say(Cause::Field, reason, "the endpoints beyond that stay in use without probes")
    });
    ignored.chain(off).chain(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event, Verdict};
    use crate::explain::explain;
    use crate::name::Family;
    use crate::policy::Policy;
    use crate::probe::Fault;
    use crate::resolve;

    /// The Service `default/web` on the node `ka`, with a UDP port and a probe.
    struct Bench {
        facts: Facts,
    }

    #[derive(Clone, Copy)]
    struct Pod {
        ip: &'static str,
        node: &'static str,
        ready: bool,
        terminating: bool,
        name: &'static str,
    }

    const fn pod(ip: &'static str) -> Pod {
        Pod { ip, node: "kb", ready: true, terminating: false, name: ip }
    }

    const A: Pod = pod("10.0.0.1");
    const B: Pod = pod("10.0.0.2");
    const C: Pod = pod("10.0.0.3");
    const D: Pod = pod("10.0.0.4");

    fn name() -> ServiceName {
        ServiceName::new("default", "web")
    }

    impl Bench {
        fn new(probe: &str, pods: &[Pod]) -> Bench {
            let facts = Facts::new(Policy { node_name: "ka".into(), ..Policy::default() });
            let mut bench = Bench { facts };
            bench.ask(probe);
            bench.pods(pods);
            bench
        }

        fn ask(&mut self, probe: &str) {
            let port = |name: &str, protocol: &str, port| event::ServicePort {
                name: name.into(),
                protocol: protocol.into(),
                port,
                node_port: 30_000 + port,
                ..Default::default()
            };
            self.facts.apply(Event::Service(event::Service {
                namespace: "default".into(),
                name: "web".into(),
                kind: "LoadBalancer".into(),
                cluster_ip: "10.96.0.1".into(),
                external_traffic_policy: "Local".into(),
                health_check_node_port: 32_000,
                annotations: vec![(ANNOTATION.into(), probe.into())],
                ports: vec![port("http", "TCP", 80), port("dns", "UDP", 53)],
                ..Default::default()
            }));
        }

        fn pods(&mut self, pods: &[Pod]) {
            let port = |name: &str, protocol: &str, port| event::SlicePort {
                name: Some(name.into()),
                protocol: protocol.into(),
                port: Some(port),
            };
            let endpoint = |pod: &Pod| event::SliceEndpoint {
                addresses: vec![pod.ip.into()],
                ready: Some(pod.ready),
                serving: Some(true),
                terminating: Some(pod.terminating),
                node_name: Some(pod.node.into()),
                target: Some(pod.name.into()),
                ..Default::default()
            };
            self.facts.apply(Event::Slice(event::EndpointSlice {
                namespace: "default".into(),
                name: "web-1".into(),
                service: Some("web".into()),
                address_type: "IPv4".into(),
                ports: vec![port("http", "TCP", 8080), port("dns", "UDP", 53)],
                endpoints: pods.iter().map(endpoint).collect(),
                last_change: None,
            }));
        }

        /// Applies a verdict. Returns whether it changes anything.
        fn judge(&mut self, target: &str, life: Option<Life>, is_down: bool) -> bool {
            let down = is_down.then_some(Down { since: 1_700_000_000, fault: Fault::Refused });
            let target = Target::parse(target).unwrap();
            !self.facts.apply(Event::Verdict(Verdict { service: name(), target, life, down })).is_empty()
        }

        fn down(&mut self, targets: &[&str]) {
            for target in targets {
                assert!(self.judge(target, None, true), "{target}");
            }
        }

        fn port(&self, protocol: Protocol) -> PortIntent {
            let intent = resolve::service(&self.facts, &name()).intent.unwrap();
            intent.ports.into_iter().find(|port| port.protocol == protocol).unwrap()
        }

        /// The last numbers of the addresses in the pools of the TCP port.
        fn pools(&self) -> (Vec<u8>, Vec<u8>) {
            let port = self.port(Protocol::Tcp);
            let last = |pool: &[Endpoint]| {
                pool.iter().map(|it| it.ip.to_string().rsplit('.').next().unwrap().parse().unwrap()).collect()
            };
            (last(&port.cluster), last(&port.local))
        }

        fn targets(&self) -> Vec<String> {
            let probing = resolve::service(&self.facts, &name()).probing;
            probing.into_iter().flat_map(|it| it.targets).map(|(target, _)| target.to_string()).collect()
        }

        fn said(&self) -> Vec<String> {
            resolve::service(&self.facts, &name()).diagnostics.iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn whoever_fails_gets_no_new_connections_until_it_is_up_again() {
        let mut bench = Bench::new("tcp", &[A, B, C]);
        bench.down(&["10.0.0.2:8080/tcp"]);
        assert_eq!(bench.pools().0, [1, 3]);
        assert!(!bench.judge("10.0.0.2:8080/tcp", None, true), "said twice");
        assert!(bench.judge("10.0.0.2:8080/tcp", None, false));
        assert_eq!(bench.pools().0, [1, 2, 3]);
    }

    #[test]
    fn never_more_than_half_and_never_the_last() {
        let mut bench = Bench::new("tcp", &[A, B, C, D]);
        bench.down(&["10.0.0.1:8080/tcp", "10.0.0.2:8080/tcp"]);
        assert_eq!((bench.pools().0, bench.said()), (vec![3, 4], vec![]), "half is left");
        bench.down(&["10.0.0.3:8080/tcp"]);
        assert_eq!(bench.pools().0, [1, 2, 3, 4]);
        let ignored = "Service default/web: metadata.annotations[ferroxy.io/probe]: more than half of the IPv4 \
                       endpoints of port 80 fail their probe; their probes are ignored, and all of them stay in use";
        assert_eq!(bench.said(), [ignored]);
        bench.pods(&[C]);
        assert_eq!(bench.pools().0, [3], "the last one");
        assert_eq!(bench.said(), [ignored]);
    }

    #[test]
    fn each_pool_is_judged_alone() {
        let here = Pod { node: "ka", ..A };
        let mut bench = Bench::new("tcp", &[here, B, C]);
        assert_eq!(bench.pools(), (vec![1, 2, 3], vec![1]));
        bench.down(&["10.0.0.1:8080/tcp"]);
        assert_eq!(bench.pools(), (vec![2, 3], vec![1]), "the last one here stays for policy Local");
        assert!(bench.said()[0].contains("of port 80 on this node fail"), "{:?}", bench.said());
    }

    #[test]
    fn the_health_check_node_port_counts_ready_endpoints() {
        let here = |pod| Pod { node: "ka", ..pod };
        let mut bench = Bench::new("tcp", &[here(A), here(B)]);
        bench.down(&["10.0.0.1:8080/tcp"]);
        assert_eq!(bench.pools().1, [2]);
        let intent = resolve::service(&bench.facts, &name()).intent.unwrap();
        assert_eq!(intent.health_check.unwrap().local_endpoints, 2);
    }

    #[test]
    fn readiness_decides_and_a_verdict_ends_with_it() {
        let unready = |pod| Pod { ready: false, ..pod };
        let mut bench = Bench::new("tcp", &[A, unready(B), C]);
        assert!(!bench.judge("10.0.0.2:8080/tcp", None, false), "not probed");
        assert!(!bench.judge("10.0.0.2:8080/tcp", None, true));
        assert_eq!(bench.pools().0, [1, 3]);
        let before = bench.facts.probed(&name()).unwrap().life(&Target::parse("10.0.0.3:8080/tcp").unwrap());
        for (words, meanwhile) in [
            ("turns unready", vec![A, B, unready(C)]),
            ("leaves", vec![A, B]),
            ("terminates", vec![A, B, Pod { terminating: true, ..C }]),
            ("becomes another pod", vec![A, B, Pod { name: "another", ..C }]),
        ] {
            bench.pods(&[A, B, C]);
            bench.down(&["10.0.0.3:8080/tcp"]);
            assert_eq!(bench.pools().0, [1, 2]);
            bench.pods(&meanwhile);
            bench.pods(&[A, B, C]);
            assert_eq!(bench.pools().0, [1, 2, 3], "one that {words} and returns starts up");
            assert!(!bench.judge("10.0.0.3:8080/tcp", before, true), "{words}: the verdict comes too late");
        }
        bench.down(&["10.0.0.3:8080/tcp"]);
        bench.pods(&[A, B, C, D]);
        assert_eq!(bench.pools().0, [1, 2, 4], "whoever stays keeps its verdict");
    }

    #[test]
    fn terminating_endpoints_are_not_probed_and_used_as_they_are() {
        let leaving = |pod| Pod { ready: false, terminating: true, ..pod };
        let mut bench = Bench::new("tcp", &[A, leaving(B)]);
        assert_eq!(bench.targets(), ["10.0.0.1:53/udp", "10.0.0.1:8080/tcp"]);
        bench.pods(&[leaving(A), leaving(B)]);
        assert_eq!((bench.targets(), bench.pools().0), (vec![], vec![1, 2]));
    }

    #[test]
    fn a_named_port_is_asked_once_for_all_ports_of_a_pod() {
        let mut bench = Bench::new("http:/healthz:9000", &[A, B]);
        assert_eq!(bench.targets(), ["10.0.0.1:9000/tcp", "10.0.0.2:9000/tcp"]);
        bench.down(&["10.0.0.1:9000/tcp"]);
        assert_eq!(bench.pools().0, [2]);
        assert_eq!(bench.port(Protocol::Udp).cluster.len(), 1);
    }

    #[test]
    fn another_question_forgets_the_answers() {
        let mut bench = Bench::new("tcp", &[A, B]);
        bench.down(&["10.0.0.1:8080/tcp"]);
        bench.ask("http:/healthz");
        assert_eq!(bench.pools().0, [1, 2]);
        bench.down(&["10.0.0.1:8080/tcp"]);
        bench.ask("nothing");
        assert_eq!((bench.pools().0, bench.targets()), (vec![1, 2], vec![]));
        assert_eq!(bench.facts.probed_services().count(), 0);
    }

    #[test]
    fn a_node_that_sends_no_probes_says_so() {
        let mut bench = Bench::new("tcp", &[A, B]);
        bench.down(&["10.0.0.1:8080/tcp"]);
        let policy = Policy { probes: false, ..bench.facts.policy().clone() };
        bench.facts.set_policy(policy);
        assert_eq!((bench.pools().0, bench.targets()), (vec![1, 2], vec![]));
        assert!(bench.said()[0].contains("the feature gate FerroxyProbes is off"), "{:?}", bench.said());
    }

    #[test]
    fn udp_connections_of_an_endpoint_that_is_out_are_stale() {
        let serving =
            |bench: &Bench| resolve::serving(&bench.facts, &name(), &bench.port(Protocol::Udp)).len();
        let mut bench = Bench::new("tcp", &[A, B]);
        bench.down(&["10.0.0.1:53/udp"]);
        assert_eq!(serving(&bench), 1);
        bench.down(&["10.0.0.2:53/udp"]);
        assert_eq!(serving(&bench), 2, "verdicts are ignored: they get connections, so they keep them");
    }

    #[test]
    fn the_endpoints_of_a_service_that_are_probed_have_a_limit() {
        let address = |number: usize| format!("10.1.{}.{}", number / 250, number % 250 + 1);
        let addresses: Vec<String> = (0..MOST_PROBED + 5).map(address).collect();
        let pods: Vec<Pod> = addresses.iter().map(|ip| pod(ip.clone().leak())).collect();
        let mut bench = Bench::new("http:/", &pods);
        assert_eq!(bench.targets().len(), MOST_PROBED);
        assert!(
            bench
                .said()
                .iter()
                .any(|it| it.ends_with("the endpoints beyond that stay in use without probes"))
        );
        bench.pods(&pods[..MOST_PROBED]);
        assert_eq!((bench.targets().len(), bench.said().len()), (MOST_PROBED, 1), "{:?}", bench.said());
    }

    #[test]
    fn explain_shows_who_is_down_and_why() {
        let mut bench = Bench::new("tcp", &[A, B]);
        bench.down(&["10.0.0.1:8080/tcp"]);
        let explanation = explain(&bench.facts, &name());
        assert_eq!(explanation.probe.unwrap().check, crate::probe::Check::Tcp);
        let endpoint = &explanation.ports[0].endpoints[0];
        assert_eq!(explanation.ports[0].family, Family::V4);
        assert_eq!(endpoint.reason.as_deref(), Some("fails its probe: connection refused"));
        assert_eq!(endpoint.down.unwrap().since, 1_700_000_000);
        let problem = "1 of 2 IPv4 endpoints of port 80 fail their probe and get no new connections.";
        assert!(explanation.findings.iter().any(|it| it.problem == problem), "{:?}", explanation.findings);
        bench.down(&["10.0.0.2:8080/tcp"]);
        let explanation = explain(&bench.facts, &name());
        let endpoint = &explanation.ports[0].endpoints[0];
        assert!(endpoint.reason.is_none() && endpoint.down.is_some(), "used all the same");
        assert!(explanation.findings.iter().any(|it| it.problem.ends_with("so they stay in use.")));
    }
}
