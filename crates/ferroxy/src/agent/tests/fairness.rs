//! Large Services among small ones: in portions, after and between them, and never in their way.

use std::collections::BTreeSet;

use ferroxy_core::resolve;

use super::*;
use crate::agent::portion;

/// 30 ports at a cluster IP and 40 others, with nine endpoints each: 12,300 pieces, which is more than three portions.
fn huge(name: &str, last: u8) -> [Event; 2] {
    let [Event::Service(mut service), Event::Slice(mut slice)] = service("apps", name, last, 80) else {
        unreachable!()
    };
    let port = |number: i64| ServicePort {
        name: format!("p{number}"),
        protocol: "TCP".into(),
        port: number,
        ..ServicePort::default()
    };
    service.ports = (1..=30).map(port).collect();
    service.external_ips = (1..=40).map(|other| format!("192.0.{last}.{other}")).collect();
    let of_slice = |port: &ServicePort| SlicePort {
        name: Some(port.name.clone()),
        protocol: "TCP".into(),
        port: Some(8080),
    };
    slice.ports = service.ports.iter().map(of_slice).collect();
    let endpoint = |number: u8| SliceEndpoint {
        addresses: vec![format!("10.244.{last}.{number}")],
        ..SliceEndpoint::default()
    };
    slice.endpoints = (1..=9).map(endpoint).collect();
    [Event::Service(service), Event::Slice(slice)]
}

fn gone(name: &str) -> Event {
    Event::ServiceGone { namespace: "apps".into(), name: name.into() }
}

/// An agent after its first sync.
struct Started {
    kernel: Kernel,
    agent: Agent,
    now: Instant,
}

impl Started {
    fn new() -> Started {
        let kernel = Kernel::warm();
        let mut agent = agent(&kernel);
        agent.courtesy.never_rest();
        assert_eq!(agent.start(&inbox().1), None);
        kernel.take_journal();
        Started { kernel, agent, now: Instant::now() }
    }

    /// Takes events and does one round; returns the calls of the dataplane. No two Services ever have the same frontend.
    fn round(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let touched = self.agent.apply(events.into_iter().collect());
        self.agent.touch(touched, self.now);
        self.agent.change_services(self.now);
        let intent = self.kernel.intent();
        let all: Vec<_> = intent.services.values().flat_map(|it| portion::keys(Some(it))).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a frontend of two Services");
        self.kernel.take_journal()
    }

    fn frontends(&self, of: &str) -> usize {
        let intent = self.kernel.intent();
        portion::keys(intent.services.get(&name("apps", of)).map(AsRef::as_ref)).count()
    }

    fn is_in_sync(&self) -> bool {
        self.kernel.intent().services == resolve::all(&self.agent.facts).0.services
    }
}

#[test]
fn small_services_go_before_and_between_the_portions_of_a_huge_one() {
    let mut it = Started::new();
    let first = it.round([huge("huge", 1), service("apps", "a", 2, 80)].concat());
    assert_eq!(first, ["change apps/a", "change apps/huge"]);
    let mut frontends = vec![it.frontends("huge")];
    for last in 3.. {
        assert_eq!(it.agent.waiting.large(), 1);
        let name = format!("s{last}");
        let journal = it.round(service("apps", &name, last, 80));
        assert_eq!(journal, [format!("change apps/{name}"), "change apps/huge".into()]);
        frontends.push(it.frontends("huge"));
        if it.agent.queue.is_empty() {
            break;
        }
    }
    assert_eq!(frontends, [409, 818, 1227, 30 * 41]);
    assert!(it.is_in_sync() && it.agent.waiting.large() == 0);
}

#[test]
fn a_huge_service_counts_as_programmed_only_when_it_is_whole() {
    let mut it = Started::new();
    it.round(huge("huge", 1));
    let pending = |it: &Started| it.agent.status.now().counts.changes.services.pending;
    assert_eq!((pending(&it), it.agent.queue.len()), (1, 1));
    while !it.agent.queue.is_empty() {
        assert_eq!(pending(&it), 1);
        it.round([]);
    }
    assert_eq!(pending(&it), 0);
}

#[test]
fn a_newer_change_replaces_the_portions_that_are_left() {
    let mut it = Started::new();
    it.round(huge("huge", 1));
    assert_eq!(it.round([gone("huge")]), ["change apps/huge"]);
    assert!(it.is_in_sync() && it.agent.queue.is_empty() && it.frontends("huge") == 0);
}

#[test]
fn huge_services_take_turns() {
    let mut it = Started::new();
    let mut journal = it.round([huge("x", 1), huge("y", 2), huge("z", 3)].concat());
    while !it.agent.queue.is_empty() {
        journal.extend(it.round([]));
    }
    assert_eq!(journal, ["change apps/x", "change apps/y", "change apps/z"].repeat(4));
    assert!(it.is_in_sync());
}

#[test]
fn removing_and_changing_come_in_portions_too() {
    let mut it = Started::new();
    it.round(huge("huge", 1));
    while !it.agent.queue.is_empty() {
        it.round([]);
    }
    let [_, Event::Slice(mut slice)] = huge("huge", 1) else { unreachable!() };
    slice.endpoints.iter_mut().for_each(|it| it.addresses[0] = it.addresses[0].replace("10.244", "10.245"));
    let mut rounds = [0, 0];
    for (rounds, event) in rounds.iter_mut().zip([Event::Slice(slice), gone("huge")]) {
        it.round([event]);
        *rounds = 1;
        while !it.agent.queue.is_empty() {
            it.round([]);
            *rounds += 1;
        }
        assert!(it.is_in_sync());
    }
    assert_eq!(rounds, [6, 4]);
}

#[test]
fn a_frontend_that_moves_from_a_huge_service_moves_in_one_change() {
    let mut it = Started::new();
    it.round(huge("huge", 1));
    while !it.agent.queue.is_empty() {
        it.round([]);
    }
    // The same cluster IP: port 30 of it is the last that a portion would remove.
    let events = [vec![gone("huge")], service("apps", "heir", 1, 30).into()].concat();
    assert_eq!(it.round(events), ["change apps/heir apps/huge", "change apps/huge"]);
    assert_eq!(it.frontends("heir"), 1);
    while !it.agent.queue.is_empty() {
        it.round([]);
    }
    assert!(it.is_in_sync());
}

#[test]
fn a_huge_service_that_is_refused_slows_down_alone() {
    let mut it = Started::new();
    it.kernel.refuse(&[name("apps", "huge")]);
    assert_eq!(it.round(huge("huge", 1)), ["change apps/huge"]);
    assert_eq!(it.round(service("apps", "a", 2, 80)), ["change apps/a"]);
    it.kernel.refuse(&[]);
    it.now += Duration::from_secs(1);
    while !it.agent.queue.is_empty() {
        assert_eq!(it.round([]), ["change apps/huge"]);
    }
    assert!(it.is_in_sync());
}

#[test]
fn a_round_of_small_services_has_a_bound_and_the_smallest_come_first() {
    let mut it = Started::new();
    // Each is a third of the huge Service: not large, but 20 of them exceed a round.
    let medium = |number: u8| {
        let [Event::Service(mut service), slice] = huge(&format!("m{number}"), number) else {
            unreachable!()
        };
        service.ports.truncate(9);
        [Event::Service(service), slice]
    };
    let many: Vec<Event> = (1..=30).flat_map(medium).collect();
    let first = it.round(many);
    assert!(first.len() == 1 && first[0].split(' ').count() < 20, "{first:?}");
    let second = it.round(service("zoo", "zebra", 200, 80));
    assert!(second[0].contains("zoo/zebra"), "{second:?}");
    while !it.agent.queue.is_empty() {
        it.round([]);
    }
    assert!(it.is_in_sync());
}

#[test]
fn small_services_have_the_agent_to_themselves_after_a_portion() {
    let mut it = Started::new();
    it.agent.courtesy = Courtesy::default();
    let first = it.round([huge("huge", 1), service("apps", "a", 2, 80)].concat());
    assert_eq!(first, ["change apps/a", "change apps/huge"]);
    // The Service rests many times as long as its portion took, even if it changes.
    assert_eq!(it.round(service("apps", "b", 3, 80)), ["change apps/b"]);
    let [_, slice] = huge("huge", 4);
    assert_eq!(it.round([slice]), [""; 0]);
    assert!(it.agent.courtesy.is_unresolved(&name("apps", "huge")));
    // Other large Services do not rest with it.
    assert_eq!(it.round(huge("other", 9)), ["change apps/other"]);
    // A frontend that it gives up does not rest: another Service may wait for it.
    let events = [vec![gone("huge")], service("apps", "heir", 1, 30).into()].concat();
    assert_eq!(it.round(events), ["change apps/heir apps/huge"]);
    while !it.agent.queue.is_empty() {
        it.now += Duration::from_secs(5);
        it.round([]);
    }
    assert!(it.is_in_sync());
}

#[test]
fn a_small_change_of_a_large_service_is_whole() {
    let mut it = Started::new();
    it.round(huge("huge", 1));
    while !it.agent.queue.is_empty() {
        it.round([]);
    }
    let [Event::Service(mut service), _] = huge("huge", 1) else { unreachable!() };
    service.external_ips.pop();
    service.external_ips.push("192.0.3.1".into());
    it.round([Event::Service(service)]);
    assert!(it.agent.queue.is_empty() && it.is_in_sync());
}

#[test]
fn on_a_cold_node_huge_services_come_last() {
    let kernel = Kernel::default();
    let mut agent = agent(&kernel);
    drop(agent.apply([cluster(), huge("a-huge", 9).into()].concat()));
    assert_eq!(agent.start(&inbox().1), None);
    let mut now = Instant::now();
    while !agent.queue.is_empty() {
        agent.change_services(now);
        now += Duration::from_millis(1);
    }
    let journal = kernel.take_journal();
    let expected = [
        "start default/kubernetes kube-system/kube-dns",
        "change apps/aaa apps/dns kube-system/metrics",
        "change apps/a-huge",
    ];
    assert_eq!(journal[..3], expected);
    assert_eq!(journal[3..], ["change apps/a-huge"; 3]);
    assert_eq!(kernel.intent().services, resolve::all(&agent.facts).0.services);
}

/// Even if a portion is refused, fails or is reported as failed.
#[test]
fn huge_services_converge_whatever_goes_wrong() {
    for seed in 0..10 {
        let kernel = Kernel::default();
        let faults = Faults { fail: 0, ..Faults::usual(seed) };
        let mut agent = with_dataplane(Box::new(Faulty::new(Box::new(Memory::new(&kernel)), faults)));
        drop(agent.apply(cluster()));
        assert_eq!(agent.start(&inbox().1), None);
        let mut now = Instant::now();
        for events in [huge("x", 11), huge("y", 12), service("apps", "x", 11, 9)] {
            let touched = agent.apply(events.into());
            agent.touch(touched, now);
            for _ in 0..3 {
                now += Duration::from_millis(20);
                agent.work(now);
            }
        }
        kernel.tamper(&name("apps", "y"));
        for _ in 0..10_000 {
            now += Duration::from_millis(20);
            agent.work(now);
        }
        assert_eq!(kernel.intent(), resolve::all(&agent.facts).0, "seed {seed}");
        assert!(agent.queue.is_empty(), "seed {seed}");
    }
}
