//! The agent with a dataplane in memory, which records its calls and refuses what the test says.

use std::sync::Arc;

use ferroxy_core::event::{EndpointSlice, Node, Service, ServicePort, SliceEndpoint, SlicePort};
use ferroxy_core::{Family, ServiceName};
use ferroxy_dataplane::testing::{Faults, Faulty, Kernel, MEMORY, Memory};

use super::*;

mod fairness;
mod probes;

/// A Service with one port and one endpoint.
fn service(namespace: &str, name: &str, last: u8, port: i64) -> [Event; 2] {
    let address = format!("10.96.0.{last}");
    let ports = vec![ServicePort { port, protocol: "TCP".into(), ..ServicePort::default() }];
    let service = Service {
        namespace: namespace.into(),
        name: name.into(),
        cluster_ip: address.clone(),
        cluster_ips: vec![address],
        ports,
        ..Service::default()
    };
    let slice = EndpointSlice {
        namespace: namespace.into(),
        name: format!("{name}-1"),
        service: Some(name.into()),
        address_type: "IPv4".into(),
        ports: vec![SlicePort { name: Some(String::new()), protocol: "TCP".into(), port: Some(8080) }],
        endpoints: vec![SliceEndpoint {
            addresses: vec![format!("10.244.1.{last}")],
            ..SliceEndpoint::default()
        }],
        ..EndpointSlice::default()
    };
    [Event::Service(service), Event::Slice(slice)]
}

fn own_node() -> Event {
    let addresses = vec![("InternalIP".to_owned(), "172.18.0.2".to_owned())];
    Event::Node(Node { name: "ka".into(), addresses, ..Node::default() })
}

/// The API server, a DNS Service in `kube-system` and one elsewhere, and other Services that sort before and after.
fn cluster() -> Vec<Event> {
    let services = [
        service("apps", "aaa", 1, 80),
        service("default", "kubernetes", 2, 443),
        service("kube-system", "kube-dns", 3, 53),
        service("kube-system", "metrics", 4, 443),
        service("apps", "dns", 5, 53),
    ];
    services.into_iter().flatten().chain([own_node()]).collect()
}

fn agent(kernel: &Kernel) -> Agent {
    with_dataplane(Box::new(Memory::new(kernel)))
}

fn with_dataplane(dataplane: Box<dyn Dataplane>) -> Agent {
    let policy = Policy { node_name: "ka".into(), ..Policy::default() };
    let status = Arc::new(Status::new(&Family::ALL, Duration::from_secs(30)));
    Agent::new(&MEMORY, Facts::new(policy), dataplane, Periods::default(), status)
}

fn name(namespace: &str, name: &str) -> ServiceName {
    ServiceName::new(namespace, name)
}

#[test]
fn on_a_cold_node_the_api_server_and_dns_come_first() {
    let kernel = Kernel::default();
    let mut agent = agent(&kernel);
    drop(agent.apply(cluster()));
    assert_eq!(agent.start(&inbox().1), None);
    assert_eq!(
        kernel.take_journal(),
        ["start default/kubernetes kube-system/kube-dns", "change apps/aaa apps/dns kube-system/metrics",]
    );
}

#[test]
fn where_rules_are_in_force_everything_comes_at_once() {
    let kernel = Kernel::warm();
    let mut agent = agent(&kernel);
    drop(agent.apply(cluster()));
    assert_eq!(agent.start(&inbox().1), None);
    assert_eq!(
        kernel.take_journal(),
        ["start apps/aaa apps/dns default/kubernetes kube-system/kube-dns kube-system/metrics"]
    );
}

#[test]
fn the_first_sync_is_tried_until_it_succeeds() {
    let kernel = Kernel::warm();
    kernel.fail_next(2);
    let mut agent = agent(&kernel);
    drop(agent.apply(service("default", "web", 9, 80).into()));
    assert_eq!(agent.start(&inbox().1), None);
    assert_eq!(kernel.take_journal(), ["start default/web"; 3]);
}

#[test]
fn nothing_is_programmed_before_the_source_has_shown_all_and_the_node_has_an_address() {
    let kernel = Kernel::default();
    let mut agent = agent(&kernel);
    let (sender, inputs) = inbox();
    sender.send(Input::Events(service("default", "web", 9, 80).into())).unwrap();
    sender.send(Input::Listed).unwrap();
    sender.send(Input::Events(vec![own_node()])).unwrap();
    assert_eq!(agent.gather(&inputs), None);
    assert_eq!(kernel.take_journal(), Vec::<String>::new());
    assert_eq!(inputs.try_iter().count(), 0, "it knows its Node");

    // Without an address, or without a list, the agent goes on waiting until it is asked to stop.
    for inputs_before in [vec![own_node()], Vec::new()] {
        let kernel = Kernel::default();
        let mut waiting = self::agent(&kernel);
        let (sender, inputs) = inbox();
        sender.send(Input::Events(inputs_before)).unwrap();
        sender.send(Input::Stop("enough")).unwrap();
        assert_eq!(waiting.gather(&inputs), Some("enough"));
        assert_eq!(kernel.take_journal(), Vec::<String>::new());
    }
}

#[test]
fn what_failed_is_tried_again_and_other_settings_resolve_everything_anew() {
    let kernel = Kernel::warm();
    let mut agent = agent(&kernel);
    drop(agent.apply(cluster()));
    assert_eq!(agent.start(&inbox().1), None);
    kernel.take_journal();

    let now = Instant::now();
    let gone = Event::ServiceGone { namespace: "apps".into(), name: "dns".into() };
    assert_eq!(agent.take(Input::Events(vec![gone])), None);
    agent.work(now + Duration::from_secs(1));
    assert_eq!(kernel.take_journal(), ["tidy", "change apps/dns"]);

    let policy = Policy { node_name: "ka".into(), masquerade_all: true, ..Policy::default() };
    let new = Reconfiguration { policy, settings: Settings::default(), periods: Periods::default() };
    assert_eq!(agent.take(Input::Reconfigured(Box::new(new))), None);
    agent.work(now + Duration::from_secs(2));
    assert_eq!(
        kernel.take_journal(),
        ["node", "tidy", "change apps/aaa default/kubernetes kube-system/kube-dns kube-system/metrics"]
    );
}

#[test]
fn a_refused_service_is_retried_with_backoff_and_does_not_delay_others() {
    let kernel = Kernel::warm();
    let mut agent = agent(&kernel);
    assert_eq!(agent.start(&inbox().1), None);
    kernel.take_journal();
    kernel.refuse(&[name("apps", "a")]);
    let touched = agent.apply([service("apps", "a", 1, 80), service("apps", "b", 2, 80)].concat());
    let start = Instant::now();
    agent.touch(touched, start);
    // Every 10 ms for five seconds: 20 ms, 40 ms, … 1.28 s: eight attempts.
    let attempts = |agent: &mut Agent, milliseconds: std::ops::Range<u64>| {
        for now in milliseconds.step_by(10) {
            agent.change_services(start + Duration::from_millis(now));
        }
        kernel.take_journal()
    };
    let journal = attempts(&mut agent, 0..5000);
    assert_eq!(journal[0], "change apps/a apps/b");
    assert!(journal[1..].iter().all(|line| line == "change apps/a"), "{journal:?}");
    assert_eq!(journal.len(), 8, "{journal:?}");
    assert!(kernel.intent().services.contains_key(&name("apps", "b")));
    assert!(agent.status.now().refused.contains_key(&name("apps", "a")));

    kernel.refuse(&[]);
    assert_eq!(attempts(&mut agent, 5000..12_000), ["change apps/a"]);
    assert!(agent.queue.is_empty() && agent.status.now().refused.is_empty());
}

/// Even if changes are refused, fail or are reported as failed, the kernel finally has what the facts say.
#[test]
fn the_agent_converges_whatever_goes_wrong() {
    for seed in 0..20 {
        let kernel = Kernel::default();
        let faults = Faults { fail: 0, ..Faults::usual(seed) };
        let mut agent = with_dataplane(Box::new(Faulty::new(Box::new(Memory::new(&kernel)), faults)));
        drop(agent.apply(cluster()));
        assert_eq!(agent.start(&inbox().1), None);
        let touched = agent.apply(service("apps", "new", 9, 80).into());
        agent.touch(touched, Instant::now());
        kernel.tamper(&name("apps", "aaa"));
        let mut now = Instant::now();
        for _ in 0..10_000 {
            now += Duration::from_millis(20);
            agent.work(now);
        }
        let (wanted, _) = ferroxy_core::resolve::all(&agent.facts);
        assert_eq!(kernel.intent(), wanted, "seed {seed}");
        assert!(agent.queue.is_empty(), "seed {seed}");
    }
}

#[test]
fn drift_that_cannot_be_repaired_is_logged_once_and_retried_every_period() {
    let kernel = Kernel::warm();
    let mut agent = agent(&kernel);
    drop(agent.apply(service("apps", "a", 1, 80).into()));
    assert_eq!(agent.start(&inbox().1), None);
    kernel.break_for_good(Some("a rule"));
    for _ in 0..3 {
        kernel.tamper(&name("apps", "a"));
        agent.verify();
        assert_eq!(agent.verify_due, None, "not at once");
    }
    let failures = |agent: &Agent| agent.status.now().counts.full_sync_failures;
    assert_eq!((failures(&agent), agent.drift_repairs), (1, 0));
    kernel.break_for_good(None);
    kernel.tamper(&name("apps", "a"));
    agent.verify();
    assert_eq!((failures(&agent), agent.drift_repairs, &agent.unrepaired), (1, 1, &None));
}

/// In-flight packets may still use objects that a change leaves unused.
#[test]
fn what_a_change_leaves_unused_is_not_tidied_with_it() {
    let kernel = Kernel::warm();
    let mut agent = agent(&kernel);
    assert_eq!(agent.start(&inbox().1), None);
    kernel.take_journal();
    let now = Instant::now();
    let touched = agent.apply(service("apps", "a", 1, 80).into());
    agent.touch(touched, now);
    agent.tidy_due = Some(now);
    agent.work(now);
    assert_eq!(kernel.take_journal(), ["tidy", "change apps/a"]);
}

#[test]
fn drift_that_tidying_finds_is_verified_at_once() {
    let kernel = Kernel::default();
    kernel.let_tidying_find_drift();
    let mut agent = agent(&kernel);
    agent.tidy();
    assert!(agent.verify_due.is_some_and(|due| due <= Instant::now()));
}

#[test]
fn draining_endpoints_are_checked_until_they_are_gone() {
    let kernel = Kernel::default();
    kernel.drain_for(2);
    let mut agent = agent(&kernel);
    let now = Instant::now();
    agent.plan_to_drain(now);
    for (second, expected) in [(1, 0), (4, 0), (5, 1), (6, 0), (9, 0), (10, 1), (15, 0), (29, 0)] {
        agent.work(now + Duration::from_secs(second));
        assert_eq!(kernel.take_journal(), vec!["drain"; expected], "after {second} s");
    }
}

#[test]
fn a_service_that_is_refused_and_changes_all_the_time_keeps_to_its_rate() {
    let kernel = Kernel::warm();
    let mut agent = agent(&kernel);
    assert_eq!(agent.start(&inbox().1), None);
    kernel.refuse(&[name("apps", "a")]);
    kernel.take_journal();
    let start = Instant::now();
    for tick in 0..500 {
        let now = start + Duration::from_millis(10 * tick);
        agent.queue.add(name("apps", "a"), now);
        agent.change_services(now);
    }
    let attempts = kernel.take_journal().len();
    assert!(attempts <= 30, "{attempts} attempts in five seconds");
}

/// In each of its versions, a tenant's slice belongs to a different Service that does not exist.
#[test]
fn nothing_is_kept_of_services_that_a_slice_only_names() {
    let kernel = Kernel::warm();
    let mut agent = agent(&kernel);
    drop(agent.apply(cluster()));
    assert_eq!(agent.start(&inbox().1), None);
    for number in 0..1000 {
        let slice = EndpointSlice {
            namespace: "apps".into(),
            name: "restless".into(),
            service: Some(format!("nothing-{number}")),
            address_type: "IPv4".into(),
            last_change: Some(i64::MAX),
            ..EndpointSlice::default()
        };
        agent.take(Input::Events(vec![Event::Slice(slice)]));
    }
    assert_eq!((agent.queue.len(), agent.latency.waiting()), (0, 0));
}
