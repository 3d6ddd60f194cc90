//! Rule: which endpoints keep their established connections: all that serve, on any node. Readiness, termination,
//! policies and hints only affect new connections. An endpoint that failed its probes does not answer, so it keeps
//! none.

use std::net::SocketAddr;

use super::probes;
use crate::facts::{Conditions, Facts, Slice};
use crate::intent::PortIntent;
use crate::name::ServiceName;

/// Sorted, without duplicates, at most as many as a port may have: all serving endpoints that `candidates.rs` finds,
/// and perhaps some more.
pub fn serving(facts: &Facts, service: &ServiceName, port: &PortIntent) -> Vec<SocketAddr> {
    let each = || {
        let slices = facts.slices_of(service).filter(|slice| slice.family() == port.family);
        slices.flat_map(|slice| endpoints(slice, port))
    };
    let address = |(address, _): (SocketAddr, Conditions)| address;
    let ready = each().filter(|(_, conditions)| conditions.ready());
    let others = each().filter(|(_, conditions)| !conditions.ready());
    let most = facts.policy().limits.endpoints_of_port();
    let mut all: Vec<SocketAddr> = ready.chain(others).take(most).map(address).collect();
    all.sort_unstable();
    all.dedup();
    if facts.probed(service).is_some() {
        all.retain(|endpoint| !probes::is_out(facts, service, port, *endpoint));
    }
    all
}

fn endpoints<'f>(
    slice: Slice<'f>,
    port: &PortIntent,
) -> impl Iterator<Item = (SocketAddr, Conditions)> + use<'f> {
    let target = slice.port(&port.name, port.protocol);
    (0..slice.len()).filter_map(move |index| {
        let conditions = slice.conditions(index).filter(|it| may_hold_connections(*it))?;
        Some((SocketAddr::new(slice.address(index)?, target?), conditions))
    })
}

/// With `publishNotReadyAddresses` an endpoint can be ready without serving. It gets new connections, so it keeps them.
fn may_hold_connections(conditions: Conditions) -> bool {
    conditions.serving() || conditions.ready()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, EndpointSlice, Event, SliceEndpoint, SlicePort};
    use crate::policy::{Limits, Policy};
    use crate::resolve;

    fn endpoint(ip: &str, ready: bool, serving: bool, terminating: bool) -> SliceEndpoint {
        SliceEndpoint {
            addresses: vec![ip.into()],
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
            hint_zones: vec!["elsewhere".into()],
            ..Default::default()
        }
    }

    fn slice(name: &str, family: &str, port: (&str, i64), endpoints: Vec<SliceEndpoint>) -> Event {
        let number = |name: &str, protocol: &str, port| SlicePort {
            name: Some(name.into()),
            protocol: protocol.into(),
            port: Some(port),
        };
        Event::Slice(EndpointSlice {
            namespace: "default".into(),
            name: name.into(),
            service: Some("dns".into()),
            address_type: family.into(),
            ports: vec![number(port.0, "UDP", port.1), number(port.0, "TCP", 9)],
            endpoints,
            last_change: None,
        })
    }

    /// The endpoints that keep connections to the first port of the Service `dns`.
    fn holders(slices: Vec<Event>) -> Vec<String> {
        let (serving, _) = within(Limits::default(), slices);
        serving
    }

    /// The same with these limits. Also returns the endpoints that get new connections under the policy Cluster.
    fn within(limits: Limits, slices: Vec<Event>) -> (Vec<String>, Vec<String>) {
        let mut facts = Facts::new(Policy { limits, ..Policy::default() });
        let udp =
            event::ServicePort { name: "dns".into(), protocol: "UDP".into(), port: 53, ..Default::default() };
        facts.apply(Event::Service(event::Service {
            namespace: "default".into(),
            name: "dns".into(),
            cluster_ip: "10.96.0.10".into(),
            internal_traffic_policy: "Local".into(),
            external_ips: vec!["192.0.2.1".into()],
            ports: vec![udp],
            ..Default::default()
        }));
        slices.into_iter().for_each(|slice| drop(facts.apply(slice)));
        let name = ServiceName::new("default", "dns");
        let intent = resolve::service(&facts, &name).intent.unwrap();
        let port = &intent.ports[0];
        let used = port.cluster.iter().map(|it| SocketAddr::new(it.ip, it.port).to_string()).collect();
        (serving(&facts, &name, port).iter().map(ToString::to_string).collect(), used)
    }

    #[test]
    fn whoever_serves_or_is_given_connections_counts() {
        let all = vec![
            endpoint("10.0.0.1", true, true, false),
            endpoint("10.0.0.2", false, true, false),
            endpoint("10.0.0.3", false, true, true),
            endpoint("10.0.0.4", true, false, false),
            endpoint("10.0.0.5", false, false, true),
            endpoint("10.0.0.6", false, false, false),
        ];
        assert_eq!(
            holders(vec![slice("dns-1", "IPv4", ("dns", 5353), all)]),
            ["10.0.0.1:5353", "10.0.0.2:5353", "10.0.0.3:5353", "10.0.0.4:5353"]
        );
    }

    #[test]
    fn slices_are_put_together_and_others_passed_over() {
        let ready = |ip| vec![endpoint(ip, true, true, false)];
        let slices = vec![
            slice("dns-1", "IPv4", ("dns", 53), ready("10.0.0.2")),
            slice("dns-2", "IPv4", ("dns", 5353), ready("10.0.0.1")),
            slice("dns-3", "IPv4", ("dns", 53), ready("10.0.0.2")),
            slice("dns-4", "IPv4", ("other", 53), ready("10.0.0.3")),
            slice("dns-5", "IPv6", ("dns", 53), ready("fd00::1")),
        ];
        assert_eq!(holders(slices), ["10.0.0.1:5353", "10.0.0.2:53"]);
    }

    #[test]
    fn an_endpoint_listed_twice_serves_if_one_entry_says_so() {
        let slices = vec![
            slice("dns-1", "IPv4", ("dns", 53), vec![endpoint("10.0.0.1", false, false, false)]),
            slice("dns-2", "IPv4", ("dns", 53), vec![endpoint("10.0.0.1", false, true, true)]),
        ];
        assert_eq!(holders(slices), ["10.0.0.1:53"]);
    }

    /// An endpoint that gets new connections but is missing in `serving` would lose them at once.
    #[test]
    fn of_too_many_those_that_get_connections_count() {
        let slices = |ready: bool| {
            let pod = |n: u8| {
                endpoint(
                    &format!("10.0.0.{n}"),
                    ready && n.is_multiple_of(2),
                    !n.is_multiple_of(3),
                    !ready || n % 2 == 1,
                )
            };
            let of = |name: &str, numbers: std::ops::Range<u8>| {
                slice(name, "IPv4", ("dns", 53), numbers.map(pod).collect())
            };
            vec![of("dns-1", 1..50), of("dns-2", 40..100)]
        };
        for ready in [true, false] {
            for most in [1, 10, 50, 60, 109, 1000] {
                let limits = Limits { endpoints: most, ..Limits::default() };
                let (serving, used) = within(limits, slices(ready));
                assert!(serving.len() <= most, "{} of {most}", serving.len());
                assert!(used.iter().all(|it| serving.contains(it)), "{most}: {used:?} in {serving:?}");
            }
        }
    }
}
