//! Questions to an agent with a dataplane in memory, and what it writes into its journal.

use ferroxy_core::event::{EndpointSlice, Service as Object, ServicePort, SliceEndpoint, SlicePort};
use ferroxy_core::{Event, Facts, Family, Policy};
use ferroxy_dataplane::testing::{Kernel, MEMORY, Memory};
use std::time::Duration;
use tokio::sync::oneshot;

use super::*;
use crate::agent::{Input, Periods, inbox};
use crate::journal::Journal;
use crate::serve::Status;

fn service(name: &str, number: usize) -> Event {
    let address = format!("10.96.{}.{}", number / 250, number % 250 + 1);
    let ports = vec![ServicePort { port: 80, protocol: "TCP".into(), ..ServicePort::default() }];
    Event::Service(Object {
        namespace: "default".into(),
        name: name.into(),
        cluster_ip: address.clone(),
        cluster_ips: vec![address],
        ports,
        ..Object::default()
    })
}

fn slice(service: &str, endpoints: usize) -> Event {
    let endpoint = |number: usize| SliceEndpoint {
        addresses: vec![format!("10.244.{}.{}", number / 250, number % 250 + 1)],
        ..SliceEndpoint::default()
    };
    Event::Slice(EndpointSlice {
        namespace: "default".into(),
        name: format!("{service}-1"),
        service: Some(service.into()),
        address_type: "IPv4".into(),
        ports: vec![SlicePort { name: Some(String::new()), protocol: "TCP".into(), port: Some(8080) }],
        endpoints: (0..endpoints).map(endpoint).collect(),
        ..EndpointSlice::default()
    })
}

fn agent(kernel: &Kernel, events: Vec<Event>) -> Agent {
    let policy = Policy { node_name: "ka".into(), ..Policy::default() };
    let mut status = Status::new(&Family::ALL, Duration::from_secs(30));
    status.journal = Some(Journal::default());
    let dataplane = Box::new(Memory::new(kernel));
    let mut agent = Agent::new(&MEMORY, Facts::new(policy), dataplane, Periods::default(), Arc::new(status));
    drop(agent.apply(events));
    assert_eq!(agent.start(&inbox().1), None);
    agent
}

fn ask<T>(agent: &mut Agent, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> T {
    let (reply, mut answer) = oneshot::channel();
    assert_eq!(agent.handle([Input::Ask(question(reply))]), None);
    answer.try_recv().unwrap()
}

fn rows(agent: &mut Agent, after: Option<&str>, limit: usize) -> Part<Row> {
    let after = after.map(|name| ServiceName::new("default", name));
    ask(agent, |reply| Question::Services { after, limit, reply })
}

fn names<T>(part: &Part<T>, name: impl Fn(&T) -> &ServiceName) -> String {
    part.items.iter().map(|item| name(item).name()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_list_has_the_state_of_each_service() {
    let kernel = Kernel::default();
    let mut headless = Object { namespace: "default".into(), name: "db".into(), ..Object::default() };
    headless.cluster_ip = "None".into();
    let events = vec![service("web", 1), slice("web", 3), service("empty", 2), Event::Service(headless)];
    let mut agent = agent(&kernel, events);
    let part = rows(&mut agent, None, 10);
    assert_eq!(names(&part, |row| &row.name), "db empty web");
    let states: Vec<State> = part.items.iter().map(|row| row.state).collect();
    assert_eq!(states, [State::NotHandled, State::Problem, State::Fine]);
    let problems: Vec<usize> = part.items.iter().map(|row| row.problems).collect();
    assert_eq!(problems, [0, 1, 0]);
    assert!(part.items[0].not_handled.as_ref().unwrap().contains("headless"));
    assert!(part.items[1].problem.as_ref().unwrap().contains("no EndpointSlice"));
    assert_eq!((part.items[2].used, part.items[2].total, part.items[2].kind), (3, 3, "ClusterIP"));
}

#[test]
fn a_list_comes_in_parts() {
    let mut agent = agent(&Kernel::default(), (0..5).map(|it| service(&format!("s{it}"), it)).collect());
    let part = rows(&mut agent, None, 2);
    assert_eq!(
        (names(&part, |row| &row.name), part.next),
        ("s0 s1".into(), Some(ServiceName::new("default", "s1")))
    );
    let part = rows(&mut agent, Some("s1"), 3);
    assert_eq!((names(&part, |row| &row.name), part.next), ("s2 s3 s4".into(), None), "nothing follows");
    assert!(rows(&mut agent, Some("s4"), 3).items.is_empty());
}

#[test]
fn one_question_does_bounded_work() {
    let many = (0..MOST_SERVICES + 5).map(|it| service(&format!("s{it:03}"), it)).collect();
    let part = rows(&mut agent(&Kernel::default(), many), None, usize::MAX);
    assert_eq!((part.items.len(), part.next.is_some()), (MOST_SERVICES, true));
    let large = vec![service("a", 1), slice("a", MOST_WORK), service("b", 2)];
    let part = rows(&mut agent(&Kernel::default(), large), None, usize::MAX);
    assert_eq!(
        (names(&part, |row| &row.name), part.next.is_some()),
        ("a".into(), true),
        "it is looked at alone"
    );
}

#[test]
fn named_services_are_found() {
    let mut agent = agent(&Kernel::default(), vec![service("web", 1)]);
    let names = ["none", "web"].map(|name| ServiceName::new("default", name)).into();
    let part = ask(&mut agent, |reply| Question::Named { names, reply });
    assert_eq!(part.items.len(), 1);
}

#[test]
fn a_service_is_explained_with_what_is_in_force() {
    let mut agent = agent(&Kernel::default(), vec![service("web", 1), slice("web", 2)]);
    let explain = |agent: &mut Agent, name: &str| {
        let name = ServiceName::new("default", name);
        ask(agent, |reply| Question::Explain { name, reply })
    };
    let explained = explain(&mut agent, "web");
    assert_eq!((explained.in_force, explained.desired.is_some()), (InForce::All, true));
    // The Service changes, and the change is not programmed yet.
    drop(agent.apply(vec![slice("web", 3)]));
    let (reply, mut answer) = oneshot::channel();
    agent.answer(Question::Explain { name: ServiceName::new("default", "web"), reply });
    assert_eq!(answer.try_recv().unwrap().in_force, InForce::NotYet);
    let explained = explain(&mut agent, "nothing");
    assert!(matches!(explained.explanation.standing, Standing::Unknown { .. }));
}

#[test]
fn the_dataplane_is_asked_what_it_cannot_do_for_a_service() {
    let kernel = Kernel::default();
    kernel.fall_short("this kernel has no session affinity");
    let mut agent = agent(&kernel, vec![service("web", 1), slice("web", 2)]);
    let name = ServiceName::new("default", "web");
    let explained = ask(&mut agent, |reply| Question::Explain { name, reply });
    let reasons: Vec<&str> = explained.shortcomings.iter().map(|it| it.reason.as_str()).collect();
    assert_eq!(reasons, ["this kernel has no session affinity"]);
}

#[test]
fn only_services_that_concern_a_packet_are_found() {
    let events = vec![service("web", 1), slice("web", 2), service("api", 2), slice("api", 1)];
    let mut agent = agent(&Kernel::default(), events);
    let mut concerned = |to: &str| {
        let asked = Asked { from: "192.0.2.1".into(), to: to.into(), interface: None };
        let described = ask(&mut agent, |reply| Question::Packet { asked, reply }).unwrap();
        let question = |reply| Question::Concerned { packet: described.packet, after: None, reply };
        names(&ask(&mut agent, question), |service| &service.name)
    };
    assert_eq!(concerned("10.96.0.2:80"), "web");
    assert_eq!(concerned("default/api:80"), "api");
    assert_eq!(concerned("10.244.0.2:8080"), "web", "its endpoint");
    assert_eq!(concerned("192.0.2.7:80"), "");
    let asked = Asked { from: "192.0.2.1".into(), to: "10.96.0.2".into(), interface: None };
    let words = ask(&mut agent, |reply| Question::Packet { asked, reply }).unwrap_err();
    assert!(words.starts_with("TO: `10.96.0.2` has no port"), "{words}");
}

/// A deleted Service that is not removed yet is still in force.
#[test]
fn the_ledger_comes_with_the_objects() {
    let events = vec![service("web", 1), slice("web", 2), service("api", 2)];
    let mut agent = agent(&Kernel::default(), events);
    let known = |agent: &mut Agent| {
        let part = ask(agent, |reply| Question::Objects { after: None, limit: 10, reply });
        let (mut objects, mut in_force, mut nodes) = (0, Vec::new(), 0);
        for item in part.items {
            match item {
                Known::Object(_) => objects += 1,
                Known::Node(_) => nodes += 1,
                Known::Service(service) => in_force.push(service.name.name().to_owned()),
            }
        }
        (objects, nodes, in_force.join(" "))
    };
    assert_eq!(known(&mut agent), (3, 1, "api web".to_owned()));
    let gone = Event::ServiceGone { namespace: "default".into(), name: "web".into() };
    drop(agent.apply(vec![gone]));
    assert_eq!(known(&mut agent), (2, 1, "api web".to_owned()), "its EndpointSlice is there");
}

#[test]
fn names_of_two_lists_are_merged() {
    let list = |names: &[&str]| names.iter().map(|it| ServiceName::new("a", it)).collect::<Vec<_>>();
    let (one, other) = (list(&["b", "c", "f"]), list(&["a", "c", "d", "g"]));
    let all: Vec<&str> = merged(one.iter(), other.iter()).map(ServiceName::name).collect();
    assert_eq!(all, ["a", "b", "c", "d", "f", "g"]);
}

#[test]
fn changes_are_in_the_journal() {
    let mut agent = agent(&Kernel::default(), vec![service("web", 1), slice("web", 2)]);
    agent.handle([Input::Events(vec![slice("web", 3)])]);
    // The slice is written again without a change.
    agent.handle([Input::Events(vec![slice("web", 3)])]);
    let gone = Event::ServiceGone { namespace: "default".into(), name: "web".into() };
    agent.handle([Input::Events(vec![gone])]);
    let entries = agent.status.journal.as_ref().unwrap().after(0, 100).entries;
    let said: Vec<String> =
        entries.iter().map(|entry| format!("{}: {}", entry.what.word(), entry.sentence())).collect();
    let expected = [
        "started: in sync: 1 of 1 Services programmed, 2 endpoints",
        "changed: 2 → 3 endpoints",
        "removed: it had 1 frontend, 3 endpoints",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_round_of_many_services_is_one_entry() {
    let mut agent = agent(&Kernel::default(), Vec::new());
    agent.handle([Input::Events((0..150).map(|it| service(&format!("s{it}"), it)).collect())]);
    let entries = agent.status.journal.as_ref().unwrap().after(0, 1000).entries;
    assert_eq!((entries.len(), entries[1].together), (2, 150));
    assert_eq!(entries[1].sentence(), "150 Services were programmed together");
}

#[test]
fn an_answer_that_is_not_wanted_any_more_is_not_made() {
    let agent = agent(&Kernel::default(), vec![service("web", 1)]);
    let (reply, answer) = oneshot::channel();
    drop(answer);
    agent.answer(Question::Services { after: None, limit: 1, reply });
}
