//! Rule: limits for one Service and for its namespace. Frontends and endpoints beyond a limit are left out, reported
//! and counted.
//!
//! Tenants write Services and slices: a small object with thousands of ports and addresses makes millions of frontends, and
//! each has all endpoints. So nothing beyond a limit is even enumerated.

use std::collections::{HashMap, HashSet};

use super::conflicts::{Settled, diagnostic};
use super::frontends::Wanted;
use super::{ResolvedPort, frontends};
use crate::diagnostic::Diagnostic;
use crate::facts::{Facts, MOST_SLICES, Service, ServicePort};
use crate::intent::{FrontendKind, LeftOut};
use crate::name::{Family, Protocol};
use crate::policy::Limits;

/// How many endpoints the slices of a Service list for each port.
#[derive(Debug, Default)]
pub(crate) struct Sizes<'f>(HashMap<(Family, &'f str, Protocol), usize>);

impl<'f> Sizes<'f> {
    pub(crate) fn of(facts: &'f Facts, service: &'f Service) -> Sizes<'f> {
        let name = |port: &'f ServicePort| (&*port.name, port.protocol);
        let names: HashSet<(&str, Protocol)> = service.ports.iter().map(name).collect();
        let mut sizes = HashMap::new();
        for slice in facts.slices_of(&service.name).filter(|slice| !slice.is_empty()) {
            let mut add = |name, protocol| {
                *sizes.entry((slice.family(), name, protocol)).or_default() += slice.len();
            };
            // Many slices may list thousands of ports that the Service does not have.
            if slice.ports().len() <= names.len() {
                slice.ports().iter().for_each(|port| add(&*port.name, port.protocol));
            } else {
                let listed = names.iter().filter(|(name, protocol)| slice.port(name, *protocol).is_some());
                listed.for_each(|(name, protocol)| add(name, *protocol));
            }
        }
        Sizes(sizes)
    }

    pub(crate) fn of_port(&self, port: &ServicePort, family: Family) -> usize {
        self.0.get(&(family, &*port.name, port.protocol)).copied().unwrap_or(0)
    }
}

/// Removes the frontends for which there is no room, the weakest first: frontends are in the order of their strength.
pub(crate) fn fit(limits: &Limits, service: &Service, settled: &mut Settled<'_>) {
    let mut entries = 0_usize;
    let sizes = &settled.sizes;
    let fits = |wanted: &Wanted| {
        let cost = cost(limits, service, sizes, wanted);
        // The first one always fits: no limit may take a Service away.
        let fits = entries == 0 || entries.saturating_add(cost) <= limits.entries;
        entries = entries.saturating_add(if fits { cost } else { 0 });
        fits
    };
    let before = settled.kept.len();
    settled.kept.retain(fits);
    settled.without_room = before - settled.kept.len();
}

/// What a dataplane may have to program for a frontend: its endpoints, and the sources that may use it.
fn cost(limits: &Limits, service: &Service, sizes: &Sizes<'_>, wanted: &Wanted) -> usize {
    let endpoints = sizes.of_port(&service.ports[wanted.port], wanted.family).min(limits.endpoints_of_port());
    let ranges = service.source_ranges.as_ref().filter(|_| wanted.kind == FrontendKind::LoadBalancer);
    let sources = ranges.map_or(0, |ranges| ranges.len() + service.load_balancer_ips.len());
    1 + endpoints + sources
}

pub(crate) fn left_out(
    facts: &Facts,
    service: &Service,
    settled: &Settled<'_>,
    ports: &[ResolvedPort<'_>],
) -> LeftOut {
    let beyond = frontends::count(service, facts.policy()).saturating_sub(facts.most_frontends(service));
    // Endpoints count once for each port that their slice lists beyond the limit of ports.
    let unread =
        facts.slices_of(&service.name).map(|slice| u64::from(slice.ports_beyond()) * slice.len() as u64);
    // Slices beyond the limit are not read, so the number of their endpoints is unknown: each slice counts as one.
    let slices = facts.count_slices_of(&service.name).saturating_sub(MOST_SLICES) as u64;
    let beyond_ports = ports.iter().map(|port| port.candidates.beyond as u64);
    LeftOut {
        frontends: (beyond + settled.without_room) as u64,
        endpoints: beyond_ports.chain(unread).sum::<u64>() + slices,
    }
}

pub(crate) fn diagnostics(
    facts: &Facts,
    service: &Service,
    settled: &Settled<'_>,
    ports: &[ResolvedPort<'_>],
) -> Vec<Diagnostic> {
    let limits = facts.policy().limits;
    let say =
        |field: &str, reason: String, effect: String| diagnostic(service, field.to_owned(), reason, effect);
    let mut found = Vec::new();
    let frontends = frontends::count(service, facts.policy());
    if frontends > limits.frontends {
        let reason = format!(
            "ports times addresses make {frontends} frontends, more than {} (--service-max-frontends)",
            limits.frontends
        );
        let effect = format!("{} of them are not served, external IPs first", frontends - limits.frontends);
        found.push(say("spec.ports", reason, effect));
    }
    let (most, share) = (frontends.min(limits.frontends), facts.most_frontends(service));
    if share < most {
        let reason = format!(
            "namespace {} has more than {} frontends, or all namespaces together more than {}, and older Services come first",
            service.name.namespace(),
            limits.namespace_frontends,
            limits.node_frontends,
        );
        let effect = format!("{} frontends of this Service are not served, external IPs first", most - share);
        found.push(say("spec", reason, effect));
    }
    if settled.without_room > 0 {
        let reason = format!(
            "the frontends with their endpoints and source ranges are more than {} entries (--service-max-entries)",
            limits.entries
        );
        let effect = format!("{} frontends are not served, external IPs first", settled.without_room);
        found.push(say("spec", reason, effect));
    }
    for port in ports.iter().filter(|port| port.candidates.beyond > 0) {
        let reason = format!(
            "the port has more than {} endpoints (--service-max-endpoints)",
            limits.endpoints_of_port()
        );
        let effect = format!("{} of them get no traffic", port.candidates.beyond);
        found.push(say(&format!("spec.ports[{}]", service.ports[port.port].index), reason, effect));
    }
    let slices = facts.count_slices_of(&service.name);
    if slices > MOST_SLICES {
        let reason = format!("the Service has {slices} EndpointSlices, more than {MOST_SLICES}");
        let effect = format!("the endpoints of {} of them get no traffic", slices - MOST_SLICES);
        found.push(say("EndpointSlices", reason, effect));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, EndpointSlice, Event, ServicePort as Port, SliceEndpoint, SlicePort};
    use crate::facts::MOST_PORTS;
    use crate::intent::ServiceIntent;
    use crate::name::ServiceName;
    use crate::policy::Policy;
    use crate::resolve;

    fn service(ports: i64, external: usize) -> event::Service {
        let port = |number: i64| Port { name: format!("p{number}"), port: number, ..Port::default() };
        event::Service {
            namespace: "default".into(),
            name: "web".into(),
            kind: "LoadBalancer".into(),
            cluster_ip: "10.96.0.80".into(),
            ports: (1..=ports).map(port).collect(),
            external_ips: (0..external).map(|n| format!("198.18.{}.{}", n >> 8, n & 255)).collect(),
            ingress: vec![event::Ingress { ip: "203.0.113.1".into(), ip_mode: String::new() }],
            ..Default::default()
        }
    }

    /// Slices of 1,000 endpoints each.
    fn slice(number: usize, ports: i64, endpoints: usize, ready: impl Fn(usize) -> bool) -> Event {
        let endpoint = |n: usize| SliceEndpoint {
            addresses: vec![format!("10.{}.{}.{}", number, n >> 8, n & 255)],
            ready: Some(ready(n)),
            ..SliceEndpoint::default()
        };
        let port = |n: i64| SlicePort { name: Some(format!("p{n}")), port: Some(n), ..SlicePort::default() };
        Event::Slice(EndpointSlice {
            namespace: "default".into(),
            name: format!("web-{number:05}"),
            service: Some("web".into()),
            address_type: "IPv4".into(),
            ports: (1..=ports).map(port).collect(),
            endpoints: (0..endpoints).map(endpoint).collect(),
            last_change: None,
        })
    }

    fn resolved(limits: Limits, events: impl IntoIterator<Item = Event>) -> (ServiceIntent, Vec<String>) {
        let mut facts = Facts::new(Policy { limits, ..Policy::default() });
        for event in events {
            facts.apply(event);
        }
        let resolution = resolve::service(&facts, &ServiceName::new("default", "web"));
        let texts = resolution.diagnostics.iter().map(|it| format!("{}; {}", it.reason, it.effect)).collect();
        (resolution.intent.expect("it is still served"), texts)
    }

    fn kinds(intent: &ServiceIntent) -> [usize; 3] {
        let frontends = || intent.ports.iter().flat_map(|port| &port.frontends);
        [FrontendKind::ClusterIp, FrontendKind::LoadBalancer, FrontendKind::ExternalIp]
            .map(|kind| frontends().filter(|frontend| frontend.kind == kind).count())
    }

    #[test]
    fn frontends_are_limited_and_external_ips_go_first() {
        let limits = |frontends| Limits { frontends, ..Limits::default() };
        for (most, expected) in [(35, [10, 10, 15]), (13, [10, 3, 0]), (7, [7, 0, 0]), (220, [10, 10, 200])] {
            let (intent, says) = resolved(limits(most), [Event::Service(service(10, 20))]);
            assert_eq!(kinds(&intent), expected, "{most}");
            assert_eq!(intent.left_out.frontends as usize, 220 - most);
            assert_eq!(says.len(), usize::from(most < 220), "{says:?}");
        }
        let (_, says) = resolved(limits(35), [Event::Service(service(10, 20))]);
        let expected = "ports times addresses make 220 frontends, more than 35 (--service-max-frontends); 185 of them are not served, \
                        external IPs first";
        assert_eq!(says, [expected]);
    }

    /// The younger Service gets only the frontends for which its namespace has room. The older one loses none.
    #[test]
    fn a_namespace_with_too_many_frontends_is_said() {
        let limits = Limits { always: 10, namespace_frontends: 25, ..Limits::default() };
        let older = event::Service {
            name: "older".into(),
            created: Some(1),
            cluster_ip: "10.96.0.81".into(),
            external_ips: vec!["198.19.0.1".into()],
            ingress: vec![event::Ingress { ip: "203.0.113.9".into(), ip_mode: String::new() }],
            ..service(10, 1)
        };
        let younger = event::Service { created: Some(2), ..service(10, 2) };
        let (intent, says) = resolved(limits, [Event::Service(younger), Event::Service(older)]);
        // Of the 30 frontends of the older Service, 10 are always served, and the others take 20 of the 25.
        assert_eq!(kinds(&intent), [10, 5, 0]);
        assert_eq!(intent.left_out.frontends, 25);
        let expected = "namespace default has more than 25 frontends, or all namespaces together more than 1000000, \
                        and older Services come first; 25 frontends of this Service are not served, external IPs first";
        assert!(says.iter().any(|says| says == expected), "{says:?}");
    }

    /// 5,000 ports and 5,000 addresses: 25 million frontends, which must never be built.
    #[test]
    fn a_huge_service_is_cut_before_it_is_built() {
        let (intent, says) = resolved(Limits::default(), [Event::Service(service(5_000, 5_000))]);
        assert_eq!(kinds(&intent).iter().sum::<usize>(), Limits::default().frontends);
        assert_eq!(kinds(&intent)[..2], [5_000, 5_000]);
        assert_eq!(intent.left_out.frontends, 5_000 * 5_002 - 10_000);
        assert_eq!(says.len(), 1);
    }

    #[test]
    fn endpoints_of_a_port_are_limited_and_ready_ones_stay() {
        let limits = Limits { endpoints: 100, ..Limits::default() };
        let events = [Event::Service(service(1, 0)), slice(0, 1, 90, |n| n < 50), slice(1, 1, 90, |_| true)];
        let (intent, says) = resolved(limits, events);
        assert_eq!(intent.ports[0].cluster.len(), 100);
        assert_eq!(intent.left_out, LeftOut { frontends: 0, endpoints: 80 });
        assert_eq!(
            says,
            ["the port has more than 100 endpoints (--service-max-endpoints); 80 of them get no traffic"]
        );
    }

    #[test]
    fn frontends_times_endpoints_is_limited() {
        let limits = Limits { entries: 1_000, ..Limits::default() };
        let events = [Event::Service(service(2, 10)), slice(0, 2, 99, |_| true)];
        let (intent, says) = resolved(limits, events.clone());
        assert_eq!(kinds(&intent), [2, 2, 6]);
        assert_eq!(intent.left_out.frontends, 14);
        assert!(
            says[0].contains("source ranges are more than 1000 entries (--service-max-entries); 14 "),
            "{says:?}"
        );
        let (intent, _) = resolved(Limits { entries: 1, ..limits }, events);
        assert_eq!(kinds(&intent), [1, 0, 0], "the first cluster IP is served whatever it costs");
    }

    #[test]
    fn source_ranges_count() {
        let mut many = service(10, 0);
        many.load_balancer_source_ranges = (0..200).map(|n| format!("10.{n}.0.0/16")).collect();
        let limits = Limits { entries: 1_000, ..Limits::default() };
        let (intent, _) = resolved(limits, [Event::Service(many)]);
        assert_eq!(kinds(&intent), [10, 4, 0]);
    }

    /// The Diagnostic about this belongs to the slice.
    #[test]
    fn endpoints_of_ports_beyond_the_limit_of_a_slice_are_counted() {
        let ports = MOST_PORTS as i64;
        for (ports, expected) in [(ports, 0), (ports + 2, 2 * 5)] {
            let events = [Event::Service(service(1, 0)), slice(0, ports, 5, |_| true)];
            assert_eq!(resolved(Limits::default(), events).0.left_out.endpoints, expected);
        }
    }

    #[test]
    fn slices_of_a_service_are_limited() {
        let slices = (0..MOST_SLICES + 3).map(|number| slice(number % 200, 1, 0, |_| true).named(number));
        let (intent, says) =
            resolved(Limits::default(), std::iter::once(Event::Service(service(1, 0))).chain(slices));
        assert_eq!(intent.left_out.endpoints, 3, "at least one of each");
        assert!(says[0].ends_with("the endpoints of 3 of them get no traffic"), "{says:?}");
    }

    trait Named {
        fn named(self, number: usize) -> Event;
    }

    impl Named for Event {
        fn named(self, number: usize) -> Event {
            match self {
                Event::Slice(slice) => {
                    Event::Slice(EndpointSlice { name: format!("web-{number:05}"), ..slice })
                }
                other => other,
            }
        }
    }
}
