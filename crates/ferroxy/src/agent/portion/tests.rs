//! Laws of portions, on random pairs of Services: every change completes, no portion is much larger than its budget, and in
//! between every packet is handled as before or as desired.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroxy_core::intent::{FrontendKind, HealthCheck};
use ferroxy_core::packet::Origin;
use ferroxy_core::{Intent, Packet, ServiceName, Verdict, oracle};

use super::*;

/// splitmix64
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }

    fn some<T>(&mut self, from: impl IntoIterator<Item = T>) -> Vec<T> {
        from.into_iter().filter(|_| self.roll(2) == 0).collect()
    }
}

fn address(last: usize) -> IpAddr {
    [10, 96, 0, last as u8].into()
}

fn endpoint(number: usize) -> Endpoint {
    Endpoint { ip: [10, 244, 0, number as u8].into(), port: 80, is_local: number.is_multiple_of(2) }
}

/// Ports with three names share the frontends, which are at six addresses with four port numbers.
fn service(dice: &mut Dice) -> Option<ServiceIntent> {
    if dice.roll(10) == 0 {
        return None;
    }
    let mut ports: Vec<PortIntent> = ["a", "b", "c"].map(|name| port(dice, name)).into();
    let cluster_ips = dice.some(0..2);
    for (last, number) in (0..6).flat_map(|last| (0..4).map(move |number| (last, number))) {
        if (last >= 2 || cluster_ips.contains(&last)) && dice.roll(3) > 0 {
            let p = dice.roll(ports.len());
            let route = if ports[p].cluster.is_empty() {
                Route::Reject
            } else if last < 2 {
                Route::Cluster
            } else {
                Route::ExternalCluster
            };
            let kind = if last < 2 { FrontendKind::ClusterIp } else { FrontendKind::ExternalIp };
            let port = 80 + number;
            let address = Some(address(last));
            ports[p].frontends.push(Frontend { kind, address, port, route, allowed_sources: None });
        }
    }
    ports.retain(|port| !port.frontends.is_empty());
    let health_check = (dice.roll(2) == 0).then_some(HealthCheck { port: 30_000, local_endpoints: 1 });
    let cluster_ips = cluster_ips.into_iter().map(address).collect();
    Some(ServiceIntent {
        name: name(),
        cluster_ips,
        ports,
        health_check,
        annotations: Vec::new(),
        left_out: Default::default(),
    })
}

fn name() -> ServiceName {
    ServiceName::new("default", "huge")
}

fn port(dice: &mut Dice, name: &str) -> PortIntent {
    let cluster = if dice.roll(8) == 0 { Vec::new() } else { dice.some((0..8).map(endpoint)) };
    PortIntent {
        name: name.into(),
        family: Family::V4,
        protocol: Protocol::Tcp,
        affinity: (dice.roll(4) == 0).then_some(100),
        size: cluster.len() as u32,
        local: Vec::new(),
        cluster,
        frontends: Vec::new(),
    }
}

fn intent(service: Option<&ServiceIntent>) -> Intent {
    let mut intent = Intent::default();
    intent.node.v4.service_cidrs = vec!["10.96.0.0/24".parse().unwrap()];
    intent.services = service.map(|it| (it.name.clone(), Arc::new(it.clone()))).into_iter().collect();
    intent
}

fn verdicts(service: Option<&ServiceIntent>) -> BTreeMap<(usize, u16), Verdict> {
    let intent = intent(service);
    let packets = (0..6).flat_map(|last| (80..85).map(move |port| (last, port)));
    let verdict = |(last, port)| {
        let packet = Packet {
            source: [192, 0, 2, 1].into(),
            origin: Origin::Interface("eth0".into()),
            destination: address(last),
            port,
            protocol: Protocol::Tcp,
            to_this_host: false,
        };
        ((last, port), oracle(&intent, &packet))
    };
    packets.map(verdict).collect()
}

#[test]
fn every_change_arrives_and_every_packet_meets_what_was_or_what_will_be() {
    for seed in 0..3000 {
        let mut dice = Dice(seed);
        let (mut before, desired) = (service(&mut dice), service(&mut dice));
        let budget = 1 + dice.roll(40);
        let (old, new) = (verdicts(before.as_ref()), verdicts(desired.as_ref()));
        let total = size(before.as_ref(), desired.as_ref(), 0);
        let mut portions = 0;
        while let Some(between) = next(before.as_ref(), desired.as_ref(), budget) {
            portions += 1;
            assert!(portions <= 200, "seed {seed} does not end");
            for (packet, verdict) in verdicts(Some(&between)) {
                let is_right = verdict == old[&packet] || verdict == new[&packet];
                assert!(is_right, "seed {seed}, portion {portions}, {packet:?}: {verdict:?}");
            }
            let left = size(Some(&between), desired.as_ref(), 0);
            let was_left = size(before.as_ref(), desired.as_ref(), 0);
            assert!(left < was_left, "seed {seed}: {was_left} before, {left} now");
            assert_ne!(Some(&between), before.as_ref(), "seed {seed}");
            assert!(!has_ports_of_one_name(&between.ports), "seed {seed}");
            // A dataplane may keep endpoints in its own order.
            let mut in_force = between;
            in_force.ports.iter_mut().for_each(|port| port.cluster.reverse());
            before = Some(in_force);
        }
        assert!(portions <= total, "seed {seed}: {portions} portions of {total}");
        assert_eq!(next(desired.as_ref(), desired.as_ref(), 1), None, "seed {seed}");
        assert_eq!(size(desired.as_ref(), desired.as_ref(), 0), 0, "seed {seed}");
    }
}

/// A Service with this many ports, each at `addresses` addresses, with `endpoints` endpoints.
fn large(ports: u16, addresses: u8, endpoints: u8) -> ServiceIntent {
    let cluster: Vec<Endpoint> = (0..endpoints).map(|number| endpoint(number.into())).collect();
    let frontends = |port| -> Vec<Frontend> {
        let frontend = |last: u8| Frontend {
            kind: FrontendKind::ExternalIp,
            address: Some(address(last.into())),
            port,
            route: Route::ExternalCluster,
            allowed_sources: None,
        };
        (0..addresses).map(frontend).collect()
    };
    let port = |number: u16| PortIntent {
        name: format!("p{number}").into(),
        family: Family::V4,
        protocol: Protocol::Tcp,
        affinity: None,
        size: cluster.len() as u32,
        cluster: cluster.clone(),
        local: Vec::new(),
        frontends: frontends(number),
    };
    ServiceIntent {
        name: name(),
        cluster_ips: Vec::new(),
        ports: (1..=ports).map(port).collect(),
        health_check: None,
        annotations: Vec::new(),
        left_out: Default::default(),
    }
}

/// The sizes of the portions of a change.
fn portions(before: Option<ServiceIntent>, desired: Option<&ServiceIntent>, budget: usize) -> Vec<usize> {
    let (mut before, mut sizes) = (before, Vec::new());
    while let Some(between) = next(before.as_ref(), desired, budget) {
        sizes.push(size(before.as_ref(), Some(&between), 0));
        let mut in_force = between;
        in_force.ports.iter_mut().for_each(|port| port.cluster.reverse());
        before = Some(in_force);
    }
    sizes.push(size(before.as_ref(), desired, 0));
    sizes
}

#[test]
fn appearing_and_disappearing_take_as_many_portions_as_they_are_large() {
    let service = large(10, 100, 9);
    for sizes in [portions(None, Some(&service), 1000), portions(Some(service.clone()), None, 1000)] {
        assert_eq!(sizes, [1000; 10]);
    }
}

#[test]
fn a_changed_endpoint_costs_its_frontends_and_no_more() {
    let (before, mut after) = (large(10, 100, 9), large(10, 100, 9));
    after.ports[3].cluster.pop();
    assert_eq!(portions(Some(before.clone()), Some(&after), 1000), [200]);
    after.ports.iter_mut().for_each(|port| port.cluster.truncate(8));
    assert_eq!(portions(Some(before), Some(&after), 1000), [1000, 1000]);
}

#[test]
fn frontends_that_another_service_takes_can_go_first() {
    let before = large(2, 3, 1);
    let keys: HashSet<Key> =
        keys(Some(&before)).filter(|key| key.2 == Some(address(1)) || key.3 == 2).collect();
    let released = without(&before, None, &keys).unwrap();
    let left: Vec<Key> = super::keys(Some(&released)).collect();
    assert_eq!(left, [0, 2].map(|last| (Family::V4, Protocol::Tcp, Some(address(last)), 1)));
}

#[test]
fn what_is_small_in_any_case_is_not_compared() {
    let service = large(1, 1, 3);
    assert_eq!(size(Some(&service), Some(&service), 8), 8);
    assert_eq!(size(Some(&service), Some(&service), 7), 0);
}

#[test]
fn endpoints_that_change_everywhere_arrive_port_by_port() {
    let (before, mut after) = (large(30, 41, 9), large(30, 41, 12));
    for port in &mut after.ports {
        port.cluster.drain(..2);
        port.size = 10;
    }
    let sizes = portions(Some(before), Some(&after), 4096);
    assert_eq!(sizes, [16 * 41 * 6, 14 * 41 * 6]);
}
